//! Keeps the rules in line with policies, namespaces and pods. Each change wakes it; it reads all
//! of them and applies the difference. A pod wakes it only if a property changed that rules depend
//! on: each claim changes a pod, and would otherwise cause a thousand others to be read.

mod facts;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{Lookup, Store, reflector, store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinSet;
use tracing::warn;
use warren_decide::network::policy::{Labels, Rules, World, rules};

use super::Network;
use crate::node::Shared;
use crate::pod_registry::Seen;

/// The time in which changes are collected. A policy takes effect this much later, which is not
/// noticeable, and a thousand pods that start at once do not each cause a full read.
const TOGETHER: Duration = Duration::from_millis(20);
/// The rest after each read, as a multiple of its duration: with thousands of pods a read is work,
/// while pods are being started. On a full machine a policy may take effect a second late. A pod
/// with full network does not start before its rules hold, and any other is closed until then.
const REST: u32 = 20;
const LONGEST_REST: Duration = Duration::from_secs(1);
/// The delay after the kernel refused a table.
const AFTER_REFUSAL: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Keeper {
    wake: Notify,
    policies: Watched<NetworkPolicy>,
    namespaces: Watched<Namespace>,
    pub(super) services: Watched<Service>,
    /// True if the rules of this daemon are in force. Held while they are made: one at a time.
    in_force: Mutex<bool>,
}

/// Objects as the API last showed them.
pub(super) struct Watched<K: Lookup + Clone + 'static>
where
    K::DynamicType: Eq + Hash + Clone,
{
    pub(super) store: Store<K>,
    writer: std::sync::Mutex<Option<Writer<K>>>,
    listed: AtomicBool,
}

impl<K: Lookup + Clone + 'static> Debug for Watched<K>
where
    K::DynamicType: Eq + Hash + Clone,
{
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Watched").field("listed", &self.listed).finish_non_exhaustive()
    }
}

impl<K: Lookup + Clone + 'static> Default for Watched<K>
where
    K::DynamicType: Eq + Hash + Clone + Default,
{
    fn default() -> Self {
        let (store, writer) = store();
        Self { store, writer: std::sync::Mutex::new(Some(writer)), listed: AtomicBool::new(false) }
    }
}

impl Default for Keeper {
    fn default() -> Self {
        Keeper {
            wake: Notify::new(),
            policies: Watched::default(),
            namespaces: Watched::default(),
            services: Watched::default(),
            in_force: Mutex::new(false),
        }
    }
}

impl Keeper {
    pub(super) fn changed(&self) {
        self.wake.notify_one();
    }

    /// Returns true if rules may depend on the difference between two states of a pod.
    pub(super) fn is_news(&self, before: Option<&Seen>, after: &Seen) -> bool {
        match (before, after) {
            (Some(Seen::Pod(before)), Seen::Pod(after)) => {
                facts::differ(before, after, || self.policies.store.state())
            }
            (Some(Seen::Gone), Seen::Gone) => false,
            _ => true,
        }
    }
}

/// Watches the objects that rules depend on, and keeps the rules up to date.
pub(super) fn watch(shared: &Arc<Shared>, network: &Arc<Network>, tasks: &mut JoinSet<()>) {
    follow(shared, network, |keeper| &keeper.policies, tasks);
    follow(shared, network, |keeper| &keeper.namespaces, tasks);
    follow(shared, network, |keeper| &keeper.services, tasks);
    let (shared, network) = (shared.clone(), network.clone());
    tasks.spawn(async move {
        loop {
            network.keeper.wake.notified().await;
            tokio::time::sleep(TOGETHER).await;
            let began = Instant::now();
            let settled = settle(&shared, &network).await;
            let rest = (began.elapsed() * REST).min(LONGEST_REST);
            if let Err(error) = settled {
                warn!(%error, "packet rules not put in force; trying again");
                tokio::time::sleep(AFTER_REFUSAL).await;
                network.changed();
            }
            tokio::time::sleep(rest).await;
        }
    });
}

fn follow<K>(
    shared: &Arc<Shared>,
    network: &Arc<Network>,
    part: fn(&Keeper) -> &Watched<K>,
    tasks: &mut JoinSet<()>,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Default,
{
    let writer = part(&network.keeper).writer.lock().map(|mut writer| writer.take());
    let Ok(Some(writer)) = writer else { return };
    let api: Api<K> = Api::all(shared.client.clone());
    let network = network.clone();
    tasks.spawn(async move {
        let objects = watcher(api, watcher::Config::default())
            .default_backoff()
            .modify(|object| object.managed_fields_mut().clear());
        let mut objects = reflector(writer, objects).boxed();
        while let Some(event) = objects.next().await {
            match event {
                Ok(watcher::Event::InitDone) => {
                    part(&network.keeper).listed.store(true, Ordering::Release);
                    network.changed();
                }
                Ok(watcher::Event::Apply(_) | watcher::Event::Delete(_)) => network.changed(),
                Ok(_) => {}
                Err(error) => warn!(%error, "watch for the pod network interrupted"),
            }
        }
    });
}

/// Applies the rules for the present state. If the policies are not known yet, it changes nothing:
/// they may forbid traffic that nothing else does.
pub(super) async fn settle(shared: &Arc<Shared>, network: &Arc<Network>) -> io::Result<()> {
    let keeper = &network.keeper;
    let mut in_force = keeper.in_force.lock().await;
    if !keeper.policies.listed.load(Ordering::Acquire) || !keeper.namespaces.listed.load(Ordering::Acquire) {
        return Ok(());
    }
    let are_known = *in_force;
    let (shared, network) = (shared.clone(), network.clone());
    // Thousands of pods may be read; other tasks must not wait for that.
    let settled = tokio::task::spawn_blocking(move || {
        let rules = rules_now(&shared, &network);
        if are_known && *network.rules() == rules {
            return Ok(());
        }
        network.put_in_force(&rules)?;
        *network.rules.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Arc::new(rules);
        io::Result::Ok(())
    });
    settled.await.map_err(io::Error::other)??;
    *in_force = true;
    Ok(())
}

fn rules_now(shared: &Shared, network: &Network) -> Rules {
    let policies = network.keeper.policies.store.state();
    if policies.is_empty() && !network.leases().any_full() {
        return Rules::default();
    }
    let mut policies: Vec<&NetworkPolicy> = policies.iter().map(|policy| &**policy).collect();
    // The same objects must give the same rules, in any order of arrival.
    policies.sort_by_key(|policy| (policy.metadata.namespace.as_deref(), policy.metadata.name.as_deref()));
    let namespaces = network.keeper.namespaces.store.state();
    let namespaces: BTreeMap<&str, &Labels> = namespaces
        .iter()
        .filter_map(|namespace| {
            Some((namespace.metadata.name.as_deref()?, facts::labels(&namespace.metadata)))
        })
        .collect();
    let pods = shared.registry.shown(network.leases().all());
    let pods: Vec<_> = pods.iter().map(|(lease, pod)| facts::of(*lease, pod)).collect();
    rules(&World { pods: &pods, namespaces: &namespaces, policies: &policies })
}
