//! Decides which pods have the node's guest daemon, in which container it runs, and its base
//! directory.

use k8s_openapi::api::core::v1::{Container, Pod};
use warren_api::annotations;

use super::BuiltInImage;

/// The port of the runtime API. A container that declares this port serves it itself.
const RUNTIME_PORT: u16 = 8888;

/// The ports of sandboxd's REST and gRPC APIs. Other programs often use them, so a pod must ask for
/// them.
const SANDBOXD_PORTS: [u16; 2] = [8080, 9090];

const ENVD_PORT: u16 = 49983;

/// The base directory in images that name no other.
pub const WORKSPACE: &str = "/workspace";

/// A pod whose annotation about the guest daemon cannot be honoured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GuestError {
    /// The annotation has an unknown value.
    #[error(
        "annotation {key}: must be {enabled:?}, {sandboxd:?}, {e2b:?} or {disabled:?}, and not {0:?}",
        key = annotations::GUEST, enabled = annotations::ENABLED, sandboxd = annotations::SANDBOXD,
        e2b = annotations::E2B, disabled = annotations::DISABLED
    )]
    Value(String),
    /// The pod has a runtime class.
    #[error(
        "annotation {key}: the guest daemon cannot be put into pods with a runtimeClassName",
        key = annotations::GUEST
    )]
    Runtime,
}

/// A pod's guest daemon.
#[derive(Debug, Clone, PartialEq)]
pub struct Guest<'a> {
    /// The container that the guest daemon runs in.
    pub container: &'a Container,
    /// The ports that the guest daemon serves.
    pub ports: Vec<u16>,
}

/// Returns the guest daemon of a pod, if it should have one.
///
/// The pod's annotation decides. Without it, pods of Sandboxes on the built-in image have one,
/// unless a container declares the port as its own or the pod has a runtime class.
pub fn guest(pod: &Pod) -> Result<Option<Guest<'_>>, GuestError> {
    let Some(spec) = &pod.spec else { return Ok(None) };
    let Some(container) = spec.containers.first() else { return Ok(None) };
    let on = |ports: &[u16]| Ok(Some(Guest { container, ports: ports.to_vec() }));
    let has_runtime = spec.runtime_class_name.as_deref().is_some_and(|class| !class.is_empty());
    let annotation = pod.metadata.annotations.as_ref().and_then(|all| all.get(annotations::GUEST));
    match annotation.map(String::as_str) {
        Some(annotations::ENABLED | annotations::SANDBOXD | annotations::E2B) if has_runtime => {
            Err(GuestError::Runtime)
        }
        Some(annotations::ENABLED) => on(&[RUNTIME_PORT]),
        Some(annotations::SANDBOXD) => on(&[&[RUNTIME_PORT], &SANDBOXD_PORTS[..]].concat()),
        Some(annotations::E2B) => on(&[RUNTIME_PORT, ENVD_PORT]),
        Some(annotations::DISABLED) => Ok(None),
        Some(other) => Err(GuestError::Value(other.chars().take(64).collect())),
        None if has_runtime || !is_of_sandbox(pod) => Ok(None),
        None => {
            let mut ports = spec.containers.iter().flat_map(|container| container.ports.iter().flatten());
            let is_taken = ports.any(|port| port.container_port == i32::from(RUNTIME_PORT));
            let image = container.image.as_deref().unwrap_or_default();
            if is_taken || BuiltInImage::named(image).is_none() { Ok(None) } else { on(&[RUNTIME_PORT]) }
        }
    }
}

/// Returns true if a Sandbox controls the pod.
pub fn is_of_sandbox(pod: &Pod) -> bool {
    pod.metadata.owner_references.iter().flatten().any(|owner| {
        let group = owner.api_version.split_once('/').map(|(group, _)| group);
        owner.controller == Some(true) && owner.kind == "Sandbox" && group == Some(warren_api::GROUP)
    })
}

/// Returns the directory that paths of the runtime API are relative to. The first of these counts:
/// `SANDBOX_BASE_DIR` of the container or its image; `/app` as in the published runtime, if the
/// image has it; the container's working directory, unless that is the root; [`WORKSPACE`].
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

    fn found(
        annotation: Option<&str>,
        owner: &str,
        spec: Value,
    ) -> Result<Option<(String, usize)>, GuestError> {
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
        guest(&pod).map(|found| found.map(|found| (found.container.name.clone(), found.ports.len())))
    }

    #[test]
    fn sandboxes_on_the_built_in_image_have_one_by_default() {
        let main = Ok(Some(("main".to_owned(), 1)));
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
            (Some("sandboxd"), "Sandbox", json!({}), Ok(Some(("main".to_owned(), 3)))),
            (Some("e2b"), "Sandbox", json!({}), Ok(Some(("main".to_owned(), 2)))),
            (Some("e2b"), "Sandbox", runtime.clone(), Err(GuestError::Runtime)),
            (Some("enabled"), "Sandbox", runtime, Err(GuestError::Runtime)),
            (Some("yes"), "Sandbox", json!({}), Err(GuestError::Value("yes".to_owned()))),
        ] {
            assert_eq!(found(annotation, owner, spec.clone()), expected, "{annotation:?} {owner} {spec}");
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
