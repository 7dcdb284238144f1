//! The router of a home. It listens on loopback for the home's own user. A Service with a pod
//! represents it, so that clients that look for one find it.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};
use warren_apiserver::ApiServer;
use warren_node::OwnPod;
use warren_router::token::{KeySet, SigningKey};
use warren_router::{Authorization, BrowserConfig, Config, Hosts, Listener, PodScope, Router};

use crate::dialer::LocalDialer;
use crate::home::{failed, in_process, reachable};
use crate::{StartError, kubeconfig};

/// The names that are built into published clients, which forward a port of this Service.
const NAMESPACE: &str = "agent-sandbox-system";
const SERVICE: &str = "sandbox-router-svc";
const APP: &str = "sandbox-router";
const PORT: u16 = 8080;

/// The places where browsers of other users send their token: a query parameter of the first
/// request, then a cookie.
const QUERY_PARAM: &str = "warren-token";
const COOKIE: &str = "warren-sandbox";

/// The name of the pod behind the Service.
const POD: &str = "sandbox-router";
/// The label of the pod that says that the daemon serves it.
const SERVED_BY: &str = "warren.dev/served-by";

/// The longest time that a start waits for these objects. If the API is slow, they come later.
const FIRST_OBJECTS: Duration = Duration::from_secs(5);
/// The pause after the objects could not be written, for example because their namespace is being
/// deleted.
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// The time for unfinished requests at the end.
const PATIENCE: Duration = Duration::from_millis(500);

/// The socket of the router, before it is served.
pub struct RouterSocket {
    socket: TcpListener,
    address: SocketAddr,
    /// The keys of tokens that open sandboxes to other users of the machine.
    keys: KeySet,
}

impl RouterSocket {
    /// Listens on the configured address and writes the URL to its file.
    pub async fn open(config: &crate::Config) -> Result<RouterSocket, StartError> {
        let wanted = config.router_listen;
        if !wanted.ip().is_loopback() {
            return Err(StartError::RouterNotOnLoopback { address: wanted });
        }
        let known = kubeconfig::router_port_of_last_time(&config.router_url).filter(|_| wanted.port() == 0);
        let again = match known {
            Some(port) => TcpListener::bind((wanted.ip(), port)).await.ok(),
            None => None,
        };
        let socket = match again {
            Some(socket) => Ok(socket),
            None => TcpListener::bind(wanted).await,
        };
        let socket = socket.map_err(|source| failed("listen on", wanted, source))?;
        let address = socket.local_addr().map_err(|source| failed("listen on", wanted, source))?;
        kubeconfig::write(&config.router_url, &format!("http://{}\n", reachable(address)))
            .map_err(|source| failed("write", config.router_url.display(), source))?;
        let keys = token_keys(&config.router_token_key)?;
        Ok(RouterSocket { socket, address, keys })
    }

    /// Returns the pod that represents the router.
    pub fn pod(&self) -> OwnPod {
        OwnPod {
            namespace: NAMESPACE.to_owned(),
            name: POD.to_owned(),
            ports: BTreeMap::from([(PORT, self.address)]),
        }
    }
}

/// Reads the key that signs tokens; creates it the first time.
fn token_keys(path: &Path) -> Result<KeySet, StartError> {
    let unusable = |source| StartError::RouterTokenKey { path: path.to_owned(), source };
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let text = SigningKey::generate("local").map_err(unusable)?;
            warren_apiserver::pki::write_private(path, text.as_bytes())
                .map_err(|source| failed("write", path.display(), source))?;
            text
        }
        Err(source) => return Err(failed("read", path.display(), source)),
    };
    let key = SigningKey::parse(&text).map_err(unusable)?;
    KeySet::parse(&key.key_set()).map_err(unusable)
}

/// The running router of a home.
pub struct LocalRouter {
    serving: tokio::task::JoinHandle<()>,
    shown: watch::Receiver<bool>,
    _showing: AbortOnDropHandle<()>,
}

impl LocalRouter {
    /// Starts to serve. It ends with `shutdown`.
    pub fn start(
        server: &ApiServer,
        dialer: LocalDialer,
        socket: RouterSocket,
        node_name: &'static str,
        shutdown: CancellationToken,
    ) -> LocalRouter {
        let client = Client::new(in_process(server, "warren-router"), "default");
        let config = Config {
            hosts: Hosts::Loopback,
            pods: PodScope { addressless: true, ..PodScope::default() },
            // Browsers resolve names below it to this machine.
            host_routing_domain: Some("localhost".to_owned()),
            authorization: Authorization::ScopedToken(socket.keys),
            browser: BrowserConfig {
                cookie: Some(COOKIE.to_owned()),
                query_param: Some(QUERY_PARAM.to_owned()),
                // Loopback has no TLS.
                insecure: true,
                ..BrowserConfig::default()
            },
            ..Config::default()
        };
        let router = Router::new(client.clone(), dialer, config);
        let user = rustix::process::geteuid().as_raw();
        let listener = Listener {
            check: Some(Arc::new(move |peer, here| is_owned_by(user, peer, here))),
            ..Listener::new(socket.socket)
        };
        let serving = tokio::spawn(warren_router::serve(router, listener, shutdown, PATIENCE));
        let (sender, shown) = watch::channel(false);
        let showing = tokio::spawn(keep_objects(client, node_name, sender));
        LocalRouter { serving, shown, _showing: AbortOnDropHandle::new(showing) }
    }

