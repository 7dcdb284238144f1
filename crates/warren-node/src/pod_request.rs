//! A pod's spec as the shim takes it. What cannot be honoured was refused by `warren_decide::pod` before.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod, PodSecurityContext, Volume};
use warren_decide::pod::{
    Addresses, FieldError, Limits, LimitsError, Quantity, address_without_network, environment, expand,
};
use warren_oci::host_image::HostImage;
use warren_oci::idmap::IdRange;
use warren_oci::protocol::{ContainerRequest, LogFile, PodRequest};
use warren_oci::spec::{self, CpuQuota, Mount, MountKind, Process, Spec, User};

/// CPU limits are counted in this period, as the container engines do: 100 ms.
const CPU_PERIOD_MICROSECONDS: u64 = 100_000;
/// Linux takes 64 bytes; a DNS label has 63.
const LONGEST_HOSTNAME: usize = 63;

/// What requests for pods on this node have in common.
#[derive(Debug)]
pub(crate) struct Builder {
    pub(crate) image: HostImage,
    pub(crate) executable: PathBuf,
    pub(crate) node_name: String,
    pub(crate) host_ip: String,
    pub(crate) home_cgroup: String,
}

/// A pod's directory could not be prepared, or its spec not be turned into a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("the pod has no container \"{0}\"")]
    NoContainer(String),
    #[error(transparent)]
    Environment(#[from] FieldError),
    #[error(transparent)]
    Limits(#[from] LimitsError),
    #[error("make {path}")]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Where a pod keeps its things.
#[derive(Debug, Clone)]
pub(crate) struct PodDirectory(pub(crate) PathBuf);

impl PodDirectory {
    /// The log of one run of a container.
    pub(crate) fn log(&self, container: &str, attempt: u32) -> PathBuf {
        self.0.join("logs").join(container).join(format!("{attempt}.log"))
    }

    fn volume(&self, name: &str) -> PathBuf {
        self.0.join("volumes").join(name)
    }
}

impl Builder {
    /// The whole pod, without containers. Makes the directories of its volumes.
    pub(crate) fn pod(
        &self,
        pod: &Pod,
        directory: &PodDirectory,
        ids: IdRange,
    ) -> Result<PodRequest, RequestError> {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let spec = pod.spec.as_ref();
        for volume in spec.and_then(|spec| spec.volumes.as_deref()).unwrap_or_default() {
            if !in_memory(volume) {
                let path = directory.volume(&volume.name);
                let group = pod_security(pod)
                    .and_then(|security| security.fs_group)
                    .and_then(|id| u32::try_from(id).ok());
                make_volume(&path, ids, group).map_err(|source| RequestError::Directory { path, source })?;
            }
        }
        let name = spec
            .and_then(|spec| spec.hostname.as_deref())
            .or(pod.metadata.name.as_deref())
            .unwrap_or("sandbox");
        let hostname: String = name.chars().take(LONGEST_HOSTNAME).collect();
        Ok(PodRequest {
            cgroup: format!("{}/{uid}", self.home_cgroup),
            uid,
            directory: directory.0.clone(),
            hostname: hostname.trim_end_matches(['-', '.']).to_owned(),
            ids,
            limits: spec::Limits::default(),
            containers: Vec::new(),
            trace: false,
        })
    }

    /// One container of it.
    pub(crate) fn container(
        &self,
        pod: &Pod,
        name: &str,
        attempt: u32,
        directory: &PodDirectory,
    ) -> Result<ContainerRequest, RequestError> {
        let container =
            pod.spec.iter().flat_map(|spec| &spec.containers).find(|container| container.name == name);
        let container = container.ok_or_else(|| RequestError::NoContainer(name.to_owned()))?;
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let pod_ip = address_without_network(uid).to_string();
        let addresses = Addresses { node_name: &self.node_name, host_ip: &self.host_ip, pod_ip: &pod_ip };
        let own_variables = environment(pod, container, &addresses)?;
        let values: HashMap<String, String> = own_variables.iter().cloned().collect();

        let mut variables: Vec<String> = HostImage::default_environment();
        variables.retain(|line| line.split_once('=').is_none_or(|(name, _)| !values.contains_key(name)));
        variables.extend(own_variables.iter().map(|(name, value)| format!("{name}={value}")));

        let process = Process {
            env: variables,
            cwd: container.working_dir.as_deref().filter(|path| !path.is_empty()).unwrap_or("/").into(),
            user: user(pod, container),
            ..Process::new(command(container, &values))
        };
        let limits = Limits::of(container)?;
        let security = container.security_context.as_ref();
        let mut spec = Spec::new(process);
        spec.root.readonly =
            security.and_then(|security| security.read_only_root_filesystem).unwrap_or(false);
        spec.mounts = mounts(pod, container, directory);
        spec.linux.resources = spec::Limits {
            memory_bytes: Some(limits.memory_bytes),
            cpu: Some(CpuQuota {
                quota: limits.cpu_millis * CPU_PERIOD_MICROSECONDS / 1000,
                period: CPU_PERIOD_MICROSECONDS,
            }),
            pids: Some(limits.pids),
            ..spec::Limits::default()
        };
        let log = directory.log(name, attempt);
        if let Some(parent) = log.parent() {
            std::fs::create_dir_all(parent)
                .map_err(|source| RequestError::Directory { path: parent.to_owned(), source })?;
        }
        Ok(ContainerRequest {
            name: name.to_owned(),
            attempt,
            spec,
            rootfs: self.image.rootfs(&self.executable),
            log: LogFile::new(log),
        })
    }
}

/// `command` replaces the image's entry point and its arguments, `args` only the arguments.
fn command(container: &Container, values: &HashMap<String, String>) -> Vec<String> {
    let expanded = |words: Option<&Vec<String>>| -> Vec<String> {
        words.into_iter().flatten().map(|word| expand(word, values)).collect()
    };
    let (entry_point, arguments) = (expanded(container.command.as_ref()), expanded(container.args.as_ref()));
    match (entry_point.is_empty(), arguments.is_empty()) {
        (false, _) => [entry_point, arguments].concat(),
        (true, true) => HostImage::default_command(),
        // The image's init runs nothing but itself, so arguments alone are a command, as with an image without an entry
        // point.
        (true, false) => arguments,
    }
}

fn pod_security(pod: &Pod) -> Option<&PodSecurityContext> {
    pod.spec.as_ref()?.security_context.as_ref()
}

fn user(pod: &Pod, container: &Container) -> User {
    let of_pod = pod_security(pod);
    let own = container.security_context.as_ref();
    // Ids out of range were refused before.
    let id = |value: Option<i64>| value.and_then(|id| u32::try_from(id).ok());
    let uid = id(own.and_then(|own| own.run_as_user).or_else(|| of_pod.and_then(|pod| pod.run_as_user)));
    let gid = id(own.and_then(|own| own.run_as_group).or_else(|| of_pod.and_then(|pod| pod.run_as_group)));
    let further = of_pod.and_then(|pod| pod.supplemental_groups.as_deref()).unwrap_or_default();
    let groups = further.iter().copied().chain(of_pod.and_then(|pod| pod.fs_group));
    User {
        uid: uid.unwrap_or(0),
        gid: gid.unwrap_or(0),
        additional_gids: groups.filter_map(|group| u32::try_from(group).ok()).collect(),
    }
}

fn in_memory(volume: &Volume) -> bool {
    volume.empty_dir.as_ref().is_some_and(|empty| empty.medium.as_deref() == Some("Memory"))
}

fn mounts(pod: &Pod, container: &Container, directory: &PodDirectory) -> Vec<Mount> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let mounts = container.volume_mounts.iter().flatten().filter_map(|mount| {
        let volume = volumes.iter().find(|volume| volume.name == mount.name)?;
        let mut options = vec!["nosuid".to_owned(), "nodev".to_owned()];
        if mount.read_only == Some(true) {
            options.push("ro".to_owned());
        }
        let destination = PathBuf::from(&mount.mount_path);
        if !in_memory(volume) {
            let source = Some(directory.volume(&volume.name));
            return Some(Mount { destination, kind: MountKind::Bind, source, options });
        }
        let size = volume.empty_dir.as_ref().and_then(|empty| empty.size_limit.as_ref());
        if let Some(size) = size.and_then(|size| size.0.parse::<Quantity>().ok()) {
            options.push(format!("size={}", size.units().max(0)));
        }
        options.push("mode=1777".to_owned());
        Some(Mount { destination, kind: MountKind::Tmpfs, source: None, options })
    });
    mounts.collect()
}

/// An empty directory that belongs to the pod's root, or to its `fsGroup`, and is open to all in the pod, as kubelet makes
/// it. Its parent is closed to everybody else on the host.
fn make_volume(path: &Path, ids: IdRange, group: Option<u32>) -> io::Result<()> {
    std::fs::create_dir_all(path)?;
    let owner = ids.to_host(0);
    let group = ids.to_host(group.unwrap_or(0));
    std::os::unix::fs::chown(path, owner, group)?;
    // With the bit that hands the group down, so that files in it stay the group's.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o2777))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn words(container: serde_json::Value) -> Vec<String> {
        let mut whole = json!({"name": "main"});
        for (key, value) in container.as_object().unwrap() {
            whole[key] = value.clone();
        }
        let container: Container = serde_json::from_value(whole).unwrap();
        command(&container, &[("NAME".to_owned(), "value".to_owned())].into())
    }

    #[test]
    fn command_and_arguments_replace_what_kubernetes_says_they_replace() {
        assert_eq!(words(json!({})), HostImage::default_command());
        assert_eq!(
            words(json!({"command": ["sh", "-c"], "args": ["echo $(NAME)"]})),
            ["sh", "-c", "echo value"]
        );
        assert_eq!(words(json!({"args": ["sleep", "1"]})), ["sleep", "1"]);
    }

    #[test]
    fn identity_comes_from_the_container_before_the_pod() {
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "securityContext": {"runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "supplementalGroups": [4]},
            "containers": [{"name": "main", "securityContext": {"runAsUser": 9}}],
        }}))
        .unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        assert_eq!(user(&pod, container), User { uid: 9, gid: 2, additional_gids: vec![4, 3] });
    }
}
