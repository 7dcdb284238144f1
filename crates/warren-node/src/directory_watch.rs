//! Watches a directory by inotify, instead of polling it.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::readiness::watched;

/// A watch for files that are written or renamed in a directory.
#[derive(Debug)]
pub(crate) struct DirectoryWatch {
    descriptor: AsyncFd<OwnedFd>,
}

impl DirectoryWatch {
    pub(crate) fn new(directory: &Path) -> io::Result<DirectoryWatch> {
        let descriptor = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
        let events = inotify::WatchFlags::MODIFY | inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVE;
        inotify::add_watch(&descriptor, directory, events)?;
        Ok(DirectoryWatch { descriptor: watched(descriptor)? })
    }

    /// Waits for at least one event and consumes all pending ones. Cancel-safe.
    pub(crate) async fn event(&self) -> io::Result<()> {
        self.descriptor
            .async_io(Interest::READABLE, |descriptor| {
                let mut space = [MaybeUninit::uninit(); 4096];
                let mut events = inotify::Reader::new(descriptor, &mut space);
                events.next()?;
                Ok(())
            })
            .await
    }
}
