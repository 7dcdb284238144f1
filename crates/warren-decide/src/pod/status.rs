//! Builds a pod's status in kubelet's words, plus two conditions of our own.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    self as core, Container, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, HostIP, Pod, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::conditions::conditions;
use super::containers::{Outlook, restart_policy};
use super::health::judge;
use super::{
    ContainerReport, ContainerState, Exit, ExitCause, ImageState, Limits, Machine, Quantity, Refusal, Role,
    World, address_without_network, all_containers, pids_limit,
};

/// Returns true if two statuses are the same to a reader of the API. Times have whole seconds
/// there, and empty equals absent: a real server returns `lastState: {}` for a missing field.
pub fn same_status(one: &PodStatus, other: &PodStatus) -> bool {
    match (serde_json::to_value(one), serde_json::to_value(other)) {
        (Ok(one), Ok(other)) => without_empty(one) == without_empty(other),
        _ => false,
    }
}

fn without_empty(value: Value) -> Value {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    match value {
        Value::Array(items) => items.into_iter().map(without_empty).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(key, value)| (key, without_empty(value)));
            Value::Object(fields.filter(|(_, value)| !is_empty(value)).collect())
        }
        other => other,
    }
}

/// The statuses of a pod's containers.
#[derive(Debug, Default)]
pub(super) struct Statuses {
    /// The init containers and sidecars, each with its role.
    pub(super) first: Vec<(Role, ContainerStatus)>,
    pub(super) mains: Vec<ContainerStatus>,
}

impl Statuses {
    fn of(world: &World<'_>, outlooks: &BTreeMap<String, Outlook>, now: Timestamp) -> Statuses {
        let mut statuses = Statuses::default();
        for (role, container) in all_containers(world.pod) {
            let status = container_status(world, role, container, outlooks, now);
            match role {
                Role::Main => statuses.mains.push(status),
                Role::Init | Role::Sidecar => statuses.first.push((role, status)),
            }
        }
        statuses
    }
}

/// Returns the status of a pod that may run here.
pub(super) fn status(world: &World<'_>, outlooks: &BTreeMap<String, Outlook>, now: Timestamp) -> PodStatus {
    let statuses = Statuses::of(world, outlooks, now);
    let phase = match phase(world.pod, &statuses) {
        // The pod is not over before all its containers have ended.
        "Succeeded" | "Failed" if world.machine.runs_anything() => "Running",
        phase => phase,
    };
    build(world, phase, statuses, now)
}

/// Returns the status of a pod that exceeded its active deadline.
pub(super) fn overdue(world: &World<'_>, now: Timestamp) -> PodStatus {
    PodStatus {
        reason: Some("DeadlineExceeded".to_owned()),
        message: Some("Pod was active on the node longer than the specified deadline".to_owned()),
        ..build(world, "Failed", Statuses::of(world, &BTreeMap::new(), now), now)
    }
}

/// Returns the status of an evicted pod.
pub(super) fn evicted(world: &World<'_>, message: &str, now: Timestamp) -> PodStatus {
    PodStatus {
        reason: Some("Evicted".to_owned()),
        message: Some(message.to_owned()),
        ..build(world, "Failed", Statuses::of(world, &BTreeMap::new(), now), now)
    }
}

/// Returns the status of a pod that cannot run here.
pub(super) fn refused(world: &World<'_>, refusal: &Refusal, now: Timestamp) -> PodStatus {
    PodStatus {
        reason: Some(refusal.reason.to_owned()),
        message: Some(format!("Pod was rejected: {}", refusal.message)),
        container_statuses: None,
        init_container_statuses: None,
        ..build(world, "Failed", Statuses::default(), now)
    }
}

fn build(world: &World<'_>, phase: &str, statuses: Statuses, now: Timestamp) -> PodStatus {
    let pod = world.pod;
    let before = pod.status.clone().unwrap_or_default();
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let host_ip = world.node.host_ip.to_string();
    let (pod_ip, pod_ips) = match world.machine {
        Machine::Present(report) => {
            let ip = match report.address {
                Some(address) => address.to_string(),
                None => address_without_network(uid).to_string(),
            };
            (Some(ip.clone()), Some(vec![PodIP { ip }]))
        }
        // A pod that has ended keeps its address.
        _ => (before.pod_ip.clone(), before.pod_ips.clone()),
    };
    PodStatus {
        phase: Some(phase.to_owned()),
        conditions: Some(conditions(world, phase, &statuses, now)),
        container_statuses: (!statuses.mains.is_empty()).then_some(statuses.mains),
        init_container_statuses: (!statuses.first.is_empty())
            .then(|| statuses.first.into_iter().map(|(_, status)| status).collect()),
        ephemeral_container_statuses: ephemeral(pod),
        host_ip: Some(host_ip.clone()),
        host_ips: Some(vec![HostIP { ip: host_ip }]),
        pod_ip,
        pod_ips,
        start_time: before.start_time.clone().or(Some(Time(now))),
        qos_class: before.qos_class.clone().or_else(|| Some(qos_class(pod).to_owned())),
        observed_generation: pod.metadata.generation,
        reason: None,
        message: None,
        ..before
    }
}

