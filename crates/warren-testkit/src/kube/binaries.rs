//! The programs of a control plane. They are in a named directory, or are built once.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::FileError;
use crate::kube::cache::Cache;
use crate::kube::go_build::{self, BuildError};

/// The error if a program is missing.
#[derive(Debug, thiserror::Error)]
pub enum BinariesError {
    /// A directory was named, but a program is missing in it.
    #[error("`{}` (named by WARREN_KUBE_BIN) has no program `{program}`", directory.display())]
    Missing {
        /// The named directory.
        directory: PathBuf,
        /// The missing program.
        program: &'static str,
    },
    /// The cache could not be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// Building from source failed.
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// The paths of a control plane's programs.
#[derive(Debug, Clone)]
pub struct Binaries {
    /// The store.
    pub etcd: PathBuf,
    /// The API server.
    pub kube_apiserver: PathBuf,
    /// Runs the built-in controllers: namespaces, garbage collection, service accounts and so on.
    pub kube_controller_manager: PathBuf,
    /// Assigns pods to nodes.
    pub kube_scheduler: PathBuf,
    /// The client of the same release.
    pub kubectl: PathBuf,
}

impl Binaries {
    /// Returns the programs in `named` if given, otherwise those in the cache. Missing ones are
    /// built.
    ///
    /// etcd may also come from `search_path` (the value of `PATH`) if it is recent enough. A build
    /// that is killed leaves nothing in the cache that a later call would use.
    pub fn ensure(
        cache: &Cache,
        named: Option<&Path>,
        search_path: Option<&OsString>,
    ) -> Result<Self, BinariesError> {
        if let Some(directory) = named {
            let program = |program| {
                let path = directory.join(program);
                if is_executable(&path) {
                    Ok(path)
                } else {
                    Err(BinariesError::Missing { directory: directory.to_owned(), program })
                }
            };
            let etcd = program("etcd").or_else(|missing| etcd_in_path(search_path).ok_or(missing))?;
            return Ok(Self {
                etcd,
                kube_apiserver: program("kube-apiserver")?,
                kube_controller_manager: program("kube-controller-manager")?,
                kube_scheduler: program("kube-scheduler")?,
                kubectl: program("kubectl")?,
            });
        }

        let programs = cache.programs();
        let mut binaries = Self {
            etcd: programs.join("etcd"),
            kube_apiserver: programs.join("kube-apiserver"),
            kube_controller_manager: programs.join("kube-controller-manager"),
            kube_scheduler: programs.join("kube-scheduler"),
            kubectl: programs.join("kubectl"),
        };
        if !is_executable(&binaries.etcd)
            && let Some(etcd) = etcd_in_path(search_path)
        {
            binaries.etcd = etcd;
        }
        if binaries.missing().is_empty() {
            return Ok(binaries);
        }

        let lock = cache.lock_build()?;
        // Another process may have built them while we waited for the lock.
        let missing = binaries.missing();
        if !missing.is_empty() {
            go_build::build(&missing, cache)?;
        }
        drop(lock);
        Ok(binaries)
    }

    fn missing(&self) -> Vec<&'static str> {
        [
            ("etcd", &self.etcd),
            ("kube-apiserver", &self.kube_apiserver),
            ("kube-controller-manager", &self.kube_controller_manager),
            ("kube-scheduler", &self.kube_scheduler),
            ("kubectl", &self.kubectl),
        ]
        .into_iter()
        .filter(|(_, path)| !is_executable(path))
        .map(|(name, _)| name)
        .collect()
    }
}

pub(crate) fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Returns an etcd on the search path, if it is recent enough for Kubernetes 1.36.
fn etcd_in_path(search_path: Option<&OsString>) -> Option<PathBuf> {
    let etcd = std::env::split_paths(search_path?)
        .map(|directory| directory.join("etcd"))
        .find(|path| is_executable(path))?;
    let output = Command::new(&etcd).arg("--version").output().ok()?;
    etcd_is_recent(&String::from_utf8_lossy(&output.stdout)).then_some(etcd)
}

/// Returns true if `etcd --version` reports 3.5.13 or later.
///
/// With an older one kube-apiserver refuses streaming lists (watches with `sendInitialEvents`),
/// because etcd's watch progress was not reliable before. Such a control plane would differ from
/// those of users. Debian 12 has 3.4.23. (3.4.31 has the fix as well, but not `--unsafe-no-fsync`.)
fn etcd_is_recent(version_output: &str) -> bool {
    let version = version_output.lines().find_map(|line| line.strip_prefix("etcd Version:"));
    let numbers: Option<Vec<u32>> = version
        .and_then(|version| version.trim().split('-').next())
        .map(|version| version.split('.').map_while(|number| number.parse().ok()).collect());
    numbers.is_some_and(|numbers| numbers.len() == 3 && numbers.as_slice() >= [3, 5, 13].as_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_etcd_with_reliable_watch_progress_is_taken_from_the_machine() {
        let recent = |version| etcd_is_recent(&format!("etcd Version: {version}\nGit SHA: none\n"));
        assert!(!recent("3.4.23"));
        assert!(!recent("3.5.12"));
        assert!(recent("3.5.13"));
        assert!(recent("3.6.0-rc.1"));
        assert!(recent("4.0.0"));
        assert!(!etcd_is_recent("something else"));
        assert!(!etcd_is_recent(""));
    }

    #[test]
    fn a_named_directory_must_hold_everything() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::locate(Some(directory.path().join("cache")), |_| None).unwrap();
        let error = Binaries::ensure(&cache, Some(directory.path()), None).unwrap_err();
        assert!(matches!(error, BinariesError::Missing { program: "etcd", .. }), "{error}");
    }
}
