//! The description of a sandbox's container: what it is allowed to use and what it is denied.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigLogConfig, Mount, MountType, MountVolumeOptions,
    SystemInfo,
};
use jiff::Timestamp;
use serde_json::json;
use warren_api::labels;

use super::DockerOptions;
use crate::error::{Code, ProviderError};
use crate::limits::{Network, Wanted, check_image};

/// The directory that belongs to the sandbox. The rest of its files is read-only.
pub(super) const WORKSPACE: &str = "/workspace";

/// The image of sandboxes for which neither a client nor the options name one.
const DEFAULT_IMAGE: &str = "node:22-slim";

/// Limits for sandboxes for which a client names none.
const DEFAULT_MEMORY_MB: u32 = 4096;
const DEFAULT_CPUS: f64 = 2.0;
const DEFAULT_PIDS: u32 = 256;

/// The user and group of every process, as numbers: the image need not know them.
pub(super) const USER: u64 = 1000;

/// Options of the temporary directory.
const TMPFS: &str = "rw,noexec,nosuid,nodev,size=512m,mode=1777";

/// Labels of everything that is made here. All are set on each container: an image may have labels
/// of its own, which count where the container has none.
pub(super) const OWNER: &str = "warren.dev/docker-owner";
pub(super) const SANDBOX: &str = "warren.dev/docker-sandbox";
pub(super) const ROLE: &str = "warren.dev/docker-role";
pub(super) const CREATED: &str = "warren.dev/created-at";
pub(super) const NETWORK: &str = "warren.dev/network-mode";
pub(super) const IMAGE: &str = "warren.dev/image";

/// Values of [`ROLE`].
pub(super) const ROLE_SANDBOX: &str = "sandbox";
pub(super) const ROLE_PREPARE: &str = "prepare";

/// A sandbox that is to be made, with every default filled in.
#[derive(Clone, Debug)]
pub(super) struct Description {
    pub id: String,
    pub owner: String,
    pub project: Option<String>,
    pub image: String,
    pub network: Network,
    pub created: Timestamp,
    memory_mb: u32,
    cpus: Option<f64>,
    pids: u32,
    env: Vec<String>,
    /// The Docker network, for [`Network::Full`].
    join: Option<String>,
}

/// Returns the name of a sandbox's container.
pub(super) fn container_name(id: &str) -> String {
    format!("warren-{id}")
}

/// Returns the name of a sandbox's volume.
pub(super) fn volume_name(id: &str) -> String {
    format!("warren-{id}-workspace")
}

/// Returns the name of the container that gives the volume to the sandbox's user. It never runs.
pub(super) fn prepare_name(id: &str) -> String {
    format!("warren-{id}-prepare")
}

/// Checks an image's name more closely than for other providers: it becomes a part of the path of
/// requests to the engine.
pub(super) fn check_reference(image: &str) -> Result<(), ProviderError> {
    check_image(image)?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:/@".contains(&byte);
    let part = |part: &str| part.starts_with(|first: char| first.is_ascii_alphanumeric());
    match image.bytes().all(fits) && image.split('/').all(part) {
        true => Ok(()),
        false => Err(ProviderError::invalid("image", "is not the name of an image")),
    }
}