/// Returns the statuses of ephemeral containers. They are not supported here, so each is shown as
/// terminated: a client that waits for one learns why.
fn ephemeral(pod: &Pod) -> Option<Vec<ContainerStatus>> {
    let containers = pod.spec.as_ref()?.ephemeral_containers.as_deref()?;
    let status = |container: &core::EphemeralContainer| {
        let ended = ContainerStateTerminated {
            exit_code: 128,
            reason: Some("ContainerCannotRun".to_owned()),
            message: Some(format!(
                "spec.ephemeralContainers[{}] is not supported by this node yet; `kubectl exec` runs a command in a \
                 container that is there",
                container.name
            )),
            ..ContainerStateTerminated::default()
        };
        ContainerStatus {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            state: Some(core::ContainerState { terminated: Some(ended), ..core::ContainerState::default() }),
            ..ContainerStatus::default()
        }
    };
    (!containers.is_empty()).then(|| containers.iter().map(status).collect())
}

/// Returns the phase, as kubelet's `getPhase` does.
fn phase(pod: &Pod, statuses: &Statuses) -> &'static str {
    let policy = restart_policy(pod);
    let mains_have_run = statuses.mains.iter().any(has_run);
    for (role, status) in &statuses.first {
        let ended = ended_with(status);
        match role {
            Role::Init if matches!(ended, Some(code) if code != 0) && policy == "Never" => return "Failed",
            Role::Init if ended != Some(0) && !mains_have_run => return "Pending",
            Role::Sidecar if status.started != Some(true) && !mains_have_run => return "Pending",
            _ => {}
        }
    }
    let (mut waiting, mut running, mut stopped, mut succeeded) = (0, 0, 0, 0);
    for status in &statuses.mains {
        let state = status.state.as_ref();
        let last = status.last_state.as_ref().and_then(|last| last.terminated.as_ref());
        if state.is_some_and(|state| state.running.is_some()) {
            running += 1;
        } else if let Some(ended) = state.and_then(|state| state.terminated.as_ref()) {
            stopped += 1;
            succeeded += usize::from(ended.exit_code == 0);
        } else if last.is_some() {
            stopped += 1;
        } else {
            waiting += 1;
        }
    }
    match policy {
        _ if waiting > 0 => "Pending",
        _ if running > 0 => "Running",
        _ if stopped == 0 => "Pending",
        "Always" => "Running",
        _ if stopped == succeeded => "Succeeded",
        "Never" => "Failed",
        _ => "Running",
    }
}

fn ended_with(status: &ContainerStatus) -> Option<i32> {
    status.state.as_ref()?.terminated.as_ref().map(|ended| ended.exit_code)
}

/// Returns true if a container runs or ever ran.
pub(super) fn has_run(status: &ContainerStatus) -> bool {
    let ran = |state: &core::ContainerState| state.running.is_some() || state.terminated.is_some();
    status.state.as_ref().is_some_and(ran) || status.last_state.as_ref().is_some_and(ran)
}

/// Returns the number of starts before the container's last run, and the end of that run. `None`:
/// it never ran, or it runs.
pub(super) fn last_exit(world: &World<'_>, container: &Container, now: Timestamp) -> Option<(u32, Exit)> {
    let reported = world.machine.report().and_then(|report| report.containers.get(&container.name));
    match (world.machine, reported) {
        (_, Some(ContainerReport { attempt, state: ContainerState::Exited(exit), .. })) => {
            Some((*attempt, exit.clone()))
        }
        (
            Machine::Lost { noticed, .. },
            Some(ContainerReport { attempt, state: ContainerState::Running { started_at }, .. }),
        ) => Some((*attempt, unknown_exit(*started_at, *noticed))),
        (_, Some(_)) => None,
        (_, None) => published_exit(world.pod, &container.name, now),
    }
}

