//! Tests sending spans to collectors of each protocol, on loopback.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::{Exporter, OtlpConfig, OtlpProtocol, Sampling};

/// The deadline of every wait: far longer than a passing test takes.
const DEADLINE: Duration = Duration::from_secs(60);

/// Path, token and body of a received request.
type Came = (String, Option<HeaderValue>, Bytes);

/// Starts a collector that answers everything with `status`, over TLS if it is given a certificate.
async fn collector(status: &'static str, tls: Option<TlsAcceptor>) -> (SocketAddr, mpsc::Receiver<Came>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, came) = mpsc::channel(10);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (sender, tls) = (sender.clone(), tls.clone());
            let service = service_fn(move |request: Request<Incoming>| {
                let sender = sender.clone();
                async move {
                    let (parts, body) = request.into_parts();
                    let body = body.collect().await.unwrap().to_bytes();
                    let token = parts.headers.get("authorization").cloned();
                    sender.send((parts.uri.path().to_owned(), token, body)).await.unwrap();
                    let mut trailers = HeaderMap::new();
                    trailers.insert("grpc-status", HeaderValue::from_static(status));
                    let body = Full::new(Bytes::new()).with_trailers(async { Some(Ok(trailers)) });
                    Ok::<_, Infallible>(Response::new(body))
                }
            });
            tokio::spawn(async move {
                let builder = auto::Builder::new(TokioExecutor::new());
                // A client that disconnects has its reasons, which the test checks.
                let _ = match tls {
                    None => builder.serve_connection(TokioIo::new(stream), service).await,
                    Some(tls) => {
                        let Ok(stream) = tls.accept(stream).await else { return };
                        builder.serve_connection(TokioIo::new(stream), service).await
                    }
                };
            });
        }
    });
    (address, came)
}

fn config(endpoint: String, protocol: OtlpProtocol) -> OtlpConfig {
    let headers = HeaderMap::from_iter([(http::header::AUTHORIZATION, HeaderValue::from_static("Bearer x"))]);
    OtlpConfig {
        endpoint: endpoint.parse().unwrap(),
        protocol,
        headers,
        timeout: DEADLINE,
        certificate_authority: None,
        sampling: Sampling::default(),
        attributes: vec![("k8s.cluster.name".to_owned(), "c1".to_owned())],
    }
}

async fn send_one(config: OtlpConfig) {
    let (tracer, exporter) = Exporter::start(config).unwrap();
    drop(tracer.pass("Test", &ObjectMeta::default()));
    exporter.flush(DEADLINE).await;
}

fn contains(body: &Bytes, text: &str) -> bool {
    body.windows(text.len()).any(|window| window == text.as_bytes())
}

#[tokio::test]
async fn plain_http_goes_to_the_endpoint_as_it_is() {
    let (address, mut came) = collector("0", None).await;
    send_one(config(format!("http://{address}/base/v1/traces"), OtlpProtocol::HttpProtobuf)).await;
    let (path, token, body) = came.recv().await.unwrap();
    assert_eq!((path.as_str(), token.unwrap().as_bytes()), ("/base/v1/traces", &b"Bearer x"[..]));
    assert!(contains(&body, "Test") && contains(&body, "agent-sandbox-controller"));
    assert!(contains(&body, "k8s.cluster.name") && contains(&body, "c1"));
}

#[tokio::test]
async fn grpc_goes_over_tls_to_whom_the_certificate_trusts_and_to_nobody_else() {
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(pair.signing_key.serialize_der()).unwrap();
    let mut server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![CertificateDer::from(pair.cert.der().to_vec())], key)
        .unwrap();
    server.alpn_protocols = vec![b"h2".to_vec()];
    let (address, mut came) = collector("0", Some(TlsAcceptor::from(Arc::new(server)))).await;
    let endpoint = format!("https://localhost:{}", address.port());

    send_one(config(endpoint.clone(), OtlpProtocol::Grpc)).await;
    assert!(came.try_recv().is_err(), "a stranger's certificate was trusted");

    let trusting = config(endpoint, OtlpProtocol::Grpc);
    send_one(OtlpConfig { certificate_authority: Some(pair.cert.pem().into_bytes()), ..trusting }).await;
    let (path, _, body) = came.recv().await.unwrap();
    assert_eq!(path, "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
    assert!(contains(&body, "Test"));
}

#[tokio::test]
async fn a_collector_that_refuses_or_is_not_there_holds_nothing_up() {
    let (address, mut came) = collector("14", None).await;
    send_one(config(format!("http://{address}"), OtlpProtocol::Grpc)).await;
    assert!(came.recv().await.is_some());
    send_one(config("http://127.0.0.1:1".to_owned(), OtlpProtocol::Grpc)).await;
    for endpoint in ["localhost:4317", "/path", "ftp://localhost"] {
        assert!(
            Exporter::start(config(endpoint.to_owned(), OtlpProtocol::Grpc)).is_err(),
            "{endpoint} was taken"
        );
    }
}
