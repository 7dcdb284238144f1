//! Decides which containers of a pod start now: init containers one after the other, sidecars among
//! them, then the main ones; and each again when it must restart.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use super::fields::Addresses;
use super::health::{Ailment, judge};
use super::image::{self, Readiness};
use super::sources::SourceError;
use super::{
    ContainerProblem, ContainerReport, ContainerState, Exit, Machine, Notice, Plan, PullPolicy, Step, World,
    backoff, container_problem, earlier, restart_delay, status, stopping, volumes,
};

/// The time from a pod's creation until missing sources of its volumes cause a warning.
const SOURCES_PATIENCE: SignedDuration = SignedDuration::from_secs(3);

/// A container's role in its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Runs to its end before the next one starts.
    Init,
    /// Starts before the next container, and runs until the main ones have ended.
    Sidecar,
    /// A container of the pod's own work.
    Main,
}

/// Returns all containers of a pod with their roles, in the order in which they start.
pub fn all_containers(pod: &Pod) -> impl Iterator<Item = (Role, &Container)> {
    let spec = pod.spec.as_ref();
    let first = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let first = first.iter().map(|container| {
        let stays = container.restart_policy.as_deref() == Some("Always");
        (if stays { Role::Sidecar } else { Role::Init }, container)
    });
    let mains = spec.map(|spec| spec.containers.as_slice()).unwrap_or_default();
    first.chain(mains.iter().map(|container| (Role::Main, container)))
}

/// The next action for one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outlook {
    /// It runs: leave it.
    Runs,
    /// It runs and must be stopped.
    Ails(Ailment),
    /// It ran and must not run again.
    Done,
    /// It waits for a condition that needs no event.
    Waits,
    /// Start it.
    StartNow { attempt: u32 },
    /// It keeps failing: start it at `at`.
    StartAt { at: Timestamp, delay: SignedDuration },
    /// Its image must be asked for.
    ImageWanted,
    /// Its image is on its way.
    ImageComing,
    /// Its image could not be fetched: ask for it again at `at`.
    ImageFailing { problem: ContainerProblem, at: Timestamp },
    /// Its spec prevents a start.
    Blocked(ContainerProblem),
}

impl Outlook {
    /// Returns true if the container is to be started, now or later.
    fn wants_start(&self) -> bool {
        !matches!(self, Outlook::Runs | Outlook::Ails(_) | Outlook::Done)
    }
}

/// Plans the starts of containers that should run and do not.
pub(super) fn decide(world: &World<'_>, now: Timestamp) -> Plan {
    if let Machine::Broken { attempts, at, .. } = world.machine {
        let due = *at + restart_delay(*attempts);
        if now < due {
            let status = status::status(world, &BTreeMap::new(), now);
            return Plan { look_again: Some(due), ..Plan::telling(status) };
        }
    }
    let mut outlooks = outlooks(world, now);
    let over = is_over(world, &outlooks);
    if over {
        for outlook in outlooks.values_mut().filter(|outlook| outlook.wants_start()) {
            *outlook = Outlook::Done;
        }
        if world.machine.runs_anything() {
            let (steps, look_again) = stopping::stop(world, stopping::grace(world.pod), now);
            return Plan { steps, look_again, ..Plan::telling(status::status(world, &outlooks, now)) };
        }
    }
    let (mut notices, mut wait_until) = (Vec::new(), None);
    if outlooks.values().any(|outlook| matches!(outlook, Outlook::StartNow { .. })) {
        let missing = volumes::missing(world.pod, &addresses(), world.sources);
        if !missing.is_empty() {
            for outlook in outlooks.values_mut().filter(|outlook| matches!(outlook, Outlook::StartNow { .. }))
            {
                *outlook = Outlook::Waits;
            }
        }
        wait_until = patience_ends(world.pod).filter(|end| !missing.is_empty() && now < *end);
        let is_silent = wait_until.is_some();
        notices.extend(missing.into_iter().filter_map(|(volume, problem)| match problem {
            SourceError::NotYet => None,
            SourceError::Missing(_) if is_silent => None,
            SourceError::Missing(message) => Some(Notice::warning(
                "FailedMount",
                format!("MountVolume.SetUp failed for volume \"{volume}\" : {message}"),
            )),
        }));
    }
    let mut plan = carry_on(world, &outlooks, now);
    plan.notices.extend(notices);
    plan.look_again = earlier(plan.look_again, wait_until);
    plan
}

