//! TLS for clients, with certificates that are read again when their files change.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::unix::AsyncFd;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

/// Certificate and key change one after the other: how long changes are collected.
const DEBOUNCE: Duration = Duration::from_millis(250);

/// The files of a server with TLS.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificate and its chain.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// The authorities of clients' certificates.
    pub client_authorities: Option<PathBuf>,
    /// The policy for client certificates.
    pub client_certificates: ClientCertificates,
}

/// The policy for client certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientCertificates {
    /// They are not asked for one.
    #[default]
    Off,
    /// One that they have must be signed by an authority.
    Optional,
    /// They must have one.
    Required,
}

/// TLS cannot be served with these files.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read as PEM.
    #[error("read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The underlying PEM error.
        #[source]
        source: pem::Error,
    },
    /// There is no certificate in a file.
    #[error("there is no certificate in `{}`", .0.display())]
    Empty(PathBuf),
    /// Clients must have certificates, and no file says who signs them.
    #[error("clients cannot have certificates without a file of authorities")]
    NoAuthorities,
    /// The authorities cannot be used.
    #[error("use the authorities of clients' certificates")]
    Authorities(#[source] VerifierBuilderError),
    /// Certificate and key do not belong together, or cannot be used.
    #[error("use the certificate and its key")]
    Unusable(#[from] rustls::Error),
    /// The kernel does not tell of changes.
    #[error("watch the files of TLS")]
    Watch(#[source] std::io::Error),
}

/// TLS with the newest certificate that could be used.
pub struct Tls {
    shared: Arc<Shared>,
    _watching: AbortOnDropHandle<()>,
}

struct Shared {
    files: TlsFiles,
    config: RwLock<Arc<ServerConfig>>,
    succeeded: AtomicU64,
    failed: AtomicU64,
}

impl Tls {
    /// Reads the files, and watches them from now on. To be called in a runtime.
    pub fn load(files: TlsFiles) -> Result<Tls, TlsError> {
        // Watched first: no change after the first reading is missed.
        let watch = watch(&files).map_err(TlsError::Watch)?;
        let config = RwLock::new(Arc::new(read(&files)?));
        let shared =
            Arc::new(Shared { files, config, succeeded: AtomicU64::new(1), failed: AtomicU64::new(0) });
        let watching = tokio::spawn(follow(Arc::clone(&shared), watch));
        Ok(Tls { shared, _watching: AbortOnDropHandle::new(watching) })
    }

    /// Returns what serves the next connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let config = self.shared.config.read().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(Arc::clone(&config))
    }

    /// Returns how often certificates were read, as a page for Prometheus.
    pub fn metrics_page(&self) -> String {
        let name = "sandbox_router_cert_reloads_total";
        let (succeeded, failed) = (&self.shared.succeeded, &self.shared.failed);
        format!(
            "# HELP {name} How often certificates were read.\n# TYPE {name} counter\n\
             {name}{{outcome=\"success\"}} {}\n{name}{{outcome=\"failure\"}} {}\n",
            succeeded.load(Ordering::Relaxed),
            failed.load(Ordering::Relaxed),
        )
    }
}

/// Watches the directories of the files: a Secret's volume changes by a symbolic link that is replaced.
fn watch(files: &TlsFiles) -> std::io::Result<AsyncFd<OwnedFd>> {
    let descriptor = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let changes = WatchFlags::CLOSE_WRITE | WatchFlags::CREATE | WatchFlags::MOVED_TO;
    for file in
        [Some(&files.certificate), Some(&files.key), files.client_authorities.as_ref()].into_iter().flatten()
    {
        let directory = file.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
        inotify::add_watch(&descriptor, directory, changes)?;
    }
    watched(descriptor)
}

#[expect(
    deprecated,
    reason = "an `OwnedFd` keeps its descriptor; the replacement is `unsafe`, which only warren-sys may use"
)]
fn watched(descriptor: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(descriptor)
}

/// Reads the files again after each change. What cannot be used changes nothing.
async fn follow(shared: Arc<Shared>, watch: AsyncFd<OwnedFd>) {
    loop {
        let Ok(mut ready) = watch.readable().await else { return };
        tokio::time::sleep(DEBOUNCE).await;
        let mut events = [0; 4096];
        while rustix::io::read(watch.get_ref(), &mut events).is_ok_and(|length| length > 0) {}
        ready.clear_ready();
        match read(&shared.files) {
            Ok(config) => {
                *shared.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
                shared.succeeded.fetch_add(1, Ordering::Relaxed);
                info!("certificates read again");
            }
            Err(error) => {
                shared.failed.fetch_add(1, Ordering::Relaxed);
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                warn!(%error, cause, "changed certificates cannot be used; the last ones stay");
            }
        }
    }
}

fn read(files: &TlsFiles) -> Result<ServerConfig, TlsError> {
    let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?;
    let builder = match (files.client_certificates, &files.client_authorities) {
        (ClientCertificates::Off, _) => builder.with_no_client_auth(),
        (_, None) => return Err(TlsError::NoAuthorities),
        (wanted, Some(path)) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates(path)? {
                roots.add(authority)?;
            }
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            if wanted == ClientCertificates::Optional {
                verifier = verifier.allow_unauthenticated();
            }
            builder.with_client_cert_verifier(verifier.build().map_err(TlsError::Authorities)?)
        }
    };
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|source| TlsError::Read { path: files.key.clone(), source })?;
    let mut config = builder.with_single_cert(certificates(&files.certificate)?, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |source| TlsError::Read { path: path.to_owned(), source };
    let read = CertificateDer::pem_file_iter(path).map_err(failed)?;
    let certificates = read.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    if certificates.is_empty() { Err(TlsError::Empty(path.to_owned())) } else { Ok(certificates) }
}
