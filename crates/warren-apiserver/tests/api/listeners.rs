//! Tests of the unix socket and the TLS listener, through real connections.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::SinkExt as _;
use http::{Method, Request, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use warren_apiserver::pki::{self, Pki};
use warren_apiserver::{Storage, TlsAccess, serve_tls, serve_unix};

use crate::support::open;

#[tokio::test]
async fn the_unix_socket_knows_its_callers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("api.sock");
    let server = open(Storage::Memory, Vec::new()).await;
    let shutdown = CancellationToken::new();
    let listener = UnixListener::bind(&path).unwrap();
    let serving = tokio::spawn(serve_unix(server.clone(), listener, shutdown.clone()));
    let answer = get_unix(&path, "/api/v1/namespaces/default").await;
    assert_eq!(answer.0, StatusCode::OK);
    assert!(answer.1.contains(r#""name":"default""#));
    shutdown.cancel();
    serving.await.unwrap();
    server.shutdown().await;
}

async fn get_unix(path: &Path, uri: &str) -> (StatusCode, String) {
    let stream = UnixStream::connect(path).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get(uri).header(header::HOST, "local").body(Empty::<Bytes>::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

struct TlsServer {
    address: std::net::SocketAddr,
    pki: Pki,
    _directory: tempfile::TempDir,
    _shutdown: tokio_util::sync::DropGuard,
}

async fn tls_server() -> TlsServer {
    let directory = tempfile::tempdir().unwrap();
    let hosts = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let pki = Pki::open(directory.path(), &hosts, jiff::Timestamp::now()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = open(Storage::Memory, Vec::new()).await;
    let access =
        TlsAccess { config: pki.server_config().unwrap(), admin_token: Some(pki.admin_token().unwrap()) };
    let shutdown = CancellationToken::new();
    tokio::spawn(serve_tls(server, listener, access, shutdown.clone()));
    TlsServer { address, pki, _directory: directory, _shutdown: shutdown.drop_guard() }
}

#[tokio::test]
async fn the_kubeconfig_opens_the_tls_listener() {
    let server = tls_server().await;
    let text = server.pki.kubeconfig(&format!("https://{}", server.address)).unwrap();
    let kubeconfig: Kubeconfig = serde_json::from_str(&text).unwrap();
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(kube::Client::try_from(config).unwrap());
    assert_eq!(namespaces.list(&ListParams::default()).await.unwrap().items.len(), 4);
}

#[tokio::test]
async fn without_a_certificate_it_takes_a_token() {
    let server = tls_server().await;
    let get =
        async |path: &str, token: Option<&str>| request(&server, Method::GET, path, token, Vec::new()).await;
    for open in ["/healthz", "/livez", "/readyz", "/version"] {
        assert_eq!(get(open, None).await.0, StatusCode::OK, "{open}");
    }
    let (status, body) = get("/api/v1/namespaces", None).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert!(body.contains(r#""reason":"Unauthorized""#));
    assert_eq!(get("/api/v1/namespaces", Some("wrong")).await.0, StatusCode::UNAUTHORIZED);
    let token = server.pki.admin_token().unwrap();
    assert_eq!(get("/api/v1/namespaces", Some(&token)).await.0, StatusCode::OK);
}

#[tokio::test]
async fn bad_bodies_are_refused_and_change_nothing() {
    let server = tls_server().await;
    let token = server.pki.admin_token().unwrap();
    let path = "/api/v1/namespaces/default/configmaps";
    let post = async |body: Vec<u8>| request(&server, Method::POST, path, Some(&token), body).await;
    for body in [&b"{"[..], b"[]", b"\xff\xfe", br#"{"kind":"Pod","apiVersion":"v1"}"#, br#"{"metadata":7}"#]
    {
        let (status, answer) = post(body.to_vec()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
        assert!(answer.contains(r#""kind":"Status""#));
    }
    // A null body has no name.
    assert_eq!(post(b"null".to_vec()).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    assert_eq!(post(deep).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(post(vec![b' '; (3 << 20) + 1]).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    let (_, list) = request(&server, Method::GET, path, Some(&token), Vec::new()).await;
    // The only object is the one that every namespace has.
    assert_eq!(list.matches(r#""uid":"#).count(), 1, "{list}");
}

/// These clients send the whole body before they read the answer.
#[tokio::test]
async fn a_body_beyond_the_limit_is_answered_with_413_however_it_is_sent() {
    const LARGE: usize = 50_000_000;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("api.sock");
    let server = open(Storage::Memory, Vec::new()).await;
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(serve_unix(server, UnixListener::bind(&path).unwrap(), shutdown.clone()));
    let uri = "/api/v1/namespaces/default/configmaps";
    let piece = vec![b' '; 1 << 16];

    for framing in [format!("Content-Length: {LARGE}"), "Transfer-Encoding: chunked".to_owned()] {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        let head = format!("POST {uri} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{framing}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let is_chunked = framing.starts_with("Transfer");
        let mut left = LARGE;
        while left > 0 {
            let size = left.min(piece.len());
            if is_chunked {
                stream.write_all(format!("{size:x}\r\n").as_bytes()).await.unwrap();
            }
            stream.write_all(&piece[..size]).await.unwrap();
            if is_chunked {
                stream.write_all(b"\r\n").await.unwrap();
            }
            left -= size;
        }
        if is_chunked {
            stream.write_all(b"0\r\n\r\n").await.unwrap();
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 413 "), "{framing}: {answer}");
        assert!(answer.contains(r#""reason":"RequestEntityTooLarge""#), "{framing}: {answer}");
    }

    // A client with `Expect: 100-continue` gets the answer before it sends.
    let mut stream = UnixStream::connect(&path).await.unwrap();
    let head =
        format!("POST {uri} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {LARGE}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");

    let stream = UnixStream::connect(&path).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let (mut pieces, body) = futures::channel::mpsc::channel::<Result<Frame<Bytes>, Infallible>>(1);
    let request = Request::post(format!("http://local{uri}")).body(StreamBody::new(body)).unwrap();
    let answer = tokio::spawn(sender.send_request(request));
    let mut left = LARGE;
    while left > 0 {
        let size = left.min(piece.len());
        let frame = Frame::data(Bytes::copy_from_slice(&piece[..size]));
        pieces.send(Ok(frame)).await.expect("the stream is not reset while it is sent");
        left -= size;
    }
    drop(pieces);
    let answer = answer.await.unwrap().unwrap();
    assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&body).contains(r#""reason":"RequestEntityTooLarge""#), "{body:?}");
    shutdown.cancel();
    serving.await.unwrap();
}

async fn request(
    server: &TlsServer,
    method: Method,
    path: &str,
    token: Option<&str>,
    body: Vec<u8>,
) -> (StatusCode, String) {
    let text = server.pki.kubeconfig("https://localhost").unwrap();
    let kubeconfig: serde_json::Value = serde_json::from_str(&text).unwrap();
    let authority = kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"].as_str().unwrap();
    use base64::Engine as _;
    let authority = base64::engine::general_purpose::STANDARD.decode(authority).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    use rustls::pki_types::pem::PemObject as _;
    roots.add(rustls::pki_types::CertificateDer::from_pem_slice(&authority).unwrap()).unwrap();
    let config =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
    let stream = TcpStream::connect(server.address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = connector.connect("localhost".try_into().unwrap(), stream).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(path).header(header::HOST, "localhost");
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Full::new(Bytes::from(body))).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[test]
fn certificates_are_made_once_and_private() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let now = jiff::Timestamp::now();
    let local = ["localhost".to_owned()];
    let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
    Pki::open(directory.path(), &local, now).unwrap();
    let (authority, serving, admin) = (read("ca.crt"), read("serving.crt"), read("admin.crt"));
    Pki::open(directory.path(), &local, now).unwrap();
    assert_eq!((&authority, &serving, &admin), (&read("ca.crt"), &read("serving.crt"), &read("admin.crt")));
    Pki::open(directory.path(), &["localhost".to_owned(), "other".to_owned()], now).unwrap();
    assert_eq!((&authority, &admin), (&read("ca.crt"), &read("admin.crt")));
    assert_ne!(serving, read("serving.crt"), "other hosts need another certificate");
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", entry.file_name());
    }
    let kubeconfig = directory.path().join("kubeconfig");
    pki::write_private(&kubeconfig, b"x").unwrap();
    assert_eq!(std::fs::metadata(kubeconfig).unwrap().permissions().mode() & 0o777, 0o600);
}
