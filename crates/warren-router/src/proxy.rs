//! Carries one request to its sandbox and the answer back.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::header::{HOST, LOCATION, TE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::time::Instant;
use tracing::debug;
use warren_decide::route::BadRequest;

use crate::answer::{Body, Failure, json_answer, page};
use crate::authz::Ask;
use crate::body::{Activity, CountBytes, Limit, RequestBody, ResponseBody};
use crate::browser::{self, Names};
use crate::limits::Permit;
use crate::metrics::Measured;
use crate::target::{Target, Via, home_of_stray};
use crate::{Hosts, Router, Shared, grpc, headers};

/// A client, as its connection shows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    pub(crate) is_tls: bool,
    pub(crate) access: Access,
}

/// The rights that a client has by its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// It needs nothing else.
    Owner,
    /// Nothing: each request is authorized.
    Anybody,
    /// It is another user of the machine. Only a token helps.
    Stranger,
}

/// The resources that stay until an answer has gone out: the permits of sandbox and client, and the
/// measurement.
struct Held {
    _permits: (Permit, Permit),
    measured: Measured,
}

impl CountBytes for Held {
    fn count(&mut self, bytes: usize) {
        self.measured.bytes_out += bytes as u64;
    }
}

impl Router {
    /// Answers one request.
    pub(crate) async fn answer(&self, request: Request<Incoming>, peer: Peer) -> Response<Body> {
        let shared = &self.shared;
        let mut measured = shared.metrics.begin(request.method(), request.uri().path(), peer.address);
        let is_stranger = peer.access == Access::Stranger;
        if request.uri().path() == "/healthz" && request.method() == Method::GET && !is_stranger {
            measured.end(StatusCode::OK);
            return json_answer(StatusCode::OK, &json!({"status": "ok"}));
        }
        let is_grpc = grpc::is_grpc(&request);
        match shared.handle(request, &peer, is_grpc, &mut measured).await {
            Ok(Outcome::Answered(answered)) => shared.respond(*answered, measured),
            Ok(Outcome::Own(response)) => {
                measured.end(response.status());
                response
            }
            Err(failure) => {
                if let Some(reason) = failure.upstream_reason() {
                    shared.metrics.upstream_error(&measured.namespace, reason);
                }
                measured.end(failure.status());
                match is_grpc {
                    true => grpc::error(failure.status(), &failure.to_string()),
                    false => failure.response(),
                }
            }
        }
    }
}

/// The outcome of a request.
enum Outcome {
    Answered(Box<Answered>),
    /// An answer of the router's own that is no error.
    Own(Response<Body>),
}

/// An answer of a sandbox, and what has been agreed on before.
struct Answered {
    response: Response<Incoming>,
    /// The client's side of an upgrade, if one was asked for.
    client: Option<OnUpgrade>,
    limit: Limit,
    /// The translation of headers for a browser.
    names: Option<Names>,
    permits: (Permit, Permit),
}

