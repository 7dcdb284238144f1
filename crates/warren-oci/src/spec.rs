//! What a container is. The shape and the words are those of the OCI runtime configuration wherever it has the same
//! idea; what Warren decides by itself (namespaces, id maps, `/proc`, `/sys`, `/dev`, the system call filter) is not here.
//!
//! Everything that isolates has a safe default: leaving a field out gives the container engines' default, never less.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// One container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// The program to run.
    pub process: Process,
    /// How the root file system is presented.
    #[serde(default)]
    pub root: Root,
    /// Mounts beside the standard ones (`/proc`, `/sys`, `/dev` and what is below it), in order.
    #[serde(default)]
    pub mounts: Vec<Mount>,
    /// Linux matters.
    #[serde(default)]
    pub linux: Linux,
    /// Free-form marks.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// The program to run and as whom.
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
    /// Resource limits; `RLIMIT_CORE` 0 and a sane `RLIMIT_NOFILE` are set unless named here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rlimits: Vec<Rlimit>,
    /// Set-user-id programs gain nothing. On unless switched off; then they can become the container's root, no more.
    #[serde(default = "yes")]
    pub no_new_privileges: bool,
    /// How willing the kernel's out-of-memory killer is to take it; never below the shim's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i32>,
    /// All three standard streams are one terminal.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub terminal: bool,
    /// What there is to read on standard input.
    #[serde(default)]
    pub stdin: StandardInput,
}

/// What a container reads on its standard input.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StandardInput {
    /// Its end.
    #[default]
    Empty,
    /// What attached clients write, one after the other.
    Open,
    /// What the first attached client writes, and then its end.
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

/// Capability sets. Warren keeps bounding, effective and permitted the same and the others empty, so only `bounding`
/// is read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    /// The most that any process in the container can have.
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
    /// What the process gets.
    pub soft: u64,
    /// What it may raise it to.
    pub hard: u64,
}

/// The root file system. Where its content comes from is in [`crate::protocol::ContainerRequest`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Root {
    /// Nothing below `/` may be written except mounts that are writable themselves.
    #[serde(default)]
    pub readonly: bool,
}

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// Absolute path inside. Missing directories, or a missing file for a file, are made.
    pub destination: PathBuf,
    /// `bind`, `tmpfs`, `memory` or `message`.
    #[serde(rename = "type")]
    pub kind: MountKind,
    /// The host's file or directory for `bind`; for `message`, where the host keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<PathBuf>,
    /// `ro`, `nosuid`, `nodev`, `noexec` and their opposites; `idmap` (owners are shifted so that the host's root is
    /// root inside; without it the pod's own id range must own the files); for tmpfs `size=…`, `mode=…`; for the others
    /// `X-mount.subdir=…`, a place inside that is shown instead of the whole and made if it is missing.
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
    /// Memory that the pod's containers share; `source` is its name, see [`crate::protocol::MemoryVolume`].
    Memory,
    /// An empty file in memory that takes at most a page, for a message that the container leaves. Its first bytes are written to
    /// `source` when the container has ended, unless it is empty.
    Message,
}

/// Linux matters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Linux {
    /// Limits of this container; those of the whole pod are in [`crate::protocol::PodRequest`].
    #[serde(default)]
    pub resources: Limits,
    /// Paths that read as empty. `None` is the default list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masked_paths: Option<Vec<PathBuf>>,
    /// Paths that cannot be written. `None` is the default list.
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
    /// A process with every default, as root of the container, in `/`.
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
    /// A container with every default that runs `process`.
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
