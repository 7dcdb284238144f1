//! What one client may take of the server: requests at a time, open watches, bytes of bodies, time.
//!
//! Limits hold at the listeners. In-process clients are parts of the same program: they are not counted and cost
//! nothing. A client is a user, whatever number of connections it has. Whoever asks for too much is refused with 429
//! and told when to try again; nobody is made to wait in a queue that could itself grow without bound.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use http::{Method, Request, Response, request};
use http_body::{Body, Frame, SizeHint};
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;
use tokio::time::Sleep;
use tower::BoxError;

use crate::identity::Identity;
use crate::node;
use crate::query::Query;
use crate::respond::{self, ResponseBody};
use crate::server::Inner;
use crate::service;
use crate::status::ApiError;

/// The deepest object that is stored, in levels of objects and lists. Readers of JSON commonly give up at 128 levels,
/// and a list or a watch event wraps an object in a few more.
pub(crate) const DEEPEST_OBJECT: usize = 120;

/// How much is too much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Requests that one user may have under way, watches apart. The real server allows 400 reads and 200 writes in all.
    pub requests_per_client: usize,
    /// Watches, followed logs and exec sessions that one user may have open.
    pub watches_per_client: usize,
    /// Connections that a listener keeps open; more are closed at once.
    pub connections: usize,
    /// Bytes of request bodies, of all clients together, that may lie half read in memory.
    pub unread_body_bytes: usize,
    /// How long a client may take to send a body.
    pub body_time: Duration,
    /// How long a client may take to begin, and to send the head of a request.
    pub head_time: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            requests_per_client: 400,
            watches_per_client: 5000,
            connections: 8192,
            unread_body_bytes: 128 << 20,
            body_time: Duration::from_secs(30),
            head_time: Duration::from_secs(30),
        }
    }
}

/// Counts what every client has under way.
pub(crate) struct Gate {
    pub limits: Limits,
    clients: Mutex<HashMap<Arc<str>, UnderWay>>,
    unread_body_bytes: AtomicUsize,
}

#[derive(Default)]
struct UnderWay {
    requests: usize,
    watches: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Request,
    Watch,
}

/// The right to have one request under way; dropping it gives it back.
pub(crate) struct Permit {
    gate: Arc<Gate>,
    client: Arc<str>,
    class: Class,
}

impl Gate {
    pub fn new(limits: Limits) -> Arc<Gate> {
        Arc::new(Gate { limits, clients: Mutex::default(), unread_body_bytes: AtomicUsize::new(0) })
    }

    fn enter(self: &Arc<Gate>, client: &str, class: Class) -> Result<Permit, ApiError> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let client: Arc<str> = match clients.get_key_value(client) {
            Some((known, _)) => Arc::clone(known),
            None => client.into(),
        };
        let under_way = clients.entry(Arc::clone(&client)).or_default();
        let (count, limit, what) = match class {
            Class::Request => (&mut under_way.requests, self.limits.requests_per_client, "requests"),
            Class::Watch => (&mut under_way.watches, self.limits.watches_per_client, "watches"),
        };
        if *count >= limit {
            return Err(ApiError::too_many_requests(format!(
                "too many {what}: user {client:?} has {count} under way, and the limit is {limit}"
            )));
        }
        *count += 1;
        Ok(Permit { gate: Arc::clone(self), client, class })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut clients = self.gate.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(under_way) = clients.get_mut(&self.client) else { return };
        match self.class {
            Class::Request => under_way.requests -= 1,
            Class::Watch => under_way.watches -= 1,
        }
        if under_way.requests == 0 && under_way.watches == 0 {
            clients.remove(&self.client);
        }
    }
}

/// Answers a request that came in through a listener, within the limits.
pub(crate) async fn handle<B>(server: &Arc<Inner>, mut request: Request<B>) -> Response<ResponseBody>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let client = request.extensions().get::<Arc<Identity>>().map_or("", |identity| &*identity.user);
    let permit = match server.gate.enter(client, class(&request)) {
        Ok(permit) => Arc::new(permit),
        Err(error) => return respond::error(&error),
    };
    // An upgraded connection outlives its response, and takes this along.
    request.extensions_mut().insert(Arc::clone(&permit));
    let gate = Arc::clone(&server.gate);
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let server = Arc::clone(server);
    let answer = async move {
        let limited = !node::is_for_a_node(request.uri().path());
        let request = request.map(|body| PatientBody::new(body, gate, limited));
        service::handle(&server, request).await
    };
    // A write is carried through even if its client goes away: what follows from it has to happen as well.
    let response = match reads {
        true => AssertUnwindSafe(answer).catch_unwind().await.ok(),
        false => tokio::spawn(answer).await.ok(),
    };
    // Whoever panicked has said so in the log. One bad request is no reason to drop the connection of a good one.
    let response =
        response.unwrap_or_else(|| respond::error(&ApiError::internal("the request failed unexpectedly")));
    response.map(|body| ResponseBody::new(HeldBody { body, _permit: permit }))
}

fn class<B>(request: &Request<B>) -> Class {
    let streams = ["/exec", "/attach", "/portforward"];
    let path = request.uri().path();
    if streams.iter().any(|end| path.ends_with(end)) || node::is_for_a_node(path) {
        return Class::Watch;
    }
    match request.uri().query() {
        Some(query) if request.method() == Method::GET => {
            let query = Query::parse(query);
            if query.is_on("watch") || query.is_on("follow") { Class::Watch } else { Class::Request }
        }
        _ => Class::Request,
    }
}

/// What keeps the permit of a request that is upgraded: whoever holds it is still under way.
pub(crate) fn take_permit(parts: &mut request::Parts) -> Option<Arc<Permit>> {
    parts.extensions.remove()
}

