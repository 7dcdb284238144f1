//! Takes connections, and passes requests through the checks that all of them share.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::header::{REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use http::{Method, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::answer::{Body, Failure, bytes_response, set};
use super::request::Request;
use super::{Service, access, assets, routes};

/// Connections at the same time. A viewer has one for as long as it looks.
const MOST_CONNECTIONS: usize = 1024;

const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
const LONGEST_HEAD: usize = 32 << 10;
const MOST_HEADERS: usize = 100;
const AFTER_ACCEPT_ERROR: Duration = Duration::from_millis(100);

/// The longest time that requests may take to finish after the shutdown.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves until the shutdown, and lets requests that are under way finish.
pub async fn serve(service: Arc<Service>, socket: TcpListener, shutdown: CancellationToken) {
    let connections = TaskTracker::new();
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        // Fails only if the semaphore is closed, which it never is.
        let place = tokio::select! {
            place = places.clone().acquire_owned() => place,
            () = shutdown.cancelled() => break,
        };
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let (service, shutdown) = (service.clone(), shutdown.clone());
                connections.spawn(async move {
                    connection(service, stream, shutdown).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "connection not taken");
                tokio::time::sleep(AFTER_ACCEPT_ERROR).await;
            }
        }
    }
    drop(socket);
    connections.close();
    if tokio::time::timeout(PATIENCE, connections.wait()).await.is_err() {
        tracing::debug!(left = connections.len(), "connections cut off");
    }
}

async fn connection(service: Arc<Service>, stream: TcpStream, shutdown: CancellationToken) {
    let _ = stream.set_nodelay(true);
    let answer = move |request: http::Request<Incoming>| {
        let service = service.clone();
        async move { Ok::<_, Infallible>(answer(&service, request).await) }
    };
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    builder.max_headers(MOST_HEADERS).max_buf_size(LONGEST_HEAD);
    let connection = builder.serve_connection(TokioIo::new(stream), service_fn(answer));
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "connection ended");
    }
}

async fn answer(service: &Arc<Service>, request: http::Request<Incoming>) -> Response<Body> {
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
