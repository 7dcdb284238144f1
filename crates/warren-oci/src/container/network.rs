//! Sockets in the pod's network.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::PodNamespaces;

impl PodNamespaces {
    /// Makes a TCP socket in the pod's network namespace, for the caller to connect. A socket stays
    /// in the network that it was made in.
    pub(crate) fn socket(&mut self, version_6: bool) -> io::Result<OwnedFd> {
        let family = if version_6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        self.inside_network(|| Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?))
    }

    /// Returns the listening sockets for the program of [`crate::protocol::Activation`], once the
    /// pod has its network.
    pub(crate) fn activation(&self) -> &[OwnedFd] {
        &self.listeners.activation
    }

    /// Takes over the pod's network from the process that makes it, so that its sockets can be
    /// watched. Waits until that is done.
    pub(crate) fn take_over_network(&mut self) -> io::Result<()> {
        self.complete().map(drop)
    }

    /// Returns the socket on which programs in the pod reach the proxy, for the caller to accept
    /// from. It listens in the pod's network.
    pub(crate) fn egress_listener(&mut self) -> io::Result<OwnedFd> {
        self.complete()?;
        let egress_listener = self.listeners.egress_listener.as_ref();
        egress_listener
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the pod has none"))?
            .try_clone()
    }
}
