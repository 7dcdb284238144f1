//! Sessions: opened, listed, read, followed, typed into and exported.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::CONTENT_DISPOSITION;
use http::{HeaderValue, Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use warren_providers::{ProviderError, TerminalSize};
use warren_sessions::export::{Asciicast, json_lines};
use warren_sessions::{Session, SessionError, Tail};

use super::Service;
use super::agent_runs::Run;
use super::answer::{Body, Failure, data, data_with, stream_response};
use super::database::TerminalRow;
use super::request::Request;
use super::terminals::is_end;

type Answer = Result<Response<Body>, Failure>;

/// The interval of keep-alive messages to a viewer when nothing happens.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Sessions in a list.
const MOST_LISTED: usize = 1000;

/// The bytes of a session that are read at a time.
const PART: usize = 256 << 10;

/// The largest input at once.
const LARGEST_INPUT: usize = 64 << 10;

/// The number of viewers of each session.
#[derive(Clone, Debug, Default)]
pub struct Viewers(Arc<Mutex<HashMap<String, usize>>>);

impl Viewers {
    fn counts(&self) -> std::sync::MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, session: &str) -> usize {
        self.counts().get(session).copied().unwrap_or(0)
    }

    fn enter(&self, session: &str) -> Viewer {
        *self.counts().entry(session.to_owned()).or_default() += 1;
        Viewer { viewers: self.clone(), session: session.to_owned() }
    }
}

/// A viewer, for as long as it looks.
struct Viewer {
    viewers: Viewers,
    session: String,
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let mut counts = self.viewers.counts();
        if let Some(count) = counts.get_mut(&self.session) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.session);
            }
        }
    }
}