/// Returns the steps that the outlooks ask for.
fn carry_on(world: &World<'_>, outlooks: &BTreeMap<String, Outlook>, now: Timestamp) -> Plan {
    let (mut steps, mut fetches, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    let mut notices = Vec::new();
    let mut look_again = None;
    for (_, container) in all_containers(world.pod) {
        match outlooks.get(&container.name) {
            Some(Outlook::StartNow { attempt }) => {
                steps.push(Step::StartContainer { name: container.name.clone(), attempt: *attempt });
            }
            Some(Outlook::StartAt { at, .. }) => {
                look_again = earlier(look_again, Some(*at));
                notices.push(backs_off(world.pod, container));
            }
            Some(Outlook::ImageFailing { at, .. }) => look_again = earlier(look_again, Some(*at)),
            Some(Outlook::ImageWanted) => fetches.push(Step::FetchImage {
                name: container.image.clone().unwrap_or_default(),
                policy: PullPolicy::of(container),
            }),
            Some(Outlook::Ails(ailment)) => {
                let (end, again) = stopping::end_ailing(world, container, ailment, now);
                ends.extend(end);
                look_again = earlier(look_again, again);
                notices.push(ailment.notice(container));
            }
            _ => {}
        }
    }
    if !steps.is_empty() {
        match world.machine {
            Machine::Present(_) => {}
            Machine::Absent => steps.insert(0, Step::StartSandbox),
            Machine::Lost { .. } | Machine::Broken { .. } => {
                steps.splice(0..0, [Step::CleanUp, Step::StartSandbox]);
            }
        }
    }
    // Containers that share an image ask for it once.
    fetches.dedup();
    steps.splice(0..0, fetches);
    steps.append(&mut ends);
    Plan { steps, notices, look_again, ..Plan::telling(status::status(world, outlooks, now)) }
}

/// Returns the event for a container whose restart is delayed, in kubelet's words.
fn backs_off(pod: &Pod, container: &Container) -> Notice {
    let ObjectMeta { name, namespace, uid, .. } = &pod.metadata;
    let [name, namespace, uid] = [name, namespace, uid].map(|text| text.as_deref().unwrap_or_default());
    let text =
        format!("Back-off restarting failed container {} in pod {name}_{namespace}({uid})", container.name);
    Notice::warning("BackOff", text).about(container)
}

/// Returns when missing volume sources become worth an event. Volume claims are made and bound at
/// about the same time as the pod, and creation times are whole seconds.
fn patience_ends(pod: &Pod) -> Option<Timestamp> {
    let Time(created) = pod.metadata.creation_timestamp.as_ref()?;
    created.checked_add(SOURCES_PATIENCE).ok()
}

/// Computes each container's outlook, then holds it back until those before it are done.
fn outlooks(world: &World<'_>, now: Timestamp) -> BTreeMap<String, Outlook> {
    let has_run = |container: &Container| matches!(world.machine, Machine::Present(report) if report.containers.contains_key(&container.name));
    // Once a main container has run here, the init containers have finished.
    let initialized =
        all_containers(world.pod).any(|(role, container)| role == Role::Main && has_run(container));
    let mut may_start = true;
    let mut outlooks = BTreeMap::new();
    for (role, container) in all_containers(world.pod) {
        let mut outlook = match role {
            Role::Init if initialized => Outlook::Done,
            _ => outlook(world, role, container, now),
        };
        if !may_start && outlook.wants_start() {
            outlook = Outlook::Waits;
        }
        may_start &= initialized
            || match role {
                Role::Init => outlook == Outlook::Done,
                Role::Sidecar => judge(world, container).is_some_and(|judgement| judgement.started),
                Role::Main => true,
            };
        outlooks.insert(container.name.clone(), outlook);
    }
    outlooks
}

/// Returns true if no container of the pod will ever start again: all main containers have ended,
/// or an init container has failed for good.
fn is_over(world: &World<'_>, outlooks: &BTreeMap<String, Outlook>) -> bool {
    let done = |container: &Container| outlooks.get(&container.name) == Some(&Outlook::Done);
    let mut mains = all_containers(world.pod).filter(|(role, _)| *role == Role::Main);
    let failed_for_good = restart_policy(world.pod) == "Never"
        && all_containers(world.pod).any(|(role, container)| {
            role == Role::Init
                && done(container)
                && reported_exit(world, container).is_some_and(|exit| exit.exit_code != 0)
        });
    failed_for_good || mains.all(|(_, container)| done(container))
}

pub(super) fn restart_policy(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()).unwrap_or("Always")
}

