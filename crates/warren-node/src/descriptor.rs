//! Wraps pipes and terminals of processes in a container as asynchronous streams.

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
        // Our end has its own file description: O_NONBLOCK on it does not affect the other end of a
        // pipe.
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        Ok(Descriptor { inner: watched(descriptor)? })
    }

    /// Returns another handle of the same stream, for a terminal, whose two directions share one
    /// descriptor.
    pub(crate) fn try_clone(&self) -> io::Result<Descriptor> {
        Descriptor::new(self.inner.get_ref().try_clone()?)
    }

    /// Reads available bytes; 0 at the end. Cancel-safe.
    pub(crate) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self
            .inner
            .async_io(Interest::READABLE, |descriptor| Ok(rustix::io::read(descriptor, &mut *buffer)?))
            .await;
        match read {
            // A terminal reports EIO when its other side is closed.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => Ok(0),
            other => other,
        }
    }

    /// Returns the number of bytes that can be read.
    pub(crate) fn waiting(&self) -> usize {
        let waiting = rustix::io::ioctl_fionread(self.inner.get_ref().as_fd()).unwrap_or(0);
        usize::try_from(waiting).unwrap_or(usize::MAX)
    }

    /// Writes a part of the data and returns its length.
    pub(crate) async fn write(&self, data: &[u8]) -> io::Result<usize> {
        self.inner.async_io(Interest::WRITABLE, |descriptor| Ok(rustix::io::write(descriptor, data)?)).await
    }
}
