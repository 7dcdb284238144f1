//! What a process keeps in memory and loses when it dies: caches, queues, the warm queue, the memories of pools. And what
//! it does when a cache changes: who is woken by what (`start.rs` and `wake.rs` of `warren-controllers`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use warren_api::{NameHash, Sandbox, SandboxTemplate, SandboxWarmPool, labels};
use warren_decide::ownership;
use warren_decide::pool::Memory;
use warren_decide::step::{Action, Kind};

use super::cache::{Cache, Seen};
use super::claim::WaitingRoom;
use super::queue::{Queue, QueueKind};
use crate::object::{Any, KINDS, Typed, slot};
use crate::server::Change;

/// The memory of a process.
#[derive(Debug, Default)]
pub struct Brain {
    caches: [Cache; KINDS.len()],
    /// Keys to work on.
    pub queues: Queues,
    /// What pools remember between passes.
    pub memories: BTreeMap<String, Memory>,
    /// Sandboxes that wait for claims, and claims that wait for sandboxes.
    pub room: WaitingRoom,
    /// When each claim was first seen.
    pub first_seen: BTreeMap<String, (Option<String>, Timestamp)>,
    /// The uid of every sandbox that was ever in the cache, for the invariants.
    pub ever_seen: BTreeSet<String>,
    /// How many events were recorded: each is a write too.
    pub notes: u64,
}

/// One queue per kind.
#[derive(Debug, Default)]
pub struct Queues {
    /// Of sandboxes.
    pub sandboxes: Queue,
    /// Of claims.
    pub claims: Queue,
    /// Of pools.
    pub pools: Queue,
    /// Of templates.
    pub templates: Queue,
    /// Of objects that only an answer has brought.
    pub doubts: Queue,
}

impl Queues {
    /// The queue of a kind.
    pub fn of(&mut self, kind: QueueKind) -> &mut Queue {
        match kind {
            QueueKind::Sandboxes => &mut self.sandboxes,
            QueueKind::Claims => &mut self.claims,
            QueueKind::Pools => &mut self.pools,
            QueueKind::Templates => &mut self.templates,
            QueueKind::Doubts => &mut self.doubts,
        }
    }
}

impl Brain {
    /// The object of this name.
    #[must_use]
    pub fn get<K: Typed>(&self, name: &str) -> Option<Arc<K>> {
        K::of(self.caches[slot(K::KIND)].objects.get(name)?).cloned()
    }

    /// Every object of a kind that passes the test, by name. The real caches have indices; ours are small.
    pub fn find<K: Typed>(&self, test: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        let objects = self.caches[slot(K::KIND)].objects.values().filter_map(K::of);
        objects.filter(|object| test(object)).cloned().collect()
    }

