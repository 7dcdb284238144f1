//! Takes connections and serves them.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::Router;
use crate::answer::{Body, Failure, page};

/// The most connections of clients, unless told otherwise.
pub const MOST_CONNECTIONS: usize = 16 * 1024;

/// The longest head of a request.
const LONGEST_HEAD: usize = 64 << 10;
/// The most headers of a request.
const MOST_HEADERS: usize = 256;
/// How long a client may take to send the head of its next request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// After a connection could not be taken: there is no descriptor left, for example.
const AFTER_ACCEPT_ERROR: Duration = Duration::from_millis(100);

/// Decides by the addresses of a connection (the client's, ours) whether its client may use the router.
pub type PeerCheck = Arc<dyn Fn(SocketAddr, SocketAddr) -> bool + Send + Sync>;

/// Where a router listens, and for whom.
pub struct Listener {
    /// The socket.
    pub socket: TcpListener,
    /// Who may use it; `None` for everybody who can connect.
    pub check: Option<PeerCheck>,
    /// The most connections at the same time.
    pub most_connections: usize,
}

/// Serves a router until `shutdown`, then lets requests that are under way finish, for `patience` at most.
pub async fn serve(router: Router, listener: Listener, shutdown: CancellationToken, patience: Duration) {
    let Listener { socket, check, most_connections } = listener;
    let connections = TaskTracker::new();
    let places = Arc::new(Semaphore::new(most_connections));
    loop {
        // Fails only if the semaphore is closed, which it never is.
        let place = tokio::select! {
            place = Arc::clone(&places).acquire_owned() => place,
            () = shutdown.cancelled() => break,
        };
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let (router, check, shutdown) = (router.clone(), check.clone(), shutdown.clone());
                connections.spawn(async move {
                    serve_connection(router, stream, peer, check, shutdown).await;
                    drop(place);
                });
            }
            Err(error) => {
                warn!(%error, "connection not taken");
                tokio::time::sleep(AFTER_ACCEPT_ERROR).await;
            }
        }
    }
    drop(socket);
    connections.close();
    if tokio::time::timeout(patience, connections.wait()).await.is_err() {
        debug!(left = connections.len(), "connections cut off");
    }
}

async fn serve_connection(
    router: Router,
    stream: TcpStream,
    peer: SocketAddr,
    check: Option<PeerCheck>,
    shutdown: CancellationToken,
) {
    let _ = stream.set_nodelay(true);
    let may_pass = match (check, stream.local_addr()) {
        (None, _) => true,
        (Some(check), Ok(here)) => check(peer, here),
        (Some(_), Err(_)) => false,
    };
    let answer = move |request: Request<Incoming>| {
        let router = router.clone();
        async move {
            Ok::<_, Infallible>(match may_pass {
                true => router.answer(request, peer).await,
                false => Failure::Forbidden(
                    "Only the user whose home this is may use its router; others go through \
                     `kubectl port-forward`.",
                )
                .response(),
            })
        }
    };
    serve_http(stream, answer, shutdown).await;
}

/// Serves pages that are made on demand: metrics and probes. `answer` gets a path; `None` is "not found".
pub async fn serve_pages<F>(socket: TcpListener, answer: F, shutdown: CancellationToken)
where
    F: Fn(&str) -> Option<(StatusCode, &'static str, String)> + Clone + Send + Sync + 'static,
{
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            () = shutdown.cancelled() => return,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(AFTER_ACCEPT_ERROR).await;
            continue;
        };
        let answer = answer.clone();
        let serve_page = move |request: Request<Incoming>| {
            let made = answer(request.uri().path());
            let made = made.unwrap_or((StatusCode::NOT_FOUND, "text/plain", "not found\n".to_owned()));
            std::future::ready(Ok::<_, Infallible>(page(made.0, made.1, made.2)))
        };
        connections.spawn(serve_http(stream, serve_page, shutdown.clone()));
    }
}

async fn serve_http<F, R>(stream: TcpStream, answer: F, shutdown: CancellationToken)
where
    F: Fn(Request<Incoming>) -> R + Send + 'static,
    R: Future<Output = Result<Response<Body>, Infallible>> + Send + 'static,
{
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_headers(MOST_HEADERS)
        .max_buf_size(LONGEST_HEAD);
    builder.http2().timer(TokioTimer::new()).max_header_list_size(LONGEST_HEAD as u32);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service_fn(answer));
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        debug!(%error, "connection ended");
    }
}
