//! Reads as much of a kubeconfig as the suite needs: the current context's address, authority and
//! credentials.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use serde::Deserialize;

/// A server's address, authority and credentials.
#[derive(Clone)]
pub struct Access {
    /// `https://host:port`.
    pub server: String,
    /// The authority's certificates, PEM.
    pub authority: Vec<u8>,
    /// The client certificate chain and its key, PEM.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
    /// A bearer token.
    pub token: Option<String>,
}

/// The error of a kubeconfig that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// A file cannot be read.
    #[error("read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// It is not a kubeconfig.
    #[error("parse {path}: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The parser's message.
        message: String,
    },
    /// A part that the current context needs is missing.
    #[error("{path} has no {what}")]
    Missing {
        /// The file.
        path: PathBuf,
        /// Its name.
        what: String,
    },
    /// Inline data is not base64.
    #[error("decode inline data of {path}")]
    Base64 {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: base64::DecodeError,
    },
}

#[derive(Deserialize)]
struct File {
    #[serde(rename = "current-context")]
    current_context: String,
    contexts: Vec<Named<Context>>,
    clusters: Vec<Named<Cluster>>,
    users: Vec<Named<User>>,
}

#[derive(Deserialize)]
struct Named<T> {
    name: String,
    #[serde(alias = "context", alias = "cluster", alias = "user")]
    value: T,
}

#[derive(Deserialize)]
struct Context {
    cluster: String,
    user: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    token: Option<String>,
}

/// Reads the current context of the kubeconfig at `path`.
///
/// # Errors
///
/// Fails if it cannot be read, or lacks a part that its current context names.
pub fn read(path: &Path) -> Result<Access, KubeconfigError> {
    let file: File = serde_saphyr::from_slice(&bytes_of(path)?)
        .map_err(|error| KubeconfigError::Parse { path: path.to_owned(), message: error.to_string() })?;
    let context = find(path, &file.contexts, &file.current_context, "context")?;
    let cluster = find(path, &file.clusters, &context.cluster, "cluster")?;
    let user = find(path, &file.users, &context.user, "user")?;
    let authority = either(
        path,
        cluster.certificate_authority_data.as_deref(),
        cluster.certificate_authority.as_deref(),
    )?
    .ok_or_else(|| KubeconfigError::Missing {
        path: path.to_owned(),
        what: "certificate authority".to_owned(),
    })?;
    let certificate =
        either(path, user.client_certificate_data.as_deref(), user.client_certificate.as_deref())?;
    let key = either(path, user.client_key_data.as_deref(), user.client_key.as_deref())?;
    Ok(Access {
        server: cluster.server.trim_end_matches('/').to_owned(),
        authority,
        client: certificate.zip(key),
        token: user.token.clone(),
    })
}

fn find<'a, T>(path: &Path, all: &'a [Named<T>], name: &str, what: &str) -> Result<&'a T, KubeconfigError> {
    all.iter().find(|one| one.name == name).map(|one| &one.value).ok_or_else(|| KubeconfigError::Missing {
        path: path.to_owned(),
        what: format!("{what} named `{name}`"),
    })
}

fn either(
    path: &Path,
    inline: Option<&str>,
    file: Option<&Path>,
) -> Result<Option<Vec<u8>>, KubeconfigError> {
    match (inline, file) {
        (Some(data), _) => base64::engine::general_purpose::STANDARD
            .decode(data.trim())
            .map(Some)
            .map_err(|source| KubeconfigError::Base64 { path: path.to_owned(), source }),
        (None, Some(file)) => {
            let beside = path.parent().unwrap_or(Path::new("")).join(file);
            bytes_of(&beside).map(Some)
        }
        (None, None) => Ok(None),
    }
}

fn bytes_of(path: &Path) -> Result<Vec<u8>, KubeconfigError> {
    std::fs::read(path).map_err(|source| KubeconfigError::Read { path: path.to_owned(), source })
}
