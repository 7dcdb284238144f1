//! Kubelet's HTTP API, as far as the API server uses it: `/exec`, `/containerLogs`, `/pods`, `/healthz`; and `/images`, which is
//! ours: people reach it through the API server as `/api/v1/nodes/NAME/proxy/images`.

mod channel;
mod exec;
mod images;

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::header::{
    CONNECTION, CONTENT_TYPE, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tracing::debug;
use warren_oci::protocol::{ContainerStatus, PodState};

use crate::log_file::{LogOptions, LogRequestError, read_log};
use crate::node::Shared;
use crate::registry::Seen;
use crate::shim::Shim;
use channel::Protocol;
use exec::{ExecOptions, ExecTarget};

type Body = UnsyncBoxBody<Bytes, Infallible>;

pub(crate) async fn serve<S>(shared: Arc<Shared>, stream: S) -> Result<(), hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(answer(&shared, request).await) }
    });
    hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(text.into()).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

async fn answer(shared: &Arc<Shared>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match (request.method(), parts.as_slice()) {
        (&Method::GET, ["healthz"]) => text(StatusCode::OK, "ok"),
        (&Method::GET, ["pods"]) => pods(shared),
        (_, ["images"]) => images::answer(shared, request).await,
        (&Method::GET, ["containerLogs", namespace, pod, container]) => {
            logs(shared, &request, namespace, pod, container)
        }
        // With the pod's uid between, too: kubelet has both.
        (
            &Method::GET | &Method::POST,
            ["exec", namespace, pod, container] | ["exec", namespace, pod, _, container],
        ) => {
            let (namespace, pod, container) =
                ((*namespace).to_owned(), (*pod).to_owned(), (*container).to_owned());
            exec(shared, request, &namespace, &pod, &container)
        }
        _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

fn pods(shared: &Shared) -> Response<Body> {
    let items: Vec<_> = shared
        .registry
        .all()
        .into_iter()
        .filter_map(|(_, entry)| match &*entry.seen.borrow() {
            Seen::Pod(pod) => serde_json::to_value(&**pod).ok(),
            Seen::Gone => None,
        })
        .collect();
    json_text(&json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
}

fn json_text(value: &serde_json::Value) -> Response<Body> {
    let mut response = text(StatusCode::OK, value.to_string());
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

fn logs(
    shared: &Shared,
    request: &Request<Incoming>,
    namespace: &str,
    pod: &str,
    container: &str,
) -> Response<Body> {
    let options = match LogOptions::parse(request.uri().query().unwrap_or_default(), jiff::Timestamp::now()) {
        Ok(options) => options,
        Err(problem) => return text(StatusCode::BAD_REQUEST, problem.to_string()),
    };
    let Some((entry, object)) = shared.registry.named(namespace, pod) else {
        return text(StatusCode::NOT_FOUND, format!("pod does not exist: {namespace}/{pod}"));
    };
    match read_log(&entry, &object, container, options) {
        Ok(chunks) => {
            let frames = chunks.map(|chunk| Ok(Frame::data(chunk)));
            let mut response = text(StatusCode::OK, "");
            *response.body_mut() = StreamBody::new(frames).boxed_unsync();
            response
        }
        Err(problem @ LogRequestError::NoContainer { .. }) => {
            text(StatusCode::NOT_FOUND, problem.to_string())
        }
        Err(problem) => text(StatusCode::BAD_REQUEST, problem.to_string()),
    }
}

/// The values of a header that may come several times and hold several values each.
fn joined(headers: &HeaderMap, name: http::HeaderName) -> String {
    let values: Vec<&str> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    values.join(",")
}

fn exec(
    shared: &Shared,
    mut request: Request<Incoming>,
    namespace: &str,
    pod: &str,
    container: &str,
) -> Response<Body> {
    let options = match ExecOptions::parse(request.uri().query().unwrap_or_default()) {
        Ok(options) => options,
        Err(problem) => return text(StatusCode::BAD_REQUEST, problem),
    };
    let Some((entry, object)) = shared.registry.named(namespace, pod) else {
        return text(StatusCode::NOT_FOUND, "pod does not exist");
    };
    if !object.spec.iter().flat_map(|spec| &spec.containers).any(|known| known.name == container) {
        return text(StatusCode::NOT_FOUND, format!("container not found (\"{container}\")"));
    }
    let runs = |state: &PodState| {
        let found = state.containers.get(container);
        found.is_some_and(|container| matches!(container.status, ContainerStatus::Running { .. }))
    };
    // A node that has just started may not have heard of the shim yet: the shim itself is asked then. Connected before the
    // upgrade is through, it answers while the client reads our answer.
    let known_not_to_run = entry.state.borrow().as_ref().is_some_and(|state| !runs(state));
    let shim = match Shim::connect(&entry.directory.0) {
        Ok(shim) if !known_not_to_run => shim,
        _ => {
            return text(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("container \"{container}\" is not running"),
            );
        }
    };
    let headers = request.headers();
    let wants_websocket =
        joined(headers, UPGRADE).to_ascii_lowercase().split(',').any(|word| word.trim() == "websocket");
    let key = headers.get(SEC_WEBSOCKET_KEY).map(|key| derive_accept_key(key.as_bytes()));
    let (true, Some(accept)) = (wants_websocket, key) else {
        return text(StatusCode::BAD_REQUEST, "exec needs a WebSocket: SPDY is not supported");
    };
    let Some(protocol) = Protocol::negotiate(&joined(headers, SEC_WEBSOCKET_PROTOCOL)) else {
        return text(
            StatusCode::BAD_REQUEST,
            "exec needs the subprotocol v5.channel.k8s.io or v4.channel.k8s.io",
        );
    };

    let target = ExecTarget {
        shim,
        pod_uid: object.metadata.uid.clone().unwrap_or_default(),
        container: container.to_owned(),
    };
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        match upgrade.await {
            Ok(upgraded) => exec::serve(TokioIo::new(upgraded), protocol, target, options).await,
            Err(error) => debug!(%error, "client left before the upgrade"),
        }
    });
    let mut response = Response::new(StreamBody::new(stream::empty()).boxed_unsync());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let answered = response.headers_mut();
    answered.insert(CONNECTION, http::HeaderValue::from_static("Upgrade"));
    answered.insert(UPGRADE, http::HeaderValue::from_static("websocket"));
    answered.insert(SEC_WEBSOCKET_PROTOCOL, http::HeaderValue::from_static(protocol.name()));
    if let Ok(accept) = http::HeaderValue::from_str(&accept) {
        answered.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    response
}
