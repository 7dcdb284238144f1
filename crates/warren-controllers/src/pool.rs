//! The SandboxWarmPool controller: enough waiting sandboxes for every pool.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use warren_api::conditions::{self, ConditionType, ReportingController};
use warren_api::{NameHash, Sandbox, SandboxTemplate, SandboxWarmPool, annotations};
use warren_decide::ownership;
use warren_decide::pool::{Memory, Settings, World, decide};
use warren_decide::step::{Action, Failure, FailureKind, Step};

use crate::cache::{Change, Index};
use crate::cluster::Cluster;
use crate::events::Recorder;
use crate::queue::{ObjectKey, Outcome, WorkQueue};
use crate::wake::Sides;

const MANAGER: &str = "sandboxwarmpool-controller";

/// The time for which changes of a pool's members are collected before its reconcile. Members come
/// and go by hundreds per second, and each reconcile counts them all and writes a status. Changes
/// by claims may be collected for longer.
const GATHER: Duration = Duration::from_millis(10);

/// The number of starting members per concurrent write beside claims: most of the time they wait
/// for the scheduler or a node.
const STARTS: usize = 4;

/// The number of failed repairs after which the rest is skipped. Members are independent, but a
/// cluster that refuses so many refuses the rest, too.
const REPAIRS_THAT_FAIL: usize = 8;

const AT_ONCE: Duration = Duration::from_millis(1);

pub(crate) struct PoolController {
    pub(crate) cluster: Cluster,
    pub(crate) recorder: Recorder,
    pub(crate) settings: Settings,
    memories: Mutex<HashMap<ObjectKey, Memory>>,
}

impl PoolController {
    pub(crate) fn new(cluster: Cluster, recorder: Recorder, settings: Settings) -> Self {
        Self { cluster, recorder, settings, memories: Mutex::default() }
    }

    pub(crate) async fn reconcile(&self, key: ObjectKey) -> Outcome {
        // Checked before the caches are read, so that observation and expectations are of one
        // moment. A member that has gone meanwhile may have gone with the pool.
        let (world, plan) = loop {
            if let Some(pool) = self.cluster.pools.get(&key)
                && let Err(failure) = self.cluster.is_still_there(&*pool).await
            {
                tracing::warn!(pool = %key, problem = %failure.message, "pool has a problem");
                let memory = &mut *self.memories();
                let note = memory.entry(key.clone()).or_default().creations_tried(Some(&failure.message));
                if let Some(note) = note {
                    self.recorder.record(ReportingController::SandboxWarmPool, &*pool, note);
                }
                return Outcome::Retry;
            }
            let mut memories = self.memories();
            let Some(world) = self.observe(&key) else {
                memories.remove(&key);
                self.cluster.write_limiter.note_missing(&key, 0.0);
                return Outcome::Gone;
            };
            if !self.cluster.pools.is_bereft(&key) {
                let memory = memories.entry(key.clone()).or_default();
                let plan = decide(&world, memory, &self.settings_now(), self.cluster.now());
                break (world, plan);
            }
        };
        // If refilling does not wait for a pause in claims, it must not fall behind them either.
        if self.settings.replenish_delay.is_zero() {
            self.cluster.write_limiter.note_missing(&key, plan.missing);
        }
        let mut notes = plan.notes;
        let mut failed = self.carry_out(&key, plan.repairs, REPAIRS_THAT_FAIL).await.is_some();
        if !plan.creations.is_empty() {
            let failure = self.carry_out(&key, plan.creations, 1).await;
            failed |= failure.as_ref().is_some_and(|failure| !failure.is_final());
            let refusal = failure.as_ref().map(|failure| failure.message.as_str());
            let mut memories = self.memories();
            let memory = memories.entry(key.clone()).or_default();
            notes.extend(memory.creations_tried(refusal));
            if let (Some(template), true) =
                (&world.template, failure.is_some_and(|failure| failure.is_final()))
            {
                memory.refuse(template);
            }
        }
        failed |= self.carry_out(&key, plan.removals, 1).await.is_some();
        // The verdict is written even after failures: it matters most for a pool that cannot get
        // what it needs. The status comes first: it is guarded by the observed version.
        let status = plan.status.filter(|_| !failed && !plan.recount);
        let published = status.into_iter().chain(plan.verdict).collect();
        let unpublished = self.cluster.apply(&key.namespace, MANAGER, published).await;
        if unpublished.is_empty() {
            notes.extend(plan.verdict_notes);
        }
        for note in notes {
            self.recorder.record(ReportingController::SandboxWarmPool, &*world.pool, note);
        }
        let is_unfinished = failed || !unpublished.is_empty();
        if plan.recount && !is_unfinished {
            return self.recount(&key).await;
        }
        Outcome::of(plan.look_again, is_unfinished)
    }

