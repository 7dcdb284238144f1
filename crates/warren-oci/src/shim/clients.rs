//! The shim's connections. A slow client gets its replies later, and only the newest state. A
//! client with too many unsent messages is disconnected. No client can block the shim.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use warren_sys::socket::Seqpacket;

use crate::protocol::{Answer, Event, Message, PodState, Refusal, Request};
use crate::wire;

/// The maximum number of unsent messages of one client.
const MAX_UNSENT: usize = 1024;

/// A connection. Its number is never reused, so that an answer cannot reach a later client.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) number: u64,
    socket: Seqpacket,
    unsent: VecDeque<(Message, Vec<OwnedFd>)>,
    subscribed: bool,
    state_is_stale: bool,
    gone: bool,
}

impl Client {
    fn new(number: u64, socket: Seqpacket) -> Self {
        Self {
            number,
            socket,
            unsent: VecDeque::new(),
            subscribed: false,
            state_is_stale: false,
            gone: false,
        }
    }

    pub(super) fn wants_to_write(&self) -> bool {
        !self.unsent.is_empty() || self.state_is_stale
    }

    /// Returns the next request, if one has arrived.
    pub(super) fn receive(&mut self) -> Option<Request> {
        match wire::receive::<Request>(&self.socket) {
            Ok(Some((request, _descriptors))) => Some(request),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Ok(None) | Err(_) => {
                self.gone = true;
                None
            }
        }
    }

    fn push(&mut self, message: Message, descriptors: Vec<OwnedFd>) {
        if self.unsent.len() >= MAX_UNSENT {
            self.gone = true;
        } else {
            self.unsent.push_back((message, descriptors));
        }
    }

    pub(super) fn flush(&mut self, state: &PodState) {
        while !self.gone {
            if self.unsent.is_empty() && self.state_is_stale {
                self.state_is_stale = false;
                let event = Event::State { state: state.clone() };
                self.unsent.push_back((Message::Event(event), Vec::new()));
            }
            let Some((message, descriptors)) = self.unsent.front() else { return };
            let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
            match wire::send(&self.socket, message, &borrowed) {
                Ok(()) => {
                    self.unsent.pop_front();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.gone = true,
            }
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[derive(Debug, Default)]
pub(super) struct Clients {
    pub(super) all: Vec<Client>,
    next: u64,
}

impl Clients {
    pub(super) fn add(&mut self, socket: Seqpacket) {
        self.next += 1;
        self.all.push(Client::new(self.next, socket));
    }

    pub(super) fn drop_gone(&mut self) {
        self.all.retain(|client| !client.gone);
    }

    pub(super) fn is_here(&self, number: u64) -> bool {
        self.all.iter().any(|client| client.number == number)
    }

    fn find(&mut self, number: u64) -> Option<&mut Client> {
        self.all.iter_mut().find(|client| client.number == number)
    }

    pub(super) fn subscribe(&mut self, number: u64) {
        if let Some(client) = self.find(number) {
            client.subscribed = true;
        }
    }

    pub(super) fn reply(&mut self, to: Asker, result: Result<Answer, Refusal>, descriptors: Vec<OwnedFd>) {
        if let Some(client) = self.find(to.client) {
            client.push(Message::Reply { id: to.request, result }, descriptors);
        }
    }

    pub(super) fn tell(&mut self, client: u64, event: Event) {
        if let Some(client) = self.find(client) {
            client.push(Message::Event(event), Vec::new());
        }
    }

    /// Marks the state as changed. Every subscriber gets the newest state as soon as possible.
    pub(super) fn state_changed(&mut self) {
        for client in self.all.iter_mut().filter(|client| client.subscribed) {
            client.state_is_stale = true;
        }
    }

    pub(super) fn flush(&mut self, state: &PodState) {
        for client in &mut self.all {
            client.flush(state);
        }
        self.drop_gone();
    }
}

/// The sender of a request: the client and the number of the request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asker {
    pub(super) client: u64,
    pub(super) request: u64,
}
