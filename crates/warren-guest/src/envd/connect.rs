//! The Connect protocol with JSON: one message for a unary call, and frames for a stream. A frame is a byte of flags,
//! the length of its content as four bytes, and the content. Without compression.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::{Body as HttpBody, Frame};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::reply::{self, Body};

/// The longest message that is taken. Input for a process comes in messages; files do not.
pub(super) const LONGEST_MESSAGE: usize = 8 << 20;

/// The flag of a frame whose content is compressed.
const COMPRESSED: u8 = 1;
/// The flag of the frame that ends a stream.
const END: u8 = 2;
/// Length of flags and length.
const HEAD: usize = 5;

/// Error codes of the protocol, as far as they are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unimplemented,
}

impl Code {
    fn name(self) -> &'static str {
        match self {
            Code::AlreadyExists => "already_exists",
            Code::DeadlineExceeded => "deadline_exceeded",
            Code::FailedPrecondition => "failed_precondition",
            Code::Internal => "internal",
            Code::InvalidArgument => "invalid_argument",
            Code::NotFound => "not_found",
            Code::PermissionDenied => "permission_denied",
            Code::ResourceExhausted => "resource_exhausted",
            Code::Unauthenticated => "unauthenticated",
            Code::Unimplemented => "unimplemented",
        }
    }

    /// Returns the HTTP status of a unary call that failed so.
    pub(super) fn status(self) -> StatusCode {
        match self {
            Code::AlreadyExists => StatusCode::CONFLICT,
            Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Code::FailedPrecondition | Code::InvalidArgument => StatusCode::BAD_REQUEST,
            Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Code::Unauthenticated => StatusCode::UNAUTHORIZED,
            Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        }
    }
}

/// The error of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) code: Code,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }

    /// Makes a failure of an operation on a path.
    pub(super) fn io(what: &str, error: &io::Error) -> Failure {
        let code = match error.kind() {
            io::ErrorKind::NotFound => Code::NotFound,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Code::PermissionDenied,
            io::ErrorKind::AlreadyExists => Code::AlreadyExists,
            io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::InvalidFilename => Code::InvalidArgument,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Code::ResourceExhausted,
            _ => Code::Internal,
        };
        Failure::new(code, format!("{what}: {error}"))
    }

    fn value(&self) -> Value {
        json!({ "code": self.code.name(), "message": self.message })
    }
}

/// Reads the only message of a unary call, which may be compressed.
pub(super) async fn unary_message<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, Failure> {
    let is_zipped = match request.headers().get(CONTENT_ENCODING).map(HeaderValue::as_bytes) {
        None | Some(b"identity") => false,
        Some(b"gzip") => true,
        Some(_) => {
            return Err(Failure::new(Code::Unimplemented, "`Content-Encoding` must be gzip or identity"));
        }
    };
    let body = whole(request, LONGEST_MESSAGE).await?;
    if is_zipped { parse(&unzipped(&body)?) } else { parse(&body) }
}

/// Unpacks a message. It may be no longer than one that came as it is.
fn unzipped(bytes: &[u8]) -> Result<Vec<u8>, Failure> {
    use std::io::Read as _;
    let mut message = Vec::new();
    let most = LONGEST_MESSAGE as u64 + 1;
    let read = flate2::read::GzDecoder::new(bytes).take(most).read_to_end(&mut message);
    read.map_err(|error| Failure::new(Code::InvalidArgument, format!("the message is not gzip: {error}")))?;
    match message.len() > LONGEST_MESSAGE {
        true => Err(Failure::new(Code::ResourceExhausted, "the message is too long when it is unpacked")),
        false => Ok(message),
    }
}

/// Reads the only message of a call that is answered with a stream.
pub(super) async fn first_message<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, Failure> {
    let body = whole(request, LONGEST_MESSAGE + HEAD).await?;
    let mut frames = Frames::default();
    frames.push(body);
    match frames.next()? {
        Some(message) if frames.is_empty() => parse(&message),
        Some(_) => Err(Failure::new(Code::InvalidArgument, "the request is more than one message")),
        None => Err(Failure::new(Code::InvalidArgument, "the request is not a whole message")),
    }
}

