//! Tests pods: each case is a pod, the machine's report and a time. The result is shown whole, in
//! short form.

use std::fmt::Write as _;

use expect_test::{Expect, expect};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;

mod care;
mod ending;
mod every_field;
mod first;
mod placement;
mod refusals;
mod restarts;
mod running;
mod sources;

const UID: &str = "6f3a1d52-9c1e-4b57-8a55-0d3a1c8e7f01";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + second).unwrap()
}

fn pod(spec: Value) -> Pod {
    let mut whole = json!({
        "nodeName": "here",
        "restartPolicy": "Always",
        "containers": [{"name": "main", "image": "warren.dev/host"}],
    });
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    serde_json::from_value(json!({
        "metadata": {"name": "box", "namespace": "default", "uid": UID, "generation": 1},
        "spec": whole,
    }))
    .unwrap()
}

fn deleted(mut pod: Pod, grace: i64) -> Pod {
    pod.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(grace)));
    pod.metadata.deletion_grace_period_seconds = Some(grace);
    pod
}

fn published(mut pod: Pod, status: Option<PodStatus>) -> Pod {
    pod.status = status;
    pod
}

fn node() -> NodeFacts {
    NodeFacts {
        name: "here".to_owned(),
        host_ip: "127.0.0.1".parse().unwrap(),
        bind_unassigned: true,
        runtimes: [
            ("strong".to_owned(), RuntimeFacts { one_at_a_time: true }),
            ("plain".to_owned(), RuntimeFacts::default()),
        ]
        .into(),
        network: Networks::All,
        limits_are_enforced: true,
        ids: 1 << 16,
        ids_are_own: true,
        host_paths: Vec::new(),
    }
}

fn running(attempt: u32, started: i64) -> ContainerReport {
    ContainerReport {
        id: format!("{UID}-main-{attempt}"),
        attempt,
        state: ContainerState::Running { started_at: at(started) },
        previous: None,
        memory_limit_hit: false,
        pids_limit_hit: false,
    }
}

fn exited(attempt: u32, exit_code: i32, from: i64, to: i64) -> ContainerReport {
    let exit = Exit {
        started_at: at(from),
        finished_at: at(to),
        exit_code,
        signal: None,
        cause: ExitCause::Process,
        message: None,
    };
    ContainerReport { state: ContainerState::Exited(exit), ..running(attempt, from) }
}

fn present(container: ContainerReport) -> Machine {
    let isolation = Isolation { level: "Namespaces".to_owned(), detail: "user, pid, mount".to_owned() };
    Machine::Present(Report {
        isolation: Some(isolation),
        address: None,
        containers: [("main".to_owned(), container)].into(),
    })
}

fn plan(pod: &Pod, machine: &Machine, asked_to_stop: Option<i64>, now: i64) -> Plan {
    plan_with(pod, machine, &Images::new(), asked_to_stop, now)
}

fn plan_with(pod: &Pod, machine: &Machine, images: &Images, asked_to_stop: Option<i64>, now: i64) -> Plan {
    let stopping = asked_to_stop.map(|second| ("main".to_owned(), at(second))).into_iter().collect();
    let (sources, health) = (&Sources::default(), &BTreeMap::new());
    let world =
        World { pod, node: &node(), machine, images, sources, health, stopping: &stopping, eviction: None };
    decide(&world, at(now))
}

/// Formats a plan's steps, notices and wake-up.
fn doings(plan: &Plan) -> String {
    let mut shown = String::new();
    for step in &plan.steps {
        writeln!(shown, "do {step:?}").unwrap();
    }
    for notice in &plan.notices {
        writeln!(shown, "say {} | {}", notice.reason, notice.message).unwrap();
    }
    if let Some(again) = plan.look_again {
        writeln!(shown, "look again at {}", again.as_second() - at(0).as_second()).unwrap();
    }
    shown
}

