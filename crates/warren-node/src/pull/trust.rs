//! Chooses the certificate authorities for a registry: the machine's own, and those configured for
//! one registry (`/etc/containers/certs.d/HOST/*.crt`, as in other engines).

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tracing::warn;

use super::PullError;
use crate::config::RegistryConfig;

/// Builds the TLS configuration for a registry.
pub(super) fn tls(config: &RegistryConfig, registry: &str) -> Result<ClientConfig, PullError> {
    let mut roots = RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    let (usable, _) = roots.add_parsable_certificates(native.certs);
    for directory in &config.certificate_directories {
        add_directory(&mut roots, &directory.join(registry));
    }
    if usable == 0 {
        // Not an error by itself: a registry may have its own authority, or need none.
        warn!(errors = native.errors.len(), "this machine has no certificate authorities");
    }
    // Named explicitly: the process may have no default provider.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|source| PullError::Tls { registry: registry.to_owned(), source })?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn add_directory(roots: &mut RootCertStore, directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_none_or(|extension| extension != "crt") {
            continue;
        }
        match CertificateDer::pem_file_iter(&path) {
            Ok(certificates) => {
                let (added, ignored) = roots.add_parsable_certificates(certificates.flatten());
                if added == 0 || ignored > 0 {
                    warn!(path = %path.display(), added, ignored, "certificates of a registry not all usable");
                }
            }
            Err(error) => warn!(path = %path.display(), %error, "certificate of a registry not read"),
        }
    }
}
