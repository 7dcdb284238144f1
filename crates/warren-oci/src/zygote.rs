//! The zygote: a single-threaded process, forked before the daemon has any thread, that forks shims on request.
//!
//! Starting a pod costs a fork this way and no exec, and the threaded daemon never forks. The zygote ends when the
//! daemon does; shims do not notice.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
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
    // One request at a time: the answer to each is the next packet.
    turn: Mutex<()>,
    pid: i32,
}

/// A new pod's shim.
#[derive(Debug)]
pub struct ShimHandle {
    /// Its process id.
    pub pid: i32,
    /// Its descriptor: readable once the shim has ended.
    pub pidfd: OwnedFd,
    /// Where it listens for later clients, from the moment its first answer is out.
    pub socket_path: PathBuf,
    /// A connection that works at once.
    pub client: ShimClient,
}

/// The zygote could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartZygoteError {
    /// There are threads already.
    #[error("start the zygote before any thread")]
    Threads(#[source] io::Error),
    /// The kernel refused.
    #[error("fork the zygote")]
    Fork(#[source] io::Error),
    /// The machine lacks something that every container needs.
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

/// The pid of a new shim, or why there is none. The first one is about the zygote itself and has no pid.
#[derive(Debug, Serialize, Deserialize)]
struct Forked(Result<i32, String>);

impl Zygote {
    /// Forks the zygote. To be called at the very start of the daemon: it fails if the process already has threads.
    pub fn start() -> Result<Self, StartZygoteError> {
        Self::start_with(None)
    }

    /// The same, with overlays made in a given way instead of the one that suits the kernel: new kernels can make them as
    /// old ones must, which is how that is tested.
    pub fn start_with(layering: Option<Layering>) -> Result<Self, StartZygoteError> {
        let proof = SingleThreaded::verify().map_err(StartZygoteError::Threads)?;
        let (ours, theirs) = Seqpacket::pair().map_err(StartZygoteError::Fork)?;
        match process::fork(proof).map_err(StartZygoteError::Fork)? {
            Fork::Parent(child) => {
                drop(theirs);
                match wire::receive::<Forked>(&ours) {
                    Ok(Some((Forked(Ok(_)), _))) => {
                        Ok(Self { socket: ours, turn: Mutex::new(()), pid: child.pid() })
                    }
                    Ok(Some((Forked(Err(message)), _))) => Err(StartZygoteError::Prepare(message)),
                    Ok(None) => Err(StartZygoteError::Fork(io::ErrorKind::UnexpectedEof.into())),
                    Err(error) => Err(StartZygoteError::Fork(error)),
                }
            }
            Fork::Child => {
                drop(ours);
                let code = match serve(proof, &theirs, layering) {
                    Ok(()) => 0,
                    Err(error) => {
                        complain!("warren: zygote: {error}");
                        1
                    }
                };
                process::exit_now(code)
            }
        }
    }

    /// The zygote's process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Forks a shim and hands it the pod, whose containers it starts at once. Returns as soon as the shim exists (a
    /// fraction of a millisecond); how the containers fare is learnt from [`ShimHandle::client`].
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
    /// The connection to the zygote; it hangs up when the zygote dies.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The zygote's life: one request, one fork, until the daemon is gone.
fn serve(proof: SingleThreaded, socket: &Seqpacket, layering: Option<Layering>) -> io::Result<()> {
    let _ = rustix::thread::set_name(c"warren-zygote");
    // A terminal's Ctrl-C is for the daemon, which then closes the socket.
    rustix::process::setsid()?;
    process::close_from(3, &[socket.as_fd()])?;
    shim::detach_standard_streams(None)?;
    // Whatever the daemon's parent ignored, containers shall not.
    process::reset_signals(process::ALL_SIGNALS);
    // The kernel reaps shims by itself; nobody asks how they ended, their state is on disk.
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
