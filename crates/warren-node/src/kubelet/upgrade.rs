//! Upgrades requests to a WebSocket or a SPDY connection.

use bytes::Bytes;
use futures::stream;
use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tracing::debug;

use super::Body;

/// A WebSocket handshake that a client has begun.
pub(super) struct Handshake {
    /// The subprotocols that it offers, in its order of preference.
    pub(super) offered: String,
    accept: HeaderValue,
}

impl Handshake {
    pub(super) fn begun(headers: &HeaderMap) -> Option<Handshake> {
        let upgrades = joined(headers, UPGRADE).to_ascii_lowercase();
        if !upgrades.split(',').any(|word| word.trim() == "websocket") {
            return None;
        }
        let key = headers.get(SEC_WEBSOCKET_KEY)?;
        Some(Handshake {
            offered: joined(headers, SEC_WEBSOCKET_PROTOCOL),
            accept: HeaderValue::from_str(&derive_accept_key(key.as_bytes())).ok()?,
        })
    }

    /// Completes the handshake: returns the response, and starts the session once the client has
    /// it.
    pub(super) fn complete<F>(
        self,
        request: Request<Incoming>,
        protocol: Option<&'static str>,
        session: impl FnOnce(TokioIo<Upgraded>) -> F + Send + 'static,
    ) -> Response<Body>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut response = switch(request, "websocket", session);
        let answered = response.headers_mut();
        answered.insert(SEC_WEBSOCKET_ACCEPT, self.accept);
        if let Some(protocol) = protocol {
            answered.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
        }
        response
    }
}

/// A SPDY handshake that a client has begun.
pub(super) struct SpdyHandshake {
    offered: String,
}

/// The header for the protocol over SPDY, in both directions of the handshake.
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const SPDY: &str = "SPDY/3.1";

impl SpdyHandshake {
    pub(super) fn begun(headers: &HeaderMap) -> Option<SpdyHandshake> {
        let upgrades = joined(headers, UPGRADE);
        let wanted = upgrades.split(',').any(|word| word.trim().eq_ignore_ascii_case(SPDY));
        wanted.then(|| SpdyHandshake { offered: joined(headers, STREAM_PROTOCOL) })
    }

    /// Returns true if the client offers a protocol.
    pub(super) fn offers(&self, protocol: &str) -> bool {
        self.offered.split(',').any(|offered| offered.trim() == protocol)
    }

    /// Completes the handshake: returns the response, and starts the session once the client has
    /// it.
    pub(super) fn complete<F>(
        self,
        request: Request<Incoming>,
        protocol: &'static str,
        session: impl FnOnce(TokioIo<Upgraded>) -> F + Send + 'static,
    ) -> Response<Body>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut response = switch(request, SPDY, session);
        response.headers_mut().insert(STREAM_PROTOCOL, HeaderValue::from_static(protocol));
        response
    }
}

/// Builds the response of an upgrade, and runs the session on the upgraded connection.
fn switch<F>(
    mut request: Request<Incoming>,
    to: &'static str,
    session: impl FnOnce(TokioIo<Upgraded>) -> F + Send + 'static,
) -> Response<Body>
where
    F: Future<Output = ()> + Send + 'static,
{
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        match upgrade.await {
            Ok(upgraded) => session(TokioIo::new(upgraded)).await,
            Err(error) => debug!(%error, "client left before the upgrade"),
        }
    });
    let nothing = stream::empty::<Result<Frame<Bytes>, std::convert::Infallible>>();
    let mut response = Response::new(StreamBody::new(nothing).boxed_unsync());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let answered = response.headers_mut();
    answered.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    answered.insert(UPGRADE, HeaderValue::from_static(to));
    response
}

/// Joins the values of a header that may be repeated and hold several values each.
fn joined(headers: &HeaderMap, name: HeaderName) -> String {
    let values: Vec<&str> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    values.join(",")
}
