//! The cache: built programs and running control planes on disk, outside of any checkout.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use crate::files::{FileError, create_private_directory, failed};
use crate::kube::{GVISOR_VERSION, KUBERNETES_VERSION, Listed, down, list};

/// The error if no path for the cache is known.
#[derive(Debug, thiserror::Error)]
#[error(
    "none of WARREN_KUBE_CACHE, XDG_CACHE_HOME and HOME is set, so there is no place to keep Kubernetes in"
)]
pub struct CacheError;

/// The root directory of the cache. `<version>/` contains programs, `run/` one directory per
/// control plane.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// Returns the cache in the named directory, otherwise in `warren/kube` below the user's cache
    /// directory.
    ///
    /// `variable` looks up environment variables, so that only the caller reads the environment.
    pub fn locate(
        named: Option<PathBuf>,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, CacheError> {
        // An empty variable counts as unset, as the XDG base directory specification requires.
        let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let root = named
            .or_else(|| set("XDG_CACHE_HOME").map(|base| base.join("warren/kube")))
            .or_else(|| set("HOME").map(|base| base.join(".cache/warren/kube")))
            .ok_or(CacheError)?;
        Ok(Self { root })
    }

    /// Returns the directory of the programs of our Kubernetes version.
    pub fn programs(&self) -> PathBuf {
        self.root.join(KUBERNETES_VERSION)
    }

    /// Returns the path of gVisor's `runsc` of our version.
    pub(crate) fn runsc(&self) -> PathBuf {
        self.root.join(format!("gvisor-{GVISOR_VERSION}")).join("runsc")
    }

    /// Returns the default parent of the directories of control planes.
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }

    /// Returns the working directory of builds. It belongs to the holder of [`Cache::lock_build`].
    pub(crate) fn build(&self) -> PathBuf {
        self.root.join("build")
    }

    /// Waits for other builds in this cache. The lock ends with the returned file, also after `kill
    /// -9`.
    pub(crate) fn lock_build(&self) -> Result<File, FileError> {
        create_private_directory(&self.root)?;
        let path = self.root.join("build.lock");
        let file = File::create(&path).map_err(failed("open", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                eprintln!("another process builds into `{}`; waiting for it", self.root.display());
                file.lock().map_err(failed("lock", &path))?;
            }
            Err(TryLockError::Error(error)) => return Err(failed("lock", &path)(error)),
        }
        Ok(file)
    }

    /// Removes the files of control planes whose supervisor was killed and whose owner process has
    /// ended too. No other process cleans these up.
    pub fn sweep(&self) -> Result<(), FileError> {
        for Listed { directory, record, running } in list(&self.run())? {
            // Leave a directory that cannot be removed now, perhaps because another process removes
            // it, for the next time.
            if !running
                && record.until_stdin_closes
                && let Err(error) = down(&directory)
            {
                eprintln!("could not sweep `{}`: {error}", directory.display());
            }
        }
        Ok(())
    }
}

/// Returns the directories directly below `path`, or none if it does not exist.
pub(crate) fn directories_in(path: &Path) -> Result<Vec<PathBuf>, FileError> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed("read directory", path))?,
    };
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.is_dir())
        .collect();
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(named: Option<&str>, variables: &[(&str, &str)]) -> Option<String> {
        let variable = |name: &str| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        };
        Cache::locate(named.map(PathBuf::from), variable).ok().map(|cache| cache.root.display().to_string())
    }

    #[test]
    fn the_named_directory_wins_then_xdg_then_home() {
        let both = [("XDG_CACHE_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(root(Some("/named"), &both).as_deref(), Some("/named"));
        assert_eq!(root(None, &both).as_deref(), Some("/x/warren/kube"));
        assert_eq!(
            root(None, &[("XDG_CACHE_HOME", ""), ("HOME", "/h")]).as_deref(),
            Some("/h/.cache/warren/kube")
        );
        assert_eq!(root(None, &[]), None);
    }
}
