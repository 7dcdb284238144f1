//! The SandboxClaim controller.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use warren_api::conditions::{self, ConditionType};
use warren_api::pool::UpdateStrategyType;
use warren_api::{NameHash, Sandbox, SandboxClaim, SandboxWarmPool, annotations, labels};
use warren_decide::claim::{Next, Offer, World, decide, give_up};
use warren_decide::ownership;
use warren_decide::staleness::Yardstick;
use warren_decide::step::{Failure, FailureKind, Stage};
use warren_decide::template::policy_name;
use warren_decide::warm_queue::{PoolKey, Taken, WarmQueue, claimable_in};

use super::{Brain, Outcome, Process};
use crate::server::NAMESPACE;

/// How often one pass looks again.
const LOOKS: usize = 12;

/// Sandboxes that wait for claims, and claims that wait for sandboxes.
#[derive(Debug, Default)]
pub struct WaitingRoom {
    sandboxes: WarmQueue,
    claims: BTreeMap<PoolKey, BTreeSet<String>>,
}

/// Gives an offered sandbox back to the queue when the pass ends, however it ends.
struct SetAside<'a> {
    process: &'a Process,
    pool: PoolKey,
    name: String,
}

impl Drop for SetAside<'_> {
    fn drop(&mut self) {
        self.process.brain.borrow_mut().room.sandboxes.release(&self.pool, &self.name);
    }
}

/// One pass over one claim.
pub async fn reconcile(process: &Process, key: &str) -> Outcome {
    let mut offer = Offer::NotAsked;
    let mut set_aside = None;
    let (mut confirmed_gone, mut confirmed) = (BTreeSet::new(), BTreeSet::new());
    let mut surprises: Vec<Failure> = Vec::new();
    for number in 0..LOOKS {
        let Some(mut world) = look(process, key, &offer, &confirmed_gone, &confirmed) else {
            return Outcome::Done;
        };
        if number > 0 {
            world.legacy_policy = None;
        }
        let plan = decide(&world, &process.settings.claim, process.now());
        process.apply(plan.best_effort).await;
        let failures = process.apply(plan.steps).await;
        if let Next::Settled { look_again, retry } = plan.next {
            return settle(process, plan.notes.len(), &failures, look_again, retry);
        }
        if failures.iter().any(is_lasting) {
            return publish_problem(process, &world, &failures).await;
        }
        if !failures.is_empty() {
            // Somebody was quicker. The caches hold the truth by now; decide on that.
            surprises = failures;
            continue;
        }
        process.brain.borrow_mut().notes += plan.notes.len() as u64;
        match plan.next {
            Next::AskForOffer => {
                offer = ask(&mut process.brain.borrow_mut(), key, &world);
                if let Offer::Sandbox(sandbox) = &offer {
                    let name = sandbox.metadata.name.clone().unwrap_or_default();
                    set_aside = Some(SetAside { process, pool: pool_key(&world.claim), name });
                }
            }
            Next::Confirm(name) => match process.read_sandbox(&name).await {
                Ok(true) => {
                    confirmed.insert(name);
                }
                Ok(false) => {
                    confirmed_gone.insert(name);
                }
                Err(error) => {
                    let failure = Failure::found(Stage::Subject, format!("read sandbox {name}: {error}"));
                    return publish_problem(process, &world, &[failure]).await;
                }
            },
            // An offer is good for one assignment; should that come to nothing, the pool is asked again.
            Next::DecideAgain => {
                let brain = process.brain.borrow();
                if let Offer::Sandbox(sandbox) = &offer
                    && !is_claimable_now(&brain, sandbox)
                    && !is_assigned(&brain, key)
                {
                    offer = Offer::NotAsked;
                }
            }
            Next::Settled { .. } => {}
        }
    }
    drop(set_aside);
    let Some(world) = look(process, key, &offer, &confirmed_gone, &confirmed) else { return Outcome::Done };
    if surprises.is_empty() {
        surprises.push(Failure::found(Stage::Subject, "the claim did not settle in one pass"));
    }
    publish_problem(process, &world, &surprises).await
}

