//! Commands in a container: their streams, their end, and how they are ended.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bollard::Docker;
use bollard::models::ExecConfig;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf};
use warren_client::files::{Bounded, Runner};

use super::engine::{Engine, Stream, engine_error, refusal};
use crate::error::{Code, ProviderError};
use crate::process::{Command, Inside, Process, TerminalSize};

/// The variable by which the processes of one command are found again.
const MARK: &str = "WARREN_COMMAND";

/// The beginning of the marks of commands on terminals.
const TERMINAL: &str = "terminal-";

/// Kills the processes of a command: those that have its mark in their environment (`$1`), and
/// those of their sessions. The engine has no call for this. Each command has a session of its own.
/// A process that has left it and has cleared its environment is not found.
const KILL: &str = r#"
read -r stat < "/proc/$$/stat"
set -- "$1" ${stat##*) }
own=$5
sessions=' '
left=100
while [ "$left" -gt 0 ]; do
  left=$((left - 1))
  found=
  for process in /proc/[0-9]*; do
    read -r stat 2>/dev/null < "$process/stat" || continue
    set -- "$1" ${stat##*) }
    if [ "$2" = Z ] || [ "$5" = "$own" ]; then continue; fi
    case $sessions in
      *" $5 "*) ;;
      *) tr '\0' '\n' 2>/dev/null < "$process/environ" | grep -qx "WARREN_COMMAND=$1" || continue
         sessions="$sessions$5 " ;;
    esac
    found=1
    kill -9 "${process#/proc/}" 2>/dev/null
  done
  [ -z "$found" ] && exit 0
done
exit 1
"#;

/// The time limit for ending a command.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);

/// The pauses between questions about a command whose outputs are closed. The engine notes its end
/// a moment later.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The number of tries to set the size of a terminal. The engine refuses until the command has
/// started.
const RESIZE_TRIES: u32 = 40;
const RESIZE_PAUSE: Duration = Duration::from_millis(25);

/// The beginning of the engine's reason that a command could not be started, and the longest one.
const REFUSAL: &[u8] = b"OCI runtime exec failed";
const MOST_REFUSAL: usize = 8 << 10;

/// The largest part of an output that is carried at once.
const PART: usize = 32 << 10;

/// A container in which commands run.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub engine: Arc<Engine>,
    pub docker: Docker,
    pub container: String,
}

/// A command that was started.
struct Started {
    exec: String,
    stream: Pin<Box<dyn Stream>>,
    /// None for one of ours that ends others.
    mark: Option<String>,
}

fn failed(reason: impl std::fmt::Display) -> ProviderError {
    let reason = reason.to_string();
    ProviderError::new(Code::SandboxExecFailed, format!("Command execution failed: {reason}"))
        .with(json!({ "reason": reason }))
}

impl Place {
    /// Starts a command and carries its streams.
    pub(super) async fn start(&self, command: &Command) -> Result<Process, ProviderError> {
        let random: String = std::iter::repeat_with(fastrand::alphanumeric).take(20).collect();
        let mark = if command.terminal.is_some() { format!("{TERMINAL}{random}") } else { random };
        let started = self.launch(command, Some(mark)).await?;
        let (process, inside) = Process::pair();
        if let Some(size) = command.terminal {
            // The channel is new and has room.
            let _ = process.resize.try_send(size);
        }
        let (terminal, stdin) = (command.terminal.is_some(), command.stdin || command.terminal.is_some());
        tokio::spawn(carry(self.clone(), started, inside, terminal, stdin));
        Ok(process)
    }

