//! A command in a sandbox while it runs, and what is left of it afterwards.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, DuplexStream};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::error::{Code, ProviderError};
use serde_json::json;

/// As much of each of a command's outputs is kept by `exec`.
pub const MOST_OUTPUT: usize = 4 << 20;

/// Bytes of output that are buffered. A command waits when they are not read.
pub(crate) const PIPE: usize = 64 << 10;

pub use warren_client::exec::TerminalSize;

/// A command to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// The program.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// The directory to run in; the sandbox's own if none is named.
    pub directory: Option<String>,
    /// Variables beside those of the sandbox.
    pub env: BTreeMap<String, String>,
    /// The terminal to run on. Standard error then comes out of standard output.
    pub terminal: Option<TerminalSize>,
    /// Gives it an input. A terminal always has one.
    pub stdin: bool,
}

impl Command {
    /// Makes a command of a program and arguments.
    pub fn new<const N: usize>(program: &str, arguments: [&str; N]) -> Self {
        Self {
            program: program.to_owned(),
            arguments: arguments.map(str::to_owned).to_vec(),
            ..Self::default()
        }
    }

    /// Checks that it can be run.
    pub fn check(&self) -> Result<(), ProviderError> {
        if self.program.is_empty() {
            return Err(ProviderError::invalid("cmd", "is empty"));
        }
        let words = || std::iter::once(&self.program).chain(&self.arguments);
        if words().any(|word| word.contains('\0')) {
            return Err(ProviderError::invalid("args", "has a zero byte"));
        }
        // They travel in a URL, where the API server takes 64 KiB.
        if words().map(|word| word.len() + 1).sum::<usize>() > 16 << 10 {
            return Err(ProviderError::invalid("args", "has more than 16 KiB; write a script into a file"));
        }
        if let Some(directory) = &self.directory {
            crate::limits::check_path(directory).map_err(|error| {
                ProviderError::invalid("cwd", error.message.trim_start_matches("`path` "))
            })?;
        }
        crate::limits::check_environment("env", &self.env)
    }
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecResult {
    /// Its exit code; 124 if its time was over.
    pub exit_code: i32,
    /// Its standard output, at most [`MOST_OUTPUT`] bytes.
    pub stdout: String,
    /// Its standard error, at most as much.
    pub stderr: String,
    /// The time that it took, in milliseconds.
    pub duration_ms: u64,
    /// True if it was ended because its time was over.
    pub timed_out: bool,
    /// True if it wrote more than was kept.
    pub truncated: bool,
}

/// A command that runs. Dropping it ends the command.
#[derive(Debug)]
pub struct Process {
    /// Its input; dropping it is the end of file.
    pub stdin: Option<DuplexStream>,
    /// Its output.
    pub stdout: DuplexStream,
    /// Its errors.
    pub stderr: DuplexStream,
    /// New sizes for its terminal.
    pub resize: mpsc::Sender<TerminalSize>,
    end: oneshot::Receiver<Result<i32, ProviderError>>,
    stop: CancellationToken,
    _stop_when_dropped: DropGuard,
}

/// The provider's side of a [`Process`].
#[derive(Debug)]
pub(crate) struct Inside {
    pub(crate) stdin: DuplexStream,
    pub(crate) stdout: DuplexStream,
    pub(crate) stderr: DuplexStream,
    pub(crate) resize: mpsc::Receiver<TerminalSize>,
    pub(crate) end: oneshot::Sender<Result<i32, ProviderError>>,
    pub(crate) stop: CancellationToken,
}

impl Process {
    /// Makes both sides.
    pub(crate) fn pair() -> (Process, Inside) {
        let (stdin, stdin_inside) = tokio::io::duplex(PIPE);
        let (stdout, stdout_inside) = tokio::io::duplex(PIPE);
        let (stderr, stderr_inside) = tokio::io::duplex(PIPE);
        let (resize, resize_inside) = mpsc::channel(8);
        let (end, end_outside) = oneshot::channel();
        let stop = CancellationToken::new();
        let inside = Inside {
            stdin: stdin_inside,
            stdout: stdout_inside,
            stderr: stderr_inside,
            resize: resize_inside,
            end,
            stop: stop.clone(),
        };
        let process = Process {
            stdin: Some(stdin),
            stdout,
            stderr,
            resize,
            end: end_outside,
            stop: stop.clone(),
            _stop_when_dropped: stop.drop_guard(),
        };
        (process, inside)
    }

    /// Ends the command. [`Process::wait`] tells when that is done.
    pub fn kill(&self) {
        self.stop.cancel();
    }

    /// Waits for its end and returns its exit code. Its outputs have to be read meanwhile.
    pub async fn wait(&mut self) -> Result<i32, ProviderError> {
        (&mut self.end).await.unwrap_or_else(|_| {
            Err(ProviderError::new(Code::SandboxExecFailed, "the command's end is not known"))
        })
    }
}

/// Runs a command to its end, at most so long, and keeps what it wrote.
pub(crate) async fn collect(mut process: Process, timeout: Duration) -> Result<ExecResult, ProviderError> {
    let started = Instant::now();
    process.stdin = None;
    let Process { stdout, stderr, .. } = &mut process;
    let (mut kept_out, mut kept_err) = (Kept::default(), Kept::default());
    let reading = async {
        tokio::join!(kept_out.fill(stdout), kept_err.fill(stderr));
    };
    let timed_out = tokio::time::timeout(timeout, reading).await.is_err();
    let exit_code = match timed_out {
        true => {
            process.kill();
            124
        }
        // A command may close its outputs and go on.
        false => {
            let left = timeout.saturating_sub(started.elapsed());
            match tokio::time::timeout(left, process.wait()).await {
                Ok(code) => code?,
                Err(_) => {
                    let message = format!("Sandbox operation timed out after {}ms", timeout.as_millis());
                    return Err(ProviderError::new(Code::SandboxTimeout, message).with(
                        json!({ "timeoutMs": u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX) }),
                    ));
                }
            }
        }
    };
    Ok(ExecResult {
        exit_code,
        truncated: kept_out.more || kept_err.more,
        stdout: String::from_utf8_lossy(&kept_out.bytes).into_owned(),
        stderr: String::from_utf8_lossy(&kept_err.bytes).into_owned(),
        duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        timed_out,
    })
}

#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    more: bool,
}

impl Kept {
    /// Reads to the end and keeps the first part.
    async fn fill(&mut self, stream: &mut (impl AsyncRead + Unpin)) {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            let kept = length.min(MOST_OUTPUT - self.bytes.len());
            self.bytes.extend_from_slice(&buffer[..kept]);
            self.more |= kept < length;
        }
    }
}
