//! Runs a command in a pod's container, with separate streams.
//!
//! The protocol is Kubernetes' remote command protocol over WebSocket (`v5.channel.k8s.io`, or
//! `v4`): the first byte of a message is the number of its stream. Reading and writing are
//! concurrent and independent. A command such as `cat` answers while it is still being fed; serving
//! one direction at a time would block both.

use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{AttachParams, Request};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{self, Message};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;
/// The close message's number, followed by the number of the closed stream; version 5 of the
/// protocol only.
const CLOSE: u8 = 255;

/// The size of one read of standard input: half of a pipe's default capacity, and kubelet's size
/// for output.
const STDIN_CHUNK: usize = 32 * 1024;

/// A command and its place.
#[derive(Clone, Debug)]
pub struct ExecRequest {
    /// The namespace of the pod.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container; the pod's first if none is named.
    pub container: Option<String>,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// True if the command gets an input. Otherwise it reads an end of file.
    pub stdin: bool,
    /// True to run it on a terminal. Standard error is then part of standard output.
    pub tty: bool,
}

/// The size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct TerminalSize {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

/// The error of a command that could not be run, or whose end is not known.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The server refused, or could not be reached.
    #[error("start `{command}` in pod `{pod}`")]
    Start {
        /// The pod.
        pod: String,
        /// The program.
        command: String,
        /// The cause.
        #[source]
        source: Box<kube::Error>,
    },
    /// The node answered that the command could not be run.
    #[error("run `{command}` in pod `{pod}`: {message}")]
    Failed {
        /// The pod.
        pod: String,
        /// The program.
        command: String,
        /// The node's message.
        message: String,
        /// The exit code that a shell would give, if the node reports one: 127 for a missing
        /// program, 126 for one that cannot be executed.
        exit_code: Option<i32>,
    },
    /// The connection ended before the command's exit status came.
    #[error("the connection to `{command}` in pod `{pod}` ended before the command did")]
    Lost {
        /// The pod.
        pod: String,
        /// The program.
        command: String,
        /// The connection's error, unless the other side just closed it.
        #[source]
        source: Option<Box<tungstenite::Error>>,
    },
    /// The command's output could not be written locally.
    #[error("pass on what `{command}` writes")]
    Output {
        /// The program.
        command: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The input for the command could not be read.
    #[error("read the input for `{command}`")]
    Input {
        /// The program.
        command: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

/// The local ends of a command's streams.
#[derive(Debug)]
pub struct Streams<I, O, E> {
    /// The source of the input; used if [`ExecRequest::stdin`] is true.
    pub stdin: I,
    /// The target of the output.
    pub stdout: O,
    /// The target of standard error.
    pub stderr: E,
    /// Sizes of the terminal, including the first one.
    pub resize: mpsc::Receiver<TerminalSize>,
}

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// A started command with open streams.
#[derive(Debug)]
pub struct Exec {
    socket: Socket,
    closes_streams: bool,
    request: ExecRequest,
}

impl Exec {
    /// Asks the server to run a command. Dropping the result disconnects.
    pub async fn start(client: &kube::Client, request: ExecRequest) -> Result<Self, ExecError> {
        let failed = |source: kube::Error| ExecError::Start {
            pod: request.pod.clone(),
            command: request.program(),
            source: Box::new(source),
        };
        let parameters = AttachParams {
            container: request.container.clone(),
            stdin: request.stdin,
            stdout: true,
            // A terminal has one output; servers refuse requests for two.
            stderr: !request.tty,
            tty: request.tty,
            ..AttachParams::default()
        };
        let path = format!("/api/v1/namespaces/{}/pods", request.namespace);
        let http_request = Request::new(path)
            .exec(&request.pod, &request.command, &parameters)
            .map_err(|source| failed(kube::Error::BuildRequest(source)))?;
        let connection = client.connect(http_request).await.map_err(failed)?;
        Ok(Self {
            closes_streams: connection.supports_stream_close(),
            socket: connection.into_stream(),
            request,
        })
    }

    /// Carries the streams until the command ends, and returns its exit code.
    pub async fn run<I, O, E>(self, streams: Streams<I, O, E>) -> Result<i32, ExecError>
    where
        I: AsyncRead + Unpin,
        O: AsyncWrite + Unpin,
        E: AsyncWrite + Unpin,
    {
        let (sink, source) = self.socket.split();
        let Streams { stdin, stdout, stderr, resize } = streams;
        let input = self.request.stdin.then_some(stdin);
        let feed = feed(&self.request, sink, input, resize, self.closes_streams);
        let drain = drain(&self.request, source, stdout, stderr);
        tokio::pin!(feed, drain);
        tokio::select! {
            // The command's end wins, even if feeding it fails at the same time.
            biased;
            code = &mut drain => code,
            fed = &mut feed => match fed {
                // The other side has stopped reading; the exit status gives the reason.
                Ok(()) => drain.await,
                Err(error) => Err(error),
            },
        }
    }
}

/// The exit code of a short command, and the beginning of its standard error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Its exit code.
    pub code: i32,
    /// The first part of its standard error, in one line that is safe to print.
    pub complaint: String,
}

/// The longest part of a command's standard error that is kept.
const LONGEST_COMPLAINT: usize = 4096;

/// Runs a command of our own, such as a script that unpacks an archive. Its output goes to
/// `stdout`.
pub async fn capture<I: AsyncRead + Unpin, O: AsyncWrite + Unpin>(
    client: &kube::Client,
    request: ExecRequest,
    stdin: I,
    stdout: O,
) -> Result<Captured, ExecError> {
    let (_, resize) = mpsc::channel(1);
    let mut stderr = Bounded::new(LONGEST_COMPLAINT);
    let exec = Exec::start(client, request).await?;
    let code = exec.run(Streams { stdin, stdout, stderr: &mut stderr, resize }).await?;
    let text = String::from_utf8_lossy(&stderr.kept);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let complaint = lines.collect::<Vec<_>>().join("; ").replace(char::is_control, "?");
    Ok(Captured { code, complaint })
}

/// A writer that keeps the first bytes and discards the rest.
#[derive(Debug)]
pub struct Bounded {
    /// The kept bytes.
    pub kept: Vec<u8>,
    most: usize,
}

impl Bounded {
    /// Makes an empty one that keeps this many bytes.
    pub fn new(most: usize) -> Self {
        Self { kept: Vec::new(), most }
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        let room = self.most - self.kept.len();
        self.kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
        std::task::Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn poll_shutdown(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }
}

impl ExecRequest {
    fn program(&self) -> String {
        self.command.first().cloned().unwrap_or_default()
    }

    fn lost(&self, source: Option<tungstenite::Error>) -> ExecError {
        ExecError::Lost { pod: self.pod.clone(), command: self.program(), source: source.map(Box::new) }
    }
}

/// Sends input and sizes until both have ended, then waits for ever. Returns when the other side
/// stops reading.
async fn feed<I: AsyncRead + Unpin>(
    request: &ExecRequest,
    mut sink: SplitSink<Socket, Message>,
    mut input: Option<I>,
    mut resize: mpsc::Receiver<TerminalSize>,
    closes_streams: bool,
) -> Result<(), ExecError> {
    let mut sizes_open = request.tty;
    let mut buffer = vec![0; STDIN_CHUNK + 1];
    buffer[0] = STDIN;
    loop {
        let message = tokio::select! {
            size = resize.recv(), if sizes_open => match size {
                Some(size) => Some(resize_message(size)),
                None => { sizes_open = false; None }
            },
            read = read_some(&mut input, &mut buffer[1..]), if input.is_some() => {
                let length = read.map_err(|source| ExecError::Input { command: request.program(), source })?;
                if length > 0 {
                    Some(Message::binary(Bytes::copy_from_slice(&buffer[..=length])))
                } else {
                    input = None;
                    // Version 4 cannot close one stream. Closing the connection would cut off the
                    // output, so the command keeps waiting for input, as with kubectl.
                    closes_streams.then(|| Message::binary(vec![CLOSE, STDIN]))
                }
            },
            else => return std::future::pending().await,
        };
        if let Some(message) = message
            && sink.send(message).await.is_err()
        {
            return Ok(());
        }
    }
}

async fn read_some<I: AsyncRead + Unpin>(input: &mut Option<I>, buffer: &mut [u8]) -> std::io::Result<usize> {
    match input {
        Some(input) => input.read(buffer).await,
        None => std::future::pending().await,
    }
}

fn resize_message(size: TerminalSize) -> Message {
    let mut message = vec![RESIZE];
    message.extend(format!("{{\"Width\":{},\"Height\":{}}}", size.width, size.height).into_bytes());
    Message::binary(message)
}

/// Writes received output until the exit status comes.
async fn drain<O: AsyncWrite + Unpin, E: AsyncWrite + Unpin>(
    request: &ExecRequest,
    mut source: SplitStream<Socket>,
    mut stdout: O,
    mut stderr: E,
) -> Result<i32, ExecError> {
    let failed = |source| ExecError::Output { command: request.program(), source };
    while let Some(message) = source.next().await {
        let data = match message {
            Ok(Message::Binary(data)) => data,
            // The real server sends the status as text if the request had no subprotocol.
            Ok(Message::Text(text)) => Bytes::from(text),
            Ok(Message::Close(_)) => break,
            Ok(_) => continue,
            Err(error) => return Err(request.lost(Some(error))),
        };
        match data.split_first() {
            Some((&STDOUT, bytes)) if !bytes.is_empty() => {
                stdout.write_all(bytes).await.map_err(failed)?;
                stdout.flush().await.map_err(failed)?;
            }
            Some((&STDERR, bytes)) if !bytes.is_empty() => {
                stderr.write_all(bytes).await.map_err(failed)?;
                stderr.flush().await.map_err(failed)?;
            }
            Some((&STATUS, bytes)) => return exit_code(request, bytes),
            _ => {}
        }
    }
    Err(request.lost(None))
}

/// Returns the exit code in the status that ends a command.
fn exit_code(request: &ExecRequest, bytes: &[u8]) -> Result<i32, ExecError> {
    let failed = |message: String, exit_code| ExecError::Failed {
        pod: request.pod.clone(),
        command: request.program(),
        message,
        exit_code,
    };
    let status: Status = serde_json::from_slice(bytes)
        .map_err(|error| failed(format!("the status cannot be read: {error}"), None))?;
    if status.status.as_deref() == Some("Success") {
        return Ok(0);
    }
    let code = status
        .details
        .iter()
        .flat_map(|details| details.causes.iter().flatten())
        .find(|cause| cause.reason.as_deref() == Some("ExitCode"))
        .and_then(|cause| cause.message.as_deref())
        .and_then(|code| code.parse().ok());
    match (status.reason.as_deref(), code) {
        (Some("NonZeroExitCode"), Some(code)) => Ok(code),
        // Any other reason means that the command was not run.
        (_, code) => {
            let message = status.message.as_deref().unwrap_or("no reason given");
            let message = message.strip_prefix("Internal error occurred: ").unwrap_or(message);
            Err(failed(message.to_owned(), code))
        }
    }
}

#[cfg(test)]
mod tests;
