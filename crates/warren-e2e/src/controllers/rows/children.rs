//! Tests a sandbox's children: pod, service and volume claims, and conflicting objects of other
//! owners.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use warren_api::{NameHash, Sandbox, SandboxTemplate, labels};
use warren_testkit::nodes::Fate;

use crate::controllers::place::{Place, message, ready};
use crate::controllers::workload::{sandbox, simulated, stranger, template, volume, with};

/// Returns an owner reference to this sandbox as the controller.
fn controlled_by(owner: &Sandbox) -> Value {
    json!([{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": owner.name_any(),
        "uid": owner.uid(), "controller": true, "blockOwnerDeletion": true}])
}

fn service(name: &str, labels: Value, spec: Value) -> Value {
    let spec =
        with(json!({"clusterIP": "None", "selector": {"app": "theirs"}, "ports": [{"port": 80}]}), spec);
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": labels}, "spec": spec})
}

fn volume_claim(name: &str, metadata: Value) -> Value {
    let metadata = with(json!({"name": name}), metadata);
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": volume("")["spec"]})
}

fn adoptable() -> Value {
    json!({labels::ADOPTABLE: "true"})
}

fn tracked(name: &str) -> Value {
    json!({labels::SANDBOX_NAME_HASH: NameHash::of(name).to_string()})
}

/// The reason why a child without an owner is not adopted.
const UNLABELLED: &str = "exists without an owner and is not labelled for adoption";

/// The reason why a service with a cluster IP is not adopted.
const ADDRESSED: &str = "has a cluster IP and cannot be adopted";

/// Waits until a sandbox reports why it does not adopt the object in its child's place.
async fn wait_refused(place: &Place, name: &str, why: &str) -> Result<()> {
    place.wait_trouble::<Sandbox>(name, "ReconcilerError", &format!("Error seen: {why}")).await.map(drop)
}

pub(super) async fn row_06_unowned_children_are_taken_only_with_permission(place: Place) -> Result<()> {
    for (name, labels, taken) in [
        ("pod-plain", json!({"app": "theirs"}), false),
        ("pod-forged", tracked("somebody-else"), false),
        ("pod-free", adoptable(), true),
        ("pod-known", tracked("pod-known"), true),
    ] {
        let before: Pod = place.create(stranger(name, labels)).await?;
        let owner: Sandbox = place.create(sandbox(name, json!({}))).await?;
        if taken {
            place.wait_ready::<Sandbox>(name, "True/DependenciesReady").await?;
            let after: Pod = place.get(name).await?;
            assert_eq!(
                (after.uid(), after.owner_references()[0].uid.clone()),
                (before.uid(), owner.uid().unwrap_or_default())
            );
        } else {
            wait_refused(&place, name, &format!("pod {name} {UNLABELLED}")).await?;
            let after: Pod = place.get(name).await?;
            assert_eq!(
                (after.uid(), after.labels(), after.owner_references().len()),
                (before.uid(), before.labels(), 0)
            );
        }
    }
    for (name, labels, taken) in [
        ("claim-plain", json!({}), false),
        ("claim-forged", tracked("somebody-else"), false),
        ("claim-free", adoptable(), true),
        ("claim-known", tracked("claim-known"), true),
    ] {
        let child = format!("data-{name}");
        let before: PersistentVolumeClaim =
            place.create(volume_claim(&child, json!({"labels": labels}))).await?;
        let spec = json!({"podTemplate": simulated(Fate::Ready), "volumeClaimTemplates": [volume("data")]});
        place.create::<Sandbox>(sandbox(name, spec)).await?;
        if taken {
            place.wait_ready::<Sandbox>(name, "True/DependenciesReady").await?;
        } else {
            wait_refused(&place, name, &format!("persistent volume claim {child} {UNLABELLED}")).await?;
        }
        let after: PersistentVolumeClaim = place.get(&child).await?;
        assert_eq!(
            (after.uid(), after.owner_references().len()),
            (before.uid(), usize::from(taken)),
            "{name}"
        );
        assert!(taken || after.labels() == before.labels(), "{name}: {:?}", after.labels());
    }
    for (name, labels, spec, refusal) in [
        ("svc-plain", json!({}), json!({}), Some(UNLABELLED)),
        ("svc-forged", tracked("somebody-else"), json!({}), Some(UNLABELLED)),
        ("svc-free", adoptable(), json!({}), None),
        ("svc-known", tracked("svc-known"), json!({}), None),
        // A service with a cluster IP is not what clients of a sandbox expect.
        ("svc-free-address", adoptable(), json!({"clusterIP": null}), Some(ADDRESSED)),
        ("svc-known-address", tracked("svc-known-address"), json!({"clusterIP": null}), Some(ADDRESSED)),
    ] {
        let taken = refusal.is_none();
        let before: Service = place.create(service(name, labels, spec)).await?;
        place.create::<Sandbox>(sandbox(name, json!({"service": true}))).await?;
        match refusal {
            None => drop(place.wait_ready::<Sandbox>(name, "True/DependenciesReady").await?),
            Some(why) => wait_refused(&place, name, &format!("service {name} {why}")).await?,
        }
        let after: Service = place.get(name).await?;
        assert_eq!(
            (after.uid(), after.owner_references().len()),
            (before.uid(), usize::from(taken)),
            "{name}"
        );
        assert!(taken || after.labels() == before.labels(), "{name}: {:?}", after.labels());
        let selector = |service: Service| service.spec.and_then(|spec| spec.selector).unwrap_or_default();
        let (selected, kept) = (selector(after), selector(before));
        assert_eq!(selected == kept, !taken, "{name}: {selected:?}");
    }
    Ok(())
}

