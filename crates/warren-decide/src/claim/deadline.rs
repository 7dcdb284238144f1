//! Ends claims that miss their deadline.
//!
//! The deadline is the claim's own (`warren.dev/deadline`) or the default for all claims. It counts
//! from when the claim began to wait: its creation, or the moment when it lost its sandbox. It
//! limits only the wait for a sandbox. A claim that was served keeps its sandbox in any condition:
//! ending it would destroy a user's work.
//!
//! To clients that do not know deadlines the end looks like an expiry: `Ready` is False with
//! `ClaimExpired`. `Finished` is True with `DeadlineExceeded`, so that `ttlSecondsAfterFinished`
//! counts from it. As with an expiry, nothing is deleted before the reason is stored, and a later
//! deadline revives the claim. The claim keeps its reference to a sandbox: if another controller is
//! completing the adoption at this moment, the sandbox is still found and released.

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

/// The longest part of the claim's last trouble that is repeated in the message of its end.
const LONGEST_CAUSE: usize = 512;

enum Wish {
    Unset,
    /// No deadline, even if there is a default.
    Never,
    Within(Duration),
    By(Timestamp),
    /// A value that is neither.
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

/// Returns the time until which a claim with these conditions must be Ready.
fn deadline(world: &World, conditions: &[Condition], settings: &Settings) -> Option<Timestamp> {
    let within = match wish(world) {
        Wish::Never => return None,
        Wish::By(time) => return Some(time),
        Wish::Within(duration) => duration,
        Wish::Unset | Wish::Nonsense(_) => settings.deadline?,
    };
    waiting_since(world, conditions)?.checked_add(within).ok()
}

/// Returns the time since which the claim waits, from its condition: at the earliest its creation,
/// or the time when its sandbox was resumed. A claim that had expired and was extended begins to
/// wait with its next condition.
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

/// Returns the deadline if the claim has missed it.
pub(super) fn missed(world: &World, settings: &Settings, now: Timestamp) -> Option<Timestamp> {
    // A loss is published first. The new wait begins with that condition.
    let is_excused = has_only_a_name(world) || is_resting(world);
    if (is_excused && !is_announced(world.conditions())) || is_served(world) || has_ended(world) {
        return None;
    }
    let missed = deadline(world, world.conditions(), settings).filter(|deadline| now >= *deadline)?;
    // The sandbox is ready, and only the claim's status is behind.
    (!is_usable(world, settings)).then_some(missed)
}

/// Returns the time until the deadline of a claim that is about to publish these conditions.
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

/// Returns true if the claim has used a sandbox that it still has. The annotation alone is no
/// proof: it is written together with the assignment of a ready sandbox, just before that is
/// adopted.
fn is_served(world: &World) -> bool {
    let stamp = ownership::annotation(&world.claim.metadata, annotations::CLAIM_FIRST_READY_AT);
    let has_served = |sandbox: &Sandbox| stamp.is_some_and(|stamp| !is_newer(sandbox, stamp));
    conditions::is_true(world.conditions(), ConditionType::Ready) || world.own().any(has_served)
}

/// Returns true if the claim names a sandbox and has none.
fn has_only_a_name(world: &World) -> bool {
    world.status_sandbox().is_some() && world.own().next().is_none()
}

/// Returns true if the sandbox is suspended: then no user waits for it to become ready.
fn is_resting(world: &World) -> bool {
    world.own().any(|sandbox| {
        sandbox.spec.operating_mode == OperatingMode::Suspended
            || suspended(sandbox).is_some_and(|condition| condition.status == ConditionStatus::True.as_str())
    })
}

fn suspended(sandbox: &Sandbox) -> Option<&Condition> {
    conditions::find(&sandbox.status.as_ref()?.conditions, ConditionType::Suspended)
}

/// Returns true if the claim has a ready sandbox and nothing else keeps the claim from being Ready.
fn is_usable(world: &World, settings: &Settings) -> bool {
    let Search::Bound(sandbox) = search::find(world) else { return false };
    let is_allowed =
        metadata::validate(&world.claim.spec.additional_pod_metadata, &settings.allowed_label_domains)
            .is_ok();
    adoption::is_ready(sandbox) && is_allowed && matches!(adoption::converge(world, sandbox), Ok(None))
}

/// Returns true if the sandbox was made after the claim was Ready for the first time, as a
/// replacement.
fn is_newer(sandbox: &Sandbox, first_ready: &str) -> bool {
    match (&sandbox.metadata.creation_timestamp, first_ready.parse::<Timestamp>()) {
        (Some(Time(created)), Ok(first_ready)) => *created > first_ready,
        _ => false,
    }
}

/// Returns true if the sandbox's pod has finished: then there is a result, and it is kept.
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

/// Returns the message of the end, with the claim's last trouble.
fn ending(world: &World, deadline: Timestamp) -> String {
    let cause = match conditions::find(world.conditions(), ConditionType::Ready) {
        Some(ready) => format!("{}: {}", ready.reason, bounded(&ready.message, LONGEST_CAUSE)),
        None => format!("a sandbox of pool {}", bounded(&world.claim.spec.warm_pool_ref.name, LONGEST_CAUSE)),
    };
    format!("Claim was not ready by its deadline {deadline:.0}; it was waiting on {cause}")
}

/// Says in the conditions that the claim's deadline or time to live cannot be parsed, or removes
/// that note. Returns the event of the first time.
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
