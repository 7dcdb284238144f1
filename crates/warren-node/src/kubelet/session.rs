//! The common part of exec and attach: a WebSocket whose messages belong to streams, and the
//! client's input.
//!
//! At most one message is buffered in each direction. A process that writes without end waits for
//! its client, and a client that writes without end waits for the process.

use std::io;
use std::os::fd::OwnedFd;
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

use super::channel::{self, Input, Protocol};
use crate::descriptor::Descriptor;

/// The most bytes that are read from a process at once, and so the longest message we send.
pub(super) const CHUNK: usize = 32 << 10;
/// The longest message that is accepted (kubectl and kube-rs copy by 32 KiB or less).
const LONGEST_MESSAGE: usize = 1 << 20;
/// The interval of pings while a process does not read its input. We do not read from the client
/// then, so only a write shows that it is gone.
const STALLED_PING: Duration = Duration::from_secs(5);
/// The time that a client has to answer our close message, so that unread input does not cost it
/// our last output.
pub(super) const GOODBYE: Duration = Duration::from_secs(2);

/// A client's options for a process, from the query of its request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct StreamOptions {
    /// The words of a command; empty for attach.
    pub(super) command: Vec<String>,
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) tty: bool,
}

impl StreamOptions {
    /// Parses `command` once for each word, and the other options in kubelet's (`input`) or the API
    /// server's (`stdin`) spelling.
    pub(super) fn parse(query: &str) -> Result<StreamOptions, &'static str> {
        let mut options = StreamOptions::default();
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
        if !options.stdin && !options.stdout && !options.stderr {
            return Err("you must specify at least 1 of stdin, stdout, stderr");
        }
        // A terminal has one output stream.
        options.stderr &= !options.tty;
        Ok(options)
    }

    /// Returns true if the client wants this stream.
    pub(super) fn shows(&self, channel: u8) -> bool {
        if channel == channel::STDOUT { self.stdout } else { self.stderr }
    }
}

pub(super) type Sink<S> = Arc<Mutex<SplitSink<WebSocketStream<S>, Message>>>;
pub(super) type Messages<S> = SplitStream<WebSocketStream<S>>;

/// Takes the server's side of a WebSocket.
pub(super) async fn open<S>(stream: S) -> WebSocketStream<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let config = WebSocketConfig::default()
        .read_buffer_size(CHUNK)
        .write_buffer_size(0)
        .max_write_buffer_size(LONGEST_MESSAGE)
        .max_message_size(Some(LONGEST_MESSAGE))
        .max_frame_size(Some(LONGEST_MESSAGE));
    WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await
}

/// Splits it into its two directions.
pub(super) fn split<S>(socket: WebSocketStream<S>) -> (Sink<S>, Messages<S>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (sink, messages) = socket.split();
    (Arc::new(Mutex::new(sink)), messages)
}

/// Sends the last message and waits until the client has read it.
pub(super) async fn goodbye<S>(last: Bytes, sink: &Sink<S>, messages: &mut Messages<S>)
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
        debug!("client did not answer the close of a session");
    }
}

pub(super) async fn send<S>(sink: &Sink<S>, message: Bytes) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    sink.lock().await.send(Message::Binary(message)).await.map_err(io::Error::other)
}

/// Reads from one of several outputs; a missing one counts as ended.
pub(super) async fn read_from(
    outputs: &[(u8, Descriptor)],
    index: usize,
    buffer: &mut [u8],
) -> io::Result<usize> {
    match outputs.get(index) {
        Some((_, descriptor)) => descriptor.read(buffer).await,
        None => Ok(0),
    }
}

/// The target of the client's input, behind a lock because it can be closed meanwhile.
pub(super) struct InputEnd {
    pub(super) descriptor: Mutex<Option<Descriptor>>,
    pub(super) terminal: Option<OwnedFd>,
}

impl InputEnd {
    /// Closes it. On a terminal, the end of input is a character that its user types.
    pub(super) async fn close(&self) {
        if self.terminal.is_none() {
            *self.descriptor.lock().await = None;
        }
    }
}

/// A reason why the input ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InputOver {
    ClientGone,
    /// The client has closed this stream and stays.
    Ended,
}

/// Carries input from the client until it ends.
pub(super) async fn carry_input<S>(
    input: &InputEnd,
    messages: &mut Messages<S>,
    sink: &Sink<S>,
    protocol: Protocol,
) -> InputOver
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = messages.next().await {
        let data = match message {
            Message::Binary(data) => data,
            Message::Text(text) => text.into(),
            Message::Close(_) => return InputOver::ClientGone,
            // The library answers pings itself.
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
        };
        match channel::parse(protocol, data) {
            Input::Stdin(data) => {
                let mut descriptor = input.descriptor.lock().await;
                if let Some(open) = descriptor.as_ref() {
                    match write_all(open, &data, sink).await {
                        Ok(()) => {}
                        Err(Stalled::ClientGone) => return InputOver::ClientGone,
                        // The process has closed its input: drop the rest.
                        Err(Stalled::ProcessGone) => *descriptor = None,
                    }
                }
            }
            Input::CloseStdin => return InputOver::Ended,
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
    InputOver::ClientGone
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
            StreamOptions::parse("command=sh&command=-c&command=echo+%26&input=1&output=1&error=1").unwrap();
        assert_eq!(kubelet.command, ["sh", "-c", "echo &"]);
        assert_eq!(
            kubelet,
            StreamOptions::parse(
                "command=sh&command=-c&command=echo%20%26&stdin=true&stdout=true&stderr=true"
            )
            .unwrap()
        );
        let terminal = StreamOptions::parse("command=sh&tty=1&input=1&output=1&error=1").unwrap();
        assert!(terminal.tty && !terminal.stderr);
        assert!(StreamOptions::parse("command=sh").is_err());
    }
}
