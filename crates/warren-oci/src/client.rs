//! The daemon's end of a shim's socket. Blocking by default; a caller with an event loop of its own switches it to
//! non-blocking, waits for the descriptor, and calls the same two functions.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use warren_sys::socket::Seqpacket;

use crate::protocol::{Answer, Call, Message, Refusal, Request};
use crate::wire;

/// Where a pod's shim listens.
pub fn socket_path(pod_directory: &Path) -> PathBuf {
    pod_directory.join("shim.sock")
}

/// A connection to a shim. Sending and receiving take `&self`, so one task may read while others write.
#[derive(Debug)]
pub struct ShimClient {
    socket: Seqpacket,
    next_id: AtomicU64,
}

/// A message with its descriptors.
#[derive(Debug)]
pub struct Received {
    /// The message.
    pub message: Message,
    /// See [`Answer::Exec`].
    pub descriptors: Vec<OwnedFd>,
}

/// A request that did not get an answer, or not the wished one.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The shim said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The connection failed, or the shim is gone.
    #[error("talk to the pod's shim")]
    Connection(#[from] io::Error),
}

impl ShimClient {
    /// Connects to the shim of the pod in `pod_directory`. `NotFound` or `ConnectionRefused` mean that it has none.
    pub fn connect(pod_directory: &Path) -> io::Result<Self> {
        Seqpacket::connect(&socket_path(pod_directory)).map(Self::from)
    }

    /// Whether [`Self::send`] and [`Self::receive`] wait or return `WouldBlock`.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.socket.set_nonblocking(nonblocking)
    }

    /// Sends a request and returns its number. It is sent whole or not at all.
    pub fn send(&self, call: Call) -> io::Result<u64> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        wire::send(&self.socket, &Request { id, call }, &[])?;
        Ok(id)
    }

    /// The next message; `None` when the shim has closed the connection.
    pub fn receive(&self) -> io::Result<Option<Received>> {
        Ok(wire::receive(&self.socket)?.map(|(message, descriptors)| Received { message, descriptors }))
    }

    /// Sends a request and waits for its answer, handing the events that come before it to `on_event`.
    /// For a blocking connection that nobody else reads from.
    pub fn call(
        &self,
        call: Call,
        mut on_event: impl FnMut(Message),
    ) -> Result<(Answer, Vec<OwnedFd>), CallError> {
        let wanted = self.send(call)?;
        loop {
            let Some(received) = self.receive()? else {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            };
            match received.message {
                Message::Reply { id, result } if id == wanted => return Ok((result?, received.descriptors)),
                other => on_event(other),
            }
        }
    }
}

impl From<Seqpacket> for ShimClient {
    fn from(socket: Seqpacket) -> Self {
        Self { socket, next_id: AtomicU64::new(1) }
    }
}

impl AsFd for ShimClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
