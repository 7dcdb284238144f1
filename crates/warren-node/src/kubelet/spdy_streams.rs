//! Carries the streams of exec and attach over SPDY: each is a SPDY stream, named by its header
//! `streamtype`.
//!
//! Commands and their streams are implemented once, over WebSocket. This module translates: it is a
//! WebSocket client of such a session within the process, and a SPDY server to the real client.
//! Newer API servers do the reverse for older kubelets.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::Mutex;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use tracing::debug;

use super::channel::{self, Protocol};
use super::session::{CHUNK, GOODBYE, StreamOptions};
use super::spdy::{self, Frame, FrameReader, FrameWriter, ResetReason};

/// The version that every client of the last ten years knows. Version 5 exists only over WebSocket.
pub(super) const PROTOCOL: &str = "v4.channel.k8s.io";
/// The time that a client may take to open its streams: kubelet's number.
const OPENING: Duration = Duration::from_secs(30);
/// The most frames before all streams are open. There are five streams, and a few pings may come
/// between.
const MOST_FRAMES: usize = 64;

/// Returns the streams that a client with these options opens, by their channels.
pub(super) fn wanted(options: &StreamOptions) -> Vec<u8> {
    let streams = [
        (channel::STDIN, options.stdin),
        (channel::STDOUT, options.stdout),
        (channel::STDERR, options.stderr),
        (channel::ERROR, true),
        (channel::RESIZE, options.tty),
    ];
    streams.into_iter().filter_map(|(channel, wanted)| wanted.then_some(channel)).collect()
}

fn channel_of(headers: &[(String, String)]) -> Option<u8> {
    let (_, kind) = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("streamtype"))?;
    match kind.as_str() {
        "stdin" => Some(channel::STDIN),
        "stdout" => Some(channel::STDOUT),
        "stderr" => Some(channel::STDERR),
        "error" => Some(channel::ERROR),
        "resize" => Some(channel::RESIZE),
        _ => None,
    }
}

/// Runs a session for a client that speaks SPDY, until one of them ends.
pub(super) async fn serve<S, F>(stream: S, wanted: Vec<u8>, session: impl FnOnce(DuplexStream, Protocol) -> F)
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = ()>,
{
    let (reader, mut writer) = tokio::io::split(stream);
    let mut frames = FrameReader::new(BufReader::new(reader));
    let opened = tokio::time::timeout(OPENING, open(&mut frames, &mut writer, &wanted)).await;
    let streams = match opened {
        Ok(Ok(streams)) => streams,
        Ok(Err(error)) => return debug!(%error, "client of a command's streams is not understood"),
        Err(_) => return debug!("client of a command's streams did not open them"),
    };
    let (near, far) = tokio::io::duplex(2 * CHUNK);
    let bridge = async move {
        let socket = WebSocketStream::from_raw_socket(near, Role::Client, None).await;
        let (sink, messages) = socket.split();
        let writer = Mutex::new(writer);
        tokio::select! {
            () = to_session(&mut frames, sink, &writer, &streams) => return,
            () = to_client(messages, &writer, &streams) => {}
        }
        goodbye(&mut frames, writer.into_inner()).await;
        // Dropping the bridge ends the session's connection, by which it sees that the client is
        // gone.
    };
    tokio::join!(session(far, Protocol::V5), bridge);
}

/// Answers the client's streams until all wanted ones are open. Returns them by their channels.
async fn open<R, W>(
    frames: &mut FrameReader<R>,
    writer: &mut W,
    wanted: &[u8],
) -> io::Result<BTreeMap<u8, u32>>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut streams = BTreeMap::new();
    let mut replies = FrameWriter::default();
    for _ in 0..MOST_FRAMES {
        if wanted.iter().all(|channel| streams.contains_key(channel)) {
            return Ok(streams);
        }
        match frames.next().await?.ok_or(io::ErrorKind::UnexpectedEof)? {
            Frame::Open { stream, headers } => match channel_of(&headers) {
                Some(channel) if !streams.contains_key(&channel) => {
                    streams.insert(channel, stream);
                    writer.write_all(&replies.reply(stream)).await?;
                }
                _ => writer.write_all(&spdy::reset(stream, ResetReason::Protocol)).await?,
            },
            Frame::Ping { id } if id % 2 == 1 => writer.write_all(&spdy::pong(id)).await?,
            // The client closes its side of a stream on which it sends nothing.
            Frame::Data { data, .. } if data.is_empty() => {}
            Frame::Data { .. } => return Err(io::Error::other("data before all streams are open")),
            Frame::Reset { .. } => return Err(io::Error::other("a stream is taken back")),
            Frame::Ping { .. } | Frame::Other => {}
        }
        writer.flush().await?;
    }
    Err(io::Error::other("too many frames before all streams are open"))
}

