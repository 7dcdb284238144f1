//! How a claim is: whether its sandbox is ready, why not, and which one it is.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};
use warren_api::claim::ClaimedSandbox;
use warren_api::conditions::{self, ConditionStatus, ConditionType, Observation, Reason, message};
use warren_api::{Sandbox, SandboxClaimStatus, annotations};

use super::{Next, Plan, Settings, World, adoption, expiry};
use crate::merge;
use crate::ownership;
use crate::step::{Action, Kind, Stage, Step};

/// A pool or template that is missing is looked for again after this long, should no event wake the claim.
const MISSING_RECHECK: Duration = Duration::from_secs(60);
/// A sandbox of the claim's name that was just made is looked for after this long.
const CREATE_PENDING_RECHECK: Duration = Duration::from_millis(200);

/// Why a claim has no usable sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The pool does not exist.
    PoolMissing(String),
    /// The pool's template does not exist.
    TemplateMissing(String),
    /// Others were quicker, again and again.
    AdoptionConflict(String),
    /// A sandbox of the claim's name exists, and we have not seen it yet.
    CreatePending,
    /// The additional pod metadata is not allowed.
    InvalidMetadata(String),
    /// The template does not allow the environment variables.
    EnvironmentRejected(String),
    /// The template does not allow the volume claim templates.
    VolumeClaimTemplates(String),
    /// Anything else.
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
            Trouble::Error(text) => (Reason::ReconcilerError, format!("{}{text}", message::ERROR_SEEN)),
        };
        Observation::new(ConditionType::Ready, ConditionStatus::False, reason, text)
    }

    /// What wakes the claim again: a timer, backoff, or only a change of something.
    fn next(&self, until_expiry: Option<Duration>) -> Next {
        let sooner = |delay: Duration| Some(until_expiry.map_or(delay, |expiry| expiry.min(delay)));
        let (look_again, retry) = match self {
            Trouble::PoolMissing(_) | Trouble::TemplateMissing(_) => (sooner(MISSING_RECHECK), false),
            Trouble::CreatePending => (sooner(CREATE_PENDING_RECHECK), false),
            Trouble::InvalidMetadata(_)
            | Trouble::EnvironmentRejected(_)
            | Trouble::VolumeClaimTemplates(_) => (until_expiry, false),
            Trouble::AdoptionConflict(_) | Trouble::Error(_) => (until_expiry, true),
        };
        Next::Settled { look_again, retry }
    }
}

/// Publishes a claim that has its sandbox: whatever the sandbox says about itself.
pub(super) fn publish(world: &World, sandbox: &Sandbox, settings: &Settings, now: Timestamp) -> Plan {
    let mut status = identified(world, sandbox);
    mirror_finished(&mut status, sandbox, world);
    if expiry::is_expired(&world.claim.spec, &status.conditions, now) {
        // It has just finished, and is not kept any longer than that.
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

/// Publishes trouble about a claim that has no sandbox that we know of. What it had stays named: an error is no proof.
pub(super) fn publish_trouble(world: &World, trouble: &Trouble, settings: &Settings, now: Timestamp) -> Plan {
    let mut status = world.claim.status.clone().unwrap_or_default();
    let next = trouble.next(expiry::remaining(&world.claim.spec, &status.conditions, now));
    if *trouble == Trouble::CreatePending && world.status_sandbox().is_some() {
        return Plan { next, ..Plan::settled(None) };
    }
    conditions::remove(&mut status.conditions, ConditionType::Finished);
    set(&mut status, world, trouble.observation(), now);
    Plan { next, ..publish_status(world, status, settings, now) }
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
    mirror_finished(&mut status, sandbox, world);
    set(&mut status, world, trouble.observation(), now);
    let next = trouble.next(expiry::remaining(&world.claim.spec, &status.conditions, now));
    Plan { next, ..publish_status(world, status, settings, now) }
}

/// Publishes an expired claim. `Finished` outlives the sandbox, as it says how it ended.
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
            mirror_finished(&mut status, sandbox, world);
            set(&mut status, world, expired("Claim has expired"), now);
        }
        Some(_) => {
            status.sandbox = None;
            let text =
                "Claim has expired; deletion of the sandbox was skipped, as the claim does not control it";
            set(&mut status, world, expired(text), now);
        }
        None => {
            status.sandbox = None;
            set(&mut status, world, expired("Claim has expired"), now);
        }
    }
    let mut plan = publish_status(world, status, settings, now);
    plan.next = Next::Settled { look_again: None, retry: false };
    plan
}

fn publish_status(
    world: &World,
    mut status: SandboxClaimStatus,
    settings: &Settings,
    now: Timestamp,
) -> Plan {
    status.conditions.sort_by(|left, right| left.type_.cmp(&right.type_));
    let look_again = expiry::remaining(&world.claim.spec, &status.conditions, now);
    let mut plan = Plan::settled(look_again);
    let present = world.claim.status.clone().unwrap_or_default();
    if present != status
        && let Some(patch) = merge::between(&present, &status)
    {
        // Guarded: what we know may be older than what somebody else has written. The newer write wakes us.
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

/// Annotations for the latency metrics that no earlier write has carried.
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
    if ready(after) && !known && !settings.disable_observability_annotations {
        let value = match ready(before) {
            true => annotations::FIRST_READY_UNKNOWN.to_owned(),
            false => now.to_string(),
        };
        stamps[annotations::CLAIM_FIRST_READY_AT] = json!(value);
    }
    stamps
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

fn mirror_finished(status: &mut SandboxClaimStatus, sandbox: &Sandbox, world: &World) {
    let finished = sandbox
        .status
        .as_ref()
        .and_then(|status| conditions::find(&status.conditions, ConditionType::Finished));
    match finished {
        Some(finished) => copy(status, finished, world),
        None => conditions::remove(&mut status.conditions, ConditionType::Finished),
    }
}

/// Copies a condition word for word, with its time; only the generation is the claim's.
fn copy(status: &mut SandboxClaimStatus, condition: &Condition, world: &World) {
    let copied = Condition { observed_generation: world.claim.metadata.generation, ..condition.clone() };
    match status.conditions.iter_mut().find(|present| present.type_ == condition.type_) {
        Some(present) => *present = copied,
        None => status.conditions.push(copied),
    }
}

fn set(status: &mut SandboxClaimStatus, world: &World, observation: Observation, now: Timestamp) {
    conditions::set(&mut status.conditions, observation, world.claim.metadata.generation, &Time(now));
}

fn not_ready(reason: Reason, text: &str) -> Observation {
    Observation::new(ConditionType::Ready, ConditionStatus::False, reason, text)
}

fn expired(text: &str) -> Observation {
    not_ready(Reason::ClaimExpired, text)
}
