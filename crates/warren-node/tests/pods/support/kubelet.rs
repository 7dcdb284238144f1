//! A client of kubelet's API, in place of the API server.

use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use tokio::io::DuplexStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use warren_node::Node;

/// One session of `/exec`.
pub struct Exec {
    pub socket: WebSocketStream<DuplexStream>,
    pub protocol: String,
}

/// The result of a session.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub stdout: String,
    pub stderr: String,
    /// The last message: a `Status`.
    pub status: String,
}

impl Outcome {
    pub fn exit_code(&self) -> i64 {
        let status: serde_json::Value = serde_json::from_str(&self.status).expect("a status");
        match status["status"].as_str() {
            Some("Success") => 0,
            _ => {
                let causes = status["details"]["causes"].as_array().cloned().unwrap_or_default();
                let code = causes
                    .iter()
                    .find(|cause| cause["reason"] == "ExitCode")
                    .map(|cause| cause["message"].clone());
                code.and_then(|code| code.as_str()?.parse().ok()).unwrap_or(-1)
            }
        }
    }
}

fn connect(node: &Node) -> DuplexStream {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    tokio::spawn(node.kubelet(theirs));
    ours
}

fn query(command: &[&str], flags: &str) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for word in command {
        query.append_pair("command", word);
    }
    format!("{}&{flags}", query.finish())
}

impl Exec {
    pub async fn start(node: &Node, namespace: &str, pod: &str, command: &[&str], flags: &str) -> Exec {
        Exec::start_with(node, namespace, pod, command, flags, "v5.channel.k8s.io").await
    }

    pub async fn start_with(
        node: &Node,
        namespace: &str,
        pod: &str,
        command: &[&str],
        flags: &str,
        protocol: &str,
    ) -> Exec {
        let address = format!("ws://node/exec/{namespace}/{pod}/main?{}", query(command, flags));
        let mut request = address.into_client_request().unwrap();
        request.headers_mut().insert("Sec-WebSocket-Protocol", protocol.parse().unwrap());
        let (socket, response) = tokio_tungstenite::client_async(request, connect(node)).await.unwrap();
        let protocol = response.headers()["Sec-WebSocket-Protocol"].to_str().unwrap().to_owned();
        Exec { socket, protocol }
    }

    pub async fn send(&mut self, channel: u8, data: &[u8]) {
        let message = [&[channel], data].concat();
        self.socket.send(Message::Binary(message.into())).await.unwrap();
    }

    /// Closes the process's standard input (version 5).
    pub async fn close_stdin(&mut self) {
        self.send(255, &[0]).await;
    }

    /// Reads until `text` has arrived on standard output.
    pub async fn read_until(&mut self, text: &str) -> String {
        let mut seen = String::new();
        while !seen.contains(text) {
            match self.socket.next().await {
                Some(Ok(Message::Binary(data))) if data.first() == Some(&1) => {
                    seen.push_str(&String::from_utf8_lossy(&data[1..]));
                }
                Some(Ok(Message::Binary(data))) => {
                    panic!("instead of `{text}`: {:?}, after {seen}", String::from_utf8_lossy(&data))
                }
                Some(Ok(_)) => {}
                other => panic!("instead of `{text}`: {other:?}, after {seen}"),
            }
        }
        seen
    }

    /// Reads everything until the server closes.
    pub async fn finish(mut self) -> Outcome {
        let mut outcome = Outcome::default();
        while let Some(message) = self.socket.next().await {
            match message.unwrap() {
                Message::Binary(data) => {
                    let text = String::from_utf8_lossy(&data[1..]);
                    match data[0] {
                        1 => outcome.stdout.push_str(&text),
                        2 => outcome.stderr.push_str(&text),
                        3 => outcome.status.push_str(&text),
                        other => panic!("message on channel {other}"),
                    }
                }
                Message::Close(_) => break,
                _ => {}
            }
        }
        outcome
    }
}

/// Runs a command without input and waits for it.
pub async fn run(node: &Node, namespace: &str, pod: &str, command: &[&str]) -> Outcome {
    Exec::start(node, namespace, pod, command, "output=1&error=1").await.finish().await
}

/// Sends a plain request; returns its status and body.
pub async fn get(node: &Node, path: &str) -> (u16, String) {
    let (status, body) = open(node, path).await;
    let body = body.collect().await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

/// Sends a plain request; returns its status and the unread body.
pub async fn open(node: &Node, path: &str) -> (u16, hyper::body::Incoming) {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(connect(node))).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get(path).header("Host", "node").body(Empty::<Bytes>::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    // Otherwise the connection ends with its last request, and with it a followed log.
    std::mem::forget(sender);
    (response.status().as_u16(), response.into_body())
}
