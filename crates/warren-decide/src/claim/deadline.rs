//! A claim that must be Ready by some time, and was not: it ends, and says so.
//!
//! The deadline is the claim's own (`warren.dev/deadline`) or the one that holds for all, and counts from when the claim
//! began to wait: its creation, or the moment when it lost its sandbox. It is about getting a sandbox. A claim that has had
//! the use of one keeps it, whatever becomes of it: ending it then would destroy somebody's work.
//!
//! The end looks like an expiry to clients that know nothing of deadlines: `Ready` is False with `ClaimExpired`. `Finished`
//! is True with `DeadlineExceeded`, so that `ttlSecondsAfterFinished` counts from it. As with an expiry, nothing is deleted
//! before that is stored, and moving the deadline brings the claim back. The claim keeps its reference to a sandbox: should
//! another controller be finishing the adoption at this moment, the sandbox is found and let go of.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use warren_api::conditions::{
    self, ConditionStatus, ConditionType, EventAction, EventReason, Observation, Reason,
};
use warren_api::sandbox::OperatingMode;
use warren_api::{Sandbox, annotations, go_duration};

use super::search::{self, Search};
use super::{Next, Plan, Settings, World, adoption, expiry, metadata, status};
use crate::bounded::bounded;
use crate::lifetime;
use crate::ownership;
use crate::step::{Note, Severity};

/// How much of what the claim waited on is repeated in the words of its end.
const LONGEST_CAUSE: usize = 512;

/// What a claim says about its deadline.
enum Wish {
    Unset,
    /// None, whatever holds for others.
    Never,
    Within(Duration),
    By(Timestamp),
    /// Something that is neither.
    Nonsense(String),
}

fn wish(world: &World) -> Wish {
    let Some(text) = ownership::annotation(&world.claim.metadata, annotations::DEADLINE) else {
        return Wish::Unset;
    };
    match (go_duration::parse(text), text.parse::<Timestamp>()) {
        (Ok(Duration::ZERO), _) => Wish::Never,
        (Ok(duration), _) => Wish::Within(duration),
        (Err(_), Ok(time)) => Wish::By(time),
        (Err(_), Err(_)) => Wish::Nonsense(text.to_owned()),
    }
}

/// Until when the claim must be Ready, if its conditions are these.
fn deadline(world: &World, conditions: &[Condition], settings: &Settings) -> Option<Timestamp> {
    let within = match wish(world) {
        Wish::Never => return None,
        Wish::By(time) => return Some(time),
        Wish::Within(duration) => duration,
        Wish::Unset | Wish::Nonsense(_) => settings.deadline?,
    };
    waiting_since(world, conditions)?.checked_add(within).ok()
}

/// Since when the claim waits: what its condition says, but not from before it existed, nor from before its sandbox was resumed. One
/// that had expired and whose time was extended begins to wait with what it says next.
fn waiting_since(world: &World, conditions: &[Condition]) -> Option<Timestamp> {
    let created =
        world.claim.metadata.creation_timestamp.as_ref().map_or(world.first_seen, |Time(time)| *time);
    let ready = conditions::find(conditions, ConditionType::Ready)
        .filter(|ready| ready.status == ConditionStatus::False.as_str() && !is_announced(conditions));
    match ready {
        None => Some(created),
        Some(ready) if ready.reason == Reason::ClaimExpired.as_str() => None,
        Some(ready) => {
            let resumed = world.own().filter_map(suspended).map(|condition| condition.last_transition_time.0);
            resumed.chain([ready.last_transition_time.0, created]).max()
        }
    }
}

/// The deadline that the claim has missed, if it has.
pub(super) fn missed(world: &World, settings: &Settings, now: Timestamp) -> Option<Timestamp> {
    // A loss is said first, by which the claim begins to wait anew.
    let is_excused = has_only_a_name(world) || is_resting(world);
    if (is_excused && !is_announced(world.conditions())) || is_served(world) || has_ended(world) {
        return None;
    }
    let missed = deadline(world, world.conditions(), settings).filter(|deadline| now >= *deadline)?;
    // Ready but for somebody to say so.
    (!is_usable(world, settings)).then_some(missed)
}

/// The time until the deadline of a claim that is about to say this of itself.
pub(super) fn remaining(
    world: &World,
    conditions: &[Condition],
    settings: &Settings,
    now: Timestamp,
) -> Option<Duration> {
    let ended = has_ended(world) || conditions::is_true(conditions, ConditionType::Finished);
    let is_unknown =
        has_only_a_name(world) && world.status_sandbox().is_some_and(|name| !world.is_lost(name));
    let is_excused = is_unknown || is_resting(world);
    if ended || is_excused || conditions::is_true(conditions, ConditionType::Ready) || is_served(world) {
        return None;
    }
    let deadline = deadline(world, conditions, settings)?;
    Some(Duration::try_from(deadline.duration_since(now)).unwrap_or_default().max(expiry::AT_ONCE))
}

/// Whether the claim has had the use of a sandbox that it still has. The annotation alone does not tell: it is written with
/// the promise of a ready sandbox, just before that is taken.
fn is_served(world: &World) -> bool {
    let stamp = ownership::annotation(&world.claim.metadata, annotations::CLAIM_FIRST_READY_AT);
    let has_served = |sandbox: &Sandbox| stamp.is_some_and(|stamp| !is_newer(sandbox, stamp));
    conditions::is_true(world.conditions(), ConditionType::Ready) || world.own().any(has_served)
}

/// Whether the claim names a sandbox and has none.
fn has_only_a_name(world: &World) -> bool {
    world.status_sandbox().is_some() && world.own().next().is_none()
}

