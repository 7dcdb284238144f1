//! Finds the user who owns the other end of a TCP connection on this machine, by `sock_diag`.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::netlink::{Message, Netlink};

/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
const TCP: u8 = 6;
const FAMILY_4: u8 = 2;
const FAMILY_6: u8 = 10;
/// The offsets of the user and the inode in `struct inet_diag_msg`.
const USER: usize = 64;
const INODE: usize = 68;

/// Returns the user who owns the TCP socket with the local address `own` and the remote address
/// `other`. Network namespace and user ids are those of the caller. Returns `None` if there is no
/// such socket, or no process holds it any more.
///
/// For the client of an accepted connection, `own` is the peer's address and `other` the
/// listener's. A user of another user namespace without an id in ours is reported as the overflow
/// user (65534).
pub fn socket_owner(own: SocketAddr, other: SocketAddr) -> io::Result<Option<u32>> {
    let mut netlink = Netlink::sockets()?;
    let answer = match netlink.ask(&Message::new(BY_FAMILY, 0, &request(own, other))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        answer => answer?,
    };
    let word = |at: usize| {
        let bytes = answer.body.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_ne_bytes(bytes))
    };
    let (Some(user), Some(inode)) = (word(USER), word(INODE)) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    // Closed sockets (such as in TIME_WAIT) have no inode and are reported as root's.
    Ok((inode != 0).then_some(user))
}

/// Builds a `struct inet_diag_req_v2`.
fn request(own: SocketAddr, other: SocketAddr) -> Vec<u8> {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&address.octets());
            octets
        }
        IpAddr::V6(address) => address.octets(),
    };
    let family = if own.is_ipv4() { FAMILY_4 } else { FAMILY_6 };
    let mut bytes = vec![family, TCP, 0, 0];
    // Sockets in any state.
    bytes.extend_from_slice(&u32::MAX.to_ne_bytes());
    bytes.extend_from_slice(&own.port().to_be_bytes());
    bytes.extend_from_slice(&other.port().to_be_bytes());
    bytes.extend_from_slice(&octets(own.ip()));
    bytes.extend_from_slice(&octets(other.ip()));
    // Any device, and no cookie.
    bytes.extend_from_slice(&0_u32.to_ne_bytes());
    bytes.extend_from_slice(&u64::MAX.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_owner_of_a_connection_is_found_until_it_is_closed() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let here = listener.local_addr().unwrap();
            let client = TcpStream::connect(here).unwrap();
            let (accepted, peer) = listener.accept().unwrap();
            let user = rustix::process::geteuid().as_raw();
            assert_eq!(socket_owner(peer, here).unwrap(), Some(user), "{address}");
            drop(client);
            assert_eq!(socket_owner(peer, here).unwrap(), None, "{address}");
            drop(accepted);
        }
    }
}
