//! gRPC over HTTP/2: messages with a length, and how a call went in trailers. Without compression.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body as HttpBody, Frame};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use tokio::sync::mpsc;

use crate::reply::Body;

/// The longest message that is taken; gRPC's own default.
const LONGEST_MESSAGE: usize = 4 << 20;

/// Status codes of gRPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Unimplemented = 12,
    Internal = 13,
}

/// The error of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl Status {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Status {
        Status { code, message: message.into() }
    }
}

/// Reads the only message of a request.
pub(crate) async fn read_message(request: Request<Incoming>) -> Result<Bytes, Status> {
    let body = Limited::new(request.into_body(), LONGEST_MESSAGE + 5).collect().await;
    let mut body = body.map_err(|error| Status::new(Code::ResourceExhausted, error.to_string()))?.to_bytes();
    if body.len() < 5 {
        return Err(Status::new(Code::Internal, "the request has no message"));
    }
    let head = body.split_to(5);
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    match head[0] {
        0 if length == body.len() => Ok(body),
        0 => Err(Status::new(Code::Internal, "the request is not one message")),
        _ => Err(Status::new(Code::Unimplemented, "compressed messages are not taken")),
    }
}

/// Returns how long the client waits, if it says so.
pub(crate) fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = number.parse().ok().filter(|_| number.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// Makes a response of messages that a task sends; the task ends it with [`finish`].
pub(crate) fn response(frames: mpsc::Receiver<Frame<Bytes>>) -> Response<Body> {
    let mut response = Response::new(Frames(frames).boxed_unsync());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// Makes the response to a call with one answer.
pub(crate) fn unary(result: Result<Bytes, Status>) -> Response<Body> {
    let (sender, receiver) = mpsc::channel(2);
    // There is room for both.
    let ended = match result {
        Ok(message) => sender.try_send(framed(&message)).is_ok().then_some(Ok(())),
        Err(status) => Some(Err(status)),
    };
    if let Some(ended) = ended {
        let _ = sender.try_send(trailers(&ended));
    }
    response(receiver)
}

/// Frames one message.
pub(crate) fn framed(message: &[u8]) -> Frame<Bytes> {
    let mut frame = BytesMut::with_capacity(message.len() + 5);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.put_slice(message);
    Frame::data(frame.freeze())
}

/// Makes the trailers that end a call.
pub(crate) fn trailers(result: &Result<(), Status>) -> Frame<Bytes> {
    let mut trailers = HeaderMap::new();
    let code = result.as_ref().err().map_or(0, |status| status.code as u16);
    trailers.insert("grpc-status", HeaderValue::from(code));
    if let Err(status) = result {
        let encoded: String = status
            .message
            .bytes()
            .map(|byte| match byte {
                b' '..=b'~' if byte != b'%' => char::from(byte).to_string(),
                other => format!("%{other:02X}"),
            })
            .collect();
        if let Ok(message) = HeaderValue::from_str(&encoded) {
            trailers.insert("grpc-message", message);
        }
    }
    Frame::trailers(trailers)
}

/// A body that a task writes.
struct Frames(mpsc::Receiver<Frame<Bytes>>);

impl HttpBody for Frames {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.0.poll_recv(context).map(|frame| frame.map(Ok))
    }
}

/// For services that always answer.
pub(crate) type Answer = Result<Response<Body>, Infallible>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_a_number_and_a_unit() {
        for (text, expected) in [
            ("10S", Some(Duration::from_secs(10))),
            ("99999999m", Some(Duration::from_millis(99_999_999))),
            ("1H", Some(Duration::from_secs(3600))),
            ("999999999S", None),
            ("S", None),
            ("5x", None),
            ("", None),
        ] {
            let headers = HeaderMap::from_iter([("grpc-timeout".parse().unwrap(), text.parse().unwrap())]);
            assert_eq!(timeout(&headers), expected, "{text}");
        }
    }
}
