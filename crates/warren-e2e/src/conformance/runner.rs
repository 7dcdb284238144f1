//! Plays scenarios on a target and records the answers that a client sees.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::mask;
use super::scenario::{Scenario, Step, Topic, Until, WatchEnd};
use super::target::{Target, TransportError};
use super::transcript::{Exchange, Recorded, Transcript};
use super::variables::{Unknown, Variables};
use super::watch::Watching;

/// The recorded headers: those that clients act on.
const OBSERVED_HEADERS: [&str; 5] = ["allow", "content-type", "location", "retry-after", "warning"];

/// The user agent, whose first word becomes the manager of a write's fields.
const USER_AGENT: &str = "conformance/1.0";

/// The interval at which another component's result is polled.
const LOOK_AGAIN: Duration = Duration::from_millis(25);

/// The largest answer of a scenario; the OpenAPI document of a core group has 5 MB.
const LARGEST_ANSWER: usize = 64 << 20;

/// The length of `${large}`: a few objects of this size exceed a bounded history, and etcd still
/// accepts each.
const LARGE: usize = 900_000;

/// The speed of a run, which must not change its results.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// The number of concurrent scenarios.
    pub parallel: usize,
    /// The time limit of a step for its condition or its events, after which the scenario is given
    /// up.
    pub patience: Duration,
}

#[derive(Debug, thiserror::Error)]
enum Stop {
    #[error(transparent)]
    Unknown(#[from] Unknown),
    #[error("the answer has no {0}")]
    NothingToSave(String),
    #[error("waited in vain; the last answer was {code} {body}")]
    Until { code: u16, body: String },
    #[error("the watch gave {got} of the events it was read for, then {then}")]
    Events { got: usize, then: String },
    #[error("no watch is open as `{0}`")]
    NoWatch(String),
    #[error("the step makes no call")]
    NoCall,
    #[error("the call cannot be made: {0}")]
    Request(#[from] http::Error),
    #[error("transport: {0}")]
    Transport(TransportError),
    #[error("the namespace could not be created: {0}")]
    Namespace(String),
}

/// Plays every scenario and returns the masked transcripts by topic. `root` is the checkout, with
/// the CRDs that topics install.
pub async fn play_all(
    target: &dyn Target,
    topics: &[Topic],
    root: &Path,
    pace: Pace,
) -> BTreeMap<String, Recorded> {
    for topic in topics.iter().filter(|topic| !topic.scenarios.is_empty()) {
        for path in &topic.install {
            // If a server cannot install them, every scenario that needs them shows it.
            let _ = install(target, &root.join(path), pace.patience).await;
        }
    }
    let all = topics.iter().flat_map(|topic| topic.scenarios.iter().map(move |one| (topic, one)));
    let accounts = AtomicBool::new(true);
    let accounts = &accounts;
    let played: Vec<_> = stream::iter(all)
        .map(|(topic, scenario)| async move {
            let transcript = play(target, topic, scenario, pace.patience, accounts).await;
            (topic.topic.clone(), scenario.name.clone(), transcript)
        })
        .buffer_unordered(pace.parallel.max(1))
        .collect()
        .await;
    let mut recorded: BTreeMap<String, Recorded> = BTreeMap::new();
    for (topic, name, transcript) in played {
        recorded.entry(topic).or_default().insert(name, transcript);
    }
    recorded
}

/// Creates the CRDs in `path` and waits until they are served.
async fn install(target: &dyn Target, path: &Path, patience: Duration) -> Result<(), TransportError> {
    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let files = match path.is_dir() {
        true => {
            std::fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?
        }
        false => vec![path.to_owned()],
    };
    let mut run = Run::new(target, patience);
    for file in files {
        let definition: Value = serde_saphyr::from_str(&std::fs::read_to_string(file)?)?;
        let text = |pointer: &str| definition.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let collection = format!(
            "/apis/{}/{}/{}?limit=1",
            text("/spec/group"),
            text("/spec/versions/0/name"),
            text("/spec/names/plural")
        );
        let post = Step { post: Some(DEFINITIONS.to_owned()), body: Some(definition), ..Step::default() };
        run.answer(&post).await?;
        let get = Step { get: Some(collection), ..Step::default() };
        run.answer_until(&get, &Until { code: Some(200), ..Until::default() }).await?;
    }
    Ok(())
}

/// Plays one scenario in a namespace of its own and returns the masked transcript. Its objects are
/// deleted afterwards. `accounts` is true while new namespaces are expected to get a service
/// account.
async fn play(
    target: &dyn Target,
    topic: &Topic,
    scenario: &Scenario,
    patience: Duration,
    accounts: &AtomicBool,
) -> Transcript {
    let id: String = std::iter::repeat_with(|| fastrand::char('a'..='z')).take(8).collect();
    let mut run = Run::new(target, patience);
    let namespace = format!("conf-{id}");
    run.variables.set("id", id.as_str());
    run.variables.set("core", format!("/api/v1/namespaces/{namespace}"));
    run.variables.set("ns", namespace.as_str());
    run.variables.set("large", "x".repeat(LARGE));

    let result = run.play(topic, scenario, &namespace, accounts).await;
    let stopped = result.err().map(|stop| format!("step {}: {stop}", run.exchanges.len() + 1));
    let namespace_path = format!("/api/v1/namespaces/{namespace}");
    for path in topic.cleanup.iter().chain(&scenario.cleanup).chain([&namespace_path]) {
        run.delete_quietly(path).await;
    }
    let mut transcript = Transcript { exchanges: run.exchanges, stopped };
    mask::mask(&mut transcript, &id);
    transcript
}

/// A scenario that is being played.
struct Run<'a> {
    target: &'a dyn Target,
    patience: Duration,
    variables: Variables,
    watches: HashMap<String, Watching>,
    exchanges: Vec<Exchange>,
}

struct Answer {
    code: StatusCode,
    headers: HeaderMap,
    body: Value,
}

impl<'a> Run<'a> {
    fn new(target: &'a dyn Target, patience: Duration) -> Self {
        let (variables, watches) = (Variables::default(), HashMap::new());
        Self { target, patience, variables, watches, exchanges: Vec::new() }
    }

