//! Tests that sandboxes and the daemon survive each other's deaths.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use warren_api::Sandbox;
use warren_client::exec::{Exec, ExecRequest, Streams};
use warren_client::kube::api::{Api, Patch, PatchParams};
use warren_client::kube::{Client, ResourceExt as _};
use warren_client::sandbox;
use warren_e2e::foreground::zygote_of;
use warren_e2e::local_home::LocalHome;
use warren_testkit::leaks;

/// The deadline of every wait: each takes a fraction of a second on an idle machine.
const DEADLINE: Duration = Duration::from_secs(60);

fn manifest(name: &str, container: Value) -> Sandbox {
    let mut container = container;
    container["name"] = json!("main");
    container["image"] = json!("warren.dev/host");
    serde_json::from_value(json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": { "name": name },
        "spec": { "podTemplate": { "spec": {
            "containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
        } } },
    }))
    .expect("a valid sandbox")
}

async fn started(client: &Client, name: &str, container: Value) -> Sandbox {
    let created = sandbox::create(client, "default", &manifest(name, container)).await.expect("create");
    sandbox::wait_ready(client, created, DEADLINE).await.expect("become Ready")
}

async fn exec(client: &Client, sandbox: &Sandbox, script: &str) -> (i32, String) {
    let request = ExecRequest {
        namespace: "default".to_owned(),
        pod: sandbox::pod_name(sandbox),
        container: None,
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        stdin: false,
        tty: false,
    };
    let mut stdout = Vec::new();
    let (_, resize) = tokio::sync::mpsc::channel(1);
    let streams =
        Streams { stdin: tokio::io::empty(), stdout: &mut stdout, stderr: tokio::io::sink(), resize };
    let exec = Exec::start(client, request).await.expect("start the command");
    let code = exec.run(streams).await.expect("run the command");
    (code, String::from_utf8_lossy(&stdout).into_owned())
}

/// Waits until a pod meets a condition; the last state is in the panic.
async fn pod_until(client: &Client, name: &str, condition: impl Fn(&Pod) -> bool) -> Pod {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let wait = async {
        loop {
            if let Some(pod) = pods.get_opt(name).await.expect("get the pod")
                && condition(&pod)
            {
                return pod;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    match tokio::time::timeout(DEADLINE, wait).await {
        Ok(pod) => pod,
        Err(_) => panic!("pod {name} is {:#?}", pods.get_opt(name).await.map(|pod| pod?.status)),
    }
}

fn process(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).expect("a small number")).expect("a process")
}

/// Returns the processes of a marker command, as the host sees them.
fn processes(marker: &str) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("read /proc").flatten() {
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&command).contains(marker)
            && let Ok(pid) = entry.file_name().to_string_lossy().parse()
        {
            found.push(pid);
        }
    }
    found
}

/// Kills a process (`kill -9`); returns when it has ended.
fn kill(pid: u32) {
    let pid = process(pid);
    let handle =
        rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).expect("open the process");
    kill_process(pid, Signal::KILL).expect("kill the process");
    rustix::event::poll(&mut [rustix::event::PollFd::new(&handle, rustix::event::PollFlags::IN)], None)
        .expect("wait for its end");
}

#[tokio::test]
async fn a_sandbox_outlives_a_killed_daemon_and_is_found_again() {
    let Some(home) = LocalHome::new() else { return };
    let first = home.up();
    let client = home.client().await;
    let marker = "1234567.25";
    let sandbox = started(&client, "survivor", json!({ "command": ["sleep", marker] })).await;
    let (code, _) = exec(&client, &sandbox, "echo kept > /tmp/state").await;
    assert_eq!(code, 0);
    let before = processes(marker);
    assert_eq!(before.len(), 1, "one process of the sandbox");
    // The objects that the checker will look for exist now, and it finds them.
    let seen = leaks::find(home.path()).expect("look");
    assert!(seen.processes.len() >= 2 && !seen.cgroups.is_empty() && seen.files.len() == 1, "{seen:#?}");

    kill(first);
    assert_eq!(processes(marker), before, "the process lives on");

    let second = home.up();
    assert_ne!(first, second);
    let client = home.client().await;
    assert_eq!(processes(marker), before, "the process is still the same");
    let (code, stdout) = exec(&client, &sandbox, "cat /tmp/state").await;
    assert_eq!((code, stdout.as_str()), (0, "kept\n"));
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = pods.get("survivor").await.expect("the pod is there");
    let status = pod.status.expect("a status");
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(status.container_statuses.expect("a container")[0].restart_count, 0);

    sandbox::delete(&client, &sandbox).await.expect("delete");
    home.assert_nothing_left();
    assert!(processes(marker).is_empty());
}

#[tokio::test]
async fn what_ended_while_no_daemon_ran_is_known_afterwards() {
    let Some(home) = LocalHome::new() else { return };
    let daemon = home.up();
    let client = home.client().await;
    let script = "while ! test -e /tmp/go; do sleep 0.05; done; exit 3";
    let sandbox = started(&client, "ender", json!({ "command": ["sh", "-c", script] })).await;
    let (code, _) = exec(&client, &sandbox, "(sleep 0.3; touch /tmp/go) >/dev/null 2>&1 &").await;
    assert_eq!(code, 0);
    kill(daemon);
    home.up();
    let client = home.client().await;
    let pod = pod_until(&client, "ender", |pod| phase(pod) == "Failed").await;
    let terminated = terminated(&pod).expect("a terminated container");
    assert_eq!(terminated["exitCode"], 3, "{terminated}");
    sandbox::delete(&client, &sandbox).await.expect("delete");
    home.assert_nothing_left();
}

