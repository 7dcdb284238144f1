//! Netlink: requests to the kernel's network code, and its answers.
//!
//! A message is a header, a fixed part that depends on its kind, and attributes (type, length,
//! value) that may nest. Numbers are in the machine's byte order unless a kind says otherwise.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

const HEADER: usize = 16;
const ALIGNMENT: usize = 4;
/// The maximum length of the kernel's answers: a page for one message, and up to 32 KiB for a list.
const LONGEST_ANSWER: usize = 64 << 10;

const DONE: u16 = 3;
const ERROR: u16 = 2;
/// Attribute types have two flags in their upper bits.
const NESTED: u16 = 1 << 15;
const TYPE_MASK: u16 = 0x3fff;

/// Flags of a message's header.
pub mod flags {
    /// This is a request. Set on all our messages.
    pub const REQUEST: u16 = 0x1;
    /// Answer on success too.
    pub const ACK: u16 = 0x4;
    /// Create it if it does not exist.
    pub const CREATE: u16 = 0x400;
    /// Fail if it exists.
    pub const EXCLUSIVE: u16 = 0x200;
    /// Replace the existing one.
    pub const REPLACE: u16 = 0x100;
    /// Add behind the others instead of in front.
    pub const APPEND: u16 = 0x800;
    /// List all.
    pub const DUMP: u16 = 0x300;
}

/// A message that is being built.
#[derive(Debug, Clone)]
pub struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// Starts a message of a kind, with its fixed part.
    pub fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | flags::REQUEST).to_ne_bytes());
        bytes.extend_from_slice(fixed);
        pad(&mut bytes);
        Self { bytes }
    }

    /// Adds an attribute with bytes.
    pub fn bytes(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let start = self.begin(kind);
        self.bytes.extend_from_slice(value);
        self.end(start);
        self
    }

    /// Adds an attribute with a zero-terminated text.
    pub fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        let start = self.begin(kind);
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
        self.end(start);
        self
    }

    /// Adds an attribute with a number in the machine's byte order.
    pub fn number(&mut self, kind: u16, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Adds an attribute with a number in network byte order.
    pub fn big_endian(&mut self, kind: u16, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Adds an attribute that contains others, and optionally a fixed part before them.
    pub fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.begin(kind | NESTED);
        fill(self);
        self.end(start);
        self
    }

    /// Adds bytes without a header: the fixed part of a nested attribute.
    pub fn raw(&mut self, value: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(value);
        pad(&mut self.bytes);
        self
    }

    /// Returns the current length. An attribute is limited to 64 KiB, so builders of lists must
    /// check.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns false: a message always has a header.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn begin(&mut self, kind: u16) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0, 0]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        start
    }

    fn end(&mut self, start: usize) {
        let length = u16::try_from(self.bytes.len() - start).unwrap_or(u16::MAX);
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        pad(&mut self.bytes);
    }

    fn finish(&self, sequence: u32, more_flags: u16, into: &mut Vec<u8>) {
        let start = into.len();
        into.extend_from_slice(&self.bytes);
        let length = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        into[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        let flags = u16::from_ne_bytes([self.bytes[6], self.bytes[7]]) | more_flags;
        into[start + 6..start + 8].copy_from_slice(&flags.to_ne_bytes());
        into[start + 8..start + 12].copy_from_slice(&sequence.to_ne_bytes());
    }
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
}

/// A message of the kernel.
#[derive(Debug, Clone)]
pub struct Received {
    /// The kind of the message.
    pub kind: u16,
    sequence: u32,
    /// The fixed part and the attributes.
    pub body: Vec<u8>,
}

impl Received {
    /// Returns the attribute of a kind, after a fixed part of `fixed` bytes.
    pub fn attribute(&self, fixed: usize, kind: u16) -> Option<&[u8]> {
        let mut rest = self.body.get(fixed.next_multiple_of(ALIGNMENT)..)?;
        while rest.len() >= 4 {
            let length = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
            let found = u16::from_ne_bytes([rest[2], rest[3]]) & TYPE_MASK;
            let value = rest.get(4..length)?;
            if found == kind {
                return Some(value);
            }
            rest = rest.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        }
        None
    }
}

