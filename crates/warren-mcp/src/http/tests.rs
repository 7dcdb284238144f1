use http::header::ACCEPT;

use super::*;
use crate::{Config, Connect, Connecting};

struct Nowhere;

impl Connect for Nowhere {
    fn connect(&self) -> Connecting<'_> {
        Box::pin(async { Err("no home".to_owned()) })
    }

    fn reconnect(&self) -> Connecting<'_> {
        self.connect()
    }

    fn router(&self) -> Result<String, String> {
        Err("no home".to_owned())
    }
}

const IDLE: Duration = Duration::from_secs(100);

fn clients() -> Clients {
    let config = Config {
        session: "s".to_owned(),
        all: false,
        namespace: None,
        image: None,
        local_home: true,
        lease: Duration::from_secs(60),
        most_sandboxes: 1,
    };
    Clients::new(move || Server::new(config.clone(), Box::new(Nowhere)), IDLE)
}

fn request(method: Method, session: Option<&str>, body: &str) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(method).uri("/mcp").header("host", "localhost");
    request = request.header(ACCEPT, "application/json, text/event-stream");
    request = request.header(CONTENT_TYPE, "application/json");
    if let Some(session) = session {
        request = request.header(SESSION_HEADER, session);
    }
    request.body(Full::new(Bytes::from(body.to_owned()))).expect("a request")
}

async fn start(clients: &Clients, credential: Credential) -> String {
    let response = clients.answer(credential, request(Method::POST, None, &initialize())).await;
    assert_eq!(response.status(), 200);
    header(response.headers(), SESSION_HEADER).expect("a session").to_owned()
}

fn initialize() -> String {
    let client = json!({ "name": "test", "version": "1" });
    let parameters = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client });
    json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": parameters }).to_string()
}

async fn status(clients: &Clients, credential: Credential, request: Request<Full<Bytes>>) -> u16 {
    clients.answer(credential, request).await.status().as_u16()
}

#[tokio::test]
async fn session_is_not_there_for_another_credential_and_its_number_is_limited() {
    let clients = clients();
    let (mine, other) = ([1; 32], [2; 32]);
    let session = start(&clients, mine).await;
    let list = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    assert_eq!(status(&clients, other, request(Method::POST, Some(&session), list)).await, 404);
    assert_eq!(status(&clients, other, request(Method::DELETE, Some(&session), "")).await, 404);
    assert_eq!(status(&clients, mine, request(Method::POST, Some(&session), list)).await, 202);
    for _ in 1..MOST_SESSIONS {
        start(&clients, mine).await;
    }
    assert_eq!(status(&clients, mine, request(Method::POST, None, &initialize())).await, 429);
    start(&clients, other).await;
    assert_eq!(status(&clients, mine, request(Method::DELETE, Some(&session), "")).await, 204);
    start(&clients, mine).await;
}

#[tokio::test(start_paused = true)]
async fn client_is_gone_when_it_is_idle_and_not_while_a_stream_is_open() {
    let clients = clients();
    let sweeping = clients.clone();
    let sweeper = tokio::spawn(async move { sweeping.sweep().await });
    let (idle, streams) = ([1; 32], [2; 32]);
    start(&clients, idle).await;
    let session = start(&clients, streams).await;
    let stream = clients.answer(streams, request(Method::GET, Some(&session), "")).await;
    assert_eq!(stream.status(), 200);
    tokio::time::sleep(IDLE / 2).await;
    assert_eq!(clients.credentials().len(), 2);
    tokio::time::sleep(IDLE).await;
    assert_eq!(clients.credentials(), [streams]);
    drop(stream);
    tokio::time::sleep(2 * IDLE).await;
    assert!(clients.credentials().is_empty());
    // A request that starts nothing leaves nothing.
    assert_eq!(status(&clients, idle, request(Method::GET, Some("x"), "")).await, 404);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(clients.credentials().is_empty());
    sweeper.abort();
}

#[tokio::test]
async fn last_session_that_ends_takes_the_credential_s_server_with_it() {
    let clients = clients();
    let credential = [1; 32];
    let (first, second) = (start(&clients, credential).await, start(&clients, credential).await);
    assert_eq!(status(&clients, credential, request(Method::DELETE, Some(&first), "")).await, 204);
    assert!(clients.part(Instant::now()).is_empty());
    assert_eq!(status(&clients, credential, request(Method::DELETE, Some(&second), "")).await, 204);
    assert_eq!(clients.part(Instant::now()).len(), 1);
    assert!(clients.credentials().is_empty());
    clients.close().await;
    assert_eq!(status(&clients, credential, request(Method::POST, None, &initialize())).await, 503);
}

#[tokio::test]
async fn bodies_have_limits() {
    let clients = clients();
    let credential = [1; 32];
    let large = " ".repeat(LARGEST_BODY + 1);
    assert_eq!(status(&clients, credential, request(Method::POST, None, &large)).await, 413);
    for (body, code) in
        [("{", -32700), ("[]", -32600), ("1", -32600), ("{}", -32600), (r#"{"method":1}"#, -32600)]
    {
        let refusal = method(body.as_bytes()).expect_err("refused");
        assert_eq!((refusal.status.as_u16(), refusal.code), (400, code), "{body}");
    }
    assert_eq!(method(br#"{"id":1,"result":{}}"#).expect("a response"), None);
}
