//! Answers: the envelope of JSON ones, errors with their codes, and bodies that are streamed.

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use serde::Serialize;
use serde_json::{Value, json};
use warren_providers::ProviderError;
use warren_sessions::SessionError;

/// The body of any answer.
pub type Body = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// A request that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The HTTP status.
    pub status: StatusCode,
    /// The code that programs test.
    pub code: String,
    /// A description of the failure, for people.
    pub message: String,
    /// Values that belong to the code.
    pub details: Box<Value>,
}

impl Failure {
    /// Makes a failure without details.
    pub fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self { status, code: code.to_owned(), message: message.into(), details: Box::new(json!({})) }
    }

    /// Refuses a field of a request.
    pub fn invalid(field: &str, problem: impl std::fmt::Display) -> Self {
        ProviderError::invalid(field, problem).into()
    }

    /// Says that there is nothing at a path of the API.
    pub fn no_route() -> Self {
        Self::new(StatusCode::NOT_FOUND, "NOT_FOUND", "there is nothing at this path with this method")
    }

    /// Says that something of ours failed.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL_ERROR", message)
    }

    /// Makes the answer.
    pub fn response(&self) -> Response<Body> {
        let error = json!({ "code": self.code, "message": self.message, "details": self.details });
        let mut response = json_response(self.status, &json!({ "ok": false, "error": error }));
        if self.status == StatusCode::PAYLOAD_TOO_LARGE || self.status == StatusCode::REQUEST_TIMEOUT {
            // The rest of the body is not read.
            response.headers_mut().insert(http::header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl From<ProviderError> for Failure {
    fn from(error: ProviderError) -> Self {
        let status = StatusCode::from_u16(error.code.http_status());
        Self {
            status: status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            code: error.code.name(),
            message: error.message,
            details: Box::new(error.details),
        }
    }
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Self {
        let message = error.to_string();
        let (status, code, details) = match &error {
            SessionError::NotFound(id) => {
                (StatusCode::NOT_FOUND, "SESSION_NOT_FOUND", json!({ "sessionId": id }))
            }
            SessionError::Exists(_) => (StatusCode::CONFLICT, "SESSION_ALREADY_EXISTS", json!({})),
            SessionError::Trimmed { first, .. } => {
                (StatusCode::GONE, "SESSION_EVENTS_TRIMMED", json!({ "first": first }))
            }
            SessionError::Invalid { field, .. } => {
                (StatusCode::BAD_REQUEST, "VALIDATION_ERROR", json!({ "field": field }))
            }
            SessionError::Database(_) | SessionError::Closed => {
                (StatusCode::INTERNAL_SERVER_ERROR, "SESSION_STORE_FAILED", json!({}))
            }
        };
        Self { details: Box::new(details), ..Self::new(status, code, message) }
    }
}

/// Answers with data.
pub fn data(value: &impl Serialize) -> Result<Response<Body>, Failure> {
    data_with(StatusCode::OK, value)
}

/// Answers with data and another status than 200.
pub fn data_with(status: StatusCode, value: &impl Serialize) -> Result<Response<Body>, Failure> {
    let value = serde_json::to_value(value).map_err(|error| Failure::internal(error.to_string()))?;
    Ok(json_response(status, &json!({ "ok": true, "data": value })))
}

fn json_response(status: StatusCode, value: &Value) -> Response<Body> {
    bytes_response(status, "application/json", value.to_string().into())
}

/// Answers with bytes.
pub fn bytes_response(status: StatusCode, media_type: &'static str, bytes: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(bytes).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    set(&mut response, CONTENT_TYPE, media_type);
    set(&mut response, CACHE_CONTROL, "no-store");
    response
}

/// Answers with parts that come one after the other. An error breaks the connection off: the client sees that parts are missing.
pub fn stream_response<E>(
    media_type: &'static str,
    parts: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
) -> Response<Body>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let frames = parts.map(|part| match part {
        Ok(bytes) => Ok(Frame::data(bytes)),
        Err(error) => Err(Box::new(error).into()),
    });
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    set(&mut response, CONTENT_TYPE, media_type);
    set(&mut response, CACHE_CONTROL, "no-store");
    response
}

/// Sets a header.
pub fn set(response: &mut Response<Body>, name: HeaderName, value: &'static str) {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
}
