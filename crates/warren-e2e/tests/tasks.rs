//! Tests tasks on a real local home, by `warren task`: every way in which one can end, and that
//! nothing is left of it.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use warren_api::conditions::{self, ConditionType};
use warren_api::{AgentTask, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, annotations, labels};
use warren_e2e::local_home::{Ended, LocalHome};

/// The longest time that a task may take to make progress on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn task(home: &LocalHome, words: &[&str]) -> Ended {
    home.warren(&[&["task"], words].concat())
}

fn submit(home: &LocalHome, name: &str, words: &[&str]) {
    let ended = task(home, &[&["submit", "--name", name], words].concat());
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), format!("{name}\n").as_str()), "{ended:?}");
}

/// Returns the end of a task, as `State/reason/exit code/attempts`.
fn end(home: &LocalHome, name: &str) -> String {
    let ended = task(home, &["wait", "--timeout", "2m", "--output", "json", name]);
    let seen: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{name}: {ended:?}"));
    let text = |key: &str| match &seen[key] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    format!("{}/{}/{}/{}", text("state"), text("reason"), text("exitCode"), text("attempts"))
}

fn log(home: &LocalHome, name: &str) -> String {
    let ended = task(home, &["logs", name]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.stdout
}

/// Waits until the command of a task runs.
async fn running(tasks: &Api<AgentTask>, name: &str) -> AgentTask {
    let is_running = |task: Option<&AgentTask>| {
        task.and_then(|task| task.status.as_ref())
            .is_some_and(|status| conditions::is_true(&status.conditions, ConditionType::Running))
    };
    let found = tokio::time::timeout(PATIENCE, await_condition(tasks.clone(), name, is_running)).await;
    found.expect("the command runs in time").expect("watch").expect("a task")
}

fn sandbox_of(task: &AgentTask) -> String {
    task.status.as_ref().and_then(|status| status.sandbox_name.clone()).expect("a sandbox")
}

#[tokio::test]
async fn every_task_ends_once_in_its_class_and_leaves_nothing() {
    let Some(home) = LocalHome::new() else { return };
    home.up();
    let client = home.client().await;
    let tasks: Api<AgentTask> = Api::namespaced(client.clone(), "default");
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), "default");
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");

    let bomb = "x=xxxxxxxxxxxxxxxx; while :; do x=$x$x; done";
    let told = "echo \"$WARREN_TASK_ID $WARREN_TASK_DESCRIPTION $A $(echo sub)\"";
    submit(&home, "good", &["--description", "costs $5", "--env", "A=$x", "--", "sh", "-c", told]);
    let fails = "echo out; printf '{\\033[2J\\n' > $WARREN_TASK_RESULT; exit 7";
    submit(&home, "code", &["--", "sh", "-c", fails]);
    // The file takes one page; further writes fail.
    let long = "head -c 1000000 /dev/zero | tr '\\0' x > $WARREN_TASK_RESULT || exit 0";
    submit(&home, "long", &["--", "sh", "-c", long]);
    submit(&home, "killed", &["--", "sh", "-c", "sh -c 'kill -9 $$'; exit $?"]);
    submit(&home, "oom", &["--memory", "48Mi", "--", "sh", "-c", bomb]);
    submit(&home, "late", &["--timeout", "2s", "--", "sh", "-c", "echo begun; sleep 1000"]);
    submit(&home, "cancelled", &["--", "sh", "-c", "echo begun; sleep 1000"]);
    submit(&home, "orphan", &["--", "sleep", "1000"]);
    submit(&home, "podless", &["--", "sleep", "1000"]);
    submit(&home, "lost", &["--template", "nowhere", "--", "true"]);
    submit(&home, "absent", &["--", "there-is-no-such-program"]);
    let twice = "echo $WARREN_TASK_ATTEMPT; echo attempt $WARREN_TASK_ATTEMPT > $WARREN_TASK_RESULT; \
        test $WARREN_TASK_ATTEMPT = 2";
    submit(&home, "again", &["--retries", "2", "--", "sh", "-c", twice]);
    submit(&home, "brief", &["--ttl", "1s", "--", "true"]);

    for name in ["cancelled", "orphan", "podless"] {
        let sandbox = sandbox_of(&running(&tasks, name).await);
        match name {
            "cancelled" => assert_eq!(task(&home, &["cancel", name]).code, Some(0)),
            "orphan" => drop(sandboxes.delete(&sandbox, &DeleteParams::default()).await.expect("delete")),
            _ => drop(pods.delete(&sandbox, &DeleteParams::default()).await.expect("delete")),
        }
    }

    let ends = [
        ("good", "Succeeded/null/0/1"),
        ("code", "Failed/Application/7/1"),
        ("long", "Succeeded/null/0/1"),
        ("killed", "Failed/Application/137/1"),
        ("oom", "Failed/OOM/137/1"),
        ("late", "Failed/Timeout/null/1"),
        ("cancelled", "Failed/Cancelled/null/1"),
        ("orphan", "Failed/Unknown/null/1"),
        ("podless", "Failed/Unknown/null/1"),
        ("lost", "Failed/Invalid/null/0"),
        ("absent", "Failed/Invalid/null/1"),
        ("again", "Succeeded/null/0/2"),
    ];
    for (name, expected) in ends {
        assert_eq!(end(&home, name), expected, "{name}");
    }
    assert_eq!(log(&home, "good"), "good costs $5 $x sub\n");
    assert_eq!(log(&home, "code"), "out\n");
    assert_eq!(log(&home, "late"), "begun\n");
    assert_eq!(log(&home, "again"), "2\n");
    let ended = |pod: Option<&Pod>| {
        let phase = pod.and_then(|pod| pod.status.as_ref()?.phase.clone());
        phase.is_some_and(|phase| phase == "Failed")
    };
    let cancelled = sandbox_of(&tasks.get("cancelled").await.expect("get"));
    let stopped = tokio::time::timeout(PATIENCE, await_condition(pods.clone(), &cancelled, ended)).await;
    stopped.expect("its command ends in time").expect("watch");
    assert_eq!(log(&home, "cancelled"), "begun\n");
    let gone = |task: Option<&AgentTask>| task.is_none();
    let brief = tokio::time::timeout(PATIENCE, await_condition(tasks.clone(), "brief", gone)).await;
    brief.expect("it is deleted in time").expect("watch");

    // The end of each is reported in one line, and does not change.
    let told = task(&home, &["result", "lost"]);
    let text =
        "lost: Failed (Invalid): spec.runner.sandboxTemplateName: there is no SandboxTemplate nowhere\n";
    assert_eq!((told.stdout.as_str(), told.stderr.as_str()), ("", text));
    let told = task(&home, &["result", "again"]);
    assert_eq!(
        (told.stdout.as_str(), told.stderr.as_str()),
        ("attempt 2\n", "again: Succeeded: The command succeeded\n")
    );
    let told = task(&home, &["result", "code"]);
    assert_eq!(told.stdout, "{ [2J\n", "nothing in it controls the terminal");
    let told: Value =
        serde_json::from_str(&task(&home, &["result", "--output", "json", "code"]).stdout).expect("JSON");
    assert_eq!(told["result"], "{\u{1b}[2J\n");
    assert_eq!(task(&home, &["result", "long"]).stdout.len(), 4097, "the rest is cut, and a line ends");
    let again = task(&home, &["cancel", "code"]);
    assert_eq!((again.code, again.stderr.as_str()), (Some(1), "error: task `code` has ended already\n"));
    let patch = json!({"spec": {"cancel": true}});
    tasks.patch("code", &PatchParams::default(), &Patch::Merge(&patch)).await.expect("patch");
    assert_eq!(end(&home, "code"), "Failed/Application/7/1");
    let unknown = task(&home, &["result", "nobody"]);
    let text = "error: there is no task `nobody` in namespace `default`; `warren task list` shows all\n";
    assert_eq!((unknown.code, unknown.stderr.as_str()), (Some(1), text));
    let listed = task(&home, &["list", "--output", "json"]);
    let listed: Value = serde_json::from_str(&listed.stdout).expect("JSON");
    assert_eq!(listed["tasks"].as_array().map(Vec::len), Some(ends.len()));

    let names = ends.map(|(name, _)| name);
    assert_eq!(task(&home, &[&["delete"], &names[..]].concat()).code, Some(0));
    home.assert_nothing_left();
    assert!(sandboxes.list(&ListParams::default()).await.expect("list").items.is_empty());
}

