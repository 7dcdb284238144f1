//! The pod network of a home: assigns addresses and isolates pods.
//!
//! Each pod with a network has a device pair of its own to the host (the shim makes it), and the
//! host routes. The home has a bridge without ports that carries the gateway's address, and one
//! nftables table with the rules: from pods to the name server and the proxy at the gateway, from
//! pods with full network to the outside, between pods as policies allow, and nothing else. Names
//! contain the home's id. Devices go with their pods, whichever process dies. Bridge and table are
//! made for the first pod and stay while there are pods. A daemon that finds them goes on with
//! them.
//!
//! An ordinary user may not make any of these. Its pods have a socket on their own loopback, whose
//! other end this process holds ([`Reach::Sockets`]): connections to it reach the proxy. Each pod
//! still has a lease, as rules identify pods by address, but no device has that address.
//!
//! Start with [`Network`]; then `keeper`, the loop that keeps the table in line with the policies,
//! `proxy` and `name_server`.

mod decisions;
mod dns;
mod firewall;
mod host;
mod keeper;
mod lease;
mod name_server;
mod proxy;
mod resolver;

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use k8s_openapi::api::core::v1::Pod;
use tokio::net::TcpListener;
use tokio::sync::{OnceCell, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};
use warren_decide::network::policy::Rules;
use warren_decide::network::{Block, Mode};
use warren_oci::protocol::PodNetwork;

use crate::node::Shared;
use crate::pod_registry::{Registry, Seen};

pub(crate) use decisions::Decisions;
pub(crate) use lease::Lease;

/// The port of the proxy, as in squid.
pub(crate) const PROXY_PORT: u16 = 3128;
const NAME_PORT: u16 = 53;

/// The way in which pods reach the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// By devices and addresses.
    Devices,
    /// By a socket on their own loopback.
    Sockets,
}

/// The network of a home.
#[derive(Debug)]
pub(crate) struct Network {
    reach: Reach,
    /// The prefix of the names of all our devices; the bridge's name is exactly this.
    devices: String,
    table: String,
    range: Block,
    gateway: Ipv4Addr,
    leases: Mutex<lease::Leases>,
    /// The rules in force.
    rules: RwLock<Arc<Rules>>,
    keeper: keeper::Keeper,
    pub(crate) decisions: Decisions,
    making: OnceCell<()>,
    made: watch::Sender<bool>,
    /// True once the bridge and the table were removed for good. Held while either is changed: the
    /// blocking thread that changes them outlives the task that started it.
    is_closed: Mutex<bool>,
}

