//! Tasks in sandboxes of a pool.

use serde_json::{Value, json};

use super::*;

const SECOND: &str = "t-4c4557e2-2";

/// The template of pool `p`, which can run tasks unless `extra` makes it unfit.
fn template(extra: Value) -> Value {
    let field = json!({"fieldPath": "metadata.annotations['warren.dev/task-command']"});
    let mut template = json!({"metadata": {"name": "agent", "uid": "x"}, "spec": {"podTemplate": {"spec": {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "i", "terminationMessagePath": "/end"}],
        "volumes": [{"name": "task", "downwardAPI": {"items": [{"path": "command", "fieldRef": field}]}}]}}}});
    overlay(&mut template, &extra);
    template
}

fn pooled(extra: Value) -> Value {
    let mut pooled = json!({"spec": {"runner": {"warmPoolName": "p"}}});
    overlay(&mut pooled, &extra);
    pooled
}

/// The claim of the first attempt; it has sandbox `s` unless `extra` says otherwise.
fn claim(extra: Value) -> Value {
    let mut claim = json!({
        "metadata": {"name": NAME, "namespace": "default", "uid": "cu", "creationTimestamp": "2027-01-15T08:00:00Z",
            "ownerReferences": [{"apiVersion": "warren.dev/v1alpha1", "kind": "AgentTask", "name": "t", "uid": "tu",
                "controller": true}]},
        "spec": {"warmPoolRef": {"name": "p"}},
        "status": {"sandbox": {"name": "s"}},
    });
    overlay(&mut claim, &extra);
    claim
}

fn claimed_sandbox() -> Value {
    let owner = json!([{"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "name": NAME,
        "uid": "cu", "controller": true}]);
    let spec = template(json!({}))["spec"].clone();
    sandbox("s", json!({"metadata": {"ownerReferences": owner}, "spec": spec}))
}

/// The pod of the claimed sandbox, which has waited for an hour.
fn waiting(extra: Value) -> Value {
    let mut waiting = pod(
        "s",
        json!({"spec": {"containers": [], "restartPolicy": "Never"}, "status": {"startTime": "2027-01-15T07:00:00Z"}}),
    );
    waiting["metadata"]["annotations"] = json!({});
    overlay(&mut waiting, &extra);
    waiting
}

/// The same with the command.
fn given(extra: Value) -> Value {
    let mut given = waiting(
        json!({"metadata": {"annotations": {"warren.dev/task": "t", "warren.dev/task-command": "{}"}}}),
    );
    overlay(&mut given, &extra);
    given
}

fn given_and_ended(code: i32) -> Value {
    let phase = if code == 0 { "Succeeded" } else { "Failed" };
    given(json!({"status": {"phase": phase, "containerStatuses": [container("main", code, "Error")]}}))
}

/// A task whose first claim is made.
fn claiming(extra: Value) -> Value {
    let mut claiming =
        pooled(json!({"status": {"attempts": 1, "claimName": NAME, "startTime": "2027-01-15T08:00:00Z"}}));
    overlay(&mut claiming, &extra);
    task(claiming)
}

/// A task whose command is for the pod of sandbox `s`.
fn assigned(extra: Value) -> Value {
    let mut assigned = json!({"status": {"sandboxName": "s", "podUID": "pod-of-s"}});
    overlay(&mut assigned, &extra);
    claiming(assigned)
}

fn seen(task: Value, claims: &[Value], sandboxes: &[Value], pods: &[Value]) -> World {
    let mut world = world(task, sandboxes, pods);
    world.claims =
        claims.iter().map(|claim| Arc::new(serde_json::from_value(claim.clone()).unwrap())).collect();
    let pool = json!({"metadata": {"name": "p"}, "spec": {"sandboxTemplateRef": {"name": "agent"}}});
    world.pool = Some(Arc::new(serde_json::from_value(pool).unwrap()));
    world.template = Some(Arc::new(serde_json::from_value(template(json!({}))).unwrap()));
    world
}

