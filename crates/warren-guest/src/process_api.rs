//! sandboxd's `process.v1.ProcessService`: processes with their streams or a terminal, over gRPC.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body::Frame;
use hyper::body::Incoming;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin};
use tokio::sync::mpsc;
use warren_proto::processes::SERVICE;
use warren_sys::pty;

use crate::grpc::{self, Code, Status};
use crate::protobuf::{Fields, Malformed, put_bytes, put_int32};
use crate::reply::Body;
use crate::root::PathError;
use crate::run::{self, Group};
use crate::{Config, Daemon};

/// As much is sent in one message.
const PIECE: usize = 32 << 10;
/// Messages on their way to a client that does not read; then the process waits.
const UNREAD: usize = 8;
/// A process's children may hold its output open after it has ended. They are waited for this long.
const PATIENCE_WITH_CHILDREN: Duration = Duration::from_secs(5);
/// The longest wait for a terminal that takes no input.
const LONGEST_WRITE: Duration = Duration::from_secs(10);

/// The byte that a terminal's user types to end the input.
const END_OF_TRANSMISSION: u8 = 4;

/// The processes that were started by `Start` and have not ended.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    all: Mutex<(i32, BTreeMap<i32, Arc<Process>>)>,
}

#[derive(Debug)]
struct Process {
    leader: Option<Pid>,
    input: tokio::sync::Mutex<Input>,
    terminal: Option<Arc<OwnedFd>>,
}

#[derive(Debug)]
enum Input {
    Pipe(ChildStdin),
    Terminal(Arc<OwnedFd>),
    Closed,
}

/// `ProcessConfig`.
#[derive(Debug, Default, PartialEq, Eq)]
struct ProcessConfig {
    command: Vec<String>,
    variables: Vec<(String, String)>,
    directory: Option<String>,
}

/// `PTY`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Terminal {
    columns: u16,
    rows: u16,
}

impl From<Malformed> for Status {
    fn from(_: Malformed) -> Status {
        Status::new(Code::InvalidArgument, "the message cannot be read")
    }
}

/// Answers one call.
pub(crate) async fn answer(daemon: Arc<Daemon>, request: Request<Incoming>) -> grpc::Answer {
    let Some(method) = request.uri().path().strip_prefix(SERVICE) else {
        let status = Status::new(Code::Unimplemented, format!("unknown service {}", request.uri().path()));
        return Ok(grpc::unary(Err(status)));
    };
    let (method, deadline) = (method.to_owned(), grpc::timeout(request.headers()));
    let message = match grpc::read_message(request).await {
        Ok(message) => message,
        Err(status) => return Ok(grpc::unary(Err(status))),
    };
    let result = match method.as_str() {
        "Start" => match start(daemon, message) {
            Ok(response) => return Ok(response),
            Err(status) => Err(status),
        },
        "Execute" => within(deadline, execute(&daemon, message)).await,
        "WriteStdin" => within(deadline, write_stdin(&daemon.processes, message)).await,
        "SendSignal" => send_signal(&daemon.processes, message),
        "ResizeTTY" => resize(&daemon.processes, message),
        other => Err(Status::new(Code::Unimplemented, format!("unknown method {other}"))),
    };
    Ok(grpc::unary(result))
}

async fn within(
    deadline: Option<Duration>,
    work: impl Future<Output = Result<Bytes, Status>>,
) -> Result<Bytes, Status> {
    match deadline {
        None => work.await,
        Some(deadline) => tokio::time::timeout(deadline, work)
            .await
            .unwrap_or_else(|_| Err(Status::new(Code::DeadlineExceeded, "the deadline is over"))),
    }
}

impl Processes {
    fn lock(&self) -> MutexGuard<'_, (i32, BTreeMap<i32, Arc<Process>>)> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, process: Process) -> i32 {
        let mut all = self.lock();
        all.0 = all.0.checked_add(1).unwrap_or(1);
        let id = all.0;
        all.1.insert(id, Arc::new(process));
        id
    }

    fn find(&self, id: i32) -> Result<Arc<Process>, Status> {
        let found = self.lock().1.get(&id).cloned();
        found.ok_or_else(|| Status::new(Code::NotFound, format!("there is no process {id}")))
    }
}

/// Takes a process off the list when the call that started it ends, however it ends.
struct Listed {
    daemon: Arc<Daemon>,
    id: i32,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.daemon.processes.lock().1.remove(&self.id);
    }
}