type Sink = SplitSink<WebSocketStream<DuplexStream>, Message>;
type Messages = SplitStream<WebSocketStream<DuplexStream>>;

async fn send<W: AsyncWrite + Unpin>(writer: &Mutex<W>, frame: Bytes) -> io::Result<()> {
    let mut writer = writer.lock().await;
    writer.write_all(&frame).await?;
    writer.flush().await
}

/// Forwards the client's input until the client is gone.
async fn to_session<R, W>(
    frames: &mut FrameReader<R>,
    mut sink: Sink,
    writer: &Mutex<W>,
    streams: &BTreeMap<u8, u32>,
) where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let input = streams.get(&channel::STDIN).copied();
    let resize = streams.get(&channel::RESIZE).copied();
    loop {
        let frame = match frames.next().await {
            Ok(Some(frame)) => frame,
            Ok(None) => return,
            Err(error) => return debug!(%error, "client of a command's streams is not understood"),
        };
        let said = match frame {
            Frame::Data { stream, data, last } if Some(stream) == input => {
                input_messages(&mut sink, &data, last).await
            }
            Frame::Data { stream, data, .. } if Some(stream) == resize && !data.is_empty() => sink
                .send(Message::Binary(channel::message(channel::RESIZE, &data)))
                .await
                .map_err(io::Error::other),
            // A reset of the input stream ends the input.
            Frame::Reset { stream } if Some(stream) == input => input_messages(&mut sink, b"", true).await,
            Frame::Open { stream, .. } => send(writer, spdy::reset(stream, ResetReason::Refused)).await,
            Frame::Ping { id } if id % 2 == 1 => send(writer, spdy::pong(id)).await,
            Frame::Data { .. } | Frame::Reset { .. } | Frame::Ping { .. } | Frame::Other => Ok(()),
        };
        if said.is_err() {
            // The session is over. The other direction tells the client.
            return std::future::pending().await;
        }
    }
}

/// Sends input in pieces that a session accepts.
async fn input_messages(sink: &mut Sink, data: &[u8], last: bool) -> io::Result<()> {
    for piece in data.chunks(CHUNK) {
        let message = channel::message(channel::STDIN, piece);
        sink.send(Message::Binary(message)).await.map_err(io::Error::other)?;
    }
    if last {
        let message = channel::message(channel::CLOSE, &[channel::STDIN]);
        sink.send(Message::Binary(message)).await.map_err(io::Error::other)?;
    }
    Ok(())
}

/// Forwards the session's messages until it is over, then ends the streams of a client that is
/// still there.
async fn to_client<W>(mut messages: Messages, writer: &Mutex<W>, streams: &BTreeMap<u8, u32>)
where
    W: AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = messages.next().await {
        let frame = match &message {
            Message::Binary(data) => match data.split_first() {
                Some((channel, data)) => streams.get(channel).map(|stream| spdy::data(*stream, data, false)),
                None => None,
            },
            // The session checks its client's presence, so check ours.
            Message::Ping(_) => Some(spdy::ping()),
            _ => None,
        };
        if let Some(frame) = frame
            && send(writer, frame).await.is_err()
        {
            return;
        }
    }
    // Clients wait for the end of their input stream, too. The error stream comes last: a client
    // that has read it to its end has everything.
    for channel in [channel::STDIN, channel::STDOUT, channel::STDERR, channel::ERROR] {
        if let Some(stream) = streams.get(&channel)
            && send(writer, spdy::data(*stream, b"", true)).await.is_err()
        {
            return;
        }
    }
}

