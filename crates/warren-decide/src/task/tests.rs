//! Each case is a world as data and what is decided about it.

mod warm;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use warren_api::conditions::{self, ConditionType};
use warren_api::{AgentTask, AgentTaskStatus};

use super::{Plan, World, decide};
use crate::merge;
use crate::step::{Action, Kind, Object};

const NAME: &str = "t-4c4557e2-1";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn overlay(base: &mut Value, extra: &Value) {
    match (base, extra) {
        (Value::Object(base), Value::Object(extra)) => {
            for (key, value) in extra {
                overlay(base.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (base, extra) => *base = extra.clone(),
    }
}

/// Task `t` (uid `tu`, version 5) with a timeout of a minute, created at second 0.
fn task(extra: Value) -> Value {
    let mut task = json!({
        "apiVersion": "warren.dev/v1alpha1", "kind": "AgentTask",
        "metadata": {"name": "t", "namespace": "default", "uid": "tu", "resourceVersion": "5", "generation": 1,
            "creationTimestamp": "2027-01-15T08:00:00Z"},
        "spec": {"runner": {"command": ["work"], "timeout": "60s"}},
    });
    overlay(&mut task, &extra);
    task
}

/// The same in its first attempt, which began at second 0.
fn begun(extra: Value) -> Value {
    let mut begun =
        json!({"status": {"attempts": 1, "sandboxName": NAME, "startTime": "2027-01-15T08:00:00Z"}});
    overlay(&mut begun, &extra);
    task(begun)
}

/// The same after its end.
fn over(type_: &str, reason: &str, extra: Value) -> Value {
    let mut over = json!({"status": {"completionTime": "2027-01-15T08:00:10Z", "conditions": [
        {"type": type_, "status": "True", "reason": reason, "message": "m", "lastTransitionTime": "2027-01-15T08:00:10Z"}]}});
    overlay(&mut over, &extra);
    begun(over)
}

fn sandbox(name: &str, extra: Value) -> Value {
    let mut sandbox = json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-of-{name}"),
            "creationTimestamp": "2027-01-15T08:00:00Z",
            "annotations": {"warren.dev/task": "t", "agents.x-k8s.io/pod-name": name},
            "ownerReferences": [{"apiVersion": "warren.dev/v1alpha1", "kind": "AgentTask", "name": "t", "uid": "tu",
                "controller": true}]},
        "spec": {"podTemplate": {"spec": {"containers": [], "terminationGracePeriodSeconds": 5}}},
    });
    overlay(&mut sandbox, &extra);
    sandbox
}

fn pod(name: &str, extra: Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("pod-of-{name}"),
            "annotations": {"warren.dev/task": "t"},
            "ownerReferences": [{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": name,
                "uid": format!("uid-of-{name}"), "controller": true}]},
        "status": {"phase": "Running"},
    });
    overlay(&mut pod, &extra);
    pod
}

/// The pod after its container ended.
fn ended(code: i32, reason: &str) -> Value {
    let phase = if code == 0 { "Succeeded" } else { "Failed" };
    pod(NAME, json!({"status": {"phase": phase, "containerStatuses": [container("runner", code, reason)]}}))
}

fn container(name: &str, code: i32, reason: &str) -> Value {
    json!({"name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": code, "reason": reason}}})
}

fn world(task: Value, sandboxes: &[Value], pods: &[Value]) -> World {
    let read = |values: &[Value]| values.to_vec();
    World {
        task: Arc::new(serde_json::from_value(task).unwrap()),
        sandboxes: read(sandboxes)
            .into_iter()
            .map(|value| Arc::new(serde_json::from_value(value).unwrap()))
            .collect(),
        pods: read(pods).into_iter().map(|value| Arc::new(serde_json::from_value(value).unwrap())).collect(),
        claims: Vec::new(),
        pool: None,
        template: None,
        confirmed: BTreeSet::new(),
        refused: None,
    }
}

