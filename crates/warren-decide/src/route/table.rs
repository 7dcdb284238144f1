//! The table of sandbox pods that requests can be routed to.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use warren_api::labels::{SANDBOX_NAME_HASH, WARM_POOL_SANDBOX};

use super::{Wanted, can_be_a_pods};

/// The API group of Sandbox, in any version.
const SANDBOX_GROUP: &str = "agents.x-k8s.io";

/// A ready sandbox pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name, which is the Sandbox's.
    pub name: String,
    /// The pod's UID. A later pod of the same name has another.
    pub pod_uid: String,
    /// The UID of the Sandbox that owns the pod.
    pub sandbox_uid: String,
    /// The pod's address, IPv4 if it has both. None where pods have no addresses.
    pub address: Option<IpAddr>,
    /// True while the pod waits in a pool. Its Sandbox may have been claimed already: the label is
    /// removed from the Sandbox first, and from the pod a moment later.
    pub is_in_pool: bool,
}

impl Route {
    /// Returns the route to a pod: one that a Sandbox owns, that is Ready, and that has an address
    /// (unless `addressless` pods can be reached, too).
    pub fn of(pod: &Pod, addressless: bool) -> Option<Route> {
        let metadata = &pod.metadata;
        let labels = metadata.labels.as_ref()?;
        if !labels.contains_key(SANDBOX_NAME_HASH) {
            return None;
        }
        let owner = metadata.owner_references.iter().flatten().find(|it| it.controller == Some(true))?;
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        if owner.kind != "Sandbox" || group != SANDBOX_GROUP {
            return None;
        }
        let status = pod.status.as_ref()?;
        let mut conditions = status.conditions.iter().flatten();
        if !conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True") {
            return None;
        }
        let address = address(pod);
        if address.is_none() && !addressless {
            return None;
        }
        Some(Route {
            namespace: metadata.namespace.clone()?,
            name: metadata.name.clone()?,
            pod_uid: metadata.uid.clone()?,
            sandbox_uid: owner.uid.clone(),
            address,
            is_in_pool: labels.contains_key(WARM_POOL_SANDBOX),
        })
    }
}

/// Returns a pod's address, IPv4 before IPv6. An address that no pod can have is ignored.
fn address(pod: &Pod) -> Option<IpAddr> {
    let status = pod.status.as_ref()?;
    let several = status.pod_ips.iter().flatten().map(|it| it.ip.as_str());
    let known = several.chain(status.pod_ip.as_deref()).filter_map(|text| text.parse::<IpAddr>().ok());
    let mut known: Vec<_> =
        known.map(|address| address.to_canonical()).filter(|address| can_be_a_pods(*address)).collect();
    // The sort is stable: the first of each kind stays first.
    known.sort_by_key(IpAddr::is_ipv6);
    known.first().copied()
}

/// The result of resolving a request's target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// The pod to route to.
    Found(Arc<Route>),
    /// The table has no pod of this name.
    Unknown,
    /// The pod of this name waits in a pool: it is reachable only by its UID or its address.
    InPool,
    /// The sandbox's pod has another address than the request says.
    AnotherAddress,
}

/// The sandbox pods that requests can be routed to.
#[derive(Debug, Default)]
pub struct RouteTable {
    by_pod: HashMap<String, Arc<Route>>,
    by_sandbox: HashMap<String, Arc<Route>>,
    by_name: HashMap<(String, String), Arc<Route>>,
}

impl RouteTable {
    /// Updates a pod. One that can no longer be routed to is removed.
    pub fn update(&mut self, pod: &Pod, addressless: bool) {
        match Route::of(pod, addressless) {
            Some(route) => self.insert(route),
            None => self.remove(pod.metadata.uid.as_deref().unwrap_or_default()),
        }
    }

    /// Adds or replaces the route of a pod. If two pods have the same name, the last one wins.
    pub fn insert(&mut self, route: Route) {
        self.remove(&route.pod_uid.clone());
        let route = Arc::new(route);
        self.by_sandbox.insert(route.sandbox_uid.clone(), Arc::clone(&route));
        self.by_name.insert((route.namespace.clone(), route.name.clone()), Arc::clone(&route));
        self.by_pod.insert(route.pod_uid.clone(), route);
    }

    /// Removes a pod by its UID. A newer pod of the same Sandbox or name stays.
    pub fn remove(&mut self, pod_uid: &str) {
        let Some(route) = self.by_pod.remove(pod_uid) else { return };
        let is_its = |known: &mut Arc<Route>| Arc::ptr_eq(known, &route);
        if self.by_sandbox.get_mut(&route.sandbox_uid).is_some_and(is_its) {
            self.by_sandbox.remove(&route.sandbox_uid);
        }
        let name = (route.namespace.clone(), route.name.clone());
        if self.by_name.get_mut(&name).is_some_and(is_its) {
            self.by_name.remove(&name);
        }
    }

    /// Removes every pod whose UID is not among these.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        let gone: Vec<_> = self.by_pod.keys().filter(|uid| !is_there(uid)).cloned().collect();
        gone.iter().for_each(|uid| self.remove(uid));
    }

    /// Returns the number of pods that can be routed to.
    pub fn len(&self) -> usize {
        self.by_pod.len()
    }

    /// Returns true if the table is empty.
    pub fn is_empty(&self) -> bool {
        self.by_pod.is_empty()
    }

    /// Returns the pod that a request is for: the one of the Sandbox with this UID, namespace and
    /// name, else the one with this namespace and name. An address in the request must be that
    /// pod's.
    pub fn resolve(&self, wanted: &Wanted) -> Resolution {
        let by_uid = wanted.uid.as_ref().and_then(|uid| self.by_sandbox.get(uid));
        let by_uid = by_uid.filter(|route| route.namespace == wanted.namespace && route.name == wanted.id);
        let (route, knows_uid) = match by_uid {
            Some(route) => (route, true),
            None => match self.by_name.get(&(wanted.namespace.clone(), wanted.id.clone())) {
                Some(route) => (route, false),
                None => return Resolution::Unknown,
            },
        };
        if wanted.pod_ip.is_some() && wanted.pod_ip != route.address {
            return Resolution::AnotherAddress;
        }
        // Names of pool members can be guessed. A UID or an address comes from the claim that has
        // the sandbox.
        if route.is_in_pool && !knows_uid && wanted.pod_ip.is_none() {
            return Resolution::InPool;
        }
        Resolution::Found(Arc::clone(route))
    }
}
