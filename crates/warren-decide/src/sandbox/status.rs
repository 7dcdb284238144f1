//! Builds a sandbox's status: its conditions and the facts about its pod and service.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::json;
use warren_api::conditions::{
    self, ConditionStatus, ConditionType, EventAction, EventReason, Observation, Reason, message,
};
use warren_api::sandbox::OperatingMode;
use warren_api::{Sandbox, SandboxStatus, labels};

use super::pod::{self, PodView};
use super::service::{self, ServiceView};
use super::{Settings, World, drift};
use crate::bounded::{LONGEST_NOTE, bounded};
use crate::lifetime;
use crate::merge;
use crate::ownership;
use crate::step::{Action, Failure, Kind, Note, Severity, Stage, Step};

/// The longest message of a condition that the schema allows, in characters.
const LONGEST_MESSAGE: usize = 32_768;
/// The longest part of a container's message that is repeated.
const LONGEST_CAUSE: usize = 512;
/// The time for which a starting member of a pool publishes no status.
const ON_ITS_WAY: Duration = Duration::from_secs(2);

/// Returns the status for the present world, on top of the published one.
pub(super) fn observe(
    world: &World,
    failures: &[Failure],
    settings: &Settings,
    now: Timestamp,
) -> SandboxStatus {
    let mut status = world.sandbox.status.clone().unwrap_or_default();
    let view = pod::view(world);
    let mine = match view {
        PodView::Mine(pod) => Some(pod),
        _ => None,
    };
    let pod_status = mine.and_then(|pod| pod.status.as_ref());
    status.pod_ips = pod_status
        .and_then(|status| status.pod_ips.as_ref())
        .map(|addresses| addresses.iter().map(|address| address.ip.clone()).collect())
        .unwrap_or_default();
    status.node_name = mine
        .and_then(|pod| pod.spec.as_ref())
        .and_then(|spec| spec.node_name.clone())
        .filter(|name| !name.is_empty());
    if matches!(view, PodView::Mine(_) | PodView::NotMine(..)) {
        status.selector = Some(labels::sandbox_selector(world.name()));
    }
    let service = service::view(world);
    if !matches!(view, PodView::Multiple(_)) {
        let used = service == ServiceView::Present;
        let namespace = world.sandbox.metadata.namespace.as_deref().unwrap_or_default();
        status.service = used.then(|| world.name().to_owned());
        status.service_fqdn =
            used.then(|| format!("{}.{namespace}.svc.{}", world.name(), settings.cluster_domain));
    }

    let metadata = &world.sandbox.metadata;
    let generation = metadata.generation;
    // A pod can begin to differ from the template only by an edit, which makes a new generation.
    // The verdict on a ready sandbox of this generation still holds.
    let was_judged = conditions::is_true(&status.conditions, ConditionType::Ready)
        && conditions::find(&status.conditions, ConditionType::Ready)
            .is_some_and(|ready| generation.is_some() && ready.observed_generation == generation);
    let now = Time(now);
    let mut set = |observation| conditions::set(&mut status.conditions, observation, metadata, &now);
    set(ready(world, view, service, failures));
    set(suspended(world, view));
    match pod_scheduled(view) {
        Some(observation) => set(observation),
        None => conditions::remove(&mut status.conditions, ConditionType::PodScheduled),
    }
    let mut keep = |type_, observation: Option<Observation>| match observation {
        Some(observation) => conditions::set(&mut status.conditions, observation, metadata, &now),
        None => conditions::remove(&mut status.conditions, type_),
    };
    let ended = mine
        .and_then(finished)
        .map(|(reason, text)| Observation::new(ConditionType::Finished, ConditionStatus::True, reason, text));
    keep(ConditionType::Finished, ended);
    let staying = mine.filter(|pod| pod.metadata.deletion_timestamp.is_none());
    if staying.is_none() || !was_judged {
        keep(ConditionType::PodOutdated, staying.and_then(|pod| drift::observe(&world.sandbox, pod)));
    }
    keep(ConditionType::PodWaiting, staying.and_then(waiting));
    let nonsense = lifetime::nonsense(&world.sandbox.metadata).map(|text| {
        let (type_, reason) = (ConditionType::InvalidAnnotation, Reason::ValueIgnored);
        Observation::new(type_, ConditionStatus::True, reason, text)
    });
    keep(ConditionType::InvalidAnnotation, nonsense);
    status
}