/// Whether somebody has put the sandbox to rest: nobody waits for it to become ready then.
fn is_resting(world: &World) -> bool {
    world.own().any(|sandbox| {
        sandbox.spec.operating_mode == OperatingMode::Suspended
            || suspended(sandbox).is_some_and(|condition| condition.status == ConditionStatus::True.as_str())
    })
}

fn suspended(sandbox: &Sandbox) -> Option<&Condition> {
    conditions::find(&sandbox.status.as_ref()?.conditions, ConditionType::Suspended)
}

/// Whether the claim has a ready sandbox, and nothing keeps it from being Ready itself.
fn is_usable(world: &World, settings: &Settings) -> bool {
    let Search::Bound(sandbox) = search::find(world) else { return false };
    let is_allowed =
        metadata::validate(&world.claim.spec.additional_pod_metadata, &settings.allowed_label_domains)
            .is_ok();
    adoption::is_ready(sandbox) && is_allowed && matches!(adoption::converge(world, sandbox), Ok(None))
}

/// Whether a sandbox was made after the claim was Ready for the first time, in place of the one that was.
fn is_newer(sandbox: &Sandbox, first_ready: &str) -> bool {
    match (&sandbox.metadata.creation_timestamp, first_ready.parse::<Timestamp>()) {
        (Some(Time(created)), Ok(first_ready)) => *created > first_ready,
        _ => false,
    }
}

/// Whether its pod has run to an end: then there is a result, and it is kept.
fn has_ended(world: &World) -> bool {
    world
        .own()
        .filter_map(|sandbox| sandbox.status.as_ref())
        .any(|status| conditions::is_true(&status.conditions, ConditionType::Finished))
}

fn is_announced(conditions: &[Condition]) -> bool {
    let reason = |type_| conditions::find(conditions, type_).map(|condition| condition.reason.as_str());
    reason(ConditionType::Ready) == Some(Reason::ClaimExpired.as_str())
        && reason(ConditionType::Finished) == Some(Reason::DeadlineExceeded.as_str())
}

/// Plans for a claim that has missed its deadline.
pub(super) fn plan(world: &World, deadline: Timestamp, settings: &Settings, now: Timestamp) -> Plan {
    let announced = is_announced(world.conditions());
    let mut status = status::with_sandbox(world, world.own().next());
    let text = match conditions::find(world.conditions(), ConditionType::Ready).filter(|_| announced) {
        Some(ready) => ready.message.clone(),
        None => ending(world, deadline),
    };
    let mut set = |type_, status_, reason| {
        let observation = Observation::new(type_, status_, reason, text.clone());
        conditions::set(&mut status.conditions, observation, &world.claim.metadata, &Time(now));
    };
    set(ConditionType::Ready, ConditionStatus::False, Reason::ClaimExpired);
    set(ConditionType::Finished, ConditionStatus::True, Reason::DeadlineExceeded);
    for type_ in [ConditionType::PodScheduled, ConditionType::PodWaiting] {
        conditions::remove(&mut status.conditions, type_);
    }
    let mut plan = status::publish_status(world, status, settings, now);
    if !announced {
        plan.notes.extend((!settings.disable_events).then(|| Note {
            severity: Severity::Warning,
            reason: EventReason::DeadlineExceeded.as_str(),
            action: EventAction::ClaimExpired.as_str(),
            text,
        }));
        plan.next = Next::Settled { look_again: Some(expiry::AT_ONCE), retry: false };
        return plan;
    }
    plan.steps.splice(0..0, expiry::release_all(world));
    plan
}

/// The words of the end, with what the claim had been waiting on.
fn ending(world: &World, deadline: Timestamp) -> String {
    let cause = match conditions::find(world.conditions(), ConditionType::Ready) {
        Some(ready) => format!("{}: {}", ready.reason, bounded(&ready.message, LONGEST_CAUSE)),
        None => format!("a sandbox of pool {}", bounded(&world.claim.spec.warm_pool_ref.name, LONGEST_CAUSE)),
    };
    format!("Claim was not ready by its deadline {deadline:.0}; it was waiting on {cause}")
}

/// Says in the conditions that the claim's deadline or time to live means nothing to us, or no longer says so. Gives the event
/// of saying it for the first time.
pub(super) fn report_nonsense(
    world: &World,
    conditions: &mut Vec<Condition>,
    settings: &Settings,
    now: Timestamp,
) -> Option<Note> {
    let deadline = match wish(world) {
        Wish::Nonsense(value) => Some(format!(
            "{}: {:?} is neither a duration such as 90s or 5m nor a time (RFC 3339), and is ignored",
            annotations::DEADLINE,
            bounded(&value, 64)
        )),
        Wish::Unset | Wish::Never | Wish::Within(_) | Wish::By(_) => None,
    };
    let ttl = lifetime::nonsense(&world.claim.metadata);
    let text = deadline.into_iter().chain(ttl).collect::<Vec<_>>().join("; ");
    if text.is_empty() {
        conditions::remove(conditions, ConditionType::InvalidAnnotation);
        return None;
    }
    let known = conditions::find(conditions, ConditionType::InvalidAnnotation).map(|known| &known.message);
    let is_new = known != Some(&text);
    let observation = Observation::new(
        ConditionType::InvalidAnnotation,
        ConditionStatus::True,
        Reason::ValueIgnored,
        text.clone(),
    );
    conditions::set(conditions, observation, &world.claim.metadata, &Time(now));
    (is_new && !settings.disable_events).then(|| Note {
        severity: Severity::Warning,
        reason: EventReason::InvalidAnnotation.as_str(),
        action: EventAction::Reconciling.as_str(),
        text,
    })
}
