//! Files beneath the base directory. The kernel resolves every path (`openat2` with
//! `RESOLVE_BENEATH`), so that neither `..` nor a symbolic link leads out, also if links change while
//! a path is looked up.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RawMode, ResolveFlags, Stat};
use rustix::io::Errno;
use warren_proto::runtime::{EntryKind, ListEntry};

/// The kernel asks for another try when a directory was renamed meanwhile.
const TRIES: usize = 64;
/// Links that are followed at the end of a path to write, as many as Linux follows.
const LINKS: usize = 40;

/// Directories within directories that are removed; each needs a descriptor and a place on the stack.
const DEPTH: usize = 512;

/// A path that leads to nothing that may be used.
#[derive(Debug)]
pub enum PathError {
    /// It leads out of the base directory.
    Escapes,
    /// The kernel refused.
    Io(io::Error),
}

impl From<Errno> for PathError {
    fn from(error: Errno) -> Self {
        match error {
            Errno::XDEV => PathError::Escapes,
            other => PathError::Io(other.into()),
        }
    }
}

impl From<io::Error> for PathError {
    fn from(error: io::Error) -> Self {
        PathError::Io(error)
    }
}

impl PathError {
    /// Returns true if there is nothing at the path.
    pub fn is_not_found(&self) -> bool {
        let PathError::Io(error) = self else { return false };
        matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
            || error.raw_os_error() == Some(Errno::LOOP.raw_os_error())
            || error.raw_os_error() == Some(Errno::NAMETOOLONG.raw_os_error())
    }
}

/// Reads a path from what follows the method in a URL. It is decoded twice, as the published runtime
/// does, and is relative to the base directory also with leading slashes.
pub fn requested(encoded: &str) -> PathBuf {
    relative(decode(&decode(encoded.as_bytes())))
}

/// Makes a path relative to the base directory.
pub fn relative(path: Vec<u8>) -> PathBuf {
    let slashes = path.iter().take_while(|byte| **byte == b'/').count();
    PathBuf::from(OsString::from_vec(path[slashes..].to_vec()))
}

/// Decodes `%xx`; what is no such thing stays as it is.
pub fn decode(text: &[u8]) -> Vec<u8> {
    let digit =
        |byte: Option<&u8>| char::from(*byte?).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let mut decoded = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        match (text[at], digit(text.get(at + 1)), digit(text.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                decoded.push(high << 4 | low);
                at += 3;
            }
            (byte, ..) => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    decoded
}

/// The metadata of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Details {
    /// Its type.
    pub kind: EntryKind,
    /// Its size in bytes.
    pub size: u64,
    /// When its content last changed, in seconds since 1970.
    pub modified: i64,
    /// Its permissions.
    pub mode: u32,
}

impl Details {
    fn of(found: &Stat) -> Details {
        Details {
            kind: match kind(found) {
                FileType::Directory => EntryKind::Directory,
                _ => EntryKind::File,
            },
            size: u64::try_from(found.st_size).unwrap_or(0),
            modified: found.st_mtime,
            mode: found.st_mode & 0o7777,
        }
    }
}

/// The target of a path.
#[derive(Debug)]
pub enum Opened {
    /// A regular file, for reading.
    File(File, Details),
    /// A directory, with its entries by name. Links are what they lead to; those that lead nowhere or out
    /// are left out.
    Directory(Vec<(OsString, Details)>),
}

/// A name in a directory that is beneath the base directory.
struct Place {
    directory: OwnedFd,
    name: OsString,
    found: Option<Stat>,
}

/// The base directory.
#[derive(Debug, Clone)]
pub struct Root {
    path: PathBuf,
}

