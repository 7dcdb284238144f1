//! Tests `warren mcp` with the official Python client: every tool, its limits, and that nothing is
//! left behind.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use warren_api::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool};
use warren_client::kube::Client;
use warren_client::kube::api::{Api, ListParams, PostParams};
use warren_e2e::clients::python_with;
use warren_e2e::local_home::{LocalHome, service_binary, warren_binary};
use warren_e2e::streams::DEADLINE;

/// Sets up a home, and a Python with the client. `None`, with a printed reason, if there is none.
fn set_up() -> Option<(LocalHome, PathBuf)> {
    let home = LocalHome::new()?;
    // Tests run at the same time; one of them makes the environment.
    static PYTHON: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let python = match PYTHON.get_or_init(|| python_with("mcp-requirements.txt", None)) {
        Ok(python) => python.clone(),
        Err(error) => {
            eprintln!("skipped: no MCP client on this machine: {error}");
            return None;
        }
    };
    // `warren mcp` looks for it in its own directory.
    service_binary();
    Some((home, python))
}

fn script(home: &LocalHome, python: &Path, words: &[&str]) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/mcp_tools.py");
    let mut command = Command::new(python);
    command.arg(script).args(words).env("WARREN_HOME", home.path()).stdin(Stdio::null());
    command
}

/// Starts a client that has a sandbox, and returns it with the sandbox's name.
fn holder(home: &LocalHome, python: &Path, arguments: &[&str]) -> (Child, String) {
    let warren = warren_binary().to_str().expect("a path");
    let words = [&["hold", warren], arguments].concat();
    let mut child = script(home, python, &words).stdout(Stdio::piped()).spawn().expect("start Python");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("read");
    assert!(line.starts_with("mcp-"), "{line:?}");
    (child, line.trim().to_owned())
}

/// Waits until no sandbox and no claim is left, except those of the pool.
async fn wait_until_nothing_is_left(client: &Client) {
    let started = Instant::now();
    loop {
        let sandboxes: Api<Sandbox> = Api::default_namespaced(client.clone());
        let claims: Api<SandboxClaim> = Api::default_namespaced(client.clone());
        let made = ListParams::default().labels("!agents.x-k8s.io/warm-pool-sandbox");
        let sandboxes = sandboxes.list(&made).await.expect("list sandboxes").items;
        let claims = claims.list(&ListParams::default()).await.expect("list claims").items;
        if sandboxes.is_empty() && claims.is_empty() {
            return;
        }
        assert!(started.elapsed() < DEADLINE, "left behind: {sandboxes:?} {claims:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn official_client_calls_every_tool_in_both_protocols_and_leaves_nothing() {
    let Some((home, python)) = set_up() else { return };
    home.up();
    let client = home.client().await;
    let template: SandboxTemplate = serde_json::from_value(serde_json::json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate",
        "metadata": {"name": "host"},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "warren.dev/host"}]}}},
    }))
    .expect("a template");
    let pool: SandboxWarmPool = serde_json::from_value(serde_json::json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool",
        "metadata": {"name": "host"},
        "spec": {"replicas": 1, "sandboxTemplateRef": {"name": "host"}},
    }))
    .expect("a pool");
    let templates: Api<SandboxTemplate> = Api::default_namespaced(client.clone());
    templates.create(&PostParams::default(), &template).await.expect("create the template");
    let pools: Api<SandboxWarmPool> = Api::default_namespaced(client.clone());
    pools.create(&PostParams::default(), &pool).await.expect("create the pool");

    let warren = warren_binary().to_str().expect("a path");
    for mode in ["legacy", "2026-07-28"] {
        let ran =
            script(&home, &python, &[mode, warren, "--max-sandboxes", "2"]).output().expect("run Python");
        let (stdout, stderr) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        assert!(ran.status.success() && stdout == "done\n", "{mode}: {stdout}{stderr}");
        wait_until_nothing_is_left(&client).await;
    }
    let left = pools.list(&ListParams::default()).await.expect("list pools").items;
    assert_eq!(left.len(), 1, "pools of claims are collected with them: {left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_client_leaves_no_sandbox_and_the_home_is_started_by_the_first_call() {
    let Some((home, python)) = set_up() else { return };
    let (mut child, name) = holder(&home, &python, &[]);
    let client = home.client().await;
    let sandboxes: Api<Sandbox> = Api::default_namespaced(client.clone());
    sandboxes.get(&name).await.expect("the sandbox is there");
    child.kill().expect("kill -9");
    child.wait().expect("wait");
    wait_until_nothing_is_left(&client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_server_leaves_a_sandbox_that_ends_with_its_lease() {
    let Some((home, python)) = set_up() else { return };
    let (mut child, name) = holder(&home, &python, &["--lease", "15"]);
    let client = home.client().await;
    let sandboxes: Api<Sandbox> = Api::default_namespaced(client.clone());
    let first = sandboxes.get(&name).await.expect("the sandbox is there").spec.shutdown_time;
    let started = Instant::now();
    loop {
        let now = sandboxes.get(&name).await.expect("the sandbox is kept").spec.shutdown_time;
        if now != first {
            break;
        }
        assert!(started.elapsed() < DEADLINE, "the lease was never renewed");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    // `warren mcp` becomes the service, so that it is the client's own child.
    let server = children(child.id()).expect("the client has a child");
    let killed = Command::new("kill").args(["-9", &server]).status().expect("run kill");
    assert!(killed.success());
    wait_until_nothing_is_left(&client).await;
    let _ = child.kill();
    child.wait().expect("wait");
}

/// Returns the first child of a process.
fn children(process: u32) -> Option<String> {
    let list = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
    list.flatten().find_map(|task| {
        let text = std::fs::read_to_string(task.path().join("children")).ok()?;
        text.split_whitespace().next().map(str::to_owned)
    })
}
