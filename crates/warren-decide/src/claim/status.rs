//! Builds a claim's status: whether its sandbox is ready, why not, and which one it is.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};
use warren_api::claim::ClaimedSandbox;
use warren_api::conditions::{
    self, ConditionStatus, ConditionType, EventAction, Observation, Reason, message,
};
use warren_api::{Sandbox, SandboxClaimStatus, annotations};

use super::{Next, Plan, Settings, World, adoption, deadline, expiry};
use crate::bounded::{LONGEST_NOTE, bounded};
use crate::merge;
use crate::ownership;
use crate::step::{Action, Kind, Note, Severity, Stage, Step};

/// The time after which a missing pool or template is looked for again if no event wakes the claim.
const MISSING_RECHECK: Duration = Duration::from_secs(60);
/// The time after which a newly made sandbox of the claim's name is looked for.
const CREATE_PENDING_RECHECK: Duration = Duration::from_millis(200);

/// A reason why a claim has no usable sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The pool does not exist.
    PoolMissing(String),
    /// The pool's template does not exist.
    TemplateMissing(String),
    /// Other claims adopted the offered sandboxes first, repeatedly.
    AdoptionConflict(String),
    /// A sandbox of the claim's name exists, but not in our cache yet.
    CreatePending,
    /// The claim's additional pod metadata is not allowed.
    InvalidMetadata(String),
    /// The template does not allow the environment variables.
    EnvironmentRejected(String),
    /// The template does not allow the volume claim templates.
    VolumeClaimTemplates(String),
    /// The claim's sandbox is lost.
    SandboxMissing,
    /// The server refuses what the claim needs as invalid. It will refuse until the claim or
    /// template changes.
    InvalidConfiguration(String),
    /// Any other error.
    Error(String),
}

impl Trouble {
    fn observation(&self) -> Observation {
        let (reason, text) = match self {
            Trouble::PoolMissing(name) => {
                (Reason::WarmPoolNotFound, format!("SandboxWarmPool {name:?} not found"))
            }
            Trouble::TemplateMissing(name) => {
                (Reason::TemplateNotFound, format!("SandboxTemplate {name:?} not found"))
            }
            Trouble::AdoptionConflict(text) => (Reason::AdoptionConflict, text.trim().to_owned()),
            Trouble::CreatePending => {
                (Reason::SandboxCreatePending, "Sandbox creation is pending".to_owned())
            }
            Trouble::InvalidMetadata(text) => (Reason::InvalidMetadata, text.clone()),
            Trouble::EnvironmentRejected(text) => (Reason::EnvVarsInjectionRejected, text.clone()),
            Trouble::VolumeClaimTemplates(text) => (Reason::VolumeClaimTemplatesError, text.clone()),
            Trouble::SandboxMissing => (Reason::SandboxMissing, "Sandbox does not exist".to_owned()),
            Trouble::InvalidConfiguration(text) => {
                (Reason::InvalidConfiguration, format!("{}{text}", message::INVALID_CONFIGURATION))
            }
            Trouble::Error(text) => (Reason::ReconcilerError, format!("{}{text}", message::ERROR_SEEN)),
        };
        Observation::new(ConditionType::Ready, ConditionStatus::False, reason, text)
    }

    /// Returns what wakes the claim again: a timer, backoff, or only a change of an object.
    fn next(&self, until_end: Option<Duration>) -> Next {
        let sooner = |delay: Duration| Some(until_end.map_or(delay, |end| end.min(delay)));
        let (look_again, retry) = match self {
            Trouble::PoolMissing(_) | Trouble::TemplateMissing(_) => (sooner(MISSING_RECHECK), false),
            Trouble::CreatePending => (sooner(CREATE_PENDING_RECHECK), false),
            Trouble::InvalidMetadata(_)
            | Trouble::EnvironmentRejected(_)
            | Trouble::VolumeClaimTemplates(_)
            | Trouble::InvalidConfiguration(_)
            | Trouble::SandboxMissing => (until_end, false),
            Trouble::AdoptionConflict(_) | Trouble::Error(_) => (until_end, true),
        };
        Next::Settled { look_again, retry }
    }

    /// Returns the event of trouble that is not in the claim's conditions yet. Trouble that passes
    /// by itself has no event.
    fn note(&self, world: &World, settings: &Settings) -> Option<Note> {
        let passes =
            matches!(self, Trouble::AdoptionConflict(_) | Trouble::CreatePending | Trouble::SandboxMissing);
        if settings.disable_events || passes {
            return None;
        }
        let Observation { reason, message, .. } = self.observation();
        let known = conditions::find(world.conditions(), ConditionType::Ready)
            .is_some_and(|ready| ready.reason == reason && ready.message == message);
        let reason = Reason::parse(&reason).filter(|_| !known)?;
        Some(Note {
            severity: Severity::Warning,
            reason: reason.as_str(),
            action: EventAction::Reconciling.as_str(),
            text: bounded(&message, LONGEST_NOTE).into_owned(),
        })
    }
}