impl World {
    fn asked(mut self, kind: Kind, name: &str) -> Self {
        self.confirmed.insert((kind, name.to_owned()));
        self
    }
}

/// The status that a plan publishes.
fn published(world: &World, plan: &Plan) -> AgentTaskStatus {
    let mut status = merge::json(&world.task.status.clone().unwrap_or_default());
    for step in &plan.steps {
        if let Action::MergeStatus { kind: Kind::AgentTask, body, .. } = &step.action {
            assert_eq!(body["metadata"]["resourceVersion"], "5", "it is guarded");
            overlay(&mut status, &body["status"]);
        }
    }
    serde_json::from_value(status).unwrap()
}

/// The end that is published, as `Type/Reason/exit code`, or how the task is.
fn verdict(world: &World, second: i64) -> String {
    let plan = decide(world, at(second));
    if let [(kind, name)] = plan.ask.as_slice() {
        return format!("ask {kind} {name}");
    }
    let status = published(world, &plan);
    for type_ in [ConditionType::Succeeded, ConditionType::Failed, ConditionType::Running] {
        if let Some(condition) = conditions::find(&status.conditions, type_) {
            let code = status.exit_code.map(|code| format!("/{code}")).unwrap_or_default();
            return format!("{type_}/{}{code}", condition.reason);
        }
    }
    "nothing".to_owned()
}

fn acts(plan: &Plan) -> Vec<String> {
    plan.steps
        .iter()
        .filter(|step| !matches!(step.action, Action::MergeStatus { .. }))
        .map(|step| step.action.to_string())
        .collect()
}

/// The end of the first attempt, whose pod is this one.
fn judge(pod: Value) -> String {
    verdict(&world(begun(json!({})), &[sandbox(NAME, json!({}))], &[pod]), 10)
}

#[test]
fn a_new_task_gets_a_sandbox_whose_pod_runs_the_command_once() {
    let description = json!({"spec": {"task": {"description": "costs $5", "repository": {"url": "u"}}}});
    let world = world(task(description), &[], &[]);
    let plan = decide(&world, at(0));
    assert_eq!(acts(&plan), [format!("create Sandbox {NAME}")]);
    let Action::Create(Object::Sandbox(sandbox)) = &plan.steps[0].action else { panic!("{plan:?}") };
    assert_eq!(sandbox.metadata.annotations.as_ref().unwrap()["warren.dev/pod-replacement"], "Never");
    assert_eq!(sandbox.metadata.owner_references.as_ref().unwrap()[0].uid, "tu");
    let pod = &sandbox.spec.blueprint.pod_template.spec;
    assert_eq!(pod.restart_policy.as_deref(), Some("Never"));
    assert_eq!(pod.active_deadline_seconds, Some(61), "never before the task's own deadline");
    assert_eq!(pod.automount_service_account_token, Some(false));
    let runner = &pod.containers[0];
    assert_eq!(runner.image.as_deref(), Some("warren.dev/host"));
    assert_eq!(runner.command, Some(vec!["work".to_owned()]));
    let env: Vec<String> = runner
        .env
        .as_ref()
        .unwrap()
        .iter()
        .map(|variable| format!("{}={}", variable.name, variable.value.as_deref().unwrap()))
        .collect();
    assert_eq!(
        env,
        [
            "WARREN_TASK_ID=t",
            "WARREN_TASK_ATTEMPT=1",
            "WARREN_TASK_RESULT=/dev/termination-log",
            "WARREN_TASK_DESCRIPTION=costs $$5",
            "WARREN_TASK_REPOSITORY_URL=u"
        ]
    );
    let status = published(&world, &plan);
    assert_eq!((status.attempts, status.sandbox_name.as_deref()), (1, Some(NAME)));
    assert_eq!(verdict(&world, 0), "Running/Starting");
}

