//! Writes entries below one directory. The kernel looks up every name with a flag that forbids to
//! leave that directory. So neither `..` nor a link of the archive leads out of it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::UnpackError;
use super::archive::{Head, Kind};

/// The prefix of whiteouts: names of files to remove from lower layers.
const WHITEOUT: &[u8] = b".wh.";
/// The prefix of special whiteouts. One of them hides everything below its directory. The others
/// are records of an obsolete file system.
const WHITEOUT_NOTE: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// The attributes of an opaque directory in overlays. Ordinary users may only write the second one.
const OPAQUE_ATTRIBUTES: [&str; 2] = ["trusted.overlay.opaque", "user.overlay.opaque"];
/// The maximum depth. No real image is deeper, and each entry walks its path.
const DEEPEST: usize = 256;
const LONGEST_PATH: usize = 4096;

/// The directory of a layer that is being filled.
pub(super) struct Tree {
    root: OwnedFd,
    /// Directories get their times last, because each entry changes the time of its directory.
    directories: Vec<(PathBuf, Timestamps)>,
}

impl Tree {
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        let root =
            rustix::fs::open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { root, directories: Vec::new() })
    }

    pub(super) fn place(&mut self, head: &Head, content: &mut impl Read) -> Result<(), UnpackError> {
        let path = normal(&head.path).map_err(|why| head.refused(why))?;
        let Some(name) = path.file_name().map(OsStr::to_owned) else {
            // The entry for the top directory itself, which must be a directory.
            return match head.kind {
                Kind::Directory => {
                    describe(head, self.root.as_fd())?;
                    self.directories.push((path, times(head)));
                    Ok(())
                }
                _ => Err(head.refused("it would replace the image's top directory")),
            };
        };
        let parent = self.parent(head, &path)?;
        if let Some(hidden) = name.as_bytes().strip_prefix(WHITEOUT) {
            return self.hide(head, parent.as_fd(), name.as_bytes(), hidden);
        }
        self.make(head, parent.as_fd(), &name, path, content)
    }

    fn make(
        &mut self,
        head: &Head,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        path: PathBuf,
        content: &mut impl Read,
    ) -> Result<(), UnpackError> {
        let fail = |error: Errno| failed(head, error.into());
        let present = kind_of(parent, name).map_err(|error| failed(head, error))?;
        let was_hidden = present == Some(Present::Whiteout);
        if present.is_some() && !(present == Some(Present::Directory) && matches!(head.kind, Kind::Directory))
        {
            remove(parent, name).map_err(|error| failed(head, error))?;
        }
        match &head.kind {
            Kind::Directory => {
                match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(fail(error)),
                }
                let directory = open_directory(parent, name).map_err(fail)?;
                if was_hidden {
                    make_opaque(directory.as_fd()).map_err(fail)?;
                }
                describe(head, directory.as_fd())?;
                self.directories.push((path, times(head)));
                Ok(())
            }
            Kind::File => {
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR).map_err(fail)?;
                let mut file = File::from(file);
                io::copy(content, &mut file).map_err(|error| failed(head, error))?;
                describe(head, file.as_fd())?;
                rustix::fs::futimens(&file, &times(head)).map_err(fail)
            }
            Kind::Symlink(target) => {
                rustix::fs::symlinkat(target, parent, name).map_err(fail)?;
                describe_link(head, parent, name).map_err(fail)
            }
            Kind::Fifo => {
                rustix::fs::mknodat(parent, name, FileType::Fifo, Mode::from_raw_mode(head.mode & 0o777), 0)
                    .map_err(fail)?;
                describe_link(head, parent, name).map_err(fail)
            }
            Kind::HardLink(target) => self.link(head, parent, name, target),
        }
    }

    /// Creates a hard link to a file of this layer.
    fn link(
        &self,
        head: &Head,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        target: &Path,
    ) -> Result<(), UnpackError> {
        let target =
            normal(target).map_err(|why| head.refused(format!("the file it is a link to: {why}")))?;
        let shown = target.display();
        let missing = || head.refused(format!("it is a link to {shown}, which this layer has not"));
        let target_name = target.file_name().ok_or_else(missing)?;
        let directory = match self.open_beneath(target.parent().unwrap_or(Path::new(""))) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Err(missing()),
            other => other.map_err(|error| escaped(head, error))?,
        };
        match kind_of(directory.as_fd(), target_name).map_err(|error| failed(head, error))? {
            Some(Present::File) => {}
            Some(_) => return Err(head.refused(format!("it is a link to {shown}, which is no file"))),
            None => return Err(missing()),
        }
        rustix::fs::linkat(&directory, target_name, parent, name, AtFlags::empty())
            .map_err(|error| failed(head, error.into()))
    }

    /// Writes a whiteout.
    fn hide(
        &self,
        head: &Head,
        parent: BorrowedFd<'_>,
        name: &[u8],
        hidden: &[u8],
    ) -> Result<(), UnpackError> {
        let fail = |error: Errno| failed(head, error.into());
        if name == OPAQUE {
            let directory = open_directory(parent, OsStr::new(".")).map_err(fail)?;
            return make_opaque(directory.as_fd()).map_err(fail);
        }
        if name.starts_with(WHITEOUT_NOTE) {
            return Ok(());
        }
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(head.refused("it removes nothing that has a name"));
        }
        let hidden = OsStr::from_bytes(hidden);
        match kind_of(parent, hidden).map_err(|error| failed(head, error))? {
            // This layer has an entry of the same name: only hide what is below a directory.
            Some(Present::Directory) => {
                make_opaque(open_directory(parent, hidden).map_err(fail)?.as_fd()).map_err(fail)
            }
            Some(_) => Ok(()),
            None => {
                rustix::fs::mknodat(parent, hidden, FileType::CharacterDevice, Mode::empty(), 0).map_err(fail)
            }
        }
    }

    /// Opens the parent directory of an entry. Missing directories are created.
    fn parent(&self, head: &Head, path: &Path) -> Result<OwnedFd, UnpackError> {
        let directory = path.parent().unwrap_or(Path::new(""));
        match self.open_beneath(directory) {
            Err(Errno::NOENT) => {}
            other => return other.map_err(|error| escaped(head, error)),
        }
        let mut so_far = PathBuf::new();
        for name in directory {
            let above = self.open_beneath(&so_far).map_err(|error| escaped(head, error))?;
            match rustix::fs::mkdirat(&above, name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(failed(head, error.into())),
            }
            so_far.push(name);
        }
        self.open_beneath(directory).map_err(|error| escaped(head, error))
    }

    fn open_beneath(&self, directory: &Path) -> Result<OwnedFd, Errno> {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        rustix::fs::openat2(&self.root, directory, flags, Mode::empty(), within)
    }

    /// Sets the times of directories and syncs everything to disk.
    pub(super) fn finish(self) -> io::Result<()> {
        for (path, times) in self.directories.iter().rev() {
            let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            // A later entry may have replaced it.
            if let Ok(directory) = rustix::fs::openat2(&self.root, path, flags, Mode::empty(), within) {
                rustix::fs::futimens(&directory, times)?;
            }
        }
        Ok(rustix::fs::syncfs(&self.root)?)
    }
}

