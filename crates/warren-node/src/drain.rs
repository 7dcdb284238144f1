//! Drains a node: evicts its pods, as `kubectl drain` does, and their workers stop them.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::node::Shared;
use crate::pod_api;
use crate::pod_registry::{Entry, Seen};
use crate::registration::Registration;
use crate::worker::root_cause;

/// The delay between two tries to evict a pod when a disruption budget refuses or the API server
/// does not answer.
const AGAIN: Duration = Duration::from_secs(1);
/// The time for the last writes to the API server once the pods are gone.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Returns how many pods are left.
pub(crate) async fn drain(shared: &Arc<Shared>, registration: &Registration, patience: Duration) -> usize {
    let emptied = async {
        if let Err(error) = registration.close().await {
            warn!(error = %root_cause(&error), "node not closed for new pods");
        }
        loop {
            let pods = to_go(shared);
            if pods.is_empty() {
                return;
            }
            info!(count = pods.len(), "evicting pods");
            // A pod that was placed here before the scheduler saw the taint is found by the next
            // iteration.
            join_all(pods.into_iter().map(|(entry, pod)| empty(shared, entry, pod))).await;
        }
    };
    if tokio::time::timeout(patience, emptied).await.is_err() {
        return to_go(shared).len();
    }
    match tokio::time::timeout(LAST_WORDS, registration.leave()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => warn!(error = %root_cause(&error), "not said that the node is gone"),
        Err(_) => warn!("not said that the node is gone: no answer"),
    }
    0
}

/// Returns the pods that run here and would run elsewhere after an eviction.
fn to_go(shared: &Shared) -> Vec<(Arc<Entry>, Arc<Pod>)> {
    let entries = shared.registry.all().into_iter().filter_map(|(_, entry)| {
        let pod = match &*entry.seen.borrow() {
            Seen::Pod(pod) => pod.clone(),
            Seen::Gone => return None,
        };
        is_to_go(&pod).then_some((entry, pod))
    });
    entries.collect()
}

fn is_to_go(pod: &Pod) -> bool {
    let ended = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let owners = pod.metadata.owner_references.iter().flatten();
    let of_every_node =
        owners.into_iter().any(|owner| owner.controller == Some(true) && owner.kind == "DaemonSet");
    !of_every_node && !matches!(ended, Some("Succeeded" | "Failed"))
}

/// Evicts a pod and waits until it is removed from this node.
async fn empty(shared: &Shared, entry: Arc<Entry>, pod: Arc<Pod>) {
    while let Err(error) = evict(shared, &pod).await {
        info!(pod = pod_api::name(&pod), error = %root_cause(&error), "pod not evicted yet");
        tokio::time::sleep(AGAIN).await;
    }
    // The worker owns the sender and drops it after the cleanup.
    let mut state = entry.state.clone();
    while state.changed().await.is_ok() {}
}

async fn evict(shared: &Shared, pod: &Pod) -> kube::Result<()> {
    if pod.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let name = pod_api::name(pod);
    let eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": pod.metadata.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.metadata.uid}},
    });
    let evicted = pod_api::pods(shared, pod)
        .create_subresource::<Value, Value>("eviction", name, &PostParams::default(), &eviction)
        .await;
    match evicted {
        // Gone already, or another pod of the same name exists.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        evicted => evicted.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_come_back_and_what_has_ended_stays() {
        let pod = |value: Value| serde_json::from_value::<Pod>(value).unwrap();
        assert!(is_to_go(&pod(json!({}))));
        assert!(is_to_go(&pod(json!({"status": {"phase": "Running"}}))));
        assert!(!is_to_go(&pod(json!({"status": {"phase": "Failed"}}))));
        let owned = |kind: &str| {
            pod(json!({"metadata": {"ownerReferences": [
                {"apiVersion": "v1", "kind": kind, "name": "a", "uid": "b", "controller": true},
            ]}}))
        };
        assert!(!is_to_go(&owned("DaemonSet")));
        assert!(is_to_go(&owned("Sandbox")));
    }
}
