//! Locates a local home and the files in its data directory.
//!
//! Each path that daemon and clients share has one method here, so that they cannot disagree.

use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use warren_api::NameHash;

/// The user's environment, read once in `main`.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// True if the effective user is root.
    pub root: bool,
    /// `$XDG_DATA_HOME`.
    pub xdg_data_home: Option<PathBuf>,
    /// `$HOME`, else the home in `/etc/passwd`.
    pub home: Option<PathBuf>,
}

impl Surroundings {
    /// Reads them from this process's environment.
    pub fn of_this_process() -> Self {
        let directory = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let user = rustix::process::geteuid();
        // Services and scheduled jobs often have no `$HOME`.
        let known = || home_of(&std::fs::read_to_string("/etc/passwd").ok()?, user.as_raw());
        Self {
            root: user.is_root(),
            xdg_data_home: directory("XDG_DATA_HOME"),
            home: directory("HOME").or_else(known),
        }
    }
}

/// Returns a user's home. Lines are `name:password:user:group:comment:home:shell`.
fn home_of(passwd: &str, user: u32) -> Option<PathBuf> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':').skip(2);
        let is_wanted = fields.next()?.parse() == Ok(user);
        fields.nth(2).map(PathBuf::from).filter(|home| is_wanted && home.is_absolute())
    })
}

/// The error of a data directory that could not be found or made.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Neither a flag nor the environment names one.
    #[error(
        "no data directory is named, neither $XDG_DATA_HOME nor $HOME is set, and `/etc/passwd` says no home"
    )]
    Nowhere,
    /// It is missing and could not be made.
    #[error("create the data directory `{}`", path.display())]
    Create {
        /// The directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// It could not be resolved to a canonical path.
    #[error("open the data directory `{}`", path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The names of sockets in it would be too long for the kernel.
    #[error(
        "the data directory `{}` has {length} characters; a socket below it needs {limit} or fewer",
        path.display()
    )]
    TooLong {
        /// The directory.
        path: PathBuf,
        /// The length of its path.
        length: usize,
        /// The longest length.
        limit: usize,
    },
}

/// The longest path of a data directory. A `sockaddr_un` has room for 107 bytes and a terminator;
/// the longest socket of a home is `/pods/<36 characters>/shim.sock`.
const LONGEST_DATA_DIR: usize = 107 - "/pods/".len() - 36 - "/shim.sock".len();

/// The directory of a local home. It exists, and its path is canonical.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDir {
    path: PathBuf,
}

impl DataDir {
    /// Returns the home's path by the rules: the named one, else `/var/lib/warren` for root, else
    /// `warren` below the user's data directory. Makes nothing.
    pub fn locate(named: Option<&Path>, surroundings: &Surroundings) -> Result<PathBuf, DataDirError> {
        if let Some(path) = named {
            return Ok(path.to_owned());
        }
        if surroundings.root {
            return Ok(PathBuf::from("/var/lib/warren"));
        }
        let below = |path: &PathBuf| path.join("warren");
        surroundings
            .xdg_data_home
            .as_ref()
            .filter(|path| path.is_absolute())
            .map(below)
            .or_else(|| surroundings.home.as_ref().map(|home| home.join(".local/share/warren")))
            .ok_or(DataDirError::Nowhere)
    }

    /// Makes the directory, readable by its owner only, if it is missing, and resolves its path.
    pub fn create(path: &Path) -> Result<Self, DataDirError> {
        use std::os::unix::fs::DirBuilderExt as _;
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|source| DataDirError::Create { path: path.to_owned(), source })?;
        Self::open(path)
    }

    /// Resolves the path of an existing directory.
    pub fn open(path: &Path) -> Result<Self, DataDirError> {
        let failed = |source| DataDirError::Open { path: path.to_owned(), source };
        let canonical = path.canonicalize().map_err(failed)?;
        rustix::fs::open(&canonical, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| failed(error.into()))?;
        let length = canonical.as_os_str().len();
        if length > LONGEST_DATA_DIR {
            return Err(DataDirError::TooLong { path: canonical, length, limit: LONGEST_DATA_DIR });
        }
        Ok(Self { path: canonical })
    }

    /// Returns the directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the mark of all of this home's objects on the machine: 8 hexadecimal digits.
    pub fn home_id(&self) -> String {
        NameHash::of(&self.path.to_string_lossy()).to_string()
    }

    /// Returns the unix socket of the API.
    pub fn api_socket(&self) -> PathBuf {
        self.path.join("api.sock")
    }

    /// Returns the kubeconfig for the TLS port.
    pub fn kubeconfig(&self) -> PathBuf {
        self.path.join("kubeconfig")
    }

    /// Returns the file with the URL of the router.
    pub fn router_url(&self) -> PathBuf {
        self.path.join("router-url")
    }

    /// Returns the file with the key that signs tokens for the router. It is a secret.
    pub fn router_token_key(&self) -> PathBuf {
        self.path.join("router-token-key")
    }

    /// Returns the log file of a detached daemon.
    pub fn daemon_log(&self) -> PathBuf {
        self.path.join("daemon.log")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locate(named: Option<&str>, root: bool, xdg: Option<&str>, home: Option<&str>) -> Option<String> {
        let surroundings =
            Surroundings { root, xdg_data_home: xdg.map(PathBuf::from), home: home.map(PathBuf::from) };
        DataDir::locate(named.map(Path::new), &surroundings)
            .ok()
            .map(|path| path.to_string_lossy().into_owned())
    }

    #[test]
    fn the_first_rule_that_applies_wins() {
        let home = Some("/home/ada");
        assert_eq!(locate(Some("/srv/w"), true, None, home).as_deref(), Some("/srv/w"));
        assert_eq!(locate(None, true, Some("/x"), home).as_deref(), Some("/var/lib/warren"));
        assert_eq!(locate(None, false, Some("/x"), home).as_deref(), Some("/x/warren"));
        assert_eq!(locate(None, false, None, home).as_deref(), Some("/home/ada/.local/share/warren"));
        // The XDG specification says that a relative path is ignored.
        assert_eq!(locate(None, false, Some("x"), home).as_deref(), Some("/home/ada/.local/share/warren"));
        assert_eq!(locate(None, false, None, None), None);
    }

    #[test]
    fn who_has_no_home_in_the_environment_has_one_by_number() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\nbad\nodd:x:7:7::\nada:x:1000:1000:,,,:/home/ada:/bin/sh\n";
        assert_eq!(home_of(passwd, 1000), Some(PathBuf::from("/home/ada")));
        assert_eq!((home_of(passwd, 7), home_of(passwd, 8)), (None, None));
    }

    #[test]
    fn two_spellings_of_one_directory_have_one_id() {
        let directory = tempfile::tempdir().expect("make a directory");
        let made = DataDir::create(&directory.path().join("home")).expect("create");
        let spelled = DataDir::open(&directory.path().join("./home/../home")).expect("open");
        assert_eq!(made, spelled);
        assert_eq!(made.home_id().len(), 8);
    }

    #[test]
    fn a_path_too_long_for_sockets_is_refused_at_once() {
        let directory = tempfile::tempdir().expect("make a directory");
        let error = DataDir::create(&directory.path().join("x".repeat(80))).expect_err("too long");
        assert!(matches!(error, DataDirError::TooLong { .. }), "{error}");
    }
}
