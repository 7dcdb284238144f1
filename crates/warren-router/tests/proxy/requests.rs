//! Requests that name their sandbox by headers.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use warren_router::Hosts;

use crate::{HEAD, OK, Setting, detail};

#[tokio::test]
async fn path_and_query_arrive_as_they_were_sent() {
    let setting = Setting::new(|_| {}).await;
    for target in ["/download/dir%2Fx.txt", "/a//b/../c/%2e%2E/%41?q=%20a+b&r=/..", "/%00%ff?"] {
        let asked = format!("GET {target} HTTP/1.1\r\n{HEAD}\r\n");
        let sandbox = async {
            let mut sandbox = setting.at_sandbox().await;
            let head = sandbox.until("\r\n\r\n").await;
            sandbox.say(OK).await;
            head
        };
        let (answer, head) = tokio::join!(setting.ask(&asked), sandbox);
        assert!(head.starts_with(&format!("GET {target} HTTP/1.1\r\n")), "{head}");
        assert!(head.contains("host: 10.9.8.7:8888\r\n"), "{head}");
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("ok"), "{answer}");
    }
}

#[tokio::test]
async fn requests_without_a_known_sandbox_are_refused_and_nothing_is_dialled() {
    let setting = Setting::new(|config| config.hosts = Hosts::Loopback).await;
    let unreachable = "Could not connect to the backend sandbox: box";
    for (headers, status, told) in [
        ("Host: 127.0.0.1", 400, "X-Sandbox-ID header is required."),
        ("Host: localhost\r\nX-Sandbox-ID: Box", 400, "Invalid sandbox ID format."),
        (
            "Host: localhost\r\nX-Sandbox-ID: box\r\nX-Sandbox-Namespace: a.b",
            400,
            "Invalid namespace format.",
        ),
        ("Host: localhost\r\nX-Sandbox-ID: box\r\nX-Sandbox-Port: 0", 400, "Invalid port format."),
        (
            "Host: localhost\r\nX-Sandbox-ID: box\r\nX-Sandbox-Pod-IP: ::ffff:7f00:1",
            400,
            "Invalid pod IP format.",
        ),
        ("Host: localhost\r\nX-Sandbox-ID: box\r\nX-Sandbox-Pod-IP: 10.9.8.8", 502, unreachable),
        ("Host: localhost\r\nX-Sandbox-ID: box\r\nX-Sandbox-Pod-IP: 8.8.8.8", 502, unreachable),
        ("Host: localhost\r\nX-Sandbox-ID: box\r\nX-Sandbox-Namespace: elsewhere", 502, unreachable),
        ("Host: evil.example\r\nX-Sandbox-ID: box", 403, "The Host header must be a name of loopback."),
    ] {
        let answer = setting.ask(&format!("GET / HTTP/1.1\r\n{headers}\r\nConnection: close\r\n\r\n")).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{headers}: {answer}");
        assert_eq!(detail(&answer), told, "{headers}");
    }
    assert_eq!(setting.dialled.load(Ordering::SeqCst), 0);
    let healthy = setting.ask("GET /healthz HTTP/1.1\r\nHost: any\r\nConnection: close\r\n\r\n").await;
    assert!(healthy.ends_with("{\"status\":\"ok\"}"), "{healthy}");
}

#[tokio::test]
async fn bodies_are_passed_on_piece_by_piece_in_both_directions() {
    let setting = Setting::new(|_| {}).await;
    let mut client = setting.client().await;
    client.say(&format!("POST / HTTP/1.1\r\n{HEAD}Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n")).await;
    let mut sandbox = setting.at_sandbox().await;
    sandbox.until("3\r\none\r\n").await;
    // The answer begins while the request is still under way.
    sandbox.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n").await;
    client.until("5\r\nfirst\r\n").await;
    client.say("3\r\ntwo\r\n").await;
    sandbox.until("3\r\ntwo\r\n").await;
    sandbox.say("6\r\nsecond\r\n").await;
    client.until("6\r\nsecond\r\n").await;
    client.say("0\r\n\r\n").await;
    sandbox.say("0\r\n\r\n").await;
    client.until("0\r\n\r\n").await;
}

#[tokio::test]
async fn a_connection_that_changes_its_protocol_is_carried_both_ways() {
    let setting = Setting::new(|_| {}).await;
    let mut client = setting.client().await;
    client
        .say(
            "GET /ws HTTP/1.1\r\nHost: router\r\nX-Sandbox-ID: box\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\nOrigin: http://page\r\nSec-WebSocket-Key: k\r\n\r\n",
        )
        .await;
    let mut sandbox = setting.at_sandbox().await;
    let head = sandbox.until("\r\n\r\n").await;
    assert!(head.contains("upgrade: websocket\r\n") && head.contains("sec-websocket-key: k\r\n"), "{head}");
    assert!(!head.contains("origin"), "{head}");
    sandbox
        .say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Own: 1\r\n\r\nhello")
        .await;
    let head = client.until("hello").await;
    assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("x-own: 1\r\n"), "{head}");
    client.say("ping").await;
    sandbox.until("ping").await;
    sandbox.say("pong").await;
    client.until("pong").await;
    drop(client);
    assert_eq!(sandbox.all().await, "");
}

