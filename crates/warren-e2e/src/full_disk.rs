//! Fills and frees the disk of a detached home repeatedly while clients write. The daemon's log is
//! on that disk, too.
//!
//! Every write must be answered: with success, and then it persists, or with a refusal, and then
//! nothing of it persists. The same daemon has to survive all rounds.

use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use warren_testkit::privileges::OrdinaryUser;

use crate::conformance::kubeconfig;
use crate::conformance::target::{HttpsTarget, Target as _};
use crate::disk::SmallDisk;
use crate::local_home::OwnBinary;

const WRITERS: usize = 6;
/// The number of answers of each kind that a round waits for.
const ENOUGH: u64 = 30;
/// The deadline of every wait: each takes a fraction of a second on an idle machine.
const DEADLINE: Duration = Duration::from_secs(120);
const PATH: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// The totals of all rounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The number of times that the disk was filled and freed.
    pub rounds: u32,
    /// Acknowledged writes, all of which were found afterwards.
    pub acknowledged: u64,
    /// Refused writes, none of which was found afterwards.
    pub refused: u64,
}

/// A home that was started with `up --detach` on a small disk. Dropping it stops the home.
pub struct DetachedHome {
    disk: SmallDisk,
    binary: OwnBinary,
    user: Option<OrdinaryUser>,
}

impl DetachedHome {
    /// Makes a disk for this number of rounds and the data directory, owned by the user, else by
    /// root. Starts nothing.
    ///
    /// # Errors
    ///
    /// Fails with the output of the tools. Not every machine has loop devices.
    pub fn new(user: Option<OrdinaryUser>, rounds: u32) -> Result<Self, String> {
        // Each round makes the store's file a few megabytes larger.
        let disk = SmallDisk::on_loop_device(96 + 8 * rounds)?;
        let owner = user.map_or(0, OrdinaryUser::uid);
        disk.shell(&format!("mkdir -m 700 \"$PLACE/home\" && chown {owner}:{owner} \"$PLACE/home\""))?;
        Ok(Self { disk, binary: OwnBinary::make(), user })
    }

    /// Returns the disk.
    pub fn disk(&self) -> &SmallDisk {
        &self.disk
    }

    /// Runs `warren` with these arguments to its end, in the disk's namespace.
    pub fn warren(&self, arguments: &[&str]) -> Output {
        let home = self.disk.path().join("home");
        let mut words = self.disk.wrapper();
        if let Some(user) = self.user {
            let ids = [format!("--setuid={}", user.uid()), format!("--setgid={}", user.uid())];
            let at = words.len() - 1;
            words.splice(at..at, ids.map(Into::into));
        }
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(self.binary.path()).args(arguments);
        // A verbose log also meets the full disk.
        command.env("WARREN_HOME", &home).env("HOME", &home).env("WARREN_LOG", "debug").current_dir("/");
        command.output().expect("run warren")
    }

    /// Starts the daemon; returns its process.
    ///
    /// # Errors
    ///
    /// Fails with the output of the command.
    pub fn up(&self) -> Result<u64, String> {
        let output = self.warren(&["up", "--detach", "--output", "json"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let words = String::from_utf8_lossy(&output.stderr);
        report["pid"].as_u64().filter(|_| output.status.success()).ok_or_else(|| format!("up: {words}"))
    }

    /// Returns the end of the daemon's log.
    pub fn log(&self) -> String {
        self.disk.shell("tail -c 3000 \"$PLACE/home/daemon.log\"").unwrap_or_default()
    }

    /// Returns a client of the API.
    ///
    /// # Errors
    ///
    /// Fails if there is no kubeconfig.
    pub fn client(&self) -> Result<Client, String> {
        let path = self.disk.from_outside().join("home/kubeconfig");
        let access = kubeconfig::read(&path).map_err(|error| error.to_string())?;
        let target = HttpsTarget::new(&access).map_err(|error| error.to_string())?;
        Ok(Client { target: Arc::new(target) })
    }
}

impl Drop for DetachedHome {
    fn drop(&mut self) {
        let _ = self.disk.shell("rm -f \"$PLACE/filler\"");
        self.warren(&["down"]);
    }
}

/// A client of the API over TLS, with a connection for each call.
#[derive(Clone)]
pub struct Client {
    target: Arc<HttpsTarget>,
}

impl Client {
    /// Sends one request; returns the status and the body of its answer.
    ///
    /// # Errors
    ///
    /// Fails if no answer comes.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: &Value,
    ) -> Result<(StatusCode, Value), String> {
        let kind = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let words = format!("{method} {path}");
        let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, kind);
        let answer = async {
            let response = self.target.call(request.body(bytes)?).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            Ok::<_, crate::conformance::target::TransportError>((status, body))
        };
        let answered = tokio::time::timeout(DEADLINE, answer).await;
        let (status, body) = answered
            .map_err(|_| format!("{words}: no answer"))?
            .map_err(|error| format!("{words}: {error}"))?;
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }

