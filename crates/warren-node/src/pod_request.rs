//! Translates a pod's spec into the shim's requests. Unsupported fields were refused by
//! `warren_decide::pod` before.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodSecurityContext};
use warren_decide::network::{Mode, proxy_environment};
use warren_decide::pod::{
    Addresses, BIND_MOUNT_OPTIONS, BuiltInImage, EnvironmentError, HostPath, Limits, LimitsError,
    PidsLimitError, SourceError, Sources, VolumeKind, address_without_network, all_containers,
    base_directory, environment, expand, guest, is_of_sandbox, pids_limit, sysctls, volume_kind,
};
use warren_image::manifest::RunConfig;
use warren_image::store::Image;
use warren_image::user::{self, UserError};
use warren_oci::cgroup_names;
use warren_oci::host_image::{HostImage, INIT_PATH};
use warren_oci::idmap::IdRange;
use warren_oci::protocol::{
    Activation, ContainerRequest, LogFile, Overlay, PodRequest, Rootfs, RuntimeProgram, View,
};
use warren_oci::spec::{self, CpuQuota, Mount, MountKind, Process, Spec, StandardInput, User};

use crate::guest_program::GUEST_PATH;
use crate::network::{self, Lease};
use crate::pod_etc;
use crate::termination;
use crate::volumes::{claim_path, host_path};

/// The period of CPU limits, as in the container engines: 100 ms.
const CPU_PERIOD_MICROSECONDS: u64 = 100_000;
/// The longest host name. Linux takes 64 bytes; a DNS label has 63.
const LONGEST_HOSTNAME: usize = 63;

/// The common parts of requests for pods on this node.
#[derive(Debug)]
pub(crate) struct Builder {
    pub(crate) image: HostImage,
    pub(crate) node_name: String,
    pub(crate) host_ip: String,
    pub(crate) home_id: String,
    /// The directory of the claims' data.
    pub(crate) claims: PathBuf,
    /// Other runtimes, by the names of their classes.
    pub(crate) runtimes: BTreeMap<String, RuntimeProgram>,
    /// The host directories that pods may have.
    pub(crate) host_paths: Vec<HostPath>,
    pub(crate) guest: PathBuf,
}

/// One run of a container.
pub(crate) struct Run<'a> {
    pub(crate) name: &'a str,
    /// The number of earlier starts.
    pub(crate) attempt: u32,
    pub(crate) image: &'a ContainerImage,
}

