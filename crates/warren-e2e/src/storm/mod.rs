//! Writers on a daemon that is killed again and again: what was acknowledged must be there afterwards.
//!
//! [`run`] starts a real `warren up`, lets several writers and a watcher loose on it, kills it with `kill -9` at a moment
//! that the seed chooses (also in the middle of a start), starts it again and holds what it finds against the
//! [`ledger`] of answers. The same seed makes the same choices; which writes are under way at the kill is up to the machine.

mod ledger;
mod watcher;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use crate::conformance::target::{Target as _, TransportError, UnixTarget};
use crate::foreground::Foreground;
use ledger::Ledger;
use watcher::Watcher;

/// How many writers there are; each has objects of its own.
const WRITERS: usize = 8;
/// Most acknowledged writes before a kill.
const LONGEST_ROUND: u64 = 300;
/// Generous: everything that is waited for takes a fraction of a second on an idle machine.
const DEADLINE: Duration = Duration::from_secs(60);

const PATH: &str = "/api/v1/namespaces/default/configmaps";
const SELECTOR: &str = "labelSelector=storm%3Dyes";

/// What a storm came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Kills while writers were at work.
    pub kills: u64,
    /// Kills in the middle of a start.
    pub kills_in_start: u64,
    /// Writes that were acknowledged, all of which were found afterwards.
    pub acknowledged: u64,
    /// Writes without an answer that turned out to have happened.
    pub unanswered_done: u64,
    /// Writes without an answer that turned out not to have happened.
    pub unanswered_lost: u64,
    /// Watches that went on where they had been.
    pub resumed: u64,
    /// Watches that were told to list again.
    pub expired: u64,
}

/// Kills a daemon on `data_dir` `rounds` times.
///
/// # Errors
/// The first thing that did not hold.
pub async fn run(data_dir: &Path, rounds: u64, seed: u64) -> Result<Outcome, String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let log = data_dir.join("storm.log");
    let socket = data_dir.join("api.sock");
    let mut ledger = Ledger::default();
    let mut watcher = Watcher::default();
    let mut outcome = Outcome::default();
    for round in 0..rounds {
        if random.u8(..5) == 0 {
            let start = Foreground::spawn(data_dir, &[], &[], &log);
            tokio::time::sleep(Duration::from_micros(random.u64(0..400_000))).await;
            start.kill();
            outcome.kills_in_start += 1;
        }
        let daemon = start(data_dir, &log);
        let api = Api::new(&socket);
        check(&api, &mut ledger, &mut watcher, &mut outcome)
            .await
            .map_err(|error| format!("seed {seed}, round {round}: {error}"))?;

        let acknowledged = Arc::new(AtomicU64::new(0));
        let writers: Vec<_> = ledger
            .take_shares(WRITERS)
            .into_iter()
            .map(|share| {
                let random = random.fork();
                tokio::spawn(writer::write(Api::new(&socket), share, random, Arc::clone(&acknowledged)))
            })
            .collect();
        let following = tokio::spawn(std::mem::take(&mut watcher).follow(Api::new(&socket)));
        let enough = random.u64(1..LONGEST_ROUND);
        let moment = Duration::from_micros(random.u64(0..10_000));
        until(|| {
            acknowledged.load(Ordering::Relaxed) >= enough
                || writers.iter().any(|writer| writer.is_finished())
        })
        .await?;
        tokio::time::sleep(moment).await;
        daemon.kill();
        outcome.kills += 1;
        for writer in writers {
            let share = writer.await.map_err(|error| error.to_string())?;
            ledger.give_back(share.map_err(|error| format!("seed {seed}, round {round}: {error}"))?);
        }
        let followed = following.await.map_err(|error| error.to_string())?;
        watcher = followed.map_err(|error| format!("seed {seed}, round {round}: {error}"))?;
        outcome.acknowledged += acknowledged.load(Ordering::Relaxed);
    }
    let daemon = start(data_dir, &log);
    check(&Api::new(&socket), &mut ledger, &mut watcher, &mut outcome).await?;
    drop(daemon);
    outcome.resumed = watcher.resumed;
    outcome.expired = watcher.expired;
    Ok(outcome)
}

