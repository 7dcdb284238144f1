//! Clients over HTTP: MCP's streamable HTTP transport, for callers whose credential has been
//! checked.
//!
//! A tenant is everything of one credential: its sandboxes, its commands, and the sessions of its
//! clients. A session's id means nothing under another credential. A client of a protocol before
//! 2026-07-28 has a session, which it ends itself or which ends when it is idle. Requests of the
//! later protocol have no session; all of a credential count as one client. When a credential has
//! no client any more, its sandboxes are deleted.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::Display;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use rmcp::transport::StreamableHttpService;
use rmcp::transport::streamable_http_server::StreamableHttpServerConfig;
use rmcp::transport::streamable_http_server::session::SessionManager as _;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Server;

/// The largest body of a request. `upload_file` with 4,000,000 bytes in base64 fits.
pub const LARGEST_BODY: usize = 8 << 20;

/// The bodies that a credential's requests may hold in memory at a time. Parsed JSON needs a
/// multiple of them.
const BODIES: usize = 2 * LARGEST_BODY;

/// The sessions of a credential.
const MOST_SESSIONS: usize = 16;

/// The requests of a credential that are under way, with streams that stay open.
const MOST_UNDER_WAY: usize = 128;

/// The longest time that a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The bytes of a refused body that are read, and the time for that.
const MOST_DRAINED: usize = 64 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Messages that a session keeps for a client that reconnects. Each may be megabytes.
const KEPT_MESSAGES: usize = 4;

/// The time for which the messages of a stream that the client cancelled are kept.
const KEPT_FOR: Duration = Duration::from_secs(10);

const SESSION_HEADER: &str = "mcp-session-id";

/// The body of a response.
pub type Body = BoxBody<Bytes, Infallible>;

/// Tells credentials apart: a hash of the secret.
pub type Credential = [u8; 32];

/// A request that is refused, with what its sender reads.
#[derive(Debug)]
pub struct Refusal {
    status: StatusCode,
    code: i32,
    message: String,
}

