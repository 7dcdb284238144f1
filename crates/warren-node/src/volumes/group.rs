//! Gives a volume that outlives pods to a pod's `fsGroup`.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags};

/// The deepest nesting of directories; a hostile pod may have made more than a stack can take.
const DEEPEST: usize = 256;

/// Gives everything below `path` to the group, readable and writable for it, with setgid
/// directories. The content is hostile: nothing is found by a path that a pod could change
/// meanwhile, and no link is followed.
pub(super) fn hand_over(path: &Path, group: u32) -> io::Result<()> {
    let top = rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    give(top.as_fd(), group, true)?;
    descend(&top, group, 0)
}

fn descend(directory: &OwnedFd, group: u32, depth: usize) -> io::Result<()> {
    if depth > DEEPEST {
        return Err(io::Error::other("directories lie too deep in each other"));
    }
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
            // Deleted meanwhile.
            Err(rustix::io::Errno::NOENT) => continue,
            other => other?,
        };
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode);
        if kind == FileType::Symlink {
            continue;
        }
        give(found.as_fd(), group, kind.is_dir())?;
        if kind.is_dir() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            descend(&rustix::fs::openat(&found, ".", flags, Mode::empty())?, group, depth + 1)?;
        }
    }
    Ok(())
}

fn give(what: BorrowedFd<'_>, group: u32, is_directory: bool) -> io::Result<()> {
    rustix::fs::chownat(what, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
    // By its descriptor: this path leads to that very file.
    let path = format!("/proc/self/fd/{}", what.as_raw_fd());
    let mode = std::fs::metadata(&path)?.permissions().mode() & 0o7777;
    let more = if is_directory { 0o2770 } else { 0o660 };
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode | more))
}
