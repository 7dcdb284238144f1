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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::answer::{Body, page};
use crate::limits::Limits;
use crate::proxy::{Access, Peer};
use crate::{Router, Tls};

/// The most connections of clients, unless told otherwise.
pub const MOST_CONNECTIONS: usize = 16 * 1024;

/// The longest head of a request, unless told otherwise.
pub const MOST_HEADER_BYTES: usize = 64 << 10;
/// No head may be longer, and none shorter than hyper can hold.
const HEADER_BYTES: std::ops::RangeInclusive<usize> = (8 << 10)..=(1 << 20);
/// The most headers of a request.
const MOST_HEADERS: usize = 256;
/// The longest time that a client may take to send the head of its next request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest time that a client may take for the handshake of TLS.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// After a connection could not be taken: there is no descriptor left, for example.
const AFTER_ACCEPT_ERROR: Duration = Duration::from_millis(100);

/// Decides by the addresses of a connection (the client's, ours) whether its client may use the router.
pub type PeerCheck = Arc<dyn Fn(SocketAddr, SocketAddr) -> bool + Send + Sync>;

/// A socket that a router listens on, with the clients and limits of its connections.
pub struct Listener {
    /// The socket.
    pub socket: TcpListener,
    /// The check of each client; `None` admits every client that can connect.
    pub check: Option<PeerCheck>,
    /// The most connections at the same time.
    pub most_connections: usize,
    /// The most connections of one client at the same time, by its address; 0 for no limit.
    pub most_connections_per_client: usize,
    /// The longest head of a request, in bytes; at least 8192.
    pub most_header_bytes: usize,
    /// TLS; `None`: connections have none.
    pub tls: Option<Arc<Tls>>,
}

impl Listener {
    /// Makes a listener for everybody, without TLS, with the usual limits.
    pub fn new(socket: TcpListener) -> Listener {
        Listener {
            socket,
            check: None,
            most_connections: MOST_CONNECTIONS,
            most_connections_per_client: 0,
            most_header_bytes: MOST_HEADER_BYTES,
            tls: None,
        }
    }
}

/// Serves a router until `shutdown`, then lets requests that are under way finish, for `patience` at most.
pub async fn serve(router: Router, listener: Listener, shutdown: CancellationToken, patience: Duration) {
    let Listener { socket, check, most_connections, most_connections_per_client, most_header_bytes, tls } =
        listener;
    let longest_head = most_header_bytes.clamp(*HEADER_BYTES.start(), *HEADER_BYTES.end());
    let clients = Limits::new(most_connections_per_client);
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
                let Some(permit) = clients.admit(&peer.ip().to_string()) else {
                    debug!(client = %peer.ip(), "too many connections of one client");
                    continue;
                };
                let (router, check, shutdown) = (router.clone(), check.clone(), shutdown.clone());
                let acceptor = tls.as_ref().map(|tls| tls.acceptor());
                connections.spawn(async move {
                    let answer = answering(router, &stream, peer, check, acceptor.is_some());
                    match acceptor {
                        None => serve_http(stream, answer, longest_head, shutdown).await,
                        Some(acceptor) => {
                            match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                                Ok(Ok(stream)) => serve_http(stream, answer, longest_head, shutdown).await,
                                Ok(Err(error)) => debug!(%error, "no TLS"),
                                Err(_) => debug!("no TLS in time"),
                            }
                        }
                    }
                    drop((place, permit));
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

type Answer = std::pin::Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// Returns what answers the requests of a connection.
fn answering(
    router: Router,
    stream: &TcpStream,
    peer: SocketAddr,
    check: Option<PeerCheck>,
    is_tls: bool,
) -> impl Fn(Request<Incoming>) -> Answer + Send + 'static {
    let _ = stream.set_nodelay(true);
    let access = match (check, stream.local_addr()) {
        (None, _) => Access::Anybody,
        (Some(check), Ok(here)) if check(peer, here) => Access::Owner,
        (Some(_), _) => Access::Stranger,
    };
    let peer = Peer { address: peer.ip(), is_tls, access };
    move |request| {
        let router = router.clone();
        Box::pin(async move { Ok(router.answer(request, peer).await) })
    }
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
        connections.spawn(serve_http(stream, serve_page, MOST_HEADER_BYTES, shutdown.clone()));
    }
}

async fn serve_http<S, F, R>(stream: S, answer: F, longest_head: usize, shutdown: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    F: Fn(Request<Incoming>) -> R + Send + 'static,
    R: Future<Output = Result<Response<Body>, Infallible>> + Send + 'static,
{
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_headers(MOST_HEADERS)
        .max_buf_size(longest_head);
    builder.http2().timer(TokioTimer::new()).max_header_list_size(longest_head as u32);
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
