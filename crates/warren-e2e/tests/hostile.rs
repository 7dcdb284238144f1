//! Tests hostile clients: they are refused, and other clients are served.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use warren_apiserver::Limits;
use warren_e2e::embedded::Embedded;
use warren_e2e::fuzz::{self, Kind};

const DEADLINE: Duration = Duration::from_secs(60);
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// The number of requests of each kind: enough to reveal a decoder without a bound, and few enough
/// for every run of the tests. `cargo run --package warren-e2e --bin fuzz` runs as long as needed.
const REQUESTS: u64 = 250;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_are_nearly_right_do_no_harm() {
    let before = fuzz::resident_bytes();
    for kind in Kind::ALL {
        let seed = fastrand::u64(..);
        match fuzz::run_epoch(kind, seed, REQUESTS).await {
            Ok(tally) => println!("{}, epoch seed {seed}: {tally}", kind.name()),
            Err(finding) => panic!("{finding}"),
        }
    }
    let grown = fuzz::resident_bytes().saturating_sub(before);
    assert!(grown < 512 << 20, "{} MB more than before", grown >> 20);
}

/// Reads one answer: head and as much of the body as `Content-Length` says.
async fn answer(stream: &mut UnixStream) -> (u16, String) {
    let read = async {
        let mut all = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let text = String::from_utf8_lossy(&all);
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| {
                    let (name, value) = line.split_once(": ")?;
                    name.eq_ignore_ascii_case("content-length").then(|| value.parse::<usize>().ok())?
                });
                if length.is_none_or(|length| body.len() >= length) {
                    break;
                }
            }
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(count) => all.extend_from_slice(&buffer[..count]),
            }
        }
        String::from_utf8_lossy(&all).into_owned()
    };
    let text = tokio::time::timeout(DEADLINE, read).await.expect("an answer");
    let code = text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (code, text)
}

async fn say(stream: &mut UnixStream, text: &str) {
    // A server that has closed the connection gives the reason in its answer.
    let _ = stream.write_all(text.as_bytes()).await;
}

async fn get(server: &Embedded, path: &str) -> (u16, String) {
    let mut stream = server.connect().await;
    say(&mut stream, &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).await;
    answer(&mut stream).await
}

/// Sends a create whose body is announced and does not come.
async fn stuck(server: &Embedded) -> UnixStream {
    let mut stream = server.connect().await;
    let head = format!("POST {CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{{");
    say(&mut stream, &head).await;
    stream
}

/// Repeats a request until the expected answer comes.
async fn until(server: &Embedded, path: &str, code: u16) -> String {
    let asking = async {
        loop {
            let (actual, text) = get(server, path).await;
            if actual == code {
                return text;
            }
        }
    };
    tokio::time::timeout(DEADLINE, asking).await.unwrap_or_else(|_| panic!("{path} never answered {code}"))
}