impl Description {
    /// Checks what a client wants, and refuses what a Docker engine does not enforce.
    pub(super) fn new(
        id: String,
        wanted: Wanted,
        options: &DockerOptions,
        now: Timestamp,
    ) -> Result<Self, ProviderError> {
        wanted.check()?;
        let warren = |field: &str| {
            let problem =
                "is for warm pools and templates, which the docker provider has not; name an `image`";
            Err(ProviderError::invalid(field, problem))
        };
        if wanted.pool.is_some() {
            return warren("pool");
        }
        if wanted.template.is_some() {
            return warren("template");
        }
        if wanted.disk_mb.is_some() {
            let problem = "cannot be enforced by the docker provider, whose volumes have no limit; leave it out, or use \
                           the provider `warren`";
            return Err(ProviderError::invalid("diskMb", problem));
        }
        if wanted.allowed_hosts.as_ref().is_some_and(|hosts| !hosts.is_empty()) {
            let problem = "cannot be enforced by the docker provider, whose restricted sandboxes reach nothing; leave it \
                           out, or use the provider `warren`";
            return Err(ProviderError::invalid("allowedHosts", problem));
        }
        let network = wanted.network.unwrap_or_default();
        if network == Network::Full && options.network.is_none() {
            let problem = "`full` needs a Docker network that the service may use: start it with `--docker-network NAME`";
            return Err(ProviderError::invalid("network", problem));
        }
        let image =
            wanted.image.or_else(|| options.image.clone()).unwrap_or_else(|| DEFAULT_IMAGE.to_owned());
        check_reference(&image)?;
        let mut env = std::collections::BTreeMap::from(
            [("HOME", WORKSPACE), ("IS_SANDBOXED", "true"), ("SANDBOX_VERSION", "1.0.0")]
                .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        env.extend(wanted.env);
        env.insert("ALLOWED_ROOT_DIRECTORY".to_owned(), WORKSPACE.to_owned());
        Ok(Self {
            id,
            owner: options.owner.clone(),
            project: wanted.project_id,
            image,
            network,
            created: now,
            memory_mb: wanted.memory_mb.unwrap_or(DEFAULT_MEMORY_MB),
            cpus: wanted.cpu_cores,
            pids: wanted.pids_limit.unwrap_or(DEFAULT_PIDS),
            env: env.into_iter().map(|(name, value)| format!("{name}={value}")).collect(),
            join: options.network.clone().filter(|_| network == Network::Full),
        })
    }

    /// Returns the Docker network that it joins.
    pub(super) fn joins(&self) -> Option<&str> {
        self.join.as_deref()
    }

    /// Returns the labels of one of its containers, or of its volume.
    pub(super) fn labels(&self, role: &str) -> HashMap<String, String> {
        let created = self.created.to_string();
        [
            (OWNER, self.owner.as_str()),
            (SANDBOX, self.id.as_str()),
            (ROLE, role),
            (labels::PROJECT, self.project.as_deref().unwrap_or_default()),
            (CREATED, created.as_str()),
            (NETWORK, self.network.name()),
            (IMAGE, self.image.as_str()),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }

    /// Returns the mount of the volume. With `copy`, an empty volume gets the files of the image in
    /// its place, and their directory's owner.
    fn volume(&self, copy: bool) -> Mount {
        let options = MountVolumeOptions { no_copy: Some(!copy), ..MountVolumeOptions::default() };
        Mount {
            typ: Some(MountType::VOLUME),
            source: Some(volume_name(&self.id)),
            target: Some(WORKSPACE.to_owned()),
            volume_options: Some(options),
            ..Mount::default()
        }
    }

    /// Returns the container that is never started: through it the engine gives the volume to the
    /// sandbox's user. A command in the sandbox could not, because it has no capabilities; one with
    /// more would be the image's own program.
    pub(super) fn preparation(&self) -> ContainerCreateBody {
        ContainerCreateBody {
            image: Some(self.image.clone()),
            entrypoint: Some(vec!["/bin/false".to_owned()]),
            labels: Some(self.labels(ROLE_PREPARE)),
            network_disabled: Some(true),
            host_config: Some(HostConfig {
                mounts: Some(vec![self.volume(true)]),
                network_mode: Some("none".to_owned()),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        }
    }

    /// Returns the sandbox's container.
    pub(super) fn container(&self, info: &SystemInfo) -> ContainerCreateBody {
        let memory = i64::from(self.memory_mb) << 20;
        let all = info.ncpu.filter(|count| *count > 0).map_or(DEFAULT_CPUS, |count| count as f64);
        let cpus = self.cpus.unwrap_or(DEFAULT_CPUS.min(all));
        let words = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
        let host = HostConfig {
            memory: Some(memory),
            // No swap beside it.
            memory_swap: Some(memory),
            nano_cpus: Some((cpus * 1e9) as i64),
            pids_limit: Some(self.pids.into()),
            cap_drop: words(&["ALL"]),
            // The engine's own profiles for seccomp and AppArmor stay in force.
            security_opt: words(&["no-new-privileges:true"]),
            privileged: Some(false),
            readonly_rootfs: Some(true),
            tmpfs: Some([("/tmp".to_owned(), TMPFS.to_owned())].into()),
            mounts: Some(vec![self.volume(false)]),
            network_mode: Some(self.join.clone().unwrap_or_else(|| "none".to_owned())),
            ipc_mode: Some("private".to_owned()),
            // Reaps the children of commands that have ended.
            init: Some(true),
            // Commands have streams of their own; nothing is to be stored on the engine's disk.
            log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
            ..HostConfig::default()
        };
        ContainerCreateBody {
            hostname: Some(self.id.clone()),
            user: Some(format!("{USER}:{USER}")),
            image: Some(self.image.clone()),
            entrypoint: words(&["tail", "-f", "/dev/null"]),
            env: Some(self.env.clone()),
            working_dir: Some(WORKSPACE.to_owned()),
            labels: Some(self.labels(ROLE_SANDBOX)),
            // The image's own check would run in the sandbox all the time.
            healthcheck: Some(HealthConfig { test: words(&["NONE"]), ..HealthConfig::default() }),
            stop_signal: Some("SIGTERM".to_owned()),
            host_config: Some(host),
            ..ContainerCreateBody::default()
        }
    }

    /// Checks that the engine enforces the limits. It only warns where it cannot.
    pub(super) fn check_engine(&self, info: &SystemInfo) -> Result<(), ProviderError> {
        check_limits(info)?;
        match (self.cpus, info.ncpu) {
            (Some(cpus), Some(count)) if count > 0 && cpus > count as f64 => {
                let problem = format!("is {cpus}; the engine's machine has {count}");
                Err(ProviderError::invalid("cpuCores", problem)
                    .with(json!({ "field": "cpuCores", "maximum": count })))
            }
            _ => Ok(()),
        }
    }
}

/// Checks that the engine runs Linux and enforces limits.
pub(super) fn check_limits(info: &SystemInfo) -> Result<(), ProviderError> {
    if let Some(system) = info.os_type.as_deref().filter(|system| *system != "linux") {
        let message = format!("the Docker engine runs {system} containers; Linux ones are needed");
        return Err(ProviderError::new(Code::ProviderUnavailable, message));
    }
    let missing: Vec<&str> =
        [("memory", info.memory_limit), ("CPU", info.cpu_cfs_quota), ("processes", info.pids_limit)]
            .into_iter()
            .filter(|(_, enforced)| *enforced == Some(false))
            .map(|(name, _)| name)
            .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!(
        "the Docker engine cannot limit {}; give it the cgroup controllers `memory`, `cpu` and `pids`",
        missing.join(" and ")
    );
    Err(ProviderError::new(Code::ProviderUnavailable, message))
}

/// Makes the archive that gives the workspace to the sandbox's user.
pub(super) fn workspace_archive() -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::Directory);
    header.set_mode(0o755);
    header.set_uid(USER);
    header.set_gid(USER);
    header.set_size(0);
    let name = format!("{}/", WORKSPACE.trim_start_matches('/'));
    let mut archive = tar::Builder::new(Vec::new());
    archive
        .append_data(&mut header, name, std::io::empty())
        .and_then(|()| archive.into_inner())
        .expect("writing to memory does not fail, and the name is short")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> DockerOptions {
        DockerOptions { owner: "o".to_owned(), most_sandboxes: 4, ..DockerOptions::default() }
    }

    fn description(wanted: serde_json::Value) -> Result<Description, ProviderError> {
        let wanted: Wanted = serde_json::from_value(wanted).expect("fields");
        Description::new("docker-1".to_owned(), wanted, &options(), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn wishes_that_docker_does_not_enforce_are_refused_by_name() {
        for (wanted, field) in [
            (json!({ "pool": "p" }), "pool"),
            (json!({ "template": "t" }), "template"),
            (json!({ "diskMb": 2048 }), "diskMb"),
            (json!({ "allowedHosts": ["github.com"] }), "allowedHosts"),
            (json!({ "network": "full" }), "network"),
            (json!({ "memoryMb": 1 }), "memoryMb"),
        ] {
            let error = description(wanted.clone()).expect_err("refused");
            assert_eq!(
                (error.code, &error.details["field"]),
                (Code::ValidationError, &json!(field)),
                "{wanted}"
            );
        }
        let made = description(json!({ "network": "restricted", "allowedHosts": [] })).expect("made");
        assert_eq!(
            made.container(&SystemInfo::default()).host_config.expect("one").network_mode.as_deref(),
            Some("none")
        );
    }

    #[test]
    fn container_is_hardened() {
        let made =
            description(json!({ "memoryMb": 1024, "pidsLimit": 64, "env": { "A": "b" } })).expect("made");
        let container = made.container(&SystemInfo { ncpu: Some(1), ..SystemInfo::default() });
        let host = container.host_config.expect("one");
        assert_eq!(container.user.as_deref(), Some("1000:1000"));
        assert_eq!((host.memory, host.memory_swap), (Some(1 << 30), Some(1 << 30)));
        assert_eq!((host.nano_cpus, host.pids_limit), (Some(1_000_000_000), Some(64)));
        assert_eq!(host.cap_drop.expect("some"), ["ALL"]);
        assert_eq!(host.security_opt.expect("some"), ["no-new-privileges:true"]);
        assert_eq!((host.readonly_rootfs, host.privileged), (Some(true), Some(false)));
        let tmp = &host.tmpfs.expect("one")["/tmp"];
        assert!(["noexec", "nosuid", "nodev"].iter().all(|flag| tmp.contains(flag)), "{tmp}");
        assert!(host.binds.is_none() && host.devices.is_none() && host.port_bindings.is_none());
        let env = container.env.expect("some");
        assert!(env.contains(&"A=b".to_owned()) && env.contains(&"IS_SANDBOXED=true".to_owned()), "{env:?}");
        let labels = container.labels.expect("some");
        assert_eq!(labels[labels::PROJECT], "", "an image's own label would count otherwise");
    }

    #[test]
    fn names_of_images_stay_names() {
        for good in ["node:22-slim", "localhost:5000/a/b_c@sha256:00", "sha256:00"] {
            check_reference(good).expect(good);
        }
        for bad in ["", "../containers/x", "a/../b", "a?b", "a#b", "/a", "a//b", "a%2fb", "a b"] {
            check_reference(bad).expect_err(bad);
        }
    }

    #[test]
    fn engine_without_limits_is_refused() {
        let weak = SystemInfo { pids_limit: Some(false), memory_limit: Some(true), ..SystemInfo::default() };
        assert!(check_limits(&weak).expect_err("refused").message.contains("processes"));
        let small = SystemInfo { ncpu: Some(2), ..SystemInfo::default() };
        let wanted = description(json!({ "cpuCores": 4 })).expect("made");
        assert!(wanted.check_engine(&small).expect_err("refused").message.contains("has 2"));
    }
}
