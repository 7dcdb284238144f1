//! Which pods have the node's guest daemon in them, where it runs, and what it calls the base directory.

use k8s_openapi::api::core::v1::{Container, Pod};
use warren_api::annotations;

use super::BuiltInImage;

/// The port that the guest daemon serves. Another program's if a container declares it.
pub const GUEST_PORT: u16 = 8888;

/// The base directory in images that have nothing better.
pub const WORKSPACE: &str = "/workspace";

/// A pod whose annotation about the guest daemon cannot be honoured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GuestError {
    /// The annotation has another value.
    #[error(
        "annotation {key}: must be {enabled:?} or {disabled:?}, and not {0:?}",
        key = annotations::GUEST, enabled = annotations::ENABLED, disabled = annotations::DISABLED
    )]
    Value(String),
    /// Another runtime keeps the pod's containers.
    #[error(
        "annotation {key}: the guest daemon cannot be put into pods with a runtimeClassName",
        key = annotations::GUEST
    )]
    Runtime,
}

/// Returns the container that the guest daemon runs in, if there is to be one.
///
/// The pod's annotation decides. Without it, pods of Sandboxes on the built-in image have one, unless
/// a container declares the port as its own or another runtime keeps the pod.
pub fn guest_container(pod: &Pod) -> Result<Option<&Container>, GuestError> {
    let Some(spec) = &pod.spec else { return Ok(None) };
    let first = spec.containers.first();
    let has_runtime = spec.runtime_class_name.as_deref().is_some_and(|class| !class.is_empty());
    let annotation = pod.metadata.annotations.as_ref().and_then(|all| all.get(annotations::GUEST));
    match annotation.map(String::as_str) {
        Some(annotations::ENABLED) if has_runtime => Err(GuestError::Runtime),
        Some(annotations::ENABLED) => Ok(first),
        Some(annotations::DISABLED) => Ok(None),
        Some(other) => Err(GuestError::Value(other.chars().take(64).collect())),
        None if has_runtime || !is_of_sandbox(pod) => Ok(None),
        None => {
            let mut ports = spec.containers.iter().flat_map(|container| container.ports.iter().flatten());
            let is_taken = ports.any(|port| port.container_port == i32::from(GUEST_PORT));
            let is_built_in = |container: &&Container| {
                container.image.as_deref().is_some_and(|image| BuiltInImage::named(image).is_some())
            };
            Ok(first.filter(is_built_in).filter(|_| !is_taken))
        }
    }
}

/// Whether a Sandbox controls the pod.
pub fn is_of_sandbox(pod: &Pod) -> bool {
    pod.metadata.owner_references.iter().flatten().any(|owner| {
        let group = owner.api_version.split_once('/').map(|(group, _)| group);
        owner.controller == Some(true) && owner.kind == "Sandbox" && group == Some(warren_api::GROUP)
    })
}

/// Returns the directory that paths of the runtime API are relative to: what the container or its image
/// says (`SANDBOX_BASE_DIR`), `/app` as in the published runtime if the image has that, the container's
/// working directory unless that is the root, or [`WORKSPACE`].
pub fn base_directory<'a>(said: Option<&'a str>, has_app: bool, working_directory: &'a str) -> &'a str {
    match (said.filter(|path| path.starts_with('/')), has_app, working_directory) {
        (Some(said), ..) => said,
        (None, true, _) => "/app",
        (None, false, "" | "/") => WORKSPACE,
        (None, false, other) => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn container(annotation: Option<&str>, owner: &str, spec: Value) -> Result<Option<String>, GuestError> {
        let mut pod = json!({
            "metadata": {"ownerReferences": [
                {"apiVersion": "agents.x-k8s.io/v1beta1", "kind": owner, "name": "a", "uid": "b", "controller": true}
            ]},
            "spec": {"containers": [{"name": "main", "image": "warren.dev/host"}, {"name": "other"}]},
        });
        for (key, value) in spec.as_object().unwrap() {
            pod["spec"][key] = value.clone();
        }
        if let Some(annotation) = annotation {
            pod["metadata"]["annotations"] = json!({"warren.dev/guest": annotation});
        }
        let pod = serde_json::from_value(pod).unwrap();
        guest_container(&pod).map(|found| found.map(|container| container.name.clone()))
    }

    #[test]
    fn sandboxes_on_the_built_in_image_have_one_by_default() {
        let main = Ok(Some("main".to_owned()));
        let image = json!({"containers": [{"name": "main", "image": "docker.io/library/python:3"}]});
        let port = json!({"containers": [
            {"name": "main", "image": "warren.dev/host", "ports": [{"containerPort": 8888}]}
        ]});
        let runtime = json!({"runtimeClassName": "gvisor"});
        for (annotation, owner, spec, expected) in [
            (None, "Sandbox", json!({}), main.clone()),
            (None, "ReplicaSet", json!({}), Ok(None)),
            (None, "Sandbox", image.clone(), Ok(None)),
            (None, "Sandbox", port.clone(), Ok(None)),
            (None, "Sandbox", runtime.clone(), Ok(None)),
            (Some("disabled"), "Sandbox", json!({}), Ok(None)),
            (Some("enabled"), "ReplicaSet", image, main.clone()),
            (Some("enabled"), "Sandbox", port, main),
            (Some("enabled"), "Sandbox", runtime, Err(GuestError::Runtime)),
            (Some("yes"), "Sandbox", json!({}), Err(GuestError::Value("yes".to_owned()))),
        ] {
            assert_eq!(container(annotation, owner, spec.clone()), expected, "{annotation:?} {owner} {spec}");
        }
    }

    #[test]
    fn the_base_directory_is_the_published_one_where_there_is_one() {
        assert_eq!(base_directory(Some("/data"), true, "/src"), "/data");
        assert_eq!(base_directory(Some("data"), true, "/src"), "/app");
        assert_eq!(base_directory(None, false, "/src"), "/src");
        assert_eq!(base_directory(None, false, "/"), "/workspace");
    }
}
