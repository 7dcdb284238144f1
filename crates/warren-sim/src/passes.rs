//! The passes of the three controllers, as tasks that stop at every call to the server, so that anything can happen in
//! between, the end of the process included.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use warren_decide::claim::{Next, Offer};
use warren_decide::pool::Memory;
use warren_decide::staleness::Yardstick;
use warren_decide::step::{Action, Failure, FailureKind, Kind, Object, Step};
use warren_decide::warm_queue::{PoolKey, Taken, claimable_in};
use warren_decide::{claim, pool, sandbox};

use crate::store::{Key, rank};
use crate::world::{Broken, World};

type Shared = Rc<RefCell<World>>;

/// The most writes that one pass tries; the numbers of `warren-controllers`.
const SANDBOX_LOOKS: usize = 3;
const CLAIM_LOOKS: usize = 12;

/// Stops once, so that somebody else may go first.
struct Yield(bool);

impl Future for Yield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        match std::mem::replace(&mut self.0, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

/// Runs the pass that fits the key.
pub(crate) async fn pass(world: Shared, process: usize, key: Key) {
    match key.0 {
        0 => sandbox_pass(&world, process, &key.1).await,
        1 => claim_pass(&world, process, &key.1).await,
        2 => pool_pass(&world, process, &key.1).await,
        _ => {}
    }
    world.borrow_mut().processes[process].busy.remove(&key);
}

/// One call to the server. It may fail before anything is written, and its answer may be lost after.
async fn call(world: &Shared, process: usize, action: &Action) -> Result<(), FailureKind> {
    Yield(false).await;
    if world.borrow_mut().fails_before() {
        return Err(FailureKind::Unknown);
    }
    let answer = world.borrow_mut().write(action);
    Yield(false).await;
    if world.borrow_mut().loses_answer() {
        return Err(FailureKind::Unknown);
    }
    match answer {
        Ok(object) => {
            if let Some(object) = object {
                world.borrow_mut().processes[process].remember(object);
            }
            Ok(())
        }
        Err(kind) => after_refusal(world, process, action, kind).await,
    }
}

async fn after_refusal(
    world: &Shared,
    process: usize,
    action: &Action,
    kind: FailureKind,
) -> Result<(), FailureKind> {
    let key = match action {
        Action::Create(Object::Sandbox(object)) => (0, object.metadata.name.clone().unwrap_or_default()),
        Action::Create(Object::Pod(object)) => (4, object.metadata.name.clone().unwrap_or_default()),
        Action::Create(_) => return Err(kind),
        Action::Merge { kind, name, .. }
        | Action::MergeStatus { kind, name, .. }
        | Action::Delete { kind, name, .. } => (rank(*kind), name.clone()),
    };
    match kind {
        FailureKind::NotFound => {
            world.borrow_mut().processes[process].take(&key);
            if matches!(action, Action::MergeStatus { .. }) {
                return Ok(());
            }
        }
        FailureKind::Conflict | FailureKind::AlreadyExists => read(world, process, &key).await,
        FailureKind::Refused | FailureKind::Unknown => {}
    }
    Err(kind)
}

/// Reads an object past the cache.
async fn read(world: &Shared, process: usize, key: &Key) {
    let live = world.borrow().store.objects.get(key).cloned();
    Yield(false).await;
    if let Some(live) = live {
        world.borrow_mut().processes[process].remember(live);
    }
}

async fn apply(world: &Shared, process: usize, steps: &[Step]) -> Vec<Failure> {
    let mut failures: Vec<Failure> = Vec::new();
    for step in steps {
        if failures.iter().any(|failure| failure.stage == step.stage) {
            continue;
        }
        if let Err(kind) = call(world, process, &step.action).await {
            failures.push(Failure { stage: step.stage, kind, message: format!("{kind:?}") });
        }
    }
    failures
}

async fn sandbox_pass(world: &Shared, process: usize, name: &str) {
    let is_surprise =
        |failure: &Failure| matches!(failure.kind, FailureKind::AlreadyExists | FailureKind::Conflict);
    let mut deleted: HashSet<String> = HashSet::new();
    let mut failed: Vec<Failure> = Vec::new();
    let mut looks = 0;
    let (seen, failures) = loop {
        let Some(seen) = world.borrow().processes[process].look_at_sandbox(name) else { return };
        let mut plan = sandbox::decide(&seen, world.borrow().now);
        let deletion = |step: &Step| match &step.action {
            Action::Delete { uid, .. } => Some(uid.clone()),
            _ => None,
        };
        plan.steps.retain(|step| deletion(step).is_none_or(|uid| !deleted.contains(&uid)));
        if plan.steps.is_empty() {
            failed.retain(|failure| !is_surprise(failure));
        }
        if plan.steps.is_empty() || looks == SANDBOX_LOOKS || !failed.iter().all(is_surprise) {
            plan.problems.append(&mut failed);
            break (seen, plan.problems);
        }
        deleted.extend(plan.steps.iter().filter_map(deletion));
        failed = apply(world, process, &plan.steps).await;
        looks += 1;
    };
    let now = world.borrow().now;
    let conclusion = sandbox::conclude(&seen, &failures, &sandbox::Settings::default(), now);
    apply(world, process, &conclusion.steps).await;
}

async fn claim_pass(world: &Shared, process: usize, name: &str) {
    let settings = claim::Settings::default();
    let mut offer = Offer::NotAsked;
    let mut set_aside: Option<(PoolKey, String)> = None;
    let mut gone = BTreeSet::new();
    for _ in 0..CLAIM_LOOKS {
        let Some(seen) = world.borrow().processes[process].look_at_claim(name, &offer, &gone) else { break };
        let plan = claim::decide(&seen, &settings, world.borrow().now);
        let failures = apply(world, process, &plan.steps).await;
        if matches!(plan.next, Next::Settled { .. }) {
            break;
        }
        let lasting = |failure: &Failure| matches!(failure.kind, FailureKind::Refused | FailureKind::Unknown);
        if failures.iter().any(lasting) {
            let now = world.borrow().now;
            let plan = claim::give_up(&seen, &failures, &settings, now);
            apply(world, process, &plan.steps).await;
            break;
        }
        if !failures.is_empty() {
            continue;
        }
        match plan.next {
            Next::AskForOffer => {
                let pool = PoolKey {
                    namespace: "default".to_owned(),
                    name: seen.claim.spec.warm_pool_ref.name.clone(),
                };
                offer = ask(world, process, &seen, &pool);
                if let Offer::Sandbox(sandbox) = &offer {
                    set_aside = Some((pool, sandbox.metadata.name.clone().unwrap_or_default()));
                }
            }
            Next::Confirm(sandbox) => {
                Yield(false).await;
                let key = (0, sandbox.clone());
                if world.borrow().store.objects.contains_key(&key) {
                    read(world, process, &key).await;
                } else {
                    gone.insert(sandbox);
                }
            }
            Next::DecideAgain => {
                let borrowed = world.borrow();
                let process = &borrowed.processes[process];
                let assigned = process.claim(name).is_some_and(|claim| {
                    warren_decide::ownership::annotation(
                        &claim.metadata,
                        warren_api::annotations::SANDBOX_NAME,
                    )
                    .is_some()
                });
                if let Offer::Sandbox(sandbox) = &offer
                    && !assigned
                    && process
                        .sandbox(sandbox.metadata.name.as_deref().unwrap_or_default())
                        .is_none_or(|sandbox| claimable_in(&sandbox).is_none())
                {
                    offer = Offer::NotAsked;
                }
            }
            Next::Settled { .. } => {}
        }
    }
    if let Some((pool, sandbox)) = set_aside {
        world.borrow_mut().processes[process].warm.release(&pool, &sandbox);
    }
}

fn ask(world: &Shared, process: usize, seen: &claim::World, pool: &PoolKey) -> Offer {
    let mut borrowed = world.borrow_mut();
    let process = &mut borrowed.processes[process];
    let recreate = seen.pool.as_ref().is_some_and(|pool| {
        pool.spec.update_strategy_type() == warren_api::pool::UpdateStrategyType::Recreate
    });
    let yardstick = seen.template.as_deref().filter(|_| recreate).map(Yardstick::new);
    let mut warm = std::mem::take(&mut process.warm);
    let taken = warm.take(pool, |name| {
        process.sandbox(name).is_some_and(|sandbox| {
            claimable_in(&sandbox).as_ref() == Some(pool)
                && !yardstick.as_ref().is_some_and(|yardstick| yardstick.is_stale(&sandbox))
        })
    });
    process.warm = warm;
    match taken {
        Taken::Sandbox(name) => process.sandbox(&name).map_or(Offer::Empty, Offer::Sandbox),
        Taken::Pending => Offer::Pending,
        Taken::Empty => Offer::Empty,
    }
}

async fn pool_pass(world: &Shared, process: usize, name: &str) {
    let plan = {
        let mut borrowed = world.borrow_mut();
        let Some(mut seen) = borrowed.processes[process].look_at_pool(name) else { return };
        let now = borrowed.now;
        let broken = borrowed.options.broken == Some(Broken::CountsNoTerminating);
        let memory = borrowed.processes[process].memories.entry(name.to_owned()).or_default();
        if broken {
            // What upstream once did: neither the dying nor what was just asked for are counted.
            *memory = Memory::default();
            seen.members.retain(|member| member.metadata.deletion_timestamp.is_none());
        }
        pool::decide(&seen, memory, &pool_settings(), now)
    };
    let mut failed = false;
    for steps in [plan.repairs, plan.creations, plan.removals] {
        failed |= members(world, process, name, steps).await;
    }
    if !failed {
        apply(world, process, plan.status.as_slice()).await;
    }
}

/// Steps about members with a slow start; the first batch with a failure is the last.
async fn members(world: &Shared, process: usize, pool: &str, steps: Vec<Step>) -> bool {
    let (mut size, mut left, mut failed) = (1, 1, false);
    for step in steps {
        if left == 0 {
            if failed {
                settle(world, process, pool, &step.action, Some(FailureKind::Refused));
                continue;
            }
            size *= 2;
            left = size;
        }
        left -= 1;
        let result = call(world, process, &step.action).await;
        failed |= result.is_err();
        settle(world, process, pool, &step.action, result.err());
    }
    failed
}

fn settle(world: &Shared, process: usize, pool: &str, action: &Action, failure: Option<FailureKind>) {
    let mut borrowed = world.borrow_mut();
    let now = borrowed.now;
    let process = &mut borrowed.processes[process];
    let gone = match action {
        Action::Delete { kind: Kind::Sandbox, name, uid, .. } => {
            process.sandbox(name).is_none_or(|sandbox| sandbox.metadata.uid.as_deref() != Some(uid))
        }
        _ => false,
    };
    let Some(memory) = process.memories.get_mut(pool) else { return };
    match (action, failure) {
        (Action::Create(_), Some(FailureKind::Unknown)) => memory.expectations.creation_in_doubt(now),
        (Action::Create(_), Some(_)) => memory.expectations.creation_settled(),
        (Action::Delete { uid, .. }, failure) if failure.is_some() || gone => {
            memory.expectations.deletion_settled(uid)
        }
        _ => {}
    }
}

fn pool_settings() -> pool::Settings {
    pool::Settings { max_batch_size: 4, ..pool::Settings::default() }
}
