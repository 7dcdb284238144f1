//! `pods/exec` and `pods/log`, with a stand-in for the node's kubelet API at the other end of the
//! stream.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{AsyncBufReadExt, SinkExt, StreamExt, TryStreamExt};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{AttachParams, LogParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use warren_apiserver::{ApiServer, ByteStream, Config, NodeDialer, Storage};

use crate::support::{client, object, refusal};

/// A kubelet that records requests, echoes stdin of an exec to stdout and then reports exit code 7.
#[derive(Default)]
struct Kubelet {
    requests: Arc<Mutex<Vec<String>>>,
}

impl NodeDialer for Kubelet {
    fn dial(&self, node_name: &str) -> BoxFuture<'_, io::Result<Box<dyn ByteStream>>> {
        if node_name != "here" {
            return Box::pin(std::future::ready(Err(io::Error::other("no such node"))));
        }
        let (near, far) = tokio::io::duplex(4096);
        let requests = Arc::clone(&self.requests);
        let answer = hyper::service::service_fn(move |request: Request<Incoming>| {
            requests.lock().unwrap().push(request.uri().to_string());
            async move { Ok::<_, Infallible>(answer(request)) }
        });
        let connection =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(far), answer);
        tokio::spawn(connection.with_upgrades());
        Box::pin(async move { Ok(Box::new(near) as Box<dyn ByteStream>) })
    }
}

fn answer(request: Request<Incoming>) -> Response<Full<Bytes>> {
    if request.uri().path().starts_with("/containerLogs/") {
        return Response::new(Full::new(Bytes::from_static(b"one\ntwo\n")));
    }
    let key = request.headers()["sec-websocket-key"].as_bytes();
    let response = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-accept", derive_accept_key(key))
        .header("sec-websocket-protocol", "v5.channel.k8s.io")
        .body(Full::default())
        .unwrap();
    tokio::spawn(async move {
        let upgraded = hyper::upgrade::on(request).await.unwrap();
        let mut socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
        while let Some(Ok(message)) = socket.next().await {
            match message.into_data().as_ref() {
                // Standard input.
                [0, data @ ..] => {
                    let echoed = [&[1], data].concat();
                    socket.send(Message::binary(echoed)).await.unwrap();
                }
                // End of standard input.
                [255, 0] => break,
                _ => {}
            }
        }
        let status = json!({
            "status": "Failure", "reason": "NonZeroExitCode", "message": "command terminated with exit code 7",
            "details": {"causes": [{"reason": "ExitCode", "message": "7"}]}, "code": 500,
        });
        let framed = [&[3], status.to_string().as_bytes()].concat();
        socket.send(Message::binary(framed)).await.unwrap();
        socket.close(None).await.unwrap();
    });
    response
}

async fn start() -> (ApiServer, Client, Arc<Mutex<Vec<String>>>) {
    let kubelet = Kubelet::default();
    let requests = Arc::clone(&kubelet.requests);
    let config = Config {
        storage: Storage::Memory,
        crds: Vec::new(),
        nodes: Arc::new(kubelet),
        accounts: None,
        now: jiff::Timestamp::now,
        limits: Default::default(),
        audit: None,
    };
    let server = ApiServer::open(config).await.unwrap();
    let client = client(&server);
    (server, client, requests)
}

async fn make_pod(client: &Client, name: &str, node: Option<&str>) -> Api<Pod> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let mut pod: Pod = object(json!({
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "a:1"}, {"name": "side", "image": "a:1"}]},
    }));
    pod.spec.as_mut().unwrap().node_name = node.map(str::to_owned);
    pods.create(&PostParams::default(), &pod).await.unwrap();
    pods
}

#[tokio::test]
async fn exec_goes_through_to_the_node_and_back() {
    let (_server, client, requests) = start().await;
    let pods = make_pod(&client, "one", Some("here")).await;
    let parameters = AttachParams::default().stdin(true).stdout(true).stderr(false).container("main");
    let mut process = pods.exec("one", ["sh", "-c", "echo a&b"], &parameters).await.unwrap();
    let mut stdin = process.stdin().unwrap();
    let mut stdout = process.stdout().unwrap();
    let status = process.take_status().unwrap();
    stdin.write_all(b"hello").await.unwrap();
    let mut echoed = [0; 5];
    stdout.read_exact(&mut echoed).await.unwrap();
    assert_eq!(&echoed, b"hello");
    stdin.shutdown().await.unwrap();
    drop(stdin);
    let status = status.await.unwrap();
    assert_eq!(status.reason.as_deref(), Some("NonZeroExitCode"));
    assert_eq!(status.details.unwrap().causes.unwrap()[0].message.as_deref(), Some("7"));
    let expected = "/exec/default/one/main?command=sh&command=-c&command=echo%20a%26b&input=1&output=1";
    assert_eq!(requests.lock().unwrap().as_slice(), [expected]);
}

#[tokio::test]
async fn logs_are_streamed_from_the_node() {
    let (_server, client, requests) = start().await;
    let pods = make_pod(&client, "one", Some("here")).await;
    let parameters = LogParams {
        container: Some("side".to_owned()),
        follow: true,
        tail_lines: Some(5),
        ..LogParams::default()
    };
    let lines: Vec<String> =
        pods.log_stream("one", &parameters).await.unwrap().lines().try_collect().await.unwrap();
    assert_eq!(lines, ["one", "two"]);
    assert_eq!(
        requests.lock().unwrap().as_slice(),
        ["/containerLogs/default/one/side?follow=true&tailLines=5"]
    );
}

#[tokio::test]
async fn what_cannot_be_reached_is_refused_with_a_reason() {
    let (_server, client, _) = start().await;
    let pods = make_pod(&client, "unscheduled", None).await;
    let log = |container: Option<&str>| LogParams {
        container: container.map(str::to_owned),
        ..LogParams::default()
    };
    assert_eq!(
        pods.logs("unscheduled", &log(Some("main"))).await.unwrap(),
        "",
        "nothing ran, nothing was said"
    );
    let exec = pods.exec("unscheduled", ["true"], &AttachParams::default().container("main")).await;
    assert!(exec.is_err(), "nobody can run it");
    let refused = refusal(pods.logs("unscheduled", &log(None)).await);
    assert_eq!(
        refused.message,
        "a container name must be specified for pod unscheduled, choose one of: [main side]"
    );
    let refused = refusal(pods.logs("unscheduled", &log(Some("other"))).await);
    assert_eq!(refused.message, "container other is not valid for pod unscheduled");
    make_pod(&client, "far", Some("away")).await;
    assert_eq!(refusal(pods.logs("far", &log(Some("main"))).await).code, 503);
    assert_eq!(refusal(pods.logs("missing", &log(None)).await).code, 404);
}
