//! Passes requests through the checks that all of them share.

use std::sync::Arc;

use http::header::{REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use http::{Method, Response, StatusCode};
use hyper::body::Incoming;

use super::answer::{Body, Failure, bytes_response, set};
use super::request::Request;
use super::{Service, access, assets, routes};

/// Answers one request.
pub async fn answer(service: &Arc<Service>, request: http::Request<Incoming>) -> Response<Body> {
    let request = Request::new(request);
    if !access::is_own_host(&request.headers, &service.hosts) {
        let message = "this name is not one of the service's; `warren serve --host NAME` adds one";
        return Failure::new(StatusCode::MISDIRECTED_REQUEST, "FOREIGN_HOST", message).response();
    }
    if request.path != "api" && !request.path.starts_with("api/") {
        return match request.method {
            Method::GET | Method::HEAD => assets::file(&request.path),
            _ => bytes_response(StatusCode::METHOD_NOT_ALLOWED, "text/plain", bytes::Bytes::new()),
        };
    }
    let mut response = match routes::answer(service, request).await {
        Ok(response) => response,
        Err(failure) => {
            if failure.status.is_server_error() {
                tracing::warn!(code = failure.code, message = failure.message, "request failed");
            }
            failure.response()
        }
    };
    set(&mut response, X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(&mut response, REFERRER_POLICY, "no-referrer");
    response
}
