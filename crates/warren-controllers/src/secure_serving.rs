//! Serves `/metrics` over HTTPS: a certificate from files or made for this run, the minimum TLS
//! version and the cipher suites. Names are those of Go's `crypto/tls`, as in agent-sandbox's
//! flags.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{self, CipherSuite, ServerConfig};

/// The certificate's file in the directory of certificates.
const CERTIFICATE: &str = "tls.crt";
/// The key's file in the same directory.
const KEY: &str = "tls.key";

/// The names of a certificate made for this run, as in the Kubernetes controller library.
const OWN_NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// The settings for serving `/metrics` over TLS.
#[derive(Clone, Debug, Default)]
pub struct SecureServing {
    /// The directory of `tls.crt` and `tls.key`. Without it a self-signed certificate is made.
    pub certificates: Option<PathBuf>,
    /// The minimum version.
    pub oldest_version: TlsVersion,
    /// The accepted cipher suites of TLS 1.2; `None`: all. Those of TLS 1.3 are always accepted, as
    /// in Go.
    pub cipher_suites: Option<Vec<TlsCipherSuite>>,
}

/// A version of TLS, by Go's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// `VersionTLS10`: not supported here, so TLS 1.2 is the minimum.
    V10,
    /// `VersionTLS11`: not supported here, so TLS 1.2 is the minimum.
    V11,
    /// `VersionTLS12`.
    #[default]
    V12,
    /// `VersionTLS13`.
    V13,
}

/// A supported cipher suite, by Go's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsCipherSuite(CipherSuite);

const VERSIONS: [(&str, TlsVersion); 4] = [
    ("VersionTLS10", TlsVersion::V10),
    ("VersionTLS11", TlsVersion::V11),
    ("VersionTLS12", TlsVersion::V12),
    ("VersionTLS13", TlsVersion::V13),
];

/// The suites by Go's names. Those with RSA key exchange or CBC mode are missing on purpose: they
/// are not supported.
const CIPHER_SUITES: [(&str, CipherSuite); 9] = [
    ("TLS_AES_128_GCM_SHA256", CipherSuite::TLS13_AES_128_GCM_SHA256),
    ("TLS_AES_256_GCM_SHA384", CipherSuite::TLS13_AES_256_GCM_SHA384),
    ("TLS_CHACHA20_POLY1305_SHA256", CipherSuite::TLS13_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// Go's older names for two of them.
const ALIASES: [(&str, &str); 2] = [
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"),
];

/// The error of an unknown name.
#[derive(Debug, thiserror::Error)]
#[error("`{name}` is none of {}", known.join(", "))]
pub struct UnknownName {
    name: String,
    known: Vec<&'static str>,
}

/// The error of a TLS configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecureServingError {
    /// A file of the directory cannot be read.
    #[error("read `{}`", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// The underlying I/O error.
        #[source]
        source: io::Error,
    },
    /// A file of the directory does not contain what its name says.
    #[error("find a certificate or key in `{}`", path.display())]
    Pem {
        /// Its path.
        path: PathBuf,
        /// The underlying PEM error.
        #[source]
        source: pem::Error,
    },
    /// A certificate for this run could not be made.
    #[error("make a self-signed certificate")]
    Make(#[from] rcgen::Error),
    /// Certificate, key, version and cipher suites do not fit together.
    #[error("use the certificate, the TLS version and the cipher suites")]
    Tls(#[from] rustls::Error),
}

impl FromStr for TlsVersion {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        named(&VERSIONS, text)
    }
}

impl FromStr for TlsCipherSuite {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let alias = ALIASES.iter().find(|(alias, _)| *alias == text);
        named(&CIPHER_SUITES, alias.map_or(text, |(_, name)| *name)).map(TlsCipherSuite)
    }
}

fn named<T: Copy>(names: &[(&'static str, T)], text: &str) -> Result<T, UnknownName> {
    let found = names.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    found.ok_or_else(|| UnknownName {
        name: text.to_owned(),
        known: names.iter().map(|(name, _)| *name).collect(),
    })
}

impl SecureServing {
    /// Reads the files early, so that problems are found before any connection is made.
    pub(crate) fn prepare(self) -> Result<Tls, SecureServingError> {
        let mut provider = ring::default_provider();
        if let Some(wanted) = &self.cipher_suites {
            provider
                .cipher_suites
                .retain(|suite| suite.tls13().is_some() || wanted.contains(&TlsCipherSuite(suite.suite())));
        }
        let has_older = provider.cipher_suites.iter().any(|suite| suite.tls13().is_none());
        // Without a suite for TLS 1.2 that version is not offered, whatever the minimum is.
        let versions: &[_] = match self.oldest_version < TlsVersion::V13 && has_older {
            true => &[&TLS12, &TLS13],
            false => &[&TLS13],
        };
        let provider = Arc::new(provider);
        let certificate = Arc::new(match self.certificates {
            Some(directory) => Certificate::read(directory, &provider)?,
            None => Certificate::make(&provider)?,
        });
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)?
            .with_no_client_auth()
            .with_cert_resolver(certificate.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls { acceptor: TlsAcceptor::from(Arc::new(config)), certificate })
    }
}

/// The TLS side of an endpoint.
#[derive(Clone)]
pub(crate) struct Tls {
    acceptor: TlsAcceptor,
    certificate: Arc<Certificate>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Tls")
    }
}

