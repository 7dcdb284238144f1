//! A node as a member of a cluster: the same node as in the local home, with its own data directory
//! and the cluster's API server.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use rustix::system::uname;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};
use warren_node::{AccessError, KubeletAccess, Node, NodeConfig, RegistryConfig};
use warren_oci::privileges::Privileges;
use warren_oci::protocol::RuntimeProgram;
use warren_oci::zygote::{StartZygoteError, Zygote};

use crate::lock::{Holder, Lock, LockError, Starting};
use crate::{
    FAREWELL, NamedRuntime, PrivacyError, RuntimeError, descriptors, home, private, rest, runtimes, threads,
};

/// The interval of heartbeats, the same as kubelet's. A node is lost after four missing ones.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// The time for the node to finish its work at the end. It can be killed in the middle without
/// harm.
const PATIENCE: Duration = Duration::from_secs(2);
/// A signal this soon after the first one counts as the same request.
const SAME_SIGNAL: Duration = Duration::from_secs(1);
/// The time limit for another node on the same directory to accept a connection.
const ANSWER: Duration = Duration::from_secs(2);
/// The file in the data directory that names the cluster. A local home checks it, because it would
/// end the cluster's pods as leftovers.
const MARK: &str = "cluster";

/// The configuration of a member.
#[derive(Clone, Debug)]
pub struct MemberConfig {
    /// The data directory. It exists, and the path is canonical.
    pub directory: PathBuf,
    /// The kubeconfig for the API server. `None`: found as by kubectl and programs in pods.
    pub kubeconfig: Option<PathBuf>,
    /// The name of its Node. `None`: the machine's.
    pub name: Option<String>,
    /// The address in its status. `None`: the one from which this machine reaches the API server.
    pub address: Option<IpAddr>,
    /// The address of kubelet's API.
    pub listen: SocketAddr,
    /// The certificates of kubelet's API.
    pub access: KubeletAccess,
    /// The configuration of image pulls.
    pub registries: RegistryConfig,
    /// Further runtimes for pods. `runsc` is available as `gvisor` if it is found, even if it is
    /// not named.
    pub runtimes: Vec<NamedRuntime>,
    /// The search path for programs: `PATH`.
    pub program_path: Option<OsString>,
    /// True to serve volume claims with directories of this machine.
    pub serve_claims: bool,
    /// The time for pods to leave when the node is stopped. Zero leaves them running.
    pub drain: Duration,
    /// Our version, for the lock file.
    pub version: String,
}

/// A running member, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Our process id.
    pub pid: u32,
    /// The name of the Node.
    pub name: String,
    /// The URL of the API server.
    pub server: String,
    /// The address of kubelet's API.
    pub listen: SocketAddr,
}

