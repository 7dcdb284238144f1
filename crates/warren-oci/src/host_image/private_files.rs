//! Finds files of the system directories that not every user of the host may read. The host's root
//! is mapped to the container's, so permissions would let the container's root read them. They must
//! be hidden instead.
//!
//! Checking every file takes a moment, so it runs beside the daemon's start, and the first
//! container waits for it.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{AtFlags, FileType, Mode};
use warren_sys::mount;

/// Layers that hide private files, one for each system directory that needs one.
#[derive(Debug, Clone)]
pub(super) struct Covers {
    found: Arc<OnceLock<Result<Vec<Cover>, String>>>,
}

/// A layer on top of a system directory.
#[derive(Debug, Clone)]
struct Cover {
    directory: PathBuf,
    layer: PathBuf,
}

impl Covers {
    /// Starts to search `directories`. Layers are made below `place`.
    pub(super) fn begin(directories: Vec<PathBuf>, place: PathBuf) -> Self {
        let covers = Self { found: Arc::default() };
        let looking = covers.clone();
        let work = move || {
            looking.found.get_or_init(|| make_all(&directories, &place).map_err(|error| error.to_string()));
        };
        if std::thread::Builder::new().name("private-files".to_owned()).spawn(work.clone()).is_err() {
            work();
        }
        covers
    }

    /// Returns the layer for `directory`, if it has private files. Waits for the end of the search.
    pub(super) fn of(&self, directory: &Path) -> Option<PathBuf> {
        match self.found.wait() {
            Ok(covers) => {
                covers.iter().find(|cover| cover.directory == directory).map(|cover| cover.layer.clone())
            }
            // Return a layer that does not exist: the container then fails to start instead of
            // exposing private files.
            Err(error) => Some(PathBuf::from(format!("/the private files could not be found: {error}"))),
        }
    }
}

fn make_all(directories: &[PathBuf], place: &Path) -> io::Result<Vec<Cover>> {
    let mut covers = Vec::new();
    for directory in directories {
        // Search without the mounts below the directory, as containers see it. An ordinary user may
        // not copy a mount, but does not see other users' private files inside either.
        let copy = mount::copy_mount(directory, false).ok();
        let root = copy.as_ref().map_or(directory.clone(), descriptor_path);
        let mut private = Vec::new();
        find_private(&root, Path::new(""), &mut private)?;
        if private.is_empty() {
            continue;
        }
        private.sort();
        let layer = place.join(name_of(directory, &private));
        if !layer.is_dir() {
            make_layer(&root, &private, &layer)?;
        }
        covers.push(Cover { directory: directory.clone(), layer });
    }
    Ok(covers)
}

fn descriptor_path(descriptor: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
}

/// Collects the files that other users may not read, and the directories that they may not list or
/// enter.
fn find_private(root: &Path, below: &Path, private: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(below))? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let path = below.join(entry.file_name());
        if kind.is_symlink() {
            continue;
        }
        let needed = if kind.is_dir() { 0o005 } else { 0o004 };
        match entry.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // A file that cannot be checked is private.
            Err(_) => private.push(path),
            Ok(metadata) if metadata.permissions().mode() & needed != needed => private.push(path),
            Ok(_) if kind.is_dir() => find_private(root, &path, private)?,
            Ok(_) => {}
        }
    }
    Ok(())
}

/// Returns a layer's name, a hash of its list. Layers are never changed, because running containers
/// use them.
fn name_of(directory: &Path, private: &[PathBuf]) -> String {
    // FNV-1a, as for the skeleton.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let names = std::iter::once(directory).chain(private.iter().map(PathBuf::as_path));
    for byte in names.flat_map(|name| name.as_os_str().as_bytes().iter().chain(b"\0")) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("cover-{hash:016x}")
}

fn make_layer(root: &Path, private: &[PathBuf], layer: &Path) -> io::Result<()> {
    let unfinished = layer.with_extension("unfinished");
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished)?;
    }
    if let Some(parent) = unfinished.parent() {
        fs::create_dir_all(parent)?;
    }
    make_directory(root, &unfinished)?;
    for path in private {
        let mut so_far = PathBuf::new();
        for part in path.parent().into_iter().flat_map(Path::components) {
            so_far.push(part);
            if !unfinished.join(&so_far).is_dir() {
                make_directory(&root.join(&so_far), &unfinished.join(&so_far))?;
            }
        }
        // An overlay takes this as a whiteout: the path does not exist, whatever is below.
        let (target, mode) = (unfinished.join(path), Mode::empty());
        rustix::fs::mknodat(rustix::fs::CWD, &target, FileType::CharacterDevice, mode, 0)?;
    }
    fs::rename(&unfinished, layer)
}

/// Makes a directory of a layer with the owner and mode of the one below it.
fn make_directory(like: &Path, path: &Path) -> io::Result<()> {
    let metadata = fs::metadata(like)?;
    fs::create_dir(path)?;
    match chown(path, Some(metadata.uid()), Some(metadata.gid())) {
        // Ordinary users cannot change owners. In their user namespace the owner does not even
        // exist.
        Err(error) if !is_about_owners(&error) => return Err(error),
        _ => {}
    }
    fs::set_permissions(path, fs::Permissions::from_mode(metadata.mode() & 0o7777))?;
    let modified = rustix::fs::Timespec { tv_sec: metadata.mtime(), tv_nsec: metadata.mtime_nsec() };
    let times = rustix::fs::Timestamps { last_access: modified, last_modification: modified };
    Ok(rustix::fs::utimensat(rustix::fs::CWD, path, &times, AtFlags::empty())?)
}

fn is_about_owners(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, mode: u32) {
        fs::write(path, "x").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_others_may_not_read_is_covered_and_nothing_else() {
        let host = tempfile::tempdir().unwrap();
        let make = |name: &str, mode| {
            fs::create_dir_all(host.path().join(name)).unwrap();
            fs::set_permissions(host.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        make("share/deep", 0o755);
        make("closed", 0o700);
        make("unlisted", 0o711);
        write(&host.path().join("share/deep/open"), 0o644);
        write(&host.path().join("share/deep/secret"), 0o640);
        write(&host.path().join("closed/inner"), 0o644);
        std::os::unix::fs::symlink("/etc/shadow", host.path().join("share/link")).unwrap();

        let place = tempfile::tempdir().unwrap();
        let covers = Covers::begin(vec![host.path().to_owned()], place.path().to_owned());
        let layer = covers.of(host.path()).expect("something is private");
        let mut found = Vec::new();
        fn list(directory: &Path, found: &mut Vec<(PathBuf, bool)>) {
            for entry in fs::read_dir(directory).unwrap() {
                let entry = entry.unwrap();
                let is_directory = entry.file_type().unwrap().is_dir();
                found.push((entry.path(), is_directory));
                if is_directory {
                    list(&entry.path(), found);
                }
            }
        }
        list(&layer, &mut found);
        let mut found: Vec<(String, bool)> = found
            .into_iter()
            .map(|(path, kind)| (path.strip_prefix(&layer).unwrap().display().to_string(), kind))
            .collect();
        found.sort();
        let expected = [
            ("closed", false),
            ("share", true),
            ("share/deep", true),
            ("share/deep/secret", false),
            ("unlisted", false),
        ];
        assert_eq!(found, expected.map(|(name, kind)| (name.to_owned(), kind)));
        let again = Covers::begin(vec![host.path().to_owned()], place.path().to_owned());
        assert_eq!(again.of(host.path()), Some(layer));
        assert_eq!(again.of(Path::new("/elsewhere")), None);
    }
}
