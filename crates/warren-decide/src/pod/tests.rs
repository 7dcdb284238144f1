//! Each case is a pod, what the machine says and a time; what comes out is shown whole, shortened for reading.

use std::fmt::Write as _;

use expect_test::{Expect, expect};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;

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
    NodeFacts { name: "here".to_owned(), host_ip: "127.0.0.1".parse().unwrap(), bind_unassigned: true }
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
    };
    ContainerReport { state: ContainerState::Exited(exit), ..running(attempt, from) }
}

fn present(container: ContainerReport) -> Machine {
    let isolation = Isolation { level: "Namespaces".to_owned(), detail: "user, pid, mount".to_owned() };
    Machine::Present(Report {
        isolation: Some(isolation),
        containers: [("main".to_owned(), container)].into(),
    })
}

fn plan(pod: &Pod, machine: &Machine, asked_to_stop: Option<i64>, now: i64) -> Plan {
    plan_with(pod, machine, &Images::new(), asked_to_stop, now)
}

fn plan_with(pod: &Pod, machine: &Machine, images: &Images, asked_to_stop: Option<i64>, now: i64) -> Plan {
    let world = World { pod, node: &node(), machine, images, asked_to_stop: asked_to_stop.map(at) };
    decide(&world, at(now))
}

/// The plan in a few lines: steps, when to look again, and the parts of the status that cases differ in.
fn check(plan: &Plan, expected: Expect) {
    let mut shown = String::new();
    for step in &plan.steps {
        writeln!(shown, "do {step:?}").unwrap();
    }
    if let Some(again) = plan.look_again {
        writeln!(shown, "look again at {}", again.as_second() - at(0).as_second()).unwrap();
    }
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
        for container in status.container_statuses.iter().flatten() {
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

#[test]
fn a_pod_that_nobody_placed_is_bound_and_started() {
    let pod = pod(json!({"nodeName": null}));
    check(
        &plan(&pod, &Machine::Absent, None, 0),
        expect![[r#"
        do Bind
        do StartSandbox
        do StartContainer { name: "main", attempt: 0 }
        Pending | ip none
          PodReadyToStartContainers=False
          Initialized=True
          Ready=False | ContainersNotReady | containers with unready status: [main]
          ContainersReady=False | ContainersNotReady | containers with unready status: [main]
          PodScheduled=True
          main ready=false restarts=0 {"waiting":{"reason":"ContainerCreating"}}
    "#]],
    );
}

#[test]
fn a_pod_of_another_node_is_left_alone() {
    let pod = pod(json!({"nodeName": "there"}));
    check(&plan(&pod, &Machine::Absent, None, 0), expect![[r#""#]]);
}

#[test]
fn a_pod_behind_a_scheduling_gate_is_left_alone() {
    let pod = pod(json!({"nodeName": null, "schedulingGates": [{"name": "quota"}]}));
    check(&plan(&pod, &Machine::Absent, None, 0), expect![[r#""#]]);
}

#[test]
fn a_pod_of_another_scheduler_is_left_to_it() {
    let of = |name: &str| pod(json!({"nodeName": null, "schedulerName": name}));
    assert!(plan(&of("other"), &Machine::Absent, None, 0).steps.is_empty());
    assert_eq!(plan(&of("default-scheduler"), &Machine::Absent, None, 0).steps[0], Step::Bind);
}

#[test]
fn a_running_container_makes_the_pod_ready() {
    check(
        &plan(&pod(json!({})), &present(running(0, 1)), None, 2),
        expect![[r#"
        Running | ip 100::ab31:5c78:67a8:2425
          PodReadyToStartContainers=True
          Initialized=True
          Ready=True
          ContainersReady=True
          PodScheduled=True
          warren.dev/isolation=True | Namespaces | user, pid, mount
          main ready=true restarts=0 {"running":{"startedAt":"2026-09-21T14:13:21Z"}}
    "#]],
    );
}

#[test]
fn the_whole_status_of_a_running_pod() {
    let status = plan(&pod(json!({})), &present(running(0, 1)), None, 2).status.unwrap();
    expect![[r#"
        {
          "conditions": [
            {
              "lastTransitionTime": "2026-09-21T14:13:22Z",
              "observedGeneration": 1,
              "status": "True",
              "type": "PodReadyToStartContainers"
            },
            {
              "lastTransitionTime": "2026-09-21T14:13:22Z",
              "observedGeneration": 1,
              "status": "True",
              "type": "Initialized"
            },
            {
              "lastTransitionTime": "2026-09-21T14:13:22Z",
              "observedGeneration": 1,
              "status": "True",
              "type": "Ready"
            },
            {
              "lastTransitionTime": "2026-09-21T14:13:22Z",
              "observedGeneration": 1,
              "status": "True",
              "type": "ContainersReady"
            },
            {
              "lastTransitionTime": "2026-09-21T14:13:22Z",
              "observedGeneration": 1,
              "status": "True",
              "type": "PodScheduled"
            },
            {
              "lastTransitionTime": "2026-09-21T14:13:22Z",
              "message": "user, pid, mount",
              "observedGeneration": 1,
              "reason": "Namespaces",
              "status": "True",
              "type": "warren.dev/isolation"
            }
          ],
          "containerStatuses": [
            {
              "containerID": "warren://6f3a1d52-9c1e-4b57-8a55-0d3a1c8e7f01-main-0",
              "image": "warren.dev/host",
              "imageID": "warren.dev/host",
              "name": "main",
              "ready": true,
              "restartCount": 0,
              "started": true,
              "state": {
                "running": {
                  "startedAt": "2026-09-21T14:13:21Z"
                }
              }
            }
          ],
          "hostIP": "127.0.0.1",
          "hostIPs": [
            {
              "ip": "127.0.0.1"
            }
          ],
          "observedGeneration": 1,
          "phase": "Running",
          "podIP": "100::ab31:5c78:67a8:2425",
          "podIPs": [
            {
              "ip": "100::ab31:5c78:67a8:2425"
            }
          ],
          "qosClass": "BestEffort",
          "startTime": "2026-09-21T14:13:22Z"
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&status).unwrap());
}

#[test]
fn transitions_keep_their_time_and_equal_statuses_are_equal() {
    let machine = present(running(0, 1));
    let first = plan(&pod(json!({})), &machine, None, 2).status;
    let second = plan(&published(pod(json!({})), first.clone()), &machine, None, 500).status;
    let (first, mut second) = (first.unwrap(), second.unwrap());
    assert!(same_status(&first, &second));
    // As a server in Go gives it back.
    second.container_statuses.as_mut().unwrap()[0].last_state = Some(Default::default());
    assert!(same_status(&first, &second));
    second.phase = Some("Pending".to_owned());
    assert!(!same_status(&first, &second));
}

#[test]
fn a_readiness_gate_keeps_the_pod_from_being_ready() {
    let mut pod = pod(json!({"readinessGates": [{"conditionType": "example.com/warm"}]}));
    check(
        &plan(&pod, &present(running(0, 1)), None, 2),
        expect![[r#"
        Running | ip 100::ab31:5c78:67a8:2425
          PodReadyToStartContainers=True
          Initialized=True
          Ready=False | ReadinessGatesNotReady | corresponding condition of pod readiness gate "example.com/warm" does not exist.
          ContainersReady=True
          PodScheduled=True
          warren.dev/isolation=True | Namespaces | user, pid, mount
          main ready=true restarts=0 {"running":{"startedAt":"2026-09-21T14:13:21Z"}}
    "#]],
    );
    pod.status = Some(
        serde_json::from_value(json!({"conditions": [{"type": "example.com/warm", "status": "True"}]}))
            .unwrap(),
    );
    let opened = plan(&pod, &present(running(0, 1)), None, 2).status.unwrap();
    let ready = opened.conditions.iter().flatten().find(|condition| condition.type_ == "Ready").unwrap();
    assert_eq!(ready.status, "True");
    assert!(opened.conditions.iter().flatten().any(|condition| condition.type_ == "example.com/warm"));
}

#[test]
fn a_container_that_ends_is_started_again_at_once_the_first_time() {
    check(
        &plan(&pod(json!({})), &present(exited(0, 1, 1, 5)), None, 5),
        expect![[r#"
        do StartContainer { name: "main", attempt: 1 }
        Running | ip 100::ab31:5c78:67a8:2425
          PodReadyToStartContainers=True
          Initialized=True
          Ready=False | ContainersNotReady | containers with unready status: [main]
          ContainersReady=False | ContainersNotReady | containers with unready status: [main]
          PodScheduled=True
          warren.dev/isolation=True | Namespaces | user, pid, mount
          main ready=false restarts=0 {"terminated":{"containerID":"warren://6f3a1d52-9c1e-4b57-8a55-0d3a1c8e7f01-main-0","exitCode":1,"finishedAt":"2026-09-21T14:13:25Z","reason":"Error","startedAt":"2026-09-21T14:13:21Z"}}
    "#]],
    );
}

#[test]
fn a_container_that_keeps_failing_waits() {
    check(
        &plan(&pod(json!({})), &present(exited(1, 1, 5, 6)), None, 7),
        expect![[r#"
        look again at 16
        Running | ip 100::ab31:5c78:67a8:2425
          PodReadyToStartContainers=True
          Initialized=True
          Ready=False | ContainersNotReady | containers with unready status: [main]
          ContainersReady=False | ContainersNotReady | containers with unready status: [main]
          PodScheduled=True
          warren.dev/isolation=True | Namespaces | user, pid, mount
          main ready=false restarts=1 {"waiting":{"message":"back-off 10s restarting failed container=main pod=box_default(6f3a1d52-9c1e-4b57-8a55-0d3a1c8e7f01)","reason":"CrashLoopBackOff"}}
            last {"terminated":{"containerID":"warren://6f3a1d52-9c1e-4b57-8a55-0d3a1c8e7f01-main-1","exitCode":1,"finishedAt":"2026-09-21T14:13:26Z","reason":"Error","startedAt":"2026-09-21T14:13:25Z"}}
    "#]],
    );
    check(
        &plan(&pod(json!({})), &present(exited(5, 1, 5, 6)), None, 7),
        expect![[r#"
        look again at 166
        Running | ip 100::ab31:5c78:67a8:2425
          PodReadyToStartContainers=True
          Initialized=True
          Ready=False | ContainersNotReady | containers with unready status: [main]
          ContainersReady=False | ContainersNotReady | containers with unready status: [main]
          PodScheduled=True
          warren.dev/isolation=True | Namespaces | user, pid, mount
          main ready=false restarts=5 {"waiting":{"message":"back-off 2m40s restarting failed container=main pod=box_default(6f3a1d52-9c1e-4b57-8a55-0d3a1c8e7f01)","reason":"CrashLoopBackOff"}}
            last {"terminated":{"containerID":"warren://6f3a1d52-9c1e-4b57-8a55-0d3a1c8e7f01-main-5","exitCode":1,"finishedAt":"2026-09-21T14:13:26Z","reason":"Error","startedAt":"2026-09-21T14:13:25Z"}}
    "#]],
    );
}

#[test]
fn back_off_grows_to_five_minutes_and_forgives_a_long_run() {
    let delays: Vec<i64> = (0..8).map(|restart| restart_delay(restart).as_secs()).collect();
    assert_eq!(delays, [0, 10, 20, 40, 80, 160, 300, 300]);
    let after_long_run = plan(&pod(json!({})), &present(exited(7, 1, 0, 700)), None, 700);
    assert_eq!(after_long_run.steps, [Step::StartContainer { name: "main".to_owned(), attempt: 8 }]);
}

#[test]
fn a_run_that_needs_no_repeat_ends_the_pod() {
    let never = pod(json!({"restartPolicy": "Never"}));
    check(
        &plan(&never, &present(exited(0, 0, 1, 5)), None, 6),
        expect![[r#"
            Succeeded | ip 100::ab31:5c78:67a8:2425
              PodReadyToStartContainers=True
              Initialized=True | PodCompleted
              Ready=False | PodCompleted
              ContainersReady=False | PodCompleted
              PodScheduled=True
              warren.dev/isolation=True | Namespaces | user, pid, mount
              main ready=false restarts=0 {"terminated":{"containerID":"warren://6f3a1d52-9c1e-4b57-8a55-0d3a1c8e7f01-main-0","exitCode":0,"finishedAt":"2026-09-21T14:13:25Z","reason":"Completed","startedAt":"2026-09-21T14:13:21Z"}}
        "#]],
    );
    check(
        &plan(&never, &present(exited(0, 7, 1, 5)), None, 6),
        expect![[r#"
            Failed | ip 100::ab31:5c78:67a8:2425
              PodReadyToStartContainers=True
              Initialized=True
              Ready=False | PodFailed
              ContainersReady=False | PodFailed
              PodScheduled=True
              warren.dev/isolation=True | Namespaces | user, pid, mount
              main ready=false restarts=0 {"terminated":{"containerID":"warren://6f3a1d52-9c1e-4b57-8a55-0d3a1c8e7f01-main-0","exitCode":7,"finishedAt":"2026-09-21T14:13:25Z","reason":"Error","startedAt":"2026-09-21T14:13:21Z"}}
        "#]],
    );
    let on_failure = pod(json!({"restartPolicy": "OnFailure"}));
    assert_eq!(
        plan(&on_failure, &present(exited(0, 0, 1, 5)), None, 6).status.unwrap().phase.as_deref(),
        Some("Succeeded")
    );
}

#[test]
fn a_finished_pod_is_cleaned_up_once_and_its_status_stays() {
    let never = pod(json!({"restartPolicy": "Never"}));
    let machine = present(exited(0, 0, 1, 5));
    let finished = published(never.clone(), plan(&never, &machine, None, 6).status);
    check(
        &plan(&finished, &machine, None, 7),
        expect![[r#"
        do CleanUp
    "#]],
    );
    check(&plan(&finished, &Machine::Absent, None, 7), expect![[r#""#]]);
}

#[test]
fn memory_and_process_limits_show_as_reasons() {
    let mut killed = exited(0, 137, 1, 5);
    killed.memory_limit_hit = true;
    if let ContainerState::Exited(exit) = &mut killed.state {
        exit.cause = ExitCause::OutOfMemory;
        exit.signal = Some(9);
    }
    check(
        &plan(&pod(json!({"restartPolicy": "Never"})), &present(killed), None, 6),
        expect![[r#"
            Failed | ip 100::ab31:5c78:67a8:2425
              PodReadyToStartContainers=True
              Initialized=True
              Ready=False | PodFailed
              ContainersReady=False | PodFailed
              PodScheduled=True
              warren.dev/isolation=True | Namespaces | user, pid, mount
              warren.dev/limit-reached=True | OOMKilled | container "main" reached its memory limit of 4294967296 bytes
              main ready=false restarts=0 {"terminated":{"containerID":"warren://6f3a1d52-9c1e-4b57-8a55-0d3a1c8e7f01-main-0","exitCode":137,"finishedAt":"2026-09-21T14:13:25Z","message":"memory limit of 4294967296 bytes reached","reason":"OOMKilled","signal":9,"startedAt":"2026-09-21T14:13:21Z"}}
        "#]],
    );

    let mut bomb = running(0, 1);
    bomb.pids_limit_hit = true;
    check(
        &plan(&pod(json!({})), &present(bomb), None, 6),
        expect![[r#"
        Running | ip 100::ab31:5c78:67a8:2425
          PodReadyToStartContainers=True
          Initialized=True
          Ready=True
          ContainersReady=True
          PodScheduled=True
          warren.dev/isolation=True | Namespaces | user, pid, mount
          warren.dev/limit-reached=True | PidsLimit | container "main" reached its limit of 256 processes
          main ready=true restarts=0 {"running":{"startedAt":"2026-09-21T14:13:21Z"}}
    "#]],
    );
}

#[test]
fn a_container_that_cannot_start_says_why() {
    let mut failed = exited(0, 128, 1, 1);
    if let ContainerState::Exited(exit) = &mut failed.state {
        exit.cause = ExitCause::StartError("exec `nonsense`: no such file or directory".to_owned());
    }
    check(
        &plan(&pod(json!({"restartPolicy": "Never"})), &present(failed), None, 6),
        expect![[r#"
            Failed | ip 100::ab31:5c78:67a8:2425
              PodReadyToStartContainers=True
              Initialized=True
              Ready=False | PodFailed
              ContainersReady=False | PodFailed
              PodScheduled=True
              warren.dev/isolation=True | Namespaces | user, pid, mount
              main ready=false restarts=0 {"terminated":{"containerID":"warren://6f3a1d52-9c1e-4b57-8a55-0d3a1c8e7f01-main-0","exitCode":128,"finishedAt":"2026-09-21T14:13:21Z","message":"exec `nonsense`: no such file or directory","reason":"StartError","startedAt":"2026-09-21T14:13:21Z"}}
        "#]],
    );
}

#[test]
fn a_sandbox_that_cannot_be_made_says_why_and_is_tried_again() {
    let broken =
        Machine::Broken { message: "start shim: too many processes".to_owned(), attempts: 2, at: at(10) };
    check(
        &plan(&pod(json!({})), &broken, None, 11),
        expect![[r#"
        look again at 30
        Pending | ip none
          PodReadyToStartContainers=False
          Initialized=True
          Ready=False | ContainersNotReady | containers with unready status: [main]
          ContainersReady=False | ContainersNotReady | containers with unready status: [main]
          PodScheduled=True
          main ready=false restarts=0 {"waiting":{"message":"start shim: too many processes","reason":"CreateContainerError"}}
    "#]],
    );
    let due = plan(&pod(json!({})), &broken, None, 30);
    assert_eq!(due.steps[..2], [Step::CleanUp, Step::StartSandbox]);
}

#[test]
fn a_lost_shim_is_an_unknown_end_and_a_restart() {
    let Machine::Present(report) = present(running(0, 1)) else { unreachable!("built as present") };
    let lost = Machine::Lost { report, noticed: at(9) };
    let world = World {
        pod: &pod(json!({})),
        node: &node(),
        machine: &lost,
        images: &Images::new(),
        asked_to_stop: None,
    };
    assert_eq!(last_exit(&world, "main", at(9)).unwrap().cause, ExitCause::Unknown);
    check(
        &plan(&pod(json!({})), &lost, None, 9),
        expect![[r#"
        do CleanUp
        do StartSandbox
        do StartContainer { name: "main", attempt: 1 }
        Running | ip none
          PodReadyToStartContainers=False
          Initialized=True
          Ready=False | ContainersNotReady | containers with unready status: [main]
          ContainersReady=False | ContainersNotReady | containers with unready status: [main]
          PodScheduled=True
          main ready=false restarts=0 {"terminated":{"containerID":"warren://6f3a1d52-9c1e-4b57-8a55-0d3a1c8e7f01-main-0","exitCode":137,"finishedAt":"2026-09-21T14:13:29Z","message":"The container could not be located when the pod was terminated","reason":"ContainerStatusUnknown","startedAt":"2026-09-21T14:13:21Z"}}
    "#]],
    );
    check(
        &plan(&pod(json!({"restartPolicy": "Never"})), &lost, None, 9),
        expect![[r#"
            Failed | ip none
              PodReadyToStartContainers=False
              Initialized=True
              Ready=False | PodFailed
              ContainersReady=False | PodFailed
              PodScheduled=True
              main ready=false restarts=0 {"terminated":{"containerID":"warren://6f3a1d52-9c1e-4b57-8a55-0d3a1c8e7f01-main-0","exitCode":137,"finishedAt":"2026-09-21T14:13:29Z","message":"The container could not be located when the pod was terminated","reason":"ContainerStatusUnknown","startedAt":"2026-09-21T14:13:21Z"}}
        "#]],
    );
}

#[test]
fn a_machine_that_forgot_everything_goes_by_the_published_status() {
    let before = plan(&pod(json!({})), &present(running(2, 1)), None, 2).status;
    let forgotten = published(pod(json!({})), before);
    check(
        &plan(&forgotten, &Machine::Absent, None, 100),
        expect![[r#"
        do StartSandbox
        do StartContainer { name: "main", attempt: 3 }
        Running | ip 100::ab31:5c78:67a8:2425
          PodReadyToStartContainers=False
          Initialized=True
          Ready=False | ContainersNotReady | containers with unready status: [main]
          ContainersReady=False | ContainersNotReady | containers with unready status: [main]
          PodScheduled=True
          warren.dev/isolation=True | Namespaces | user, pid, mount
          main ready=false restarts=2 {"terminated":{"containerID":"warren://6f3a1d52-9c1e-4b57-8a55-0d3a1c8e7f01-main-2","exitCode":137,"finishedAt":"2026-09-21T14:13:21Z","message":"The container could not be located when the pod was terminated","reason":"ContainerStatusUnknown","startedAt":"2026-09-21T14:13:21Z"}}
    "#]],
    );
    let mut again = present(running(3, 100));
    let status = plan(&forgotten, &again, None, 101).status.unwrap();
    let last = status.container_statuses.unwrap().remove(0).last_state;
    assert!(last.is_none(), "a run whose end nobody saw has no last state: {last:?}");
    if let Machine::Present(report) = &mut again {
        let main = report.containers.get_mut("main").unwrap();
        main.previous = Some(Exit {
            started_at: at(1),
            finished_at: at(50),
            exit_code: 3,
            signal: None,
            cause: ExitCause::Process,
        });
    }
    let status = plan(&forgotten, &again, None, 101).status.unwrap();
    let last = status.container_statuses.unwrap().remove(0).last_state.unwrap().terminated.unwrap();
    assert_eq!(last.exit_code, 3);
}

#[test]
fn deletion_asks_then_kills_then_removes() {
    let pod = deleted(pod(json!({})), 30);
    let up = present(running(0, 1));
    let asked = plan(&pod, &up, None, 100);
    assert_eq!((asked.steps, asked.look_again), (vec![Step::AskToStop], Some(at(130))));
    let acknowledged = published(pod.clone(), asked.status);
    let mut next_generation = acknowledged.clone();
    next_generation.metadata.generation = Some(2);
    let same = plan(&next_generation, &up, Some(100), 110).status.unwrap();
    assert!(
        same_status(acknowledged.status.as_ref().unwrap(), &same),
        "a new generation alone is not written"
    );
    let waits = plan(&pod, &up, Some(100), 110);
    assert_eq!((waits.steps, waits.look_again), (vec![], Some(at(130))));
    assert_eq!(plan(&pod, &up, Some(100), 130).steps, [Step::Kill]);
    check(
        &plan(&pod, &present(exited(0, 143, 1, 101)), Some(100), 101),
        expect![[r#"
        do Remove
        do DeleteObject
    "#]],
    );
    check(
        &plan(&pod, &Machine::Absent, None, 101),
        expect![[r#"
        do Remove
        do DeleteObject
    "#]],
    );
    assert_eq!(plan(&deleted(pod, 0), &up, None, 100).steps, [Step::Kill]);
}

#[test]
fn a_finalizer_keeps_the_object_and_gets_a_true_status_before_the_record_goes() {
    let mut pod = deleted(pod(json!({"restartPolicy": "Never"})), 30);
    pod.metadata.finalizers = Some(vec!["example.com/hold".to_owned()]);
    let ended = present(exited(0, 0, 1, 101));
    let first = plan(&pod, &ended, Some(100), 101);
    assert_eq!((first.steps, first.status.as_ref().unwrap().phase.as_deref()), (vec![], Some("Succeeded")));
    pod.status = first.status;
    assert_eq!(plan(&pod, &ended, Some(100), 101).steps, [Step::Remove, Step::DeleteObject]);
    // Once the API server has taken note (grace 0), there is nothing left to do, and the end stays as it was.
    let last = plan(&deleted(pod, 0), &Machine::Absent, None, 102);
    assert_eq!((last.steps, last.status.unwrap().phase.as_deref()), (vec![], Some("Succeeded")));
}

#[test]
fn a_pod_past_its_active_deadline_is_stopped_and_failed() {
    let mut pod = pod(json!({"activeDeadlineSeconds": 60, "terminationGracePeriodSeconds": 5}));
    pod.status = plan(&pod, &present(running(0, 1)), None, 0).status;
    assert_eq!(plan(&pod, &present(running(0, 1)), None, 10).look_again, Some(at(60)));
    assert_eq!(plan(&pod, &present(running(0, 1)), None, 60).steps, [Step::AskToStop]);
    check(
        &plan(&pod, &present(exited(0, 143, 1, 61)), Some(60), 61),
        expect![[r#"
            Failed | DeadlineExceeded | Pod was active on the node longer than the specified deadline | ip 100::ab31:5c78:67a8:2425
              PodReadyToStartContainers=True
              Initialized=True
              Ready=False | PodFailed
              ContainersReady=False | PodFailed
              PodScheduled=True
              warren.dev/isolation=True | Namespaces | user, pid, mount
              main ready=false restarts=0 {"terminated":{"containerID":"warren://6f3a1d52-9c1e-4b57-8a55-0d3a1c8e7f01-main-0","exitCode":143,"finishedAt":"2026-09-21T14:14:21Z","reason":"Error","startedAt":"2026-09-21T14:13:21Z"}}
        "#]],
    );
}

#[test]
fn pods_that_cannot_be_run_as_asked_fail_with_the_field_named() {
    let with = |container: Value| {
        let mut whole = json!({"name": "main", "image": "warren.dev/host"});
        for (key, value) in container.as_object().unwrap() {
            whole[key] = value.clone();
        }
        json!({"containers": [whole]})
    };
    let cases = [
        json!({"hostNetwork": true}),
        json!({"runtimeClassName": "gvisor"}),
        json!({"initContainers": [{"name": "first"}]}),
        json!({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}),
        json!({"volumes": [{"name": "odd"}]}),
        with(json!({"securityContext": {"privileged": true}})),
        with(json!({"securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}})),
        with(json!({"readinessProbe": {"exec": {"command": ["true"]}}})),
        with(json!({"env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]})),
        with(json!({"volumeMounts": [{"name": "gone", "mountPath": "/data"}]})),
        with(json!({"resources": {"limits": {"memory": "1Mi"}}})),
        with(json!({"resources": {"limits": {"memory": "lots"}}})),
        with(json!({"resources": {"limits": {"ephemeral-storage": "1Gi"}}})),
        json!({"volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}]}),
        json!({"volumes": [{"name": "huge", "emptyDir": {"medium": "HugePages"}}]}),
    ];
    let shown: Vec<String> = cases
        .into_iter()
        .map(|spec| {
            let status = plan(&pod(spec), &Machine::Absent, None, 0).status.unwrap();
            assert_eq!(status.phase.as_deref(), Some("Failed"));
            format!("{} | {}", status.reason.unwrap(), status.message.unwrap())
        })
        .collect();
    expect![[r#"
        IsolationRefused | Pod was rejected: spec.hostNetwork would weaken the isolation of the pod, which this node does not allow
        RuntimeClassNotFound | Pod was rejected: runtime class "gvisor" is not available on this node
        UnsupportedPodSpec | Pod was rejected: spec.initContainers is not supported by this node yet
        UnsupportedVolume | Pod was rejected: volume "data": persistentVolumeClaim is not supported by this node yet; emptyDir is
        UnsupportedVolume | Pod was rejected: volume "odd": unknown is not supported by this node yet; emptyDir is
        IsolationRefused | Pod was rejected: spec.containers[main].securityContext.privileged would weaken the isolation of the pod, which this node does not allow
        IsolationRefused | Pod was rejected: spec.containers[main].securityContext.capabilities.add would weaken the isolation of the pod, which this node does not allow
        UnsupportedPodSpec | Pod was rejected: spec.containers[main].readinessProbe is not supported by this node yet
        UnsupportedPodSpec | Pod was rejected: spec.containers[main].env[KEY].valueFrom is not supported by this node yet
        InvalidVolumeMount | Pod was rejected: spec.containers[main].volumeMounts: there is no volume "gone"
        InvalidLimits | Pod was rejected: spec.containers[main].resources.limits.memory: 1Mi is below the least that can be enforced, 4Mi
        InvalidLimits | Pod was rejected: spec.containers[main].resources.limits.memory: `lots` is not a quantity
        InvalidLimits | Pod was rejected: spec.containers[main].resources.limits.ephemeral-storage is not supported by this node yet
        UnsupportedVolume | Pod was rejected: volume "tmp": emptyDir.sizeLimit is enforced by this node only with medium Memory
        UnsupportedVolume | Pod was rejected: volume "huge": emptyDir.medium `HugePages` is not supported by this node yet"#]].assert_eq(&shown.join("\n"));
}

/// What a container on an image does next, and what its status says, as the node learns about the image.
fn on_image(container: Value, state: Option<ImageState>, now: i64) -> String {
    let mut whole = json!({"name": "main", "image": "tool:1", "imagePullPolicy": "IfNotPresent"});
    for (key, value) in container.as_object().unwrap() {
        whole[key] = value.clone();
    }
    let images: Images = state.map(|state| ("tool:1".to_owned(), state)).into_iter().collect();
    let plan = plan_with(&pod(json!({"containers": [whole]})), &Machine::Absent, &images, None, now);
    let steps: Vec<String> = plan.steps.iter().map(|step| format!("{step:?}")).collect();
    let again = plan.look_again.map(|again| format!(", again at {}", again.as_second() - at(0).as_second()));
    let waiting = plan.status.unwrap().container_statuses.unwrap().remove(0).state.unwrap().waiting.unwrap();
    let said = [waiting.reason, waiting.message].into_iter().flatten().collect::<Vec<_>>().join(": ");
    format!("[{}]{} {said}", steps.join(", "), again.unwrap_or_default())
}

#[test]
fn a_container_waits_for_its_image() {
    let present = |user: &str| {
        Some(ImageState::Present(ImageFacts { id: "tool@sha256:0".to_owned(), user: user.to_owned() }))
    };
    let failed = |attempts| {
        let message = "no such tool".to_owned();
        Some(ImageState::Failed { reason: "ErrImagePull", message, attempts, at: at(0) })
    };
    let careful = json!({"securityContext": {"runAsNonRoot": true}});
    let shown = [
        on_image(json!({}), None, 0),
        on_image(json!({}), Some(ImageState::Fetching), 0),
        on_image(json!({}), failed(1), 1),
        on_image(json!({}), failed(1), 2),
        on_image(json!({}), failed(2), 5),
        on_image(json!({}), failed(2), 1000),
        on_image(json!({}), present(""), 0),
        on_image(careful.clone(), present(""), 0),
        on_image(careful.clone(), present("0:5"), 0),
        on_image(careful.clone(), present("web"), 0),
        on_image(careful, present("33"), 0),
    ];
    expect![[r#"
        [FetchImage { name: "tool:1", policy: IfNotPresent }] ContainerCreating
        [] ContainerCreating
        [], again at 2 ErrImagePull: no such tool
        [], again at 10 ImagePullBackOff: Back-off pulling image "tool:1": ErrImagePull: no such tool
        [], again at 20 ImagePullBackOff: Back-off pulling image "tool:1": ErrImagePull: no such tool
        [FetchImage { name: "tool:1", policy: IfNotPresent }] ContainerCreating
        [StartSandbox, StartContainer { name: "main", attempt: 0 }] ContainerCreating
        [] CreateContainerConfigError: container has runAsNonRoot and image will run as root
        [] CreateContainerConfigError: container has runAsNonRoot and image will run as root
        [] CreateContainerConfigError: container has runAsNonRoot and image has non-numeric user (web), cannot verify user is non-root
        [StartSandbox, StartContainer { name: "main", attempt: 0 }] ContainerCreating"#]].assert_eq(&shown.join("\n"));
}

#[test]
fn names_that_are_no_images_make_the_container_wait() {
    let image = |name: &str| pod(json!({"containers": [{"name": "main", "image": name}]}));
    let reasons: Vec<String> =
        ["warren.dev/host:latest", "warren.dev/nothing", "Not An Image", "host:5000/a/b@sha256:00", ""]
            .iter()
            .map(|name| match container_problem(&image(name), &image(name).spec.unwrap().containers[0]) {
                None => format!("{name}: fine"),
                Some(problem) => format!("{name}: {} | {}", problem.reason, problem.message),
            })
            .collect();
    expect![[r#"
        warren.dev/host:latest: fine
        warren.dev/nothing: ErrImagePull | there is no built-in image "warren.dev/nothing"; the only one is "warren.dev/host"
        Not An Image: InvalidImageName | failed to apply default image tag "Not An Image": couldn't parse image name "Not An Image"
        host:5000/a/b@sha256:00: InvalidImageName | failed to apply default image tag "host:5000/a/b@sha256:00": couldn't parse image name "host:5000/a/b@sha256:00"
        : InvalidImageName | failed to apply default image tag "": couldn't parse image name """#]].assert_eq(&reasons.join("\n"));
}

#[test]
fn settings_that_cannot_be_had_make_the_container_wait() {
    let cases = [
        json!({"securityContext": {"runAsNonRoot": true}}),
        json!({"securityContext": {"runAsNonRoot": true, "runAsUser": 0}}),
        json!({"securityContext": {"runAsUser": 65536}}),
        json!({"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "spec.secrets"}}}]}),
    ];
    let shown: Vec<String> = cases
        .into_iter()
        .map(|mut container| {
            container["name"] = "main".into();
            container["image"] = "warren.dev/host".into();
            let plan = plan(&pod(json!({"containers": [container]})), &Machine::Absent, None, 0);
            assert_eq!(plan.steps, []);
            let state = plan.status.unwrap().container_statuses.unwrap().remove(0).state.unwrap();
            let waiting = state.waiting.unwrap();
            format!("{} | {}", waiting.reason.unwrap(), waiting.message.unwrap())
        })
        .collect();
    expect![[r#"
        CreateContainerConfigError | container has runAsNonRoot and image will run as root
        CreateContainerConfigError | container's runAsUser breaks non-root policy
        CreateContainerConfigError | runAsUser 65536 is outside the ids that a pod has, 0 to 65535
        CreateContainerConfigError | env[X]: fieldPath `spec.secrets` is not supported"#]]
    .assert_eq(&shown.join("\n"));
}

#[test]
fn quantities_are_read_as_the_api_server_reads_them() {
    let read =
        |text: &str| text.parse::<Quantity>().map(|quantity| (quantity.thousandths(), quantity.units()));
    assert_eq!(read("500m"), Ok((500, 1)));
    assert_eq!(read("2Gi"), Ok((2 << 30) * 1000).map(|thousandths: i128| (thousandths, 2 << 30)));
    assert_eq!(read("1.5"), Ok((1500, 2)));
    assert_eq!(read("1e3"), Ok((1_000_000, 1000)));
    assert_eq!(read("100u"), Ok((1, 1)));
    assert_eq!(read("-1"), Ok((-1000, -1)));
    for bad in ["", ".", "1.2.3", "1x", "e3", "1e99", "99999999999999999999999999", "１"] {
        assert!(read(bad).is_err(), "{bad}");
    }
}

#[test]
fn qos_class_follows_requests_and_limits() {
    let class = |resources: Value| {
        let pod = pod(
            json!({"containers": [{"name": "main", "image": "warren.dev/host", "resources": resources}]}),
        );
        plan(&pod, &Machine::Absent, None, 0).status.unwrap().qos_class.unwrap()
    };
    assert_eq!(class(json!({})), "BestEffort");
    assert_eq!(class(json!({"requests": {"cpu": "1"}})), "Burstable");
    assert_eq!(class(json!({"limits": {"cpu": "1", "memory": "1Gi"}})), "Guaranteed");
    assert_eq!(
        class(json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}})),
        "Burstable"
    );
}

#[test]
fn addresses_without_network_are_in_the_discard_prefix_and_differ() {
    let one = address_without_network(UID);
    assert!(one.to_string().starts_with("100:0:0:0:") || one.to_string().starts_with("100::"), "{one}");
    assert_ne!(one, address_without_network("6f3a1d52-9c1e-4b57-8a55-0d3a1c8e7f02"));
}
