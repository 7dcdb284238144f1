//! Clients that see a container's output beside its log, and write to its input.
//!
//! Each client has its own pipes. If a client does not read, its full pipe blocks the container,
//! like a terminal that does not scroll, so its view has no gaps. It blocks nothing else, and the
//! process that serves the client disconnects it in the end.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use rustix::pipe::PipeFlags;

use super::clients::Asker;
use super::log::Stream;
use super::{Shim, serve};
use crate::protocol::{Answer, ContainerStatus, Refusal};
use crate::spec::StandardInput;

#[derive(Debug, Default)]
pub(super) struct Attachments {
    all: Vec<Attachment>,
    next: u64,
}

#[derive(Debug)]
struct Attachment {
    number: u64,
    client: u64,
    container: String,
    /// True if it may write to the container's input.
    has_input: bool,
    /// Indexed by stream.
    outlets: [Option<Outlet>; 2],
}

/// The destination of a stream's bytes.
#[derive(Debug)]
struct Outlet {
    pipe: OwnedFd,
    unsent: VecDeque<u8>,
    /// True if the stream has ended. The pipe is closed once all is sent.
    ended: bool,
}

impl Outlet {
    /// Sends as much as possible. Returns false when the outlet is finished.
    fn flush(&mut self) -> bool {
        while !self.unsent.is_empty() {
            match rustix::io::write(&self.pipe, self.unsent.as_slices().0) {
                Ok(written) => drop(self.unsent.drain(..written)),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        !self.ended
    }
}

impl Attachments {
    /// Adds a client and returns its ends of the pipes.
    fn add(
        &mut self,
        client: u64,
        container: &str,
        has_input: bool,
        streams: usize,
    ) -> io::Result<Vec<OwnedFd>> {
        let mut outlets = [None, None];
        let mut ends = Vec::new();
        for outlet in outlets.iter_mut().take(streams) {
            let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            rustix::io::ioctl_fionbio(&writer, true)?;
            ends.push(reader);
            *outlet = Some(Outlet { pipe: writer, unsent: VecDeque::new(), ended: false });
        }
        self.next += 1;
        let container = container.to_owned();
        self.all.push(Attachment { number: self.next, client, container, has_input, outlets });
        Ok(ends)
    }

    /// Sends output to the attached clients. Returns false if one of them must read before more is
    /// read from the container.
    pub(super) fn show(&mut self, container: &str, stream: Stream, bytes: &[u8]) -> bool {
        let mut room = true;
        for attachment in self.all.iter_mut().filter(|attachment| attachment.container == container) {
            let slot = &mut attachment.outlets[stream as usize];
            if let Some(outlet) = slot {
                outlet.unsent.extend(bytes);
                if outlet.flush() {
                    room &= outlet.unsent.is_empty();
                } else {
                    *slot = None;
                }
            }
        }
        room
    }

    /// Returns true if a client has not read the output of a stream yet.
    pub(super) fn hold_up(&self, container: &str, stream: Stream) -> bool {
        let attached = self.all.iter().filter(|attachment| attachment.container == container);
        attached
            .filter_map(|attachment| attachment.outlets[stream as usize].as_ref())
            .any(|outlet| !outlet.unsent.is_empty())
    }

    /// Ends a container's stream.
    pub(super) fn end(&mut self, container: &str, stream: Stream) {
        for attachment in self.all.iter_mut().filter(|attachment| attachment.container == container) {
            let slot = &mut attachment.outlets[stream as usize];
            if let Some(outlet) = slot {
                outlet.ended = true;
                if !outlet.flush() {
                    *slot = None;
                }
            }
        }
    }

    /// Returns the pipes to wait for.
    pub(super) fn full_pipes(&self) -> impl Iterator<Item = (u64, Stream, &OwnedFd)> {
        self.all.iter().flat_map(|attachment| {
            [Stream::Stdout, Stream::Stderr].into_iter().filter_map(move |stream| {
                let outlet = attachment.outlets[stream as usize].as_ref()?;
                (!outlet.unsent.is_empty()).then_some((attachment.number, stream, &outlet.pipe))
            })
        })
    }

    /// Sends the rest to a pipe that has space again.
    pub(super) fn flush(&mut self, number: u64, stream: Stream) {
        for attachment in self.all.iter_mut().filter(|attachment| attachment.number == number) {
            let slot = &mut attachment.outlets[stream as usize];
            if slot.as_mut().is_some_and(|outlet| !outlet.flush()) {
                *slot = None;
            }
        }
    }

    /// Removes disconnected clients, and returns the containers whose input they had.
    fn drop_gone(&mut self, is_here: impl Fn(u64) -> bool) -> Vec<String> {
        let gone = self.all.extract_if(.., |attachment| !is_here(attachment.client));
        gone.filter(|attachment| attachment.has_input).map(|attachment| attachment.container).collect()
    }
}

impl Shim {
    pub(super) fn attach(
        &mut self,
        asker: Asker,
        name: &str,
        wants_input: bool,
    ) -> Result<Option<Answer>, Refusal> {
        let guest = self.guests.get(name);
        let running = guest.filter(|guest| matches!(guest.status, ContainerStatus::Running { .. }));
        let Some(container) = running.and_then(|guest| guest.container.as_ref()) else {
            return Err(serve::invalid(format!("container `{name}` is not running")));
        };
        let failed = serve::failed("attach");
        let mut descriptors = Vec::new();
        let input = container.streams.stdin.as_ref().filter(|_| wants_input);
        if let Some(input) = input {
            descriptors.push(input.try_clone().map_err(&failed)?);
        }
        let (stdin, terminal) = (!descriptors.is_empty(), container.spec.process.terminal);
        let streams = if terminal { 1 } else { 2 };
        descriptors.extend(self.attachments.add(asker.client, name, stdin, streams).map_err(&failed)?);
        for (stream, open) in [
            (Stream::Stdout, container.streams.stdout.is_some()),
            (Stream::Stderr, container.streams.stderr.is_some()),
        ] {
            if !open {
                self.attachments.end(name, stream);
            }
        }
        self.clients.reply(asker, Ok(Answer::Attached { stdin, terminal }), descriptors);
        Ok(None)
    }

    /// Ends a client's input. If the container's input is for one client, the container sees the
    /// end.
    pub(super) fn end_input(&mut self, name: &str) {
        let container = self.guests.get_mut(name).and_then(|guest| guest.container.as_mut());
        if let Some(container) = container
            && container.spec.process.stdin == StandardInput::Once
            // The input of a terminal ends with a character that its user types.
            && !container.spec.process.terminal
        {
            container.streams.stdin = None;
        }
    }

    pub(super) fn drop_detached(&mut self) {
        let clients = &self.clients;
        let gone = self.attachments.drop_gone(|client| clients.is_here(client));
        for name in gone {
            self.end_input(&name);
        }
    }
}