async fn whole(request: Request<Incoming>, most: usize) -> Result<Bytes, Failure> {
    let body = Limited::new(request.into_body(), most).collect().await;
    Ok(body.map_err(|error| Failure::new(Code::ResourceExhausted, error.to_string()))?.to_bytes())
}

pub(super) fn parse<T: DeserializeOwned>(message: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(message)
        .map_err(|error| Failure::new(Code::InvalidArgument, format!("the message cannot be read: {error}")))
}

/// Cuts what arrives into the contents of frames. Holds at most one message and what arrived with its end.
#[derive(Debug, Default)]
pub(super) struct Frames {
    buffer: BytesMut,
}

impl Frames {
    /// Takes what has arrived.
    pub(super) fn push(&mut self, bytes: Bytes) {
        self.buffer.extend_from_slice(&bytes);
    }

    /// Returns whether nothing is left over.
    pub(super) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Returns the content of the next frame; `None` until more has arrived.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        if self.buffer.len() < HEAD {
            return Ok(None);
        }
        let length =
            u32::from_be_bytes([self.buffer[1], self.buffer[2], self.buffer[3], self.buffer[4]]) as usize;
        if self.buffer[0] & COMPRESSED != 0 {
            return Err(Failure::new(Code::Unimplemented, "compressed messages are not taken"));
        }
        if self.buffer[0] != 0 {
            return Err(Failure::new(Code::InvalidArgument, "a frame has unknown flags"));
        }
        // Before there is room made for it.
        if length > LONGEST_MESSAGE {
            let message = format!("a message of {length} bytes is longer than {LONGEST_MESSAGE}");
            return Err(Failure::new(Code::ResourceExhausted, message));
        }
        if self.buffer.len() < HEAD + length {
            return Ok(None);
        }
        self.buffer.advance(HEAD);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }
}

/// Reads the messages of a client's stream as they arrive.
pub(super) struct Messages {
    body: Incoming,
    frames: Frames,
}

impl Messages {
    pub(super) fn of(request: Request<Incoming>) -> Messages {
        Messages { body: request.into_body(), frames: Frames::default() }
    }

    /// Returns the next message, or `None` at the end.
    pub(super) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Failure> {
        loop {
            if let Some(message) = self.frames.next()? {
                return parse(&message).map(Some);
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.frames.push(bytes);
                    }
                }
                None if self.frames.is_empty() => return Ok(None),
                None => return Err(Failure::new(Code::InvalidArgument, "the stream ends within a message")),
                Some(Err(error)) => return Err(Failure::new(Code::Internal, error.to_string())),
            }
        }
    }
}

/// The most by which a call ends before its client's timeout.
const LARGEST_HEAD_START: Duration = Duration::from_millis(250);

/// Returns the time after which a call is over: a tenth less than the client waits, so that our answer
/// is there first. Older SDKs wait for exactly that long and report a broken connection instead.
pub(super) fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("connect-timeout-ms")?.to_str().ok()?;
    let whole = Duration::from_millis(text.parse().ok().filter(|ms| *ms > 0)?);
    Some(whole - (whole / 10).min(LARGEST_HEAD_START))
}

/// Returns how often a stream that is silent is to show that it is alive.
pub(super) fn keepalive(headers: &HeaderMap) -> Duration {
    let seconds = headers.get("keepalive-ping-interval").and_then(|value| value.to_str().ok()?.parse().ok());
    Duration::from_secs(seconds.unwrap_or(90_u64).clamp(1, 3600))
}

/// Answers a unary call.
pub(super) fn unary(result: Result<Value, Failure>) -> Response<Body> {
    match result {
        Ok(value) => reply::json(StatusCode::OK, &value),
        Err(failure) => reply::json(failure.code.status(), &failure.value()),
    }
}

/// Puts a message into a frame.
pub(super) fn framed(message: &impl Serialize) -> Bytes {
    frame(0, message)
}

/// Makes the frame that ends a stream.
pub(super) fn end(result: &Result<(), Failure>) -> Bytes {
    match result {
        Ok(()) => frame(END, &json!({})),
        Err(failure) => frame(END, &json!({ "error": failure.value() })),
    }
}

