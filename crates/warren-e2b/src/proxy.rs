//! Requests to a sandbox: to the envd API of its guest daemon, and to ports of its programs. Streams go both ways at the
//! same time, and an upgraded connection is carried until both sides are done.

use std::time::Duration;

use http::header::{
    CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::Uri;
use http::{Method, Request, Response, StatusCode, Version};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use warren_api::Sandbox;
use warren_client::kube::api::Api;
use warren_client::sandbox::pod_name;
use warren_proto::envd;

use crate::Server;
use crate::answer::{Body, Refusal};
use crate::keys::Link;
use crate::request::{Target, parameters};
use crate::sandboxes::Seen;

/// The longest time that it may take to reach a port.
const DIAL: Duration = Duration::from_secs(10);
/// The longest head of an answer, and its most headers.
const LONGEST_HEAD: usize = 64 << 10;

/// Headers between two neighbours, which go no further.
const HOP_BY_HOP: [HeaderName; 6] =
    [CONNECTION, HeaderName::from_static("keep-alive"), TE, TRAILER, TRANSFER_ENCODING, UPGRADE];

/// Headers that are for this server alone.
const OURS: [HeaderName; 5] = [
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("x-access-token"),
    HeaderName::from_static("e2b-traffic-access-token"),
    HeaderName::from_static("e2b-sandbox-id"),
    HeaderName::from_static("e2b-sandbox-port"),
];

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Server {
    /// Hands a request on to a sandbox and its answer back.
    pub(crate) async fn carry(&self, target: Target, request: Request<Incoming>) -> Response<Body> {
        match self.carried(&target, request).await {
            Ok(response) => response,
            Err(refusal) => refusal.closing_response(),
        }
    }

    async fn carried(&self, target: &Target, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let seen = self.sandboxes.find(&target.id).await?;
        let seen = seen.filter(|seen| !seen.is_paused()).ok_or_else(|| Refusal::gone(&target.id))?;
        if target.port == envd::PORT {
            self.check_token(&seen, &request)?;
        }
        let sandbox = seen.sandbox.as_ref().ok_or_else(|| Refusal::gone(&target.id))?;
        let stream = tokio::time::timeout(DIAL, self.dial(sandbox, target.port)).await;
        let stream = stream.ok().flatten().ok_or_else(|| Refusal::closed(&target.id, target.port))?;
        self.exchange(target, stream, request).await
    }

    /// Checks the token of a request to the envd API. Files can be reached by a signed link instead.
    fn check_token(&self, seen: &Seen, request: &Request<Incoming>) -> Result<(), Refusal> {
        if request.uri().path() == "/health" {
            return Ok(());
        }
        let token = self.key.token(&seen.id(), &seen.uid());
        let given = request.headers().get("x-access-token");
        if given.is_some_and(|given| self.key.is_token(given.as_bytes(), &token)) {
            return Ok(());
        }
        let parameters = parameters(request.uri().query());
        let find = |wanted: &str| {
            parameters.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str())
        };
        if request.uri().path() == "/files"
            && let Some(signature) = find("signature")
        {
            let link = Link {
                path: find("path").unwrap_or_default(),
                operation: if request.method() == Method::GET { "read" } else { "write" },
                user: find("username").unwrap_or_default(),
                expiration: find("signature_expiration"),
                signature,
            };
            if self.key.is_signed(&link, &token, Timestamp::now().as_second()) {
                return Ok(());
            }
        }
        Err(Refusal::new(
            StatusCode::UNAUTHORIZED,
            "the header `X-Access-Token` is missing or not the sandbox's token",
        ))
    }

    /// Connects to a port of a sandbox: to its address if this machine has a way there, else through the API server, which
    /// also reaches what listens on the sandbox's loopback.
    async fn dial(&self, sandbox: &Sandbox, port: u16) -> Option<Box<dyn Stream>> {
        let addresses = sandbox.status.as_ref().map(|status| status.pod_ips.as_slice()).unwrap_or_default();
        if let Some(address) = addresses.first().and_then(|text| text.parse::<std::net::IpAddr>().ok())
            && let Ok(Ok(stream)) = tokio::time::timeout(DIAL / 5, TcpStream::connect((address, port))).await
        {
            let _ = stream.set_nodelay(true);
            return Some(Box::new(stream));
        }
        let pods: Api<Pod> = Api::namespaced(self.sandboxes.client.clone(), &self.sandboxes.namespace);
        let mut forwarder = pods
            .portforward(&pod_name(sandbox), &[port])
            .await
            .inspect_err(|error| tracing::debug!(%error, port, "port not forwarded"))
            .ok()?;
        let mut there = forwarder.take_stream(port)?;
        let (mut near, far) = tokio::io::duplex(64 << 10);
        tokio::spawn(async move {
            // Either side may break off at any time.
            let _ = tokio::io::copy_bidirectional(&mut near, &mut there).await;
            drop(forwarder);
        });
        Some(Box::new(far))
    }

    async fn exchange(
        &self,
        target: &Target,
        stream: Box<dyn Stream>,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, Refusal> {
        let closed = |error: hyper::Error| {
            tracing::debug!(%error, sandbox = target.id, port = target.port, "request not answered");
            Refusal::closed(&target.id, target.port)
        };
        let mut builder = http1::Builder::new();
        builder.max_buf_size(LONGEST_HEAD);
        let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(closed)?;
        tokio::spawn(connection.with_upgrades());
        let protocol = upgrade(request.headers());
        let client = protocol.is_some().then(|| hyper::upgrade::on(&mut request));
        let mut response = sender.send_request(outbound(target, request, protocol)).await.map_err(closed)?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(client) = client
        {
            let protocol = response.headers().get(UPGRADE).cloned();
            let sandbox = hyper::upgrade::on(&mut response);
            tokio::spawn(splice(client, sandbox));
            strip(response.headers_mut());
            set_upgrade(response.headers_mut(), protocol);
        } else {
            strip(response.headers_mut());
        }
        *response.version_mut() = Version::HTTP_11;
        Ok(response.map(|body| body.boxed_unsync()))
    }
}

/// Makes the request that the sandbox gets. Path and query are the bytes that the client sent.
fn outbound(target: &Target, request: Request<Incoming>, protocol: Option<HeaderValue>) -> Request<Incoming> {
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().cloned();
    parts.uri = path.map_or_else(|| Uri::from_static("/"), Uri::from);
    parts.version = Version::HTTP_11;
    let headers = &mut parts.headers;
    strip(headers);
    for name in &OURS {
        headers.remove(name);
    }
    set_upgrade(headers, protocol);
    // The client's `Host` is kept: pages make links from it.
    let host = format!("localhost:{}", target.port);
    if !headers.contains_key(HOST)
        && let Ok(host) = HeaderValue::from_str(&host)
    {
        headers.insert(HOST, host);
    }
    Request::from_parts(parts, body)
}

/// Returns the protocol that a request wants to change to.
fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let asks = values.any(|value| value.split(',').any(|token| token.trim().eq_ignore_ascii_case("upgrade")));
    headers.get(UPGRADE).filter(|_| asks).cloned()
}

fn set_upgrade(headers: &mut HeaderMap, protocol: Option<HeaderValue>) {
    if let Some(protocol) = protocol {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
}

/// Removes the headers that are for a neighbour alone, also those that `Connection` names.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Copies both ways until both sides are done. There is no deadline: a terminal may be silent for days.
async fn splice(client: OnUpgrade, sandbox: OnUpgrade) {
    let joined = async {
        let (client, sandbox) = tokio::try_join!(client, sandbox)?;
        let (mut client, mut sandbox) = (TokioIo::new(client), TokioIo::new(sandbox));
        tokio::io::copy_bidirectional(&mut client, &mut sandbox).await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    };
    if let Err(error) = joined.await {
        tracing::debug!(%error, "upgraded connection ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_between_neighbours_go_no_further() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, x-private"),
            ("x-private", "1"),
            ("upgrade", "websocket"),
            ("accept", "*/*"),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        assert_eq!(upgrade(&headers), None);
        strip(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
        headers.insert(CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        assert_eq!(upgrade(&headers), Some(HeaderValue::from_static("websocket")));
    }
}
