//! The answers that the router gives itself, as agent-sandbox's clients know them.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use warren_decide::route::BadRequest;

/// An error while a body is read.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// The body of any answer.
pub(crate) type Body = UnsyncBoxBody<Bytes, BodyError>;

/// A request that was not answered by a sandbox. The text is the answer's `detail`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    BadRequest(#[from] BadRequest),
    #[error("{0}")]
    Unroutable(&'static str),
    #[error("{0}")]
    Unauthorized(&'static str),
    #[error("{0}")]
    Forbidden(&'static str),
    #[error("{0}")]
    Internal(&'static str),
    /// The client has as many requests under way as it may have.
    #[error("Too many requests at the same time from this client.")]
    BusyClient,
    #[error("The request body is larger than {0} bytes.")]
    TooLarge(u64),
    #[error("Too many requests at the same time for sandbox: {0}")]
    Busy(String),
    /// There is no such pod, or it cannot be connected to, or it does not answer in HTTP.
    #[error("Could not connect to the backend sandbox: {id}")]
    Unreachable { id: String, reason: &'static str },
    #[error("The backend sandbox did not answer in time: {0}")]
    Timeout(String),
}

impl Failure {
    /// A token that is valid, for something else.
    pub(crate) const NOT_FOR_THIS: Failure = Failure::Forbidden("The token is not for this request.");

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Failure::BadRequest(_) | Failure::Unroutable(_) => StatusCode::BAD_REQUEST,
            Failure::Unauthorized(_) => StatusCode::UNAUTHORIZED,
            Failure::Forbidden(_) => StatusCode::FORBIDDEN,
            Failure::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Failure::BusyClient => StatusCode::TOO_MANY_REQUESTS,
            Failure::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Failure::Busy(_) => StatusCode::SERVICE_UNAVAILABLE,
            Failure::Unreachable { .. } => StatusCode::BAD_GATEWAY,
            Failure::Timeout(_) => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// Returns the reason for `sandbox_router_upstream_errors_total`, if the sandbox is the cause.
    pub(crate) fn upstream_reason(&self) -> Option<&'static str> {
        match self {
            Failure::Unreachable { reason, .. } => Some(reason),
            Failure::Timeout(_) => Some("timeout"),
            _ => None,
        }
    }

    pub(crate) fn response(&self) -> Response<Body> {
        let mut response = json_answer(self.status(), &json!({"detail": self.to_string()}));
        let headers = response.headers_mut();
        match self {
            Failure::Busy(_) | Failure::BusyClient => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            Failure::Unauthorized(_) => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}

/// Makes an answer with JSON.
pub(crate) fn json_answer(status: StatusCode, value: &Value) -> Response<Body> {
    page(status, "application/json", value.to_string())
}

/// Makes an answer with a text.
pub(crate) fn page(status: StatusCode, media_type: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(full(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

fn full(text: String) -> Body {
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync()
}
