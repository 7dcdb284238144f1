//! A local home for a test: the real binary and a fresh data directory, cleaned up at the end.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;
use warren_client::home::DataDir;
use warren_client::kube::Client;
use warren_testkit::cargo::cargo;
use warren_testkit::kube::Cache;
use warren_testkit::leaks;
use warren_testkit::privileges::{OrdinaryUser, skip_without_root};

/// A data directory and its binary. Dropping it stops the home.
#[derive(Debug)]
pub struct LocalHome {
    directory: TempDir,
    /// Its user, if not this process's.
    user: Option<(OrdinaryUser, OwnBinary)>,
}

/// The binary at a place that every user can read: the built one may be below another user's home.
#[derive(Debug)]
pub struct OwnBinary {
    path: PathBuf,
    _directory: TempDir,
}

impl OwnBinary {
    /// Links or copies the binary.
    pub fn make() -> Self {
        let directory = tempfile::tempdir().expect("make a directory");
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(directory.path(), open).expect("open the directory");
        let path = directory.path().join("warren");
        std::fs::hard_link(warren_binary(), &path)
            .or_else(|_| std::fs::copy(warren_binary(), &path).map(drop))
            .expect("copy the binary");
        Self { path, _directory: directory }
    }

    /// Returns the program's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The result of a command, with its streams as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl LocalHome {
    /// Returns a fresh directory, with nothing running. `None` if tests that make containers are
    /// skipped.
    pub fn new() -> Option<Self> {
        if skip_without_root() {
            return None;
        }
        Some(Self { directory: tempfile::tempdir().expect("make a data directory"), user: None })
    }

    /// Returns a home of a user who is not root. `None`, with a printed reason, where such users
    /// can have no home.
    pub fn of_an_ordinary_user() -> Option<Self> {
        let user = OrdinaryUser::find()?;
        let directory = tempfile::tempdir().expect("make a data directory");
        user.give(directory.path()).expect("give the data directory to the user");
        Some(Self { directory, user: Some((user, OwnBinary::make())) })
    }

    /// Returns its user, if that is not root.
    pub fn user(&self) -> Option<OrdinaryUser> {
        self.user.as_ref().map(|(user, _)| *user)
    }

    /// Makes a command run as the home's user.
    pub fn as_its_user<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        match self.user() {
            Some(user) => user.run(command),
            None => command,
        }
    }

    /// Returns the data directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns `warren` for this home, without arguments.
    pub fn command(&self) -> Command {
        let mut command = match &self.user {
            Some((_, binary)) => Command::new(&binary.path),
            None => Command::new(warren_binary()),
        };
        // Not this repository's directory: `warren run` would send the repository.
        command.current_dir("/");
        if self.user.is_some() {
            command.env("HOME", self.path());
        }
        command
            .env("WARREN_HOME", self.path())
            .env("WARREN_STATE_DIR", self.path().join("client"))
            .env("WARREN_CONFIG", self.path().join("config.toml"))
            .env_remove("WARREN_LOG")
            .stdin(Stdio::null());
        self.as_its_user(&mut command);
        command
    }

    /// Runs `warren` with these arguments to its end.
    pub fn warren(&self, arguments: &[&str]) -> Ended {
        self.command().args(arguments).output().expect("run warren").into()
    }

    /// Runs `warren run -- sh -c SCRIPT`.
    pub fn shell(&self, script: &str) -> Ended {
        self.warren(&["run", "--", "sh", "-c", script])
    }

    /// Runs `warren` with these arguments and this input.
    pub fn warren_with_input(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut child = self.spawn(arguments);
        let mut stdin = child.stdin.take().expect("stdin is piped");
        std::thread::scope(|scope| {
            scope.spawn(move || stdin.write_all(input).expect("write the input"));
            child.wait_with_output().expect("wait for warren")
        })
    }

    /// Starts `warren` with these arguments and all its streams piped.
    pub fn spawn(&self, arguments: &[&str]) -> Child {
        self.command()
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start warren")
    }

    /// Starts the daemon, and returns its process id.
    pub fn up(&self) -> u32 {
        let ended = self.warren(&["up", "--detach", "--output", "json"]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let report: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON on standard output");
        u32::try_from(report["pid"].as_u64().expect("a pid")).expect("a small number")
    }

    /// Returns a client of the API, over the home's socket; for another user's home, by its
    /// kubeconfig.
    pub async fn client(&self) -> Client {
        if self.user.is_some() {
            let kubeconfig = self.path().join("kubeconfig");
            return warren_client::connect::from_kubeconfig(&kubeconfig).await.expect("connect");
        }
        let data_dir = DataDir::open(self.path()).expect("open the data directory");
        warren_client::connect::local(&data_dir).await.expect("connect")
    }

    /// Returns `kubectl` with this home's kubeconfig: the one that was built for the control-plane
    /// tests.
    pub fn kubectl(&self) -> Command {
        let named = std::env::var_os("WARREN_KUBE_CACHE").map(PathBuf::from);
        let cache = Cache::locate(named, |name| std::env::var_os(name)).expect("find the cache of programs");
        let mut command = Command::new(cache.programs().join("kubectl"));
        command.arg("--kubeconfig").arg(self.path().join("kubeconfig"));
        command
    }

    /// Fails if anything of a pod is left on the machine.
    pub fn assert_nothing_left(&self) {
        leaks::assert_nothing_left(self.path());
    }
}

impl Drop for LocalHome {
    fn drop(&mut self) {
        let _ = self.command().arg("down").stderr(Stdio::null()).status();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.path().join("daemon.log")).unwrap_or_default();
            eprintln!("--- daemon.log\n{log}---");
        }
    }
}

/// Returns the binary: `WARREN_BIN`, or the one beside this test, built if necessary.
pub fn warren_binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("WARREN_BIN") {
        Some(path) => PathBuf::from(path),
        None => built("warren"),
    })
}

/// Returns the second program: `warren-service` beside `WARREN_BIN`, or the one beside this test,
/// built if necessary.
pub fn service_binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("WARREN_BIN") {
        Some(path) => PathBuf::from(path).with_file_name("warren-service"),
        None => built("warren-service"),
    })
}

/// Builds the program of a package and returns its path.
fn built(package: &str) -> PathBuf {
    // target/<triple>/<profile>/deps/<this test>
    let test = std::env::current_exe().expect("this test's own path");
    let profile = test.ancestors().nth(2).expect("a test lies in `deps` of a profile");
    let mut build = cargo(|name| std::env::var_os(name));
    build.args(["build", "--quiet", "--package", package, "--bin", package]);
    if profile.ends_with("release") {
        build.arg("--release");
    }
    let status = build.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("run cargo");
    assert!(status.success(), "building {package} failed");
    profile.join(package)
}
