//! `warren mcp --listen` of a test, and requests that no client would send.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use warren_api::{Sandbox, SandboxClaim};
use warren_client::kube::Client;
use warren_client::kube::api::{Api, ListParams};

use crate::local_home::{LocalHome, service_binary};
use crate::streams::DEADLINE;

/// Waits until no sandbox and no claim is left, except those of pools.
///
/// # Panics
///
/// If they are still there at the deadline.
pub async fn wait_until_nothing_is_left(client: &Client) {
    let started = Instant::now();
    loop {
        let sandboxes: Api<Sandbox> = Api::default_namespaced(client.clone());
        let claims: Api<SandboxClaim> = Api::default_namespaced(client.clone());
        let made = ListParams::default().labels("!agents.x-k8s.io/warm-pool-sandbox");
        let sandboxes = sandboxes.list(&made).await.expect("list sandboxes").items;
        let claims = claims.list(&ListParams::default()).await.expect("list claims").items;
        if sandboxes.is_empty() && claims.is_empty() {
            return;
        }
        assert!(started.elapsed() < DEADLINE, "left behind: {sandboxes:?} {claims:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A server that listens on a port of its own. Dropping it kills it.
#[derive(Debug)]
pub struct McpServer {
    /// The process.
    pub child: Child,
    /// The URL that it printed.
    pub url: String,
    /// The key that it made.
    pub key: String,
}

impl McpServer {
    /// Starts the server of a fresh home.
    ///
    /// # Panics
    ///
    /// If it does not print its URL and its key.
    pub fn start(home: &LocalHome, arguments: &[&str]) -> Self {
        // `warren mcp` looks for it in its own directory.
        service_binary();
        let mut command = home.command();
        command.args(["mcp", "--listen", "127.0.0.1:0"]).args(arguments);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("start warren mcp");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let url = lines.next().expect("a line").expect("read");
        let line = lines.next().expect("a second line").expect("read");
        let key = line.strip_prefix("Authorization: Bearer ").unwrap_or_else(|| panic!("{line:?} is no key"));
        Self { child, url, key: key.to_owned() }
    }

    /// Makes another key.
    ///
    /// # Panics
    ///
    /// If that fails.
    pub fn add_key(&self, home: &LocalHome, name: &str) -> String {
        let ended = home.warren(&["mcp", "key", "add", name]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.stdout.trim().to_owned()
    }

    /// Removes a key.
    ///
    /// # Panics
    ///
    /// If that fails.
    pub fn remove_key(&self, home: &LocalHome, name: &str) {
        let ended = home.warren(&["mcp", "key", "remove", name]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }

    /// Returns the address that it listens on.
    ///
    /// # Panics
    ///
    /// If the URL has another form.
    pub fn address(&self) -> &str {
        self.url.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/mcp")).expect("a URL of MCP")
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Panics
    ///
    /// If the server cannot be reached, or gives no answer.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(self.address()).expect("connect");
        stream.set_read_timeout(Some(DEADLINE)).expect("set a deadline");
        let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).expect("send the head");
        stream.write_all(body).expect("send the body");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("read the answer");
        Answer(String::from_utf8(answer).expect("UTF-8"))
    }

    /// Sends a message of the protocol with sessions.
    pub fn post(&self, key: &str, session: Option<&str>, message: &Value) -> Answer {
        let bearer = format!("Bearer {key}");
        let mut headers = self.headers(&bearer);
        headers.extend(session.map(|session| ("Mcp-Session-Id", session)));
        self.send("POST", "/mcp", &headers, message.to_string().as_bytes())
    }

    /// Returns the headers of an ordinary request.
    pub fn headers<'a>(&'a self, authorization: &'a str) -> Vec<(&'a str, &'a str)> {
        vec![
            ("Host", self.address()),
            ("Authorization", authorization),
            ("Accept", "application/json, text/event-stream"),
            ("Content-Type", "application/json"),
        ]
    }

    /// Starts a session and returns its id.
    ///
    /// # Panics
    ///
    /// If that fails.
    pub fn session(&self, key: &str) -> String {
        let answer = self.post(key, None, &initialize());
        assert_eq!(answer.status(), 200, "{}", answer.0);
        let session = answer.header("mcp-session-id").expect("a session").to_owned();
        let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        assert_eq!(self.post(key, Some(&session), &ready).status(), 202);
        session
    }

    /// Calls a tool; returns its result.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn call(&self, key: &str, session: &str, tool: &str, arguments: &Value) -> Value {
        let answer = self.post(key, Some(session), &tool_call(tool, arguments));
        assert_eq!(answer.status(), 200, "{}", answer.0);
        answer.messages().into_iter().find_map(|message| message.get("result").cloned()).expect("a result")
    }
}

impl Drop for McpServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the message that starts a session.
pub fn initialize() -> Value {
    let parameters = json!({
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" },
    });
    json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": parameters })
}

/// Returns the message that calls a tool.
pub fn tool_call(tool: &str, arguments: &Value) -> Value {
    let parameters = json!({ "name": tool, "arguments": arguments });
    json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": parameters })
}

/// A response as it came.
#[derive(Clone, Debug)]
pub struct Answer(pub String);

impl Answer {
    /// Returns the status.
    ///
    /// # Panics
    ///
    /// If it is no response.
    pub fn status(&self) -> u16 {
        let status = self.0.split(' ').nth(1).and_then(|status| status.parse().ok());
        status.unwrap_or_else(|| panic!("{:?} is no response", self.0))
    }

    /// Returns a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (head, _) = self.0.split_once("\r\n\r\n")?;
        let mut headers = head.lines().filter_map(|line| line.split_once(": "));
        headers.find(|(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Returns the messages of an event stream.
    pub fn messages(&self) -> Vec<Value> {
        let data = self.0.lines().filter_map(|line| line.strip_prefix("data:"));
        data.filter_map(|data| serde_json::from_str(data).ok()).collect()
    }
}
