//! How a running container is: what its hooks and probes have said.

use k8s_openapi::api::core::v1::{Container, ContainerStatus};

use super::{ContainerReport, ContainerState, Machine, World, status};

/// What the hooks and probes of a container's run have said so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// Which run: how often the container was started before.
    pub attempt: u32,
    /// How its hook after the start ended, if it has.
    pub post_start: Option<Result<(), String>>,
    /// Whether it has come up.
    pub startup: Option<bool>,
    /// Whether it can serve.
    pub readiness: Option<bool>,
    /// Whether it still works.
    pub liveness: Option<bool>,
}

/// A running container, judged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Judgement {
    /// Its hook after the start is done. Until then nobody is told that it runs.
    pub(super) greeted: bool,
    pub(super) started: bool,
    pub(super) ready: bool,
    /// Why it has to be ended.
    pub(super) ailment: Option<Ailment>,
}

/// Why a running container has to be ended, for the event that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ailment {
    Hook(String),
    Startup,
    Liveness,
}

/// How a container is, if it runs.
pub(super) fn judge(world: &World<'_>, container: &Container) -> Option<Judgement> {
    let Machine::Present(report) = world.machine else { return None };
    let ContainerReport { attempt, state: ContainerState::Running { .. }, .. } =
        report.containers.get(&container.name)?
    else {
        return None;
    };
    let health = world.health.get(&container.name).filter(|health| health.attempt == *attempt);
    // A daemon that has just come knows nothing from probes yet. What an earlier one published of this very run holds on.
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

/// Whether a published status tells of this run, and that it runs.
fn is_run(known: &ContainerStatus, attempt: u32) -> bool {
    u32::try_from(known.restart_count) == Ok(attempt)
        && known.state.as_ref().is_some_and(|state| state.running.is_some())
}
