//! Tests sandboxes: each case is a world as data and the resulting plan. Row numbers are those of
//! the table "easy to get wrong".

use std::sync::Arc;

use expect_test::{Expect, expect};
use jiff::Timestamp;
use serde_json::{Value, json};
use warren_api::Sandbox;

use super::{Settings, World, conclude, decide};
use crate::merge;
use crate::step::{Action, Failure, FailureKind, Object, Stage};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

/// Builds a sandbox `my-sandbox` (hash 374de8f5, uid `s`) with `extra` merged over it.
fn sandbox(extra: Value) -> Value {
    let mut base = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": {"name": "my-sandbox", "namespace": "default", "uid": "s", "generation": 1},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "warren.dev/host"}]}}},
    });
    overlay(&mut base, &extra);
    base
}

/// Builds a converged pod with the sandbox's name and controlled by it, with `extra` merged over
/// it.
fn pod(extra: Value) -> Value {
    let mut base = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "my-sandbox", "namespace": "default", "uid": "p", "resourceVersion": "7",
            "labels": {"agents.x-k8s.io/sandbox-name-hash": "374de8f5"},
            "ownerReferences": [{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "my-sandbox", "uid": "s", "controller": true}],
        },
        "status": {"phase": "Pending"},
    });
    overlay(&mut base, &extra);
    base
}