/// The error of a home without a pod network.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("read or write {path}")]
    Record {
        path: std::path::PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("ask the kernel for its routes")]
    Routes(#[source] io::Error),
    #[error("all of 10.0.0.0/8 is in use on this machine")]
    NoRange,
    #[error("make bridge {name}")]
    Bridge {
        name: String,
        #[source]
        source: io::Error,
    },
    #[error("put packet rules in force")]
    Rules(#[source] io::Error),
    #[error("the node is going down")]
    GoingDown,
}

/// The error of a pod that cannot get an address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaseError {
    #[error("make the pod network")]
    Open(#[from] OpenError),
    #[error("all addresses of {0} are taken")]
    Exhausted(Block),
    #[error("record the pod's address")]
    Record(#[source] io::Error),
    #[error("put packet rules in force")]
    Rules(#[source] io::Error),
}

/// Returns the names of a home's devices and table.
fn names(home_id: &str) -> (String, String) {
    (format!("wrn{home_id}"), format!("warren-{home_id}"))
}

/// Removes a home's network from the machine, once its pods have ended.
pub fn remove_network(home_id: &str) -> io::Result<()> {
    let (devices, table) = names(home_id);
    host::remove(&devices, &table)
}

impl Network {
    /// Opens the network of a home and chooses its range. `wanted` is the configured range of its
    /// pods.
    pub(crate) fn open(
        home_id: &str,
        data_dir: &Path,
        pods: &Path,
        wanted: Option<Block>,
        reach: Reach,
    ) -> Result<Network, OpenError> {
        let (devices, table) = names(home_id);
        let range = host::choose_range(&devices, home_id, data_dir, wanted)?;
        let gateway = match reach {
            Reach::Devices => range.nth(1).ok_or(OpenError::NoRange)?,
            Reach::Sockets => Ipv4Addr::LOCALHOST,
        };
        let network = Network {
            reach,
            leases: Mutex::new(lease::Leases::load(pods, range)),
            rules: RwLock::default(),
            keeper: keeper::Keeper::default(),
            decisions: Decisions::default(),
            making: OnceCell::new(),
            made: watch::Sender::new(false),
            is_closed: Mutex::new(false),
            devices,
            table,
            range,
            gateway,
        };
        if network.leases().is_empty() {
            // No pod needs the remains of an earlier daemon.
            network.remove();
        }
        Ok(network)
    }

    /// Makes the home's bridge and table, or finds them.
    async fn make(self: &Arc<Self>) -> Result<(), OpenError> {
        let made = self.making.get_or_try_init(async || {
            if self.reach == Reach::Sockets {
                self.made.send_replace(true);
                return Ok(());
            }
            let network = self.clone();
            let making = tokio::task::spawn_blocking(move || {
                let is_closed = network.is_closed();
                if *is_closed {
                    return Err(OpenError::GoingDown);
                }
                if host::make_bridge(&network.devices, network.range)? {
                    // Nothing passes until the policies are known. Rules of an earlier daemon hold
                    // until then.
                    network.replace_table(&Rules::default()).map_err(OpenError::Rules)?;
                }
                Ok(())
            });
            making.await.unwrap_or(Err(OpenError::GoingDown))?;
            info!(range = %self.range, "pod network");
            self.made.send_replace(true);
            Ok(())
        });
        made.await.copied()
    }

    fn remove(&self) {
        if self.reach == Reach::Sockets {
            return;
        }
        if let Err(error) = host::remove(&self.devices, &self.table) {
            warn!(%error, "pod network not removed");
        }
    }

    /// Returns the proxy's address as seen by programs in pods.
    pub(crate) fn proxy_address(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.gateway, PROXY_PORT)
    }

    fn leases(&self) -> MutexGuard<'_, lease::Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rules(&self) -> Arc<Rules> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_closed(&self) -> MutexGuard<'_, bool> {
        self.is_closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put_in_force(&self, rules: &Rules) -> io::Result<()> {
        if self.reach == Reach::Sockets {
            // The proxy checks the rules, and there is no other way out.
            return Ok(());
        }
        let is_closed = self.is_closed();
        if *is_closed {
            return Err(io::Error::other("the node is going down"));
        }
        self.replace_table(rules)
    }

    fn replace_table(&self, rules: &Rules) -> io::Result<()> {
        firewall::put_in_force(&self.table, &self.devices, self.range, self.gateway, rules)
    }

    /// Returns the pod that has an address.
    fn pod_at(&self, registry: &Registry, address: Ipv4Addr) -> Option<(Arc<Pod>, Lease)> {
        let (uid, lease) = self.leases().at(address)?;
        match &*registry.get(&uid)?.seen.borrow() {
            Seen::Pod(pod) => Some((pod.clone(), lease)),
            Seen::Gone => None,
        }
    }

    /// Reports a change of a policy, a namespace, a lease, or a pod's property that rules depend
    /// on.
    fn changed(&self) {
        self.keeper.changed();
    }

    /// Reports that the registry shows a new state of a pod. Call it after the registry has
    /// changed. Changes of policies and leases are reported separately, and the rules are then made
    /// from the pod's present state.
    pub(crate) fn shown(&self, uid: &str, before: Option<&Seen>, after: &Seen) {
        if self.leases().has(uid) && self.keeper.is_news(before, after) {
            self.changed();
        }
    }

    fn release(&self, uid: &str) {
        self.leases().release(uid);
        self.changed();
    }
}

/// Gives a starting pod the network that it asks for. The lease is recorded in the pod's directory
/// and holds until the directory is removed.
pub(crate) async fn lease(
    shared: &Arc<Shared>,
    pod: &Pod,
    uid: &str,
    directory: &Path,
) -> Result<Option<PodNetwork>, LeaseError> {
    let Some(network) = &shared.network else { return Ok(None) };
    // An invalid annotation was refused before.
    let asked = Mode::asked(pod).ok().flatten();
    let mode = asked.unwrap_or(Mode::Restricted);
    if mode == Mode::None {
        return Ok(None);
    }
    match network.make().await {
        // The pod did not ask for a network, so it can run without one; its status says so.
        Err(problem) if asked.is_none() => {
            warn!(error = %crate::worker::chain(&problem), "no pod network: the pod has only its own loopback");
            return Ok(None);
        }
        other => other?,
    }
    let lease = network.leases().take(uid, directory, mode, network.gateway)?;
    if lease.mode == Mode::Full {
        // Its route out exists when its program starts, and so do the policies that restrict it.
        keeper::settle(shared, network).await.map_err(LeaseError::Rules)?;
    } else {
        network.changed();
    }
    if network.reach == Reach::Sockets {
        return Ok(None);
    }
    let routes = match lease.mode {
        Mode::Full => vec![(Ipv4Addr::UNSPECIFIED, 0)],
        // Reaches only pods whose policies allow it.
        _ => vec![(network.range.first(), network.range.prefix())],
    };
    // The offset in the range is unique in the home, and so is the name.
    let offset = u32::from(lease.address) - u32::from(network.range.first());
    let device = format!("{}{offset:04x}", network.devices);
    Ok(Some(PodNetwork { device, address: lease.address, gateway: network.gateway, routes }))
}

/// Serves the proxy on a socket that listens on the pod's loopback, until the result is dropped.
pub(crate) fn serve_egress(shared: &Arc<Shared>, lease: Lease, socket: OwnedFd) -> io::Result<JoinSet<()>> {
    let mut tasks = JoinSet::new();
    let Some(network) = &shared.network else { return Ok(tasks) };
    let listener = std::net::TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    tasks.spawn(proxy::accept(shared.clone(), network.clone(), listener, Some(lease.address)));
    Ok(tasks)
}

/// Releases a pod's address after its directory has been removed.
pub(crate) fn release(shared: &Shared, uid: &str) {
    if let Some(network) = &shared.network {
        network.release(uid);
    }
}

/// Serves a home's pods until the result is dropped.
pub(crate) fn serve(shared: &Arc<Shared>) -> JoinSet<()> {
    let mut all = JoinSet::new();
    let Some(network) = shared.network.clone() else { return all };
    let shared = shared.clone();
    all.spawn(async move {
        if !network.leases().is_empty()
            && let Err(problem) = network.make().await
        {
            warn!(error = %crate::worker::chain(&problem), "pods of earlier have no network");
        }
        // The first pod may come much later.
        if network.made.subscribe().wait_for(|made| *made).await.is_err() {
            return;
        }
        let mut tasks = JoinSet::new();
        keeper::watch(&shared, &network, &mut tasks);
        if network.reach == Reach::Devices {
            proxy::listen(&shared, &network, &mut tasks);
            name_server::listen(&shared, &network, &mut tasks);
        }
        while tasks.join_next().await.is_some() {}
    });
    all
}

/// Removes the home's network from the machine after [`serve`] has ended, unless pods still need
/// it.
pub(crate) fn close(shared: &Shared) {
    if let Some(network) = &shared.network
        && network.leases().is_empty()
    {
        let mut is_closed = network.is_closed();
        *is_closed = true;
        network.remove();
    }
}

/// Opens the network of a home, or logs why there is none: pods that ask for one are refused then.
pub(crate) fn open(
    home_id: &str,
    data_dir: &Path,
    pods: &Path,
    wanted: Option<Block>,
    reach: Reach,
) -> Option<Arc<Network>> {
    match Network::open(home_id, data_dir, pods, wanted, reach) {
        Ok(network) => Some(Arc::new(network)),
        Err(problem) => {
            warn!(error = %crate::worker::chain(&problem), "no pod network: pods have only their own loopback");
            None
        }
    }
}
