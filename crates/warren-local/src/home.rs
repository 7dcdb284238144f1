//! Starts the parts of a home, keeps them running, and stops them.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::info;
use warren_apiserver::pki::Pki;
use warren_apiserver::{
    ApiServer, AuditConfig, Identity, InProcess, Limits, Storage, TlsAccess, serve_tls, serve_unix,
};
use warren_node::{Node, NodeConfig};
use warren_oci::privileges::Privileges;
use warren_oci::protocol::RuntimeProgram;
use warren_oci::zygote::Zygote;

use crate::controllers::LocalControllers;
use crate::dialer::LocalDialer;
use crate::router::{LocalRouter, RouterSocket};
use crate::{Config, StartError, descriptors, kubeconfig, presentation};

/// The name of the only node. It is not the machine's name: if that changed, existing pods would
/// belong to a node that does not exist.
pub const NODE_NAME: &str = "local";

/// The file in the data directory that has all objects.
pub const STORE: &str = "store.db";

/// The time for controllers and node to finish their work at the end. Both can be killed in the
/// middle without harm.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs until a signal asks to stop.
pub async fn serve(
    config: Config,
    runtimes: BTreeMap<String, RuntimeProgram>,
    privileges: Privileges,
    zygote: Zygote,
    node_threads: &Handle,
    on_ready: impl FnOnce(),
) -> Result<(), StartError> {
    // Listen from the start, so that a signal during the start is obeyed as soon as there is
    // something to stop.
    let mut terminate = signal(SignalKind::terminate()).map_err(StartError::Runtime)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(StartError::Runtime)?;

    let zygote = Arc::new(zygote);
    let zygote_ended = watch_zygote(Arc::clone(&zygote)).map_err(StartError::Runtime)?;
    let dialer = LocalDialer::default();
    let pki = open_pki(&config)?;
    let server = open_server(&config, &pki, dialer.clone()).await?;
    let mut controllers = LocalControllers::start(&server, config.build);
    let router_socket = RouterSocket::open(&config).await?;
    let node_config = NodeConfig {
        registries: config.registries.clone(),
        runtimes,
        privileges,
        host_paths: config.host_paths.clone(),
        own_pods: vec![router_socket.pod()],
        ..NodeConfig::local(
            NODE_NAME.to_owned(),
            config.directory.clone(),
            kube::Client::new(in_process(&server, "system:node:local"), "default"),
            zygote,
        )
    };
    dialer.connect(start_node(node_config, node_threads)?);

    let shutdown = CancellationToken::new();
    let tcp = listen_tcp(&config).await?;
    let address = tcp.local_addr().map_err(|source| failed("listen on", config.listen, source))?;
    let tls = publish(&config, &pki, address)?;
    let unix = listen_unix(&config)?;
    let mut listeners = [
        tokio::spawn(serve_tls(server.clone(), tcp, tls, shutdown.clone())),
        tokio::spawn(serve_unix(server.clone(), unix, shutdown.clone())),
    ];
    let router = LocalRouter::start(&server, dialer.clone(), router_socket, NODE_NAME, shutdown.clone());
    tokio::join!(controllers.wait_until_listed(), router.wait_until_shown());
    let shown = tokio::spawn(presentation::present(
        kube::Client::new(in_process(&server, "warren-controllers"), "default"),
        config.version.clone(),
    ));
    info!(%address, directory = %config.directory.display(), "ready");
    on_ready();

    let outcome = tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        // Without it no pod can be started. The next daemon gets a new one and keeps the pods.
        _ = zygote_ended => Err(StartError::ZygoteEnded),
        died = server.failed() => Err(StartError::Thread(died)),
        _ = futures::future::select_all(&mut listeners) => Err(StartError::Died { what: "a listener of the API" }),
        () = controllers.died() => Err(StartError::Died { what: "the task of the controllers" }),
    };
    if let Err(error) = &outcome {
        tracing::error!(%error, "the home cannot go on");
    }
    info!("stopping; sandboxes run on");
    // Stop in this order: listeners, then the parts that write, then the server.
    shutdown.cancel();
    shown.abort();
    let _ = std::fs::remove_file(&config.api_socket);
    router.ended().await;
    let writers = async { tokio::join!(controllers.shutdown(), dialer.shutdown()) };
    if tokio::time::timeout(PATIENCE, writers).await.is_err() {
        info!("controllers or node cut off");
    }
    server.shutdown().await;
    for listener in listeners.into_iter().filter(|listener| !listener.is_finished()) {
        // The panic of a listener has already been logged.
        let _ = listener.await;
    }
    info!("stopped");
    outcome
}

