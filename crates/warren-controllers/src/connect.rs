//! Connects to the cluster that the controllers work for.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::Client;
use kube::client::ClientBuilder;
use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use tower::timeout::TimeoutLayer;

use crate::telemetry::{RateLimit, Telemetry};

/// The time after which a server that has not begun to answer counts as gone. kube-apiserver ends a
/// request after a minute, so a longer wait is for a dead connection, which TCP gives up only after
/// a quarter of an hour. A watch's answer begins at once.
const NO_ANSWER: Duration = Duration::from_secs(60);

/// The file from which a pod reads its own namespace.
const OWN_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// The time without data after which a connection counts as dead: a server ends an idle watch a few
/// seconds earlier.
const DEAD: Duration = Duration::from_secs(300);

/// A connection to a cluster.
pub struct Connection {
    /// The client for the work; its requests are measured and limited.
    pub client: Client,
    /// The client for the Lease, which is never limited: leadership is not lost by a high load.
    pub lease: Client,
    /// The namespace of our own pod on a cluster, else the kubeconfig's.
    pub namespace: String,
}

/// The error of a connection that could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be used.
    #[error("use the kubeconfig `{}`", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Box<KubeconfigError>,
    },
    /// There is no kubeconfig, and this is not a pod.
    #[error("find a cluster: no usable kubeconfig, and this is not a pod")]
    Nowhere(#[source] Box<InferConfigError>),
    /// The configuration is not valid for a client.
    #[error("prepare the client")]
    Client(#[source] Box<kube::Error>),
}

/// Prepares a client from a kubeconfig, or from `KUBECONFIG`, `~/.kube/config` or the pod's service
/// account, whichever is found first. Nothing is sent yet.
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
    // The client would retry by itself, below the measurement and the limit, even where the server
    // may have written already.
    config.default_retry = false;
    config.read_timeout = Some(DEAD);
    config.reset_reader_on_write = true;
    // A pod uses its own namespace even with a kubeconfig: other replicas look for the Lease there.
    let namespace = tokio::fs::read_to_string(OWN_NAMESPACE).await.ok().map(|text| text.trim().to_owned());
    let namespace =
        namespace.filter(|name| !name.is_empty()).unwrap_or_else(|| config.default_namespace.clone());
    let host = config.cluster_url.authority().map_or_else(String::new, ToString::to_string);
    let builder = ClientBuilder::try_from(config).map_err(|source| ConnectError::Client(Box::new(source)))?;
    // Below the limit: requests that wait for their turn have not been sent.
    let client =
        builder.with_layer(&TimeoutLayer::new(NO_ANSWER)).with_layer(&telemetry.client_layer(&host)).build();
    Ok(Connection::new(client, namespace, &host, limit, telemetry))
}

impl Connection {
    fn new(
        client: Client,
        namespace: String,
        host: &str,
        limit: Option<RateLimit>,
        telemetry: &Telemetry,
    ) -> Self {
        let lease = client.clone();
        let client = match limit {
            Some(limit) => telemetry.hold_back(client, host, limit),
            None => client,
        };
        Self { client, lease, namespace }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use futures::FutureExt as _;
    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;
    use tokio::net::TcpListener;
    use tokio::time::Instant;
    use tokio_util::task::TaskTracker;
    use warren_decide::step::{FailureKind, Kind};

    use super::{Connection, connect};
    use crate::kube_server::KubeServer;
    use crate::server::Server;
    use crate::telemetry::{RateLimit, Telemetry};

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever_for_a_server_that_is_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "contexts": [{"name": "c", "context": {"cluster": "c"}}],
        });
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), kubeconfig.to_string()).unwrap();
        let connection = connect(Some(file.path()), None, &Telemetry::default()).await.unwrap();
        let server = KubeServer::new(connection.client, TaskTracker::new());
        let two_minutes = Duration::from_secs(120);
        let answer = tokio::time::timeout(two_minutes, server.read("default", Kind::Pod, "a")).await.unwrap();
        assert_eq!(answer.unwrap_err().kind, FailureKind::Unknown);
    }

    #[tokio::test(start_paused = true)]
    async fn the_lease_does_not_wait_behind_the_work() {
        let server = |_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) };
        let client = Client::new(tower::service_fn(server), "default");
        let limit = Some(RateLimit { queries_per_second: 1.0, burst: 1 });
        let connection =
            Connection::new(client, "default".to_owned(), "server:1", limit, &Telemetry::default());
        let ask = || Request::new(Body::empty());
        let started = Instant::now();
        connection.client.send(ask()).await.unwrap();
        let mut second = Box::pin(connection.client.send(ask()));
        tokio::select! {
            biased;
            _ = &mut second => panic!("it was not held back"),
            renewed = connection.lease.send(ask()) => assert!(renewed.is_ok()),
        }
        assert_eq!(started.elapsed().as_millis(), 0);
        assert!((&mut second).now_or_never().is_none(), "the work waits on");
    }
}
