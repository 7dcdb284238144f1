//! Tests the guest daemon in sandboxes: the runtime API of agent-sandbox's clients, through the API
//! server's port-forward, on both kinds of homes.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use warren_api::Sandbox;
use warren_client::kube::Client;
use warren_client::kube::api::{Api, PostParams};
use warren_client::sandbox;
use warren_e2e::local_home::LocalHome;

/// The deadline of every wait: each takes a fraction of a second on an idle machine.
const DEADLINE: Duration = Duration::from_secs(120);
const PORT: u16 = 8888;

fn manifest(name: &str, annotations: Value, container: Value) -> Sandbox {
    let mut whole = json!({"name": "main", "image": "warren.dev/host"});
    for (key, value) in container.as_object().expect("fields") {
        whole[key] = value.clone();
    }
    serde_json::from_value(json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name},
        "spec": {"podTemplate": {
            "metadata": {"annotations": annotations},
            "spec": {"containers": [whole], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0},
        }},
    }))
    .expect("a valid sandbox")
}

async fn start(client: &Client, manifest: &Sandbox) -> Guest {
    let created = sandbox::create(client, "default", manifest).await.expect("create");
    let ready = sandbox::wait_ready(client, created, DEADLINE).await.expect("become Ready");
    Guest { pods: Api::namespaced(client.clone(), "default"), pod: sandbox::pod_name(&ready) }
}

/// The guest daemon of one pod.
struct Guest {
    pods: Api<Pod>,
    pod: String,
}