    async fn play(
        &mut self,
        topic: &Topic,
        scenario: &Scenario,
        namespace: &str,
        accounts: &AtomicBool,
    ) -> Result<(), Stop> {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        let post = Step { post: Some("/api/v1/namespaces".into()), body: Some(body), ..Step::default() };
        let made = self.answer(&post).await?;
        if made.code != StatusCode::CREATED {
            return Err(Stop::Namespace(made.body.to_string()));
        }
        if topic.wait_for_service_account && accounts.load(Ordering::Relaxed) {
            let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/default");
            let get = Step { get: Some(path), ..Step::default() };
            let there = Until { code: Some(200), ..Until::default() };
            // If a server makes no service account, the answers about its pods show it, so the
            // scenario goes on. After one wait in vain, later scenarios do not wait.
            if self.answer_until(&get, &there).await.is_err() {
                accounts.store(false, Ordering::Relaxed);
            }
        }
        for step in topic.before.iter().chain(&scenario.steps) {
            self.step(step).await?;
        }
        Ok(())
    }

    async fn step(&mut self, step: &Step) -> Result<(), Stop> {
        if let Some(name) = &step.read {
            let watching = self.watches.remove(name).ok_or_else(|| Stop::NoWatch(name.clone()))?;
            let exchange = Exchange { request: format!("read {name}"), code: 200, ..Exchange::default() };
            let watching = self.read(step, exchange, watching).await?;
            self.watches.insert(name.clone(), watching);
            return Ok(());
        }
        if step.watch.is_some() {
            return self.watch(step).await;
        }
        let (method, path) = call_of(step).ok_or(Stop::NoCall)?;
        let request = format!("{method} {path}");
        let mut answer = None;
        for index in 0..step.repeat.unwrap_or(1) {
            self.variables.set("i", index);
            answer = Some(match &step.until {
                Some(until) => self.answer_until(step, until).await?,
                None => self.answer(step).await?,
            });
        }
        let answer = answer.ok_or(Stop::NoCall)?;
        let saved: Vec<_> = step
            .save
            .iter()
            .map(|(name, pointer)| (name, pointer, answer.body.pointer(pointer).cloned()))
            .collect();
        self.exchanges.push(Exchange {
            request,
            code: answer.code.as_u16(),
            headers: observed(&answer.headers),
            body: shown(step, answer.body),
            events: None,
        });
        for (name, pointer, value) in saved {
            let value = value.ok_or_else(|| Stop::NothingToSave(pointer.clone()))?;
            self.variables.set(name, value);
        }
        Ok(())
    }

    async fn watch(&mut self, step: &Step) -> Result<(), Stop> {
        let path = step.watch.as_deref().unwrap_or_default();
        let response = self.send(step, &Method::GET, &watch_path(path)).await?;
        let exchange = Exchange {
            request: format!("watch {path}"),
            code: response.status().as_u16(),
            headers: observed(response.headers()),
            ..Exchange::default()
        };
        if response.status() != StatusCode::OK {
            let answer = collect(response).await?;
            self.exchanges.push(Exchange { body: shown(step, answer.body), ..exchange });
            return Ok(());
        }
        let watching = Watching::new(response.into_body());
        match &step.open {
            Some(name) => {
                self.exchanges.push(exchange);
                self.watches.insert(name.clone(), watching);
            }
            None => {
                self.read(step, exchange, watching).await?;
            }
        }
        Ok(())
    }

