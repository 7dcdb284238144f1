//! The SandboxClaim controller: exactly one sandbox for every claim.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use warren_api::conditions::{self, ConditionType, ReportingController};
use warren_api::{NameHash, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, annotations, labels};
use warren_decide::claim::{Next, Offer, Settings, World, decide, give_up, is_over};
use warren_decide::ownership;
use warren_decide::pool::Strategy;
use warren_decide::staleness::TemplateComparison;
use warren_decide::step::{Action, Failure, FailureKind, Stage, Step};
use warren_decide::template::policy_name;
use warren_decide::warm_queue::{PoolKey, Taken, WarmQueue, claimable_in};

use crate::cache::{Change, Index, key_of};
use crate::cluster::{Cluster, creates};
use crate::events::Recorder;
use crate::queue::{ObjectKey, Outcome, WorkQueue};
use crate::telemetry::{Provision, Telemetry};

pub(crate) const MANAGER: &str = "sandboxclaim-controller";

/// The most rounds of one reconcile. An ordinary warm claim takes four; the rest is for conflicts
/// with others.
const ATTEMPTS: usize = 12;

pub(crate) struct ClaimController {
    pub(crate) cluster: Cluster,
    pub(crate) recorder: Recorder,
    pub(crate) settings: Settings,
    telemetry: Telemetry,
    warm_queues: Mutex<WarmQueues>,
    first_seen: Mutex<HashMap<ObjectKey, (Option<String>, Timestamp)>>,
    /// The server's refusal of a claim as invalid, with the state of the claim and its template at
    /// that time.
    refused: Mutex<HashMap<ObjectKey, (Basis, String)>>,
}

/// The claim and the template by uid and generation. While both are the same, the server would
/// refuse again.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Basis {
    claim: (Option<String>, Option<i64>),
    template: Option<(Option<String>, Option<i64>)>,
}

impl Basis {
    fn of(claim: &SandboxClaim, template: Option<&SandboxTemplate>) -> Self {
        let identity = |metadata: &ObjectMeta| (metadata.uid.clone(), metadata.generation);
        Self {
            claim: identity(&claim.metadata),
            template: template.map(|template| identity(&template.metadata)),
        }
    }
}

/// Sandboxes that wait for claims, and claims that wait for sandboxes.
#[derive(Default)]
struct WarmQueues {
    sandboxes: WarmQueue,
    claims: HashMap<PoolKey, BTreeSet<ObjectKey>>,
}

impl WarmQueues {
    /// Removes a deleted claim from those that wait.
    fn forget(&mut self, pool: &PoolKey, claim: &ObjectKey) {
        if let Some(claims) = self.claims.get_mut(pool) {
            claims.remove(claim);
            if claims.is_empty() {
                self.claims.remove(pool);
            }
        }
    }
}

/// Returns an offered sandbox to the queue when the reconcile ends in any way. An adopted one has
/// left the queue.
struct Reservation<'a> {
    controller: &'a ClaimController,
    pool: PoolKey,
    name: String,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.controller.warm_queues().sandboxes.release(&self.pool, &self.name);
    }
}

/// The names of sandboxes that the server was asked about, each with the version of the claim at
/// that time. If the claim changed since, another leader may have changed the sandbox, so the
/// answer no longer counts.
type Answers = BTreeMap<String, Option<String>>;