/// With the claim, its sandbox and this pod.
fn with(task: Value, pod: Value) -> World {
    seen(task, &[claim(json!({}))], &[claimed_sandbox()], &[pod])
}

#[test]
fn an_attempt_begins_with_a_claim_that_waits_as_long_as_the_task() {
    let world = seen(task(pooled(json!({}))), &[], &[], &[]);
    let plan = decide(&world, at(0));
    assert_eq!(acts(&plan), [format!("create SandboxClaim {NAME}")]);
    let Action::Create(Object::SandboxClaim(made)) = &plan.steps[0].action else { panic!("{plan:?}") };
    assert_eq!(made.spec.warm_pool_ref.name, "p");
    assert_eq!(made.metadata.owner_references.as_ref().unwrap()[0].uid, "tu");
    assert_eq!(made.metadata.annotations.as_ref().unwrap()["warren.dev/deadline"], "0");
    let status = published(&world, &plan);
    assert_eq!((status.attempts, status.claim_name.as_deref(), status.sandbox_name), (1, Some(NAME), None));
    let again = seen(task(pooled(json!({}))), &[claim_without_sandbox()], &[], &[]);
    assert_eq!(acts(&decide(&again, at(5))), Vec::<String>::new(), "it was made by an earlier pass");
    assert_eq!(published(&again, &decide(&again, at(5))).claim_name.as_deref(), Some(NAME));
    let foreign = claim(json!({"metadata": {"ownerReferences": []}}));
    assert_eq!(verdict(&seen(task(pooled(json!({}))), &[foreign], &[], &[]), 0), "Failed/Invalid");
}

fn claim_without_sandbox() -> Value {
    let mut claim = claim(json!({}));
    claim["status"] = json!({"conditions": [{"type": "Ready", "status": "False", "reason": "WarmPoolNotFound",
        "message": "no room", "lastTransitionTime": "2027-01-15T08:00:00Z"}]});
    claim
}

#[test]
fn the_pod_is_in_the_status_before_it_is_given_the_command() {
    let waits = seen(claiming(json!({})), &[claim_without_sandbox()], &[], &[]);
    let status = published(&waits, &decide(&waits, at(1)));
    assert_eq!(status.message.as_deref(), Some("Waiting for a sandbox of the pool: no room"));

    let claimed = with(claiming(json!({})), waiting(json!({})));
    let plan = decide(&claimed, at(1));
    assert_eq!(acts(&plan), Vec::<String>::new(), "the pod is stored first");
    let status = published(&claimed, &plan);
    assert_eq!((status.sandbox_name.as_deref(), status.pod_uid.as_deref()), (Some("s"), Some("pod-of-s")));

    let extra = json!({"spec": {"task": {"description": "costs $5"}, "runner": {"command": ["work", "$(A) $$B $(PATH)"],
        "env": [{"name": "A", "value": "a"}]}}});
    let plan = decide(&with(assigned(extra), waiting(json!({}))), at(1));
    let [sandbox, pod] = plan.steps.as_slice() else { panic!("{plan:?}") };
    let Action::Merge { kind: Kind::Sandbox, body, .. } = &sandbox.action else { panic!("{plan:?}") };
    assert_eq!(body["metadata"]["annotations"]["warren.dev/pod-replacement"], "Never");
    let Action::Merge { kind: Kind::Pod, body, .. } = &pod.action else { panic!("{plan:?}") };
    assert_eq!(body["metadata"]["uid"], "pod-of-s");
    assert_eq!(body["spec"]["activeDeadlineSeconds"], 3661, "an hour of waiting, the minute, and no less");
    let command = body["metadata"]["annotations"]["warren.dev/task-command"].as_str().unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(command).unwrap(),
        json!({"command": ["work", "a $B $(PATH)"], "env": {"A": "a", "WARREN_TASK_ATTEMPT": "1",
            "WARREN_TASK_DESCRIPTION": "costs $5", "WARREN_TASK_ID": "t", "WARREN_TASK_RESULT": "/end"}})
    );
}

