//! Sends spans to a collector by the OpenTelemetry protocol, over gRPC or plain HTTP. A unary gRPC
//! call is a POST over HTTP/2 with five bytes before the message and the status in the trailers, so
//! the present HTTP client is enough.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version, header};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::ConfigExt as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_util::sync::CancellationToken;

use super::{Record, Sampling, Tracer, protobuf};

/// The service's name in traces: agent-sandbox's, which existing dashboards look for.
const SERVICE: &str = "agent-sandbox-controller";

/// The most waiting spans: the default of the OpenTelemetry libraries.
const MOST_WAITING: usize = 2048;
/// The most spans per request: the libraries' default, too.
const MOST_AT_ONCE: usize = 512;
/// The time between requests: the libraries' default, too.
const INTERVAL: Duration = Duration::from_secs(5);

/// The longest part of an error answer that is read.
const LONGEST_ANSWER: usize = 1 << 16;

/// The protocol to the collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtlpProtocol {
    /// gRPC.
    Grpc,
    /// A POST of protocol buffers to the endpoint.
    HttpProtobuf,
}

/// The settings for sending spans.
#[derive(Clone, Debug)]
pub struct OtlpConfig {
    /// The collector; with `https`, over TLS.
    pub endpoint: Uri,
    /// The protocol.
    pub protocol: OtlpProtocol,
    /// Headers of every request, such as a token.
    pub headers: HeaderMap,
    /// The time limit of a request.
    pub timeout: Duration,
    /// Certificates (PEM) to trust instead of the system's.
    pub certificate_authority: Option<Vec<u8>>,
    /// Which spans are sent.
    pub sampling: Sampling,
    /// Additional attributes of this program, beside its name.
    pub attributes: Vec<(String, String)>,
}

/// The error of settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// The endpoint lacks a scheme or a host.
    #[error("`{0}` is not the address of a collector, such as `http://localhost:4317`")]
    Endpoint(Uri),
    /// TLS could not be set up.
    #[error("prepare TLS for the collector")]
    Tls(#[source] Box<kube::Error>),
}

/// The task that sends spans. [`Exporter::flush`] sends the rest; dropping it discards the rest.
pub struct Exporter {
    task: JoinHandle<()>,
    closing: CancellationToken,
}

impl Exporter {
    /// Starts the task. Nothing is sent, and nothing fails, before the first span.
    pub(crate) fn start(config: OtlpConfig) -> Result<(Tracer, Self), OtlpError> {
        let (sender, records) = mpsc::channel(MOST_WAITING);
        let sampling = config.sampling;
        let sending = Sending::new(config)?;
        let closing = CancellationToken::new();
        let task = tokio::spawn(sending.run(records, closing.clone()));
        Ok((Tracer { collected: Some(sender), sampling }, Self { task, closing }))
    }

