//! The server's certificates. They are created once and kept in the data directory.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{Timestamp, ToSpan, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use serde_json::json;
use thiserror::Error;

use crate::access::{Accounts, SigningKey, SigningKeyError};

/// The validity of certificates. Serving and admin certificates are replaced after half of it.
const YEARS: i32 = 10;

/// An error with the certificates.
#[derive(Debug, Error)]
pub enum PkiError {
    /// A file could not be read or written.
    #[error("{action} {}", path.display())]
    File {
        /// The failed action.
        action: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A certificate could not be created.
    #[error("make a certificate")]
    Certificate(#[from] rcgen::Error),
    /// TLS does not accept the contents of the files.
    #[error("use the certificates in {}", directory.display())]
    Unusable {
        /// The directory with the files.
        directory: PathBuf,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A directory with a certificate authority, a serving certificate, an admin certificate and an
/// admin token.
#[derive(Debug, Clone)]
pub struct Pki {
    directory: PathBuf,
}

impl Pki {
    /// Opens the directory and creates missing files. After a crash part-way, the next call creates
    /// the rest.
    pub fn open(directory: &Path, hosts: &[String], now: Timestamp) -> Result<Pki, PkiError> {
        let pki = Pki { directory: directory.to_owned() };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|source| pki.failed("create", directory, source))?;
        let authority_key = pki.key("ca.key")?;
        let mut authority = CertificateParams::default();
        authority.distinguished_name = name(&[(DnType::CommonName, "warren-ca")]);
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        set_validity(&mut authority, now);
        if pki.read("ca.crt")?.is_none() {
            pki.write("ca.crt", authority.self_signed(&authority_key)?.pem().as_bytes())?;
        }
        let issuer = Issuer::new(authority, authority_key);

        let mut serving = CertificateParams::new(hosts)?;
        serving.distinguished_name = name(&[(DnType::CommonName, "warren-apiserver")]);
        serving.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        serving.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        // A changed list of hosts needs a new certificate. The list is stored beside it to detect
        // this.
        let hosts = hosts.join("\n");
        let same_hosts = pki.read("serving.hosts")?.is_some_and(|known| known == hosts);
        pki.certificate("serving", serving, &issuer, same_hosts, now)?;
        if !same_hosts {
            pki.write("serving.hosts", hosts.as_bytes())?;
        }

        let mut admin = CertificateParams::default();
        admin.distinguished_name =
            name(&[(DnType::OrganizationName, "system:masters"), (DnType::CommonName, "system:admin")]);
        admin.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        admin.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        pki.certificate("admin", admin, &issuer, true, now)?;

        if pki.read("admin.token")?.is_none() {
            let token = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
            pki.write("admin.token", token.as_bytes())?;
        }
        Ok(pki)
    }

    /// Returns the administrator's bearer token, for clients that cannot present a certificate.
    pub fn admin_token(&self) -> Result<String, PkiError> {
        self.required("admin.token")
    }

    /// Returns the key for service-account tokens, with the authority that clients in pods trust.
    pub fn accounts(&self) -> Result<Accounts, PkiError> {
        let unusable = |source: SigningKeyError| PkiError::Unusable {
            directory: self.directory.clone(),
            source: source.into(),
        };
        let key = SigningKey::from_pkcs8(&self.key("accounts.key")?.serialize_der()).map_err(unusable)?;
        Ok(Accounts::new(key, self.required("ca.crt")?))
    }

    /// Returns the TLS configuration of a listener. It presents the serving certificate and accepts
    /// client certificates of the authority. A client without a certificate can connect, but needs
    /// a token.
    pub fn server_config(&self) -> Result<Arc<rustls::ServerConfig>, PkiError> {
        let unusable = |source: Box<dyn std::error::Error + Send + Sync>| PkiError::Unusable {
            directory: self.directory.clone(),
            source,
        };
        let certificates = |text: String| -> Result<Vec<CertificateDer<'static>>, _> {
            CertificateDer::pem_slice_iter(text.as_bytes()).collect()
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        for certificate in certificates(self.required("ca.crt")?).map_err(|error| unusable(error.into()))? {
            roots.add(certificate).map_err(|error| unusable(error.into()))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .map_err(|error| unusable(error.into()))?;
        let chain = certificates(self.required("serving.crt")?).map_err(|error| unusable(error.into()))?;
        let key = PrivateKeyDer::from_pem_slice(self.required("serving.key")?.as_bytes())
            .map_err(|error| unusable(error.into()))?;
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(error.into()))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|error| unusable(error.into()))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// Returns a kubeconfig for the administrator as JSON, which is valid YAML.
    pub fn kubeconfig(&self, server: &str) -> Result<String, PkiError> {
        let encoded = |name: &str| Ok::<_, PkiError>(STANDARD.encode(self.required(name)?));
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "warren", "cluster": {
                "server": server, "certificate-authority-data": encoded("ca.crt")?,
            }}],
            "users": [{"name": "warren-admin", "user": {
                "client-certificate-data": encoded("admin.crt")?, "client-key-data": encoded("admin.key")?,
            }}],
            "contexts": [{"name": "warren", "context": {
                "cluster": "warren", "user": "warren-admin", "namespace": "default",
            }}],
            "current-context": "warren",
        });
        Ok(format!("{config:#}\n"))
    }

    fn certificate(
        &self,
        name: &str,
        mut params: CertificateParams,
        issuer: &Issuer<'_, KeyPair>,
        still_right: bool,
        now: Timestamp,
    ) -> Result<(), PkiError> {
        let file = format!("{name}.crt");
        let key = self.key(&format!("{name}.key"))?;
        if still_right && self.read(&file)?.is_some() && !self.is_half_spent(&file, now) {
            return Ok(());
        }
        set_validity(&mut params, now);
        self.write(&file, params.signed_by(&key, issuer)?.pem().as_bytes())
    }

    /// Returns true if half of the validity has passed. The file's modification time is when the
    /// certificate was created.
    fn is_half_spent(&self, file: &str, now: Timestamp) -> bool {
        let modified = fs::metadata(self.directory.join(file)).and_then(|metadata| metadata.modified());
        let made = modified.ok().and_then(|modified| Timestamp::try_from(modified).ok());
        let half = i64::from(YEARS) * 365 * 86400 / 2;
        made.is_none_or(|made| now.as_second() - made.as_second() > half)
    }

    fn key(&self, file: &str) -> Result<KeyPair, PkiError> {
        match self.read(file)? {
            Some(pem) => Ok(KeyPair::from_pem(&pem)?),
            None => {
                let key = KeyPair::generate()?;
                self.write(file, key.serialize_pem().as_bytes())?;
                Ok(key)
            }
        }
    }

    fn read(&self, file: &str) -> Result<Option<String>, PkiError> {
        let path = self.directory.join(file);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(self.failed("read", &path, source)),
        }
    }

    fn required(&self, file: &str) -> Result<String, PkiError> {
        let path = self.directory.join(file);
        fs::read_to_string(&path).map_err(|source| self.failed("read", &path, source))
    }

    fn write(&self, file: &str, contents: &[u8]) -> Result<(), PkiError> {
        let path = self.directory.join(file);
        write_private(&path, contents).map_err(|source| self.failed("write", &path, source))
    }

    fn failed(&self, action: &'static str, path: &Path, source: io::Error) -> PkiError {
        PkiError::File { action, path: path.to_owned(), source }
    }
}

/// Writes a file atomically. Only its owner may read it.
pub fn write_private(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    file.write_all(contents)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

fn name(parts: &[(DnType, &str)]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    for (kind, value) in parts {
        name.push(kind.clone(), *value);
    }
    name
}

fn set_validity(params: &mut CertificateParams, now: Timestamp) {
    // Begin yesterday, for clients whose clock is behind.
    let start = now.to_zoned(TimeZone::UTC).date().saturating_sub(1.day());
    let day = |year: i16, month: i8, day: i8| {
        rcgen::date_time_ymd(year.into(), month.unsigned_abs(), day.unsigned_abs())
    };
    params.not_before = day(start.year(), start.month(), start.day());
    // The 28th exists in every month.
    params.not_after = day(start.year() + YEARS as i16, start.month(), start.day().min(28));
}
