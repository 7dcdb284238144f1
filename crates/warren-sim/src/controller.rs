//! One controller process: what it has seen, and what it remembers. It learns of changes late, one by one, and of its own
//! writes at once, by the rules of the cache in `warren-controllers`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use warren_api::{NameHash, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, annotations, labels};
use warren_decide::claim::Offer;
use warren_decide::ownership;
use warren_decide::pool::Memory;
use warren_decide::warm_queue::WarmQueue;
use warren_decide::{claim, pool, sandbox};

use crate::store::{Event, Key, Store, Stored};

/// How many kinds are watched.
pub const KINDS: usize = 5;

/// A controller process.
#[derive(Debug, Default)]
pub struct Controller {
    cache: BTreeMap<Key, Stored>,
    /// How far into the log each kind's watch has come.
    cursors: [usize; KINDS],
    /// The newest version that each kind's watch has brought.
    horizons: [u64; KINDS],
    /// The waiting sandboxes.
    pub warm: WarmQueue,
    /// What each pool remembers.
    pub memories: BTreeMap<String, Memory>,
    /// Keys that a pass is under way for.
    pub busy: BTreeSet<Key>,
    /// Counts restarts, so that a pass of an earlier life can be told apart.
    pub life: u64,
}

impl Controller {
    /// Starts anew: everything is listed, nothing is remembered.
    pub fn restart(&mut self, store: &Store) {
        *self = Controller { life: self.life + 1, ..Controller::default() };
        for object in store.objects.values() {
            self.put(object.clone());
        }
        let newest = store.log.last().map_or(0, |event| event.version);
        self.cursors = [store.log.len(); KINDS];
        self.horizons = [newest; KINDS];
    }

    /// Receives the next event of one kind's watch, if there is one.
    pub fn receive(&mut self, kind: usize, log: &[Event]) -> bool {
        while let Some(event) = log.get(self.cursors[kind]) {
            self.cursors[kind] += 1;
            if usize::from(event.key.0) == kind {
                self.horizons[kind] = event.version;
                match &event.now {
                    Some(object) => self.put(object.clone()),
                    None => self.take(&event.key),
                }
                return true;
            }
        }
        false
    }

    /// Takes in the answer to a write or read of its own.
    pub fn remember(&mut self, object: Stored) {
        if object.version() > self.horizons[usize::from(object.key().0)] {
            self.put(object);
        }
    }

    /// Takes out what the server has just said does not exist.
    pub fn take(&mut self, key: &Key) {
        if let Some(before) = self.cache.remove(key) {
            self.listen(Some(&before), None);
        }
    }

    fn put(&mut self, object: Stored) {
        let before = self.cache.get(&object.key()).cloned();
        if before.as_ref().is_some_and(|before| before.version() >= object.version()) {
            return;
        }
        self.cache.insert(object.key(), object.clone());
        self.listen(before.as_ref(), Some(&object));
    }

    fn listen(&mut self, before: Option<&Stored>, after: Option<&Stored>) {
        let side = |object: Option<&Stored>| match object {
            Some(Stored::Sandbox(sandbox)) => Some(sandbox.clone()),
            _ => None,
        };
        let (before, after) = (side(before), side(after));
        self.warm.observe(before.as_deref(), after.as_deref());
        let pool_of = |sandbox: &Arc<Sandbox>| {
            ownership::is_pooled(&sandbox.metadata)
                .then(|| ownership::controller(&sandbox.metadata).map(|owner| owner.name.clone()))?
        };
        if let (None, Some(pool)) = (&before, after.as_ref().and_then(pool_of))
            && let Some(memory) = self.memories.get_mut(&pool)
        {
            memory.expectations.creation_settled();
        }
        if let (Some(gone), None) = (&before, &after)
            && let Some(memory) = pool_of(gone).and_then(|pool| self.memories.get_mut(&pool))
        {
            memory.expectations.deletion_settled(gone.metadata.uid.as_deref().unwrap_or_default());
        }
    }