/// Publishes the status of a claim that has its sandbox, mirrored from the sandbox.
pub(super) fn publish(world: &World, sandbox: &Sandbox, settings: &Settings, now: Timestamp) -> Plan {
    let mut status = identified(world, sandbox);
    mirror(&mut status, sandbox, world);
    if expiry::is_expired(&world.claim, &status.conditions, now) {
        // The claim has just finished and is not kept after that.
        set(&mut status, world, expired("Claim has expired"), now);
        let mut plan = publish_status(world, status, settings, now);
        plan.notes.extend(expiry::announcement(settings));
        plan.next = Next::Settled { look_again: Some(expiry::AT_ONCE), retry: false };
        return plan;
    }
    let found =
        sandbox.status.as_ref().and_then(|status| conditions::find(&status.conditions, ConditionType::Ready));
    match found {
        None => set(&mut status, world, not_ready(Reason::SandboxNotReady, "Sandbox is not ready"), now),
        Some(ready) if ready.reason == Reason::SandboxExpired.as_str() => {
            set(&mut status, world, not_ready(Reason::SandboxExpired, &ready.message), now);
        }
        Some(ready) => copy(&mut status, ready, world),
    }
    publish_status(world, status, settings, now)
}

/// Publishes trouble about a claim without a known sandbox. The status keeps naming its previous
/// sandbox, since an error is no proof of a loss. If the server confirms the loss, the name is
/// removed and the claim begins to wait again.
pub(super) fn publish_trouble(world: &World, trouble: &Trouble, settings: &Settings, now: Timestamp) -> Plan {
    let mut status = world.claim.status.clone().unwrap_or_default();
    if *trouble == Trouble::CreatePending && world.status_sandbox().is_some() {
        let next = trouble.next(until_end(world, &status.conditions, settings, now));
        return Plan { next, ..Plan::settled(None) };
    }
    if world.status_sandbox().is_some_and(|name| world.is_lost(name)) {
        status.sandbox = None;
        conditions::remove(&mut status.conditions, ConditionType::Ready);
    }
    for type_ in MIRRORED {
        conditions::remove(&mut status.conditions, type_);
    }
    publish_with(world, status, trouble, settings, now)
}

/// Publishes trouble about a claim that has its sandbox.
pub(super) fn publish_bound_trouble(
    world: &World,
    sandbox: &Sandbox,
    trouble: &Trouble,
    settings: &Settings,
    now: Timestamp,
) -> Plan {
    let mut status = identified(world, sandbox);
    mirror(&mut status, sandbox, world);
    publish_with(world, status, trouble, settings, now)
}

fn publish_with(
    world: &World,
    mut status: SandboxClaimStatus,
    trouble: &Trouble,
    settings: &Settings,
    now: Timestamp,
) -> Plan {
    set(&mut status, world, trouble.observation(), now);
    let next = trouble.next(until_end(world, &status.conditions, settings, now));
    let mut plan = Plan { next, ..publish_status(world, status, settings, now) };
    plan.notes.extend(trouble.note(world, settings));
    plan
}

/// Publishes an expired claim. `Finished` outlives the sandbox, since it holds the result.
pub(super) fn publish_expired(
    world: &World,
    sandbox: Option<&Sandbox>,
    settings: &Settings,
    now: Timestamp,
) -> Plan {
    let mut status = world.claim.status.clone().unwrap_or_default();
    match sandbox {
        Some(sandbox) if world.is_mine(sandbox) => {
            status = identified(world, sandbox);
            mirror(&mut status, sandbox, world);
            set(&mut status, world, expired("Claim has expired"), now);
        }
        Some(_) => {
            forget_sandbox(&mut status);
            let text =
                "Claim has expired; deletion of the sandbox was skipped, as the claim does not control it";
            set(&mut status, world, expired(text), now);
        }
        None => {
            forget_sandbox(&mut status);
            set(&mut status, world, expired("Claim has expired"), now);
        }
    }
    let mut plan = publish_status(world, status, settings, now);
    plan.next = Next::Settled { look_again: None, retry: false };
    plan
}

/// Removes the sandbox's pending conditions from the status. Its result stays.
fn forget_sandbox(status: &mut SandboxClaimStatus) {
    status.sandbox = None;
    for type_ in [ConditionType::PodScheduled, ConditionType::PodWaiting] {
        conditions::remove(&mut status.conditions, type_);
    }
}

/// Returns the time until a claim with these conditions expires or misses its deadline, whichever
/// is first.
pub(super) fn until_end(
    world: &World,
    conditions: &[Condition],
    settings: &Settings,
    now: Timestamp,
) -> Option<Duration> {
    let expiry = expiry::remaining(&world.claim, conditions, now);
    let deadline = deadline::remaining(world, conditions, settings, now);
    expiry.into_iter().chain(deadline).min()
}