    /// Returns the settings, with fewer starting members if there is little room beside claims:
    /// members that wait for a pod would only slow down claims that find the pool empty.
    fn settings_now(&self) -> Settings {
        let room = self.cluster.write_limiter.limit().saturating_mul(STARTS);
        let max_starting =
            self.settings.max_starting.into_iter().chain((room < usize::MAX).then_some(room)).min();
        Settings { max_starting, ..self.settings.clone() }
    }

    /// Counts the members at the server, and reconciles again with the result.
    async fn recount(&self, key: &ObjectKey) -> Outcome {
        tracing::warn!(pool = %key, "what the pool did was not seen for long; its members are counted at the server");
        if let Err(error) = self.cluster.read_members(key).await {
            tracing::warn!(pool = %key, error = &error as &dyn std::error::Error, "the members cannot be counted");
            return Outcome::Retry;
        }
        self.memories().entry(key.clone()).or_default().expectations.recounted();
        Outcome::LookAgain(AT_ONCE)
    }

    /// Carries out steps about members, and corrects the expectations for failed ones. Returns the
    /// first failure.
    async fn carry_out(&self, key: &ObjectKey, steps: Vec<Step>, patience: usize) -> Option<Failure> {
        let removals: Vec<(String, String)> = steps.iter().filter_map(|step| removal(&step.action)).collect();
        let undone = self.cluster.apply_slowly(&key.namespace, MANAGER, steps, patience).await;
        let mut memories = self.memories();
        let memory = memories.entry(key.clone()).or_default();
        for (step, failure) in &undone {
            match &step.action {
                Action::Create(_) if failure.kind == FailureKind::Unknown => {
                    memory.expectations.creation_in_doubt(self.cluster.uptime());
                }
                Action::Create(_) => memory.creation_failed(),
                Action::Delete { uid, .. } => {
                    memory.expectations.deletion_settled(uid);
                }
                Action::Merge { .. } | Action::MergeStatus { .. } => {}
            }
        }
        // A member that was gone before its deletion was expected sends no more events.
        for (name, uid) in removals {
            let member = self.cluster.sandboxes.get(&ObjectKey { namespace: key.namespace.clone(), name });
            if member.is_none_or(|member| member.metadata.uid.as_deref() != Some(&uid)) {
                memory.expectations.deletion_settled(&uid);
            }
        }
        drop(memories);
        if let Some((step, failure)) = undone.first() {
            let count = undone.len();
            tracing::warn!(pool = %key, count, step = %step.action, problem = %failure.message, "steps were not carried out");
        }
        undone.into_iter().next().map(|(_, failure)| failure)
    }

    fn observe(&self, key: &ObjectKey) -> Option<World> {
        let pool = self.cluster.pools.get(key)?;
        let in_namespace = |name: &str| ObjectKey { namespace: key.namespace.clone(), name: name.to_owned() };
        let template = self.cluster.templates.get(&in_namespace(&pool.spec.sandbox_template_ref.name));
        let hash = NameHash::of(&key.name).to_string();
        let members = self.cluster.sandboxes.find(&Index::PoolLabel(key.namespace.clone(), hash));
        let mut pods = BTreeMap::new();
        for member in members.iter().filter(|member| !is_ready(member)) {
            let name = member.metadata.name.clone().unwrap_or_default();
            let pod = ownership::annotation(&member.metadata, annotations::POD_NAME).unwrap_or(&name);
            if let Some(pod) = self.cluster.pods.get(&in_namespace(pod)) {
                pods.insert(name, pod);
            }
        }
        // Spread by name: one pool always wakes at the same point of the interval, and different
        // pools at different points.
        let jitter = f64::from(NameHash::of(&key.to_string()).value()) / f64::from(u32::MAX);
        Some(World { pool, template, members, pods, jitter, uptime: self.cluster.uptime() })
    }