    /// Accepts no more spans, and sends the rest within a time limit.
    pub async fn flush(mut self, patience: Duration) {
        self.closing.cancel();
        // A panic of the task was logged already.
        let _ = tokio::time::timeout(patience, &mut self.task).await;
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Sending {
    client: Client<Connector, Full<Bytes>>,
    config: OtlpConfig,
    target: Uri,
}

impl Sending {
    fn new(config: OtlpConfig) -> Result<Self, OtlpError> {
        let wrong = || OtlpError::Endpoint(config.endpoint.clone());
        let is_secure = config.endpoint.scheme() == Some(&Scheme::HTTPS);
        if config.endpoint.host().is_none() || !(is_secure || config.endpoint.scheme() == Some(&Scheme::HTTP))
        {
            return Err(wrong());
        }
        let path = match config.protocol {
            OtlpProtocol::Grpc => "/opentelemetry.proto.collector.trace.v1.TraceService/Export".to_owned(),
            OtlpProtocol::HttpProtobuf => config.endpoint.path().to_owned(),
        };
        let mut parts = config.endpoint.clone().into_parts();
        parts.path_and_query = Some(PathAndQuery::try_from(path).map_err(|_| wrong())?);
        let target = Uri::from_parts(parts).map_err(|_| wrong())?;
        let mut builder = Client::builder(TokioExecutor::new());
        builder.http2_only(config.protocol == OtlpProtocol::Grpc);
        let connector = Connector { tls: is_secure.then(|| tls(&config)).transpose()? };
        Ok(Self { client: builder.build(connector), config, target })
    }

    async fn run(self, mut records: mpsc::Receiver<Record>, closing: CancellationToken) {
        let mut waiting = Vec::new();
        loop {
            // Collect for a while, or until there are enough; then take the rest of the channel.
            let deadline = tokio::time::sleep(INTERVAL);
            tokio::pin!(deadline);
            let is_over = loop {
                tokio::select! {
                    count = records.recv_many(&mut waiting, MOST_AT_ONCE) => {
                        if count == 0 {
                            break true;
                        }
                        if waiting.len() >= MOST_AT_ONCE {
                            break false;
                        }
                    }
                    () = &mut deadline => break false,
                    // From here on the channel returns its remaining spans, then its end.
                    () = closing.cancelled(), if !records.is_closed() => records.close(),
                }
            };
            while !waiting.is_empty() {
                let rest = waiting.split_off(waiting.len().min(MOST_AT_ONCE));
                let sent = std::mem::replace(&mut waiting, rest);
                let sending = self.send(protobuf::request(
                    SERVICE,
                    env!("CARGO_PKG_VERSION"),
                    &self.config.attributes,
                    &sent,
                ));
                let outcome = tokio::time::timeout(self.config.timeout, sending).await;
                let problem = match outcome {
                    Ok(Ok(())) => continue,
                    Ok(Err(problem)) => problem,
                    Err(_) => "no answer in time".to_owned(),
                };
                // These spans are lost: the problem usually lasts longer than they are worth
                // keeping.
                tracing::warn!(count = sent.len(), collector = %self.target, problem, "spans were not sent");
            }
            if is_over {
                return;
            }
        }
    }

    async fn send(&self, message: Vec<u8>) -> Result<(), String> {
        let is_grpc = self.config.protocol == OtlpProtocol::Grpc;
        let body = match is_grpc {
            true => {
                let mut framed = vec![0];
                framed.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
                framed.extend(message);
                framed
            }
            false => message,
        };
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.target.clone();
        let content_type = if is_grpc { "application/grpc" } else { "application/x-protobuf" };
        let headers = request.headers_mut();
        headers.extend(self.config.headers.clone());
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        if is_grpc {
            headers.insert(header::TE, HeaderValue::from_static("trailers"));
            *request.version_mut() = Version::HTTP_2;
        }
        let response = self.client.request(request).await.map_err(|error| chain(&error))?;
        let (parts, body) = response.into_parts();
        if !parts.status.is_success() {
            return Err(format!("HTTP status {}", parts.status));
        }
        let rest = http_body_util::Limited::new(body, LONGEST_ANSWER)
            .collect()
            .await
            .map_err(|error| error.to_string())?;
        // An answer without a body has the status in its head.
        let status = |headers: &HeaderMap| headers.get("grpc-status").cloned();
        let found = rest.trailers().and_then(status).or_else(|| status(&parts.headers));
        match found {
            _ if !is_grpc => Ok(()),
            Some(code) if code == "0" => Ok(()),
            Some(code) => Err(format!("gRPC status {}", String::from_utf8_lossy(code.as_bytes()))),
            None => Err("the answer has no gRPC status".to_owned()),
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}

/// Builds the TLS connector by the same rules as for the API server, so that trust is configured in
/// one way.
fn tls(config: &OtlpConfig) -> Result<TlsConnector, OtlpError> {
    let mut trust = kube::Config::new(config.endpoint.clone());
    let failed = |source| OtlpError::Tls(Box::new(source));
    if let Some(pem) = &config.certificate_authority {
        trust.root_cert = Some(certificates(pem));
    }
    let mut tls = trust.rustls_client_config().map_err(failed)?;
    tls.alpn_protocols = match config.protocol {
        OtlpProtocol::Grpc => vec![b"h2".to_vec()],
        OtlpProtocol::HttpProtobuf => vec![b"http/1.1".to_vec()],
    };
    Ok(TlsConnector::from(Arc::new(tls)))
}

fn certificates(pem: &[u8]) -> Vec<Vec<u8>> {
    use tokio_rustls::rustls::pki_types::CertificateDer;
    use tokio_rustls::rustls::pki_types::pem::PemObject as _;
    CertificateDer::pem_slice_iter(pem)
        .filter_map(Result::ok)
        .map(|certificate| certificate.to_vec())
        .collect()
}

#[derive(Clone)]
struct Connector {
    tls: Option<TlsConnector>,
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let tls = self.tls.clone();
        Box::pin(async move {
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
            let port = uri.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
            let tcp = TcpStream::connect((host.as_str(), port)).await?;
            let stream: Box<dyn Bytestream> = match tls {
                None => Box::new(tcp),
                Some(tls) => {
                    let name = ServerName::try_from(host)
                        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
                    Box::new(tls.connect(name, tcp).await?)
                }
            };
            Ok(TokioIo::new(Stream(stream)))
        })
    }
}

trait Bytestream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytestream for T {}

/// A connection, with or without TLS.
struct Stream(Box<dyn Bytestream>);

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