/// The kind of an existing entry.
#[derive(Debug, PartialEq, Eq)]
enum Present {
    File,
    Directory,
    Whiteout,
    Other,
}

fn kind_of(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<Present>> {
    let found = match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(None),
        other => other?,
    };
    Ok(Some(match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => Present::File,
        FileType::Directory => Present::Directory,
        FileType::CharacterDevice => Present::Whiteout,
        _ => Present::Other,
    }))
}

fn remove(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {
            // This follows no links, and the descriptor keeps it below the layer's directory.
            std::fs::remove_dir_all(Path::new(&format!("/proc/self/fd/{}", parent.as_raw_fd())).join(name))
        }
        other => Ok(other?),
    }
}

fn open_directory(parent: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

fn make_opaque(directory: BorrowedFd<'_>) -> Result<(), Errno> {
    let [root, ordinary] = OPAQUE_ATTRIBUTES;
    let set = |name| rustix::fs::fsetxattr(directory, name, b"y", XattrFlags::empty());
    match set(root) {
        Err(Errno::PERM) => set(ordinary),
        other => other,
    }
}

/// Sets owner, mode and attributes of a file or directory. The mode comes last, because changing
/// the owner clears bits of it.
fn describe(head: &Head, file: BorrowedFd<'_>) -> Result<(), UnpackError> {
    let fail = |error: Errno| failed(head, error.into());
    give(rustix::fs::fchown(file, Some(uid(head)), Some(gid(head)))).map_err(fail)?;
    rustix::fs::fchmod(file, Mode::from_raw_mode(head.mode)).map_err(fail)?;
    for (name, value) in &head.attributes {
        match name.as_str() {
            _ if name.starts_with("user.") && !name.starts_with("user.overlay.") => {}
            "security.capability" => {}
            // Attributes of other systems. They have no meaning here.
            "security.selinux" | "system.posix_acl_access" | "system.posix_acl_default" => continue,
            // Above all `trusted.overlay.…` and `user.overlay.…`, with which a layer could expose
            // files from elsewhere.
            _ => return Err(head.refused(format!("images cannot bring the attribute {name:?}"))),
        }
        match rustix::fs::fsetxattr(file, name, value, XattrFlags::empty()) {
            Ok(()) | Err(Errno::NOTSUP) => {}
            Err(error) => return Err(fail(error)),
        }
    }
    Ok(())
}

/// Sets owner and time of an entry that cannot be opened.
fn describe_link(head: &Head, parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    give(rustix::fs::chownat(parent, name, Some(uid(head)), Some(gid(head)), AtFlags::SYMLINK_NOFOLLOW))?;
    rustix::fs::utimensat(parent, name, &times(head), AtFlags::SYMLINK_NOFOLLOW)
}

/// Ignores an owner that does not exist in an ordinary user's namespace: the file stays root's. For
/// the machine's root every owner exists.
fn give(result: Result<(), Errno>) -> Result<(), Errno> {
    match result {
        Err(Errno::INVAL) => Ok(()),
        other => other,
    }
}

fn uid(head: &Head) -> Uid {
    Uid::from_raw(head.uid)
}

fn gid(head: &Head) -> Gid {
    Gid::from_raw(head.gid)
}

fn times(head: &Head) -> Timestamps {
    let (tv_sec, tv_nsec) = head.modified;
    let time = Timespec { tv_sec, tv_nsec };
    Timestamps { last_access: time, last_modification: time }
}

/// Normalises a path of an archive: removes `./` and refuses `..`.
fn normal(path: &Path) -> Result<PathBuf, &'static str> {
    if path.as_os_str().len() > LONGEST_PATH {
        return Err("its path is too long");
    }
    if path.as_os_str().as_bytes().contains(&0) {
        return Err("its path contains a zero byte");
    }
    let mut names: Vec<OsString> = Vec::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) if name.len() > 255 => {
                return Err("a name in its path is longer than 255 bytes");
            }
            Component::Normal(name) => names.push(name.to_owned()),
            Component::ParentDir => return Err("its path contains `..`"),
            Component::RootDir | Component::Prefix(_) => return Err("its path is absolute"),
        }
    }
    if names.len() > DEEPEST {
        return Err("its path is too deep");
    }
    Ok(names.iter().collect())
}

fn failed(head: &Head, source: io::Error) -> UnpackError {
    UnpackError::Entry { name: head.shown(), source }
}

/// Explains why the parent directory of an entry could not be opened: mostly a link on the path
/// leads out of the layer.
fn escaped(head: &Head, error: Errno) -> UnpackError {
    match error {
        Errno::XDEV => head.refused("a link on its path leads out of the image"),
        Errno::LOOP => head.refused("links on its path lead in a circle"),
        Errno::NOTDIR => head.refused("a part of its path is no directory"),
        other => failed(head, other.into()),
    }
}
