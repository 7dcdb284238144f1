//! Judges a running container by the results of its hooks and probes.

use k8s_openapi::api::core::v1::{Container, ContainerStatus};

use super::{ContainerReport, ContainerState, Machine, World, status};

/// The results of a container's hooks and probes in its present run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// The run's number: how often the container was started before.
    pub attempt: u32,
    /// The result of the `postStart` hook, once it has ended.
    pub post_start: Option<Result<(), String>>,
    /// The startup probe's verdict.
    pub startup: Option<bool>,
    /// The readiness probe's verdict.
    pub readiness: Option<bool>,
    /// The liveness probe's verdict.
    pub liveness: Option<bool>,
}

/// The verdict on a running container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Judgement {
    /// True once the `postStart` hook is done. Until then the status does not show the container as
    /// running.
    pub(super) greeted: bool,
    pub(super) started: bool,
    pub(super) ready: bool,
    /// The reason to stop it, if there is one.
    pub(super) ailment: Option<Ailment>,
}

/// A reason to stop a running container, for its event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ailment {
    Hook(String),
    Startup,
    Liveness,
}

/// Judges a container, if it runs.
pub(super) fn judge(world: &World<'_>, container: &Container) -> Option<Judgement> {
    let Machine::Present(report) = world.machine else { return None };
    let ContainerReport { attempt, state: ContainerState::Running { .. }, .. } =
        report.containers.get(&container.name)?
    else {
        return None;
    };
    let health = world.health.get(&container.name).filter(|health| health.attempt == *attempt);
    // A daemon that has just started has no probe results yet. The status that an earlier daemon
    // published for this run still holds.
    let known = status::published(world.pod, &container.name).filter(|known| is_run(known, *attempt));
    let was_started = known.is_some_and(|known| known.started == Some(true));

    let has_hook = container.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.post_start.is_some());
    let hook = health.and_then(|health| health.post_start.as_ref());
    let greeted = !has_hook || known.is_some() || matches!(hook, Some(Ok(())));
    let started = greeted
        && match (&container.startup_probe, health.and_then(|health| health.startup)) {
            (None, _) => true,
            (Some(_), Some(said)) => said,
            (Some(_), None) => was_started,
        };
    let ready = started
        && match (&container.readiness_probe, health.and_then(|health| health.readiness)) {
            (None, _) => true,
            (Some(_), Some(said)) => said,
            (Some(_), None) => known.is_some_and(|known| known.ready),
        };
    let ailment = match (hook, health) {
        (Some(Err(message)), _) => Some(Ailment::Hook(message.clone())),
        (_, Some(Health { startup: Some(false), .. })) => Some(Ailment::Startup),
        (_, Some(Health { liveness: Some(false), .. })) => Some(Ailment::Liveness),
        _ => None,
    };
    Some(Judgement { greeted, started, ready, ailment })
}

/// Returns true if a published status shows this run as running.
fn is_run(known: &ContainerStatus, attempt: u32) -> bool {
    u32::try_from(known.restart_count) == Ok(attempt)
        && known.state.as_ref().is_some_and(|state| state.running.is_some())
}
