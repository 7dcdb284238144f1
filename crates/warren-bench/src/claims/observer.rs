//! Follows a collection through a watch, like any client.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::connection::{Connection, Endpoint, Lines};

/// The observed history of a collection's objects. It stops when dropped.
pub struct Observer {
    seen: Arc<Seen>,
    ready: watch::Receiver<usize>,
    task: JoinHandle<anyhow::Result<()>>,
}

#[derive(Default)]
struct Seen {
    objects: Mutex<HashMap<String, History>>,
}

/// The history of one object.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The version of each event.
    pub versions: Vec<u64>,
    /// The time and the version at which it was first seen Ready.
    pub ready: Option<(Instant, u64)>,
    /// The sandbox that a claim names.
    pub sandbox: Option<String>,
}

impl Observer {
    /// Starts to follow a collection from its current state.
    pub async fn start(endpoint: &Endpoint, collection: &str) -> anyhow::Result<Observer> {
        let version = version_of(&mut endpoint.connect().await?, collection).await?;
        let mut watch = Watch { endpoint: endpoint.clone(), collection: collection.to_owned(), version };
        let mut lines = watch.open().await?;
        let seen = Arc::<Seen>::default();
        let (ready, count) = watch::channel(0);
        let task = tokio::spawn({
            let seen = Arc::clone(&seen);
            async move {
                loop {
                    let Some(chunk) = lines.next().await? else {
                        // A busy kube-apiserver closes watches that it cannot serve. Resume after
                        // the last version.
                        lines = watch.open().await?;
                        continue;
                    };
                    let now = Instant::now();
                    let mut objects = seen.objects();
                    let mut more = 0;
                    for line in chunk.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                        // An event of type ERROR has a status of another form, so it fails here
                        // too.
                        let event: Event = serde_json::from_slice(line)
                            .with_context(|| format!("watch event {}", String::from_utf8_lossy(line)))?;
                        watch.version =
                            watch.version.max(event.object.metadata.version().unwrap_or_default());
                        more += usize::from(event.record(&mut objects, now));
                    }
                    drop(objects);
                    if more > 0 {
                        ready.send_modify(|count| *count += more);
                    }
                }
            }
        });
        Ok(Observer { seen, ready: count, task })
    }

    /// Waits until a number of objects have become Ready. Returns the number at the end, which is
    /// lower after a timeout.
    pub async fn wait_for_ready(&mut self, count: usize, patience: Duration) -> anyhow::Result<usize> {
        let enough = self.ready.wait_for(|ready| *ready >= count);
        // A timeout is no error, but a broken watch is.
        let is_broken = matches!(tokio::time::timeout(patience, enough).await, Ok(Err(_)));
        if is_broken {
            (&mut self.task).await.context("a watch panicked")??;
        }
        Ok(*self.ready.borrow())
    }

    /// Waits until an object has become Ready.
    pub async fn wait_for(&mut self, name: &str, patience: Duration) -> anyhow::Result<History> {
        let found = || self.seen.objects().get(name).filter(|history| history.ready.is_some()).cloned();
        let mut ready = self.ready.clone();
        let wait = async {
            loop {
                if let Some(found) = found() {
                    return anyhow::Ok(found);
                }
                ready.changed().await.context("the server ended a watch")?;
            }
        };
        tokio::time::timeout(patience, wait).await.with_context(|| format!("{name} never became Ready"))?
    }

    /// Returns the history of an object.
    pub fn history(&self, name: &str) -> History {
        self.seen.objects().get(name).cloned().unwrap_or_default()
    }

    /// Returns the names of all objects seen.
    pub fn names(&self) -> Vec<String> {
        self.seen.objects().keys().cloned().collect()
    }
}

/// A watch and the last version that it has seen.
struct Watch {
    endpoint: Endpoint,
    collection: String,
    version: u64,
}

impl Watch {
    async fn open(&self) -> anyhow::Result<Lines> {
        let separator = if self.collection.contains('?') { '&' } else { '?' };
        let path = format!("{}{separator}watch=1&resourceVersion={}", self.collection, self.version);
        self.endpoint.connect().await?.stream(&path).await
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Seen {
    fn objects(&self) -> MutexGuard<'_, HashMap<String, History>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the current version of a collection. In both homes one counter serves all objects.
pub async fn version_of(connection: &mut Connection, collection: &str) -> anyhow::Result<u64> {
    #[derive(Deserialize)]
    struct List {
        metadata: Metadata,
    }
    let separator = if collection.contains('?') { '&' } else { '?' };
    let list = connection.get(&format!("{collection}{separator}limit=1")).await?;
    let list: List = serde_json::from_slice(&list)?;
    list.metadata.resource_version.parse().context("the version of a list")
}

/// Returns the number of objects in a collection.
pub async fn count_of(connection: &mut Connection, collection: &str) -> anyhow::Result<usize> {
    #[derive(Deserialize)]
    struct List {
        metadata: Remaining,
        items: Vec<serde::de::IgnoredAny>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Remaining {
        #[serde(default)]
        remaining_item_count: usize,
    }
    let list: List = serde_json::from_slice(&connection.get(&format!("{collection}?limit=1")).await?)?;
    Ok(list.metadata.remaining_item_count + list.items.len())
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: Object,
}

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    resource_version: String,
}

impl Metadata {
    fn version(&self) -> Option<u64> {
        self.resource_version.parse().ok()
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    conditions: Vec<Condition>,
    sandbox: Option<Assigned>,
}

#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

#[derive(Deserialize)]
struct Assigned {
    name: Option<String>,
}

impl Event {
    /// Adds the event to the object's history. Returns true if the object became Ready with it.
    fn record(self, objects: &mut HashMap<String, History>, now: Instant) -> bool {
        let Some(version) = self.object.metadata.version() else { return false };
        if self.kind == "BOOKMARK" {
            return false;
        }
        let history = objects.entry(self.object.metadata.name).or_default();
        history.versions.push(version);
        if let Some(sandbox) = self.object.status.sandbox.and_then(|sandbox| sandbox.name) {
            history.sandbox = Some(sandbox);
        }
        let is_ready = |condition: &Condition| condition.kind == "Ready" && condition.status == "True";
        let became = history.ready.is_none() && self.object.status.conditions.iter().any(is_ready);
        if became {
            history.ready = Some((now, version));
        }
        became
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_becomes_ready_once() {
        let mut objects = HashMap::new();
        let mut record = |version: &str, status: &str| {
            let event = format!(
                r#"{{"type":"MODIFIED","object":{{"metadata":{{"name":"a","resourceVersion":"{version}"}},
                "status":{{"conditions":[{{"type":"Ready","status":"{status}"}}],"sandbox":{{"name":"s"}}}}}}}}"#
            );
            serde_json::from_str::<Event>(&event).unwrap().record(&mut objects, Instant::now())
        };
        assert_eq!([record("1", "False"), record("2", "True"), record("3", "True")], [false, true, false]);
        let history = &objects["a"];
        assert_eq!(history.versions, [1, 2, 3]);
        assert_eq!(history.ready.map(|(_, version)| version), Some(2));
        assert_eq!(history.sandbox.as_deref(), Some("s"));
    }
}
