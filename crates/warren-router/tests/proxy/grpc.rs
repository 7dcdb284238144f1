//! gRPC: HTTP/2 to the sandbox, trailers, deadlines, and errors in its own form.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use warren_router::Authorization;
use warren_router::token::{KeySet, SigningKey};

use crate::Setting;

type Call = SendRequest<Full<Bytes>>;

async fn client(setting: &Setting) -> Call {
    let stream = TcpStream::connect(setting.router).await.expect("connect");
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (sender, connection) = handshake.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

fn call(headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let mut request = Request::post("http://router/process.v1.ProcessService/Start")
        .version(Version::HTTP_2)
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(Bytes::from_static(b"\0\0\0\0\0"))).expect("a request")
}

/// Sends a call and returns the HTTP status, the body and the trailers.
async fn send(client: &mut Call, headers: &[(&str, &str)]) -> (StatusCode, Bytes, HeaderMap) {
    let response = client.send_request(call(headers)).await.expect("an answer");
    let status = response.status();
    let collected = response.into_body().collect().await.expect("a whole body");
    let trailers = collected.trailers().cloned().unwrap_or_default();
    (status, collected.to_bytes(), trailers)
}

/// Serves one connection of the router: echoes the path and some headers. A call with `x-silent` gets a head and no more.
async fn sandbox(setting: &Setting) {
    let stream = setting.sandbox.accept().await.expect("accept").0;
    let answer = service_fn(|request: Request<Incoming>| async move {
        assert_eq!(request.version(), Version::HTTP_2);
        assert_eq!(request.headers()["te"], "trailers");
        let seen = format!("{} {}", request.uri(), request.headers()["x-sandbox-id"].to_str().expect("text"));
        let silent = request.headers().contains_key("x-silent");
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().expect("a value"));
        let frames = [Ok::<_, Infallible>(Frame::data(Bytes::from(seen))), Ok(Frame::trailers(trailers))];
        let frames = futures::stream::iter(frames.into_iter().take(if silent { 1 } else { 2 }));
        let rest = futures::stream::pending();
        let body = match silent {
            true => StreamBody::new(futures::StreamExt::chain(frames, rest)).boxed_unsync(),
            false => StreamBody::new(frames).boxed_unsync(),
        };
        Ok::<_, Infallible>(
            Response::builder().header("content-type", "application/grpc").body(body).expect("an answer"),
        )
    });
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new());
    let _ = builder.serve_connection(TokioIo::new(stream), answer).await;
}

#[tokio::test]
async fn calls_go_to_the_sandbox_over_one_connection_of_http_2_with_their_trailers() {
    let setting = Setting::new(|_| {}).await;
    let calls = async {
        let mut client = client(&setting).await;
        for _ in 0..3 {
            let (status, body, trailers) =
                send(&mut client, &[("x-sandbox-id", "box"), ("x-sandbox-port", "9090")]).await;
            assert_eq!(status, StatusCode::OK);
            assert_eq!(body, "http://10.9.8.7:9090/process.v1.ProcessService/Start box");
            assert_eq!(trailers["grpc-status"], "0");
        }
    };
    tokio::select! {
        () = calls => {}
        () = sandbox(&setting) => panic!("the sandbox is asked on one connection"),
    }
    assert_eq!(setting.dialled.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_call_ends_at_its_deadline_with_the_status_of_grpc() {
    let setting = Setting::new(|_| {}).await;
    let calls = async {
        let mut client = client(&setting).await;
        let silent = [("x-sandbox-id", "box"), ("x-silent", "1"), ("grpc-timeout", "200m")];
        let (status, body, trailers) = send(&mut client, &silent).await;
        assert_eq!((status, body.is_empty()), (StatusCode::OK, false));
        assert_eq!(trailers["grpc-status"], "4");
    };
    tokio::select! {
        () = calls => {}
        () = sandbox(&setting) => panic!("the connection stays"),
    }
    // One that says nothing at all.
    let mut client = client(&setting).await;
    let (trailers, _silent) = tokio::join!(
        async { send(&mut client, &[("x-sandbox-id", "two"), ("grpc-timeout", "200m")]).await.2 },
        setting.sandbox.accept(),
    );
    assert_eq!(trailers["grpc-status"], "4");
}

#[tokio::test]
async fn the_time_of_a_call_is_capped() {
    let setting = Setting::new(|config| config.proxy_timeout = Duration::from_millis(200)).await;
    let mut client = client(&setting).await;
    let (trailers, _silent) = tokio::join!(
        async { send(&mut client, &[("x-sandbox-id", "box"), ("grpc-timeout", "99999999H")]).await.2 },
        setting.sandbox.accept(),
    );
    assert_eq!(trailers["grpc-status"], "4");
}

#[tokio::test]
async fn errors_of_the_router_are_trailers() {
    let key = SigningKey::parse(&SigningKey::generate("k").expect("make")).expect("a key");
    let keys = KeySet::parse(&key.key_set()).expect("keys");
    let open = Setting::new(|_| {}).await;
    let closed = Setting::new(|config| config.authorization = Authorization::ScopedToken(keys)).await;
    open.failures.store(100, std::sync::atomic::Ordering::SeqCst);
    let (mut to_open, mut to_closed) = (client(&open).await, client(&closed).await);
    for (is_open, headers, status, message) in [
        (true, vec![], "3", "X-Sandbox-ID header is required."),
        (false, vec![("x-sandbox-id", "box")], "16", "A bearer token is required."),
        (true, vec![("x-sandbox-id", "box"), ("grpc-timeout", "soon")], "3", "Invalid grpc-timeout."),
        (true, vec![("x-sandbox-id", "none")], "14", "Could not connect to the backend sandbox: none"),
        (true, vec![("x-sandbox-id", "box")], "14", "Could not connect to the backend sandbox: box"),
    ] {
        let (http, _, trailers) = send(if is_open { &mut to_open } else { &mut to_closed }, &headers).await;
        assert_eq!(http, StatusCode::OK);
        assert_eq!(
            (&trailers["grpc-status"], &trailers["grpc-message"]),
            (&status.parse().expect("a value"), &message.parse().expect("a value"))
        );
    }
}