#[test]
fn a_template_gives_everything_but_the_command_and_the_restarts() {
    let template = json!({"metadata": {"name": "agent", "uid": "x"}, "spec": {"podTemplate": {"spec": {
        "restartPolicy": "Always", "activeDeadlineSeconds": 20, "containers": [
        {"name": "helper", "image": "h"},
        {"name": "runner", "image": "r", "args": ["serve"], "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}]}}}});
    let runner =
        json!({"spec": {"runner": {"sandboxTemplateName": "agent", "env": [{"name": "A", "value": "3"}]}}});
    let mut world = world(task(runner), &[], &[]);
    world.template = Some(Arc::new(serde_json::from_value(template).unwrap()));
    let plan = decide(&world, at(0));
    let Action::Create(Object::Sandbox(sandbox)) = &plan.steps[0].action else { panic!("{plan:?}") };
    let hash = &sandbox.metadata.labels.as_ref().unwrap()["agents.x-k8s.io/sandbox-template-ref-hash"];
    assert_eq!(
        *hash,
        warren_api::NameHash::of("agent").to_string(),
        "the template's network policy selects by it"
    );
    let pod = &sandbox.spec.blueprint.pod_template.spec;
    assert_eq!((pod.restart_policy.as_deref(), pod.active_deadline_seconds), (Some("Never"), Some(20)));
    assert_eq!(pod.containers[0].command, None);
    let runner = &pod.containers[1];
    assert_eq!((runner.command.as_deref(), &runner.args), (Some(&["work".to_owned()][..]), &None));
    assert_eq!(runner.env.as_ref().unwrap()[0].value.as_deref(), Some("3"));
}

#[test]
fn a_controller_that_died_between_the_sandbox_and_the_status_makes_no_second_one() {
    let world = world(task(json!({})), &[sandbox(NAME, json!({}))], &[]);
    let plan = decide(&world, at(30));
    assert_eq!(acts(&plan), Vec::<String>::new());
    let status = published(&world, &plan);
    assert_eq!(status.attempts, 1);
    assert_eq!(status.start_time.unwrap().0, at(0), "the deadline counts from when the sandbox was made");
}

#[test]
fn a_sandbox_of_somebody_else_in_the_place_is_left_alone() {
    let foreign = sandbox(NAME, json!({"metadata": {"ownerReferences": []}}));
    let world = world(task(json!({})), &[foreign], &[]);
    assert_eq!(verdict(&world, 0), "Failed/Invalid");
    assert_eq!(acts(&decide(&world, at(0))), Vec::<String>::new());
}

#[test]
fn the_verdict_is_what_the_pod_says() {
    assert_eq!(judge(pod(NAME, json!({}))), "Running/CommandRunning");
    assert_eq!(judge(ended(0, "Completed")), "Succeeded/CommandSucceeded/0");
    assert_eq!(judge(ended(7, "Error")), "Failed/Application/7");
    assert_eq!(judge(ended(137, "OOMKilled")), "Failed/OOM/137");
    assert_eq!(judge(ended(137, "Error")), "Failed/Application/137", "any SIGKILL is 137");
    assert_eq!(judge(ended(128, "StartError")), "Failed/Invalid");
    assert_eq!(judge(ended(137, "ContainerStatusUnknown")), "Failed/NodeLost");
}

#[test]
fn the_result_is_what_the_command_left_before_it_ended() {
    let left = |code: i32, reason: &str, message: &str| {
        let mut pod = ended(code, reason);
        pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = json!(message);
        let world = world(begun(json!({})), &[sandbox(NAME, json!({}))], &[pod]);
        published(&world, &decide(&world, at(10))).result
    };
    assert_eq!(left(0, "Completed", "{\"a\": 1}\n").as_deref(), Some("{\"a\": 1}\n"));
    assert_eq!(left(7, "Error", "why").as_deref(), Some("why"));
    assert_eq!(left(0, "Completed", ""), None);
    assert_eq!(left(128, "StartError", "no such program"), None, "the node wrote it");
    assert_eq!(left(0, "Completed", &"ä".repeat(5000)).unwrap().len(), 4095, "a node may not keep the limit");
    let mut init = container("prepare", 3, "Error");
    init["state"]["terminated"]["message"] = json!("of another container");
    let failed = pod(NAME, json!({"status": {"phase": "Failed", "initContainerStatuses": [init]}}));
    let world = world(begun(json!({})), &[sandbox(NAME, json!({}))], &[failed]);
    assert_eq!(published(&world, &decide(&world, at(10))).result, None);
}

#[test]
fn a_template_may_choose_the_file_of_the_result() {
    let template = json!({"metadata": {"name": "agent", "uid": "x"}, "spec": {"podTemplate": {"spec": {"containers": [
        {"name": "main", "image": "r", "terminationMessagePath": "/tmp/$end"}]}}}});
    let mut world = world(task(json!({"spec": {"runner": {"sandboxTemplateName": "agent"}}})), &[], &[]);
    world.template = Some(Arc::new(serde_json::from_value(template).unwrap()));
    let plan = decide(&world, at(0));
    let Action::Create(Object::Sandbox(sandbox)) = &plan.steps[0].action else { panic!("{plan:?}") };
    let container = &sandbox.spec.blueprint.pod_template.spec.containers[0];
    assert_eq!(container.termination_message_path.as_deref(), Some("/tmp/$end"));
    let variables = container.env.as_ref().unwrap();
    let file = variables.iter().find(|variable| variable.name == "WARREN_TASK_RESULT").unwrap();
    assert_eq!(file.value.as_deref(), Some("/tmp/$$end"));
}

#[test]
fn what_the_node_ended_goes_before_what_the_container_says() {
    let failed = |status: Value| {
        let mut pod = ended(143, "Error");
        overlay(&mut pod["status"], &status);
        judge(pod)
    };
    assert_eq!(failed(json!({"reason": "DeadlineExceeded"})), "Failed/Timeout");
    assert_eq!(failed(json!({"reason": "Evicted", "message": "disk"})), "Failed/Evicted");
    assert_eq!(failed(json!({"reason": "NodeLost"})), "Failed/NodeLost");
    let disrupted = |reason: &str| {
        failed(json!({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]}))
    };
    assert_eq!(disrupted("EvictionByEvictionAPI"), "Failed/Evicted");
    assert_eq!(disrupted("DeletionByTaintManager"), "Failed/NodeLost");
    let refused =
        pod(NAME, json!({"status": {"phase": "Failed", "reason": "UnsupportedVolume", "message": "x"}}));
    assert_eq!(judge(refused), "Failed/Invalid");
    let init =
        json!({"status": {"phase": "Failed", "initContainerStatuses": [container("prepare", 3, "Error")]}});
    assert_eq!(judge(pod(NAME, init)), "Failed/Application/3");
}

#[test]
fn the_command_is_over_when_its_container_is_whatever_else_runs_on() {
    let statuses = json!({"status": {"phase": "Running", "containerStatuses": [
        {"name": "helper", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}},
        container("runner", 0, "Completed")]}});
    assert_eq!(judge(pod(NAME, statuses.clone())), "Succeeded/CommandSucceeded/0");
    let over = world(
        over("Succeeded", "CommandSucceeded", json!({})),
        &[sandbox(NAME, json!({}))],
        &[pod(NAME, statuses)],
    );
    let stop = format!(
        r#"patch Pod {NAME} {{"metadata":{{"uid":"pod-of-{NAME}"}},"spec":{{"activeDeadlineSeconds":1}}}}"#
    );
    assert_eq!(acts(&decide(&over, at(11))), [stop], "and nothing runs on");
}

#[test]
fn a_sandbox_or_pod_that_is_gone_is_asked_for_before_it_is_mourned() {
    let gone = world(begun(json!({})), &[], &[]);
    assert_eq!(verdict(&gone, 10), format!("ask Sandbox {NAME}"));
    assert_eq!(verdict(&gone.asked(Kind::Sandbox, NAME), 10), "Failed/Unknown");
    let without_pod = world(begun(json!({})), &[sandbox(NAME, json!({}))], &[]);
    assert_eq!(verdict(&without_pod, 10), format!("ask Pod {NAME}"));
    assert_eq!(verdict(&without_pod.asked(Kind::Pod, NAME), 10), "Failed/Unknown");
    let mut unmade = sandbox(NAME, json!({}));
    unmade["metadata"]["annotations"].as_object_mut().unwrap().remove("agents.x-k8s.io/pod-name");
    assert_eq!(
        verdict(&world(begun(json!({})), &[unmade], &[]), 10),
        "Running/Starting",
        "its pod was not made yet"
    );
    let deleted = |code, reason| {
        let mut pod = ended(code, reason);
        pod["metadata"]["deletionTimestamp"] = json!("2027-01-15T08:00:05Z");
        judge(pod)
    };
    assert_eq!(
        deleted(143, "Error"),
        "Failed/Unknown",
        "a pod that is deleted under its command has no exit code of its own"
    );
    assert_eq!(deleted(0, "Completed"), "Succeeded/CommandSucceeded/0");
}

#[test]
fn a_task_that_the_node_does_not_end_is_ended_without_it() {
    let stuck = world(
        begun(json!({})),
        &[sandbox(NAME, json!({}))],
        &[pod(NAME, json!({"status": {"phase": "Pending"}}))],
    );
    // A minute, five seconds of grace, fifteen for the node.
    assert_eq!(verdict(&stuck, 79), "Running/Starting");
    assert_eq!(decide(&stuck, at(70)).look_again, Some(Duration::from_secs(10)));
    assert_eq!(verdict(&stuck, 80), "Failed/Timeout");
    let done = world(begun(json!({})), &[sandbox(NAME, json!({}))], &[ended(0, "Completed")]);
    assert_eq!(verdict(&done, 9_999), "Succeeded/CommandSucceeded/0", "it was done before anybody looked");
}

#[test]
fn a_cancelled_task_ends_and_then_its_command_does() {
    let cancel = || json!({"spec": {"cancel": true}});
    let running = world(begun(cancel()), &[sandbox(NAME, json!({}))], &[pod(NAME, json!({}))]);
    assert_eq!(verdict(&running, 10), "Failed/Cancelled");
    assert_eq!(acts(&decide(&running, at(10))), Vec::<String>::new(), "the reason is stored first");
    assert_eq!(verdict(&world(task(cancel()), &[], &[]), 0), "Failed/Cancelled");
    let quicker = world(begun(cancel()), &[sandbox(NAME, json!({}))], &[ended(3, "Error")]);
    assert_eq!(verdict(&quicker, 10), "Failed/Application/3", "the command was quicker");
    let cancelled = |pods: &[Value]| {
        let world = world(over("Failed", "Cancelled", cancel()), &[sandbox(NAME, json!({}))], pods);
        acts(&decide(&world, at(10)))
    };
    assert!(cancelled(&[pod(NAME, json!({}))])[0].contains("activeDeadlineSeconds"), "its log stays");
    assert_eq!(
        cancelled(&[pod(NAME, json!({"spec": {"containers": [], "activeDeadlineSeconds": 1}}))]),
        Vec::<String>::new()
    );
    assert_eq!(
        cancelled(&[pod(NAME, json!({"status": {"phase": "Pending"}}))]),
        [format!("delete Sandbox {NAME}")]
    );
    assert_eq!(cancelled(&[ended(1, "Error")]), Vec::<String>::new(), "the log can be read");
}

#[test]
fn what_cannot_run_says_so() {
    let timeout =
        |text: &str| verdict(&world(task(json!({"spec": {"runner": {"timeout": text}}})), &[], &[]), 0);
    for nonsense in ["0s", "8761h", "", "99999999999999h"] {
        assert_eq!(timeout(nonsense), "Failed/Invalid", "{nonsense}");
    }
    let named = || world(task(json!({"spec": {"runner": {"sandboxTemplateName": "agent"}}})), &[], &[]);
    assert_eq!(verdict(&named(), 9), "ask SandboxTemplate agent");
    let missing = named().asked(Kind::SandboxTemplate, "agent");
    assert_eq!(verdict(&missing, 2), "nothing", "it may come in the same breath");
    assert_eq!(decide(&missing, at(2)).look_again, Some(Duration::from_secs(3)));
    assert_eq!(verdict(&missing, 5), "Failed/Invalid");
    let mut refused = world(task(json!({})), &[], &[]);
    refused.refused = Some("spec.containers[0].image: x".to_owned());
    assert_eq!(verdict(&refused, 0), "Failed/Invalid");
    let invalid = json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "InvalidConfiguration",
        "message": "m", "lastTransitionTime": "2027-01-15T08:00:00Z"}]}});
    assert_eq!(verdict(&world(begun(json!({})), &[sandbox(NAME, invalid)], &[]), 1), "Failed/Invalid");
}