#[tokio::test]
async fn a_sandbox_that_does_not_answer_in_the_clients_time_is_a_504() {
    let setting = Setting::new(|_| {}).await;
    let asked = format!("GET / HTTP/1.1\r\n{HEAD}X-Sandbox-Timeout: 0.2\r\n\r\n");
    let sandbox = async {
        let mut sandbox = setting.at_sandbox().await;
        sandbox.until("\r\n\r\n").await;
        // The router hangs up when it has given up.
        sandbox.all().await
    };
    let (answer, _) = tokio::join!(setting.ask(&asked), sandbox);
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    assert_eq!(detail(&answer), "The backend sandbox did not answer in time: box");
}

#[tokio::test]
async fn the_time_that_a_client_asks_for_is_capped() {
    let setting = Setting::new(|config| config.proxy_timeout = Duration::from_millis(200)).await;
    let asked = format!("GET / HTTP/1.1\r\n{HEAD}X-Sandbox-Timeout: 100000\r\n\r\n");
    let (answer, _silent) = tokio::join!(setting.ask(&asked), setting.at_sandbox());
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
}

#[tokio::test]
async fn only_connecting_is_tried_again() {
    let setting = Setting::new(|_| {}).await;
    setting.failures.store(2, Ordering::SeqCst);
    let asked = format!("POST /execute HTTP/1.1\r\n{HEAD}Content-Length: 4\r\n\r\nonce");
    let sandbox = async {
        let mut sandbox = setting.at_sandbox().await;
        sandbox.until("once").await;
        // It may have been carried out: it must not come again.
        drop(sandbox);
    };
    let (answer, ()) = tokio::join!(setting.ask(&asked), sandbox);
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert_eq!(setting.dialled.load(Ordering::SeqCst), 3);

    setting.failures.store(100, Ordering::SeqCst);
    let answer = setting.ask(&asked).await;
    assert_eq!(detail(&answer), "Could not connect to the backend sandbox: box");
    assert_eq!(setting.dialled.load(Ordering::SeqCst), 3 + 4);
}

#[tokio::test]
async fn a_connection_that_is_at_rest_takes_the_next_request() {
    let setting = Setting::new(|_| {}).await;
    let asked = format!("GET / HTTP/1.1\r\n{HEAD}\r\n");
    let (_, mut sandbox) = tokio::join!(setting.ask(&asked), async {
        let mut sandbox = setting.at_sandbox().await;
        sandbox.until("\r\n\r\n").await;
        sandbox.say(OK).await;
        sandbox
    });
    let (answer, ()) = tokio::join!(setting.ask(&asked), async {
        sandbox.until("\r\n\r\n").await;
        sandbox.say(OK).await;
    });
    assert!(answer.ends_with("ok"), "{answer}");
    assert_eq!(setting.dialled.load(Ordering::SeqCst), 1);
    // A closed one does not fail the request after it.
    drop(sandbox);
    let (answer, ()) = tokio::join!(setting.ask(&asked), async {
        let mut sandbox = setting.at_sandbox().await;
        sandbox.until("\r\n\r\n").await;
        sandbox.say(OK).await;
    });
    assert!(answer.ends_with("ok"), "{answer}");
}

#[tokio::test]
async fn a_hostile_sandbox_gets_a_502_for_its_client_and_no_memory() {
    let setting = Setting::new(|_| {}).await;
    let endless =
        format!("HTTP/1.1 200 OK\r\n{}", "X-Filler: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n".repeat(100_000));
    for answer in [endless.as_str(), "nonsense\r\n\r\n", "HTTP/1.1 101 Switching Protocols\r\n\r\n", ""] {
        let asked = format!("GET / HTTP/1.1\r\n{HEAD}\r\n");
        let sandbox = async {
            let mut sandbox = setting.at_sandbox().await;
            sandbox.until("\r\n\r\n").await;
            let _ = sandbox.0.write_all(answer.as_bytes()).await;
        };
        let (answer, ()) = tokio::join!(setting.ask(&asked), sandbox);
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    }
}

#[tokio::test]
async fn a_sandbox_at_its_limit_does_not_keep_others_from_theirs() {
    let setting = Setting::new(|config| config.max_requests_per_sandbox = 1).await;
    let mut first = setting.client().await;
    first.say(&format!("GET / HTTP/1.1\r\n{HEAD}\r\n")).await;
    let mut busy = setting.at_sandbox().await;
    busy.until("\r\n\r\n").await;
    let answer = setting.ask(&format!("GET / HTTP/1.1\r\n{HEAD}\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    let two = "GET / HTTP/1.1\r\nHost: router\r\nX-Sandbox-ID: two\r\nConnection: close\r\n\r\n";
    let (answer, ()) = tokio::join!(setting.ask(two), async {
        let mut other = setting.at_sandbox().await;
        other.until("\r\n\r\n").await;
        other.say(OK).await;
    });
    assert!(answer.ends_with("ok"), "{answer}");
}

#[tokio::test]
async fn bodies_beyond_the_limit_are_refused_also_without_a_length() {
    let setting = Setting::new(|config| config.max_request_body_bytes = 8).await;
    let asked = format!("POST / HTTP/1.1\r\n{HEAD}Content-Length: 9\r\n\r\n123456789");
    let answer = setting.ask(&asked).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    let asked = format!(
        "POST / HTTP/1.1\r\n{HEAD}Transfer-Encoding: chunked\r\n\r\n8\r\n12345678\r\n1\r\n9\r\n0\r\n\r\n"
    );
    let sandbox = async {
        let mut sandbox = setting.at_sandbox().await;
        sandbox.all().await
    };
    let (answer, got) = tokio::join!(setting.ask(&asked), sandbox);
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(!got.ends_with("0\r\n\r\n"), "the sandbox takes it for a whole request: {got}");
}