#[tokio::test]
async fn slow_clients_are_given_up() {
    // Long enough that this test itself is never the slow one, even on a busy machine.
    let time = Duration::from_secs(2);
    let server = Embedded::start(Limits { body_time: time, head_time: time, ..Limits::default() }).await;
    let (code, text) = answer(&mut stuck(&server).await).await;
    assert_eq!(code, 408, "{text}");
    assert!(text.contains(r#""reason":"Timeout""#), "{text}");

    let mut half_a_head = server.connect().await;
    say(&mut half_a_head, "GET / HTTP/1.1\r\nHost").await;
    assert!(matches!(answer(&mut half_a_head).await.0, 0 | 408), "closed without a word or with this one");
    let mut silent = server.connect().await;
    assert_eq!(answer(&mut silent).await, (0, String::new()), "closed");
    until(&server, "/api/v1/namespaces", 200).await;
    server.stop().await;
}

#[tokio::test]
async fn one_client_has_so_many_requests_and_watches_under_way() {
    let server =
        Embedded::start(Limits { requests_per_client: 4, watches_per_client: 3, ..Limits::default() }).await;
    let mut stuck_ones = Vec::new();
    for _ in 0..4 {
        stuck_ones.push(stuck(&server).await);
    }
    let refused = until(&server, "/api/v1/namespaces", 429).await;
    assert!(refused.to_lowercase().contains("retry-after: 1"), "{refused}");
    assert!(refused.contains(r#""reason":"TooManyRequests""#), "{refused}");
    assert!(refused.contains("system:admin"), "it is counted as the user that it is: {refused}");

    // Watches are counted apart from requests.
    let watch = format!("{CONFIG_MAPS}?watch=true");
    let mut watches = Vec::new();
    for _ in 0..3 {
        let mut stream = server.connect().await;
        say(&mut stream, &format!("GET {watch} HTTP/1.1\r\nHost: x\r\n\r\n")).await;
        assert_eq!(answer(&mut stream).await.0, 200);
        watches.push(stream);
    }
    assert_eq!(get(&server, &watch).await.0, 429);
    // A client that disconnects frees its place.
    drop(watches.pop());
    let mut again = server.connect().await;
    tokio::time::timeout(DEADLINE, async {
        loop {
            say(&mut again, &format!("GET {watch} HTTP/1.1\r\nHost: x\r\n\r\n")).await;
            if answer(&mut again).await.0 == 200 {
                break;
            }
        }
    })
    .await
    .expect("a watch after another has ended");
    drop(stuck_ones);
    until(&server, "/api/v1/namespaces", 200).await;
    server.stop().await;
}

#[tokio::test]
async fn bodies_and_objects_have_a_largest_size() {
    let server = Embedded::start(Limits::default()).await;
    let post = async |body: &str| {
        let mut stream = server.connect().await;
        let length = body.len();
        let head = format!(
            "POST {CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        let (mut reader, mut writer) = stream.split();
        // The answer may come before the body has been sent, and the rest of it is then refused.
        let (_, text) = tokio::join!(
            async {
                let _ = writer.write_all(head.as_bytes()).await;
                let _ = writer.write_all(body.as_bytes()).await;
            },
            async {
                let mut text = Vec::new();
                let _ = tokio::time::timeout(DEADLINE, reader.read_to_end(&mut text)).await;
                String::from_utf8_lossy(&text).into_owned()
            }
        );
        text.split(' ').nth(1).and_then(|code| code.parse::<u16>().ok()).unwrap_or(0)
    };
    let padded =
        |size: usize| json!({"metadata": {"name": "large"}, "data": {"x": "y".repeat(size)}}).to_string();
    assert_eq!(post(&padded(1000)).await, 201);
    assert_eq!(post(&padded(4 << 20)).await, 413);
    let deep = format!(
        r#"{{"metadata":{{"name":"deep"}},"data":{}{}}}"#,
        r#"{"a":"#.repeat(100_000),
        "}".repeat(100_000)
    );
    assert_eq!(post(&deep).await, 400);
    server.stop().await;
}

#[tokio::test]
async fn a_patch_cannot_nest_or_copy_without_end() {
    let server = Embedded::start(Limits::default()).await;
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client());
    let map: ConfigMap =
        serde_json::from_value(json!({"metadata": {"name": "victim"}, "data": {"a": "x".repeat(1000)}}))
            .expect("a map");
    maps.create(&PostParams::default(), &map).await.expect("create");
    let refused = async |operations: Value| {
        let patch: Patch<ConfigMap> = Patch::Json(serde_json::from_value(operations).expect("a patch"));
        match maps.patch("victim", &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) => status.code,
            other => panic!("{other:?}"),
        }
    };
    let copies: Vec<Value> =
        (0..40).map(|n| json!({"op": "copy", "from": "", "path": format!("/copy{n}")})).collect();
    assert_eq!(refused(copies.into()).await, 413);
    let deep = (0..100).fold(json!({}), |inner, _| json!({ "a": inner }));
    let nest: Vec<Value> = (0..5)
        .map(|level| json!({"op": "add", "path": "/a".repeat(level * 100 + 1), "value": deep}))
        .collect();
    assert_eq!(refused(nest.into()).await, 400);
    assert_eq!(maps.get("victim").await.expect("still there").data.map(|data| data.len()), Some(1));
    server.stop().await;
}

#[tokio::test]
async fn a_definition_cannot_nest_its_expressions_without_end() {
    let server = Embedded::start(Limits::default()).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(server.client());
    for rule in [
        "(".repeat(20_000),
        "!".repeat(20_000),
        "[".repeat(20_000),
        "true ? ".repeat(20_000),
        "self.a".repeat(9000),
    ] {
        let rules = json!([{ "rule": rule, "message": "x" }]);
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-validations": rules}}});
        let version =
            json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
        let names = json!({"plural": "nests", "singular": "nest", "kind": "Nest"});
        let definition = json!({"metadata": {"name": "nests.example.com"},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}});
        let definition: CustomResourceDefinition = serde_json::from_value(definition).expect("a definition");
        match definitions.create(&PostParams::default(), &definition).await {
            Err(kube::Error::Api(status)) => assert!((400..500).contains(&status.code), "{status:?}"),
            other => panic!("{rule:.80}: {other:?}"),
        }
    }
    assert_eq!(get(&server, "/api/v1/namespaces").await.0, 200);
    server.stop().await;
}

#[tokio::test]
async fn writes_are_logged_with_everything_but_what_they_say() {
    let server = Embedded::start(Limits::default()).await;
    let (path, log) = ("/api/v1/namespaces/default/secrets", server.audit_log());
    let body =
        json!({"metadata": {"generateName": "hidden-"}, "stringData": {"password": "hunter2"}}).to_string();
    let mut stream = server.connect().await;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nUser-Agent: test/1\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    say(&mut stream, &head).await;
    let (code, text) = answer(&mut stream).await;
    assert_eq!(code, 201, "{text}");
    let id = text.lines().find_map(|line| line.strip_prefix("audit-id: ")).expect("an id").to_owned();
    let secrets: Api<Secret> = Api::default_namespaced(server.client());
    let name = secrets.list(&Default::default()).await.expect("list").items[0]
        .metadata
        .name
        .clone()
        .expect("a name");
    let _ = secrets.delete("nothing", &Default::default()).await;
    get(&server, path).await;
    let _directory = server.stop().await;

    let text = std::fs::read_to_string(log).expect("read the log");
    assert!(!text.contains("hunter2"), "{text}");
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(events.len(), 2, "reads are not logged: {text}");
    let created = &events[0];
    assert_eq!(
        (&created["kind"], &created["apiVersion"], &created["level"], &created["verb"], &created["auditID"]),
        (&json!("Event"), &json!("audit.k8s.io/v1"), &json!("Metadata"), &json!("create"), &json!(id))
    );
    assert_eq!(
        created["objectRef"],
        json!({"resource": "secrets", "namespace": "default", "apiVersion": "v1", "name": name})
    );
    assert_eq!(
        (&created["user"]["username"], &created["responseStatus"]["code"]),
        (&json!("system:admin"), &json!(201))
    );
    assert_eq!(created["userAgent"], "test/1");
    for time in ["requestReceivedTimestamp", "stageTimestamp"] {
        assert!(
            created[time].as_str().is_some_and(|time| time.parse::<jiff::Timestamp>().is_ok()),
            "{created}"
        );
    }
    assert_eq!((&events[1]["verb"], &events[1]["responseStatus"]["code"]), (&json!("delete"), &json!(404)));
}
