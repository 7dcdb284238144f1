//! Registers descriptors in the event loop.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use tokio::io::unix::AsyncFd;

/// Types that own one descriptor and keep it open and unchanged until they are dropped.
pub(crate) trait Steady: AsRawFd {}

impl Steady for OwnedFd {}

/// Registers a descriptor in the event loop.
#[expect(
    deprecated,
    reason = "its successor is unsafe, which is for warren-sys alone; what this one leaves unproven is what `Steady` says"
)]
pub(crate) fn watched<T: Steady>(descriptor: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::new(descriptor)
}
