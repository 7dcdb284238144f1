//! Tests of the kinds of `apps/v1`: they are stored, with a status that says that no controller
//! runs them.

use crate::support::{dynamic, object, refusal, server};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

fn workload(kind: &str, spec: Value) -> DynamicObject {
    let labels = json!({"app": "web"});
    let template = json!({
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": "nginx", "resources": {"limits": {"cpu": "1"}}}]},
    });
    let mut whole = json!({"selector": {"matchLabels": labels}, "template": template});
    for (field, value) in spec.as_object().unwrap() {
        whole[field] = value.clone();
    }
    object(json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "web"}, "spec": whole}))
}

fn causes(status: kube::core::Status) -> Vec<String> {
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
    let causes = status.details.unwrap().causes.into_iter();
    causes.map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
}

#[tokio::test]
async fn a_deployment_has_the_real_defaults_and_says_that_nothing_runs_it() {
    let (_server, client) = server().await;
    let deployments = dynamic(&client, "apps", "v1", "Deployment");
    let made = deployments.create(&PostParams::default(), &workload("Deployment", json!({}))).await.unwrap();
    assert_eq!(made.metadata.generation, Some(1));
    let spec = &made.data["spec"];
    assert_eq!(
        (&spec["replicas"], &spec["revisionHistoryLimit"], &spec["progressDeadlineSeconds"]),
        (&json!(1), &json!(10), &json!(600))
    );
    let rolling = json!({"maxUnavailable": "25%", "maxSurge": "25%"});
    assert_eq!(spec["strategy"], json!({"type": "RollingUpdate", "rollingUpdate": rolling}));
    let pod = &spec["template"]["spec"];
    assert_eq!(
        (&pod["restartPolicy"], &pod["schedulerName"]),
        (&json!("Always"), &json!("default-scheduler"))
    );
    // Only pods get these fields, not templates.
    assert_eq!(pod.get("enableServiceLinks"), None);
    assert_eq!(pod["containers"][0]["resources"], json!({"limits": {"cpu": "1"}}));

    let status = &made.data["status"];
    assert_eq!((&status["observedGeneration"], &status["unavailableReplicas"]), (&json!(1), &json!(1)));
    let conditions = status["conditions"].as_array().unwrap();
    let words: Vec<_> = conditions
        .iter()
        .map(|condition| (&condition["type"], &condition["status"], &condition["reason"]))
        .map(|(type_, status, reason)| format!("{type_} {status} {reason}").replace('"', ""))
        .collect();
    assert_eq!(words, ["Available False NoController", "Progressing False ProgressDeadlineExceeded"]);

    let scaled = json!({"spec": {"replicas": 4}});
    let scale = deployments.patch_scale("web", &PatchParams::default(), &Patch::Merge(scaled)).await.unwrap();
    assert_eq!(scale.spec.unwrap().replicas, Some(4));
    assert_eq!(scale.status.unwrap().selector.as_deref(), Some("app=web"));
    let found = deployments.get("web").await.unwrap();
    assert_eq!(found.metadata.generation, Some(2));
    let status = &found.data["status"];
    assert_eq!((&status["observedGeneration"], &status["unavailableReplicas"]), (&json!(2), &json!(4)));

    // From here on another client writes the status.
    let own = json!({"status": {"conditions": null, "unavailableReplicas": null, "replicas": 4, "readyReplicas": 4}});
    deployments.patch_status("web", &PatchParams::default(), &Patch::Merge(own)).await.unwrap();
    let annotated = json!({"metadata": {"annotations": {"a": "b"}}});
    let found = deployments.patch("web", &PatchParams::default(), &Patch::Merge(annotated)).await.unwrap();
    assert_eq!(found.metadata.generation, Some(3), "annotations count for Deployments");
    assert_eq!(found.data["status"], json!({"observedGeneration": 2, "replicas": 4, "readyReplicas": 4}));
}

#[tokio::test]
async fn workloads_that_the_real_server_refuses_are_refused_in_its_words() {
    let (_server, client) = server().await;
    let create = async |kind: &str, spec: Value| {
        let api = dynamic(&client, "apps", "v1", kind);
        causes(refusal(api.create(&PostParams::default(), &workload(kind, spec)).await))
    };
    let other = json!({"matchLabels": {"app": "other"}});
    let labels = "spec.template.metadata.labels: Invalid value: {\"app\":\"web\"}: `selector` does not match template `labels`";
    assert_eq!(create("Deployment", json!({"selector": other})).await, [labels]);
    assert_eq!(
        create("Deployment", json!({"selector": null})).await,
        ["spec.selector: Required value", labels]
    );
    let fixed = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": "0%"}});
    assert_eq!(
        create("Deployment", json!({"replicas": -1, "strategy": fixed})).await,
        [
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0",
        ]
    );
    let template = json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "nginx",
            "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]},
    });
    assert_eq!(
        create("ReplicaSet", json!({"template": template})).await,
        [
            "spec.template.spec.containers[0].volumeMounts[0].name: Not found: \"data\"",
            "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
        ]
    );
    // A claim template also declares a volume of its name.
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}});
    assert_eq!(
        create("StatefulSet", json!({"template": template, "volumeClaimTemplates": [claim]})).await,
        [
            "spec.volumeClaimTemplates[0].spec.resources[storage]: Required value",
            "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
        ]
    );
}