fn prepare(config: &Config, wanted: &ProcessConfig) -> Result<std::process::Command, Status> {
    let [program, arguments @ ..] = wanted.command.as_slice() else {
        return Err(Status::new(Code::InvalidArgument, "command must not be empty"));
    };
    let root = &config.root;
    root.ensure().map_err(|error| Status::new(Code::Internal, error.to_string()))?;
    let directory = match &wanted.directory {
        None => root.path().to_owned(),
        Some(directory) => {
            let inside: PathBuf = root.named(directory.clone().into_bytes());
            root.check_directory(&inside).map_err(|error| match error {
                PathError::Escapes => {
                    Status::new(Code::PermissionDenied, "cwd leads out of the base directory")
                }
                PathError::Io(error) => spawn_status("cwd", &error),
            })?;
            root.path().join(inside)
        }
    };
    let mut command = std::process::Command::new(program);
    let variables = wanted.variables.iter().map(|(name, value)| (name, value));
    command.args(arguments).envs(variables).current_dir(directory);
    Ok(command)
}

fn spawn(command: std::process::Command, program: &str) -> Result<Child, Status> {
    let mut command = tokio::process::Command::from(command);
    command.kill_on_drop(true).spawn().map_err(|error| spawn_status(program, &error))
}

fn spawn_status(what: &str, error: &io::Error) -> Status {
    let code = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Code::NotFound,
        io::ErrorKind::PermissionDenied => Code::PermissionDenied,
        io::ErrorKind::InvalidInput => Code::InvalidArgument,
        _ => Code::Internal,
    };
    Status::new(code, format!("{what}: {error}"))
}

/// Returns the exit code, or -1 for a process that a signal has ended.
fn exit_code(status: io::Result<ExitStatus>) -> i32 {
    status.ok().and_then(|status| status.code()).unwrap_or(-1)
}

async fn execute(daemon: &Daemon, message: Bytes) -> Result<Bytes, Status> {
    let mut wanted = ProcessConfig::default();
    let mut fields = Fields(message);
    while let Some((number, value)) = fields.next()? {
        if number == 1 {
            wanted = process_config(value.bytes()?)?;
        }
    }
    let mut command = prepare(&daemon.config, &wanted)?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    warren_sys::process::start_in_new_session(&mut command);
    let child = spawn(command, &wanted.command[0])?;
    let group = Group::of(&child);
    let ended = run::collect(child, group, PATIENCE_WITH_CHILDREN).await;
    let (status, stdout, stderr) = ended.map_err(|error| Status::new(Code::Internal, error.to_string()))?;
    let mut response = BytesMut::new();
    put_int32(&mut response, 1, exit_code(Ok(status)));
    put_bytes(&mut response, 2, &stdout.bytes);
    put_bytes(&mut response, 3, &stderr.bytes);
    Ok(response.freeze())
}

fn start(daemon: Arc<Daemon>, message: Bytes) -> Result<Response<Body>, Status> {
    let (mut wanted, mut terminal) = (ProcessConfig::default(), None);
    let mut fields = Fields(message);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => wanted = process_config(value.bytes()?)?,
            2 => terminal = Some(terminal_size(value.bytes()?)?),
            _ => {}
        }
    }
    let mut command = prepare(&daemon.config, &wanted)?;
    let program = &wanted.command[0];
    let master = match &terminal {
        None => {
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            warren_sys::process::start_in_new_session(&mut command);
            None
        }
        Some(size) => {
            let opened = open_terminal(&mut command, (size.columns, size.rows), None);
            Some(opened.map_err(|error| spawn_status("terminal", &error))?)
        }
    };
    let mut child = spawn(command, program)?;
    let group = Group::of(&child);
    let input = match (&master, child.stdin.take()) {
        (Some(master), _) => Input::Terminal(master.clone()),
        (None, Some(pipe)) => Input::Pipe(pipe),
        (None, None) => Input::Closed,
    };
    let process =
        Process { leader: group.0, input: tokio::sync::Mutex::new(input), terminal: master.clone() };
    // On the list before the client hears of it.
    let id = daemon.processes.add(process);
    let listed = Listed { daemon, id };
    let (sender, receiver) = mpsc::channel(UNREAD);
    tokio::spawn(follow(child, group, listed, master, sender));
    Ok(grpc::response(receiver))
}

