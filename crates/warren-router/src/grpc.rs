//! gRPC: which requests are, how long they may take, and errors in its own form. Its status is in the trailers of an
//! answer that is 200 for HTTP.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};

use crate::answer::{Body, BodyError};

const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// `Grpc-Timeout` is not a number of at most eight digits and a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadTimeout;

/// Returns whether a request is gRPC.
pub(crate) fn is_grpc<B>(request: &Request<B>) -> bool {
    let media_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type =
        media_type.and_then(|it| it.split(';').next()).unwrap_or_default().trim().to_ascii_lowercase();
    let codec = media_type.strip_prefix("application/grpc");
    request.version() == Version::HTTP_2
        && request.method() == Method::POST
        && codec.is_some_and(|codec| codec.is_empty() || (codec.starts_with('+') && codec.len() > 1))
}

/// Returns the time that the client gives a call. `None`: it does not say.
pub(crate) fn timeout(map: &HeaderMap) -> Result<Option<Duration>, BadTimeout> {
    let mut values = map.get_all(TIMEOUT).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().ok().and_then(parse).map(Some).ok_or(BadTimeout),
        (Some(_), Some(_)) => Err(BadTimeout),
    }
}

fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
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

/// Returns gRPC's code for an error of ours.
fn code(status: StatusCode) -> &'static str {
    match status {
        StatusCode::BAD_REQUEST => "3",
        StatusCode::GATEWAY_TIMEOUT => "4",
        StatusCode::FORBIDDEN => "7",
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            "8"
        }
        StatusCode::BAD_GATEWAY => "14",
        StatusCode::UNAUTHORIZED => "16",
        _ => "13",
    }
}

/// Returns the trailers of an error.
pub(crate) fn trailers(status: StatusCode, message: &str) -> HeaderMap {
    let mut encoded = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    let mut trailers = HeaderMap::new();
    trailers.insert(STATUS, HeaderValue::from_static(code(status)));
    trailers.extend(HeaderValue::from_str(&encoded).ok().map(|message| (MESSAGE, message)));
    trailers
}

/// Makes an answer that is an error.
pub(crate) fn error(status: StatusCode, message: &str) -> Response<Body> {
    let frame = Ok::<_, BodyError>(Frame::<Bytes>::trailers(trailers(status, message)));
    let body = StreamBody::new(futures::stream::iter([frame])).boxed_unsync();
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_is_http_2_and_a_media_type() {
        let is = |version, media_type: &'static str| {
            let request = Request::post("/").version(version).header(CONTENT_TYPE, media_type).body(());
            is_grpc(&request.expect("a request"))
        };
        for media_type in ["application/grpc", "application/grpc+proto", "Application/gRPC; x=y"] {
            assert!(is(Version::HTTP_2, media_type), "{media_type}");
            assert!(!is(Version::HTTP_11, media_type), "{media_type}");
        }
        for media_type in ["application/grpc-web", "application/grpc+", "application/json", ""] {
            assert!(!is(Version::HTTP_2, media_type), "{media_type}");
        }
    }

    #[test]
    fn timeouts_are_read_strictly() {
        let read = |text: &'static str| {
            let mut map = HeaderMap::new();
            map.insert(TIMEOUT, HeaderValue::from_static(text));
            timeout(&map)
        };
        assert_eq!(read("2S"), Ok(Some(Duration::from_secs(2))));
        assert_eq!(read("100m"), Ok(Some(Duration::from_millis(100))));
        assert_eq!(read("99999999H"), Ok(Some(Duration::from_secs(99_999_999 * 3600))));
        for bad in ["", "S", "1", "1s", "-1S", "123456789S", "1.5S", "0x1S", "1 S"] {
            assert_eq!(read(bad), Err(BadTimeout), "{bad}");
        }
        assert_eq!(timeout(&HeaderMap::new()), Ok(None));
    }

    #[test]
    fn messages_are_percent_encoded() {
        let trailers = trailers(StatusCode::BAD_GATEWAY, "50% of\nthé");
        assert_eq!(trailers["grpc-status"], "14");
        assert_eq!(trailers["grpc-message"], "50%25 of%0Ath%C3%A9");
    }
}