    async fn launch(&self, command: &Command, mark: Option<String>) -> Result<Started, ProviderError> {
        let words = std::iter::once(&command.program).chain(&command.arguments).cloned();
        let mut env: Vec<String> =
            command.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if command.terminal.is_some() && !command.env.contains_key("TERM") {
            env.push("TERM=xterm-256color".to_owned());
        }
        env.extend(mark.iter().map(|mark| format!("{MARK}={mark}")));
        let config = ExecConfig {
            attach_stdin: Some(command.stdin || command.terminal.is_some()),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            tty: Some(command.terminal.is_some()),
            // Engines before 23 do not know it; their terminals get it a moment after the start.
            console_size: command.terminal.map(|size| vec![size.height.into(), size.width.into()]),
            env: Some(env),
            cmd: Some(words.collect()),
            working_dir: command.directory.clone(),
            ..ExecConfig::default()
        };
        let made = self.docker.create_exec(&self.container, config).await;
        let exec = made.map_err(|error| match refusal(&error) {
            Some(404) => ProviderError::invalid_state("removed"),
            Some(409) => ProviderError::invalid_state("stopped"),
            _ => engine_error(Code::SandboxExecFailed, "Command execution failed", &error),
        })?;
        let stream = self.engine.start_exec(&exec.id, command.terminal.is_some()).await.map_err(failed)?;
        Ok(Started { exec: exec.id, stream, mark })
    }

