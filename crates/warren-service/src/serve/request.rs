//! Reading requests: bodies within limits, JSON, and query parameters.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::CONTENT_LENGTH;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde::de::DeserializeOwned;

use super::answer::Failure;

/// The largest body that is not a file's content.
pub const LARGEST_JSON: usize = 256 << 10;

/// The longest time that a body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(120);

/// The bytes of a body that is too large that are read, and the time for that. A client that is
/// still sending does not look for its answer, and a connection that is closed before its data was
/// read is reset.
const MOST_DRAINED: usize = 64 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

async fn drain(body: &mut Incoming) {
    let reading = async {
        let mut left = MOST_DRAINED;
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(length) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    // A slow client loses the answer.
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, reading).await;
}

/// The parts of a request that handlers use.
pub struct Request {
    /// The method.
    pub method: http::Method,
    /// The path, without the slash at its beginning.
    pub path: String,
    /// The query, as it came.
    pub query: String,
    /// The headers.
    pub headers: http::HeaderMap,
    body: Incoming,
}

impl Request {
    /// Takes a request apart.
    pub fn new(request: http::Request<Incoming>) -> Self {
        let (parts, body) = request.into_parts();
        Self {
            method: parts.method,
            path: parts.uri.path().trim_start_matches('/').to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            headers: parts.headers,
            body,
        }
    }

    /// Reads the body, at most so many bytes.
    pub async fn bytes(self, most: usize) -> Result<Bytes, Failure> {
        let too_large = || {
            let message = format!("the body is larger than {most} bytes");
            Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE", message)
        };
        let announced =
            self.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        let mut body = self.body;
        if announced.is_some_and(|length| length > most as u64) {
            drain(&mut body).await;
            return Err(too_large());
        }
        let reading = tokio::time::timeout(BODY_TIMEOUT, Limited::new(&mut body, most).collect()).await;
        match reading {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                drain(&mut body).await;
                Err(too_large())
            }
            Ok(Err(_)) => Err(Failure::new(StatusCode::BAD_REQUEST, "BODY_INCOMPLETE", "the body broke off")),
            Err(_) => {
                Err(Failure::new(StatusCode::REQUEST_TIMEOUT, "BODY_TIMEOUT", "the body took too long"))
            }
        }
    }

    /// Reads the body as JSON. An empty one is an empty object.
    pub async fn json<T: DeserializeOwned>(self) -> Result<T, Failure> {
        let bytes = self.bytes(LARGEST_JSON).await?;
        let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        let invalid = |error: serde_json::Error| Failure::invalid("body", format!("is not valid: {error}"));
        // A list would be read as the fields in their order.
        let object: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(bytes).map_err(invalid)?;
        serde_json::from_value(object.into()).map_err(invalid)
    }

    /// Returns a query parameter.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let mut pairs = form_urlencoded::parse(self.query.as_bytes());
        pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    }

    /// Returns a query parameter that is a number.
    pub fn number(&self, name: &'static str) -> Result<Option<u64>, Failure> {
        let parse = |text: String| text.parse().map_err(|_| Failure::invalid(name, "is not a number"));
        self.parameter(name).map(parse).transpose()
    }
}
