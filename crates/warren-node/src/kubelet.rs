//! Serves kubelet's HTTP API as far as the API server uses it: `/exec`, `/attach`, `/portForward`,
//! `/containerLogs`, `/pods`, `/stats/summary`, `/metrics`, `/healthz`. `/images` and `/views`
//! are ours: users reach them through the API server as `/api/v1/nodes/NAME/proxy/images`.
//!
//! A client with a stream within this process may do everything. On a port ([`listen`]), each
//! request is authorised.

mod access;
mod attach;
mod channel;
mod exec;
mod images;
mod listen;
mod port_forward;
mod session;
mod spdy;
mod spdy_streams;
mod stats;
mod upgrade;
mod views;

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use http::header::CONTENT_TYPE;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use warren_oci::protocol::{ContainerStatus, PodState};

use crate::log_file::{LogOptions, LogRequestError, read_log};
use crate::node::Shared;
use crate::pod_registry::{Entry, Seen};
use crate::shim::Shim;
use attach::AttachTarget;
use channel::Protocol;
use exec::ExecTarget;
use session::StreamOptions;
use upgrade::{Handshake, SpdyHandshake};

pub use listen::{AccessError, KubeletAccess};
pub(crate) use listen::{Identity, serve as serve_port};
pub(crate) use port_forward::connect_to_pod;

type Body = UnsyncBoxBody<Bytes, Infallible>;

pub(crate) async fn serve<S>(shared: Arc<Shared>, stream: S) -> Result<(), hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Before the first list, an existing pod would be answered as unknown.
    shared.wait_until_listed().await;
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
        (&Method::GET, ["stats", "summary"]) => stats::summary(shared).await,
        (&Method::GET, ["metrics", "resource"]) => stats::resources(shared).await,
        (&Method::GET, ["metrics"]) => stats::node(shared),
        (_, ["images"]) => images::answer(shared, request).await,
        (&Method::GET, ["containerLogs", namespace, pod, container]) => {
            logs(shared, &request, namespace, pod, container)
        }
        (&Method::GET, ["views", namespace, pod, container, volume]) => {
            let place = Place::find(shared, namespace, pod, container);
            let answered = place.and_then(|place| views::answer(&place, volume));
            answered.unwrap_or_else(|Refused(status, problem)| text(status, problem))
        }
        // Also with the pod's uid in the path: kubelet has both forms.
        (
            &Method::GET | &Method::POST,
            [verb @ ("exec" | "attach"), namespace, pod, container]
            | [verb @ ("exec" | "attach"), namespace, pod, _, container],
        ) => {
            let place = Place::find(shared, namespace, pod, container);
            let answered = place.and_then(|place| match *verb {
                "exec" => exec(request, place),
                _ => attach(request, place),
            });
            answered.unwrap_or_else(|Refused(status, problem)| text(status, problem))
        }
        (
            &Method::GET | &Method::POST,
            ["portForward", namespace, pod] | ["portForward", namespace, pod, _],
        ) => port_forward::answer(shared, request, namespace, pod),
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

/// An error answer to a request for streams, with a readable message.
struct Refused(StatusCode, String);

/// The container that a request for streams is about, with its identity for messages.
struct Place {
    entry: Arc<Entry>,
    pod: Arc<Pod>,
    container: String,
}

impl Place {
    fn find(shared: &Shared, namespace: &str, pod: &str, container: &str) -> Result<Place, Refused> {
        let Some((entry, object)) = shared.registry.named(namespace, pod) else {
            return Err(Refused(StatusCode::NOT_FOUND, "pod does not exist".to_owned()));
        };
        let container = container.to_owned();
        let place = Place { entry, pod: object, container };
        match place.container_spec() {
            Some(_) => Ok(place),
            None => {
                Err(Refused(StatusCode::NOT_FOUND, format!("container not found (\"{}\")", place.container)))
            }
        }
    }

    fn container_spec(&self) -> Option<&Container> {
        let spec = self.pod.spec.as_ref()?;
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        containers.into_iter().find(|known| known.name == self.container)
    }

