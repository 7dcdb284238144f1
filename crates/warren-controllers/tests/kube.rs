//! The controllers judged by a real control plane, through its API only.

mod support;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use kube::ResourceExt;
use kube::runtime::wait::Condition;
use serde_json::json;
use support::kubelet::Kubelet;
use support::{Place, condition, is_ready};
use warren_api::Sandbox;
use warren_controllers::{Config, Controllers};

fn sandbox(name: &str, spec: serde_json::Value) -> serde_json::Value {
    let mut object = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "i", "ports": [{"containerPort": 80}]}]}}},
    });
    for (key, value) in spec.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    object
}

#[tokio::test]
async fn a_sandbox_becomes_ready_is_suspended_and_resumed_and_takes_its_children_along() {
    let place = Place::new("basic").await;
    let controllers = Controllers::start(place.client.clone(), Config::default());
    let _kubelet = Kubelet::start(place.client.clone(), &place.namespace);
    let spec = json!({"service": true, "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]});
    place.create::<Sandbox>(sandbox("one", spec)).await;
    let ready = place.wait::<Sandbox>("one", "ready", is_ready("True/DependenciesReady")).await.unwrap();
    let status = ready.status.clone().unwrap();
    assert_eq!(status.service_fqdn.unwrap(), format!("one.{}.svc.cluster.local", place.namespace));
    assert_eq!(status.node_name.as_deref(), Some("pretend"));
    assert_eq!(status.pod_ips.len(), 1);
    assert_eq!(ready.annotations()["agents.x-k8s.io/pod-name"], "one");
    let first = place.api::<Pod>().get("one").await.unwrap();
    place.api::<PersistentVolumeClaim>().get("data-one").await.unwrap();
    let service = place.api::<Service>().get("one").await.unwrap();
    assert_eq!(service.spec.unwrap().ports.unwrap()[0].name.as_deref(), Some("p-80-tcp"));

    place.patch::<Sandbox>("one", json!({"spec": {"operatingMode": "Suspended"}})).await;
    let down = |sandbox: Option<&Sandbox>| {
        sandbox
            .and_then(|sandbox| condition(sandbox, "Suspended"))
            .is_some_and(|found| found["status"] == "True")
    };
    let suspended = place.wait::<Sandbox>("one", "suspended", down).await.unwrap();
    assert!(!suspended.annotations().contains_key("agents.x-k8s.io/pod-name"));
    assert!(place.api::<Pod>().get_opt("one").await.unwrap().is_none());
    place.api::<PersistentVolumeClaim>().get("data-one").await.unwrap();

    place.patch::<Sandbox>("one", json!({"spec": {"operatingMode": "Running"}})).await;
    place.wait::<Sandbox>("one", "ready again", is_ready("True/DependenciesReady")).await;
    let second = place.api::<Pod>().get("one").await.unwrap();
    assert_ne!(first.uid(), second.uid());

    // Collecting the children is the server's work; ours is that it can.
    let owner = &second.owner_references()[0];
    assert_eq!(
        (owner.kind.as_str(), owner.controller, owner.block_owner_deletion),
        ("Sandbox", Some(true), Some(true))
    );
    controllers.shutdown().await;
}

#[tokio::test]
async fn row_10_expiry_is_stored_before_the_pod_goes() {
    let place = Place::new("expiry").await;
    let controllers = Controllers::start(place.client.clone(), Config::default());
    let _kubelet = Kubelet::start(place.client.clone(), &place.namespace);
    place.create::<Sandbox>(sandbox("two", json!({}))).await;
    place.wait::<Sandbox>("two", "ready", is_ready("True/DependenciesReady")).await;
    place.patch::<Sandbox>("two", json!({"spec": {"shutdownTime": "2020-01-01T00:00:00Z"}})).await;
    let empty = is_ready("False/SandboxExpired").and(|sandbox: Option<&Sandbox>| {
        sandbox.is_some_and(|sandbox| sandbox.status.clone().unwrap().pod_ips.is_empty())
    });
    place.wait::<Sandbox>("two", "expired and empty", empty).await;
    place.wait::<Pod>("two", "gone", |pod: Option<&Pod>| pod.is_none()).await;
    place.patch::<Sandbox>("two", json!({"spec": {"shutdownTime": null}})).await;
    place.wait::<Sandbox>("two", "revived", is_ready("True/DependenciesReady")).await;
    controllers.shutdown().await;
}
