//! Puts entries below one directory, and nowhere else: every name is looked up by the kernel with the order not to leave
//! that directory, so neither `..` nor a link that the archive itself has made leads out.

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

/// Names that stand for "the rest is not there in the layers below".
const WHITEOUT: &[u8] = b".wh.";
/// Of these, one says it of everything in its directory; others are notes of a file system that nobody uses any more.
const WHITEOUT_NOTE: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// How overlays know such a directory; and how those of ordinary users do, who may not write the former.
const OPAQUE_ATTRIBUTES: [&str; 2] = ["trusted.overlay.opaque", "user.overlay.opaque"];
/// Deeper than any honest tree, and little enough to walk for every entry.
const DEEPEST: usize = 256;
const LONGEST_PATH: usize = 4096;

/// The directory of a layer while it is filled.
pub(super) struct Tree {
    root: OwnedFd,
    /// Directories get their times last, as every entry in them changes those.
    directories: Vec<(PathBuf, Timestamps)>,
}

impl Tree {
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        let root =
            rustix::fs::open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { root, directories: Vec::new() })
    }

    /// Makes one entry.
    pub(super) fn place(&mut self, head: &Head, content: &mut impl Read) -> Result<(), UnpackError> {
        let path = normal(&head.path).map_err(|why| head.refused(why))?;
        let Some(name) = path.file_name().map(OsStr::to_owned) else {
            // The top itself: only what it is like, and that an archive may say only of a directory.
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

    /// Another name for a file of this layer.
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

    /// Says that something of the layers below is not there.
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
            // This layer brings its own: only what is below a directory shall not show through.
            Some(Present::Directory) => {
                make_opaque(open_directory(parent, hidden).map_err(fail)?.as_fd()).map_err(fail)
            }
            Some(_) => Ok(()),
            None => {
                rustix::fs::mknodat(parent, hidden, FileType::CharacterDevice, Mode::empty(), 0).map_err(fail)
            }
        }
    }

    /// The directory that an entry belongs in. Directories that the archive left out are made.
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

    /// Gives the directories their times, and sees that everything is on disk.
    pub(super) fn finish(self) -> io::Result<()> {
        for (path, times) in self.directories.iter().rev() {
            let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            // A later entry may have put something else in its place.
            if let Ok(directory) = rustix::fs::openat2(&self.root, path, flags, Mode::empty(), within) {
                rustix::fs::futimens(&directory, times)?;
            }
        }
        Ok(rustix::fs::syncfs(&self.root)?)
    }
}

/// What has a name already.
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
            // It follows no links, and the descriptor keeps it below the layer's directory.
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

/// Owner, mode and attributes of a file or directory. The mode comes after the owner: changing that takes bits away.
fn describe(head: &Head, file: BorrowedFd<'_>) -> Result<(), UnpackError> {
    let fail = |error: Errno| failed(head, error.into());
    give(rustix::fs::fchown(file, Some(uid(head)), Some(gid(head)))).map_err(fail)?;
    rustix::fs::fchmod(file, Mode::from_raw_mode(head.mode)).map_err(fail)?;
    for (name, value) in &head.attributes {
        match name.as_str() {
            _ if name.starts_with("user.") && !name.starts_with("user.overlay.") => {}
            "security.capability" => {}
            // What other systems keep beside a file, and does not mean anything here.
            "security.selinux" | "system.posix_acl_access" | "system.posix_acl_default" => continue,
            // `trusted.overlay.…` and `user.overlay.…` above all: it is how one layer could show what lies elsewhere.
            _ => return Err(head.refused(format!("images cannot bring the attribute {name:?}"))),
        }
        match rustix::fs::fsetxattr(file, name, value, XattrFlags::empty()) {
            Ok(()) | Err(Errno::NOTSUP) => {}
            Err(error) => return Err(fail(error)),
        }
    }
    Ok(())
}

/// Owner and time of what cannot be opened.
fn describe_link(head: &Head, parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    give(rustix::fs::chownat(parent, name, Some(uid(head)), Some(gid(head)), AtFlags::SYMLINK_NOFOLLOW))?;
    rustix::fs::utimensat(parent, name, &times(head), AtFlags::SYMLINK_NOFOLLOW)
}

/// An owner that does not exist here, as most do not in an ordinary user's namespace: the file stays its root's. To the machine's
/// root every owner exists.
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

/// A path in an archive, without `./` and with no way up.
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

/// Looking up the directory of an entry has failed: mostly because a link on the way leads out of the layer.
fn escaped(head: &Head, error: Errno) -> UnpackError {
    match error {
        Errno::XDEV => head.refused("a link on its path leads out of the image"),
        Errno::LOOP => head.refused("links on its path lead in a circle"),
        Errno::NOTDIR => head.refused("a part of its path is no directory"),
        other => failed(head, other.into()),
    }
}
