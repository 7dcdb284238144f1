//! Tests the router of the local home: access, its URL, and that restarts do not change its
//! address.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Pod, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use warren_api::Sandbox;
use warren_e2e::local_home::LocalHome;

const SYSTEM: &str = "agent-sandbox-system";

fn url(home: &LocalHome) -> String {
    home.warren(&["router-url"]).stdout.trim().to_owned()
}

/// Sends a request with some headers to a URL and returns the whole answer.
fn ask(url: &str, headers: &str) -> String {
    let address = url.strip_prefix("http://").expect("a URL");
    let mut stream = TcpStream::connect(address).expect("connect");
    write!(stream, "GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n").expect("write");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("read");
    answer
}

#[tokio::test]
async fn router_stays_where_it_was_and_its_objects_come_back() {
    let Some(home) = LocalHome::new() else { return };
    home.up();
    let first = url(&home);
    let pods: Api<Pod> = Api::namespaced(home.client().await, SYSTEM);
    let before = pods.get("sandbox-router").await.expect("read the pod");
    pods.delete("sandbox-router", &DeleteParams::default()).await.expect("delete the pod");
    let back = async {
        loop {
            let pod = pods.get_opt("sandbox-router").await.expect("read the pod");
            let running =
                |pod: &Pod| pod.status.as_ref().and_then(|it| it.phase.as_deref()) == Some("Running");
            if pod.is_some_and(|pod| pod.metadata.uid != before.metadata.uid && running(&pod)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), back).await.expect("the pod comes back");

    home.warren(&["down"]);
    home.up();
    assert_eq!(url(&home), first);
    assert!(ask(&first, "").contains("X-Sandbox-ID header is required."));
    let services: Api<Service> = Api::namespaced(home.client().await, SYSTEM);
    let service = services.get("sandbox-router-svc").await.expect("read the Service");
    let labels = service.metadata.labels.unwrap_or_default();
    assert_eq!(labels.get("app").map(String::as_str), Some("sandbox-router"));
    home.assert_nothing_left();
}

#[test]
fn other_users_of_the_machine_are_refused() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be two users");
        return;
    }
    // The home of an ordinary user: for it, root is another user.
    let Some(home) = LocalHome::of_an_ordinary_user() else { return };
    home.up();
    let url = url(&home);
    let refused = ask(&url, "");
    assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
    let own = home.as_its_user(Command::new("curl").args(["--silent", &url])).output();
    let Ok(own) = own else {
        eprintln!("skipped: no curl on this machine");
        return;
    };
    let own = String::from_utf8_lossy(&own.stdout).into_owned();
    assert!(own.contains("X-Sandbox-ID header is required."), "{own}");
}

/// Sends a request with another host than the router's address.
fn ask_by_host(url: &str, host: &str, path: &str, headers: &str) -> String {
    let address = url.strip_prefix("http://").expect("a URL");
    let mut stream = TcpStream::connect(address).expect("connect");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n")
        .expect("write");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("read");
    answer
}

const BOX: &str = "8888-box.default.localhost";

async fn create_box(client: &Client) {
    let sandbox = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "box"},
        "spec": {"podTemplate": {"spec": pod_spec()}},
    });
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), "default");
    let sandbox = serde_json::from_value(sandbox).expect("a sandbox");
    sandboxes.create(&PostParams::default(), &sandbox).await.expect("create the sandbox");
}

fn pod_spec() -> serde_json::Value {
    json!({"containers": [{"name": "main", "image": "warren.dev/host", "command": ["sleep", "1000"]}]})
}

