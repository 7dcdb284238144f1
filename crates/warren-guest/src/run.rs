//! Runs commands to their end and collects what they write.

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Child;
use warren_proto::runtime::ExecutionResult;

/// As much of each stream is kept; the rest is read and dropped.
const LONGEST_OUTPUT: usize = 8 << 20;
/// A command's children may hold its output open after it has ended. They are waited for this long.
const PATIENCE_WITH_CHILDREN: Duration = Duration::from_secs(1);

/// One command.
#[derive(Debug)]
pub struct Command {
    /// Program and arguments, not empty.
    pub words: Vec<String>,
    /// The directory that it runs in.
    pub directory: PathBuf,
    /// When it is ended, with everything in its process group.
    pub timeout: Duration,
}

/// The part of a stream that was read.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) bytes: Vec<u8>,
    is_cut: bool,
}

type Shared = Arc<Mutex<Output>>;

/// A process group that is killed when this is dropped: when the time is over, or when the client
/// has gone and does not wait for the answer any more.
pub(crate) struct Group(pub(crate) Option<Pid>);

impl Group {
    /// Takes care of the group that a child leads.
    pub(crate) fn of(child: &Child) -> Group {
        Group(child.id().and_then(|id| Pid::from_raw(id.cast_signed())))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            let _ = rustix::process::kill_process_group(leader, Signal::KILL);
        }
    }
}

/// Runs a command to its end. Whatever goes wrong is in the result.
pub async fn run(command: Command) -> ExecutionResult {
    let timeout = command.timeout;
    match tokio::time::timeout(timeout, run_to_end(command)).await {
        Ok(Ok(result)) => result,
        Ok(Err(error)) => failure(format!("Failed to execute command: {error}")),
        Err(_) => ExecutionResult {
            timed_out: true,
            ..failure(format!("Command timed out after {} seconds", timeout.as_secs_f64()))
        },
    }
}

/// Returns the result of a command that did not run.
pub fn failure(reason: String) -> ExecutionResult {
    ExecutionResult { stderr: reason, exit_code: 1, ..ExecutionResult::default() }
}

async fn run_to_end(command: Command) -> io::Result<ExecutionResult> {
    let [program, arguments @ ..] = command.words.as_slice() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the command is empty"));
    };
    let mut start = std::process::Command::new(program);
    start
        .args(arguments)
        .current_dir(&command.directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // Also ends what leaves the group's terminal; and no command can stop the daemon by a terminal.
    warren_sys::process::start_in_new_session(&mut start);
    let mut start = tokio::process::Command::from(start);
    let child = start
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))?;
    let group = Group::of(&child);
    let (status, stdout, stderr) = collect(child, group, PATIENCE_WITH_CHILDREN).await?;
    Ok(ExecutionResult {
        truncated: stdout.is_cut || stderr.is_cut,
        stdout: text(stdout.bytes),
        stderr: text(stderr.bytes),
        exit_code: exit_code(status),
        timed_out: false,
    })
}

/// Waits for the end of a process and reads its output meanwhile. What its children write is waited for
/// with limited patience; what it has left running may go on.
pub(crate) async fn collect(
    mut child: Child,
    mut group: Group,
    patience: Duration,
) -> io::Result<(ExitStatus, Output, Output)> {
    let (stdout, stderr) = (Shared::default(), Shared::default());
    let reading = tokio::spawn(read(child.stdout.take(), stdout.clone()));
    let reading_errors = tokio::spawn(read(child.stderr.take(), stderr.clone()));
    let _stop_reading = StopReading([reading.abort_handle(), reading_errors.abort_handle()]);
    let status = child.wait().await?;
    let read_to_end = async { (reading.await, reading_errors.await) };
    let _ = tokio::time::timeout(patience, read_to_end).await;
    group.0 = None;
    Ok((status, take(&stdout), take(&stderr)))
}

struct StopReading([tokio::task::AbortHandle; 2]);

impl Drop for StopReading {
    fn drop(&mut self) {
        self.0.iter().for_each(tokio::task::AbortHandle::abort);
    }
}

fn take(output: &Shared) -> Output {
    std::mem::take(&mut *output.lock().unwrap_or_else(PoisonError::into_inner))
}

async fn read(stream: Option<impl AsyncRead + Unpin>, output: Shared) {
    let Some(mut stream) = stream else { return };
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        let room = LONGEST_OUTPUT - output.bytes.len();
        output.bytes.extend_from_slice(&buffer[..length.min(room)]);
        output.is_cut |= length > room;
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn exit_code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status.code().or_else(|| status.signal().map(|signal| -signal)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    async fn shell(script: &str, timeout: Duration) -> ExecutionResult {
        let words = ["sh", "-c", script].map(str::to_owned).to_vec();
        run(Command { words, directory: "/".into(), timeout }).await
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn output_and_exit_code_come_back() {
        let result = shell("pwd; echo no >&2; exit 3", LONG).await;
        assert_eq!((result.stdout.as_str(), result.stderr.as_str(), result.exit_code), ("/\n", "no\n", 3));
        assert_eq!(shell("kill -9 $$", LONG).await.exit_code, -9);
        let cut = shell("head -c 9000000 /dev/zero", LONG).await;
        assert!(cut.truncated && cut.stdout.len() == LONGEST_OUTPUT && cut.exit_code == 0);
    }

    #[tokio::test]
    async fn what_cannot_be_run_is_a_result_too() {
        let words = vec!["/no/such/program".to_owned()];
        let result = run(Command { words, directory: "/".into(), timeout: LONG }).await;
        assert_eq!(result.exit_code, 1);
        assert!(result.stderr.contains("/no/such/program"), "{result:?}");
    }

    #[tokio::test]
    async fn a_command_that_takes_too_long_is_killed_with_its_children() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; wait", file.display());
        let result = shell(&script, Duration::from_millis(500)).await;
        assert!(result.timed_out && result.exit_code == 1 && result.stdout.is_empty(), "{result:?}");
        let pid = std::fs::read_to_string(&file).unwrap().trim().to_owned();
        let state = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat.rsplit(')').next()?.trim().chars().next()
        };
        let deadline = Instant::now() + LONG;
        while state().is_some_and(|state| state != 'Z') {
            assert!(Instant::now() < deadline, "the child of a killed command still runs");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn a_child_that_stays_does_not_hold_up_the_answer() {
        let begun = Instant::now();
        let result = shell("sleep 30 & echo started", LONG).await;
        assert_eq!((result.stdout.as_str(), result.exit_code), ("started\n", 0));
        assert!(begun.elapsed() < Duration::from_secs(25));
    }
}
