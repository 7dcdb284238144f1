//! The certificates and keys of one control plane. A single authority signs all of them.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::files::{FileError, create_private_directory, write_private};

/// An error of the certificates.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A key or certificate could not be made.
    #[error("make a certificate for `{subject}`")]
    Certificate {
        /// The subject.
        subject: String,
        /// The cause.
        #[source]
        source: rcgen::Error,
    },
    /// A file could not be written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Names under which pods and clients on this machine may reach the API server. 10.0.0.1 is the
/// first address of the service range, which Kubernetes gives to the service `kubernetes`.
const SERVER_NAMES: [&str; 6] = [
    "127.0.0.1",
    "10.0.0.1",
    "localhost",
    "kubernetes",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// An authority that can still sign, and the directory with the servers' certificates.
pub(crate) struct Pki {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    /// The authority's certificate in PEM.
    pub(crate) authority: String,
}

/// A certificate and its key, both in PEM.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Pki {
    /// Creates an authority and the files of the servers: `ca`, `apiserver`, `etcd`, `etcd-client`,
    /// `kubelet-client` and the service-account key pair.
    pub(crate) fn create(directory: &Path) -> Result<Self, PkiError> {
        create_private_directory(directory)?;
        let failed = |source| PkiError::Certificate { subject: "authority".to_owned(), source };
        let mut params = params("warren-test-authority", None, &[]).map_err(failed)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().map_err(failed)?;
        let authority = params.self_signed(&key).map_err(failed)?.pem();

        write_private(&directory.join("ca.crt"), &authority)?;
        write_private(&directory.join("ca.key"), key.serialize_pem())?;
        let pki = Self { directory: directory.to_owned(), issuer: Issuer::new(params, key), authority };

        pki.write("apiserver", &pki.sign("kube-apiserver", None, &SERVER_NAMES)?)?;
        pki.write("etcd", &pki.sign("etcd", None, &["127.0.0.1", "localhost"])?)?;
        pki.write("etcd-client", &pki.client("kube-apiserver-etcd-client", None)?)?;
        let kubelet_client = pki.client("kube-apiserver-kubelet-client", Some("system:masters"))?;
        pki.write("kubelet-client", &kubelet_client)?;

        let service_accounts = KeyPair::generate()
            .map_err(|source| PkiError::Certificate { subject: "service accounts".to_owned(), source })?;
        write_private(&pki.path("service-accounts.key"), service_accounts.serialize_pem())?;
        write_private(&pki.path("service-accounts.pub"), service_accounts.public_key_pem())?;
        Ok(pki)
    }

    /// Signs a client certificate for `user`, a member of `group`.
    pub(crate) fn client(&self, user: &str, group: Option<&str>) -> Result<Identity, PkiError> {
        self.sign(user, group, &[])
    }

    /// Returns the path of a file in the directory.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.directory.join(file)
    }

    fn sign(&self, subject: &str, group: Option<&str>, names: &[&str]) -> Result<Identity, PkiError> {
        let sign = || {
            let mut params = params(subject, group, names)?;
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            // etcd uses its serving certificate as a client of its own gateway, so servers may be
            // clients too.
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            if !names.is_empty() {
                params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
            }
            let key = KeyPair::generate()?;
            let certificate = params.signed_by(&key, &self.issuer)?.pem();
            Ok(Identity { certificate, key: key.serialize_pem() })
        };
        sign().map_err(|source| PkiError::Certificate { subject: subject.to_owned(), source })
    }

    fn write(&self, name: &str, identity: &Identity) -> Result<(), FileError> {
        write_private(&self.path(&format!("{name}.crt")), &identity.certificate)?;
        write_private(&self.path(&format!("{name}.key")), &identity.key)
    }
}

fn params(subject: &str, group: Option<&str>, names: &[&str]) -> Result<CertificateParams, rcgen::Error> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, subject);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}
