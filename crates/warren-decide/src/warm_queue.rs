//! Keeps the warm sandboxes of every pool in step with observed changes, so that a claim finds one
//! without a search.
//!
//! A sandbox that is offered to a claim is reserved until the claim's reconcile ends, so that two
//! workers of one process never try the same one. Between processes the guarded writes decide. The
//! reservation only saves conflicts.

use std::collections::{BTreeMap, HashMap, HashSet};

use warren_api::conditions::{self, ConditionType};
use warren_api::{Sandbox, labels};

use crate::ownership;

/// The number of unfit nodes above which those without sandboxes are forgotten.
const MANY_NODES: usize = 1000;

/// A pool's key: namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A pool's offer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// This sandbox, reserved until it is released.
    Sandbox(String),
    /// No sandbox yet, but members are starting.
    Pending,
    /// No sandbox.
    Empty,
}

/// A warm sandbox's progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Without an address: not offered.
    Waiting,
    /// With an address, not ready: better than a cold start.
    Addressed,
    /// Ready.
    Ready,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    standing: Standing,
    /// The node's name, or empty.
    node: String,
    /// The sandbox's place in the queue, which stays the same while it waits.
    place: u64,
    reserved: bool,
}

#[derive(Debug, Default)]
struct Pool {
    items: HashMap<String, Item>,
    /// Ready ones that are not reserved, by node and place.
    ready: BTreeMap<String, BTreeMap<u64, String>>,
    /// Addressed ones that are not reserved, by place.
    addressed: BTreeMap<u64, String>,
    waiting: usize,
}

/// The queues of all pools.
#[derive(Debug, Default)]
pub struct WarmQueue {
    pools: HashMap<PoolKey, Pool>,
    next_place: u64,
    /// Nodes whose sandboxes are not offered.
    unfit: HashSet<String>,
}

/// Returns the pool in which a sandbox can be claimed: it must be alive, labelled and controlled by
/// a pool. A sandbox without a controller can never be claimed.
#[must_use]
pub fn claimable_in(sandbox: &Sandbox) -> Option<PoolKey> {
    let metadata = &sandbox.metadata;
    let labelled = [labels::WARM_POOL_SANDBOX, labels::SANDBOX_TEMPLATE_REF_HASH]
        .iter()
        .all(|key| ownership::label(metadata, key).is_some());
    if metadata.deletion_timestamp.is_some() || !labelled || !ownership::is_pooled(metadata) {
        return None;
    }
    let namespace = metadata.namespace.clone().unwrap_or_default();
    Some(PoolKey { namespace, name: ownership::controller(metadata)?.name.clone() })
}

impl WarmQueue {
    /// Records a change of a sandbox. Returns the pool that can offer more because of it, if there
    /// is one.
    pub fn observe(&mut self, before: Option<&Sandbox>, after: Option<&Sandbox>) -> Option<PoolKey> {
        let name = before.or(after)?.metadata.name.clone()?;
        let old = before.and_then(claimable_in);
        let new = after.and_then(claimable_in);
        if let Some(key) = old.filter(|key| new.as_ref() != Some(key)) {
            self.remove(&key, &name);
        }
        let key = new?;
        let (standing, node) = standing(after?);
        let next_place = &mut self.next_place;
        let pool = self.pools.entry(key.clone()).or_default();
        let previous = pool.take_out(&name);
        let item = Item {
            standing,
            node,
            place: previous.as_ref().map_or_else(
                || {
                    *next_place += 1;
                    *next_place
                },
                |item| item.place,
            ),
            reserved: previous.as_ref().is_some_and(|item| item.reserved),
        };
        let gained = standing != Standing::Waiting
            && previous.is_none_or(|previous| previous.standing == Standing::Waiting);
        pool.put_in(name, item);
        gained.then_some(key)
    }

    /// Records whether sandboxes on a node may be offered. An unknown node is fit.
    pub fn observe_node(&mut self, node: &str, is_fit: bool) {
        if is_fit {
            self.unfit.remove(node);
            return;
        }
        self.unfit.insert(node.to_owned());
        // Nodes come and go under new names. Those without sandboxes need not be remembered.
        if self.unfit.len() > MANY_NODES {
            let in_use: HashSet<&str> = self
                .pools
                .values()
                .flat_map(|pool| pool.items.values())
                .map(|item| item.node.as_str())
                .collect();
            self.unfit.retain(|known| known == node || in_use.contains(known.as_str()));
        }
    }

