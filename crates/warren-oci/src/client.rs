//! The daemon's end of a shim's socket. It is blocking by default. A caller with an event loop
//! makes it non-blocking, waits for the descriptor, and calls the same two functions.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use warren_sys::socket::Seqpacket;

use crate::protocol::{Answer, Call, Message, Refusal, Request};
use crate::wire;

/// Returns the path of a shim's socket.
pub fn socket_path(pod_directory: &Path) -> PathBuf {
    pod_directory.join("shim.sock")
}

/// A connection to a shim. Sending and receiving take `&self`, so that one task can read while
/// others write.
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

/// A request without an answer, or with a refusal.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The shim refused the request.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The connection failed, or the shim is gone.
    #[error("talk to the pod's shim")]
    Connection(#[from] io::Error),
}

impl ShimClient {
    /// Connects to the shim of the pod in `pod_directory`. `NotFound` or `ConnectionRefused` means
    /// that the pod has none.
    pub fn connect(pod_directory: &Path) -> io::Result<Self> {
        Seqpacket::connect(&socket_path(pod_directory)).map(Self::from)
    }

    /// Sets non-blocking mode: [`Self::send`] and [`Self::receive`] then return `WouldBlock`
    /// instead of waiting.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.socket.set_nonblocking(nonblocking)
    }

    /// Sends a request and returns its number. The request is sent completely or not at all.
    pub fn send(&self, call: Call) -> io::Result<u64> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        wire::send(&self.socket, &Request { id, call }, &[])?;
        Ok(id)
    }

    /// Receives the next message. Returns `None` when the shim has closed the connection.
    pub fn receive(&self) -> io::Result<Option<Received>> {
        Ok(wire::receive(&self.socket)?.map(|(message, descriptors)| Received { message, descriptors }))
    }

    /// Sends a request and waits for its answer. Earlier events go to `on_event`. The connection
    /// must be blocking and have no other reader.
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