fn start(data_dir: &Path, log: &Path) -> Foreground {
    let mut daemon = Foreground::spawn(data_dir, &[], &[], log);
    tokio::task::block_in_place(|| daemon.expect_ready());
    daemon
}

/// Holds what the daemon has against what it said, and the watcher's view against both.
async fn check(
    api: &Api,
    ledger: &mut Ledger,
    watcher: &mut Watcher,
    outcome: &mut Outcome,
) -> Result<(), String> {
    let (version, found) = api.list().await?;
    if version < watcher.version() {
        return Err(format!("the version went back from {} to {version}", watcher.version()));
    }
    let (done, lost) = ledger.settle(version, &found)?;
    outcome.unanswered_done += done;
    outcome.unanswered_lost += lost;
    // A write that the watcher has to see, and with it everything before.
    let marker = api.mark().await?;
    ledger.saw(marker)?;
    watcher.catch_up(api, marker).await?;
    let (_, found) = api.list().await?;
    watcher.compare(&found)
}

/// Waits for a condition.
async fn until(mut condition: impl FnMut() -> bool) -> Result<(), String> {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while !condition() {
        if tokio::time::Instant::now() > deadline {
            return Err("the writers do not get on".to_owned());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// One object as somebody saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    value: u64,
    version: u64,
}

impl Seen {
    fn read(object: &Value) -> Option<(String, Seen)> {
        let name = object["metadata"]["name"].as_str()?.to_owned();
        let version = object["metadata"]["resourceVersion"].as_str()?.parse().ok()?;
        Some((name, Seen { value: object["data"]["value"].as_str()?.parse().ok()?, version }))
    }
}

/// The API over the home's socket, a connection for each call.
struct Api {
    target: UnixTarget,
}

/// An answer whose head has arrived.
struct Answer {
    status: StatusCode,
    body: Value,
}

impl Api {
    fn new(socket: &Path) -> Self {
        Self { target: UnixTarget::new(socket) }
    }

    async fn send(
        &self,
        method: Method,
        uri: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<Answer, TransportError> {
        let mut request = Request::builder().method(method).uri(uri);
        let mut bytes = Bytes::new();
        if let Some((content_type, body)) = body {
            request = request.header(header::CONTENT_TYPE, content_type);
            bytes = Bytes::from(body.to_string());
        }
        let response = self.target.call(request.body(bytes)?).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok(Answer { status, body: serde_json::from_slice(&body)? })
    }

    /// Every object of the storm and the list's version.
    async fn list(&self) -> Result<(u64, Vec<(String, Seen)>), String> {
        let answer = self.send(Method::GET, &format!("{PATH}?{SELECTOR}"), None).await;
        let answer = answer.map_err(|error| format!("list: {error}"))?;
        let version = answer.body["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
        let version = version.ok_or_else(|| format!("a list without a version: {}", answer.body))?;
        let items = answer.body["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok((version, items.iter().filter_map(Seen::read).filter(|(name, _)| name != MARKER).collect()))
    }

    /// Writes the marker; its version.
    async fn mark(&self) -> Result<u64, String> {
        let value = object(MARKER, fastrand::u64(..), None);
        let apply = ("application/apply-patch+yaml", &value);
        let uri = format!("{PATH}/{MARKER}?fieldManager=storm&force=true");
        let answer = self.send(Method::PATCH, &uri, Some(apply)).await.map_err(|error| error.to_string())?;
        let seen = Seen::read(&answer.body).ok_or_else(|| format!("mark: {}", answer.body))?;
        Ok(seen.1.version)
    }
}

const MARKER: &str = "marker";

fn object(name: &str, value: u64, version: Option<u64>) -> Value {
    let mut object = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"storm": "yes"}},
        // Of a page and more, so that a torn write would show.
        "data": {"value": value.to_string(), "padding": "x".repeat(5000)},
    });
    if let Some(version) = version {
        object["metadata"]["resourceVersion"] = version.to_string().into();
    }
    object
}