#[test]
fn another_pod_never_gets_the_command_of_an_attempt() {
    let other = waiting(json!({"metadata": {"uid": "another"}}));
    let world = with(assigned(json!({})), other);
    assert_eq!(verdict(&world, 10), "ask Pod s");
    let world = world.asked(Kind::Pod, "s");
    assert_eq!((verdict(&world, 10).as_str(), acts(&decide(&world, at(10)))), ("Failed/Unknown", Vec::new()));
    // The next attempt may claim another sandbox.
    let retried =
        with(assigned(json!({"spec": {"retries": 1}})), waiting(json!({"metadata": {"uid": "another"}})));
    let retried = retried.asked(Kind::Pod, "s");
    let plan = decide(&retried, at(10));
    assert_eq!(acts(&plan), [format!("create SandboxClaim {SECOND}")]);
    let status = published(&retried, &plan);
    assert_eq!((status.attempts, status.pod_uid, status.sandbox_name), (2, None, None));
}

#[test]
fn the_verdict_is_that_of_the_pod_which_has_the_command() {
    assert_eq!(verdict(&with(assigned(json!({})), given(json!({}))), 10), "Running/CommandRunning");
    assert_eq!(verdict(&with(assigned(json!({})), given_and_ended(0)), 10), "Succeeded/CommandSucceeded/0");
    assert_eq!(verdict(&with(assigned(json!({})), given_and_ended(7)), 10), "Failed/Application/7");
    let alone = seen(assigned(json!({})), &[], &[], &[given_and_ended(7)]);
    assert_eq!(verdict(&alone, 10), "Failed/Application/7", "the claim and the sandbox are gone");
    // A pod that ended while it waited did not run the command, whatever its exit code is.
    let mut idle = given_and_ended(0);
    idle["metadata"]["annotations"] = json!({});
    assert_eq!(verdict(&with(assigned(json!({})), idle.clone()), 10), "Failed/Unknown");
    assert_eq!(verdict(&with(claiming(json!({})), idle), 10), "Failed/Unknown");
    let dying = waiting(json!({"metadata": {"deletionTimestamp": "2027-01-15T08:00:05Z"}}));
    assert_eq!(verdict(&with(assigned(json!({})), dying), 10), "Failed/Unknown");
}

#[test]
fn a_pool_that_cannot_run_tasks_says_why() {
    let begin = |extra: Value| {
        let mut world = seen(task(pooled(json!({}))), &[], &[], &[]);
        world.template = Some(Arc::new(serde_json::from_value(template(extra)).unwrap()));
        published(&world, &decide(&world, at(0))).message.unwrap_or_default()
    };
    let of_pod = |pod: Value| json!({"spec": {"podTemplate": {"spec": pod}}});
    let restarts = begin(of_pod(json!({"restartPolicy": "Always"})));
    assert!(restarts.contains("agent of pool p needs `restartPolicy: Never`"), "{restarts}");
    assert!(begin(of_pod(json!({"volumes": []}))).contains("`warren.dev/task-command`"));
    assert!(begin(of_pod(json!({"containers": []}))).contains("no container"));
    let restarted = waiting(json!({"spec": {"restartPolicy": "Always"}}));
    assert_eq!(
        verdict(&with(claiming(json!({})), restarted), 1),
        "Failed/Invalid",
        "it is of an older template"
    );

    let mut missing = seen(task(pooled(json!({}))), &[], &[], &[]);
    missing.pool = None;
    assert_eq!(verdict(&missing, 9), "ask SandboxWarmPool p");
    let missing = missing.asked(Kind::SandboxWarmPool, "p");
    assert_eq!((verdict(&missing, 2).as_str(), verdict(&missing, 5).as_str()), ("nothing", "Failed/Invalid"));
    let mut missing = seen(task(pooled(json!({}))), &[], &[], &[]);
    missing.template = None;
    assert_eq!(verdict(&missing, 9), "ask SandboxTemplate agent");

    let long = json!({"spec": {"runner": {"command": ["x".repeat(200_000)]}}});
    let world = seen(task(pooled(long)), &[], &[], &[]);
    let text = published(&world, &decide(&world, at(0))).message.unwrap_or_default();
    assert!(text.contains("takes at most 131072"), "{text}");
}

