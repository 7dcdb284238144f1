//! `process.Process`: processes that outlive the calls that started them. Any number of clients follow one.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use warren_sys::pty;

use super::connect::{self, Code, Failure};
use super::user::{self, User};
use super::{Envd, paths};
use crate::process_api::{open_terminal, write_terminal};
use crate::reply::Body;

/// As much is sent in one message.
const PIECE: usize = 32 << 10;
/// Messages on their way to a client that does not read; then the process waits.
const UNREAD: usize = 8;
/// A process's children may hold its output open after it has ended. They are waited for this long.
const PATIENCE_WITH_CHILDREN: Duration = Duration::from_secs(2);
/// The most processes at a time.
const MOST_PROCESSES: usize = 1024;
/// The most clients that follow one process.
const MOST_FOLLOWERS: usize = 64;
/// The byte that a terminal's user types to end the input.
const END_OF_TRANSMISSION: u8 = 4;

/// The processes that have not ended, by their ids in the sandbox.
#[derive(Debug, Default)]
pub(super) struct Processes {
    all: Mutex<BTreeMap<u32, Arc<Process>>>,
}

#[derive(Debug)]
struct Process {
    pid: u32,
    config: ProcessConfig,
    tag: Option<String>,
    input: tokio::sync::Mutex<Input>,
    terminal: Option<Arc<OwnedFd>>,
    followers: Mutex<Vec<mpsc::Sender<Event>>>,
}

#[derive(Debug)]
enum Input {
    Pipe(ChildStdin),
    Terminal(Arc<OwnedFd>),
    Closed,
}

