//! An embedded API server behind a unix socket, with limits chosen by the test.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use warren_apiserver::{ApiServer, AuditConfig, Config, Identity, Limits, NoNodes, Storage, serve_unix};

/// A server in memory, its socket and its audit log. To be ended with [`Embedded::stop`].
pub struct Embedded {
    server: ApiServer,
    shutdown: CancellationToken,
    listener: tokio::task::JoinHandle<()>,
    directory: TempDir,
}

impl Embedded {
    /// Starts a server.
    ///
    /// # Panics
    ///
    /// Panics if it does not start.
    pub async fn start(limits: Limits) -> Self {
        let directory = tempfile::tempdir().expect("make a directory");
        let config =
            Config { limits, audit: Some(AuditConfig::new(directory.path().join("audit.log"))), ..config() };
        let server = ApiServer::open(config).await.expect("a server in memory starts");
        let socket = UnixListener::bind(directory.path().join("api.sock")).expect("listen");
        let shutdown = CancellationToken::new();
        let listener = tokio::spawn(serve_unix(server.clone(), socket, shutdown.clone()));
        Self { server, shutdown, listener, directory }
    }

    /// Returns the path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("api.sock")
    }

    /// Returns the path of its audit log.
    pub fn audit_log(&self) -> PathBuf {
        self.directory.path().join("audit.log")
    }

    /// Returns an in-process client that bypasses the listener.
    pub fn client(&self) -> kube::Client {
        kube::Client::new(self.server.as_user(Identity::admin()), "default")
    }

    /// Opens a connection without sending anything.
    ///
    /// # Panics
    ///
    /// Panics if there is no connection.
    pub async fn connect(&self) -> UnixStream {
        connect(&self.socket()).await
    }

    /// Stops the server; the audit log is complete afterwards.
    pub async fn stop(self) -> TempDir {
        self.shutdown.cancel();
        // A panic was reported already.
        let _ = self.listener.await;
        self.server.shutdown().await;
        self.directory
    }
}

/// Connects to a socket. If its accept queue is full, it waits in line.
///
/// # Panics
///
/// Panics if there is no connection.
pub async fn connect(socket: &Path) -> UnixStream {
    loop {
        match UnixStream::connect(socket).await {
            Ok(stream) => return stream,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => tokio::task::yield_now().await,
            Err(error) => panic!("connect to {}: {error}", socket.display()),
        }
    }
}

/// Returns the configuration of a server in memory with our own CRDs.
pub(crate) fn config() -> Config {
    let crds = warren_api::crds().into_iter().map(serde_json::to_value);
    Config {
        storage: Storage::Memory,
        crds: crds.collect::<Result<_, _>>().expect("our own definitions"),
        nodes: Arc::new(NoNodes),
        accounts: None,
        now: jiff::Timestamp::now,
        limits: Limits::default(),
        audit: None,
    }
}