/// Refuses an object that is nested so deeply that its readers would choke on it, this server first.
pub(crate) fn check_depth(object: &Value) -> Result<(), ApiError> {
    if depth_within(object, DEEPEST_OBJECT) { Ok(()) } else { Err(too_deep()) }
}

/// Whether a value has at most so many levels. Looks no deeper than that.
pub(crate) fn depth_within(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels > 0 && items.iter().all(|item| depth_within(item, levels - 1)),
        Value::Object(fields) => levels > 0 && fields.values().all(|field| depth_within(field, levels - 1)),
        _ => true,
    }
}

pub(crate) fn too_deep() -> ApiError {
    ApiError::bad_request(format!(
        "the object is nested too deeply: at most {DEEPEST_OBJECT} levels of objects and lists are allowed"
    ))
}

/// What the aliases of a YAML document may repeat in all. Manifests have none; a few lines of aliases of aliases stand for more
/// than there is memory, and even a million repetitions keep a processor busy for a second.
const MOST_REPETITIONS: usize = 20_000;

/// Reads YAML from a client; what is wrong with it, in the reader's words.
pub(crate) fn read_yaml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let aliases = serde_saphyr::alias_limits! { max_total_replayed_events: MOST_REPETITIONS };
    let options = serde_saphyr::options! { alias_limits: aliases };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())
}

/// Levels of an expression in a definition. Parsers of expressions call themselves for each level, several functions deep.
const DEEPEST_EXPRESSION: usize = 40;
/// Signs between terms, each of which is a level of the parsed tree: `a.b.c`, `1 + 1 + 1`. The rules of well-known definitions
/// have some dozens.
const MOST_SIGNS: usize = 300;

/// Whether an expression is flat enough to be parsed on an ordinary stack: brackets within brackets, operators before
/// operators, conditions behind conditions. Brackets in string literals count as well; no rule has so many of them.
pub(crate) fn expression_is_flat(text: &str) -> bool {
    let (mut brackets, mut operators, mut conditions, mut signs) = (0_usize, 0_usize, 0_usize, 0_usize);
    text.bytes().all(|byte| {
        match byte {
            b'(' | b'[' | b'{' => brackets += 1,
            b')' | b']' | b'}' => brackets = brackets.saturating_sub(1),
            b'?' => conditions += 1,
            b'.' | b'+' | b'*' | b'/' | b'%' | b'<' | b'>' | b'=' | b'&' | b'|' => signs += 1,
            _ => {}
        }
        match byte {
            b'!' | b'-' => operators += 1,
            byte if byte.is_ascii_whitespace() => {}
            _ => operators = 0,
        }
        brackets + operators + conditions <= DEEPEST_EXPRESSION && signs <= MOST_SIGNS
    })
}

/// Runs what calls itself for each level of an expression, on a stack that is large enough for as many as are allowed.
pub(crate) fn on_a_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> std::io::Result<T> {
    // Mapped, not used: it costs what is touched of it.
    const STACK: usize = 64 << 20;
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("deep".to_owned()).stack_size(STACK);
        let thread = thread.spawn_scoped(scope, work)?;
        thread.join().map_err(|_| std::io::Error::other("it ended in a panic"))
    })
}

/// Why a body was not read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum BodyRefused {
    /// The client took too long.
    #[error("the request body did not arrive within {} s", .0.as_secs_f64())]
    Slow(Duration),
    /// Too many clients send too much at once.
    #[error("too many request bodies are being received at once")]
    Crowded,
}

impl BodyRefused {
    /// What the client is told.
    pub fn into_error(self) -> ApiError {
        match self {
            BodyRefused::Slow(_) => ApiError::request_timeout(self.to_string()),
            BodyRefused::Crowded => ApiError::too_many_requests(self.to_string()),
        }
    }
}

/// A request body that has to come in time and counts against what all bodies may take.
struct PatientBody<B> {
    body: B,
    gate: Arc<Gate>,
    counted: usize,
    deadline: Option<Pin<Box<Sleep>>>,
    /// Not for one that is passed on as it comes.
    limited: bool,
}

impl<B> PatientBody<B> {
    fn new(body: B, gate: Arc<Gate>, limited: bool) -> PatientBody<B> {
        PatientBody { body, gate, counted: 0, deadline: None, limited }
    }
}

impl<B> Drop for PatientBody<B> {
    fn drop(&mut self) {
        self.gate.unread_body_bytes.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

impl<B> Body for PatientBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) if !this.limited => Poll::Ready(Some(Ok(frame))),
            Poll::Pending if !this.limited => Poll::Pending,
            Poll::Ready(Some(Ok(frame))) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                this.counted += length;
                let all = this.gate.unread_body_bytes.fetch_add(length, Ordering::Relaxed) + length;
                if all > this.gate.limits.unread_body_bytes {
                    return Poll::Ready(Some(Err(BodyRefused::Crowded.into())));
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                let time = this.gate.limits.body_time;
                // A body that is there already never needs a timer.
                let deadline = this.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(time)));
                match deadline.as_mut().poll(context) {
                    Poll::Ready(()) => Poll::Ready(Some(Err(BodyRefused::Slow(time).into()))),
                    Poll::Pending => Poll::Pending,
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response body that keeps its request counted until it has been sent.
struct HeldBody {
    body: ResponseBody,
    _permit: Arc<Permit>,
}

impl Body for HeldBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

mod first_byte;
mod unread;
pub(crate) use first_byte::FirstByteInTime;
pub(crate) use unread::Unread;

#[cfg(test)]
mod tests;