#[tokio::test]
async fn a_selector_never_changes_and_of_a_stateful_set_little_does() {
    let (_server, client) = server().await;
    let change = async |kind: &str, patch: Value| {
        let api = dynamic(&client, "apps", "v1", kind);
        api.create(&PostParams::default(), &workload(kind, json!({}))).await.unwrap();
        causes(refusal(api.patch("web", &PatchParams::default(), &Patch::Merge(patch)).await))
    };
    let labels = json!({"app": "web", "more": "x"});
    let wider = json!({"spec": {
        "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}},
    }});
    for kind in ["Deployment", "ReplicaSet", "DaemonSet"] {
        let [cause] = &change(kind, wider.clone()).await[..] else { panic!("one cause") };
        assert!(cause.starts_with("spec.selector: ") && cause.ends_with("field is immutable"), "{cause}");
    }
    let [cause] = &change("StatefulSet", json!({"spec": {"serviceName": "other"}})).await[..] else {
        panic!("one cause")
    };
    assert!(
        cause.starts_with("spec: Forbidden: updates to statefulset spec for fields other than"),
        "{cause}"
    );
}

#[tokio::test]
async fn a_file_of_a_volume_stays_in_it() {
    let (_server, client) = server().await;
    let pods = dynamic(&client, "", "v1", "Pod");
    let outside = json!([{"key": "k", "path": "../../etc"}]);
    let field = json!([{"path": "a/../b", "fieldRef": {"fieldPath": "metadata.name"}}]);
    let volumes = json!([
        {"name": "a", "configMap": {"name": "c", "items": outside}},
        {"name": "b", "secret": {"secretName": "s", "items": [{"key": "k", "path": "..data", "mode": 512}]}},
        {"name": "c", "downwardAPI": {"items": field}},
        {"name": "d", "projected": {"sources": [
            {"configMap": {"name": "c", "items": outside}},
            {"secret": {"name": "s", "items": [{"key": "k", "path": "/etc"}]}},
            {"downwardAPI": {"items": field}},
            {"serviceAccountToken": {"path": "../token"}},
        ]}},
    ]);
    let pod = object(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"volumes": volumes, "containers": [{"name": "main", "image": "nginx"}]},
    }));
    assert_eq!(
        causes(refusal(pods.create(&PostParams::default(), &pod).await)),
        [
            "spec.volumes[0].configMap.items[0].path: Invalid value: \"../../etc\": must not contain '..'",
            "spec.volumes[1].secret.items[0].path: Invalid value: \"..data\": must not start with '..'",
            "spec.volumes[1].secret.items[0].mode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
            "spec.volumes[2].downwardAPI.path: Invalid value: \"a/../b\": must not contain '..'",
            "spec.volumes[3].projected.sources[0].configMap.items[0].path: Invalid value: \"../../etc\": must not contain '..'",
            "spec.volumes[3].projected.sources[1].secret.items[0].path: Invalid value: \"/etc\": must be a relative path",
            "spec.volumes[3].projected.sources[2].downwardAPI.path: Invalid value: \"a/../b\": must not contain '..'",
            "spec.volumes[3].projected.path: Invalid value: \"../token\": must not contain '..'",
        ]
    );
}

#[tokio::test]
async fn names_of_sysctls_are_checked_and_their_safety_is_left_to_nodes() {
    let (_server, client) = server().await;
    let pods = dynamic(&client, "", "v1", "Pod");
    let pod = |name: &str, sysctls: Value| {
        object::<DynamicObject>(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "securityContext": {"sysctls": sysctls},
                "containers": [{"name": "main", "image": "nginx", "volumeMounts": [{"name": "v", "mountPath": "/", "bindMountOptions": ["noexec"]}]}],
                "volumes": [{"name": "v", "emptyDir": {}}],
                "evictionResponders": [{"name": "a.io/b", "priority": 1}],
            },
        }))
    };
    let unsafe_one = json!([{"name": "kernel.msgmax", "value": "1"}]);
    let made = pods.create(&PostParams::default(), &pod("a", unsafe_one)).await.unwrap();
    // The fields of Kubernetes 1.37 are kept, so that the node sees them.
    assert_eq!(made.data["spec"]["evictionResponders"], json!([{"name": "a.io/b", "priority": 1}]));
    assert_eq!(made.data["spec"]["containers"][0]["volumeMounts"][0]["bindMountOptions"], json!(["noexec"]));
    let odd =
        json!([{"name": "A", "value": "1"}, {"name": "a.b", "value": "1"}, {"name": "a.b", "value": "2"}]);
    let rule = "must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
    assert_eq!(
        causes(refusal(pods.create(&PostParams::default(), &pod("b", odd)).await)),
        [
            format!("spec.securityContext.sysctls[0].name: Invalid value: \"A\": {rule}"),
            "spec.securityContext.sysctls[2].name: Duplicate value: \"a.b\"".to_owned(),
        ]
    );
}