/// An error of a member.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// The privileges of this process could not be determined.
    #[error("find out what this process may do")]
    Privileges(#[source] io::Error),
    /// Other users could read the data directory.
    #[error(transparent)]
    Privacy(#[from] PrivacyError),
    /// Another process holds the data directory.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The data directory belongs to a local home, with its pods.
    #[error("`{}` is the data directory of a local home", directory.display())]
    LocalHome {
        /// The path of the directory.
        directory: PathBuf,
    },
    /// Only root can make the containers of a cluster's pods.
    #[error("a node of a cluster runs as root")]
    NotRoot,
    /// A named runtime does not work.
    #[error(transparent)]
    Runtimes(#[from] RuntimeError),
    /// The zygote could not be started.
    #[error(transparent)]
    Zygote(#[from] StartZygoteError),
    /// The zygote has ended.
    #[error("the zygote has ended, and no pod can be started without it")]
    ZygoteEnded,
    /// The async runtime could not be started.
    #[error("start the runtime")]
    Runtime(#[source] io::Error),
    /// The kubeconfig cannot be used.
    #[error("read {from}")]
    Kubeconfig {
        /// The source of the kubeconfig.
        from: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No client could be made from the kubeconfig.
    #[error("use the kubeconfig")]
    Client(#[source] Box<kube::Error>),
    /// The address of this machine is unknown.
    #[error("find the address from which this machine reaches `{server}`")]
    Address {
        /// The URL of the API server.
        server: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file or socket could not be created.
    #[error("{action} `{on}`")]
    Make {
        /// The failed action.
        action: &'static str,
        /// The path or address.
        on: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The node could not be started.
    #[error("start the node")]
    Node(#[from] warren_node::StartError),
    /// Its API cannot be served.
    #[error("serve the node's API")]
    Access(#[from] AccessError),
}

/// Runs a member until SIGTERM or SIGINT. The first signal drains the node, a second one ends it at
/// once. `on_ready` is called when the node is registered.
///
/// The process must be single-threaded: the zygote and the threads inherit the properties
/// that it has when they are made. After a `kill -9` at any point pods continue, and the next call
/// finds them.
pub fn run_member(config: MemberConfig, on_ready: impl FnOnce(&Member)) -> Result<(), MemberError> {
    let privileges = Privileges::of_this_process().map_err(MemberError::Privileges)?;
    if privileges != Privileges::Machine {
        return Err(MemberError::NotRoot);
    }
    private::tighten(&config.directory)?;
    let starting = Starting::begin(&config.directory)?;
    // Check this before waiting for its lock.
    if config.directory.join(home::STORE).exists() {
        return Err(MemberError::LocalHome { directory: config.directory });
    }
    let holder = Holder { pid: std::process::id(), version: config.version.clone(), settings: None };
    let _lock = Lock::take(&config.directory, &holder, || answers(&config.directory))?;
    // Their programs are executed to identify them, which also needs a single-threaded process.
    let other_runtimes = runtimes::find(privileges, &config.runtimes, config.program_path.as_deref())?;
    let zygote = warren_node::start_zygote()?;
    let runtime = threads::of_node().map_err(MemberError::Runtime)?;
    runtime.spawn(rest::give_memory_back());
    let outcome = runtime.block_on(serve(config, other_runtimes, zygote, starting, on_ready));
    runtime.shutdown_timeout(FAREWELL);
    outcome
}

/// Returns true if the node of a directory accepts connections. It does not if its process was
/// killed.
fn answers(directory: &Path) -> bool {
    let mark = std::fs::read_to_string(directory.join(MARK)).unwrap_or_default();
    let listens = mark.lines().nth(1).and_then(|line| line.parse::<SocketAddr>().ok());
    listens.is_some_and(|address| TcpStream::connect_timeout(&home::reachable(address), ANSWER).is_ok())
}

/// Returns true if a data directory belongs to a member of a cluster.
pub(crate) fn is_member(directory: &Path) -> bool {
    directory.join(MARK).exists()
}

async fn serve(
    config: MemberConfig,
    runtimes: BTreeMap<String, RuntimeProgram>,
    zygote: Zygote,
    starting: Starting,
    on_ready: impl FnOnce(&Member),
) -> Result<(), MemberError> {
    // Listen from the start, so that a signal during the start is obeyed as soon as there is
    // something to stop.
    let mut terminate = signal(SignalKind::terminate()).map_err(MemberError::Runtime)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(MemberError::Runtime)?;
    let zygote = Arc::new(zygote);
    let zygote_ended = home::watch_zygote(Arc::clone(&zygote)).map_err(MemberError::Runtime)?;
    descriptors::raise_limit();

    let cluster = cluster(config.kubeconfig.as_deref()).await?;
    let server = cluster.cluster_url.to_string();
    let address = match config.address {
        Some(address) => address,
        None => address_towards(&cluster.cluster_url)
            .await
            .map_err(|source| MemberError::Address { server: server.clone(), source })?,
    };
    let client = kube::Client::try_from(cluster).map_err(|source| MemberError::Client(Box::new(source)))?;
    let name = config.name.clone().unwrap_or_else(machine_name);
    let failed = |source| MemberError::Make { action: "listen on", on: config.listen.to_string(), source };
    let listener = TcpListener::bind(config.listen).await.map_err(failed)?;
    let listen = listener.local_addr().map_err(failed)?;
    mark(&config.directory, &name, &server, listen)?;
    let node = Node::start(NodeConfig {
        bind_unassigned: false,
        serve_claims: config.serve_claims,
        host_ip: address,
        kubelet_port: Some(listen.port()),
        heartbeat: Some(HEARTBEAT),
        registries: config.registries.clone(),
        runtimes,
        ..NodeConfig::local(name.clone(), config.directory.clone(), client, zygote)
    })?;
    let mut listening = pin!(node.listen(listener, &config.access)?);
    drop(starting);
    // Wait for an unavailable API server, and obey signals meanwhile.
    let ready = async {
        node.wait_until_registered().await;
        info!(node = %name, %server, %listen, directory = %config.directory.display(), "taking pods");
        on_ready(&Member { pid: std::process::id(), name, server, listen });
        std::future::pending::<Infallible>().await
    };

    let (outcome, stopped) = tokio::select! {
        _ = terminate.recv() => (Ok(()), true),
        _ = interrupt.recv() => (Ok(()), true),
        // Without it no pod can be started. The next node gets a new one and keeps the pods.
        _ = zygote_ended => (Err(MemberError::ZygoteEnded), false),
        never = ready => match never {},
        ended = &mut listening => match ended {
            Ok(never) => match never {},
            Err(error) => (Err(error.into()), false),
        },
    };
    // After a failure, keep the pods for the process that a supervisor starts next.
    if stopped {
        // Serve the API while pods end slowly.
        tokio::select! {
            () = drain(&node, config.drain, &mut terminate, &mut interrupt) => {}
            _ = &mut listening => {}
        }
    }
    if tokio::time::timeout(PATIENCE, node.shutdown()).await.is_err() {
        info!("node cut off");
    }
    info!("stopped");
    outcome
}

async fn drain(node: &Node, patience: Duration, terminate: &mut Signal, interrupt: &mut Signal) {
    if patience.is_zero() {
        return info!("stopping; pods run on");
    }
    info!("stopping once the pods have left; another signal, later than a second, leaves them running");
    let another = async {
        // Supervisors, shells and people often send a signal several times.
        tokio::time::sleep(SAME_SIGNAL).await;
        another_signal(terminate, interrupt).await;
    };
    tokio::select! {
        left = node.drain(patience) => match left {
            0 => info!("no pods are left"),
            left => warn!(left, "stopping; these pods run on"),
        },
        () = another => warn!("stopping at once; pods run on"),
    }
}

/// Waits for a new signal. Earlier ones are discarded.
async fn another_signal(terminate: &mut Signal, interrupt: &mut Signal) {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for signal in [&mut *terminate, &mut *interrupt] {
        while signal.poll_recv(&mut context).is_ready() {}
    }
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

async fn cluster(kubeconfig: Option<&Path>) -> Result<kube::Config, MemberError> {
    let Some(path) = kubeconfig else {
        return kube::Config::infer().await.map_err(|source| MemberError::Kubeconfig {
            from: "the kubeconfig".to_owned(),
            source: source.into(),
        });
    };
    let failed = |source: KubeconfigError| MemberError::Kubeconfig {
        from: format!("the kubeconfig `{}`", path.display()),
        source: source.into(),
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
    kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(failed)
}

/// Returns the source address of packets to the server. No packet is sent: connecting a datagram
/// socket only selects the route.
async fn address_towards(server: &http::Uri) -> io::Result<IpAddr> {
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']);
    let port = server.port_u16().unwrap_or(443);
    let nowhere = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let there = tokio::net::lookup_host((host, port)).await?.next().ok_or_else(nowhere)?;
    let any: SocketAddr = match there {
        SocketAddr::V4(_) => ([0; 4], 0).into(),
        SocketAddr::V6(_) => ([0; 16], 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(there)?;
    Ok(socket.local_addr()?.ip())
}

/// Returns the machine's name as a valid name of a Node.
fn machine_name() -> String {
    uname().nodename().to_string_lossy().to_lowercase()
}

/// Writes the owner of the directory, for people and for a local home, and the address of the
/// node's API, for the next node on this directory.
fn mark(directory: &Path, name: &str, server: &str, listen: SocketAddr) -> Result<(), MemberError> {
    let path = directory.join(MARK);
    std::fs::write(&path, format!("node `{name}` of {server}\n{listen}\n"))
        .map_err(|source| MemberError::Make { action: "write", on: path.display().to_string(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_listens_is_there_and_one_that_does_not_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        assert!(!is_member(directory.path()) && !answers(directory.path()));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        mark(directory.path(), "a", "https://b/", listener.local_addr().unwrap()).unwrap();
        assert!(is_member(directory.path()) && answers(directory.path()));
        drop(listener);
        assert!(is_member(directory.path()) && !answers(directory.path()));
    }

    #[tokio::test]
    async fn a_signal_that_came_before_is_not_another_one() {
        use futures::FutureExt as _;
        let kind = SignalKind::user_defined1();
        let listen = || signal(kind).unwrap();
        let (mut terminate, mut interrupt, mut witness) = (listen(), listen(), listen());
        let mut send = async || {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::USR1).unwrap();
            // Once the witness has the signal, every listener has it.
            witness.recv().await;
        };
        send().await;
        let mut another = Box::pin(another_signal(&mut terminate, &mut interrupt));
        assert!(another.as_mut().now_or_never().is_none(), "the same signal once more");
        send().await;
        another.await;
    }

    #[tokio::test]
    async fn the_address_is_the_one_that_the_server_would_see() {
        let server = "https://127.0.0.1:6443".parse().unwrap();
        assert_eq!(address_towards(&server).await.unwrap(), IpAddr::from([127, 0, 0, 1]));
    }
}
