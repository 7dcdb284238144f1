//! Ports for components that take a port number and not a socket.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// A free port, reserved until just before the component takes it.
pub(crate) struct ReservedPort {
    pub(crate) number: u16,
    listener: TcpListener,
}

impl ReservedPort {
    pub(crate) fn choose() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        Ok(Self { number: listener.local_addr()?.port(), listener })
    }

    /// Releases the port for the component. If another process takes it first, the component prints
    /// [`ADDRESS_IN_USE`] and ends.
    pub(crate) fn release(self) -> SocketAddr {
        drop(self.listener);
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}

/// The message of a Go program whose port is taken.
pub(crate) const ADDRESS_IN_USE: &str = "bind: address already in use";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_ports_differ_and_are_free_afterwards() {
        let (first, second) = (ReservedPort::choose().unwrap(), ReservedPort::choose().unwrap());
        assert_ne!(first.number, second.number);
        TcpListener::bind(first.release()).unwrap();
    }
}