pub(super) async fn row_07_an_unset_service_is_kept_in_order_but_never_made(place: Place) -> Result<()> {
    place.create::<Sandbox>(sandbox("one", json!({"service": true}))).await?;
    let up: Sandbox = place.wait_ready("one", "True/DependenciesReady").await?;
    let status = up.status.clone().unwrap_or_default();
    let host = format!("one.{}.svc.cluster.local", place.namespace());
    assert_eq!((status.service.as_deref(), status.service_fqdn), (Some("one"), Some(host)));
    assert_eq!(message(&up, "Ready"), "Pod is Ready; Service Exists");
    let made: Service = place.get("one").await?;
    assert_eq!(made.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()), Some("None"));

    // Unset: it stays, counts, and is corrected.
    place.patch::<Sandbox>("one", json!({"spec": {"service": null}})).await?;
    let up: Sandbox = place.wait_observed("one").await?;
    assert_eq!(
        (ready(&up).as_str(), message(&up, "Ready").as_str()),
        ("True/DependenciesReady", "Pod is Ready; Service Exists")
    );
    place
        .patch::<Service>("one", json!({"spec": {"selector": {labels::SANDBOX_NAME_HASH: "drift"}}}))
        .await?;
    let hash = NameHash::of("one").to_string();
    let mended = place
        .wait_for("one", "put right", |service: &Service| {
            let selector = service.spec.as_ref().and_then(|spec| spec.selector.clone()).unwrap_or_default();
            selector.get(labels::SANDBOX_NAME_HASH) == Some(&hash)
        })
        .await?;
    assert_eq!(mended.uid(), made.uid());

    place.patch::<Sandbox>("one", json!({"spec": {"service": false}})).await?;
    place.wait_gone::<Service>("one").await?;
    let without = place
        .wait_for("one", "without a service", |one: &Sandbox| {
            one.status
                .as_ref()
                .is_some_and(|status| status.service.is_none() && status.service_fqdn.is_none())
        })
        .await?;
    assert_eq!(message(&without, "Ready"), "Pod is Ready");
    place.patch::<Sandbox>("one", json!({"spec": {"service": null}})).await?;
    place.wait_observed::<Sandbox>("one").await?;
    assert!(place.get_opt::<Service>("one").await?.is_none(), "unset makes none");

    // A service without an owner is ignored, even if it could be adopted.
    let theirs: Service = place.create(service("two", adoptable(), json!({}))).await?;
    place.create::<Sandbox>(sandbox("two", json!({}))).await?;
    let up: Sandbox = place.wait_ready("two", "True/DependenciesReady").await?;
    assert_eq!(
        (message(&up, "Ready").as_str(), up.status.and_then(|status| status.service)),
        ("Pod is Ready", None)
    );
    place.patch::<Sandbox>("two", json!({"spec": {"service": false}})).await?;
    place.wait_observed::<Sandbox>("two").await?;
    let left: Service = place.get("two").await?;
    assert_eq!((left.uid(), left.owner_references().len()), (theirs.uid(), 0));

    // A service of another owner: an error while one is or may be wanted, otherwise ignored.
    let other: Sandbox = place.get("one").await?;
    let foreign = with(
        service("three", json!({}), json!({})),
        json!({"metadata": {"ownerReferences": controlled_by(&other)}}),
    );
    let foreign: Service = place.create(foreign).await?;
    place.create::<Sandbox>(sandbox("three", json!({}))).await?;
    wait_refused(&place, "three", "service three is controlled by another object").await?;
    place.patch::<Sandbox>("three", json!({"spec": {"service": false}})).await?;
    place.wait_ready::<Sandbox>("three", "True/DependenciesReady").await?;
    assert_eq!(place.get::<Service>("three").await?.uid(), foreign.uid());
    Ok(())
}