    /// Waits for the end of a command whose outputs are closed.
    async fn exit_code(&self, exec: &str) -> Result<i32, ProviderError> {
        let mut pause = FIRST_PAUSE;
        loop {
            let seen = self.docker.inspect_exec(exec).await;
            let seen = seen.map_err(|error| match refusal(&error) {
                Some(404) => failed("the sandbox was stopped or removed"),
                _ => engine_error(Code::SandboxExecFailed, "Command execution failed", &error),
            })?;
            if seen.running == Some(false)
                && let Some(code) = seen.exit_code
            {
                return Ok(i32::try_from(code).unwrap_or(i32::MAX));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Kills what ran on terminals of an earlier service. Their shells do not notice its end.
    pub(super) async fn end_terminals(&self) -> Result<(), ProviderError> {
        self.kill(&format!("{TERMINAL}.*")).await
    }

    /// Kills the processes of the commands whose marks match.
    async fn kill(&self, mark: &str) -> Result<(), ProviderError> {
        let killing = async {
            let Started { exec, mut stream, .. } =
                self.launch(&Command::new("sh", ["-c", KILL, "sh", mark]), None).await?;
            // Its output is not needed: the exit code says everything.
            tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.map_err(failed)?;
            self.exit_code(&exec).await
        };
        match tokio::time::timeout(KILL_TIMEOUT, killing).await {
            Ok(Ok(0)) => Ok(()),
            // Its sandbox does not run, and nothing in it does.
            Ok(Err(error)) if error.code == Code::SandboxInvalidState => Ok(()),
            Ok(Ok(code)) => Err(failed(format!("its processes could not be killed (exit code {code})"))),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(failed("its processes could not be killed in time")),
        }
    }

    async fn resize(&self, exec: &str, size: TerminalSize) {
        use bollard::exec::ResizeExecOptions;
        for _ in 0..RESIZE_TRIES {
            let size = ResizeExecOptions { height: size.height, width: size.width };
            if self.docker.resize_exec(exec, size).await.is_ok() {
                return;
            }
            tokio::time::sleep(RESIZE_PAUSE).await;
        }
    }
}

/// Carries a command's streams until it ends or is to be stopped.
async fn carry(place: Place, started: Started, inside: Inside, terminal: bool, stdin: bool) {
    let Inside { stdin: mut from, stdout, stderr, mut resize, end, stop } = inside;
    let Started { exec, stream, mark } = started;
    let (read, mut write) = tokio::io::split(stream);
    let feeding = async {
        // It may end without reading all of its input.
        let _ = tokio::io::copy(&mut from, &mut write).await;
        // With a terminal the engine takes the end of the input for the end of everything.
        if stdin && !terminal {
            let _ = write.shutdown().await;
        }
        std::future::pending::<Infallible>().await
    };
    let sizing = async {
        while let Some(size) = resize.recv().await {
            place.resize(&exec, size).await;
        }
        std::future::pending::<Infallible>().await
    };
    let ran = async {
        let broken = |reason: std::io::Error| failed(format!("the engine's stream broke: {reason}"));
        let mut stdout = stdout;
        let held = match terminal {
            true => {
                drop(stderr);
                carry_terminal(read, &mut stdout).await.map(|()| None)
            }
            false => carry_frames(read, &mut stdout, stderr).await,
        };
        let Some(held) = held.map_err(broken)? else {
            // Its reader goes on to wait for the exit code.
            drop(stdout);
            return place.exit_code(&exec).await;
        };
        match place.exit_code(&exec).await? {
            126 | 127 => Err(failed(String::from_utf8_lossy(&held).trim())),
            code => {
                let _ = stdout.write_all(&held).await;
                Ok(code)
            }
        }
    };
    let result = tokio::select! {
        result = ran => result,
        never = feeding => match never {},
        never = sizing => match never {},
        () = stop.cancelled() => {
            let reason = match place.kill(&mark.unwrap_or_default()).await {
                Ok(()) => "the command was stopped".to_owned(),
                Err(error) => format!("the command was to be stopped, and may still run: {error}"),
            };
            Err(ProviderError::new(Code::SandboxExecFailed, reason))
        }
    };
    // The receiver may be gone.
    let _ = end.send(result);
}

async fn carry_terminal(
    mut read: ReadHalf<Pin<Box<dyn Stream>>>,
    mut stdout: impl AsyncWrite + Unpin,
) -> Result<(), std::io::Error> {
    let mut buffer = vec![0; PART];
    loop {
        match read.read(&mut buffer).await? {
            0 => return Ok(()),
            // Without a reader, the command goes on.
            length => {
                let _ = stdout.write_all(&buffer[..length]).await;
            }
        }
    }
}

/// Carries both outputs to their readers: each frame has its output's number, three zeros and its
/// length before it.
///
/// The engine writes the reason that a command could not be started into the command's own output,
/// in one frame. An output that is such a frame and nothing else is returned instead.
async fn carry_frames(
    mut read: impl AsyncRead + Unpin,
    mut stdout: impl AsyncWrite + Unpin,
    mut stderr: impl AsyncWrite + Unpin,
) -> Result<Option<Vec<u8>>, std::io::Error> {
    let mut buffer = vec![0; PART];
    let mut held: Option<Vec<u8>> = None;
    let mut first = true;
    loop {
        let mut head = [0; 8];
        match read.read(&mut head[..1]).await? {
            0 => return Ok(held),
            _ => read.read_exact(&mut head[1..]).await?,
        };
        let [output, _, _, _, length @ ..] = head;
        let mut left = u32::from_be_bytes(length) as usize;
        if let Some(held) = held.take() {
            let _ = stdout.write_all(&held).await;
        }
        if std::mem::take(&mut first) && output == 1 && (REFUSAL.len()..MOST_REFUSAL).contains(&left) {
            let mut frame = vec![0; left];
            read.read_exact(&mut frame).await?;
            if frame.starts_with(REFUSAL) {
                held = Some(frame);
            } else {
                let _ = stdout.write_all(&frame).await;
            }
            continue;
        }
        while left > 0 {
            let most = left.min(buffer.len());
            let length = read.read(&mut buffer[..most]).await?;
            if length == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            left -= length;
            let part = &buffer[..length];
            // Without a reader, the command goes on.
            let _ = match output {
                0 | 1 => stdout.write_all(part).await,
                2 => stderr.write_all(part).await,
                _ => {
                    let text = format!("the engine sends a frame for the output {output}");
                    return Err(std::io::Error::other(text));
                }
            };
        }
    }
}

impl Runner for Place {
    async fn run_and_keep(
        &self,
        command: Vec<String>,
        stdin: Option<&[u8]>,
        stdout: &mut Bounded,
        stderr: &mut Bounded,
    ) -> Result<i32, String> {
        let mut words = command.into_iter();
        let command = Command {
            program: words.next().unwrap_or_default(),
            arguments: words.collect(),
            stdin: stdin.is_some(),
            ..Command::default()
        };
        // Dropping it ends the command.
        let mut process = self.start(&command).await.map_err(|error| error.message)?;
        let input = process.stdin.take();
        let feeding = async {
            if let (Some(mut input), Some(bytes)) = (input, stdin) {
                // It may end without reading all of its input.
                let _ = input.write_all(bytes).await;
            }
            Ok(())
        };
        let Process { stdout: out, stderr: err, .. } = &mut process;
        // An output that is full stops all of them.
        let copied = tokio::try_join!(feeding, tokio::io::copy(out, stdout), tokio::io::copy(err, stderr));
        copied.map_err(|error: std::io::Error| error.to_string())?;
        process.wait().await.map_err(|error| error.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(output: u8, text: &[u8]) -> Vec<u8> {
        let length = u32::try_from(text.len()).expect("short").to_be_bytes();
        [&[output, 0, 0, 0], &length, text].concat()
    }

    async fn carried(stream: &[u8]) -> (Result<Option<Vec<u8>>, std::io::ErrorKind>, Vec<u8>, Vec<u8>) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let result = carry_frames(stream, &mut out, &mut err).await.map_err(|error| error.kind());
        (result, out, err)
    }

    #[tokio::test]
    async fn frames_go_to_their_outputs_and_broken_ones_are_errors() {
        let big = vec![7; 3 * PART + 5];
        let stream = [frame(1, b"out"), frame(2, b"err"), frame(1, b""), frame(1, &big)].concat();
        let (result, out, err) = carried(&stream).await;
        assert_eq!((result, out, err), (Ok(None), [&b"out"[..], &big].concat(), b"err".to_vec()));
        for broken in
            [&frame(1, b"output")[..10], &frame(1, b"out")[..3], &[1, 0, 0, 0, 255, 255, 255, 255, 1]]
        {
            assert_eq!(carried(broken).await.0, Err(std::io::ErrorKind::UnexpectedEof), "{broken:?}");
        }
        assert_eq!(carried(&frame(9, b"x")).await.0, Err(std::io::ErrorKind::Other));
    }

    #[tokio::test]
    async fn reason_of_the_engine_is_held_back_only_alone() {
        let reason = b"OCI runtime exec failed: no such file";
        let (result, out, _) = carried(&frame(1, reason)).await;
        assert_eq!((result, out), (Ok(Some(reason.to_vec())), Vec::new()));
        let (result, out, _) = carried(&[frame(1, reason), frame(1, b"more")].concat()).await;
        assert_eq!((result, out), (Ok(None), [&reason[..], b"more"].concat()));
    }

    /// Runs the script that ends commands on this machine's own processes.
    #[test]
    fn script_ends_marked_processes_and_their_sessions_alone() {
        use std::process::{Command, Stdio};
        let mark = format!("test-{}", fastrand::u64(..));
        let sleep = |marked: bool| {
            let mut command = Command::new("setsid");
            command
                .args(["sh", "-c", "env -i sleep 1000 >/dev/null & echo ready; exec sleep 1000 >/dev/null"])
                .stdin(Stdio::null())
                .stdout(Stdio::piped());
            if marked {
                command.env(MARK, &mark);
            }
            let mut child = command.spawn().expect("run setsid");
            // Before that it may still be in this test's session.
            let ready = std::io::read_to_string(child.stdout.take().expect("piped")).expect("read");
            assert_eq!(ready, "ready\n");
            child
        };
        let (mut marked, mut other) = (sleep(true), sleep(false));
        let ran = Command::new("sh").args(["-c", KILL, "sh", &mark]).status().expect("run sh");
        assert!(ran.success());
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&marked.wait().expect("wait")), Some(9));
        assert_eq!(other.try_wait().expect("asked"), None, "another's goes on");
        let group = rustix::process::Pid::from_child(&other);
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).expect("end it");
        other.wait().expect("wait");
    }
}