#[test]
fn a_home_that_lost_its_zygote_is_replaced() {
    let Some(home) = LocalHome::new() else { return };
    let daemon = home.up();
    let handle =
        rustix::process::pidfd_open(process(daemon), rustix::process::PidfdFlags::empty()).expect("open");
    kill(zygote_of(daemon));
    rustix::event::poll(&mut [rustix::event::PollFd::new(&handle, rustix::event::PollFlags::IN)], None)
        .expect("wait for the daemon's end");
    let ended = home.shell("echo again");
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "again\n"), "{ended:?}");
    home.assert_nothing_left();
}

#[tokio::test]
async fn a_run_that_was_killed_leaves_a_sandbox_that_expires() {
    let Some(home) = LocalHome::new() else { return };
    let mut child = home.spawn(&["run", "--name", "orphan", "--", "sh", "-c", "echo started; sleep 1000"]);
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(child.stdout.as_mut().expect("piped")),
        &mut line,
    )
    .expect("read");
    child.kill().expect("kill -9");
    child.wait().expect("reap");

    let client = home.client().await;
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), "default");
    let orphan = sandboxes.get("orphan").await.expect("nobody deleted it");
    assert!(orphan.spec.shutdown_time.is_some());
    let past = json!({ "spec": { "shutdownTime": "2020-01-01T00:00:00Z" } });
    sandboxes.patch("orphan", &PatchParams::default(), &Patch::Merge(&past)).await.expect("patch");
    home.assert_nothing_left();
    assert!(sandboxes.get_opt("orphan").await.expect("get").is_none_or(|found| found.uid() != orphan.uid()));
}

#[tokio::test]
async fn going_down_ends_processes_and_coming_up_starts_them_again() {
    let Some(home) = LocalHome::new() else { return };
    home.up();
    let client = home.client().await;
    let marker = "1234568.25";
    let mut manifest = manifest("resident", json!({ "command": ["sleep", marker] }));
    Arc::make_mut(&mut manifest.spec.blueprint.pod_template.spec).restart_policy = Some("Always".to_owned());
    let created = sandbox::create(&client, "default", &manifest).await.expect("create");
    sandbox::wait_ready(&client, created, DEADLINE).await.expect("become Ready");

    let down = home.warren(&["down", "--keep"]);
    assert!(down.stderr.contains("its sandboxes run on"), "{down:?}");
    assert_eq!(processes(marker).len(), 1);
    home.up();
    let down = home.warren(&["down"]);
    assert!(down.stderr.contains("the processes of 1 sandbox were ended"), "{down:?}");
    assert!(processes(marker).is_empty());

    home.up();
    let client = home.client().await;
    pod_until(&client, "resident", |pod| phase(pod) == "Running" && restarts(pod) == 1).await;
    assert_eq!(processes(marker).len(), 1);
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), "default");
    let sandbox = sandboxes.get("resident").await.expect("get");
    sandbox::delete(&client, &sandbox).await.expect("delete");
    home.assert_nothing_left();
}

#[tokio::test]
async fn a_memory_bomb_ends_inside_and_the_status_says_why() {
    let Some(home) = LocalHome::new() else { return };
    home.up();
    let client = home.client().await;
    // Doubles a shell variable until there is no memory.
    let bomb = "x=xxxxxxxxxxxxxxxx; while :; do x=$x$x; done";
    let container = json!({ "command": ["sh", "-c", bomb], "resources": { "limits": { "memory": "48Mi" } } });
    let created = sandbox::create(&client, "default", &manifest("memory", container)).await.expect("create");
    let pod = pod_until(&client, "memory", |pod| phase(pod) == "Failed").await;
    let terminated = terminated(&pod).expect("a terminated container");
    assert_eq!(terminated["reason"], "OOMKilled", "{terminated}");
    assert_eq!(terminated["exitCode"], 137, "{terminated}");
    sandbox::delete(&client, &created).await.expect("delete");
    home.assert_nothing_left();
}

#[tokio::test]
async fn a_fork_bomb_ends_inside_and_the_status_says_why() {
    let Some(home) = LocalHome::new() else { return };
    home.up();
    let client = home.client().await;
    let bomb = "bomb() { bomb | bomb & }; bomb; sleep 2; exit 1";
    let created =
        sandbox::create(&client, "default", &manifest("forks", json!({ "command": ["sh", "-c", bomb] })))
            .await
            .expect("create");
    let pod = pod_until(&client, "forks", |pod| phase(pod) == "Failed").await;
    let status = serde_json::to_string(&pod.status).expect("serialize");
    assert!(status.to_lowercase().contains("pids"), "no word about the pids limit in {status}");
    sandbox::delete(&client, &created).await.expect("delete");
    home.assert_nothing_left();
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.and_then(|statuses| statuses.first()).map(|status| status.restart_count).unwrap_or_default()
}

fn terminated(pod: &Pod) -> Option<Value> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    serde_json::to_value(status.state.as_ref()?.terminated.as_ref()?).ok()
}