#[test]
fn another_attempt_is_made_only_if_it_is_allowed_and_may_end_differently() {
    let second = "t-4c4557e2-2";
    let after = |retries: i32, pod: Value, second_of: i64| {
        let world = world(begun(json!({"spec": {"retries": retries}})), &[sandbox(NAME, json!({}))], &[pod]);
        (verdict(&world, second_of), acts(&decide(&world, at(second_of))))
    };
    let nothing = Vec::<String>::new();
    assert_eq!(after(0, ended(7, "Error"), 10), ("Failed/Application/7".to_owned(), nothing.clone()));
    assert_eq!(
        after(1, ended(7, "Error"), 10),
        ("Running/Retrying".to_owned(), vec![format!("create Sandbox {second}")])
    );
    assert_eq!(after(1, ended(137, "OOMKilled"), 10), ("Failed/OOM/137".to_owned(), nothing.clone()));
    assert_eq!(after(1, ended(128, "StartError"), 10), ("Failed/Invalid".to_owned(), nothing.clone()));
    assert_eq!(
        after(1, ended(7, "Error"), 60),
        ("Failed/Application/7".to_owned(), nothing),
        "there is no time left"
    );
    let world =
        world(begun(json!({"spec": {"retries": 1}})), &[sandbox(NAME, json!({}))], &[ended(7, "Error")]);
    let status = published(&world, &decide(&world, at(10)));
    assert_eq!((status.attempts, status.sandbox_name.as_deref()), (2, Some(second)));
    assert_eq!(status.message.as_deref(), Some("Attempt 1 failed: The command ended with exit code 7"));
}

