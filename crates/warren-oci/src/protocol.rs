//! The protocol between the daemon and a shim: JSON messages on a sequenced-packet socket, with
//! descriptors beside them.
//!
//! A [`Request`] carries a number that the client chooses. One [`Message::Reply`] with that number
//! answers it, not always in order. [`Message::Event`]s come between replies. A shim outlives
//! daemons, so fields may be added but must never change their meaning.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::idmap::IdRange;
use crate::spec::{Spec, User};

/// A whole pod, as its shim needs it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PodRequest {
    /// The pod's UID: `[A-Za-z0-9-]`, used as a file and cgroup name.
    pub uid: String,
    /// The pod's directory (`<data>/pods/<uid>`). It must exist; the shim puts `shim.sock`,
    /// `state.json`, `shim.log` and `containers/` into it.
    pub directory: PathBuf,
    /// The prefix of the names of its containers' cgroups ([`crate::cgroup_names::pod`]).
    pub cgroup: String,
    /// Host name inside.
    pub hostname: String,
    /// The ids of this pod. They are its own on the host, or shared by all pods of an ordinary
    /// user.
    pub ids: IdRange,
    /// Its connection to the host. `None`: it has only its own loopback.
    #[serde(default)]
    pub network: Option<PodNetwork>,
    /// The runtime that makes its containers. `None`: this crate does.
    #[serde(default)]
    pub runtime: Option<RuntimeProgram>,
    /// The port on the pod's loopback that leads to the proxy, for a pod without a connection to
    /// the host. [`Call::EgressListener`] returns the socket that listens there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_port: Option<u16>,
    /// Kernel parameters of its namespaces, set before any of its programs runs: dotted names, and
    /// values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sysctls: Vec<(String, String)>,
    /// A program of the node that is started at the first connection to one of its ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<Activation>,
    /// Containers to start at once, in order. More can follow by [`Call::Start`].
    #[serde(default)]
    pub containers: Vec<ContainerRequest>,
    /// Records the time of each step of a start in the file `timeline` of the pod's directory. For
    /// benchmarks.
    #[serde(default)]
    pub trace: bool,
}

/// Another OCI runtime that makes and keeps the containers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeProgram {
    /// The path of the program.
    pub path: PathBuf,
    /// The kind of runtime.
    pub kind: RuntimeKind,
}

/// Kinds of runtimes, by their differences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuntimeKind {
    /// `runsc`: a kernel in user space. It takes over the pod's device for its own network stack,
    /// so only one container of the pod can use the network at a time.
    Gvisor,
    /// Like `runc`: containers are made of the host's namespaces, and share those of their pod.
    Plain,
}

/// A program that is started by socket activation. The shim listens on ports in the pod's network,
/// from before the pod's first program runs. At the first connection it starts the program in a
/// running container, as that container's user, and hands it the listening sockets: the program's
/// standard input is a `SOCK_SEQPACKET` socket with one message that carries the descriptors. When
/// the program has ended, the next connection starts it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activation {
    /// The container that it runs in. While that is not running, connections wait.
    pub container: String,
    /// The ports.
    pub ports: Vec<u16>,
    /// Program and arguments, as the container sees them.
    pub args: Vec<String>,
}

/// A pod's device, address and routes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodNetwork {
    /// The name of the host's end of the pair of devices, at most 15 bytes.
    pub device: String,
    /// The pod's address.
    pub address: Ipv4Addr,
    /// The host's address on this link. The host must already have it.
    pub gateway: Ipv4Addr,
    /// Further destinations (address, prefix) that the pod reaches through the host. The host
    /// decides what to do with such packets.
    #[serde(default)]
    pub routes: Vec<(Ipv4Addr, u8)>,
}

/// One container to start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerRequest {
    /// Its name in the pod: `[a-z0-9-]`.
    pub name: String,
    /// The number of earlier starts. Each attempt has a fresh root file system, and a name can be
    /// started again only with a higher number.
    #[serde(default)]
    pub attempt: u32,
    /// The program and its isolation.
    pub spec: Spec,
    /// The source of its files.
    pub rootfs: Rootfs,
    /// The destination of its output.
    pub log: LogFile,
}

/// The file systems that make up a container's root. Each is an overlay with a fresh upper
/// directory in the pod's directory. The lower directories are never written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rootfs {
    /// The first must have the target `/`.
    pub overlays: Vec<Overlay>,
}

/// One overlay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overlay {
    /// The path inside.
    pub target: PathBuf,
    /// Host directories, topmost first.
    pub lower: Vec<PathBuf>,
    /// Says that this is a view of the only lower directory and not a part of the image.
    #[serde(default)]
    pub view: Option<View>,
}

/// A view of a host directory that is not trusted to stay as it is, because others may change it
/// meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Its name in the pod: `[a-z0-9-]`. Its upper directory is [`View::upper`].
    pub name: String,
    /// The place inside the lower directory that is shown. No link on the way leads out of the
    /// lower directory.
    pub inside: PathBuf,
}

