//! What the daemon and a shim say to each other: JSON messages on a sequenced-packet socket, descriptors beside them.
//!
//! A [`Request`] carries a number of the client's choosing and is answered by one [`Message::Reply`] with that number,
//! not always in order. [`Message::Event`]s come between replies. A shim outlives daemons, so a field may be added but
//! never change its meaning.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::idmap::IdRange;
use crate::spec::{Spec, User};

/// A whole pod: what its shim needs to know to start it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PodRequest {
    /// The pod's uid: `[A-Za-z0-9-]`, used as a file and cgroup name.
    pub uid: String,
    /// The pod's directory (`<data>/pods/<uid>`). It must exist; the shim puts `shim.sock`, `state.json`, `shim.log`
    /// and `containers/` into it.
    pub directory: PathBuf,
    /// What the names of its containers' cgroups begin with ([`crate::cgroup_names::pod`]).
    pub cgroup: String,
    /// Host name inside.
    pub hostname: String,
    /// The ids of this pod: of the host and its alone, or those that all pods of an ordinary user share.
    pub ids: IdRange,
    /// Its way to the host; `None`: it has only its own loopback.
    #[serde(default)]
    pub network: Option<PodNetwork>,
    /// Who makes its containers; `None`: we do.
    #[serde(default)]
    pub runtime: Option<RuntimeProgram>,
    /// Where on its loopback it reaches the proxy, for a pod that has no way to the host. [`Call::WayOut`] gives the socket
    /// that listens there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_port: Option<u16>,
    /// Kernel parameters of its namespaces, set before any program of it runs: names with dots, and values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sysctls: Vec<(String, String)>,
    /// A program of the node's that is started at the first connection to one of its ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<Activation>,
    /// Containers to start at once, in order; more can follow by [`Call::Start`].
    #[serde(default)]
    pub containers: Vec<ContainerRequest>,
    /// Write down when each step of a start was over, to `timeline` in the pod's directory. For benchmarks.
    #[serde(default)]
    pub trace: bool,
}

/// A program that makes and keeps containers in our place, with the command line that OCI runtimes have in common.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeProgram {
    /// Where it is.
    pub path: PathBuf,
    /// What is to be known about it.
    pub kind: RuntimeKind,
}

/// Kinds of runtimes, by what differs between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuntimeKind {
    /// `runsc`: a kernel in user space. It takes the pod's device over for a network of its own, which one container at a
    /// time can have.
    Gvisor,
    /// Like `runc`: containers are made of the host's namespaces, and share those of their pod.
    Plain,
}

/// A program that is started by socket activation. The shim listens on ports in the pod's network,
/// from before the pod's first program runs. At the first connection it starts the program in a running
/// container, as that container's user, and hands it the listening sockets: the program's standard input
/// is a `SOCK_SEQPACKET` socket with one message that carries the descriptors. When the program has
/// ended, the next connection starts it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activation {
    /// The container that it runs in. Connections wait while that does not run.
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
    /// The host's, as the pod sees it. It must be the host's already.
    pub gateway: Ipv4Addr,
    /// Further destinations (address, prefix) that the pod reaches through the host; what the host does with such packets
    /// is the host's affair.
    #[serde(default)]
    pub routes: Vec<(Ipv4Addr, u8)>,
}

/// One container to start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerRequest {
    /// Its name in the pod: `[a-z0-9-]`.
    pub name: String,
    /// How often it was started before. Each attempt has a fresh root file system, and a name can be started again
    /// only with a higher number.
    #[serde(default)]
    pub attempt: u32,
    /// What to run, and how it is fenced in.
    pub spec: Spec,
    /// Where its files come from.
    pub rootfs: Rootfs,
    /// Where its output goes.
    pub log: LogFile,
}

/// The file systems that make up a container's root. Each is an overlay with a fresh upper directory in the pod's
/// directory: nothing below is ever written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rootfs {
    /// The first must have the target `/`.
    pub overlays: Vec<Overlay>,
}

/// One overlay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overlay {
    /// Where it appears inside.
    pub target: PathBuf,
    /// Host directories, topmost first.
    pub lower: Vec<PathBuf>,
}

