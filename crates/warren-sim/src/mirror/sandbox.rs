//! The Sandbox controller.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use warren_api::{Sandbox, annotations};
use warren_decide::ownership;
use warren_decide::sandbox::{World, conclude, decide};
use warren_decide::step::{Action, Failure, FailureKind, Step};

use super::{Brain, Outcome, Process};

/// How often one pass tries writes.
const LOOKS: usize = 3;

/// One pass over one sandbox.
pub async fn reconcile(process: &Process, key: &str) -> Outcome {
    let mut deleted = BTreeSet::new();
    let mut failed: Vec<Failure> = Vec::new();
    let mut looks = 0;
    let (world, failures) = loop {
        let Some(world) = look(&process.brain.borrow(), key) else { return Outcome::Done };
        let mut plan = decide(&world, process.now());
        // A deletion that is done may not have reached the cache yet.
        plan.steps.retain(|step| deletion(step).is_none_or(|uid| !deleted.contains(uid)));
        let surprised = !failed.is_empty() && failed.iter().all(is_surprise);
        if plan.steps.is_empty() {
            // Whatever surprised us has turned out well.
            failed.retain(|failure| !is_surprise(failure));
        }
        if plan.steps.is_empty() || looks == LOOKS || !(failed.is_empty() || surprised) {
            plan.problems.append(&mut failed);
            break (world, plan.problems);
        }
        deleted.extend(plan.steps.iter().filter_map(deletion).map(str::to_owned));
        failed = process.apply(plan.steps).await;
        looks += 1;
    };
    let conclusion = conclude(&world, &failures, &process.settings.sandbox, process.now());
    let unpublished = process.apply(conclusion.steps).await;
    if unpublished.is_empty() {
        process.brain.borrow_mut().notes += conclusion.notes.len() as u64;
    }
    match conclusion.look_again {
        _ if conclusion.retry || !unpublished.is_empty() => Outcome::Retry,
        Some(delay) => Outcome::LookAgain(delay),
        None => Outcome::Done,
    }
}

fn look(brain: &Brain, key: &str) -> Option<World> {
    let sandbox = brain.get::<Sandbox>(key)?;
    let uid = sandbox.metadata.uid.clone().unwrap_or_default();
    let mut pods = brain.find::<Pod>(|pod| ownership::is_controlled_by(&pod.metadata, &uid));
    let annotated = ownership::annotation(&sandbox.metadata, annotations::POD_NAME);
    for name in annotated.into_iter().chain([key]) {
        if !pods.iter().any(|pod| pod.metadata.name.as_deref() == Some(name)) {
            pods.extend(brain.get::<Pod>(name));
        }
    }
    let templates = &sandbox.spec.blueprint.volume_claim_templates;
    let volume_claims =
        templates.iter().filter_map(|template| brain.get(&format!("{}-{key}", template.metadata.name)));
    Some(World { pods, service: brain.get(key), volume_claims: volume_claims.collect(), sandbox })
}

fn deletion(step: &Step) -> Option<&str> {
    match &step.action {
        Action::Delete { uid, .. } => Some(uid),
        Action::Create(_) | Action::Merge { .. } | Action::MergeStatus { .. } => None,
    }
}

/// Whether the world turned out to be different from what was seen, so that looking again helps.
fn is_surprise(failure: &Failure) -> bool {
    matches!(failure.kind, FailureKind::AlreadyExists | FailureKind::Conflict)
}
