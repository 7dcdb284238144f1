//! Connects the API server to the only node by a stream within the process, and the router to pods.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use futures::future::BoxFuture;
use warren_apiserver::{ByteStream, NodeDialer};
use warren_node::Node;
use warren_router::Route;

/// The buffer size: one read of a process's output fits.
const BUFFER: usize = 64 * 1024;

/// Connects to a node that is started after the server that needs it.
#[derive(Clone, Default)]
pub struct LocalDialer {
    node: Arc<OnceLock<Node>>,
}

impl LocalDialer {
    /// Sets the node. It can be reached from now on.
    pub fn connect(&self, node: Node) {
        // A home has one node, so there is one call.
        let _ = self.node.set(node);
    }

    /// Stops the node and leaves its pods running.
    pub async fn shutdown(&self) {
        if let Some(node) = self.node.get() {
            node.shutdown().await;
        }
    }
}

impl warren_router::Dialer for LocalDialer {
    /// Connects to a pod's IPv4 address. In an ordinary user's home, a pod's status has an IPv6
    /// address that leads nowhere (`100::/64`). For such pods, and for pods without an address, it
    /// connects like port-forward.
    fn dial<'a>(
        &'a self,
        route: &'a Route,
        port: u16,
    ) -> BoxFuture<'a, io::Result<Box<dyn warren_router::Stream>>> {
        if matches!(route.address, Some(IpAddr::V4(_))) {
            return warren_router::ByAddress.dial(route, port);
        }
        Box::pin(async move {
            let node = self.node.get().ok_or(io::ErrorKind::NotConnected)?;
            let stream = node.connect_to_pod(&route.namespace, &route.name, port).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn warren_router::Stream>)
        })
    }
}

impl NodeDialer for LocalDialer {
    fn dial(&self, node_name: &str) -> BoxFuture<'_, io::Result<Box<dyn ByteStream>>> {
        let stream = match self.node.get().filter(|_| node_name == crate::home::NODE_NAME) {
            None => {
                Err(io::Error::new(io::ErrorKind::NotConnected, format!("no node `{node_name}` is running")))
            }
            Some(node) => {
                let (near, far) = tokio::io::duplex(BUFFER);
                let connection = node.kubelet(far);
                tokio::spawn(async move {
                    if let Err(error) = connection.await {
                        tracing::debug!(%error, "kubelet connection ended");
                    }
                });
                Ok(Box::new(near) as Box<dyn ByteStream>)
            }
        };
        Box::pin(std::future::ready(stream))
    }
}
