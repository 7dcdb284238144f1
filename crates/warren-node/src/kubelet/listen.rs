//! Serves kubelet's API on a port with TLS, for the API server of a cluster.

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

use super::access::{self, Gate, User};
use super::{Body, answer, text};
use crate::node::Shared;

/// The most simultaneous connections. An API server keeps a few and makes one for each exec or
/// followed log.
const MOST_CONNECTIONS: usize = 1024;
/// The time limit of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The delay after a failed accept: it fails when descriptors run out, and an immediate retry would
/// only use the processor.
const AFTER_FAILURE: Duration = Duration::from_millis(100);
/// The shortest delay between two tries to read the cluster's authority.
const SHORTEST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// The time that a running API server may take to publish it.
const PUBLISHING: Duration = Duration::from_secs(30);

/// The namespace where API servers publish which client certificates other servers of the cluster's
/// API should trust.
const AUTHORITY_NAMESPACE: &str = "kube-system";
const AUTHORITY_CONFIG_MAP: &str = "extension-apiserver-authentication";
const AUTHORITY_KEY: &str = "client-ca-file";

/// The certificates for kubelet's API on a network port.
#[derive(Debug, Clone, Default)]
pub struct KubeletAccess {
    /// The serving certificate and its key, as PEM files. Without them one is made for this run,
    /// which no client can verify: API servers do not try, unless told
    /// (`--kubelet-certificate-authority`).
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// The authority of client certificates, as a PEM file. Without it, the one that the API server
    /// publishes in `kube-system/extension-apiserver-authentication`.
    pub client_authority: Option<PathBuf>,
}

/// The error of certificates that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A file could not be read.
    #[error("read `{}`", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// There is no certificate or key in it.
    #[error("find a certificate or key in {from}")]
    Pem {
        /// The file or source.
        from: String,
        /// The parse error.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// A certificate for this run could not be made.
    #[error("make a certificate")]
    Make(#[from] rcgen::Error),
    /// TLS refuses them.
    #[error("use the certificates")]
    Tls(#[from] rustls::Error),
    /// The authority cannot be used to verify clients.
    #[error("use the authority of client certificates")]
    Authority(#[from] rustls::server::VerifierBuilderError),
}

/// A node's certificate and the authority of its clients, read before the node starts to work.
pub(crate) struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    /// `None`: use the one that the API server publishes.
    authority: Option<Vec<CertificateDer<'static>>>,
}

impl Identity {
    /// Reads the files, or makes a certificate for these names.
    pub(crate) fn open(access: &KubeletAccess, names: Vec<String>) -> Result<Identity, AccessError> {
        let (chain, key) = match &access.certificate {
            Some((certificate, key)) => {
                let from = format!("`{}`", key.display());
                let key = PrivateKeyDer::from_pem_slice(&read(key)?)
                    .map_err(|source| AccessError::Pem { from, source })?;
                (certificates(&read(certificate)?, &certificate.display().to_string())?, key)
            }
            None => make(names)?,
        };
        let authority = match &access.client_authority {
            Some(path) => Some(certificates(&read(path)?, &path.display().to_string())?),
            None => None,
        };
        Ok(Identity { chain, key, authority })
    }

    /// Builds the TLS configuration. A client with a certificate of the authority is identified by
    /// it; others need a token.
    async fn server_config(self, client: &Client) -> Result<ServerConfig, AccessError> {
        let authority = match self.authority {
            Some(authority) => authority,
            None => published_authority(client).await,
        };
        let mut roots = RootCertStore::empty();
        for certificate in authority {
            roots.add(certificate)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = if roots.is_empty() {
            builder.with_no_client_auth()
        } else {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()?;
            builder.with_client_cert_verifier(verifier)
        };
        let mut config = builder.with_single_cert(self.chain, self.key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, AccessError> {
    std::fs::read(path).map_err(|source| AccessError::Read { path: path.to_owned(), source })
}

fn certificates(text: &[u8], from: &str) -> Result<Vec<CertificateDer<'static>>, AccessError> {
    let failed = |source| AccessError::Pem { from: format!("`{from}`"), source };
    let found: Vec<_> = CertificateDer::pem_slice_iter(text).collect::<Result<_, _>>().map_err(failed)?;
    match found.is_empty() {
        true => Err(failed(rustls::pki_types::pem::Error::NoItemsFound)),
        false => Ok(found),
    }
}

/// Makes a certificate for one run: its key is never on a disk.
fn make(names: Vec<String>) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), AccessError> {
    let common_name = names.first().cloned().unwrap_or_default();
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?.der().clone();
    Ok((vec![certificate], PrivatePkcs8KeyDer::from(key.serialize_der()).into()))
}

/// Returns the authority that the API server publishes; waits for an API server that is away. If
/// the node may not read it or it is not published, clients need tokens.
async fn published_authority(client: &Client) -> Vec<CertificateDer<'static>> {
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), AUTHORITY_NAMESPACE);
    let begun = Instant::now();
    let mut wait = SHORTEST_WAIT;
    loop {
        let problem = match config_maps.get(AUTHORITY_CONFIG_MAP).await {
            Ok(found) => {
                let text = found.data.and_then(|mut data| data.remove(AUTHORITY_KEY)).unwrap_or_default();
                match certificates(text.as_bytes(), AUTHORITY_CONFIG_MAP) {
                    Ok(authority) => return authority,
                    Err(error) => crate::worker::chain(&error),
                }
            }
            // An API server that has just started publishes it soon.
            Err(kube::Error::Api(status))
                if status.code == 403 || status.code == 404 && begun.elapsed() > PUBLISHING =>
            {
                status.message.clone()
            }
            Err(error) => {
                debug!(%error, "the cluster's authority cannot be read yet");
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(LONGEST_WAIT);
                continue;
            }
        };
        warn!(problem, "clients of the node's API need tokens: the cluster's authority is not known");
        return Vec::new();
    }
}

/// Serves a listener for ever. Connections end with it.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    listener: TcpListener,
    identity: Identity,
) -> Result<Infallible, AccessError> {
    let tls = identity.server_config(&shared.client).await?;
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let gate = Arc::new(Gate::new(shared.client.clone(), shared.facts.name.clone()));
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    warn!(%error, "accepting a connection failed");
                    tokio::time::sleep(AFTER_FAILURE).await;
                    continue;
                }
            },
            Some(_) = connections.join_next() => continue,
        };
        let Ok(place) = room.clone().try_acquire_owned() else {
            debug!("too many connections, a new one is closed");
            continue;
        };
        let (shared, gate, acceptor) = (shared.clone(), gate.clone(), acceptor.clone());
        connections.spawn(async move {
            connection(shared, gate, acceptor, stream).await;
            drop(place);
        });
    }
}