pub(super) async fn row_08_service_ports_are_derived_from_the_containers(place: Place) -> Result<()> {
    let ports = |ports: Value| json!({"name": "main", "image": "warren.dev/host", "ports": ports});
    let named = |container: Value, name: &str| with(container, json!({"name": name}));
    let pod = json!({"spec": {
        "containers": [
            ports(json!([
                {"containerPort": 8080, "name": "http"},
                {"containerPort": 9090},
                {"containerPort": 1000, "name": "p-9090-tcp"},
                {"containerPort": 5353, "protocol": "UDP"},
            ])),
            named(ports(json!([{"containerPort": 8080, "name": "web"}, {"containerPort": 8081, "name": "http"}])), "second"),
        ],
        "initContainers": [
            with(named(ports(json!([{"containerPort": 7070, "name": "side"}])), "sidecar"), json!({"restartPolicy": "Always"})),
            named(ports(json!([{"containerPort": 6060, "name": "once"}])), "setup"),
        ],
    }});
    let pod = with(simulated(Fate::Ready), pod);
    place.create::<Sandbox>(sandbox("one", json!({"podTemplate": pod, "service": true}))).await?;
    place.wait_ready::<Sandbox>("one", "True/DependenciesReady").await?;
    let ports_of = |service: &Service| -> Vec<String> {
        let ports = service.spec.as_ref().and_then(|spec| spec.ports.clone()).unwrap_or_default();
        let line = |port: k8s_openapi::api::core::v1::ServicePort| {
            let target = serde_json::to_value(&port.target_port).unwrap_or_default();
            format!(
                "{}/{} {} -> {target}",
                port.port,
                port.protocol.unwrap_or_default(),
                port.name.unwrap_or_default()
            )
        };
        ports.into_iter().map(line).collect()
    };
    assert_eq!(
        ports_of(&place.get("one").await?),
        [
            "1000/TCP p-9090-tcp -> 1000",
            "5353/UDP p-5353-udp -> 5353",
            "7070/TCP side -> 7070",
            "8080/TCP http -> 8080",
            "8081/TCP p-8081-tcp -> 8081",
            "9090/TCP p-9090-tcp-2 -> 9090",
        ]
    );
    let none = json!({"spec": {"podTemplate": {"spec": {"initContainers": null,
        "containers": [{"name": "main", "image": "warren.dev/host"}]}}}});
    place.patch::<Sandbox>("one", none).await?;
    place.wait_for("one", "without ports", |service: &Service| ports_of(service).is_empty()).await?;
    Ok(())
}

pub(super) async fn row_09_volume_claim_templates_are_immutable_on_sandboxes_only(
    place: Place,
) -> Result<()> {
    let spec = json!({"podTemplate": simulated(Fate::Ready), "volumeClaimTemplates": [volume("data")]});
    place.create::<Sandbox>(sandbox("set", spec)).await?;
    place.create::<Sandbox>(sandbox("unset", json!({"podTemplate": simulated(Fate::Ready)}))).await?;
    for (name, templates) in
        [("set", json!([volume("other")])), ("set", json!(null)), ("unset", json!([volume("data")]))]
    {
        let edit = json!({"spec": {"volumeClaimTemplates": templates}});
        let refused = place.try_patch::<Sandbox>(name, edit).await;
        let Err(kube::Error::Api(status)) = refused else { anyhow::bail!("{name} {templates}: {refused:?}") };
        assert_eq!(status.code, 422, "{status:?}");
        assert!(status.message.contains("volumeClaimTemplates is immutable"), "{}", status.message);
    }
    place.create::<SandboxTemplate>(template("t", json!({}))).await?;
    for templates in [json!([volume("data")]), json!([volume("other")]), json!(null)] {
        place.patch::<SandboxTemplate>("t", json!({"spec": {"volumeClaimTemplates": templates}})).await?;
    }
    Ok(())
}

pub(super) async fn row_13_a_volume_claim_in_the_way_stops_neither_pod_nor_service(
    place: Place,
) -> Result<()> {
    let other: Sandbox = place.create(sandbox("other", json!({}))).await?;
    let foreign = volume_claim("data-one", json!({"ownerReferences": controlled_by(&other)}));
    let foreign: PersistentVolumeClaim = place.create(foreign).await?;
    let spec = json!({"podTemplate": simulated(Fate::Ready), "service": true,
        "volumeClaimTemplates": [volume("data"), volume("more")]});
    place.create::<Sandbox>(sandbox("one", spec)).await?;
    let pod = place
        .wait_for("one", "running", |pod: &Pod| {
            pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
        })
        .await?;
    let claims = pod.spec.and_then(|spec| spec.volumes).context("the pod has volumes")?;
    assert_eq!(claims.iter().filter(|volume| volume.persistent_volume_claim.is_some()).count(), 2);
    place.wait::<Service>("one", "made", |service: Option<&Service>| service.is_some()).await?;
    wait_refused(&place, "one", "persistent volume claim data-one is controlled by another object").await?;
    let left: PersistentVolumeClaim = place.get("data-one").await?;
    assert_eq!((left.uid(), left.owner_references()), (foreign.uid(), foreign.owner_references()));
    assert!(place.get_opt::<PersistentVolumeClaim>("more-one").await?.is_none(), "the rest waits");
    Ok(())
}