/// Returns the published end of a run that the machine has no record of.
fn published_exit(pod: &Pod, name: &str, now: Timestamp) -> Option<(u32, Exit)> {
    let status = published(pod, name)?;
    let attempt = u32::try_from(status.restart_count).unwrap_or(0);
    let state = status.state.as_ref();
    if let Some(running) = state.and_then(|state| state.running.as_ref()) {
        // The time of its end is not known. The start time is the same in every decision.
        let started = running.started_at.as_ref().map_or(now, |time| time.0);
        return Some((attempt, unknown_exit(started, started)));
    }
    let ended = state.and_then(|state| state.terminated.as_ref());
    let ended = ended.or_else(|| status.last_state.as_ref().and_then(|last| last.terminated.as_ref()))?;
    Some((attempt, exit_from(ended, now)))
}

/// Returns the published status of a container.
pub(super) fn published<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let lists = [&status.init_container_statuses, &status.container_statuses];
    lists.into_iter().flatten().flatten().find(|status| status.name == name)
}

fn unknown_exit(started_at: Timestamp, finished_at: Timestamp) -> Exit {
    Exit { started_at, finished_at, exit_code: 137, signal: None, cause: ExitCause::Unknown, message: None }
}

fn exit_from(ended: &ContainerStateTerminated, now: Timestamp) -> Exit {
    let finished_at = ended.finished_at.as_ref().map_or(now, |time| time.0);
    let cause = match ended.reason.as_deref() {
        Some("OOMKilled") => ExitCause::OutOfMemory,
        Some("StartError") => ExitCause::StartError(ended.message.clone().unwrap_or_default()),
        Some("ContainerStatusUnknown") => ExitCause::Unknown,
        _ => ExitCause::Process,
    };
    Exit {
        started_at: ended.started_at.as_ref().map_or(finished_at, |time| time.0),
        finished_at,
        exit_code: ended.exit_code,
        signal: ended.signal,
        message: ended.message.clone().filter(|_| cause == ExitCause::Process),
        cause,
    }
}

fn container_status(
    world: &World<'_>,
    role: Role,
    container: &Container,
    outlooks: &BTreeMap<String, Outlook>,
    now: Timestamp,
) -> ContainerStatus {
    let image = container.image.clone().unwrap_or_default();
    let reported = world.machine.report().and_then(|report| report.containers.get(&container.name));
    let running = match (world.machine, reported.map(|report| &report.state)) {
        (Machine::Present(_), Some(ContainerState::Running { started_at })) => Some(*started_at),
        _ => None,
    };
    let judgement = judge(world, container).unwrap_or_default();
    let shown = running.filter(|_| judgement.greeted);
    let last = last_exit(world, container, now);
    let attempt = match (reported, &last) {
        (Some(report), _) => report.attempt,
        (None, Some((attempt, _))) => *attempt,
        (None, None) => 0,
    };
    let before = previous(world.pod, container, reported, attempt);
    let ended = last.as_ref().map(|(_, exit)| terminated(world.pod, container, reported, exit, attempt));
    let (state, last_state) = match (shown, outlooks.get(&container.name)) {
        (Some(started_at), _) => {
            let running = ContainerStateRunning { started_at: Some(Time(started_at)) };
            (core::ContainerState { running: Some(running), ..Default::default() }, before)
        }
        (None, Some(Outlook::StartAt { delay, .. })) => {
            let seconds = delay.as_secs();
            let shown = if seconds >= 60 {
                format!("{}m{}s", seconds / 60, seconds % 60)
            } else {
                format!("{seconds}s")
            };
            let message = format!(
                "back-off {shown} restarting failed container={} pod={}",
                container.name,
                full_name(world.pod)
            );
            (waiting("CrashLoopBackOff", Some(message)), ended.or(before))
        }
        (None, Some(Outlook::Blocked(problem) | Outlook::ImageFailing { problem, .. })) => {
            (waiting(problem.reason, Some(problem.message.clone())), ended.or(before))
        }
        (None, _) => match (world.machine, ended) {
            (Machine::Broken { message, .. }, ended) => {
                (waiting("CreateContainerError", Some(message.clone())), ended.or(before))
            }
            (_, Some(ended)) => (ended, before),
            (_, None) => (waiting(first_reason(world.pod), None), before),
        },
    };
    let ran = shown.is_some() || last.is_some();
    let ended_well = state.terminated.as_ref().is_some_and(|ended| ended.exit_code == 0);
    let container_id = reported
        .map(|report| format!("warren://{}", report.id))
        .or_else(|| published(world.pod, &container.name).and_then(|status| status.container_id.clone()));
    ContainerStatus {
        name: container.name.clone(),
        image_id: if ran { image_id(world, container) } else { String::new() },
        image,
        container_id,
        ready: if role == Role::Init { ended_well } else { judgement.ready },
        started: Some(judgement.started),
        restart_count: i32::try_from(attempt).unwrap_or(i32::MAX),
        state: Some(state),
        last_state,
        ..Default::default()
    }
}

