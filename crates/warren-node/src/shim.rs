//! An asynchronous connection to a pod's shim. A pod's worker keeps one, and each exec has one of
//! its own.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use warren_oci::client::{CallError, ShimClient};
use warren_oci::protocol::{Answer, Call, Event, ExitStatus, Message, PodState};

use crate::readiness::{Steady, watched};

/// A connection to a shim. One owner sends a call, waits for its answer, and collects events
/// meanwhile.
#[derive(Debug)]
pub(crate) struct Shim {
    socket: AsyncFd<Socket>,
    /// The newest state that was received and not yet taken.
    news: Option<PodState>,
    /// Ends of execs that were received while waiting for something else.
    exits: Vec<(u64, ExitStatus)>,
}

/// A wrapper for Tokio, which wants the raw number.
#[derive(Debug)]
struct Socket(ShimClient);

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Steady for Socket {}

impl Shim {
    /// Connects to the shim of a pod. `NotFound` and `ConnectionRefused` mean that it has none.
    pub(crate) fn connect(pod_directory: &Path) -> io::Result<Shim> {
        Shim::over(ShimClient::connect(pod_directory)?)
    }

    /// Wraps an existing connection.
    pub(crate) fn over(client: ShimClient) -> io::Result<Shim> {
        client.set_nonblocking(true)?;
        Ok(Shim { socket: watched(Socket(client))?, news: None, exits: Vec::new() })
    }

    /// Sends a call and waits for the answer.
    pub(crate) async fn call(&mut self, call: Call) -> Result<(Answer, Vec<OwnedFd>), CallError> {
        let wanted = self.socket.async_io(Interest::WRITABLE, |socket| socket.0.send(call.clone())).await?;
        loop {
            let (message, descriptors) = self.receive().await?;
            match message {
                Message::Reply { id, result } if id == wanted => {
                    let answer = result?;
                    if matches!(answer, Answer::State { .. }) {
                        // An earlier state is older than this answer.
                        self.news = None;
                    }
                    return Ok((answer, descriptors));
                }
                other => self.note(other),
            }
        }
    }

    /// Asks for the present state and subscribes to later ones.
    pub(crate) async fn subscribe(&mut self) -> Result<PodState, CallError> {
        match self.call(Call::Subscribe).await? {
            (Answer::State { state }, _) => Ok(state),
            _ => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
        }
    }

    /// Returns the next state of the pod. Cancel-safe.
    pub(crate) async fn next_state(&mut self) -> io::Result<PodState> {
        loop {
            if let Some(state) = self.news.take() {
                return Ok(state);
            }
            let (message, _) = self.receive().await?;
            self.note(message);
        }
    }

    /// Returns the exit status of a process started over this connection. Cancel-safe.
    pub(crate) async fn exec_exit(&mut self, exec: u64) -> io::Result<ExitStatus> {
        loop {
            if let Some(index) = self.exits.iter().position(|(ended, _)| *ended == exec) {
                return Ok(self.exits.swap_remove(index).1);
            }
            let (message, _) = self.receive().await?;
            self.note(message);
        }
    }

    /// Sends a call without waiting for its answer, for moments when waiting is not possible. A
    /// full socket drops it.
    pub(crate) fn tell(&self, call: Call) -> io::Result<()> {
        self.socket.get_ref().0.send(call).map(drop)
    }

    async fn receive(&self) -> io::Result<(Message, Vec<OwnedFd>)> {
        let received = self.socket.async_io(Interest::READABLE, |socket| socket.0.receive()).await?;
        let received = received.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        Ok((received.message, received.descriptors))
    }

    fn note(&mut self, message: Message) {
        match message {
            Message::Event(Event::State { state }) => self.news = Some(state),
            Message::Event(Event::ExecExited { exec, exit }) => self.exits.push((exec, exit)),
            // The answer to a cancelled call.
            Message::Reply { .. } => {}
        }
    }
}