/// Checks the plan in a few lines: steps, the next wake-up, and the parts of the status that cases
/// differ in.
fn check(plan: &Plan, expected: Expect) {
    let mut shown = doings(plan);
    if let Some(status) = &plan.status {
        write!(shown, "{}", status.phase.as_deref().unwrap()).unwrap();
        for word in [&status.reason, &status.message].into_iter().flatten() {
            write!(shown, " | {word}").unwrap();
        }
        writeln!(shown, " | ip {}", status.pod_ip.as_deref().unwrap_or("none")).unwrap();
        for condition in status.conditions.iter().flatten() {
            write!(shown, "  {}={}", condition.type_, condition.status).unwrap();
            for word in [&condition.reason, &condition.message].into_iter().flatten() {
                write!(shown, " | {word}").unwrap();
            }
            writeln!(shown).unwrap();
        }
        let first = status.init_container_statuses.iter().flatten();
        for container in first.chain(status.container_statuses.iter().flatten()) {
            let state = serde_json::to_string(&container.state).unwrap();
            writeln!(
                shown,
                "  {} ready={} restarts={} {state}",
                container.name, container.ready, container.restart_count
            )
            .unwrap();
            if let Some(last) = &container.last_state {
                writeln!(shown, "    last {}", serde_json::to_string(last).unwrap()).unwrap();
            }
        }
    }
    expected.assert_eq(&shown);
}

/// Builds a sandbox with several containers.
fn present_all(containers: &[(&str, ContainerReport)]) -> Machine {
    let named = |(name, report): &(&str, ContainerReport)| ((*name).to_owned(), report.clone());
    Machine::Present(Report {
        isolation: None,
        address: None,
        containers: containers.iter().map(named).collect(),
    })
}

fn plan_of(
    pod: &Pod,
    machine: &Machine,
    sources: &Sources,
    health: &[(&str, Health)],
    stopping: &[(&str, i64)],
    now: i64,
) -> Plan {
    let health = health.iter().map(|(name, health)| ((*name).to_owned(), health.clone())).collect();
    let stopping = stopping.iter().map(|(name, second)| ((*name).to_owned(), at(*second))).collect();
    let world = World {
        pod,
        node: &node(),
        machine,
        images: &Images::new(),
        sources,
        health: &health,
        stopping: &stopping,
        eviction: None,
    };
    decide(&world, at(now))
}

/// Formats the plan in fewer lines: steps, notices, phase, and each container's state.
fn brief(plan: &Plan) -> String {
    let mut shown = doings(plan);
    let Some(status) = &plan.status else { return shown };
    let not_met = status.conditions.iter().flatten().filter(|condition| {
        condition.status == "False" && ["Initialized", "ContainersReady"].contains(&condition.type_.as_str())
    });
    let not_met: Vec<&str> = not_met.filter_map(|condition| condition.message.as_deref()).collect();
    writeln!(shown, "{} {}", status.phase.as_deref().unwrap(), not_met.join("; ")).unwrap();
    let first = status.init_container_statuses.iter().flatten();
    for container in first.chain(status.container_statuses.iter().flatten()) {
        let state = container.state.as_ref().unwrap();
        let state = match (&state.waiting, &state.running, &state.terminated) {
            (Some(waiting), _, _) => format!(
                "waits: {} {}",
                waiting.reason.as_deref().unwrap_or_default(),
                waiting.message.as_deref().unwrap_or_default()
            ),
            (_, Some(_), _) => "runs".to_owned(),
            (_, _, Some(ended)) => format!(
                "ended: {} {}",
                ended.exit_code,
                ended.message.as_deref().or(ended.reason.as_deref()).unwrap_or_default()
            ),
            _ => "nothing".to_owned(),
        };
        let (ready, started) = (container.ready, container.started == Some(true));
        let flags = [(started, "started"), (ready, "ready")].into_iter().filter(|(holds, _)| *holds);
        let flags: Vec<&str> = flags.map(|(_, word)| word).collect();
        let restarts = container.restart_count;
        writeln!(shown, "  {} {state} [{}] restarts={restarts}", container.name, flags.join(" ")).unwrap();
    }
    shown
}