    /// Connects to the shim of a container that runs as far as this node knows.
    fn shim(&self) -> Result<Shim, Refused> {
        let runs = |state: &PodState| {
            let found = state.containers.get(&self.container);
            found.is_some_and(|container| matches!(container.status, ContainerStatus::Running { .. }))
        };
        // After a start the node may not have heard from the shim yet, so ask the shim itself. The
        // connection is made before the upgrade completes, and the shim answers while the client
        // reads our response.
        let known_not_to_run = self.entry.state.borrow().as_ref().is_some_and(|state| !runs(state));
        match Shim::connect(&self.entry.directory.0) {
            Ok(shim) if !known_not_to_run => Ok(shim),
            _ => Err(Refused(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("container \"{}\" is not running", self.container),
            )),
        }
    }
}

/// The handshake of a session with streams.
enum StreamHandshake {
    WebSocket(Handshake, Protocol),
    /// From API servers before 1.36, and from clients that know nothing else.
    Spdy(SpdyHandshake),
}

impl StreamHandshake {
    fn begun(request: &Request<Incoming>) -> Result<StreamHandshake, Refused> {
        let refused = |status, problem: &str| Err(Refused(status, problem.to_owned()));
        if let Some(handshake) = SpdyHandshake::begun(request.headers()) {
            return match handshake.offers(spdy_streams::PROTOCOL) {
                true => Ok(StreamHandshake::Spdy(handshake)),
                false => {
                    refused(StatusCode::FORBIDDEN, "streams over SPDY need the protocol v4.channel.k8s.io")
                }
            };
        }
        let Some(handshake) = Handshake::begun(request.headers()) else {
            return refused(StatusCode::BAD_REQUEST, "streams need a WebSocket or SPDY");
        };
        match Protocol::negotiate(&handshake.offered) {
            Some(protocol) => Ok(StreamHandshake::WebSocket(handshake, protocol)),
            None => refused(
                StatusCode::BAD_REQUEST,
                "streams need the subprotocol v5.channel.k8s.io or v4.channel.k8s.io",
            ),
        }
    }
}

fn exec(request: Request<Incoming>, place: Place) -> Result<Response<Body>, Refused> {
    let options = StreamOptions::parse(request.uri().query().unwrap_or_default())
        .and_then(|options| match options.command.is_empty() {
            true => Err("you must specify at least 1 command"),
            false => Ok(options),
        })
        .map_err(|problem| Refused(StatusCode::BAD_REQUEST, problem.to_owned()))?;
    let shim = place.shim()?;
    let handshake = StreamHandshake::begun(&request)?;
    let target = ExecTarget {
        shim,
        pod_uid: place.pod.metadata.uid.clone().unwrap_or_default(),
        container: place.container,
    };
    Ok(match handshake {
        StreamHandshake::WebSocket(handshake, protocol) => {
            handshake.complete(request, Some(protocol.name()), move |stream| {
                exec::serve(stream, protocol, target, options)
            })
        }
        StreamHandshake::Spdy(handshake) => {
            let wanted = spdy_streams::wanted(&options);
            handshake.complete(request, spdy_streams::PROTOCOL, move |stream| {
                spdy_streams::serve(stream, wanted, move |stream, protocol| {
                    exec::serve(stream, protocol, target, options)
                })
            })
        }
    })
}

fn attach(request: Request<Incoming>, place: Place) -> Result<Response<Body>, Refused> {
    let options = StreamOptions::parse(request.uri().query().unwrap_or_default())
        .map_err(|problem| Refused(StatusCode::BAD_REQUEST, problem.to_owned()))?;
    let shim = place.shim()?;
    let handshake = StreamHandshake::begun(&request)?;
    let input_once = place.container_spec().and_then(|container| container.stdin_once) == Some(true);
    let target = AttachTarget { shim, container: place.container, input_once };
    Ok(match handshake {
        StreamHandshake::WebSocket(handshake, protocol) => {
            handshake.complete(request, Some(protocol.name()), move |stream| {
                attach::serve(stream, protocol, target, options)
            })
        }
        StreamHandshake::Spdy(handshake) => {
            let wanted = spdy_streams::wanted(&options);
            handshake.complete(request, spdy_streams::PROTOCOL, move |stream| {
                spdy_streams::serve(stream, wanted, move |stream, protocol| {
                    attach::serve(stream, protocol, target, options)
                })
            })
        }
    })
}
