//! Requests to one target, over connections of our own.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use futures::stream;
use http::{Method, Request, Response, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::process::Usage;

/// A request, ready to be sent.
pub type Sent = Request<BoxBody<Bytes, std::io::Error>>;

/// The piece in which a large file is sent.
const PIECE: usize = 64 * 1024;
/// Separates the parts of a multipart body.
const BOUNDARY: &str = "warren-bench-boundary";

/// An address that answers, and the headers that it wants.
#[derive(Clone)]
pub struct Target {
    pub name: &'static str,
    address: SocketAddr,
    headers: Vec<(&'static str, String)>,
}

/// Requests per second of a target.
#[derive(Serialize)]
pub struct Throughput {
    pub name: &'static str,
    pub per_second: f64,
}

/// An open connection.
pub struct Connection(SendRequest<BoxBody<Bytes, std::io::Error>>);

impl Throughput {
    /// Takes the median of some turns.
    pub fn of(name: &'static str, mut rates: Vec<f64>) -> Option<Throughput> {
        rates.sort_by(f64::total_cmp);
        Some(Throughput { name, per_second: *rates.get(rates.len() / 2)? })
    }
}

impl Target {
    /// Returns a server that needs no headers.
    pub fn plain(name: &'static str, address: SocketAddrV4) -> Target {
        Target { name, address: address.into(), headers: Vec::new() }
    }

    /// Returns a port of a sandbox behind the router.
    pub fn router(name: &'static str, address: SocketAddr, sandbox: &str, port: u16) -> Target {
        let headers = vec![("x-sandbox-id", sandbox.to_owned()), ("x-sandbox-port", port.to_string())];
        Target { name, address, headers }
    }

    /// Opens a connection.
    pub async fn connect(&self) -> anyhow::Result<Connection> {
        let stream =
            TcpStream::connect(self.address).await.with_context(|| format!("connect to {}", self.name))?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Connection(sender))
    }

    /// Returns a small request.
    pub fn get(&self) -> Sent {
        self.request(Method::GET, "/", None, whole(Bytes::new()))
    }

    /// Returns a request to run `true`.
    pub fn execute(&self) -> Sent {
        let body = whole(Bytes::from_static(br#"{"command":"true"}"#));
        self.request(Method::POST, "/execute", Some("application/json"), body)
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        content_type: Option<&str>,
        body: BoxBody<Bytes, std::io::Error>,
    ) -> Sent {
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, "localhost");
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        if let Some(content_type) = content_type {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        request.body(body).expect("constant parts and names that were checked")
    }
}

impl Connection {
    /// Sends a request and reads the whole answer, which has to be a success.
    pub async fn send(&mut self, request: Sent) -> anyhow::Result<Bytes> {
        Ok(self.begin(request).await?.into_body().collect().await?.to_bytes())
    }

    async fn begin(&mut self, request: Sent) -> anyhow::Result<Response<Incoming>> {
        self.0.ready().await?;
        let answer = self.0.send_request(request).await?;
        ensure!(answer.status().is_success(), "the answer was {}", answer.status());
        Ok(answer)
    }
}

/// Keeps so many connections busy for a time, and counts answers.
pub async fn requests_per_second(target: &Target, connections: usize, turn: Duration) -> anyhow::Result<f64> {
    let mut busy = JoinSet::new();
    let mut opened = Vec::with_capacity(connections);
    for _ in 0..connections {
        opened.push(target.connect().await?);
    }
    let begun = Instant::now();
    for mut connection in opened {
        let target = target.clone();
        busy.spawn(async move {
            let mut answers = 0_u64;
            while begun.elapsed() < turn {
                connection.send(target.get()).await?;
                answers += 1;
            }
            anyhow::Ok(answers)
        });
    }
    let mut answers = 0;
    while let Some(counted) = busy.join_next().await {
        answers += counted?.with_context(|| format!("ask {}", target.name))?;
    }
    Ok(answers as f64 / begun.elapsed().as_secs_f64())
}

/// Uploads a file of zeros by the runtime API.
pub async fn upload(target: &Target, name: &str, size: u64) -> anyhow::Result<()> {
    let head = format!(
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    );
    let piece = Bytes::from(vec![0; PIECE]);
    let pieces = (0..size / PIECE as u64).map(move |_| piece.clone());
    let all = std::iter::once(Bytes::from(head))
        .chain(pieces)
        .chain(std::iter::once(Bytes::from(format!("\r\n--{BOUNDARY}--\r\n"))));
    let body = StreamBody::new(stream::iter(all.map(|piece| Ok(Frame::data(piece))))).boxed();
    let content_type = format!("multipart/form-data; boundary={BOUNDARY}");
    let request = target.request(Method::POST, "/upload", Some(&content_type), body);
    target.connect().await?.send(request).await?;
    Ok(())
}

/// Downloads a file by the runtime API, drops it, and returns its size.
pub async fn download(target: &Target, name: &str) -> anyhow::Result<u64> {
    let request = target.request(Method::GET, &format!("/download/{name}"), None, whole(Bytes::new()));
    let mut connection = target.connect().await?;
    let mut body = connection.begin(request).await?.into_body();
    let mut received = 0;
    while let Some(frame) = body.frame().await {
        received += frame?.data_ref().map_or(0, |data| data.len() as u64);
    }
    Ok(received)
}

/// Runs something, and returns the growth of a process's memory meanwhile.
pub async fn watching_memory<T>(
    pid: Option<u32>,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<(T, Option<f64>)> {
    let Some(pid) = pid else { return Ok((work.await?, None)) };
    let before = Usage::of(&[pid])?.rss_mb;
    let mut most = before;
    let mut look = tokio::time::interval(Duration::from_millis(20));
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Ok((done?, Some(most - before))),
            _ = look.tick() => most = most.max(Usage::of(&[pid])?.rss_mb),
        }
    }
}

/// Opens a WebSocket through the router and leaves it idle.
pub async fn websocket(router: SocketAddr, sandbox: &str, port: u16) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(router).await?;
    let request = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: {sandbox}\r\nX-Sandbox-Port: {port}\r\n\
         Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        ensure!(head.len() < PIECE, "the answer's head has no end");
        head.push(stream.read_u8().await.context("read the answer's head")?);
    }
    let first = String::from_utf8_lossy(&head);
    ensure!(
        first.starts_with("HTTP/1.1 101 "),
        "the answer was {}",
        first.lines().next().unwrap_or_default()
    );
    Ok(stream)
}

fn whole(bytes: Bytes) -> BoxBody<Bytes, std::io::Error> {
    Full::new(bytes).map_err(|never| match never {}).boxed()
}

/// Returns loopback with a port.
pub fn loopback(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
}
