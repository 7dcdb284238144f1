//! Keeps a data directory private to its owner: it contains every secret of the home.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// An error of making a data directory private.
#[derive(Debug, thiserror::Error)]
pub enum PrivacyError {
    /// The directory belongs to another user, who can read and replace everything in it.
    #[error(
        "the data directory `{}` belongs to user {owner}, who could read every secret in it; give it to user {user}, or name another with `--data-dir`",
        directory.display()
    )]
    Foreign {
        /// The directory.
        directory: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// The mode cannot be changed: some file systems have no modes.
    #[error(
        "the data directory `{}` is open to other users (mode {mode:04o}), and its file system does not let that be changed",
        directory.display()
    )]
    Open {
        /// The directory.
        directory: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A mode could not be read or changed.
    #[error("take `{}` away from other users", path.display())]
    Mode {
        /// The file or directory.
        path: PathBuf,
        /// The underlying I/O error.
        #[source]
        source: io::Error,
    },
}

/// Removes the access of other users to a data directory and its files with secrets. Older programs
/// made some of them readable by all.
pub fn tighten(directory: &Path) -> Result<(), PrivacyError> {
    let metadata = metadata(directory)?;
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user {
        return Err(PrivacyError::Foreign { directory: directory.to_owned(), owner: metadata.uid(), user });
    }
    close(directory)?;
    let mode = self::metadata(directory)?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(PrivacyError::Open { directory: directory.to_owned(), mode });
    }
    close_files(directory, user)?;
    let keys = directory.join("pki");
    if keys.is_dir() {
        close(&keys)?;
        close_files(&keys, user)?;
    }
    Ok(())
}

/// Removes the access of other users to the user's own files in a directory. Links, sockets and
/// directories are not changed.
fn close_files(directory: &Path, user: u32) -> Result<(), PrivacyError> {
    let failed = |source| PrivacyError::Mode { path: directory.to_owned(), source };
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_file() && metadata.uid() == user => close(&path)?,
            _ => {}
        }
    }
    Ok(())
}

fn metadata(path: &Path) -> Result<fs::Metadata, PrivacyError> {
    fs::metadata(path).map_err(|source| PrivacyError::Mode { path: path.to_owned(), source })
}

/// Removes all rights of other users. The owner's rights stay.
fn close(path: &Path) -> Result<(), PrivacyError> {
    let mode = metadata(path)?.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(mode & 0o700))
        .map_err(|source| PrivacyError::Mode { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_directory_and_its_files_are_taken_away_from_other_users() {
        let directory = tempfile::tempdir().expect("make a directory");
        let path = |name: &str| directory.path().join(name);
        let set = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("set the mode");
        };
        let mode = |path: &Path| fs::metadata(path).expect("look").permissions().mode() & 0o777;
        for name in ["pki", "pods"] {
            fs::create_dir(path(name)).expect("make a directory");
            set(&path(name), 0o755);
        }
        for name in ["store.db", "kubeconfig", "pki/ca.key"] {
            fs::write(path(name), "secret").expect("write");
            set(&path(name), 0o644);
        }
        let outside = tempfile::NamedTempFile::new().expect("make a file");
        set(outside.path(), 0o644);
        std::os::unix::fs::symlink(outside.path(), path("link")).expect("link");
        set(directory.path(), 0o755);

        tighten(directory.path()).expect("tighten");
        assert_eq!((mode(directory.path()), mode(&path("pki"))), (0o700, 0o700));
        for name in ["store.db", "kubeconfig", "pki/ca.key"] {
            assert_eq!(mode(&path(name)), 0o600, "{name}");
        }
        assert_eq!(mode(outside.path()), 0o644, "a link is not followed");
        assert_eq!(mode(&path("pods")), 0o755, "pods have users of their own");
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().expect("make a directory");
        std::os::unix::fs::chown(directory.path(), Some(64_213), None).expect("give it away");
        let error = tighten(directory.path()).expect_err("refused");
        assert!(error.to_string().contains("belongs to user 64213"), "{error}");
    }
}