#[test]
fn two_attempts_never_run_at_the_same_time() {
    // The sandbox was deleted, and its pod is still on its way.
    let task = begun(json!({"spec": {"retries": 3}}));
    let dying = world(task.clone(), &[], &[pod(NAME, json!({}))]).asked(Kind::Sandbox, NAME);
    assert_eq!(
        (verdict(&dying, 10), acts(&decide(&dying, at(10)))),
        ("Running/Retrying".to_owned(), Vec::new())
    );
    let gone = world(task, &[], &[]).asked(Kind::Sandbox, NAME);
    assert_eq!(verdict(&gone, 10), format!("ask Pod {NAME}"));
    assert_eq!(acts(&decide(&gone.asked(Kind::Pod, NAME), at(10))), ["create Sandbox t-4c4557e2-2"]);
}

#[test]
fn sandboxes_of_earlier_attempts_go_unless_they_are_kept() {
    let second = "t-4c4557e2-2";
    let left = |keep: bool, first: Value| {
        let task = begun(json!({"spec": {"retries": 1, "keepOnFailure": keep},
            "status": {"attempts": 2, "sandboxName": second}}));
        let sandboxes = [sandbox(NAME, json!({})), sandbox(second, json!({}))];
        acts(&decide(&world(task, &sandboxes, &[first, pod(second, json!({}))]), at(10)))
    };
    assert_eq!(left(false, ended(7, "Error")), [format!("delete Sandbox {NAME}")]);
    assert_eq!(left(true, ended(7, "Error")), Vec::<String>::new());
    assert_eq!(
        left(true, pod(NAME, json!({}))),
        [format!("delete Sandbox {NAME}")],
        "nothing runs beside the attempt"
    );
}

