//! Tests `warren mcp --listen` with requests that official clients do not send: wrong keys, forged
//! headers, the sandboxes of others, too much of everything, and clients that go without a word.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use serde_json::{Value, json};
use warren_api::Sandbox;
use warren_client::kube::api::Api;
use warren_e2e::local_home::LocalHome;
use warren_e2e::mcp::{Answer, McpServer, initialize, tool_call, wait_until_nothing_is_left};
use warren_e2e::streams::DEADLINE;

/// Headers of a request that a test changes.
type Headers<'a> = Vec<(&'a str, String)>;

/// Returns the text of a call that failed.
fn error(result: &Value) -> &str {
    assert_eq!(result["isError"], true, "{result}");
    result["content"][0]["text"].as_str().expect("a text")
}

/// Makes a sandbox in a session and returns its name.
fn sandbox(server: &McpServer, key: &str, session: &str) -> String {
    let made = server.call(key, session, "create_sandbox", &json!({}));
    made["structuredContent"]["sandbox_claim_name"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
}

/// Makes a sandbox by the protocol without sessions.
fn sandbox_without_a_session(server: &McpServer, key: &str) -> String {
    let bearer = format!("Bearer {key}");
    let mut headers = server.headers(&bearer);
    headers.extend([
        ("MCP-Protocol-Version", "2026-07-28"),
        ("Mcp-Method", "tools/call"),
        ("Mcp-Name", "create_sandbox"),
    ]);
    let mut message = tool_call("create_sandbox", &json!({}));
    message["params"]["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let answer = server.send("POST", "/mcp", &headers, message.to_string().as_bytes());
    assert_eq!(answer.status(), 200, "{}", answer.0);
    let messages = answer.messages();
    let name = messages.iter().find_map(|message| {
        message["result"]["structuredContent"]["sandbox_claim_name"].as_str().map(str::to_owned)
    });
    name.unwrap_or_else(|| panic!("{}", answer.0))
}

/// Opens the stream of a session and waits for its first bytes.
fn open_stream(server: &McpServer, key: &str, session: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).expect("connect");
    stream.set_read_timeout(Some(DEADLINE)).expect("set a deadline");
    let head = format!(
        "GET /mcp HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {key}\r\nAccept: text/event-stream\r\n\
         Mcp-Session-Id: {session}\r\n\r\n",
        server.address()
    );
    stream.write_all(head.as_bytes()).expect("send");
    let mut begun = [0; 15];
    stream.read_exact(&mut begun).expect("read");
    assert_eq!(&begun, b"HTTP/1.1 200 OK");
    stream
}

#[test]
fn request_without_a_key_or_from_another_site_is_refused() {
    let Some(home) = LocalHome::new() else { return };
    let server = McpServer::start(&home, &[]);
    let ask = |change: &dyn Fn(&mut Headers<'_>), path: &str| -> Answer {
        let bearer = format!("Bearer {}", server.key);
        let mut headers: Headers<'_> =
            server.headers(&bearer).into_iter().map(|(name, value)| (name, value.to_owned())).collect();
        change(&mut headers);
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        server.send("POST", path, &headers, initialize().to_string().as_bytes())
    };
    let refused = |answer: Answer, status: u16, word: &str| {
        assert_eq!(answer.status(), status, "{}", answer.0);
        assert!(answer.0.contains(word), "{word}: {}", answer.0);
    };
    let set = |name: &'static str, value: String| {
        move |headers: &mut Headers<'_>| {
            headers.retain(|(given, _)| *given != name);
            headers.push((name, value.clone()));
        }
    };
    assert_eq!(ask(&|_| {}, "/mcp").status(), 200);
    let key = server.key.clone();
    for wrong in [
        String::new(),
        "Bearer".to_owned(),
        "Bearer x".to_owned(),
        format!("Basic {key}"),
        format!("Bearer {key}x"),
        format!("Bearer {}", &key[..key.len() - 1]),
        format!("Bearer {}", key.replace("default", "other")),
    ] {
        let answer = ask(&set("Authorization", wrong), "/mcp");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"), "{}", answer.0);
        refused(answer, 401, "warren mcp key add");
    }
    refused(ask(&|headers| headers.retain(|(name, _)| *name != "Authorization"), "/mcp"), 401, "Bearer");
    let port = server.address().rsplit(':').next().expect("a port");
    for host in ["evil.example".to_owned(), format!("127.0.0.1.evil.example:{port}"), String::new()] {
        refused(ask(&set("Host", host), "/mcp"), 403, "`Host`");
    }
    for origin in ["http://evil.example", "null", "http://localhost:1", "http://127.0.0.1"] {
        refused(ask(&set("Origin", origin.to_owned()), "/mcp"), 403, "`Origin`");
    }
    assert_eq!(ask(&set("Origin", format!("http://{}", server.address())), "/mcp").status(), 200);
    assert_eq!(ask(&set("Host", format!("localhost:{port}")), "/mcp").status(), 200);
    for path in ["/", "/mcp/x", "/.well-known/oauth-protected-resource"] {
        refused(ask(&|_| {}, path), 404, "/mcp");
    }
}

