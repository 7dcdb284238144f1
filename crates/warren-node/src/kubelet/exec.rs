//! `/exec`: a process in a running container, its streams in WebSocket messages.
//!
//! Nothing is buffered beyond one message in each direction, so a process that writes for ever waits for its client,
//! and a client that writes for ever waits for the process. When the client goes away, the process is killed.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Mutex;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode};
use tracing::debug;
use warren_oci::client::CallError;
use warren_oci::protocol::{Answer, Call, ExecRequest, ExitStatus, RefusalReason, Target, TerminalSize};

use super::channel::{self, Input, Protocol};
use crate::descriptor::Descriptor;
use crate::shim::Shim;

/// What is read from a process at once, and hence the longest message we send.
const CHUNK: usize = 32 << 10;
/// No client sends longer messages (kubectl and kube-rs copy by 32 KiB or less).
const LONGEST_MESSAGE: usize = 1 << 20;
/// While a process does not take its input we do not read from the client, so a client that is gone shows only when we
/// write to it. This is how often we do.
const STALLED_PING: Duration = Duration::from_secs(5);
/// How long a client has to answer our goodbye, so that its unread bytes do not cost it the last of ours.
const GOODBYE: Duration = Duration::from_secs(2);
/// Kubelet starts terminals with no size and lets the client say; programs prefer the customary one until then.
const FIRST_SIZE: TerminalSize = TerminalSize { columns: 80, rows: 24 };

/// What a client wants to run, from the query of its request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ExecOptions {
    pub(super) command: Vec<String>,
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) tty: bool,
}

impl ExecOptions {
    /// `command` once for each word; the rest as kubelet names it (`input`) or as the API server does (`stdin`).
    pub(super) fn parse(query: &str) -> Result<ExecOptions, &'static str> {
        let mut options = ExecOptions::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let yes = matches!(value.as_ref(), "1" | "true");
            match name.as_ref() {
                "command" => options.command.push(value.into_owned()),
                "input" | "stdin" => options.stdin = yes,
                "output" | "stdout" => options.stdout = yes,
                "error" | "stderr" => options.stderr = yes,
                "tty" => options.tty = yes,
                _ => {}
            }
        }
        if options.command.is_empty() {
            return Err("you must specify at least 1 command");
        }
        if !options.stdin && !options.stdout && !options.stderr {
            return Err("you must specify at least 1 of stdin, stdout, stderr");
        }
        // A terminal has one stream out.
        options.stderr &= !options.tty;
        Ok(options)
    }
}

/// Where a process is to run.
pub(super) struct ExecTarget {
    pub(super) shim: Shim,
    pub(super) pod_uid: String,
    pub(super) container: String,
}

type Sink<S> = Arc<Mutex<SplitSink<WebSocketStream<S>, Message>>>;

/// Runs the process and carries its streams until it ends or the client goes away.
pub(super) async fn serve<S>(stream: S, protocol: Protocol, target: ExecTarget, options: ExecOptions)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let config = WebSocketConfig::default()
        .read_buffer_size(CHUNK)
        .write_buffer_size(0)
        .max_write_buffer_size(LONGEST_MESSAGE)
        .max_message_size(Some(LONGEST_MESSAGE))
        .max_frame_size(Some(LONGEST_MESSAGE));
    let socket = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await;
    let (sink, mut messages) = socket.split();
    let sink = Arc::new(Mutex::new(sink));

    let last = match start(target, &options).await {
        Ok((mut process, input)) => {
            let outcome = tokio::select! {
                ended = carry_output(&mut process, &sink, &options) => Some(ended),
                () = carry_input(&input, &mut messages, &sink, protocol) => None,
            };
            match outcome {
                Some(Ok(exit)) => channel::exit_status(exit.code),
                // Either the client or the shim is gone; in both cases nobody waits for the process.
                Some(Err(error)) => {
                    process.kill();
                    channel::failure_status(&error.to_string(), None)
                }
                None => return process.kill(),
            }
        }
        Err(CallError::Refused(refusal)) => {
            // What a shell would say: 127 is `not found`, which is how nearly all failed starts come about.
            let code = (refusal.reason == RefusalReason::StartFailed).then_some(127);
            channel::failure_status(&refusal.message, code)
        }
        Err(CallError::Connection(error)) => channel::failure_status(&error.to_string(), None),
    };
    goodbye(last, &sink, &mut messages).await;
}