/// A log file in CRI format: `<RFC 3339 time> <stdout|stderr> <F|P> <line>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogFile {
    /// The file that is written now. Older ones are `<path>.1` (the newest) and so on.
    pub path: PathBuf,
    /// A file this long is put aside.
    #[serde(default = "default_log_bytes")]
    pub max_bytes: u64,
    /// How many files there are at most, the current one included.
    #[serde(default = "default_log_files")]
    pub max_files: u32,
}

impl LogFile {
    /// A log at `path` with the kubelet's default limits (10 MiB, 5 files).
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
    /// Comes back in the reply.
    pub id: u64,
    /// What is wanted.
    pub call: Call,
}

/// What a client can ask of a shim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Call {
    /// The pod's state now → [`Answer::State`].
    State,
    /// The state now, and an [`Event::State`] after every change from here on → [`Answer::State`].
    Subscribe,
    /// Starts a container → [`Answer::State`] once its program runs, or an error that names the step that failed.
    Start {
        /// The container.
        container: Box<ContainerRequest>,
    },
    /// Starts a further process in a running container → [`Answer::Exec`] with descriptors; later, to this client
    /// alone, [`Event::ExecExited`].
    Exec(ExecRequest),
    /// Sets the size of an exec's terminal → [`Answer::Done`].
    Resize {
        /// Which exec.
        exec: u64,
        /// The new size.
        size: TerminalSize,
    },
    /// Shows what a running container writes from now on, and lets the client write to its input if it has one →
    /// [`Answer::Attached`] with descriptors. It lasts as long as this connection.
    Attach {
        /// Which container.
        container: String,
        /// Whether its input is wanted.
        stdin: bool,
    },
    /// An attached client has nothing more to write: ends the input of a container that has it for one client →
    /// [`Answer::Done`].
    EndInput {
        /// Which container.
        container: String,
    },
    /// Makes a TCP socket in the pod's network → [`Answer::Done`] with its descriptor, for the client to connect. A pod whose
    /// network is not the kernel's refuses it as [`RefusalReason::Unsupported`].
    Socket {
        /// Of IPv6 and not of IPv4.
        version_6: bool,
    },
    /// The socket that listens where programs in the pod reach the proxy ([`PodRequest::proxy_port`]) → [`Answer::Done`] with
    /// its descriptor, for the client to accept connections from. It is the same one every time: connections that are made
    /// while nobody accepts wait for the next who does.
    WayOut,
    /// Makes memory that the pod's containers share, if it is not there yet → [`Answer::Done`] with its descriptor, a
    /// directory, for the client to put files in. Containers have it by [`crate::spec::MountKind::Memory`].
    Volume(MemoryVolume),
    /// Sends a signal → [`Answer::Done`]. A process that has already ended is no error.
    Signal {
        /// To whom.
        target: Target,
        /// Which.
        signal: i32,
    },
    /// Stops all containers of the pod where they are → [`Answer::Done`].
    Pause,
    /// Lets them go on → [`Answer::Done`].
    Resume,
    /// What the pod uses → [`Answer::Stats`].
    Stats,
    /// Kills everything, removes the cgroups → [`Answer::State`] with the final state, after which the shim exits.
    /// Files stay: they are the daemon's to remove.
    Shutdown,
}

/// Memory that the containers of a pod share, and that goes with the pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryVolume {
    /// Its name in the pod.
    pub name: String,
    /// How much fits in.
    pub bytes: u64,
    /// The permissions of its top directory.
    pub mode: u32,
    /// The group of its top directory, as seen inside.
    pub group: u32,
}

/// Who gets a signal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// A container's first process. `SIGKILL` ends the whole container.
    Container(String),
    /// A process started by [`Call::Exec`].
    Exec(u64),
}

/// A further process in a running container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// Which container.
    pub container: String,
    /// Program and arguments.
    pub args: Vec<String>,
    /// `NAME=value` lines on top of the container's own.
    #[serde(default)]
    pub env: Vec<String>,
    /// Working directory; the container's own if absent.
    #[serde(default)]
    pub cwd: Option<PathBuf>,
    /// Identity; the container's own if absent.
    #[serde(default)]
    pub user: Option<User>,
    /// With a size: a terminal. The answer then has one descriptor, its master.
    #[serde(default)]
    pub terminal: Option<TerminalSize>,
    /// Without a terminal: a pipe to standard input; else it reads as empty.
    #[serde(default)]
    pub stdin: bool,
}

/// Columns and rows.
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
        /// What came of it.
        result: Result<Answer, Refusal>,
    },
    /// Something happened.
    Event(Event),
}

