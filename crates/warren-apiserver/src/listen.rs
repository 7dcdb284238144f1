//! Listeners. On the unix socket the kernel identifies the caller. On TLS a certificate or a token
//! does.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, Request, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::AUDIENCE;
use crate::audit::Source;
use crate::identity::Identity;
use crate::limits::{self, FirstByteInTime, Unread};
use crate::respond;
use crate::seldom::Seldom;
use crate::server::{ApiServer, Inner};
use crate::status::ApiError;

mod subject;

/// The time for open connections to finish after the server stops.
const DRAIN: Duration = Duration::from_secs(3);
/// The interval of HTTP/2 pings on a silent connection, and the time to answer one.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// The time limit of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The credentials that a TLS listener uses.
#[derive(Clone)]
pub struct TlsAccess {
    /// The TLS configuration, from [`crate::pki::Pki::server_config`].
    pub config: Arc<rustls::ServerConfig>,
    /// The bearer token of the administrator.
    pub admin_token: Option<String>,
}

/// Serves a unix socket until told to stop. Root and the user that runs the server are the
/// administrator. All other users are refused.
pub async fn serve_unix(server: ApiServer, listener: UnixListener, shutdown: CancellationToken) {
    // Find the own uid in the same way as that of clients. Inside a user namespace the kernel
    // reports one number for every unmapped user, and the owner of a file in `/proc` may be one of
    // those.
    let own_user =
        UnixStream::pair().and_then(|(socket, _other)| socket.peer_cred()).map_or(0, |own| own.uid());
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        match accepted {
            Ok(_) if connections.len() >= server.inner.gate.limits.connections => full().await,
            Ok((stream, _)) => {
                let identity = peer_identity(&stream, own_user);
                let source = Source("unix".into());
                let connection = serve(server.clone(), stream, identity, None, source, shutdown.clone());
                connections.spawn(connection);
            }
            Err(error) => pause_after(&error).await,
        }
    }
    drain(connections).await;
}

fn peer_identity(stream: &UnixStream, own_user: u32) -> Option<Identity> {
    let peer = stream.peer_cred().ok()?;
    (peer.uid() == 0 || peer.uid() == own_user).then(Identity::admin)
}

/// Serves a TCP listener with TLS until told to stop.
pub async fn serve_tls(
    server: ApiServer,
    listener: TcpListener,
    tls: TlsAccess,
    shutdown: CancellationToken,
) {
    let acceptor = TlsAcceptor::from(Arc::clone(&tls.config));
    let token: Option<Arc<str>> = tls.admin_token.map(Into::into);
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        let (stream, peer) = match accepted {
            Ok(_) if connections.len() >= server.inner.gate.limits.connections => {
                full().await;
                continue;
            }
            Ok(accepted) => accepted,
            Err(error) => {
                pause_after(&error).await;
                continue;
            }
        };
        let (server, acceptor, token, shutdown) =
            (server.clone(), acceptor.clone(), token.clone(), shutdown.clone());
        connections.spawn(async move {
            let _ = stream.set_nodelay(true);
            match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
                    let identity =
                        certificates.first().and_then(|certificate| subject::identity(certificate));
                    let source = Source(peer.ip().to_string().into());
                    serve(server, stream, identity, token, source, shutdown).await;
                }
                Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                Err(_) => tracing::debug!("TLS handshake took too long"),
            }
        });
    }
    drain(connections).await;
}

/// Waits after a failed accept. Descriptors have run out, and retrying at once would waste
/// processor time.
async fn pause_after(error: &io::Error) {
    static FAILED: Seldom = Seldom::new();
    if let Some(times) = FAILED.is_due(Instant::now()) {
        tracing::warn!(%error, times, "accepting connections failed");
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// Waits after a connection was closed because the listener is full. The pause limits the rate at
/// which waiting connections are refused.
async fn full() {
    static CLOSED: Seldom = Seldom::new();
    if let Some(closed) = CLOSED.is_due(Instant::now()) {
        tracing::warn!(closed, "too many connections, new ones are closed");
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
}

async fn drain(connections: TaskTracker) {
    connections.close();
    if tokio::time::timeout(DRAIN, connections.wait()).await.is_err() {
        tracing::info!(open = connections.len(), "connections cut off at shutdown");
    }
}

async fn serve(
    server: ApiServer,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    identity: Option<Identity>,
    token: Option<Arc<str>>,
    source: Source,
    shutdown: CancellationToken,
) {
    let (head_time, body_time) = (server.inner.gate.limits.head_time, server.inner.gate.limits.body_time);
    let identity = identity.map(Arc::new);
    let answer = hyper::service::service_fn(move |request: Request<Incoming>| {
        let mut request = Unread::wrap(request, body_time);
        let server = Arc::clone(&server.inner);
        let known = match &identity {
            Some(identity) => Ok(Some(Arc::clone(identity))),
            None => bearer(&server, request.headers(), token.as_deref()),
        };
        request.extensions_mut().insert(source.clone());
        async move {
            let identity = match known {
                Ok(identity) => identity,
                Err(error) => return Ok(respond::error(&error)),
            };
            if let Some(identity) = identity {
                request.extensions_mut().insert(identity);
            }
            Ok::<_, Infallible>(limits::handle(&server, request).await)
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // The timer cuts off a client that never finishes its headers.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(head_time);
    // Pings detect a vanished peer, so that it does not hold its watches for ever.
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(KEEP_ALIVE))
        .keep_alive_timeout(KEEP_ALIVE);
    let stream = TokioIo::new(FirstByteInTime::new(stream, head_time));
    let connection = builder.serve_connection_with_upgrades(stream, answer);
    tokio::pin!(connection);
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "connection ended");
    }
}

/// Returns the user of a request's token, or `None` without a token. An invalid token is refused
/// even if the request needs none.
fn bearer(
    server: &Inner,
    headers: &HeaderMap,
    admin_token: Option<&str>,
) -> Result<Option<Arc<Identity>>, ApiError> {
    let Some(header) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let sent = header.to_str().ok().and_then(|header| header.strip_prefix("Bearer ")).map(str::trim);
    let sent = sent.ok_or_else(ApiError::unauthorized)?;
    if admin_token.is_some_and(|token| same_secret(sent.as_bytes(), token.as_bytes())) {
        return Ok(Some(Arc::new(Identity::admin())));
    }
    let account = server.accounts.authenticate(sent, &[AUDIENCE], &server.store, server.now());
    account.map(|(identity, _)| Some(identity)).ok_or_else(ApiError::unauthorized)
}

/// Compares in constant time.
fn same_secret(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len()
        && !a.is_empty()
        && a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}
