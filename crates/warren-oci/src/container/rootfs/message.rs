//! The termination message of a container. The container sees a file in memory, so that it can
//! write no more than a page, and nothing to disk.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use warren_sys::mount::{self, Attributes, FsOption};

use super::Layers;
use crate::idmap::IdRange;
use crate::kernel::Layering;

/// The maximum length of a message that is kept, in bytes. The number is kubelet's.
const LONGEST: usize = 4096;

#[derive(Debug)]
pub(crate) struct Message {
    file: File,
    kept_at: PathBuf,
}

impl Message {
    /// Makes the file, writable for every user of the container, and a detached mount of it.
    pub(super) fn make(kept_at: PathBuf, ids: IdRange, layers: &Layers<'_>) -> io::Result<(Self, OwnedFd)> {
        let size = LONGEST.to_string();
        // One inode is for the directory and one for the file.
        let options = [FsOption::Text("size", &size), FsOption::Text("nr_inodes", "2")];
        let memory = mount::new_file_system("tmpfs", &options, Attributes::NO_SUID_NO_DEV_NO_EXEC)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&memory, "message", flags, Mode::empty())?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o666))?;
        std::os::unix::fs::fchown(&file, Some(ids.first), Some(ids.first))?;
        let copy = match layers.layering {
            Layering::Detached => mount::copy_mount_of(file.as_fd(), false)?,
            // Only attached mounts can be copied. The mount namespace belongs to this process
            // alone.
            Layering::Attached => {
                mount::attach(memory.as_fd(), layers.place)?;
                let copy = mount::copy_mount_of(file.as_fd(), false);
                mount::detach(memory.as_fd())?;
                copy?
            }
        };
        Ok((Self { file: file.into(), kept_at }, copy))
    }

    /// Stores the message, if there is one. The caller only reports errors: the container's end
    /// matters more.
    pub(crate) fn keep(&self) -> io::Result<()> {
        let mut text = [0; LONGEST];
        let mut length = 0;
        while length < LONGEST {
            match self.file.read_at(&mut text[length..], length as u64) {
                Ok(0) => break,
                Ok(read) => length += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if length == 0 {
            return Ok(());
        }
        if let Some(parent) = self.kept_at.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&self.kept_at, &text[..length])
    }
}

/// Stores all messages of a container that has ended.
pub(crate) fn keep_all(messages: &[Message]) {
    for message in messages {
        if let Err(error) = message.keep() {
            complain!("warren: shim: keep {}: {error}", message.kept_at.display());
        }
    }
}