/// What a request led to.
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
    /// A process was started. Descriptors, in this order: standard input (if asked for), standard output, standard
    /// error; or the terminal's master alone.
    Exec {
        /// Its number, for [`Call::Resize`], [`Call::Signal`] and [`Event::ExecExited`].
        exec: u64,
        /// Its process id on the host.
        pid: i32,
    },
    /// A client is attached. Descriptors, in this order: standard input (if it has it), standard output, and standard
    /// error unless there is a terminal. A terminal's input is its master, whose size can be set.
    Attached {
        /// Whether the client may write.
        stdin: bool,
        /// Whether it is a terminal.
        terminal: bool,
    },
    /// What the pod uses.
    Stats {
        /// By container.
        containers: BTreeMap<String, Stats>,
    },
}

pub use warren_sys::cgroup::Stats;

/// Why a request was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// What kind of failure.
    pub reason: RefusalReason,
    /// The whole story, with its causes.
    pub message: String,
}

/// Kinds of failures, for the pod's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalReason {
    /// The request itself makes no sense (unknown container, taken name, bad value).
    Invalid,
    /// The container could not be set up.
    CreateFailed,
    /// The program could not be run: not found, no such user or directory.
    StartFailed,
    /// The program was found and cannot be executed: no permission, or not a program.
    NotExecutable,
    /// The kernel refused something else.
    Failed,
    /// The runtime that keeps the pod's containers has no such thing.
    Unsupported,
}

/// Something happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The pod's state changed (to subscribers).
    State {
        /// The whole new state.
        state: PodState,
    },
    /// A process started by [`Call::Exec`] ended (to the client that started it).
    ExecExited {
        /// Which.
        exec: u64,
        /// How.
        exit: ExitStatus,
    },
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitStatus {
    /// Its exit code; 128 + signal if a signal ended it, as shells say it.
    pub code: i32,
    /// The signal that ended it.
    #[serde(default)]
    pub signal: Option<i32>,
    /// The kernel killed a process of the container for want of memory while this one ran, and this one was killed.
    #[serde(default)]
    pub oom_killed: bool,
}

/// A pod as its shim sees it; also the content of `state.json`, which tells a later daemon what became of the pod even
/// if the shim is gone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PodState {
    /// The pod's uid.
    pub uid: String,
    /// Grows with every change.
    pub revision: u64,
    /// The shim's process.
    pub shim: ProcessName,
    /// Whether the pod is paused.
    #[serde(default)]
    pub paused: bool,
    /// The cgroups are gone and the shim has ended or is about to.
    #[serde(default)]
    pub shut_down: bool,
    /// Who keeps its containers; `None`: we do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RuntimeKind>,
    /// By name.
    pub containers: BTreeMap<String, ContainerState>,
}

/// A process, named so that another with the same number is not mistaken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessName {
    /// Process id on the host.
    pub pid: i32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
}

impl ProcessName {
    /// The process `pid` as it is now.
    pub fn of(pid: i32) -> std::io::Result<Self> {
        Ok(Self { pid, start_ticks: warren_sys::process::start_ticks(pid)? })
    }

    /// Whether that very process is still there.
    pub fn is_alive(self) -> bool {
        warren_sys::process::start_ticks(self.pid).is_ok_and(|ticks| ticks == self.start_ticks)
    }
}

/// One container of a pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerState {
    /// From its request.
    pub attempt: u32,
    /// Where it is in its life.
    pub status: ContainerStatus,
    /// How many processes in it the kernel has killed for want of memory.
    #[serde(default)]
    pub oom_kills: u64,
    /// How often it could not fork because of its pids limit.
    #[serde(default)]
    pub pids_limit_hits: u64,
}

/// Where a container is in its life.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub enum ContainerStatus {
    /// Being set up.
    Starting,
    /// Its program runs.
    Running {
        /// Its first process.
        process: ProcessName,
        /// Since when.
        started_at: Timestamp,
    },
    /// Its program ended, and with it everything in the container.
    Exited {
        /// How.
        exit: ExitStatus,
        /// When it had started.
        started_at: Timestamp,
        /// When it ended.
        finished_at: Timestamp,
    },
    /// It never ran.
    Failed {
        /// Why.
        refusal: Refusal,
        /// When.
        finished_at: Timestamp,
    },
}
