//! The `config.json` of a bundle, as in the OCI runtime specification. Properties that are not
//! supported are refused if leaving them out would weaken the container. Unknown properties are
//! ignored, as the specification requires.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Error;

/// The whole file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Config {
    pub(super) oci_version: String,
    pub(super) process: Option<Process>,
    pub(super) root: Root,
    pub(super) hostname: Option<String>,
    pub(super) domainname: Option<String>,
    #[serde(default)]
    pub(super) mounts: Vec<Mount>,
    #[serde(default)]
    pub(super) hooks: Hooks,
    #[serde(default)]
    pub(super) annotations: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) linux: Linux,
}

/// The program and its user.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Process {
    #[serde(default)]
    pub(super) terminal: bool,
    pub(super) console_size: Option<ConsoleSize>,
    #[serde(default)]
    pub(super) user: User,
    #[serde(default)]
    pub(super) args: Vec<String>,
    #[serde(default)]
    pub(super) env: Vec<String>,
    pub(super) cwd: PathBuf,
    #[serde(default)]
    pub(super) capabilities: Capabilities,
    #[serde(default)]
    pub(super) rlimits: Vec<crate::spec::Rlimit>,
    #[serde(default)]
    pub(super) no_new_privileges: bool,
    pub(super) oom_score_adj: Option<i32>,
    pub(super) apparmor_profile: Option<String>,
    pub(super) selinux_label: Option<String>,
}

/// The initial size of the terminal.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct ConsoleSize {
    pub(super) height: u16,
    pub(super) width: u16,
}

/// Numeric user and groups inside the container.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) umask: Option<u32>,
    pub(super) additional_gids: Vec<u32>,
}