fn settle(
    process: &Process,
    notes: usize,
    failures: &[Failure],
    look_again: Option<std::time::Duration>,
    retry: bool,
) -> Outcome {
    // A status that came too late is dropped: whoever wrote first has woken us with it.
    let late = !failures.is_empty() && failures.iter().all(|failure| failure.kind == FailureKind::Conflict);
    if !failures.is_empty() && !late {
        return Outcome::Retry;
    }
    if !late {
        process.brain.borrow_mut().notes += notes as u64;
    }
    match look_again {
        _ if retry => Outcome::Retry,
        Some(delay) => Outcome::LookAgain(delay),
        None => Outcome::Done,
    }
}

async fn publish_problem(process: &Process, world: &World, failures: &[Failure]) -> Outcome {
    let plan = give_up(world, failures, &process.settings.claim, process.now());
    let unpublished = process.apply(plan.steps).await;
    if let Next::Settled { look_again, retry } = plan.next {
        return settle(process, plan.notes.len(), &unpublished, look_again, retry);
    }
    // Giving up always settles; were it not to, the next pass would find out where the claim stands.
    Outcome::Retry
}

/// Asks the pool for a sandbox. A claim that has to wait for one is woken when there is.
fn ask(brain: &mut Brain, key: &str, world: &World) -> Offer {
    let pool = pool_key(&world.claim);
    let recreate = world
        .pool
        .as_ref()
        .is_some_and(|pool| pool.spec.update_strategy_type() == UpdateStrategyType::Recreate);
    let yardstick = world.template.as_deref().filter(|_| recreate).map(Yardstick::new);
    let hash = NameHash::of(&pool.name).to_string();
    let mut found = None;
    let mut sandboxes = std::mem::take(&mut brain.room.sandboxes);
    let taken = sandboxes.take(&pool, |name| {
        found = brain.get::<Sandbox>(name).filter(|sandbox| {
            claimable_in(sandbox).as_ref() == Some(&pool)
                && ownership::label(&sandbox.metadata, labels::WARM_POOL_SANDBOX) == Some(&hash)
                && !yardstick.as_ref().is_some_and(|yardstick| yardstick.is_stale(sandbox))
        });
        found.is_some()
    });
    brain.room.sandboxes = sandboxes;
    match taken {
        Taken::Sandbox(_) => found.map_or(Offer::Empty, Offer::Sandbox),
        Taken::Empty => Offer::Empty,
        Taken::Pending => {
            brain.room.claims.entry(pool).or_default().insert(key.to_owned());
            Offer::Pending
        }
    }
}

fn look(
    process: &Process,
    key: &str,
    offer: &Offer,
    confirmed_gone: &BTreeSet<String>,
    confirmed: &BTreeSet<String>,
) -> Option<World> {
    let brain = process.brain.borrow();
    let claim = brain.get::<SandboxClaim>(key)?;
    let pool = brain.get::<SandboxWarmPool>(&claim.spec.warm_pool_ref.name);
    let template = pool.as_ref().and_then(|pool| brain.get(&pool.spec.sandbox_template_ref.name));
    let published = claim.status.as_ref().and_then(|status| status.sandbox.as_ref()?.name.as_deref());
    let assigned = ownership::annotation(&claim.metadata, annotations::SANDBOX_NAME);
    let legacy = ownership::label(&claim.metadata, labels::LEGACY_SANDBOX_NAME);
    let mut sandboxes = BTreeMap::new();
    for name in [published, assigned, legacy, Some(key)].into_iter().flatten() {
        if let Some(sandbox) = brain.get::<Sandbox>(name)
            && !confirmed_gone.contains(name)
        {
            sandboxes.insert(name.to_owned(), sandbox);
        }
    }
    Some(World {
        pool,
        template,
        sandboxes,
        confirmed_gone: confirmed_gone.clone(),
        confirmed: confirmed.clone(),
        legacy_policy: brain.get(&policy_name(key)),
        offer: offer.clone(),
        first_seen: brain.first_seen.get(key).map_or_else(|| process.now(), |(_, time)| *time),
        claim,
    })
}

impl Brain {
    /// Takes note of a change of a claim and wakes it.
    pub fn observe_claim(&mut self, key: &str, after: Option<&SandboxClaim>, now: Timestamp) {
        match after {
            None => {
                self.first_seen.remove(key);
            }
            Some(claim) => {
                let observed = annotations::CONTROLLER_FIRST_OBSERVED_AT;
                if ownership::annotation(&claim.metadata, observed).is_some() {
                    self.first_seen.remove(key);
                } else if self.first_seen.get(key).is_none_or(|(uid, _)| *uid != claim.metadata.uid) {
                    self.first_seen.insert(key.to_owned(), (claim.metadata.uid.clone(), now));
                }
            }
        }
        self.queues.claims.add(key);
    }

