//! Tests of creating, reading, changing and deleting objects through a `kube::Client` in process.

use crate::support::{client, eventually, object, open, refusal, server, widget, widget_api, widgets};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Pod, Secret, Service};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use serde_json::{Value, json};
use warren_apiserver::Storage;

fn pod(name: &str) -> Pod {
    object(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "warren.dev/host"}]},
    }))
}

fn config_map(name: &str, labels: Value) -> ConfigMap {
    object(json!({"metadata": {"name": name, "labels": labels}, "data": {"key": "value"}}))
}

fn as_json<T: serde::Serialize>(object: &T) -> Value {
    serde_json::to_value(object).unwrap()
}

#[tokio::test]
async fn a_pod_gets_its_defaults() {
    let (_server, client) = server().await;
    let pods: Api<Pod> = Api::default_namespaced(client);
    let created = as_json(&pods.create(&PostParams::default(), &pod("one")).await.unwrap());
    assert_eq!(created["metadata"]["namespace"], "default");
    assert_eq!(created["metadata"]["generation"], 1);
    assert!(created["metadata"]["uid"].is_string() && created["metadata"]["creationTimestamp"].is_string());
    assert_eq!(created["spec"]["restartPolicy"], "Always");
    assert_eq!(created["spec"]["terminationGracePeriodSeconds"], 30);
    assert_eq!(created["spec"]["dnsPolicy"], "ClusterFirst");
    assert_eq!(created["spec"]["containers"][0]["imagePullPolicy"], "Always");
    assert_eq!(created["spec"]["containers"][0]["terminationMessagePath"], "/dev/termination-log");
    assert_eq!(created["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
}

#[tokio::test]
async fn refusals_read_like_the_real_ones() {
    let (_server, client) = server().await;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let missing = refusal(pods.get("nobody").await);
    assert_eq!((missing.code, missing.message.as_str()), (404, r#"pods "nobody" not found"#));

    let created = pods.create(&PostParams::default(), &pod("one")).await.unwrap();
    let again = refusal(pods.create(&PostParams::default(), &pod("one")).await);
    assert_eq!((again.code, again.reason.as_str()), (409, "AlreadyExists"));
    assert_eq!(again.message, r#"pods "one" already exists"#);

    let patch = json!({"metadata": {"labels": {"a": "1"}}});
    pods.patch("one", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let stale = refusal(pods.replace("one", &PostParams::default(), &created).await);
    assert_eq!((stale.code, stale.reason.as_str()), (409, "Conflict"));
    assert_eq!(
        stale.message,
        r#"Operation cannot be fulfilled on pods "one": the object has been modified; please apply your changes to the latest version and try again"#
    );

    let mut bad = pod("Bad_Name");
    bad.spec.as_mut().unwrap().containers.clear();
    let invalid = refusal(pods.create(&PostParams::default(), &bad).await);
    assert_eq!((invalid.code, invalid.reason.as_str()), (422, "Invalid"));
    let causes: Vec<_> =
        invalid.details.unwrap().causes.into_iter().map(|cause| (cause.field, cause.reason)).collect();
    assert_eq!(
        causes,
        [
            ("metadata.name".to_owned(), "FieldValueInvalid".to_owned()),
            ("spec.containers".to_owned(), "FieldValueRequired".to_owned()),
        ]
    );

    let elsewhere: Api<Pod> = Api::namespaced(client, "nowhere");
    let lost = refusal(elsewhere.create(&PostParams::default(), &pod("one")).await);
    assert_eq!((lost.code, lost.message.as_str()), (404, r#"namespaces "nowhere" not found"#));
}

#[tokio::test]
async fn a_pods_spec_is_immutable_but_for_a_few_fields() {
    let (_server, client) = server().await;
    let pods: Api<Pod> = Api::default_namespaced(client);
    pods.create(&PostParams::default(), &pod("one")).await.unwrap();
    let image = json!({"spec": {"containers": [{"name": "main", "image": "other:1"}]}});
    let changed = pods.patch("one", &PatchParams::default(), &Patch::Strategic(image)).await.unwrap();
    assert_eq!(changed.metadata.generation, Some(2));
    let host = json!({"spec": {"hostNetwork": true}});
    let refused = refusal(pods.patch("one", &PatchParams::default(), &Patch::Merge(host)).await);
    assert_eq!(refused.code, 422);
    assert!(refused.message.starts_with(
        r#"Pod "one" is invalid: spec: Forbidden: pod updates may not change fields other than"#
    ));
}

#[tokio::test]
async fn status_and_spec_are_kept_apart() {
    let (_server, client) = server().await;
    let widgets = widget_api(&client);
    widgets.create(&PostParams::default(), &widget("one", json!({"name": "a"}))).await.unwrap();
    let both = json!({"spec": {"replicas": 2}, "status": {"phase": "Ready", "unknown": 1}});
    let status = widgets.patch_status("one", &PatchParams::default(), &Patch::Merge(&both)).await.unwrap();
    assert_eq!(status.data["spec"]["replicas"], 1);
    assert_eq!(status.data["status"], json!({"phase": "Ready"}));
    assert_eq!(status.metadata.generation, Some(1));
    let main = json!({"spec": {"replicas": 2}, "status": {"phase": "Gone"}});
    let main = widgets.patch("one", &PatchParams::default(), &Patch::Merge(&main)).await.unwrap();
    assert_eq!(main.data["spec"]["replicas"], 2);
    assert_eq!(main.data["status"]["phase"], "Ready");
    assert_eq!(main.metadata.generation, Some(2));
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let label = widgets.patch("one", &PatchParams::default(), &Patch::Merge(&label)).await.unwrap();
    assert_eq!(label.metadata.generation, Some(2));
    let nothing = widgets.patch("one", &PatchParams::default(), &Patch::Merge(json!({}))).await.unwrap();
    assert_eq!(
        nothing.metadata.resource_version, label.metadata.resource_version,
        "nothing changed, nothing written"
    );
}

#[tokio::test]
async fn scaling_a_custom_resource() {
    let (_server, client) = server().await;
    let widgets = widget_api(&client);
    widgets.create(&PostParams::default(), &widget("one", json!({"name": "a"}))).await.unwrap();
    let patch = Patch::Merge(json!({"spec": {"replicas": 3}}));
    let scale = widgets.patch_scale("one", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(scale.spec.unwrap().replicas, Some(3));
    assert_eq!(widgets.get("one").await.unwrap().data["spec"]["replicas"], 3);
}

#[tokio::test]
async fn custom_resources_follow_their_schema() {
    let (_server, client) = server().await;
    let widgets = widget_api(&client);
    let spec = json!({
        "name": "a", "unknown": true, "owner": "me", "ports": [{"port": 1}], "free": {"any": {"thing": 1}}
    });
    let created = widgets.create(&PostParams::default(), &widget("one", spec)).await.unwrap();
    assert_eq!(
        created.data["spec"],
        json!({
            "name": "a", "owner": "me", "ports": [{"port": 1, "protocol": "TCP"}], "free": {"any": {"thing": 1}},
            "size": "small", "replicas": 1,
        }),
        "pruned and defaulted"
    );

    let bad = json!({"name": "TOO-LONG-AND-LOUD", "size": "huge", "replicas": -1, "ports": [{"port": 1}, {"port": 1}]});
    let invalid = refusal(widgets.create(&PostParams::default(), &widget("two", bad)).await);
    assert_eq!(invalid.code, 422);
    let fields: Vec<_> = invalid.details.unwrap().causes.into_iter().map(|cause| cause.field).collect();
    for field in ["spec.name", "spec.size", "spec.replicas", "spec.ports[1]", "<nil>"] {
        assert!(fields.iter().any(|known| known == field), "{field} not in {fields:?}");
    }

    let missing = refusal(widgets.create(&PostParams::default(), &widget("two", json!({}))).await);
    assert!(
        missing.message.starts_with(r#"Widget.example.com "two" is invalid: [spec.name: Required value"#),
        "{}",
        missing.message
    );

    let rule = json!({"name": "a", "size": "large", "replicas": 4});
    let rule = refusal(widgets.create(&PostParams::default(), &widget("two", rule)).await);
    assert!(rule.message.contains("large widgets come in threes"), "{}", rule.message);

    let owner = Patch::Merge(json!({"spec": {"owner": "you"}}));
    let transition = refusal(widgets.patch("one", &PatchParams::default(), &owner).await);
    assert!(transition.message.contains("owner is immutable"), "{}", transition.message);
}

#[tokio::test]
async fn definitions_come_and_go_at_run_time() {
    let (_server, client) = server().await;
    let definitions: Api<
        k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    > = Api::all(client.clone());
    let mut gadgets = widgets();
    gadgets["metadata"]["name"] = "gadgets.example.com".into();
    gadgets["spec"]["names"] = json!({"plural": "gadgets", "kind": "Gadget"});
    let created = definitions.create(&PostParams::default(), &object(gadgets)).await.unwrap();
    let conditions = created.status.unwrap().conditions.unwrap();
    assert!(
        conditions.iter().any(|condition| condition.type_ == "Established" && condition.status == "True")
    );
    let api = crate::support::dynamic(&client, "example.com", "v1", "Gadget");
    let gadget = object(json!({
        "apiVersion": "example.com/v1", "kind": "Gadget", "metadata": {"name": "one"}, "spec": {"name": "a"},
    }));
    api.create(&PostParams::default(), &gadget).await.unwrap();
    definitions.delete("gadgets.example.com", &DeleteParams::default()).await.unwrap();
    eventually("the definition is gone", || async {
        definitions.get_opt("gadgets.example.com").await.unwrap().is_none()
    })
    .await;
    assert_eq!(refusal(api.get("one").await).code, 404);
    let bad: Value = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "wrong.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-validations": [{"rule": "self.("}]
            }}}]},
    });
    let refused = refusal(definitions.create(&PostParams::default(), &object(bad)).await);
    let fields: Vec<_> = refused.details.unwrap().causes.into_iter().map(|cause| cause.field).collect();
    let rule = "spec.validation.openAPIV3Schema.x-kubernetes-validations[0].rule";
    assert_eq!(fields, ["metadata.name", rule]);
}

#[tokio::test]
async fn lists_select_and_page() {
    let (_server, client) = server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    for index in 0..5 {
        let labels = json!({"parity": if index % 2 == 0 { "even" } else { "odd" }});
        maps.create(&PostParams::default(), &config_map(&format!("m{index}"), labels)).await.unwrap();
    }
    let even = maps.list(&ListParams::default().labels("parity=even")).await.unwrap();
    assert_eq!(even.items.len(), 3);
    let one = maps.list(&ListParams::default().fields("metadata.name=m3")).await.unwrap();
    assert_eq!(one.items.len(), 1);
    let first = maps.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(first.metadata.remaining_item_count, Some(4), "one more is in every namespace");
    let token = first.metadata.continue_.unwrap();
    maps.delete("m4", &DeleteParams::default()).await.unwrap();
    let rest = maps.list(&ListParams::default().continue_token(&token)).await.unwrap();
    let names: Vec<_> = rest.items.iter().map(|map| map.metadata.name.clone().unwrap()).collect();
    assert_eq!(names, ["m1", "m2", "m3", "m4"], "as of the first page");
    let refused = refusal(maps.list(&ListParams::default().fields("data.key=value")).await);
    assert_eq!(refused.code, 400);
    assert_eq!(refusal(maps.list(&ListParams::default().labels("a in (")).await).code, 400);
    assert_eq!(refusal(maps.list(&ListParams::default().continue_token("nonsense")).await).code, 400);
}

#[tokio::test]
async fn pods_are_deleted_gracefully() {
    let (_server, client) = server().await;
    let pods: Api<Pod> = Api::default_namespaced(client);
    pods.create(&PostParams::default(), &pod("waiting")).await.unwrap();
    pods.delete("waiting", &DeleteParams::default()).await.unwrap();
    assert!(pods.get_opt("waiting").await.unwrap().is_none(), "no node has it, so nobody needs the time");

    let mut assigned = pod("running");
    assigned.spec.as_mut().unwrap().node_name = Some("here".to_owned());
    pods.create(&PostParams::default(), &assigned).await.unwrap();
    let marked = pods.delete("running", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert_eq!(marked.metadata.deletion_grace_period_seconds, Some(30));
    assert!(marked.metadata.deletion_timestamp.is_some());
    let node = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    pods.delete("running", &node).await.unwrap();
    assert!(pods.get_opt("running").await.unwrap().is_none());
}

#[tokio::test]
async fn finalizers_hold_an_object_and_nothing_new_joins_them() {
    let (_server, client) = server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let mut held = config_map("held", json!({}));
    held.metadata.finalizers = Some(vec!["example.com/hold".to_owned()]);
    maps.create(&PostParams::default(), &held).await.unwrap();
    maps.delete("held", &DeleteParams::default()).await.unwrap();
    assert!(maps.get("held").await.unwrap().metadata.deletion_timestamp.is_some());
    let more = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}}));
    let refused = refusal(maps.patch("held", &PatchParams::default(), &more).await);
    assert!(
        refused.message.contains("no new finalizers can be added if the object is being deleted"),
        "{}",
        refused.message
    );
    let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    maps.patch("held", &PatchParams::default(), &none).await.unwrap();
    assert!(maps.get_opt("held").await.unwrap().is_none());
}