/// Returns the reason why a container of the pod cannot start, if there is one. Reasons that every
/// container has while it starts do not count.
fn waiting(pod: &Pod) -> Option<Observation> {
    let status = pod.status.as_ref()?;
    let containers = [&status.init_container_statuses, &status.container_statuses];
    let (name, waiting) = containers.into_iter().flatten().flatten().find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let is_news = |reason: &str| !matches!(reason, "" | "ContainerCreating" | "PodInitializing");
        waiting.reason.as_deref().is_some_and(is_news).then_some((&container.name, waiting))
    })?;
    let text = bounded(waiting.message.as_deref().unwrap_or_default(), LONGEST_CAUSE);
    Some(Observation {
        type_: ConditionType::PodWaiting,
        status: ConditionStatus::True,
        reason: waiting
            .reason
            .clone()
            .filter(|reason| is_reason(reason))
            .unwrap_or_else(|| Reason::ContainerWaiting.into()),
        message: format!("container {}: {text}", bounded(name, 63)),
    })
}

/// Returns true if the server accepts a text as the reason of a condition.
fn is_reason(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.last().is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    ends && bytes.len() <= 1024
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"_,:".contains(byte))
}

/// Returns how long the first status of a pool member can wait. Usually its next status is that it
/// is ready: then one write replaces three.
pub(super) fn quiet_for(world: &World, wanted: &SandboxStatus, now: Timestamp) -> Option<Duration> {
    let is = |type_, status: ConditionStatus| {
        conditions::find(&wanted.conditions, type_)
            .is_some_and(|condition| condition.status == status.as_str())
    };
    let told = world.sandbox.status.as_ref().is_some_and(|status| !status.conditions.is_empty());
    let ready = conditions::find(&wanted.conditions, ConditionType::Ready)?;
    let in_trouble = is(ConditionType::PodScheduled, ConditionStatus::False)
        || is(ConditionType::PodWaiting, ConditionStatus::True);
    // A member with an address is better for a claim than a cold start.
    let is_addressed = !wanted.pod_ips.is_empty();
    if told
        || in_trouble
        || is_addressed
        || Reason::parse(&ready.reason) != Some(Reason::DependenciesNotReady)
        || !ownership::is_pooled(&world.sandbox.metadata)
    {
        return None;
    }
    let Time(created) = world.sandbox.metadata.creation_timestamp.as_ref()?;
    // A creation time in the future means that the clock was set back: the age is unknown.
    let age = Duration::try_from(now.duration_since(*created)).ok()?;
    ON_ITS_WAY.checked_sub(age).filter(|rest| !rest.is_zero())
}

/// Returns the status write, if the status changed.
///
/// A new node name alone is not worth a write while the sandbox is not ready: it goes with the next
/// one.
pub(super) fn write(world: &World, wanted: &SandboxStatus) -> Option<Step> {
    let present = world.sandbox.status.clone().unwrap_or_default();
    if present == *wanted {
        return None;
    }
    if !conditions::is_true(&wanted.conditions, ConditionType::Ready)
        && present == (SandboxStatus { node_name: present.node_name.clone(), ..wanted.clone() })
    {
        return None;
    }
    let patch = merge::between(&present, wanted)?;
    let action = Action::MergeStatus {
        kind: Kind::Sandbox,
        name: world.name().to_owned(),
        // Guarded by the version, so that it never reaches another sandbox of that name: for a
        // status patch the server ignores the uid.
        body: json!({"metadata": {"resourceVersion": world.sandbox.metadata.resource_version}, "status": patch}),
    };
    Some(Step::new(Stage::Subject, action))
}

/// Returns true if only the generation differs from the published status.
pub(super) fn is_of_generation_only(world: &World, wanted: &SandboxStatus) -> bool {
    let Some(present) = world.sandbox.status.as_ref().filter(|present| *present != wanted) else {
        return false;
    };
    let mut same = wanted.clone();
    for (condition, before) in same.conditions.iter_mut().zip(&present.conditions) {
        condition.observed_generation = before.observed_generation;
    }
    same == *present
}

