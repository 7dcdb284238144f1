//! Tests the protocol against a server on a real unix socket.

use std::convert::Infallible;

use http_body_util::Empty;
use hyper::service::service_fn;
use tokio::net::UnixListener;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::*;
use crate::connect;
use crate::home::DataDir;

/// The server's behaviour on the upgraded connection.
type Script = fn(Socket) -> futures::future::BoxFuture<'static, ()>;

/// Starts a server that answers every request with an upgrade and then follows the script.
async fn home(script: Script) -> (tempfile::TempDir, kube::Client) {
    let directory = tempfile::tempdir().expect("make a directory");
    let data_dir = DataDir::open(directory.path()).expect("open it");
    let listener = UnixListener::bind(data_dir.api_socket()).expect("listen");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service_fn(move |mut request: http::Request<hyper::body::Incoming>| async move {
                let key = request.headers()["sec-websocket-key"].as_bytes();
                let response = http::Response::builder()
                    .status(101)
                    .header("connection", "Upgrade")
                    .header("upgrade", "websocket")
                    .header("sec-websocket-accept", derive_accept_key(key))
                    .header("sec-websocket-protocol", "v5.channel.k8s.io")
                    .body(Empty::<Bytes>::new())
                    .expect("a valid response");
                tokio::spawn(async move {
                    let upgraded = hyper::upgrade::on(&mut request).await.expect("upgrade");
                    script(Socket::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await).await;
                });
                Ok::<_, Infallible>(response)
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .with_upgrades(),
            );
        }
    });
    let client = connect::local(&data_dir).await.expect("connect");
    (directory, client)
}

fn request() -> ExecRequest {
    ExecRequest {
        namespace: "default".to_owned(),
        pod: "p".to_owned(),
        container: None,
        command: vec!["cmd".to_owned()],
        stdin: true,
        tty: false,
    }
}

async fn run(script: Script, input: &[u8]) -> (Result<i32, ExecError>, Vec<u8>, Vec<u8>) {
    let (_directory, client) = home(script).await;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let (_sizes, resize) = mpsc::channel(1);
    let exec = Exec::start(&client, request()).await.expect("start");
    let streams = Streams { stdin: input, stdout: &mut stdout, stderr: &mut stderr, resize };
    let code = exec.run(streams).await;
    (code, stdout, stderr)
}

fn message(channel: u8, bytes: &[u8]) -> Message {
    Message::binary([&[channel], bytes].concat())
}

#[tokio::test]
async fn streams_stay_apart_and_the_exit_code_comes_last() {
    let (code, stdout, stderr) = run(
        |mut socket| {
            Box::pin(async move {
                for (channel, text) in [(STDOUT, "out"), (STDERR, "err"), (STDOUT, "put")] {
                    socket.send(message(channel, text.as_bytes())).await.expect("send");
                }
                let status = br#"{"status":"Failure","reason":"NonZeroExitCode",
                    "details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;
                socket.send(message(STATUS, status)).await.expect("send");
            })
        },
        b"",
    )
    .await;
    assert_eq!(code.expect("the command ended"), 7);
    assert_eq!((stdout.as_slice(), stderr.as_slice()), (&b"output"[..], &b"err"[..]));
}

#[tokio::test]
async fn a_command_may_answer_while_it_is_being_fed() {
    // More than any socket buffer holds: a client that serves one direction at a time would hang
    // here.
    let input: Vec<u8> = (0..4_000_000_u32).map(|index| (index % 251) as u8).collect();
    let (code, stdout, _) = run(
        |socket| {
            Box::pin(async move {
                let (mut sink, mut source) = socket.split();
                while let Some(Ok(received)) = source.next().await {
                    let data = received.into_data();
                    match data.first() {
                        Some(&STDIN) => sink.send(message(STDOUT, &data[1..])).await.expect("send"),
                        Some(&CLOSE) => break,
                        _ => {}
                    }
                }
                sink.send(message(STATUS, br#"{"status":"Success"}"#)).await.expect("send");
            })
        },
        &input,
    )
    .await;
    assert_eq!(code.expect("the command ended"), 0);
    assert!(stdout == input, "{} bytes of {} came back", stdout.len(), input.len());
}

#[tokio::test]
async fn a_connection_that_ends_early_is_not_a_success() {
    let (code, stdout, _) = run(
        |mut socket| {
            Box::pin(async move {
                socket.send(message(STDOUT, b"half")).await.expect("send");
                socket.close(None).await.expect("close");
            })
        },
        b"",
    )
    .await;
    assert!(matches!(code, Err(ExecError::Lost { .. })), "{code:?}");
    assert_eq!(stdout, b"half");
}

#[tokio::test]
async fn what_the_node_says_about_a_command_that_did_not_run_is_passed_on() {
    let (code, ..) = run(
        |mut socket| {
            Box::pin(async move {
                let status = br#"{"status":"Failure","message":"no such file","reason":"InternalError"}"#;
                socket.send(message(STATUS, status)).await.expect("send");
            })
        },
        b"",
    )
    .await;
    assert_eq!(code.expect_err("it did not run").to_string(), "run `cmd` in pod `p`: no such file");
}