#[tokio::test]
async fn preconditions_guard_a_deletion() {
    let (_server, client) = server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    maps.create(&PostParams::default(), &config_map("one", json!({}))).await.unwrap();
    let wrong = Preconditions { uid: Some("other".to_owned()), ..Preconditions::default() };
    let refused = refusal(maps.delete("one", &DeleteParams::default().preconditions(wrong)).await);
    assert_eq!(refused.code, 409);
    assert!(
        refused.message.contains("the UID in the precondition (other) does not match the UID in record (")
    );
}

#[tokio::test]
async fn dry_runs_change_nothing() {
    let (_server, client) = server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    assert!(maps.create(&dry, &config_map("one", json!({}))).await.unwrap().metadata.uid.is_some());
    assert!(maps.get_opt("one").await.unwrap().is_none());
    maps.create(&PostParams::default(), &config_map("one", json!({}))).await.unwrap();
    maps.delete("one", &DeleteParams::default().dry_run()).await.unwrap();
    assert!(maps.get_opt("one").await.unwrap().is_some());
}

#[tokio::test]
async fn generated_names_are_unique() {
    let (_server, client) = server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let generated: ConfigMap = object(json!({"metadata": {"generateName": "map-"}}));
    let one = maps.create(&PostParams::default(), &generated).await.unwrap().metadata.name.unwrap();
    let two = maps.create(&PostParams::default(), &generated).await.unwrap().metadata.name.unwrap();
    assert!(one.starts_with("map-") && one.len() == 9 && one != two);
}