    /// Records the events that `step` asks for, even if some are missing: the received ones are
    /// informative.
    async fn read(
        &mut self,
        step: &Step,
        exchange: Exchange,
        mut watching: Watching,
    ) -> Result<Watching, Stop> {
        let deadline = Instant::now() + self.patience;
        let mut events = Vec::new();
        let failure = loop {
            if step.end.is_none() && events.len() >= step.events.unwrap_or(1) {
                break None;
            }
            let then = match tokio::time::timeout_at(deadline, watching.next()).await {
                Ok(Ok(Some(event))) => {
                    let bookmark = event["type"] == "BOOKMARK";
                    // The server sends bookmarks at any time, so they count only where one is
                    // requested.
                    if !bookmark || step.end == Some(WatchEnd::Bookmark) {
                        events.push(shown(step, event));
                    }
                    if bookmark && step.end == Some(WatchEnd::Bookmark) {
                        break None;
                    }
                    continue;
                }
                Ok(Ok(None)) if step.end == Some(WatchEnd::Closed) => break None,
                Ok(Ok(None)) => "ended".to_owned(),
                Ok(Err(error)) => format!("failed: {error}"),
                Err(_) => "was silent".to_owned(),
            };
            break Some(Stop::Events { got: events.len(), then });
        };
        self.exchanges.push(Exchange { events: Some(events), ..exchange });
        failure.map_or(Ok(watching), Err)
    }