    /// Takes note of a change of a sandbox: keeps the queue, wakes its claim and claims that wait for one.
    pub fn observe_sandbox_for_claims(&mut self, before: Option<&Sandbox>, after: Option<&Sandbox>) {
        let gained = self.room.sandboxes.observe(before, after);
        let woken = gained.and_then(|pool| self.room.claims.remove(&pool));
        woken.iter().flatten().for_each(|claim| self.queues.claims.add(claim));
        if matters_to_claim(before, after) {
            for sandbox in [before, after].into_iter().flatten() {
                if let Some(owner) = ownership::controller(&sandbox.metadata)
                    .filter(|owner| ownership::is_kind::<SandboxClaim>(owner))
                {
                    self.queues.claims.add(&owner.name);
                }
            }
        }
    }

    /// Takes note of a change of a pool: claims without a sandbox may now get one.
    pub fn observe_pool(
        &mut self,
        name: &str,
        before: Option<&SandboxWarmPool>,
        after: Option<&SandboxWarmPool>,
    ) {
        let generation = |pool: &SandboxWarmPool| pool.metadata.generation;
        if before.map(generation) == after.map(generation) {
            return;
        }
        if after.is_none() {
            let key = PoolKey { namespace: NAMESPACE.to_owned(), name: name.to_owned() };
            self.room.sandboxes.drop_pool(&key);
        }
        self.wake_claims_of(name, true);
    }

    /// Takes note of a new template: the claims of its pools may now go on.
    pub fn observe_template(&mut self, name: &str, is_new: bool) {
        if !is_new {
            return;
        }
        let uses = |pool: &SandboxWarmPool| pool.spec.sandbox_template_ref.name == name;
        for pool in self.find::<SandboxWarmPool>(uses) {
            self.wake_claims_of(pool.metadata.name.as_deref().unwrap_or_default(), false);
        }
    }

    fn wake_claims_of(&mut self, pool: &str, only_unbound: bool) {
        for claim in self.find::<SandboxClaim>(|claim| claim.spec.warm_pool_ref.name == pool) {
            let bound = claim.status.as_ref().is_some_and(|status| status.sandbox.is_some());
            if claim.metadata.deletion_timestamp.is_none() && !(only_unbound && bound) {
                self.queues.claims.add(claim.metadata.name.as_deref().unwrap_or_default());
            }
        }
    }
}

/// Whether looking again would not help.
fn is_lasting(failure: &Failure) -> bool {
    matches!(failure.kind, FailureKind::Refused | FailureKind::Unknown)
}

fn pool_key(claim: &SandboxClaim) -> PoolKey {
    let namespace = claim.metadata.namespace.clone().unwrap_or_default();
    PoolKey { namespace, name: claim.spec.warm_pool_ref.name.clone() }
}

fn is_claimable_now(brain: &Brain, sandbox: &Sandbox) -> bool {
    let present = brain.get::<Sandbox>(sandbox.metadata.name.as_deref().unwrap_or_default());
    present.is_some_and(|present| claimable_in(&present).is_some())
}

fn is_assigned(brain: &Brain, key: &str) -> bool {
    brain
        .get::<SandboxClaim>(key)
        .is_some_and(|claim| ownership::annotation(&claim.metadata, annotations::SANDBOX_NAME).is_some())
}

/// Of a claimed sandbox only what the claim shows matters: its end, addresses, readiness and finish, and its owner.
fn matters_to_claim(before: Option<&Sandbox>, after: Option<&Sandbox>) -> bool {
    let (Some(before), Some(after)) = (before, after) else { return true };
    let status = |sandbox: &Sandbox| {
        let status = sandbox.status.clone().unwrap_or_default();
        let condition = |type_| conditions::find(&status.conditions, type_).cloned();
        (condition(ConditionType::Ready), condition(ConditionType::Finished), status.pod_ips)
    };
    before.metadata.deletion_timestamp != after.metadata.deletion_timestamp
        || before.metadata.owner_references != after.metadata.owner_references
        || status(before) != status(after)
}