#[test]
fn an_end_never_changes() {
    for (type_, reason) in [("Succeeded", "CommandSucceeded"), ("Failed", "Timeout")] {
        for pod in [ended(0, "Completed"), ended(1, "Error"), pod(NAME, json!({}))] {
            for extra in [json!({}), json!({"spec": {"cancel": true, "retries": 5}})] {
                let world = world(
                    over(type_, reason, extra),
                    &[sandbox(NAME, json!({}))],
                    std::slice::from_ref(&pod),
                );
                let plan = decide(&world, at(99_999));
                let is_status =
                    |action: &Action| matches!(action, Action::MergeStatus { .. } | Action::Create(_));
                assert!(!plan.steps.iter().any(|step| is_status(&step.action)), "{plan:?}");
            }
        }
    }
}

#[test]
fn a_pod_that_its_node_does_not_end_goes_with_its_sandbox() {
    // The task ended at second 10; its pod has 5 seconds of grace, and the node 15 more.
    for limit in [json!({}), json!({"activeDeadlineSeconds": 1})] {
        let kept = over("Failed", "Timeout", json!({"spec": {"keepOnFailure": true}}));
        let running = pod(NAME, json!({"spec": limit}));
        let world = world(kept, &[sandbox(NAME, json!({}))], &[running]);
        let early = decide(&world, at(20));
        let asked = usize::from(limit == json!({}));
        assert_eq!((early.steps.len(), early.look_again), (asked, Some(Duration::from_secs(10))));
        assert_eq!(acts(&decide(&world, at(30))), [format!("delete Sandbox {NAME}")]);
    }
}

