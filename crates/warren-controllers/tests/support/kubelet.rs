//! A kubelet that only pretends: it places every pod, calls it running and ready with an address, and lets it go when it
//! is deleted. Enough to judge controllers on a control plane that has no nodes.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// What the kubelet makes of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Running and ready.
    Ready,
    /// Running, with an address, never ready.
    NotReady,
    /// Ended with success.
    Succeeded,
    /// Nobody has room for it.
    Unschedulable,
    /// Not even looked at.
    Ignored,
}

/// The kubelet; it stops when dropped.
pub struct Kubelet {
    stop: CancellationToken,
    _task: JoinHandle<()>,
}

impl Kubelet {
    /// Starts a kubelet for one namespace. The annotation `test/fate` of a pod decides; without it a pod becomes ready.
    pub fn start(client: Client, namespace: &str) -> Self {
        let stop = CancellationToken::new();
        let pods: Api<Pod> = Api::namespaced(client, namespace);
        let stopping = stop.clone();
        let addresses = Arc::new(AtomicU32::new(1));
        let task = tokio::spawn(async move {
            let events =
                watcher(pods.clone(), watcher::Config::default()).default_backoff().applied_objects();
            let mut events = std::pin::pin!(events.take_until(stopping.cancelled_owned()));
            while let Some(event) = events.next().await {
                if let Ok(pod) = event {
                    let (pods, addresses) = (pods.clone(), addresses.clone());
                    tokio::spawn(async move { step(&pods, pod, &addresses).await });
                }
            }
        });
        Self { stop, _task: task }
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn step(pods: &Api<Pod>, pod: Pod, addresses: &AtomicU32) {
    let name = pod.name_any();
    if pod.metadata.deletion_timestamp.is_some() {
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        // Somebody else may have been quicker; gone is gone.
        let _ = pods.delete(&name, &now).await;
        return;
    }
    let fate = match pod.annotations().get("test/fate").map(String::as_str) {
        None => Fate::Ready,
        Some("not-ready") => Fate::NotReady,
        Some("succeeded") => Fate::Succeeded,
        Some("unschedulable") => Fate::Unschedulable,
        Some(_) => Fate::Ignored,
    };
    let status = pod.status.clone().unwrap_or_default();
    if fate == Fate::Ignored || matches!(status.phase.as_deref(), Some("Running" | "Succeeded" | "Failed")) {
        return;
    }
    if fate == Fate::Unschedulable {
        let told = status
            .conditions
            .iter()
            .flatten()
            .any(|condition| condition.reason.as_deref() == Some("Unschedulable"));
        if !told {
            let conditions = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]);
            publish(pods, &name, json!({"phase": "Pending", "conditions": conditions})).await;
        }
        return;
    }
    if pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none()) {
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "pretend"}});
        // The real scheduler has no nodes, so nobody else binds; a pod that is gone needs no binding.
        let _ =
            pods.create_subresource::<Value, Value>("binding", &name, &Default::default(), &binding).await;
    }
    let number = addresses.fetch_add(1, Ordering::Relaxed);
    let address = format!("10.{}.{}.{}", number >> 16 & 255, number >> 8 & 255, number & 255);
    let phase = if fate == Fate::Succeeded { "Succeeded" } else { "Running" };
    let ready = if fate == Fate::Ready { "True" } else { "False" };
    let status = json!({"phase": phase, "podIP": address, "podIPs": [{"ip": address}], "conditions": [
        {"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": ready}]});
    publish(pods, &name, status).await;
}

async fn publish(pods: &Api<Pod>, name: &str, status: Value) {
    let body = json!({"status": status});
    // A pod that is gone by now needs no status.
    let _ = pods.patch_status(name, &PatchParams::default(), &Patch::Merge(body)).await;
}
