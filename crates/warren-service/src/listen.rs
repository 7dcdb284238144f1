//! Takes connections of HTTP/1.1, within limits, and hands their requests to an answer.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Connections at the same time. A viewer has one for as long as it looks.
const MOST_CONNECTIONS: usize = 1024;

const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
const LONGEST_HEAD: usize = 32 << 10;
const MOST_HEADERS: usize = 100;
const AFTER_ACCEPT_ERROR: Duration = Duration::from_millis(100);

/// The longest time that requests may take to finish after the shutdown.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves until the shutdown, and lets requests that are under way finish.
pub async fn serve<A, F, B>(answer: A, socket: TcpListener, shutdown: CancellationToken)
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
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
                let (answer, shutdown) = (answer.clone(), shutdown.clone());
                connections.spawn(async move {
                    connection(answer, stream, shutdown).await;
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

async fn connection<A, F, B>(answer: A, stream: TcpStream, shutdown: CancellationToken)
where
    A: Fn(Request<Incoming>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let _ = stream.set_nodelay(true);
    let answer = |request| {
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
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