#[test]
fn a_task_is_deleted_after_its_time() {
    let ends = |type_: &str, extra: Value, second: i64| {
        let plan = decide(&world(over(type_, "r", extra), &[], &[]), at(second));
        (acts(&plan), plan.look_again.map(|wait| wait.as_secs()))
    };
    let ttl = || json!({"spec": {"ttlSecondsAfterFinished": 20}});
    assert_eq!(ends("Succeeded", json!({}), 9_999), (Vec::new(), None));
    assert_eq!(ends("Succeeded", ttl(), 25), (Vec::new(), Some(5)));
    assert_eq!(ends("Succeeded", ttl(), 30), (vec!["delete AgentTask t".to_owned()], None));
    let kept = json!({"spec": {"ttlSecondsAfterFinished": 20, "keepOnFailure": true}});
    assert_eq!(ends("Failed", kept.clone(), 30), (Vec::new(), None));
    assert_eq!(ends("Succeeded", kept, 30).0, ["delete AgentTask t"]);
    let mut dying = over("Succeeded", "r", ttl());
    dying["metadata"]["deletionTimestamp"] = json!("2027-01-15T08:00:30Z");
    assert_eq!(decide(&world(dying, &[sandbox(NAME, json!({}))], &[]), at(99)), Plan::default());
}

#[test]
fn names_of_sandboxes_fit_and_belong_to_one_task() {
    let name = |name: &str, uid: &str| {
        let task: AgentTask =
            serde_json::from_value(task(json!({"metadata": {"name": name, "uid": uid}}))).unwrap();
        super::attempt_name(&task, 11)
    };
    assert_eq!(name(&"x".repeat(253), "tu").len(), 63);
    assert_eq!(name("a.b", "tu"), "a-b-4c4557e2-11");
    assert_ne!(name("a", "one"), name("a", "other"));
}
