//! Refuses pods that ask for features which this node does not have. Such a pod fails with a reason
//! that names the field. It is never run with less than it asked for, nor reported Ready without
//! the probe that decides it.

use k8s_openapi::api::core::v1::{Container, Pod, Volume};

use super::sources::{SourceError, Sources};
use super::{
    EnvironmentError, Limits, Networks, NodeFacts, Quantity, Role, all_containers, containers, environment,
    guest, host_path, pids_limit, unsupported, volume_kind,
};
use crate::network::{AllowList, Mode};

/// The built-in image: the machine's own `/usr`, read-only, under a writable overlay.
pub const HOST_IMAGE: &str = "warren.dev/host";

/// The prefix of built-in images, which are never fetched.
const BUILT_IN_PREFIX: &str = "warren.dev/";

/// An image that needs no fetching.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuiltInImage {
    /// [`HOST_IMAGE`].
    Host,
}

impl BuiltInImage {
    /// Returns the built-in image of this name, with or without the tag `latest`.
    pub fn named(image: &str) -> Option<BuiltInImage> {
        (image.strip_suffix(":latest").unwrap_or(image) == HOST_IMAGE).then_some(BuiltInImage::Host)
    }
}

/// The reason why the whole pod cannot run here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// One word in CamelCase: the pod's `status.reason`.
    pub reason: &'static str,
    /// A readable message that names the field or volume.
    pub message: String,
}

/// Refuses a network mode that is invalid or not available: a pod gets what it asks for, or does
/// not run.
fn refused_network(pod: &Pod, node: &NodeFacts) -> Option<Refusal> {
    let message = match (Mode::asked(pod), AllowList::of(pod)) {
        (Err(error), _) => error.to_string(),
        (_, Err(error)) => error.to_string(),
        (Ok(Some(mode @ (Mode::Restricted | Mode::Full))), _) if node.network == Networks::None => {
            format!("there is no pod network on this node, and the pod asks for `{}`", mode.name())
        }
        (Ok(Some(Mode::Full)), _) if node.network == Networks::Proxy => {
            "the pod asks for `full`, and the home of an ordinary user can give pods only the egress proxy (`restricted`)"
                .to_owned()
        }
        _ => return None,
    };
    Some(Refusal { reason: "NetworkNotAvailable", message })
}

/// The reason why a container waits instead of starting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerProblem {
    /// The reason, spelled as in kubelet.
    pub reason: &'static str,
    /// A readable message that names the image or the field.
    pub message: String,
}

/// Returns the problem that keeps a container from starting. `Err(None)`: a source has not been
/// looked up yet.
pub fn container_problem(
    pod: &Pod,
    container: &Container,
    node: &NodeFacts,
    sources: &Sources,
) -> Result<(), Option<ContainerProblem>> {
    if let Some(problem) = image_problem(container.image.as_deref().unwrap_or_default()) {
        return Err(Some(problem));
    }
    let config = |message| Err(Some(ContainerProblem { reason: "CreateContainerConfigError", message }));
    if let Some(message) = identity_problem(pod, container, node.ids) {
        return config(message);
    }
    match environment(pod, container, &containers::addresses(), sources) {
        Ok(_) => Ok(()),
        Err(EnvironmentError::Source(SourceError::NotYet)) => Err(None),
        Err(problem) => config(problem.to_string()),
    }
}

fn identity_problem(pod: &Pod, container: &Container, ids: u32) -> Option<String> {
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let own = container.security_context.as_ref();
    let user = own.and_then(|own| own.run_as_user).or_else(|| of_pod.and_then(|pod| pod.run_as_user));
    let group = own.and_then(|own| own.run_as_group).or_else(|| of_pod.and_then(|pod| pod.run_as_group));
    let further = of_pod.and_then(|pod| pod.supplemental_groups.as_deref()).unwrap_or_default();
    let fs_group = of_pod.and_then(|pod| pod.fs_group);
    let named = [("runAsUser", user), ("runAsGroup", group), ("fsGroup", fs_group)];
    let named = named.into_iter().filter_map(|(field, id)| Some((field, id?)));
    let all = named.chain(further.iter().map(|id| ("supplementalGroups", *id)));
    if let Some((field, id)) = all.into_iter().find(|(_, id)| !(0..i64::from(ids)).contains(id)) {
        return Some(match ids {
            0 | 1 => format!(
                "{field} {id}: the only id in a pod of this node is 0, for the user who runs it has no further ones (see \
                 `/etc/subuid`, `/etc/subgid` and `newuidmap`)"
            ),
            ids => format!("{field} {id} is outside the ids that a pod has, 0 to {}", ids - 1),
        });
    }
    let must_not_be_root =
        own.and_then(|own| own.run_as_non_root).or_else(|| of_pod.and_then(|pod| pod.run_as_non_root))
            == Some(true);
    match user {
        Some(0) if must_not_be_root => Some("container's runAsUser breaks non-root policy".to_owned()),
        // Built-in images run as root. The user of other images is known once they are present.
        None if must_not_be_root && is_built_in(container) => {
            Some("container has runAsNonRoot and image will run as root".to_owned())
        }
        _ => None,
    }
}