/// Returns the end of a container's run in the present sandbox.
fn reported_exit<'a>(world: &'a World<'_>, container: &Container) -> Option<&'a Exit> {
    let Machine::Present(report) = world.machine else { return None };
    match &report.containers.get(&container.name)?.state {
        ContainerState::Exited(exit) => Some(exit),
        ContainerState::Running { .. } => None,
    }
}

/// Returns placeholder addresses. Decisions only ask whether a value exists.
pub(super) fn addresses() -> Addresses<'static> {
    Addresses { node_name: "", host_ip: "", pod_ip: "" }
}

fn outlook(world: &World<'_>, role: Role, container: &Container, now: Timestamp) -> Outlook {
    if let Some(judgement) = judge(world, container) {
        return judgement.ailment.map_or(Outlook::Runs, Outlook::Ails);
    }
    let reported = world.machine.report().and_then(|report| report.containers.get(&container.name));
    if matches!(
        (world.machine, reported),
        (Machine::Present(_), Some(ContainerReport { state: ContainerState::Running { .. }, .. }))
    ) {
        return Outlook::Runs;
    }
    match container_problem(world.pod, container, world.node, world.sources) {
        Ok(()) => {}
        Err(None) => return Outlook::Waits,
        Err(Some(problem)) => return Outlook::Blocked(problem),
    }
    let Some((attempt, exit)) = status::last_exit(world, container, now) else {
        return start_on_image(world, container, 0, now);
    };
    let failed = exit.exit_code != 0;
    let again = match (role, restart_policy(world.pod)) {
        (Role::Sidecar, _) => true,
        // Init containers prepare one sandbox. In a new one they run again.
        (Role::Init, _) if !failed => reported_exit(world, container).is_none(),
        (Role::Init, policy) => policy != "Never",
        (Role::Main, "Never") => false,
        (Role::Main, "OnFailure") => failed,
        (Role::Main, _) => true,
    };
    if !again {
        return Outlook::Done;
    }
    let delay = match role {
        Role::Init if !failed => SignedDuration::ZERO,
        _ => backoff::delay_after(attempt, &exit),
    };
    let at = exit.finished_at + delay;
    if now >= at {
        start_on_image(world, container, attempt + 1, now)
    } else {
        Outlook::StartAt { at, delay }
    }
}

/// Decides about a container that is due to start: its image decides whether it can.
fn start_on_image(world: &World<'_>, container: &Container, attempt: u32, now: Timestamp) -> Outlook {
    match image::readiness(world.images, container, now) {
        Readiness::Wanted => Outlook::ImageWanted,
        Readiness::Coming => Outlook::ImageComing,
        Readiness::Failing(problem, at) => Outlook::ImageFailing { problem, at },
        Readiness::Ready(facts) => {
            match facts.and_then(|facts| image::user_problem(world.pod, container, facts)) {
                Some(problem) => Outlook::Blocked(problem),
                None => Outlook::StartNow { attempt },
            }
        }
    }
}
