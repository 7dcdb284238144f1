//! Bodies of answers, and errors in the form that E2B's clients read.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};

/// The body of an answer.
pub(crate) type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// The status and message for a request that is not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Refusal {
        Refusal { status, message: message.into() }
    }

    /// Refuses what a request asks for; the message names the field.
    pub(crate) fn bad(message: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, message)
    }

    /// Makes a failure of the home's API server known.
    pub(crate) fn server(error: &dyn std::error::Error) -> Refusal {
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, chain(error))
    }

    /// Says that there is no such sandbox. Clients match the words of a 502.
    pub(crate) fn gone(id: &str) -> Refusal {
        Refusal::new(StatusCode::BAD_GATEWAY, format!("The sandbox `{id}` was not found"))
    }

    /// Says that a sandbox cannot be reached. Clients match the words.
    pub(crate) fn closed(id: &str, port: u16) -> Refusal {
        let message = format!("The sandbox `{id}` is running but port is not open: {port}");
        Refusal::new(StatusCode::BAD_GATEWAY, message)
    }

    /// Answers, and has the connection closed: the request's body was not read.
    pub(crate) fn closing_response(&self) -> Response<Body> {
        let mut response = self.response();
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        response
    }

    pub(crate) fn response(&self) -> Response<Body> {
        json_answer(self.status, &json!({ "code": self.status.as_u16(), "message": self.message }))
    }
}

/// Answers with JSON.
pub(crate) fn json_answer(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(full(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Answers with a status alone.
pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(full(""));
    *response.status_mut() = status;
    response
}

fn full(content: impl Into<Bytes>) -> Body {
    Full::new(content.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Returns an error and its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}
