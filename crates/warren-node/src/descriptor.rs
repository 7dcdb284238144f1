//! Pipes and terminals of processes in a container, as asynchronous streams.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::readiness::watched;

/// One end of a pipe, or the master of a terminal.
#[derive(Debug)]
pub(crate) struct Descriptor {
    inner: AsyncFd<OwnedFd>,
}

impl Descriptor {
    pub(crate) fn new(descriptor: OwnedFd) -> io::Result<Descriptor> {
        // Our end is ours alone: O_NONBLOCK on it does not reach the other end of a pipe.
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        Ok(Descriptor { inner: watched(descriptor)? })
    }

    /// Another handle of the same stream, for a terminal, whose two directions have one descriptor.
    pub(crate) fn try_clone(&self) -> io::Result<Descriptor> {
        Descriptor::new(self.inner.get_ref().try_clone()?)
    }

    /// Reads what is there; 0 at the end. Safe to drop and call again.
    pub(crate) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self
            .inner
            .async_io(Interest::READABLE, |descriptor| Ok(rustix::io::read(descriptor, &mut *buffer)?))
            .await;
        match read {
            // How a terminal says that nobody has its other side any more.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => Ok(0),
            other => other,
        }
    }

    /// How many bytes wait to be read.
    pub(crate) fn waiting(&self) -> usize {
        let waiting = rustix::io::ioctl_fionread(self.inner.get_ref().as_fd()).unwrap_or(0);
        usize::try_from(waiting).unwrap_or(usize::MAX)
    }

    /// Writes some of it.
    pub(crate) async fn write(&self, data: &[u8]) -> io::Result<usize> {
        self.inner.async_io(Interest::WRITABLE, |descriptor| Ok(rustix::io::write(descriptor, data)?)).await
    }
}