/// A socket to one part of the kernel's network code. It belongs to the network namespace of its
/// creator.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Netlink {
    /// Opens a socket for devices, addresses and routes.
    pub fn route() -> io::Result<Self> {
        // Routes are protocol 0 of the family.
        Self::open(None)
    }

    /// Opens a socket for packet rules.
    pub fn netfilter() -> io::Result<Self> {
        Self::open(Some(netlink::NETFILTER))
    }

    /// Opens a socket for information about sockets.
    pub fn sockets() -> io::Result<Self> {
        Self::open(Some(netlink::SOCK_DIAG))
    }

    fn open(protocol: Option<rustix::net::Protocol>) -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends messages together and waits for all answers. Returns the first error. Later messages
    /// are executed even after an error.
    pub fn request(&mut self, messages: &[Message]) -> io::Result<()> {
        let first = self.sequence + 1;
        let mut packet = Vec::new();
        for message in messages {
            self.sequence += 1;
            message.finish(self.sequence, flags::ACK, &mut packet);
        }
        self.send(&packet)?;
        let mut outcome = Ok(());
        let mut open = messages.len();
        while open > 0 {
            for answer in self.receive()? {
                if answer.kind == ERROR && answer.sequence >= first {
                    open -= 1;
                    outcome = outcome.and(error_of(&answer));
                }
            }
        }
        outcome
    }

    /// Sends messages as a transaction, of which all or none are executed. `begin` and `end` mark
    /// its borders.
    pub fn transaction(&mut self, begin: &Message, messages: &[Message], end: &Message) -> io::Result<()> {
        let mut packet = Vec::new();
        self.sequence += 1;
        begin.finish(self.sequence, 0, &mut packet);
        for (index, message) in messages.iter().enumerate() {
            self.sequence += 1;
            // The kernel reports errors of any message, but success only once, by the last message.
            // An answer for each would not fit into the socket's buffer.
            let flags = if index + 1 == messages.len() { flags::ACK } else { 0 };
            message.finish(self.sequence, flags, &mut packet);
        }
        let last = self.sequence;
        self.sequence += 1;
        end.finish(self.sequence, 0, &mut packet);
        self.send(&packet)?;
        loop {
            for answer in self.receive()?.iter().filter(|answer| answer.kind == ERROR) {
                error_of(answer)?;
                if answer.sequence == last {
                    return Ok(());
                }
            }
        }
    }

    /// Requests all objects of a kind.
    pub fn dump(&mut self, message: &Message) -> io::Result<Vec<Received>> {
        self.sequence += 1;
        let mut packet = Vec::new();
        message.finish(self.sequence, flags::DUMP, &mut packet);
        self.send(&packet)?;
        let mut all = Vec::new();
        loop {
            for answer in self.receive()? {
                match answer.kind {
                    DONE => return Ok(all),
                    ERROR => error_of(&answer)?,
                    _ => all.push(answer),
                }
            }
        }
    }

    /// Requests one object. If it does not exist, that is an error.
    pub fn ask(&mut self, message: &Message) -> io::Result<Received> {
        self.sequence += 1;
        let mut packet = Vec::new();
        message.finish(self.sequence, 0, &mut packet);
        self.send(&packet)?;
        loop {
            for answer in self.receive()?.into_iter().filter(|it| it.sequence == self.sequence) {
                match answer.kind {
                    ERROR => error_of(&answer)?,
                    _ => return Ok(answer),
                }
            }
        }
    }

    fn send(&self, packet: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.socket, packet, SendFlags::empty())?;
        Ok(())
    }

    fn receive(&self) -> io::Result<Vec<Received>> {
        // The buffer is not zeroed: most answers are short, and in a freshly forked process each
        // touched page must be copied or allocated.
        let mut buffer = Vec::with_capacity(LONGEST_ANSWER);
        loop {
            match rustix::net::recv(&self.socket, spare_capacity(&mut buffer), RecvFlags::empty()) {
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut rest = &buffer[..];
        let mut answers = Vec::new();
        while let Some((header, _)) = rest.split_at_checked(HEADER) {
            let word =
                |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
            let length = word(0) as usize;
            let Some(body) = rest.get(HEADER..length) else { return Err(io::ErrorKind::InvalidData.into()) };
            answers.push(Received {
                kind: u16::from_ne_bytes([header[4], header[5]]),
                sequence: word(8),
                body: body.to_vec(),
            });
            rest = rest.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        }
        Ok(answers)
    }
}

/// Returns the error of an answer. An acknowledgement is an error with the number 0.
fn error_of(answer: &Received) -> io::Result<()> {
    let bytes = answer.body.get(..4).ok_or(io::ErrorKind::InvalidData)?;
    match i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) {
        0 => Ok(()),
        number => Err(io::Error::from_raw_os_error(-number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_found_again() {
        let mut message = Message::new(1, 0, &[7; 8]);
        message.text(3, "ab").nested(5, |inner| {
            inner.number(1, 9);
        });
        let mut packet = Vec::new();
        message.finish(1, flags::ACK, &mut packet);
        assert_eq!(packet.len() % ALIGNMENT, 0);
        let received = Received { kind: 1, sequence: 1, body: packet[HEADER..].to_vec() };
        assert_eq!(received.attribute(8, 3), Some(&b"ab\0"[..]));
        let mut inner = vec![8, 0, 1, 0];
        inner.extend_from_slice(&9_u32.to_ne_bytes());
        assert_eq!(received.attribute(8, 5), Some(&inner[..]));
        assert_eq!(received.attribute(8, 6), None);
    }

    #[test]
    fn a_cut_off_attribute_is_no_attribute() {
        let received = Received { kind: 1, sequence: 1, body: vec![200, 0, 3, 0, 1] };
        assert_eq!(received.attribute(0, 3), None);
    }
}