#[tokio::test]
async fn dependents_go_with_their_owner() {
    let (_server, client) = server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    for policy in [PropagationPolicy::Background, PropagationPolicy::Foreground, PropagationPolicy::Orphan] {
        let orphans = policy == PropagationPolicy::Orphan;
        let owner = maps.create(&PostParams::default(), &config_map("owner", json!({}))).await.unwrap();
        let mut dependent = config_map("dependent", json!({}));
        dependent.metadata.owner_references = Some(vec![object(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid,
            "blockOwnerDeletion": true, "controller": true,
        }))]);
        maps.create(&PostParams::default(), &dependent).await.unwrap();
        let parameters = DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() };
        maps.delete("owner", &parameters).await.unwrap();
        eventually("the owner is gone", || async { maps.get_opt("owner").await.unwrap().is_none() }).await;
        if orphans {
            let orphan = maps.get("dependent").await.unwrap();
            assert_eq!(orphan.metadata.owner_references, None);
        } else {
            eventually("the dependent is gone", || async {
                maps.get_opt("dependent").await.unwrap().is_none()
            })
            .await;
        }
    }
}

#[tokio::test]
async fn an_owner_that_never_was_takes_its_dependent_along() {
    let (_server, client) = server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let mut dependent = config_map("dependent", json!({}));
    dependent.metadata.owner_references = Some(vec![object(
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "ghost", "uid": "no-such-uid"}),
    )]);
    maps.create(&PostParams::default(), &dependent).await.unwrap();
    eventually("the dependent is gone", || async { maps.get_opt("dependent").await.unwrap().is_none() })
        .await;
}

