//! E2B's API over the sandboxes of a home, for E2B's published SDKs as they are. One port serves the control API and, told
//! apart by host name or by header, the envd API and the ports of each sandbox. It keeps no state of its own: sandboxes
//! are objects of the home, and the guest daemon in each serves the envd API. It never starts a home and never listens by
//! itself. Start reading at `request`, then `control` and `proxy`.

mod answer;
mod control;
mod create;
mod keys;
mod proxy;
mod request;
mod sandboxes;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use warren_client::kube::Client;

use self::answer::Body;
pub use self::keys::ApiKey;
use self::sandboxes::Sandboxes;

/// As many connections are served at once; others wait to be accepted.
const CONNECTIONS: usize = 4096;
/// A connection that does not finish a request's head in so long is closed.
const HEAD: Duration = Duration::from_secs(60);

/// The settings of the server.
pub struct Config {
    /// The home.
    pub client: Client,
    /// The namespace of all sandboxes; the client's default without one.
    pub namespace: Option<String>,
    /// The key that clients of the control API must send.
    pub key: ApiKey,
    /// The end of sandboxes' host names, with the port. `PORT-ID.` comes before it.
    pub domain: String,
    /// The network of sandboxes from the default template (`warren.dev/network`), if not the home's
    /// default.
    pub network: Option<String>,
}

/// The state that all requests share.
struct Server {
    sandboxes: Sandboxes,
    key: ApiKey,
    domain: String,
}

/// Serves until `shutdown`. Sandboxes and what runs in them stay.
pub async fn serve(config: Config, listener: TcpListener, shutdown: impl Future<Output = ()>) {
    let server =
        Arc::new(Server { sandboxes: Sandboxes::new(&config), key: config.key, domain: config.domain });
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    let accepting = async {
        loop {
            // Fails only if the semaphore is closed, which it never is.
            let permit = connections.clone().acquire_owned().await;
            match listener.accept().await {
                Ok((stream, _)) => {
                    let server = server.clone();
                    tokio::spawn(async move {
                        server.serve_connection(stream).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    // Out of descriptors, or a client that has gone again.
                    tracing::warn!(%error, "connection not accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        () = shutdown => {}
    }
}

impl Server {
    /// Serves one connection to its end. A client that breaks off is no error of ours.
    async fn serve_connection(self: Arc<Self>, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(128 << 10);
        builder.http2().timer(TokioTimer::new()).max_header_list_size(64 << 10).keep_alive_interval(HEAD);
        let service = service_fn(move |request| {
            let server = self.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        match request::target(&request) {
            Ok(Some(target)) => self.carry(target, request).await,
            Ok(None) => self.control(request).await,
            Err(refusal) => refusal.response(),
        }
    }
}
