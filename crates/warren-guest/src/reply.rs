//! Building blocks for the answers of all APIs.

use std::io;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use serde::Serialize;

/// The body of an answer.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// An answer that says why there is no other. In a box, since it is far larger than most results.
pub(crate) type Refusal = Box<Response<Body>>;

/// Answers with a value as JSON.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    // Wire types have string keys and finite numbers, so they can be written.
    let body = Full::new(Bytes::from(serde_json::to_vec(value).unwrap_or_default()));
    let mut response = Response::new(body.map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Answers with a status alone.
pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(nothing());
    *response.status_mut() = status;
    response
}

/// Returns a body without content.
pub(crate) fn nothing() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// Does something that may wait for a disk, beside the event loop.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(Box::new(empty(StatusCode::INTERNAL_SERVER_ERROR))))
}
