//! The API servers that the node is tested with.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use kube::Client;
use warren_apiserver::{ApiServer, ByteStream, Config, Identity, NodeDialer, Storage};
use warren_node::Node;

/// The running nodes by name, through which the embedded server reaches them.
#[derive(Default)]
pub struct Nodes(pub Mutex<HashMap<String, Arc<Node>>>);

impl NodeDialer for Nodes {
    fn dial(&self, node_name: &str) -> BoxFuture<'_, io::Result<Box<dyn ByteStream>>> {
        let node = self.0.lock().unwrap().get(node_name).cloned();
        Box::pin(async move {
            let node = node.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            let (near, far) = tokio::io::duplex(64 << 10);
            tokio::spawn(node.kubelet(far));
            Ok(Box::new(near) as Box<dyn ByteStream>)
        })
    }
}

/// Starts our server in this process.
pub async fn embedded(nodes: Arc<Nodes>) -> Client {
    let config = Config {
        storage: Storage::Memory,
        crds: Vec::new(),
        nodes,
        accounts: None,
        now: jiff::Timestamp::now,
        limits: Default::default(),
        audit: None,
    };
    let server = ApiServer::open(config).await.expect("a server");
    Client::new(server.as_user(Identity::admin()), "default")
}

/// Connects to a real Kubernetes control plane.
pub async fn real() -> Client {
    let start = warren_testkit::kube::ControlPlane::start;
    let control_plane = tokio::task::spawn_blocking(start).await.expect("a control plane");
    let config = kube::config::Kubeconfig::read_from(control_plane.kubeconfig()).expect("a kubeconfig");
    let config =
        kube::Config::from_custom_kubeconfig(config, &Default::default()).await.expect("a usable kubeconfig");
    Client::try_from(config).expect("a client")
}
