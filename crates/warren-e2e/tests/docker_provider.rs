//! Tests the docker provider on a real Docker engine, which the test starts.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::TryStreamExt as _;
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use warren_e2e::local_home::LocalHome;
use warren_e2e::provider_contract::life_of_a_sandbox;
use warren_e2e::served::{Served, Viewer};
use warren_e2e::streams::DEADLINE;
use warren_providers::{
    Code, Command, DockerOptions, DockerProvider, Network, Provider, ProviderError, Status, TerminalSize,
    Wanted,
};
use warren_testkit::docker::{Docker, busybox};

const IMAGE: &str = "warren-test";

/// An engine with one image of a static busybox.
struct Engine(Docker);

impl Engine {
    fn start() -> Option<Self> {
        let docker = Docker::start_or_skip()?;
        let rootfs = tempfile::tempdir().expect("make a directory");
        busybox(rootfs.path()).expect("a root file system");
        docker.import(IMAGE, rootfs.path()).expect("an image");
        Some(Self(docker))
    }

    fn options(&self) -> DockerOptions {
        DockerOptions {
            host: Some(self.0.host()),
            owner: "test".to_owned(),
            image: Some(IMAGE.to_owned()),
            network: None,
            most_sandboxes: 4,
        }
    }

    fn provider(&self) -> DockerProvider {
        DockerProvider::new(self.options()).expect("a provider")
    }

    fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.0.call("GET", path, b"").expect("asked")).expect("JSON")
    }

    fn post(&self, path: &str, body: &Value) {
        self.0.call_json("POST", path, body).expect("done");
    }

    /// Returns the names of everything that the engine has.
    fn everything(&self) -> Vec<String> {
        let containers = self.json("/containers/json?all=1");
        let volumes = self.json("/volumes");
        let names =
            containers.as_array().into_iter().flatten().map(|container| container["Names"][0].clone());
        let volumes = volumes["Volumes"].as_array().cloned().unwrap_or_default();
        let volumes = volumes.into_iter().map(|volume| volume["Name"].clone());
        names.chain(volumes).map(|name| name.as_str().unwrap_or_default().to_owned()).collect()
    }
}

fn shell(script: &str) -> Command {
    Command::new("sh", ["-c", script])
}

async fn said(provider: &DockerProvider, id: &str, script: &str) -> String {
    let ran = provider.exec(id, shell(script), DEADLINE).await.expect("ran");
    format!("{}{}", ran.stdout, ran.stderr).trim().to_owned()
}

async fn running(provider: &DockerProvider, wanted: Wanted) -> String {
    let id = provider.create(wanted).await.expect("created").id;
    provider.wait_running(&id, DEADLINE).await.expect("it runs");
    id
}

/// Returns a shell command that succeeds if `sleep` with this number runs.
fn lives(number: u32) -> String {
    format!("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -q '[s]leep {number}'")
}

fn refused<T>(result: Result<T, ProviderError>) -> (Code, String) {
    let error = result.err().expect("refused");
    (error.code, error.message)
}