    /// Whether every kind has been listed once.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.caches.iter().all(|cache| cache.listed)
    }

    /// The version of an object that only an answer has brought.
    #[must_use]
    pub fn unconfirmed(&self, kind: Kind, name: &str) -> Option<u64> {
        let cache = &self.caches[slot(kind)];
        cache.objects.get(name).filter(|_| cache.is_unconfirmed(name)).map(Any::version)
    }

    /// Takes in the answer to a write or a read of our own.
    pub fn remember(&mut self, object: Any, now: Timestamp) {
        let seen = self.caches[slot(object.kind())].remember(object);
        self.tell(seen, now);
    }

    /// The version of the object that a patch is for.
    #[must_use]
    pub fn version(&self, action: &Action) -> Option<u64> {
        match action {
            Action::Merge { kind, name, .. } | Action::MergeStatus { kind, name, .. } => {
                self.caches[slot(*kind)].objects.get(name).map(Any::version)
            }
            Action::Create(_) | Action::Delete { .. } => None,
        }
    }

    /// Takes out an object that the server has said does not exist, if it is the one that was asked about: by now there
    /// may be another of that name.
    pub fn forget(&mut self, kind: Kind, name: &str, version: Option<u64>, now: Timestamp) {
        let cache = &mut self.caches[slot(kind)];
        if cache.objects.get(name).map(Any::version) == version {
            let seen = cache.forget(name);
            self.tell(seen, now);
        }
    }

    /// A list of a kind begins.
    pub fn begin_list(&mut self, kind: Kind) {
        self.caches[slot(kind)].begin_list();
    }

    /// A list brings an object.
    pub fn list(&mut self, object: Any, now: Timestamp) {
        let seen = self.caches[slot(object.kind())].list(object);
        self.tell(seen, now);
    }

    /// A list of a kind is complete.
    pub fn end_list(&mut self, kind: Kind, now: Timestamp) {
        let (gone, doubts) = self.caches[slot(kind)].end_list();
        for seen in gone {
            self.tell(Some(seen), now);
        }
        for name in doubts {
            self.queues.doubts.add(&format!("{}:{name}", slot(kind)));
        }
    }

    /// The watch of a kind brings a change.
    pub fn observe(&mut self, change: &Change, now: Timestamp) {
        let cache = &mut self.caches[slot(change.object.kind())];
        let seen = match change.gone {
            true => cache.end(&change.object),
            false => cache.apply(change.object.clone()),
        };
        self.tell(seen, now);
    }

    fn tell(&mut self, seen: Option<Seen>, now: Timestamp) {
        let Some(seen) = seen else { return };
        let Some(object) = seen.after.as_ref().or(seen.before.as_ref()) else { return };
        let name = object.name().to_owned();
        match object.kind() {
            Kind::Sandbox => {
                self.ever_seen.insert(object.uid().to_owned());
                let (before, after) = (typed::<Sandbox>(&seen.before), typed::<Sandbox>(&seen.after));
                self.queues.sandboxes.add(&name);
                self.observe_sandbox_for_claims(before, after);
                self.observe_sandbox_for_pools(before, after);
                self.wake_by_label(after.map(|sandbox| &sandbox.metadata));
            }
            Kind::SandboxClaim => self.observe_claim(&name, typed(&seen.after), now),
            Kind::SandboxWarmPool => {
                self.queues.pools.add(&name);
                self.observe_pool(&name, typed(&seen.before), typed(&seen.after));
            }
            Kind::SandboxTemplate => {
                self.queues.templates.add(&name);
                let uses = |pool: &SandboxWarmPool| pool.spec.sandbox_template_ref.name == name;
                for pool in self.find::<SandboxWarmPool>(uses) {
                    self.queues.pools.add(pool.metadata.name.as_deref().unwrap_or_default());
                }
                self.observe_template(&name, seen.before.is_none());
            }
            Kind::Pod | Kind::Service => {
                let tracked = sides(&seen)
                    .any(|metadata| ownership::label(metadata, labels::SANDBOX_NAME_HASH).is_some());
                for owner in owners(&seen, ownership::is_kind::<Sandbox>).filter(|_| tracked) {
                    self.queues.sandboxes.add(&owner.name);
                }
            }
            Kind::NetworkPolicy => {
                for owner in owners(&seen, ownership::is_kind::<SandboxTemplate>) {
                    self.queues.templates.add(&owner.name);
                }
            }
            Kind::PersistentVolumeClaim => {}
        }
    }

    /// A pool without members still hears of its orphans.
    fn wake_by_label(&mut self, after: Option<&ObjectMeta>) {
        let Some(after) = after.filter(|after| ownership::controller(after).is_none()) else { return };
        let Some(hash) = ownership::label(after, labels::WARM_POOL_SANDBOX) else { return };
        let name = |pool: &SandboxWarmPool| pool.metadata.name.clone().unwrap_or_default();
        for pool in self.find::<SandboxWarmPool>(|pool| NameHash::of(&name(pool)).to_string() == hash) {
            self.queues.pools.add(&name(&pool));
        }
    }
}

fn typed<K: Typed>(any: &Option<Any>) -> Option<&K> {
    K::of(any.as_ref()?).map(|object| &**object)
}

fn sides(seen: &Seen) -> impl Iterator<Item = &ObjectMeta> {
    seen.before.iter().chain(&seen.after).map(Any::meta)
}

fn owners(seen: &Seen, is_wanted: impl Fn(&OwnerReference) -> bool) -> impl Iterator<Item = &OwnerReference> {
    sides(seen).filter_map(move |metadata| ownership::controller(metadata).filter(|owner| is_wanted(owner)))
}
