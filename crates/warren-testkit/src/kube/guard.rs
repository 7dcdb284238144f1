//! A control plane that belongs to a test process and ends with it, however that process ends.

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
/// It is run by a supervisor process that holds the other end of a pipe. When this process ends (returns, panics, is
/// killed with `kill -9`), the kernel closes the pipe, and the supervisor ends everything and removes its files.
#[derive(Debug)]
pub struct ControlPlane {
    kubeconfig: PathBuf,
    directory: PathBuf,
    record: Record,
    supervisor: Child,
    /// Held open for as long as the control plane is wanted; an option only so that `drop` can close it first.
    pipe: Option<ChildStdin>,
}

/// Why a test has no control plane.
#[derive(Debug, thiserror::Error)]
pub enum ControlPlaneError {
    /// The supervisor could not be started or read from.
    #[error("run `{command}`")]
    Run {
        /// Its command line.
        command: String,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// The supervisor gave up; its reasons are on stderr.
    #[error("`{command}` ended with {status} before the control plane was ready")]
    Ended {
        /// Its command line.
        command: String,
        /// How it ended.
        status: ExitStatus,
    },
    /// What it wrote about the control plane makes no sense.
    #[error(transparent)]
    Record(#[from] DownError),
}

/// kubectl did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum KubectlError {
    /// It could not be run.
    #[error("run kubectl")]
    Run(#[from] io::Error),
    /// It said no.
    #[error("`kubectl {arguments}` ended with {status}: {stderr}")]
    Failed {
        /// What it was asked.
        arguments: String,
        /// How it ended.
        status: ExitStatus,
        /// Its own words.
        stderr: String,
    },
}

impl ControlPlane {
    /// The control plane of this process: the first caller starts it, later ones get the same. It is empty only for
    /// the first, so tests that share it keep to namespaces of their own.
    ///
    /// # Panics
    /// If it cannot be started, since no test can go on without it.
    pub fn start() -> &'static Self {
        static SHARED: OnceLock<Result<ControlPlane, ControlPlaneError>> = OnceLock::new();
        match SHARED.get_or_init(|| Self::launch(&[])) {
            Ok(control_plane) => control_plane,
            Err(error) => panic!("no control plane for the tests: {}", chain(error)),
        }
    }

    /// A control plane for the caller alone, ended when it is dropped. `options` are those of `cargo xtask kube up`,
    /// for instance `--fsync`.
    pub fn launch(options: &[&str]) -> Result<Self, ControlPlaneError> {
        let mut command = xtask(|name| std::env::var_os(name));
        command
            .args(["kube", "up", "--until-stdin-closes"])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C in a terminal reaches a whole process group. The supervisor must outlive it to tidy up.
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

    /// A kubeconfig with the rights of an administrator.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Where it keeps its files; gone when it has ended.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Its address, version and processes.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Runs kubectl of the same release as administrator and gives what it printed.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String, KubectlError> {
        self.kubectl_with_input(arguments, "")
    }

    /// The same with something on standard input, for `apply --filename -`.
    pub fn kubectl_with_input(&self, arguments: &[&str], input: &str) -> Result<String, KubectlError> {
        let mut child = kubectl(&self.record.kubectl, &self.directory)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take();
        // From a thread, since kubectl may print before it has read everything.
        let output = std::thread::scope(|scope| {
            // One that ends early breaks the pipe; how it ended says more than that.
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
        // It ends because of the closed pipe; an error would mean that it has ended already.
        let _ = self.supervisor.wait();
    }
}

/// The program that becomes the supervisor: `WARREN_XTASK` if `cargo xtask test` started us (it names itself there),
/// else xtask through cargo, which has released its build lock by the time tests run.
fn xtask(variable: impl Fn(&str) -> Option<OsString>) -> Command {
    if let Some(program) = variable("WARREN_XTASK") {
        return Command::new(program);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = crate::cargo::cargo(variable);
    // The current directory decides which `.cargo/config.toml` counts.
    command.current_dir(root).args(["run", "--quiet", "--package", "xtask", "--"]);
    command
}

/// An error with all of its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
