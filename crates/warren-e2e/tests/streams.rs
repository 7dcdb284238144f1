//! Tests attach, terminals, forwarded ports, logs and usage with kube-rs.

use futures::SinkExt as _;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use warren_client::kube::api::{AttachParams, LogParams, TerminalSize};
use warren_e2e::streams::{DEADLINE, Pods, exit_code};

/// Reads until this text has come, and returns everything read.
async fn read_until(stream: &mut (impl AsyncRead + Unpin), wanted: &str) -> String {
    let mut seen = String::new();
    let reading = async {
        while !seen.contains(wanted) {
            let mut buffer = [0; 4096];
            let length = stream.read(&mut buffer).await.expect("read");
            assert!(length > 0, "ended before {wanted:?}: {seen:?}");
            seen.push_str(&String::from_utf8_lossy(&buffer[..length]));
        }
    };
    if tokio::time::timeout(DEADLINE, reading).await.is_err() {
        panic!("waited in vain for {wanted:?}: {seen:?}");
    }
    seen
}

async fn read_to_end(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut text = String::new();
    tokio::time::timeout(DEADLINE, stream.read_to_string(&mut text)).await.expect("ends").expect("read");
    text
}

#[tokio::test]
async fn an_attached_client_sees_both_streams_and_ends_the_input() {
    let Some(pods) = Pods::up().await else { return };
    let script = "while read line; do echo \"out $line\"; echo \"err $line\" >&2; done; echo over; exit 5";
    let container = json!({"command": ["sh", "-c", script], "stdin": true, "stdinOnce": true});
    pods.start("once", "Never", container).await;
    let mut attached =
        pods.api.attach("once", &AttachParams::default().stdin(true).stderr(true)).await.expect("attach");
    let (mut stdin, mut stdout, mut stderr) = (
        attached.stdin().expect("stdin"),
        attached.stdout().expect("stdout"),
        attached.stderr().expect("stderr"),
    );
    stdin.write_all(b"one\n").await.expect("write");
    stdin.flush().await.expect("flush");
    assert_eq!(read_until(&mut stdout, "one\n").await, "out one\n");
    assert_eq!(read_until(&mut stderr, "one\n").await, "err one\n");
    stdin.shutdown().await.expect("close");
    drop(stdin);
    assert_eq!(read_to_end(&mut stdout).await, "over\n");
    pods.wait("once", "ended", |pod: &Pod| exit_code(pod) == Some(5)).await;
    let log = pods.api.logs("once", &LogParams::default()).await.expect("logs");
    assert!(log.contains("out one\n") && log.contains("err one\n") && log.ends_with("over\n"), "{log}");
}

#[tokio::test]
async fn terminals_have_the_size_of_their_clients() {
    let Some(pods) = Pods::up().await else { return };
    let container =
        json!({"command": ["sh"], "stdin": true, "tty": true, "env": [{"name": "PS1", "value": "> "}]});
    pods.start("shell", "Never", container).await;
    let interactive = AttachParams::interactive_tty();
    // The container's own terminal, and one of an exec beside it.
    for exec in [true, false] {
        let mut process = match exec {
            true => pods.api.exec("shell", ["sh"], &interactive).await.expect("exec"),
            false => pods.api.attach("shell", &interactive).await.expect("attach"),
        };
        let (mut stdin, mut stdout) = (process.stdin().expect("stdin"), process.stdout().expect("stdout"));
        let mut size = process.terminal_size().expect("a terminal");
        for (width, height) in [(101, 33), (120, 44)] {
            size.send(TerminalSize { width, height }).await.expect("resize");
            // Sizes and input arrive in order, but input may be read before the new size is.
            let typed = format!(
                "until [ \"$(stty size)\" = '{height} {width}' ]; do :; done; echo is-$((6*7)); tty\n"
            );
            stdin.write_all(typed.as_bytes()).await.expect("type");
            stdin.flush().await.expect("flush");
            let seen = read_until(&mut stdout, "/dev/pts/").await;
            assert!(seen.contains("is-42\r\n"), "{seen:?}");
        }
        stdin.write_all(b"exit 3\n").await.expect("type");
        stdin.flush().await.expect("flush");
        let status = process.take_status().expect("a status");
        let status = tokio::time::timeout(DEADLINE, status).await.expect("ends").expect("a status");
        // An exec has a status of its own; that of the container is in the pod's status.
        let reason = if exec { Some("NonZeroExitCode") } else { None };
        assert_eq!(status.reason.as_deref(), reason, "{status:?}");
    }
    pods.wait("shell", "ended", |pod: &Pod| exit_code(pod) == Some(3)).await;
}

