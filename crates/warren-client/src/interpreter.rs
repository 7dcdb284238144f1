//! An interpreter in a sandbox that keeps its state between calls.
//!
//! [`Interpreter::start`] runs the image's own `python3` with a driver that is sent in (`python.py`), or its shell.
//! Both live in one exec: when the connection ends, so does the interpreter. What comes out of a sandbox is hostile, so
//! every line, text and image has a limit, and images are checked to be what they are called.

mod decode;

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncWriteExt as _, DuplexStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::exec::{Bounded, ExecError};
use crate::files::{Place, chain};
use decode::{Python, Shared, Shell};

pub use decode::{CodeError, Image, ImageKind, Shown};

/// The longest code of one call, in bytes.
pub const LONGEST_CODE: usize = 1 << 20;

/// Time for code to end after an interrupt. Then the interpreter is ended.
const INTERRUPT: Duration = Duration::from_secs(5);

/// Arguments: the driver. The exit code is a shell's for a program that is not there.
const START_PYTHON: &str = r#"command -v python3 >/dev/null 2>&1 || exit 127; exec python3 -c "$1""#;

const START_SHELL: &str = "if command -v bash >/dev/null 2>&1; then exec bash; fi; exec sh";

/// Copies the streams, on which ends of calls are reported, so that `exec >file` does not hide them.
const KEEP_STREAMS: &[u8] = b"exec 8>&1 9>&2\n";

const DRIVER: &str = include_str!("interpreter/python.py");

/// What code is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Language {
    /// Python 3.
    Python,
    /// `bash` if the image has it, else `sh`.
    Shell,
}

/// Takes the output of code as it comes. After a call it also takes what threads and processes still write.
pub trait Output: Send + Sync {
    /// Takes standard output.
    fn stdout(&self, bytes: &[u8]);
    /// Takes standard error.
    fn stderr(&self, bytes: &[u8]);
}

/// An interpreter could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The image lacks the program.
    #[error("the sandbox's image has no `python3`")]
    NoPython,
    /// It ended at once.
    #[error("start the interpreter: {0}")]
    Failed(String),
}

/// How far an interpreter is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// It has not answered yet.
    Starting,
    /// It waits for code.
    Ready,
    /// The call with this number is over.
    Done { id: u64, end: End },
    /// It has ended and its state is gone.
    Ended { reason: String, exit_code: Option<i32> },
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Python code ran, perhaps to an error.
    Code(Option<CodeError>),
    /// A shell line ended with this exit code.
    Line(i32),
    /// The interpreter ended, and its state is gone.
    Interpreter {
        /// Why.
        reason: String,
        /// Its exit code, if it ended by itself.
        exit_code: Option<i32>,
    },
}

/// What a call brought.
#[derive(Clone, Debug)]
pub struct Ran {
    /// How it ended.
    pub end: End,
    /// True if it was stopped before it ended by itself.
    pub stopped: bool,
    /// Values that the code has shown, in order.
    pub shown: Vec<Shown>,
    /// The number of values and images that were left out because there were too many.
    pub left_out: usize,
}

/// An interpreter that runs. Dropping it ends it.
#[derive(Debug)]
pub struct Interpreter {
    language: Language,
    shared: Arc<Shared>,
    phase: watch::Receiver<Phase>,
    stdin: DuplexStream,
    calls: u64,
    stop: CancellationToken,
}

impl Interpreter {
    /// Starts one. It also ends when `stop` is cancelled.
    pub async fn start(
        place: Place,
        language: Language,
        stop: CancellationToken,
    ) -> Result<Self, StartError> {
        let words: &[&str] = match language {
            Language::Python => &["sh", "-c", START_PYTHON, "sh", DRIVER],
            Language::Shell => &["sh", "-c", START_SHELL],
        };
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        let first = match language {
            Language::Python => Phase::Starting,
            Language::Shell => Phase::Ready,
        };
        let (sender, phase) = watch::channel(first);
        let shared = Arc::new(Shared::new(sender));
        // A request is written whole before the answer is waited for, so the size does not matter.
        let (stdin, input) = tokio::io::duplex(64 << 10);
        tokio::spawn({
            let (shared, stop) = (shared.clone(), stop.clone());
            async move {
                let (reason, exit_code) = tokio::select! {
                    () = stop.cancelled() => ("it was ended".to_owned(), None),
                    ended = run(&place, language, words, input, &shared) => ended,
                };
                shared.end(reason, exit_code);
            }
        });
        let mut interpreter = Self { language, shared, phase, stdin, calls: 0, stop };
        interpreter.wait_until_ready().await?;
        Ok(interpreter)
    }