fn frame(flags: u8, message: &impl Serialize) -> Bytes {
    let content = serde_json::to_vec(message).unwrap_or_default();
    let mut frame = BytesMut::with_capacity(HEAD + content.len());
    frame.put_u8(flags);
    frame.put_u32(u32::try_from(content.len()).unwrap_or(u32::MAX));
    frame.put_slice(&content);
    frame.freeze()
}

/// Answers with the frames that come.
pub(super) fn stream(frames: mpsc::Receiver<Bytes>) -> Response<Body> {
    streaming(Streamed(frames).map_err(|never: Infallible| match never {}).boxed_unsync())
}

/// Answers a call whose stream never began. The status is that of a success: the reason is in the stream's end.
pub(super) fn refused(failure: Failure) -> Response<Body> {
    let body = http_body_util::Full::new(end(&Err(failure)));
    streaming(body.map_err(|never| match never {}).boxed_unsync())
}

fn streaming(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/connect+json"));
    response
}

/// Frames as a body.
struct Streamed(mpsc::Receiver<Bytes>);

impl HttpBody for Streamed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(ready!(self.0.poll_recv(context)).map(|bytes| Ok(Frame::data(bytes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pushed(pieces: &[&[u8]]) -> Result<Vec<Bytes>, Code> {
        let mut frames = Frames::default();
        let mut found = Vec::new();
        for piece in pieces {
            frames.push(Bytes::copy_from_slice(piece));
            while let Some(message) = frames.next().map_err(|failure| failure.code)? {
                found.push(message);
            }
        }
        Ok(found)
    }

    #[test]
    fn frames_are_cut_wherever_the_pieces_end() {
        let stream = [framed(&json!({"a": 1})), framed(&json!({})), framed(&json!("x"))].concat();
        let expected = vec![&b"{\"a\":1}"[..], b"{}", b"\"x\""];
        assert_eq!(pushed(&[&stream]).unwrap(), expected);
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(pushed(&bytes).unwrap(), expected);
        assert_eq!(pushed(&[b"\0\0\0\0\0"]).unwrap(), vec![&b""[..]]);
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_its_content_arrives() {
        assert_eq!(pushed(&[b"\0\xff\xff\xff\xff"]), Err(Code::ResourceExhausted));
        let most = u32::try_from(LONGEST_MESSAGE).unwrap().to_be_bytes();
        assert_eq!(pushed(&[b"\0", &most]).unwrap(), Vec::<Bytes>::new());
    }

    #[test]
    fn compressed_and_unknown_frames_are_refused() {
        assert_eq!(pushed(&[b"\x01\0\0\0\x02{}"]), Err(Code::Unimplemented));
        assert_eq!(pushed(&[b"\x02\0\0\0\x02{}"]), Err(Code::InvalidArgument));
        assert_eq!(pushed(&[b"\x80\0\0\0\0"]), Err(Code::InvalidArgument));
    }

    #[test]
    fn bytes_of_any_kind_are_refused_or_cut_but_never_kept_without_limit() {
        let mut random = fastrand::Rng::with_seed(27);
        for _ in 0..2000 {
            let mut frames = Frames::default();
            let length = random.usize(..64);
            frames.push(std::iter::repeat_with(|| random.u8(..)).take(length).collect());
            while let Ok(Some(message)) = frames.next() {
                let _ = parse::<Value>(&message);
            }
            assert!(frames.buffer.len() <= length);
        }
    }

    #[test]
    fn compressed_messages_are_unpacked_up_to_the_limit() {
        use std::io::Write as _;
        let zipped = |bytes: &[u8]| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        };
        assert_eq!(unzipped(&zipped(b"{}")).unwrap(), b"{}");
        let bomb = zipped(&vec![b' '; LONGEST_MESSAGE + 1]);
        assert!(bomb.len() < 1 << 16);
        assert_eq!(unzipped(&bomb).unwrap_err().code, Code::ResourceExhausted);
        assert_eq!(unzipped(b"{}").unwrap_err().code, Code::InvalidArgument);
    }

    #[test]
    fn ends_say_how_a_stream_went() {
        assert_eq!(&end(&Ok(()))[..], b"\x02\0\0\0\x02{}");
        let failed = end(&Err(Failure::new(Code::NotFound, "no process 3")));
        assert_eq!(&failed[5..], br#"{"error":{"code":"not_found","message":"no process 3"}}"#);
    }
}