async fn become_ready(client: &Client, names: &[&str]) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let ready = async {
        for name in names {
            loop {
                let pod = pods.get_opt(name).await.expect("read the pod");
                let status = pod.and_then(|pod| pod.status).unwrap_or_default();
                let is_ready = |it: &k8s_openapi::api::core::v1::PodCondition| {
                    it.type_ == "Ready" && it.status == "True"
                };
                if status.conditions.iter().flatten().any(is_ready) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(120), ready).await.expect("the pods become ready");
}

/// Root is another user there than the home's owner.
#[tokio::test]
async fn another_user_gets_in_with_a_token_for_one_sandbox() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be two users");
        return;
    }
    let Some(home) = LocalHome::of_an_ordinary_user() else { return };
    home.up();
    let client = home.client().await;
    create_box(&client).await;
    become_ready(&client, &["box"]).await;
    let token =
        home.warren(&["token", "create", "box", "--ttl", "10m", "--port", "8888"]).stdout.trim().to_owned();
    let key = std::fs::metadata(home.path().join("router-token-key")).expect("the key is there");
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
    let url = url(&home);
    tokio::task::spawn_blocking(move || {
        let bearer = format!("Authorization: Bearer {token}\r\n");
        let status = |answer: &str| answer.get(9..12).unwrap_or_default().to_owned();
        let answer = ask(&url, &format!("X-Sandbox-ID: box\r\n{bearer}"));
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"status\""), "{answer}");
        assert_eq!(status(&ask(&url, "X-Sandbox-ID: box\r\n")), "403");
        assert_eq!(
            status(&ask(&url, "X-Sandbox-ID: box\r\nAuthorization: Bearer v2.local.e30.AA\r\n")),
            "401"
        );
        assert_eq!(
            status(&ask(&url, &format!("X-Sandbox-ID: box\r\nX-Sandbox-Port: 22\r\n{bearer}"))),
            "403"
        );
        assert_eq!(status(&ask(&url, &format!("X-Sandbox-ID: other\r\n{bearer}"))), "403");

        // A browser: the token moves from the URL to a cookie.
        let first = ask_by_host(&url, BOX, &format!("/?warren-token={token}"), "");
        assert!(first.starts_with("HTTP/1.1 302 ") && first.contains("\r\nlocation: /\r\n"), "{first}");
        let cookie = first.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a cookie");
        let cookie = format!("Cookie: {}\r\n", cookie.split(';').next().expect("a pair"));
        assert_eq!(status(&ask_by_host(&url, BOX, "/", &cookie)), "200");
        let evil = format!("{cookie}Origin: https://evil.example\r\n");
        assert_eq!(status(&ask_by_host(&url, BOX, "/", &evil)), "403");
    })
    .await
    .expect("ask");
}

#[tokio::test]
async fn a_browser_of_the_homes_user_reaches_a_sandbox_below_localhost() {
    let Some(home) = LocalHome::new() else { return };
    home.up();
    let client = home.client().await;
    create_box(&client).await;
    become_ready(&client, &["box"]).await;
    let url = url(&home);
    tokio::task::spawn_blocking(move || {
        let own = ask_by_host(&url, BOX, "/", &format!("Origin: http://{BOX}\r\n"));
        assert!(own.starts_with("HTTP/1.1 200 ") && own.contains("\"status\""), "{own}");
        for (host, headers, status) in [
            (BOX, "Origin: https://evil.example\r\n", "403"),
            (BOX, "Origin: http://8888-other.default.localhost\r\n", "403"),
            ("8888-box.default.evil.example", "", "403"),
            ("8888-box.localhost", "", "400"),
            ("8888-nothing.default.localhost", "", "502"),
        ] {
            let answer = ask_by_host(&url, host, "/", headers);
            assert_eq!(answer.get(9..12), Some(status), "{host} {headers}: {answer}");
        }
    })
    .await
    .expect("ask");
}

#[tokio::test]
async fn a_sandbox_is_reached_by_its_name_and_no_other_pod_is() {
    let Some(home) = LocalHome::new() else { return };
    home.up();
    let url = url(&home);
    let client = home.client().await;
    create_box(&client).await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    // A pod with a sandbox's label but no Sandbox.
    let pod = json!({
        "metadata": {"name": "pretender", "labels": {"agents.x-k8s.io/sandbox-name-hash": "0"}},
        "spec": pod_spec(),
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).expect("a pod")).await.expect("create");
    become_ready(&client, &["box", "pretender"]).await;
    let (answer, pretender, nobody) = tokio::task::spawn_blocking(move || {
        let by_name = |name: &str| ask(&url, &format!("X-Sandbox-ID: {name}\r\n"));
        (by_name("box"), by_name("pretender"), by_name("nobody"))
    })
    .await
    .expect("ask");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"status\""), "{answer}");
    for (name, answer) in [("pretender", pretender), ("nobody", nobody)] {
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
        assert!(answer.contains(&format!("Could not connect to the backend sandbox: {name}")), "{answer}");
    }
}

