//! Limits on each client's use of the server: concurrent requests, open watches, bytes of bodies,
//! time.
//!
//! The limits hold at the listeners. In-process clients are parts of the same program and are not
//! counted. A client is a user, over all of its connections. A request beyond the limit is refused
//! at once with 429 and a time to try again. There is no queue that could grow without bound.

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
use crate::kubelet_proxy;
use crate::query::Query;
use crate::respond::{self, ResponseBody};
use crate::server::Inner;
use crate::service;
use crate::status::ApiError;

/// The maximum depth of a stored object, in levels of objects and lists. JSON parsers commonly fail
/// at 128 levels, and a list or watch event adds a few levels of its own.
pub(crate) const DEEPEST_OBJECT: usize = 120;

/// The limits of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of concurrent requests per user, without watches. kube-apiserver allows 400
    /// reads and 200 writes for all users together.
    pub requests_per_client: usize,
    /// Maximum number of open watches, followed logs and exec sessions per user.
    pub watches_per_client: usize,
    /// Maximum number of open connections of a listener. Further ones are closed at once.
    pub connections: usize,
    /// Maximum size of partly received request bodies, over all clients, in bytes.
    pub unread_body_bytes: usize,
    /// Maximum time for a client to send a body.
    pub body_time: Duration,
    /// Maximum time for a client to begin, and to send the head of a request.
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

/// Counts the running requests of every client.
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

/// The right to run one request. Dropping it ends the request's count.
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

/// Answers a request from a listener, within the limits.
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
    // An upgraded connection outlives its response, so it keeps this permit.
    request.extensions_mut().insert(Arc::clone(&permit));
    let gate = Arc::clone(&server.gate);
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let server = Arc::clone(server);
    let answer = async move {
        let limited = !kubelet_proxy::is_for_a_node(request.uri().path());
        let request = request.map(|body| PatientBody::new(body, gate, limited));
        service::handle(&server, request).await
    };
    // Run a write in a task of its own: it must complete with its consequences even if the client
    // disconnects.
    let response = match reads {
        true => AssertUnwindSafe(answer).catch_unwind().await.ok(),
        false => tokio::spawn(answer).await.ok(),
    };
    // A panic has been logged by the panic hook. It must not close a connection that other requests
    // share.
    let response =
        response.unwrap_or_else(|| respond::error(&ApiError::internal("the request failed unexpectedly")));
    response.map(|body| ResponseBody::new(HeldBody { body, _permit: permit }))
}

fn class<B>(request: &Request<B>) -> Class {
    let streams = ["/exec", "/attach", "/portforward"];
    let path = request.uri().path();
    if streams.iter().any(|end| path.ends_with(end)) || kubelet_proxy::is_for_a_node(path) {
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

/// Takes the permit of a request that is upgraded. The request counts as running while the permit
/// exists.
pub(crate) fn take_permit(parts: &mut request::Parts) -> Option<Arc<Permit>> {
    parts.extensions.remove()
}

/// Refuses an object that is nested too deeply for common parsers.
pub(crate) fn check_depth(object: &Value) -> Result<(), ApiError> {
    if depth_within(object, DEEPEST_OBJECT) { Ok(()) } else { Err(too_deep()) }
}

/// Returns true if a value has at most this many levels. Does not descend any further.
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

/// The maximum number of events that the aliases of a YAML document may replay. Manifests have no
/// aliases. A few lines of nested aliases can exceed the memory, and a million repetitions take a
/// second of processor time.
const MOST_REPETITIONS: usize = 20_000;

/// Parses YAML from a client. The error is the parser's message.
pub(crate) fn read_yaml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let aliases = serde_saphyr::alias_limits! { max_total_replayed_events: MOST_REPETITIONS };
    let options = serde_saphyr::options! { alias_limits: aliases };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())
}

/// The maximum depth of an expression in a definition. Expression parsers recurse through several
/// functions for each level.
const DEEPEST_EXPRESSION: usize = 40;
/// The maximum number of operators between terms, each of which is a level of the syntax tree:
/// `a.b.c`, `1 + 1 + 1`. The rules of well-known definitions have some dozens.
const MOST_SIGNS: usize = 300;

/// Returns true if an expression can be parsed on an ordinary stack. Counts nested brackets, prefix
/// operators, chained conditions and operators. Brackets in string literals count as well; no real
/// rule has too many of them.
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

/// Runs a recursive function on a stack that is large enough for the deepest expression allowed.
pub(crate) fn on_a_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> std::io::Result<T> {
    // Only the pages that are touched use memory.
    const STACK: usize = 64 << 20;
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("deep".to_owned()).stack_size(STACK);
        let thread = thread.spawn_scoped(scope, work)?;
        thread.join().map_err(|_| std::io::Error::other("it ended in a panic"))
    })
}

/// An error while receiving a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum BodyRefused {
    /// The client took too long.
    #[error("the request body did not arrive within {} s", .0.as_secs_f64())]
    Slow(Duration),
    /// The bodies being received exceed the limit for all clients.
    #[error("too many request bodies are being received at once")]
    Crowded,
}

impl BodyRefused {
    /// Converts it into the answer to the client.
    pub fn into_error(self) -> ApiError {
        match self {
            BodyRefused::Slow(_) => ApiError::request_timeout(self.to_string()),
            BodyRefused::Crowded => ApiError::too_many_requests(self.to_string()),
        }
    }
}

/// A request body with a deadline. It counts against the limit on all bodies.
struct PatientBody<B> {
    body: B,
    gate: Arc<Gate>,
    counted: usize,
    deadline: Option<Pin<Box<Sleep>>>,
    /// False for a body that is forwarded as it arrives.
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
                // A body that has already arrived needs no timer.
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

/// A response body that holds its request's permit until it is sent.
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