impl Tls {
    /// Accepts a connection, with the present certificate of the files.
    pub(crate) async fn accept<S>(&self, stream: S) -> io::Result<tokio_rustls::server::TlsStream<S>>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    {
        let certificate = self.certificate.clone();
        tokio::task::spawn_blocking(move || certificate.refresh()).await.map_err(io::Error::other)?;
        self.acceptor.accept(stream).await
    }
}

/// A certificate that follows its files. They are checked at each connection: a scrape comes every
/// few seconds, and no connection gets a certificate that has been replaced.
#[derive(Debug)]
struct Certificate {
    directory: Option<PathBuf>,
    provider: Arc<CryptoProvider>,
    current: Mutex<(Arc<CertifiedKey>, Fingerprint)>,
}

/// The modification time and inode number of each file. They detect a replaced file, whether a
/// mounted Secret swapped directories or the file was written in place.
type Fingerprint = [Option<(SystemTime, u64)>; 2];

impl Certificate {
    fn read(directory: PathBuf, provider: &Arc<CryptoProvider>) -> Result<Self, SecureServingError> {
        let fingerprint = fingerprint(&directory);
        let key = load(&directory, provider)?;
        Ok(Self {
            directory: Some(directory),
            provider: provider.clone(),
            current: Mutex::new((Arc::new(key), fingerprint)),
        })
    }

    /// Makes a certificate for this run: its key is never on a disk.
    fn make(provider: &Arc<CryptoProvider>) -> Result<Self, SecureServingError> {
        let pair = rcgen::generate_simple_self_signed(OWN_NAMES.map(str::to_owned))?;
        let key = PrivatePkcs8KeyDer::from(pair.signing_key.serialize_der()).into();
        let key = CertifiedKey::from_der(vec![pair.cert.der().clone()], key, provider)?;
        let current = Mutex::new((Arc::new(key), [None, None]));
        Ok(Self { directory: None, provider: provider.clone(), current })
    }

    /// Loads the files again if they have changed. An unusable pair leaves the previous one in use:
    /// the files may be incomplete, and will then change again.
    fn refresh(&self) {
        let Some(directory) = &self.directory else { return };
        let found = fingerprint(directory);
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.1 == found {
            return;
        }
        current.1 = found;
        match load(directory, &self.provider) {
            Ok(key) => {
                current.0 = Arc::new(key);
                tracing::info!(directory = %directory.display(), "certificate of the metrics loaded again");
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "new certificate of the metrics not usable; the old one stays in use");
            }
        }
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.lock().unwrap_or_else(PoisonError::into_inner).0.clone())
    }
}

fn fingerprint(directory: &Path) -> Fingerprint {
    use std::os::unix::fs::MetadataExt as _;
    [CERTIFICATE, KEY].map(|name| {
        let metadata = std::fs::metadata(directory.join(name)).ok()?;
        Some((metadata.modified().ok()?, metadata.ino()))
    })
}