/// Opens a terminal and makes it the command's own; its size is only set if it has one.
/// Its file belongs to `owner`, a user and a group, if one is given.
pub(crate) fn open_terminal(
    command: &mut std::process::Command,
    (columns, rows): (u16, u16),
    owner: Option<(u32, u32)>,
) -> io::Result<Arc<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let devpts = rustix::fs::open("/dev/pts", flags, Mode::empty())?;
    let (columns, rows) = if columns > 0 && rows > 0 { (columns, rows) } else { (80, 24) };
    let pty = pty::open(devpts.as_fd(), columns, rows)?;
    if let Some((user, group)) = owner {
        std::os::unix::fs::fchown(&pty.slave, Some(user), Some(group))?;
    }
    let slave = || pty.slave.try_clone().map(Stdio::from);
    command.stdin(slave()?).stdout(slave()?).stderr(slave()?);
    warren_sys::process::start_on_terminal(command);
    rustix::io::ioctl_fionbio(&pty.master, true)?;
    Ok(Arc::new(pty.master))
}

/// Tells the client what a process writes and how it ends. When the client goes away, the process group
/// is killed.
async fn follow(
    mut child: Child,
    mut group: Group,
    listed: Listed,
    master: Option<Arc<OwnedFd>>,
    sender: mpsc::Sender<Frame<Bytes>>,
) {
    let mut init = BytesMut::new();
    put_int32(&mut init, 1, listed.id);
    if sender.send(event(1, &init)).await.is_err() {
        return;
    }
    let mut pumps = tokio::task::JoinSet::new();
    match &master {
        Some(master) => {
            let (master, sender) = (master.clone(), sender.clone());
            pumps.spawn_blocking(move || pump_terminal(&master, &sender));
        }
        None => {
            pumps.spawn(pump(child.stdout.take(), 2, sender.clone()));
            pumps.spawn(pump(child.stderr.take(), 3, sender.clone()));
        }
    }
    let status = tokio::select! {
        status = child.wait() => status,
        () = sender.closed() => return,
    };
    let drain = async { while pumps.join_next().await.is_some() {} };
    tokio::select! {
        _ = tokio::time::timeout(PATIENCE_WITH_CHILDREN, drain) => {}
        () = sender.closed() => return,
    }
    group.0 = None;
    drop(listed);
    let mut exit = BytesMut::new();
    put_int32(&mut exit, 1, exit_code(status));
    let _ = sender.send(event(4, &exit)).await;
    let _ = sender.send(grpc::trailers(&Ok(()))).await;
}

/// `StartResponse` with one of its events.
fn event(number: u8, content: &[u8]) -> Frame<Bytes> {
    let mut message = BytesMut::with_capacity(content.len() + 8);
    put_bytes(&mut message, number, content);
    grpc::framed(&message)
}

async fn pump(stream: Option<impl AsyncRead + Unpin>, number: u8, sender: mpsc::Sender<Frame<Bytes>>) {
    let Some(mut stream) = stream else { return };
    let mut buffer = vec![0; PIECE];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        if sender.send(event(number, &buffer[..length])).await.is_err() {
            return;
        }
    }
}

/// Reads a terminal until no process has it any more or the client has gone.
fn pump_terminal(master: &OwnedFd, sender: &mpsc::Sender<Frame<Bytes>>) {
    let mut buffer = vec![0; PIECE];
    let second = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
    while !sender.is_closed() {
        match rustix::event::poll(&mut [PollFd::new(master, PollFlags::IN)], Some(&second)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => return,
        }
        match rustix::io::read(master, &mut buffer) {
            Ok(length @ 1..) => {
                if sender.blocking_send(event(2, &buffer[..length])).is_err() {
                    return;
                }
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Ok(_) | Err(_) => return,
        }
    }
}

async fn write_stdin(processes: &Processes, message: Bytes) -> Result<Bytes, Status> {
    let (mut id, mut input) = (0, None);
    let mut fields = Fields(message);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => id = value.int32()?,
            2 => input = Some(value.bytes()?),
            3 => input = None,
            _ => {}
        }
    }
    let process = processes.find(id)?;
    let mut open = process.input.lock().await;
    let written = match (&mut *open, &input) {
        (Input::Closed, _) => {
            return Err(Status::new(Code::FailedPrecondition, format!("process {id} has no open input")));
        }
        (Input::Pipe(pipe), Some(input)) => pipe.write_all(input).await,
        (Input::Terminal(master), Some(input)) => write_terminal(master, input).await,
        // The end of a terminal's input is a character; the terminal itself stays, for what is to be read.
        (Input::Terminal(master), None) => write_terminal(master, &[END_OF_TRANSMISSION]).await,
        (Input::Pipe(_), None) => {
            *open = Input::Closed;
            Ok(())
        }
    };
    written.map_err(|error| Status::new(Code::Internal, error.to_string()))?;
    Ok(Bytes::new())
}