#[tokio::test(flavor = "multi_thread")]
async fn life_of_a_sandbox_on_docker() {
    let Some(engine) = Engine::start() else { return };
    let make = || -> Box<dyn Provider> { Box::new(engine.provider()) };
    life_of_a_sandbox(make().as_ref(), make, true, "/workspace").await;
    assert_eq!(engine.everything(), Vec::<String>::new(), "nothing is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_is_hardened() {
    let Some(engine) = Engine::start() else { return };
    let provider = engine.provider();
    let wanted =
        Wanted { memory_mb: Some(512), pids_limit: Some(64), cpu_cores: Some(0.5), ..Wanted::default() };
    let id = running(&provider, wanted).await;
    assert_eq!(
        said(&provider, &id, "id -u; id -g; pwd; echo $HOME").await,
        "1000\n1000\n/workspace\n/workspace"
    );
    let status =
        said(&provider, &id, "grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status").await;
    let status: BTreeMap<&str, &str> = status
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name, value.trim()))
        .collect();
    assert_eq!(status["CapEff"], "0000000000000000");
    assert_eq!(status["CapBnd"], "0000000000000000");
    assert_eq!(status["NoNewPrivs"], "1");
    for path in ["/made", "/bin/made", "/etc/made"] {
        assert!(said(&provider, &id, &format!("touch {path}")).await.contains("Read-only"), "{path}");
    }
    let tmp = said(&provider, &id, "grep ' /tmp ' /proc/mounts").await;
    assert!(["noexec", "nosuid", "nodev", "size=524288k"].iter().all(|flag| tmp.contains(flag)), "{tmp}");
    assert_eq!(said(&provider, &id, "touch /tmp/a /workspace/b && echo made").await, "made");
    // Nothing but itself is in its network.
    assert_eq!(said(&provider, &id, "ls /sys/class/net").await, "lo");
    let seen = engine.json(&format!("/containers/warren-{id}/json"));
    let host = &seen["HostConfig"];
    assert_eq!((&host["Memory"], &host["MemorySwap"]), (&json!(512 << 20), &json!(512 << 20)));
    assert_eq!((&host["PidsLimit"], &host["NanoCpus"]), (&json!(64), &json!(500_000_000)));
    // As many processes as there may be, and no more; afterwards commands run again.
    let many = "i=0; while [ $i -lt 200 ]; do sleep 60 & i=$((i+1)); done; wait";
    let ran = provider.exec(&id, shell(many), Duration::from_secs(5)).await.expect("ended");
    assert!(ran.exit_code != 0, "{ran:?}");
    let used = provider.metrics(&id).await.expect("measured");
    assert!(used.memory_usage_mb.is_some_and(|memory| memory > 0.0 && memory < 512.0), "{used:?}");
    assert!(used.cpu_usage_percent.is_some(), "{used:?}");
    let history = provider.history(&id).await.expect("listed");
    assert!(history.iter().any(|happening| happening.reason == "start"), "{history:?}");
    provider.remove(&id).await.expect("removed");
    assert_eq!(engine.everything(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_command_leaves_no_process_and_terminals_carry_every_byte() {
    let Some(engine) = Engine::start() else { return };
    let provider = engine.provider();
    let id = running(&provider, Wanted::default()).await;
    // Children, one of which has cleared its environment.
    let script = "sleep 1001 & env -i sleep 1002 & (sleep 1003 &) ; echo on; wait";
    let mut process = provider.exec_stream(&id, shell(script)).await.expect("started");
    let mut on = [0; 3];
    process.stdout.read_exact(&mut on).await.expect("read");
    // The children may be later than the word.
    for number in 1001..=1003 {
        said(&provider, &id, &format!("until {}; do sleep 0.1; done", lives(number))).await;
    }
    process.kill();
    assert_eq!(
        process.wait().await.map_err(|error| (error.code, error.message)),
        Err((Code::SandboxExecFailed, "the command was stopped".to_owned()))
    );
    for number in 1001..=1003 {
        assert_eq!(said(&provider, &id, &format!("{} || echo gone", lives(number))).await, "gone");
    }
    // A command that cannot be started, and one that only says so.
    let missing = provider.exec(&id, Command::new("nonexistent", []), DEADLINE).await;
    let (code, message) = refused(missing);
    assert!(code == Code::SandboxExecFailed && message.contains("nonexistent"), "{code:?} {message}");
    let nowhere = Command { directory: Some("/nonexistent".to_owned()), ..shell("true") };
    assert_eq!(refused(provider.exec(&id, nowhere, DEADLINE).await).0, Code::SandboxExecFailed);
    assert_eq!(said(&provider, &id, "echo OCI runtime exec failed").await, "OCI runtime exec failed");
    let more = said(&provider, &id, "echo OCI runtime exec failed; sleep 0.1; echo more; exit 127").await;
    assert_eq!(more, "OCI runtime exec failed\nmore");
    // Dropping ends a command too.
    let process = provider.exec_stream(&id, shell("exec sleep 1004")).await.expect("started");
    said(&provider, &id, &format!("until {}; do sleep 0.1; done", lives(1004))).await;
    drop(process);
    said(&provider, &id, &format!("while {}; do sleep 0.1; done", lives(1004))).await;

    // A terminal whose first bytes look like the head of a frame of outputs.
    let size = TerminalSize { width: 80, height: 24 };
    let odd = Command {
        terminal: Some(size),
        ..shell("printf '\\001\\000\\000\\000\\377\\377\\377\\377abc'; read line; echo \"<$line>\"")
    };
    let mut terminal = provider.exec_stream(&id, odd).await.expect("started");
    let mut head = [0; 11];
    tokio::time::timeout(DEADLINE, terminal.stdout.read_exact(&mut head))
        .await
        .expect("in time")
        .expect("read");
    assert_eq!(&head, b"\x01\0\0\0\xff\xff\xff\xffabc");
    terminal.stdin.as_mut().expect("an input").write_all(b"typed\n").await.expect("typed");
    let mut rest = String::new();
    terminal.stdout.read_to_string(&mut rest).await.expect("read");
    assert_eq!(rest, "typed\r\n<typed>\r\n");
    assert_eq!(terminal.wait().await, Ok(0));
    provider.remove(&id).await.expect("removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn half_made_sandboxes_are_removed_and_others_found_after_restarts() {
    let Some(mut engine) = Engine::start() else { return };
    let provider = engine.provider();
    let wanted = Wanted { project_id: Some("kept".to_owned()), ..Wanted::default() };
    let id = running(&provider, wanted).await;
    provider.write(&id, "/workspace/f", b"kept".to_vec()).await.expect("written");
    drop(provider);
    // A crash may leave a volume alone, a container that was never started, one that prepared a
    // volume.
    let labels = |sandbox: &str, role: &str| json!({ "warren.dev/docker-owner": "test", "warren.dev/docker-sandbox": sandbox, "warren.dev/docker-role": role });
    engine.post(
        "/volumes/create",
        &json!({ "Name": "warren-docker-a-workspace", "Labels": labels("docker-a", "sandbox") }),
    );
    for (name, sandbox, role) in
        [("warren-docker-b", "docker-b", "sandbox"), ("warren-docker-c-prepare", "docker-c", "prepare")]
    {
        let body = json!({ "Image": IMAGE, "Cmd": ["sh"], "Labels": labels(sandbox, role) });
        engine.post(&format!("/containers/create?name={name}"), &body);
    }
    // Those of others stay.
    let other = json!({ "warren.dev/docker-owner": "other", "warren.dev/docker-sandbox": "docker-d" });
    engine.post("/volumes/create", &json!({ "Name": "other", "Labels": other }));
    engine.post("/containers/create?name=mine", &json!({ "Image": IMAGE, "Cmd": ["sh"] }));
    let again = engine.provider();
    assert_eq!(again.recover().await.expect("recovered"), 3);
    let mut left = engine.everything();
    left.sort();
    assert_eq!(left, ["/mine", &format!("/warren-{id}"), "other", &format!("warren-{id}-workspace")]);
    let found = again.get("kept").await.expect("asked").expect("found");
    assert_eq!((found.id.as_str(), found.status), (id.as_str(), Status::Running));
    assert_eq!(again.list().await.expect("listed").len(), 1);

    engine.post(&format!("/containers/warren-{id}/pause"), &Value::Null);
    assert_eq!(again.get_by_id(&id).await.expect("asked").expect("found").status, Status::Stopped);
    assert_eq!(again.start(&id).await.expect("started").status, Status::Running);
    engine.post(&format!("/containers/warren-{id}/pause"), &Value::Null);
    assert_eq!(again.stop(&id).await.expect("stopped").status, Status::Stopped);
    assert_eq!(again.start(&id).await.expect("started").status, Status::Running);

    // The engine itself is restarted: its containers end, and keep their files.
    engine.0.restart().expect("restarted");
    assert_eq!(again.get_by_id(&id).await.expect("asked").expect("found").status, Status::Stopped);
    again.start(&id).await.expect("started");
    let file = again.read(&id, "/workspace/f").await.expect("read");
    assert_eq!(file.parts.try_collect::<Vec<_>>().await.expect("read").concat(), b"kept");
    engine.post(&format!("/containers/warren-{id}/pause"), &Value::Null);
    again.remove(&id).await.expect("removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn wishes_and_failures_are_told_by_name() {
    let Some(engine) = Engine::start() else { return };
    let provider = engine.provider();
    for (wanted, word) in [
        (Wanted { disk_mb: Some(2048), ..Wanted::default() }, "`diskMb`"),
        (Wanted { pool: Some("p".to_owned()), ..Wanted::default() }, "`pool`"),
        (
            Wanted { allowed_hosts: Some(vec!["github.com".to_owned()]), ..Wanted::default() },
            "`allowedHosts`",
        ),
        (Wanted { network: Some(Network::Full), ..Wanted::default() }, "--docker-network"),
        (Wanted { image: Some("a b".to_owned()), ..Wanted::default() }, "`image`"),
        (Wanted { cpu_cores: Some(16.0), ..Wanted::default() }, "`cpuCores`"),
    ] {
        let (code, message) = refused(provider.create(wanted).await);
        assert!(code == Code::ValidationError && message.contains(word), "{code:?} {message}");
    }
    // An image that cannot be pulled: nothing listens at the address of its registry.
    let project = Some("web".to_owned());
    let image = Some("127.0.0.1:1/none".to_owned());
    let id = provider
        .create(Wanted { image, project_id: project, ..Wanted::default() })
        .await
        .expect("registered")
        .id;
    let (code, message) = refused(provider.wait_running(&id, DEADLINE).await);
    assert!(code == Code::SandboxStartFailed && message.contains("127.0.0.1:1/none"), "{code:?} {message}");
    assert!(!provider.explain(&id).await.expect("explained").ready);
    assert_eq!(provider.get_by_id(&id).await.expect("asked").expect("known").status, Status::Error);
    assert_eq!(engine.everything(), Vec::<String>::new());
    assert_eq!(refused(provider.start(&id).await).0, Code::SandboxInvalidState);
    provider.remove(&id).await.expect("removed");
    assert_eq!(provider.list().await.expect("listed"), []);
    assert_eq!(refused(provider.pull_image("127.0.0.1:1/none").await).0, Code::ImageNotFound);
    assert_eq!(provider.is_image_available(IMAGE).await, Ok(true));
    assert_eq!(provider.is_image_available("none").await, Ok(false));

    // As many as there may be.
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(provider.create(Wanted::default()).await.expect("created").id);
    }
    assert_eq!(refused(provider.create(Wanted::default()).await).0, Code::SandboxResourceLimitExceeded);
    // Removed while they are being made, or just afterwards.
    for id in ids {
        provider.remove(&id).await.expect("removed");
    }
    assert_eq!(engine.everything(), Vec::<String>::new());

    // A network for `full` has to keep sandboxes apart.
    let options = DockerOptions { network: Some("open".to_owned()), ..engine.options() };
    let full = || Wanted { network: Some(Network::Full), ..Wanted::default() };
    let provider = DockerProvider::new(options).expect("a provider");
    assert!(refused(provider.create(full()).await).1.contains("is not there"));
    engine.post("/networks/create", &json!({ "Name": "open", "Driver": "bridge" }));
    assert!(refused(provider.create(full()).await).1.contains("reach each other"));
    let icc = json!({ "com.docker.network.bridge.enable_icc": "false" });
    engine.post("/networks/create", &json!({ "Name": "apart", "Driver": "bridge", "Options": icc }));
    let options = DockerOptions { network: Some("apart".to_owned()), ..engine.options() };
    let provider = DockerProvider::new(options).expect("a provider");
    let (one, other) = (running(&provider, full()).await, running(&provider, full()).await);
    let address = said(&provider, &other, "hostname -i").await;
    let listening = provider.exec_stream(&other, shell("nc -l -p 8080")).await.expect("listens");
    let reached = said(
        &provider,
        &one,
        &format!("nc -w 2 {address} 8080 2>/dev/null </dev/null && echo reached || echo apart"),
    )
    .await;
    assert!(reached.ends_with("apart"), "{reached}");
    drop(listening);
    for id in [one, other] {
        provider.remove(&id).await.expect("removed");
    }
}

#[tokio::test]
async fn engine_that_is_not_there_is_told() {
    let options = DockerOptions {
        host: Some("unix:///nonexistent/docker.sock".to_owned()),
        owner: "test".to_owned(),
        ..DockerOptions::default()
    };
    let provider = DockerProvider::new(options).expect("a provider");
    let health = provider.health_check().await;
    assert!(
        !health.healthy && health.message.as_ref().is_some_and(|said| said.contains("/nonexistent")),
        "{health:?}"
    );
    assert_eq!(refused(provider.create(Wanted::default()).await).0, Code::ProviderUnavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn service_runs_sandboxes_on_docker_and_without_it_in_the_local_home() {
    let Some(engine) = Engine::start() else { return };
    let Some(home) = LocalHome::new() else { return };
    let host = engine.0.host();
    let arguments = ["--provider", "docker", "--docker-host", &host, "--image", IMAGE];
    let served = Served::start(&home, &arguments);
    let key = served.key.clone().expect("the first start shows a key");
    let status = served.call(&key, Method::GET, "/api/status", "").await.data();
    assert_eq!(status["provider"], json!({ "name": "docker", "healthy": true, "message": null }));
    let made = served.call(&key, Method::POST, "/api/sandboxes", r#"{"projectId":"web"}"#).await.data();
    let sandbox = format!("/api/sandboxes/{}", made["id"].as_str().expect("an id"));
    let running = async |served: &Served| {
        let wait = async {
            while served.call(&key, Method::GET, &sandbox, "").await.data()["status"] != "running" {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(DEADLINE, wait).await.expect("it runs");
    };
    running(&served).await;
    let exec = async |served: &Served, script: &str| {
        let body = json!({ "cmd": "sh", "args": ["-c", script] }).to_string();
        let ran = served.call(&key, Method::POST, &format!("{sandbox}/exec"), body).await.data();
        ran["stdout"].as_str().expect("text").to_owned()
    };
    assert_eq!(exec(&served, "id -u").await, "1000\n");
    let terminal = format!("{sandbox}/terminals");
    let opened = served.call(&key, Method::POST, &terminal, r#"{"columns":80,"rows":24}"#).await.data();
    let session = opened["id"].as_str().expect("an id");
    let mut viewer = Viewer::follow(&served, &key, session, 0).await;
    let typed = json!({ "data": STANDARD.encode("echo typed-$((1+1)); sleep 1005\n") }).to_string();
    served.call(&key, Method::POST, &format!("/api/sessions/{session}/input"), typed).await.data();
    viewer.until_shown("typed-2").await;
    let seen = exec(&served, &format!("until {}; do sleep 0.1; done; echo seen", lives(1005))).await;
    assert_eq!(seen, "seen\n");

    // The service is killed. The next one finds the sandbox and ends what was on its terminals.
    served.kill();
    let served = Served::start(&home, &arguments);
    running(&served).await;
    assert_eq!(exec(&served, &format!("{} || echo gone", lives(1005))).await, "gone\n");
    served.call(&key, Method::DELETE, &sandbox, "").await.data();
    assert_eq!(engine.everything(), Vec::<String>::new());

    // Chosen by the settings; and an engine that is not there.
    let chosen = r#"{"value":{"provider":"docker"}}"#;
    served.call(&key, Method::PUT, "/api/settings/sandbox.defaults", chosen).await.data();
    served.kill();
    let served = Served::start(&home, &["--docker-host", &host]);
    let status = served.call(&key, Method::GET, "/api/status", "").await.data();
    assert_eq!(status["provider"]["name"], "docker");
    served.kill();
    let served = Served::start(&home, &["--docker-host", "unix:///nonexistent/docker.sock"]);
    let status = served.call(&key, Method::GET, "/api/status", "").await.data();
    assert_eq!(status["provider"]["name"], "warren", "the local home instead: {status}");
}
