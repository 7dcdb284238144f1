//! `warren serve` for a test, and an HTTP client with full control over its requests.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::local_home::{LocalHome, service_binary};
use crate::streams::DEADLINE;

/// A running service. Dropping it kills it.
#[derive(Debug)]
pub struct Served {
    child: Child,
    /// `127.0.0.1:PORT`.
    pub address: String,
    /// The key that it printed, if it did.
    pub key: Option<String>,
}

/// A complete answer.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The HTTP status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl Answered {
    /// Returns the body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// Returns the data of an answer that must be a success.
    pub fn data(&self) -> Value {
        let json = self.json();
        assert!(self.status.is_success() && json["ok"] == true, "{} {json}", self.status);
        json["data"].clone()
    }

    /// Returns the status and the code of an answer that must be a failure.
    pub fn failure(&self) -> (u16, String) {
        let json = self.json();
        assert_eq!(json["ok"], false, "{} {json}", self.status);
        (self.status.as_u16(), json["error"]["code"].as_str().unwrap_or_default().to_owned())
    }
}

impl Served {
    /// Starts `warren serve` on a free port of loopback.
    pub fn start(home: &LocalHome, arguments: &[&str]) -> Self {
        // `warren serve` looks for it in its own directory.
        service_binary();
        let mut child = home
            .command()
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("start warren serve");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("read the link");
        let link = line.trim().strip_prefix("http://").expect("a link");
        let (address, rest) = link.split_once('/').expect("a path");
        let key = rest.strip_prefix("#key=").map(str::to_owned);
        Self { child, address: address.to_owned(), key }
    }

    /// Kills it with SIGKILL and waits for its end.
    pub fn kill(mut self) {
        self.child.kill().expect("kill -9");
        self.child.wait().expect("wait");
    }

    /// Sends a request unchanged, on a connection of its own. Returns the answer with its unread
    /// body, and the connection, which ends when it is dropped.
    pub async fn open(
        &self,
        request: Request<Full<Bytes>>,
    ) -> (http::Response<Incoming>, SendRequest<Full<Bytes>>) {
        let stream = TcpStream::connect(&self.address).await.expect("connect");
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("handshake");
        tokio::spawn(connection);
        let response = sender.send_request(request).await.expect("an answer");
        (response, sender)
    }

    /// Sends a request and reads the answer.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Answered {
        let (response, _connection) = self.open(request).await;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.expect("the body").to_bytes();
        Answered { status: parts.status, headers: parts.headers, body }
    }

    /// Makes a request with headers that may be replaced.
    pub fn request(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Request<Full<Bytes>> {
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", &self.address);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Full::new(body.into())).expect("a request")
    }

    /// Calls the API with a key.
    pub async fn call(&self, key: &str, method: Method, path: &str, body: impl Into<Bytes>) -> Answered {
        let bearer = format!("Bearer {key}");
        self.send(self.request(method, path, &[("authorization", &bearer)], body)).await
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A viewer of a session: its events, in order.
#[derive(Debug)]
pub struct Viewer {
    body: Incoming,
    text: String,
    /// The events.
    pub events: Vec<Value>,
    /// True once the service has said that there are no more.
    pub ended: bool,
    _connection: SendRequest<Full<Bytes>>,
}

impl Viewer {
    /// Follows a session from an offset on.
    pub async fn follow(served: &Served, key: &str, session: &str, from: u64) -> Self {
        let path = format!("/api/sessions/{session}/stream?from={from}");
        let bearer = format!("Bearer {key}");
        let request = served.request(Method::GET, &path, &[("authorization", &bearer)], "");
        let (response, connection) = served.open(request).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let body = response.into_body();
        Self { body, text: String::new(), events: Vec::new(), ended: false, _connection: connection }
    }

    /// Reads the next events. Returns false when the stream is over.
    pub async fn read(&mut self) -> bool {
        let Some(Ok(frame)) = self.body.frame().await else { return false };
        let Ok(data) = frame.into_data() else { return true };
        self.text.push_str(std::str::from_utf8(&data).expect("whole events are UTF-8"));
        while let Some(end) = self.text.find("\n\n") {
            let block: String = self.text.drain(..end + 2).collect();
            self.ended |= block.starts_with("event: end");
            let lines: Vec<&str> = block.trim_end().lines().collect();
            if let [id, data] = lines[..]
                && let (Some(id), Some(data)) = (id.strip_prefix("id: "), data.strip_prefix("data: "))
            {
                let event: Value = serde_json::from_str(data).expect("an event");
                assert_eq!(event["offset"].to_string(), id);
                self.events.push(event);
            }
        }
        true
    }

    /// Reads until the terminal has shown a text.
    pub async fn until_shown(&mut self, wanted: &str) {
        self.until(|viewer| viewer.shown().contains(wanted)).await;
    }

    /// Reads until the session's end.
    pub async fn until_ended(&mut self) {
        self.until(|viewer| viewer.ended).await;
    }

    async fn until(&mut self, done: impl Fn(&Viewer) -> bool) {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        while !done(self) {
            let read = tokio::time::timeout_at(deadline, self.read()).await;
            assert_eq!(read, Ok(true), "{} events, shown: {:?}", self.events.len(), self.shown());
        }
    }

    /// Returns the text that the terminal has shown.
    pub fn shown(&self) -> String {
        shown(&self.events)
    }
}

/// Returns the text that a terminal has shown by these events.
pub fn shown(events: &[Value]) -> String {
    let bytes: Vec<u8> = events
        .iter()
        .filter(|event| event["kind"] == "terminal:output")
        .flat_map(|event| {
            let data = event["data"].as_str().expect("a string");
            match event["encoding"] == "base64" {
                true => {
                    use base64::Engine as _;
                    base64::engine::general_purpose::STANDARD.decode(data).expect("base64")
                }
                false => data.as_bytes().to_vec(),
            }
        })
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
