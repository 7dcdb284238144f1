//! The node alone, as a member of a cluster: the same node as in the local home, over a data directory of its own, with the
//! cluster's API server in the place of ours.

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

/// As often as kubelet: a node is lost after four that did not come.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long the node may take to leave what it is at. Dying in the middle is an ordinary day for it.
const PATIENCE: Duration = Duration::from_secs(2);
/// A signal this soon after the first is the same wish once more.
const SAME_SIGNAL: Duration = Duration::from_secs(1);
/// How long another node on the same directory has to take a connection.
const ANSWER: Duration = Duration::from_secs(2);
/// In the data directory: which cluster it belongs to. A local home would take its pods for those of objects that are gone, and
/// end them.
const MARK: &str = "cluster";

/// Everything a member needs to know.
#[derive(Clone, Debug)]
pub struct MemberConfig {
    /// The data directory: it exists, and the path is canonical.
    pub directory: PathBuf,
    /// How it reaches the API server; `None`: as kubectl and programs in pods find it.
    pub kubeconfig: Option<PathBuf>,
    /// The name of its Node; `None`: the machine's.
    pub name: Option<String>,
    /// The address that it gives for itself; `None`: the one from which this machine reaches the API server.
    pub address: Option<IpAddr>,
    /// Where kubelet's API listens.
    pub listen: SocketAddr,
    /// Its certificates.
    pub access: KubeletAccess,
    /// How images are pulled.
    pub registries: RegistryConfig,
    /// Further runtimes for pods. `runsc` is `gvisor` also without being named, where it is found.
    pub runtimes: Vec<NamedRuntime>,
    /// Where programs are looked for, as `PATH` has it.
    pub program_path: Option<OsString>,
    /// Whether to serve volume claims with directories of this machine.
    pub serve_claims: bool,
    /// How long pods may take to leave when the node is asked to stop; zero leaves them running.
    pub drain: Duration,
    /// What to call ourselves in the lock file.
    pub version: String,
}

/// What became of a configuration, for people to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Our process.
    pub pid: u32,
    /// The name of the Node.
    pub name: String,
    /// The API server.
    pub server: String,
    /// Where kubelet's API listens.
    pub listen: SocketAddr,
}

/// A member could not be started, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// What we may do on this machine could not be found out.
    #[error("find out what this process may do")]
    Privileges(#[source] io::Error),
    /// Other users could read the data directory.
    #[error(transparent)]
    Privacy(#[from] PrivacyError),
    /// Somebody else has the data directory.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The data directory is that of a local home, whose pods are not the cluster's.
    #[error("`{}` is the data directory of a local home", directory.display())]
    LocalHome {
        /// Which directory.
        directory: PathBuf,
    },
    /// Containers of a cluster's pods are for root to make.
    #[error("a node of a cluster runs as root")]
    NotRoot,
    /// A runtime that was named does not work.
    #[error(transparent)]
    Runtimes(#[from] RuntimeError),
    /// The process that forks shims could not be made.
    #[error(transparent)]
    Zygote(#[from] StartZygoteError),
    /// That process has ended.
    #[error("the zygote has ended, and no pod can be started without it")]
    ZygoteEnded,
    /// No threads.
    #[error("start the runtime")]
    Runtime(#[source] io::Error),
    /// The kubeconfig cannot be used.
    #[error("read {from}")]
    Kubeconfig {
        /// Which one.
        from: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What it says cannot be made into a client.
    #[error("use the kubeconfig")]
    Client(#[source] Box<kube::Error>),
    /// This machine's address is not known.
    #[error("find the address from which this machine reaches `{server}`")]
    Address {
        /// The API server.
        server: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file or a socket could not be made.
    #[error("{action} `{on}`")]
    Make {
        /// What was tried.
        action: &'static str,
        /// A path or an address.
        on: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The node did not come up.
    #[error("start the node")]
    Node(#[from] warren_node::StartError),
    /// Its API cannot be served.
    #[error("serve the node's API")]
    Access(#[from] AccessError),
}

/// Runs a member until SIGTERM or SIGINT, which empties the node first; a second one leaves at once. `on_ready` is called when the
/// API server knows the node.
///
/// To be called by a process with one thread: the zygote and the threads begin as their maker, each at its time. After a `kill -9` at any point pods run on, and the next
/// call finds them.
pub fn run_member(config: MemberConfig, on_ready: impl FnOnce(&Member)) -> Result<(), MemberError> {
    let privileges = Privileges::of_this_process().map_err(MemberError::Privileges)?;
    if privileges != Privileges::Machine {
        return Err(MemberError::NotRoot);
    }
    private::tighten(&config.directory)?;
    let starting = Starting::begin(&config.directory)?;
    // Before its lock is waited for.
    if config.directory.join(home::STORE).exists() {
        return Err(MemberError::LocalHome { directory: config.directory });
    }
    let holder = Holder { pid: std::process::id(), version: config.version.clone(), settings: None };
    let _lock = Lock::take(&config.directory, &holder, || answers(&config.directory))?;
    // Their programs are asked who they are, which is for a process with one thread, too.
    let other_runtimes = runtimes::find(privileges, &config.runtimes, config.program_path.as_deref())?;
    let zygote = warren_node::start_zygote()?;
    let runtime = threads::of_node().map_err(MemberError::Runtime)?;
    runtime.spawn(rest::give_memory_back());
    let outcome = runtime.block_on(serve(config, other_runtimes, zygote, starting, on_ready));
    runtime.shutdown_timeout(FAREWELL);
    outcome
}

/// Whether the node of a directory still takes connections. One whose process was killed does not.
fn answers(directory: &Path) -> bool {
    let mark = std::fs::read_to_string(directory.join(MARK)).unwrap_or_default();
    let listens = mark.lines().nth(1).and_then(|line| line.parse::<SocketAddr>().ok());
    listens.is_some_and(|address| TcpStream::connect_timeout(&home::reachable(address), ANSWER).is_ok())
}

/// Whether a data directory is that of a member of a cluster.
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
    // Listened for from the start: a signal that comes now is obeyed as soon as there is something to stop.
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
    // An API server that is away is waited for, and a signal obeyed meanwhile.
    let ready = async {
        node.wait_until_registered().await;
        info!(node = %name, %server, %listen, directory = %config.directory.display(), "taking pods");
        on_ready(&Member { pid: std::process::id(), name, server, listen });
        std::future::pending::<Infallible>().await
    };

    let (outcome, stopped) = tokio::select! {
        _ = terminate.recv() => (Ok(()), true),
        _ = interrupt.recv() => (Ok(()), true),
        // Without it no pod can be started. The next node has a new one, and the same pods.
        _ = zygote_ended => (Err(MemberError::ZygoteEnded), false),
        never = ready => match never {},
        ended = &mut listening => match ended {
            Ok(never) => match never {},
            Err(error) => (Err(error.into()), false),
        },
    };
    // A supervisor that starts us again after a failure wants its pods as they are.
    if stopped {
        // Pods that take their time can be looked at meanwhile.
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
        // Supervisors, shells and people send the same wish several times at once.
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

/// Waits for a signal that comes from now on. One that came before is forgotten.
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

/// The address that packets to the server would have as their source. None is sent: a datagram socket is only told where to.
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

/// The machine's name as a Node may have it.
fn machine_name() -> String {
    uname().nodename().to_string_lossy().to_lowercase()
}

/// Writes down whose the directory is, for people and for a local home that must not take it, and where the node listens, for
/// the next one on this directory.
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