pub(crate) async fn write_terminal(master: &OwnedFd, mut input: &[u8]) -> io::Result<()> {
    let write = async {
        while !input.is_empty() {
            match rustix::io::write(master, input) {
                Ok(length) => input = &input[length..],
                Err(rustix::io::Errno::AGAIN) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    };
    tokio::time::timeout(LONGEST_WRITE, write).await.unwrap_or_else(|late| Err(late.into()))
}

fn send_signal(processes: &Processes, message: Bytes) -> Result<Bytes, Status> {
    let (mut id, mut signal) = (0, 0);
    let mut fields = Fields(message);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => id = value.int32()?,
            2 => signal = value.int32()?,
            _ => {}
        }
    }
    let signal = match signal {
        2 => Signal::INT,
        9 => Signal::KILL,
        15 => Signal::TERM,
        other => {
            let message = format!("signal must be SIGINT, SIGKILL or SIGTERM, and not {other}");
            return Err(Status::new(Code::InvalidArgument, message));
        }
    };
    let process = processes.find(id)?;
    if let Some(leader) = process.leader {
        match rustix::process::kill_process_group(leader, signal) {
            // It has ended.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(spawn_status("signal", &error.into())),
        }
    }
    Ok(Bytes::new())
}

fn resize(processes: &Processes, message: Bytes) -> Result<Bytes, Status> {
    let (mut id, mut size) = (0, Terminal::default());
    let mut fields = Fields(message);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => id = value.int32()?,
            2 => size.columns = dimension(value.uint32()?)?,
            3 => size.rows = dimension(value.uint32()?)?,
            _ => {}
        }
    }
    let process = processes.find(id)?;
    let Some(terminal) = &process.terminal else {
        return Err(Status::new(Code::FailedPrecondition, format!("process {id} has no terminal")));
    };
    pty::resize(terminal.as_fd(), size.columns, size.rows).map_err(|error| spawn_status("resize", &error))?;
    Ok(Bytes::new())
}

fn process_config(message: Bytes) -> Result<ProcessConfig, Status> {
    let mut config = ProcessConfig::default();
    let mut fields = Fields(message);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => config.command.push(value.text()?),
            2 => {
                let (mut name, mut text) = (String::new(), String::new());
                let mut entry = Fields(value.bytes()?);
                while let Some((number, value)) = entry.next()? {
                    match number {
                        1 => name = value.text()?,
                        2 => text = value.text()?,
                        _ => {}
                    }
                }
                // The kernel has no such names, and the library panics on them.
                if name.is_empty() || name.contains(['=', '\0']) || text.contains('\0') {
                    let message = format!("env_vars: {name:?} cannot be the name of a variable");
                    return Err(Status::new(Code::InvalidArgument, message));
                }
                config.variables.push((name, text));
            }
            3 => config.directory = Some(value.text()?).filter(|directory| !directory.is_empty()),
            _ => {}
        }
    }
    Ok(config)
}

fn terminal_size(message: Bytes) -> Result<Terminal, Status> {
    let mut size = Terminal::default();
    let mut fields = Fields(message);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => size.columns = dimension(value.uint32()?)?,
            2 => size.rows = dimension(value.uint32()?)?,
            _ => {}
        }
    }
    Ok(size)
}