/// Publishes a status if it changed.
pub(super) fn publish_status(
    world: &World,
    mut status: SandboxClaimStatus,
    settings: &Settings,
    now: Timestamp,
) -> Plan {
    let nonsense = deadline::report_nonsense(world, &mut status.conditions, settings, now);
    conditions::reaffirm(&mut status.conditions, &world.claim.metadata);
    status.conditions.sort_by(|left, right| left.type_.cmp(&right.type_));
    let mut plan = Plan::settled(until_end(world, &status.conditions, settings, now));
    plan.notes.extend(nonsense);
    let present = world.claim.status.clone().unwrap_or_default();
    if present != status
        && let Some(patch) = merge::between(&present, &status)
    {
        // Guarded by the version: our cache may be older than another writer's status. The newer
        // write wakes us.
        let body =
            json!({"metadata": {"resourceVersion": world.claim.metadata.resource_version}, "status": patch});
        let action = Action::MergeStatus { kind: Kind::SandboxClaim, name: world.name().to_owned(), body };
        plan.steps.push(Step::new(Stage::Subject, action));
    }
    let stamps = stamps(world, &present.conditions, &status.conditions, settings, now);
    if stamps != json!({}) {
        let body = json!({"metadata": {"uid": world.uid(), "annotations": stamps}});
        let action = Action::Merge { kind: Kind::SandboxClaim, name: world.name().to_owned(), body };
        plan.steps.push(Step::new(Stage::Subject, action));
    }
    plan
}

/// Returns annotations that no earlier write has carried: when the claim was first seen, and first
/// Ready.
fn stamps(
    world: &World,
    before: &[Condition],
    after: &[Condition],
    settings: &Settings,
    now: Timestamp,
) -> Value {
    let mut stamps = adoption::observed(world, settings);
    let known = ownership::annotation(&world.claim.metadata, annotations::CLAIM_FIRST_READY_AT).is_some();
    let ready = |conditions: &[Condition]| conditions::is_true(conditions, ConditionType::Ready);
    // Written even if latency annotations are switched off: it tells a served claim from one that
    // never was, and a deadline may be set later.
    if ready(after) && !known {
        let value = match ready(before) {
            true => annotations::FIRST_READY_UNKNOWN.to_owned(),
            false => now.to_string(),
        };
        stamps[annotations::CLAIM_FIRST_READY_AT] = json!(value);
    }
    stamps
}

/// Returns the claim's status with this sandbox, or with none.
pub(super) fn with_sandbox(world: &World, sandbox: Option<&Sandbox>) -> SandboxClaimStatus {
    match sandbox {
        Some(sandbox) => identified(world, sandbox),
        None => SandboxClaimStatus { conditions: world.conditions().to_vec(), sandbox: None },
    }
}

fn identified(world: &World, sandbox: &Sandbox) -> SandboxClaimStatus {
    SandboxClaimStatus {
        conditions: world.conditions().to_vec(),
        sandbox: Some(ClaimedSandbox {
            name: sandbox.metadata.name.clone(),
            pod_ips: sandbox.status.as_ref().map(|status| status.pod_ips.clone()).unwrap_or_default(),
        }),
    }
}

/// The sandbox conditions that a claim mirrors besides Ready: its result and its pending work.
const MIRRORED: [ConditionType; 3] =
    [ConditionType::Finished, ConditionType::PodScheduled, ConditionType::PodWaiting];

fn mirror(status: &mut SandboxClaimStatus, sandbox: &Sandbox, world: &World) {
    let conditions = sandbox.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    for type_ in MIRRORED {
        let found = conditions::find(conditions, type_);
        // A pod that was scheduled is not worth a condition.
        let is_news = |found: &&Condition| type_ != ConditionType::PodScheduled || found.status == "False";
        match found.filter(is_news) {
            Some(found) => copy(status, found, world),
            None => conditions::remove(&mut status.conditions, type_),
        }
    }
}

fn copy(status: &mut SandboxClaimStatus, condition: &Condition, world: &World) {
    conditions::copy(&mut status.conditions, condition, &world.claim.metadata);
}

fn set(status: &mut SandboxClaimStatus, world: &World, observation: Observation, now: Timestamp) {
    // A claim that is revived after its end begins again, with new transition times.
    let end = Reason::ClaimExpired.as_str();
    let has_ended =
        conditions::find(&status.conditions, observation.type_).is_some_and(|present| present.reason == end);
    if has_ended && observation.reason != end {
        conditions::remove(&mut status.conditions, observation.type_);
    }
    conditions::set(&mut status.conditions, observation, &world.claim.metadata, &Time(now));
}

fn not_ready(reason: Reason, text: &str) -> Observation {
    Observation::new(ConditionType::Ready, ConditionStatus::False, reason, text)
}

fn expired(text: &str) -> Observation {
    not_ready(Reason::ClaimExpired, text)
}
