//! Logs and exec: checks the request here, then forwards it to the kubelet API of the pod's node.

mod proxy;

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode, header, request};
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use warren_store::Key;

use crate::limits::take_permit;
use crate::query::{Query, encode};
use crate::respond::ResponseBody;
use crate::route::ResourcePath;
use crate::server::Inner;
use crate::status::{ApiError, FieldError, Subject};

pub(crate) use proxy::{is_for_a_node, proxy};

/// A two-way stream of bytes to a node.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Connects to the kubelet API of nodes. In the local home the stream stays within the process.
pub trait NodeDialer: Send + Sync {
    /// Opens a stream to the node of this name.
    fn dial(&self, node_name: &str) -> BoxFuture<'_, io::Result<Box<dyn ByteStream>>>;
}

/// A dialer that reaches no node: for servers without nodes, and for tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoNodes;

impl NodeDialer for NoNodes {
    fn dial(&self, node_name: &str) -> BoxFuture<'_, io::Result<Box<dyn ByteStream>>> {
        let error =
            io::Error::new(io::ErrorKind::NotConnected, format!("no node {node_name:?} is registered"));
        Box::pin(std::future::ready(Err(error)))
    }
}

/// The headers of a WebSocket handshake, which are forwarded unchanged.
const HANDSHAKE: [&str; 6] = [
    "connection",
    "upgrade",
    "sec-websocket-key",
    "sec-websocket-version",
    "sec-websocket-protocol",
    "sec-websocket-accept",
];

const LOG_PARAMETERS: [&str; 8] =
    ["follow", "previous", "sinceSeconds", "sinceTime", "timestamps", "tailLines", "limitBytes", "stream"];

/// Sends a GET request to a node and returns the body.
pub(crate) async fn read(server: &Inner, node: &str, uri: &str) -> Result<Bytes, ApiError> {
    /// The maximum size: enough for a line for each of some thousands of containers.
    const LONGEST: usize = 32 << 20;
    let place = Place { namespace: "", pod: "", container: String::new(), node: node.to_owned() };
    let response = place.send(server, Method::GET, uri, HeaderMap::new()).await?;
    let status = response.status();
    if status != StatusCode::OK {
        return Err(place.node_refused(status, response.into_body()).await);
    }
    let body = http_body_util::Limited::new(response.into_body(), LONGEST).collect().await;
    Ok(body.map_err(|error| place.unreachable(&error))?.to_bytes())
}

/// Serves `pods/log`.
pub(crate) async fn log(
    server: &Arc<Inner>,
    path: ResourcePath<'_>,
    query: &Query,
) -> Result<Response<ResponseBody>, ApiError> {
    let place = Place::find(server, path, query)?;
    for name in ["tailLines", "limitBytes", "sinceSeconds"] {
        check_log_number(place.pod, name, query)?;
    }
    if place.node.is_empty() {
        // The pod has not run, so its log is empty.
        let mut response = Response::new(Empty::new().boxed_unsync());
        *response.status_mut() = StatusCode::NO_CONTENT;
        return Ok(response);
    }
    let uri = place.log_uri(query);
    let response = place.send(server, Method::GET, &uri, HeaderMap::new()).await?;
    let status = response.status();
    let (_, body) = response.into_parts();
    if status != StatusCode::OK {
        return Err(place.node_refused(status, body).await);
    }
    let frames = futures::stream::unfold(body, |mut body| async move {
        match body.frame().await? {
            Ok(frame) => Some((Ok::<_, Infallible>(frame), body)),
            Err(error) => {
                tracing::debug!(%error, "log stream ended");
                None
            }
        }
    });
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain"));
    Ok(response)
}

/// Serves `pods/exec`, `pods/attach` and `pods/portforward`: joins the client's WebSocket to the
/// node's.
pub(crate) async fn stream(
    server: &Arc<Inner>,
    parts: &mut request::Parts,
    path: ResourcePath<'_>,
    what: &str,
) -> Result<Response<ResponseBody>, ApiError> {
    let query = Query::parse(parts.uri.query().unwrap_or_default());
    let place = Place::find(server, path, &query)?;
    if place.node.is_empty() {
        return Err(ApiError::bad_request(format!("pod {} does not have a host assigned", place.pod)));
    }
    let upgrade = parts.headers.get(header::UPGRADE).and_then(|value| value.to_str().ok());
    let websocket = upgrade.is_some_and(|upgrade| upgrade.eq_ignore_ascii_case("websocket"));
    if upgrade.is_some_and(|upgrade| upgrade.starts_with("SPDY/")) {
        // kubectl falls back to SPDY after the node has refused the WebSocket.
        return Err(ApiError::unavailable(format!(
            "{what} is offered over WebSocket only, where the pod's node has it, and not over SPDY"
        )));
    }
    let (true, Some(client)) = (websocket, parts.extensions.remove::<OnUpgrade>()) else {
        return Err(ApiError::bad_request("Upgrade request required"));
    };
    let uri = place.stream_uri(what, &query);
    let response = place.send(server, Method::GET, &uri, handshake_headers(&parts.headers)).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let status = response.status();
        return Err(place.node_refused(status, response.into_body()).await);
    }
    let mut answer = Response::new(Empty::new().boxed_unsync());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *answer.headers_mut() = handshake_headers(response.headers());
    let (permit, node) = (take_permit(parts), hyper::upgrade::on(response));
    tokio::spawn(async move {
        splice(client, node).await;
        drop(permit);
    });
    Ok(answer)
}

fn check_log_number(pod: &str, name: &str, query: &Query) -> Result<(), ApiError> {
    let lowest = i64::from(name != "tailLines");
    let Some(number) = query.number(name)?.filter(|number| *number < lowest) else { return Ok(()) };
    let detail = match lowest {
        0 => "must be greater than or equal to 0",
        _ => "must be greater than 0",
    };
    let subject = Subject { group: "", kind: "PodLogOptions", name: pod };
    Err(ApiError::invalid(subject, vec![FieldError::invalid(name, number, detail)]))
}