impl Refusal {
    /// Refuses with a message.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        // The range that JSON-RPC leaves to servers.
        Self { status, code: -32000, message: message.into() }
    }

    /// Returns the response: a JSON-RPC error, which clients of MCP show.
    pub fn response(&self) -> Response<Body> {
        let error = json!({ "code": self.code, "message": self.message });
        let text = json!({ "jsonrpc": "2.0", "id": null, "error": error }).to_string();
        let mut response = Response::new(Full::new(Bytes::from(text)).boxed());
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        if matches!(self.status, StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT) {
            // The rest of the body is not read.
            headers.insert(CONNECTION, http::HeaderValue::from_static("close"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, http::HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The clients of all credentials. Clones share everything.
#[derive(Clone)]
pub struct Clients(Arc<Inner>);

struct Inner {
    make: Box<dyn Fn() -> Server + Send + Sync>,
    idle: Duration,
    /// `None` after the end.
    tenants: Mutex<Option<HashMap<Credential, Arc<Tenant>>>>,
    /// Told when a client has gone.
    gone: Notify,
    endings: TaskTracker,
}

impl Clients {
    /// Serves clients, each credential with a server that `make` returns. A client is gone when it
    /// has had no request and no stream for the time `idle`.
    pub fn new(make: impl Fn() -> Server + Send + Sync + 'static, idle: Duration) -> Self {
        Self(Arc::new(Inner {
            make: Box::new(make),
            idle,
            tenants: Mutex::new(Some(HashMap::new())),
            gone: Notify::new(),
            endings: TaskTracker::new(),
        }))
    }

    /// Answers a request whose credential, `Host` and `Origin` have been checked.
    pub async fn answer<B>(&self, credential: Credential, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Display,
    {
        self.try_answer(credential, request).await.unwrap_or_else(|refusal| refusal.response())
    }

    async fn try_answer<B>(
        &self,
        credential: Credential,
        request: Request<B>,
    ) -> Result<Response<Body>, Refusal>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Display,
    {
        let (parts, body) = request.into_parts();
        let session = header(&parts.headers, SESSION_HEADER).map(str::to_owned);
        let mut visit = self.enter(credential, session.clone())?;
        let tenant = visit.tenant.clone();
        let (body, room) = tenant.read(&parts.headers, body).await?;
        let method = match parts.method {
            Method::POST => method(&body)?,
            _ => None,
        };
        let starts = method.as_deref() == Some("initialize");
        let _place = if starts { Some(tenant.place().await?) } else { None };
        let ends = parts.method == Method::DELETE;
        if ends && session.is_some() && visit.client.is_none() {
            return Err(Refusal::new(
                StatusCode::NOT_FOUND,
                "`Mcp-Session-Id`: there is no such session with this key",
            ));
        }
        let mut response = tenant.service.handle(Request::from_parts(parts, Full::new(body))).await;
        let served = response.status().is_success();
        if let Some(started) = header(response.headers(), SESSION_HEADER) {
            visit.belongs_to(Some(started.to_owned()));
        } else if ends && served {
            tenant.forget(&session);
            // Official clients take any other success for a failure.
            *response.status_mut() = StatusCode::NO_CONTENT;
        } else if visit.client.is_none() && served && method.is_some_and(|name| name != "server/discover") {
            visit.belongs_to(None);
        }
        Ok(response.map(|body| Held { body, _visit: visit, _room: room }.boxed()))
    }

    /// Finds the tenant of a credential, or makes it, and counts a request of it.
    fn enter(&self, credential: Credential, session: Option<String>) -> Result<Visit, Refusal> {
        let mut tenants = self.tenants();
        let Some(tenants) = tenants.as_mut() else {
            return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down"));
        };
        let tenant = tenants.entry(credential).or_insert_with(|| Tenant::new((self.0.make)())).clone();
        let mut usage = tenant.usage();
        if usage.under_way >= MOST_UNDER_WAY {
            return Err(Refusal::new(
                StatusCode::TOO_MANY_REQUESTS,
                format!(
                    "{MOST_UNDER_WAY} requests with this key are under way, which is the limit; wait for one"
                ),
            ));
        }
        usage.under_way += 1;
        let known = usage.clients.get_mut(&session).filter(|_| session.is_some());
        let client = known.map(|present| {
            present.under_way += 1;
            session
        });
        drop(usage);
        Ok(Visit { tenant, client, inner: Arc::downgrade(&self.0) })
    }

    fn tenants(&self) -> MutexGuard<'_, Option<HashMap<Credential, Arc<Tenant>>>> {
        self.0.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the credentials that have clients.
    pub fn credentials(&self) -> Vec<Credential> {
        self.tenants().iter().flat_map(HashMap::keys).copied().collect()
    }

    /// Ends the clients of a credential and deletes its sandboxes.
    pub fn end(&self, credential: &Credential) {
        if let Some(tenant) = self.tenants().as_mut().and_then(|tenants| tenants.remove(credential)) {
            self.0.endings.spawn(async move { tenant.close().await });
        }
    }

    /// Ends clients that are gone, for as long as it is polled.
    pub async fn sweep(&self) -> Infallible {
        let pause = (self.0.idle / 4).clamp(Duration::from_secs(1), Duration::from_secs(60));
        loop {
            tokio::select! {
                () = self.0.gone.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
            for tenant in self.part(Instant::now()) {
                self.0.endings.spawn(async move { tenant.close().await });
            }
        }
    }

    /// Ends sessions that are idle, and takes the tenants out that have no client left.
    fn part(&self, now: Instant) -> Vec<Arc<Tenant>> {
        let mut parted = Vec::new();
        let mut tenants = self.tenants();
        let Some(tenants) = tenants.as_mut() else { return parted };
        tenants.retain(|_, tenant| {
            let mut usage = tenant.usage();
            for session in usage.expire(now, self.0.idle) {
                let sessions = tenant.sessions.clone();
                self.0.endings.spawn(async move { close_session(&sessions, &session).await });
            }
            let stays = usage.under_way > 0 || !usage.clients.is_empty();
            drop(usage);
            if !stays {
                parted.push(tenant.clone());
            }
            stays
        });
        parted
    }

    /// Ends all clients and deletes their sandboxes.
    pub async fn close(&self) {
        let tenants = self.tenants().take();
        for tenant in tenants.into_iter().flat_map(HashMap::into_values) {
            self.0.endings.spawn(async move { tenant.close().await });
        }
        self.0.endings.close();
        self.0.endings.wait().await;
    }
}

/// Everything of one credential.
struct Tenant {
    server: Server,
    service: StreamableHttpService<Server, LocalSessionManager>,
    sessions: Arc<LocalSessionManager>,
    usage: Mutex<Usage>,
    bodies: Arc<Semaphore>,
    end: CancellationToken,
}

impl Tenant {
    fn new(server: Server) -> Arc<Self> {
        let end = CancellationToken::new();
        let mut sessions = LocalSessionManager::default();
        // Idle sessions are ended by `Clients::sweep`, which knows of open streams.
        sessions.session_config.keep_alive = None;
        sessions.session_config.channel_capacity = KEPT_MESSAGES;
        sessions.session_config.completed_cache_ttl = KEPT_FOR;
        let sessions = Arc::new(sessions);
        // `Host` and `Origin` are checked before the credential is.
        let config = StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .with_max_request_body_bytes(LARGEST_BODY)
            .with_cancellation_token(end.child_token());
        let own = server.clone();
        let service = StreamableHttpService::new(move || Ok(own.clone()), sessions.clone(), config);
        let (keeper, until) = (server.clone(), end.clone());
        tokio::spawn(async move {
            tokio::select! {
                never = keeper.keep() => match never {},
                () = until.cancelled() => {}
            }
        });
        let bodies = Arc::new(Semaphore::new(BODIES));
        Arc::new(Self { server, service, sessions, usage: Mutex::default(), bodies, end })
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, session: &Option<String>) {
        self.usage().clients.remove(session);
    }

    /// Reads a body. The permit stands for the memory that it takes.
    async fn read<B>(&self, headers: &HeaderMap, body: B) -> Result<(Bytes, OwnedSemaphorePermit), Refusal>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Display,
    {
        let too_large = || {
            let message = format!(
                "the body is larger than {LARGEST_BODY} bytes; write a large file in parts, or fetch it from within \
                 the sandbox"
            );
            Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message)
        };
        let mut body = std::pin::pin!(body);
        let length = match header(headers, CONTENT_LENGTH.as_str()).map(str::parse::<usize>) {
            None if body.is_end_stream() => 0,
            None => LARGEST_BODY,
            Some(Ok(length)) if length <= LARGEST_BODY => length,
            Some(_) => {
                drain(body).await;
                return Err(too_large());
            }
        };
        let permits = u32::try_from(length).map_err(|_| too_large())?;
        let Ok(room) = self.bodies.clone().try_acquire_many_owned(permits) else {
            drain(body).await;
            let message = format!("requests with this key hold {BODIES} bytes already; wait for one to end");
            return Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, message));
        };
        let mut bytes = BytesMut::new();
        let whole = async {
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| {
                    Refusal::new(StatusCode::BAD_REQUEST, format!("read the body: {error}"))
                })?;
                let Ok(data) = frame.into_data() else { continue };
                if data.len() > LARGEST_BODY - bytes.len() {
                    return Err(too_large());
                }
                bytes.extend_from_slice(&data);
            }
            Ok(())
        };
        match tokio::time::timeout(BODY_TIMEOUT, whole).await {
            Ok(Ok(())) => Ok((bytes.freeze(), room)),
            Ok(Err(refusal)) => {
                drop(bytes);
                drain(body).await;
                Err(refusal)
            }
            Err(_) => Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")),
        }
    }

    /// Takes a place for a session that is about to start.
    async fn place(self: &Arc<Self>) -> Result<Place, Refusal> {
        if let Some(place) = self.try_place() {
            return Ok(place);
        }
        // A session whose client broke it off during its start is known here only.
        let named: Vec<String> = self.usage().clients.keys().flatten().cloned().collect();
        for session in named {
            if let Ok(false) = self.sessions.has_session(&session.as_str().into()).await {
                self.forget(&Some(session));
            }
        }
        self.try_place().ok_or_else(|| {
            let message = format!(
                "there are {MOST_SESSIONS} sessions with this key, which is the limit; end one (`DELETE` with its \
                 `Mcp-Session-Id`), wait until an idle one ends, or use another key"
            );
            Refusal::new(StatusCode::TOO_MANY_REQUESTS, message)
        })
    }

    fn try_place(self: &Arc<Self>) -> Option<Place> {
        let mut usage = self.usage();
        (usage.clients.len() + usage.starting < MOST_SESSIONS).then(|| {
            usage.starting += 1;
            Place(self.clone())
        })
    }

    /// Ends the sessions and deletes the sandboxes.
    async fn close(&self) {
        self.end.cancel();
        let sessions: Vec<_> = self.sessions.sessions.read().await.keys().cloned().collect();
        for session in sessions {
            close_session(&self.sessions, &session).await;
        }
        if let Err(error) = self.server.close().await {
            tracing::warn!(error, "sandboxes of a client left to their lease");
        }
    }
}

/// Reads what is left of a body that is refused. A client that is still sending does not look for
/// its answer, and a connection that is closed before its data was read is reset.
async fn drain<B: http_body::Body<Data = Bytes>>(mut body: Pin<&mut B>) {
    let reading = async {
        let mut left = MOST_DRAINED;
        while let Some(Ok(frame)) = body.frame().await {
            match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    // A slow client loses the answer.
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, reading).await;
}

async fn close_session(sessions: &LocalSessionManager, session: &str) {
    if let Err(error) = sessions.close_session(&session.into()).await {
        tracing::debug!(%error, "session not closed");
    }
}

/// The resources that the clients of a credential use.
#[derive(Debug, Default)]
struct Usage {
    /// Requests under way, with open streams.
    under_way: usize,
    /// Sessions about to start.
    starting: usize,
    /// Clients by their session. All without a session are one, `None`.
    clients: HashMap<Option<String>, Present>,
}

#[derive(Debug)]
struct Present {
    under_way: usize,
    /// When its last request or stream ended.
    since: Instant,
}

impl Usage {
    /// Takes clients out that are idle, and returns their sessions.
    fn expire(&mut self, now: Instant, idle: Duration) -> Vec<String> {
        let mut sessions = Vec::new();
        self.clients.retain(|session, present| {
            let stays = present.under_way > 0 || now.duration_since(present.since) < idle;
            if !stays {
                sessions.extend(session.clone());
            }
            stays
        });
        sessions
    }
}

/// A place for a session that is about to start.
struct Place(Arc<Tenant>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.usage().starting -= 1;
    }
}

/// A request under way, until the end of its response.
struct Visit {
    tenant: Arc<Tenant>,
    /// The client that it counts for, when that is known.
    client: Option<Option<String>>,
    inner: Weak<Inner>,
}

impl Visit {
    /// Counts the request for a client from now on.
    fn belongs_to(&mut self, client: Option<String>) {
        let mut usage = self.tenant.usage();
        let new = || Present { under_way: 0, since: Instant::now() };
        usage.clients.entry(client.clone()).or_insert_with(new).under_way += 1;
        self.client = Some(client);
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut usage = self.tenant.usage();
        usage.under_way -= 1;
        // A client that has ended its session is not there any more.
        if let Some(present) = self.client.as_ref().and_then(|client| usage.clients.get_mut(client)) {
            present.under_way -= 1;
            present.since = Instant::now();
        }
        if usage.under_way == 0
            && usage.clients.is_empty()
            && let Some(inner) = self.inner.upgrade()
        {
            inner.gone.notify_one();
        }
    }
}

/// A response's body, which keeps the request counted.
struct Held {
    body: Body,
    _visit: Visit,
    _room: OwnedSemaphorePermit,
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Returns the method of a message; `None` if it is a response.
fn method(body: &[u8]) -> Result<Option<String>, Refusal> {
    #[derive(Deserialize)]
    struct Message {
        method: Option<String>,
        result: Option<IgnoredAny>,
        error: Option<IgnoredAny>,
    }
    let refuse = |code, message| Refusal { status: StatusCode::BAD_REQUEST, code, message };
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
        return Err(refuse(
            -32600,
            "the body is a batch, which is not part of MCP; send one message".to_owned(),
        ));
    }
    match serde_json::from_slice(body) {
        Ok(Message { method: None, result: None, error: None }) => {
            Err(refuse(-32600, "the body has no `method`, `result` or `error`".to_owned()))
        }
        Ok(message) => Ok(message.method),
        Err(error) => {
            let code = if error.is_data() { -32600 } else { -32700 };
            Err(refuse(code, format!("the body is not a JSON-RPC message: {error}")))
        }
    }
}

#[cfg(test)]
mod tests;