#[tokio::test]
async fn a_daemon_that_dies_neither_loses_nor_repeats_a_task() {
    let Some(home) = LocalHome::new() else { return };
    let daemon = home.up();
    let tasks: Api<AgentTask> = Api::namespaced(home.client().await, "default");
    submit(&home, "work", &["--", "sh", "-c", "echo begun; sleep 3; echo done; exit 5"]);
    submit(&home, "late", &["--timeout", "6s", "--", "sh", "-c", "echo begun; sleep 1000"]);
    for name in ["work", "late"] {
        running(&tasks, name).await;
    }
    let daemon = Pid::from_raw(daemon.cast_signed()).expect("a process id");
    kill_process(daemon, Signal::KILL).expect("kill the daemon");
    home.up();
    assert_eq!(end(&home, "work"), "Failed/Application/5/1");
    assert_eq!(end(&home, "late"), "Failed/Timeout/null/1");
    assert_eq!(log(&home, "work"), "begun\ndone\n");
    assert_eq!(log(&home, "late"), "begun\n");
    assert_eq!(task(&home, &["delete", "work", "late"]).code, Some(0));
    home.assert_nothing_left();
}

#[tokio::test]
async fn a_sandbox_of_a_pool_runs_one_command_and_goes_with_its_task() {
    let Some(home) = LocalHome::new() else { return };
    let daemon = home.up();
    let client = home.client().await;
    let tasks: Api<AgentTask> = Api::namespaced(client.clone(), "default");
    let claims: Api<SandboxClaim> = Api::namespaced(client.clone(), "default");
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), "default");
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let templates: Api<SandboxTemplate> = Api::namespaced(client.clone(), "default");
    let pools: Api<SandboxWarmPool> = Api::namespaced(client.clone(), "default");
    let example =
        include_str!("../../../examples/warm-tasks.yaml").split_once("---\n").expect("two documents");
    let create = PostParams::default();
    let template: SandboxTemplate = serde_saphyr::from_str(example.0).expect("a template");
    templates.create(&create, &template).await.expect("create the template");
    let pool: SandboxWarmPool = serde_saphyr::from_str(example.1).expect("a pool");
    pools.create(&create, &pool).await.expect("create the pool");
    let full = |pool: Option<&SandboxWarmPool>| {
        pool.and_then(|pool| pool.status.as_ref()).is_some_and(|status| status.ready_replicas == 2)
    };
    let filled = tokio::time::timeout(PATIENCE, await_condition(pools.clone(), "task-runners", full)).await;
    filled.expect("the pool is filled in time").expect("watch");

    let pooled =
        |name: &str, words: &[&str]| submit(&home, name, &[&["--pool", "task-runners"], words].concat());
    let told = "echo \"$$ $WARREN_TASK_ID $WARREN_TASK_DESCRIPTION $A $(echo sub)\"; echo '{}' > $WARREN_TASK_RESULT";
    pooled("warm", &["--description", "costs $5", "--env", "A=$x", "--", "sh", "-c", told]);
    assert_eq!(end(&home, "warm"), "Succeeded/null/0/1");
    assert_eq!(log(&home, "warm"), "1 warm costs $5 $x sub\n");
    assert_eq!(task(&home, &["result", "warm"]).stdout, "{}\n");
    let warm = sandboxes.get(&sandbox_of(&tasks.get("warm").await.expect("get"))).await.expect("get");
    let launch = warm.metadata.labels.as_ref().and_then(|labels| labels.get(labels::LAUNCH_TYPE));
    assert_eq!(launch.map(String::as_str), Some(labels::LAUNCH_TYPE_WARM));

    // More than the pool has, and a daemon that dies under them.
    pooled("work", &["--", "sh", "-c", "echo begun; sleep 3; echo done; exit 5"]);
    pooled("late", &["--timeout", "6s", "--", "sh", "-c", "echo begun; sleep 1000"]);
    pooled("gone", &["--", "sleep", "1000"]);
    pooled(
        "again",
        &["--retries", "1", "--", "sh", "-c", "echo $WARREN_TASK_ATTEMPT; test $WARREN_TASK_ATTEMPT = 2"],
    );
    pooled("absent", &["--", "there-is-no-such-program"]);
    submit(&home, "poolless", &["--pool", "nowhere", "--", "true"]);
    for name in ["work", "late", "gone"] {
        running(&tasks, name).await;
    }
    let daemon = Pid::from_raw(daemon.cast_signed()).expect("a process id");
    kill_process(daemon, Signal::KILL).expect("kill the daemon");
    home.up();
    let gone = sandbox_of(&tasks.get("gone").await.expect("get"));
    pods.delete(&gone, &DeleteParams::default()).await.expect("delete");
    let ends = [
        ("work", "Failed/Application/5/1"),
        ("late", "Failed/Timeout/null/1"),
        ("gone", "Failed/Unknown/null/1"),
        ("again", "Succeeded/null/0/2"),
        ("absent", "Failed/Application/127/1"),
        ("poolless", "Failed/Invalid/null/0"),
    ];
    for (name, expected) in ends {
        assert_eq!(end(&home, name), expected, "{name}");
    }
    assert_eq!(log(&home, "work"), "begun\ndone\n", "the command ran once");
    assert_eq!(log(&home, "late"), "begun\n");
    assert_eq!(log(&home, "again"), "2\n");

    // What was given a command is of no pool any more, and goes with its task.
    let names = ends.map(|(name, _)| name);
    assert_eq!(task(&home, &[&["delete", "warm"], &names[..]].concat()).code, Some(0));
    pools.delete("task-runners", &DeleteParams::default()).await.expect("delete the pool");
    home.assert_nothing_left();
    assert!(claims.list(&ListParams::default()).await.expect("list").items.is_empty());
    let left = pods.list(&ListParams::default()).await.expect("list").items;
    let of_tasks =
        |pod: &Pod| pod.metadata.annotations.iter().flatten().any(|(key, _)| key == annotations::TASK);
    assert!(!left.iter().any(of_tasks), "{left:?}");
}

