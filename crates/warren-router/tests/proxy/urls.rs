//! Sandboxes that are named by path or host, as browsers do.

use std::sync::atomic::Ordering;

use warren_router::Config;

use crate::{OK, Setting, detail};

fn urls(config: &mut Config) {
    config.path_routing_prefix = Some("/s".to_owned());
    config.host_routing_domain = Some("box.example".to_owned());
}

fn get(target: &str, headers: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n")
}

#[tokio::test]
async fn a_path_leads_to_its_sandbox_and_the_rest_arrives_as_sent() {
    let setting = Setting::new(urls).await;
    for (target, seen) in [
        ("/s/default/box/8080/a%2Fb?x=%20", "/a%2Fb?x=%20"),
        ("/s/default/box/8080/../../two/8080/%252e%252e/", "/../../two/8080/%252e%252e/"),
        ("/s/default/box/8080", "/"),
    ] {
        // Headers do not change the target of a path.
        let headers =
            "Host: router\r\nX-Sandbox-ID: two\r\nX-Sandbox-Port: 22\r\nX-Sandbox-Pod-IP: 10.9.8.8\r\n";
        let (answer, head) = setting.exchange(&get(target, headers), OK).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(head.starts_with(&format!("GET {seen} HTTP/1.1\r\n")), "{head}");
        assert!(head.contains("host: 10.9.8.7:8080\r\n"), "{head}");
        assert!(head.contains("x-forwarded-prefix: /s/default/box/8080\r\n"), "{head}");
    }
}

#[tokio::test]
async fn a_host_leads_to_its_sandbox() {
    let setting = Setting::new(urls).await;
    let asked = get("/s%2Fx?y", "Host: 3000-box.other.box.example:8080\r\n");
    let (answer, head) = setting.exchange(&asked, OK).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(head.starts_with("GET /s%2Fx?y HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("host: 10.9.8.9:3000\r\n"), "{head}");
    assert!(!head.contains("x-forwarded-prefix"), "{head}");
}

#[tokio::test]
async fn malformed_urls_are_refused_and_never_fall_back_to_headers() {
    let setting = Setting::new(urls).await;
    let form = "Path-routed request must have the form <prefix>/<namespace>/<id>/<port>/...";
    for (target, host, told) in [
        ("/s/default/box", "router", form),
        ("/s//box/80/", "router", form),
        ("/s/default/box/0/", "router", "Invalid port format."),
        ("/s/default/box/http/", "router", "Invalid port format."),
        ("/s/default/BOX/80/", "router", "Invalid sandbox ID format."),
        ("/s/default/10.0.0.1/80/", "router", "Invalid sandbox ID format."),
        ("/s/default/%62ox/80/", "router", "Invalid sandbox ID format."),
        ("/s/..%2Fdefault/box/80/", "router", "Invalid namespace format."),
        ("/", "x.box.example", "Host-routed request must have the host <port>-<id>.<namespace>.<domain>."),
        ("/", "70000-box.default.box.example", "Invalid port format."),
        ("/", "80-box.de_fault.box.example", "Invalid namespace format."),
    ] {
        let asked = get(target, &format!("Host: {host}\r\nX-Sandbox-ID: box\r\n"));
        let answer = setting.ask(&asked).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{target} {host}: {answer}");
        assert_eq!(detail(&answer), told, "{target} {host}");
    }
    let two = get("/s/default/box/80/", "Host: router\r\nHost: 80-two.default.box.example\r\n");
    assert_eq!(detail(&setting.ask(&two).await), "There is more than one Host header.");
    assert_eq!(setting.dialled.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn without_the_flags_no_url_names_a_sandbox() {
    let setting = Setting::new(|_| {}).await;
    let answer = setting.ask(&get("/s/default/box/80/", "Host: 80-box.default.box.example\r\n")).await;
    assert_eq!(detail(&answer), "X-Sandbox-ID header is required.");
}

#[tokio::test]
async fn answers_fit_the_url_that_the_browser_sees() {
    let setting = Setting::new(urls).await;
    let asked = get(
        "/s/default/box/8080/page",
        "Host: router\r\nOrigin: http://router\r\nReferer: http://router/s/default/box/8080/from?x\r\n",
    );
    let answer = "HTTP/1.1 302 Found\r\nLocation: http://10.9.8.7:8080/login\r\nSet-Cookie: a=1; Path=/; \
                  Domain=router\r\nSet-Cookie: b=2\r\nContent-Length: 0\r\n\r\n";
    let (answer, head) = setting.exchange(&asked, answer).await;
    assert!(head.contains("origin: http://10.9.8.7:8080\r\n"), "{head}");
    assert!(head.contains("referer: http://10.9.8.7:8080/from?x\r\n"), "{head}");
    assert!(answer.contains("location: /s/default/box/8080/login\r\n"), "{answer}");
    assert!(answer.contains("set-cookie: a=1; Path=/s/default/box/8080/\r\n"), "{answer}");
    assert!(answer.contains("set-cookie: b=2\r\n"), "{answer}");
}

#[tokio::test]
async fn a_link_to_the_root_of_a_page_below_the_prefix_leads_back_there() {
    let setting = Setting::new(urls).await;
    let referer = "Host: router\r\nReferer: http://router/s/default/box/8080/page\r\n";
    let answer = setting.ask(&get("/static/app.js?v=1", referer)).await;
    assert!(answer.starts_with("HTTP/1.1 307 "), "{answer}");
    assert!(answer.contains("location: /s/default/box/8080/static/app.js?v=1\r\n"), "{answer}");
    for other in ["http://elsewhere/s/default/box/8080/", "http://router/s/default/box/x/", "nonsense"] {
        let answer =
            setting.ask(&get("/static/app.js", &format!("Host: router\r\nReferer: {other}\r\n"))).await;
        assert_eq!(detail(&answer), "X-Sandbox-ID header is required.", "{other}");
    }
}

#[tokio::test]
async fn websockets_pass_by_path_and_host_for_pages_of_the_same_origin() {
    let setting = Setting::new(urls).await;
    for (target, host) in [("/s/default/box/8080/ws", "router"), ("/ws", "8080-box.default.box.example")] {
        let handshake = |origin: &str| {
            format!(
                "GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                 Origin: {origin}\r\nSec-WebSocket-Key: k\r\n\r\n"
            )
        };
        let mut client = setting.client().await;
        client.say(&handshake(&format!("http://{host}"))).await;
        let mut sandbox = setting.at_sandbox().await;
        let head = sandbox.until("\r\n\r\n").await;
        assert!(head.starts_with("GET /ws HTTP/1.1\r\n") && !head.contains("origin"), "{head}");
        sandbox
            .say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
            .await;
        client.until("\r\n\r\n").await;
        client.say("ping").await;
        sandbox.until("ping").await;
        sandbox.say("pong").await;
        client.until("pong").await;

        let mut evil = setting.client().await;
        evil.say(&handshake("http://evil.example")).await;
        assert!(evil.until("\r\n\r\n").await.starts_with("HTTP/1.1 403 "), "{host}");
    }
    assert_eq!(setting.dialled.load(Ordering::SeqCst), 2);
}
