//! Tests a sandbox that waits in a pool: it costs as few writes as possible.

use expect_test::expect;
use serde_json::{Value, json};

use super::{at, check_at, overlay, pod, running, sandbox, world};

/// Builds a member of a pool, made at second 0, whose pod has the right labels.
fn member(extra: Value) -> Value {
    let mut base = json!({"metadata": {
        "creationTimestamp": "2027-01-15T08:00:00Z",
        "ownerReferences": [{"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool",
            "name": "pool", "uid": "w", "controller": true}],
    }});
    overlay(&mut base, &extra);
    sandbox(base)
}

#[test]
fn the_first_word_of_a_member_is_that_it_is_ready() {
    check_at(
        &world(member(json!({})), vec![]),
        at(0),
        expect![[r#"
            create Pod my-sandbox
            nothing to publish
            look again in 2s"#]],
    );
    check_at(
        &world(member(json!({})), vec![pod(json!({}))]),
        at(1),
        expect![[r#"
            nothing to publish
            look again in 1s"#]],
    );
    check_at(
        &world(member(json!({})), vec![pod(running())]),
        at(1),
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
fn a_member_that_takes_long_or_is_in_trouble_says_so() {
    check_at(
        &world(member(json!({})), vec![pod(json!({}))]),
        at(2),
        expect![[r#"
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            Ready=False DependenciesNotReady: Pod exists with phase: Pending
            Suspended=False NotSuspended: Sandbox is not suspended
            PodScheduled=Unknown PodSchedulingUnknown: Pod has not reported whether it is scheduled"#]],
    );
    let homeless = json!({"status": {"conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}]}});
    check_at(
        &world(member(json!({})), vec![pod(homeless)]),
        at(1),
        expect![[r#"
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            Ready=False DependenciesNotReady: Pod exists with phase: Pending
            Suspended=False NotSuspended: Sandbox is not suspended
            PodScheduled=False Unschedulable: no room"#]],
    );
    let broken = json!({"status": {"containerStatuses": [{"name": "main", "image": "", "imageID": "", "ready": false,
        "restartCount": 0, "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]}});
    check_at(
        &world(member(json!({})), vec![pod(broken)]),
        at(1),
        expect![[r#"
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            Ready=False DependenciesNotReady: Pod exists with phase: Pending
            Suspended=False NotSuspended: Sandbox is not suspended
            PodScheduled=Unknown PodSchedulingUnknown: Pod has not reported whether it is scheduled
            warren.dev/PodWaiting=True ImagePullBackOff: container main: no such image"#]],
    );
}

#[test]
fn a_member_with_an_address_says_so_at_once_because_a_claim_can_have_it() {
    let mut unready = running();
    unready["status"]["conditions"][1]["status"] = json!("False");
    check_at(
        &world(member(json!({})), vec![pod(unready)]),
        at(1),
        expect![[r#"
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            podIPs: ["10.0.0.7"]
            nodeName: "node-1"
            Ready=False DependenciesNotReady: Pod is Running but not Ready
            Suspended=False NotSuspended: Sandbox is not suspended
            PodScheduled=True PodScheduled: "#]],
    );
}

#[test]
fn a_member_that_was_ready_says_at_once_that_it_is_not() {
    let told = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "DependenciesReady",
        "message": "Pod is Ready", "lastTransitionTime": "2027-01-15T08:00:01Z"}]}});
    check_at(
        &world(member(told), vec![pod(json!({}))]),
        at(2),
        expect![[r#"
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            Ready=False DependenciesNotReady: Pod exists with phase: Pending
            Suspended=False NotSuspended: Sandbox is not suspended
            PodScheduled=Unknown PodSchedulingUnknown: Pod has not reported whether it is scheduled"#]],
    );
}

#[test]
fn a_pod_of_another_name_is_named_even_in_a_pool() {
    let mut other = pod(running());
    other["metadata"]["name"] = json!("other");
    check_at(
        &world(member(json!({})), vec![other]),
        at(1),
        expect![[r#"
            patch Sandbox my-sandbox {"metadata":{"uid":"s","annotations":{"agents.x-k8s.io/pod-name":"other"}}}
            selector: "agents.x-k8s.io/sandbox-name-hash=374de8f5"
            podIPs: ["10.0.0.7"]
            nodeName: "node-1"
            Ready=True DependenciesReady: Pod is Ready
            Suspended=False NotSuspended: Sandbox is not suspended
            PodScheduled=True PodScheduled: "#]],
    );
}
