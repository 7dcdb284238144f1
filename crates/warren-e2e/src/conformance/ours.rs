//! The embedded server as a target: in process, and behind TLS for calls that authenticate
//! themselves.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, header};
use http_body_util::Full;
use jiff::Timestamp;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use warren_apiserver::{
    ApiServer, Config, Identity, InProcess, NoNodes, Storage, TlsAccess, pki::Pki, serve_tls,
};

use super::kubeconfig;
use super::target::{AnswerBody, HttpsTarget, ServiceTarget, Target, TransportError};

type IntoFull = fn(Request<Bytes>) -> Request<Full<Bytes>>;

/// An embedded server with an empty store in memory. A call with a token uses the TLS listener,
/// which checks tokens. Every other call is the administrator's and stays in process.
pub struct Ours {
    server: ApiServer,
    in_process: ServiceTarget<InProcess, IntoFull>,
    behind_tls: HttpsTarget,
    shutdown: CancellationToken,
    listeners: TaskTracker,
    _pki: tempfile::TempDir,
}

impl Ours {
    /// Starts a server and its listener on loopback.
    ///
    /// # Errors
    ///
    /// Fails if the server does not open or no port is available.
    pub async fn start() -> Result<Self, TransportError> {
        let directory = tempfile::tempdir()?;
        let pki = Pki::open(&directory.path().join("pki"), &["127.0.0.1".to_owned()], Timestamp::now())?;
        let mut accounts = pki.accounts()?;
        accounts.token_volumes = true;
        let config = Config {
            storage: Storage::Memory,
            crds: Vec::new(),
            nodes: Arc::new(NoNodes),
            accounts: Some(accounts),
            now: Timestamp::now,
            limits: Default::default(),
            audit: None,
        };
        let server = ApiServer::open(config).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let path = directory.path().join("kubeconfig");
        std::fs::write(&path, pki.kubeconfig(&format!("https://{}", listener.local_addr()?))?)?;
        let (shutdown, listeners) = (CancellationToken::new(), TaskTracker::new());
        let access = TlsAccess { config: pki.server_config()?, admin_token: None };
        listeners.spawn(serve_tls(server.clone(), listener, access, shutdown.clone()));
        Ok(Self {
            in_process: ServiceTarget::new(server.as_user(Identity::admin()), |request| {
                request.map(Full::new)
            }),
            behind_tls: HttpsTarget::new(&kubeconfig::read(&path)?)?,
            server,
            shutdown,
            listeners,
            _pki: directory,
        })
    }

    /// Stops the listener and the server.
    pub async fn stop(self) {
        self.shutdown.cancel();
        self.listeners.close();
        self.listeners.wait().await;
        self.server.shutdown().await;
    }
}

impl Target for Ours {
    fn call(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<AnswerBody>, TransportError>> {
        if request.headers().contains_key(header::AUTHORIZATION) {
            self.behind_tls.call(request)
        } else {
            self.in_process.call(request)
        }
    }
}
