//! Tests which pods belong to this node.

use super::*;

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