/// Returns what the API server refused as invalid when this generation of the sandbox was last
/// tried.
pub(super) fn standing_refusal(sandbox: &Sandbox) -> Option<&str> {
    let ready = conditions::find(&sandbox.status.as_ref()?.conditions, ConditionType::Ready)?;
    let generation = sandbox.metadata.generation?;
    (ready.reason == Reason::InvalidConfiguration.as_str() && ready.observed_generation == Some(generation))
        .then(|| ready.message.strip_prefix(message::INVALID_CONFIGURATION).unwrap_or(&ready.message))
}

/// Returns the events of a new status: trouble that the old one did not contain.
pub(super) fn notes(world: &World, wanted: &SandboxStatus) -> Vec<Note> {
    let before = world.sandbox.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    ready_note(before, wanted).into_iter().chain(nonsense_note(before, wanted)).collect()
}

/// Returns the event of an ignored annotation, if the problem is new.
fn nonsense_note(before: &[Condition], wanted: &SandboxStatus) -> Option<Note> {
    let message = |conditions| {
        conditions::find(conditions, ConditionType::InvalidAnnotation).map(|found| found.message.clone())
    };
    let text = message(&wanted.conditions).filter(|text| message(before).as_ref() != Some(text))?;
    Some(Note {
        severity: Severity::Warning,
        reason: EventReason::InvalidAnnotation.as_str(),
        action: EventAction::Reconciling.as_str(),
        text,
    })
}

fn ready_note(before: &[Condition], wanted: &SandboxStatus) -> Option<Note> {
    let before = conditions::find(before, ConditionType::Ready);
    let after = conditions::find(&wanted.conditions, ConditionType::Ready)?;
    let entered = before.is_none_or(|before| before.reason != after.reason);
    let changed = before.is_some_and(|before| before.message != after.message);
    let reason = match Reason::parse(&after.reason) {
        Some(Reason::MultiplePods) if entered => EventReason::MultiplePods,
        Some(Reason::PodFailed) if entered => EventReason::PodFailed,
        Some(Reason::ReconcilerError) if entered || changed => EventReason::ReconcilerError,
        Some(Reason::InvalidConfiguration) if entered || changed => EventReason::InvalidConfiguration,
        _ => return None,
    };
    Some(Note {
        severity: Severity::Warning,
        reason: reason.as_str(),
        action: EventAction::Reconciling.as_str(),
        text: bounded(&after.message, LONGEST_NOTE).into_owned(),
    })
}

fn ready(world: &World, view: PodView<'_>, service: ServiceView, failures: &[Failure]) -> Observation {
    let not_ready =
        |reason, text: String| Observation::new(ConditionType::Ready, ConditionStatus::False, reason, text);
    if let PodView::Multiple(count) = view {
        return not_ready(Reason::MultiplePods, pod::multiple_text(count));
    }
    if !failures.is_empty() {
        let texts: Vec<&str> = failures.iter().map(|failure| failure.message.as_str()).collect();
        let (reason, beginning) = match failures.iter().all(Failure::is_final) {
            true => (Reason::InvalidConfiguration, message::INVALID_CONFIGURATION),
            false => (Reason::ReconcilerError, message::ERROR_SEEN),
        };
        return not_ready(reason, format!("{beginning}{}", texts.join("\n")));
    }
    if world.sandbox.spec.operating_mode == OperatingMode::Suspended {
        let text = match view {
            PodView::Absent => message::SANDBOX_IS_SUSPENDED,
            _ => message::SANDBOX_IS_SUSPENDING,
        };
        return not_ready(Reason::SandboxSuspended, text.to_owned());
    }
    let pod = match view {
        PodView::Mine(pod) => Some(pod),
        _ => None,
    };
    if let Some((reason, text)) = pod.and_then(finished) {
        return not_ready(reason, text);
    }
    let (pod_ready, pod_text) = pod.map_or((false, message::POD_DOES_NOT_EXIST.to_owned()), pod_readiness);
    let (service_ready, service_text) = match service {
        ServiceView::Unused => (true, ""),
        ServiceView::Present => (true, message::SERVICE_EXISTS),
        ServiceView::Missing => (false, message::SERVICE_DOES_NOT_EXIST),
    };
    let text = format!("{pod_text}{service_text}");
    if pod_ready && service_ready {
        Observation::new(ConditionType::Ready, ConditionStatus::True, Reason::DependenciesReady, text)
    } else {
        not_ready(Reason::DependenciesNotReady, text)
    }
}

