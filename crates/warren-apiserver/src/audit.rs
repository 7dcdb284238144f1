//! The audit log: one JSON line for every write, and for every exec, attach and port-forward.
//!
//! Each line is an `Event` of `audit.k8s.io/v1` at level `Metadata`: the user, the verb, the object
//! and the outcome. Bodies are never logged, so secrets are not either. A thread writes the lines
//! from a bounded queue. If the disk is slow or full, lines are lost and the daemon logs a warning,
//! but no request is delayed or fails.

use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use http::{HeaderValue, Method, Response, header, request};
use jiff::Timestamp;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::identity::Identity;
use crate::query::decode;
use crate::respond::ResponseBody;
use crate::route::{self, Route};
use crate::seldom::Seldom;
use crate::server::Inner;

mod file;

pub use file::{AuditConfig, AuditError};
use file::{LogFile, Message};

/// The name of the writer thread.
pub(crate) const THREAD: &str = "audit-log";
/// The maximum number of queued lines: about one second of writes at the full speed of one machine.
const QUEUE: usize = 8192;
/// The initial capacity of a line's buffer. Most lines fit.
const USUAL_LINE: usize = 1024;
/// The longest client-supplied text in a line, in bytes.
const LONGEST_TEXT: usize = 1024;

pub(crate) struct AuditLog {
    queue: SyncSender<Message>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Cancelled when the thread has ended for any reason.
    ended: CancellationToken,
}

impl AuditLog {
    pub fn open(config: &AuditConfig) -> Result<AuditLog, AuditError> {
        let file = LogFile::open(config)?;
        let (queue, messages) = mpsc::sync_channel(QUEUE);
        let ended = CancellationToken::new();
        let end = ended.clone().drop_guard();
        let thread = std::thread::Builder::new()
            .name(THREAD.to_owned())
            .spawn(move || {
                let _end = end;
                file::run(file, &messages);
            })
            .map_err(AuditError::Thread)?;
        Ok(AuditLog { queue, thread: Mutex::new(Some(thread)), ended })
    }

    /// Queues a line. Drops it if the queue is full.
    fn write(&self, line: Vec<u8>) {
        if let Err(TrySendError::Full(_)) = self.queue.try_send(Message::Line(line)) {
            static LOST: Seldom = Seldom::new();
            if let Some(lost) = LOST.is_due(Instant::now()) {
                tracing::warn!(lost, "the audit log is too slow, entries are lost");
            }
        }
    }

    /// Waits until the thread has ended.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Writes the queued lines and ends the thread. Later lines are lost.
    pub fn close(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return };
        // This fails only if the thread has already ended.
        let _ = self.queue.send(Message::End);
        if thread.join().is_err() {
            tracing::error!("the thread of the audit log panicked");
        }
    }
}

/// The address that a request came from: an extension of the request, set by its listener.
#[derive(Debug, Clone)]
pub(crate) struct Source(pub Arc<str>);

/// The generated name of a new object: an extension of the response.
#[derive(Debug, Clone)]
pub(crate) struct CreatedName(pub Arc<str>);

/// A request that will be logged. If it is dropped without an answer, that is logged.
pub(crate) struct Entry {
    server: Arc<Inner>,
    /// `None` once it has been written.
    event: Option<Event>,
}

/// One line. The fields are serialised in this order.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    kind: &'static str,
    api_version: &'static str,
    level: &'static str,
    #[serde(rename = "auditID")]
    audit_id: String,
    stage: &'static str,
    #[serde(rename = "requestURI")]
    request_uri: String,
    verb: &'static str,
    user: User,
    #[serde(rename = "sourceIPs", skip_serializing_if = "Option::is_none")]
    source_ips: Option<[String; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_agent: Option<String>,
    object_ref: ObjectRef,
    request_received_timestamp: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_status: Option<Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stage_timestamp: Option<String>,
}

#[derive(Debug, Serialize)]
struct User {
    username: String,
    groups: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ObjectRef {
    resource: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_group: Option<String>,
    api_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    subresource: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
enum Status {
    Code(u16),
    Message(&'static str),
}

impl Entry {
    /// Begins the line of a request. Returns `None` if requests of this kind are not logged.
    pub fn begin(server: &Arc<Inner>, parts: &request::Parts, identity: Option<&Identity>) -> Option<Entry> {
        server.audit.as_ref()?;
        let path = parts.uri.path();
        let streams = ["/exec", "/attach", "/portforward"].iter().any(|end| path.ends_with(end));
        if !streams && matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS) {
            return None;
        }
        let decoded = decode(path, false);
        let Route::Resource(resource) = route::parse(&decoded) else { return None };
        let verb = match parts.method {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if resource.name.is_none() => "deletecollection",
            Method::DELETE => "delete",
            _ => "get",
        };
        let kept = |text: Option<&str>| text.map(|text| shorten(text).to_owned());
        // Leave out the query: it holds the command of an exec, which may contain a secret.
        let uri = match parts.uri.path_and_query() {
            Some(whole) if !streams => whole.as_str(),
            _ => path,
        };
        let user = match identity {
            Some(identity) => User { username: identity.user.clone(), groups: identity.groups.clone() },
            None => User {
                username: "system:anonymous".to_owned(),
                groups: vec!["system:unauthenticated".to_owned()],
            },
        };
        let id = uuid::Builder::from_random_bytes(fastrand::u128(..).to_ne_bytes()).into_uuid();
        let source = parts.extensions.get().map(|Source(source)| [source.to_string()]);
        let agent = parts.headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
        let event = Event {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level: "Metadata",
            audit_id: id.to_string(),
            stage: "ResponseComplete",
            request_uri: shorten(uri).to_owned(),
            verb,
            user,
            source_ips: source,
            user_agent: kept(agent),
            object_ref: ObjectRef {
                resource: shorten(resource.plural).to_owned(),
                namespace: kept(resource.namespace),
                name: kept(resource.name),
                api_group: kept(Some(resource.group).filter(|group| !group.is_empty())),
                api_version: shorten(resource.version).to_owned(),
                subresource: kept(resource.subresource),
            },
            request_received_timestamp: timestamp(server.now()),
            response_status: None,
            stage_timestamp: None,
        };
        Some(Entry { server: Arc::clone(server), event: Some(event) })
    }

    /// Completes the line and sends its id to the client in a header.
    pub fn finish(mut self, response: &mut Response<ResponseBody>) {
        let Some(event) = &mut self.event else { return };
        if let Some(CreatedName(name)) = response.extensions().get() {
            event.object_ref.name = Some(name.to_string());
        }
        if let Ok(id) = HeaderValue::from_str(&event.audit_id) {
            response.headers_mut().insert("audit-id", id);
        }
        self.write(Status::Code(response.status().as_u16()));
    }

    fn write(&mut self, status: Status) {
        let (Some(mut event), Some(audit)) = (self.event.take(), &self.server.audit) else { return };
        event.response_status = Some(status);
        event.stage_timestamp = Some(timestamp(self.server.now()));
        let mut line = Vec::with_capacity(USUAL_LINE);
        match serde_json::to_writer(&mut line, &event) {
            Ok(()) => {
                line.push(b'\n');
                audit.write(line);
            }
            Err(error) => tracing::error!(%error, "an entry of the audit log cannot be written down"),
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.write(Status::Message("the request was given up before it was answered"));
    }
}

fn timestamp(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

fn shorten(text: &str) -> &str {
    let mut end = text.len().min(LONGEST_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests;
