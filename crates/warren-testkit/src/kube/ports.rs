//! Ports for components that cannot be handed a socket, only a number.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// A port of the kernel's choosing, kept from others until the component is about to take it.
pub(crate) struct ReservedPort {
    pub(crate) number: u16,
    listener: TcpListener,
}

impl ReservedPort {
    pub(crate) fn choose() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        Ok(Self { number: listener.local_addr()?.port(), listener })
    }

    /// Gives the port up for the component. Somebody may be faster; then the component says
    /// [`ADDRESS_IN_USE`] and ends.
    pub(crate) fn release(self) -> SocketAddr {
        drop(self.listener);
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}

/// What a program written in Go says when somebody else has its port.
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
