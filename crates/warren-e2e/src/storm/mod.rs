//! Kills a daemon repeatedly while clients write: acknowledged writes must be there afterwards.
//!
//! [`run`] starts a real `warren up` with several writers and a watcher, kills it with `kill -9` at
//! a moment that the seed chooses (sometimes in the middle of a start), starts it again and
//! compares its state with the [`ledger`] of answers. The same seed makes the same choices, but the
//! writes in flight at the kill depend on the machine.

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

/// The number of writers; each has objects of its own.
const WRITERS: usize = 8;
/// The most acknowledged writes before a kill.
const LONGEST_ROUND: u64 = 300;
/// The deadline of every wait: each takes a fraction of a second on an idle machine.
const DEADLINE: Duration = Duration::from_secs(60);

const PATH: &str = "/api/v1/namespaces/default/configmaps";
const SELECTOR: &str = "labelSelector=storm%3Dyes";

/// The result of a storm.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Kills while writers were active.
    pub kills: u64,
    /// Kills in the middle of a start.
    pub kills_in_start: u64,
    /// Acknowledged writes, all of which were found afterwards.
    pub acknowledged: u64,
    /// Writes without an answer that had happened.
    pub unanswered_done: u64,
    /// Writes without an answer that had not happened.
    pub unanswered_lost: u64,
    /// Watches that were resumed.
    pub resumed: u64,
    /// Watches that had to list again.
    pub expired: u64,
}

/// Kills a daemon on `data_dir` `rounds` times.
///
/// # Errors
///
/// Returns the first violation.
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

/// Compares the daemon's objects with its answers, and the watcher's state with both.
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
    // A write that the watcher must see, and with it everything before.
    let marker = api.mark().await?;
    ledger.saw(marker)?;
    watcher.catch_up(api, marker).await?;
    let (_, found) = api.list().await?;
    watcher.compare(&found)
}

/// Polls a condition up to a deadline.
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

/// The API over the home's socket, with a connection for each call.
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

    /// Returns every object of the storm and the list's version.
    async fn list(&self) -> Result<(u64, Vec<(String, Seen)>), String> {
        let answer = self.send(Method::GET, &format!("{PATH}?{SELECTOR}"), None).await;
        let answer = answer.map_err(|error| format!("list: {error}"))?;
        let version = answer.body["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
        let version = version.ok_or_else(|| format!("a list without a version: {}", answer.body))?;
        let items = answer.body["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok((version, items.iter().filter_map(Seen::read).filter(|(name, _)| name != MARKER).collect()))
    }

    /// Writes the marker; returns its version.
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
        // More than a page, so that a torn write would show.
        "data": {"value": value.to_string(), "padding": "x".repeat(5000)},
    });
    if let Some(version) = version {
        object["metadata"]["resourceVersion"] = version.to_string().into();
    }
    object
}