async fn connection(shared: Arc<Shared>, gate: Arc<Gate>, acceptor: TlsAcceptor, stream: TcpStream) {
    // Small answers, such as the echo of a typed letter, must not wait for more data.
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return debug!(%error, "TLS handshake failed"),
        Err(_) => return debug!("TLS handshake took too long"),
    };
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let peer = certificates.first().and_then(|certificate| access::user(certificate)).map(Arc::new);
    let service = service_fn(move |request| {
        let (shared, gate, peer) = (shared.clone(), gate.clone(), peer.clone());
        async move { Ok::<_, Infallible>(admitted(&shared, &gate, peer.as_ref(), request).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        // With a timer, a client that never finishes its headers is disconnected.
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        debug!(%error, "connection to the node's API ended");
    }
}

async fn admitted(
    shared: &Arc<Shared>,
    gate: &Gate,
    peer: Option<&Arc<User>>,
    request: Request<Incoming>,
) -> Response<Body> {
    let admitted = gate.admit(peer, request.headers(), request.method(), request.uri().path()).await;
    match admitted {
        Ok(()) => {
            // Before the first list, an existing pod would be answered as unknown.
            shared.wait_until_listed().await;
            answer(shared, request).await
        }
        Err(denied) => text(denied.status(), denied.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(access: &KubeletAccess) -> String {
        match Identity::open(access, Vec::new()) {
            Ok(_) => "none".to_owned(),
            Err(error) => crate::worker::chain(&error),
        }
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let (missing, empty) = (directory.path().join("missing"), directory.path().join("empty"));
        std::fs::write(&empty, "nothing here\n").unwrap();
        for (access, word) in [
            (KubeletAccess { client_authority: Some(missing.clone()), certificate: None }, "missing"),
            (KubeletAccess { client_authority: Some(empty.clone()), certificate: None }, "empty"),
            (
                KubeletAccess { certificate: Some((empty.clone(), missing)), client_authority: None },
                "missing",
            ),
            (KubeletAccess { certificate: Some((empty.clone(), empty)), client_authority: None }, "empty"),
        ] {
            assert!(problem(&access).contains(word), "{}", problem(&access));
        }
    }

    #[test]
    fn without_files_a_certificate_is_made_for_the_nodes_names() {
        let identity =
            Identity::open(&KubeletAccess::default(), vec!["here".to_owned(), "127.0.0.1".to_owned()])
                .unwrap();
        assert_eq!(identity.chain.len(), 1);
        assert_eq!(access::user(&identity.chain[0]).map(|user| user.name).as_deref(), Some("here"));
    }
}
