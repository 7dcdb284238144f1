//! A control plane for a test process. It ends with the process, however that ends.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::OnceLock;

use crate::kube::kubeconfig::kubectl;
use crate::kube::record::{DownError, Record};

/// A real control plane for tests.
///
/// A supervisor process runs it and holds the other end of a pipe. When this process ends (returns,
/// panics, is killed with `kill -9`), the kernel closes the pipe. The supervisor then ends
/// everything and removes its files.
#[derive(Debug)]
pub struct ControlPlane {
    kubeconfig: PathBuf,
    directory: PathBuf,
    record: Record,
    supervisor: Child,
    /// The pipe to the supervisor, held open as long as the control plane is needed. It is an
    /// option so that `drop` can close it first.
    pipe: Option<ChildStdin>,
}

/// An error of a control plane.
#[derive(Debug, thiserror::Error)]
pub enum ControlPlaneError {
    /// The supervisor could not be started or read from.
    #[error("run `{command}`")]
    Run {
        /// Its command line.
        command: String,
        /// The underlying I/O error.
        #[source]
        source: io::Error,
    },
    /// The supervisor failed. Its message is on stderr.
    #[error("`{command}` ended with {status} before the control plane was ready")]
    Ended {
        /// Its command line.
        command: String,
        /// Its exit status.
        status: ExitStatus,
    },
    /// Its record is invalid.
    #[error(transparent)]
    Record(#[from] DownError),
}

/// An error of kubectl.
#[derive(Debug, thiserror::Error)]
pub enum KubectlError {
    /// It could not be run.
    #[error("run kubectl")]
    Run(#[from] io::Error),
    /// It failed.
    #[error("`kubectl {arguments}` ended with {status}: {stderr}")]
    Failed {
        /// Its arguments.
        arguments: String,
        /// Its exit status.
        status: ExitStatus,
        /// Its error output.
        stderr: String,
    },
}

impl ControlPlane {
    /// Returns the control plane of this process. The first caller starts it. Later callers share
    /// it and find it in use, so tests keep to namespaces of their own.
    ///
    /// # Panics
    ///
    /// Panics if it cannot be started, since no test can continue without it.
    pub fn start() -> &'static Self {
        static SHARED: OnceLock<Result<ControlPlane, ControlPlaneError>> = OnceLock::new();
        match SHARED.get_or_init(|| Self::launch(&[])) {
            Ok(control_plane) => control_plane,
            Err(error) => panic!("no control plane for the tests: {}", chain(error)),
        }
    }

    /// Starts a control plane for the caller alone. It ends when dropped. `options` are those of
    /// `cargo xtask kube up`, for instance `--fsync`.
    pub fn launch(options: &[&str]) -> Result<Self, ControlPlaneError> {
        let mut command = xtask(|name| std::env::var_os(name));
        command
            .args(["kube", "up", "--until-stdin-closes"])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C in a terminal reaches a whole process group. The supervisor must outlive it to
            // clean up.
            .process_group(0);
        let words = format!("{command:?}");
        let failed = |source| ControlPlaneError::Run { command: words.clone(), source };

        let mut supervisor = command.spawn().map_err(failed)?;
        let pipe = supervisor.stdin.take();
        let mut line = String::new();
        if let Some(stdout) = supervisor.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).map_err(failed)?;
        }
        let kubeconfig = PathBuf::from(line.trim_end());
        let Some(directory) = kubeconfig.parent().map(Path::to_owned) else {
            drop(pipe);
            let status = supervisor.wait().map_err(failed)?;
            return Err(ControlPlaneError::Ended { command: words, status });
        };
        let record = Record::load(&directory)?;
        Ok(Self { kubeconfig, directory, record, supervisor, pipe })
    }

    /// Returns the path of an administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Returns its directory, which is removed when it ends.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns its record: address, version and processes.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Runs kubectl of the same release as administrator and returns its output.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String, KubectlError> {
        self.kubectl_with_input(arguments, "")
    }

    /// Runs kubectl with text on standard input, for `apply --filename -`.
    pub fn kubectl_with_input(&self, arguments: &[&str], input: &str) -> Result<String, KubectlError> {
        let mut child = kubectl(&self.record.kubectl, &self.directory)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take();
        // Use a thread, since kubectl may print before it has read everything.
        let output = std::thread::scope(|scope| {
            // Ignore a broken pipe: the exit status tells more.
            scope.spawn(|| stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
            child.wait_with_output()
        })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(KubectlError::Failed {
            arguments: arguments.join(" "),
            status: output.status,
            stderr: String::from_utf8_lossy(&output.stderr).trim_end().to_owned(),
        })
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        drop(self.pipe.take());
        // It ends because the pipe is closed. An error means that it has already ended.
        let _ = self.supervisor.wait();
    }
}

/// Returns a command for the supervisor: `WARREN_XTASK`, which `cargo xtask test` sets to itself,
/// otherwise xtask through cargo. Cargo has released its build lock when tests run.
fn xtask(variable: impl Fn(&str) -> Option<OsString>) -> Command {
    if let Some(program) = variable("WARREN_XTASK") {
        return Command::new(program);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = crate::cargo::cargo(variable);
    // The current directory selects the `.cargo/config.toml`.
    command.current_dir(root).args(["run", "--quiet", "--package", "xtask", "--"]);
    command
}

/// Formats an error with all of its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
