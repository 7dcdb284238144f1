//! Serves kubectl's port-forward: SPDY, in newer versions within a WebSocket. Each forwarded
//! connection is a pair of streams, one for data and one for errors, tied together by the headers
//! `requestid` and `port`.

use std::collections::HashMap;
use std::io;

use bytes::Bytes;
use futures::future::ready;
use futures::{Sink, SinkExt as _, StreamExt as _, TryStreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio_tungstenite::tungstenite::Message;
use tokio_util::codec::{BytesCodec, FramedWrite};
use tokio_util::io::StreamReader;
use tracing::debug;

use super::{INPUT_AHEAD, MESSAGES_AHEAD, Target};
use crate::kubelet::session;
use crate::kubelet::spdy::{self, Frame, FrameReader, FrameWriter, ResetReason};

/// The protocol's name without a WebSocket around it.
pub(super) const PLAIN_PROTOCOL: &str = "portforward.k8s.io";
pub(super) const PROTOCOL: &str = "SPDY/3.1+portforward.k8s.io";
/// The most streams that one client may have open: a browser that loads a page with many parts has
/// some dozens of connections.
const MOST_STREAMS: usize = 1024;

/// Serves a client over a WebSocket until it leaves.
pub(super) async fn serve<S>(stream: S, target: Target)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (sink, messages) = session::open(stream).await.split();
    let bytes = messages.map_err(io::Error::other).try_filter_map(|message| async move {
        match message {
            Message::Binary(data) => Ok(Some(data)),
            _ => Ok(None),
        }
    });
    let to_message = |frame: Bytes| ready(io::Result::Ok(Message::Binary(frame)));
    let sink = sink.sink_map_err(io::Error::other).with(to_message);
    carry(StreamReader::new(Box::pin(bytes)), sink, target).await;
}

/// Serves a client without a WebSocket.
pub(super) async fn serve_plain<S>(stream: S, target: Target)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (reader, writer) = tokio::io::split(stream);
    carry(BufReader::new(reader), FramedWrite::new(writer, BytesCodec::new()), target).await;
}