    async fn answer_until(&mut self, step: &Step, until: &Until) -> Result<Answer, Stop> {
        let deadline = Instant::now() + self.patience;
        loop {
            let answer = self.answer(step).await?;
            if holds(until, &answer) {
                return Ok(answer);
            }
            if Instant::now() >= deadline {
                return Err(Stop::Until { code: answer.code.as_u16(), body: answer.body.to_string() });
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    async fn answer(&self, step: &Step) -> Result<Answer, Stop> {
        let (method, path) = call_of(step).ok_or(Stop::NoCall)?;
        let exchange = async {
            let mut answer = collect(self.send(step, &method, path).await?).await?;
            // A real server briefly answers this for a kind with a new CRD; clients retry.
            while answer.body["message"] == "apiserver is shutting down" {
                sleep(LOOK_AGAIN).await;
                answer = collect(self.send(step, &method, path).await?).await?;
            }
            // No connection carries a body for HEAD; an in-process service may still have made one.
            if method == Method::HEAD {
                answer.body = Value::Null;
            }
            Ok(answer)
        };
        timeout(self.patience, exchange)
            .await
            .unwrap_or_else(|_| Err(Stop::Transport("no answer in time".into())))
    }

    async fn send(
        &self,
        step: &Step,
        method: &Method,
        path: &str,
    ) -> Result<http::Response<super::target::AnswerBody>, Stop> {
        let mut builder = Request::builder()
            .method(method)
            .uri(self.variables.text(path)?)
            .header(header::USER_AGENT, USER_AGENT)
            .header(header::ACCEPT, accept(step.accept.as_deref()));
        for (name, value) in &step.headers {
            builder = builder.header(name, self.variables.text(value)?);
        }
        if let Some(user) = &step.user {
            builder = builder.header("Impersonate-User", self.variables.text(user)?);
        }
        if let Some(token) = &step.token {
            builder =
                builder.header(header::AUTHORIZATION, format!("Bearer {}", self.variables.text(token)?));
        }
        let body = match (&step.body, &step.raw) {
            (Some(body), _) => Some(self.variables.value(body)?.to_string()),
            (None, Some(raw)) => Some(self.variables.text(raw)?),
            (None, None) => None,
        };
        if body.is_some() {
            builder = builder.header(header::CONTENT_TYPE, content_type(step.content_type.as_deref()));
        }
        let request = builder.body(Bytes::from(body.unwrap_or_default()))?;
        match timeout(self.patience, self.target.call(request)).await {
            Ok(response) => response.map_err(Stop::Transport),
            Err(_) => Err(Stop::Transport("no answer in time".into())),
        }
    }

    async fn delete_quietly(&self, path: &str) {
        let body = json!({"gracePeriodSeconds": 0, "propagationPolicy": "Background"});
        let step = Step { delete: Some(path.to_owned()), body: Some(body), ..Step::default() };
        // Remaining objects are in a namespace or on a server that is about to go.
        let _ = self.answer(&step).await;
    }
}

async fn collect(response: http::Response<super::target::AnswerBody>) -> Result<Answer, Stop> {
    let (head, body) = response.into_parts();
    let bytes = Limited::new(body, LARGEST_ANSWER).collect().await.map_err(Stop::Transport)?.to_bytes();
    let body = match (bytes.is_empty(), serde_json::from_slice(&bytes)) {
        (true, _) => Value::Null,
        (false, Ok(value)) => value,
        (false, Err(_)) => match std::str::from_utf8(&bytes) {
            Ok(text) => Value::String(text.to_owned()),
            Err(_) => Value::String("(binary)".to_owned()),
        },
    };
    Ok(Answer { code: head.status, headers: head.headers, body })
}

fn call_of(step: &Step) -> Option<(Method, &str)> {
    let calls = [
        (Method::GET, &step.get),
        (Method::HEAD, &step.head),
        (Method::POST, &step.post),
        (Method::PUT, &step.put),
        (Method::PATCH, &step.patch),
        (Method::DELETE, &step.delete),
        (Method::OPTIONS, &step.options),
    ];
    calls.into_iter().find_map(|(method, path)| path.as_deref().map(|path| (method, path)))
}

fn watch_path(path: &str) -> String {
    let joint = if path.contains('?') { '&' } else { '?' };
    format!("{path}{joint}watch=true")
}

fn content_type(name: Option<&str>) -> &str {
    match name {
        None | Some("json") => "application/json",
        Some("yaml") => "application/yaml",
        Some("json-patch") => "application/json-patch+json",
        Some("merge") => "application/merge-patch+json",
        Some("strategic") => "application/strategic-merge-patch+json",
        Some("apply") => "application/apply-patch+yaml",
        Some(other) => other,
    }
}

fn accept(name: Option<&str>) -> &str {
    match name {
        None => "application/json",
        Some("table") => "application/json;as=Table;v=v1;g=meta.k8s.io",
        Some("metadata") => "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
        Some("metadata-list") => "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
        Some(other) => other,
    }
}

fn observed(headers: &HeaderMap) -> BTreeMap<String, Vec<String>> {
    OBSERVED_HEADERS
        .iter()
        .filter(|name| headers.contains_key(**name))
        .map(|name| {
            let values = headers.get_all(*name).iter();
            (
                (*name).to_owned(),
                values.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect(),
            )
        })
        .collect()
}

fn holds(until: &Until, answer: &Answer) -> bool {
    let there = |pointer: &String| answer.body.pointer(pointer).is_some();
    until.code.is_none_or(|code| answer.code == code)
        && until.present.as_ref().is_none_or(there)
        && !until.absent.as_ref().is_some_and(there)
        && until.equal.iter().all(|(pointer, value)| answer.body.pointer(pointer) == Some(value))
}

/// Returns the part of an answer that the step records.
fn shown(step: &Step, mut body: Value) -> Value {
    for keep in &step.keep {
        if let Some(list) = body.pointer_mut(&keep.at).and_then(Value::as_array_mut) {
            let name =
                |item: &Value| item.pointer(&keep.by).and_then(Value::as_str).unwrap_or_default().to_owned();
            list.retain(|item| keep.values.contains(&name(item)));
            list.sort_by_key(name);
        }
    }
    for pointer in &step.hide {
        let parts: Vec<_> =
            pointer.split('/').skip(1).map(|part| part.replace("~1", "/").replace("~0", "~")).collect();
        remove(&mut body, &parts);
    }
    if step.only.is_empty() {
        return body;
    }
    let part = |pointer: &String| body.pointer(pointer).map(|value| (pointer.clone(), value.clone()));
    Value::Object(step.only.iter().filter_map(part).collect())
}

/// Removes the parts that a pointer names; `*` is every element of a list or every field of an
/// object.
fn remove(value: &mut Value, path: &[String]) {
    let Some((first, rest)) = path.split_first() else { return };
    match value {
        Value::Object(fields) if first == "*" => fields.values_mut().for_each(|field| remove(field, rest)),
        Value::Object(fields) if rest.is_empty() => {
            fields.remove(first);
        }
        Value::Object(fields) => {
            if let Some(field) = fields.get_mut(first) {
                remove(field, rest);
            }
        }
        Value::Array(items) if first == "*" => items.iter_mut().for_each(|item| remove(item, rest)),
        Value::Array(items) => {
            if let Some(item) = first.parse().ok().and_then(|index: usize| items.get_mut(index)) {
                remove(item, rest);
            }
        }
        _ => {}
    }
}