/// An event of a process.
#[derive(Debug, Clone)]
enum Event {
    /// It wrote to a stream: `stdout`, `stderr` or `pty`.
    Data(&'static str, Bytes),
    /// It ended.
    End(ExitStatus),
    /// It took longer than its client allowed.
    Late,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct ProcessConfig {
    cmd: String,
    args: Vec<String>,
    envs: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StartRequest {
    process: ProcessConfig,
    pty: Option<Terminal>,
    tag: Option<String>,
    stdin: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Terminal {
    size: Option<Size>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct Size {
    cols: u16,
    rows: u16,
}

/// The process that a request is about: by its id, or by the tag that it was started with.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Selector {
    pid: Option<u32>,
    tag: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Selected {
    process: Selector,
    pty: Option<Terminal>,
    signal: Option<Value>,
    input: Option<ProcessInput>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ProcessInput {
    stdin: Option<String>,
    pty: Option<String>,
}

/// A message of `StreamInput`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamedInput {
    start: Option<Selected>,
    data: Option<Selected>,
}

impl Processes {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Process>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether none runs.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn find(&self, selector: &Selector) -> Result<Arc<Process>, Failure> {
        let all = self.lock();
        let (found, name) = match (selector.pid, &selector.tag) {
            (Some(pid), _) => (all.get(&pid).cloned(), format!("pid {pid}")),
            (None, Some(tag)) => {
                let found = all.values().find(|process| process.tag.as_ref() == Some(tag));
                (found.cloned(), format!("tag {tag:?}"))
            }
            (None, None) => {
                return Err(Failure::new(Code::InvalidArgument, "`process` names neither `pid` nor `tag`"));
            }
        };
        found.ok_or_else(|| Failure::new(Code::NotFound, format!("there is no process with {name}")))
    }
}

impl Process {
    fn followers(&self) -> MutexGuard<'_, Vec<mpsc::Sender<Event>>> {
        self.followers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follow(&self) -> Result<mpsc::Receiver<Event>, Failure> {
        let mut followers = self.followers();
        followers.retain(|follower| !follower.is_closed());
        if followers.len() >= MOST_FOLLOWERS {
            let message = format!("{MOST_FOLLOWERS} clients follow the process already");
            return Err(Failure::new(Code::ResourceExhausted, message));
        }
        let (sender, receiver) = mpsc::channel(UNREAD);
        followers.push(sender);
        Ok(receiver)
    }

    /// Tells all followers. One that does not read holds the process up, as a full pipe would.
    async fn tell(&self, event: Event) {
        let followers: Vec<_> = self.followers().clone();
        for follower in followers {
            // It has gone; the process goes on.
            let _ = follower.send(event.clone()).await;
        }
        self.followers().retain(|follower| !follower.is_closed());
    }

    /// Sends a signal to the process and what it has started, as far as that is in its session.
    fn signal(&self, signal: Signal) -> Result<(), Failure> {
        let Some(leader) = Pid::from_raw(self.pid.cast_signed()) else { return Ok(()) };
        match rustix::process::kill_process_group(leader, signal) {
            // It has ended.
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(Failure::io("signal", &error.into())),
        }
    }

    async fn write(&self, input: &ProcessInput) -> Result<(), Failure> {
        let encoded = input.pty.as_ref().or(input.stdin.as_ref());
        let encoded = encoded.ok_or_else(|| Failure::new(Code::InvalidArgument, "`input` is empty"))?;
        let bytes = STANDARD.decode(encoded);
        let bytes =
            bytes.map_err(|error| Failure::new(Code::InvalidArgument, format!("`input`: {error}")))?;
        let mut open = self.input.lock().await;
        let written = match &mut *open {
            Input::Closed => {
                let message = format!("the input of process {} is not open", self.pid);
                return Err(Failure::new(Code::FailedPrecondition, message));
            }
            Input::Pipe(pipe) => pipe.write_all(&bytes).await,
            Input::Terminal(master) => write_terminal(master, &bytes).await,
        };
        written.map_err(|error| Failure::io("write", &error))
    }

    async fn close_input(&self) -> Result<(), Failure> {
        let mut open = self.input.lock().await;
        if let Input::Terminal(master) = &*open {
            let written = write_terminal(master, &[END_OF_TRANSMISSION]).await;
            return written.map_err(|error| Failure::io("write", &error));
        }
        *open = Input::Closed;
        Ok(())
    }
}

/// Answers one call.
pub(super) async fn answer(envd: Arc<Envd>, method: &str, request: Request<Incoming>) -> Response<Body> {
    match method {
        "Start" => start(envd, request).await.unwrap_or_else(connect::refused),
        "Connect" => attach(envd, request).await.unwrap_or_else(connect::refused),
        "StreamInput" => match stream_input(&envd, request).await {
            Ok(()) => connect::stream(finished()),
            Err(failure) => connect::refused(failure),
        },
        _ => connect::unary(simple(&envd, method, request).await),
    }
}

async fn simple(envd: &Envd, method: &str, request: Request<Incoming>) -> Result<Value, Failure> {
    match method {
        "List" => {
            let processes: Vec<Value> =
                envd.processes.lock().values().map(|process| process.shown()).collect();
            return Ok(json!({ "processes": processes }));
        }
        "SendInput" | "CloseStdin" | "SendSignal" | "Update" => {}
        other => return Err(Failure::new(Code::Unimplemented, format!("unknown method {other}"))),
    }
    let wanted: Selected = connect::unary_message(request).await?;
    let process = envd.processes.find(&wanted.process)?;
    match method {
        "SendInput" => process.write(&wanted.input.unwrap_or_default()).await?,
        "CloseStdin" => process.close_input().await?,
        "SendSignal" => process.signal(signal(wanted.signal.as_ref())?)?,
        _ => {
            let size = wanted.pty.and_then(|terminal| terminal.size);
            let size = size.ok_or_else(|| Failure::new(Code::InvalidArgument, "`pty.size` is missing"))?;
            let terminal = process.terminal.as_ref().ok_or_else(|| {
                Failure::new(Code::FailedPrecondition, format!("process {} has no terminal", process.pid))
            })?;
            pty::resize(terminal.as_fd(), size.cols, size.rows)
                .map_err(|error| Failure::io("resize", &error))?;
        }
    }
    Ok(json!({}))
}

fn signal(wanted: Option<&Value>) -> Result<Signal, Failure> {
    match wanted.map(|value| (value.as_str(), value.as_i64())) {
        Some((Some("SIGNAL_SIGKILL"), _) | (_, Some(9))) => Ok(Signal::KILL),
        Some((Some("SIGNAL_SIGTERM"), _) | (_, Some(15))) => Ok(Signal::TERM),
        _ => Err(Failure::new(Code::InvalidArgument, "`signal` must be SIGNAL_SIGKILL or SIGNAL_SIGTERM")),
    }
}

impl Process {
    fn shown(&self) -> Value {
        let mut shown = json!({ "config": self.config, "pid": self.pid });
        if let Some(tag) = &self.tag {
            shown["tag"] = json!(tag);
        }
        shown
    }
}

async fn stream_input(envd: &Envd, request: Request<Incoming>) -> Result<(), Failure> {
    let mut messages = connect::Messages::of(request);
    let mut process = None;
    while let Some(message) = messages.next::<StreamedInput>().await? {
        if let Some(start) = message.start {
            process = Some(envd.processes.find(&start.process)?);
        }
        if let Some(input) = message.data.and_then(|data| data.input) {
            let process = process.as_ref();
            let missing = || Failure::new(Code::InvalidArgument, "`data` came before `start`");
            process.ok_or_else(missing)?.write(&input).await?;
        }
    }
    Ok(())
}

/// Returns the frames of an answer with one empty message.
fn finished() -> mpsc::Receiver<Bytes> {
    let (sender, frames) = mpsc::channel(2);
    let _ = sender.try_send(connect::framed(&json!({})));
    let _ = sender.try_send(connect::end(&Ok(())));
    frames
}

async fn attach(envd: Arc<Envd>, request: Request<Incoming>) -> Result<Response<Body>, Failure> {
    let (timeout, keepalive) = (connect::timeout(request.headers()), connect::keepalive(request.headers()));
    let wanted: Selected = connect::first_message(request).await?;
    let process = envd.processes.find(&wanted.process)?;
    let events = process.follow()?;
    // It may have ended between the two, and then there is nothing to wait for.
    envd.processes.find(&Selector { pid: Some(process.pid), tag: None })?;
    Ok(report(process.pid, events, keepalive, timeout))
}

async fn start(envd: Arc<Envd>, request: Request<Incoming>) -> Result<Response<Body>, Failure> {
    let (timeout, keepalive) = (connect::timeout(request.headers()), connect::keepalive(request.headers()));
    let user = envd.users.named(user::of_request(request.headers())?.as_deref())?;
    let wanted: StartRequest = connect::first_message(request).await?;
    if envd.processes.lock().len() >= MOST_PROCESSES {
        return Err(Failure::new(Code::ResourceExhausted, format!("{MOST_PROCESSES} processes run already")));
    }
    let mut command = prepare(&envd, &wanted.process, &user)?;
    let terminal = match &wanted.pty {
        Some(terminal) => {
            let size = terminal.size.unwrap_or_default();
            let opened = open_terminal(&mut command, (size.cols, size.rows), envd.users.owner(&user));
            Some(opened.map_err(|error| Failure::io("open a terminal", &error))?)
        }
        None => {
            // Older clients do not say it and write.
            let stdin = if wanted.stdin.unwrap_or(true) { Stdio::piped() } else { Stdio::null() };
            command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
            warren_sys::process::start_in_new_session(&mut command);
            None
        }
    };
    let program = wanted.process.cmd.clone();
    let mut child = tokio::process::Command::from(command)
        .spawn()
        .map_err(|error| Failure { code: Code::InvalidArgument, ..Failure::io(&program, &error) })?;
    let pid = child.id().ok_or_else(|| Failure::new(Code::Internal, "the process has no id"))?;
    let input = match (&terminal, child.stdin.take()) {
        (Some(master), _) => Input::Terminal(master.clone()),
        (None, Some(pipe)) => Input::Pipe(pipe),
        (None, None) => Input::Closed,
    };
    let process = Arc::new(Process {
        pid,
        config: wanted.process,
        tag: wanted.tag,
        input: tokio::sync::Mutex::new(input),
        terminal,
        followers: Mutex::default(),
    });
    let events = process.follow()?;
    // On the list before the client hears of it.
    envd.processes.lock().insert(pid, process.clone());
    tokio::spawn(run(envd, process, child, timeout));
    Ok(report(pid, events, keepalive, None))
}

/// Makes the command, with the environment and the directory of its user.
fn prepare(envd: &Envd, wanted: &ProcessConfig, user: &User) -> Result<std::process::Command, Failure> {
    if wanted.cmd.is_empty() {
        return Err(Failure::new(Code::InvalidArgument, "`process.cmd` is empty"));
    }
    let holds_nul = |text: &str| text.contains('\0');
    let bad_name = |name: &String| name.is_empty() || name.contains('=') || holds_nul(name);
    if wanted.envs.keys().any(bad_name) || wanted.envs.values().any(|value| holds_nul(value)) {
        return Err(Failure::new(Code::InvalidArgument, "`process.envs` has a name or value that cannot be"));
    }
    let directory = match wanted.cwd.as_deref().filter(|path| !path.is_empty()) {
        Some(path) => paths::absolute(path, user),
        None if user.home.is_dir() => user.home.clone(),
        None => PathBuf::from("/"),
    };
    if !directory.is_dir() {
        let message = format!("cwd `{}` is not a directory", directory.display());
        return Err(Failure::new(Code::InvalidArgument, message));
    }
    let mut command = std::process::Command::new(&wanted.cmd);
    command.args(&wanted.args).current_dir(directory);
    let own: [(&str, OsString); 4] = [
        ("HOME", user.home.clone().into()),
        ("USER", user.name.clone().into()),
        ("LOGNAME", user.name.clone().into()),
        ("SHELL", shell().into()),
    ];
    command.envs(own).envs(&wanted.envs);
    envd.users.become_user(&mut command, user);
    Ok(command)
}

fn shell() -> &'static str {
    if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" }
}

/// Follows a process to its end, whether or not there are clients.
async fn run(envd: Arc<Envd>, process: Arc<Process>, mut child: Child, timeout: Option<Duration>) {
    let mut pumps = JoinSet::new();
    match &process.terminal {
        Some(master) => {
            pumps.spawn(pump_terminal(master.clone(), process.clone()));
        }
        None => {
            pumps.spawn(pump(child.stdout.take(), "stdout", process.clone()));
            pumps.spawn(pump(child.stderr.take(), "stderr", process.clone()));
        }
    }
    let deadline = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        ended = child.wait() => Some(ended),
        () = deadline => None,
    };
    let is_late = ended.is_none();
    let ended = match ended {
        Some(ended) => ended,
        None => {
            let _ = process.signal(Signal::KILL);
            child.wait().await
        }
    };
    let drain = async { while pumps.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(PATIENCE_WITH_CHILDREN, drain).await;
    pumps.abort_all();
    // Off the list before the end is told, so that a client that has seen the end does not find it.
    envd.processes.lock().remove(&process.pid);
    let status = ended.unwrap_or_else(|_| ExitStatus::from_raw(1 << 8));
    process.tell(if is_late { Event::Late } else { Event::End(status) }).await;
    process.followers().clear();
}

async fn pump(stream: Option<impl AsyncRead + Unpin>, name: &'static str, process: Arc<Process>) {
    let Some(mut stream) = stream else { return };
    let mut buffer = vec![0; PIECE];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        process.tell(Event::Data(name, Bytes::copy_from_slice(&buffer[..length]))).await;
    }
}

/// Reads a terminal until no process has it any more.
async fn pump_terminal(master: Arc<OwnedFd>, process: Arc<Process>) {
    let Ok(master) = master.try_clone() else { return };
    // It is no pipe, but what is done with it is the same.
    let reader = tokio::net::unix::pipe::Receiver::from_file_unchecked(master.into());
    pump(reader.ok(), "pty", process).await;
}

/// Answers with what happens to a process, until it or the client's patience ends. A client that goes away changes nothing
/// for the process.
fn report(
    pid: u32,
    mut events: mpsc::Receiver<Event>,
    keepalive: Duration,
    timeout: Option<Duration>,
) -> Response<Body> {
    let (sender, frames) = mpsc::channel(UNREAD);
    let message = |event: Value| connect::framed(&json!({ "event": event }));
    let work = async move {
        let _ = sender.send(message(json!({ "start": { "pid": pid } }))).await;
        let deadline = async {
            match timeout {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(deadline);
        let late = || Failure::new(Code::DeadlineExceeded, "the time limit is over");
        let result = loop {
            let event = tokio::select! {
                event = events.recv() => event,
                () = tokio::time::sleep(keepalive) => {
                    if sender.send(message(json!({ "keepalive": {} }))).await.is_err() {
                        return;
                    }
                    continue;
                }
                () = &mut deadline => break Err(late()),
                () = sender.closed() => return,
            };
            match event {
                Some(Event::Data(stream, bytes)) => {
                    let data = json!({ "data": { stream: STANDARD.encode(&bytes) } });
                    if sender.send(message(data)).await.is_err() {
                        return;
                    }
                }
                Some(Event::End(status)) => {
                    let _ = sender.send(message(json!({ "end": ended(status) }))).await;
                    break Ok(());
                }
                Some(Event::Late) => break Err(late()),
                None => break Err(Failure::new(Code::Internal, "the end of the process was not seen")),
            }
        };
        let _ = sender.send(connect::end(&result)).await;
    };
    tokio::spawn(work);
    connect::stream(frames)
}

/// Says how a process ended, in the words of envd.
fn ended(status: ExitStatus) -> Value {
    let text = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal: {}", signal_name(signal)),
        (None, None) => "ended".to_owned(),
    };
    let mut end = json!({
        "exitCode": status.code().unwrap_or(-1), "exited": status.code().is_some(), "status": text,
    });
    if !status.success() {
        end["error"] = json!(text);
    }
    end
}

fn signal_name(signal: i32) -> String {
    match signal {
        2 => "interrupt".to_owned(),
        9 => "killed".to_owned(),
        11 => "segmentation fault".to_owned(),
        15 => "terminated".to_owned(),
        other => format!("signal {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_in_envds_words() {
        let told = |raw: i32| ended(ExitStatus::from_raw(raw));
        assert_eq!(told(0), json!({"exitCode": 0, "exited": true, "status": "exit status 0"}));
        assert_eq!(told(3 << 8)["error"], "exit status 3");
        assert_eq!(
            told(9),
            json!({"exitCode": -1, "exited": false, "status": "signal: killed", "error": "signal: killed"})
        );
    }

    #[test]
    fn only_the_signals_of_the_protocol_are_sent() {
        assert_eq!(signal(Some(&json!("SIGNAL_SIGKILL"))).unwrap(), Signal::KILL);
        assert_eq!(signal(Some(&json!(15))).unwrap(), Signal::TERM);
        for bad in [json!("SIGNAL_UNSPECIFIED"), json!(19), json!(null)] {
            assert_eq!(signal(Some(&bad)).unwrap_err().code, Code::InvalidArgument);
        }
    }
}
