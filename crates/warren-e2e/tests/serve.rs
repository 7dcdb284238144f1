//! Tests `warren serve` against a real home: sandboxes, files, terminals that survive their viewers
//! and the service's death, and refusals of hostile clients.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use warren_api::{Sandbox, SandboxClaim, SandboxTemplate, annotations};
use warren_client::kube::ResourceExt as _;
use warren_client::kube::api::{Api, ListParams};
use warren_e2e::local_home::LocalHome;
use warren_e2e::served::{Served, Viewer, shown};
use warren_e2e::streams::DEADLINE;

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.unwrap_or_else(|_| panic!("{what} took too long"))
}

/// Creates a sandbox and waits until it runs.
async fn sandbox(served: &Served, key: &str) -> String {
    sandbox_of(served, key, r#"{"memoryMb":1024}"#).await
}

async fn sandbox_of(served: &Served, key: &str, wanted: &'static str) -> String {
    let made = served.call(key, Method::POST, "/api/sandboxes", wanted).await;
    assert_eq!(made.status.as_u16(), 201, "{:?}", made.json());
    let id = made.data()["id"].as_str().expect("an id").to_owned();
    let running = async {
        loop {
            let now = served.call(key, Method::GET, &format!("/api/sandboxes/{id}"), "").await.data();
            if now["status"] == "running" {
                return;
            }
            assert_eq!(now["status"], "creating", "{now}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within("the sandbox", running).await;
    id
}

async fn terminal(served: &Served, key: &str, sandbox: &str) -> String {
    let path = format!("/api/sandboxes/{sandbox}/terminals");
    let opened = served.call(key, Method::POST, &path, r#"{"columns":80,"rows":24}"#).await;
    assert_eq!(opened.status.as_u16(), 201, "{:?}", opened.json());
    let session = opened.data();
    assert_eq!((&session["state"], &session["sandboxId"]), (&json!("active"), &json!(sandbox)));
    session["id"].as_str().expect("an id").to_owned()
}

async fn type_in(served: &Served, key: &str, session: &str, text: &str) {
    let body = json!({ "data": STANDARD.encode(text) }).to_string();
    served.call(key, Method::POST, &format!("/api/sessions/{session}/input"), body).await.data();
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_is_used_over_http_and_leaves_nothing() {
    let Some(home) = LocalHome::new() else { return };
    let served = Served::start(&home, &[]);
    let key = served.key.clone().expect("the first start shows a key");
    let call =
        async |method: Method, path: &str, body: &str| served.call(&key, method, path, body.to_owned()).await;
    let status = call(Method::GET, "/api/status", "").await.data();
    assert_eq!(
        (&status["provider"]["name"], &status["provider"]["healthy"]),
        (&json!("warren"), &json!(true))
    );
    let id = sandbox(&served, &key).await;
    let at = |rest: &str| format!("/api/sandboxes/{id}/{rest}");
    let ran =
        call(Method::POST, &at("exec"), r#"{"cmd":"sh","args":["-c","echo out; echo err >&2; exit 7"]}"#)
            .await;
    let ran = ran.data();
    assert_eq!(
        (&ran["exitCode"], &ran["stdout"], &ran["stderr"]),
        (&json!(7), &json!("out\n"), &json!("err\n"))
    );
    let file = at("files/content?path=/tmp/deep/f%20%22x%22.txt");
    assert_eq!(call(Method::PUT, &file, "<script>hello").await.data()["size"], 13);
    let read = call(Method::GET, &file, "").await;
    assert_eq!(&read.body[..], b"<script>hello");
    assert_eq!(read.headers["content-type"], "application/octet-stream");
    assert_eq!(read.headers["x-content-type-options"], "nosniff");
    assert_eq!(read.headers["content-disposition"], "attachment; filename*=UTF-8''f%20%22x%22.txt");
    let listed = call(Method::GET, &at("files?path=/tmp/deep"), "").await.data();
    assert_eq!((&listed[0]["name"], &listed[0]["size"]), (&json!("f \"x\".txt"), &json!(13)));
    for path in ["/tmp/../etc/shadow", "/tmp/%2e%2e/etc/shadow", "etc", ""] {
        for what in ["files/content?path=", "files?path="] {
            let refused = call(Method::GET, &at(&format!("{what}{path}")), "").await;
            assert_eq!(refused.failure(), (400, "VALIDATION_ERROR".to_owned()), "{what}{path}");
        }
    }
    let missing = call(Method::GET, &at("files/content?path=/none"), "").await;
    assert_eq!(missing.failure(), (404, "SANDBOX_FILE_NOT_FOUND".to_owned()));
    assert!(call(Method::GET, &at("explain"), "").await.data()["ready"] == true);
    let metrics = call(Method::GET, &at("metrics"), "").await.data();
    assert!(metrics["memoryUsageMb"].is_number(), "{metrics}");
    let events = call(Method::GET, &at("events"), "").await.data();
    assert!(events.as_array().is_some_and(|events| !events.is_empty()), "{events}");
    assert_eq!(call(Method::GET, "/api/pools", "").await.data(), json!([]));
    assert_eq!(call(Method::GET, "/api/claims", "").await.data(), json!([]));
    let controller = call(Method::GET, "/api/sandbox/k8s/controller", "").await.data();
    assert_eq!((&controller["installed"], &controller["crdVersion"]), (&json!(true), &json!("v1beta1")));
    let setting = r#"{"value":{"memoryMb":2048}}"#;
    assert_eq!(call(Method::PUT, "/api/settings/sandbox.defaults", setting).await.data()["memoryMb"], 2048);
    assert_eq!(call(Method::GET, "/api/settings", "").await.data()["sandbox.defaults"]["memoryMb"], 2048);
    let bad = call(Method::PUT, "/api/settings/sandbox.defaults", r#"{"value":{"memoryMb":1}}"#).await;
    assert_eq!(bad.failure(), (400, "VALIDATION_ERROR".to_owned()));
    let page = served.send(served.request(Method::GET, "/sandboxes/x", &[], "")).await;
    assert!(
        page.headers["content-security-policy"]
            .to_str()
            .is_ok_and(|policy| policy.starts_with("default-src 'self'"))
    );
    call(Method::DELETE, &format!("/api/sandboxes/{id}"), "").await.data();
    let gone = async {
        while call(Method::GET, &format!("/api/sandboxes/{id}"), "").await.status.as_u16() != 404 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within("the removal", gone).await;
    let sandboxes: Api<Sandbox> = Api::default_namespaced(home.client().await);
    assert!(sandboxes.list(&ListParams::default()).await.expect("list").items.is_empty());
    // Its own files are not a leak.
    served.kill();
    home.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn task_runs_and_a_network_is_changed_over_http() {
    let Some(home) = LocalHome::new() else { return };
    let served = Served::start(&home, &[]);
    let key = served.key.clone().expect("the first start shows a key");
    let call =
        async |method: Method, path: &str, body: &str| served.call(&key, method, path, body.to_owned()).await;
    assert_eq!(call(Method::GET, "/api/tasks", "").await.data(), json!([]));
    let submit = r#"{"name":"mine","command":["sh","-c","echo $((6*7)) > $WARREN_TASK_RESULT; exit 3"]}"#;
    let submitted = call(Method::POST, "/api/tasks", submit).await;
    assert_eq!((submitted.status.as_u16(), &submitted.data()["state"]), (201, &json!("pending")));
    let ended = async {
        loop {
            let now = call(Method::GET, "/api/tasks/mine", "").await.data();
            if now["completedAt"] != Value::Null {
                return now;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let ended = within("the task", ended).await;
    assert_eq!(
        (&ended["state"], &ended["reason"], &ended["exitCode"], &ended["result"]),
        (&json!("failed"), &json!("Application"), &json!(3), &json!("42\n")),
        "{ended}"
    );
    assert_eq!(call(Method::GET, "/api/tasks/mine/log", "").await.data()["text"], "");
    for (method, path, body, status, code) in [
        (Method::POST, "/api/tasks", submit, 409, "TASK_ALREADY_EXISTS"),
        (Method::POST, "/api/tasks", "{}", 400, "VALIDATION_ERROR"),
        (Method::POST, "/api/tasks/mine/cancel", "", 409, "TASK_HAS_ENDED"),
        (Method::GET, "/api/tasks/none", "", 404, "TASK_NOT_FOUND"),
        (Method::GET, "/api/tasks/..%2f..%2fpods", "", 404, "TASK_NOT_FOUND"),
        (Method::DELETE, "/api/tasks/none", "", 404, "TASK_NOT_FOUND"),
        (Method::GET, "/api/sandboxes/none/network", "", 404, "SANDBOX_NOT_FOUND"),
        (Method::GET, "/api/sandboxes/..%2f..%2fpods/network", "", 404, "SANDBOX_NOT_FOUND"),
    ] {
        let refused = call(method, path, body).await;
        assert_eq!(refused.failure(), (status, code.to_owned()), "{path} {body}");
    }
    call(Method::DELETE, "/api/tasks/mine", "").await.data();

    let id = sandbox(&served, &key).await;
    let network = format!("/api/sandboxes/{id}/network");
    let shown = call(Method::GET, &network, "").await.data();
    assert_eq!(
        (&shown["mode"], &shown["defaultHosts"], &shown["refused"]),
        (&json!("restricted"), &json!(true), &json!([]))
    );
    for body in [
        "{}",
        r#"{"allowedHosts":["https://a"]}"#,
        r#"{"allowedPorts":["0"]}"#,
        r#"{"allowedHosts":["a"],"scope":"template"}"#,
    ] {
        let refused = call(Method::PUT, &network, body).await;
        assert_eq!(refused.failure(), (400, "VALIDATION_ERROR".to_owned()), "{body}");
    }
    let set = r#"{"allowedHosts":["*.example.com"],"allowedPorts":["443","8000-8100"]}"#;
    call(Method::PUT, &network, set).await.data();
    let allow = call(Method::POST, &format!("{network}/allow"), r#"{"host":"One.test","port":8443}"#).await;
    let allowed = allow.data();
    assert_eq!(
        (&allowed["allowedHosts"], &allowed["allowedPorts"]),
        (&json!(["*.example.com", "one.test"]), &json!(["443", "8000-8100", "8443"]))
    );
    // The pod has the lists too, and runs on.
    let pod = within("the pod's lists", allowing(&home, &id, "*.example.com,one.test")).await;
    assert_eq!(pod.status.and_then(|status| status.phase).as_deref(), Some("Running"));
}

/// Waits until a pod has a list of allowed hosts.
async fn allowing(home: &LocalHome, pod: &str, hosts: &str) -> Pod {
    let pods: Api<Pod> = Api::default_namespaced(home.client().await);
    loop {
        let pod = pods.get(pod).await.expect("the pod");
        let now = pod.annotations().get(annotations::NETWORK_ALLOWED_HOSTS);
        if now.map(String::as_str) == Some(hosts) {
            return pod;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn network_of_a_pooled_sandbox_is_changed_in_its_template() {
    let Some(home) = LocalHome::new() else { return };
    let served = Served::start(&home, &[]);
    let key = served.key.clone().expect("the first start shows a key");
    for words in [
        &["template", "create", "tools", "--image", "warren.dev/host"][..],
        &["pool", "create", "tools", "--template", "tools", "--replicas", "1"],
    ] {
        let ended = home.warren(words);
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    let id = sandbox_of(&served, &key, r#"{"pool":"tools"}"#).await;
    let network = format!("/api/sandboxes/{id}/network");
    assert_eq!(served.call(&key, Method::GET, &network, "").await.data()["template"], "tools");
    let change = |scope: &str| json!({ "allowedHosts": ["one.test"], "scope": scope }).to_string();
    let refused = served.call(&key, Method::PUT, &network, change("sandbox")).await;
    assert_eq!(refused.failure(), (409, "NETWORK_OF_TEMPLATE".to_owned()));
    served.call(&key, Method::PUT, &network, change("template")).await.data();
    let templates: Api<SandboxTemplate> = Api::default_namespaced(home.client().await);
    let template = templates.get("tools").await.expect("the template");
    let stored = &template.spec.blueprint.pod_template.metadata.annotations;
    assert_eq!(stored.get(annotations::NETWORK_ALLOWED_HOSTS).map(String::as_str), Some("one.test"));
    let claims: Api<SandboxClaim> = Api::default_namespaced(home.client().await);
    let claim = claims.get(&id).await.expect("the claim");
    let behind = claim.status.and_then(|status| status.sandbox?.name).expect("a sandbox");
    within("the pod's list", allowing(&home, &behind, "one.test")).await;
    let filled = async {
        loop {
            let pools = served.call(&key, Method::GET, "/api/pools", "").await.data();
            if pools[0]["history"].as_array().is_some_and(|all| all.iter().any(|fill| fill["ready"] == 1)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within("the history of the pool", filled).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_is_the_same_for_two_viewers_and_after_the_service_was_killed() {
    let Some(home) = LocalHome::new() else { return };
    let served = Served::start(&home, &[]);
    let key = served.key.clone().expect("the first start shows a key");
    let sandbox = sandbox(&served, &key).await;
    let session = terminal(&served, &key, &sandbox).await;
    let mut one = Viewer::follow(&served, &key, &session, 0).await;
    type_in(&served, &key, &session, "echo $((6*7))-tw'o'; stty size\n").await;
    one.until_shown("42-two\r\n24 80\r\n").await;
    served
        .call(&key, Method::POST, &format!("/api/sessions/{session}/resize"), r#"{"columns":100,"rows":30}"#)
        .await
        .data();
    type_in(&served, &key, &session, "stty size; printf '\\303\\244\\377'; exit 5\n").await;
    one.until_ended().await;
    assert!(one.shown().contains("30 100"), "{}", one.shown());
    // A second viewer, from the beginning, gets the same events.
    let mut two = Viewer::follow(&served, &key, &session, 0).await;
    two.until_ended().await;
    assert_eq!(one.events, two.events);
    let offsets: Vec<u64> = two.events.iter().filter_map(|event| event["offset"].as_u64()).collect();
    assert_eq!(offsets, (0..offsets.len() as u64).collect::<Vec<_>>());
    let ended: Value = served.call(&key, Method::GET, &format!("/api/sessions/{session}"), "").await.data();
    assert_eq!(
        (&ended["state"], &ended["exitCode"], &ended["columns"]),
        (&json!("ended"), &json!(5), &json!(100))
    );
    let late = json!({ "data": STANDARD.encode("x") }).to_string();
    let late = served.call(&key, Method::POST, &format!("/api/sessions/{session}/input"), late).await;
    assert_eq!(late.failure(), (409, "SESSION_ENDED".to_owned()));
    let cast =
        served.call(&key, Method::GET, &format!("/api/sessions/{session}/export?format=asciicast"), "").await;
    assert!(cast.body.starts_with(b"{\"version\":2") && cast.status.is_success());

    // The service is killed while a shell writes.
    let busy = terminal(&served, &key, &sandbox).await;
    let mut viewer = Viewer::follow(&served, &key, &busy, 0).await;
    type_in(&served, &key, &busy, "n=0; while :; do n=$((n+1)); echo \"line-$n-\"; done\n").await;
    viewer.until_shown("line-500-").await;
    served.kill();
    let served = Served::start(&home, &[]);
    assert_eq!(served.key, None, "the key is shown once");
    let mut after = Viewer::follow(&served, &key, &busy, 0).await;
    after.until_ended().await;
    let (seen, stored) = (viewer.events.len(), after.events.len());
    assert!(seen < stored, "the end is new: {seen} {stored}");
    assert_eq!(viewer.events[..], after.events[..seen], "what a viewer saw was stored before");
    let state: Value =
        serde_json::from_str(after.events[stored - 1]["data"].as_str().expect("text")).expect("JSON");
    assert_eq!((&state["state"], &state["reason"]), (&json!("ended"), &json!("service restarted")));
    let text = shown(&after.events);
    // The first one follows the shell's prompt sequences.
    let number = |line: &str| line.rsplit_once("line-")?.1.strip_suffix('-')?.parse::<u64>().ok();
    let lines = text.lines().filter_map(number);
    let lines: Vec<u64> = lines.collect();
    assert!(lines.len() >= 500, "{}", lines.len());
    assert_eq!(lines, (1..=lines.len() as u64).collect::<Vec<_>>(), "no line is lost or doubled");
    // The sandbox is found again, and can be used.
    let listed = served.call(&key, Method::GET, "/api/sandboxes", "").await.data();
    assert_eq!((&listed[0]["id"], &listed[0]["status"]), (&json!(sandbox), &json!("running")));
    let open = terminal(&served, &key, &sandbox).await;
    let sessions = served.call(&key, Method::GET, "/api/sessions", "").await.data();
    let states: Vec<&str> =
        sessions.as_array().expect("a list").iter().filter_map(|one| one["state"].as_str()).collect();
    assert_eq!(states, ["active", "ended", "ended"]);
    for session in [&session, &busy, &open] {
        served.call(&key, Method::DELETE, &format!("/api/sessions/{session}"), "").await.data();
    }
    assert_eq!(served.call(&key, Method::GET, "/api/sessions", "").await.data(), json!([]));
    let gone = served.call(&key, Method::GET, &format!("/api/sessions/{open}/stream"), "").await;
    assert_eq!(gone.failure(), (404, "SESSION_NOT_FOUND".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_requests_are_refused() {
    let Some(home) = LocalHome::new() else { return };
    let directory = tempfile::tempdir().expect("make a directory");
    let local = directory.path().to_str().expect("a path");
    let served = Served::start(&home, &["--local-provider", local, "--development"]);
    let key = served.key.clone().expect("the first start shows a key");
    let send = async |method: Method, path: &str, headers: &[(&str, &str)], body: &str| {
        served.send(served.request(method, path, headers, body.to_owned())).await
    };
    let bearer = format!("Bearer {key}");
    let own = ("authorization", bearer.as_str());
    assert_eq!(send(Method::GET, "/api/sandboxes", &[], "").await.failure().0, 401);
    for wrong in ["Bearer ", "Bearer warren_x", "Basic x", key.as_str()] {
        let refused = send(Method::GET, "/api/sandboxes", &[("authorization", wrong)], "").await;
        assert_eq!(refused.failure(), (401, "UNAUTHORIZED".to_owned()), "{wrong}");
    }
    assert_eq!(send(Method::GET, "/api/sandboxes", &[own], "").await.data(), json!([]));
    let file = home.path().join("service/service.db");
    let mode = std::os::unix::fs::PermissionsExt::mode(&file.metadata().expect("the file").permissions());
    assert_eq!(mode & 0o777, 0o600);
    let stored = std::fs::read(&file).expect("read");
    assert!(!stored.windows(key.len()).any(|part| part == key.as_bytes()), "the key is stored as a hash");
    // Other host names for this address.
    for host in ["evil.example", "evil.example:80", "10.0.0.1"] {
        let refused = send(Method::GET, "/api/sandboxes", &[own, ("host", host)], "").await;
        assert_eq!(refused.failure(), (421, "FOREIGN_HOST".to_owned()), "{host}");
        assert_eq!(send(Method::GET, "/", &[("host", host)], "").await.status.as_u16(), 421);
    }
    // A login, and a page of another site with the visitor's cookie.
    let origin = format!("http://{}", served.address);
    let login = json!({ "key": key }).to_string();
    let wrong = send(Method::POST, "/api/login", &[("origin", &origin)], r#"{"key":"warren_x"}"#).await;
    assert_eq!(wrong.failure().0, 401);
    let foreign = send(Method::POST, "/api/login", &[("origin", "http://evil.example")], &login).await;
    assert_eq!(foreign.failure(), (403, "FOREIGN_ORIGIN".to_owned()));
    let logged_in = send(Method::POST, "/api/login", &[("origin", &origin)], &login).await;
    let cookie = logged_in.headers["set-cookie"].to_str().expect("text").to_owned();
    for word in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(cookie.contains(word), "{cookie}");
    }
    let cookie = cookie.split(';').next().expect("a pair").to_owned();
    let mine = ("cookie", cookie.as_str());
    assert_eq!(send(Method::GET, "/api/sandboxes", &[mine], "").await.data(), json!([]));
    for headers in [&[mine][..], &[mine, ("origin", "http://evil.example")], &[mine, ("origin", "null")]] {
        let refused = send(Method::POST, "/api/sandboxes", headers, "{}").await;
        assert_eq!(refused.failure(), (403, "FOREIGN_ORIGIN".to_owned()), "{headers:?}");
    }
    let made = send(Method::POST, "/api/sandboxes", &[mine, ("origin", &origin)], "{}").await.data();
    let id = made["id"].as_str().expect("an id").to_owned();
    let huge = "x".repeat(9 << 20);
    let content = format!("/api/sandboxes/{id}/files/content?path=/f");
    let refused = send(Method::PUT, &content, &[own], &huge).await;
    assert_eq!(refused.failure(), (413, "BODY_TOO_LARGE".to_owned()));
    let refused = send(Method::POST, "/api/sandboxes", &[own], &huge[..300 << 10]).await;
    assert_eq!(refused.failure(), (413, "BODY_TOO_LARGE".to_owned()));
    for body in ["{", "[]", r#"{"hostPath":"/"}"#, r#"{"env":{"A=B":"x"}}"#] {
        let refused = send(Method::POST, "/api/sandboxes", &[own], body).await;
        assert_eq!(refused.failure(), (400, "VALIDATION_ERROR".to_owned()), "{body}");
    }
    // A path that leaves the sandbox, which here is a directory of this machine.
    let outside = send(
        Method::GET,
        &format!("/api/sandboxes/{id}/files/content?path=/../../../etc/passwd"),
        &[own],
        "",
    )
    .await;
    assert_eq!(outside.failure(), (400, "VALIDATION_ERROR".to_owned()));
    assert_eq!(send(Method::GET, "/api/nothing", &[own], "").await.failure(), (404, "NOT_FOUND".to_owned()));
    let logout = send(Method::POST, "/api/logout", &[mine, ("origin", &origin)], "").await;
    assert!(logout.status.is_success());
    assert_eq!(send(Method::GET, "/api/sandboxes", &[mine], "").await.failure().0, 401);
    let deleted = send(Method::DELETE, &format!("/api/sandboxes/{id}"), &[own], "").await;
    assert!(deleted.status.is_success());
    assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), 0, "nothing is left");
}
