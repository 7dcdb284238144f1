//! A connection to an API server: HTTP/1.1 over TLS, one request at a time.
//!
//! It is used instead of a `kube::Client`, because client and measured server share two cores: time
//! spent on typed objects, pools and layers would be taken from the server. The bytes sent are the
//! same.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use kube::client::ConfigExt as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The address of a server, and the credentials for it.
#[derive(Clone)]
pub struct Endpoint {
    address: String,
    name: ServerName<'static>,
    tls: Arc<rustls::ClientConfig>,
}

/// An open connection.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
}

impl Endpoint {
    /// Reads the server from a kubeconfig with a client certificate.
    pub async fn from_kubeconfig(path: &Path) -> anyhow::Result<Endpoint> {
        let kubeconfig = Kubeconfig::read_from(path).context("read the kubeconfig")?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let host = config.cluster_url.host().context("the kubeconfig names no host")?.to_owned();
        let port = config.cluster_url.port_u16().context("the kubeconfig names no port")?;
        let name = ServerName::try_from(host.clone()).context("the kubeconfig's host")?;
        let tls = Arc::new(config.rustls_client_config()?);
        Ok(Endpoint { address: format!("{host}:{port}"), name, tls })
    }

    /// Opens a connection, with all handshakes.
    pub async fn connect(&self) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect(&self.address).await.context("connect")?;
        stream.set_nodelay(true)?;
        let stream = TlsConnector::from(Arc::clone(&self.tls)).connect(self.name.clone(), stream).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Connection { sender })
    }
}

impl Connection {
    /// Returns true if the server has closed the connection. kube-apiserver does so after half a
    /// minute without a first request.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Sends a request and reads the whole answer. A status other than success is an error with the
    /// server's message.
    pub async fn send(&mut self, method: Method, path: &str, body: Bytes) -> anyhow::Result<Bytes> {
        let answer = self.begin(method, path, body).await?;
        Ok(answer.into_body().collect().await?.to_bytes())
    }

    /// Creates an object.
    pub async fn create(&mut self, path: &str, body: Bytes) -> anyhow::Result<Bytes> {
        self.send(Method::POST, path, body).await
    }

    /// Reads a path.
    pub async fn get(&mut self, path: &str) -> anyhow::Result<Bytes> {
        self.send(Method::GET, path, Bytes::new()).await
    }

    /// Reads a path with an endless answer: a watch.
    pub async fn stream(mut self, path: &str) -> anyhow::Result<Lines> {
        let answer = self.begin(Method::GET, path, Bytes::new()).await?;
        Ok(Lines { body: answer.into_body(), rest: Vec::new(), _connection: self })
    }

    async fn begin(&mut self, method: Method, path: &str, body: Bytes) -> anyhow::Result<Response<Incoming>> {
        let content_type = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost")
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, content_type)
            .body(Full::new(body))?;
        self.sender.ready().await?;
        let answer = self.sender.send_request(request).await?;
        if !answer.status().is_success() {
            let status = answer.status();
            let body = answer.into_body().collect().await?.to_bytes();
            bail!("{path}: {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(answer)
    }
}

/// The lines of an endless answer. Lines that arrive together are returned as one chunk.
pub struct Lines {
    body: Incoming,
    rest: Vec<u8>,
    _connection: Connection,
}

impl Lines {
    /// Returns the next chunk, which ends with a complete line, or `None` when the server has
    /// closed the connection.
    pub async fn next(&mut self) -> anyhow::Result<Option<Bytes>> {
        while let Some(frame) = self.body.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            let Some(end) = data.iter().rposition(|byte| *byte == b'\n') else {
                self.rest.extend_from_slice(&data);
                continue;
            };
            let (whole, begun) = data.split_at(end + 1);
            if self.rest.is_empty() {
                self.rest.extend_from_slice(begun);
                return Ok(Some(data.slice(..=end)));
            }
            self.rest.extend_from_slice(whole);
            let chunk = std::mem::replace(&mut self.rest, begun.to_vec());
            return Ok(Some(Bytes::from(chunk)));
        }
        Ok(None)
    }
}
