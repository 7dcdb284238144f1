//! JSON in sequenced packets. A packet must fit into the socket's buffer. A longer message travels
//! in a memory file, and the packet only announces it.

use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::{Serialize, de::DeserializeOwned};
use warren_sys::socket::Seqpacket;

/// The maximum length of a message inside a packet: well below the usual socket buffer of 208 KiB.
const INLINE_BYTES: usize = 64 << 10;

/// The maximum length of any message. The kernel accepts 2 MiB of arguments and environment by
/// default, so no valid message is longer.
const MAX_BYTES: u64 = 16 << 20;

/// The first byte of a packet whose message is in a memory file. JSON cannot begin with it.
const IN_MEMORY_FILE: u8 = b'@';

pub(crate) fn send(
    socket: &Seqpacket,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() <= INLINE_BYTES {
        return socket.send(&bytes, descriptors);
    }
    let mut file =
        std::fs::File::from(rustix::fs::memfd_create("warren-message", rustix::fs::MemfdFlags::CLOEXEC)?);
    file.write_all(&bytes)?;
    let mut all = vec![file.as_fd()];
    all.extend_from_slice(descriptors);
    socket.send(&[IN_MEMORY_FILE], &all)
}

/// Receives one message. Returns `None` at the end of the connection.
pub(crate) fn receive<T: DeserializeOwned>(socket: &Seqpacket) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let Some(mut packet) = socket.receive(INLINE_BYTES)? else { return Ok(None) };
    if packet.bytes != [IN_MEMORY_FILE] {
        return Ok(Some((serde_json::from_slice(&packet.bytes)?, packet.descriptors)));
    }
    if packet.descriptors.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a long message came without its memory file",
        ));
    }
    let mut file = std::fs::File::from(packet.descriptors.remove(0));
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(Some((serde_json::from_slice(&bytes)?, packet.descriptors)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_and_short_messages_arrive_alike() {
        let (left, right) = Seqpacket::pair().unwrap();
        for length in [0, 10, INLINE_BYTES - 2, INLINE_BYTES, 1 << 20] {
            let text = "x".repeat(length);
            send(&left, &text, &[left.as_fd()]).unwrap();
            let (received, descriptors) = receive::<String>(&right).unwrap().unwrap();
            assert!(received == text, "{length} bytes changed on the way");
            assert_eq!(descriptors.len(), 1);
        }
    }

    #[test]
    fn garbage_is_an_error() {
        let (left, right) = Seqpacket::pair().unwrap();
        for garbage in [&b"@"[..], b"{", b"\xff\xfe", b"@@"] {
            left.send(garbage, &[]).unwrap();
            assert!(receive::<String>(&right).is_err());
        }
    }
}