fn running() -> Value {
    json!({
        "spec": {"nodeName": "node-1", "containers": []},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.7"}], "conditions": [
            {"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}]},
    })
}

fn annotated(extra: Value) -> Value {
    let mut base = json!({"metadata": {"annotations": {"agents.x-k8s.io/pod-name": "my-sandbox"}}});
    overlay(&mut base, &extra);
    base
}

fn overlay(base: &mut Value, extra: &Value) {
    match (base, extra) {
        (Value::Object(base), Value::Object(extra)) => {
            for (key, value) in extra {
                if value.is_null() {
                    base.remove(key);
                } else {
                    overlay(base.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (base, extra) => *base = extra.clone(),
    }
}

fn world(sandbox: Value, pods: Vec<Value>) -> World {
    World {
        sandbox: Arc::new(serde_json::from_value(sandbox).unwrap()),
        pods: pods.into_iter().map(|pod| Arc::new(serde_json::from_value(pod).unwrap())).collect(),
        service: None,
        volume_claims: Vec::new(),
    }
}

fn with_service(mut world: World, service: Value) -> World {
    world.service = Some(Arc::new(serde_json::from_value(service).unwrap()));
    world
}

/// Prints the steps and problems of a plan, then the status that follows if no step fails and the
/// world does not change.
fn check(world: &World, expect: Expect) {
    check_at(world, at(0), expect);
}

fn check_at(world: &World, now: Timestamp, expect: Expect) {
    expect.assert_eq(&render(world, &[], now));
}

fn render(world: &World, failures: &[Failure], now: Timestamp) -> String {
    let plan = decide(world, now);
    let mut lines: Vec<String> = plan.steps.iter().map(|step| step.action.to_string()).collect();
    lines.extend(plan.problems.iter().map(|problem| format!("problem: {}", problem.message)));
    let mut all = plan.problems.clone();
    all.extend_from_slice(failures);
    let conclusion = conclude(world, &all, &Settings::default(), now);
    let mut status =
        world.sandbox.status.clone().map(|status| merge::json(&status)).unwrap_or_else(|| json!({}));
    for step in &conclusion.steps {
        match &step.action {
            Action::MergeStatus { body, .. } => overlay(&mut status, &body["status"]),
            other => lines.push(other.to_string()),
        }
    }
    lines.extend(describe(&status, conclusion.steps.is_empty()));
    lines.extend(conclusion.notes.iter().map(|note| format!("event: {note}")));
    if let Some(delay) = conclusion.look_again {
        lines.push(format!("look again in {delay:?}"));
    }
    if conclusion.retry {
        lines.push("retry".to_owned());
    }
    lines.join("\n")
}

fn describe(status: &Value, unchanged: bool) -> Vec<String> {
    if unchanged {
        return vec!["nothing to publish".to_owned()];
    }
    let mut lines = Vec::new();
    for (key, value) in status.as_object().unwrap() {
        if key != "conditions" {
            lines.push(format!("{key}: {value}"));
        }
    }
    for condition in status["conditions"].as_array().into_iter().flatten() {
        let text = |key: &str| condition[key].as_str().unwrap().to_owned();
        lines.push(format!("{}={} {}: {}", text("type"), text("status"), text("reason"), text("message")));
    }
    lines
}

/// Returns the sandbox with the status that `conclude` publishes.
fn published(world: &World, now: Timestamp) -> Value {
    let plan = decide(world, now);
    let conclusion = conclude(world, &plan.problems, &Settings::default(), now);
    let mut object = merge::json(&*world.sandbox);
    for step in &conclusion.steps {
        if let Action::MergeStatus { body, .. } = &step.action {
            overlay(&mut object, body);
        }
    }
    object
}

fn transition(object: &Value, type_: &str) -> String {
    let conditions = object["status"]["conditions"].as_array().unwrap();
    let condition = conditions.iter().find(|condition| condition["type"] == type_).unwrap();
    condition["lastTransitionTime"].as_str().unwrap().to_owned()
}

#[test]
fn a_new_sandbox_gets_a_pod_and_then_the_annotation() {
    check(
        &world(sandbox(json!({})), vec![]),
        expect![[r#"
            create Pod my-sandbox
            patch Sandbox my-sandbox {"metadata":{"uid":"s","annotations":{"agents.x-k8s.io/pod-name":"my-sandbox"}}}
            Ready=False DependenciesNotReady: Pod does not exist
            Suspended=False NotSuspended: Sandbox is not suspended"#]],
    );
}

#[test]
fn the_pod_comes_up() {
    check(
        &world(sandbox(annotated(json!({}))), vec![pod(json!({}))]),
        expect![[r#"
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            Ready=False DependenciesNotReady: Pod exists with phase: Pending
            Suspended=False NotSuspended: Sandbox is not suspended
            PodScheduled=Unknown PodSchedulingUnknown: Pod has not reported whether it is scheduled"#]],
    );
    let mut not_ready = running();
    not_ready["status"]["conditions"] = json!([]);
    check(
        &world(sandbox(annotated(json!({}))), vec![pod(not_ready)]),
        expect![[r#"
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            podIPs: ["10.0.0.7"]
            nodeName: "node-1"
            Ready=False DependenciesNotReady: Pod is Running but not Ready
            Suspended=False NotSuspended: Sandbox is not suspended
            PodScheduled=Unknown PodSchedulingUnknown: Pod has not reported whether it is scheduled"#]],
    );
    let mut no_address = running();
    no_address["status"]["podIPs"] = json!([]);
    check(
        &world(sandbox(annotated(json!({}))), vec![pod(no_address)]),
        expect![[r#"
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            nodeName: "node-1"
            Ready=False DependenciesNotReady: Pod is Ready but has no podIPs yet
            Suspended=False NotSuspended: Sandbox is not suspended
            PodScheduled=True PodScheduled: "#]],
    );
    check(
        &world(sandbox(annotated(json!({}))), vec![pod(running())]),
        expect![[r#"
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            podIPs: ["10.0.0.7"]
            nodeName: "node-1"
            Ready=True DependenciesReady: Pod is Ready
            Suspended=False NotSuspended: Sandbox is not suspended
            PodScheduled=True PodScheduled: "#]],
    );
}

#[test]
fn a_converged_sandbox_costs_no_write() {
    let first = world(sandbox(annotated(json!({}))), vec![pod(running())]);
    let settled =
        World { sandbox: Arc::new(serde_json::from_value(published(&first, at(0))).unwrap()), ..first };
    check_at(&settled, at(100), expect!["nothing to publish"]);

    let can_wait = |world: &World| conclude(world, &[], &Settings::default(), at(100)).is_of_generation_only;
    assert!(!can_wait(&settled), "there is nothing to say");
    let mut edited = settled;
    Arc::make_mut(&mut edited.sandbox).metadata.generation = Some(77);
    assert!(can_wait(&edited));
    let mut moved = running();
    moved["status"]["podIPs"][0]["ip"] = json!("10.0.0.8");
    let pods = vec![Arc::new(serde_json::from_value(pod(moved)).unwrap())];
    assert!(!can_wait(&World { pods, ..edited }), "its address is news");
}

#[test]
fn row_1_suspended_moves_its_time_only_when_its_status_does() {
    let running_world = world(sandbox(annotated(json!({}))), vec![pod(running())]);
    let up = published(&running_world, at(0));
    let mut asked = up.clone();
    asked["spec"]["operatingMode"] = json!("Suspended");
    let dying = pod(json!({"metadata": {"deletionTimestamp": "2027-01-15T08:00:10Z"}}));
    let suspending = world(asked.clone(), vec![dying]);
    check_at(
        &suspending,
        at(10),
        expect![[r#"
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            Ready=False SandboxSuspended: Sandbox is suspending
            Suspended=False PodTerminating: Pod is terminating. Sandbox is suspending
            PodScheduled=Unknown PodSchedulingUnknown: Pod has not reported whether it is scheduled"#]],
    );
    let waiting = published(&suspending, at(10));
    assert_eq!(transition(&waiting, "Suspended"), transition(&up, "Suspended"));
    let gone = world(waiting, vec![]);
    check_at(
        &gone,
        at(20),
        expect![[r#"
            patch Sandbox my-sandbox {"metadata":{"uid":"s","annotations":{"agents.x-k8s.io/pod-name":null}}}
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            Ready=False SandboxSuspended: Sandbox is suspended
            Suspended=True PodTerminated: Pod has been terminated. Sandbox is suspended"#]],
    );
    assert_ne!(transition(&published(&gone, at(20)), "Suspended"), transition(&up, "Suspended"));
    // A pod that crashes in running mode does not touch it.
    let crashed = published(&world(up.clone(), vec![]), at(30));
    assert_eq!(transition(&crashed, "Suspended"), transition(&up, "Suspended"));
}

#[test]
fn suspending_deletes_only_a_pod_of_its_own() {
    let asked = sandbox(annotated(json!({"spec": {"operatingMode": "Suspended"}})));
    check(
        &world(asked.clone(), vec![pod(json!({}))]),
        expect![[r#"
            delete Pod my-sandbox
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            Ready=False SandboxSuspended: Sandbox is suspending
            Suspended=False PodTerminating: Pod is terminating. Sandbox is suspending
            PodScheduled=Unknown PodSchedulingUnknown: Pod has not reported whether it is scheduled"#]],
    );
    check(
        &world(asked, vec![pod(json!({"metadata": {"ownerReferences": null}}))]),
        expect![[r#"
            patch Sandbox my-sandbox {"metadata":{"uid":"s","annotations":{"agents.x-k8s.io/pod-name":null}}}
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            Ready=False SandboxSuspended: Sandbox is suspending
            Suspended=False PodNotOwned: Refused to delete pod because it is not owned by this sandbox"#]],
    );
}

#[test]
fn row_2_a_dying_pod_of_its_own_blocks_a_new_one() {
    let dying = pod(json!({"metadata": {"deletionTimestamp": "2027-01-15T08:00:10Z"}}));
    check(
        &world(sandbox(annotated(json!({}))), vec![dying]),
        expect![[r#"
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            Ready=False DependenciesNotReady: Pod exists with phase: Pending
            Suspended=False NotSuspended: Sandbox is not suspended
            PodScheduled=Unknown PodSchedulingUnknown: Pod has not reported whether it is scheduled"#]],
    );
}

#[test]
fn row_3_a_finished_pod_is_kept() {
    for (phase, expect) in [
        (
            "Succeeded",
            expect![[r#"
                selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
                Ready=False PodSucceeded: Pod completed successfully
                Suspended=False NotSuspended: Sandbox is not suspended
                PodScheduled=Unknown PodSchedulingUnknown: Pod has not reported whether it is scheduled
                Finished=True PodSucceeded: Pod completed successfully"#]],
        ),
        (
            "Failed",
            expect![[r#"
                selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
                Ready=False PodFailed: Pod failed
                Suspended=False NotSuspended: Sandbox is not suspended
                PodScheduled=Unknown PodSchedulingUnknown: Pod has not reported whether it is scheduled
                Finished=True PodFailed: Pod failed
                event: Warning PodFailed (Reconciling): Pod failed"#]],
        ),
    ] {
        let finished = pod(json!({"status": {"phase": phase}}));
        check(&world(sandbox(annotated(json!({}))), vec![finished]), expect);
    }
}

#[test]
fn row_4_metadata_follows_and_foreign_labels_stay() {
    let template = json!({"spec": {"podTemplate": {"metadata": {"labels": {"new": "1", "kept": "2"}}}}});
    let live = pod(json!({"metadata": {
        "labels": {"old": "1", "kept": "1", "manual": "1"},
        "annotations": {"agents.x-k8s.io/propagated-labels": "kept,old"},
    }}));
    let world = world(sandbox(annotated(template)), vec![live]);
    let plan = decide(&world, at(0));
    expect![[r#"patch Pod my-sandbox {"metadata":{"labels":{"old":null,"kept":"2","new":"1"},"annotations":{"agents.x-k8s.io/propagated-labels":"kept,new"},"uid":"p"}}"#]]
    .assert_eq(&plan.steps.iter().map(|step| step.action.to_string()).collect::<Vec<_>>().join("\n"));
}

#[test]
fn row_5_reserved_keys_never_reach_the_pod() {
    let template = json!({
        "metadata": {"labels": {"agents.x-k8s.io/claim-uid": "c", "agents.x-k8s.io/created-by": "someone"}},
        "spec": {"podTemplate": {"metadata": {
            "labels": {"agents.x-k8s.io/sandbox-name-hash": "deadbeef", "agents.x-k8s.io/claim-uid": "c", "app": "x"},
            "annotations": {"opentelemetry.io/trace-context": "{}", "extensions.agents.x-k8s.io/a": "b", "note": "y",
                "kubectl.kubernetes.io/last-applied-configuration": "{}"},
        }}},
    });
    let plan = decide(&world(sandbox(template), vec![]), at(0));
    let Action::Create(Object::Pod(pod)) = &plan.steps[0].action else { panic!("no pod: {plan:?}") };
    expect![[r#"
        {
          "annotations": {
            "agents.x-k8s.io/propagated-annotations": "note",
            "agents.x-k8s.io/propagated-labels": "app",
            "note": "y",
            "warren.dev/pod-template-fingerprint": "containers[main].image=6b226dcc,containers[main].name=0c126bfe"
          },
          "labels": {
            "agents.x-k8s.io/created-by": "unknown",
            "agents.x-k8s.io/sandbox-name-hash": "374de8f5",
            "app": "x"
          },
          "name": "my-sandbox",
          "namespace": "default",
          "ownerReferences": [
            {
              "apiVersion": "agents.x-k8s.io/v1beta1",
              "blockOwnerDeletion": true,
              "controller": true,
              "kind": "Sandbox",
              "name": "my-sandbox",
              "uid": "s"
            }
          ]
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&pod.metadata).unwrap());
}

#[test]
fn labels_of_the_pool_are_on_the_pod_only_while_it_is_pooled() {
    let owned_by = |kind: &str| {
        sandbox(annotated(json!({"metadata": {
            "labels": {"agents.x-k8s.io/warm-pool-sandbox": "59733166", "agents.x-k8s.io/sandbox-template-ref-hash": "69155462"},
            "ownerReferences": [{"apiVersion": "extensions.agents.x-k8s.io/v1alpha1", "kind": kind, "name": "x", "uid": "x", "controller": true}],
        }})))
    };
    let steps = |sandbox: Value, pod: Value| {
        let plan = decide(&world(sandbox, vec![pod]), at(0));
        plan.steps.iter().map(|step| step.action.to_string()).collect::<Vec<_>>().join("\n")
    };
    expect![[r#"patch Pod my-sandbox {"metadata":{"labels":{"agents.x-k8s.io/sandbox-template-ref-hash":"69155462","agents.x-k8s.io/warm-pool-sandbox":"59733166"},"uid":"p"}}"#]]
        .assert_eq(&steps(owned_by("SandboxWarmPool"), pod(json!({}))));
    let pooled = pod(json!({"metadata": {"labels": {
        "agents.x-k8s.io/warm-pool-sandbox": "59733166", "agents.x-k8s.io/sandbox-template-ref-hash": "69155462"}}}));
    expect![[
        r#"patch Pod my-sandbox {"metadata":{"labels":{"agents.x-k8s.io/warm-pool-sandbox":null},"uid":"p"}}"#
    ]]
    .assert_eq(&steps(owned_by("SandboxClaim"), pooled));
}

#[test]
fn row_6_a_pod_in_the_way() {
    let free =
        json!({"metadata": {"ownerReferences": null, "labels": {"agents.x-k8s.io/sandbox-name-hash": null}}});
    check(
        &world(sandbox(json!({})), vec![pod(free)]),
        expect![[r#"
            problem: pod my-sandbox exists without an owner and is not labelled for adoption
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            Ready=False ReconcilerError: Error seen: pod my-sandbox exists without an owner and is not labelled for adoption
            Suspended=False NotSuspended: Sandbox is not suspended
            event: Warning ReconcilerError (Reconciling): Error seen: pod my-sandbox exists without an owner and is not labelled for adoption
            retry"#]],
    );
    let adoptable = json!({"metadata": {"ownerReferences": null, "labels": {
        "agents.x-k8s.io/sandbox-name-hash": null, "agents.x-k8s.io/adoptable": "true"}}});
    let plan = decide(&world(sandbox(json!({})), vec![pod(adoptable)]), at(0));
    expect![[r#"
        patch Pod my-sandbox {"metadata":{"labels":{"agents.x-k8s.io/sandbox-name-hash":"374de8f5"},"ownerReferences":[{"apiVersion":"agents.x-k8s.io/v1beta1","blockOwnerDeletion":true,"controller":true,"kind":"Sandbox","name":"my-sandbox","uid":"s"}],"resourceVersion":"7"}}
        patch Sandbox my-sandbox {"metadata":{"uid":"s","annotations":{"agents.x-k8s.io/pod-name":"my-sandbox"}}}"#]]
    .assert_eq(&plan.steps.iter().map(|step| step.action.to_string()).collect::<Vec<_>>().join("\n"));
    let foreign = json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "x", "controller": true}]}});
    check(
        &world(sandbox(annotated(json!({}))), vec![pod(foreign)]),
        expect![[r#"
            patch Sandbox my-sandbox {"metadata":{"uid":"s","annotations":{"agents.x-k8s.io/pod-name":null}}}
            problem: pod my-sandbox is controlled by another object
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            Ready=False ReconcilerError: Error seen: pod my-sandbox is controlled by another object
            Suspended=False NotSuspended: Sandbox is not suspended
            event: Warning ReconcilerError (Reconciling): Error seen: pod my-sandbox is controlled by another object
            retry"#]],
    );
}

#[test]
fn ownership_beats_the_annotation() {
    let misled = sandbox(json!({"metadata": {"annotations": {"agents.x-k8s.io/pod-name": "other"}}}));
    let plan = decide(&world(misled, vec![pod(json!({}))]), at(0));
    expect![[r#"patch Sandbox my-sandbox {"metadata":{"uid":"s","annotations":{"agents.x-k8s.io/pod-name":"my-sandbox"}}}"#]]
    .assert_eq(&plan.steps.iter().map(|step| step.action.to_string()).collect::<Vec<_>>().join("\n"));
}

#[test]
fn an_annotation_that_names_no_pod_does_not_hide_an_own_one_without_its_label() {
    let misled = sandbox(json!({"metadata": {"annotations": {"agents.x-k8s.io/pod-name": "gone"}}}));
    let unlabelled = pod(json!({"metadata": {"labels": null}}));
    let plan = decide(&world(misled, vec![unlabelled]), at(0));
    assert!(plan.problems.is_empty(), "{plan:?}");
    expect![[r#"
        patch Pod my-sandbox {"metadata":{"labels":{"agents.x-k8s.io/sandbox-name-hash":"374de8f5"},"uid":"p"}}
        patch Sandbox my-sandbox {"metadata":{"uid":"s","annotations":{"agents.x-k8s.io/pod-name":"my-sandbox"}}}"#]]
    .assert_eq(&plan.steps.iter().map(|step| step.action.to_string()).collect::<Vec<_>>().join("\n"));
}

fn service(extra: Value) -> Value {
    let mut base = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "my-sandbox", "namespace": "default", "uid": "v", "resourceVersion": "9",
            "labels": {"agents.x-k8s.io/sandbox-name-hash": "374de8f5"},
            "ownerReferences": [{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "my-sandbox", "uid": "s", "controller": true}],
        },
        "spec": {"clusterIP": "None", "selector": {"agents.x-k8s.io/sandbox-name-hash": "374de8f5"}},
    });
    overlay(&mut base, &extra);
    base
}

#[test]
fn row_7_the_service_has_three_answers() {
    let with = |answer: Value| sandbox(annotated(json!({"spec": {"service": answer}})));
    let ready = || vec![pod(running())];
    check(
        &world(with(json!(true)), ready()),
        expect![[r#"
            create Service my-sandbox
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            podIPs: ["10.0.0.7"]
            nodeName: "node-1"
            Ready=False DependenciesNotReady: Pod is Ready; Service does not exist
            Suspended=False NotSuspended: Sandbox is not suspended
            PodScheduled=True PodScheduled: "#]],
    );
    check(
        &with_service(world(with(json!(true)), ready()), service(json!({"spec": {"ports": [{"port": 1}]}}))),
        expect![[r#"
            patch Service my-sandbox {"spec":{"ports":[]},"metadata":{"uid":"v"}}
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            podIPs: ["10.0.0.7"]
            nodeName: "node-1"
            service: "my-sandbox"
            serviceFQDN: "my-sandbox.default.svc.cluster.local"
            Ready=True DependenciesReady: Pod is Ready; Service Exists
            Suspended=False NotSuspended: Sandbox is not suspended
            PodScheduled=True PodScheduled: "#]],
    );
    let steps = |answer: Value, extra: Value| {
        let plan = decide(&with_service(world(with(answer), ready()), service(extra)), at(0));
        let mut lines: Vec<String> = plan.steps.iter().map(|step| step.action.to_string()).collect();
        lines.extend(plan.problems.iter().map(|problem| problem.message.clone()));
        lines.join("\n")
    };
    let drifted = json!({"spec": {"selector": {"a": "b"}, "ports": [{"port": 1}]}});
    expect![[r#"patch Service my-sandbox {"spec":{"selector":{"a":null}},"metadata":{"uid":"v"}}"#]]
        .assert_eq(&steps(json!(null), drifted));
    expect!["delete Service my-sandbox"].assert_eq(&steps(json!(false), json!({})));
    let free = json!({"metadata": {"ownerReferences": null}});
    expect![""].assert_eq(&steps(json!(false), free.clone()));
    expect![""].assert_eq(&steps(json!(null), free.clone()));
    expect![[r#"patch Service my-sandbox {"metadata":{"ownerReferences":[{"apiVersion":"agents.x-k8s.io/v1beta1","blockOwnerDeletion":true,"controller":true,"kind":"Sandbox","name":"my-sandbox","uid":"s"}],"resourceVersion":"9"}}"#]]
        .assert_eq(&steps(json!(true), free));
    let cluster_ip = json!({"metadata": {"ownerReferences": null}, "spec": {"clusterIP": "10.1.2.3"}});
    expect!["service my-sandbox has a cluster IP and cannot be adopted"]
        .assert_eq(&steps(json!(true), cluster_ip));
    let foreign = json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "x", "controller": true}]}});
    expect!["service my-sandbox is controlled by another object"]
        .assert_eq(&steps(json!(null), foreign.clone()));
    expect!["service my-sandbox is controlled by another object"]
        .assert_eq(&steps(json!(true), foreign.clone()));
    expect![""].assert_eq(&steps(json!(false), foreign));
}

#[test]
fn row_10_expiry_is_announced_before_anything_goes() {
    let spec = json!({"spec": {"shutdownTime": "2027-01-15T08:00:00Z"}});
    let mut finished = running();
    finished["status"]["phase"] = json!("Succeeded");
    let before = world(sandbox(annotated(spec)), vec![pod(finished.clone())]);
    let alive = published(&before, at(-10));
    check_at(
        &world(alive.clone(), vec![pod(finished.clone())]),
        at(0),
        expect![[r#"
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            podIPs: ["10.0.0.7"]
            nodeName: "node-1"
            Ready=False SandboxExpired: Sandbox has expired
            Suspended=False NotSuspended: Sandbox is not suspended
            Finished=True PodSucceeded: Pod completed successfully
            look again in 1ms"#]],
    );
    let announced = published(&world(alive.clone(), vec![pod(finished.clone())]), at(0));
    let second = with_service(world(announced.clone(), vec![pod(finished.clone())]), service(json!({})));
    check_at(
        &second,
        at(0),
        expect![[r#"
            delete Pod my-sandbox
            delete Service my-sandbox
            Ready=False SandboxExpired: Sandbox has expired
            Suspended=False NotSuspended: Sandbox is not suspended
            Finished=True PodSucceeded: Pod completed successfully"#]],
    );
    let failed = Failure { stage: Stage::Pod, kind: FailureKind::Refused, message: "no".to_owned() };
    expect![[r#"
        delete Pod my-sandbox
        delete Service my-sandbox
        nothing to publish
        retry"#]]
    .assert_eq(&render(&second, &[failed], at(0)));
    let mut doomed = announced.clone();
    doomed["spec"]["shutdownPolicy"] = json!("Delete");
    check_at(
        &world(doomed, vec![pod(finished)]),
        at(0),
        expect![[r#"
            delete Pod my-sandbox
            delete Sandbox my-sandbox
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            podIPs: ["10.0.0.7"]
            nodeName: "node-1"
            Ready=False SandboxExpired: Sandbox has expired
            Suspended=False NotSuspended: Sandbox is not suspended
            Finished=True PodSucceeded: Pod completed successfully"#]],
    );
    let mut revived = announced;
    revived["spec"]["shutdownTime"] = json!("2027-01-15T09:00:00Z");
    check_at(
        &world(revived, vec![]),
        at(0),
        expect![[r#"
            create Pod my-sandbox
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            Ready=False DependenciesNotReady: Pod does not exist
            Suspended=False NotSuspended: Sandbox is not suspended
            look again in 3600s"#]],
    );
}

#[test]
fn row_10_trouble_at_the_deadline_does_not_put_off_the_end() {
    let spec = json!({"spec": {"shutdownTime": "2027-01-15T08:00:00Z"}});
    let refused = |stage| Failure { stage, kind: FailureKind::Refused, message: "no".to_owned() };
    // The children were decided before the deadline and refused after it.
    expect![[r#"
        Ready=False SandboxExpired: Sandbox has expired
        look again in 1ms"#]]
    .assert_eq(&render(
        &world(sandbox(spec), vec![]),
        &[refused(Stage::Volumes), refused(Stage::Pod)],
        at(0),
    ));
}

#[test]
fn row_11_equality_counts_and_the_wake_up_has_a_floor() {
    let world = world(sandbox(json!({"spec": {"shutdownTime": "2027-01-15T08:00:00Z"}})), vec![]);
    let wake =
        |second| conclude(&world, &[], &Settings::default(), at(second)).look_again.unwrap().as_millis();
    assert_eq!((wake(-10), wake(-1), wake(0)), (10_000, 2_000, 1));
}

#[test]
fn row_12_pod_scheduled_is_mirrored() {
    let condition =
        json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"});
    let waiting = pod(json!({"status": {"conditions": [condition]}}));
    check(
        &world(sandbox(annotated(json!({}))), vec![waiting]),
        expect![[r#"
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            Ready=False DependenciesNotReady: Pod exists with phase: Pending
            Suspended=False NotSuspended: Sandbox is not suspended
            PodScheduled=False Unschedulable: 0/1 nodes"#]],
    );
}

#[test]
fn row_12_what_the_schema_refuses_of_it_is_not_mirrored() {
    let mirrored = |reason: &str, message: &str| {
        let condition =
            json!({"type": "PodScheduled", "status": "False", "reason": reason, "message": message});
        let waiting = pod(json!({"status": {"conditions": [condition]}}));
        let told = published(&world(sandbox(annotated(json!({}))), vec![waiting]), at(0));
        let conditions = told["status"]["conditions"].as_array().unwrap();
        let told = conditions.iter().find(|condition| condition["type"] == "PodScheduled").unwrap().clone();
        (told["reason"].as_str().unwrap().to_owned(), told["message"].as_str().unwrap().to_owned())
    };
    let reason = |reason| mirrored(reason, "").0;
    assert_eq!(reason("not a reason!"), "PodSchedulingUnknown");
    assert_eq!(reason("A,b:C_"), "A,b:C_");
    let message = |message: String| mirrored("Unschedulable", &message).1;
    // The limit is in characters; each of these has two bytes.
    assert_eq!(message("ä".repeat(32_768)), "ä".repeat(32_768));
    let cut = message("ä".repeat(32_769));
    assert!(cut.chars().count() <= 32_768 && cut.ends_with('…'), "{} characters", cut.chars().count());
}

#[test]
fn row_13_a_volume_in_the_way_does_not_stop_the_pod() {
    let spec = json!({"spec": {"service": true, "volumeClaimTemplates": [
        {"metadata": {"name": "data"}, "spec": {}}, {"metadata": {"name": "more"}, "spec": {}}]}});
    let mut world = world(sandbox(spec), vec![]);
    check(
        &world,
        expect![[r#"
            create PersistentVolumeClaim data-my-sandbox
            create PersistentVolumeClaim more-my-sandbox
            create Pod my-sandbox
            patch Sandbox my-sandbox {"metadata":{"uid":"s","annotations":{"agents.x-k8s.io/pod-name":"my-sandbox"}}}
            create Service my-sandbox
            Ready=False DependenciesNotReady: Pod does not exist; Service does not exist
            Suspended=False NotSuspended: Sandbox is not suspended"#]],
    );
    let foreign = json!({"metadata": {"name": "data-my-sandbox", "ownerReferences": [
        {"apiVersion": "v1", "kind": "X", "name": "x", "uid": "x", "controller": true}]}});
    world.volume_claims = vec![Arc::new(serde_json::from_value(foreign).unwrap())];
    check(
        &world,
        expect![[r#"
            create Pod my-sandbox
            patch Sandbox my-sandbox {"metadata":{"uid":"s","annotations":{"agents.x-k8s.io/pod-name":"my-sandbox"}}}
            create Service my-sandbox
            problem: persistent volume claim data-my-sandbox is controlled by another object
            Ready=False ReconcilerError: Error seen: persistent volume claim data-my-sandbox is controlled by another object
            Suspended=False NotSuspended: Sandbox is not suspended
            event: Warning ReconcilerError (Reconciling): Error seen: persistent volume claim data-my-sandbox is controlled by another object
            retry"#]],
    );
}

#[test]
fn a_claim_takes_the_place_of_a_volume_of_its_name() {
    let spec = json!({"spec": {
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}],
        "podTemplate": {"spec": {"volumes": [{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]}},
    }});
    let sandbox: Sandbox = serde_json::from_value(sandbox(spec)).unwrap();
    let pod = super::pod::new_pod(&sandbox);
    expect![[r#"[{"emptyDir":{},"name":"tmp"},{"name":"data","persistentVolumeClaim":{"claimName":"data-my-sandbox"}}]"#]]
        .assert_eq(&merge::json(&pod.spec.unwrap().volumes).to_string());
}

#[test]
fn row_14_two_pods_fail_closed_with_one_event() {
    let two = || vec![pod(json!({})), pod(json!({"metadata": {"name": "second", "uid": "q"}}))];
    let first = with_service(
        world(sandbox(annotated(json!({"spec": {"service": false}}))), two()),
        service(json!({})),
    );
    check(
        &first,
        expect![[r#"
            problem: 2 pods are controlled by this sandbox, expected at most one
            Ready=False MultiplePods: 2 pods are controlled by this sandbox, expected at most one
            Suspended=False NotSuspended: Sandbox is not suspended
            PodScheduled=Unknown PodSchedulingUnknown: 2 pods are controlled by this sandbox, expected at most one
            event: Warning MultiplePods (Reconciling): 2 pods are controlled by this sandbox, expected at most one"#]],
    );
    let told = published(&first, at(0));
    check_at(
        &world(told, two()),
        at(5),
        expect![[r#"
            problem: 2 pods are controlled by this sandbox, expected at most one
            nothing to publish"#]],
    );
    // A pod without the sandbox's label does not belong to it, whatever its owner reference says.
    let unlabelled = json!({"metadata": {"name": "second", "uid": "q", "labels": null}});
    let odd = world(sandbox(annotated(json!({}))), vec![pod(json!({})), pod(unlabelled)]);
    assert!(decide(&odd, at(0)).problems.is_empty());
}

#[test]
fn a_named_pod_that_nobody_owns_is_an_error_and_no_reason_for_another() {
    let named = sandbox(json!({"metadata": {"annotations": {"agents.x-k8s.io/pod-name": "other"}}}));
    let stray = |owners: Value| {
        pod(json!({"metadata": {"name": "other", "labels": null, "ownerReferences": owners}}))
    };
    let plan = decide(&world(named.clone(), vec![stray(json!(null))]), at(0));
    assert_eq!((plan.steps.len(), plan.problems.len()), (0, 1), "{plan:?}");
    // A pod with another owner is released.
    let owner =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true}]);
    let plan = decide(&world(named, vec![stray(owner)]), at(0));
    assert_eq!((plan.steps.len(), plan.problems.len()), (1, 1), "{plan:?}");
}

#[test]
fn a_node_name_alone_waits_for_the_next_write() {
    let mut bound = json!({"spec": {"nodeName": "node-1", "containers": []}});
    overlay(&mut bound, &json!({"status": {"conditions": [{"type": "PodScheduled", "status": "True"}]}}));
    let mut unbound = bound.clone();
    overlay(&mut unbound, &json!({"spec": null}));
    let first = published(&world(sandbox(annotated(json!({}))), vec![pod(unbound)]), at(0));
    check(&world(first, vec![pod(bound)]), expect!["nothing to publish"]);
}

#[test]
fn a_sandbox_being_deleted_is_left_alone() {
    let dying = sandbox(json!({"metadata": {"deletionTimestamp": "2027-01-15T08:00:10Z"}}));
    check(&world(dying, vec![]), expect!["nothing to publish"]);
}

mod ours;
mod pooled;

/// Returns the sandbox of a world with the status that a reconcile publishes.
fn after(world: &World, failures: &[Failure]) -> Value {
    let conclusion = conclude(world, failures, &Settings::default(), at(0));
    let mut sandbox = merge::json(&*world.sandbox);
    for step in conclusion.steps {
        let Action::MergeStatus { body, .. } = step.action else { panic!("{step:?}") };
        overlay(&mut sandbox, &json!({"status": body["status"]}));
    }
    sandbox
}

#[test]
fn what_the_server_refuses_as_invalid_is_not_asked_for_again_until_the_spec_changes() {
    let new = world(sandbox(json!({})), vec![]);
    let invalid = |kind| Failure { stage: Stage::Pod, kind, message: "Pod is invalid: its name".to_owned() };
    let conclusion = conclude(&new, &[invalid(FailureKind::Invalid)], &Settings::default(), at(0));
    assert!(!conclusion.retry);
    expect![[r#"
        [
            "Warning InvalidConfiguration (Reconciling): Refused by the API server as invalid: Pod is invalid: its name",
        ]
    "#]]
    .assert_debug_eq(&conclusion.notes.iter().map(ToString::to_string).collect::<Vec<_>>());
    assert!(conclude(&new, &[invalid(FailureKind::Refused)], &Settings::default(), at(0)).retry);

    let told = after(&new, &[invalid(FailureKind::Invalid)]);
    let again = world(told.clone(), vec![]);
    let plan = decide(&again, at(1));
    assert_eq!((plan.steps.len(), plan.problems.len()), (0, 1));
    let conclusion = conclude(&again, &plan.problems, &Settings::default(), at(1));
    assert!(conclusion.steps.is_empty() && conclusion.notes.is_empty() && !conclusion.retry);

    let mut edited = told.clone();
    edited["metadata"]["generation"] = json!(2);
    let plan = decide(&world(edited, vec![]), at(1));
    assert!(
        matches!(plan.steps[0].action, Action::Create(Object::Pod(_))),
        "another spec is tried: {plan:?}"
    );
    let mut settled = told;
    overlay(&mut settled, &annotated(json!({})));
    let settled = world(settled, vec![pod(running())]);
    assert!(decide(&settled, at(1)).problems.is_empty(), "what is there need not be made");
}

#[test]
fn the_reason_of_a_pod_that_its_node_refused_is_carried_up() {
    let failed = |status: Value| {
        let mut phase = json!({"phase": "Failed"});
        overlay(&mut phase, &status);
        let world = world(sandbox(annotated(json!({}))), vec![pod(json!({"status": phase}))]);
        let conclusion = conclude(&world, &[], &Settings::default(), at(0));
        let published = published(&world, at(0));
        let ready = published["status"]["conditions"][0].clone();
        assert_eq!(ready["reason"], "PodFailed");
        let notes: Vec<String> = conclusion.notes.iter().map(ToString::to_string).collect();
        let message = ready["message"].as_str().unwrap().to_owned();
        assert_eq!(notes, [format!("Warning PodFailed (Reconciling): {message}")]);
        message
    };
    let refused = json!({"reason": "Forbidden", "message": "privileged is not allowed"});
    assert_eq!(failed(refused), "Pod failed: Forbidden: privileged is not allowed");
    assert_eq!(failed(json!({"message": "a\nb\u{1b}[2J"})), "Pod failed: a b [2J");
    assert_eq!(failed(json!({})), "Pod failed");
    let long = failed(json!({"reason": "Evicted", "message": "x".repeat(100_000)}));
    assert!(long.len() < 600 && long.ends_with('…'), "{}", long.len());
}

#[test]
fn every_condition_of_an_expired_sandbox_is_about_its_present_generation() {
    let condition = |type_: &str, reason: &str| {
        json!({"type": type_, "status": "True", "reason": reason, "message": "", "observedGeneration": 1,
            "lastTransitionTime": "2027-01-15T08:00:00Z"})
    };
    let expired = sandbox(json!({
        "metadata": {"generation": 4},
        "spec": {"shutdownTime": "2027-01-15T07:00:00Z"},
        "status": {"conditions": [condition("Suspended", "PodTerminated"), condition("Finished", "PodFailed")]},
    }));
    let published = published(&world(expired, vec![]), at(0));
    let conditions = published["status"]["conditions"].as_array().unwrap();
    assert_eq!(conditions.len(), 3);
    assert!(conditions.iter().all(|condition| condition["observedGeneration"] == 4), "{conditions:?}");
}
