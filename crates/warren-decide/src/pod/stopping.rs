//! Stops containers: first by request, with a grace period, the sidecars after all others; then by
//! force.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod};

use super::health::Ailment;
use super::{Notice, Role, Step, World, all_containers};

/// The time that a container still has after its hook used up the grace period (kubelet's number).
const AFTER_HOOK: SignedDuration = SignedDuration::from_secs(2);

/// Returns the pod's grace period in seconds.
pub(super) fn grace(pod: &Pod) -> i64 {
    pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(30).max(0)
}

/// Returns the steps that end all containers within `grace` seconds.
pub(super) fn stop(world: &World<'_>, grace: i64, now: Timestamp) -> (Vec<Step>, Option<Timestamp>) {
    let running: Vec<(Role, &Container)> =
        all_containers(world.pod).filter(|(_, container)| world.machine.runs(&container.name)).collect();
    let names = |containers: &[(Role, &Container)]| -> BTreeSet<String> {
        containers.iter().map(|(_, container)| container.name.clone()).collect()
    };
    if grace == 0 {
        return (vec![Step::Kill { names: names(&running) }], None);
    }
    // Use the node's own clock, as kubelet does: the deletion timestamp is from the API server's.
    let begun = world.stopping.values().min().copied().unwrap_or(now);
    let hooks = running.iter().any(|(_, container)| has_hook(container));
    let deadline = begun + time_to_go(grace, hooks);
    if now >= deadline {
        return (vec![Step::Kill { names: names(&running) }], None);
    }
    // Sidecars serve the other containers to the end, so they stop in reverse order of their start.
    let others: Vec<(Role, &Container)> =
        running.iter().filter(|(role, _)| *role != Role::Sidecar).copied().collect();
    let wave = if others.is_empty() { running.last().copied().into_iter().collect() } else { others };
    let mut to_ask = names(&wave);
    to_ask.retain(|name| !world.stopping.contains_key(name));
    let steps = if to_ask.is_empty() { Vec::new() } else { vec![Step::AskToStop { names: to_ask, grace }] };
    (steps, Some(deadline))
}

/// Returns the steps that stop one container before its restart.
pub(super) fn end_ailing(
    world: &World<'_>,
    container: &Container,
    ailment: &Ailment,
    now: Timestamp,
) -> (Option<Step>, Option<Timestamp>) {
    let probe = match ailment {
        Ailment::Hook(_) => None,
        Ailment::Startup => container.startup_probe.as_ref(),
        Ailment::Liveness => container.liveness_probe.as_ref(),
    };
    let own = probe.and_then(|probe| probe.termination_grace_period_seconds);
    let grace = own.unwrap_or_else(|| grace(world.pod)).max(0);
    let names = BTreeSet::from([container.name.clone()]);
    match world.stopping.get(&container.name) {
        _ if grace == 0 => (Some(Step::Kill { names }), None),
        None => (Some(Step::AskToStop { names, grace }), Some(now + time_to_go(grace, has_hook(container)))),
        Some(begun) => {
            let deadline = *begun + time_to_go(grace, has_hook(container));
            if now >= deadline { (Some(Step::Kill { names }), None) } else { (None, Some(deadline)) }
        }
    }
}

fn time_to_go(grace: i64, hooks: bool) -> SignedDuration {
    SignedDuration::from_secs(grace) + if hooks { AFTER_HOOK } else { SignedDuration::ZERO }
}

fn has_hook(container: &Container) -> bool {
    container.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.pre_stop.is_some())
}

impl Ailment {
    /// Returns the event for a container that is stopped for this reason.
    pub(super) fn notice(&self, container: &Container) -> Notice {
        let name = &container.name;
        let notice = match self {
            Ailment::Hook(message) => Notice::warning(
                "FailedPostStartHook",
                format!("PostStartHook failed for container {name}: {message}"),
            ),
            Ailment::Startup => {
                Notice::normal("Killing", format!("Container {name} failed startup probe, will be restarted"))
            }
            Ailment::Liveness => Notice::normal(
                "Killing",
                format!("Container {name} failed liveness probe, will be restarted"),
            ),
        };
        notice.about(container)
    }
}