#[tokio::test]
async fn a_namespace_is_emptied_before_it_goes() {
    let (_server, client) = server().await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let team: Namespace = object(json!({"metadata": {"name": "team"}}));
    let created = namespaces.create(&PostParams::default(), &team).await.unwrap();
    assert_eq!(created.status.unwrap().phase.as_deref(), Some("Active"));
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "team");
    let mut held = config_map("held", json!({}));
    held.metadata.finalizers = Some(vec!["example.com/hold".to_owned()]);
    maps.create(&PostParams::default(), &held).await.unwrap();
    maps.create(&PostParams::default(), &config_map("free", json!({}))).await.unwrap();
    namespaces.delete("team", &DeleteParams::default()).await.unwrap();
    eventually("the free object is gone", || async { maps.get_opt("free").await.unwrap().is_none() }).await;
    assert_eq!(namespaces.get("team").await.unwrap().status.unwrap().phase.as_deref(), Some("Terminating"));
    let late = refusal(maps.create(&PostParams::default(), &config_map("late", json!({}))).await);
    assert_eq!(late.code, 403);
    assert!(late.message.contains("because it is being terminated"));
    let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    maps.patch("held", &PatchParams::default(), &none).await.unwrap();
    eventually("the namespace is gone", || async { namespaces.get_opt("team").await.unwrap().is_none() })
        .await;
    let forbidden = refusal(namespaces.delete("default", &DeleteParams::default()).await);
    assert_eq!(forbidden.code, 403);
}