impl ClaimController {
    pub(crate) fn new(
        cluster: Cluster,
        recorder: Recorder,
        settings: Settings,
        telemetry: &Telemetry,
    ) -> Self {
        let telemetry = telemetry.clone();
        Self {
            cluster,
            recorder,
            settings,
            telemetry,
            warm_queues: Mutex::default(),
            first_seen: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    pub(crate) async fn reconcile(&self, key: ObjectKey) -> Outcome {
        let mut offer = Offer::NotAsked;
        let mut reservation = None;
        let (mut confirmed_gone, mut confirmed) = (Answers::new(), Answers::new());
        let mut conflicts: Vec<Failure> = Vec::new();
        for attempt in 0..ATTEMPTS {
            let Some(mut world) = self.observe(&key, &offer, &confirmed_gone, &confirmed) else {
                return Outcome::Gone;
            };
            if attempt > 0 {
                world.legacy_policy = None;
            }
            let plan = decide(&world, &self.settings, self.cluster.now());
            if creates(&plan.steps) {
                match self.cluster.is_still_there(&*world.claim).await {
                    Ok(true) => {}
                    Ok(false) => continue,
                    Err(failure) => return self.give_up(&key, &world, &[failure]).await,
                }
            }
            let provision = Provision::of(&world, &plan);
            for step in plan.best_effort {
                for failure in self.cluster.apply(&key.namespace, MANAGER, vec![step]).await {
                    tracing::warn!(claim = %key, problem = %failure.message, "a step that can wait was not carried out");
                }
            }
            // A sandbox that was just created, by this or another controller, exists again.
            let made: Vec<String> = plan.steps.iter().filter_map(creation).map(str::to_owned).collect();
            let failures = self.cluster.apply(&key.namespace, MANAGER, plan.steps).await;
            confirmed_gone.retain(|name, _| !made.contains(name));
            if let Next::Settled { look_again, retry } = plan.next {
                return self.settle(&key, &world, plan.notes, failures, look_again, retry);
            }
            if failures.iter().any(is_lasting) {
                return self.give_up(&key, &world, &failures).await;
            }
            if !failures.is_empty() {
                // Another controller was faster. Decide again with the updated caches; the claim
                // may even be on another pool now.
                if !matches!(offer, Offer::Sandbox(_)) {
                    offer = Offer::NotAsked;
                }
                conflicts = failures;
                continue;
            }
            if let Some(provision) = provision {
                provision.count(&self.telemetry);
            }
            for note in plan.notes {
                self.recorder.record(ReportingController::SandboxClaim, &*world.claim, note);
            }
            match plan.next {
                Next::AskForOffer => {
                    offer = self.ask(&key, &world);
                    if let Offer::Sandbox(sandbox) = &offer {
                        let pool = pool_key(&world.claim);
                        let name = sandbox.metadata.name.clone().unwrap_or_default();
                        reservation = Some(Reservation { controller: self, pool, name });
                    }
                }
                Next::Confirm(name) => match self.cluster.read_sandbox(&key.namespace, &name).await {
                    Ok(true) => {
                        confirmed.insert(name, world.claim.metadata.resource_version.clone());
                    }
                    Ok(false) => {
                        confirmed_gone.insert(name, world.claim.metadata.resource_version.clone());
                    }
                    Err(error) => {
                        let failure = Failure::found(Stage::Subject, format!("read sandbox {name}: {error}"));
                        return self.give_up(&key, &world, &[failure]).await;
                    }
                },
                // An offer is good for one assignment. If that fails, the pool is asked again.
                Next::DecideAgain => {
                    if let Offer::Sandbox(sandbox) = &offer
                        && claimable_now(&self.cluster, &key.namespace, sandbox).is_none()
                        && assigned_to(&self.cluster, &key).is_none()
                    {
                        offer = Offer::NotAsked;
                    }
                }
                Next::Settled { .. } => {}
            }
        }
        drop(reservation);
        let Some(world) = self.observe(&key, &offer, &confirmed_gone, &confirmed) else {
            return Outcome::Gone;
        };
        if conflicts.is_empty() {
            conflicts.push(Failure::found(Stage::Subject, "the claim did not settle in one pass"));
        }
        self.give_up(&key, &world, &conflicts).await
    }

    fn settle(
        &self,
        key: &ObjectKey,
        world: &World,
        notes: Vec<warren_decide::step::Note>,
        failures: Vec<Failure>,
        look_again: Option<std::time::Duration>,
        retry: bool,
    ) -> Outcome {
        // A conflict on the status is ignored: if the other write matters, its event has woken this
        // claim.
        let moved_on = || {
            let present = self.cluster.claims.get(key);
            present
                .is_none_or(|claim| claim.metadata.resource_version != world.claim.metadata.resource_version)
        };
        let late = !failures.is_empty()
            && failures.iter().all(|failure| failure.kind == FailureKind::Conflict)
            && moved_on();
        if !failures.is_empty() && !late {
            for failure in &failures {
                tracing::warn!(claim = %key, problem = %failure.message, "status was not published");
            }
            return Outcome::of(look_again, true);
        }
        if !late {
            for note in notes {
                self.recorder.record(ReportingController::SandboxClaim, &*world.claim, note);
            }
        }
        match look_again {
            // This is the end of the claim's time. Backoff must not delay it, however near it is.
            Some(delay) if retry => Outcome::RetryWithin(delay),
            _ => Outcome::of(look_again, retry),
        }
    }

    async fn give_up(&self, key: &ObjectKey, world: &World, failures: &[Failure]) -> Outcome {
        for failure in failures {
            tracing::warn!(claim = %key, problem = %failure.message, "claim has a problem");
        }
        if let Some(failure) = failures.iter().find(|failure| failure.is_final()) {
            let basis = Basis::of(&world.claim, world.template.as_deref());
            self.refused().insert(key.clone(), (basis, failure.message.clone()));
        }
        let plan = give_up(world, failures, &self.settings, self.cluster.now());
        let unpublished = self.cluster.apply(&key.namespace, MANAGER, plan.steps).await;
        if let Next::Settled { look_again, retry } = plan.next {
            return self.settle(key, world, plan.notes, unpublished, look_again, retry);
        }
        // `give_up` always settles. If it did not, the next reconcile would determine the claim's
        // state.
        Outcome::Retry
    }

    /// Asks the pool for a sandbox. A claim that has to wait is woken when there is one.
    fn ask(&self, key: &ObjectKey, world: &World) -> Offer {
        let pool = pool_key(&world.claim);
        let recreate = world.pool.as_ref().is_some_and(|pool| Strategy::of(pool) == Strategy::Recreate);
        if recreate && world.template.is_none() {
            // Without a template, outdated members cannot be recognised.
            return Offer::Empty;
        }
        let comparison = world.template.as_deref().filter(|_| recreate).map(TemplateComparison::new);
        let hash = NameHash::of(&pool.name).to_string();
        let mut found = None;
        let mut queues = self.warm_queues();
        let taken = queues.sandboxes.take(&pool, |name| {
            let sandbox = self
                .cluster
                .sandboxes
                .get(&ObjectKey { namespace: key.namespace.clone(), name: name.to_owned() });
            found = sandbox.filter(|sandbox| {
                claimable_in(sandbox).as_ref() == Some(&pool)
                    && ownership::label(&sandbox.metadata, labels::WARM_POOL_SANDBOX) == Some(&hash)
                    && !self.is_promised_to_another(key, name)
                    && !comparison.as_ref().is_some_and(|comparison| comparison.is_stale(sandbox))
            });
            found.is_some()
        });
        match taken {
            Taken::Sandbox(_) => found.map_or(Offer::Empty, Offer::Sandbox),
            Taken::Empty => Offer::Empty,
            Taken::Pending => {
                queues.claims.entry(pool).or_default().insert(key.clone());
                Offer::Pending
            }
        }
    }

    /// Returns true if another claim has committed to a sandbox. If the server refuses that claim's
    /// adoption, it would refuse the next claim's, too: a sandbox that cannot be adopted must block
    /// one claim, not all. A claim that has ended or is being deleted adopts nothing any more; if
    /// it is revived, it finds that the sandbox has another owner.
    fn is_promised_to_another(&self, key: &ObjectKey, sandbox: &str) -> bool {
        let promise = Index::Promise(key.namespace.clone(), sandbox.to_owned());
        let is_another = |claim: &Arc<SandboxClaim>| key_of(&**claim) != *key && !is_over(claim);
        self.cluster.claims.find(&promise).iter().any(is_another)
    }

    /// Withdraws a sandbox that can no longer be parsed: its last known state must not be offered.
    pub(crate) fn withdraw(&self, key: &ObjectKey) {
        if let Some(pool) = self.cluster.sandboxes.get(key).and_then(|known| claimable_in(&known)) {
            self.warm_queues().sandboxes.remove(&pool, &key.name);
        }
    }

    fn observe(
        &self,
        key: &ObjectKey,
        offer: &Offer,
        confirmed_gone: &Answers,
        confirmed: &Answers,
    ) -> Option<World> {
        let claim = self.cluster.claims.get(key)?;
        let of_now = |answers: &Answers| -> BTreeSet<String> {
            let is_of_now =
                |(_, version): &(&String, &Option<String>)| **version == claim.metadata.resource_version;
            answers.iter().filter(is_of_now).map(|(name, _)| name.clone()).collect()
        };
        let (confirmed_gone, confirmed) = (of_now(confirmed_gone), of_now(confirmed));
        let in_namespace = |name: &str| ObjectKey { namespace: key.namespace.clone(), name: name.to_owned() };
        let pool = self.cluster.pools.get(&in_namespace(&claim.spec.warm_pool_ref.name));
        let template = pool
            .as_ref()
            .and_then(|pool| self.cluster.templates.get(&in_namespace(&pool.spec.sandbox_template_ref.name)));
        let published = claim.status.as_ref().and_then(|status| status.sandbox.as_ref()?.name.as_deref());
        let assigned = ownership::annotation(&claim.metadata, annotations::SANDBOX_NAME);
        let legacy = ownership::label(&claim.metadata, labels::LEGACY_SANDBOX_NAME);
        let mut sandboxes = BTreeMap::new();
        for name in [published, assigned, legacy, Some(key.name.as_str())].into_iter().flatten() {
            if let Some(sandbox) = self.cluster.sandboxes.get(&in_namespace(name))
                && !confirmed_gone.contains(name)
            {
                sandboxes.insert(name.to_owned(), sandbox);
            }
        }
        // Include sandboxes that became the claim's when nothing in the claim referred to them any
        // more.
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        for sandbox in self.cluster.sandboxes.find(&Index::Controller(key.namespace.clone(), uid)) {
            let name = sandbox.metadata.name.clone().unwrap_or_default();
            if !confirmed_gone.contains(&name) {
                sandboxes.insert(name, sandbox);
            }
        }
        let first_seen = self.first_seen_map().get(key).map_or_else(|| self.cluster.now(), |(_, time)| *time);
        let refused = {
            let basis = Basis::of(&claim, template.as_deref());
            self.refused().get(key).filter(|(tried, _)| *tried == basis).map(|(_, text)| text.clone())
        };
        Some(World {
            pool,
            template,
            refused,
            sandboxes,
            confirmed_gone,
            confirmed,
            legacy_policy: self.cluster.policies.get(&in_namespace(&policy_name(&key.name))),
            offer: offer.clone(),
            first_seen,
            claim,
        })
    }

    /// Records a change of a claim and wakes it.
    pub(crate) fn observe_claim(&self, queue: &WorkQueue, change: &Change<'_, SandboxClaim>) {
        match change.after {
            None => {
                self.first_seen_map().remove(change.key);
                self.refused().remove(change.key);
                if let Some(claim) = change.before {
                    self.warm_queues().forget(&pool_key(claim), change.key);
                }
            }
            Some(claim) => {
                let annotated =
                    ownership::annotation(&claim.metadata, annotations::CONTROLLER_FIRST_OBSERVED_AT)
                        .is_some();
                let mut first_seen = self.first_seen_map();
                if annotated {
                    first_seen.remove(change.key);
                } else if first_seen.get(change.key).is_none_or(|(uid, _)| *uid != claim.metadata.uid) {
                    first_seen.insert(change.key.clone(), (claim.metadata.uid.clone(), self.cluster.now()));
                }
            }
        }
        queue.add(change.key.clone());
    }

    /// Records a change of a sandbox: updates the queue, wakes its claim and claims that wait for
    /// one.
    pub(crate) fn observe_sandbox(&self, queue: &WorkQueue, change: &Change<'_, Sandbox>) {
        let (before, after) =
            (change.before.map(|sandbox| &**sandbox), change.after.map(|sandbox| &**sandbox));
        let woken = {
            let mut queues = self.warm_queues();
            queues.sandboxes.observe(before, after).and_then(|pool| queues.claims.remove(&pool))
        };
        woken.into_iter().flatten().for_each(|claim| queue.add(claim));
        if matters_to_claim(before, after) {
            for sandbox in [before, after].into_iter().flatten() {
                if let Some(owner) = ownership::controller(&sandbox.metadata)
                    .filter(|owner| ownership::is_kind::<SandboxClaim>(owner))
                {
                    queue
                        .add(ObjectKey { namespace: change.key.namespace.clone(), name: owner.name.clone() });
                }
            }
        }
    }

    /// Records whether a node's sandboxes may be handed out.
    pub(crate) fn observe_node(&self, node: &str, is_fit: bool) {
        self.warm_queues().sandboxes.observe_node(node, is_fit);
    }

    /// Records a change of a pool: claims without a sandbox may now get one.
    pub(crate) fn observe_pool(&self, queue: &WorkQueue, change: &Change<'_, SandboxWarmPool>) {
        let generation = |pool: &SandboxWarmPool| pool.metadata.generation;
        if change.before.map(|pool| generation(pool)) == change.after.map(|pool| generation(pool)) {
            return;
        }
        if change.after.is_none() {
            let key = PoolKey { namespace: change.key.namespace.clone(), name: change.key.name.clone() };
            let mut queues = self.warm_queues();
            queues.sandboxes.drop_pool(&key);
            queues.claims.remove(&key);
        }
        self.wake_claims_of(queue, &change.key.namespace, &change.key.name, true);
    }

    /// Records a change of a template. The claims of its pools may continue if it is new, or if it
    /// was edited after the server had refused its sandboxes as invalid.
    pub(crate) fn observe_template(&self, queue: &WorkQueue, change: &Change<'_, SandboxTemplate>) {
        let generation = |template: &SandboxTemplate| template.metadata.generation;
        let is_new = change.before.is_none();
        if !is_new
            && change.before.map(|before| generation(before)) == change.after.map(|after| generation(after))
        {
            return;
        }
        let index = Index::Template(change.key.namespace.clone(), change.key.name.clone());
        for pool in self.cluster.pools.find(&index) {
            let name = key_of(&*pool).name;
            if is_new {
                self.wake_claims_of(queue, &change.key.namespace, &name, false);
            } else {
                let claims = self.cluster.claims.find(&Index::Pool(change.key.namespace.clone(), name));
                let refused = self.refused();
                let keys = claims.iter().map(|claim| key_of(&**claim));
                keys.filter(|key| refused.contains_key(key)).for_each(|key| queue.add(key));
            }
        }
    }

    fn wake_claims_of(&self, queue: &WorkQueue, namespace: &str, pool: &str, only_unbound: bool) {
        for claim in self.cluster.claims.find(&Index::Pool(namespace.to_owned(), pool.to_owned())) {
            let bound = claim.status.as_ref().is_some_and(|status| status.sandbox.is_some());
            if claim.metadata.deletion_timestamp.is_none() && !(only_unbound && bound) {
                queue.add(key_of(&*claim));
            }
        }
    }

    fn warm_queues(&self) -> MutexGuard<'_, WarmQueues> {
        self.warm_queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self) -> MutexGuard<'_, HashMap<ObjectKey, (Basis, String)>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn first_seen_map(&self) -> MutexGuard<'_, HashMap<ObjectKey, (Option<String>, Timestamp)>> {
        self.first_seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the name of the sandbox that a step creates.
fn creation(step: &Step) -> Option<&str> {
    match &step.action {
        Action::Create(object) => Some(object.name()),
        _ => None,
    }
}

/// Returns true if a new decision would not help.
fn is_lasting(failure: &Failure) -> bool {
    matches!(failure.kind, FailureKind::Refused | FailureKind::Invalid | FailureKind::Unknown)
}

fn pool_key(claim: &SandboxClaim) -> PoolKey {
    let namespace = claim.metadata.namespace.clone().unwrap_or_default();
    PoolKey { namespace, name: claim.spec.warm_pool_ref.name.clone() }
}

fn claimable_now(cluster: &Cluster, namespace: &str, sandbox: &Sandbox) -> Option<PoolKey> {
    let name = sandbox.metadata.name.clone().unwrap_or_default();
    let present = cluster.sandboxes.get(&ObjectKey { namespace: namespace.to_owned(), name })?;
    claimable_in(&present)
}

fn assigned_to(cluster: &Cluster, key: &ObjectKey) -> Option<String> {
    let claim = cluster.claims.get(key)?;
    ownership::annotation(&claim.metadata, annotations::SANDBOX_NAME).map(str::to_owned)
}

/// Returns true if a change of a claimed sandbox affects its claim: its end, addresses, readiness,
/// result, pending work, or owner.
fn matters_to_claim(before: Option<&Sandbox>, after: Option<&Sandbox>) -> bool {
    let (Some(before), Some(after)) = (before, after) else { return true };
    let unscheduled = |sandbox| {
        condition(sandbox, ConditionType::PodScheduled).is_some_and(|condition| condition.status == "False")
    };
    let shown = [ConditionType::Ready, ConditionType::Finished, ConditionType::PodWaiting];
    before.metadata.deletion_timestamp != after.metadata.deletion_timestamp
        || before.metadata.owner_references != after.metadata.owner_references
        || shown.into_iter().any(|type_| condition(before, type_) != condition(after, type_))
        || ((unscheduled(before) || unscheduled(after))
            && condition(before, ConditionType::PodScheduled)
                != condition(after, ConditionType::PodScheduled))
        || addresses(before) != addresses(after)
}

fn condition(sandbox: &Sandbox, type_: ConditionType) -> Option<&Condition> {
    conditions::find(&sandbox.status.as_ref()?.conditions, type_)
}

fn addresses(sandbox: &Sandbox) -> &[String] {
    sandbox.status.as_ref().map(|status| status.pod_ips.as_slice()).unwrap_or_default()
}
