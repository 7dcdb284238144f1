//! Lists the files of a checkout by git, reads them below the checkout's root, and hashes them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ring::digest::{Context, SHA256};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};

/// The file in a checkout's root with further patterns, in the syntax of `.gitignore`.
pub const IGNORE_FILE: &str = ".warrenignore";

/// The most files; more are probably build output that should have been excluded.
pub const MOST_FILES: usize = 100_000;

/// The most bytes, for the same reason.
pub const MOST_BYTES: u64 = 1 << 30;

/// The number of bytes of a file that are read at a time.
const CHUNK: usize = 64 << 10;

/// SHA-256 of a file's content.
pub type Digest = [u8; 32];

/// One file of a checkout, with its path relative to the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A regular file.
    File {
        /// Its length in bytes.
        size: u64,
        /// True if its owner may execute it.
        executable: bool,
        /// The time of its last change, in seconds since 1970.
        modified: u64,
    },
    /// A symbolic link.
    Link {
        /// The path that it leads to.
        target: PathBuf,
    },
}

/// The files to send, sorted by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The root of the checkout.
    pub root: PathBuf,
    /// The files.
    pub entries: BTreeMap<PathBuf, Entry>,
    /// The paths of nested checkouts, such as submodules; the root itself is the empty path.
    pub checkouts: Vec<PathBuf>,
}

/// The error of a checkout whose files could not be listed, or are too many.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Git could not be started.
    #[error("list the files of `{}` with `git`", directory.display())]
    NoGit {
        /// The checkout.
        directory: PathBuf,
        /// The underlying I/O error.
        #[source]
        source: io::Error,
    },
    /// Git failed.
    #[error("list the files of `{}` with `git`: {message}", directory.display())]
    Git {
        /// The checkout.
        directory: PathBuf,
        /// The message of Git.
        message: String,
    },
    /// A file could not be read.
    #[error("read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The underlying I/O error.
        #[source]
        source: io::Error,
    },
    /// The checkout is larger than usual.
    #[error(
        "`{}` has {files} files of {} MB to send, more than {MOST_FILES} files or {} MB; most of it is in {biggest}",
        root.display(), bytes / 1_000_000, MOST_BYTES / 1_000_000
    )]
    TooLarge {
        /// The root of the checkout.
        root: PathBuf,
        /// The number of files.
        files: usize,
        /// Their size.
        bytes: u64,
        /// The directories that hold most of it, as readable text.
        biggest: String,
    },
}

/// Returns the root of the checkout that contains a directory, or none outside of one.
pub fn checkout_root(directory: &Path) -> Option<PathBuf> {
    directory.ancestors().find(|ancestor| ancestor.join(".git").exists()).map(Path::to_owned)
}

impl Manifest {
    /// Lists a directory: the files that git tracks, and those that it neither tracks nor ignores,
    /// including submodules, without the matches of `exclude` and [`IGNORE_FILE`]. A directory that
    /// is not a checkout is listed by the same rules.
    pub fn read(root: &Path, exclude: &[String]) -> Result<Self, ManifestError> {
        let reading = |source| ManifestError::Read { path: root.to_owned(), source };
        let root = root.canonicalize().map_err(reading)?;
        let mut excludes: Vec<OsString> =
            exclude.iter().map(|pattern| format!("--exclude={pattern}").into()).collect();
        let ignore_file = root.join(IGNORE_FILE);
        if ignore_file.is_file() {
            let mut option = OsString::from("--exclude-from=");
            option.push(&ignore_file);
            excludes.push(option);
        }
        let directory = open_directory(&root).map_err(reading)?;
        let mut manifest = Self { root, ..Self::default() };
        let mut waiting = vec![PathBuf::new()];
        while let Some(prefix) = waiting.pop() {
            for path in Lister::new(&manifest.root.join(&prefix))?.list(&excludes)? {
                let path = prefix.join(path);
                let reading = |source| ManifestError::Read { path: path.clone(), source };
                match stat(&directory, &path).map_err(reading)? {
                    Some(Found::Entry(entry)) => {
                        manifest.entries.insert(path, entry);
                    }
                    Some(Found::Directory) if manifest.root.join(&path).join(".git").exists() => {
                        waiting.push(path);
                    }
                    // Deleted without telling git, a submodule that was not fetched, or a socket.
                    Some(Found::Directory | Found::Special) | None => {}
                }
            }
            manifest.checkouts.push(prefix);
        }
        Ok(manifest)
    }

    /// Returns the same root and checkouts without the files, for [`Manifest::ignored`].
    pub fn without_entries(&self) -> Self {
        Self { root: self.root.clone(), entries: BTreeMap::new(), checkouts: self.checkouts.clone() }
    }

    /// Returns the total size of the files.
    pub fn bytes(&self) -> u64 {
        self.entries.values().map(Entry::size).sum()
    }