/// The origin of a session's events.
#[derive(Clone, Copy)]
enum Origin<'a> {
    Terminal(&'a TerminalRow),
    AgentRun(&'a Run),
    /// Its run or terminal was forgotten.
    Unknown,
}

fn shown(service: &Service, session: &Session, origin: Origin<'_>) -> Value {
    let (terminal, run) = match origin {
        Origin::Terminal(terminal) => (Some(terminal), None),
        Origin::AgentRun(run) => (None, Some(run)),
        Origin::Unknown => (None, None),
    };
    let ended = match origin {
        Origin::Terminal(terminal) => terminal.ended,
        Origin::AgentRun(run) => run.ended,
        Origin::Unknown => Some(session.changed),
    };
    let of_run = || run.and_then(|run| run.sandbox.as_ref());
    let code_of_run = || run.and_then(|run| run.exit_code);
    json!({
        "id": session.id,
        "title": session.title,
        "sandboxId": terminal.map(|terminal| &terminal.sandbox).or_else(of_run),
        "projectId": session.project,
        "taskId": session.task,
        "agentId": session.agent,
        "agentRunId": run.map(|run| &run.id),
        "state": if ended.is_none() { "active" } else { "ended" },
        "exitCode": terminal.and_then(|terminal| terminal.exit_code).or_else(code_of_run),
        "columns": terminal.map(|terminal| terminal.columns),
        "rows": terminal.map(|terminal| terminal.rows),
        "createdAt": session.created,
        "endedAt": ended,
        "firstOffset": session.first_offset,
        "nextOffset": session.next_offset,
        "viewers": service.viewers.of(&session.id),
    })
}

/// Lists sessions, the newest first.
pub async fn list(service: &Service) -> Answer {
    let mut sessions = service.store.list(MOST_LISTED).await?;
    sessions.sort_by(|one, other| other.created.cmp(&one.created).then_with(|| one.id.cmp(&other.id)));
    let terminals = service.database.terminals().await?;
    let runs = service.database.agent_runs(MOST_LISTED).await?;
    let runs: HashMap<&str, &Run> = runs.iter().map(|run| (run.id.as_str(), run)).collect();
    let all = sessions.iter().map(|session| {
        let origin = match (terminals.get(&session.id), runs.get(session.id.as_str())) {
            (Some(terminal), _) => Origin::Terminal(terminal),
            (None, Some(run)) => Origin::AgentRun(run),
            (None, None) => Origin::Unknown,
        };
        shown(service, session, origin)
    });
    data(&all.collect::<Vec<Value>>())
}

async fn find(service: &Service, id: &str) -> Result<Value, Failure> {
    let session = service.store.session(id).await?;
    if let Some(terminal) = service.database.terminal(id).await? {
        return Ok(shown(service, &session, Origin::Terminal(&terminal)));
    }
    let run = service.database.agent_run(id).await?;
    Ok(shown(service, &session, run.as_ref().map_or(Origin::Unknown, Origin::AgentRun)))
}

/// Deletes one, and ends its shell first. That of a run stays until the run has ended.
pub async fn remove(service: &Service, id: &str) -> Answer {
    if service.agent_runs.is_under_way(id) {
        let message = "the session's agent run has not ended; cancel it, or delete the run";
        return Err(Failure::new(StatusCode::CONFLICT, "AGENT_RUN_UNDER_WAY", message));
    }
    service.terminals.delete(id).await?;
    data(&json!({}))
}

/// Refuses what only a terminal takes.
fn needs_terminal(service: &Service, id: &str) -> Result<(), Failure> {
    match service.agent_runs.is_under_way(id) {
        true => {
            let message = "the session is one of an agent run, which takes no input and has no size";
            Err(Failure::new(StatusCode::CONFLICT, "SESSION_NOT_INTERACTIVE", message))
        }
        false => Ok(()),
    }
}

/// Shows one.
pub async fn one(service: &Service, id: &str) -> Answer {
    data(&find(service, id).await?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Open {
    columns: u16,
    rows: u16,
    title: Option<String>,
}

fn size(columns: u16, rows: u16) -> Result<TerminalSize, Failure> {
    for (field, value) in [("columns", columns), ("rows", rows)] {
        if !(1..=1000).contains(&value) {
            return Err(Failure::invalid(field, format!("is {value}; it can be 1 to 1000")));
        }
    }
    Ok(TerminalSize { width: columns, height: rows })
}

/// Opens a terminal in a sandbox.
pub async fn open(service: &Service, sandbox: &str, request: Request) -> Answer {
    let open: Open = request.json().await?;
    let size = size(open.columns, open.rows)?;
    if open.title.as_ref().is_some_and(|title| title.len() > 256) {
        return Err(Failure::invalid("title", "has more than 256 bytes"));
    }
    let found = service.provider.get_by_id(sandbox).await?;
    let info = found.ok_or_else(|| ProviderError::not_found(sandbox))?;
    let id = service.terminals.open(sandbox, info.project_id, open.title, size).await?;
    data_with(StatusCode::CREATED, &find(service, &id).await?)
}

/// Reads events.
pub async fn events(service: &Service, id: &str, request: &Request) -> Answer {
    let from = request.number("from")?.unwrap_or(0);
    let limit = request.number("limit")?.unwrap_or(1000).clamp(1, 10_000);
    let mut events = service.store.read(id, from, PART).await?;
    events.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let next = events.last().map_or(from, |event| event.offset + 1);
    data(&json!({ "events": events, "next": next }))
}

/// Follows a session from an offset on: every event once, in order.
pub async fn stream(service: &Arc<Service>, id: &str, request: &Request) -> Answer {
    let last = request.headers.get("last-event-id");
    let from = match last {
        Some(last) => {
            let last = last.to_str().ok().and_then(|last| last.trim().parse::<u64>().ok());
            last.ok_or_else(|| Failure::invalid("Last-Event-ID", "is not an offset"))?.saturating_add(1)
        }
        None => request.number("from")?.unwrap_or(0),
    };
    let tail = service.store.tail(id, from).await?;
    let following = Following {
        is_over: from > 0 && is_over(service, id, from).await?,
        tail,
        shutdown: service.shutdown.clone(),
        _viewer: service.viewers.enter(id),
        greeted: false,
        done: false,
    };
    let parts = futures::stream::unfold(following, |mut following| async move {
        let part = following.next().await?;
        Some((part, following))
    });
    Ok(stream_response("text/event-stream", parts))
}

/// Tells whether a session's last event is before an offset.
async fn is_over(service: &Service, id: &str, from: u64) -> Result<bool, Failure> {
    match service.store.read(id, from - 1, 1).await {
        Ok(events) => Ok(events.first().is_some_and(is_end)),
        Err(SessionError::Trimmed { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

struct Following {
    tail: Tail,
    shutdown: tokio_util::sync::CancellationToken,
    _viewer: Viewer,
    is_over: bool,
    greeted: bool,
    done: bool,
}

impl Following {
    async fn next(&mut self) -> Option<Result<Bytes, SessionError>> {
        if self.done {
            return None;
        }
        if self.is_over {
            self.done = true;
            return Some(Ok(Bytes::from_static(b"event: end\ndata: {}\n\n")));
        }
        if !self.greeted {
            self.greeted = true;
            return Some(Ok(Bytes::from_static(b": connected\n\n")));
        }
        let events = tokio::select! {
            events = self.tail.next() => events,
            () = tokio::time::sleep(KEEP_ALIVE) => return Some(Ok(Bytes::from_static(b": keep-alive\n\n"))),
            () = self.shutdown.cancelled() => return None,
        };
        let events = match events {
            Ok(events) => events,
            // The session was deleted.
            Err(SessionError::NotFound(_)) => {
                self.is_over = true;
                return Some(Ok(Bytes::new()));
            }
            Err(error) => {
                self.done = true;
                return Some(Err(error));
            }
        };
        let mut text = String::new();
        for event in &events {
            let json = serde_json::to_string(event).unwrap_or_default();
            text.push_str(&format!("id: {}\ndata: {json}\n\n", event.offset));
        }
        self.is_over = events.last().is_some_and(is_end);
        Some(Ok(Bytes::from(text)))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    data: String,
}

/// Types into a terminal.
pub async fn input(service: &Service, id: &str, request: Request) -> Answer {
    let input: Input = request.json().await?;
    let bytes = STANDARD.decode(&input.data).map_err(|_| Failure::invalid("data", "is not base64"))?;
    if bytes.is_empty() || bytes.len() > LARGEST_INPUT {
        return Err(Failure::invalid("data", format!("has to have 1 to {LARGEST_INPUT} bytes")));
    }
    service.store.session(id).await?;
    needs_terminal(service, id)?;
    service.terminals.input(id, bytes).await?;
    data(&json!({}))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Resize {
    columns: u16,
    rows: u16,
}

/// Changes a terminal's size.
pub async fn resize(service: &Service, id: &str, request: Request) -> Answer {
    let resize: Resize = request.json().await?;
    let size = size(resize.columns, resize.rows)?;
    service.store.session(id).await?;
    needs_terminal(service, id)?;
    service.terminals.resize(id, size).await?;
    data(&json!({}))
}

/// Streams a session as a file.
pub async fn export(service: &Arc<Service>, id: &str, request: &Request) -> Answer {
    let session = service.store.session(id).await?;
    let terminal = service.database.terminal(id).await?;
    let (columns, rows) = terminal.map_or((80, 24), |terminal| (terminal.columns, terminal.rows));
    let format = request.parameter("format");
    let mut head = Vec::new();
    let (cast, media_type, suffix) = match format.as_deref() {
        Some("asciicast") | None => {
            let cast = Asciicast::begin(&mut head, &session, columns, rows);
            let cast = cast.map_err(|error| Failure::internal(error.to_string()))?;
            (Some(cast), "application/x-asciicast", "cast")
        }
        Some("jsonl") => (None, "application/x-ndjson", "jsonl"),
        Some(_) => return Err(Failure::invalid("format", "is neither `asciicast` nor `jsonl`")),
    };
    let begin =
        (service.store.clone(), session.id.clone(), session.first_offset, session.next_offset, cast, head);
    let parts = futures::stream::try_unfold(begin, |(store, id, from, end, mut cast, head)| async move {
        if !head.is_empty() {
            return Ok(Some((Bytes::from(head), (store, id, from, end, cast, Vec::new()))));
        }
        let mut events = store.read(&id, from, PART).await.map_err(std::io::Error::other)?;
        events.retain(|event| event.offset < end);
        let Some(last) = events.last() else { return Ok(None) };
        let from = last.offset + 1;
        let mut text = Vec::new();
        match &mut cast {
            Some(cast) => cast.events(&mut text, &events)?,
            None => json_lines(&mut text, &events)?,
        }
        Ok::<_, std::io::Error>(Some((Bytes::from(text), (store, id, from, end, cast, Vec::new()))))
    });
    let mut response = stream_response(media_type, parts);
    let name = super::sandboxes::attachment(&format!("{id}.{suffix}"));
    if let Ok(value) = HeaderValue::from_str(&name) {
        response.headers_mut().insert(CONTENT_DISPOSITION, value);
    }
    Ok(response)
}
