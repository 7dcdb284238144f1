//! Tests a single sandbox: its children and status, suspending and resuming.

use std::collections::BTreeSet;

use anyhow::Result;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt as _;
use serde_json::json;
use warren_api::{NameHash, Sandbox, annotations, labels};

use super::objects::{self, conditions, controller, observed, suspended};
use crate::controllers::place::{Place, message, ready, since, state};
use crate::controllers::workload;

/// The exact status, and the children with their owner.
pub async fn a_sandbox_has_a_pod_and_a_service_and_says_so(place: Place) -> Result<()> {
    let metadata = json!({"labels": {"team": "burrows"}, "annotations": {"note": "kept"}});
    let spec = json!({"service": true, "podTemplate": {"metadata": metadata}});
    place.create::<Sandbox>(workload::sandbox("one", spec)).await?;
    let wanted = [
        "PodScheduled True/PodScheduled at 1: ",
        "Ready True/DependenciesReady at 1: Pod is Ready; Service Exists",
        "Suspended False/NotSuspended at 1: Sandbox is not suspended",
    ];
    let sandbox: Sandbox =
        place.wait_for("one", &wanted.join(", "), |sandbox: &Sandbox| conditions(sandbox) == wanted).await?;
    let status = sandbox.status.clone().unwrap_or_default();
    assert_eq!(status.service.as_deref(), Some("one"));
    assert_eq!(status.service_fqdn, Some(format!("one.{}.svc.cluster.local", place.namespace())));
    assert_eq!(status.selector, Some(format!("{}={}", labels::SANDBOX_NAME_HASH, NameHash::of("one"))));
    assert!(!status.pod_ips.is_empty(), "{status:?}");
    let pod: Pod = place.get("one").await?;
    assert_eq!(pod.labels().get("team").map(String::as_str), Some("burrows"));
    assert_eq!(pod.annotations().get("note").map(String::as_str), Some("kept"));
    assert_eq!(controller(&pod), controller_of(&sandbox));
    assert_eq!(status.node_name, pod.spec.and_then(|spec| spec.node_name));
    let service: Service = place.get("one").await?;
    assert_eq!(controller(&service), controller_of(&sandbox));
    assert_eq!(service.spec.and_then(|spec| spec.cluster_ip).as_deref(), Some("None"));

    // Its children are deleted with it.
    place.delete::<Sandbox>("one").await?;
    place.wait_gone::<Pod>("one").await?;
    place.wait_gone::<Service>("one").await
}

fn controller_of(sandbox: &Sandbox) -> String {
    format!("agents.x-k8s.io/v1beta1 Sandbox one {}", sandbox.uid().unwrap_or_default())
}

/// Two whole cycles; each change of mode is one generation, each resumed sandbox has a new pod.
pub async fn a_sandbox_is_suspended_and_resumed_twice(place: Place) -> Result<()> {
    place.create::<Sandbox>(workload::sandbox("nap", json!({"service": true}))).await?;
    let mut pods = BTreeSet::new();
    let mut service = None;
    let mut last_change = String::new();
    for _ in 0..2 {
        let up: Sandbox = place
            .wait_for("nap", "ready at its generation", |sandbox: &Sandbox| {
                ready(sandbox) == "True/DependenciesReady" && observed(sandbox, "Ready")
            })
            .await?;
        assert_eq!(state(&up, "Suspended"), "False/NotSuspended");
        assert!(since(&up, "Suspended") >= last_change, "time goes forward");
        let pod: Pod = place.get("nap").await?;
        assert!(pods.insert(pod.uid()), "a resumed sandbox has a new pod");

        place.patch::<Sandbox>("nap", suspended(true)).await?;
        let down: Sandbox = place
            .wait_for("nap", "suspended", |sandbox: &Sandbox| {
                state(sandbox, "Suspended") == "True/PodTerminated"
            })
            .await?;
        assert_eq!(message(&down, "Suspended"), "Pod has been terminated. Sandbox is suspended");
        assert_eq!(ready(&down), "False/SandboxSuspended");
        assert_eq!(message(&down, "Ready"), "Sandbox is suspended");
        assert_eq!(state(&down, "PodScheduled"), "", "there is no pod to tell about");
        assert!(down.status.as_ref().is_some_and(|status| status.pod_ips.is_empty()));
        assert!(!down.annotations().contains_key(annotations::POD_NAME));
        assert!(since(&down, "Suspended") >= since(&up, "Suspended"));
        assert!(place.get_opt::<Pod>("nap").await?.is_none());
        let kept: Service = place.get("nap").await?;
        assert_eq!(service.get_or_insert_with(|| kept.uid()), &kept.uid(), "the service stays");
        last_change = since(&down, "Suspended");
        place.patch::<Sandbox>("nap", suspended(false)).await?;
    }
    let up: Sandbox = place.wait_ready("nap", "True/DependenciesReady").await?;
    assert_eq!(up.metadata.generation, Some(5));
    assert_eq!(up.annotations().get(annotations::POD_NAME).map(String::as_str), Some("nap"));
    assert!(pods.insert(place.get::<Pod>("nap").await?.uid()));
    Ok(())
}