#[test]
fn malformed_and_oversized_bodies_are_refused_and_the_server_goes_on() {
    let Some(home) = LocalHome::new() else { return };
    let server = McpServer::start(&home, &[]);
    let bearer = format!("Bearer {}", server.key);
    let headers = server.headers(&bearer);
    for (body, code) in [
        (&b"{"[..], "-32700"),
        (b"\xff", "-32700"),
        (b"[]", "-32600"),
        (b"\"x\"", "-32600"),
        (b"{}", "-32600"),
        (b"{\"method\": 1}", "-32600"),
    ] {
        let answer = server.send("POST", "/mcp", &headers, body);
        assert!(answer.status() == 400 && answer.0.contains(code), "{body:?}: {}", answer.0);
    }
    let nested = format!("{}{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    let answer = server.send("POST", "/mcp", &headers, nested.as_bytes());
    assert!((400..500).contains(&answer.status()), "{}", answer.0);

    let large = vec![b' '; (8 << 20) + 1];
    let answer = server.send("POST", "/mcp", &headers, &large);
    assert!(answer.status() == 413 && answer.0.contains("8388608 bytes"), "{}", answer.0);
    // Without its length in the head.
    let mut chunked = headers.clone();
    chunked.push(("Transfer-Encoding", "chunked"));
    let mut stream = TcpStream::connect(server.address()).expect("connect");
    stream.set_read_timeout(Some(DEADLINE)).expect("set a deadline");
    let mut head = "POST /mcp HTTP/1.1\r\n".to_owned();
    chunked.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    stream.write_all(format!("{head}\r\n{:x}\r\n", large.len()).as_bytes()).expect("send the head");
    stream.write_all(&large).expect("send the body");
    stream.write_all(b"\r\n0\r\n\r\n").expect("send the end");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("read the answer");
    assert!(answer.starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&answer));

    for (method, status) in [("PUT", 405), ("GET", 400), ("DELETE", 400)] {
        assert_eq!(server.send(method, "/mcp", &headers, b"").status(), status, "{method}");
    }
    server.session(&server.key);
}

#[tokio::test(flavor = "multi_thread")]
async fn key_opens_its_own_sandboxes_in_every_session_and_no_others() {
    let Some(home) = LocalHome::new() else { return };
    let server = McpServer::start(&home, &[]);
    let (mine, other) = (server.key.clone(), server.add_key(&home, "other"));
    let (first, second) = (server.session(&mine), server.session(&mine));
    let name = sandbox(&server, &mine, &first);
    let echo = json!({ "sandbox_claim_name": name, "command": ["echo", "mine"] });
    let ran = server.call(&mine, &second, "execute_command", &echo);
    assert_eq!(ran["structuredContent"]["stdout"], "mine\n", "{ran}");
    let command = ran["structuredContent"]["command_id"].clone();

    // A session of another key is not there.
    let answer = server.post(&other, Some(&first), &tool_call("list_sandboxes", &json!({})));
    assert_eq!(answer.status(), 404, "{}", answer.0);
    let bearer = format!("Bearer {other}");
    let mut headers = server.headers(&bearer);
    headers.push(("Mcp-Session-Id", &first));
    assert_eq!(server.send("DELETE", "/mcp", &headers, b"").status(), 404);
    let hostile = server.session(&other);
    let listed = server.call(&other, &hostile, "list_sandboxes", &json!({}));
    assert_eq!(listed["structuredContent"]["sandboxes"], json!([]), "{listed}");
    for (tool, arguments) in [
        ("execute_command", echo),
        ("delete_sandbox", json!({ "sandbox_claim_name": name })),
        ("download_file", json!({ "sandbox_claim_name": name, "path": "/etc/passwd" })),
        ("upload_file", json!({ "sandbox_claim_name": name, "path": "/tmp/x", "content": "" })),
        ("run_code", json!({ "sandbox_claim_name": name, "code": "1" })),
        ("open_port", json!({ "sandbox_claim_name": name, "port": 80 })),
    ] {
        let result = server.call(&other, &hostile, tool, &arguments);
        assert!(error(&result).contains("you have no sandbox"), "{tool}: {result}");
    }
    let result = server.call(&other, &hostile, "poll_command", &json!({ "command_id": command }));
    assert!(error(&result).contains("`command_id`"), "{result}");
    let resource = json!({
        "jsonrpc": "2.0", "id": 3, "method": "resources/read",
        "params": { "uri": format!("warren://{name}/etc/passwd") },
    });
    let answer = server.post(&other, Some(&hostile), &resource);
    assert!(answer.0.contains("you have no sandbox"), "{}", answer.0);

    // The sandbox stays for the second session, and goes with it.
    let bearer = format!("Bearer {mine}");
    let sandboxes: Api<Sandbox> = Api::default_namespaced(home.client().await);
    for session in [first, second] {
        sandboxes.get(&name).await.expect("the sandbox is there");
        let mut headers = server.headers(&bearer);
        headers.push(("Mcp-Session-Id", &session));
        let answer = server.send("DELETE", "/mcp", &headers, b"");
        assert_eq!(answer.status(), 204, "{}", answer.0);
    }
    wait_until_nothing_is_left(&home.client().await).await;
}

