//! Ends claims whose time is over. First the reason is stored. A later reconcile deletes.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::json;
use warren_api::claim::ClaimShutdownPolicy;
use warren_api::conditions::{self, ConditionType, EventAction, EventReason, Reason};
use warren_api::{Sandbox, SandboxClaim};

use super::{Next, Plan, Settings, World, status};
use crate::lifetime;
use crate::step::{Action, Kind, Note, Propagation, Severity, Stage, Step};

/// The delay before the reconcile that follows the stored reason; agent-sandbox's number.
pub(super) const AT_ONCE: Duration = Duration::from_millis(1);

/// Returns when the claim ends: the earliest of its shutdown time, its time after finishing and the
/// end of its time to live.
pub(super) fn deadline(claim: &SandboxClaim, conditions: &[Condition]) -> Option<Timestamp> {
    let lifecycle = claim.spec.lifecycle.as_ref();
    let shutdown = lifecycle.and_then(|lifecycle| lifecycle.shutdown_time.as_ref()).map(|Time(time)| *time);
    let finished =
        conditions::find(conditions, ConditionType::Finished).filter(|found| found.status == "True");
    let seconds = lifecycle.and_then(|lifecycle| lifecycle.ttl_seconds_after_finished);
    let after_finish = finished.zip(seconds).and_then(|(finished, seconds)| {
        let Time(since) = finished.last_transition_time;
        since.checked_add(Duration::from_secs(u64::try_from(seconds).unwrap_or_default())).ok()
    });
    [shutdown, after_finish, lifetime::end(&claim.metadata)].into_iter().flatten().min()
}

/// Returns true if the claim's time is over, including the exact moment.
pub(super) fn is_expired(claim: &SandboxClaim, conditions: &[Condition], now: Timestamp) -> bool {
    deadline(claim, conditions).is_some_and(|deadline| now >= deadline)
}

/// Returns the exact time until the claim expires.
pub(super) fn remaining(claim: &SandboxClaim, conditions: &[Condition], now: Timestamp) -> Option<Duration> {
    let deadline = deadline(claim, conditions)?;
    Some(Duration::try_from(deadline.duration_since(now)).unwrap_or_default().max(AT_ONCE))
}

/// Returns true if the conditions say that the claim has expired or missed its deadline.
fn is_announced(conditions: &[Condition]) -> bool {
    conditions::find(conditions, ConditionType::Ready)
        .is_some_and(|ready| ready.reason == Reason::ClaimExpired.as_str())
}

/// Returns true if a claim adopts no sandbox any more, unless it is revived: its status says that
/// it is over, or it is being deleted.
#[must_use]
pub fn is_over(claim: &SandboxClaim) -> bool {
    let conditions = claim.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    claim.metadata.deletion_timestamp.is_some() || is_announced(conditions)
}

/// Plans for an expired claim.
pub(super) fn plan(world: &World, settings: &Settings, now: Timestamp) -> Plan {
    let announced = is_announced(world.conditions());
    let policy =
        world.claim.spec.lifecycle.as_ref().map(|lifecycle| lifecycle.shutdown_policy).unwrap_or_default();
    // Name the sandbox that the claim has, even if its status was never published; else the name
    // that a cold one would have.
    let is_own = |name: &&str| world.sandboxes.get(*name).is_some_and(|sandbox| world.is_mine(sandbox));
    let own = world.own().filter_map(|sandbox| sandbox.metadata.name.as_deref());
    let place = [world.status_sandbox(), world.assigned(), Some(world.name())]
        .into_iter()
        .flatten()
        .find(is_own)
        .or(own.min())
        .unwrap_or_else(|| world.status_sandbox().unwrap_or(world.name()));
    let sandbox = world.sandboxes.get(place);
    if !announced {
        let mut plan = status::publish_expired(world, sandbox.map(|sandbox| &**sandbox), settings, now);
        plan.notes.extend(announcement(settings));
        plan.next = Next::Settled { look_again: Some(AT_ONCE), retry: false };
        return plan;
    }
    let propagation = match policy {
        ClaimShutdownPolicy::Delete => Some(Propagation::Background),
        ClaimShutdownPolicy::DeleteForeground => Some(Propagation::Foreground),
        ClaimShutdownPolicy::Retain => None,
    };
    if let Some(propagation) = propagation {
        let (name, uid) = (world.name().to_owned(), world.uid().to_owned());
        let version = world.claim.metadata.resource_version.clone();
        let action = Action::Delete { kind: Kind::SandboxClaim, name, uid, version, propagation };
        let mut plan = Plan { steps: vec![Step::new(Stage::Subject, action)], ..Plan::settled(None) };
        plan.notes.extend(note(
            settings,
            EventAction::Deleting,
            format!("deleting the claim (policy {policy:?})"),
        ));
        return plan;
    }
    let mut plan = status::publish_expired(world, sandbox.map(|sandbox| &**sandbox), settings, now);
    plan.steps.splice(0..0, release_all(world));
    plan
}

/// Deletes every sandbox of a claim that is over.
pub(super) fn release_all(world: &World) -> Vec<Step> {
    let living = world.own().filter(|sandbox| sandbox.metadata.deletion_timestamp.is_none());
    living.flat_map(|sandbox| release(world, sandbox, None)).collect()
}

/// Deletes a sandbox of the claim if it still has this version. An empty write to the claim goes
/// first. It fails if the claim has changed, for example because its time was extended: a deletion
/// cannot itself be guarded by another object.
pub(super) fn release(world: &World, sandbox: &Sandbox, version: Option<String>) -> [Step; 2] {
    let body = json!({"metadata": {"resourceVersion": world.claim.metadata.resource_version}});
    let still = Action::Merge { kind: Kind::SandboxClaim, name: world.name().to_owned(), body };
    let delete = Action::Delete {
        kind: Kind::Sandbox,
        name: sandbox.metadata.name.clone().unwrap_or_default(),
        uid: sandbox.metadata.uid.clone().unwrap_or_default(),
        version,
        propagation: Propagation::Background,
    };
    [still, delete].map(|action| Step::new(Stage::Subject, action))
}

/// Returns the event of an expiry that is stored for the first time.
pub(super) fn announcement(settings: &Settings) -> Option<Note> {
    note(settings, EventAction::ClaimExpired, "the claim has expired".to_owned())
}

fn note(settings: &Settings, action: EventAction, text: String) -> Option<Note> {
    (!settings.disable_events).then(|| Note {
        severity: Severity::Normal,
        reason: EventReason::ClaimExpired.as_str(),
        action: action.as_str(),
        text,
    })
}