/// Refuses `pods/proxy`: the server has no access to pod networks.
pub(crate) fn no_proxy() -> ApiError {
    ApiError::unavailable("this server has no way into the network of pods; use port-forward instead")
}

/// Copies in both directions until one side ends.
async fn splice(client: OnUpgrade, node: OnUpgrade) {
    let joined = async {
        let (client, node) = tokio::try_join!(client, node)?;
        let (mut client, mut node) = (TokioIo::new(client), TokioIo::new(node));
        tokio::io::copy_bidirectional(&mut client, &mut node).await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    };
    if let Err(error) = joined.await {
        tracing::debug!(%error, "exec stream ended");
    }
}

fn handshake_headers(headers: &HeaderMap) -> HeaderMap {
    let known = HANDSHAKE.iter().map(|name| HeaderName::from_static(name));
    known.filter_map(|name| Some((name.clone(), headers.get(&name)?.clone()))).collect()
}

/// The container that a request is about, and its node.
struct Place<'a> {
    namespace: &'a str,
    pod: &'a str,
    container: String,
    node: String,
}

impl<'a> Place<'a> {
    fn find(server: &Inner, path: ResourcePath<'a>, query: &Query) -> Result<Place<'a>, ApiError> {
        let (namespace, pod) = (path.namespace.unwrap_or_default(), path.name.unwrap_or_default());
        let object = server.store.get(&Key::new("pods", namespace, pod));
        let object =
            object.ok_or_else(|| ApiError::not_found(Subject { group: "", kind: "pods", name: pod }))?;
        let value = object.value();
        let container = match path.subresource {
            // A port belongs to the whole pod.
            Some("portforward") => String::new(),
            _ => choose_container(&value, pod, query.text("container"))?,
        };
        let node = value["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
        Ok(Place { namespace, pod, container, node })
    }

    fn log_uri(&self, query: &Query) -> String {
        let passed = LOG_PARAMETERS.iter().filter_map(|name| Some((*name, query.text(name)?.to_owned())));
        self.uri("containerLogs", passed)
    }

    /// Returns the path and query for the kubelet, which has other names for the streams.
    fn stream_uri(&self, what: &str, query: &Query) -> String {
        if what == "portforward" {
            let ports: Vec<_> = query.all("ports").map(|port| format!("port={}", encode(port))).collect();
            return format!("/portForward/{}/{}?{}", self.namespace, self.pod, ports.join("&"));
        }
        let commands = query.all("command").map(|command| ("command", command.to_owned()));
        let flags = [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")];
        let flags =
            flags.iter().filter(|(ours, _)| query.is_on(ours)).map(|(_, theirs)| (*theirs, "1".to_owned()));
        self.uri(what, commands.chain(flags))
    }

    fn uri(&self, verb: &str, parameters: impl Iterator<Item = (&'static str, String)>) -> String {
        let parameters: Vec<_> =
            parameters.map(|(name, value)| format!("{name}={}", encode(&value))).collect();
        format!("/{verb}/{}/{}/{}?{}", self.namespace, self.pod, self.container, parameters.join("&"))
    }

    async fn send(
        &self,
        server: &Inner,
        method: Method,
        uri: &str,
        headers: HeaderMap,
    ) -> Result<Response<Incoming>, ApiError> {
        let stream = server.nodes.dial(&self.node).await.map_err(|error| self.unreachable(&error))?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| self.unreachable(&error))?;
        tokio::spawn(connection.with_upgrades());
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.method_mut() = method;
        *request.uri_mut() =
            uri.parse().map_err(|_| ApiError::bad_request("the command cannot be passed on"))?;
        *request.headers_mut() = headers;
        request.headers_mut().insert(header::HOST, http::HeaderValue::from_static("node"));
        sender.send_request(request).await.map_err(|error| self.unreachable(&error))
    }

    fn unreachable(&self, error: &dyn std::fmt::Display) -> ApiError {
        ApiError::unavailable(format!("error dialing node {:?}: {error}", self.node))
    }

    /// Builds the error from a node's refusal.
    async fn node_refused(&self, status: StatusCode, body: Incoming) -> ApiError {
        const LONGEST: usize = 4096;
        let text = http_body_util::Limited::new(body, LONGEST).collect().await.map(|body| body.to_bytes());
        let text = text.map(|text| String::from_utf8_lossy(&text).trim().to_owned()).unwrap_or_default();
        let mut error = match status {
            StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST => ApiError::bad_request(text),
            _ => ApiError::internal(text),
        };
        error.code = status;
        error
    }
}

fn choose_container(pod: &Value, name: &str, wanted: Option<&str>) -> Result<String, ApiError> {
    let names = |list: &str| -> Vec<String> {
        let containers = pod["spec"][list].as_array().map(Vec::as_slice).unwrap_or_default();
        containers.iter().filter_map(|container| Some(container["name"].as_str()?.to_owned())).collect()
    };
    let main = names("containers");
    match wanted {
        Some(wanted) => {
            let everywhere =
                ["containers", "initContainers", "ephemeralContainers"].into_iter().flat_map(names);
            match everywhere.into_iter().find(|known| known == wanted) {
                Some(known) => Ok(known),
                None => Err(ApiError::bad_request(format!("container {wanted} is not valid for pod {name}"))),
            }
        }
        None => match main.as_slice() {
            [only] => Ok(only.clone()),
            several => Err(ApiError::bad_request(format!(
                "a container name must be specified for pod {name}, choose one of: [{}]",
                several.join(" ")
            ))),
        },
    }
}
