//! Tests init containers and sidecars: their order, their ends, and the status meanwhile.

use super::*;

fn layered(policy: &str) -> Pod {
    pod(json!({
        "restartPolicy": policy,
        "initContainers": [
            {"name": "prepare", "image": "warren.dev/host"},
            {"name": "proxy", "image": "warren.dev/host", "restartPolicy": "Always"},
            {"name": "check", "image": "warren.dev/host"},
        ],
    }))
}

fn check(policy: &str, machine: &Machine, now: i64, expected: Expect) {
    expected.assert_eq(&brief(&plan_of(&layered(policy), machine, &Sources::default(), &[], &[], now)));
}

#[test]
fn each_waits_for_the_one_before_it() {
    check(
        "Always",
        &Machine::Absent,
        0,
        expect![[r#"
        do StartSandbox
        do StartContainer { name: "prepare", attempt: 0 }
        Pending containers with incomplete status: [prepare proxy check]; containers with unready status: [proxy main]
          prepare waits: PodInitializing  [] restarts=0
          proxy waits: PodInitializing  [] restarts=0
          check waits: PodInitializing  [] restarts=0
          main waits: PodInitializing  [] restarts=0
    "#]],
    );
    let mut known = vec![("prepare", running(0, 1))];
    check(
        "Always",
        &present_all(&known),
        1,
        expect![[r#"
        Pending containers with incomplete status: [prepare proxy check]; containers with unready status: [proxy main]
          prepare runs [started] restarts=0
          proxy waits: PodInitializing  [] restarts=0
          check waits: PodInitializing  [] restarts=0
          main waits: PodInitializing  [] restarts=0
    "#]],
    );
    known[0].1 = exited(0, 0, 1, 2);
    check(
        "Always",
        &present_all(&known),
        2,
        expect![[r#"
        do StartContainer { name: "proxy", attempt: 0 }
        Pending containers with incomplete status: [proxy check]; containers with unready status: [proxy main]
          prepare ended: 0 Completed [ready] restarts=0
          proxy waits: PodInitializing  [] restarts=0
          check waits: PodInitializing  [] restarts=0
          main waits: PodInitializing  [] restarts=0
    "#]],
    );
    known.push(("proxy", running(0, 3)));
    check(
        "Always",
        &present_all(&known),
        3,
        expect![[r#"
        do StartContainer { name: "check", attempt: 0 }
        Pending containers with incomplete status: [check]; containers with unready status: [main]
          prepare ended: 0 Completed [ready] restarts=0
          proxy runs [started ready] restarts=0
          check waits: PodInitializing  [] restarts=0
          main waits: PodInitializing  [] restarts=0
    "#]],
    );
    known.push(("check", exited(0, 0, 4, 5)));
    check(
        "Always",
        &present_all(&known),
        5,
        expect![[r#"
        do StartContainer { name: "main", attempt: 0 }
        Pending containers with unready status: [main]
          prepare ended: 0 Completed [ready] restarts=0
          proxy runs [started ready] restarts=0
          check ended: 0 Completed [ready] restarts=0
          main waits: PodInitializing  [] restarts=0
    "#]],
    );
    known.push(("main", running(0, 6)));
    check(
        "Always",
        &present_all(&known),
        6,
        expect![[r#"
        Running 
          prepare ended: 0 Completed [ready] restarts=0
          proxy runs [started ready] restarts=0
          check ended: 0 Completed [ready] restarts=0
          main runs [started ready] restarts=0
    "#]],
    );
}

#[test]
fn a_sidecar_before_an_init_container_lets_nothing_past_it() {
    let pod = pod(json!({"restartPolicy": "Never", "initContainers": [
        {"name": "helper", "image": "warren.dev/host", "restartPolicy": "Always"},
        {"name": "first", "image": "warren.dev/host"},
        {"name": "proxy", "image": "warren.dev/host", "restartPolicy": "Always"},
    ]}));
    let machine = present_all(&[("helper", running(0, 1)), ("first", running(0, 2))]);
    let plan = plan_of(&pod, &machine, &Sources::default(), &[], &[], 2);
    assert_eq!(plan.steps, []);
}

#[test]
fn one_that_fails_is_repeated_or_ends_the_pod() {
    let once = present_all(&[("prepare", exited(0, 3, 1, 2))]);
    check(
        "Always",
        &once,
        2,
        expect![[r#"
        do StartContainer { name: "prepare", attempt: 1 }
        Pending containers with incomplete status: [prepare proxy check]; containers with unready status: [proxy main]
          prepare ended: 3 Error [] restarts=0
          proxy waits: PodInitializing  [] restarts=0
          check waits: PodInitializing  [] restarts=0
          main waits: PodInitializing  [] restarts=0
    "#]],
    );
    check(
        "Never",
        &once,
        2,
        expect![[r#"
        Failed containers with incomplete status: [prepare proxy check]
          prepare ended: 3 Error [] restarts=0
          proxy waits: PodInitializing  [] restarts=0
          check waits: PodInitializing  [] restarts=0
          main waits: PodInitializing  [] restarts=0
    "#]],
    );
    let often = present_all(&[("prepare", exited(2, 3, 1, 2))]);
    check(
        "OnFailure",
        &often,
        3,
        expect![[r#"
            say BackOff | Back-off restarting failed container prepare in pod box_default(6f3a1d52-9c1e-4b57-8a55-0d3a1c8e7f01)
            look again at 22
            Pending containers with incomplete status: [prepare proxy check]; containers with unready status: [proxy main]
              prepare waits: CrashLoopBackOff back-off 20s restarting failed container=prepare pod=box_default(6f3a1d52-9c1e-4b57-8a55-0d3a1c8e7f01) [] restarts=2
              proxy waits: PodInitializing  [] restarts=0
              check waits: PodInitializing  [] restarts=0
              main waits: PodInitializing  [] restarts=0
        "#]],
    );
}

#[test]
fn a_sidecar_is_started_again_beside_the_others_and_stopped_after_them() {
    let known = [("prepare", exited(0, 0, 1, 2)), ("check", exited(0, 0, 2, 3))];
    let with = |proxy: ContainerReport, main: ContainerReport| {
        present_all(&[&known[..], &[("proxy", proxy), ("main", main)]].concat())
    };
    check(
        "Never",
        &with(exited(0, 1, 2, 5), running(0, 4)),
        5,
        expect![[r#"
        do StartContainer { name: "proxy", attempt: 1 }
        Running containers with unready status: [proxy]
          prepare ended: 0 Completed [ready] restarts=0
          proxy ended: 1 Error [] restarts=0
          check ended: 0 Completed [ready] restarts=0
          main runs [started ready] restarts=0
    "#]],
    );
    // The main containers have ended: the sidecar is asked to stop, and only then is the pod over.
    check(
        "Never",
        &with(running(0, 2), exited(0, 0, 4, 5)),
        5,
        expect![[r#"
        do AskToStop { names: {"proxy"}, grace: 30 }
        look again at 35
        Running containers with unready status: [main]
          prepare ended: 0 Completed [ready] restarts=0
          proxy runs [started ready] restarts=0
          check ended: 0 Completed [ready] restarts=0
          main ended: 0 Completed [] restarts=0
    "#]],
    );
    check(
        "Never",
        &with(exited(0, 143, 2, 6), exited(0, 0, 4, 5)),
        6,
        expect![[r#"
        Succeeded 
          prepare ended: 0 Completed [ready] restarts=0
          proxy ended: 143 Error [] restarts=0
          check ended: 0 Completed [ready] restarts=0
          main ended: 0 Completed [] restarts=0
    "#]],
    );
}

#[test]
fn a_new_sandbox_is_initialized_again() {
    let report = Report {
        isolation: None,
        address: None,
        containers: [("prepare".to_owned(), exited(0, 0, 1, 2)), ("main".to_owned(), running(0, 3))].into(),
    };
    let pod = pod(json!({"initContainers": [{"name": "prepare", "image": "warren.dev/host"}]}));
    let lost = Machine::Lost { report, noticed: at(9) };
    let sources = Sources::default();
    expect![[r#"
        do CleanUp
        do StartSandbox
        do StartContainer { name: "prepare", attempt: 1 }
        Running containers with unready status: [main]
          prepare ended: 0 Completed [ready] restarts=0
          main ended: 137 The container could not be located when the pod was terminated [] restarts=0
    "#]]
    .assert_eq(&brief(&plan_of(&pod, &lost, &sources, &[], &[], 9)));
    let again = present_all(&[("prepare", exited(1, 0, 10, 11))]);
    let status = plan_of(&pod, &lost, &sources, &[], &[], 9).status;
    expect![[r#"
        do StartContainer { name: "main", attempt: 1 }
        Running containers with unready status: [main]
          prepare ended: 0 Completed [ready] restarts=1
          main ended: 137 The container could not be located when the pod was terminated [] restarts=0
    "#]]
    .assert_eq(&brief(&plan_of(&published(pod, status), &again, &sources, &[], &[], 11)));
}

#[test]
fn a_deleted_pod_ends_its_sidecars_last() {
    let pod = deleted(layered("Always"), 30);
    let known = [("prepare", exited(0, 0, 1, 2)), ("proxy", running(0, 2)), ("main", running(0, 4))];
    let sources = Sources::default();
    let steps = |machine: &Machine, stopping: &[(&str, i64)], now| {
        let plan = plan_of(&pod, machine, &sources, &[], stopping, now);
        format!(
            "{:?} again at {:?}",
            plan.steps,
            plan.look_again.map(|again| again.as_second() - at(0).as_second())
        )
    };
    let both = present_all(&known);
    expect![[r#"[AskToStop { names: {"main"}, grace: 30 }] again at Some(40)"#]].assert_eq(&steps(
        &both,
        &[],
        10,
    ));
    expect!["[] again at Some(40)"].assert_eq(&steps(&both, &[("main", 10)], 11));
    let proxy = present_all(&[known[1].clone(), ("main", exited(0, 0, 4, 12))]);
    expect![[r#"[AskToStop { names: {"proxy"}, grace: 30 }] again at Some(40)"#]].assert_eq(&steps(
        &proxy,
        &[("main", 10)],
        12,
    ));
    expect![[r#"[Kill { names: {"proxy"} }] again at None"#]].assert_eq(&steps(
        &proxy,
        &[("main", 10), ("proxy", 12)],
        40,
    ));
}
