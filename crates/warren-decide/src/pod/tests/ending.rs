//! Tests pods that are deleted or overdue.

use super::*;

fn ask() -> Step {
    Step::AskToStop { names: ["main".to_owned()].into(), grace: 30 }
}

fn kill() -> Step {
    Step::Kill { names: ["main".to_owned()].into() }
}

#[test]
fn deletion_asks_then_kills_then_removes() {
    let pod = deleted(pod(json!({})), 30);
    let up = present(running(0, 1));
    let asked = plan(&pod, &up, None, 100);
    assert_eq!((asked.steps, asked.look_again), (vec![ask()], Some(at(130))));
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
    assert_eq!(plan(&pod, &up, Some(100), 130).steps, [kill()]);
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
    assert_eq!(plan(&deleted(pod, 0), &up, None, 100).steps, [kill()]);
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
    // Once the API server has recorded the end (grace 0), nothing is left to do, and the final
    // status stays.
    let last = plan(&deleted(pod, 0), &Machine::Absent, None, 102);
    assert_eq!((last.steps, last.status.unwrap().phase.as_deref()), (vec![], Some("Succeeded")));
}

#[test]
fn a_pod_past_its_active_deadline_is_stopped_and_failed() {
    let mut pod = pod(json!({"activeDeadlineSeconds": 60, "terminationGracePeriodSeconds": 5}));
    pod.status = plan(&pod, &present(running(0, 1)), None, 0).status;
    assert_eq!(plan(&pod, &present(running(0, 1)), None, 10).look_again, Some(at(60)));
    let ask = Step::AskToStop { names: ["main".to_owned()].into(), grace: 5 };
    assert_eq!(plan(&pod, &present(running(0, 1)), None, 60).steps, [ask]);
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
fn an_evicted_pod_is_ended_its_disk_freed_and_only_then_is_it_told() {
    let pod = pod(json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 600}));
    let evicted = |machine: &Machine, asked: Option<i64>, disk_is_free: bool, now: i64| {
        let stopping = asked.map(|second| ("main".to_owned(), at(second))).into_iter().collect();
        let world = World {
            pod: &pod,
            node: &node(),
            machine,
            images: &Images::new(),
            sources: &Sources::default(),
            health: &BTreeMap::new(),
            stopping: &stopping,
            eviction: Some(Eviction { message: "It wrote too much. ", disk_is_free }),
        };
        decide(&world, at(now))
    };
    let up = present(running(0, 1));
    let first = evicted(&up, None, false, 10);
    assert_eq!(first.status.as_ref().unwrap().phase.as_deref(), Some("Running"));
    let mut shown = doings(&first);
    shown += &doings(&evicted(&up, Some(10), false, 11));
    expect![[r#"
        do AskToStop { names: {"main"}, grace: 1 }
        say Evicted | It wrote too much. 
        look again at 11
        do Kill { names: {"main"} }
        say Evicted | It wrote too much. 
    "#]]
    .assert_eq(&shown);
    let ended = present(exited(0, 137, 1, 11));
    assert_eq!(evicted(&ended, Some(10), false, 11).steps, [Step::FreeDisk]);
    check(
        &evicted(&ended, Some(10), true, 11),
        expect![[r#"
            say Evicted | It wrote too much. 
            Failed | Evicted | It wrote too much.  | ip 100::ab31:5c78:67a8:2425
              PodReadyToStartContainers=True
              Initialized=True
              Ready=False | PodFailed
              ContainersReady=False | PodFailed
              PodScheduled=True
              warren.dev/isolation=True | Namespaces | user, pid, mount
              main ready=false restarts=0 {"terminated":{"containerID":"warren://6f3a1d52-9c1e-4b57-8a55-0d3a1c8e7f01-main-0","exitCode":137,"finishedAt":"2026-09-21T14:13:31Z","reason":"Error","startedAt":"2026-09-21T14:13:21Z"}}
        "#]],
    );
}
