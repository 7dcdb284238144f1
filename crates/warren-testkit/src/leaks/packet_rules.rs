//! Lists the kernel's tables of packet rules by netlink. The tool for it, `nft`, is not on every
//! machine.

use std::io;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

const HEADER: usize = 16;
/// The length of `struct nfgenmsg`: family, version, and a number that lists do not use.
const FIXED: usize = 4;
const LONGEST_ANSWER: usize = 64 << 10;

/// The subsystem of tables is the upper byte, the kind of message the lower.
const TABLE: u16 = 10 << 8;
const GET_TABLES: u16 = TABLE | 1;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// A request for all objects.
const FLAGS: u16 = 0x1 | 0x300;
const NAME: u16 = 1;

/// Returns the names of all tables in the calling thread's network namespace. Returns none if the
/// kernel has no tables or refuses to list them: then none can be ours.
pub(super) fn tables() -> io::Result<Vec<String>> {
    let opened = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::NETFILTER),
    );
    let Ok(socket) = opened else { return Ok(Vec::new()) };
    let mut request = Vec::with_capacity(HEADER + FIXED);
    request.extend_from_slice(&((HEADER + FIXED) as u32).to_ne_bytes());
    request.extend_from_slice(&GET_TABLES.to_ne_bytes());
    request.extend_from_slice(&FLAGS.to_ne_bytes());
    request.resize(HEADER + FIXED, 0);
    rustix::net::sendto(&socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut names = Vec::new();
    let mut buffer = vec![0_u8; LONGEST_ANSWER];
    loop {
        let (length, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        let mut rest = &buffer[..length];
        while let Some((kind, body, next)) = split_message(rest) {
            match kind {
                DONE | ERROR => return Ok(names),
                TABLE => names.extend(name(body)),
                _ => {}
            }
            rest = next;
        }
    }
}

/// Splits off the first of several messages: returns its kind, its body, and the other messages.
fn split_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes([*bytes.get(4)?, *bytes.get(5)?]);
    let body = bytes.get(HEADER..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// Returns the name among a table's attributes.
fn name(body: &[u8]) -> Option<String> {
    let mut rest = body.get(FIXED..)?;
    loop {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes([*rest.get(2)?, *rest.get(3)?]);
        let value = rest.get(4..length)?;
        if kind == NAME {
            return Some(String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into_owned());
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tables_name_is_read_from_what_the_kernel_sends() {
        // The answer for `table inet example`: a number (type 2) before the name (type 1).
        let attributes = [8, 0, 2, 0, 0, 0, 0, 0, 12, 0, 1, 0, b'e', b'x', b'a', b'm', b'p', b'l', b'e', 0];
        let mut message = Vec::new();
        message.extend_from_slice(&((HEADER + FIXED + attributes.len()) as u32).to_ne_bytes());
        message.extend_from_slice(&TABLE.to_ne_bytes());
        message.resize(HEADER + FIXED, 0);
        message.extend_from_slice(&attributes);
        let (kind, body, rest) = split_message(&message).expect("a message");
        assert_eq!((kind, rest), (TABLE, &[][..]));
        assert_eq!(name(body).as_deref(), Some("example"));
        assert_eq!(split_message(&message[..20]), None);
        tables().expect("ask this machine's kernel");
    }
}