fn load(directory: &Path, provider: &CryptoProvider) -> Result<CertifiedKey, SecureServingError> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|source| SecureServingError::Read { path: path.to_owned(), source })
    };
    let (certificate, key) = (directory.join(CERTIFICATE), directory.join(KEY));
    let failed = |path: &Path, source| SecureServingError::Pem { path: path.to_owned(), source };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&read(&certificate)?)
        .collect::<Result<_, _>>()
        .map_err(|source| failed(&certificate, source))?;
    if chain.is_empty() {
        return Err(failed(&certificate, pem::Error::NoItemsFound));
    }
    let found = PrivateKeyDer::from_pem_slice(&read(&key)?).map_err(|source| failed(&key, source))?;
    Ok(CertifiedKey::from_der(chain, found, provider)?)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::path::Path;
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::crypto::ring;
    use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
    use tokio_rustls::rustls::version::{TLS12, TLS13};
    use tokio_rustls::rustls::{ClientConfig, ProtocolVersion, RootCertStore, SupportedProtocolVersion};
    use tokio_util::sync::CancellationToken;

    use super::{CERTIFICATE, KEY, SecureServing, TlsCipherSuite, TlsVersion};
    use crate::endpoint::{Answer, Endpoint};

    /// Writes a new pair, and returns the certificate.
    fn issue(directory: &Path) -> CertificateDer<'static> {
        let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(directory.join(KEY), pair.signing_key.serialize_pem()).unwrap();
        std::fs::write(directory.join(CERTIFICATE), pair.cert.pem()).unwrap();
        pair.cert.der().clone()
    }

    async fn serve(serving: SecureServing) -> (SocketAddr, CancellationToken) {
        let endpoint = Endpoint::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let (address, stop) = (endpoint.address(), CancellationToken::new());
        let page = |path: &str| {
            let answer = || Answer { content_type: "text/plain", body: "a page\n".to_owned() };
            (path == "/metrics").then(answer)
        };
        tokio::spawn(endpoint.over_tls(serving.prepare().unwrap()).serve(stop.clone(), page));
        (address, stop)
    }

    /// Asks for the page, and returns it with the version of the connection.
    async fn get(
        address: SocketAddr,
        trusted: CertificateDer<'static>,
        version: &'static SupportedProtocolVersion,
    ) -> std::io::Result<(Option<ProtocolVersion>, String)> {
        let mut roots = RootCertStore::empty();
        roots.add(trusted).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
        let mut text = String::new();
        // The server closes the connection without a TLS alert.
        let _ = stream.read_to_string(&mut text).await;
        Ok((stream.get_ref().1.protocol_version(), text))
    }

    #[tokio::test]
    async fn a_certificate_that_is_replaced_is_served_from_the_next_connection_on() {
        let directory = tempfile::tempdir().unwrap();
        let first = issue(directory.path());
        let certificates = Some(directory.path().to_owned());
        let (address, stop) = serve(SecureServing { certificates, ..SecureServing::default() }).await;
        let (_, page) = get(address, first.clone(), &TLS13).await.unwrap();
        assert!(page.starts_with("HTTP/1.1 200 OK") && page.ends_with("a page\n"), "{page}");

        // As with a mounted Secret, the files are replaced.
        for name in [CERTIFICATE, KEY] {
            std::fs::remove_file(directory.path().join(name)).unwrap();
        }
        assert!(get(address, first.clone(), &TLS13).await.is_ok(), "nothing new is there yet");
        let second = issue(directory.path());
        assert!(get(address, second, &TLS13).await.is_ok());
        assert!(get(address, first, &TLS13).await.is_err(), "the old one is still served");
        stop.cancel();
    }

    #[tokio::test]
    async fn the_oldest_version_and_the_cipher_suites_hold() {
        let directory = tempfile::tempdir().unwrap();
        let trusted = issue(directory.path());
        let serving =
            || SecureServing { certificates: Some(directory.path().to_owned()), ..SecureServing::default() };
        let suites = |names: &[&str]| Some(names.iter().map(|name| name.parse().unwrap()).collect());
        for (serving, takes_older) in [
            (serving(), true),
            (SecureServing { oldest_version: TlsVersion::V13, ..serving() }, false),
            (SecureServing { oldest_version: TlsVersion::V10, ..serving() }, true),
            // The certificate's key is an ECDSA key.
            (
                SecureServing {
                    cipher_suites: suites(&["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"]),
                    ..serving()
                },
                true,
            ),
            (
                SecureServing {
                    cipher_suites: suites(&["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]),
                    ..serving()
                },
                false,
            ),
            (SecureServing { cipher_suites: suites(&["TLS_AES_128_GCM_SHA256"]), ..serving() }, false),
        ] {
            let (address, stop) = serve(serving.clone()).await;
            let newer = get(address, trusted.clone(), &TLS13).await.unwrap().0;
            assert_eq!(newer, Some(ProtocolVersion::TLSv1_3));
            let older = get(address, trusted.clone(), &TLS12).await;
            assert_eq!(older.is_ok(), takes_older, "{serving:?}: {older:?}");
            stop.cancel();
        }
    }

    #[test]
    fn without_a_directory_a_certificate_is_made_and_with_one_the_file_in_trouble_is_named() {
        assert!(SecureServing::default().prepare().is_ok());
        let directory = tempfile::tempdir().unwrap();
        let failed = || {
            let certificates = Some(directory.path().to_owned());
            let error = SecureServing { certificates, ..SecureServing::default() }.prepare().unwrap_err();
            error.to_string()
        };
        let path = |name: &str| directory.path().join(name).display().to_string();
        assert_eq!(failed(), format!("read `{}`", path(CERTIFICATE)));
        issue(directory.path());
        std::fs::write(directory.path().join(KEY), "nothing").unwrap();
        assert_eq!(failed(), format!("find a certificate or key in `{}`", path(KEY)));
    }

    #[test]
    fn a_name_that_go_does_not_know_is_answered_with_those_that_can_be_chosen() {
        let error = "TLS1.2".parse::<TlsVersion>().unwrap_err().to_string();
        assert_eq!(error, "`TLS1.2` is none of VersionTLS10, VersionTLS11, VersionTLS12, VersionTLS13");
        let error = "TLS_RSA_WITH_RC4_128_SHA".parse::<TlsCipherSuite>().unwrap_err().to_string();
        assert!(error.contains("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, "), "{error}");
        let alias = "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305".parse::<TlsCipherSuite>().unwrap();
        assert_eq!(alias, "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256".parse().unwrap());
    }
}