#[tokio::test]
async fn ports_are_forwarded_both_ways_and_a_closed_one_says_so() {
    let Some(pods) = Pods::up().await else { return };
    if !pods.start_echo("echo", 8080).await {
        return;
    }
    let data: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    let mut forwarder = pods.api.portforward("echo", &[8080, 9]).await.expect("forward");
    let stream = forwarder.take_stream(8080).expect("a stream");
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut back = vec![0; data.len()];
    let both = async { tokio::join!(writer.write_all(&data), reader.read_exact(&mut back)) };
    let (written, read) = tokio::time::timeout(DEADLINE, both).await.expect("all of it comes back");
    written.expect("write");
    read.expect("read");
    assert!(back == data, "the same comes back");
    let problem = forwarder.take_error(9).expect("an error stream");
    let problem = tokio::time::timeout(DEADLINE, problem).await.expect("it is said").expect("a message");
    assert!(problem.contains("error forwarding port 9 to pod default/echo"), "{problem}");
    assert!(problem.contains("refused"), "{problem}");
    drop((reader, writer));
    forwarder.abort();

    // Many at once, each a session of its own.
    let sessions = (0..20_u8).map(|number| {
        let api = pods.api.clone();
        async move {
            let mut forwarder = api.portforward("echo", &[8080]).await.expect("forward");
            let mut stream = forwarder.take_stream(8080).expect("a stream");
            stream.write_all(&[number; 1000]).await.expect("write");
            let mut back = [0; 1000];
            stream.read_exact(&mut back).await.expect("read");
            assert_eq!(back, [number; 1000]);
        }
    });
    tokio::time::timeout(DEADLINE, futures::future::join_all(sessions)).await.expect("all of them");
}

