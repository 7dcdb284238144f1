//! File operations whose errors name the action and the path.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The error of a file operation.
#[derive(Debug, thiserror::Error)]
#[error("{action} `{}`", path.display())]
pub struct FileError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl FileError {
    /// Returns true if the file does not exist.
    pub fn is_not_found(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

/// Builds the argument of `map_err`, with the action and the path.
pub(crate) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError { action, path, source }
}

/// Creates a directory and its parents, closed to other users.
pub(crate) fn create_private_directory(path: &Path) -> Result<(), FileError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed("create directory", path))
}

/// Writes a file that only its owner may read.
pub(crate) fn write_private(path: &Path, contents: impl AsRef<[u8]>) -> Result<(), FileError> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(contents.as_ref()))
        .map_err(failed("write", path))
}

/// Removes a directory with all its contents. A missing one is no error.
pub(crate) fn remove_directory(path: &Path) -> Result<(), FileError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}