fn is_built_in(container: &Container) -> bool {
    container.image.as_deref().is_some_and(|image| BuiltInImage::named(image).is_some())
}

/// Returns the problem of an image name, if there is one.
fn image_problem(image: &str) -> Option<ContainerProblem> {
    let shown: String = image.chars().take(256).collect();
    if BuiltInImage::named(image).is_some() {
        return None;
    }
    if !is_image_name(image) {
        let message =
            format!("failed to apply default image tag \"{shown}\": couldn't parse image name \"{shown}\"");
        return Some(ContainerProblem { reason: "InvalidImageName", message });
    }
    image.starts_with(BUILT_IN_PREFIX).then(|| ContainerProblem {
        reason: "ErrImagePull",
        message: format!("there is no built-in image \"{shown}\"; the only one is \"{HOST_IMAGE}\""),
    })
}

/// Returns true for `[host[:port]/]path[:tag][@digest]`, as registries spell it.
fn is_image_name(image: &str) -> bool {
    let (name, digest) = match image.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (image, None),
    };
    let (repository, tag) = match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => (repository, Some(tag)),
        _ => (name, None),
    };
    let word = |text: &str| {
        !text.is_empty()
            && text
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte))
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    let host = |text: &str| {
        let (name, port) = text.split_once(':').unwrap_or((text, "0"));
        word(&name.to_ascii_lowercase()) && port.parse::<u16>().is_ok()
    };
    let mut parts = repository.split('/');
    let first = parts.next().unwrap_or_default();
    let rest: Vec<&str> = parts.collect();
    let path_ok = rest.iter().all(|part| word(part));
    let first_ok = if rest.is_empty() { word(first) } else { host(first) };
    let tag_ok = tag.is_none_or(|tag| {
        tag.len() <= 128
            && tag.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            && tag.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    });
    let digest_ok = digest.is_none_or(|digest| {
        digest.split_once(':').is_some_and(|(algorithm, hex)| {
            !algorithm.is_empty() && hex.len() >= 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
    });
    image.len() <= 512 && first_ok && path_ok && tag_ok && digest_ok
}

/// Refuses a runtime class that this node does not have, or that cannot run this pod.
fn refused_runtime(pod: &Pod, node: &NodeFacts) -> Option<Refusal> {
    let class = pod.spec.as_ref()?.runtime_class_name.as_deref().filter(|class| !class.is_empty())?;
    let Some(runtime) = node.runtimes.get(class) else {
        return Some(Refusal {
            reason: "RuntimeClassNotFound",
            message: format!("runtime class \"{}\" is not available on this node", shorten(class)),
        });
    };
    let together = all_containers(pod).filter(|(role, _)| *role != Role::Init).count();
    (runtime.one_at_a_time && together > 1).then(|| Refusal {
        reason: "UnsupportedPodSpec",
        message: format!(
            "runtime class \"{}\" runs one container of a pod at a time, and the pod has {together} beside each other",
            shorten(class)
        ),
    })
}

/// Returns the reason why this pod cannot run here, if there is one.
pub fn refusal(pod: &Pod, node: &NodeFacts) -> Option<Refusal> {
    let spec = pod.spec.as_ref()?;
    if let Some(refusal) = refused_network(pod, node) {
        return Some(refusal);
    }
    for (asked, field) in [
        (spec.host_network, "hostNetwork"),
        (spec.host_pid, "hostPID"),
        (spec.host_ipc, "hostIPC"),
        (spec.share_process_namespace, "shareProcessNamespace"),
    ] {
        if asked == Some(true) {
            return Some(not_isolated(format!("spec.{field}")));
        }
    }
    if let Some(refusal) = refused_runtime(pod, node) {
        return Some(refusal);
    }
    if let Err(error) = guest(pod) {
        return Some(Refusal { reason: "UnsupportedPodSpec", message: error.to_string() });
    }
    if let Some(refusal) = refused_limits(pod, node) {
        return Some(refusal);
    }
    if let Some(refusal) = unsupported::of_pod(pod, node) {
        return Some(refusal);
    }
    let volumes = spec.volumes.as_deref().unwrap_or_default();
    volumes.iter().find_map(|volume| refused_volume(pod, volume, node)).or_else(|| {
        all_containers(pod).find_map(|(role, container)| refused_container(role, container, volumes))
    })
}

/// Refuses a limit that is invalid or that this node cannot enforce.
fn refused_limits(pod: &Pod, node: &NodeFacts) -> Option<Refusal> {
    if let Err(error) = pids_limit(pod) {
        return Some(Refusal { reason: "InvalidLimits", message: error.to_string() });
    }
    if node.limits_are_enforced {
        return None;
    }
    all_containers(pod).find_map(|(role, container)| {
        let limits = container.resources.as_ref()?.limits.as_ref()?;
        let resource = ["memory", "cpu"].into_iter().find(|name| limits.contains_key(*name))?;
        let list = if role == Role::Main { "containers" } else { "initContainers" };
        let name = shorten(&container.name);
        Some(Refusal {
            reason: "LimitsNotEnforceable",
            message: format!(
                "spec.{list}[{name}].resources.limits.{resource} cannot be enforced: the user who runs this node was given \
                 no cgroups"
            ),
        })
    })
}

/// Capabilities beyond the default that a container may have: the container engines' own defaults,
/// and two that reach nothing outside the pod's own namespaces. In a user namespace none of them
/// has power over the host.
const MORE_CAPABILITIES: [&str; 5] = ["AUDIT_WRITE", "IPC_LOCK", "MKNOD", "NET_RAW", "SYS_PTRACE"];
/// Capabilities that every container has: asking for one changes nothing.
const HAS_ANYWAY: [&str; 11] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

fn refused_container(role: Role, container: &Container, volumes: &[Volume]) -> Option<Refusal> {
    let list = if role == Role::Main { "containers" } else { "initContainers" };
    let at = |field: &str| format!("spec.{list}[{}].{field}", shorten(&container.name));
    if let Some(security) = &container.security_context {
        if security.privileged == Some(true) {
            return Some(not_isolated(at("securityContext.privileged")));
        }
        let added = security.capabilities.iter().flat_map(|wanted| wanted.add.iter().flatten());
        let mut names = added.map(|name| name.strip_prefix("CAP_").unwrap_or(name));
        if let Some(name) = names.find(|name| !MORE_CAPABILITIES.contains(name) && !HAS_ANYWAY.contains(name))
        {
            return Some(not_isolated(at(&format!("securityContext.capabilities.add {}", shorten(name)))));
        }
    }
    for (there, field) in [
        (container.volume_devices.as_ref().is_some_and(|devices| !devices.is_empty()), "volumeDevices"),
        (role == Role::Main && container.restart_policy.is_some(), "restartPolicy"),
        (
            container.restart_policy_rules.as_ref().is_some_and(|rules| !rules.is_empty()),
            "restartPolicyRules",
        ),
    ] {
        if there {
            return Some(unsupported(at(field)));
        }
    }
    if let Some(refusal) = unsupported::of_container(container, at) {
        return Some(refusal);
    }
    for mount in container.volume_mounts.as_deref().unwrap_or_default() {
        if !volumes.iter().any(|volume| volume.name == mount.name) {
            return Some(Refusal {
                reason: "InvalidVolumeMount",
                message: format!("{}: there is no volume \"{}\"", at("volumeMounts"), shorten(&mount.name)),
            });
        }
        if mount.mount_propagation.as_deref().is_some_and(|kind| !matches!(kind, "" | "None")) {
            return Some(not_isolated(at(&format!(
                "volumeMounts[{}].mountPropagation",
                shorten(&mount.name)
            ))));
        }
    }
    let limits = Limits::of(container).err()?;
    Some(Refusal { reason: "InvalidLimits", message: at(&limits.to_string()) })
}

/// Refuses a volume that this node cannot provide. Otherwise the container would silently get an
/// empty directory.
fn refused_volume(pod: &Pod, volume: &Volume, node: &NodeFacts) -> Option<Refusal> {
    let refused = |what: String| {
        let message = format!("volume \"{}\": {what}", shorten(&volume.name));
        Some(Refusal { reason: "UnsupportedVolume", message })
    };
    let unsupported_field = || {
        let field = unsupported::of_volume(volume)?;
        refused(format!("{field} is not supported by this node yet"))
    };
    if let Some(empty) = &volume.empty_dir {
        let size = empty.size_limit.as_ref().map(|size| size.0.parse::<Quantity>());
        return match (empty.medium.as_deref().unwrap_or_default(), size) {
            ("" | "Memory", Some(Err(error))) => refused(format!("emptyDir.sizeLimit: {error}")),
            ("" | "Memory", _) => unsupported_field(),
            (other, _) => {
                refused(format!("emptyDir.medium `{}` is not supported by this node yet", shorten(other)))
            }
        };
    }
    if volume.host_path.is_some() {
        return host_path::refused(pod, volume, &node.host_paths).and_then(refused);
    }
    if warren_api::view::path(volume).is_some() {
        return host_path::refused_view(pod, volume, &node.host_paths).and_then(refused);
    }
    if volume_kind(pod, volume).is_some() {
        return unsupported_field();
    }
    // The one field that is set names the kind, even for kinds that Kubernetes adds later.
    let kind = serde_json::to_value(volume)
        .ok()
        .and_then(|value| value.as_object()?.keys().find(|key| *key != "name").cloned())
        .unwrap_or_else(|| "unknown".to_owned());
    refused(format!(
        "{kind} is not supported by this node yet; emptyDir, configMap, secret, downwardAPI, projected and \
         persistentVolumeClaim are"
    ))
}

pub(super) fn unsupported(field: String) -> Refusal {
    Refusal { reason: "UnsupportedPodSpec", message: format!("{field} is not supported by this node yet") }
}

pub(super) fn not_isolated(field: String) -> Refusal {
    Refusal {
        reason: "IsolationRefused",
        message: format!("{field} would weaken the isolation of the pod, which this node does not allow"),
    }
}

pub(super) fn shorten(text: &str) -> String {
    text.chars().take(256).collect()
}
