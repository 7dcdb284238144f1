//! Tests of `nodes/proxy`, with a node that echoes the request.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;
use warren_apiserver::{ApiServer, ByteStream, Config, Identity, NodeDialer, Storage};

use crate::support::{client, object, refusal};

/// Answers every request with a description of it.
struct Echo;

impl NodeDialer for Echo {
    fn dial(&self, node_name: &str) -> BoxFuture<'_, io::Result<Box<dyn ByteStream>>> {
        if node_name != "here" {
            return Box::pin(std::future::ready(Err(io::Error::other("nobody answers"))));
        }
        let (near, far) = tokio::io::duplex(4096);
        let answer = hyper::service::service_fn(|request: Request<Incoming>| async move {
            let (parts, body) = request.into_parts();
            let length = body.collect().await.unwrap().to_bytes().len();
            let told =
                parts.headers.contains_key("authorization") || parts.headers.contains_key("impersonate-user");
            let text = format!("{} {} {length} {told}", parts.method, parts.uri);
            let status = if parts.uri.path() == "/teapot" { StatusCode::IM_A_TEAPOT } else { StatusCode::OK };
            let answer = Response::builder().status(status).body(Full::new(Bytes::from(text)));
            Ok::<_, Infallible>(answer.unwrap())
        });
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(far), answer));
        Box::pin(async move { Ok(Box::new(near) as Box<dyn ByteStream>) })
    }
}

async fn start() -> (ApiServer, Client) {
    let config = Config {
        storage: Storage::Memory,
        crds: Vec::new(),
        nodes: Arc::new(Echo),
        accounts: None,
        now: jiff::Timestamp::now,
        limits: Default::default(),
        audit: None,
    };
    let server = ApiServer::open(config).await.unwrap();
    let client = client(&server);
    (server, client)
}

async fn ask(client: &Client, request: http::request::Builder, body: Vec<u8>) -> kube::Result<String> {
    client.request_text(request.body(body).unwrap()).await
}

#[tokio::test]
async fn a_request_goes_through_to_the_node_whatever_its_size() {
    let (_server, client) = start().await;
    let request = Request::get("/api/v1/nodes/here/proxy/a/b%2Fc?d=e%20f").header("authorization", "secret");
    assert_eq!(ask(&client, request, Vec::new()).await.unwrap(), "GET /a/b%2Fc?d=e%20f 0 false");
    // Larger than the limit of objects.
    let request = Request::post("/api/v1/nodes/here/proxy/images");
    assert_eq!(ask(&client, request, vec![0; 8 << 20]).await.unwrap(), "POST /images 8388608 false");
    let request = Request::delete("/api/v1/nodes/here/proxy/images?name=a");
    assert_eq!(ask(&client, request, Vec::new()).await.unwrap(), "DELETE /images?name=a 0 false");
    // A refusal of the node is passed on.
    let refused = refusal(ask(&client, Request::get("/api/v1/nodes/here/proxy/teapot"), Vec::new()).await);
    assert_eq!((refused.code, refused.message.as_str()), (418, "GET /teapot 0 false"));
}

#[tokio::test]
async fn a_node_that_is_not_there_and_one_that_does_not_answer_differ() {
    let (_server, client) = start().await;
    let request = || Request::get("/api/v1/nodes/there/proxy/");
    let refused = refusal(ask(&client, request(), Vec::new()).await);
    assert_eq!((refused.code, refused.message.as_str()), (404, "nodes \"there\" not found"));
    let nodes: Api<Node> = Api::all(client.clone());
    let node: Node = object(json!({"metadata": {"name": "there"}}));
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let refused = refusal(ask(&client, request(), Vec::new()).await);
    assert_eq!(
        (refused.code, refused.message.as_str()),
        (503, "error dialing node \"there\": nobody answers")
    );
}

#[tokio::test]
async fn whoever_may_not_use_the_node_is_refused_before_it_hears_of_it() {
    let (server, _client) = start().await;
    let stranger = Client::new(
        server.as_user(Identity::new("stranger", ["system:authenticated".to_owned()])),
        "default",
    );
    let refused = refusal(ask(&stranger, Request::get("/api/v1/nodes/here/proxy/images"), Vec::new()).await);
    assert_eq!(refused.code, 403);
    assert!(refused.message.contains("cannot get resource \"nodes/proxy\""), "{}", refused.message);
    let refused = refusal(ask(&stranger, Request::post("/api/v1/nodes/here/proxy/images"), Vec::new()).await);
    assert!(refused.message.contains("cannot create resource \"nodes/proxy\""), "{}", refused.message);
}
