//! Builds a pod's conditions: kubelet's own, and two of ours.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::status::{Statuses, has_run};
use super::{Limits, Machine, Role, World, all_containers, pids_limit};

/// The pod condition with the isolation that was reached. A condition needs no write of its own: it
/// goes with the status. It is True when the pod runs; the reason is the level, the message its
/// parts.
pub const ISOLATION_CONDITION: &str = "warren.dev/isolation";

/// The pod condition that appears when a container has run into a limit, even if only one of its
/// processes was affected and the container runs on. It has no count: a fork bomb must not cause a
/// flood of writes.
pub const LIMITS_CONDITION: &str = "warren.dev/limit-reached";

const CONDITIONS: [&str; 7] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    ISOLATION_CONDITION,
    LIMITS_CONDITION,
];

struct Verdict {
    holds: bool,
    reason: Option<String>,
    message: Option<String>,
}

impl Verdict {
    fn yes() -> Verdict {
        Verdict { holds: true, reason: None, message: None }
    }

    fn no(reason: &str, message: Option<String>) -> Verdict {
        Verdict { holds: false, reason: Some(reason.to_owned()), message }
    }
}

pub(super) fn conditions(
    world: &World<'_>,
    phase: &str,
    statuses: &Statuses,
    now: Timestamp,
) -> Vec<PodCondition> {
    // At the earliest the pod's creation time by the server's clock.
    let created = world.pod.metadata.creation_timestamp.as_ref().map_or(now, |Time(created)| *created);
    let before =
        world.pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let mut all: Vec<PodCondition> = CONDITIONS
        .iter()
        .filter_map(|kind| {
            let verdict = verdict(world, kind, phase, statuses, before)?;
            let status = if verdict.holds { "True" } else { "False" };
            let unchanged = before.iter().find(|old| old.type_ == *kind && old.status == status);
            Some(PodCondition {
                type_: (*kind).to_owned(),
                status: status.to_owned(),
                reason: verdict.reason,
                message: verdict.message,
                last_transition_time: unchanged
                    .and_then(|old| old.last_transition_time.clone())
                    .or_else(|| Some(Time(now.max(created)))),
                last_probe_time: None,
                observed_generation: world.pod.metadata.generation,
            })
        })
        .collect();
    // Other conditions, such as readiness gates, have other writers.
    all.extend(before.iter().filter(|old| !CONDITIONS.contains(&old.type_.as_str())).cloned());
    all
}

fn verdict(
    world: &World<'_>,
    kind: &str,
    phase: &str,
    statuses: &Statuses,
    before: &[PodCondition],
) -> Option<Verdict> {
    let present = match world.machine {
        Machine::Present(report) => Some(report),
        _ => None,
    };
    let kept = || {
        before.iter().find(|old| old.type_ == kind).map(|old| Verdict {
            holds: old.status == "True",
            reason: old.reason.clone(),
            message: old.message.clone(),
        })
    };
    match kind {
        "PodScheduled" => Some(Verdict::yes()),
        "PodReadyToStartContainers" => {
            Some(Verdict { holds: present.is_some(), reason: None, message: None })
        }
        "Initialized" if phase == "Succeeded" => {
            Some(Verdict { reason: Some("PodCompleted".to_owned()), ..Verdict::yes() })
        }
        "Initialized" => Some(initialized(statuses)),
        "ContainersReady" => Some(containers_ready(phase, statuses)),
        "Ready" => {
            let ready = containers_ready(phase, statuses);
            Some(if ready.holds { readiness_gates(world.pod, before) } else { ready })
        }
        ISOLATION_CONDITION => match present.and_then(|report| report.isolation.as_ref()) {
            Some(reached) => Some(Verdict {
                holds: true,
                reason: Some(reached.level.clone()),
                message: Some(reached.detail.clone()),
            }),
            None => kept(),
        },
        LIMITS_CONDITION => limit_reached(world).or_else(kept),
        _ => None,
    }
}

fn containers_ready(phase: &str, statuses: &Statuses) -> Verdict {
    match phase {
        "Succeeded" => return Verdict::no("PodCompleted", None),
        "Failed" => return Verdict::no("PodFailed", None),
        _ => {}
    }
    // Sidecars count. Init containers have finished when others run.
    let sidecars = statuses.first.iter().filter(|(role, _)| *role == Role::Sidecar).map(|(_, status)| status);
    let unready: Vec<&str> = sidecars
        .chain(&statuses.mains)
        .filter(|status| !status.ready)
        .map(|status| status.name.as_str())
        .collect();
    if unready.is_empty() && !statuses.mains.is_empty() {
        return Verdict::yes();
    }
    Verdict::no(
        "ContainersNotReady",
        Some(format!("containers with unready status: [{}]", unready.join(" "))),
    )
}

fn initialized(statuses: &Statuses) -> Verdict {
    if statuses.mains.iter().any(has_run) {
        return Verdict::yes();
    }
    let incomplete: Vec<&str> = statuses
        .first
        .iter()
        .filter(|(role, status)| match role {
            Role::Sidecar => status.started != Some(true),
            Role::Init | Role::Main => !status.ready,
        })
        .map(|(_, status)| status.name.as_str())
        .collect();
    if incomplete.is_empty() {
        return Verdict::yes();
    }
    Verdict::no(
        "ContainersNotInitialized",
        Some(format!("containers with incomplete status: [{}]", incomplete.join(" "))),
    )
}

fn readiness_gates(pod: &Pod, conditions: &[PodCondition]) -> Verdict {
    let gates = pod.spec.as_ref().and_then(|spec| spec.readiness_gates.as_deref()).unwrap_or_default();
    let closed: Vec<String> = gates
        .iter()
        .filter_map(|gate| match conditions.iter().find(|condition| condition.type_ == gate.condition_type) {
            None => Some(format!(
                "corresponding condition of pod readiness gate \"{}\" does not exist.",
                gate.condition_type
            )),
            Some(condition) if condition.status != "True" => Some(format!(
                "the status of pod readiness gate \"{}\" is not \"True\", but {}",
                gate.condition_type, condition.status
            )),
            Some(_) => None,
        })
        .collect();
    if closed.is_empty() {
        Verdict::yes()
    } else {
        Verdict::no("ReadinessGatesNotReady", Some(closed.join(", ")))
    }
}

/// Returns the limits that the pod's containers have run into. Memory comes first: it kills a
/// process.
fn limit_reached(world: &World<'_>) -> Option<Verdict> {
    let report = world.machine.report()?;
    let mut reason = None;
    let mut messages = Vec::new();
    for (_, container) in all_containers(world.pod) {
        let Some(reported) = report.containers.get(&container.name) else { continue };
        let Ok(limits) = Limits::of(container) else { continue };
        if reported.memory_limit_hit {
            reason = Some("OOMKilled");
            messages.push(format!(
                "container \"{}\" reached its memory limit of {} bytes",
                container.name, limits.memory_bytes
            ));
        }
        if reported.pids_limit_hit
            && let Ok(pids) = pids_limit(world.pod)
        {
            reason = reason.or(Some("PidsLimit"));
            messages.push(format!("container \"{}\" reached its limit of {pids} processes", container.name));
        }
    }
    let reason = reason?;
    Some(Verdict { holds: true, reason: Some(reason.to_owned()), message: Some(messages.join("; ")) })
}