    async fn wait_until_ready(&mut self) -> Result<(), StartError> {
        let phase = self.phase.wait_for(|phase| *phase != Phase::Starting).await;
        let phase = phase.expect("`shared` holds the sender").clone();
        match phase {
            Phase::Ended { exit_code: Some(127), .. } if self.language == Language::Python => {
                Err(StartError::NoPython)
            }
            Phase::Ended { reason, .. } => Err(StartError::Failed(reason)),
            Phase::Starting | Phase::Ready | Phase::Done { .. } => {
                if self.language == Language::Shell {
                    // A failure shows in the phase.
                    let _ = self.stdin.write_all(KEEP_STREAMS).await;
                }
                Ok(())
            }
        }
    }

    /// Returns true if it has ended and its state is gone.
    pub fn has_ended(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Ended { .. })
    }

    /// Runs code until it ends. When `stop` does first, Python code is interrupted and keeps its state; code that does
    /// not heed that, and a shell, are ended. The code must have no NUL and at most [`LONGEST_CODE`] bytes.
    pub async fn run(&mut self, code: &str, output: Arc<dyn Output>, stop: impl Future<Output = ()>) -> Ran {
        self.calls += 1;
        let id = self.calls;
        let mark = self.shared.begin(id, output);
        let request = match self.language {
            Language::Python => {
                let mut line = serde_json::json!({ "id": id, "code": code }).to_string();
                line.push('\n');
                line
            }
            Language::Shell => shell_request(code, &mark),
        };
        let mut phase = self.phase.clone();
        let ended = async {
            // A failure to write shows in the phase.
            let _ = self.stdin.write_all(request.as_bytes()).await;
            wait_for_end(&mut phase, id).await
        };
        let first = tokio::select! {
            biased;
            end = ended => Some(end),
            () = stop => None,
        };
        let (end, stopped) = match first {
            Some(end) => (end, false),
            None => (self.interrupt(id).await, true),
        };
        let (shown, left_out) = self.shared.take_shown();
        Ran { end, stopped, shown, left_out }
    }

    async fn interrupt(&mut self, id: u64) -> End {
        let mut phase = self.phase.clone();
        if self.language == Language::Python {
            let interrupted = async {
                let _ = self.stdin.write_all(b"{\"interrupt\": true}\n").await;
                wait_for_end(&mut phase, id).await
            };
            if let Ok(end) = tokio::time::timeout(INTERRUPT, interrupted).await {
                return end;
            }
        }
        self.stop.cancel();
        wait_for_end(&mut phase, id).await
    }
}

impl Drop for Interpreter {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn wait_for_end(phase: &mut watch::Receiver<Phase>, call: u64) -> End {
    let over = |phase: &Phase| match phase {
        Phase::Done { id, .. } => *id == call,
        Phase::Ended { .. } => true,
        Phase::Starting | Phase::Ready => false,
    };
    match phase.wait_for(over).await.expect("`shared` holds the sender").clone() {
        Phase::Done { end, .. } => end,
        Phase::Ended { reason, exit_code } => End::Interpreter { reason, exit_code },
        Phase::Starting | Phase::Ready => unreachable!("waited for another phase"),
    }
}

/// Runs the interpreter to its end, and returns why it ended.
async fn run(
    place: &Place,
    language: Language,
    words: Vec<String>,
    input: DuplexStream,
    shared: &Arc<Shared>,
) -> (String, Option<i32>) {
    let mut complaint = Bounded::new(4096);
    let ended = match language {
        Language::Python => {
            let stdout = Python::new(shared.clone());
            place.run(words, Some(input), stdout, &mut complaint).await
        }
        Language::Shell => {
            let (stdout, stderr) = Shell::pair(shared.clone());
            place.run(words, Some(input), stdout, stderr).await
        }
    };
    let said = String::from_utf8_lossy(&complaint.kept).trim().replace(char::is_control, " ");
    match ended {
        Ok(code) if said.is_empty() => (format!("it ended with exit code {code}"), Some(code)),
        Ok(code) => (format!("it ended with exit code {code}: {said}"), Some(code)),
        Err(ExecError::Failed { message, exit_code, .. }) => (message, exit_code),
        Err(error) => (chain(&error), None),
    }
}

/// Returns the lines that run code in a shell and then report its exit code on both streams.
fn shell_request(code: &str, mark: &str) -> String {
    let quoted = code.replace('\'', "'\\''");
    // `command` keeps a syntax error from ending the shell.
    format!(
        "command eval '{quoted}' </dev/null\n\
         command printf '\\036{mark} %s\\036' \"$?\" >&8; command printf '\\036{mark} 0\\036' >&9\n"
    )
}

#[cfg(test)]
mod tests;
