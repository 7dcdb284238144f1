//! A pod's spec as the shim takes it. What cannot be honoured was refused by `warren_decide::pod` before.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodSecurityContext, Volume};
use warren_decide::pod::{
    Addresses, BuiltInImage, FieldError, Limits, LimitsError, Quantity, address_without_network, environment,
    expand,
};
use warren_image::manifest::RunConfig;
use warren_image::store::Image;
use warren_image::user::{self, UserError};
use warren_oci::host_image::HostImage;
use warren_oci::idmap::IdRange;
use warren_oci::protocol::{ContainerRequest, LogFile, Overlay, PodRequest, Rootfs};
use warren_oci::spec::{self, CpuQuota, Mount, MountKind, Process, Spec, StandardInput, User};

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
    #[error(transparent)]
    User(#[from] UserError),
    #[error("image \"{0}\" has not been found yet")]
    NoImage(String),
    #[error("the image names no program to run, and neither does the container")]
    NoCommand,
    #[error("make {path}")]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// What a container stands on.
#[derive(Debug, Clone)]
pub(crate) enum ContainerImage {
    /// The machine's own programs.
    Host,
    /// One from the node's store.
    Stored(Arc<Image>),
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

    /// Files of `/etc` that are the pod's and not its images'.
    fn etc(&self) -> PathBuf {
        self.0.join("etc")
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
        let hostname = hostname.trim_end_matches(['-', '.']).to_owned();
        let images = spec
            .into_iter()
            .flat_map(|spec| &spec.containers)
            .filter_map(|container| container.image.as_deref());
        if images.filter(|image| BuiltInImage::named(image).is_none()).count() > 0 {
            let path = directory.etc();
            make_etc(&path, &hostname, ids).map_err(|source| RequestError::Directory { path, source })?;
        }
        Ok(PodRequest {
            cgroup: format!("{}/{uid}", self.home_cgroup),
            uid,
            directory: directory.0.clone(),
            hostname,
            ids,
            network: None,
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
        image: &ContainerImage,
    ) -> Result<ContainerRequest, RequestError> {
        let container =
            pod.spec.iter().flat_map(|spec| &spec.containers).find(|container| container.name == name);
        let container = container.ok_or_else(|| RequestError::NoContainer(name.to_owned()))?;
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let pod_ip = address_without_network(uid).to_string();
        let addresses = Addresses { node_name: &self.node_name, host_ip: &self.host_ip, pod_ip: &pod_ip };
        let own_variables = environment(pod, container, &addresses)?;
        let values: HashMap<String, String> = own_variables.iter().cloned().collect();
        let base = self.base(image, directory)?;

        let mut variables = base.config.env.clone();
        variables.retain(|line| line.split_once('=').is_none_or(|(name, _)| !values.contains_key(name)));
        variables.extend(own_variables.iter().map(|(name, value)| format!("{name}={value}")));
        let working_directory = [container.working_dir.as_deref(), Some(&base.config.working_dir), Some("/")];
        let working_directory = working_directory.into_iter().flatten().find(|path| !path.is_empty());

        let process = Process {
            env: variables,
            cwd: working_directory.unwrap_or("/").into(),
            user: user(pod, container, &base.user),
            ..Process::new(command(container, &values, &base.config).ok_or(RequestError::NoCommand)?)
        };
        let limits = Limits::of(container)?;
        let security = container.security_context.as_ref();
        let mut spec = Spec::new(process);
        spec.process.terminal = container.tty == Some(true);
        spec.process.stdin = standard_input(container);
        spec.root.readonly =
            security.and_then(|security| security.read_only_root_filesystem).unwrap_or(false);
        spec.mounts = base.mounts;
        spec.mounts.extend(mounts(pod, container, directory));
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
            rootfs: base.rootfs,
            log: LogFile::new(log),
        })
    }

    /// What an image gives to every container on it.
    fn base(&self, image: &ContainerImage, directory: &PodDirectory) -> Result<Base, RequestError> {
        match image {
            ContainerImage::Host => Ok(Base {
                config: RunConfig {
                    env: HostImage::default_environment(),
                    cmd: HostImage::default_command(),
                    ..RunConfig::default()
                },
                user: User::default(),
                rootfs: self.image.rootfs(&self.executable),
                mounts: Vec::new(),
            }),
            ContainerImage::Stored(image) => {
                let mut config = image.config.config.clone();
                let found = user::resolve(&config.user, &image.layers)?;
                let has = |env: &[String], name: &str| env.iter().any(|line| line.starts_with(name));
                if !has(&config.env, "PATH=") {
                    config.env.push(format!("PATH={}", warren_oci::defaults::PATH));
                }
                if !has(&config.env, "HOME=") {
                    config.env.push(format!("HOME={}", found.home.as_deref().unwrap_or("/")));
                }
                let lower = match image.layers.is_empty() {
                    // An overlay has at least one layer below.
                    true => vec![empty_layer(directory)?],
                    false => image.layers.clone(),
                };
                let rootfs =
                    Rootfs { overlays: vec![Overlay { target: "/".into(), lower }], files: Vec::new() };
                let user = User { uid: found.uid, gid: found.gid, additional_gids: Vec::new() };
                Ok(Base { config, user, rootfs, mounts: etc_mounts(directory) })
            }
        }
    }
}

/// What an image gives to every container on it.
struct Base {
    config: RunConfig,
    user: User,
    rootfs: Rootfs,
    mounts: Vec<Mount>,
}

/// Names in `/etc` that are the pod's: a container finds itself and its own loopback under the usual names.
const ETC_FILES: [&str; 3] = ["hostname", "hosts", "resolv.conf"];

fn make_etc(directory: &Path, hostname: &str, ids: IdRange) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let hosts =
        format!("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.0.1\t{hostname}\n");
    for (name, text) in ETC_FILES.into_iter().zip([format!("{hostname}\n"), hosts, String::new()]) {
        let path = directory.join(name);
        std::fs::write(&path, text)?;
        std::os::unix::fs::chown(&path, ids.to_host(0), ids.to_host(0))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644))?;
    }
    Ok(())
}

