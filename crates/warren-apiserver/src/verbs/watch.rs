//! The verb `watch`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderValue, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use warren_store::{Change, ChangeKind, Object, Store, Watch, WatchFrom};

use crate::call::Call;
use crate::definition::Target;
use crate::respond::{self, Representation, ResponseBody};
use crate::server::Inner;
use crate::status::{ApiError, FieldError, LIST_OPTIONS};

/// The interval of bookmarks on an idle watch, as in kube-apiserver.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// The minimum duration of a watch without `timeoutSeconds`, in seconds. The actual one is random,
/// up to twice that, so that a burst of watches does not return as a burst.
const SHORTEST_WATCH: u64 = 1800;
/// A longer timeout than this counts as no timeout: timers do not reach that far.
const LONGEST_WATCH: u64 = 365 * 24 * 3600;
/// The maximum size of a frame. Events are joined, so that a busy watch does not pay for a frame
/// per event.
const LARGEST_FRAME: usize = 64 << 10;

pub(super) fn watch(server: &Inner, call: &Call<'_>) -> Result<Response<ResponseBody>, ApiError> {
    let filter = call.filter()?;
    let version = match call.query.text("resourceVersion") {
        None => 0,
        Some(text) => text.parse::<u64>().map_err(|_| {
            ApiError::malformed_version(format!(
                "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
            ))
        })?,
    };
    let initial_events = call.query.get("sendInitialEvents").map(|value| value == "true");
    let bookmarks = call.query.is_on("allowWatchBookmarks");
    check_version_match(call, initial_events.is_some())?;
    let from = match (version, initial_events) {
        (0, Some(false)) => WatchFrom::Version(server.store.version()),
        (0, _) | (_, Some(true)) => WatchFrom::Start,
        (version, _) => WatchFrom::Version(version),
    };
    let timeout = call.query.number("timeoutSeconds")?.and_then(|seconds| u64::try_from(seconds).ok());
    let timeout = timeout
        .filter(|seconds| *seconds > 0)
        .map(|seconds| seconds.min(LONGEST_WATCH))
        .unwrap_or_else(|| fastrand::u64(SHORTEST_WATCH..2 * SHORTEST_WATCH));
    let resource = &call.target.definition.resource;
    let (feed, initial, version) = match server.store.watch(resource, filter, from) {
        Err(expired) => (Feed::Expired(ApiError::expired(expired.to_string()).body()), Vec::new(), 0),
        Ok(mut watch) => {
            let (initial, version) = (std::mem::take(&mut watch.initial), watch.version);
            (Feed::Open(Box::new(watch)), initial, version)
        }
    };
    let stream = Stream {
        feed,
        store: server.store.clone(),
        target: call.target.clone(),
        representation: call.representation,
        clock: server.clock,
        bookmarks,
        marks_initial_end: initial_events == Some(true),
        initial: initial.into_iter(),
        began: false,
        sent_columns: false,
        version,
        deadline: Instant::now() + Duration::from_secs(timeout),
        next_bookmark: Instant::now() + BOOKMARK_INTERVAL.mul_f64(0.9 + 0.2 * fastrand::f64()),
        shutdown: server.shutdown.clone(),
    };
    let frames = futures::stream::unfold(stream, |mut stream| async move {
        let frame = stream.next_frame().await?;
        Some((Ok::<_, Infallible>(Frame::data(frame)), stream))
    });
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// Checks that `resourceVersionMatch` comes with `sendInitialEvents`.
fn check_version_match(call: &Call<'_>, initial_events: bool) -> Result<(), ApiError> {
    let mut errors = Vec::new();
    let field = "resourceVersionMatch";
    match (initial_events, call.query.text(field)) {
        (false, None) | (true, Some("NotOlderThan")) => {}
        (false, Some(_)) => {
            let detail = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            errors.push(FieldError::forbidden(field, detail));
        }
        (true, other) => {
            let detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            errors.push(FieldError::forbidden(field, detail));
            if let Some(other) = other {
                errors.push(FieldError::unsupported(field, other, &["NotOlderThan"]));
            }
        }
    }
    match errors.is_empty() {
        true => Ok(()),
        false => Err(ApiError::invalid(LIST_OPTIONS, errors)),
    }
}

enum Feed {
    Open(Box<Watch>),
    /// Sent as an ERROR event. The request itself succeeds, as with kube-apiserver's watch cache.
    Expired(Value),
    Ended,
}

struct Stream {
    feed: Feed,
    store: Store,
    target: Target,
    representation: Representation,
    clock: fn() -> Timestamp,
    bookmarks: bool,
    marks_initial_end: bool,
    /// The initial objects that are still to be sent.
    initial: std::vec::IntoIter<Arc<Object>>,
    began: bool,
    sent_columns: bool,
    version: u64,
    deadline: Instant,
    next_bookmark: Instant,
    shutdown: CancellationToken,
}

impl Stream {
    /// Returns the next bytes for the client: one or more whole events.
    async fn next_frame(&mut self) -> Option<Bytes> {
        if let Feed::Expired(status) = &self.feed {
            let event = format!("{{\"type\":\"ERROR\",\"object\":{status}}}\n");
            self.feed = Feed::Ended;
            self.began = true;
            return Some(Bytes::from(event));
        }
        if !self.began {
            let initial = self.initial_events();
            if !initial.is_empty() {
                return Some(initial);
            }
        }
        let bookmark_at = self.next_bookmark;
        let Feed::Open(watch) = &mut self.feed else { return None };
        let change = tokio::select! {
            biased;
            change = watch.next() => change?,
            () = self.shutdown.cancelled() => return None,
            () = tokio::time::sleep_until(self.deadline) => return None,
            () = tokio::time::sleep_until(bookmark_at), if self.bookmarks => {
                self.next_bookmark = Instant::now() + BOOKMARK_INTERVAL;
                // All changes up to this version have been handed to the feed. If the feed is
                // empty, they have been sent too.
                let version = self.store.version();
                match watch.next_ready() {
                    Some(change) => change,
                    None => return Some(self.bookmark(version, false)),
                }
            }
        };
        let mut frame = BytesMut::new();
        self.write_event(&mut frame, &change);
        while frame.len() < LARGEST_FRAME {
            let Feed::Open(watch) = &mut self.feed else { break };
            let Some(change) = watch.next_ready() else { break };
            self.write_event(&mut frame, &change);
        }
        Some(frame.freeze())
    }

    /// Returns the next initial objects, and after the last one the bookmark that ends them, if the
    /// client asked for it. Returns no more than one frame: a client that does not read must not
    /// make the server serialise everything.
    fn initial_events(&mut self) -> Bytes {
        let mut frame = BytesMut::new();
        while frame.len() < LARGEST_FRAME {
            let Some(object) = self.initial.next() else {
                self.began = true;
                if self.marks_initial_end {
                    frame.put_slice(&self.bookmark(self.version, true));
                }
                break;
            };
            self.write_event(&mut frame, &Change { kind: ChangeKind::Added, object, previous: None });
        }
        frame.freeze()
    }

    fn write_event(&mut self, frame: &mut BytesMut, change: &Change) {
        let kind = match change.kind {
            ChangeKind::Added => "ADDED",
            ChangeKind::Modified => "MODIFIED",
            ChangeKind::Deleted => "DELETED",
        };
        let with_columns = !std::mem::replace(&mut self.sent_columns, true);
        let object = respond::represent(
            &self.target,
            &change.object,
            self.representation,
            with_columns,
            (self.clock)(),
        );
        frame.reserve(object.len() + 40);
        frame.put_slice(b"{\"type\":\"");
        frame.put_slice(kind.as_bytes());
        frame.put_slice(b"\",\"object\":");
        frame.put_slice(&object);
        frame.put_slice(b"}\n");
        self.version = self.version.max(change.object.version);
    }

    fn bookmark(&self, version: u64, ends_initial: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if ends_initial {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = match self.representation {
            Representation::Object | Representation::Unmanaged => json!({
                "kind": &*self.target.definition.kind,
                "apiVersion": &*self.target.version().api_version,
                "metadata": metadata,
            }),
            Representation::Metadata => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
            }
            Representation::Table(_) => json!({
                "kind": "Table",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": {"resourceVersion": version.to_string()},
                "columnDefinitions": null,
                "rows": [],
            }),
        };
        Bytes::from(format!("{{\"type\":\"BOOKMARK\",\"object\":{object}}}\n"))
    }
}
