//! Tests probes and hooks: when a container counts as started and ready, and when it is stopped.

use super::*;

fn check(container: Value, health: Health, stopping: &[(&str, i64)], now: i64, expected: Expect) {
    let mut whole = json!({"name": "main", "image": "warren.dev/host"});
    for (key, value) in container.as_object().unwrap() {
        whole[key] = value.clone();
    }
    let pod = pod(json!({"containers": [whole], "terminationGracePeriodSeconds": 20}));
    let machine = present_all(&[("main", running(0, 1))]);
    let plan = plan_of(&pod, &machine, &Sources::default(), &[("main", health)], stopping, now);
    expected.assert_eq(&brief(&plan));
}

#[test]
fn a_container_is_ready_when_its_probes_say_so() {
    let ready = json!({"readinessProbe": {"exec": {"command": ["true"]}}});
    check(
        ready.clone(),
        Health::default(),
        &[],
        2,
        expect![[r#"
        Running containers with unready status: [main]
          main runs [started] restarts=0
    "#]],
    );
    check(
        ready.clone(),
        Health { readiness: Some(true), ..Health::default() },
        &[],
        2,
        expect![[r#"
        Running 
          main runs [started ready] restarts=0
    "#]],
    );
    check(
        ready.clone(),
        Health { readiness: Some(false), ..Health::default() },
        &[],
        2,
        expect![[r#"
        Running containers with unready status: [main]
          main runs [started] restarts=0
    "#]],
    );
    // Results of an earlier run are ignored.
    check(
        ready,
        Health { attempt: 7, readiness: Some(true), ..Health::default() },
        &[],
        2,
        expect![[r#"
        Running containers with unready status: [main]
          main runs [started] restarts=0
    "#]],
    );
    let startup = json!({"startupProbe": {"exec": {"command": ["true"]}}});
    check(
        startup.clone(),
        Health::default(),
        &[],
        2,
        expect![[r#"
        Running containers with unready status: [main]
          main runs [] restarts=0
    "#]],
    );
    check(
        startup,
        Health { startup: Some(true), ..Health::default() },
        &[],
        2,
        expect![[r#"
        Running 
          main runs [started ready] restarts=0
    "#]],
    );
}

#[test]
fn a_daemon_that_has_just_come_believes_what_was_published_of_the_same_run() {
    let container =
        json!({"name": "main", "image": "warren.dev/host", "readinessProbe": {"tcpSocket": {"port": 1}}});
    let pod = pod(json!({"containers": [container]}));
    let machine = present_all(&[("main", running(0, 1))]);
    let ready = Health { readiness: Some(true), ..Health::default() };
    let status = plan_of(&pod, &machine, &Sources::default(), &[("main", ready)], &[], 2).status;
    let pod = published(pod, status);
    expect![[r#"
        Running 
          main runs [started ready] restarts=0
    "#]]
    .assert_eq(&brief(&plan_of(&pod, &machine, &Sources::default(), &[], &[], 3)));
    let restarted = present_all(&[("main", running(1, 4))]);
    expect![[r#"
        Running containers with unready status: [main]
          main runs [started] restarts=1
    "#]]
    .assert_eq(&brief(&plan_of(&pod, &restarted, &Sources::default(), &[], &[], 4)));
}

#[test]
fn a_container_that_fails_its_probe_is_asked_to_stop_and_then_killed() {
    let live = json!({"livenessProbe": {"exec": {"command": ["true"]}}});
    let dead = Health { liveness: Some(false), ..Health::default() };
    check(
        live.clone(),
        dead.clone(),
        &[],
        5,
        expect![[r#"
        do AskToStop { names: {"main"}, grace: 20 }
        say Killing | Container main failed liveness probe, will be restarted
        look again at 25
        Running 
          main runs [started ready] restarts=0
    "#]],
    );
    check(
        live.clone(),
        dead.clone(),
        &[("main", 5)],
        6,
        expect![[r#"
        say Killing | Container main failed liveness probe, will be restarted
        look again at 25
        Running 
          main runs [started ready] restarts=0
    "#]],
    );
    check(
        live,
        dead,
        &[("main", 5)],
        25,
        expect![[r#"
        do Kill { names: {"main"} }
        say Killing | Container main failed liveness probe, will be restarted
        Running 
          main runs [started ready] restarts=0
    "#]],
    );
    let startup =
        json!({"startupProbe": {"exec": {"command": ["true"]}, "terminationGracePeriodSeconds": 3}});
    check(
        startup,
        Health { startup: Some(false), ..Health::default() },
        &[],
        5,
        expect![[r#"
        do AskToStop { names: {"main"}, grace: 3 }
        say Killing | Container main failed startup probe, will be restarted
        look again at 8
        Running containers with unready status: [main]
          main runs [] restarts=0
    "#]],
    );
}

#[test]
fn nobody_is_told_of_a_container_before_its_hook_is_done() {
    let greeting = json!({"lifecycle": {"postStart": {"exec": {"command": ["true"]}}}});
    check(
        greeting.clone(),
        Health::default(),
        &[],
        2,
        expect![[r#"
        Pending containers with unready status: [main]
          main waits: ContainerCreating  [] restarts=0
    "#]],
    );
    check(
        greeting.clone(),
        Health { post_start: Some(Ok(())), ..Health::default() },
        &[],
        2,
        expect![[r#"
        Running 
          main runs [started ready] restarts=0
    "#]],
    );
    let failed = Health { post_start: Some(Err("exit code 1".to_owned())), ..Health::default() };
    check(
        greeting,
        failed,
        &[],
        2,
        expect![[r#"
        do AskToStop { names: {"main"}, grace: 20 }
        say FailedPostStartHook | PostStartHook failed for container main: exit code 1
        look again at 22
        Pending containers with unready status: [main]
          main waits: ContainerCreating  [] restarts=0
    "#]],
    );
}