impl View {
    /// Returns the name of the directory that holds what a container has changed in the view of
    /// this name. It lies in the directory of the container's run: `containers/NAME/ATTEMPT` in the
    /// pod's.
    pub fn upper(name: &str) -> String {
        format!("view-{name}.upper")
    }

    /// Returns the name of the directory beside it whose time of change is when the view was made.
    pub fn work(name: &str) -> String {
        format!("view-{name}.work")
    }
}

/// A log file in CRI format: `<RFC 3339 time> <stdout|stderr> <F|P> <line>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogFile {
    /// The file that is written now. Older ones are `<path>.1` (the newest) and so on.
    pub path: PathBuf,
    /// The size at which the file is rotated.
    #[serde(default = "default_log_bytes")]
    pub max_bytes: u64,
    /// The maximum number of files, including the current one.
    #[serde(default = "default_log_files")]
    pub max_files: u32,
}

impl LogFile {
    /// Creates a log at `path` with the kubelet's default limits (10 MiB, 5 files).
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), max_bytes: default_log_bytes(), max_files: default_log_files() }
    }
}

fn default_log_bytes() -> u64 {
    10 << 20
}

fn default_log_files() -> u32 {
    5
}

/// A client's message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The number, which is repeated in the reply.
    pub id: u64,
    /// The call.
    pub call: Call,
}

/// The calls that a shim offers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Call {
    /// Returns the pod's current state → [`Answer::State`].
    State,
    /// Returns the current state, and sends an [`Event::State`] after every later change →
    /// [`Answer::State`].
    Subscribe,
    /// Starts a container → [`Answer::State`] once its program runs, or an error that names the
    /// failed step.
    Start {
        /// The container.
        container: Box<ContainerRequest>,
    },
    /// Starts another process in a running container → [`Answer::Exec`] with descriptors. Its end
    /// is reported to this client only, as [`Event::ExecExited`].
    Exec(ExecRequest),
    /// Sets the size of an exec's terminal → [`Answer::Done`].
    Resize {
        /// The number of the exec.
        exec: u64,
        /// The new size.
        size: TerminalSize,
    },
    /// Shows the output of a running container from now on, and lets the client write to its input
    /// if it has one → [`Answer::Attached`] with descriptors. It lasts as long as this connection.
    Attach {
        /// The name of the container.
        container: String,
        /// True to get its input as well.
        stdin: bool,
    },
    /// Ends the input of an attached client. If the container's input is for one client, the input
    /// of the container ends too → [`Answer::Done`].
    EndInput {
        /// The name of the container.
        container: String,
    },
    /// Makes a TCP socket in the pod's network → [`Answer::Done`] with its descriptor, for the
    /// client to connect. A pod with a network stack in user space refuses it as
    /// [`RefusalReason::Unsupported`].
    Socket {
        /// True for IPv6, false for IPv4.
        version_6: bool,
    },
    /// Returns the socket on which programs in the pod reach the proxy ([`PodRequest::proxy_port`])
    /// → [`Answer::Done`] with its descriptor, for the client to accept connections from. It is
    /// always the same socket, so connections wait in its queue until a client accepts them.
    #[serde(rename = "way_out")]
    EgressListener,
    /// Makes memory that the pod's containers share, unless it exists → [`Answer::Done`] with the
    /// descriptor of a directory, for the client to put files in. Containers mount it as
    /// [`crate::spec::MountKind::Memory`].
    Volume(MemoryVolume),
    /// Sends a signal → [`Answer::Done`]. A process that has already ended is no error.
    Signal {
        /// The receiver.
        target: Target,
        /// The number of the signal.
        signal: i32,
    },
    /// Freezes all containers of the pod → [`Answer::Done`].
    Pause,
    /// Thaws them → [`Answer::Done`].
    Resume,
    /// Returns the resource usage of the pod → [`Answer::Stats`].
    Stats,
    /// Kills everything and removes the cgroups → [`Answer::State`] with the final state. Then the
    /// shim exits. Files stay; the daemon removes them.
    Shutdown,
}

/// Memory that the containers of a pod share. It ends with the pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryVolume {
    /// Its name in the pod.
    pub name: String,
    /// The capacity in bytes.
    pub bytes: u64,
    /// The permissions of its top directory.
    pub mode: u32,
    /// The group of its top directory, as seen inside.
    pub group: u32,
}

/// The receiver of a signal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// A container's first process. `SIGKILL` ends the whole container.
    Container(String),
    /// A process started by [`Call::Exec`].
    Exec(u64),
}

/// Another process in a running container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// The name of the container.
    pub container: String,
    /// Program and arguments.
    pub args: Vec<String>,
    /// `NAME=value` lines, added to the container's own.
    #[serde(default)]
    pub env: Vec<String>,
    /// Working directory. The default is the container's own.
    #[serde(default)]
    pub cwd: Option<PathBuf>,
    /// User and groups. The default is the container's own.
    #[serde(default)]
    pub user: Option<User>,
    /// The size of a terminal, if wanted. The answer then has one descriptor, its master.
    #[serde(default)]
    pub terminal: Option<TerminalSize>,
    /// Without a terminal: true for a pipe to standard input. Otherwise it is empty.
    #[serde(default)]
    pub stdin: bool,
}

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Columns.
    pub columns: u16,
    /// Rows.
    pub rows: u16,
}

