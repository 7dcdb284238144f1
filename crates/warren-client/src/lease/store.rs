//! Stores the records of leases in files: one for each, written atomically, with a lock file beside
//! it.
//!
//! A record is on disk before its object is created, so a killed client leaves no unknown objects.
//! To use or end a lease, a process takes its lock and reads the record again. The lock works
//! across processes.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::{ID_PREFIX, Lease};

/// The longest record that is read; real ones have a few kilobytes.
const LARGEST_RECORD: u64 = 64 << 10;

/// The error of a record that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{action} `{}`", path.display())]
pub struct StoreError {
    /// The action that failed, as a verb.
    pub action: &'static str,
    /// The file.
    pub path: PathBuf,
    /// The underlying I/O error.
    #[source]
    pub source: io::Error,
}

/// The directory of leases of one user.
#[derive(Clone, Debug)]
pub struct LeaseStore {
    directory: PathBuf,
}

/// A lock on one lease, or on the directory. It is released when this is dropped or the process
/// ends.
#[derive(Debug)]
pub struct LeaseLock {
    _file: File,
}

impl LeaseStore {
    /// Opens the directory of leases in a state directory, and makes both if they are missing.
    pub fn open(state: &Path) -> Result<Self, StoreError> {
        let directory = state.join("leases");
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        made.map_err(failed("make the directory", &directory))?;
        Ok(Self { directory })
    }

    /// Reads all records, the oldest first. Unreadable ones are returned as errors, so that they
    /// are never removed silently.
    pub fn list(&self) -> Result<(Vec<Lease>, Vec<StoreError>), StoreError> {
        let reading = || failed("list", &self.directory);
        let mut leases = Vec::new();
        let mut faults = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(reading())? {
            let path = entry.map_err(reading())?.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            if path.extension().is_none_or(|extension| extension != "json") || !stem.starts_with(ID_PREFIX) {
                continue;
            }
            match read(&path) {
                Ok(Some(lease)) => leases.push(lease),
                Ok(None) => {}
                Err(error) => faults.push(error),
            }
        }
        leases.sort_by(|one, other| (one.created, &one.id).cmp(&(other.created, &other.id)));
        Ok((leases, faults))
    }

    /// Reads the record of a lease; `None` if it is gone.
    pub fn get(&self, id: &str) -> Result<Option<Lease>, StoreError> {
        read(&self.record(id))
    }

    /// Writes a record. After a crash the file has the old or the new one.
    pub fn write(&self, lease: &Lease) -> Result<(), StoreError> {
        let path = self.record(&lease.id);
        let fresh = self.directory.join(format!("{}.new", lease.id));
        let writing = || -> io::Result<()> {
            let mut options = fs::OpenOptions::new();
            let mut file = options.create(true).write(true).truncate(true).mode(0o600).open(&fresh)?;
            file.write_all(&serde_json::to_vec_pretty(lease)?)?;
            file.sync_all()?;
            fs::rename(&fresh, &path)?;
            File::open(&self.directory)?.sync_all()
        };
        writing().map_err(failed("write", &path))
    }

    /// Removes the record of a lease and its lock file: ids are never reused.
    pub fn remove(&self, lease: &Lease) -> Result<(), StoreError> {
        let path = self.record(&lease.id);
        let removing = || -> io::Result<()> {
            fs::remove_file(&path)?;
            let _ = fs::remove_file(self.lock_file(&lease.id));
            File::open(&self.directory)?.sync_all()
        };
        removing().map_err(failed("remove", &path))
    }

    /// Locks a lease unless another process holds the lock.
    pub fn try_lock(&self, id: &str) -> Result<Option<LeaseLock>, StoreError> {
        let path = self.lock_file(id);
        let file = open_lock(&path).map_err(failed("open", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(LeaseLock { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(failed("lock", &path)(error.into())),
        }
    }

    /// Locks a lease; blocks until that is possible.
    pub fn lock(&self, id: &str) -> Result<LeaseLock, StoreError> {
        lock(&self.lock_file(id))
    }

    /// Locks the directory, to choose an unused slug.
    pub fn lock_all(&self) -> Result<LeaseLock, StoreError> {
        lock(&self.directory.join("slugs.lock"))
    }

    fn record(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{id}.json"))
    }

    fn lock_file(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{id}.lock"))
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError { action, path, source }
}

fn read(path: &Path) -> Result<Option<Lease>, StoreError> {
    let reading = || -> io::Result<Lease> {
        let mut bytes = Vec::new();
        File::open(path)?.take(LARGEST_RECORD).read_to_end(&mut bytes)?;
        Ok(serde_json::from_slice(&bytes)?)
    };
    match reading() {
        Ok(lease) => Ok(Some(lease)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read the lease", path)(error)),
    }
}

fn open_lock(path: &Path) -> io::Result<File> {
    fs::OpenOptions::new().create(true).write(true).truncate(false).mode(0o600).open(path)
}

fn lock(path: &Path) -> Result<LeaseLock, StoreError> {
    let file = open_lock(path).map_err(failed("open", path))?;
    loop {
        match flock(&file, FlockOperation::LockExclusive) {
            Ok(()) => return Ok(LeaseLock { _file: file }),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed("lock", path)(error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::tests::lease;

    #[test]
    fn record_is_read_as_it_was_written_and_an_unreadable_one_is_told() {
        let directory = tempfile::tempdir().expect("make a directory");
        let store = LeaseStore::open(directory.path()).expect("open");
        store.write(&lease()).expect("write");
        assert_eq!(store.get(&lease().id).expect("read"), Some(lease()));
        fs::write(directory.path().join("leases/asbx_bad.json"), "{").expect("write");
        let (leases, faults) = store.list().expect("list");
        assert_eq!((leases, faults.len()), (vec![lease()], 1));
        store.remove(&lease()).expect("remove");
        assert_eq!(store.get(&lease().id).expect("read"), None);
    }

    #[test]
    fn lock_is_held_by_one_at_a_time() {
        let directory = tempfile::tempdir().expect("make a directory");
        let store = LeaseStore::open(directory.path()).expect("open");
        let held = store.try_lock("asbx_a").expect("lock").expect("it is free");
        assert!(store.try_lock("asbx_a").expect("lock").is_none());
        assert!(store.try_lock("asbx_b").expect("lock").is_some());
        drop(held);
        store.lock("asbx_a").expect("lock");
    }
}
