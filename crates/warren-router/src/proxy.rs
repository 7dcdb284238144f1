//! Carries one request to its sandbox and the answer back.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::header::HOST;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tracing::debug;
use warren_decide::route::{Route, Wanted};

use crate::answer::{Body, Failure, json_answer};
use crate::body::{Activity, CountBytes, RequestBody, ResponseBody};
use crate::limits::Permit;
use crate::metrics::Measured;
use crate::pool::{Connection, PortOfPod};
use crate::{Hosts, Router, Shared, headers};

/// The longest head of an answer.
const LONGEST_HEAD: usize = 64 << 10;
/// The most headers of an answer.
const MOST_HEADERS: usize = 256;

/// How often a request is handed to another connection because the one it was handed to had just been
/// closed, so that nothing of it was sent.
const MOST_CLOSED: u32 = 4;

/// What stays until an answer has gone out: the sandbox's permit, and the measurement.
struct Held {
    _permit: Permit,
    measured: Measured,
}

impl CountBytes for Held {
    fn count(&mut self, bytes: usize) {
        self.measured.bytes_out += bytes as u64;
    }
}

impl Router {
    /// Answers one request.
    pub(crate) async fn answer(&self, request: Request<Incoming>, peer: SocketAddr) -> Response<Body> {
        let shared = &self.shared;
        let mut measured = shared.metrics.begin(request.method(), request.uri().path(), peer.ip());
        if request.uri().path() == "/healthz" && request.method() == Method::GET {
            measured.end(StatusCode::OK);
            return json_answer(StatusCode::OK, &json!({"status": "ok"}));
        }
        match shared.handle(request, peer.ip(), &mut measured).await {
            Ok((response, permit)) => shared.respond(response, permit, measured),
            Err(failure) => {
                if let Some(reason) = failure.upstream_reason() {
                    shared.metrics.upstream_error(&measured.namespace, reason);
                }
                measured.end(failure.status());
                failure.response()
            }
        }
    }
}

/// An answer of a sandbox, and what has been agreed on before.
struct Answered {
    response: Response<Incoming>,
    /// The client's side of an upgrade, if one was asked for.
    client: Option<OnUpgrade>,
    timeout: Duration,
}

impl Shared {
    async fn handle(
        &self,
        mut request: Request<Incoming>,
        peer: IpAddr,
        measured: &mut Measured,
    ) -> Result<(Answered, Permit), Failure> {
        let host = host(&request).map(str::to_owned);
        if self.config.hosts == Hosts::Loopback && !host.as_deref().is_some_and(headers::is_loopback) {
            return Err(Failure::Forbidden("The Host header must be a name of loopback."));
        }
        if request.method() == Method::CONNECT {
            return Err(Failure::Unroutable("CONNECT is not supported."));
        }
        let wanted = Wanted::parse(headers::routing(request.headers()))?;
        measured.sandbox_id.clone_from(&wanted.id);
        let most = self.most_body_bytes();
        if request.body().size_hint().lower() > most {
            return Err(Failure::TooLarge(most));
        }
        let unreachable = || Failure::Unreachable { id: wanted.id.clone(), reason: "no_route" };
        let timeout = wanted.timeout.unwrap_or(Duration::MAX).min(self.config.proxy_timeout);
        let activity = Activity::begin();
        let client = headers::upgrade(request.headers()).map(|_| hyper::upgrade::on(&mut request));
        let forwarded = async {
            let route = self.routes.find(&wanted).await.ok_or_else(unreachable)?;
            measured.namespace.clone_from(&route.namespace);
            let permit = self.limits.admit(&route.pod_uid).ok_or_else(|| Failure::Busy(wanted.id.clone()))?;
            let outbound = outbound(request, &wanted, &route, peer, host.as_deref(), &activity, most)?;
            let response = self.send(outbound, &wanted, &route, client.is_some()).await?;
            Ok((response, permit))
        };
        let outcome = tokio::select! {
            outcome = forwarded => outcome,
            () = activity.silent_for(timeout) => Err(Failure::Timeout(wanted.id.clone())),
        };
        match outcome {
            Ok((response, permit)) => Ok((Answered { response, client, timeout }, permit)),
            Err(_) if activity.was_too_large() => Err(Failure::TooLarge(most)),
            Err(failure) => Err(failure),
        }
    }

    fn most_body_bytes(&self) -> u64 {
        match self.config.max_request_body_bytes {
            0 => u64::MAX,
            most => most,
        }
    }

    /// Sends a request on a connection that waits, or on a new one. Once something of it may have been
    /// sent it is not sent again.
    async fn send(
        &self,
        mut request: Request<RequestBody>,
        wanted: &Wanted,
        route: &Arc<Route>,
        upgrades: bool,
    ) -> Result<Response<Incoming>, Failure> {
        let key: PortOfPod = (route.pod_uid.clone(), wanted.port);
        let failed = |reason| Failure::Unreachable { id: wanted.id.clone(), reason };
        for _ in 0..MOST_CLOSED {
            let mut connection = match self.pool.take(&key) {
                Some(connection) => connection,
                None => self.dial(wanted, route).await?,
            };
            match connection.try_send_request(request).await {
                Ok(response) => {
                    let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
                    if switched && !upgrades {
                        return Err(failed("other"));
                    }
                    if !switched {
                        self.pool.give_back(key, connection);
                    }
                    return Ok(response);
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => {
                        let error = error.into_error();
                        debug!(%error, sandbox = wanted.id, namespace = wanted.namespace, "no answer");
                        return Err(failed(if error.is_incomplete_message() { "eof" } else { "other" }));
                    }
                },
            }
        }
        Err(failed("eof"))
    }