/// The error of preparing a pod's directory or translating its spec.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("the pod has no container \"{0}\"")]
    NoContainer(String),
    #[error("no runtime for \"{0}\" is configured")]
    NoRuntime(String),
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Limits(#[from] LimitsError),
    #[error(transparent)]
    PidsLimit(#[from] PidsLimitError),
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

/// The image of a container.
#[derive(Debug, Clone)]
pub(crate) enum ContainerImage {
    /// The built-in image, made of the machine's own programs.
    Host,
    /// An image of the node's store.
    Stored(Arc<Image>),
}

/// A pod's directory.
#[derive(Debug, Clone)]
pub(crate) struct PodDirectory(pub(crate) PathBuf);

impl PodDirectory {
    /// Returns the log's path for one run of a container.
    pub(crate) fn log(&self, container: &str, attempt: u32) -> PathBuf {
        self.0.join("logs").join(container).join(format!("{attempt}.log"))
    }

    /// Returns the directory of a volume that lives as long as the pod.
    pub(crate) fn volume(&self, name: &str) -> PathBuf {
        self.0.join("volumes").join(name)
    }

    /// Returns the directories that its containers and volumes write to, and the one for the
    /// messages that containers leave.
    pub(crate) fn written(&self) -> [PathBuf; 3] {
        ["containers", "volumes", "termination"].map(|name| self.0.join(name))
    }

    /// Returns the directory that the last run of a container writes to, if it has run.
    pub(crate) fn last_run(&self, container: &str) -> io::Result<Option<PathBuf>> {
        let runs = self.0.join("containers").join(container);
        let entries = match std::fs::read_dir(&runs) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            entries => entries?,
        };
        let mut last: Option<u32> = None;
        for entry in entries {
            let attempt = entry?.file_name().to_str().and_then(|name| name.parse().ok());
            last = last.max(attempt);
        }
        Ok(last.map(|attempt| runs.join(attempt.to_string())))
    }

    /// Returns the pod's network, if it has one.
    pub(crate) fn lease(&self) -> Option<Lease> {
        Lease::read(&self.0)
    }

    /// Returns the topmost layer of its containers' root file systems, with the pod's own files.
    fn own_layer(&self) -> PathBuf {
        self.0.join("layer")
    }
}

impl Builder {
    /// Returns the address that a pod has or reports.
    pub(crate) fn pod_ip(&self, pod: &Pod, directory: &PodDirectory) -> String {
        match directory.lease().filter(Lease::is_reachable) {
            Some(lease) => lease.address.to_string(),
            None => address_without_network(pod.metadata.uid.as_deref().unwrap_or_default()).to_string(),
        }
    }

    pub(crate) fn addresses<'a>(&'a self, pod_ip: &'a str) -> Addresses<'a> {
        Addresses { node_name: &self.node_name, host_ip: &self.host_ip, pod_ip }
    }

    /// Builds the request for a pod, without containers.
    pub(crate) fn pod(
        &self,
        pod: &Pod,
        directory: &PodDirectory,
        ids: IdRange,
    ) -> Result<PodRequest, RequestError> {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let spec = pod.spec.as_ref();
        let name = spec
            .and_then(|spec| {
                let override_ = spec.hostname_override.as_deref().filter(|name| !name.is_empty());
                override_.or(spec.hostname.as_deref())
            })
            .or(pod.metadata.name.as_deref())
            .unwrap_or("sandbox");
        let hostname: String = name.chars().take(LONGEST_HOSTNAME).collect();
        let hostname = hostname.trim_end_matches(['-', '.']).to_owned();
        let class =
            spec.and_then(|spec| spec.runtime_class_name.as_deref()).filter(|class| !class.is_empty());
        let runtime = match class {
            None => None,
            Some(class) => {
                let known = self.runtimes.get(class).cloned();
                // Checked before; a pod is never run by another runtime than it asked for.
                Some(known.ok_or_else(|| RequestError::NoRuntime(class.to_owned()))?)
            }
        };
        let mut images = all_containers(pod).filter_map(|(_, container)| container.image.as_deref());
        let lease = directory.lease();
        let has_aliases =
            spec.is_some_and(|spec| spec.host_aliases.as_ref().is_some_and(|list| !list.is_empty()));
        // For a pod without a network the built-in image's own files are right.
        if lease.is_some() || has_aliases || images.any(|image| BuiltInImage::named(image).is_none()) {
            let path = directory.own_layer();
            pod_etc::write(&path, &hostname, pod, lease.filter(Lease::is_reachable).as_ref())
                .map_err(|source| RequestError::Directory { path, source })?;
        }
        Ok(PodRequest {
            cgroup: cgroup_names::pod(&self.home_id, &uid),
            uid,
            directory: directory.0.clone(),
            hostname,
            ids,
            network: None,
            runtime,
            activation: guest(pod).ok().flatten().map(|guest| Activation {
                container: guest.container.name.clone(),
                ports: guest.ports,
                args: vec![GUEST_PATH.to_owned()],
            }),
            proxy_port: lease.filter(|lease| !lease.is_reachable()).map(|_| network::PROXY_PORT),
            sysctls: sysctls(pod),
            containers: Vec::new(),
            trace: false,
        })
    }

    pub(crate) fn container(
        &self,
        pod: &Pod,
        run: &Run<'_>,
        directory: &PodDirectory,
        sources: &Sources,
    ) -> Result<ContainerRequest, RequestError> {
        let Run { name, attempt, image } = *run;
        let container = all_containers(pod).find(|(_, container)| container.name == name);
        let (_, container) = container.ok_or_else(|| RequestError::NoContainer(name.to_owned()))?;
        let lease = directory.lease();
        let pod_ip = self.pod_ip(pod, directory);
        let own_variables = environment(pod, container, &self.addresses(&pod_ip), sources)?;
        let values: HashMap<String, String> = own_variables.iter().cloned().collect();
        if guest(pod).ok().flatten().is_some_and(|guest| guest.container.name == name) {
            let path = directory.own_layer();
            pod_etc::add_program(&path, GUEST_PATH, &self.guest)
                .map_err(|source| RequestError::Directory { path, source })?;
        }
        let mut base = self.base(image, directory)?;
        base.rootfs.overlays.extend(self.views(pod, container)?);
        let working_directory = [container.working_dir.as_deref(), Some(&base.config.working_dir)];
        let working_directory = working_directory.into_iter().flatten().find(|path| !path.is_empty());
        let working_directory = working_directory.unwrap_or("/");

        let mut variables = base.config.env.clone();
        if is_of_sandbox(pod) {
            let said = |name: &str| {
                let in_image =
                    base.config.env.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
                values.get(name).map(String::as_str).or(in_image)
            };
            let directory = base_directory(said("SANDBOX_BASE_DIR"), base.has_app, working_directory);
            variables.extend(sandbox_environment(directory));
        }
        if let Some(lease) = lease.filter(|lease| lease.mode == Mode::Restricted) {
            let proxy = SocketAddrV4::new(lease.gateway, network::PROXY_PORT);
            variables
                .extend(proxy_environment(proxy).into_iter().map(|(name, value)| format!("{name}={value}")));
        }
        variables.retain(|line| line.split_once('=').is_none_or(|(name, _)| !values.contains_key(name)));
        variables.extend(own_variables.iter().map(|(name, value)| format!("{name}={value}")));
        let process = Process {
            env: variables,
            cwd: working_directory.into(),
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
        // The init of the built-in image, for a container on another one that asks to run it.
        if matches!(image, ContainerImage::Stored(_))
            && spec.process.args.first().is_some_and(|word| word == INIT_PATH)
        {
            let path = directory.own_layer();
            pod_etc::add_program(&path, INIT_PATH, &self.image.init())
                .map_err(|source| RequestError::Directory { path, source })?;
        }
        spec.mounts.extend(self.volume_mounts(pod, container, directory, sources, &values)?);
        spec.mounts.extend(termination_mount(container, attempt, directory));
        spec.process.capabilities = capabilities(container);
        // Privileges gained inside are limited to the pod's own, so any pod may ask for them.
        spec.process.no_new_privileges =
            security.and_then(|security| security.allow_privilege_escalation) != Some(true);
        spec.linux.resources = spec::Limits {
            memory_bytes: Some(limits.memory_bytes),
            cpu: cpu_quota(limits.cpu_millis, warren_sys::process::online_processors()),
            pids: Some(pids_limit(pod)?),
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

    fn volume_mounts(
        &self,
        pod: &Pod,
        container: &Container,
        directory: &PodDirectory,
        sources: &Sources,
        values: &HashMap<String, String>,
    ) -> Result<Vec<Mount>, RequestError> {
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
        let mut mounts = Vec::new();
        for mount in container.volume_mounts.iter().flatten() {
            let Some(volume) = volumes.iter().find(|volume| volume.name == mount.name) else { continue };
            let Some(kind) = volume_kind(pod, volume) else { continue };
            let mut options = vec!["nosuid".to_owned(), "nodev".to_owned()];
            let for_reading = match kind {
                VolumeKind::Files { .. } => true,
                VolumeKind::Claim { read_only, .. } => read_only,
                VolumeKind::Directory | VolumeKind::Memory { .. } | VolumeKind::Host { .. } => false,
                // It is a file system of its own: [`Self::views`].
                VolumeKind::View { .. } => continue,
            };
            if for_reading || mount.read_only == Some(true) {
                options.push("ro".to_owned());
            }
            let asked = mount.bind_mount_options.iter().flatten();
            options.extend(asked.filter(|option| BIND_MOUNT_OPTIONS.contains(&option.as_str())).cloned());
            let mut inside = match (&mount.sub_path_expr, &mount.sub_path) {
                (Some(words), _) => expand(words, values),
                (None, given) => given.clone().unwrap_or_default(),
            };
            let (kind, source) = match kind {
                VolumeKind::Directory | VolumeKind::Files { in_memory: false } => {
                    (MountKind::Bind, directory.volume(&volume.name))
                }
                VolumeKind::Memory { .. } | VolumeKind::Files { in_memory: true } => {
                    (MountKind::Memory, PathBuf::from(&volume.name))
                }
                VolumeKind::Claim { name, .. } => {
                    // Pods have changing id ranges; on disk are the ids that they see.
                    options.push("idmap".to_owned());
                    let bound = sources.bound_volume(&name)?;
                    let path = claim_path(&self.claims, bound).map_err(|source| RequestError::Directory {
                        path: self.claims.join(bound),
                        source,
                    })?;
                    (MountKind::Bind, path)
                }
                VolumeKind::Host { path } => {
                    options.push("idmap".to_owned());
                    let (source, place) = host_path::find(&self.host_paths, &path, volume)
                        .map_err(|source| RequestError::Directory { path: path.into(), source })?;
                    // Resolved again below the allowed directory: no link leads out of it.
                    let words = [place.as_str(), inside.as_str()];
                    inside = words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join("/");
                    (MountKind::Bind, source)
                }
                VolumeKind::View { .. } => continue,
            };
            if !inside.is_empty() {
                options.push(format!("X-mount.subdir={inside}"));
            }
            // A relative path is taken from the root, as in kubelet.
            let destination = PathBuf::from("/").join(&mount.mount_path);
            mounts.push(Mount { destination, kind, source: Some(source), options });
        }
        Ok(mounts)
    }

    /// Returns the views of a container.
    fn views(&self, pod: &Pod, container: &Container) -> Result<Vec<Overlay>, RequestError> {
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
        let mut views = Vec::new();
        for mount in container.volume_mounts.iter().flatten() {
            let Some(volume) = volumes.iter().find(|volume| volume.name == mount.name) else { continue };
            let Some(VolumeKind::View { path }) = volume_kind(pod, volume) else { continue };
            let (directory, inside) = host_path::find(&self.host_paths, &path, volume)
                .map_err(|source| RequestError::Directory { path: path.into(), source })?;
            views.push(Overlay {
                target: PathBuf::from("/").join(&mount.mount_path),
                lower: vec![directory],
                view: Some(View { name: volume.name.clone(), inside: inside.into() }),
            });
        }
        Ok(views)
    }

    /// Returns the image's part of every container on it.
    fn base(&self, image: &ContainerImage, directory: &PodDirectory) -> Result<Base, RequestError> {
        match image {
            ContainerImage::Host => Ok(Base {
                config: RunConfig {
                    env: HostImage::default_environment(),
                    cmd: HostImage::default_command(),
                    ..RunConfig::default()
                },
                user: User::default(),
                rootfs: {
                    let mut rootfs = self.image.rootfs();
                    // A pod without files of its own in `/etc` uses the image's.
                    if let Some(root) = rootfs.overlays.first_mut().filter(|_| directory.own_layer().is_dir())
                    {
                        root.lower.insert(0, directory.own_layer());
                    }
                    rootfs
                },
                has_app: false,
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
                let mut lower = vec![directory.own_layer()];
                lower.extend(image.layers.iter().cloned());
                let rootfs = Rootfs { overlays: vec![Overlay { target: "/".into(), lower, view: None }] };
                let user = User { uid: found.uid, gid: found.gid, additional_gids: Vec::new() };
                let has_app = image.layers.iter().any(|layer| layer.join("app").is_dir());
                Ok(Base { config, user, rootfs, has_app })
            }
        }
    }
}

/// The image's part of every container on it.
struct Base {
    config: RunConfig,
    user: User,
    rootfs: Rootfs,
    /// True if the image has a directory `/app`.
    has_app: bool,
}

/// Returns the variables by which programs can tell that they run in a sandbox.
fn sandbox_environment(directory: &str) -> [String; 3] {
    [
        "IS_SANDBOXED=true".to_owned(),
        concat!("SANDBOX_VERSION=", env!("CARGO_PKG_VERSION")).to_owned(),
        format!("ALLOWED_ROOT_DIRECTORY={directory}"),
    ]
}

/// Builds the command line. `command` replaces the image's entry point and its arguments, `args`
/// only the arguments.
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

/// Returns the user: the container's setting, else the pod's, else the image's.
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

/// Returns the mount of a container's termination message.
fn termination_mount(container: &Container, attempt: u32, directory: &PodDirectory) -> Option<Mount> {
    let destination = container.termination_message_path.as_deref().filter(|path| !path.is_empty())?;
    let source = Some(termination::path(directory, &container.name, attempt));
    let options = vec!["nosuid".to_owned(), "nodev".to_owned(), "noexec".to_owned()];
    Some(Mount { destination: destination.into(), kind: MountKind::Message, source, options })
}

/// Returns the CPU quota of a container; `None` if it may use all processors: the kernel walks the
/// quotas of all containers for each new one. A machine that gets more processors later does not
/// restrict a running container.
fn cpu_quota(millis: u64, processors: u64) -> Option<CpuQuota> {
    (millis < processors * 1000)
        .then(|| CpuQuota { quota: millis * CPU_PERIOD_MICROSECONDS / 1000, period: CPU_PERIOD_MICROSECONDS })
}

/// Returns the capabilities of a container that changes the default ones. Forbidden ones were
/// refused before.
fn capabilities(container: &Container) -> Option<spec::Capabilities> {
    let wanted = container.security_context.as_ref()?.capabilities.as_ref()?;
    let named = |names: &Option<Vec<String>>| -> Vec<String> {
        let names = names.iter().flatten();
        names
            .map(|name| format!("CAP_{}", name.strip_prefix("CAP_").unwrap_or(name).to_uppercase()))
            .collect()
    };
    let (add, drop) = (named(&wanted.add), named(&wanted.drop));
    let all = drop.iter().any(|name| name == "CAP_ALL");
    let defaults = warren_oci::defaults::CAPABILITIES.iter().map(|name| (*name).to_owned());
    let mut bounding: Vec<String> = defaults.filter(|name| !all && !drop.contains(name)).collect();
    bounding.extend(add.into_iter().filter(|name| !bounding.contains(name)).collect::<Vec<_>>());
    Some(spec::Capabilities { bounding })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_limit_of_all_processors_is_none() {
        assert_eq!(cpu_quota(500, 2), Some(CpuQuota { quota: 50_000, period: 100_000 }));
        assert_eq!(cpu_quota(1999, 2), Some(CpuQuota { quota: 199_900, period: 100_000 }));
        assert_eq!(cpu_quota(2000, 2), None);
        assert_eq!(cpu_quota(4000, 2), None);
    }

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

    #[test]
    fn capabilities_are_added_and_dropped_by_name() {
        let set = |add: &[&str], drop: &[&str]| {
            let container =
                json!({"name": "main", "securityContext": {"capabilities": {"add": add, "drop": drop}}});
            capabilities(&serde_json::from_value(container).unwrap()).unwrap().bounding
        };
        assert_eq!(set(&["NET_RAW", "CHOWN"], &["ALL"]), ["CAP_NET_RAW", "CAP_CHOWN"]);
        let fewer = set(&[], &["KILL"]);
        assert_eq!(fewer.len() + 1, warren_oci::defaults::CAPABILITIES.len());
        assert!(!fewer.contains(&"CAP_KILL".to_owned()));
    }
}
