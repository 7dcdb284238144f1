//! Takes files from a sandbox, which is hostile. Each entry of its archive is checked before
//! anything is written, and everything is written below one directory without following a symbolic
//! link.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use tar::EntryType;

use super::manifest::{Digest, Entry, Found, digest, digest_of, open_beneath, open_directory, stat};
use super::pack::{Sent, SentFiles};

/// The most bytes that are taken from a sandbox.
pub const MOST_BYTES: u64 = 1 << 30;

const MOST_ENTRIES: usize = 200_000;

/// The error of files that could not be taken over.
#[derive(Debug, thiserror::Error)]
pub enum BackError {
    /// The sandbox sent an entry that must not be written.
    #[error("the sandbox sent `{name}`, which {fault}; nothing was written")]
    Refused {
        /// The entry.
        name: String,
        /// Its problem.
        fault: &'static str,
    },
    /// The archive is broken, or too large.
    #[error("the archive from the sandbox cannot be read; nothing was written")]
    Archive(#[source] io::Error),
    /// Files were changed on both sides.
    #[error("changed here and in the sandbox: {}; nothing was written", names(paths))]
    Conflict {
        /// The files.
        paths: Vec<PathBuf>,
    },
    /// A file could not be written.
    #[error("write `{}`", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The underlying I/O error.
        #[source]
        source: io::Error,
    },
}

fn names(paths: &[PathBuf]) -> String {
    let mut text =
        paths.iter().take(5).map(|path| format!("`{}`", printable(path))).collect::<Vec<_>>().join(", ");
    if paths.len() > 5 {
        text += &format!(" and {} more", paths.len() - 5);
    }
    text
}

/// Returns a path without the control characters that a hostile sandbox could have put into it.
pub fn printable(path: &Path) -> String {
    path.to_string_lossy().chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

/// A file that a sandbox has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// A regular file, by the position of its content in the archive.
    File {
        /// The offset at which the content begins.
        offset: u64,
        /// Its length.
        size: u64,
        /// True if it may be executed.
        executable: bool,
    },
    /// A symbolic link to this path, which stays beneath the root.
    Link {
        /// The path.
        target: PathBuf,
    },
}

/// The decision about one file from a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Both sides are the same, or only this side has changed.
    Keep,
    /// Only the sandbox has changed it.
    Write,
    /// Both sides have changed it, in different ways.
    Conflict,
}

/// Decides about one file by the version that was sent to the sandbox, the present local one and
/// the one that came back.
pub fn judge(sent: Option<&Sent>, here: Option<&Sent>, back: &Sent) -> Verdict {
    if sent == Some(back) || here == Some(back) {
        Verdict::Keep
    } else if here == sent || here.is_none() && sent.is_none() {
        Verdict::Write
    } else {
        Verdict::Conflict
    }
}

/// Checks the name of an entry: relative, without `..`, and no part of it `.git`, whose files git
/// executes. Returns it without `.` components.
pub fn check_path(name: &Path) -> Result<PathBuf, &'static str> {
    let mut clean = PathBuf::new();
    for component in name.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(part) if is_git(part) => return Err("is git's own"),
            Component::Normal(part) => clean.push(part),
            Component::ParentDir => return Err("leads out of the directory by `..`"),
            Component::RootDir | Component::Prefix(_) => return Err("is an absolute path"),
        }
    }
    if clean.as_os_str().as_encoded_bytes().contains(&0) {
        return Err("has a zero byte in its name");
    }
    Ok(clean)
}

fn is_git(part: &OsStr) -> bool {
    part.eq_ignore_ascii_case(".git")
}

/// Checks that the target of a symbolic link at `path` is below the root. `..` is accepted only at
/// the beginning of the target: after the name of another link it would mean that link's own
/// parent.
pub fn check_link(path: &Path, target: &Path) -> Result<(), &'static str> {
    let fault = "is a link that leads out of the directory";
    let mut depth = path.components().count().saturating_sub(1);
    let mut descended = false;
    for component in target.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(part) if is_git(part) => return Err("is a link to git's own files"),
            Component::Normal(_) => descended = true,
            Component::ParentDir if descended => return Err("is a link with `..` behind a name"),
            Component::ParentDir => depth = depth.checked_sub(1).ok_or(fault)?,
            Component::RootDir | Component::Prefix(_) => return Err(fault),
        }
    }
    Ok(())
}

/// Reads the index of an archive from a sandbox, and refuses it if any entry is harmful.
pub fn read_index(archive: &mut File) -> Result<BTreeMap<PathBuf, Incoming>, BackError> {
    archive.seek(SeekFrom::Start(0)).map_err(BackError::Archive)?;
    let mut index = BTreeMap::new();
    let mut total = 0_u64;
    let mut reader = tar::Archive::new(&mut *archive);
    for (number, entry) in reader.entries().map_err(BackError::Archive)?.enumerate() {
        let entry = entry.map_err(BackError::Archive)?;
        let name = entry.path().map_err(BackError::Archive)?.into_owned();
        let refused = |fault| BackError::Refused { name: printable(&name), fault };
        let path = check_path(&name).map_err(refused)?;
        total = total.saturating_add(entry.size());
        if number >= MOST_ENTRIES {
            return Err(refused("is one file too many"));
        }
        if total > MOST_BYTES {
            return Err(refused("makes it more than 1 GiB"));
        }
        let link = entry.link_name().map_err(BackError::Archive)?;
        let incoming = match entry.header().entry_type() {
            EntryType::Directory => continue,
            _ if path.as_os_str().is_empty() => return Err(refused("has no name")),
            EntryType::Regular => Incoming::File {
                offset: entry.raw_file_position(),
                size: entry.size(),
                executable: entry.header().mode().map_err(BackError::Archive)? & 0o100 != 0,
            },
            EntryType::Symlink => {
                let target = link.ok_or_else(|| refused("is a link to nothing"))?.into_owned();
                check_link(&path, &target).map_err(refused)?;
                Incoming::Link { target }
            }
            // A hard link to an earlier file.
            EntryType::Link => {
                let target = check_path(&link.ok_or_else(|| refused("is a link to nothing"))?);
                let first = target.ok().and_then(|target| index.get(&target).cloned());
                first.ok_or_else(|| refused("is a hard link to a file that was not sent"))?
            }
            _ => return Err(refused("is neither a file nor a link")),
        };
        index.insert(path, incoming);
    }
    Ok(index)
}

