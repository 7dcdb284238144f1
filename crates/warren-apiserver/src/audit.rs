//! The audit log: one JSON line for every write, and for every exec, attach and port-forward.
//!
//! A line is an `Event` of `audit.k8s.io/v1` at level `Metadata`: who did what to which object, with which outcome. It
//! never holds a body, so no secret gets into it. Lines are written by a thread of their own, behind a bounded queue: a
//! slow or full disk loses lines, and says so in the log of the daemon, but never holds up or fails a request.

use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use http::{HeaderValue, Method, Response, header, request};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::identity::Identity;
use crate::query::decode;
use crate::respond::ResponseBody;
use crate::route::{self, Route};
use crate::server::Inner;

mod file;

pub use file::{AuditConfig, AuditError};
use file::{LogFile, Message};

/// Lines that wait for the disk. At the speed of one machine's API that is about a second's worth.
const QUEUE: usize = 8192;
/// The longest text from a client that gets into a line.
const LONGEST_TEXT: usize = 1024;

/// The open log.
pub(crate) struct AuditLog {
    queue: SyncSender<Message>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl AuditLog {
    pub fn open(config: &AuditConfig) -> Result<AuditLog, AuditError> {
        let file = LogFile::open(config)?;
        let (queue, messages) = mpsc::sync_channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("audit-log".to_owned())
            .spawn(move || file::run(file, &messages))
            .map_err(AuditError::Thread)?;
        Ok(AuditLog { queue, thread: Mutex::new(Some(thread)) })
    }

    /// Hands over a line; drops it if the disk is too far behind.
    fn write(&self, line: Vec<u8>) {
        if let Err(TrySendError::Full(_)) = self.queue.try_send(Message::Line(line)) {
            tracing::warn!("the audit log is too slow, an entry is lost");
        }
    }

    /// Writes what is queued and ends the thread. Later lines are lost.
    pub fn close(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return };
        // Fails only if the thread has ended already.
        let _ = self.queue.send(Message::End);
        if thread.join().is_err() {
            tracing::error!("the thread of the audit log panicked");
        }
    }
}

/// Where a request came from; an extension of the request, put there by its listener.
#[derive(Debug, Clone)]
pub(crate) struct Source(pub Arc<str>);

/// The name that a new object was given; an extension of the response.
#[derive(Debug, Clone)]
pub(crate) struct CreatedName(pub Arc<str>);

/// A request that will be logged. One that is dropped without an answer is logged as such.
pub(crate) struct Entry {
    server: Arc<Inner>,
    event: Map<String, Value>,
}

impl Entry {
    /// Begins the line of a request, if it is one that is logged.
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
        let mut object = Map::new();
        for (name, value) in [
            ("resource", Some(resource.plural)),
            ("namespace", resource.namespace),
            ("name", resource.name),
            ("apiGroup", Some(resource.group).filter(|group| !group.is_empty())),
            ("apiVersion", Some(resource.version)),
            ("subresource", resource.subresource),
        ] {
            if let Some(value) = value {
                object.insert(name.to_owned(), shorten(value).into());
            }
        }
        // The command of an exec is in its query, and may be a secret.
        let uri = match parts.uri.path_and_query() {
            Some(whole) if !streams => whole.as_str(),
            _ => path,
        };
        let mut user = json!({"username": "system:anonymous", "groups": ["system:unauthenticated"]});
        if let Some(identity) = identity {
            user = json!({"username": identity.user, "groups": identity.groups});
        }
        let mut event = Map::new();
        event.insert("kind".to_owned(), "Event".into());
        event.insert("apiVersion".to_owned(), "audit.k8s.io/v1".into());
        event.insert("level".to_owned(), "Metadata".into());
        let id = uuid::Builder::from_random_bytes(fastrand::u128(..).to_ne_bytes()).into_uuid();
        event.insert("auditID".to_owned(), id.to_string().into());
        event.insert("stage".to_owned(), "ResponseComplete".into());
        event.insert("requestURI".to_owned(), shorten(uri).into());
        event.insert("verb".to_owned(), verb.into());
        event.insert("user".to_owned(), user);
        if let Some(Source(source)) = parts.extensions.get() {
            event.insert("sourceIPs".to_owned(), json!([&**source]));
        }
        if let Some(agent) = parts.headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()) {
            event.insert("userAgent".to_owned(), shorten(agent).into());
        }
        event.insert("objectRef".to_owned(), object.into());
        event.insert("requestReceivedTimestamp".to_owned(), timestamp(server.now()).into());
        Some(Entry { server: Arc::clone(server), event })
    }

    /// Ends the line, and tells the client under which id it is found.
    pub fn finish(mut self, response: &mut Response<ResponseBody>) {
        if let Some(CreatedName(name)) = response.extensions().get() {
            self.event["objectRef"]["name"] = (**name).into();
        }
        if let Some(Ok(id)) = self.event["auditID"].as_str().map(HeaderValue::from_str) {
            response.headers_mut().insert("audit-id", id);
        }
        self.write(json!({"code": response.status().as_u16()}));
    }

    fn write(&mut self, status: Value) {
        let mut event = std::mem::take(&mut self.event);
        event.insert("responseStatus".to_owned(), status);
        event.insert("stageTimestamp".to_owned(), timestamp(self.server.now()).into());
        let mut line = Value::Object(event).to_string().into_bytes();
        line.push(b'\n');
        if let Some(audit) = &self.server.audit {
            audit.write(line);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if !self.event.is_empty() {
            self.write(json!({"message": "the request was given up before it was answered"}));
        }
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
