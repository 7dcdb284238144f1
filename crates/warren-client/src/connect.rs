//! Makes a `kube::Client` for a home: over the data directory's unix socket, or from a kubeconfig.
//!
//! The unix socket needs no TLS and no token, since the server asks the kernel for the caller's
//! identity. So commands on the same machine use it. The protocol is HTTP/1.1, because exec
//! upgrades the connection.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use http::Uri;
use http::uri::{Authority, Scheme};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use tokio::net::UnixStream;
use tower::{Service, ServiceExt as _};

use crate::home::DataDir;

/// The namespace of objects that name none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// The error of a home that could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No process listens on the data directory's socket.
    #[error("no daemon answers on `{}`", socket.display())]
    NotRunning {
        /// The socket.
        socket: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The socket failed for another reason, for example permissions.
    #[error("connect to `{}`", socket.display())]
    Socket {
        /// The socket.
        socket: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The kubeconfig could not be read.
    #[error("read the kubeconfig `{}`", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Box<KubeconfigError>,
    },
    /// The kubeconfig is not valid for a client.
    #[error("use the kubeconfig `{}`", path.display())]
    Client {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Box<kube::Error>,
    },
}

/// Connects to the daemon of a local home. The first connection is made here and used for the first
/// request. So a missing daemon is noticed now, at no extra cost.
pub async fn local(data_dir: &DataDir) -> Result<kube::Client, ConnectError> {
    let socket = data_dir.api_socket();
    let first = UnixStream::connect(&socket).await.map_err(|source| {
        use std::io::ErrorKind::{ConnectionRefused, NotFound};
        let socket = socket.clone();
        match source.kind() {
            NotFound | ConnectionRefused => ConnectError::NotRunning { socket, source },
            _ => ConnectError::Socket { socket, source },
        }
    })?;
    Ok(over_socket(socket, first))
}

/// Returns a client for the API server behind a unix socket, with a first connection.
fn over_socket(socket: PathBuf, first: UnixStream) -> kube::Client {
    let connector = UnixConnector { socket, first: Arc::new(Mutex::new(Some(first))) };
    let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .build::<_, kube::client::Body>(connector)
        // kube gives only paths, but hyper's pool needs an authority. The name is never resolved.
        .map_request(|mut request: http::Request<kube::client::Body>| {
            let mut parts = std::mem::take(request.uri_mut()).into_parts();
            parts.scheme = Some(Scheme::HTTP);
            parts.authority = Some(Authority::from_static("localhost"));
            if let Ok(uri) = Uri::from_parts(parts) {
                *request.uri_mut() = uri;
            }
            request
        });
    kube::Client::new(client, DEFAULT_NAMESPACE)
}

/// Connects to the cluster of a kubeconfig's current context.
pub async fn from_kubeconfig(path: &Path) -> Result<kube::Client, ConnectError> {
    from_context(path, None).await
}

/// Connects to the cluster of a context in a kubeconfig; of its current context if none is named.
/// The client's default namespace is the context's.
pub async fn from_context(path: &Path, context: Option<&str>) -> Result<kube::Client, ConnectError> {
    let failed = |source| ConnectError::Kubeconfig { path: path.to_owned(), source: Box::new(source) };
    let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(failed)?;
    kube::Client::try_from(config)
        .map_err(|source| ConnectError::Client { path: path.to_owned(), source: Box::new(source) })
}

/// Connects to the cluster of a named context in a kubeconfig of one or more files. The first file
/// with a value wins, as with `$KUBECONFIG`. Credential plugins that the files name are run.
pub async fn from_kubeconfigs(files: &[PathBuf], context: &str) -> Result<kube::Client, ConnectError> {
    let mut merged = Kubeconfig::default();
    for path in files {
        let failed = |source| ConnectError::Kubeconfig { path: path.clone(), source: Box::new(source) };
        merged = merged.merge(Kubeconfig::read_from(path).map_err(failed)?).map_err(failed)?;
    }
    let path = || files.first().cloned().unwrap_or_default();
    let options = KubeConfigOptions { context: Some(context.to_owned()), ..KubeConfigOptions::default() };
    let config = kube::Config::from_custom_kubeconfig(merged, &options)
        .await
        .map_err(|source| ConnectError::Kubeconfig { path: path(), source: Box::new(source) })?;
    kube::Client::try_from(config)
        .map_err(|source| ConnectError::Client { path: path(), source: Box::new(source) })
}

/// Connects to one unix socket, whatever the URI is.
#[derive(Clone, Debug)]
struct UnixConnector {
    socket: PathBuf,
    /// An existing connection for the first request. Shared, because hyper clones the connector for
    /// each request.
    first: Arc<Mutex<Option<UnixStream>>>,
}

impl Service<Uri> for UnixConnector {
    type Response = UnixConnection;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let first = self.first.lock().ok().and_then(|mut first| first.take());
        let socket = self.socket.clone();
        Box::pin(async move {
            let stream = match first {
                Some(stream) => stream,
                None => UnixStream::connect(socket).await?,
            };
            Ok(UnixConnection(TokioIo::new(stream)))
        })
    }
}

/// A connection that hyper's pool can hold.
#[derive(Debug)]
struct UnixConnection(TokioIo<UnixStream>);

impl Connection for UnixConnection {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for UnixConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl hyper::rt::Write for UnixConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, buffers)
    }
}