/// The five capability sets.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Capabilities {
    pub(super) bounding: Vec<String>,
    pub(super) effective: Vec<String>,
    pub(super) permitted: Vec<String>,
    pub(super) inheritable: Vec<String>,
    pub(super) ambient: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Root {
    pub(super) path: PathBuf,
    #[serde(default)]
    pub(super) readonly: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Mount {
    pub(super) destination: PathBuf,
    #[serde(rename = "type", default)]
    pub(super) kind: String,
    pub(super) source: Option<PathBuf>,
    #[serde(default)]
    pub(super) options: Vec<String>,
}

/// Programs to run at certain moments of the container's life.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Hooks {
    pub(super) prestart: Vec<Hook>,
    pub(super) create_runtime: Vec<Hook>,
    pub(super) create_container: Vec<Hook>,
    pub(super) start_container: Vec<Hook>,
    pub(super) poststart: Vec<Hook>,
    pub(super) poststop: Vec<Hook>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Hook {
    pub(super) path: PathBuf,
    #[serde(default)]
    pub(super) args: Vec<String>,
    #[serde(default)]
    pub(super) env: Vec<String>,
    /// In seconds.
    pub(super) timeout: Option<u64>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Linux {
    pub(super) namespaces: Vec<Namespace>,
    pub(super) uid_mappings: Vec<IdMapping>,
    pub(super) gid_mappings: Vec<IdMapping>,
    pub(super) devices: Vec<Device>,
    pub(super) cgroups_path: Option<String>,
    pub(super) resources: Resources,
    pub(super) rootfs_propagation: Option<String>,
    pub(super) seccomp: Option<Seccomp>,
    pub(super) masked_paths: Vec<PathBuf>,
    pub(super) readonly_paths: Vec<PathBuf>,
    pub(super) sysctl: BTreeMap<String, String>,
    pub(super) mount_label: Option<String>,
}

/// A new namespace, or an existing one if it has a path.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Namespace {
    #[serde(rename = "type")]
    pub(super) kind: NamespaceKind,
    pub(super) path: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum NamespaceKind {
    User,
    Pid,
    Mount,
    Network,
    Ipc,
    Uts,
    Cgroup,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct IdMapping {
    #[serde(rename = "containerID")]
    pub(super) container: u32,
    #[serde(rename = "hostID")]
    pub(super) host: u32,
    pub(super) size: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Device {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) path: PathBuf,
    #[serde(default)]
    pub(super) major: u32,
    #[serde(default)]
    pub(super) minor: u32,
    pub(super) file_mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
}

/// Resource limits. The fields are those of the specification.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Resources {
    pub(super) devices: Vec<DeviceRule>,
    pub(super) memory: Option<Memory>,
    pub(super) cpu: Option<Cpu>,
    pub(super) pids: Option<Pids>,
    #[serde(rename = "blockIO")]
    pub(super) block_io: Option<BlockIo>,
    pub(super) hugepage_limits: Vec<HugepageLimit>,
    pub(super) network: Option<Network>,
    pub(super) unified: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct DeviceRule {
    pub(super) allow: bool,
    #[serde(rename = "type", default)]
    pub(super) kind: Option<String>,
    pub(super) major: Option<i64>,
    pub(super) minor: Option<i64>,
    #[serde(default)]
    pub(super) access: Option<String>,
}

/// Memory limits. There is none for kernel memory: Linux no longer has one and counts it with the
/// rest.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Memory {
    pub(super) limit: Option<i64>,
    pub(super) reservation: Option<i64>,
    pub(super) swap: Option<i64>,
    #[serde(rename = "kernelTCP")]
    pub(super) kernel_tcp: Option<i64>,
    pub(super) swappiness: Option<u64>,
    #[serde(rename = "disableOOMKiller")]
    pub(super) disable_oom_killer: Option<bool>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Cpu {
    pub(super) shares: Option<u64>,
    pub(super) quota: Option<i64>,
    pub(super) period: Option<u64>,
    pub(super) realtime_runtime: Option<i64>,
    pub(super) realtime_period: Option<u64>,
    pub(super) cpus: Option<String>,
    pub(super) mems: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Pids {
    pub(super) limit: i64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct BlockIo {
    pub(super) weight: Option<u16>,
    pub(super) leaf_weight: Option<u16>,
    pub(super) weight_device: Vec<WeightDevice>,
    pub(super) throttle_read_bps_device: Vec<ThrottleDevice>,
    pub(super) throttle_write_bps_device: Vec<ThrottleDevice>,
    #[serde(rename = "throttleReadIOPSDevice")]
    pub(super) throttle_read_iops_device: Vec<ThrottleDevice>,
    #[serde(rename = "throttleWriteIOPSDevice")]
    pub(super) throttle_write_iops_device: Vec<ThrottleDevice>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WeightDevice {
    pub(super) major: u32,
    pub(super) minor: u32,
    pub(super) weight: Option<u16>,
    pub(super) leaf_weight: Option<u16>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ThrottleDevice {
    pub(super) major: u32,
    pub(super) minor: u32,
    pub(super) rate: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HugepageLimit {
    pub(super) page_size: String,
    pub(super) limit: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Network {
    #[serde(rename = "classID")]
    pub(super) class_id: Option<u32>,
    pub(super) priorities: Vec<InterfacePriority>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct InterfacePriority {
    pub(super) name: String,
    pub(super) priority: u32,
}

/// The rules for system calls.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Seccomp {
    pub(super) default_action: String,
    pub(super) default_errno_ret: Option<u16>,
    #[serde(default)]
    pub(super) flags: Vec<String>,
    #[serde(default)]
    pub(super) syscalls: Vec<SeccompRule>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SeccompRule {
    pub(super) names: Vec<String>,
    pub(super) action: String,
    pub(super) errno_ret: Option<u16>,
    #[serde(default)]
    pub(super) args: Vec<SeccompArgument>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SeccompArgument {
    pub(super) index: u8,
    pub(super) value: u64,
    #[serde(default)]
    pub(super) value_two: u64,
    pub(super) op: String,
}

impl Config {
    /// Parses `config.json` and refuses unsupported properties.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let config: Self = serde_json::from_slice(bytes).map_err(|error| Error::Config(error.to_string()))?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), Error> {
        let refuse = |what: &str| Err(Error::Config(what.to_owned()));
        if !self.oci_version.starts_with("1.") {
            return Err(Error::Config(format!(
                "version {} of the specification is not known",
                self.oci_version
            )));
        }
        let kinds: Vec<NamespaceKind> =
            self.linux.namespaces.iter().map(|namespace| namespace.kind).collect();
        if kinds.iter().enumerate().any(|(index, kind)| kinds[..index].contains(kind)) {
            return refuse("a kind of namespace is listed twice");
        }
        let has = |kind| kinds.contains(&kind);
        if !has(NamespaceKind::Mount) {
            return refuse(
                "a mount namespace is not asked for, and without one its mounts would be the host's",
            );
        }
        if self.linux.namespaces.iter().any(|one| one.kind == NamespaceKind::User && one.path.is_some()) {
            return refuse("user namespaces by path are not supported");
        }
        if (self.hostname.is_some() || self.domainname.is_some()) && !has(NamespaceKind::Uts) {
            return refuse("a host name is asked for without a UTS namespace");
        }
        if self.linux.mount_label.as_deref().is_some_and(|label| !label.is_empty()) {
            return refuse("linux.mountLabel is not supported");
        }
        if let Some(process) = &self.process {
            if process.apparmor_profile.as_deref().is_some_and(|profile| !profile.is_empty()) {
                return refuse("process.apparmorProfile is not supported");
            }
            if process.selinux_label.as_deref().is_some_and(|label| !label.is_empty()) {
                return refuse("process.selinuxLabel is not supported");
            }
            if !process.cwd.is_absolute() {
                return refuse("process.cwd is not an absolute path");
            }
            let kinds: Vec<&str> = process.rlimits.iter().map(|limit| limit.kind.as_str()).collect();
            if kinds.iter().enumerate().any(|(index, kind)| kinds[..index].contains(kind)) {
                return refuse("a resource limit is listed twice");
            }
        }
        if self.mounts.iter().any(|mount| !mount.destination.is_absolute()) {
            return refuse("a mount's destination is not an absolute path");
        }
        Ok(())
    }

    /// Returns true if the container gets a new namespace of this kind.
    pub(super) fn has_new(&self, kind: NamespaceKind) -> bool {
        self.linux.namespaces.iter().any(|one| one.kind == kind && one.path.is_none())
    }

    /// Returns true if `prestart` hooks belong to `start`, as up to version 1.0.2. Later versions
    /// run them in `create`.
    pub(super) fn prestart_at_start(&self) -> bool {
        matches!(self.oci_version.as_str(), "1.0.0" | "1.0.1" | "1.0.2")
            || self.oci_version.starts_with("1.0.0-")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(more: &str) -> Result<Config, String> {
        let text = format!(r#"{{"ociVersion": "1.0.2", "root": {{"path": "rootfs"}}, {more}}}"#);
        Config::parse(text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn what_would_weaken_a_container_is_refused() {
        let mount = r#""namespaces": [{"type": "mount"}]"#;
        assert!(parse(&format!(r#""linux": {{{mount}}}, "unknown": 1"#)).is_ok());
        for (more, expected) in [
            (r#""linux": {}"#.to_owned(), "mount namespace"),
            (format!(r#""linux": {{{mount}, "mountLabel": "x"}}"#), "mountLabel"),
            (format!(r#""linux": {{{mount}}}, "hostname": "x""#), "UTS"),
            (
                format!(r#""linux": {{{mount}}}, "process": {{"cwd": "/", "apparmorProfile": "x"}}"#),
                "apparmor",
            ),
            (format!(r#""linux": {{{mount}}}, "process": {{"cwd": "x"}}"#), "cwd"),
            (r#""linux": {"namespaces": [{"type": "mount"}, {"type": "mount"}]}"#.to_owned(), "twice"),
            (r#""linux": {"namespaces": [{"type": "strange"}]}"#.to_owned(), "strange"),
        ] {
            let error = parse(&more).expect_err(&more);
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn prestart_hooks_belong_to_start_only_in_old_versions() {
        let config = |version: &str| {
            let text = format!(
                r#"{{"ociVersion": "{version}", "root": {{"path": "x"}}, "linux": {{"namespaces": [{{"type": "mount"}}]}}}}"#
            );
            Config::parse(text.as_bytes()).unwrap()
        };
        assert!(config("1.0.2").prestart_at_start());
        assert!(!config("1.0.2-dev").prestart_at_start() && !config("1.2.0").prestart_at_start());
    }
}