#[tokio::test]
async fn logs_are_those_of_the_run_and_the_lines_that_were_asked_for() {
    let Some(pods) = Pods::up().await else { return };
    // The second run, and only it, continues.
    let script = "test -e /data/again && { for n in 1 2 3 4 5; do echo second $n; done; exec sleep 1000; }; \
                  touch /data/again; echo first; exit 1";
    let pod = json!({
        "metadata": {"name": "logs"},
        "spec": {
            "volumes": [{"name": "data", "emptyDir": {}}],
            "initContainers": [{"name": "before", "image": "warren.dev/host", "command": ["echo", "prepared"]}],
            "containers": [{
                "name": "main", "image": "warren.dev/host", "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
        },
    });
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    pods.api.create(&Default::default(), &pod).await.expect("create the pod");
    let restarted = |pod: &Pod| {
        let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
        statuses.and_then(|all| all.first()).is_some_and(|status| status.restart_count == 1 && status.ready)
    };
    pods.wait("logs", "was started again", restarted).await;
    pods.wait_for_log("logs", "second 5\n").await;
    let read = async |parameters: LogParams| pods.api.logs("logs", &parameters).await.expect("logs");
    let before = LogParams { container: Some("before".to_owned()), ..LogParams::default() };
    assert_eq!(read(before).await, "prepared\n");
    assert_eq!(read(LogParams { previous: true, ..LogParams::default() }).await, "first\n");
    let tail = LogParams { tail_lines: Some(2), ..LogParams::default() };
    assert_eq!(read(tail.clone()).await, "second 4\nsecond 5\n");
    let timed = read(LogParams { timestamps: true, tail_lines: Some(1), ..LogParams::default() }).await;
    let (time, text) = timed.split_once(' ').expect("a time and a line");
    assert_eq!(text, "second 5\n");
    let time: jiff::Timestamp = time.parse().expect("a time");
    // kube-rs asks in whole seconds.
    let (before, after) =
        (time - jiff::SignedDuration::from_hours(1), time + jiff::SignedDuration::from_hours(1));
    assert_eq!(read(LogParams { since_time: Some(after), ..LogParams::default() }).await, "");
    assert!(
        read(LogParams { since_time: Some(before), ..LogParams::default() }).await.ends_with("second 5\n")
    );
    assert_eq!(read(LogParams { limit_bytes: Some(8), ..LogParams::default() }).await, "second 1");
    assert!(read(LogParams { since_seconds: Some(3600), ..tail }).await.ends_with("second 5\n"));
}

#[tokio::test]
async fn what_pods_and_nodes_use_is_measured() {
    let Some(pods) = Pods::up().await else { return };
    let busy = json!({
        "command": ["sh", "-c", "while :; do :; done"],
        "resources": {"limits": {"cpu": "200m", "memory": "64Mi"}},
    });
    pods.start("busy", "Never", busy).await;
    pods.start("idle", "Never", json!({"command": ["sleep", "1000"]})).await;
    let client = pods.home.client().await;
    let read = async |path: &str| -> Result<Value, kube::Error> {
        let path = format!("/apis/metrics.k8s.io/v1beta1{path}");
        client.request(http::Request::get(path).body(Vec::new()).expect("a request")).await
    };
    let list = read("/namespaces/default/pods").await.expect("metrics of pods");
    assert_eq!(list["kind"], "PodMetricsList");
    let cpu = |name: &str| {
        let items = list["items"].as_array().expect("items");
        let item = items.iter().find(|item| item["metadata"]["name"] == name).expect(name);
        let usage = &item["containers"][0]["usage"];
        assert!(usage["memory"].as_str().is_some_and(|memory| memory.ends_with('i')), "{item}");
        nanocores(usage["cpu"].as_str().expect("a quantity"))
    };
    // The busy pod's usage depends on the machine, but it gets most of what the two use.
    assert!(cpu("busy") > 1_000_000 && cpu("busy") > 2 * cpu("idle"), "{list}");
    let selected = read("/pods?labelSelector=app%3Didle").await.expect("metrics by label");
    assert_eq!(selected["items"].as_array().map(Vec::len), Some(1), "{selected}");
    let one = read("/namespaces/default/pods/idle").await.expect("metrics of one pod");
    assert_eq!((&one["kind"], &one["metadata"]["name"]), (&"PodMetrics".into(), &"idle".into()));
    let missing = read("/namespaces/default/pods/none").await.expect_err("there is none").to_string();
    assert!(missing.contains("podmetrics.metrics.k8s.io \"default/none\" not found"), "{missing}");
    let nodes = read("/nodes").await.expect("metrics of nodes");
    let usage = &nodes["items"][0]["usage"];
    assert!(nanocores(usage["cpu"].as_str().expect("a quantity")) > 0, "{nodes}");

    let node = nodes["items"][0]["metadata"]["name"].as_str().expect("a name");
    let page = format!("/api/v1/nodes/{node}/proxy/metrics/resource");
    let page = client.request_text(http::Request::get(page).body(Vec::new()).expect("a request")).await;
    let page = page.expect("a page");
    let counter = "container_cpu_usage_seconds_total{container=\"main\",namespace=\"default\",pod=\"busy\"} ";
    assert!(page.contains(counter) && page.contains("\nscrape_error 0\n"), "{page}");
}

/// Parses a quantity of processors into billionths.
fn nanocores(quantity: &str) -> u64 {
    let digits = quantity.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let factor = match &quantity[digits.len()..] {
        "n" => 1,
        "u" => 1_000,
        "m" => 1_000_000,
        _ => 1_000_000_000,
    };
    digits.parse::<u64>().expect("a number") * factor
}