fn etc_mounts(directory: &PodDirectory) -> Vec<Mount> {
    let mount = |name: &str| Mount {
        destination: Path::new("/etc").join(name),
        kind: MountKind::Bind,
        source: Some(directory.etc().join(name)),
        options: vec!["nosuid".to_owned(), "nodev".to_owned()],
    };
    ETC_FILES.into_iter().map(mount).collect()
}

fn empty_layer(directory: &PodDirectory) -> Result<PathBuf, RequestError> {
    let path = directory.0.join("empty");
    match std::fs::create_dir_all(&path) {
        Ok(()) => Ok(path),
        Err(source) => Err(RequestError::Directory { path, source }),
    }
}

/// `command` replaces the image's entry point and its arguments, `args` only the arguments.
fn command(
    container: &Container,
    values: &HashMap<String, String>,
    image: &RunConfig,
) -> Option<Vec<String>> {
    let expanded = |words: Option<&Vec<String>>| -> Vec<String> {
        words.into_iter().flatten().map(|word| expand(word, values)).collect()
    };
    let (entry_point, arguments) = (expanded(container.command.as_ref()), expanded(container.args.as_ref()));
    let words = match (entry_point.is_empty(), arguments.is_empty()) {
        (false, _) => [entry_point, arguments].concat(),
        (true, false) => [image.entrypoint.clone(), arguments].concat(),
        (true, true) => [image.entrypoint.clone(), image.cmd.clone()].concat(),
    };
    words.first().is_some_and(|program| !program.is_empty()).then_some(words)
}

fn standard_input(container: &Container) -> StandardInput {
    match (container.stdin, container.stdin_once) {
        (Some(true), Some(true)) => StandardInput::Once,
        (Some(true), _) => StandardInput::Open,
        _ => StandardInput::Empty,
    }
}

fn pod_security(pod: &Pod) -> Option<&PodSecurityContext> {
    pod.spec.as_ref()?.security_context.as_ref()
}

/// The container's say before the pod's before the image's.
fn user(pod: &Pod, container: &Container, image: &User) -> User {
    let of_pod = pod_security(pod);
    let own = container.security_context.as_ref();
    // Ids out of range were refused before.
    let id = |value: Option<i64>| value.and_then(|id| u32::try_from(id).ok());
    let uid = id(own.and_then(|own| own.run_as_user).or_else(|| of_pod.and_then(|pod| pod.run_as_user)));
    let gid = id(own.and_then(|own| own.run_as_group).or_else(|| of_pod.and_then(|pod| pod.run_as_group)));
    let further = of_pod.and_then(|pod| pod.supplemental_groups.as_deref()).unwrap_or_default();
    let groups = further.iter().copied().chain(of_pod.and_then(|pod| pod.fs_group));
    User {
        uid: uid.unwrap_or(image.uid),
        gid: gid.unwrap_or(image.gid),
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
        let image = RunConfig {
            entrypoint: vec!["/entry".to_owned()],
            cmd: vec!["default".to_owned()],
            ..RunConfig::default()
        };
        command(&container, &[("NAME".to_owned(), "value".to_owned())].into(), &image).unwrap()
    }

    #[test]
    fn command_and_arguments_replace_what_kubernetes_says_they_replace() {
        assert_eq!(words(json!({})), ["/entry", "default"]);
        assert_eq!(
            words(json!({"command": ["sh", "-c"], "args": ["echo $(NAME)"]})),
            ["sh", "-c", "echo value"]
        );
        assert_eq!(words(json!({"args": ["one", "two"]})), ["/entry", "one", "two"]);
        assert_eq!(words(json!({"command": ["other"]})), ["other"]);
    }

    #[test]
    fn identity_comes_from_the_container_before_the_pod() {
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "securityContext": {"runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "supplementalGroups": [4]},
            "containers": [{"name": "main", "securityContext": {"runAsUser": 9}}],
        }}))
        .unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let image = User { uid: 7, gid: 7, additional_gids: Vec::new() };
        assert_eq!(user(&pod, container, &image), User { uid: 9, gid: 2, additional_gids: vec![4, 3] });
    }
}