    /// Reserves a sandbox of the pool for a claim: a ready one on the node that has most of them,
    /// the oldest first, or else one with an address. Sandboxes on unfit nodes are skipped, and
    /// those that `usable` refuses. `usable` is asked each time: the template may change back.
    /// (agent-sandbox's controller counts unready ones of a node, too.)
    pub fn take(&mut self, key: &PoolKey, mut usable: impl FnMut(&str) -> bool) -> Taken {
        let Some(pool) = self.pools.get_mut(key) else { return Taken::Empty };
        let mut refused = Vec::new();
        let mut taken = if pool.waiting > 0 { Taken::Pending } else { Taken::Empty };
        while let Some(name) = pool.best(&self.unfit) {
            let Some(item) = pool.take_out(&name) else { break };
            if usable(&name) {
                pool.put_in(name.clone(), Item { reserved: true, ..item });
                taken = Taken::Sandbox(name);
                break;
            }
            refused.push((name, item));
        }
        refused.into_iter().for_each(|(name, item)| pool.put_in(name, item));
        taken
    }

    /// Ends a reservation. A sandbox that can no longer be claimed has left the queue already.
    pub fn release(&mut self, key: &PoolKey, name: &str) {
        if let Some(pool) = self.pools.get_mut(key)
            && let Some(item) = pool.take_out(name)
        {
            pool.put_in(name.to_owned(), Item { reserved: false, ..item });
        }
    }

    /// Removes a deleted pool.
    pub fn drop_pool(&mut self, key: &PoolKey) {
        self.pools.remove(key);
    }

    /// Removes a sandbox until it is observed again.
    pub fn remove(&mut self, key: &PoolKey, name: &str) {
        if let Some(pool) = self.pools.get_mut(key) {
            pool.take_out(name);
            if pool.items.is_empty() {
                self.pools.remove(key);
            }
        }
    }
}

impl Pool {
    fn best(&self, unfit: &HashSet<String>) -> Option<String> {
        let oldest = |places: &BTreeMap<u64, String>| places.first_key_value().map(|(place, _)| *place);
        let fullest = self
            .ready
            .iter()
            .filter(|(node, _)| !node.is_empty() && !unfit.contains(*node))
            .max_by_key(|(_, places)| (places.len(), std::cmp::Reverse(oldest(places))))
            .or_else(|| self.ready.get_key_value(""));
        if let Some((_, places)) = fullest {
            return places.first_key_value().map(|(_, name)| name.clone());
        }
        let is_fit = |name: &&String| self.items.get(*name).is_none_or(|item| !unfit.contains(&item.node));
        self.addressed.values().find(is_fit).cloned()
    }

    fn put_in(&mut self, name: String, item: Item) {
        match item.standing {
            Standing::Waiting => self.waiting += 1,
            _ if item.reserved => {}
            Standing::Addressed => {
                self.addressed.insert(item.place, name.clone());
            }
            Standing::Ready => {
                self.ready.entry(item.node.clone()).or_default().insert(item.place, name.clone());
            }
        }
        self.items.insert(name, item);
    }

    fn take_out(&mut self, name: &str) -> Option<Item> {
        let item = self.items.remove(name)?;
        match item.standing {
            Standing::Waiting => self.waiting -= 1,
            _ if item.reserved => {}
            Standing::Addressed => {
                self.addressed.remove(&item.place);
            }
            Standing::Ready => {
                if let Some(places) = self.ready.get_mut(&item.node) {
                    places.remove(&item.place);
                    if places.is_empty() {
                        self.ready.remove(&item.node);
                    }
                }
            }
        }
        Some(item)
    }
}