impl Shared {
    async fn handle(
        &self,
        mut request: Request<Incoming>,
        peer: &Peer,
        is_grpc: bool,
        measured: &mut Measured,
    ) -> Result<Outcome, Failure> {
        let (method, map) = (request.method().clone(), request.headers());
        let stranger = Failure::Forbidden(
            "Only the user whose home this is may use its router; others need a token, or go through \
             `kubectl port-forward`.",
        );
        let is_stranger = peer.access == Access::Stranger;
        if is_stranger && !self.gate.takes_tokens() {
            return Err(stranger);
        }
        if map.get_all(HOST).iter().count() > 1 {
            return Err(Failure::Unroutable("There is more than one Host header."));
        }
        if self.config.hosts == Hosts::Loopback
            && !crate::target::host(request.uri(), map).is_some_and(headers::is_loopback)
        {
            return Err(Failure::Forbidden("The Host header must be a name of loopback."));
        }
        if method == Method::CONNECT {
            return Err(Failure::Unroutable("CONNECT is not supported."));
        }
        let target = match Target::of(&self.config, request.uri(), map) {
            Ok(target) => target,
            Err(_) if is_stranger => return Err(stranger),
            Err(Failure::BadRequest(BadRequest::NoId)) if method == Method::GET || method == Method::HEAD => {
                let home = home_of_stray(&self.config, request.uri(), map);
                let home = home.and_then(|home| HeaderValue::from_str(&home).ok());
                return home.map(redirect).ok_or(BadRequest::NoId.into());
            }
            Err(failure) => return Err(failure),
        };
        let wanted = &target.wanted;
        measured.sandbox_id.clone_from(&wanted.id);
        let browser = &self.config.browser;
        let credential = browser.credential(map, &target);
        if is_stranger && credential.is_none() {
            return Err(stranger);
        }
        let upgrade = headers::upgrade(map);
        let (is_upgrade, path) = (upgrade.is_some(), target.path.path());
        let ask = Ask {
            namespace: &wanted.namespace,
            name: &wanted.id,
            port: wanted.port,
            method: &method,
            is_upgrade,
            path,
        };
        // Only a token that is needed and checked shows that no other page has made the request.
        let is_open = peer.access == Access::Owner || !self.gate.takes_tokens();
        let shown = credential.as_ref().filter(|_| !is_open);
        let admitted = async {
            browser.check_origin(map, &target, &method, shown.map(|it| it.source))?;
            match peer.access {
                Access::Owner => Ok(None),
                _ => {
                    let admitted = self.gate.admit(shown.map(|it| it.token.as_str()), &ask).await?;
                    Ok(admitted.sandbox_uid)
                }
            }
        };
        let only_uid = admitted.await.inspect_err(|_: &Failure| self.metrics.decision(None))?;
        let permit = self.clients.admit(&peer.address.to_string()).ok_or(Failure::BusyClient)?;
        let most = self.most_body_bytes();
        if request.body().size_hint().lower() > most {
            return Err(Failure::TooLarge(most));
        }
        let mut timeout = wanted.timeout.unwrap_or(Duration::MAX).min(self.config.proxy_timeout);
        let mut limit = Limit::Silence(timeout);
        if is_grpc {
            let given = grpc::timeout(map).map_err(|_| Failure::Unroutable("Invalid grpc-timeout."))?;
            timeout = given.unwrap_or(Duration::MAX).min(self.config.proxy_timeout);
            limit = Limit::Call(given.and_then(|given| Instant::now().checked_add(given)));
        }
        let unreachable = || Failure::Unreachable { id: wanted.id.clone(), reason: "no_route" };
        let activity = Activity::begin();
        let client = upgrade.map(|_| hyper::upgrade::on(&mut request));
        let forwarded = async {
            let route = self.routes.find(wanted).await.ok_or_else(unreachable)?;
            if only_uid.is_some_and(|uid| uid != route.sandbox_uid) {
                self.metrics.decision(None);
                return Err(Failure::NOT_FOR_THIS);
            }
            self.metrics.decision(Some(&route.namespace));
            measured.namespace.clone_from(&route.namespace);
            let first = shown.and_then(|it| browser.hand_over(it, &target, &method, is_upgrade));
            if let Some(answer) = first {
                return Ok(Outcome::Own(answer));
            }
            let own = self.limits.admit(&route.pod_uid).ok_or_else(|| Failure::Busy(wanted.id.clone()))?;
            let inside = match route.address {
                Some(address) => SocketAddr::new(address, wanted.port).to_string(),
                None => format!("localhost:{}", wanted.port),
            };
            let names = (target.via == Via::Url).then(|| Names {
                outside: target.host.clone(),
                base: target.base.clone(),
                inside: inside.clone(),
                cookie: browser.cookie.clone(),
            });
            let (mut parts, body) = request.into_parts();
            self.translate(&mut parts, &target, names.as_ref(), peer, &inside, is_grpc)?;
            let body = RequestBody::new(body, Arc::clone(&activity), most);
            let outbound = Request::from_parts(parts, body);
            let response = match is_grpc {
                true => self.send_call(outbound, wanted, &route).await?,
                false => self.send(outbound, wanted, &route, is_upgrade).await?,
            };
            let permits = (own, permit);
            Ok(Outcome::Answered(Box::new(Answered { response, client, limit, names, permits })))
        };
        let outcome = tokio::select! {
            outcome = forwarded => outcome,
            () = activity.silent_for(timeout) => Err(Failure::Timeout(wanted.id.clone())),
        };
        if outcome.is_err() && activity.was_too_large() {
            return Err(Failure::TooLarge(most));
        }
        outcome
    }