    /// Every key of a kind that it knows.
    pub fn keys(&self) -> Vec<Key> {
        self.cache.keys().cloned().collect()
    }

    /// The sandbox of this name.
    #[must_use]
    pub fn sandbox(&self, name: &str) -> Option<Arc<Sandbox>> {
        match self.cache.get(&(0, name.to_owned()))? {
            Stored::Sandbox(sandbox) => Some(sandbox.clone()),
            _ => None,
        }
    }

    /// The claim of this name.
    #[must_use]
    pub fn claim(&self, name: &str) -> Option<Arc<SandboxClaim>> {
        match self.cache.get(&(1, name.to_owned()))? {
            Stored::Claim(claim) => Some(claim.clone()),
            _ => None,
        }
    }

    fn pool(&self, name: &str) -> Option<Arc<SandboxWarmPool>> {
        match self.cache.get(&(2, name.to_owned()))? {
            Stored::Pool(pool) => Some(pool.clone()),
            _ => None,
        }
    }

    fn template(&self, name: &str) -> Option<Arc<SandboxTemplate>> {
        match self.cache.get(&(3, name.to_owned()))? {
            Stored::Template(template) => Some(template.clone()),
            _ => None,
        }
    }

    fn pod(&self, name: &str) -> Option<Arc<Pod>> {
        match self.cache.get(&(4, name.to_owned()))? {
            Stored::Pod(pod) => Some(pod.clone()),
            _ => None,
        }
    }

    /// What it sees of a sandbox.
    #[must_use]
    pub fn look_at_sandbox(&self, name: &str) -> Option<sandbox::World> {
        let sandbox = self.sandbox(name)?;
        // Pods have the names of their sandboxes here, so the index by owner is a look-up by name.
        let pods = self.pod(name).into_iter().collect();
        Some(sandbox::World { sandbox, pods, service: None, volume_claims: Vec::new() })
    }

    /// What it sees of a claim.
    #[must_use]
    pub fn look_at_claim(&self, name: &str, offer: &Offer, gone: &BTreeSet<String>) -> Option<claim::World> {
        let claim = self.claim(name)?;
        let pool = self.pool(&claim.spec.warm_pool_ref.name);
        let template = pool.as_ref().and_then(|pool| self.template(&pool.spec.sandbox_template_ref.name));
        let published = claim.status.as_ref().and_then(|status| status.sandbox.as_ref()?.name.clone());
        let assigned = ownership::annotation(&claim.metadata, annotations::SANDBOX_NAME).map(str::to_owned);
        let names = [published, assigned, Some(name.to_owned())].into_iter().flatten();
        let sandboxes = names.filter_map(|name| Some((name.clone(), self.sandbox(&name)?))).collect();
        let first_seen = jiff::Timestamp::UNIX_EPOCH;
        let (confirmed_gone, offer) = (gone.clone(), offer.clone());
        Some(claim::World {
            pool,
            template,
            sandboxes,
            confirmed_gone,
            legacy_policy: None,
            offer,
            first_seen,
            claim,
        })
    }

    /// What it sees of a pool.
    #[must_use]
    pub fn look_at_pool(&self, name: &str) -> Option<pool::World> {
        let pool = self.pool(name)?;
        let template = self.template(&pool.spec.sandbox_template_ref.name);
        let hash = NameHash::of(name).to_string();
        let members: Vec<Arc<Sandbox>> = self
            .cache
            .values()
            .filter_map(|object| match object {
                Stored::Sandbox(sandbox) => Some(sandbox.clone()),
                _ => None,
            })
            .filter(|sandbox| ownership::label(&sandbox.metadata, labels::WARM_POOL_SANDBOX) == Some(&hash))
            .collect();
        let pods = members
            .iter()
            .filter_map(|member| {
                let name = member.metadata.name.clone()?;
                Some((name.clone(), self.pod(&name)?))
            })
            .collect();
        Some(pool::World { pool, template, members, pods, jitter: 0.0 })
    }
}
