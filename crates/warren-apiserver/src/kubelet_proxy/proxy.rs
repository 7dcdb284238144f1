//! `nodes/proxy`: a request for a node itself, forwarded unchanged. A user with this permission may
//! use the node's whole kubelet API, as with kube-apiserver.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, Method, Request, Response, StatusCode, header, request};
use http_body_util::{BodyExt as _, StreamBody};
use hyper_util::rt::TokioIo;
use tower::BoxError;
use warren_store::Key;

use crate::respond::ResponseBody;
use crate::server::Inner;
use crate::status::{ApiError, Subject};

/// The request headers that are forwarded. Credentials are not among them: the request is already
/// authenticated.
const PASSED_ON: [HeaderName; 3] = [header::ACCEPT, header::CONTENT_LENGTH, header::CONTENT_TYPE];

/// Returns true if a path is for a node itself. Its bodies are streamed, so the node's own limits
/// apply to them.
pub(crate) fn is_for_a_node(path: &str) -> bool {
    let mut segments = path.trim_start_matches('/').split('/');
    let mut is = |expected: &str| segments.next() == Some(expected);
    is("api") && is("v1") && is("nodes") && segments.next().is_some() && segments.next() == Some("proxy")
}

/// Forwards a request to a node and returns its answer.
pub(crate) async fn proxy<B>(
    server: &Arc<Inner>,
    parts: &request::Parts,
    body: B,
    node: &str,
) -> Result<Response<ResponseBody>, ApiError>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    if ![Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE]
        .contains(&parts.method)
    {
        return Err(ApiError::method_not_allowed());
    }
    let unreachable = |error: &dyn std::fmt::Display| {
        ApiError::unavailable(format!("error dialing node {node:?}: {error}"))
    };
    let stream = match server.nodes.dial(node).await {
        Ok(stream) => stream,
        Err(error) => {
            let known = server.store.get(&Key::new("nodes", "", node)).is_some();
            return Err(match known {
                true => unreachable(&error),
                false => ApiError::not_found(Subject { group: "", kind: "nodes", name: node }),
            });
        }
    };
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| unreachable(&error))?;
    tokio::spawn(connection);
    let mut request = Request::new(body.map_err(Into::into).boxed_unsync());
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = on_the_node(parts)?;
    for name in PASSED_ON {
        if let Some(value) = parts.headers.get(&name) {
            request.headers_mut().insert(name, value.clone());
        }
    }
    request.headers_mut().insert(header::HOST, http::HeaderValue::from_static("node"));
    let response = sender.send_request(request).await.map_err(|error| unreachable(&error))?;

    let mut answer = Response::new(());
    *answer.status_mut() = match response.status() {
        // The request asked for no upgrade.
        StatusCode::SWITCHING_PROTOCOLS => StatusCode::BAD_GATEWAY,
        status => status,
    };
    if let Some(kind) = response.headers().get(header::CONTENT_TYPE) {
        answer.headers_mut().insert(header::CONTENT_TYPE, kind.clone());
    }
    let frames = futures::stream::unfold(response.into_body(), |mut body| async move {
        match body.frame().await? {
            Ok(frame) => Some((Ok::<_, Infallible>(frame), body)),
            Err(error) => {
                tracing::debug!(%error, "node's answer broke off");
                None
            }
        }
    });
    Ok(answer.map(|()| StreamBody::new(frames).boxed_unsync()))
}

/// Returns the path behind `/proxy`, with the query.
fn on_the_node(parts: &request::Parts) -> Result<http::Uri, ApiError> {
    let behind = parts.uri.path().trim_start_matches('/').splitn(6, '/').nth(5).unwrap_or_default();
    let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    format!("/{behind}{query}").parse().map_err(|_| ApiError::bad_request("the path cannot be passed on"))
}

#[cfg(test)]
mod tests {
    use super::{is_for_a_node, on_the_node};

    #[test]
    fn the_node_sees_what_is_behind_its_name() {
        for (path, expected) in [
            ("/api/v1/nodes/local/proxy/images?name=a%2Fb", "/images?name=a%2Fb"),
            ("/api/v1/nodes/local/proxy", "/"),
            ("/api/v1/nodes/local/proxy/a//b%2F", "/a//b%2F"),
        ] {
            assert!(is_for_a_node(path.split('?').next().unwrap_or_default()));
            let (parts, ()) = http::Request::get(path).body(()).unwrap().into_parts();
            assert_eq!(on_the_node(&parts).unwrap().to_string(), expected);
        }
        for other in ["/api/v1/nodes/local/status", "/api/v1/nodes/proxy", "/apis/x/v1/nodes/a/proxy"] {
            assert!(!is_for_a_node(other), "{other}");
        }
    }
}