/// Runs `warren router` as a process of its own, which asks the home's API server about its
/// clients.
#[tokio::test]
async fn users_of_the_cluster_reach_the_sandboxes_that_their_roles_name() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: pods have addresses only in root's home");
        return;
    }
    let Some(home) = LocalHome::new() else { return };
    home.up();
    let client = home.client().await;
    create_box(&client).await;
    become_ready(&client, &["box"]).await;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    let mut tokens = Vec::new();
    for name in ["friend", "stranger"] {
        create(&accounts, json!({"metadata": {"name": name}})).await;
        let request = serde_json::from_value(json!({"metadata": {}, "spec": {"audiences": []}}));
        let request: TokenRequest = request.expect("a request for a token");
        let answer = accounts.create_token_request(name, &PostParams::default(), &request).await;
        tokens.push(answer.expect("make a token").status.unwrap_or_default().token.unwrap_or_default());
    }
    let (friend, stranger) = (tokens[0].clone(), tokens[1].clone());
    let role = json!({"metadata": {"name": "box"}, "rules": [{
        "apiGroups": ["agents.x-k8s.io"], "resources": ["sandboxes/proxy"], "resourceNames": ["box"], "verbs": ["get"],
    }]});
    create(&Api::<Role>::namespaced(client.clone(), "default"), role).await;
    let binding = json!({
        "metadata": {"name": "box"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "box"},
        "subjects": [{"kind": "ServiceAccount", "name": "friend", "namespace": "default"}],
    });
    create(&Api::<RoleBinding>::namespaced(client.clone(), "default"), binding).await;

    let mut command = home.command();
    command.args(["router", "--authz-mode=tokenreview", "--http-bind-address=127.0.0.1:0"]);
    command.args(["--metrics-bind-address=0", "--health-probe-bind-address=0", "--kubeconfig"]);
    let router = command.arg(home.path().join("kubeconfig")).stderr(Stdio::piped()).spawn();
    let mut router = Running(router.expect("start the router"));
    let log = BufReader::new(router.0.stderr.take().expect("piped"));
    let ready = log.lines().map_while(Result::ok).find(|line| line.contains("ready address="));
    let ready = ready.expect("the router becomes ready");
    let address = ready.split("address=").nth(1).and_then(|rest| rest.split(' ').next()).expect("an address");
    let url = format!("http://{address}");
    tokio::task::spawn_blocking(move || {
        let ask = |token: &str, id: &str, method: &str| {
            let stream = TcpStream::connect(url.strip_prefix("http://").expect("a URL"));
            let mut stream = stream.expect("connect");
            write!(
                stream,
                "{method} / HTTP/1.1\r\nHost: router\r\nConnection: close\r\nX-Sandbox-ID: {id}\r\n\
                 Authorization: Bearer {token}\r\nContent-Length: 0\r\n\r\n"
            )
            .expect("write");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("read");
            answer.get(9..12).unwrap_or_default().to_owned()
        };
        assert_eq!(ask(&friend, "box", "GET"), "200");
        assert_eq!(ask(&friend, "box", "POST"), "403");
        assert_eq!(ask(&friend, "other", "GET"), "403");
        assert_eq!(ask(&stranger, "box", "GET"), "403");
        assert_eq!(ask("made-up", "box", "GET"), "401");
        assert_eq!(ask("", "box", "GET"), "401");
    })
    .await
    .expect("ask");
}

async fn create<K>(api: &Api<K>, object: serde_json::Value)
where
    K: Clone + DeserializeOwned + std::fmt::Debug + Serialize,
{
    let object = serde_json::from_value(object).expect("an object");
    api.create(&PostParams::default(), &object).await.expect("create");
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
