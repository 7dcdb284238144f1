//! Sequenced-packet unix sockets that carry file descriptors.
//!
//! `SOCK_SEQPACKET` preserves message boundaries, so a reader never sees half a message and needs
//! no framing. Several processes may write to one socket without mixing their messages.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// The maximum number of descriptors in one message (`SCM_MAX_FD`).
pub const MAX_DESCRIPTORS: usize = 253;

/// A connected `SOCK_SEQPACKET` socket.
#[derive(Debug)]
pub struct Seqpacket(OwnedFd);

/// One received message.
#[derive(Debug)]
pub struct Packet {
    /// The complete bytes. A message longer than the reader's limit is an error.
    pub bytes: Vec<u8>,
    /// The descriptors of the message, close-on-exec.
    pub descriptors: Vec<OwnedFd>,
}

impl Seqpacket {
    /// Makes two connected ends.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (left, right) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(left), Self(right)))
    }

    /// Connects to a listener at `path`.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        with_short_path(path, |short| {
            let address = SocketAddrUnix::new(short)?;
            rustix::net::connect(&socket, &address)
        })?;
        Ok(Self(socket))
    }

    /// Switches between waiting and returning `WouldBlock`.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(&self.0, nonblocking)?)
    }

    /// Sends one message with its descriptors, completely or not at all.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one message"));
        }
        loop {
            match rustix::net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives one message of at most `limit` bytes. Returns `None` when the peer has closed its
    /// end.
    pub fn receive(&self, limit: usize) -> io::Result<Option<Packet>> {
        let mut bytes = vec![0; self.next_length()?.min(limit)];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut slices = [IoSliceMut::new(&mut bytes)];
            match rustix::net::recvmsg(&self.0, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => break received,
                Err(rustix::io::Errno::INTR) => continue,
                // A peer that died with unread messages in its queue resets the connection. Treat
                // that as the end too.
                Err(rustix::io::Errno::CONNRESET) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "message is longer than the receiver allows",
            ));
        }
        if received.bytes == 0 && descriptors.is_empty() {
            return Ok(None);
        }
        bytes.truncate(received.bytes);
        Ok(Some(Packet { bytes, descriptors }))
    }

    /// Returns the length of the next message, or 0 when the peer has closed its end. This costs
    /// less than a buffer for the longest message: in a freshly forked process each touched page
    /// must be copied or allocated.
    fn next_length(&self) -> io::Result<usize> {
        loop {
            match rustix::net::recv(&self.0, &mut [0u8; 0][..], RecvFlags::PEEK | RecvFlags::TRUNC) {
                Ok((_, length)) => return Ok(length),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::CONNRESET) => return Ok(0),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Seqpacket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Seqpacket {
    fn from(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl From<Seqpacket> for OwnedFd {
    fn from(socket: Seqpacket) -> Self {
        socket.0
    }
}

/// A listening `SOCK_SEQPACKET` socket in the file system. Accepting never blocks.
#[derive(Debug)]
pub struct SeqpacketListener(OwnedFd);

impl SeqpacketListener {
    /// Listens at `path`, to which only the owner may connect. An old socket file is replaced.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // A bound socket's inode gets the mode of the descriptor, without the umask's bits.
        rustix::fs::fchmod(&socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
        with_short_path(path, |short| {
            let address = SocketAddrUnix::new(short)?;
            rustix::net::bind(&socket, &address)
        })?;
        rustix::net::listen(&socket, 64)?;
        Ok(Self(socket))
    }

    /// Accepts the next waiting connection, if any. It is non-blocking.
    pub fn accept(&self) -> io::Result<Option<Seqpacket>> {
        match rustix::net::accept_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(descriptor) => Ok(Some(Seqpacket(descriptor))),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for SeqpacketListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Calls `act` with a short form of a path. A socket address holds 108 bytes, and the path of a
/// data directory may be longer. Long paths go through a descriptor of their directory in
/// `/proc/self/fd`.
fn with_short_path(path: &Path, act: impl FnOnce(&Path) -> rustix::io::Result<()>) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;
    if path.as_os_str().as_bytes().len() < 100 {
        return Ok(act(path)?);
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "socket path has no file name"));
    };
    let directory = rustix::fs::open(
        parent,
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    let short = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
    Ok(act(&short)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};

    #[test]
    fn descriptors_travel_with_their_message() {
        let (left, right) = Seqpacket::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"inside").unwrap();
        file.rewind().unwrap();
        left.send(b"one", &[file.as_fd()]).unwrap();
        left.send(b"two", &[]).unwrap();
        let packet = right.receive(64).unwrap().unwrap();
        assert_eq!(packet.bytes, b"one");
        let mut text = String::new();
        std::fs::File::from(packet.descriptors.into_iter().next().unwrap())
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "inside");
        assert_eq!(right.receive(64).unwrap().unwrap().bytes, b"two");
        drop(left);
        assert!(right.receive(64).unwrap().is_none());
    }

    #[test]
    fn a_message_longer_than_allowed_is_an_error_not_a_cut_message() {
        let (left, right) = Seqpacket::pair().unwrap();
        left.send(b"0123456789", &[]).unwrap();
        assert_eq!(right.receive(4).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_path_longer_than_an_address_works() {
        let directory = tempfile::tempdir().unwrap();
        let deep = directory.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let path = deep.join("socket");
        let listener = SeqpacketListener::bind(&path).unwrap();
        let client = Seqpacket::connect(&path).unwrap();
        client.send(b"hello", &[]).unwrap();
        let server = listener.accept().unwrap().unwrap();
        assert_eq!(server.receive(64).unwrap().unwrap().bytes, b"hello");
    }
}
