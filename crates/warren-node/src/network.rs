//! The pod network of a home: who has which address, and what keeps pods apart.
//!
//! Each pod with a network has a device pair of its own to the host (the shim makes it), and the host routes. The home has
//! a bridge without ports that carries the gateway's address, and one nftables table that says what passes: from pods
//! to the name server and the proxy at the gateway, from pods with a full network out, between pods what policies allow,
//! and nothing else. Names carry the home's id. Devices go with their pods, whoever dies; bridge and table are made for the
//! first pod, stay while there are pods, and a daemon that finds them goes on with them.
//!
//! An ordinary user can make none of that. Its pods have a socket on their own loopback, whose other end this process holds
//! ([`Reach::Sockets`]): what they connect to there is the proxy. Each pod still has a lease, as rules know pods by address,
//! but nothing has that address.
//!
//! Start with [`Network`]; then `keeper`, the loop that keeps the table as the policies say, `proxy` and `name_server`.

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
use crate::registry::{Registry, Seen};

pub(crate) use decisions::Decisions;
pub(crate) use lease::Lease;

/// The port of the proxy, as squid has it.
pub(crate) const PROXY_PORT: u16 = 3128;
const NAME_PORT: u16 = 53;

/// How pods reach the host.
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
    /// What the names of all our devices begin with; the bridge has nothing more.
    devices: String,
    table: String,
    range: Block,
    gateway: Ipv4Addr,
    leases: Mutex<lease::Leases>,
    /// What is in force.
    rules: RwLock<Arc<Rules>>,
    keeper: keeper::Keeper,
    pub(crate) decisions: Decisions,
    making: OnceCell<()>,
    made: watch::Sender<bool>,
    /// True once the bridge and the table were removed for good. Held while either is changed: the
    /// blocking thread that changes them outlives the task that asked for it.
    is_closed: Mutex<bool>,
}

/// A home has no pod network.
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

/// A pod cannot be given an address.
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

/// The names of a home's things.
fn names(home_id: &str) -> (String, String) {
    (format!("wrn{home_id}"), format!("warren-{home_id}"))
}

/// Removes what a home's network has on the machine. For a home whose pods have ended.
pub fn remove_network(home_id: &str) -> io::Result<()> {
    let (devices, table) = names(home_id);
    host::remove(&devices, &table)
}

impl Network {
    /// The network of a home: which addresses it has. `wanted` is the range that its pods shall have addresses from.
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
            // Whatever an earlier daemon left, nobody needs it.
            network.remove();
        }
        Ok(network)
    }

    /// Makes what the home's pods need on the machine, or finds it.
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
                    // Nothing passes until the policies are known. Rules of an earlier daemon hold until then.
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

    /// Where programs in pods find the proxy.
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
            // The proxy asks them, and there is no other way out.
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

    /// The pod that an address belongs to.
    fn pod_at(&self, registry: &Registry, address: Ipv4Addr) -> Option<(Arc<Pod>, Lease)> {
        let (uid, lease) = self.leases().at(address)?;
        match &*registry.get(&uid)?.seen.borrow() {
            Seen::Pod(pod) => Some((pod.clone(), lease)),
            Seen::Gone => None,
        }
    }

    /// Says that a policy, a namespace, a lease, or something about a pod that rules depend on has changed.
    fn changed(&self) {
        self.keeper.changed();
    }

    /// Says that a pod is shown otherwise than before; to be said when it is so in the registry. A policy or a lease that
    /// comes meanwhile speaks for itself, and whoever looks then finds the pod as it is now.
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

/// Gives a pod that is about to start the network it asks for. The lease is recorded in the pod's directory, where it holds
/// until the directory goes.
pub(crate) async fn lease(
    shared: &Arc<Shared>,
    pod: &Pod,
    uid: &str,
    directory: &Path,
) -> Result<Option<PodNetwork>, LeaseError> {
    let Some(network) = &shared.network else { return Ok(None) };
    // One that cannot be read was refused before.
    let asked = Mode::asked(pod).ok().flatten();
    let mode = asked.unwrap_or(Mode::Restricted);
    if mode == Mode::None {
        return Ok(None);
    }
    match network.make().await {
        // What it did not ask for it can do without; its status says so.
        Err(problem) if asked.is_none() => {
            warn!(error = %crate::worker::chain(&problem), "no pod network: the pod has only its own loopback");
            return Ok(None);
        }
        other => other?,
    }
    let lease = network.leases().take(uid, directory, mode, network.gateway)?;
    if lease.mode == Mode::Full {
        // Its way out is there when its program starts, and so are the policies that narrow it.
        keeper::settle(shared, network).await.map_err(LeaseError::Rules)?;
    } else {
        network.changed();
    }
    if network.reach == Reach::Sockets {
        return Ok(None);
    }
    let routes = match lease.mode {
        Mode::Full => vec![(Ipv4Addr::UNSPECIFIED, 0)],
        // Only to pods that let it in.
        _ => vec![(network.range.first(), network.range.prefix())],
    };
    // The offset in the range is unique in the home, and so is the name.
    let offset = u32::from(lease.address) - u32::from(network.range.first());
    let device = format!("{}{offset:04x}", network.devices);
    Ok(Some(PodNetwork { device, address: lease.address, gateway: network.gateway, routes }))
}

/// Serves the way out of a pod that has no other: `socket` listens on the pod's loopback. Until it is dropped.
pub(crate) fn serve_way_out(shared: &Arc<Shared>, lease: Lease, socket: OwnedFd) -> io::Result<JoinSet<()>> {
    let mut tasks = JoinSet::new();
    let Some(network) = &shared.network else { return Ok(tasks) };
    let listener = std::net::TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    tasks.spawn(proxy::accept(shared.clone(), network.clone(), listener, Some(lease.address)));
    Ok(tasks)
}

/// After a pod's directory has been removed.
pub(crate) fn release(shared: &Shared, uid: &str) {
    if let Some(network) = &shared.network {
        network.release(uid);
    }
}

/// Serves a home's pods until it is dropped.
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
        // The first pod may be long in coming.
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

/// After [`serve`] has ended: removes what the home's network has on the machine, unless pods still need it.
pub(crate) fn close(shared: &Shared) {
    if let Some(network) = &shared.network
        && network.leases().is_empty()
    {
        let mut is_closed = network.is_closed();
        *is_closed = true;
        network.remove();
    }
}

/// The network of a home, or word of why there is none: pods that ask for one are refused then.
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