#[tokio::test]
async fn services_get_distinct_addresses() {
    let (_server, client) = server().await;
    let services: Api<Service> = Api::default_namespaced(client);
    let service = |name: &str, address: Option<&str>| -> Service {
        let mut value = json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
        if let Some(address) = address {
            value["spec"]["clusterIP"] = address.into();
        }
        object(value)
    };
    let one = services.create(&PostParams::default(), &service("one", None)).await.unwrap().spec.unwrap();
    let taken = one.cluster_ip.unwrap();
    assert!(taken.starts_with("10."));
    assert_eq!(
        one.ports.unwrap()[0].target_port,
        Some(k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(80))
    );
    let refused = refusal(services.create(&PostParams::default(), &service("two", Some(&taken))).await);
    assert_eq!(refused.code, 422);
    services.delete("one", &DeleteParams::default()).await.unwrap();
    services.create(&PostParams::default(), &service("two", Some(&taken))).await.unwrap();
    let headless = services.create(&PostParams::default(), &service("three", Some("None"))).await.unwrap();
    assert_eq!(headless.spec.unwrap().cluster_ip.as_deref(), Some("None"));
}

#[tokio::test]
async fn both_forms_of_events_are_one_object() {
    let (_server, client) = server().await;
    let new: Api<k8s_openapi::api::events::v1::Event> = Api::default_namespaced(client.clone());
    let core: Api<Event> = Api::default_namespaced(client);
    let event = object(json!({
        "metadata": {"name": "e"}, "eventTime": "2026-11-15T12:00:00.000000Z", "reason": "Started", "note": "hello",
        "type": "Normal", "action": "Start", "reportingController": "test", "reportingInstance": "here",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
    }));
    new.create(&PostParams::default(), &event).await.unwrap();
    let seen =
        core.list(&ListParams::default().fields("involvedObject.name=p")).await.unwrap().items.remove(0);
    assert_eq!(seen.message.as_deref(), Some("hello"));
    assert_eq!(seen.reporting_component.as_deref(), Some("test"));
    assert_eq!(new.get("e").await.unwrap().note.as_deref(), Some("hello"));
}

#[tokio::test]
async fn secrets_take_plain_text() {
    let (_server, client) = server().await;
    let secrets: Api<Secret> = Api::default_namespaced(client);
    let secret = object(json!({"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}}));
    let created = secrets.create(&PostParams::default(), &secret).await.unwrap();
    assert_eq!(created.data.unwrap()["password"].0, b"hunter2");
    assert_eq!(created.string_data, None);
    assert_eq!(created.type_.as_deref(), Some("Opaque"));
}

#[tokio::test]
async fn collections_are_deleted_by_selector() {
    let (_server, client) = server().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    for (name, keep) in [("a", "no"), ("b", "yes"), ("c", "no")] {
        maps.create(&PostParams::default(), &config_map(name, json!({"keep": keep}))).await.unwrap();
    }
    maps.delete_collection(&DeleteParams::default(), &ListParams::default().labels("keep=no")).await.unwrap();
    let left: Vec<_> =
        maps.list(&ListParams::default()).await.unwrap().items.into_iter().map(|m| m.metadata.name).collect();
    assert_eq!(left, [Some("b".to_owned()), Some("kube-root-ca.crt".to_owned())]);
}

#[tokio::test]
async fn everything_is_there_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let storage = Storage::File(directory.path().join("store.db"));
    let server = open(storage.clone(), vec![widgets()]).await;
    let api = widget_api(&client(&server));
    let created = api.create(&PostParams::default(), &widget("one", json!({"name": "a"}))).await.unwrap();
    server.shutdown().await;
    let server = open(storage.clone(), vec![widgets()]).await;
    let kept = widget_api(&client(&server)).get("one").await.unwrap();
    assert_eq!(kept.metadata.resource_version, created.metadata.resource_version);
    let definitions: Api<
        k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    > = Api::all(client(&server));
    let before = definitions.get("widgets.example.com").await.unwrap();
    assert_eq!(before.metadata.generation, Some(1), "an unchanged definition is not written again");
    server.shutdown().await;
    let mut newer = widgets();
    newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["extra"] =
        json!({"type": "string", "default": "new"});
    let server = open(storage, vec![newer]).await;
    let api = widget_api(&client(&server));
    let two = api.create(&PostParams::default(), &widget("two", json!({"name": "a"}))).await.unwrap();
    assert_eq!(two.data["spec"]["extra"], "new");
    server.shutdown().await;
}
