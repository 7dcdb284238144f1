//! Views of directories of this machine: what a sandbox has changed in one, and taking that over.
//!
//! The node sends the changes as a layer of an OCI image. They come from a sandbox, which is hostile:
//! each entry is judged as in [`back`], nothing in `.git` is ever taken over, and no link is followed.
//! Only the local home has views.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use futures::AsyncReadExt as _;
use http::Request;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use rustix::fs::{AtFlags, Dir, FileType, OFlags};
use tar::EntryType;
use tokio::io::AsyncWriteExt as _;
use warren_api::view;

use crate::sync::Place;
use crate::sync::back::{self, BackError, Incoming, check_link, check_path, printable};
use crate::sync::manifest::{is_missing, open_beneath, open_directory};

/// The only node of a local home.
const NODE: &str = "local";
/// The archive's own share beside the content of files.
const MOST_ARCHIVE_BYTES: u64 = back::MOST_BYTES + (256 << 20);
/// More than this is not taken from a sandbox.
const MOST_ENTRIES: usize = 200_000;
/// How deep directories may lie in each other.
const DEEPEST: usize = 256;
/// The prefix of entries that are no files, and the two of them that are not about one name.
const MARK: &str = ".wh.";
const OPAQUE: &str = ".wh..wh..opq";
const END: &str = ".wh..wh.end";

/// A view of a directory of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The volume.
    pub volume: String,
    /// The directory that is shown.
    pub directory: PathBuf,
}

/// Returns the views that a container of a pod has.
pub fn of_container(pod: &Pod, container: &str) -> Vec<View> {
    let spec = pod.spec.as_ref();
    let containers = spec.iter().flat_map(|spec| &spec.containers);
    let mounts: Vec<&str> = containers
        .filter(|known| known.name == container)
        .flat_map(|known| known.volume_mounts.iter().flatten())
        .map(|mount| mount.name.as_str())
        .collect();
    let volumes = spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let views = volumes.filter(|volume| mounts.contains(&volume.name.as_str())).filter_map(|volume| {
        Some(View { volume: volume.name.clone(), directory: view::path(volume)?.into() })
    });
    views.collect()
}

/// The changes in a view could not be fetched or taken over.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// The server or the node refused.
    #[error("fetch what the sandbox changed in `{}`: {message}", directory.display())]
    Refused {
        /// The directory.
        directory: PathBuf,
        /// What was said.
        message: String,
    },
    /// The server did not answer as expected.
    #[error("fetch what the sandbox changed in `{}`", directory.display())]
    Api {
        /// The directory.
        directory: PathBuf,
        /// Why it failed.
        #[source]
        source: Box<kube::Error>,
    },
    /// The answer broke off, or there is no room for it.
    #[error("fetch what the sandbox changed in `{}`", directory.display())]
    Receive {
        /// The directory.
        directory: PathBuf,
        /// The underlying I/O error.
        #[source]
        source: io::Error,
    },
    /// It must not be written here, or cannot.
    #[error(transparent)]
    Back(#[from] BackError),
}

/// Fetches what a container has changed in a view, into a file.
pub async fn fetch(client: &Client, place: &Place, view: &View, archive: File) -> Result<(), ViewError> {
    let Place { namespace, pod, container } = place;
    let directory = || view.directory.clone();
    let receiving = |source| ViewError::Receive { directory: view.directory.clone(), source };
    let mut request = Request::new(Vec::new());
    // Names of Kubernetes need no quoting.
    let path = format!("/api/v1/nodes/{NODE}/proxy/views/{namespace}/{pod}/{container}/{}", view.volume);
    *request.uri_mut() = path.parse().map_err(io::Error::other).map_err(receiving)?;
    let answer = client.request_stream(request).await.map_err(|error| match error {
        kube::Error::Api(status) => {
            ViewError::Refused { directory: directory(), message: status.message.trim().to_owned() }
        }
        source => ViewError::Api { directory: directory(), source: Box::new(source) },
    })?;
    let mut answer = std::pin::pin!(answer.take(MOST_ARCHIVE_BYTES + 1));
    let mut file = tokio::fs::File::from_std(archive);
    let mut chunk = vec![0; 64 << 10];
    let mut total = 0;
    loop {
        let length = answer.read(&mut chunk).await.map_err(receiving)?;
        if length == 0 {
            break;
        }
        total += length as u64;
        if total > MOST_ARCHIVE_BYTES {
            return Err(receiving(io::Error::new(io::ErrorKind::FileTooLarge, "it is more than 1 GiB")));
        }
        file.write_all(&chunk[..length]).await.map_err(receiving)?;
    }
    file.flush().await.map_err(receiving)
}