    /// Refuses more than a checkout's own files usually take.
    pub fn check_size(&self) -> Result<(), ManifestError> {
        self.check_against(MOST_FILES, MOST_BYTES)
    }

    fn check_against(&self, most_files: usize, most_bytes: u64) -> Result<(), ManifestError> {
        let (files, bytes) = (self.entries.len(), self.bytes());
        if files <= most_files && bytes <= most_bytes {
            return Ok(());
        }
        let by_files = bytes <= most_bytes;
        let biggest = self.biggest(by_files);
        Err(ManifestError::TooLarge { root: self.root.clone(), files, bytes, biggest })
    }

    /// Returns the three largest directories, one or two levels deep.
    fn biggest(&self, by_files: bool) -> String {
        let mut weights: BTreeMap<PathBuf, u64> = BTreeMap::new();
        for (path, entry) in &self.entries {
            let parent = path.parent().unwrap_or(Path::new(""));
            let top: PathBuf = parent.components().take(2).collect();
            let top = if top.as_os_str().is_empty() { path.clone() } else { top };
            *weights.entry(top).or_default() += if by_files { 1 } else { entry.size() };
        }
        let mut weights: Vec<(PathBuf, u64)> = weights.into_iter().collect();
        weights.sort_by_key(|(_, weight)| std::cmp::Reverse(*weight));
        let name = |(path, weight): &(PathBuf, u64)| match by_files {
            true => format!("`{}` ({weight} files)", path.display()),
            false => format!("`{}` ({} MB)", path.display(), weight / 1_000_000),
        };
        weights.iter().take(3).map(name).collect::<Vec<_>>().join(", ")
    }

    /// Returns which of these paths git ignores here. They need not exist.
    pub fn ignored<'a>(
        &self,
        paths: impl IntoIterator<Item = &'a Path>,
    ) -> Result<BTreeSet<PathBuf>, ManifestError> {
        let mut by_checkout: BTreeMap<&Path, Vec<&Path>> = BTreeMap::new();
        for path in paths {
            let innermost = self.checkouts.iter().filter(|prefix| path.starts_with(prefix));
            let innermost = innermost.max_by_key(|prefix| prefix.components().count());
            let prefix = innermost.map_or(Path::new(""), PathBuf::as_path);
            by_checkout.entry(prefix).or_default().push(path.strip_prefix(prefix).unwrap_or(path));
        }
        let mut ignored = BTreeSet::new();
        for (prefix, paths) in by_checkout {
            let found = Lister::new(&self.root.join(prefix))?.ignored(&paths)?;
            ignored.extend(found.into_iter().map(|path| prefix.join(path)));
        }
        Ok(ignored)
    }
}

impl Entry {
    fn size(&self) -> u64 {
        match self {
            Entry::File { size, .. } => *size,
            Entry::Link { .. } => 0,
        }
    }
}

struct Lister {
    directory: PathBuf,
    /// An empty repository, for a directory without one.
    borrowed: Option<EmptyRepository>,
}

impl Lister {
    fn new(directory: &Path) -> Result<Self, ManifestError> {
        let mut lister = Self { directory: directory.to_owned(), borrowed: None };
        if checkout_root(directory).is_none() {
            let repository = EmptyRepository::new()
                .map_err(|source| ManifestError::NoGit { directory: directory.to_owned(), source })?;
            let mut command = Command::new("git");
            command.args(["init", "--quiet", "--bare", "--template="]).arg(&repository.0);
            lister.finish(command, None, &[0])?;
            lister.borrowed = Some(repository);
        }
        Ok(lister)
    }

    fn git(&self) -> Command {
        let mut command = Command::new("git");
        // The file system monitor is a program that a repository's configuration names.
        command.args(["-c", "core.fsmonitor=false", "-C"]).arg(&self.directory);
        if let Some(EmptyRepository(path)) = &self.borrowed {
            command.arg("--git-dir").arg(path).arg("--work-tree").arg(&self.directory);
        }
        command
    }

    fn list(&self, excludes: &[OsString]) -> Result<BTreeSet<PathBuf>, ManifestError> {
        let mut tracked = self.git();
        tracked.args(["ls-files", "-z", "--cached"]);
        let mut paths = self.paths(tracked, None, &[0])?;
        if !excludes.is_empty() {
            let mut excluded = self.git();
            excluded.args(["ls-files", "-z", "--cached", "--ignored"]).args(excludes);
            for path in self.paths(excluded, None, &[0])? {
                paths.remove(&path);
            }
        }
        let mut others = self.git();
        others.args(["ls-files", "-z", "--others", "--exclude-standard"]).args(excludes);
        paths.extend(self.paths(others, None, &[0])?);
        Ok(paths)
    }

    fn ignored(&self, paths: &[&Path]) -> Result<BTreeSet<PathBuf>, ManifestError> {
        let mut command = self.git();
        command.args(["check-ignore", "-z", "--stdin", "--no-index"]);
        let mut input = Vec::new();
        for path in paths {
            input.extend_from_slice(path.as_os_str().as_bytes());
            input.push(0);
        }
        // 1: none of them is ignored.
        self.paths(command, Some(input), &[0, 1])
    }

