//! The cluster as the controllers see it: caches to read from, and a way to carry out steps. Every
//! answer of the server is added to the caches, so that controllers read their own writes.

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use warren_api::{AgentTask, NameHash, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, labels};
use warren_decide::ownership;
use warren_decide::step::{Action, Failure, FailureKind, Kind, Stage, Step};

use crate::cache::{Cache, DOUBT, Index, key_of};
use crate::clock::Clock;
use crate::object::{Any, KINDS, Typed, with_object, with_type};
use crate::queue::{ObjectKey, Outcome, WorkQueue};
use crate::server::{Refusal, Server};
use crate::write_limiter::WriteLimiter;

/// The caches of all kinds, the server to write to, and the clock.
#[derive(Clone)]
pub struct Cluster {
    pub(crate) server: Arc<dyn Server>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) write_limiter: Arc<WriteLimiter>,
    pub(crate) sandboxes: Arc<Cache<Sandbox>>,
    pub(crate) pods: Arc<Cache<Pod>>,
    pub(crate) services: Arc<Cache<Service>>,
    pub(crate) volume_claims: Arc<Cache<PersistentVolumeClaim>>,
    pub(crate) claims: Arc<Cache<SandboxClaim>>,
    pub(crate) pools: Arc<Cache<SandboxWarmPool>>,
    pub(crate) templates: Arc<Cache<SandboxTemplate>>,
    pub(crate) policies: Arc<Cache<NetworkPolicy>>,
    pub(crate) tasks: Arc<Cache<AgentTask>>,
}

/// Runs an expression with the cache of a kind, whose type depends on the kind.
macro_rules! with_cache {
    ($cluster:expr, $kind:expr, $cache:ident => $body:expr) => {
        with_type!($kind, K => {
            let $cache = K::cache($cluster);
            $body
        })
    };
}

/// An event of a list and the watch that follows it.
#[derive(Clone, Debug)]
pub enum News {
    /// A list begins.
    ListBegins(Kind),
    /// A list brings an object.
    Listed(Any),
    /// A list is complete.
    ListEnds(Kind),
    /// An object was created or changed.
    Changed(Any),
    /// An object was deleted; this is its last state.
    Gone(Any),
}

impl Cluster {
    /// Returns a cluster with empty caches. Kinds whose objects are to be confirmed are added to
    /// `doubts`.
    pub(crate) fn new(server: Arc<dyn Server>, clock: Arc<dyn Clock>, doubts: &WorkQueue<Kind>) -> Self {
        fn cache<K: Typed>(doubts: &WorkQueue<Kind>) -> Arc<Cache<K>> {
            Arc::new(Cache::with_answers(K::KEEPING, K::KIND, doubts.clone()))
        }
        Self {
            server,
            write_limiter: Arc::new(WriteLimiter::new(clock.clone())),
            clock,
            sandboxes: cache(doubts),
            pods: cache(doubts),
            services: cache(doubts),
            volume_claims: cache(doubts),
            claims: cache(doubts),
            pools: cache(doubts),
            templates: cache(doubts),
            policies: cache(doubts),
            tasks: cache(doubts),
        }
    }

    /// Returns the cached pool of this name.
    #[must_use]
    pub fn pool(&self, key: &ObjectKey) -> Option<Arc<SandboxWarmPool>> {
        self.pools.get(key)
    }

    /// Returns true if an object of this name is cached, in any state.
    #[must_use]
    pub fn holds(&self, object: &Any) -> bool {
        let seen = with_cache!(self, object.kind(), cache => cache.uid_of(&object.key()));
        seen.is_some_and(|uid| uid == object.uid())
    }

    /// Adds an event of a list or a watch.
    pub fn observe(&self, news: News) {
        match news {
            News::ListBegins(kind) => with_cache!(self, kind, cache => cache.begin_list()),
            News::ListEnds(kind) => with_cache!(self, kind, cache => cache.end_list()),
            News::Listed(any) => with_object!(any, object => self.cache_of(&object).list(object)),
            News::Changed(any) => with_object!(any, object => self.cache_of(&object).apply(object)),
            News::Gone(any) => with_object!(any, object => self.cache_of(&object).end(&object.metadata)),
        }
    }