#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Guest {
    /// Sends a request on a connection of its own; `None` if the port is closed.
    async fn try_ask(&self, head: &str, body: &[u8]) -> Option<Answer> {
        self.try_ask_on(PORT, head, body).await
    }

    async fn try_ask_on(&self, port: u16, head: &str, body: &[u8]) -> Option<Answer> {
        let exchange = async {
            let mut forwarder = self.pods.portforward(&self.pod, &[port]).await.expect("forward");
            let mut stream = forwarder.take_stream(port).expect("a stream");
            let length = body.len();
            let head = format!(
                "{head} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
            );
            let head = match head.split_once(" HTTP/1.1\r\n") {
                // Further headers follow after a line break.
                Some((line, rest)) if line.contains('\n') => {
                    let (line, headers) = line.split_once('\n').expect("checked above");
                    format!("{line} HTTP/1.1\r\n{headers}\r\n{rest}")
                }
                _ => head,
            };
            // A closed port shows as an end, sometimes while writing.
            let _ = stream.write_all(&[head.as_bytes(), body].concat()).await;
            let mut all = Vec::new();
            let _ = stream.read_to_end(&mut all).await;
            all
        };
        let all = tokio::time::timeout(DEADLINE, exchange).await.expect("an answer or an end");
        let split = all.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
        let head = String::from_utf8(all[..split].to_vec()).expect("headers are text");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        Some(Answer { status, head, body: all[split + 4..].to_vec() })
    }

    async fn ask(&self, head: &str, body: &[u8]) -> Answer {
        self.try_ask(head, body).await.unwrap_or_else(|| panic!("{head}: no answer"))
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask(&format!("GET {path}"), b"").await
    }

    async fn execute(&self, request: Value) -> Value {
        let answer = self.ask("POST /execute", request.to_string().as_bytes()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    async fn run(&self, command: &str) -> (i64, String, String) {
        let result = self.execute(json!({"command": command})).await;
        let text = |name: &str| result[name].as_str().expect("text").to_owned();
        (result["exit_code"].as_i64().expect("a number"), text("stdout"), text("stderr"))
    }

    async fn upload(&self, filename: &str, content: &[u8]) -> Answer {
        let begin =
            format!("--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{filename}\"\r\n\r\n");
        let body = [begin.as_bytes(), content, b"\r\n--XX--\r\n"].concat();
        self.ask("POST /upload\ncontent-type: multipart/form-data; boundary=XX", &body).await
    }
}

async fn commands_and_files_work(guest: &Guest) {
    assert_eq!(guest.get("/").await.json()["status"], "ok");
    // No shell: neither variables nor pipes.
    assert_eq!(guest.run("echo '$HOME' | cat").await, (0, "$HOME | cat\n".to_owned(), String::new()));
    assert_eq!(guest.run("sh -c 'pwd; exit 7'").await, (7, "/workspace\n".to_owned(), String::new()));
    let variables = guest.run("sh -c 'echo $IS_SANDBOXED $SANDBOX_VERSION $ALLOWED_ROOT_DIRECTORY'").await.1;
    assert_eq!(variables, format!("true {} /workspace\n", env!("CARGO_PKG_VERSION")));
    let (code, _, problem) = guest.run("no-such-program").await;
    assert!(code == 1 && problem.contains("no-such-program"), "{problem}");
    assert_eq!(guest.run("echo 'open").await.0, 1);
    let late = guest.execute(json!({"command": "sleep 1000", "timeout_seconds": 0.2})).await;
    assert_eq!((&late["exit_code"], &late["timed_out"]), (&json!(1), &json!(true)), "{late}");
    assert_eq!(guest.ask("POST /execute", b"{}").await.status, 422);
    assert_eq!(guest.ask("POST /agent", b"{\"query\": \"x\"}").await.status, 404);
    assert_eq!(guest.get("/execute").await.status, 405);

    let content: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    let uploaded = guest.upload("dir/a b.bin", &content).await;
    assert_eq!(uploaded.status, 200, "{uploaded:?}");
    let back = guest.get("/download/dir%2Fa%20b.bin").await;
    assert!(back.status == 200 && back.body == content, "{}", back.head);
    assert!(back.head.contains("filename=\"a b.bin\""), "{}", back.head);
    let listed = guest.get("/list/").await.json();
    assert_eq!((&listed[0]["name"], &listed[0]["type"]), (&json!("dir"), &json!("directory")), "{listed}");
    let listed = guest.get("/list/dir").await.json();
    assert_eq!((&listed[0]["name"], &listed[0]["size"]), (&json!("a b.bin"), &json!(content.len())));
    assert_eq!(guest.get("/exists/%2Fdir").await.json(), json!({"path": "dir", "exists": true}));
    assert_eq!(guest.get("/exists/other").await.json()["exists"], false);
    assert_eq!(guest.get("/download/dir").await.status, 404);
    assert_eq!(guest.get("/list/other").await.status, 404);

    // No path leads out: neither by names, encoded once and twice, nor by links.
    let links = "ln -s /etc absolute; ln -s ../etc relative; ln -s ../etc/new new";
    assert_eq!(guest.run(&format!("sh -c '{links}'")).await.0, 0);
    let escapes = [
        "../etc/passwd",
        "..%2Fetc%2Fpasswd",
        "%252e%252e%252fetc%252fpasswd",
        "absolute/passwd",
        "relative/passwd",
        "dir/../../etc/passwd",
    ];
    for path in escapes {
        assert_eq!(guest.get(&format!("/download/{path}")).await.status, 403, "{path}");
        assert_eq!(guest.get(&format!("/exists/{path}")).await.status, 403, "{path}");
    }
    for path in ["..", "absolute", "%2e%2e"] {
        assert_eq!(guest.get(&format!("/list/{path}")).await.status, 403, "{path}");
    }
    for name in ["../etc/new", "/../etc/new", "absolute/new", "relative/new", "new"] {
        let refused = guest.upload(name, b"x").await;
        assert_eq!((refused.status, refused.json()), (403, json!({"message": "Access denied"})), "{name}");
    }
    assert_eq!(guest.run("ls /etc/new").await.0, 2);
}

/// Tests sandboxd's REST API, and that its gRPC port speaks HTTP/2.
async fn sandboxd_apis_work(guest: &Guest) {
    let rest = async |head: &str, body: &[u8]| {
        guest.try_ask_on(8080, head, body).await.unwrap_or_else(|| panic!("{head}: no answer"))
    };
    assert_eq!(rest("GET /v1/health", b"").await.json()["status"], "ok");
    assert_eq!(
        rest("GET /v1/metadata", b"").await.json()["env"]["SANDBOX_VERSION"],
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(rest("PUT /v1/files/made%2Ftext.txt?mode=0600", b"hello world").await.status, 204);
    let part = rest("GET /v1/files/made/text.txt\nrange: bytes=6-", b"").await;
    assert_eq!((part.status, part.body.as_slice()), (206, &b"world"[..]), "{}", part.head);
    let listed = rest("GET /v1/files/%2Fworkspace%2Fmade", b"").await.json();
    assert_eq!(
        (&listed["path"], &listed["entries"][0]["mode"]),
        (&json!("/made"), &json!("0600")),
        "{listed}"
    );
    assert_eq!(rest("HEAD /v1/files/made/other", b"").await.status, 404);
    for path in ["%2E%2E%2Fetc%2Fpasswd", "absolute/passwd"] {
        assert_eq!(rest(&format!("GET /v1/files/{path}"), b"").await.json()["code"], "PERMISSION_DENIED");
    }
    assert_eq!(rest("DELETE /v1/files/made", b"").await.json()["code"], "CONFLICT");
    assert_eq!(rest("DELETE /v1/files/made?recursive=true", b"").await.status, 204);

    let mut forwarder = guest.pods.portforward(&guest.pod, &[9090]).await.expect("forward");
    let mut stream = forwarder.take_stream(9090).expect("a stream");
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("write");
    let mut frame = [0; 9];
    let read = tokio::time::timeout(DEADLINE, stream.read_exact(&mut frame)).await;
    read.expect("an answer").expect("read");
    assert_eq!(frame[3], 4, "the first frame is SETTINGS");
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

#[test]
fn an_ordinary_users_sandbox_has_the_runtime_api() {
    let Some(home) = LocalHome::of_an_ordinary_user() else { return };
    home.up();
    runtime().block_on(async {
        let client = home.client().await;
        commands_and_files_work(&start(&client, &manifest("box", json!({}), json!({}))).await).await;
    });
}

#[test]
fn sandboxes_have_the_runtime_api_and_keep_it() {
    let Some(home) = LocalHome::new() else { return };
    let first = home.up();
    runtime().block_on(async {
        let client = home.client().await;
        let with_sandboxd = json!({"warren.dev/guest": "sandboxd"});
        let guest = start(&client, &manifest("box", with_sandboxd, json!({}))).await;
        commands_and_files_work(&guest).await;
        sandboxd_apis_work(&guest).await;

        // It is restarted when it is killed, and does not depend on the daemon.
        let kill = "sh -c 'for p in /proc/[0-9]*; do [ \"$(readlink $p/exe)\" = /.warren/guest ] && \
                    kill -9 ${p#/proc/}; done'";
        let head = "POST /execute";
        let body = json!({"command": kill}).to_string();
        assert!(guest.try_ask(head, body.as_bytes()).await.is_none(), "it dies without an answer");
        assert_eq!(guest.run("echo again").await.1, "again\n");
        kill_process(Pid::from_raw(first.cast_signed()).expect("a pid"), Signal::KILL).expect("kill");
        home.up();
        let client = home.client().await;
        let guest = Guest { pods: Api::namespaced(client.clone(), "default"), ..guest };
        assert_eq!(guest.run("cat dir/../dir/text").await.0, 1);
        assert_eq!(guest.run("echo still").await.1, "still\n");

        // Only in the pods that should have it.
        let disabled = json!({"warren.dev/guest": "disabled"});
        let without = start(&client, &manifest("without", disabled, json!({}))).await;
        assert!(without.try_ask("GET /", b"").await.is_none(), "the port is closed");
        let pod = json!({
            "metadata": {"name": "plain"},
            "spec": {"containers": [{"name": "main", "image": "warren.dev/host"}]},
        });
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        guest.pods.create(&PostParams::default(), &pod).await.expect("create");
        let invalid = manifest("invalid", json!({"warren.dev/guest": "yes"}), json!({}));
        sandbox::create(&client, "default", &invalid).await.expect("create");
        let phase = async |name: &str, wanted: &str| loop {
            let status = guest.pods.get_opt(name).await.expect("get").and_then(|pod| pod.status);
            if let Some(status) = status.filter(|status| status.phase.as_deref() == Some(wanted)) {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let waited = async { (phase("plain", "Running").await, phase("invalid", "Failed").await) };
        let (_, invalid) = tokio::time::timeout(DEADLINE, waited).await.expect("they start and fail");
        let message = invalid.message.unwrap_or_default();
        assert!(message.contains("warren.dev/guest"), "{message}");
        let plain = Guest { pods: guest.pods.clone(), pod: "plain".to_owned() };
        assert!(plain.try_ask("GET /", b"").await.is_none(), "a plain pod has none");
    });
}
