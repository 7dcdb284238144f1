//! The status that is published for a task.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;
use warren_api::AgentTaskStatus;
use warren_api::conditions::{
    self, ConditionStatus, ConditionType, EventAction, EventReason, Observation, Reason,
};

use super::{Begun, Plan, Verdict, World};
use crate::bounded::{LONGEST_NOTE, bounded};
use crate::merge;
use crate::step::{Action, Kind, Note, Severity, Stage, Step};

/// Says that an attempt has begun, and how the one before it failed.
pub(super) fn record(
    world: &World,
    attempt: i32,
    begun: Begun<'_>,
    failed: Option<&Verdict>,
    started: Timestamp,
    now: Timestamp,
) -> Plan {
    let mut status = world.status();
    status.attempts = attempt;
    (status.sandbox_name, status.claim_name) = match begun {
        Begun::Sandbox(name) => (Some(name.to_owned()), None),
        Begun::Claim(name) => (None, Some(name.to_owned())),
    };
    status.pod_uid = None;
    status.start_time.get_or_insert(Time(started));
    let accepted = (ConditionStatus::True, Reason::TaskAccepted, "The first attempt has begun");
    set(world, &mut status, ConditionType::Accepted, accepted, now);
    let (reason, text) = match failed {
        None => (Reason::Starting, "The sandbox is being made".to_owned()),
        Some(failed) => (Reason::Retrying, format!("Attempt {} failed: {}", attempt - 1, failed.message)),
    };
    set(world, &mut status, ConditionType::Running, (ConditionStatus::False, reason, &text), now);
    status.message = Some(text.clone());
    let notes = failed.map(|_| note(Severity::Warning, EventReason::TaskFailed, &text)).into_iter().collect();
    Plan { steps: write(world, &status).into_iter().collect(), notes, ..Plan::default() }
}

/// Says which pod the command of the present attempt is for. The pod gets the command after that is stored.
pub(super) fn assign(
    world: &World,
    sandbox: &str,
    pod: &str,
    until: Option<Timestamp>,
    now: Timestamp,
) -> Plan {
    let mut status = world.status();
    status.sandbox_name = Some(sandbox.to_owned());
    status.pod_uid = Some(pod.to_owned());
    let look_again = until.and_then(|until| Duration::try_from(until.duration_since(now)).ok());
    Plan { steps: write(world, &status).into_iter().collect(), look_again, ..Plan::default() }
}

/// Says how far the present attempt is.
pub(super) fn observe(
    world: &World,
    (reason, text): (Reason, &str),
    until: Option<Timestamp>,
    now: Timestamp,
) -> Plan {
    let mut status = world.status();
    let running = match reason {
        Reason::CommandRunning => ConditionStatus::True,
        _ => ConditionStatus::False,
    };
    let present = conditions::find(&status.conditions, ConditionType::Running);
    // While a retry starts, the status keeps the reason that the previous attempt failed.
    let is_retrying = present.is_some_and(|present| present.reason == Reason::Retrying.as_str());
    if !(is_retrying && reason == Reason::Starting) {
        set(world, &mut status, ConditionType::Running, (running, reason, text), now);
        status.message = Some(text.to_owned());
    }
    conditions::reaffirm(&mut status.conditions, &world.task.metadata);
    let look_again = until.map(|until| Duration::try_from(until.duration_since(now)).unwrap_or_default());
    Plan { steps: write(world, &status).into_iter().collect(), look_again, ..Plan::default() }
}

/// Says how the task ended.
pub(super) fn finish(world: &World, verdict: &Verdict, now: Timestamp) -> Plan {
    let mut status = world.status();
    let text = verdict.message.as_str();
    if status.attempts == 0 {
        let accepted = (ConditionStatus::False, verdict.reason, text);
        set(world, &mut status, ConditionType::Accepted, accepted, now);
    }
    let ended = (ConditionStatus::False, Reason::TaskEnded, "The task has ended");
    set(world, &mut status, ConditionType::Running, ended, now);
    let (type_, severity, event) = match verdict.is_success() {
        true => (ConditionType::Succeeded, Severity::Normal, EventReason::TaskSucceeded),
        false => (ConditionType::Failed, Severity::Warning, EventReason::TaskFailed),
    };
    set(world, &mut status, type_, (ConditionStatus::True, verdict.reason, text), now);
    conditions::reaffirm(&mut status.conditions, &world.task.metadata);
    status.exit_code = verdict.exit_code;
    status.result.clone_from(&verdict.result);
    status.completion_time = Some(Time(now));
    status.message = Some(text.to_owned());
    let told = match verdict.is_success() {
        true => text.to_owned(),
        false => format!("{}: {text}", verdict.reason),
    };
    Plan {
        steps: write(world, &status).into_iter().collect(),
        notes: vec![note(severity, event, &told)],
        ..Plan::default()
    }
}

fn set(
    world: &World,
    status: &mut AgentTaskStatus,
    type_: ConditionType,
    (value, reason, text): (ConditionStatus, Reason, &str),
    now: Timestamp,
) {
    let observation = Observation::new(type_, value, reason, text);
    conditions::set(&mut status.conditions, observation, &world.task.metadata, &Time(now));
}

/// Returns the status write, or nothing if the status has not changed. The write is guarded: a
/// controller that has seen less writes nothing.
fn write(world: &World, wanted: &AgentTaskStatus) -> Option<Step> {
    let patch = merge::between(&world.status(), wanted)?;
    let action = Action::MergeStatus {
        kind: Kind::AgentTask,
        name: world.name().to_owned(),
        body: json!({"metadata": {"resourceVersion": world.task.metadata.resource_version}, "status": patch}),
    };
    Some(Step::new(Stage::Subject, action))
}

fn note(severity: Severity, reason: EventReason, text: &str) -> Note {
    Note {
        severity,
        reason: reason.as_str(),
        action: EventAction::Reconciling.as_str(),
        text: bounded(text, LONGEST_NOTE).into_owned(),
    }
}
