//! The directory of a control plane.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::files::{FileError, create_private_directory, failed};
use crate::kube::cache::Cache;

/// The error if there is no directory for a control plane.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// The named directory is not empty.
    #[error("`{}` is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// The directory could not be created.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Creates the directory of a control plane: the named one, which must be empty, or a new one in
/// the cache.
///
/// Directories without an owner are removed first.
pub fn claim_directory(cache: &Cache, named: Option<&Path>) -> Result<PathBuf, ClaimError> {
    cache.sweep()?;
    if let Some(directory) = named {
        create_private_directory(directory)?;
        let directory = fs::canonicalize(directory).map_err(failed("resolve", directory))?;
        let mut entries = fs::read_dir(&directory).map_err(failed("read directory", &directory))?;
        return if entries.next().is_none() { Ok(directory) } else { Err(ClaimError::NotEmpty(directory)) };
    }
    create_private_directory(&cache.run())?;
    let run = fs::canonicalize(cache.run()).map_err(failed("resolve", &cache.run()))?;
    // Do not reuse names soon: a process that removes a dead control plane must not hit a new one
    // of the same name.
    let process = std::process::id();
    let mut number = 1u32;
    loop {
        let directory = run.join(format!("{process}-{number}"));
        match fs::create_dir(&directory) {
            Ok(()) => return Ok(directory),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(failed("create directory", &directory)(error).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_claim_gets_a_directory_of_its_own() {
        let place = tempfile::tempdir().unwrap();
        let cache = Cache::locate(Some(place.path().to_owned()), |_| None).unwrap();
        let first = claim_directory(&cache, None).unwrap();
        let second = claim_directory(&cache, None).unwrap();
        assert_ne!(first, second);
        assert!(first.is_dir() && second.is_dir());
    }

    #[test]
    fn a_named_directory_with_something_in_it_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let cache = Cache::locate(Some(place.path().join("cache")), |_| None).unwrap();
        let named = place.path().join("named");
        assert_eq!(claim_directory(&cache, Some(&named)).unwrap(), named.canonicalize().unwrap());
        fs::write(named.join("something"), "").unwrap();
        assert!(matches!(claim_directory(&cache, Some(&named)), Err(ClaimError::NotEmpty(_))));
    }
}