fn standing(sandbox: &Sandbox) -> (Standing, String) {
    let Some(status) = &sandbox.status else { return (Standing::Waiting, String::new()) };
    let standing = if status.pod_ips.is_empty() {
        Standing::Waiting
    } else if conditions::is_true(&status.conditions, ConditionType::Ready) {
        Standing::Ready
    } else {
        Standing::Addressed
    };
    (standing, status.node_name.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use warren_api::Sandbox;

    use super::{MANY_NODES, PoolKey, Taken, WarmQueue};

    fn member(name: &str, node: &str, address: bool, ready: bool) -> Sandbox {
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "default",
                "labels": {"agents.x-k8s.io/warm-pool-sandbox": "59733166", "agents.x-k8s.io/sandbox-template-ref-hash": "69155462"},
                "ownerReferences": [{"apiVersion": "extensions.agents.x-k8s.io/v1alpha1", "kind": "SandboxWarmPool", "name": "test-pool", "uid": "p", "controller": true}],
            },
            "spec": {"podTemplate": {"spec": {"containers": []}}},
            "status": {
                "nodeName": node,
                "podIPs": if address { vec!["10.0.0.1"] } else { vec![] },
                "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }, "reason": "x", "message": "", "lastTransitionTime": "2027-01-15T08:00:00Z"}],
            },
        }))
        .unwrap()
    }

    fn key() -> PoolKey {
        PoolKey { namespace: "default".to_owned(), name: "test-pool".to_owned() }
    }

    fn take(queue: &mut WarmQueue) -> String {
        match queue.take(&key(), |_| true) {
            Taken::Sandbox(name) => name,
            other => format!("{other:?}"),
        }
    }

    /// Row 19.
    #[test]
    fn ready_beats_addressed_beats_waiting_and_the_fullest_node_comes_first() {
        let mut queue = WarmQueue::default();
        assert_eq!(take(&mut queue), "Empty");
        for (name, node, address, ready) in [
            ("waiting", "", false, false),
            ("addressed", "n1", true, false),
            ("a", "n1", true, true),
            ("b", "n2", true, true),
            ("c", "n2", true, true),
        ] {
            queue.observe(None, Some(&member(name, node, address, ready)));
        }
        let order: Vec<String> = (0..6).map(|_| take(&mut queue)).collect();
        assert_eq!(order, ["b", "a", "c", "addressed", "Pending", "Pending"]);
        queue.release(&key(), "c");
        assert_eq!(take(&mut queue), "c");
    }

    #[test]
    fn a_reserved_member_stays_reserved_when_it_changes_and_leaves_when_claimed() {
        let mut queue = WarmQueue::default();
        let sandbox = member("a", "n1", true, true);
        assert_eq!(queue.observe(None, Some(&sandbox)), Some(key()));
        assert_eq!(take(&mut queue), "a");
        let moved = member("a", "n2", true, true);
        assert_eq!(queue.observe(Some(&sandbox), Some(&moved)), None);
        assert_eq!(take(&mut queue), "Empty");
        let mut claimed = moved.clone();
        claimed.metadata.labels = None;
        queue.observe(Some(&moved), Some(&claimed));
        queue.release(&key(), "a");
        assert_eq!(take(&mut queue), "Empty");
    }

    /// A sandbox on a broken or draining node would soon be lost, so it is not offered meanwhile.
    #[test]
    fn sandboxes_on_unfit_nodes_are_kept_back() {
        let mut queue = WarmQueue::default();
        for sandbox in [
            member("a", "n1", true, true),
            member("b", "n1", true, true),
            member("c", "n2", true, true),
            member("d", "n1", true, false),
        ] {
            queue.observe(None, Some(&sandbox));
        }
        queue.observe_node("n1", false);
        assert_eq!(take(&mut queue), "c");
        assert_eq!(take(&mut queue), "Empty");
        queue.observe_node("n1", true);
        assert_eq!(
            (take(&mut queue), take(&mut queue), take(&mut queue)),
            ("a".into(), "b".into(), "d".into())
        );
    }

    /// Row 27: a sandbox without a controller is never offered.
    #[test]
    fn orphans_are_not_offered() {
        let mut queue = WarmQueue::default();
        let mut orphan = member("a", "n1", true, true);
        orphan.metadata.owner_references = None;
        assert_eq!(queue.observe(None, Some(&orphan)), None);
        assert_eq!(take(&mut queue), "Empty");
    }

    #[test]
    fn a_refused_sandbox_is_asked_about_again() {
        let mut queue = WarmQueue::default();
        queue.observe(None, Some(&member("a", "n1", true, true)));
        queue.observe(None, Some(&member("b", "n1", true, false)));
        assert_eq!(queue.take(&key(), |_| false), Taken::Empty);
        assert_eq!(queue.take(&key(), |name| name != "a"), Taken::Sandbox("b".to_owned()));
        assert_eq!((take(&mut queue).as_str(), take(&mut queue).as_str()), ("a", "Empty"));
    }

    #[test]
    fn of_many_nodes_that_are_gone_those_with_sandboxes_are_remembered() {
        let mut queue = WarmQueue::default();
        queue.observe(None, Some(&member("a", "lost", true, true)));
        queue.observe_node("lost", false);
        (0..5 * MANY_NODES).for_each(|number| queue.observe_node(&number.to_string(), false));
        assert!(queue.unfit.len() <= MANY_NODES + 1, "{}", queue.unfit.len());
        assert_eq!(take(&mut queue), "Empty");
    }
}
