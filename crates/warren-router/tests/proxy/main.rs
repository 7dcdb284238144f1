//! One router between raw clients and raw sandboxes, so that every byte on either side is seen.

mod access;
mod grpc;
mod hostile;
mod requests;
mod tls;
mod urls;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use warren_router::{Config, Dialer, Listener, Route, Router, Stream};

/// Leads every pod to one listener of the test, after so many failures.
struct ToTest {
    sandbox: SocketAddr,
    failures: Arc<AtomicUsize>,
    dialled: Arc<AtomicUsize>,
}

impl Dialer for ToTest {
    fn dial<'a>(&'a self, _: &'a Route, _: u16) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
        Box::pin(async move {
            self.dialled.fetch_add(1, Ordering::SeqCst);
            let left =
                self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            if left.is_ok() {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            Ok(Box::new(TcpStream::connect(self.sandbox).await?) as Box<dyn Stream>)
        })
    }
}

fn pod(namespace: &str, name: &str, address: &str) -> Value {
    let uid = format!("{namespace}-{name}");
    json!({
        "metadata": {
            "namespace": namespace, "name": name, "uid": format!("pod-{uid}"), "resourceVersion": "1",
            "labels": {"agents.x-k8s.io/sandbox-name-hash": "0"},
            "ownerReferences": [{
                "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": name,
                "uid": format!("sandbox-{uid}"), "controller": true,
            }],
        },
        "status": {"podIPs": [{"ip": address}], "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

/// An API server that has the pods `box` and `two`, and another `box` in the namespace `other`. The
/// token `alice-token` is that of `alice`, who may use `default/box`; `mallory-token` is that of a
/// user who may use nothing.
fn api_server(reviews: Arc<AtomicUsize>) -> kube::Client {
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let reviews = Arc::clone(&reviews);
        async move {
            let (parts, body) = request.into_parts();
            let query = parts.uri.query().unwrap_or_default();
            let (status, value) = if query.contains("watch=") {
                std::future::pending::<()>().await;
                (200, json!({}))
            } else if parts.uri.path() == "/api/v1/pods" {
                let items = [
                    pod("default", "box", "10.9.8.7"),
                    pod("default", "two", "10.9.8.8"),
                    pod("other", "box", "10.9.8.9"),
                ];
                (200, json!({"metadata": {"resourceVersion": "1"}, "items": items}))
            } else if parts.uri.path().ends_with("reviews") {
                reviews.fetch_add(1, Ordering::SeqCst);
                let body = body.collect().await.expect("a body").to_bytes();
                let mut review: Value = serde_json::from_slice(&body).expect("a review");
                review["metadata"] = json!({});
                review["status"] = verdict(&review["spec"]);
                (201, review)
            } else {
                (404, json!({"kind": "Status", "code": 404, "reason": "NotFound", "message": "not found"}))
            };
            let body = kube::client::Body::from(value.to_string().into_bytes());
            Ok::<_, std::convert::Infallible>(
                http::Response::builder().status(status).body(body).expect("a response"),
            )
        }
    });
    kube::Client::new(service, "default")
}

fn verdict(spec: &Value) -> Value {
    if let Some(token) = spec["token"].as_str() {
        let user = token.strip_suffix("-token").filter(|user| ["alice", "mallory"].contains(user));
        return json!({"authenticated": user.is_some(), "user": {"username": user.unwrap_or_default()}});
    }
    let asked = &spec["resourceAttributes"];
    let allowed = spec["user"] == "alice"
        && asked["group"] == "agents.x-k8s.io"
        && asked["resource"] == "sandboxes"
        && asked["subresource"] == "proxy"
        && asked["verb"] == "get"
        && asked["namespace"] == "default"
        && asked["name"] == "box";
    json!({"allowed": allowed})
}

struct Setting {
    router: SocketAddr,
    sandbox: TcpListener,
    failures: Arc<AtomicUsize>,
    dialled: Arc<AtomicUsize>,
    /// The number of times that the API server was asked about a client.
    reviews: Arc<AtomicUsize>,
    shutdown: CancellationToken,
    served: tokio::task::JoinHandle<()>,
}

impl Setting {
    async fn new(change: impl FnOnce(&mut Config)) -> Setting {
        Setting::with(change, |_| {}).await
    }

    async fn with(change: impl FnOnce(&mut Config), listen: impl FnOnce(&mut Listener)) -> Setting {
        let sandbox = TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let (failures, dialled) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let dialer = ToTest {
            sandbox: sandbox.local_addr().expect("an address"),
            failures: Arc::clone(&failures),
            dialled: Arc::clone(&dialled),
        };
        let quick = Duration::from_millis(1);
        let mut config = Config { retry_initial_delay: quick, retry_max_delay: quick, ..Config::default() };
        change(&mut config);
        let reviews = Arc::<AtomicUsize>::default();
        let router = Router::new(api_server(Arc::clone(&reviews)), dialer, config);
        let socket = TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let address = socket.local_addr().expect("an address");
        let mut listener = Listener { most_connections: 100, ..Listener::new(socket) };
        listen(&mut listener);
        let shutdown = CancellationToken::new();
        let served =
            tokio::spawn(warren_router::serve(router, listener, shutdown.clone(), Duration::from_secs(60)));
        Setting { router: address, sandbox, failures, dialled, reviews, shutdown, served }
    }

    async fn client(&self) -> Peer {
        Peer(TcpStream::connect(self.router).await.expect("connect"))
    }

    /// The next connection of the router to the sandbox.
    async fn at_sandbox(&self) -> Peer {
        Peer(self.sandbox.accept().await.expect("accept").0)
    }

    /// Sends a request and returns everything that comes back.
    async fn ask(&self, request: &str) -> String {
        let mut client = self.client().await;
        client.say(request).await;
        client.all().await
    }
}

impl Setting {
    /// Sends a request, answers it at the sandbox, and returns what came to the client and the head that came to the
    /// sandbox.
    async fn exchange(&self, request: &str, answer: &str) -> (String, String) {
        let sandbox = async {
            let mut sandbox = self.at_sandbox().await;
            let head = sandbox.until("\r\n\r\n").await;
            sandbox.say(answer).await;
            head
        };
        tokio::join!(self.ask(request), sandbox)
    }
}

/// One end of a connection, in plain text.
struct Peer(TcpStream);

impl Peer {
    async fn say(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.expect("write");
    }

    /// Reads until a text has come.
    async fn until(&mut self, end: &str) -> String {
        let mut text = Vec::new();
        while !String::from_utf8_lossy(&text).ends_with(end) {
            let byte = self.0.read_u8().await;
            text.push(byte.unwrap_or_else(|_| panic!("{:?} ended", String::from_utf8_lossy(&text))));
        }
        String::from_utf8(text).expect("text")
    }

    async fn all(&mut self) -> String {
        let mut text = String::new();
        let _ = self.0.read_to_string(&mut text).await;
        text
    }
}

const HEAD: &str = "Host: router\r\nX-Sandbox-ID: box\r\nConnection: close\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn detail(answer: &str) -> String {
    let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
    let value: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("no JSON: {answer}"));
    value["detail"].as_str().expect("a detail").to_owned()
}