/// What has become of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// It is not here.
    Added,
    /// It is another one here.
    Modified,
    /// It is here and not in the sandbox.
    Deleted,
}

/// What a sandbox has changed in a view, compared with the directory as it is now.
#[derive(Debug)]
pub struct Changes {
    archive: File,
    index: BTreeMap<PathBuf, Incoming>,
    /// Entries that must not be written, with their fault.
    faults: BTreeMap<PathBuf, &'static str>,
    /// When the view was made, in nanoseconds since 1970.
    made: i128,
    /// The changed files.
    pub files: BTreeMap<PathBuf, Change>,
    /// True if something in `.git` was changed, which is never taken over.
    pub has_git: bool,
}

impl Changes {
    /// Reads what [`fetch`] wrote, and compares it with the directory.
    pub fn read(root: &Path, mut archive: File) -> Result<Self, BackError> {
        let mut layer = Layer::read(&mut archive)?;
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| BackError::Write { path, source }
        };
        let directory = open_directory(root).map_err(failed(root))?;
        let mut files = BTreeMap::new();
        for (path, incoming) in &layer.index {
            let here = match back::describe_local(&directory, path) {
                Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                    layer.faults.insert(path.clone(), "is a directory here");
                    files.insert(path.clone(), Change::Modified);
                    continue;
                }
                here => here.map_err(failed(path))?,
            };
            let there = back::describe(&mut archive, incoming).map_err(BackError::Archive)?;
            if here.as_ref() != Some(&there) {
                files.insert(path.clone(), if here.is_some() { Change::Modified } else { Change::Added });
            }
        }
        for path in &layer.faults.keys().cloned().collect::<Vec<_>>() {
            files.entry(path.clone()).or_insert(Change::Added);
        }
        for path in layer.gone.iter().chain(&layer.replaced) {
            let mut found = Vec::new();
            list(&directory, path, 0, &mut found).map_err(failed(path))?;
            for path in found {
                let is_there = layer.index.contains_key(&path) || layer.faults.contains_key(&path);
                if !is_there && check_path(&path).is_ok() {
                    files.insert(path, Change::Deleted);
                }
            }
        }
        let Layer { index, faults, made, has_git, .. } = layer;
        Ok(Self { archive, index, faults, made, files, has_git })
    }

    /// Writes the changed files beneath the directory, deletes those that are gone, and returns their
    /// number. A file that was changed here since the view was made stops it, unless `overwrite`; so
    /// does one that must not be written. Then nothing is written.
    pub fn apply(mut self, root: &Path, overwrite: bool) -> Result<usize, BackError> {
        for path in self.files.keys() {
            if let Some(fault) = self.faults.get(path) {
                return Err(BackError::Refused { name: printable(path), fault });
            }
        }
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| BackError::Write { path, source }
        };
        let directory = open_directory(root).map_err(failed(root))?;
        if !overwrite {
            let mut conflicts = Vec::new();
            for path in
                self.files.iter().filter(|(_, change)| **change != Change::Added).map(|(path, _)| path)
            {
                if changed_since(&directory, path, self.made).map_err(failed(path))? {
                    conflicts.push(path.clone());
                }
            }
            if !conflicts.is_empty() {
                return Err(BackError::Conflict { paths: conflicts });
            }
        }
        let gone = self.files.iter().filter(|(_, change)| **change == Change::Deleted);
        for (path, _) in gone {
            delete(&directory, path).map_err(failed(path))?;
        }
        let written: Vec<PathBuf> =
            self.files.keys().filter(|path| self.index.contains_key(*path)).cloned().collect();
        back::write(root, &mut self.archive, &self.index, &written)?;
        Ok(self.files.len())
    }
}

/// The entries of a layer.
#[derive(Debug, Default)]
struct Layer {
    index: BTreeMap<PathBuf, Incoming>,
    faults: BTreeMap<PathBuf, &'static str>,
    /// Names that are gone, files or directories.
    gone: BTreeSet<PathBuf>,
    /// Directories of which nothing is left but what the layer has.
    replaced: BTreeSet<PathBuf>,
    made: i128,
    has_git: bool,
}