    fn paths(
        &self,
        command: Command,
        input: Option<Vec<u8>>,
        success: &[i32],
    ) -> Result<BTreeSet<PathBuf>, ManifestError> {
        let output = self.finish(command, input, success)?;
        let names = output.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        // The name of a nested repository ends with a slash.
        let names = names.map(|name| name.strip_suffix(b"/").unwrap_or(name));
        Ok(names.map(|name| PathBuf::from(OsStr::from_bytes(name))).collect())
    }

    fn finish(
        &self,
        mut command: Command,
        input: Option<Vec<u8>>,
        success: &[i32],
    ) -> Result<Vec<u8>, ManifestError> {
        let failed = |source| ManifestError::NoGit { directory: self.directory.clone(), source };
        // Hooks set these for another repository.
        for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
            command.env_remove(name);
        }
        command.env("LC_ALL", "C").stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
        let mut child = command.spawn().map_err(failed)?;
        let stdin = child.stdin.take();
        let output = std::thread::scope(|scope| {
            scope.spawn(move || {
                if let (Some(mut stdin), Some(input)) = (stdin, input) {
                    // If git stops reading, its exit code gives the reason.
                    let _ = stdin.write_all(&input);
                }
            });
            child.wait_with_output()
        });
        let output = output.map_err(failed)?;
        if output.status.code().is_some_and(|code| success.contains(&code)) {
            return Ok(output.stdout);
        }
        let message = String::from_utf8_lossy(&output.stderr);
        let message = message.trim().strip_prefix("fatal: ").unwrap_or(message.trim()).to_owned();
        Err(ManifestError::Git { directory: self.directory.clone(), message })
    }
}

/// A repository without content, removed when dropped.
struct EmptyRepository(PathBuf);

impl EmptyRepository {
    fn new() -> io::Result<Self> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let path = std::env::temp_dir().join(format!("warren-list-{:016x}", u64::from_ne_bytes(random)));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for EmptyRepository {
    fn drop(&mut self) {
        // A remainder in the directory for temporary files is harmless.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A path's type.
#[derive(Debug)]
pub(super) enum Found {
    Entry(Entry),
    Directory,
    /// A device, pipe or socket.
    Special,
}

pub(crate) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens a path below a directory. No component may be a symbolic link, the last one only with
/// `O_PATH`.
pub(crate) fn open_beneath(directory: &OwnedFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    // With `O_PATH | O_NOFOLLOW` the kernel would still refuse a link as the last component, so it
    // is opened from its parent.
    let (parent, name) = (path.parent(), path.file_name());
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match (parent.filter(|parent| !parent.as_os_str().is_empty()), name) {
        (Some(parent), Some(name)) => {
            let way = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let parent = rustix::fs::openat2(directory, parent, way, Mode::empty(), resolve)?;
            Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
        }
        _ => Ok(rustix::fs::openat(directory, path, flags, Mode::empty())?),
    }
}

/// Returns the type of a path below a root. A path through a symbolic link counts as missing, as in
/// git.
pub(super) fn stat(root: &OwnedFd, path: &Path) -> io::Result<Option<Found>> {
    let file = match open_beneath(root, path, OFlags::PATH) {
        Ok(file) => file,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let status = rustix::fs::fstat(&file)?;
    Ok(Some(match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile => Found::Entry(Entry::File {
            size: u64::try_from(status.st_size).unwrap_or_default(),
            executable: status.st_mode & 0o100 != 0,
            modified: u64::try_from(status.st_mtime).unwrap_or_default(),
        }),
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(&file, "", Vec::new())?;
            Found::Entry(Entry::Link { target: OsString::from_vec(target.into_bytes()).into() })
        }
        FileType::Directory => Found::Directory,
        _ => Found::Special,
    }))
}

pub(crate) fn is_missing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let missing = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP, Errno::XDEV];
    Errno::from_io_error(error).is_some_and(|errno| missing.contains(&errno))
}

/// Returns the SHA-256 of a file below a root.
pub(super) fn digest_of(root: &OwnedFd, path: &Path) -> io::Result<Digest> {
    let mut file = File::from(open_beneath(root, path, OFlags::RDONLY)?);
    digest(&mut file)
}

/// Returns the SHA-256 of the rest of a reader.
pub(super) fn digest(reader: &mut impl io::Read) -> io::Result<Digest> {
    let mut context = Context::new(&SHA256);
    let mut buffer = vec![0; CHUNK];
    loop {
        match reader.read(&mut buffer)? {
            0 => return Ok(finish(context)),
            length => context.update(&buffer[..length]),
        }
    }
}

pub(super) fn finish(context: Context) -> Digest {
    let mut digest = Digest::default();
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

#[cfg(test)]
mod tests;
