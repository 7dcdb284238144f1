//! TLS in front of the router: certificates that change, and clients that have some.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use warren_router::{ClientCertificates, Tls, TlsError, TlsFiles};

use crate::{HEAD, OK, Setting};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
}

/// Writes a certificate and its key, each in one step.
fn write_certificate(directory: &Path, authority: &Authority) {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["router".to_owned()]).expect("a name");
    let certificate = params.signed_by(&key, authority).expect("a certificate");
    for (name, text) in [("tls.key", key.serialize_pem()), ("tls.crt", certificate.pem())] {
        std::fs::write(directory.join("new"), text).expect("write");
        std::fs::rename(directory.join("new"), directory.join(name)).expect("rename");
    }
}

fn files(directory: &Path, client_certificates: ClientCertificates) -> TlsFiles {
    TlsFiles {
        certificate: directory.join("tls.crt"),
        key: directory.join("tls.key"),
        client_authorities: Some(directory.join("ca.crt")),
        client_certificates,
    }
}

/// A client that believes an authority, with a certificate of another if there is one.
fn client(believed: &Authority, own: Option<&Authority>) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(believed.der().clone()).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let key = KeyPair::generate().expect("a key");
            let params = CertificateParams::new(vec!["client".to_owned()]).expect("a name");
            let certificate = params.signed_by(&key, authority).expect("a certificate");
            let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
            let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
            builder.with_client_auth_cert(chain, key).expect("a certificate")
        }
    };
    TlsConnector::from(Arc::new(config))
}

async fn ask(setting: &Setting, client: &TlsConnector) -> std::io::Result<String> {
    let stream = TcpStream::connect(setting.router).await?;
    let mut stream = client.connect(ServerName::try_from("router").expect("a name"), stream).await?;
    stream.write_all(format!("GET /healthz HTTP/1.1\r\n{HEAD}\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test]
async fn a_new_certificate_is_used_and_a_broken_one_is_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let (first, second) = (authority(), authority());
    write_certificate(directory.path(), &first);
    let tls = Arc::new(Tls::load(files(directory.path(), ClientCertificates::Off)).expect("TLS"));
    let setting = Setting::with(|_| {}, |listener| listener.tls = Some(Arc::clone(&tls))).await;
    assert!(ask(&setting, &client(&first, None)).await.expect("an answer").starts_with("HTTP/1.1 200 "));
    assert!(ask(&setting, &client(&second, None)).await.is_err());

    let until = async |is_there: &dyn Fn(&str) -> bool| {
        let wait = async {
            while !is_there(&tls.metrics_page()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), wait).await.expect("the change is seen");
    };
    std::fs::write(directory.path().join("tls.crt"), "nonsense").expect("write");
    until(&|page| !page.contains("outcome=\"failure\"} 0")).await;
    assert!(ask(&setting, &client(&first, None)).await.is_ok(), "the last good one stays");

    write_certificate(directory.path(), &second);
    until(&|page| !page.contains("outcome=\"success\"} 1\n")).await;
    assert!(ask(&setting, &client(&second, None)).await.is_ok());
    assert!(ask(&setting, &client(&first, None)).await.is_err());
}

#[tokio::test]
async fn clients_without_the_right_certificate_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let (server, clients, strangers) = (authority(), authority(), authority());
    write_certificate(directory.path(), &server);
    std::fs::write(directory.path().join("ca.crt"), clients.pem()).expect("write");
    for (mode, without) in [(ClientCertificates::Required, false), (ClientCertificates::Optional, true)] {
        let tls = Arc::new(Tls::load(files(directory.path(), mode)).expect("TLS"));
        let setting = Setting::with(|_| {}, |listener| listener.tls = Some(tls)).await;
        assert_eq!(ask(&setting, &client(&server, None)).await.is_ok(), without, "{mode:?}");
        assert!(ask(&setting, &client(&server, Some(&strangers))).await.is_err(), "{mode:?}");
        assert!(ask(&setting, &client(&server, Some(&clients))).await.is_ok(), "{mode:?}");
    }
    let mut files = files(directory.path(), ClientCertificates::Required);
    files.client_authorities = None;
    assert!(matches!(Tls::load(files), Err(TlsError::NoAuthorities)));
}

#[tokio::test]
async fn the_sandbox_hears_that_the_client_has_tls() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = authority();
    write_certificate(directory.path(), &server);
    let tls = Arc::new(Tls::load(files(directory.path(), ClientCertificates::Off)).expect("TLS"));
    let setting = Setting::with(|_| {}, |listener| listener.tls = Some(tls)).await;
    let asked = async {
        let stream = TcpStream::connect(setting.router).await.expect("connect");
        let name = ServerName::try_from("router").expect("a name");
        let mut stream = client(&server, None).connect(name, stream).await.expect("TLS");
        stream.write_all(format!("GET / HTTP/1.1\r\n{HEAD}\r\n").as_bytes()).await.expect("write");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("read");
        answer
    };
    let sandbox = async {
        let mut sandbox = setting.at_sandbox().await;
        let head = sandbox.until("\r\n\r\n").await;
        sandbox.say(OK).await;
        head
    };
    let (answer, head) = tokio::join!(asked, sandbox);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(head.contains("x-forwarded-proto: https\r\n"), "{head}");
}
