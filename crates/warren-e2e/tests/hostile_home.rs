//! Tests hostile clients of a real home: thousands of idle watches, and terminals that send invalid
//! frames.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use warren_api::Sandbox;
use warren_client::sandbox;
use warren_e2e::embedded::connect;
use warren_e2e::local_home::LocalHome;
use warren_e2e::memory::resident_bytes;

const DEADLINE: Duration = Duration::from_secs(120);
/// The default limit on one user's watches.
const WATCHES: usize = 5000;
/// The most memory that an idle watch may cost the daemon, in a debug build.
const BYTES_PER_WATCH: u64 = 64 << 10;

/// Reads until the given text has come; returns everything read.
async fn read_until(stream: &mut UnixStream, text: &str) -> String {
    let reading = async {
        let mut all = Vec::new();
        let mut buffer = [0; 4096];
        while !String::from_utf8_lossy(&all).contains(text) {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(count) => all.extend_from_slice(&buffer[..count]),
            }
        }
        String::from_utf8_lossy(&all).into_owned()
    };
    tokio::time::timeout(DEADLINE, reading).await.unwrap_or_else(|_| panic!("`{text}` never came"))
}

#[tokio::test]
async fn thousands_of_idle_watches_are_cheap_and_bounded() {
    let Some(home) = LocalHome::new() else { return };
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < 16_384) {
        eprintln!(
            "skipped: no process may have thousands of files open here, neither the daemon nor this one"
        );
        return;
    }
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
        .expect("raise the limit of open files");
    let daemon = home.up();
    let socket = home.path().join("api.sock");
    let head =
        "GET /api/v1/namespaces/default/configmaps?watch=true&labelSelector=idle HTTP/1.1\r\nHost: x\r\n\r\n";
    let before = resident_bytes(daemon).expect("a running daemon");
    let mut watches = Vec::with_capacity(WATCHES);
    for _ in 0..WATCHES {
        let mut stream = connect(&socket).await;
        stream.write_all(head.as_bytes()).await.expect("ask");
        watches.push(stream);
    }
    for stream in &mut watches {
        let answer = read_until(stream, "\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let grown = resident_bytes(daemon).expect("a running daemon").saturating_sub(before);
    println!("{WATCHES} idle watches take {} MB, {} KB each", grown >> 20, (grown / WATCHES as u64) >> 10);
    assert!(grown < WATCHES as u64 * BYTES_PER_WATCH, "{WATCHES} idle watches take {} MB", grown >> 20);

    // One more is refused; everything else goes on.
    let mut another = connect(&socket).await;
    another.write_all(head.as_bytes()).await.expect("ask");
    let refused = read_until(&mut another, "}").await;
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
    let body = json!({"metadata": {"name": "event", "labels": {"idle": "no"}}}).to_string();
    let mut writer = connect(&socket).await;
    let create = format!(
        "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    writer.write_all(create.as_bytes()).await.expect("write");
    let created = read_until(&mut writer, "\r\n\r\n").await;
    assert!(created.starts_with("HTTP/1.1 201"), "{created}");
    for stream in &mut watches {
        read_until(stream, "ADDED").await;
    }
}

/// Returns a client's WebSocket frame, valid or nearly.
fn frame(random: &mut fastrand::Rng) -> Vec<u8> {
    let payload: Vec<u8> = match random.u8(..6) {
        0 => b"\x04{\"Width\":65536,\"Height\":-1}".to_vec(),
        1 => vec![255, random.u8(..)],
        2 => Vec::new(),
        3 => [vec![0], vec![b'x'; random.usize(..70_000)]].concat(),
        _ => (0..random.usize(1..40)).map(|_| random.u8(..)).collect(),
    };
    let opcode = *[1, 2, 2, 2, 8, 9, 0, 3, 15].get(random.usize(..9)).unwrap_or(&2);
    let first =
        opcode | if random.u8(..8) > 0 { 0x80 } else { 0 } | if random.u8(..20) == 0 { 0x40 } else { 0 };
    let mut frame = vec![first];
    let masked = if random.u8(..15) > 0 { 0x80 } else { 0 };
    let claimed = if random.u8(..20) == 0 { random.usize(..) } else { payload.len() };
    match claimed {
        0..126 => frame.push(masked | claimed as u8),
        126..65_536 => {
            frame.push(masked | 126);
            frame.extend((claimed as u16).to_be_bytes());
        }
        _ => {
            frame.push(masked | 127);
            frame.extend((claimed as u64).to_be_bytes());
        }
    }
    let mask = random.u32(..).to_ne_bytes();
    if masked != 0 {
        frame.extend(mask);
    }
    let masks = mask.iter().cycle();
    frame.extend(payload.iter().zip(masks).map(|(byte, mask)| if masked != 0 { byte ^ mask } else { *byte }));
    frame
}

#[tokio::test]
async fn nonsense_on_the_channels_of_an_exec_harms_nobody() {
    let Some(home) = LocalHome::new() else { return };
    let daemon = home.up();
    let client = home.client().await;
    let manifest: Sandbox = serde_json::from_value(json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": { "name": "target" },
        "spec": { "podTemplate": { "spec": {
            "containers": [{"name": "main", "image": "warren.dev/host", "command": ["sleep", "100000"]}],
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
        } } },
    }))
    .expect("a sandbox");
    let created = sandbox::create(&client, "default", &manifest).await.expect("create");
    let ready = sandbox::wait_ready(&client, created, DEADLINE).await.expect("become Ready");
    let socket = home.path().join("api.sock");
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let before = resident_bytes(daemon).expect("a running daemon");
    for _ in 0..120 {
        let mut stream = connect(&socket).await;
        let tty = if random.bool() { "&tty=true" } else { "&stderr=true" };
        let protocol = *["v5.channel.k8s.io", "v4.channel.k8s.io"].get(random.usize(..2)).unwrap_or(&"");
        let head = format!(
            "GET /api/v1/namespaces/default/pods/{}/exec?command=cat&stdin=true&stdout=true{tty} HTTP/1.1\r\nHost: x\r\n\
             Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n",
            sandbox::pod_name(&ready)
        );
        stream.write_all(head.as_bytes()).await.expect("ask");
        let answer = read_until(&mut stream, "\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
        for _ in 0..random.usize(1..30) {
            // After enough invalid frames it closes the connection.
            if stream.write_all(&frame(&mut random)).await.is_err() {
                break;
            }
        }
        if random.bool() {
            let mut buffer = [0; 4096];
            let _ = tokio::time::timeout(Duration::from_millis(20), stream.read(&mut buffer)).await;
        }
    }
    let grown = resident_bytes(daemon).expect("the same daemon is still there").saturating_sub(before);
    assert!(grown < 128 << 20, "{} MB more than before", grown >> 20);
    let again = home.shell("echo still here");
    assert_eq!((again.code, again.stdout.as_str()), (Some(0), "still here\n"), "{again:?}");
    sandbox::delete(&client, &ready).await.expect("delete");
    home.assert_nothing_left();
}