impl Root {
    /// Names the base directory; it is opened anew by each request, since it may be replaced.
    pub fn new(path: impl Into<PathBuf>) -> Root {
        Root { path: path.into() }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the base directory, and makes it if it is missing.
    fn open(&self) -> io::Result<OwnedFd> {
        let open = || {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(&self.path, flags, Mode::empty())
        };
        match open() {
            Err(Errno::NOENT) => {
                std::fs::create_dir_all(&self.path)?;
                Ok(open()?)
            }
            other => Ok(other?),
        }
    }

    /// Makes a path relative to the base directory; an absolute one may name the base directory itself.
    pub fn named(&self, path: Vec<u8>) -> PathBuf {
        let path = PathBuf::from(OsString::from_vec(path));
        match path.strip_prefix(&self.path) {
            Ok(inside) if path.is_absolute() => inside.to_owned(),
            _ => relative(path.into_os_string().into_vec()),
        }
    }

    /// Checks that a path leads to a directory.
    pub fn check_directory(&self, path: &Path) -> Result<(), PathError> {
        self.beneath(path, OFlags::PATH | OFlags::DIRECTORY).map(drop)
    }

    /// Makes the base directory if it is missing.
    pub fn ensure(&self) -> io::Result<()> {
        self.open().map(drop).map_err(|error| {
            io::Error::new(error.kind(), format!("base directory {}: {error}", self.path.display()))
        })
    }

    fn beneath(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, PathError> {
        open_beneath(self.open()?.as_fd(), path, flags)
    }

    /// Opens a regular file for reading; its length comes along. What else there is counts as missing.
    pub fn read(&self, path: &Path) -> Result<(File, u64), PathError> {
        // A pipe without a writer would block.
        let file = self.beneath(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let found = rustix::fs::fstat(&file)?;
        if kind(&found) != FileType::RegularFile {
            return Err(PathError::Io(io::ErrorKind::NotFound.into()));
        }
        Ok((File::from(file), u64::try_from(found.st_size).unwrap_or(0)))
    }

    /// Opens a file or lists a directory.
    pub fn open_any(&self, path: &Path) -> Result<Opened, PathError> {
        let opened = self.beneath(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let found = rustix::fs::fstat(&opened)?;
        match kind(&found) {
            FileType::RegularFile => Ok(Opened::File(File::from(opened), Details::of(&found))),
            FileType::Directory => {
                let mut entries = Vec::new();
                for entry in Dir::read_from(&opened)? {
                    let entry = entry?;
                    let name = OsStr::from_bytes(entry.file_name().to_bytes());
                    if name == "." || name == ".." {
                        continue;
                    }
                    if let Ok(target) = self.beneath(&path.join(name), OFlags::PATH) {
                        entries.push((name.to_owned(), Details::of(&rustix::fs::fstat(&target)?)));
                    }
                }
                entries.sort_by(|one, other| one.0.cmp(&other.0));
                Ok(Opened::Directory(entries))
            }
            _ => Err(PathError::Io(io::ErrorKind::NotFound.into())),
        }
    }

    /// Removes what a path leads to: the target of a link and not the link. The base directory itself is
    /// only emptied.
    pub fn remove(&self, path: &Path, recursive: bool) -> Result<(), PathError> {
        let root = self.open()?;
        let opened = open_beneath(root.as_fd(), path, OFlags::PATH)?;
        let is_root = {
            let (one, other) = (rustix::fs::fstat(&root)?, rustix::fs::fstat(&opened)?);
            (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
        };
        if is_root {
            if !recursive {
                return Err(Errno::NOTEMPTY.into());
            }
            return Ok(empty_directory(
                open_beneath(root.as_fd(), path, OFlags::RDONLY | OFlags::DIRECTORY)?,
                DEPTH,
            )?);
        }
        let place = locate(root.as_fd(), path, open_directory)?;
        let Some(found) = &place.found else { return Err(Errno::NOENT.into()) };
        if kind(found) != FileType::Directory {
            return Ok(rustix::fs::unlinkat(&place.directory, &place.name, AtFlags::empty())?);
        }
        if recursive {
            empty_directory(open_listed(place.directory.as_fd(), &place.name)?, DEPTH)?;
        }
        Ok(rustix::fs::unlinkat(&place.directory, &place.name, AtFlags::REMOVEDIR)?)
    }

    /// Returns true if there is something at the path.
    pub fn exists(&self, path: &Path) -> Result<bool, PathError> {
        match self.beneath(path, OFlags::PATH) {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(PathError::Io(error)) if error.kind() == io::ErrorKind::PermissionDenied => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lists a directory. A link is shown as what it leads to, or as a file if that is not beneath the
    /// base directory.
    pub fn list(&self, path: &Path) -> Result<Vec<ListEntry>, PathError> {
        let directory = self.beneath(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut entries = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            // One that has gone meanwhile is left out.
            let Ok(mut found) = rustix::fs::statat(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
            else {
                continue;
            };
            if kind(&found) == FileType::Symlink
                && let Ok(target) = self.beneath(&path.join(OsStr::from_bytes(name)), OFlags::PATH)
            {
                found = rustix::fs::fstat(&target)?;
            }
            entries.push(ListEntry {
                name: String::from_utf8_lossy(name).into_owned(),
                size: u64::try_from(found.st_size).unwrap_or(0),
                kind: match kind(&found) {
                    FileType::Directory => EntryKind::Directory,
                    _ => EntryKind::File,
                },
                mod_time: found.st_mtime as f64 + found.st_mtime_nsec as f64 / 1e9,
            });
        }
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }

    /// Begins to write a file, with the directories above it.
    pub fn write(&self, path: &Path) -> Result<Upload, PathError> {
        let root = self.open()?;
        let Place { directory, name, found } = locate(root.as_fd(), path, make_directories)?;
        match found.as_ref().map(kind) {
            Some(FileType::Directory) => Err(Errno::ISDIR.into()),
            _ => Upload::begin(directory, name, found.map(|found| found.st_mode)),
        }
    }
}

/// Finds the name that a path stands for in the end, after all links. `open` opens its directory.
fn locate(
    root: BorrowedFd<'_>,
    path: &Path,
    open: fn(BorrowedFd<'_>, &Path) -> Result<OwnedFd, PathError>,
) -> Result<Place, PathError> {
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        let name = match path.components().next_back() {
            Some(Component::Normal(name)) => name.to_owned(),
            Some(Component::ParentDir) => {
                // A directory, if it is beneath at all.
                open_beneath(root, &path, OFlags::PATH)?;
                return Err(Errno::ISDIR.into());
            }
            _ => return Err(Errno::ISDIR.into()),
        };
        let parent = path.parent().map(Path::to_owned).unwrap_or_default();
        let directory = open(root, &parent)?;
        let found = match rustix::fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Some(found),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error.into()),
        };
        if found.as_ref().map(kind) != Some(FileType::Symlink) {
            return Ok(Place { directory, name, found });
        }
        let target = rustix::fs::readlinkat(&directory, &name, Vec::new())?;
        let target = Path::new(OsStr::from_bytes(target.to_bytes()));
        if target.is_absolute() {
            return Err(PathError::Escapes);
        }
        path = parent.join(target);
    }
    Err(Errno::LOOP.into())
}

fn open_directory(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, PathError> {
    open_beneath(root, path, OFlags::PATH | OFlags::DIRECTORY)
}

/// Opens a directory to list it, and never what a link leads to.
fn open_listed(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

/// Removes everything in a directory, with what is below it up to a depth.
fn empty_directory(directory: OwnedFd, depth: usize) -> io::Result<()> {
    let below = depth.checked_sub(1).ok_or(Errno::NAMETOOLONG)?;
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        match rustix::fs::unlinkat(&directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) => {
                empty_directory(open_listed(directory.as_fd(), name)?, below)?;
                rustix::fs::unlinkat(&directory, name, AtFlags::REMOVEDIR)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn kind(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

fn open_beneath(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, PathError> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    if path.as_os_str().as_bytes().contains(&0) {
        return Err(PathError::Escapes);
    }
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..TRIES {
        match rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
    Err(Errno::AGAIN.into())
}

/// Opens a directory beneath `root`; what is missing of it is made, name by name.
fn make_directories(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, PathError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    match open_beneath(root, path, flags) {
        Err(error) if matches!(&error, PathError::Io(error) if error.kind() == io::ErrorKind::NotFound) => {}
        other => return other,
    }
    if leads_out(path) {
        return Err(PathError::Escapes);
    }
    let mut here = open_beneath(root, Path::new("."), flags)?;
    let mut walked = PathBuf::new();
    for component in path.components() {
        walked.push(component);
        match open_beneath(root, &walked, flags) {
            Ok(next) => here = next,
            Err(PathError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                let Component::Normal(name) = component else { return Err(PathError::Io(error)) };
                match rustix::fs::mkdirat(&here, name, Mode::from_raw_mode(0o777)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                here = open_beneath(root, &walked, flags)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(here)
}

/// Returns true if a path leads out by its names alone. Nothing is made on the way of such a path.
fn leads_out(path: &Path) -> bool {
    let mut depth = 0_usize;
    for component in path.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::ParentDir if depth == 0 => return true,
            Component::ParentDir => depth -= 1,
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    false
}

/// A file that is being written. Until [`Upload::commit`] it has another name, and dropping it leaves
/// nothing behind.
#[derive(Debug)]
pub struct Upload {
    directory: OwnedFd,
    name: OsString,
    temporary: OsString,
    is_committed: bool,
}

impl Upload {
    fn begin(directory: OwnedFd, name: OsString, mode: Option<RawMode>) -> Result<Upload, PathError> {
        let temporary = OsString::from(format!(".warren-upload-{:016x}", fastrand::u64(..)));
        let upload = Upload { directory, name, temporary, is_committed: false };
        let file = rustix::fs::openat(
            &upload.directory,
            &upload.temporary,
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::from_raw_mode(0o666),
        )?;
        if let Some(mode) = mode {
            // The replaced file's; not having the right to it is no reason to fail.
            let _ = rustix::fs::fchmod(&file, Mode::from_raw_mode(mode & 0o777));
        }
        Ok(upload)
    }

    /// Opens the file to write to.
    pub fn file(&self) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.directory, &self.temporary, flags, Mode::empty())?.into())
    }

    /// Gives the file its name, in place of one that has it.
    pub fn commit(mut self) -> io::Result<()> {
        rustix::fs::renameat(&self.directory, &self.temporary, &self.directory, &self.name)?;
        self.is_committed = true;
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.is_committed {
            let _ = rustix::fs::unlinkat(&self.directory, &self.temporary, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn root() -> (tempfile::TempDir, Root) {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("base")).unwrap();
        fs::write(directory.path().join("secret"), "secret").unwrap();
        let root = Root::new(directory.path().join("base"));
        (directory, root)
    }

    fn write(root: &Root, path: &str, text: &str) -> Result<(), PathError> {
        let upload = root.write(Path::new(path))?;
        upload.file()?.write_all(text.as_bytes())?;
        Ok(upload.commit()?)
    }

    fn read(root: &Root, path: &str) -> Result<String, PathError> {
        let (mut file, length) = root.read(Path::new(path))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        assert_eq!(text.len() as u64, length);
        Ok(text)
    }

    #[test]
    fn paths_are_decoded_twice_and_relative() {
        for (encoded, path) in [
            ("dir%2Fx.txt", "dir/x.txt"),
            ("%2Ftmp%2Fa%20b", "tmp/a b"),
            ("%252e%252e%252fsecret", "../secret"),
            ("100%25", "100%"),
            ("%zz%4", "%zz%4"),
            ("", ""),
        ] {
            assert_eq!(requested(encoded), Path::new(path), "{encoded}");
        }
    }

    #[test]
    fn files_are_written_whole_with_their_directories() {
        let (_directory, root) = root();
        write(&root, "a/b/c.txt", "one").unwrap();
        assert_eq!(read(&root, "a/b/c.txt").unwrap(), "one");
        let path = root.path().join("a/b/c.txt");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        write(&root, "a/b/../b/c.txt", "two").unwrap();
        assert_eq!(read(&root, "a/./b/c.txt").unwrap(), "two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o750);
        drop(root.write(Path::new("a/unfinished")).unwrap());
        assert_eq!(root.list(Path::new("a")).unwrap().len(), 1, "an unfinished file leaves nothing");
        assert!(matches!(root.write(Path::new("a")), Err(PathError::Io(_))));
        assert!(root.exists(Path::new("a/b")).unwrap());
        assert!(!root.exists(Path::new("a/c")).unwrap());
    }

    #[test]
    fn nothing_leads_out_of_the_base_directory() {
        let (directory, root) = root();
        symlink("../secret", root.path().join("relative")).unwrap();
        symlink(directory.path().join("secret"), root.path().join("absolute")).unwrap();
        symlink("..", root.path().join("up")).unwrap();
        symlink("/proc/self/root", root.path().join("magic")).unwrap();
        for path in
            ["../secret", "a/../../secret", "relative", "absolute", "up/secret", "magic/etc/passwd", ".."]
        {
            let path = Path::new(path);
            assert!(root.read(path).is_err(), "{path:?}");
            assert!(root.write(path).is_err(), "{path:?}");
            assert!(!matches!(root.exists(path), Ok(true)), "{path:?}");
        }
        for path in ["../secret", "relative", "absolute", "up/secret", "up/new/file", "up"] {
            assert!(matches!(root.exists(Path::new(path)), Err(PathError::Escapes)), "{path}");
        }
        assert!(matches!(root.list(Path::new("up")), Err(PathError::Escapes)));
        assert!(matches!(root.write(Path::new("up/new/file")), Err(PathError::Escapes)));
        assert_eq!(fs::read_to_string(directory.path().join("secret")).unwrap(), "secret");
        let kinds: Vec<_> = root.list(Path::new("")).unwrap().into_iter().map(|entry| entry.kind).collect();
        assert_eq!(kinds, [EntryKind::File; 4], "a link that leads out shows nothing of its target");
    }

    #[test]
    fn links_inside_are_followed() {
        let (_directory, root) = root();
        write(&root, "real/file", "one").unwrap();
        symlink("real", root.path().join("link")).unwrap();
        symlink("link/file", root.path().join("name")).unwrap();
        write(&root, "name", "two").unwrap();
        assert_eq!(read(&root, "real/file").unwrap(), "two");
        assert!(fs::symlink_metadata(root.path().join("name")).unwrap().is_symlink());
        symlink("round", root.path().join("round")).unwrap();
        assert!(root.write(Path::new("round")).is_err());
        assert!(!root.exists(Path::new("round")).unwrap());
    }

    #[test]
    fn removing_follows_links_and_stays_inside() {
        let (directory, root) = root();
        write(&root, "a/b/c", "x").unwrap();
        write(&root, "d", "x").unwrap();
        symlink("d", root.path().join("link")).unwrap();
        symlink("../secret", root.path().join("out")).unwrap();
        symlink("../..", root.path().join("a/up")).unwrap();
        let remove = |path: &str, recursive| root.remove(Path::new(path), recursive);
        assert!(matches!(remove("out", true), Err(PathError::Escapes)));
        assert!(matches!(remove("../secret", true), Err(PathError::Escapes)));
        assert!(remove("missing", true).unwrap_err().is_not_found());
        remove("link", false).unwrap();
        assert!(!root.path().join("d").exists() && root.path().join("link").is_symlink());
        assert!(
            matches!(remove("a", false), Err(PathError::Io(error)) if error.kind() == io::ErrorKind::DirectoryNotEmpty)
        );
        remove("a", true).unwrap();
        assert!(!root.path().join("a").exists());
        assert!(matches!(remove("", false), Err(PathError::Io(_))));
        remove("", true).unwrap();
        assert!(fs::read_dir(root.path()).unwrap().next().is_none());
        assert_eq!(fs::read_to_string(directory.path().join("secret")).unwrap(), "secret");
    }

    #[test]
    fn pipes_and_devices_are_no_files() {
        let (_directory, root) = root();
        let path = root.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::from_raw_mode(0o600)).unwrap();
        assert!(root.read(Path::new("pipe")).unwrap_err().is_not_found());
    }

    #[test]
    fn a_link_that_changes_meanwhile_leads_nowhere_else() {
        let (_directory, root) = root();
        fs::create_dir(root.path().join("inside")).unwrap();
        fs::write(root.path().join("inside/secret"), "fine").unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (link, fresh) = (root.path().join("link"), root.path().join("fresh"));
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    for target in ["inside", ".."] {
                        let _ = symlink(target, &fresh);
                        let _ = fs::rename(&fresh, &link);
                    }
                }
            });
            for _ in 0..2000 {
                if let Ok(text) = read(&root, "link/secret") {
                    assert_eq!(text, "fine");
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}