fn dimension(value: u32) -> Result<u16, Status> {
    let message =
        || Status::new(Code::InvalidArgument, format!("a terminal cannot have {value} rows or columns"));
    u16::try_from(value).map_err(|_| message())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use http_body_util::{BodyExt as _, Full};
    use hyper_util::rt::{TokioExecutor, TokioIo};

    use super::*;
    use crate::Api;

    /// A client of a daemon of the test's own.
    struct Client {
        sender: hyper::client::conn::http2::SendRequest<Full<Bytes>>,
        _base: tempfile::TempDir,
    }

    /// The rest of a call: its messages, and its status at the end.
    struct Call {
        body: Incoming,
        buffer: BytesMut,
        status: Option<(String, String)>,
    }

    impl Client {
        async fn new() -> Client {
            let base = tempfile::tempdir().unwrap();
            let mut config = Config::from_environment(|_| None);
            config.root = crate::root::Root::new(base.path());
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            std::thread::spawn(move || crate::serve(config, vec![(Api::Processes, listener)]));
            let stream = TokioIo::new(tokio::net::TcpStream::connect(address).await.unwrap());
            let (sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
            tokio::spawn(connection);
            Client { sender, _base: base }
        }

        async fn call(&self, method: &str, message: &[u8]) -> Call {
            let body = grpc::framed(message).into_data().unwrap();
            let request = Request::post(format!("http://x/process.v1.ProcessService/{method}"))
                .header("content-type", "application/grpc")
                .body(Full::new(body))
                .unwrap();
            let response = self.sender.clone().send_request(request).await.unwrap();
            assert_eq!(response.status(), 200);
            Call { body: response.into_body(), buffer: BytesMut::new(), status: None }
        }

        /// The only answer, or the status.
        async fn unary(&self, method: &str, message: &[u8]) -> Result<Bytes, String> {
            let mut call = self.call(method, message).await;
            let answer = call.next().await;
            assert!(call.next().await.is_none());
            let (code, text) = call.status.unwrap();
            if code == "0" { Ok(answer.unwrap()) } else { Err(format!("{code} {text}")) }
        }
    }

    impl Call {
        async fn next(&mut self) -> Option<Bytes> {
            loop {
                if self.buffer.len() >= 5 {
                    let length = u32::from_be_bytes(self.buffer[1..5].try_into().unwrap()) as usize;
                    if self.buffer.len() >= length + 5 {
                        return Some(self.buffer.split_to(length + 5).freeze().slice(5..));
                    }
                }
                let frame = self.body.frame().await?.unwrap();
                match frame.into_data() {
                    Ok(data) => self.buffer.extend_from_slice(&data),
                    Err(frame) => {
                        let trailers = frame.into_trailers().unwrap();
                        let text = |name| {
                            trailers
                                .get(name)
                                .map_or(String::new(), |value| value.to_str().unwrap().to_owned())
                        };
                        self.status = Some((text("grpc-status"), text("grpc-message")));
                    }
                }
            }
        }

        /// The next event of `Start`.
        async fn event(&mut self) -> Option<(u64, Bytes)> {
            let (number, value) = Fields(self.next().await?).next().unwrap().unwrap();
            Some((number, value.bytes().unwrap()))
        }

        /// The process's number, which comes first.
        async fn init(&mut self) -> i32 {
            let (number, content) = self.event().await.unwrap();
            assert_eq!(number, 1);
            Fields(content).next().unwrap().unwrap().1.int32().unwrap()
        }

        /// Reads both streams until `wanted` was written or the call has ended. Returns the text,
        /// and the exit code at the end.
        async fn read_until(&mut self, wanted: &str) -> (String, Option<i32>) {
            let mut text = String::new();
            while wanted.is_empty() || !text.contains(wanted) {
                match self.event().await {
                    Some((4, content)) => {
                        let code =
                            Fields(content).next().unwrap().map_or(0, |(_, value)| value.int32().unwrap());
                        assert!(self.event().await.is_none(), "nothing follows the end");
                        return (text, Some(code));
                    }
                    Some((_, content)) => text.push_str(&String::from_utf8_lossy(&content)),
                    None => panic!("ended with {:?} after {text}", self.status),
                }
            }
            (text, None)
        }
    }

    fn config_message(command: &[&str], variables: &[(&str, &str)], directory: Option<&str>) -> BytesMut {
        let mut config = BytesMut::new();
        for word in command {
            put_bytes(&mut config, 1, word.as_bytes());
        }
        for (name, value) in variables {
            let mut entry = BytesMut::new();
            put_bytes(&mut entry, 1, name.as_bytes());
            put_bytes(&mut entry, 2, value.as_bytes());
            put_bytes(&mut config, 2, &entry);
        }
        if let Some(directory) = directory {
            put_bytes(&mut config, 3, directory.as_bytes());
        }
        let mut message = BytesMut::new();
        put_bytes(&mut message, 1, &config);
        message
    }

    fn shell(script: &str) -> BytesMut {
        config_message(&["sh", "-c", script], &[("NAME", "value")], None)
    }

    fn numbers(values: &[(u8, i32)]) -> BytesMut {
        let mut message = BytesMut::new();
        for (number, value) in values {
            put_int32(&mut message, *number, *value);
        }
        message
    }

    #[tokio::test]
    async fn execute_returns_output_and_exit_code() {
        let client = Client::new().await;
        let answer = client.unary("Execute", &shell("echo $NAME; echo no >&2; exit 3")).await.unwrap();
        let mut fields = Fields(answer);
        assert_eq!(fields.next().unwrap().unwrap().1.int32(), Ok(3));
        assert_eq!(fields.next().unwrap().unwrap().1.text(), Ok("value\n".to_owned()));
        assert_eq!(fields.next().unwrap().unwrap().1.text(), Ok("no\n".to_owned()));
        for (message, code) in [
            (config_message(&[], &[], None), "3 "),
            (config_message(&["/no/such/program"], &[], None), "5 "),
            (config_message(&["/dev/null"], &[], None), "7 "),
            (config_message(&["true"], &[], Some("..")), "7 "),
            (config_message(&["true"], &[("A=B", "c")], None), "3 "),
        ] {
            let status = client.unary("Execute", &message).await.unwrap_err();
            assert!(status.starts_with(code), "{status}");
        }
        assert!(client.unary("Other", b"").await.unwrap_err().starts_with("12 "));
    }

    #[tokio::test]
    async fn a_process_takes_input_until_its_end() {
        let client = Client::new().await;
        let mut call = client.call("Start", &shell("cat; exit 5")).await;
        let id = call.init().await;
        let mut input = numbers(&[(1, id)]);
        put_bytes(&mut input, 2, b"hello");
        client.unary("WriteStdin", &input).await.unwrap();
        assert_eq!(call.read_until("hello").await.1, None);
        let resize = client.unary("ResizeTTY", &numbers(&[(1, id), (2, 80), (3, 25)])).await;
        assert!(resize.unwrap_err().starts_with("9 "), "it has no terminal");
        let mut end = numbers(&[(1, id)]);
        put_bytes(&mut end, 3, b"");
        client.unary("WriteStdin", &end).await.unwrap();
        assert!(client.unary("WriteStdin", &input).await.unwrap_err().starts_with(['5', '9']));
        assert_eq!(call.read_until("").await, (String::new(), Some(5)));
        assert!(client.unary("WriteStdin", &input).await.unwrap_err().starts_with("5 "));
    }

    #[tokio::test]
    async fn a_terminal_has_a_size_and_passes_signals_on() {
        let client = Client::new().await;
        let mut message = shell("stty size; read line; stty size; exec sleep 1000");
        put_bytes(&mut message, 2, &numbers(&[(1, 101), (2, 33)]));
        let mut call = client.call("Start", &message).await;
        let id = call.init().await;
        assert_eq!(call.read_until("33 101").await.1, None);
        client.unary("ResizeTTY", &numbers(&[(1, id), (2, 120), (3, 44)])).await.unwrap();
        let mut input = numbers(&[(1, id)]);
        put_bytes(&mut input, 2, b"go\r");
        client.unary("WriteStdin", &input).await.unwrap();
        assert_eq!(call.read_until("44 120").await.1, None);
        assert!(client.unary("SendSignal", &numbers(&[(1, id)])).await.unwrap_err().starts_with("3 "));
        client.unary("SendSignal", &numbers(&[(1, id), (2, 15)])).await.unwrap();
        assert_eq!(call.read_until("").await.1, Some(-1), "ended by a signal");
    }

    #[tokio::test]
    async fn a_client_that_goes_away_takes_its_process_group_along() {
        let client = Client::new().await;
        let mut call = client.call("Start", &shell("sleep 1000 & echo $!; wait")).await;
        call.init().await;
        let (said, _) = call.read_until("\n").await;
        let path = format!("/proc/{}/stat", said.trim());
        drop(call);
        let runs = || {
            let stat = std::fs::read_to_string(&path).ok()?;
            Some(!stat.rsplit(')').next()?.trim().starts_with('Z'))
        };
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while runs() == Some(true) {
            assert!(std::time::Instant::now() < deadline, "the child still runs");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