impl Layer {
    fn read(archive: &mut File) -> Result<Self, BackError> {
        archive.seek(SeekFrom::Start(0)).map_err(BackError::Archive)?;
        let mut layer = Self::default();
        let mut is_whole = false;
        let mut reader = tar::Archive::new(&mut *archive);
        for (number, entry) in reader.entries().map_err(BackError::Archive)?.enumerate() {
            let mut entry = entry.map_err(BackError::Archive)?;
            let name = entry.path().map_err(BackError::Archive)?.into_owned();
            if number >= MOST_ENTRIES {
                return Err(BackError::Refused { name: printable(&name), fault: "is one file too many" });
            }
            if name == Path::new(END) {
                let mut text = String::new();
                (&mut entry).take(64).read_to_string(&mut text).map_err(BackError::Archive)?;
                is_whole = text.parse().map(|made| layer.made = made).is_ok();
                continue;
            }
            let link = entry.link_name().map_err(BackError::Archive)?.map(|link| link.into_owned());
            let (kind, size) = (entry.header().entry_type(), entry.size());
            let mode = entry.header().mode().map_err(BackError::Archive)?;
            layer.add(&name, kind, link, (entry.raw_file_position(), size, mode));
        }
        match is_whole {
            true => Ok(layer),
            false => Err(BackError::Archive(io::Error::new(io::ErrorKind::UnexpectedEof, "it broke off"))),
        }
    }

    fn add(
        &mut self,
        name: &Path,
        kind: EntryType,
        link: Option<PathBuf>,
        (offset, size, mode): (u64, u64, u32),
    ) {
        let path = match check_path(name) {
            Ok(path) => path,
            Err(_) if name.iter().any(|part| part.eq_ignore_ascii_case(".git")) => {
                self.has_git = true;
                return;
            }
            Err(fault) => {
                self.faults.insert(name.to_owned(), fault);
                return;
            }
        };
        let parent = path.parent().unwrap_or(Path::new(""));
        let last = path.file_name().unwrap_or_default();
        if last == OPAQUE {
            self.replaced.insert(parent.to_owned());
            return;
        }
        if let Some(gone) = last.as_bytes().strip_prefix(MARK.as_bytes()) {
            let is_name = !matches!(gone, b"" | b"." | b"..");
            match check_path(&parent.join(std::ffi::OsStr::from_bytes(gone))) {
                Ok(gone) if is_name => {
                    self.gone.insert(gone);
                }
                Err(_) if is_name => self.has_git = true,
                _ => {}
            }
            return;
        }
        let incoming = match (kind, link) {
            (EntryType::Directory, _) => return,
            (EntryType::Regular, _) => Incoming::File { offset, size, executable: mode & 0o100 != 0 },
            (EntryType::Symlink, Some(target)) => match check_link(&path, &target) {
                Ok(()) => Incoming::Link { target },
                Err(fault) => {
                    self.faults.insert(path, fault);
                    return;
                }
            },
            _ => {
                self.faults.insert(path, "is neither a file nor a link");
                return;
            }
        };
        self.index.insert(path, incoming);
    }
}

/// Lists the files at a path here, or in the directory there. No link is followed.
fn list(root: &OwnedFd, path: &Path, depth: usize, found: &mut Vec<PathBuf>) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW;
    let opened = match path.as_os_str().is_empty() {
        true => open_beneath(root, Path::new("."), flags),
        false => open_beneath(root, path, flags),
    };
    let opened = match opened {
        // Also behind a link, which is not followed.
        Err(error) if is_missing(&error) => return Ok(()),
        opened => opened?,
    };
    if !FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode).is_dir() {
        found.push(path.to_owned());
        return Ok(());
    }
    if depth > DEEPEST || found.len() > MOST_ENTRIES {
        return Err(io::Error::other("there are too many files in it"));
    }
    let readable = open_beneath(&opened, Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY)?;
    for entry in Dir::read_from(&readable)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            list(root, &path.join(std::ffi::OsStr::from_bytes(name)), depth + 1, found)?;
        }
    }
    Ok(())
}

/// Returns true if a file was changed, or took another's place, after a time.
fn changed_since(root: &OwnedFd, path: &Path, time: i128) -> io::Result<bool> {
    let found = match open_beneath(root, path, OFlags::PATH | OFlags::NOFOLLOW) {
        Err(error) if is_missing(&error) => return Ok(false),
        found => found?,
    };
    let stat = rustix::fs::fstat(&found)?;
    Ok(i128::from(stat.st_ctime) * 1_000_000_000 + i128::from(stat.st_ctime_nsec) > time)
}

/// Deletes a file, and the directories that are empty without it.
fn delete(root: &OwnedFd, path: &Path) -> io::Result<()> {
    let way = OFlags::PATH | OFlags::DIRECTORY;
    let mut flags = AtFlags::empty();
    for path in path.ancestors().filter(|path| !path.as_os_str().is_empty()) {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = open_beneath(root, parent, way)?;
        match rustix::fs::unlinkat(&parent, name, flags) {
            Ok(()) => {}
            Err(rustix::io::Errno::NOTEMPTY | rustix::io::Errno::EXIST) if flags == AtFlags::REMOVEDIR => {
                break;
            }
            Err(error) => return Err(error.into()),
        }
        flags = AtFlags::REMOVEDIR;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
