//! The SandboxWarmPool controller.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use warren_api::conditions::{self, ConditionType};
use warren_api::{NameHash, Sandbox, SandboxWarmPool, annotations, labels};
use warren_decide::ownership;
use warren_decide::pool::{World, decide};
use warren_decide::step::{Action, FailureKind, Step};

use super::{Brain, Mutant, Outcome, Process};
use crate::server::NAMESPACE;
use crate::wire::Intent;

/// One pass over one pool.
pub async fn reconcile(process: &Process, key: &str) -> Outcome {
    let (plan, intent) = {
        let mut brain = process.brain.borrow_mut();
        let Some(mut world) = look(&brain, key, process.uptime()) else {
            brain.memories.remove(key);
            return Outcome::Done;
        };
        if process.settings.mutant == Mutant::TerminatingNotCounted {
            world.members.retain(|member| member.metadata.deletion_timestamp.is_none());
        }
        let intent = Intent {
            target: usize::try_from(world.pool.spec.replicas).unwrap_or_default(),
            known: Rc::new(brain.ever_seen.clone()),
            is_untold: false,
        };
        let memory = brain.memories.entry(key.to_owned()).or_default();
        (decide(&world, memory, &process.settings.pool, process.now()), intent)
    };
    let mut failed = false;
    for steps in [plan.repairs, plan.creations, plan.removals] {
        failed |= carry_out(process, key, steps, &intent).await;
    }
    if plan.recount {
        // The simulation's servers are never silent for so long that counting there would show more than the watch.
        process.brain.borrow_mut().memories.entry(key.to_owned()).or_default().expectations.recounted();
        return Outcome::LookAgain(Duration::from_millis(1));
    }
    let unwritten = process.apply(plan.verdict.into_iter().collect()).await;
    if failed || !unwritten.is_empty() {
        return Outcome::Retry;
    }
    process.brain.borrow_mut().notes += plan.notes.len() as u64;
    let unpublished = process.apply(plan.status.into_iter().collect()).await;
    match plan.look_again {
        _ if !unpublished.is_empty() => Outcome::Retry,
        Some(delay) => Outcome::LookAgain(delay),
        None => Outcome::Done,
    }
}

/// Carries out steps about members, and takes back the expectations about those that did not happen.
async fn carry_out(process: &Process, key: &str, steps: Vec<Step>, intent: &Intent) -> bool {
    let removals: Vec<(String, String)> = steps.iter().filter_map(|step| removal(&step.action)).collect();
    let undone = process.apply_slowly(steps, intent).await;
    let mut brain = process.brain.borrow_mut();
    let brain = &mut *brain;
    let gone: Vec<String> = removals
        .into_iter()
        .filter(|(name, uid)| {
            let member = brain.get::<Sandbox>(name);
            member.is_none_or(|member| member.metadata.uid.as_deref() != Some(uid))
        })
        .map(|(_, uid)| uid)
        .collect();
    let expectations = &mut brain.memories.entry(key.to_owned()).or_default().expectations;
    for (step, failure) in &undone {
        match &step.action {
            Action::Create(_) if failure.kind == FailureKind::Unknown => {
                expectations.creation_in_doubt(process.uptime());
            }
            Action::Create(_) => expectations.creation_settled(),
            Action::Delete { uid, .. } => expectations.deletion_settled(uid),
            Action::Merge { .. } | Action::MergeStatus { .. } => {}
        }
    }
    // A member that was gone before we expected its end sends no more events.
    for uid in gone {
        expectations.deletion_settled(&uid);
    }
    !undone.is_empty()
}

fn look(brain: &Brain, key: &str, uptime: Duration) -> Option<World> {
    let pool = brain.get::<SandboxWarmPool>(key)?;
    let template = brain.get(&pool.spec.sandbox_template_ref.name);
    let hash = NameHash::of(key).to_string();
    let labelled =
        |sandbox: &Sandbox| ownership::label(&sandbox.metadata, labels::WARM_POOL_SANDBOX) == Some(&hash);
    let members = brain.find::<Sandbox>(labelled);
    let mut pods = BTreeMap::new();
    for member in members.iter().filter(|member| !is_ready(member)) {
        let name = member.metadata.name.clone().unwrap_or_default();
        let pod = ownership::annotation(&member.metadata, annotations::POD_NAME).unwrap_or(&name);
        if let Some(pod) = brain.get::<Pod>(pod) {
            pods.insert(name, pod);
        }
    }
    let jitter = f64::from(NameHash::of(&format!("{NAMESPACE}/{key}")).value()) / f64::from(u32::MAX);
    Some(World { pool, template, members, pods, jitter, uptime })
}

impl Brain {
    /// Takes note of a change of a sandbox, and wakes the pools that it matters to.
    pub fn observe_sandbox_for_pools(&mut self, before: Option<&Sandbox>, after: Option<&Sandbox>) {
        let pool_of = |sandbox: &Sandbox| {
            let owner = ownership::controller(&sandbox.metadata)
                .filter(|owner| ownership::is_kind::<SandboxWarmPool>(owner))?;
            Some(owner.name.clone())
        };
        let (old, new) = (before.and_then(pool_of), after.and_then(pool_of));
        if let Some(memory) =
            new.as_ref().filter(|_| before.is_none()).and_then(|key| self.memories.get_mut(key))
        {
            memory.expectations.creation_settled();
        }
        if let (Some(key), None, Some(sandbox)) = (&old, after, before)
            && let Some(memory) = self.memories.get_mut(key)
        {
            memory.expectations.deletion_settled(sandbox.metadata.uid.as_deref().unwrap_or_default());
        }
        let quiet = match (before, after) {
            (Some(before), Some(after)) => {
                old == new
                    && is_ready(before) == is_ready(after)
                    && before.metadata.deletion_timestamp == after.metadata.deletion_timestamp
                    && before.metadata.labels == after.metadata.labels
                    && before.metadata.generation == after.metadata.generation
            }
            _ => false,
        };
        if !quiet {
            old.iter().chain(&new).for_each(|key| self.queues.pools.add(key));
        }
    }
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
        Action::Create(_) | Action::Merge { .. } | Action::MergeStatus { .. } => None,
    }
}