    /// Makes a client's request into the one that the sandbox gets. The path is the bytes that the client sent, and so
    /// is the query, but for a token in it.
    fn translate(
        &self,
        parts: &mut http::request::Parts,
        target: &Target,
        names: Option<&Names>,
        peer: &Peer,
        inside: &str,
        is_grpc: bool,
    ) -> Result<(), Failure> {
        let bad = |_| Failure::Unroutable("The request has no usable path.");
        let mut path = target.path.clone();
        join_cookies(&mut parts.headers);
        if let Some(names) = names {
            let query = self.config.browser.without_token(path.query());
            if query.as_deref() != path.query() {
                let query = query.filter(|query| !query.is_empty()).map(|query| format!("?{query}"));
                path = PathAndQuery::try_from(format!("{}{}", path.path(), query.unwrap_or_default()))
                    .map_err(bad)?;
            }
            self.config.browser.strip_cookie(&mut parts.headers);
            browser::request(names, &mut parts.headers);
        }
        let host = (!target.host.is_empty()).then_some(target.host.as_str());
        let client = headers::Client { address: peer.address, is_tls: peer.is_tls, host };
        headers::forward(&mut parts.headers, inside, &client);
        let mut uri = http::uri::Parts::default();
        uri.path_and_query = Some(path);
        parts.version = Version::HTTP_11;
        if is_grpc {
            parts.version = Version::HTTP_2;
            parts.headers.remove(HOST);
            // gRPC asks for it: a proxy that drops trailers is found out.
            parts.headers.insert(TE, HeaderValue::from_static("trailers"));
            uri.scheme = Some(Scheme::HTTP);
            let authority = Authority::try_from(inside);
            uri.authority =
                Some(authority.map_err(|_| Failure::Unroutable("The pod has no usable address."))?);
        }
        parts.uri =
            Uri::from_parts(uri).map_err(|_| Failure::Unroutable("The request has no usable path."))?;
        Ok(())
    }

    fn most_body_bytes(&self) -> u64 {
        match self.config.max_request_body_bytes {
            0 => u64::MAX,
            most => most,
        }
    }

    fn respond(&self, answered: Answered, mut measured: Measured) -> Response<Body> {
        let Answered { mut response, client, limit, names, permits } = answered;
        if let Some(names) = &names {
            browser::response(names, response.headers_mut());
        }
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
                tokio::spawn(splice(client, sandbox, Held { _permits: permits, measured }));
            }
            return answer;
        }
        headers::strip_hop_by_hop(response.headers_mut());
        // A sandbox that speaks HTTP/1.0 is no reason to end the client's connection.
        *response.version_mut() = Version::HTTP_11;
        let held = Held { _permits: permits, measured };
        response.map(|body| ResponseBody::new(body, limit, held).boxed_unsync())
    }
}

/// Sends a browser to another path of this host.
fn redirect(location: HeaderValue) -> Outcome {
    let mut answer = page(StatusCode::TEMPORARY_REDIRECT, "text/plain", String::new());
    answer.headers_mut().insert(LOCATION, location);
    Outcome::Own(answer)
}

/// HTTP/2 splits cookies into several headers, which HTTP/1.1 does not allow.
fn join_cookies(map: &mut HeaderMap) {
    if map.get_all(http::header::COOKIE).iter().count() < 2 {
        return;
    }
    let several: Vec<_> = map.get_all(http::header::COOKIE).iter().map(|value| value.as_bytes()).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&several.join(&b"; "[..])) {
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