/// A pod that lingers delays the suspension, which the status says, and then a resumption: there
/// are never two pods, and never a pod of another owner's name.
pub async fn a_pod_held_by_a_finalizer_holds_up_suspending_and_resuming(place: Place) -> Result<()> {
    place.create::<Sandbox>(workload::sandbox("slow", json!({}))).await?;
    let up: Sandbox = place.wait_ready("slow", "True/DependenciesReady").await?;
    let pod = place.patch::<Pod>("slow", objects::held()).await?;
    place.patch::<Sandbox>("slow", suspended(true)).await?;
    let waiting: Sandbox = place
        .wait_for("slow", "suspending", |sandbox: &Sandbox| {
            state(sandbox, "Suspended") == "False/PodTerminating" && observed(sandbox, "Ready")
        })
        .await?;
    assert_eq!(message(&waiting, "Suspended"), "Pod is terminating. Sandbox is suspending");
    assert_eq!(ready(&waiting), "False/SandboxSuspended");
    assert_eq!(message(&waiting, "Ready"), "Sandbox is suspending");
    assert_ne!(state(&waiting, "PodScheduled"), "", "the pod is still there");
    assert_eq!(since(&waiting, "Suspended"), since(&up, "Suspended"), "it was False and is False");

    // Resumed too early: the old pod is neither replaced nor joined by another.
    place.patch::<Sandbox>("slow", suspended(false)).await?;
    place
        .wait_for("slow", "asked to run", |sandbox: &Sandbox| {
            state(sandbox, "Suspended") == "False/NotSuspended"
        })
        .await?;
    let pods: Vec<_> = place.list::<Pod>().await?.iter().map(|pod| pod.uid()).collect();
    assert_eq!(pods, [pod.uid()]);
    place.release::<Pod>("slow").await?;
    let next: Pod = place.wait_for("slow", "replaced", |next: &Pod| next.uid() != pod.uid()).await?;
    place.wait_ready::<Sandbox>("slow", "True/DependenciesReady").await?;

    place.patch::<Pod>("slow", objects::held()).await?;
    place.patch::<Sandbox>("slow", suspended(true)).await?;
    place
        .wait_for("slow", "suspending", |sandbox: &Sandbox| {
            state(sandbox, "Suspended") == "False/PodTerminating"
        })
        .await?;
    assert_eq!(place.get::<Pod>("slow").await?.uid(), next.uid());
    place.release::<Pod>("slow").await?;
    let down: Sandbox = place
        .wait_for("slow", "suspended", |sandbox: &Sandbox| {
            state(sandbox, "Suspended") == "True/PodTerminated"
        })
        .await?;
    assert_eq!(message(&down, "Ready"), "Sandbox is suspended");
    Ok(())
}

/// The pod of a running sandbox is deleted: it gets another, and was never suspended.
pub async fn a_deleted_pod_is_replaced_without_a_suspension(place: Place) -> Result<()> {
    place.create::<Sandbox>(workload::sandbox("cat", json!({}))).await?;
    let before: Sandbox = place.wait_ready("cat", "True/DependenciesReady").await?;
    let pod: Pod = place.get("cat").await?;
    place.delete::<Pod>("cat").await?;
    place.wait_for("cat", "replaced", |next: &Pod| next.uid() != pod.uid()).await?;
    let after: Sandbox = place.wait_ready("cat", "True/DependenciesReady").await?;
    assert_eq!(state(&after, "Suspended"), "False/NotSuspended");
    assert_eq!(since(&after, "Suspended"), since(&before, "Suspended"));
    Ok(())
}

/// A pod of the same name with another owner survives the suspension.
pub async fn a_foreign_pod_is_not_deleted_by_a_suspension(place: Place) -> Result<()> {
    let foreign: Pod = place.create(workload::stranger("taken", json!({}))).await?;
    place.create::<Sandbox>(workload::sandbox("taken", json!({"operatingMode": "Suspended"}))).await?;
    let blocked: Sandbox = place
        .wait_for("taken", "blocked", |sandbox: &Sandbox| state(sandbox, "Suspended") == "False/PodNotOwned")
        .await?;
    assert_eq!(
        message(&blocked, "Suspended"),
        "Refused to delete pod because it is not owned by this sandbox"
    );
    assert_eq!(state(&blocked, "PodScheduled"), "");
    let left: Pod = place.get("taken").await?;
    assert_eq!((left.uid(), controller(&left)), (foreign.uid(), String::new()));
    assert!(left.metadata.deletion_timestamp.is_none());

    // Once it is gone, the sandbox runs like any other.
    place.delete::<Pod>("taken").await?;
    place.wait_gone::<Pod>("taken").await?;
    place.patch::<Sandbox>("taken", suspended(false)).await?;
    place.wait_ready::<Sandbox>("taken", "True/DependenciesReady").await?;
    assert!(controller(&place.get::<Pod>("taken").await?).contains(" Sandbox taken "));

    // A conflicting pod that comes later, and goes again, is noticed although only its name relates
    // it to the sandbox.
    place.create::<Sandbox>(workload::sandbox("late", json!({"operatingMode": "Suspended"}))).await?;
    let suspended = |sandbox: &Sandbox| state(sandbox, "Suspended") == "True/PodTerminated";
    place.wait_for("late", "suspended", suspended).await?;
    place.create::<Pod>(workload::stranger("late", json!({}))).await?;
    place
        .wait_for("late", "blocked", |sandbox: &Sandbox| state(sandbox, "Suspended") == "False/PodNotOwned")
        .await?;
    place.delete::<Pod>("late").await?;
    place.wait_for("late", "suspended", suspended).await.map(drop)
}