    /// Returns true if every kind has been listed once.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        KINDS.iter().all(|kind| with_cache!(self, kind, cache => cache.is_listed()))
    }

    /// Waits until every kind has been listed once.
    pub(crate) async fn wait_until_listed(&self) {
        for kind in KINDS {
            with_cache!(self, kind, cache => cache.wait_until_listed().await);
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the time of the monotonic clock.
    pub(crate) fn uptime(&self) -> Duration {
        self.clock.uptime()
    }

    /// Carries out steps in order. After a failure the rest of its stage is skipped. It may be
    /// stopped between any two steps: the next reconcile observes the result and plans the rest.
    pub(crate) async fn apply(
        &self,
        namespace: &str,
        manager: &'static str,
        steps: Vec<Step>,
    ) -> Vec<Failure> {
        let mut failures: Vec<Failure> = Vec::new();
        for Step { stage, action } in steps {
            if failures.iter().any(|failure| failure.stage == stage) {
                continue;
            }
            tracing::debug!(%action, "step");
            if let Err(Refusal { kind, text }) = self.act(namespace, manager, &action).await {
                failures.push(Failure { stage, kind, message: text });
            }
        }
        failures
    }

    /// Carries out independent steps with a slow start: one, then two, four, eight at the same
    /// time, limited by the room beside claims. After a failure it starts with one again. After
    /// `patience` failures it stops, so that a cluster that refuses is not asked hundreds of times.
    /// Returns the steps that were not carried out, with reasons.
    pub(crate) async fn apply_slowly(
        &self,
        namespace: &str,
        manager: &'static str,
        steps: Vec<Step>,
        patience: usize,
    ) -> Vec<(Step, Failure)> {
        let mut undone = Vec::new();
        let mut waiting = steps.into_iter();
        let mut size = 1;
        while undone.len() < patience {
            let batch: Vec<Step> = waiting.by_ref().take(size).collect();
            if batch.is_empty() {
                return undone;
            }
            size = (size * 2).min(self.write_limiter.limit());
            let tried = batch.into_iter().map(|step| async move {
                let result = self.act(namespace, manager, &step.action).await;
                (step, result)
            });
            for (step, result) in futures::future::join_all(tried).await {
                if let Err(Refusal { kind, text }) = result {
                    let failure = Failure { stage: step.stage, kind, message: text };
                    undone.push((step, failure));
                    size = 1;
                }
            }
        }
        // The rest was never tried, so none of it was written.
        let reason =
            undone.last().map(|(_, failure)| Failure { kind: FailureKind::Refused, ..failure.clone() });
        undone.extend(waiting.filter_map(|step| Some((step, reason.clone()?))));
        undone
    }

    /// Reads a sandbox from the server, and adds the answer to the cache. Returns true if it
    /// exists.
    pub(crate) async fn read_sandbox(&self, namespace: &str, name: &str) -> Result<bool, Refusal> {
        self.refresh(namespace, Kind::Sandbox, name).await
    }

    /// Reads an object from the server, and adds the answer to the cache. Returns true if it
    /// exists.
    pub(crate) async fn read(&self, namespace: &str, kind: Kind, name: &str) -> Result<bool, Refusal> {
        self.refresh(namespace, kind, name).await
    }

    /// Records that an object is gone. Its owner may have been deleted first, which the cache has
    /// not shown yet. Making the child again would then briefly revive something that a user has
    /// ended.
    pub(crate) fn mark_owner_of(&self, gone: &ObjectMeta) {
        let Some(owner) = ownership::controller(gone) else { return };
        let namespace = gone.namespace.clone().unwrap_or_default();
        let key = ObjectKey { namespace, name: owner.name.clone() };
        if ownership::is_kind::<Sandbox>(owner) {
            self.sandboxes.mark_child_lost(&key);
        } else if ownership::is_kind::<SandboxClaim>(owner) {
            self.claims.mark_child_lost(&key);
        } else if ownership::is_kind::<SandboxWarmPool>(owner) {
            self.pools.mark_child_lost(&key);
        } else if ownership::is_kind::<SandboxTemplate>(owner) {
            self.templates.mark_child_lost(&key);
        } else if ownership::is_kind::<AgentTask>(owner) {
            self.tasks.mark_child_lost(&key);
        }
    }

    /// Checks that an owner still exists unchanged before a child is made for it. If a child of it
    /// has gone since the last check, the server is asked.
    pub(crate) async fn is_still_there<K: Cached>(&self, owner: &K) -> Result<bool, Failure> {
        let (cache, key) = (K::cache(self), key_of(owner));
        // A child that goes while the answer is on its way is a reason to ask again.
        if !cache.is_newly_bereft(&key) {
            return Ok(true);
        }
        let answer = self.is_unchanged(owner, "which may be gone").await;
        if answer.is_err() {
            cache.mark_child_lost(&key);
        }
        answer
    }

    /// Checks that an owner still asks for deletions of its children. Watches of different kinds
    /// are not ordered: a child may have been made for a newer state of its owner than the cached
    /// one, and the deletion is guarded only by the child. If the server still shows the cached
    /// owner, the deletion is right.
    pub(crate) async fn is_still_asked_for<K: Cached>(
        &self,
        owner: &K,
        steps: &[Step],
    ) -> Result<bool, Failure> {
        if steps.iter().any(|step| matches!(step.action, Action::Delete { .. })) {
            return self.is_unchanged(owner, "which may have changed").await;
        }
        if creates(steps) { self.is_still_there(owner).await } else { Ok(true) }
    }

    /// Checks that the server shows the cached state of an object. The answer is added to the
    /// cache, which wakes the object if there is more to do.
    async fn is_unchanged<K: Cached>(&self, seen: &K, doubt: &str) -> Result<bool, Failure> {
        let key = key_of(seen);
        if let Err(refusal) = self.refresh(&key.namespace, K::KIND, &key.name).await {
            let text = format!("read {} {}, {doubt}: {refusal}", K::KIND, key.name);
            return Err(Failure::found(Stage::Subject, text));
        }
        let present = K::cache(self).get(&key);
        Ok(present.is_some_and(|present| present.meta().resource_version == seen.meta().resource_version))
    }

    /// Counts the members of a pool at the server. Members that the list does not show may be
    /// deleted or claimed, so each of them is read.
    pub(crate) async fn read_members(&self, pool: &ObjectKey) -> Result<(), Refusal> {
        let hash = NameHash::of(&pool.name).to_string();
        let known = self.sandboxes.find(&Index::PoolLabel(pool.namespace.clone(), hash.clone()));
        let listed =
            self.server.list(&pool.namespace, Kind::Sandbox, labels::WARM_POOL_SANDBOX, &hash).await?;
        let shown: HashSet<ObjectKey> = listed.iter().map(Any::key).collect();
        listed.into_iter().for_each(|member| self.remember(member));
        let missing = known.iter().map(|member| key_of(&**member)).filter(|key| !shown.contains(key));
        missing.for_each(|key| self.sandboxes.doubt(&key));
        Ok(())
    }

    /// Asks the server about the objects of a kind that are in doubt.
    pub(crate) async fn confirm(&self, kind: Kind) -> Outcome {
        let (due, mut next) = with_cache!(self, kind, cache => cache.doubtful(self.uptime()));
        let mut failed = false;
        for key in due {
            match self.refresh(&key.namespace, kind, &key.name).await {
                Ok(true) => {
                    if with_cache!(self, kind, cache => cache.is_still_doubtful(&key, self.uptime())) {
                        next = Some(next.map_or(DOUBT, |earlier| earlier.min(DOUBT)));
                    }
                }
                Ok(false) => {}
                Err(refusal) => {
                    tracing::debug!(%kind, %key, %refusal, "could not be confirmed");
                    failed = true;
                }
            }
        }
        Outcome::of(next, failed)
    }

    async fn act(&self, namespace: &str, manager: &'static str, action: &Action) -> Result<(), Refusal> {
        let began = self.uptime();
        let answer = self.server.write(namespace, manager, action).await;
        // A refusal is fast on every server, and would make successful writes seem slow.
        if let (Action::MergeStatus { .. }, Ok(_)) = (action, &answer) {
            self.write_limiter.observe(self.uptime().saturating_sub(began));
        }
        let refusal = match answer {
            // The answer to a deletion is the dying object, or nothing if it is gone at once. The
            // watch shows it too, in order with earlier events, so the cache waits for that.
            Ok(object) => {
                if let Some(object) = object {
                    self.remember(object);
                }
                return Ok(());
            }
            Err(refusal) => refusal,
        };
        match (action, refusal.kind) {
            (Action::Create(object), FailureKind::AlreadyExists) => {
                if let Some(name) = &object.metadata().name {
                    self.catch_up(namespace, object.kind(), name, &refusal).await?;
                }
            }
            (
                Action::Merge { kind, name, .. } | Action::MergeStatus { kind, name, .. },
                FailureKind::Conflict,
            ) => {
                self.catch_up(namespace, *kind, name, &refusal).await?;
            }
            (
                Action::Merge { kind, name, .. } | Action::MergeStatus { kind, name, .. },
                FailureKind::NotFound,
            ) => {
                // Read the object to know that it is gone: for a kind without a status, a patch of
                // the status gets the same answer.
                let exists = self.refresh(namespace, *kind, name).await;
                if let (Action::MergeStatus { .. }, Ok(false)) = (action, exists) {
                    // A deleted object needs no status.
                    return Ok(());
                }
            }
            (Action::Delete { .. }, FailureKind::NotFound) => return Ok(()),
            // The object has changed since it was observed, or was replaced by another of its name.
            (Action::Delete { kind, name, version: Some(_), .. }, FailureKind::Conflict) => {
                if let Err(refusal) = self.refresh(namespace, *kind, name).await {
                    tracing::debug!(%kind, name, %refusal, "fresh read failed; the watch brings the news");
                }
            }
            (Action::Delete { version: None, .. }, FailureKind::Conflict) => return Ok(()),
            (
                Action::Create(_) | Action::Merge { .. } | Action::MergeStatus { .. } | Action::Delete { .. },
                _,
            ) => {}
        }
        Err(refusal)
    }

    /// Reads an object from the server, adds the answer to the cache, and returns whether it
    /// exists.
    async fn refresh(&self, namespace: &str, kind: Kind, name: &str) -> Result<bool, Refusal> {
        let key = ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() };
        let seen = with_cache!(self, kind, cache => cache.uid_of(&key));
        match self.server.read(namespace, kind, name).await? {
            Some(live) => {
                self.remember(live);
                Ok(true)
            }
            None => {
                if let Some(seen) = seen {
                    with_cache!(self, kind, cache => cache.forget(&key, &seen));
                }
                Ok(false)
            }
        }
    }

    /// Does the same after a write was refused because the cache is behind. If the object cannot be
    /// parsed, that error is returned: a new decision would see the same cache and try the same
    /// write.
    async fn catch_up(
        &self,
        namespace: &str,
        kind: Kind,
        name: &str,
        refusal: &Refusal,
    ) -> Result<(), Refusal> {
        let read = self.refresh(namespace, kind, name).await;
        let both = |read: Refusal| {
            let text = format!("{refusal}; and {kind} {name} cannot be read: {read}");
            Refusal { kind: FailureKind::Unknown, text }
        };
        read.map(|_| ()).map_err(both)
    }

    fn remember(&self, any: Any) {
        with_object!(any, object => self.cache_of(&object).remember(object));
    }

    fn cache_of<K: Cached>(&self, _: &Arc<K>) -> &Cache<K> {
        K::cache(self)
    }
}

/// Returns true if any of the steps creates an object.
pub(crate) fn creates(steps: &[Step]) -> bool {
    steps.iter().any(|step| matches!(step.action, Action::Create(_)))
}

/// A type that has a cache.
pub(crate) trait Cached: Typed {
    fn cache(cluster: &Cluster) -> &Cache<Self>;
}

macro_rules! cached {
    ($($name:ident: $field:ident),*) => {$(
        impl Cached for $name {
            fn cache(cluster: &Cluster) -> &Cache<Self> {
                &cluster.$field
            }
        }
    )*};
}

cached!(
    Sandbox: sandboxes,
    SandboxTemplate: templates,
    SandboxClaim: claims,
    SandboxWarmPool: pools,
    Pod: pods,
    Service: services,
    PersistentVolumeClaim: volume_claims,
    NetworkPolicy: policies,
    AgentTask: tasks
);