/// A missing volume claim is noticed by the next reconcile of its sandbox, but does not trigger
/// one.
pub(super) async fn row_13_a_volume_claim_that_is_gone_wakes_nobody(place: Place) -> Result<()> {
    let spec = json!({"podTemplate": simulated(Fate::Ready), "volumeClaimTemplates": [volume("data")]});
    // Creates a sandbox and waits until it is ready: pending work on other objects is done before
    // that.
    let round = async |name: &str| {
        place.create::<Sandbox>(sandbox(name, spec.clone())).await?;
        place.wait_ready::<Sandbox>(name, "True/DependenciesReady").await
    };
    // Suspended, so that no pod protects its volume.
    let suspended = with(spec.clone(), json!({"operatingMode": "Suspended"}));
    place.create::<Sandbox>(sandbox("one", suspended)).await?;
    place.wait_ready::<Sandbox>("one", "False/SandboxSuspended").await?;
    let first: PersistentVolumeClaim = place.get("data-one").await?;
    round("before").await?;
    let claims = place.record::<PersistentVolumeClaim>().await?;
    place.delete::<PersistentVolumeClaim>("data-one").await?;
    place
        .eventually("the record of its end", async || {
            Ok(claims.of("data-one").iter().any(|entry| entry.deleted).then_some(()))
        })
        .await?;
    round("after").await?;
    assert!(
        place.get_opt::<PersistentVolumeClaim>("data-one").await?.is_none(),
        "{:?}",
        claims.of("data-one")
    );

    let touch = json!({"spec": {"podTemplate": {"metadata": {"annotations": {"touched": "1"}}}}});
    place.patch::<Sandbox>("one", touch).await?;
    place
        .wait_for("data-one", "made again", |claim: &PersistentVolumeClaim| claim.uid() != first.uid())
        .await?;
    Ok(())
}

pub(super) async fn row_14_two_pods_of_one_sandbox_stop_everything_until_one_goes(
    place: Place,
) -> Result<()> {
    let one: Sandbox = place.create(sandbox("one", json!({"service": true}))).await?;
    place.wait_ready::<Sandbox>("one", "True/DependenciesReady").await?;
    let second = with(
        stranger("one-b", tracked("one")),
        json!({"metadata": {"ownerReferences": controlled_by(&one)}}),
    );
    place.create::<Pod>(second).await?;
    let told: Sandbox = place.wait_ready("one", "False/MultiplePods").await?;
    let status = told.status.clone().unwrap_or_default();
    assert!(status.pod_ips.is_empty() && status.node_name.is_none());
    assert_eq!(status.service.as_deref(), Some("one"), "left as it was");
    let warning = place.wait_event("one", "MultiplePods").await?;
    assert_eq!((warning.type_.as_deref(), warning.action.as_deref()), (Some("Warning"), Some("Reconciling")));

    // The service is frozen: a later reconcile notices it.
    place
        .patch::<Service>("one", json!({"spec": {"selector": {labels::SANDBOX_NAME_HASH: "drift"}}}))
        .await?;
    let touch = json!({"spec": {"podTemplate": {"metadata": {"annotations": {"touched": "1"}}}}});
    place.patch::<Sandbox>("one", touch).await?;
    let told: Sandbox = place.wait_observed("one").await?;
    assert_eq!(ready(&told), "False/MultiplePods");
    let selector = |service: &Service| {
        service.spec.as_ref().and_then(|spec| spec.selector.clone()?.remove(labels::SANDBOX_NAME_HASH))
    };
    assert_eq!(selector(&place.get("one").await?).as_deref(), Some("drift"));
    let events = place.events("one").await?;
    let warnings = events.iter().filter(|event| event.reason.as_deref() == Some("MultiplePods")).count();
    assert_eq!(warnings, 1, "said once");

    place.delete::<Pod>("one-b").await?;
    place.wait_ready::<Sandbox>("one", "True/DependenciesReady").await?;
    let hash = NameHash::of("one").to_string();
    place.wait_for("one", "put right", |service: &Service| selector(service).as_ref() == Some(&hash)).await?;
    Ok(())
}
