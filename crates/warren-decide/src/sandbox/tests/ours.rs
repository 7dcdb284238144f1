//! Tests features beyond agent-sandbox: kept volumes, edits that a live pod does not have,
//! containers that cannot start.

use std::sync::Arc;
use std::time::Duration;

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::{World, annotated, at, check, overlay, pod, published, render, running, sandbox, world};
use crate::sandbox::{Settings, conclude, decide};
use crate::step::{Action, Failure, FailureKind, Object, Stage};

fn with_volumes(extra: Value) -> Value {
    let mut base =
        annotated(json!({"spec": {"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}]}}));
    overlay(&mut base, &extra);
    sandbox(base)
}

fn retention(value: &str) -> Value {
    json!({"metadata": {"annotations": {"warren.dev/pvc-retention": value}}})
}

fn volume(extra: Value) -> Value {
    let mut base = json!({"metadata": {"name": "data-my-sandbox", "uid": "v", "resourceVersion": "9",
        "labels": {"agents.x-k8s.io/sandbox-name-hash": "374de8f5"},
        "ownerReferences": [{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "my-sandbox", "uid": "s", "controller": true}]}});
    overlay(&mut base, &extra);
    base
}

fn seen(sandbox: Value, volume: Option<Value>) -> World {
    let mut world = world(sandbox, vec![pod(running())]);
    world.volume_claims =
        volume.into_iter().map(|volume| Arc::new(serde_json::from_value(volume).unwrap())).collect();
    world
}

fn steps(world: &World, expect: Expect) {
    let plan = decide(world, at(0));
    let mut lines: Vec<String> = plan.steps.iter().map(|step| step.action.to_string()).collect();
    lines.extend(plan.problems.iter().map(|problem| format!("problem: {}", problem.message)));
    expect.assert_eq(&lines.join("\n"));
}

#[test]
fn a_pod_that_is_made_once_is_not_made_again() {
    let once = |extra: Value| {
        let mut base = json!({"metadata": {"annotations": {"warren.dev/pod-replacement": "Never"}}});
        overlay(&mut base, &extra);
        base
    };
    let created = |sandbox: Value| {
        let plan = decide(&world(sandbox, vec![]), at(0));
        plan.steps.iter().filter(|step| matches!(step.action, Action::Create(Object::Pod(_)))).count()
    };
    assert_eq!(created(sandbox(once(json!({})))), 1, "it was not made yet");
    assert_eq!(created(sandbox(annotated(once(json!({}))))), 0, "it was made, and is gone");
    assert_eq!(created(sandbox(annotated(json!({})))), 1, "any other sandbox gets another");
    // A sandbox that was suspended remembers it, too.
    let suspended = annotated(once(json!({"spec": {"operatingMode": "Suspended"}})));
    steps(&world(sandbox(suspended), vec![]), expect![""]);
}

#[test]
fn retained_volumes_are_nobodys_and_are_found_again() {
    let owners = |extra: Value| {
        let plan = decide(&seen(with_volumes(extra), None), at(0));
        let Action::Create(Object::PersistentVolumeClaim(claim)) = &plan.steps[0].action else {
            panic!("{plan:?}")
        };
        claim.metadata.owner_references.as_ref().map_or(0, Vec::len)
    };
    assert_eq!(owners(json!({})), 1);
    assert_eq!(owners(retention("Delete")), 1);
    assert_eq!(owners(retention("Retain")), 0);

    let free = || volume(json!({"metadata": {"ownerReferences": null}}));
    steps(&seen(with_volumes(retention("Retain")), Some(free())), expect![""]);
    steps(
        &seen(with_volumes(retention("Retain")), Some(volume(json!({})))),
        expect![[
            r#"patch PersistentVolumeClaim data-my-sandbox {"metadata":{"ownerReferences":[],"resourceVersion":"9"}}"#
        ]],
    );
    steps(
        &seen(with_volumes(json!({})), Some(free())),
        expect![[
            r#"patch PersistentVolumeClaim data-my-sandbox {"metadata":{"ownerReferences":[{"apiVersion":"agents.x-k8s.io/v1beta1","blockOwnerDeletion":true,"controller":true,"kind":"Sandbox","name":"my-sandbox","uid":"s"}],"resourceVersion":"9"}}"#
        ]],
    );
    // A claim of another owner stays its own, and an unknown value changes nothing.
    let foreign = volume(
        json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "x", "controller": true}]}}),
    );
    steps(
        &seen(with_volumes(retention("Retain")), Some(foreign)),
        expect!["problem: persistent volume claim data-my-sandbox is controlled by another object"],
    );
    steps(
        &seen(with_volumes(retention("retain")), None),
        expect![[r#"problem: annotation warren.dev/pvc-retention: "retain" is neither Retain nor Delete"#]],
    );
    let without = sandbox(annotated(retention("retain")));
    steps(&seen(without, None), expect![""]);
}

/// Builds an expired sandbox with volumes and this policy.
fn expired(policy: &str, retention: Value) -> Value {
    let mut object = with_volumes(retention);
    let end = json!({"spec": {"shutdownTime": "2027-01-15T08:00:00Z", "shutdownPolicy": policy}});
    overlay(&mut object, &end);
    published(&world(object, vec![]), at(0))
}

#[test]
fn retained_volumes_are_let_go_of_at_the_end_too() {
    check(
        &seen(expired("Retain", retention("Retain")), Some(volume(json!({})))),
        expect![[r#"
            patch PersistentVolumeClaim data-my-sandbox {"metadata":{"ownerReferences":[],"resourceVersion":"9"}}
            delete Pod my-sandbox
            nothing to publish"#]],
    );
    let deleted = || seen(expired("Delete", retention("Retain")), Some(volume(json!({}))));
    let lines = |world: &World, failures: &[Failure]| {
        let text = render(world, failures, at(0));
        text.lines().filter(|line| !line.starts_with("Ready=")).collect::<Vec<_>>().join("\n")
    };
    expect![[r#"
        patch PersistentVolumeClaim data-my-sandbox {"metadata":{"ownerReferences":[],"resourceVersion":"9"}}
        delete Pod my-sandbox
        delete Sandbox my-sandbox"#]]
    .assert_eq(&lines(&deleted(), &[]));
    // Before they are released, deleting the sandbox would delete them.
    let failed = |stage| Failure { stage, kind: FailureKind::Unknown, message: "no answer".to_owned() };
    expect![[r#"
        patch PersistentVolumeClaim data-my-sandbox {"metadata":{"ownerReferences":[],"resourceVersion":"9"}}
        delete Pod my-sandbox
        Ready=False SandboxExpired: Sandbox has expired; no answer
        retry"#]]
    .assert_eq(&render(&deleted(), &[failed(Stage::Volumes)], at(0)));
    assert!(lines(&deleted(), &[failed(Stage::Pod)]).contains("delete Sandbox"));
}

#[test]
fn at_the_end_no_volume_is_made_and_an_unknown_word_deletes_none() {
    for policy in ["Retain", "Delete"] {
        steps(&seen(expired(policy, retention("Retain")), None), expect!["delete Pod my-sandbox"]);
        steps(&seen(expired(policy, json!({})), Some(volume(json!({})))), expect!["delete Pod my-sandbox"]);
        check(
            &seen(expired(policy, retention("retain")), Some(volume(json!({})))),
            expect![[r#"
                delete Pod my-sandbox
                problem: annotation warren.dev/pvc-retention: "retain" is neither Retain nor Delete
                Ready=False SandboxExpired: Sandbox has expired; annotation warren.dev/pvc-retention: "retain" is neither Retain nor Delete
                retry"#]],
        );
    }
    // A sandbox without volumes has no data to lose.
    let text = render(&seen(expired("Delete", retention("retain")), None), &[], at(0));
    assert!(text.contains("delete Sandbox"), "{text}");
}

/// Builds the pod that a sandbox makes, running.
fn made_from(sandbox: Value) -> Value {
    let plan = decide(&world(sandbox, vec![]), at(0));
    let made = plan.steps.iter().find_map(|step| match &step.action {
        Action::Create(Object::Pod(pod)) => Some(pod.metadata.annotations.clone()),
        _ => None,
    });
    let mut pod = pod(running());
    overlay(&mut pod, &json!({"metadata": {"annotations": made.unwrap()}}));
    pod
}

#[test]
fn row_4_an_edit_that_the_live_pod_does_not_have_is_said() {
    let edited = |image: &str| {
        sandbox(annotated(
            json!({"spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": image}]}}}}),
        ))
    };
    let live = || made_from(edited("a"));
    let text = render(&world(edited("a"), vec![live()]), &[], at(0));
    assert!(text.contains("Ready=True") && !text.contains("warren.dev"), "{text}");
    check(
        &world(edited("b"), vec![live()]),
        expect![[r#"
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            podIPs: ["10.0.0.7"]
            nodeName: "node-1"
            Ready=True DependenciesReady: Pod is Ready
            Suspended=False NotSuspended: Sandbox is not suspended
            PodScheduled=True PodScheduled: 
            warren.dev/PodOutdated=True PodTemplateChanged: Pod was made from an earlier podTemplate, which differs in containers[main].image; suspend and resume the sandbox to apply it"#]],
    );
    // A value in the template never reaches the pod.
    let forged = json!({"spec": {"podTemplate": {"metadata": {"annotations": {"warren.dev/pod-template-fingerprint": "x"}}}}});
    let made = made_from(sandbox(annotated(forged)));
    assert_ne!(made["metadata"]["annotations"]["warren.dev/pod-template-fingerprint"], "x");
    // After the edit is reverted, the condition goes.
    let told = published(&world(edited("b"), vec![live()]), at(0));
    let mut back = told;
    overlay(&mut back, &edited("a"));
    back["metadata"]["generation"] = json!(3);
    let text = render(&world(back, vec![live()]), &[], at(1));
    assert!(!text.contains("PodOutdated") && text.contains("Ready=True"), "{text}");
}

#[test]
fn a_container_that_cannot_start_is_said() {
    let waiting = |reason: &str, message: &str| {
        let mut pod = pod(json!({}));
        overlay(
            &mut pod,
            &json!({"status": {"containerStatuses": [{"name": "main", "ready": false, "restartCount": 0, "image": "", "imageID": "",
            "state": {"waiting": {"reason": reason, "message": message}}}]}}),
        );
        let text = render(&world(sandbox(annotated(json!({}))), vec![pod]), &[], at(0));
        text.lines().find(|line| line.contains("PodWaiting")).map(str::to_owned).unwrap_or_default()
    };
    expect!["warren.dev/PodWaiting=True ImagePullBackOff: container main: Back-off pulling image \"x\""]
        .assert_eq(&waiting("ImagePullBackOff", "Back-off pulling image \"x\""));
    assert_eq!(waiting("ContainerCreating", ""), "", "every container says so");
    assert_eq!(waiting("PodInitializing", ""), "");
    expect!["warren.dev/PodWaiting=True ContainerWaiting: container main: m"]
        .assert_eq(&waiting("not a reason!", "m"));
    assert!(waiting("ErrImagePull", &"x".repeat(10_000)).len() < 700);
}

#[test]
fn a_time_to_live_ends_the_sandbox_so_long_after_its_creation() {
    let living = |ttl: &str, shutdown: Value| {
        let extra = json!({
            "metadata": {"creationTimestamp": "2027-01-15T08:00:00Z", "annotations": {"warren.dev/ttl": ttl}},
            "spec": {"shutdownTime": shutdown},
        });
        world(sandbox(annotated(extra)), vec![pod(running())])
    };
    let told = |world: &World, second: i64| {
        let plan = conclude(world, &[], &Settings::default(), at(second));
        format!("{plan:?}")
    };
    let hour = living("1h", Value::Null);
    assert!(!told(&hour, 3599).contains("SandboxExpired"));
    assert!(told(&hour, 3600).contains("SandboxExpired"));
    let plan = conclude(&hour, &[], &Settings::default(), at(0));
    assert_eq!(plan.look_again, Some(Duration::from_secs(3600)));
    // The earlier of the two counts.
    assert!(told(&living("1h", json!("2027-01-15T08:00:10Z")), 10).contains("SandboxExpired"));
    assert!(told(&living("10s", json!("2027-01-15T09:00:00Z")), 10).contains("SandboxExpired"));
    // A value that is not a duration is reported and ignored.
    let odd = living("soon", Value::Null);
    let plan = conclude(&odd, &[], &Settings::default(), at(100_000));
    assert!(!format!("{plan:?}").contains("SandboxExpired"));
    let text = "warren.dev/ttl: \"soon\" is not a duration such as 90s or 1h, and is ignored";
    assert!(plan.notes.iter().any(|note| note.text == text), "{plan:?}");
    let odd = world(published(&odd, at(0)), vec![pod(running())]);
    let conditions = &odd.sandbox.status.as_ref().unwrap().conditions;
    assert!(conditions.iter().any(|condition| condition.message == text), "{conditions:?}");
    assert_eq!(conclude(&odd, &[], &Settings::default(), at(1)).notes, []);
}