#[test]
fn sessions_and_streams_of_a_key_are_limited_and_other_keys_go_on() {
    let Some(home) = LocalHome::new() else { return };
    let server = McpServer::start(&home, &[]);
    let key = server.key.clone();
    let sessions: Vec<String> = (0..16).map(|_| server.session(&key)).collect();
    let answer = server.post(&key, None, &initialize());
    assert!(answer.status() == 429 && answer.0.contains("16 sessions"), "{}", answer.0);
    let other = server.add_key(&home, "other");
    server.session(&other);
    let bearer = format!("Bearer {key}");
    let mut headers = server.headers(&bearer);
    headers.push(("Mcp-Session-Id", &sessions[0]));
    assert_eq!(server.send("DELETE", "/mcp", &headers, b"").status(), 204);
    assert_eq!(server.send("GET", "/mcp", &headers, b"").status(), 404);
    server.session(&key);

    let streams: Vec<TcpStream> =
        (0..128).map(|at| open_stream(&server, &key, &sessions[1 + at % 15])).collect();
    let answer = server.post(&key, Some(&sessions[1]), &tool_call("list_sandboxes", &json!({})));
    assert!(answer.status() == 429 && answer.0.contains("128 requests"), "{}", answer.0);
    server.session(&other);
    drop(streams);
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_goes_without_a_word_leaves_nothing_and_one_with_a_stream_stays() {
    let Some(home) = LocalHome::new() else { return };
    let server = McpServer::start(&home, &["--idle", "10"]);
    let stays = server.add_key(&home, "stays");
    let session = server.session(&stays);
    let stream = open_stream(&server, &stays, &session);
    let kept = sandbox(&server, &stays, &session);
    let sandboxes: Api<Sandbox> = Api::default_namespaced(home.client().await);
    // Made later, so idle for a shorter time.
    let left = sandbox_without_a_session(&server, &server.key);
    let gone = async {
        while sandboxes.get_opt(&left).await.expect("ask for the sandbox").is_some() {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(DEADLINE, gone).await.expect("the sandbox of the idle client is deleted");
    sandboxes.get(&kept).await.expect("the client with a stream keeps its sandbox");
    drop(stream);
    wait_until_nothing_is_left(&home.client().await).await;
    let answer = server.post(&stays, Some(&session), &tool_call("list_sandboxes", &json!({})));
    assert_eq!(answer.status(), 404, "{}", answer.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_key_is_cut_off_and_the_end_of_the_server_deletes_the_rest() {
    let Some(home) = LocalHome::new() else { return };
    let mut server = McpServer::start(&home, &[]);
    let removed = server.add_key(&home, "removed");
    assert_eq!(home.warren(&["mcp", "key", "list"]).stdout, "default\nremoved\n");
    let session = server.session(&removed);
    let mut stream = open_stream(&server, &removed, &session);
    sandbox(&server, &removed, &session);
    server.remove_key(&home, "removed");
    assert_eq!(server.post(&removed, Some(&session), &initialize()).status(), 401);
    wait_until_nothing_is_left(&home.client().await).await;
    // The stream ends, too.
    stream.read_to_end(&mut Vec::new()).expect("read to the end");

    let key = server.key.clone();
    let session = server.session(&key);
    let _stream = open_stream(&server, &key, &session);
    sandbox(&server, &key, &session);
    sandbox_without_a_session(&server, &key);
    let told = Command::new("kill").arg(server.child.id().to_string()).status().expect("run kill");
    assert!(told.success());
    assert!(server.child.wait().expect("wait").success());
    wait_until_nothing_is_left(&home.client().await).await;
    let ended = home.warren(&["mcp", "--listen", "0.0.0.0:0"]);
    assert!(ended.code == Some(1) && ended.stderr.contains("not a loopback address"), "{ended:?}");
    // The key is from the first start, and is not shown again.
    let ended = home.warren(&["mcp", "key", "add", "default"]);
    assert!(ended.code == Some(1) && ended.stderr.contains("warren mcp key remove default"), "{ended:?}");
}