/// Sends the last word and waits until the client has taken it.
async fn goodbye<S>(last: Bytes, sink: &Sink<S>, messages: &mut SplitStream<WebSocketStream<S>>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let frame = CloseFrame { code: CloseCode::Normal, reason: "".into() };
    let said = async {
        let mut sink = sink.lock().await;
        sink.send(Message::Binary(last)).await?;
        sink.send(Message::Close(Some(frame))).await
    };
    let heard = async {
        if said.await.is_ok() {
            while let Some(Ok(_)) = messages.next().await {}
        }
    };
    if tokio::time::timeout(GOODBYE, heard).await.is_err() {
        debug!("client did not answer the close of an exec");
    }
}

/// A process that was started over its own connection to the shim.
struct Process {
    shim: Shim,
    exec: u64,
    /// On the host; also the number of its session and process group.
    pid: i32,
    pod_uid: String,
    outputs: Vec<(u8, Descriptor)>,
}

/// Where the client's input goes: behind a lock, as closing it is something that happens to it.
struct InputEnd {
    descriptor: Mutex<Option<Descriptor>>,
    terminal: Option<rustix::fd::OwnedFd>,
}

impl Process {
    /// Ends it, and what it started without taking it out of its process group, without waiting.
    fn kill(&self) {
        let target = Target::Exec(self.exec);
        let signal = rustix::process::Signal::KILL;
        // The shim signals one process, so the group is ours to end: it is named after its leader, since an exec begins a
        // session. A number that means a process of somebody else by now shows by its cgroup.
        let cgroup = std::fs::read_to_string(format!("/proc/{}/cgroup", self.pid));
        let still_ours = cgroup.map_or(true, |cgroup| cgroup.contains(&self.pod_uid));
        if let Some(group) = rustix::process::Pid::from_raw(self.pid).filter(|_| still_ours) {
            // Gone already is as good.
            let _ = rustix::process::kill_process_group(group, signal);
        }
        if let Err(error) = self.shim.tell(Call::Signal { target, signal: signal.as_raw() }) {
            debug!(%error, "exec not killed: the shim is gone, and with it the process");
        }
    }
}

async fn start(target: ExecTarget, options: &ExecOptions) -> Result<(Process, InputEnd), CallError> {
    let ExecTarget { mut shim, pod_uid, container } = target;
    let call = Call::Exec(ExecRequest {
        container,
        args: options.command.clone(),
        env: if options.tty { vec!["TERM=xterm".to_owned()] } else { Vec::new() },
        cwd: None,
        user: None,
        terminal: options.tty.then_some(FIRST_SIZE),
        stdin: options.stdin && !options.tty,
    });
    let (answer, descriptors) = shim.call(call).await?;
    let Answer::Exec { exec, pid } = answer else {
        return Err(io::Error::from(io::ErrorKind::InvalidData).into());
    };
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData));
    let mut outputs = Vec::new();
    let input = if options.tty {
        let master = next()?;
        let terminal = master.try_clone()?;
        let master = Descriptor::new(master)?;
        outputs.push((channel::STDOUT, master.try_clone()?));
        InputEnd { descriptor: Mutex::new(options.stdin.then_some(master)), terminal: Some(terminal) }
    } else {
        let stdin = if options.stdin { Some(Descriptor::new(next()?)?) } else { None };
        for channel in [channel::STDOUT, channel::STDERR] {
            outputs.push((channel, Descriptor::new(next()?)?));
        }
        InputEnd { descriptor: Mutex::new(stdin), terminal: None }
    };
    Ok((Process { shim, exec, pid, pod_uid, outputs }, input))
}