    /// Waits until clients can find the router, or for a limited time.
    pub async fn wait_until_shown(&self) {
        let mut shown = self.shown.clone();
        if tokio::time::timeout(FIRST_OBJECTS, shown.wait_for(|shown| *shown)).await.is_err() {
            warn!("the Service of the router is not there yet");
        }
    }

    /// Waits until the listener has ended.
    pub async fn ended(self) {
        // The panic has already been logged.
        let _ = self.serving.await;
    }
}

/// Returns true if the client of a connection is a process of this user. Every user of the machine
/// can connect to loopback, but a sandbox is private to its owner.
fn is_owned_by(user: u32, client: SocketAddr, here: SocketAddr) -> bool {
    match warren_sys::network::socket_owner(client, here) {
        Ok(owner) => owner == Some(user),
        Err(error) => {
            warn!(%error, "the owner of a connection is not known; refused");
            false
        }
    }
}

/// Keeps the objects that represent the router, and creates them again when they are deleted.
async fn keep_objects(client: Client, node_name: &'static str, shown: watch::Sender<bool>) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let mut changes = std::pin::pin!(watch_object(pods, POD));
    loop {
        match show(&client, node_name).await {
            Ok(()) => drop(shown.send_replace(true)),
            Err(error) => {
                debug!(%error, "objects of the router not written");
                tokio::time::sleep(AFTER_ERROR).await;
                continue;
            }
        }
        if changes.next().await.is_none() {
            return;
        }
    }
}

/// Creates those of the objects that are missing or not ours.
async fn show(client: &Client, node_name: &str) -> kube::Result<()> {
    let create = PostParams::default();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let metadata = |name: &str| ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let namespace = Namespace { metadata: metadata(NAMESPACE), ..Namespace::default() };
    exists_or(namespaces.create(&create, &namespace).await)?;
    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    exists_or(services.create(&create, &from_json(service())?).await)?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    if let Some(pod) = pods.get_opt(POD).await? {
        let is_ours = pod.metadata.annotations.as_ref().is_some_and(|it| it.contains_key(SERVED_BY));
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if is_ours && pod.metadata.deletion_timestamp.is_none() && phase == Some("Running") {
            return Ok(());
        }
        // No node acts on it, so there is nothing to wait for.
        gone_or(pods.delete(POD, &DeleteParams::default().grace_period(0)).await)?;
    }
    exists_or(pods.create(&create, &from_json(pod(node_name))?).await)?;
    let status = Patch::Merge(json!({"status": pod_status()}));
    pods.patch_status(POD, &PatchParams::default(), &status).await?;
    Ok(())
}

fn from_json<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> kube::Result<T> {
    serde_json::from_value(value).map_err(kube::Error::SerdeError)
}

/// Treats "already exists" as success.
fn exists_or<T>(outcome: kube::Result<T>) -> kube::Result<()> {
    match outcome {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        outcome => outcome.map(drop),
    }
}

/// Treats "not found" as success.
fn gone_or<T>(outcome: kube::Result<T>) -> kube::Result<()> {
    match outcome {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        outcome => outcome.map(drop),
    }
}

fn service() -> serde_json::Value {
    json!({
        "metadata": {"name": SERVICE, "labels": {"app": APP}},
        "spec": {
            "selector": {"app": APP},
            "ports": [{"name": "http", "port": PORT, "targetPort": PORT, "protocol": "TCP"}],
        },
    })
}

fn pod(node_name: &str) -> serde_json::Value {
    json!({
        "metadata": {"name": POD, "labels": {"app": APP}, "annotations": {SERVED_BY: "daemon"}},
        "spec": {
            "nodeName": node_name,
            "hostNetwork": true,
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "router",
                "image": "warren.dev/daemon",
                "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
            }],
        },
    })
}

fn pod_status() -> serde_json::Value {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = |name: &str| json!({"type": name, "status": "True", "lastTransitionTime": now});
    let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
    json!({
        "phase": "Running",
        "startTime": now,
        "conditions": conditions,
        "containerStatuses": [{
            "name": "router",
            "image": "warren.dev/daemon",
            "imageID": "",
            "ready": true,
            "started": true,
            "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        }],
    })
}
