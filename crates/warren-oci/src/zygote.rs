//! The zygote: a single-threaded process that forks shims on request.
//!
//! This way the start of a pod costs a fork and no exec, and the threaded daemon never forks. The
//! zygote ends when the daemon does; shims continue.
//!
//! Zygote and shims are a program of their own, whose `main` is [`run`]. A shim maps all pages of
//! its zygote. With thousands of shims, the daemon's code and heap would cost page tables, and time
//! whenever the kernel looks for the users of a page.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use warren_sys::process::{self, Fork, SingleThreaded};
use warren_sys::socket::Seqpacket;

use crate::client::{ShimClient, socket_path};
use crate::kernel::Layering;
use crate::protocol::PodRequest;
use crate::{shim, wire};

/// The daemon's handle of its zygote. Dropping it ends the zygote.
#[derive(Debug)]
pub struct Zygote {
    socket: Seqpacket,
    // Serialises requests: the answer to each is the next packet.
    turn: Mutex<()>,
    pid: u32,
}

/// A new pod's shim.
#[derive(Debug)]
pub struct ShimHandle {
    /// The process id.
    pub pid: i32,
    /// The pidfd: readable once the shim has ended.
    pub pidfd: OwnedFd,
    /// The socket for later clients. It exists once the first answer has been sent.
    pub socket_path: PathBuf,
    /// A connection that works at once.
    pub client: ShimClient,
}

/// The zygote could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartZygoteError {
    /// Its program could not be run.
    #[error("run the zygote")]
    Run(#[source] io::Error),
    /// It ended before it sent a message.
    #[error("talk to the new zygote")]
    Connection(#[source] io::Error),
    /// The machine lacks a feature that every container needs.
    #[error("prepare the zygote: {0}")]
    Prepare(String),
}

/// A shim could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnShimError {
    /// The zygote is gone or the connection to it failed.
    #[error("talk to the zygote")]
    Connection(#[from] io::Error),
    /// The zygote could not fork.
    #[error("the zygote could not fork a shim: {0}")]
    Fork(String),
}

/// The pid of a new shim, or an error. The first message is about the zygote itself and has no pid.
#[derive(Debug, Serialize, Deserialize)]
struct Forked(Result<i32, String>);

impl Zygote {
    /// Starts the zygote: a program that calls [`run`].
    pub fn start(program: &Path) -> Result<Self, StartZygoteError> {
        Self::start_with(program, None)
    }

    /// Starts the zygote like [`Self::start`], with a given way to make overlays instead of the
    /// kernel's best one. Tests use it: new kernels can make them in the old way.
    pub fn start_with(program: &Path, layering: Option<Layering>) -> Result<Self, StartZygoteError> {
        let (ours, theirs) = Seqpacket::pair().map_err(StartZygoteError::Run)?;
        let mut command = Command::new(program);
        command.arg0(NAME).stdin(Stdio::from(OwnedFd::from(theirs)));
        if layering == Some(Layering::Attached) {
            command.arg(ATTACHED);
        }
        let zygote = command.spawn().map_err(StartZygoteError::Run)?;
        // Close the zygote's end of the socket here. Otherwise its death would not be noticed.
        drop(command);
        match wire::receive::<Forked>(&ours) {
            Ok(Some((Forked(Ok(_)), _))) => Ok(Self { socket: ours, turn: Mutex::new(()), pid: zygote.id() }),
            Ok(Some((Forked(Err(message)), _))) => Err(StartZygoteError::Prepare(message)),
            Ok(None) => Err(StartZygoteError::Connection(io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(StartZygoteError::Connection(error)),
        }
    }

    /// Returns the zygote's process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Forks a shim and passes it the pod, whose containers it starts at once. Returns as soon as
    /// the shim exists (a fraction of a millisecond). Report on the containers comes through
    /// [`ShimHandle::client`].
    pub fn spawn_shim(&self, pod: &PodRequest) -> Result<ShimHandle, SpawnShimError> {
        let (ours, theirs) = Seqpacket::pair()?;
        let (Forked(result), mut descriptors) = {
            let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            wire::send(&self.socket, pod, &[theirs.as_fd()])?;
            wire::receive(&self.socket)?.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?
        };
        let pid = result.map_err(SpawnShimError::Fork)?;
        let pidfd = descriptors.pop().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        Ok(ShimHandle {
            pid,
            pidfd,
            socket_path: socket_path(&pod.directory),
            client: ShimClient::from(ours),
        })
    }
}

impl AsFd for Zygote {
    /// Returns the connection to the zygote, which closes when the zygote dies.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The name (`argv[0]`) of the zygote's program, which `ps` shows for zygote and shims.
pub const NAME: &str = "warren-shim";
/// The argument that selects the way of old kernels to make overlays.
const ATTACHED: &str = "attached";

/// Runs the zygote's program. Its standard input is the daemon's socket.
pub fn run() -> ExitCode {
    let layering = std::env::args().nth(1).filter(|word| word == ATTACHED).map(|_| Layering::Attached);
    let socket = io::stdin().as_fd().try_clone_to_owned().map(Seqpacket::from);
    match socket.and_then(|socket| serve(SingleThreaded::verify()?, &socket, layering)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain!("warren: zygote: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Forks a shim for each request, until the daemon is gone.
fn serve(proof: SingleThreaded, socket: &Seqpacket, layering: Option<Layering>) -> io::Result<()> {
    let _ = rustix::thread::set_name(c"warren-zygote");
    // A terminal's Ctrl-C is for the daemon, which then closes the socket.
    rustix::process::setsid()?;
    process::close_from(3, &[socket.as_fd()])?;
    shim::detach_standard_streams(None)?;
    // Containers must not inherit signals that the daemon's parent ignored.
    process::reset_signals(process::ALL_SIGNALS);
    // The kernel reaps shims by itself. Their state is on disk, so their exit status is not needed.
    process::ignore_signals(&[libc::SIGCHLD]);
    let prepared = match shim::Prepared::new(proof, layering) {
        Ok(prepared) => prepared,
        Err(error) => return wire::send(socket, &Forked(Err(error.to_string())), &[]),
    };
    wire::send(socket, &Forked(Ok(0)), &[])?;
    loop {
        let (pod, mut descriptors) = match wire::receive::<PodRequest>(socket) {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                wire::send(socket, &Forked(Err(error.to_string())), &[])?;
                continue;
            }
            Err(error) => return Err(error),
        };
        let Some(client) = descriptors.pop() else {
            wire::send(socket, &Forked(Err("the request came without a socket".to_owned())), &[])?;
            continue;
        };
        match process::fork(proof) {
            Ok(Fork::Child) => shim::run(prepared, pod, Seqpacket::from(client)),
            Ok(Fork::Parent(child)) => wire::send(socket, &Forked(Ok(child.pid())), &[child.pidfd()])?,
            Err(error) => wire::send(socket, &Forked(Err(error.to_string())), &[])?,
        }
    }
}