    /// Records a change of a sandbox, and wakes the pools that it affects.
    pub(crate) fn observe_sandbox(&self, queue: &WorkQueue, change: &Change<'_, Sandbox>) {
        let pool_of = |sandbox: &Sandbox| {
            let owner = ownership::controller(&sandbox.metadata)
                .filter(|owner| ownership::is_kind::<SandboxWarmPool>(owner))?;
            Some(ObjectKey { namespace: change.key.namespace.clone(), name: owner.name.clone() })
        };
        if let (Some(gone), None) = (change.before, change.after) {
            self.settle_deletion(queue, gone);
        }
        let before = change.before.and_then(|sandbox| pool_of(sandbox));
        let after = change.after.and_then(|sandbox| pool_of(sandbox));
        if before.is_none() && after.is_none() {
            return;
        }
        if let (None, Some(pool)) = (change.before, &after)
            && let Some(memory) = self.memories().get_mut(pool)
        {
            memory.expectations.creation_settled();
        }
        let quiet = match (change.before, change.after) {
            (Some(old), Some(new)) => {
                before == after
                    && is_ready(old) == is_ready(new)
                    && old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
                    && old.metadata.labels == new.metadata.labels
                    && old.metadata.generation == new.metadata.generation
            }
            _ => false,
        };
        if quiet {
            return;
        }
        let gather = match (change.after, &before, &after) {
            (Some(taken), Some(pool), None) if ownership::is_claimed(&taken.metadata) => self
                .memories()
                .get_mut(pool)
                .map_or(GATHER, |memory| memory.member_taken(&self.settings).max(GATHER)),
            _ => GATHER,
        };
        before.into_iter().chain(after).for_each(|key| queue.add_after(key, gather));
    }

    /// Records that a sandbox is gone: the pool that deleted it need not wait any longer, whichever
    /// owner it had in the end. A deleted orphan has no owner, and a member may have changed its
    /// owner meanwhile.
    fn settle_deletion(&self, queue: &WorkQueue, gone: &Sandbox) {
        let uid = gone.metadata.uid.as_deref().unwrap_or_default();
        for (pool, memory) in self.memories().iter_mut() {
            if memory.expectations.deletion_settled(uid) {
                queue.add(pool.clone());
            }
        }
    }

    /// Returns the pools that still wait for events of their own writes.
    pub(crate) fn waiting(&self) -> Vec<ObjectKey> {
        let uptime = self.cluster.uptime();
        let memories = self.memories();
        let mut waiting: Vec<ObjectKey> = memories
            .iter()
            .filter(|(_, Memory { expectations, .. })| {
                !expectations.are_met() && !expectations.are_overdue(uptime)
            })
            .map(|(key, _)| key.clone())
            .collect();
        waiting.sort();
        waiting
    }

    fn memories(&self) -> MutexGuard<'_, HashMap<ObjectKey, Memory>> {
        self.memories.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the pools that use a template.
pub(crate) fn wake_by_template(cluster: &Cluster, queue: &WorkQueue, change: &Change<'_, SandboxTemplate>) {
    let index = Index::Template(change.key.namespace.clone(), change.key.name.clone());
    for pool in cluster.pools.find(&index) {
        queue.add(crate::cache::key_of(&*pool));
    }
}

/// Wakes the pool of an orphan by the pool label, even if the pool has no members.
pub(crate) fn wake_by_label(cluster: &Cluster, queue: &WorkQueue, sides: Sides<'_>, namespace: &str) {
    let Some(after) = sides.after.filter(|after| ownership::controller(after).is_none()) else { return };
    let Some(hash) = ownership::label(after, warren_api::labels::WARM_POOL_SANDBOX) else { return };
    // Orphans are rare, so scanning the pools for the one with this name hash is fine.
    let is_meant =
        |key: &ObjectKey| key.namespace == namespace && NameHash::of(&key.name).to_string() == hash;
    cluster.pools.keys().into_iter().filter(is_meant).for_each(|key| queue.add(key));
}

fn is_ready(sandbox: &Sandbox) -> bool {
    sandbox
        .status
        .as_ref()
        .is_some_and(|status| conditions::is_true(&status.conditions, ConditionType::Ready))
}

fn removal(action: &Action) -> Option<(String, String)> {
    match action {
        Action::Delete { name, uid, .. } => Some((name.clone(), uid.clone())),
        _ => None,
    }
}