/// Starts the node on its own threads.
fn start_node(config: NodeConfig, threads: &Handle) -> Result<Node, warren_node::StartError> {
    let _there = threads.enter();
    Node::start(config)
}

/// Reports the end of the zygote. It uses a thread, because the connection is also read for each
/// start of a pod, and the async runtime cannot wait for a hang-up alone.
pub fn watch_zygote(zygote: Arc<Zygote>) -> io::Result<oneshot::Receiver<()>> {
    let (sender, receiver) = oneshot::channel();
    std::thread::Builder::new().name("warren-watch".to_owned()).spawn(move || {
        loop {
            match poll(&mut [PollFd::new(&*zygote, PollFlags::empty())], None) {
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the zygote cannot be watched");
                    return;
                }
            }
        }
        // If the home is stopping, the receiver is gone.
        let _ = sender.send(());
    })?;
    Ok(receiver)
}

/// Returns the server as an in-process service for a part of this process.
pub fn in_process(server: &ApiServer, user: &str) -> InProcess {
    server.as_user(Identity::new(user, ["system:masters".to_owned()])).without_managed_fields()
}

async fn open_server(config: &Config, pki: &Pki, dialer: LocalDialer) -> Result<ApiServer, StartError> {
    let crds = warren_api::crds()
        .into_iter()
        .map(serde_json::to_value)
        .collect::<Result<_, _>>()
        .map_err(StartError::Definitions)?;
    let server = ApiServer::open(warren_apiserver::Config {
        storage: Storage::File(config.directory.join(STORE)),
        crds,
        nodes: Arc::new(dialer),
        accounts: Some(pki.accounts()?),
        now: Timestamp::now,
        limits: limits(),
        audit: Some(AuditConfig::new(config.directory.join("audit.log"))),
    })
    .await?;
    Ok(server)
}

/// Returns the limits of clients. The connections of the two listeners may use three quarters of
/// the descriptors; pods and the store need the rest.
fn limits() -> Limits {
    let descriptors = usize::try_from(descriptors::raise_limit()).unwrap_or(usize::MAX);
    let usual = Limits::default();
    Limits { connections: usual.connections.min(descriptors / 8 * 3), ..usual }
}

async fn listen_tcp(config: &Config) -> Result<TcpListener, StartError> {
    if config.listen.port() == 0
        && let Some(port) = kubeconfig::port_of_last_time(&config.kubeconfig)
        && let Ok(listener) = TcpListener::bind((config.listen.ip(), port)).await
    {
        return Ok(listener);
    }
    TcpListener::bind(config.listen).await.map_err(|source| failed("listen on", config.listen, source))
}

/// Opens the keys and certificates of the home, and creates them at the first start.
fn open_pki(config: &Config) -> Result<Pki, StartError> {
    let hosts =
        ["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned(), config.listen.ip().to_string()];
    let mut hosts = hosts.to_vec();
    hosts.sort();
    hosts.dedup();
    Ok(Pki::open(&config.directory.join("pki"), &hosts, Timestamp::now())?)
}

/// Writes the kubeconfig for an address and the certificates.
fn publish(config: &Config, pki: &Pki, address: SocketAddr) -> Result<TlsAccess, StartError> {
    let text = pki.kubeconfig(&format!("https://{}", reachable(address)))?;
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "the API listens beyond this machine");
    }
    kubeconfig::write(&config.kubeconfig, &text)
        .map_err(|source| failed("write", config.kubeconfig.display(), source))?;
    Ok(TlsAccess { config: pki.server_config()?, admin_token: Some(pki.admin_token()?) })
}

/// Returns the address under which clients on this machine reach a listener. One on all addresses
/// is reached on loopback.
pub fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

fn listen_unix(config: &Config) -> Result<UnixListener, StartError> {
    let path = &config.api_socket;
    // Left by a killed daemon. We hold the lock, so it has no listener.
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            return Err(failed("remove", path.display(), source));
        }
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(|source| failed("listen on", path.display(), source))?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))
        .map_err(|source| failed("change the mode of", path.display(), source))?;
    Ok(listener)
}

pub fn failed(action: &'static str, on: impl std::fmt::Display, source: io::Error) -> StartError {
    StartError::Make { action, on: on.to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::reachable;

    #[test]
    fn a_listener_on_all_addresses_is_reached_on_loopback() {
        for (listens, reached) in [
            ("0.0.0.0:6443", "127.0.0.1:6443"),
            ("[::]:6443", "[::1]:6443"),
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("192.0.2.7:2", "192.0.2.7:2"),
        ] {
            assert_eq!(reachable(listens.parse().unwrap()), reached.parse().unwrap());
        }
    }
}
