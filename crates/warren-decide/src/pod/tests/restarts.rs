//! Tests containers that end, fail and restart.

use super::*;

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
            say BackOff | Back-off restarting failed container main in pod box_default(6f3a1d52-9c1e-4b57-8a55-0d3a1c8e7f01)
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
            say BackOff | Back-off restarting failed container main in pod box_default(6f3a1d52-9c1e-4b57-8a55-0d3a1c8e7f01)
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
            do FreeDisk
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
        sources: &Sources::default(),
        health: &BTreeMap::new(),
        stopping: &BTreeMap::new(),
        eviction: None,
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
            message: None,
        });
    }
    let status = plan(&forgotten, &again, None, 101).status.unwrap();
    let last = status.container_statuses.unwrap().remove(0).last_state.unwrap().terminated.unwrap();
    assert_eq!(last.exit_code, 3);
}