fn pod_readiness(pod: &Pod) -> (bool, String) {
    let status = pod.status.clone().unwrap_or_default();
    let phase = status.phase.as_deref().filter(|phase| !phase.is_empty()).unwrap_or("Pending");
    if phase != "Running" {
        return (false, format!("{}{phase}", message::POD_EXISTS_WITH_PHASE));
    }
    if condition(pod, "Ready").is_none_or(|condition| condition.status != "True") {
        return (false, message::POD_IS_RUNNING_BUT_NOT_READY.to_owned());
    }
    if status.pod_ips.is_none_or(|addresses| addresses.is_empty()) {
        return (false, message::POD_HAS_NO_IPS.to_owned());
    }
    (true, message::POD_IS_READY.to_owned())
}

fn suspended(world: &World, view: PodView<'_>) -> Observation {
    let observation =
        |status, reason, text: &str| Observation::new(ConditionType::Suspended, status, reason, text);
    if world.sandbox.spec.operating_mode == OperatingMode::Running {
        return observation(ConditionStatus::False, Reason::NotSuspended, message::SANDBOX_IS_NOT_SUSPENDED);
    }
    match view {
        PodView::Absent => {
            observation(ConditionStatus::True, Reason::PodTerminated, message::POD_HAS_BEEN_TERMINATED)
        }
        PodView::Mine(_) => {
            observation(ConditionStatus::False, Reason::PodTerminating, message::POD_IS_TERMINATING)
        }
        PodView::NotMine(..) => {
            observation(ConditionStatus::False, Reason::PodNotOwned, message::POD_IS_NOT_OWNED)
        }
        PodView::Multiple(count) => {
            observation(ConditionStatus::Unknown, Reason::PodStateUnknown, &pod::multiple_text(count))
        }
    }
}

/// Mirrors the pod's own `PodScheduled`, with a reason where the pod has none. Values that the
/// sandbox's schema would refuse are adapted: otherwise the whole status would be refused.
fn pod_scheduled(view: PodView<'_>) -> Option<Observation> {
    let type_ = ConditionType::PodScheduled;
    let unknown =
        |text: &str| Observation::new(type_, ConditionStatus::Unknown, Reason::PodSchedulingUnknown, text);
    let pod = match view {
        PodView::Mine(pod) => pod,
        PodView::Multiple(count) => return Some(unknown(&pod::multiple_text(count))),
        PodView::Absent | PodView::NotMine(..) => return None,
    };
    let Some(condition) = condition(pod, type_.as_str()) else {
        return Some(unknown("Pod has not reported whether it is scheduled"));
    };
    let status = ConditionStatus::parse(&condition.status).unwrap_or(ConditionStatus::Unknown);
    let fallback = match status {
        ConditionStatus::True => Reason::PodScheduled,
        _ => Reason::PodSchedulingUnknown,
    };
    let text = condition.message.as_deref().unwrap_or_default();
    let longest = if text.chars().count() > LONGEST_MESSAGE { LONGEST_MESSAGE } else { text.len() };
    Some(Observation {
        type_,
        status,
        reason: condition
            .reason
            .clone()
            .filter(|reason| is_reason(reason))
            .unwrap_or_else(|| fallback.into()),
        message: bounded(text, longest).into_owned(),
    })
}

fn finished(pod: &Pod) -> Option<(Reason, String)> {
    match pod.status.as_ref()?.phase.as_deref()? {
        "Succeeded" => Some((Reason::PodSucceeded, message::POD_COMPLETED_SUCCESSFULLY.to_owned())),
        "Failed" => Some((Reason::PodFailed, failure_text(pod))),
        _ => None,
    }
}

/// Returns the message of a failed pod, with its reason if the node refused or evicted it. The
/// pod's message comes from others, so it is cut and kept to one line.
fn failure_text(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let reason = status.and_then(|status| status.reason.as_deref());
    let text = status.and_then(|status| status.message.as_deref());
    let causes = reason.into_iter().chain(text).map(str::trim).filter(|cause| !cause.is_empty());
    let words: Vec<String> = [message::POD_FAILED.to_owned()]
        .into_iter()
        .chain(causes.map(|cause| single_line(&bounded(cause, LONGEST_CAUSE))))
        .collect();
    words.join(": ")
}

fn single_line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == type_)
}
