//! Defines a node's configuration.

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

/// A node's configuration.
#[derive(Clone)]
pub struct NodeConfig {
    /// The name of its Node object.
    pub name: String,
    /// Warren's data directory; pods live in `pods/` below it.
    pub data_dir: PathBuf,
    /// The client of the API server.
    pub client: kube::Client,
    /// The process that forks the shims of new pods. Started before the process had any thread.
    pub zygote: Arc<Zygote>,
    /// The privileges of this process, which limit what pods can have.
    pub privileges: Privileges,
    /// Set to take pods that no scheduler has placed.
    pub bind_unassigned: bool,
    /// The address range of pods; `None`: a range that is unused on this machine.
    pub pod_range: Option<Block>,
    /// The address that pods report as their `hostIP`.
    pub host_ip: IpAddr,
    /// The settings for pulling images.
    pub registries: RegistryConfig,
    /// Other runtimes, by the names of their runtime classes.
    pub runtimes: BTreeMap<String, RuntimeProgram>,
    /// The host directories that pods may mount.
    pub host_paths: Vec<HostPath>,
    /// The interval at which the node's lease is renewed; `None` in the local home, where no
    /// controller watches it.
    pub heartbeat: Option<Duration>,
    /// The port of kubelet's API for the API server, see [`Node::listen`](crate::Node::listen);
    /// `None` in the local home, where streams stay within the process.
    pub kubelet_port: Option<u16>,
    /// Set to serve volume claims with directories of this machine.
    pub serve_claims: bool,
    /// Pods that stand for this process: no container is started for them.
    pub own_pods: Vec<OwnPod>,
}

/// A pod of the API that stands for a part of the node's process. The node starts nothing for it
/// and reports nothing about it. Port-forward reaches the addresses that are given here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnPod {
    /// The namespace of the Pod object.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The address of each of its ports.
    pub ports: BTreeMap<u16, SocketAddr>,
}

impl NodeConfig {
    /// Returns the configuration of the only node of root's local home: it takes every pod, serves
    /// every volume claim and renews no lease.
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

/// The settings for pulling images from registries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryConfig {
    /// Credential files, as `docker login` and `podman login` write them. Missing ones are skipped.
    pub credential_files: Vec<PathBuf>,
    /// Registries, as images name them (`host:port`), that are used without TLS. Those on loopback
    /// always are.
    pub insecure: Vec<String>,
    /// Directories with one subdirectory per registry, which holds the certificates to trust for
    /// it.
    pub certificate_directories: Vec<PathBuf>,
}

impl Default for RegistryConfig {
    /// Returns no credentials and the certificate directories of other engines.
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