/// The files to write, and the conflicts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Files that only the sandbox has changed.
    pub write: Vec<PathBuf>,
    /// Files that both sides have changed.
    pub conflicts: Vec<PathBuf>,
}

/// Compares an archive from a sandbox with the present files below `root` and with those that were
/// sent to the sandbox before.
pub fn plan(
    root: &Path,
    sent: &SentFiles,
    archive: &mut File,
    index: &BTreeMap<PathBuf, Incoming>,
) -> Result<Plan, BackError> {
    let writing = |path: &Path| {
        let path = path.to_owned();
        move |source| BackError::Write { path, source }
    };
    let directory = open_directory(root).map_err(writing(root))?;
    let mut plan = Plan::default();
    for (path, incoming) in index {
        let back = describe(archive, incoming).map_err(BackError::Archive)?;
        let here = describe_local(&directory, path).map_err(writing(path))?;
        match judge(sent.get(path), here.as_ref(), &back) {
            Verdict::Keep => {}
            Verdict::Write => plan.write.push(path.clone()),
            Verdict::Conflict => plan.conflicts.push(path.clone()),
        }
    }
    Ok(plan)
}

pub(crate) fn describe(archive: &mut File, incoming: &Incoming) -> io::Result<Sent> {
    Ok(match incoming {
        Incoming::File { offset, size, executable } => {
            Sent::File { digest: digest_at(archive, *offset, *size)?, executable: *executable }
        }
        Incoming::Link { target } => Sent::Link { target: target.clone() },
    })
}

fn digest_at(archive: &mut File, offset: u64, size: u64) -> io::Result<Digest> {
    archive.seek(SeekFrom::Start(offset))?;
    digest(&mut archive.take(size))
}

pub(crate) fn describe_local(root: &OwnedFd, path: &Path) -> io::Result<Option<Sent>> {
    Ok(match stat(root, path)? {
        None => None,
        Some(Found::Entry(Entry::File { executable, .. })) => {
            Some(Sent::File { digest: digest_of(root, path)?, executable })
        }
        Some(Found::Entry(Entry::Link { target })) => Some(Sent::Link { target }),
        Some(Found::Directory) => return Err(io::ErrorKind::IsADirectory.into()),
        Some(Found::Special) => return Err(io::Error::other("it is a special file here")),
    })
}

/// Writes files from an archive below `root`, each atomically.
pub fn write(
    root: &Path,
    archive: &mut File,
    index: &BTreeMap<PathBuf, Incoming>,
    paths: &[PathBuf],
) -> Result<(), BackError> {
    let directory =
        open_directory(root).map_err(|source| BackError::Write { path: root.to_owned(), source })?;
    for path in paths {
        if let Some(incoming) = index.get(path) {
            write_one(&directory, archive, path, incoming)
                .map_err(|source| BackError::Write { path: path.clone(), source })?;
        }
    }
    Ok(())
}

fn write_one(root: &OwnedFd, archive: &mut File, path: &Path, incoming: &Incoming) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let parent = make_parent(root, path.parent().unwrap_or(Path::new("")))?;
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let temporary = format!(".warren-{:016x}", u64::from_ne_bytes(random));
    let made = match incoming {
        Incoming::File { offset, size, executable } => {
            let mode = if *executable { 0o777 } else { 0o666 };
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&parent, &temporary, flags, Mode::from_raw_mode(mode))?;
            // A file that was closed to others stays so.
            let before = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).ok();
            if let Some(before) = before.filter(|before| FileType::from_raw_mode(before.st_mode).is_file()) {
                let read = before.st_mode & 0o444;
                let mode = before.st_mode & 0o666 | if *executable { read >> 2 } else { 0 };
                rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
            }
            archive.seek(SeekFrom::Start(*offset))?;
            let copied = io::copy(&mut archive.take(*size), &mut File::from(file));
            copied.and_then(|length| match length == *size {
                true => Ok(()),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            })
        }
        Incoming::Link { target } => Ok(rustix::fs::symlinkat(target, &parent, &temporary)?),
    };
    let renamed = made.and_then(|()| Ok(rustix::fs::renameat(&parent, &temporary, &parent, name)?));
    if renamed.is_err() {
        // Report the first error.
        let _ = rustix::fs::unlinkat(&parent, &temporary, AtFlags::empty());
    }
    renamed
}

/// Opens a directory below the root, and makes its missing parts.
fn make_parent(root: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let way = OFlags::PATH | OFlags::DIRECTORY;
    let mut directory = root.try_clone()?;
    for part in path {
        let part = Path::new(part);
        match rustix::fs::mkdirat(&directory, part, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        directory = open_beneath(&directory, part, way)?;
    }
    Ok(directory)
}

#[cfg(test)]
mod tests;