#[test]
fn a_claim_that_is_lost_ends_the_attempt_before_the_command() {
    let gone = seen(claiming(json!({"spec": {"retries": 1}})), &[], &[], &[]);
    assert_eq!(verdict(&gone, 1), format!("ask SandboxClaim {NAME}"));
    let plan = decide(&gone.asked(Kind::SandboxClaim, NAME), at(1));
    assert_eq!(acts(&plan), [format!("create SandboxClaim {SECOND}")]);
    let says = |reason: &str| {
        let mut claim = claim_without_sandbox();
        claim["status"]["conditions"][0]["reason"] = json!(reason);
        verdict(&seen(claiming(json!({})), &[claim], &[], &[]), 1)
    };
    assert_eq!(says("ClaimExpired"), "Failed/Unknown");
    assert_eq!(says("InvalidConfiguration"), "Failed/Invalid");
}

#[test]
fn a_command_is_not_given_after_the_deadline_or_a_cancellation() {
    for task in [claiming(json!({})), assigned(json!({}))] {
        let late = with(task, waiting(json!({})));
        assert_eq!(
            (verdict(&late, 60).as_str(), acts(&decide(&late, at(60)))),
            ("Failed/Timeout", Vec::new())
        );
    }
    let cancelled = with(assigned(json!({"spec": {"cancel": true}})), waiting(json!({})));
    assert_eq!(
        (verdict(&cancelled, 1).as_str(), acts(&decide(&cancelled, at(1)))),
        ("Failed/Cancelled", Vec::new())
    );
}

#[test]
fn a_claim_stays_for_the_log_of_its_command_and_goes_without_one() {
    let ended = |type_: &str| {
        let condition = json!({"type": type_, "status": "True", "reason": "r", "message": "m",
            "lastTransitionTime": "2027-01-15T08:00:10Z"});
        assigned(json!({"status": {"completionTime": "2027-01-15T08:00:10Z", "conditions": [condition]}}))
    };
    let left = |pod: Value| acts(&decide(&with(ended("Failed"), pod), at(11)));
    assert_eq!(left(given_and_ended(1)), Vec::<String>::new());
    assert_eq!(left(waiting(json!({}))), [format!("delete SandboxClaim {NAME}")]);
    let stopped = left(given(json!({})));
    assert!(
        stopped[0].contains("patch Pod s") && stopped[0].contains("activeDeadlineSeconds"),
        "{stopped:?}"
    );
    let without = seen(ended("Failed"), &[claim(json!({}))], &[], &[]);
    assert_eq!(acts(&decide(&without, at(11))), [format!("delete SandboxClaim {NAME}")]);

    // Of an earlier attempt only what is asked for stays.
    let earlier = |keep: bool, pod: Value| {
        let second = json!({"spec": {"retries": 1, "keepOnFailure": keep}, "status": {"attempts": 2, "claimName": SECOND}});
        let mut world = with(claiming(second), pod);
        let mut present = claim_without_sandbox();
        overlay(&mut present, &json!({"metadata": {"name": SECOND, "uid": "cu2"}}));
        world.claims.push(Arc::new(serde_json::from_value(present).unwrap()));
        acts(&decide(&world, at(20)))
    };
    assert_eq!(earlier(false, given_and_ended(1)), [format!("delete SandboxClaim {NAME}")]);
    assert_eq!(earlier(true, given_and_ended(1)), Vec::<String>::new());
    assert_eq!(earlier(true, given(json!({}))), [format!("delete SandboxClaim {NAME}")]);
}
