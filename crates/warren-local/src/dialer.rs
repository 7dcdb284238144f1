//! Dials the only node for the API server, by a stream within the process, and dials pods for the
//! router.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use futures::future::BoxFuture;
use warren_apiserver::{ByteStream, NodeDialer};
use warren_node::Node;
use warren_router::Route;

/// One read of a process's output fits in.
const BUFFER: usize = 64 * 1024;

/// Opens streams to a node that is started after the server that needs it.
#[derive(Clone, Default)]
pub struct LocalDialer {
    node: Arc<OnceLock<Node>>,
}

impl LocalDialer {
    /// From now on the node can be reached.
    pub fn connect(&self, node: Node) {
        // There is one node in a home and one call.
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
    /// Connects to a pod's address, which is of version 4. In an ordinary user's home the address in a pod's status is one of
    /// version 6 that leads nowhere (`100::/64`): there, and where a pod has none, it connects the way port-forward does.
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
