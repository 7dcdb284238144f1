//! Clients that try to reach what they may not, and sandboxes that try to take the router down.

use std::sync::atomic::Ordering;

use tokio::io::AsyncReadExt as _;
use tokio::io::AsyncWriteExt as _;
use warren_router::Config;

use crate::{HEAD, OK, Peer, Setting};

const TWO: &str = "GET / HTTP/1.1\r\nHost: router\r\nX-Sandbox-ID: two\r\nConnection: close\r\n\r\n";

fn urls(config: &mut Config) {
    config.path_routing_prefix = Some("/s".to_owned());
    config.host_routing_domain = Some("box.example".to_owned());
}

/// Every spelling of an address that is not a sandbox's.
const ADDRESSES: [&str; 24] = [
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0x7f.0.0.1",
    "0177.0.0.1",
    "017700000001",
    "0",
    "0.0.0.0",
    "169.254.169.254",
    "2852039166",
    "0251.0376.0251.0376",
    "::1",
    "[::1]",
    "::",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:a9fe:a9fe",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "fe80::1%25eth0",
    "fd00:ec2::254",
    "10.9.8.8",
];

#[tokio::test]
async fn no_spelling_of_an_address_leads_out_of_the_table() {
    let setting = Setting::new(urls).await;
    for address in ADDRESSES {
        for asked in [
            format!("GET / HTTP/1.1\r\n{HEAD}X-Sandbox-Pod-IP: {address}\r\n\r\n"),
            format!("GET / HTTP/1.1\r\nHost: router\r\nConnection: close\r\nX-Sandbox-ID: {address}\r\n\r\n"),
            format!("GET / HTTP/1.1\r\n{HEAD}X-Sandbox-Namespace: {address}\r\n\r\n"),
            format!("GET / HTTP/1.1\r\n{HEAD}X-Sandbox-Port: 80@{address}\r\n\r\n"),
            format!("GET /s/default/{address}/80/ HTTP/1.1\r\nHost: router\r\nConnection: close\r\n\r\n"),
            format!("GET /s/{address}/box/80/ HTTP/1.1\r\nHost: router\r\nConnection: close\r\n\r\n"),
            format!("GET / HTTP/1.1\r\nHost: 80-{address}.default.box.example\r\nConnection: close\r\n\r\n"),
            format!("GET / HTTP/1.1\r\nHost: 80-box.{address}.box.example\r\nConnection: close\r\n\r\n"),
            format!("GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"),
            format!("GET http://{address}/ HTTP/1.1\r\nHost: router\r\nConnection: close\r\n\r\n"),
        ] {
            let answer = setting.ask(&asked).await;
            let refused = answer.starts_with("HTTP/1.1 400 ") || answer.starts_with("HTTP/1.1 502 ");
            assert!(refused, "{asked}{answer}");
        }
    }
    let connect = "CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\nX-Sandbox-ID: box\r\nConnection: close\r\n\r\n";
    assert!(setting.ask(connect).await.starts_with("HTTP/1.1 400 "));
    assert_eq!(setting.dialled.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_whole_url_as_target_is_sent_to_the_sandbox_of_the_headers_as_a_path() {
    let setting = Setting::new(|_| {}).await;
    let asked = format!("GET http://169.254.169.254/latest/meta-data HTTP/1.1\r\n{HEAD}\r\n");
    let (_, head) = setting.exchange(&asked, OK).await;
    assert!(head.starts_with("GET /latest/meta-data HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("host: 10.9.8.7:8888\r\n"), "{head}");
}

#[tokio::test]
async fn redirects_of_a_sandbox_are_not_followed() {
    let setting = Setting::new(|_| {}).await;
    let asked = format!("GET / HTTP/1.1\r\n{HEAD}\r\n");
    let location = "http://169.254.169.254/latest";
    let redirect =
        format!("HTTP/1.1 307 Temporary Redirect\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n");
    let (answer, _) = setting.exchange(&asked, &redirect).await;
    assert!(answer.starts_with("HTTP/1.1 307 ") && answer.contains(location), "{answer}");
    assert_eq!(setting.dialled.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn two_lengths_of_one_request_are_refused() {
    let setting = Setting::new(|_| {}).await;
    for lengths in [
        "Content-Length: 4\r\nContent-Length: 5\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: +4\r\n",
        "Content-Length: 4, 5\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
    ] {
        let answer = setting.ask(&format!("POST / HTTP/1.1\r\n{HEAD}{lengths}\r\nabcd")).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{lengths}: {answer}");
    }
    assert_eq!(setting.dialled.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn heads_beyond_the_limit_are_refused() {
    let setting = Setting::with(|_| {}, |listener| listener.most_header_bytes = 8 << 10).await;
    let filler = "a".repeat(9 << 10);
    let mut client = setting.client().await;
    // The router may hang up before all of it is written.
    let asked = format!("GET / HTTP/1.1\r\n{HEAD}X-Filler: {filler}\r\n\r\n");
    let _ = client.0.write_all(asked.as_bytes()).await;
    let answer = client.all().await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert_eq!(setting.dialled.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_client_at_its_limits_is_refused() {
    let setting = Setting::new(|config| config.max_requests_per_client = 1).await;
    let mut first = setting.client().await;
    first.say(&format!("GET / HTTP/1.1\r\n{HEAD}\r\n")).await;
    let mut held = setting.at_sandbox().await;
    held.until("\r\n\r\n").await;
    let answer = setting.ask(TWO).await;
    assert!(answer.starts_with("HTTP/1.1 429 ") && answer.contains("retry-after: 1\r\n"), "{answer}");
    held.say(OK).await;
    first.all().await;
    assert!(setting.exchange(TWO, OK).await.0.starts_with("HTTP/1.1 200 "));

    let setting = Setting::with(|_| {}, |listener| listener.most_connections_per_client = 1).await;
    let mut first = setting.client().await;
    first.say("GET /healthz HTTP/1.1\r\nHost: router\r\n\r\n").await;
    first.until("{\"status\":\"ok\"}").await;
    let mut second = setting.client().await;
    assert_eq!(second.0.read(&mut [0; 1]).await.unwrap_or(0), 0, "the second connection is closed");
}

/// Answers of a sandbox that holds its client up or floods it, for as long as it can.
async fn misbehave(mut sandbox: Peer, how: usize) {
    sandbox.until("\r\n\r\n").await;
    let flood = match how {
        0 => return std::future::pending().await,
        1 => "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf",
        2 => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
        3 => "HTTP/1.1 100 Continue\r\n\r\n",
        _ => "HTTP/1.1 200 OK\r\n",
    };
    sandbox.say(flood).await;
    match how {
        1 => drop(sandbox.0.shutdown().await),
        _ => {
            while sandbox.0.write_all("X-Filler: aaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n".as_bytes()).await.is_ok()
            {
            }
        }
    }
}

#[tokio::test]
async fn a_hostile_sandbox_does_not_keep_another_from_answering() {
    let setting = Setting::new(|_| {}).await;
    let mut tasks = Vec::new();
    for how in 0..5 {
        for _ in 0..8 {
            let mut client = setting.client().await;
            client.say(&format!("GET / HTTP/1.1\r\n{HEAD}\r\n")).await;
            let sandbox = setting.at_sandbox().await;
            tasks.push(tokio::spawn(async move {
                // A client that takes nothing: the router must not collect what comes for it.
                let _client = client;
                misbehave(sandbox, how).await;
                std::future::pending::<()>().await;
            }));
        }
    }
    for _ in 0..20 {
        let (answer, _) = setting.exchange(TWO, OK).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("ok"), "{answer}");
    }
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn a_request_under_way_is_finished_before_the_router_ends() {
    let setting = Setting::new(|_| {}).await;
    let mut client = setting.client().await;
    client.say(&format!("GET / HTTP/1.1\r\n{HEAD}\r\n")).await;
    let mut sandbox = setting.at_sandbox().await;
    sandbox.until("\r\n\r\n").await;
    setting.shutdown.cancel();
    while tokio::net::TcpStream::connect(setting.router).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!setting.served.is_finished());
    sandbox.say(OK).await;
    let answer = client.all().await;
    assert!(answer.ends_with("ok"), "{answer}");
    setting.served.await.expect("the router ends");
}

/// No target, host or routing header makes the router panic or dial anything but the sandboxes of its table.
#[tokio::test]
async fn random_targets_are_answered_or_refused() {
    let setting = Setting::new(urls).await;
    setting.failures.store(usize::MAX, Ordering::SeqCst);
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let pieces = [
        "/s",
        "/",
        "default",
        "box",
        "80",
        "..",
        "%2F",
        "%252e",
        "//",
        "\\",
        "@",
        ":",
        "?",
        "#",
        "%",
        "é",
        "0",
        "-",
        ".",
        "box.example",
        "[::1]",
        "*",
    ];
    for _ in 0..400 {
        let mut text =
            || (0..random.usize(1..7)).map(|_| pieces[random.usize(..pieces.len())]).collect::<String>();
        let asked = format!(
            "GET /{} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nX-Sandbox-ID: {}\r\nX-Sandbox-Port: {}\r\nReferer: http://{}\r\n\r\n",
            text(),
            text(),
            text(),
            text(),
            text(),
        );
        let answer = setting.ask(&asked).await;
        let status = answer.get(9..12).unwrap_or_default();
        assert!(["400", "502", "307"].contains(&status), "seed {seed}: {asked}{answer}");
    }
}
