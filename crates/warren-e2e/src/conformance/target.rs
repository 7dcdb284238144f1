//! The servers that scenarios are played on: anything that answers an HTTP request.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tower::{Service, ServiceExt as _};

use super::kubeconfig::Access;

/// A failure below HTTP: the connection, TLS, or an in-process service without an answer.
pub type TransportError = Box<dyn std::error::Error + Send + Sync>;

/// An answer's body, perhaps endless.
pub type AnswerBody = UnsyncBoxBody<Bytes, TransportError>;

/// A server that answers requests. Paths are absolute. A request with `Authorization` uses only
/// that identity, every other one the target's own.
pub trait Target: Send + Sync {
    /// Answers one request.
    fn call(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<AnswerBody>, TransportError>>;
}

/// A server behind TLS. Every call uses a connection of its own: a dropped watch ends at once, and
/// no answer depends on a pooled connection.
pub struct HttpsTarget {
    host: String,
    address: String,
    identified: tokio_rustls::TlsConnector,
    anonymous: tokio_rustls::TlsConnector,
    token: Option<HeaderValue>,
}

impl HttpsTarget {
    /// Prepares TLS from a kubeconfig's data.
    ///
    /// # Errors
    ///
    /// Fails if the address is not `https://host:port` or the certificates do not parse.
    pub fn new(access: &Access) -> Result<Self, TransportError> {
        let address = access.server.strip_prefix("https://").ok_or("the server's address is not https://")?;
        let (host, _) = address.rsplit_once(':').ok_or("the server's address has no port")?;
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&access.authority) {
            roots.add(certificate?)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = || -> Result<_, TransportError> {
            Ok(rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
                .with_safe_default_protocol_versions()?
                .with_root_certificates(roots.clone()))
        };
        let anonymous = builder()?.with_no_client_auth();
        let identified = match &access.client {
            Some((certificate, key)) => builder()?.with_client_auth_cert(
                CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>()?,
                PrivateKeyDer::from_pem_slice(key)?,
            )?,
            None => anonymous.clone(),
        };
        let token = access.token.as_ref().map(|token| HeaderValue::from_str(&format!("Bearer {token}")));
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            address: address.to_owned(),
            identified: Arc::new(identified).into(),
            anonymous: Arc::new(anonymous).into(),
            token: token.transpose()?,
        })
    }
}

impl Target for HttpsTarget {
    fn call(
        &self,
        mut request: Request<Bytes>,
    ) -> BoxFuture<'_, Result<Response<AnswerBody>, TransportError>> {
        Box::pin(async move {
            let connector = if request.headers().contains_key(header::AUTHORIZATION) {
                &self.anonymous
            } else {
                if let Some(token) = &self.token {
                    request.headers_mut().insert(header::AUTHORIZATION, token.clone());
                }
                &self.identified
            };
            request.headers_mut().insert(header::HOST, HeaderValue::from_str(&self.address)?);
            let stream = TcpStream::connect(&self.address).await?;
            stream.set_nodelay(true)?;
            let stream = connector.connect(ServerName::try_from(self.host.clone())?, stream).await?;
            over(stream, request).await
        })
    }
}

/// A server behind a unix socket, which identifies its callers by their peer credentials.
pub struct UnixTarget {
    path: PathBuf,
}

impl UnixTarget {
    /// Uses the socket at `path`.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }
}

impl Target for UnixTarget {
    fn call(
        &self,
        mut request: Request<Bytes>,
    ) -> BoxFuture<'_, Result<Response<AnswerBody>, TransportError>> {
        Box::pin(async move {
            request.headers_mut().insert(header::HOST, HeaderValue::from_static("localhost"));
            over(UnixStream::connect(&self.path).await?, request).await
        })
    }
}

/// Sends one request over one new connection.
async fn over<S>(stream: S, request: Request<Bytes>) -> Result<Response<AnswerBody>, TransportError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The connection lives as long as the body that is read from it; a dropped watch drops both.
    let driver = tokio::spawn(connection);
    let response = sender.send_request(request.map(Full::new)).await?;
    let guard = AbortOnDrop(driver);
    Ok(response.map(|body| {
        let body = body.map_err(move |error| {
            let _alive = &guard;
            error.into()
        });
        body.boxed_unsync()
    }))
}

struct AbortOnDrop(tokio::task::JoinHandle<hyper::Result<()>>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A service in this process. `prepare` adds to a request what a listener would have added, such as
/// the caller's identity.
pub struct ServiceTarget<S, F> {
    service: S,
    prepare: F,
}

impl<S, F> ServiceTarget<S, F> {
    /// Calls clones of `service` with the requests that `prepare` returns.
    pub fn new(service: S, prepare: F) -> Self {
        Self { service, prepare }
    }
}

impl<S, F, Q, A> Target for ServiceTarget<S, F>
where
    F: Fn(Request<Bytes>) -> Request<Q> + Send + Sync,
    Q: Send + 'static,
    S: Service<Request<Q>, Response = Response<A>> + Clone + Send + Sync + 'static,
    S::Error: Into<TransportError>,
    S::Future: Send,
    A: http_body::Body<Data = Bytes> + Send + 'static,
    A::Error: Into<TransportError>,
{
    fn call(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<AnswerBody>, TransportError>> {
        let request = (self.prepare)(request);
        let service = self.service.clone();
        Box::pin(async move {
            let response = service.oneshot(request).await.map_err(Into::into)?;
            Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
        })
    }
}