/// Returns the waiting reason of a container that has not run yet.
fn first_reason(pod: &Pod) -> &'static str {
    let has_first = all_containers(pod).next().is_some_and(|(role, _)| role != Role::Main);
    if has_first { "PodInitializing" } else { "ContainerCreating" }
}

/// Returns the image that a container ran on: from the node's images, or from the published status.
fn image_id(world: &World<'_>, container: &Container) -> String {
    let name = container.image.clone().unwrap_or_default();
    match world.images.get(&name) {
        Some(ImageState::Present(facts)) => facts.id.clone(),
        _ => published(world.pod, &container.name)
            .map(|status| status.image_id.clone())
            .filter(|id| !id.is_empty())
            .unwrap_or(name),
    }
}

/// Returns the end of the run before run number `attempt`: from the shim, or from the published
/// status.
fn previous(
    pod: &Pod,
    container: &Container,
    reported: Option<&ContainerReport>,
    attempt: u32,
) -> Option<core::ContainerState> {
    if attempt == 0 {
        return None;
    }
    if let Some(exit) = reported.and_then(|report| report.previous.as_ref()) {
        return Some(terminated(pod, container, None, exit, attempt - 1));
    }
    let published = published(pod, &container.name)?;
    let same_run = u32::try_from(published.restart_count) == Ok(attempt);
    let state = published.state.clone().filter(|state| !same_run && state.terminated.is_some());
    state.or_else(|| published.last_state.clone().filter(|last| last.terminated.is_some()))
}

fn waiting(reason: &str, message: Option<String>) -> core::ContainerState {
    let waiting = ContainerStateWaiting { reason: Some(reason.to_owned()), message };
    core::ContainerState { waiting: Some(waiting), ..Default::default() }
}

fn terminated(
    pod: &Pod,
    container: &Container,
    reported: Option<&ContainerReport>,
    exit: &Exit,
    attempt: u32,
) -> core::ContainerState {
    let limits = Limits::of(container).ok();
    let (reason, explanation) = match &exit.cause {
        ExitCause::OutOfMemory => (
            "OOMKilled",
            limits.map(|limits| format!("memory limit of {} bytes reached", limits.memory_bytes)),
        ),
        ExitCause::StartError(message) => ("StartError", Some(message.clone())),
        ExitCause::Unknown => (
            "ContainerStatusUnknown",
            Some("The container could not be located when the pod was terminated".to_owned()),
        ),
        ExitCause::Process if exit.exit_code == 0 => ("Completed", None),
        ExitCause::Process => (
            "Error",
            pids_limit(pod)
                .ok()
                .filter(|_| reported.is_some_and(|report| report.pids_limit_hit))
                .map(|pids| format!("limit of {pids} processes reached")),
        ),
    };
    let container_id = match reported {
        Some(report) => Some(format!("warren://{}", report.id)),
        None => published(pod, &container.name)
            .filter(|status| u32::try_from(status.restart_count) == Ok(attempt))
            .and_then(|status| status.container_id.clone()),
    };
    let ended = ContainerStateTerminated {
        container_id,
        exit_code: exit.exit_code,
        finished_at: Some(Time(exit.finished_at)),
        message: exit.message.clone().filter(|left| !left.is_empty()).or(explanation),
        reason: Some(reason.to_owned()),
        signal: exit.signal,
        started_at: Some(Time(exit.started_at)),
    };
    core::ContainerState { terminated: Some(ended), ..Default::default() }
}

/// Returns `name_namespace(uid)`, kubelet's name for a pod in its messages.
fn full_name(pod: &Pod) -> String {
    let meta = &pod.metadata;
    let or_empty = |text: &Option<String>| text.clone().unwrap_or_default();
    format!("{}_{}({})", or_empty(&meta.name), or_empty(&meta.namespace), or_empty(&meta.uid))
}

/// Returns the QoS class. The API server computes it on creation; this is for servers that do not.
fn qos_class(pod: &Pod) -> &'static str {
    let mut any = false;
    let mut guaranteed = true;
    for (_, container) in all_containers(pod) {
        for resource in ["cpu", "memory"] {
            let amount = |list: Option<&BTreeMap<String, _>>| -> Option<Quantity> {
                let text: &k8s_openapi::apimachinery::pkg::api::resource::Quantity = list?.get(resource)?;
                text.0.parse().ok().filter(|amount: &Quantity| amount.thousandths() > 0)
            };
            let resources = container.resources.as_ref();
            let limit = amount(resources.and_then(|resources| resources.limits.as_ref()));
            let request = amount(resources.and_then(|resources| resources.requests.as_ref()));
            any |= limit.is_some() || request.is_some();
            guaranteed &= limit.is_some() && request.is_none_or(|request| Some(request) == limit);
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}