/// Output to the client until the process has ended and what it had written is sent.
///
/// Children that it left behind may still hold its pipes: they are not waited for, so `server & exit` returns.
async fn carry_output<S>(
    process: &mut Process,
    sink: &Sink<S>,
    options: &ExecOptions,
) -> io::Result<ExitStatus>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let wanted = |channel: u8| if channel == channel::STDOUT { options.stdout } else { options.stderr };
    let Process { shim, exec, outputs, .. } = process;
    let mut buffers = [vec![0; CHUNK], vec![0; CHUNK]];
    let mut open = [!outputs.is_empty(), outputs.len() > 1];
    let [first_buffer, second_buffer] = &mut buffers;
    let exit = loop {
        let (index, length) = tokio::select! {
            exit = shim.exec_exit(*exec) => break exit?,
            read = read_from(outputs, 0, first_buffer), if open[0] => (0, read?),
            read = read_from(outputs, 1, second_buffer), if open[1] => (1, read?),
        };
        let data = if index == 0 { &first_buffer[..length] } else { &second_buffer[..length] };
        if length == 0 {
            open[index] = false;
        } else if wanted(outputs[index].0) {
            send(sink, channel::message(outputs[index].0, data)).await?;
        }
    };
    for (index, (channel, descriptor)) in outputs.iter().enumerate() {
        // What is in the pipe now was written before the end, as far as the process wrote it; what comes after is not its.
        let mut left = if open[index] { descriptor.waiting() } else { 0 };
        while left > 0 {
            let length = left.min(CHUNK);
            let read = descriptor.read(&mut first_buffer[..length]).await?;
            if read == 0 {
                break;
            }
            left -= read.min(left);
            if wanted(*channel) {
                send(sink, channel::message(*channel, &first_buffer[..read])).await?;
            }
        }
    }
    Ok(exit)
}

async fn read_from(outputs: &[(u8, Descriptor)], index: usize, buffer: &mut [u8]) -> io::Result<usize> {
    match outputs.get(index) {
        Some((_, descriptor)) => descriptor.read(buffer).await,
        None => Ok(0),
    }
}

async fn send<S>(sink: &Sink<S>, message: Bytes) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    sink.lock().await.send(Message::Binary(message)).await.map_err(io::Error::other)
}

/// Input from the client until it goes away.
async fn carry_input<S>(
    input: &InputEnd,
    messages: &mut SplitStream<WebSocketStream<S>>,
    sink: &Sink<S>,
    protocol: Protocol,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = messages.next().await {
        let data = match message {
            Message::Binary(data) => data,
            Message::Text(text) => text.into(),
            Message::Close(_) => return,
            // The library answers pings by itself.
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
        };
        match channel::parse(protocol, data) {
            Input::Stdin(data) => {
                let mut descriptor = input.descriptor.lock().await;
                if let Some(open) = descriptor.as_ref() {
                    match write_all(open, &data, sink).await {
                        Ok(()) => {}
                        Err(Stalled::ClientGone) => return,
                        // The process has closed its input: what else comes is for nobody.
                        Err(Stalled::ProcessGone) => *descriptor = None,
                    }
                }
            }
            Input::CloseStdin => {
                // The end of input of a terminal is a character that its user types.
                if input.terminal.is_none() {
                    *input.descriptor.lock().await = None;
                }
            }
            Input::Resize { columns, rows } => {
                if let Some(terminal) = &input.terminal {
                    let size = rustix::termios::Winsize {
                        ws_row: rows,
                        ws_col: columns,
                        ws_xpixel: 0,
                        ws_ypixel: 0,
                    };
                    // The process may be gone already, and its terminal with it.
                    let _ = rustix::termios::tcsetwinsize(terminal, size);
                }
            }
            Input::Other => {}
        }
    }
}

enum Stalled {
    ClientGone,
    ProcessGone,
}

async fn write_all<S>(descriptor: &Descriptor, mut data: &[u8], sink: &Sink<S>) -> Result<(), Stalled>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    while !data.is_empty() {
        match tokio::time::timeout(STALLED_PING, descriptor.write(data)).await {
            Ok(Ok(written)) => data = &data[written..],
            Ok(Err(_)) => return Err(Stalled::ProcessGone),
            Err(_) => {
                if sink.lock().await.send(Message::Ping(Bytes::new())).await.is_err() {
                    return Err(Stalled::ClientGone);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_in_kubelets_and_in_the_api_servers_spelling() {
        let kubelet =
            ExecOptions::parse("command=sh&command=-c&command=echo+%26&input=1&output=1&error=1").unwrap();
        assert_eq!(kubelet.command, ["sh", "-c", "echo &"]);
        assert_eq!(
            kubelet,
            ExecOptions::parse("command=sh&command=-c&command=echo%20%26&stdin=true&stdout=true&stderr=true")
                .unwrap()
        );
        let terminal = ExecOptions::parse("command=sh&tty=1&input=1&output=1&error=1").unwrap();
        assert!(terminal.tty && !terminal.stderr);
        assert!(ExecOptions::parse("output=1").is_err());
        assert!(ExecOptions::parse("command=sh").is_err());
    }
}
