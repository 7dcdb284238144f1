//! A client of the cluster that we work for.

use std::path::{Path, PathBuf};

use kube::Client;
use kube::client::ClientBuilder;
use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};

use crate::telemetry::{RateLimit, Telemetry};

/// The way to a cluster.
pub struct Connection {
    /// The client; what it asks is measured.
    pub client: Client,
    /// The namespace of our own pod on a cluster, else the kubeconfig's.
    pub namespace: String,
}

/// There is no way to a cluster.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be used.
    #[error("use the kubeconfig `{}`", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: Box<KubeconfigError>,
    },
    /// No kubeconfig, and not in a pod.
    #[error("find a cluster: no usable kubeconfig, and this is not a pod")]
    Nowhere(#[source] Box<InferConfigError>),
    /// What was found cannot be made into a client.
    #[error("prepare the client")]
    Client(#[source] Box<kube::Error>),
}

/// Prepares a client from a kubeconfig, or from `KUBECONFIG`, `~/.kube/config` or the pod's service account, whichever is
/// found first. Nothing is sent yet.
pub async fn connect(
    kubeconfig: Option<&Path>,
    limit: Option<RateLimit>,
    telemetry: &Telemetry,
) -> Result<Connection, ConnectError> {
    let mut config = match kubeconfig {
        Some(path) => {
            let failed =
                |source| ConnectError::Kubeconfig { path: path.to_owned(), source: Box::new(source) };
            let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
                .await
                .map_err(failed)?
        }
        None => kube::Config::infer().await.map_err(|source| ConnectError::Nowhere(Box::new(source)))?,
    };
    // The client would ask again by itself, below what is measured and held back, also where the server may have written already.
    config.default_retry = false;
    let namespace = config.default_namespace.clone();
    let host = config.cluster_url.authority().map_or_else(String::new, ToString::to_string);
    let builder = ClientBuilder::try_from(config).map_err(|source| ConnectError::Client(Box::new(source)))?;
    let client = builder.with_layer(&telemetry.client_layer(&host, limit)).build();
    Ok(Connection { client, namespace })
}
