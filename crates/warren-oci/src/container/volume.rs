//! Volumes of a pod: memory that its containers share, and directories inside a volume that a
//! container sees instead of the whole.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, ResolveFlags, Uid};
use warren_sys::mount::{self, Attributes, FsOption};

use super::Workshop;
use crate::idmap::IdRange;
use crate::kernel::Layering;
use crate::protocol::MemoryVolume;

impl Workshop {
    /// Returns the pod's memory volume of this name; makes it if needed. It ends with the shim and
    /// is mounted nowhere on the host.
    pub(crate) fn memory_volume(
        &mut self,
        wanted: &MemoryVolume,
        ids: IdRange,
        pod_directory: &Path,
    ) -> io::Result<OwnedFd> {
        if let Some(known) = self.volumes.get(&wanted.name) {
            return known.try_clone();
        }
        let unmapped = || crate::idmap::no_such_id(ids);
        let (owner, group) =
            (ids.first.to_string(), ids.to_host(wanted.group).ok_or_else(unmapped)?.to_string());
        let (size, mode) = (wanted.bytes.to_string(), format!("{:o}", wanted.mode & 0o7777));
        let options = [
            FsOption::Text("size", &size),
            FsOption::Text("mode", &mode),
            FsOption::Text("uid", &owner),
            FsOption::Text("gid", &group),
        ];
        let volume = mount::new_file_system("tmpfs", &options, Attributes::NO_SUID_NO_DEV)?;
        if self.layering == Layering::Attached {
            // Only attached mounts can be copied. The mount namespace belongs to the shim alone.
            let place = pod_directory.join("memory").join(&wanted.name);
            fs::create_dir_all(&place)?;
            mount::attach(volume.as_fd(), &place)?;
        }
        let answer = volume.try_clone()?;
        self.volumes.insert(wanted.name.clone(), volume);
        Ok(answer)
    }
}

/// Forbids all ways out of the volume: `..`, absolute links and `/proc`.
const STAY: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

/// Opens a path inside a volume. Missing directories are created, with the owner of the volume. A
/// container that changes the volume at the same time can make this fail, but not lead it
/// elsewhere.
pub(super) fn open_inside(volume: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match rustix::fs::openat2(volume, path, flags, Mode::empty(), STAY) {
        Err(rustix::io::Errno::NOENT) => {}
        Err(rustix::io::Errno::XDEV) => {
            let message = format!("`{}` leads out of the volume", path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        other => return Ok(other?),
    }
    let like = rustix::fs::fstat(volume)?;
    let (uid, gid) = (Uid::from_raw(like.st_uid), Gid::from_raw(like.st_gid));
    let mode = Mode::from_raw_mode(like.st_mode & 0o7777);
    let mut walked = PathBuf::new();
    let mut here = rustix::fs::openat2(volume, ".", flags | OFlags::DIRECTORY, Mode::empty(), STAY)?;
    for part in path.components() {
        let Component::Normal(name) = part else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path does not stay in the volume"));
        };
        walked.push(name);
        match rustix::fs::mkdirat(&here, name, Mode::from_raw_mode(0o700)) {
            Ok(()) => {
                rustix::fs::chownat(&here, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
                let made = rustix::fs::openat(
                    &here,
                    name,
                    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                    Mode::empty(),
                )?;
                rustix::fs::fchmod(&made, mode)?;
            }
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        here = rustix::fs::openat2(volume, &walked, flags, Mode::empty(), STAY)?;
    }
    Ok(here)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume() -> (tempfile::TempDir, OwnedFd) {
        let directory = tempfile::tempdir().unwrap();
        let opened = fs::File::open(directory.path()).unwrap().into();
        (directory, opened)
    }

    #[test]
    fn a_place_inside_is_found_or_made() {
        let (directory, volume) = volume();
        open_inside(volume.as_fd(), Path::new("a/b")).unwrap();
        assert!(directory.path().join("a/b").is_dir());
        fs::write(directory.path().join("a/file"), "x").unwrap();
        std::os::unix::fs::symlink("a/file", directory.path().join("link")).unwrap();
        let found = open_inside(volume.as_fd(), Path::new("link")).unwrap();
        assert_eq!(rustix::fs::fstat(found).unwrap().st_size, 1);
    }

    #[test]
    fn no_link_leads_out() {
        let (directory, volume) = volume();
        let outside = tempfile::tempdir().unwrap();
        for (name, target) in [
            ("absolute", outside.path().to_owned()),
            ("up", PathBuf::from("..")),
            ("far", PathBuf::from("../../../../etc")),
        ] {
            std::os::unix::fs::symlink(target, directory.path().join(name)).unwrap();
            for path in [PathBuf::from(name), Path::new(name).join("new")] {
                open_inside(volume.as_fd(), &path).unwrap_err();
            }
        }
        open_inside(volume.as_fd(), Path::new("../x")).unwrap_err();
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }
}
