//! What a node is told at its start.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use warren_decide::network::Block;
use warren_decide::pod::HostPath;
use warren_oci::privileges::Privileges;
use warren_oci::protocol::RuntimeProgram;
use warren_oci::zygote::Zygote;

/// What a node is told at its start.
#[derive(Clone)]
pub struct NodeConfig {
    /// The name of its Node object.
    pub name: String,
    /// Warren's data directory; pods live in `pods/` below it.
    pub data_dir: PathBuf,
    /// How it reaches the API server.
    pub client: kube::Client,
    /// Forks the shims of new pods. Started before the process had any thread.
    pub zygote: Arc<Zygote>,
    /// What we may do on this machine, and hence what pods can have.
    pub privileges: Privileges,
    /// Whether to take pods that no scheduler has placed.
    pub bind_unassigned: bool,
    /// Addresses for pods; `None`: a range that nobody on this machine uses.
    pub pod_range: Option<Block>,
    /// The address that pods report as their `hostIP`.
    pub host_ip: IpAddr,
    /// How images are pulled.
    pub registries: RegistryConfig,
    /// Other runtimes that pods may ask for, by the names of their runtime classes.
    pub runtimes: BTreeMap<String, RuntimeProgram>,
    /// The directories of the host that pods may have as volumes.
    pub host_paths: Vec<HostPath>,
    /// How often to renew the node's lease; `None` in the local home, where nobody watches it.
    pub heartbeat: Option<Duration>,
    /// The port where the API server reaches kubelet's API, see [`Node::listen`](crate::Node::listen); `None` in the local home,
    /// where it has streams within the process.
    pub kubelet_port: Option<u16>,
    /// Whether to serve volume claims with directories of this machine.
    pub serve_claims: bool,
    /// Pods that this process is itself: no container is started for them.
    pub own_pods: Vec<OwnPod>,
}

/// A pod of the API that stands for a part of the process that the node runs in. The node starts nothing for it and
/// reports nothing about it; port-forward reaches the addresses that are named here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnPod {
    /// The namespace of the Pod object.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The address that each of its ports is served on.
    pub ports: BTreeMap<u16, SocketAddr>,
}

impl NodeConfig {
    /// The only node of root's local home: takes every pod, serves every volume claim, renews no lease.
    pub fn local(name: String, data_dir: PathBuf, client: kube::Client, zygote: Arc<Zygote>) -> NodeConfig {
        NodeConfig {
            name,
            data_dir,
            client,
            zygote,
            privileges: Privileges::Machine,
            bind_unassigned: true,
            pod_range: None,
            host_ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
            registries: RegistryConfig::default(),
            runtimes: BTreeMap::new(),
            host_paths: Vec::new(),
            heartbeat: None,
            kubelet_port: None,
            serve_claims: true,
            own_pods: Vec::new(),
        }
    }
}

/// How images are pulled from registries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryConfig {
    /// Files of credentials, as `docker login` and `podman login` write them. Those that are not there are passed over.
    pub credential_files: Vec<PathBuf>,
    /// Registries, as images name them (`host:port`), that are spoken to without TLS. Those on loopback always are.
    pub insecure: Vec<String>,
    /// Directories with one of the registry's name in each, which has the certificates to believe it by.
    pub certificate_directories: Vec<PathBuf>,
}

impl Default for RegistryConfig {
    /// No credentials, and the places where other engines keep certificates.
    fn default() -> Self {
        Self {
            credential_files: Vec::new(),
            insecure: Vec::new(),
            certificate_directories: ["/etc/containers/certs.d", "/etc/docker/certs.d"]
                .map(PathBuf::from)
                .to_vec(),
        }
    }
}