    /// Connects to a pod. Nothing has been sent if that fails, so it is tried again.
    async fn dial(&self, wanted: &Wanted, route: &Arc<Route>) -> Result<Connection, Failure> {
        let config = &self.config;
        let mut delay = config.retry_initial_delay;
        let mut retries = 0;
        loop {
            let dialled =
                tokio::time::timeout(config.dial_timeout, self.dialer.dial(route, wanted.port)).await;
            let error = match dialled {
                Ok(Ok(stream)) => {
                    let handshake = hyper::client::conn::http1::Builder::new()
                        .max_headers(MOST_HEADERS)
                        .max_header_size(LONGEST_HEAD)
                        .handshake(TokioIo::new(stream))
                        .await;
                    let (sender, connection) = handshake
                        .map_err(|_| Failure::Unreachable { id: wanted.id.clone(), reason: "other" })?;
                    tokio::spawn(async move {
                        if let Err(error) = connection.with_upgrades().await {
                            debug!(%error, "connection to a sandbox ended");
                        }
                    });
                    return Ok(sender);
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "timed out".to_owned(),
            };
            debug!(error, sandbox = wanted.id, namespace = wanted.namespace, "not connected");
            if retries == config.max_retries {
                return Err(Failure::Unreachable { id: wanted.id.clone(), reason: "dial" });
            }
            retries += 1;
            self.metrics.retry(&route.namespace);
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(config.retry_max_delay);
        }
    }

    fn respond(&self, answered: Answered, permit: Permit, mut measured: Measured) -> Response<Body> {
        let Answered { mut response, client, timeout } = answered;
        let status = response.status();
        measured.status = status;
        if status == StatusCode::SWITCHING_PROTOCOLS {
            let protocol = headers::upgrade(response.headers());
            let sandbox = hyper::upgrade::on(&mut response);
            let mut answer = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
            *answer.status_mut() = status;
            *answer.headers_mut() = std::mem::take(response.headers_mut());
            headers::strip_hop_by_hop(answer.headers_mut());
            if let Some(protocol) = protocol {
                headers::set_upgrade(answer.headers_mut(), protocol);
            }
            if let Some(client) = client {
                tokio::spawn(splice(client, sandbox, Held { _permit: permit, measured }));
            }
            return answer;
        }
        headers::strip_hop_by_hop(response.headers_mut());
        // A sandbox that speaks HTTP/1.0 is no reason to end the client's connection.
        *response.version_mut() = Version::HTTP_11;
        let held = Held { _permit: permit, measured };
        response.map(|body| ResponseBody::new(body, timeout, held).boxed_unsync())
    }
}

/// Returns the name under which the client sees us.
fn host<B>(request: &Request<B>) -> Option<&str> {
    let from_uri = request.uri().authority().map(http::uri::Authority::as_str);
    from_uri.or_else(|| request.headers().get(HOST)?.to_str().ok())
}

/// Makes the request that the sandbox gets. Path and query are the bytes that the client sent.
fn outbound(
    request: Request<Incoming>,
    wanted: &Wanted,
    route: &Route,
    peer: IpAddr,
    inbound_host: Option<&str>,
    activity: &Arc<Activity>,
    most: u64,
) -> Result<Request<RequestBody>, Failure> {
    let (mut parts, body) = request.into_parts();
    let target = parts.uri.path_and_query().cloned();
    let target = target.ok_or(Failure::Unroutable("The request has no path."))?;
    parts.uri = Uri::from(target);
    parts.version = Version::HTTP_11;
    let host = match route.address {
        Some(address) => SocketAddr::new(address, wanted.port).to_string(),
        None => format!("localhost:{}", wanted.port),
    };
    join_cookies(&mut parts.headers);
    headers::forward(&mut parts.headers, &host, peer, inbound_host);
    Ok(Request::from_parts(parts, RequestBody::new(body, Arc::clone(activity), most)))
}

/// HTTP/2 splits cookies into several headers, which HTTP/1.1 does not allow.
fn join_cookies(map: &mut HeaderMap) {
    if map.get_all(http::header::COOKIE).iter().count() < 2 {
        return;
    }
    let several: Vec<_> = map.get_all(http::header::COOKIE).iter().map(|value| value.as_bytes()).collect();
    if let Ok(joined) = http::HeaderValue::from_bytes(&several.join(&b"; "[..])) {
        map.insert(http::header::COOKIE, joined);
    }
}

/// Copies both ways until both sides are done. There is no deadline: a terminal may be silent for days.
async fn splice(client: OnUpgrade, sandbox: OnUpgrade, mut held: Held) {
    let joined = async {
        let (client, sandbox) = tokio::try_join!(client, sandbox)?;
        let (mut client, mut sandbox) = (TokioIo::new(client), TokioIo::new(sandbox));
        let copied = tokio::io::copy_bidirectional(&mut client, &mut sandbox).await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(copied)
    };
    match joined.await {
        Ok((_, out)) => held.count(usize::try_from(out).unwrap_or(usize::MAX)),
        Err(error) => debug!(%error, "upgraded connection ended"),
    }
}