    /// Creates a large object, which may be refused. The store's file has free pages, which small
    /// objects would take long to use up.
    async fn hog(&self, name: &str) -> Result<(), String> {
        let padding = "x".repeat(900_000);
        let object =
            json!({"metadata": {"name": name, "labels": {"test": "hog"}}, "data": {"padding": padding}});
        match self.send(Method::POST, PATH, &object).await? {
            (StatusCode::CREATED | StatusCode::INSUFFICIENT_STORAGE, _) => Ok(()),
            (status, answer) => Err(format!("create {name}: {status} {answer}")),
        }
    }

    /// Returns every object of the writers with its value.
    async fn list(&self) -> Result<BTreeMap<String, u64>, String> {
        let path = format!("{PATH}?labelSelector=test%3Dfull");
        let (status, list) = self.send(Method::GET, &path, &Value::Null).await?;
        let items = list["items"].as_array().ok_or_else(|| format!("list: {status} {list}"))?;
        let read = |item: &Value| {
            let name = item["metadata"]["name"].as_str()?.to_owned();
            Some((name, item["data"]["value"].as_str()?.parse().ok()?))
        };
        items.iter().map(|item| read(item).ok_or_else(|| format!("an odd object: {item}"))).collect()
    }

    /// Creates a pod, waits until it runs, and removes it.
    async fn run_a_pod(&self) -> Result<(), String> {
        let pod = json!({
            "metadata": {"name": "after"},
            "spec": {
                "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
                "containers": [{"name": "main", "image": "warren.dev/host"}],
            },
        });
        let (status, answer) = self.send(Method::POST, PODS, &pod).await?;
        if status != StatusCode::CREATED {
            return Err(format!("create a pod: {answer}"));
        }
        let path = format!("{PODS}/after");
        for wanted in [Some("Running"), None] {
            let begun = tokio::time::Instant::now();
            loop {
                let (status, pod) = self.send(Method::GET, &path, &Value::Null).await?;
                match wanted {
                    Some(phase) if pod["status"]["phase"] == phase => break,
                    None if status == StatusCode::NOT_FOUND => break,
                    _ if begun.elapsed() > DEADLINE => return Err(format!("not {wanted:?}: {pod}")),
                    _ => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
            if wanted.is_some() {
                self.send(Method::DELETE, &path, &Value::Null).await?;
            }
        }
        Ok(())
    }
}

/// The counts of all writers in a round so far.
#[derive(Default)]
struct Counts {
    acknowledged: AtomicU64,
    refused: AtomicU64,
    stop: AtomicBool,
}

/// Fills and frees the disk of a home this number of times.
///
/// # Errors
///
/// Returns the first violation, with the end of the daemon's log.
pub async fn run(home: &DetachedHome, rounds: u32) -> Result<Outcome, String> {
    rounds_of(home, rounds).await.map_err(|error| format!("{error}\n--- daemon.log\n{}", home.log()))
}

async fn rounds_of(home: &DetachedHome, rounds: u32) -> Result<Outcome, String> {
    let pid = home.up()?;
    let client = home.client()?;
    let mut outcome = Outcome::default();
    let mut shares = vec![BTreeMap::new(); WRITERS];
    for round in 0..rounds {
        let at = |error: String| format!("round {round}: {error}");
        let counts = Arc::new(Counts::default());
        let writers: Vec<_> = std::mem::take(&mut shares)
            .into_iter()
            .enumerate()
            .map(|(writer, share)| {
                tokio::spawn(write(client.clone(), format!("{round}-{writer}"), share, Arc::clone(&counts)))
            })
            .collect();
        let until = async |what: &str, counter: &AtomicU64, at_least: u64| {
            let begun = tokio::time::Instant::now();
            while counter.load(Ordering::Relaxed) < at_least {
                if begun.elapsed() > DEADLINE || writers.iter().any(|writer| writer.is_finished()) {
                    return Err(format!("round {round}: too few writes were {what}"));
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Ok(())
        };
        let phases = async {
            until("acknowledged at first", &counts.acknowledged, ENOUGH).await?;
            // Writers use and free blocks meanwhile, so the last byte may stay free.
            let _ = tokio::task::block_in_place(|| home.disk.fill());
            let begun = tokio::time::Instant::now();
            for number in 0_u64.. {
                if counts.refused.load(Ordering::Relaxed) >= ENOUGH {
                    break;
                }
                if begun.elapsed() > DEADLINE || writers.iter().any(|writer| writer.is_finished()) {
                    return Err(at("too few writes were refused".to_owned()));
                }
                client.hog(&format!("hog-{number}")).await.map_err(at)?;
            }
            tokio::task::block_in_place(|| home.disk.make_room()).map_err(at)?;
            let before = counts.acknowledged.load(Ordering::Relaxed);
            until("acknowledged when there was room again", &counts.acknowledged, before + ENOUGH).await?;
            let large = format!("{PATH}?labelSelector=test%3Dhog");
            match client.send(Method::DELETE, &large, &Value::Null).await? {
                (StatusCode::OK, _) => Ok(()),
                (status, answer) => Err(format!("delete the large objects: {status} {answer}")),
            }
        };
        let held = phases.await;
        counts.stop.store(true, Ordering::Relaxed);
        let mut expected = BTreeMap::new();
        for writer in writers {
            let share = writer.await.map_err(|error| error.to_string())?.map_err(at)?;
            expected.extend(share.clone());
            shares.push(share);
        }
        held?;
        let found = client.list().await.map_err(at)?;
        if found != expected {
            let lost = expected.iter().find(|(name, value)| found.get(*name) != Some(*value));
            let left = found.iter().find(|(name, value)| expected.get(*name) != Some(*value));
            return Err(at(format!(
                "acknowledged and not found: {lost:?}; found, not acknowledged: {left:?}"
            )));
        }
        outcome.rounds += 1;
        outcome.acknowledged += counts.acknowledged.load(Ordering::Relaxed);
        outcome.refused += counts.refused.load(Ordering::Relaxed);
    }
    client.run_a_pod().await?;
    if home.up()? != pid {
        return Err(format!("process {pid} no longer runs the home"));
    }
    Ok(outcome)
}

/// Creates, changes and deletes objects of its own until told to stop; returns the objects that
/// exist then.
async fn write(
    client: Client,
    prefix: String,
    mut share: BTreeMap<String, u64>,
    counts: Arc<Counts>,
) -> Result<BTreeMap<String, u64>, String> {
    const MOST: usize = 40;
    let mut number = 0_u64;
    while !counts.stop.load(Ordering::Relaxed) {
        number += 1;
        let chosen = fastrand::usize(..MOST);
        let existing = share.keys().nth(chosen).cloned();
        let data = json!({"value": number.to_string(), "padding": "x".repeat(fastrand::usize(1..12_000))});
        let (method, name, path, body) = match existing {
            None => {
                let name = format!("full-{prefix}-{number}");
                let object = json!({"metadata": {"name": name, "labels": {"test": "full"}}, "data": data});
                (Method::POST, name, PATH.to_owned(), object)
            }
            Some(name) if chosen % 3 == 0 => {
                let path = format!("{PATH}/{name}");
                (Method::DELETE, name, path, Value::Null)
            }
            Some(name) => {
                let path = format!("{PATH}/{name}");
                (Method::PATCH, name, path, json!({"data": data}))
            }
        };
        let (status, answer) = client.send(method.clone(), &path, &body).await?;
        match status {
            StatusCode::INSUFFICIENT_STORAGE => {
                counts.refused.fetch_add(1, Ordering::Relaxed);
            }
            status if status.is_success() => {
                match method {
                    Method::DELETE => share.remove(&name),
                    _ => share.insert(name, number),
                };
                counts.acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            status => return Err(format!("{method} {path}: {status} {answer}")),
        }
    }
    Ok(share)
}
