//! The description of a container. Names and structure follow the OCI runtime configuration. Parts
//! that Warren decides itself (namespaces, id maps, `/proc`, `/sys`, `/dev`, the system call
//! filter) are not here.
//!
//! Every isolation setting has a safe default: an omitted field gives the default of container
//! engines or stricter.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// One container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// The program to run.
    pub process: Process,
    /// The properties of the root file system.
    #[serde(default)]
    pub root: Root,
    /// Mounts beside the standard ones (`/proc`, `/sys`, `/dev` and those below them), in order.
    #[serde(default)]
    pub mounts: Vec<Mount>,
    /// Linux settings.
    #[serde(default)]
    pub linux: Linux,
    /// Free-form annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// The program to run, and its user.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Process {
    /// Program and arguments. A program without a slash is looked up in `PATH` of `env`.
    pub args: Vec<String>,
    /// `NAME=value` lines.
    #[serde(default)]
    pub env: Vec<String>,
    /// Working directory; made if it is missing.
    #[serde(default = "root_path")]
    pub cwd: PathBuf,
    /// User, group and further groups, as seen inside.
    #[serde(default)]
    pub user: User,
    /// Capabilities, as `CAP_…`. `None` is the default set of [`crate::defaults::CAPABILITIES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
    /// Resource limits. `RLIMIT_CORE` 0 and a reasonable `RLIMIT_NOFILE` are set unless named here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rlimits: Vec<Rlimit>,
    /// True if set-user-id programs gain no privileges, which is the default. If false, they can
    /// become the container's root.
    #[serde(default = "yes")]
    pub no_new_privileges: bool,
    /// The adjustment of the out-of-memory killer. Never below the shim's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i32>,
    /// True if all three standard streams are one terminal.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub terminal: bool,
    /// The contents of standard input.
    #[serde(default)]
    pub stdin: StandardInput,
}

/// The contents of a container's standard input.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StandardInput {
    /// Empty.
    #[default]
    Empty,
    /// The input of attached clients, one after the other.
    Open,
    /// The input of the first attached client, which then ends.
    Once,
}

/// Numeric identity inside the container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Further groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
}

/// Capability sets. Bounding, effective and permitted are always the same and the others empty, so
/// only `bounding` is read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    /// The capabilities that a process in the container can have at most.
    #[serde(default)]
    pub bounding: Vec<String>,
}

/// One resource limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rlimit {
    /// `RLIMIT_…`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The limit in force.
    pub soft: u64,
    /// The maximum to which the process may raise it.
    pub hard: u64,
}

/// The root file system. The source of its files is in [`crate::protocol::ContainerRequest`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Root {
    /// True if only writable mounts below `/` can be written.
    #[serde(default)]
    pub readonly: bool,
}

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// The absolute path inside. Missing directories, or a missing file for a file, are created.
    pub destination: PathBuf,
    /// `bind`, `tmpfs`, `memory` or `message`.
    #[serde(rename = "type")]
    pub kind: MountKind,
    /// For `bind`: the host's file or directory. For `message`: the host's file that stores it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<PathBuf>,
    /// `ro`, `nosuid`, `nodev`, `noexec` and their opposites. `idmap`: owners are shifted so that
    /// the host's root is root inside; without it the pod's own id range must own the files. For
    /// tmpfs: `size=…`, `mode=…`. For the others: `X-mount.subdir=…`, a directory inside that is
    /// shown instead of the whole and created if it is missing.
    #[serde(default)]
    pub options: Vec<String>,
}

/// Kinds of mounts that a request may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MountKind {
    /// A directory or file of the host.
    Bind,
    /// Memory of this container alone.
    Tmpfs,
    /// Memory that the pod's containers share. `source` is its name, see
    /// [`crate::protocol::MemoryVolume`].
    Memory,
    /// An empty file in memory, of at most one page, for a termination message. When the container
    /// has ended, its first bytes are written to `source`, unless it is empty.
    Message,
}

/// Linux settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Linux {
    /// Limits of this container. Those of the whole pod are in [`crate::protocol::PodRequest`].
    #[serde(default)]
    pub resources: Limits,
    /// Paths that appear empty. `None` is the default list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masked_paths: Option<Vec<PathBuf>>,
    /// Paths that are read-only. `None` is the default list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readonly_paths: Option<Vec<PathBuf>>,
}

pub use warren_sys::cgroup::{CpuQuota, Limits};

fn yes() -> bool {
    true
}

fn root_path() -> PathBuf {
    PathBuf::from("/")
}

impl Process {
    /// Creates a process with all defaults, as root of the container, in `/`.
    pub fn new(args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            args: args.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            cwd: root_path(),
            user: User::default(),
            capabilities: None,
            rlimits: Vec::new(),
            no_new_privileges: true,
            oom_score_adj: None,
            terminal: false,
            stdin: StandardInput::Empty,
        }
    }
}

impl Spec {
    /// Creates a container with all defaults that runs `process`.
    pub fn new(process: Process) -> Self {
        Self {
            process,
            root: Root::default(),
            mounts: Vec::new(),
            linux: Linux::default(),
            annotations: BTreeMap::new(),
        }
    }
}