#[tokio::test]
async fn waiting_ends_like_the_command_and_a_template_brings_its_own() {
    let Some(home) = LocalHome::new() else { return };
    home.up();
    let client = home.client().await;
    let waited = task(&home, &["submit", "--name", "one", "--wait", "echo out; echo err >&2; exit 3"]);
    assert_eq!((waited.code, waited.stdout.as_str()), (Some(3), "out\nerr\n"), "{waited:?}");
    assert!(
        waited.stderr.ends_with("one: Failed (Application): The command ended with exit code 3\n"),
        "{waited:?}"
    );
    let followed = task(&home, &["submit", "--name", "two", "--", "sh", "-c", "echo a; sleep 1; echo b"]);
    assert_eq!(followed.code, Some(0), "{followed:?}");
    let followed = task(&home, &["logs", "--follow", "two"]);
    assert_eq!((followed.code, followed.stdout.as_str()), (Some(0), "a\nb\n"), "{followed:?}");

    let templates: Api<SandboxTemplate> = Api::namespaced(client.clone(), "default");
    let template = json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate",
        "metadata": {"name": "agent"}, "spec": {"podTemplate": {"spec": {
            "volumes": [{"name": "work", "emptyDir": {}}],
            "containers": [
                {"name": "helper", "image": "warren.dev/host", "command": ["sleep", "1000"]},
                {"name": "runner", "image": "warren.dev/host", "command": ["sh", "-c", "echo own program in $(pwd)"],
                    "workingDir": "/work", "volumeMounts": [{"name": "work", "mountPath": "/work"}]}]}}}});
    let template: SandboxTemplate = serde_json::from_value(template).expect("a template");
    templates.create(&PostParams::default(), &template).await.expect("create");
    let waited = task(&home, &["submit", "--name", "three", "--template", "agent", "--wait"]);
    assert_eq!((waited.code, waited.stdout.as_str()), (Some(0), "own program in /work\n"), "{waited:?}");

    // An invalid spec is refused with the field's name. After creation only `cancel` and
    // `ttlSecondsAfterFinished` can be changed.
    let tasks: Api<AgentTask> = Api::namespaced(client.clone(), "default");
    let refused = async |runner: Value| {
        let wanted = json!({"apiVersion": "warren.dev/v1alpha1", "kind": "AgentTask", "metadata": {"name": "x"},
            "spec": {"runner": runner}});
        let wanted: AgentTask = serde_json::from_value(wanted).expect("a task");
        let error = tasks.create(&PostParams::default(), &wanted).await.expect_err("refused");
        error.to_string()
    };
    let both = refused(json!({"sandboxTemplateName": "a", "image": "b"})).await;
    assert!(
        both.contains("spec.runner") && both.contains("sandboxTemplateName and image exclude each other"),
        "{both}"
    );
    let neither = refused(json!({})).await;
    assert!(neither.contains("a command is required"), "{neither}");
    let timeout = refused(json!({"command": ["true"], "timeout": "soon"})).await;
    assert!(timeout.contains("spec.runner.timeout"), "{timeout}");
    let change = async |patch: Value| {
        tasks.patch("two", &PatchParams::default(), &Patch::Merge(&json!({"spec": patch}))).await.map(drop)
    };
    let changed = change(json!({"retries": 3})).await.expect_err("refused").to_string();
    assert!(changed.contains("only cancel and ttlSecondsAfterFinished can be changed"), "{changed}");
    change(json!({"ttlSecondsAfterFinished": 3600, "cancel": true})).await.expect("allowed");
    let revived = change(json!({"cancel": false})).await.expect_err("refused").to_string();
    assert!(revived.contains("stays cancelled"), "{revived}");

    assert_eq!(task(&home, &["delete", "one", "two", "three"]).code, Some(0));
    home.assert_nothing_left();
}