/// A shim's message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Message {
    /// The answer to a request.
    Reply {
        /// The request's number.
        id: u64,
        /// The result.
        result: Result<Answer, Refusal>,
    },
    /// An event.
    Event(Event),
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// It is done.
    Done,
    /// The pod's state.
    State {
        /// The state.
        state: PodState,
    },
    /// A process was started. Descriptors, in this order: standard input (if requested), standard
    /// output, standard error. With a terminal: its master only.
    Exec {
        /// Its number, for [`Call::Resize`], [`Call::Signal`] and [`Event::ExecExited`].
        exec: u64,
        /// Its process id on the host.
        pid: i32,
    },
    /// A client is attached. Descriptors, in this order: standard input (if granted), standard
    /// output, and standard error unless there is a terminal. A terminal's input is its master,
    /// whose size can be set.
    Attached {
        /// True if the client may write.
        stdin: bool,
        /// True for a terminal.
        terminal: bool,
    },
    /// The resource usage of the pod.
    Stats {
        /// The usage of each container.
        containers: BTreeMap<String, Stats>,
    },
}

pub use warren_sys::cgroup::Stats;

/// The error of a refused request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The kind of failure.
    pub reason: RefusalReason,
    /// The message, with all causes.
    pub message: String,
}

/// Kinds of failures, for the pod's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalReason {
    /// The request itself is invalid (unknown container, taken name, bad value).
    Invalid,
    /// The container could not be set up.
    CreateFailed,
    /// The program could not be run: not found, no such user or directory.
    StartFailed,
    /// The program was found but cannot be executed: no permission, or not a program.
    NotExecutable,
    /// Any other failure.
    Failed,
    /// The runtime of the pod's containers does not support it.
    Unsupported,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The pod's state changed. Sent to subscribers.
    State {
        /// The whole new state.
        state: PodState,
    },
    /// A process started by [`Call::Exec`] ended. Sent to the client that started it.
    ExecExited {
        /// The number of the exec.
        exec: u64,
        /// Its exit status.
        exit: ExitStatus,
    },
}

/// The exit status of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitStatus {
    /// Its exit code; 128 + signal if a signal ended it, as in shells.
    pub code: i32,
    /// The signal that ended it.
    #[serde(default)]
    pub signal: Option<i32>,
    /// True if the process was killed, and the kernel killed a process of the container for lack of
    /// memory while it ran.
    #[serde(default)]
    pub oom_killed: bool,
}

/// The state of a pod as its shim sees it. It is also the content of `state.json`, from which a
/// later daemon learns the pod's state even if the shim is gone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PodState {
    /// The pod's UID.
    pub uid: String,
    /// Grows with every change.
    pub revision: u64,
    /// The shim's process.
    pub shim: ProcessName,
    /// True if the pod is paused.
    #[serde(default)]
    pub paused: bool,
    /// True if the cgroups are gone and the shim has ended or is about to.
    #[serde(default)]
    pub shut_down: bool,
    /// The runtime that keeps its containers. `None`: this crate does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RuntimeKind>,
    /// The containers by name.
    pub containers: BTreeMap<String, ContainerState>,
}

/// A process, identified by pid and start time, because pids are reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessName {
    /// Process id on the host.
    pub pid: i32,
    /// Start time, in clock ticks since boot.
    pub start_ticks: u64,
}

impl ProcessName {
    /// Identifies the process that now has this `pid`.
    pub fn of(pid: i32) -> std::io::Result<Self> {
        Ok(Self { pid, start_ticks: warren_sys::process::start_ticks(pid)? })
    }

    /// Returns true if exactly this process still exists.
    pub fn is_alive(self) -> bool {
        warren_sys::process::start_ticks(self.pid).is_ok_and(|ticks| ticks == self.start_ticks)
    }
}

/// One container of a pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerState {
    /// The attempt, from its request.
    pub attempt: u32,
    /// The status.
    pub status: ContainerStatus,
    /// The number of its processes that the kernel has killed for lack of memory.
    #[serde(default)]
    pub oom_kills: u64,
    /// The number of forks that its pids limit has prevented.
    #[serde(default)]
    pub pids_limit_hits: u64,
}

/// The status of a container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub enum ContainerStatus {
    /// It is being set up.
    Starting,
    /// Its program runs.
    Running {
        /// Its first process.
        process: ProcessName,
        /// The start time.
        started_at: Timestamp,
    },
    /// Its program has ended, and with it everything in the container.
    Exited {
        /// Its exit status.
        exit: ExitStatus,
        /// The start time.
        started_at: Timestamp,
        /// The end time.
        finished_at: Timestamp,
    },
    /// It never ran.
    Failed {
        /// The cause.
        refusal: Refusal,
        /// The time of the failure.
        finished_at: Timestamp,
    },
}
