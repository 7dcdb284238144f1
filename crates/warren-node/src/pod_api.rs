//! Writes a worker's results about its pod to the API server.

use k8s_openapi::api::core::v1::{Binding, Pod, PodStatus};
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::node::Shared;

pub(crate) fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

pub(crate) fn pods(shared: &Shared, pod: &Pod) -> Api<Pod> {
    Api::namespaced(shared.client.clone(), pod.metadata.namespace.as_deref().unwrap_or("default"))
}

/// Returns the resource version as a number, which can be compared since Kubernetes 1.35; 0 for a
/// server with another format, whose objects are then always believed.
pub(crate) fn resource_version(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

/// Returns the status as a merge patch that also removes missing fields.
pub(crate) fn status_patch(before: Option<&PodStatus>, after: &PodStatus) -> serde_json::Value {
    let mut patch = serde_json::to_value(after).unwrap_or_default();
    let before = before.and_then(|status| serde_json::to_value(status).ok()).unwrap_or_default();
    if let (Some(patch), Some(before)) = (patch.as_object_mut(), before.as_object()) {
        for key in before.keys() {
            patch.entry(key.clone()).or_insert(serde_json::Value::Null);
        }
        patch.retain(|key, value| before.get(key) != Some(value));
    }
    patch
}

pub(crate) async fn bind(shared: &Shared, pod: &Pod) -> kube::Result<()> {
    let binding = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name(pod), "namespace": pod.metadata.namespace, "uid": pod.metadata.uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": shared.facts.name},
    });
    let binding: Binding = serde_json::from_value(binding).map_err(kube::Error::SerdeError)?;
    let answer: kube::Result<kube::core::Status> =
        pods(shared, pod).create_subresource("binding", name(pod), &PostParams::default(), &binding).await;
    answer.map(drop)
}