async fn carry<R, W>(reader: R, mut sink: W, target: Target)
where
    R: AsyncRead + Unpin,
    W: Sink<Bytes, Error = io::Error> + Unpin,
{
    let mut frames = FrameReader::new(reader);
    let (output, mut outgoing) = mpsc::channel::<Bytes>(MESSAGES_AHEAD);
    let to_client = async {
        while let Some(frame) = outgoing.recv().await {
            if sink.send(frame).await.is_err() {
                return;
            }
        }
    };
    // Reading is a task of its own, so that waiting for the next frame can be cancelled.
    let (incoming, received) = mpsc::channel(1);
    let from_client = async {
        loop {
            match frames.next().await {
                Ok(Some(frame)) => {
                    if incoming.send(frame).await.is_err() {
                        return;
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    debug!(%error, "client of forwarded ports is not understood");
                    return;
                }
            }
        }
    };
    tokio::select! {
        () = to_client => {}
        () = from_client => {}
        () = Session::new(target, output).run(received) => {}
    }
}

/// A client's session.
struct Session {
    target: Target,
    output: mpsc::Sender<Bytes>,
    replies: FrameWriter,
    /// Streams whose counterpart has not come yet, by request.
    halves: HashMap<String, Half>,
    /// Connections by their data stream.
    connections: HashMap<u32, Connection>,
    running: JoinSet<u32>,
}

/// One stream of a pair.
struct Half {
    stream: u32,
    port: u16,
    is_data: bool,
    /// Early input, if it is a data stream.
    input: Option<(Option<mpsc::Sender<Bytes>>, mpsc::Receiver<Bytes>)>,
}

struct Connection {
    /// `None` once the client has closed its side.
    input: Option<mpsc::Sender<Bytes>>,
    task: AbortHandle,
}

impl Session {
    fn new(target: Target, output: mpsc::Sender<Bytes>) -> Self {
        Self {
            target,
            output,
            replies: FrameWriter::default(),
            halves: HashMap::new(),
            connections: HashMap::new(),
            running: JoinSet::new(),
        }
    }

    async fn run(mut self, mut frames: mpsc::Receiver<Frame>) {
        loop {
            tokio::select! {
                frame = frames.recv() => match frame {
                    Some(frame) => self.handle(frame).await,
                    None => return,
                },
                Some(Ok(ended)) = self.running.join_next() => drop(self.connections.remove(&ended)),
            }
        }
    }

    async fn send(&self, frame: Bytes) {
        // If the client is gone, its side of the session ends, too.
        let _ = self.output.send(frame).await;
    }

    async fn handle(&mut self, frame: Frame) {
        match frame {
            Frame::Open { stream, headers } => self.open(stream, &headers).await,
            Frame::Data { stream, data, last } => self.data(stream, data, last).await,
            Frame::Reset { stream } => {
                if let Some(connection) = self.connections.remove(&stream) {
                    connection.task.abort();
                }
                self.halves.retain(|_, half| half.stream != stream);
            }
            // Pings with even numbers would be answers to ours.
            Frame::Ping { id } if id % 2 == 1 => self.send(spdy::pong(id)).await,
            Frame::Ping { .. } | Frame::Other => {}
        }
    }

    async fn open(&mut self, stream: u32, headers: &[(String, String)]) {
        let header = |name: &str| {
            headers
                .iter()
                .find(|(known, _)| known.eq_ignore_ascii_case(name))
                .map(|(_, value)| value.as_str())
        };
        let port = header("port").and_then(|port| port.parse::<u16>().ok()).filter(|port| *port > 0);
        let is_data = match header("streamtype") {
            Some("data") => Some(true),
            Some("error") => Some(false),
            _ => None,
        };
        let (Some(port), Some(is_data), Some(request)) = (port, is_data, header("requestid")) else {
            return self.send(spdy::reset(stream, ResetReason::Protocol)).await;
        };
        if self.halves.len() + 2 * self.connections.len() >= MOST_STREAMS {
            return self.send(spdy::reset(stream, ResetReason::Refused)).await;
        }
        let reply = self.replies.reply(stream);
        self.send(reply).await;
        let input = is_data.then(|| {
            let (sender, receiver) = mpsc::channel(INPUT_AHEAD);
            (Some(sender), receiver)
        });
        let half = Half { stream, port, is_data, input };
        match self.halves.remove(request) {
            Some(other) if other.is_data != is_data && other.port == port => {
                if is_data {
                    self.connect(half, other.stream)
                } else {
                    self.connect(other, stream)
                }
            }
            Some(other) => {
                // The same half came twice, or the ports differ: refuse both.
                for stream in [other.stream, stream] {
                    self.send(spdy::reset(stream, ResetReason::Protocol)).await;
                }
            }
            None => drop(self.halves.insert(request.to_owned(), half)),
        }
    }

    fn connect(&mut self, data_half: Half, error_stream: u32) {
        let Half { stream, port, input: Some((sender, receiver)), .. } = data_half else { return };
        let (target, output) = (self.target.clone(), self.output.clone());
        let task = self.running.spawn(async move {
            let carried =
                target.carry(port, receiver, &output, move |data| spdy::data(stream, data, false)).await;
            let problem = carried.err().unwrap_or_default();
            // Close the data stream first: a client that reads it to its end then waits for the
            // error stream.
            let _ = output.send(spdy::data(stream, b"", true)).await;
            let _ = output.send(spdy::data(error_stream, problem.as_bytes(), true)).await;
            stream
        });
        self.connections.insert(stream, Connection { input: sender, task });
    }

    async fn data(&mut self, stream: u32, data: Bytes, last: bool) {
        if let Some(connection) = self.connections.get_mut(&stream) {
            if let Some(input) = connection.input.as_ref().filter(|_| !data.is_empty()) {
                // A connection that has ended takes no input; the client will see its end.
                let _ = input.send(data).await;
            }
            if last {
                connection.input = None;
            }
            return;
        }
        // Clients wait for both streams before they write. Input of a client that does not is kept
        // while there is room.
        let half = self.halves.values_mut().find(|half| half.stream == stream);
        let Some((sender, _)) = half.and_then(|half| half.input.as_mut()) else { return };
        let fits = data.is_empty() || sender.as_ref().is_some_and(|sender| sender.try_send(data).is_ok());
        if last {
            *sender = None;
        }
        if !fits {
            self.halves.retain(|_, half| half.stream != stream);
            self.send(spdy::reset(stream, ResetReason::Refused)).await;
        }
    }
}
