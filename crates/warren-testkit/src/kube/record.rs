//! The record of a control plane on disk, with which other processes list and end it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::files::{FileError, failed, remove_directory, write_private};
use crate::kube::cache::directories_in;
use crate::kube::process::{EndError, ProcessIdentity, boot_id, end_and_wait};

/// The time limit for killed processes to end. The kernel needs milliseconds; a swapping machine
/// needs more.
const PATIENCE: Duration = Duration::from_secs(30);

const FILE: &str = "record.json";

/// `record.json` in a control plane's directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// The Kubernetes release.
    pub version: String,
    /// The URL of the API server.
    pub server: String,
    /// The kubectl of the same release.
    pub kubectl: PathBuf,
    /// True if etcd syncs each write to disk.
    pub fsync: bool,
    /// True if it ends with the process that wants it, and not by `down`.
    pub until_stdin_closes: bool,
    /// The boot to which the processes below belong.
    pub boot_id: String,
    /// The parent of the components. They end when it does.
    pub supervisor: ProcessIdentity,
    /// The components, in the order of their start.
    pub components: Vec<ProcessIdentity>,
}

/// An error of ending a control plane.
#[derive(Debug, thiserror::Error)]
pub enum DownError {
    /// The directory was not made by `up`, so nothing in it is touched.
    #[error("`{}` holds no control plane", .0.display())]
    NoControlPlane(PathBuf),
    /// The record is unreadable.
    #[error("`{}` is damaged; nothing was ended", path.display())]
    Damaged {
        /// The path of the record.
        path: PathBuf,
        /// The parse error.
        #[source]
        source: serde_json::Error,
    },
    /// A process could not be ended. The directory still exists.
    #[error(transparent)]
    End(#[from] EndError),
    /// The directory could not be read or removed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A control plane found by `list`.
#[derive(Debug)]
pub struct Listed {
    /// Its directory.
    pub directory: PathBuf,
    /// Its record.
    pub record: Record,
    /// True if its supervisor runs.
    pub running: bool,
}

impl Record {
    /// Reads the record of the control plane in `directory`.
    pub fn load(directory: &Path) -> Result<Self, DownError> {
        let path = directory.join(FILE);
        let bytes = match fs::read(&path).map_err(failed("read", &path)) {
            Err(error) if error.is_not_found() => {
                return Err(DownError::NoControlPlane(directory.to_owned()));
            }
            bytes => bytes?,
        };
        serde_json::from_slice(&bytes).map_err(|source| DownError::Damaged { path, source })
    }

    /// Writes the record atomically.
    pub(crate) fn store(&self, directory: &Path) -> Result<(), FileError> {
        let path = directory.join(FILE);
        let next = directory.join(".record.json.next");
        // A path that is not valid text cannot be written as JSON.
        let text =
            serde_json::to_string_pretty(self).map_err(|error| failed("write", &path)(error.into()))?;
        write_private(&next, text)?;
        fs::rename(&next, &path).map_err(failed("move into place", &path))
    }

    /// Returns all processes that may still run, the supervisor first.
    pub fn processes(&self) -> Vec<ProcessIdentity> {
        if self.boot_id != boot_id() {
            return Vec::new();
        }
        std::iter::once(&self.supervisor).chain(&self.components).cloned().collect()
    }
}

/// Returns the control planes below `run` with a readable record. One that is being created has
/// none yet.
pub fn list(run: &Path) -> Result<Vec<Listed>, FileError> {
    let mut found = Vec::new();
    for directory in directories_in(run)? {
        if let Ok(record) = Record::load(&directory) {
            let running = record.processes().first().is_some_and(ProcessIdentity::is_running);
            found.push(Listed { directory, record, running });
        }
    }
    Ok(found)
}

/// Returns the directory of a control plane, given it or the kubeconfig inside it.
pub fn directory_of(target: &Path) -> PathBuf {
    match target.parent() {
        Some(parent) if target.is_file() => parent.to_owned(),
        _ => target.to_owned(),
    }
}

/// Ends exactly the recorded processes of the control plane in `directory`, and removes the
/// directory.
///
/// A second call is an error. A call after the processes have died is not.
pub fn down(directory: &Path) -> Result<(), DownError> {
    let record = Record::load(directory)?;
    // End the supervisor first: then it starts nothing more, and the kernel kills its components.
    end_and_wait(&record.processes(), PATIENCE)?;
    // It may have started one more component after the record was read.
    end_and_wait(&Record::load(directory)?.processes(), PATIENCE)?;
    Ok(remove_directory(directory)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_not_ours_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("precious"), "").unwrap();
        let error = down(directory.path()).unwrap_err();
        assert!(matches!(error, DownError::NoControlPlane(_)), "{error}");
        fs::write(directory.path().join(FILE), "{").unwrap();
        let error = down(directory.path()).unwrap_err();
        assert!(matches!(error, DownError::Damaged { .. }), "{error}");
        assert!(directory.path().join("precious").exists());
    }

    #[test]
    fn processes_of_another_boot_are_not_ours() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("1");
        fs::create_dir(&place).unwrap();
        let ourselves = ProcessIdentity::of("test", std::process::id()).unwrap();
        let record = Record {
            version: "v1".into(),
            server: "https://127.0.0.1:1".into(),
            kubectl: "/kubectl".into(),
            fsync: false,
            until_stdin_closes: false,
            boot_id: "another".into(),
            supervisor: ourselves.clone(),
            components: vec![ourselves],
        };
        record.store(&place).unwrap();
        assert!(!list(directory.path()).unwrap()[0].running);
        down(&place).unwrap();
        assert!(!place.exists());
    }

    #[test]
    fn a_kubeconfig_stands_for_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        fs::write(&kubeconfig, "").unwrap();
        assert_eq!(directory_of(&kubeconfig), directory.path());
        assert_eq!(directory_of(directory.path()), directory.path());
    }
}