/// Closes the connection such that unread bytes of the client do not cost it our last output.
async fn goodbye<S>(frames: &mut FrameReader<BufReader<ReadHalf<S>>>, mut writer: WriteHalf<S>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let heard = async {
        if writer.shutdown().await.is_ok() {
            while let Ok(Some(_)) = frames.next().await {}
        }
    };
    if tokio::time::timeout(GOODBYE, heard).await.is_err() {
        debug!("client did not end its connection");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::kubelet::channel::Input;
    use crate::kubelet::session;

    #[test]
    fn clients_open_what_their_options_say() {
        let options = |query| StreamOptions::parse(query).unwrap();
        assert_eq!(wanted(&options("command=a&output=1&error=1")), [1, 2, 3]);
        assert_eq!(wanted(&options("command=a&input=1&output=1&error=1")), [0, 1, 2, 3]);
        assert_eq!(wanted(&options("command=a&input=1&output=1&tty=1")), [0, 1, 3, 4]);
    }

    /// Echoes the input, and its length at the end.
    async fn echo(stream: DuplexStream, protocol: Protocol) {
        let (sink, mut messages) = session::split(session::open(stream).await);
        let mut length = 0;
        while let Some(Ok(Message::Binary(message))) = messages.next().await {
            match channel::parse(protocol, message) {
                Input::Stdin(data) => {
                    length += data.len();
                    session::send(&sink, channel::message(channel::STDOUT, &data)).await.unwrap();
                }
                Input::CloseStdin => break,
                other => panic!("{other:?}"),
            }
        }
        session::goodbye(channel::exit_status(i32::try_from(length).unwrap()), &sink, &mut messages).await;
    }

    #[tokio::test]
    async fn streams_are_carried_both_ways_and_end_with_the_verdict() {
        let (near, far) = tokio::io::duplex(1 << 20);
        let served = tokio::spawn(serve(far, vec![channel::STDIN, channel::STDOUT, channel::ERROR], echo));
        let (reader, mut writer) = tokio::io::split(near);
        let large = vec![b'a'; 3 * CHUNK + 1];
        for frame in [
            spdy::open_stream(1, true, &[("streamtype", "error")]),
            spdy::open_stream(3, false, &[("streamtype", "stdin")]),
            spdy::open_stream(5, false, &[("streamtype", "stdout")]),
            spdy::pong(7),
            spdy::data(3, &large, false),
            spdy::data(3, b"", true),
        ] {
            writer.write_all(&frame).await.unwrap();
        }
        let mut frames = FrameReader::new(reader);
        let (mut output, mut verdict, mut ended, mut pongs) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        while let Some(frame) = frames.next().await.unwrap() {
            match frame {
                Frame::Data { stream, data, last } => {
                    let to = if stream == 5 { &mut output } else { &mut verdict };
                    to.extend_from_slice(&data);
                    ended.extend(last.then_some(stream));
                }
                Frame::Ping { id } => pongs.push(id),
                // The replies to the streams.
                Frame::Other => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(output == large, "{} bytes came back", output.len());
        assert_eq!(verdict, &channel::exit_status(i32::try_from(large.len()).unwrap())[1..]);
        assert_eq!((ended, pongs), (vec![3, 5, 1], vec![7]));
        drop((frames, writer));
        served.await.unwrap();
    }

    #[tokio::test]
    async fn a_session_is_left_when_its_client_goes() {
        let (near, far) = tokio::io::duplex(1 << 20);
        let served = tokio::spawn(serve(far, vec![channel::ERROR], echo));
        let (mut reader, mut writer) = tokio::io::split(near);
        writer.write_all(&spdy::open_stream(1, true, &[("streamtype", "error")])).await.unwrap();
        let mut reply = [0; 8];
        reader.read_exact(&mut reply).await.unwrap();
        drop((reader, writer));
        served.await.unwrap();
    }

    #[tokio::test]
    async fn a_client_that_speaks_before_its_streams_are_open_is_left() {
        let early = spdy::data(1, b"early", false);
        let mut frames = FrameReader::new(&early[..]);
        assert!(open(&mut frames, &mut Vec::<u8>::new(), &[channel::ERROR]).await.is_err());
        let mut nothing = FrameReader::new(&b""[..]);
        assert!(open(&mut nothing, &mut Vec::<u8>::new(), &[channel::ERROR]).await.is_err());
    }
}
