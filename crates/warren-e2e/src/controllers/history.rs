//! Records every version of every object of a kind, in the order of the server's events: polling
//! would miss some.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use futures::{Stream, StreamExt as _};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt};
use tokio::task::AbortHandle;

use super::place::{AGAIN, Namespaced, answer};

/// One event of a watch.
#[derive(Clone, Debug)]
pub struct Entry<K> {
    /// The object at that time.
    pub object: K,
    /// True if that was its last state.
    pub deleted: bool,
}

/// A recording of a kind's objects, until it is dropped.
pub struct History<K> {
    entries: Arc<Mutex<Vec<Entry<K>>>>,
    watching: AbortHandle,
}

impl<K: Namespaced> History<K> {
    /// Starts to record, beginning with the present objects. When the server ends the watch or is
    /// away, the watch is resumed without a gap. If a restarted server has forgotten its history,
    /// the recording continues with the objects present then.
    pub async fn start(api: Api<K>) -> Result<Self> {
        let entries = Arc::new(Mutex::new(Vec::new()));
        let version = Self::list(&api, &entries).await?;
        let task = tokio::spawn(Self::follow(api, version, Arc::clone(&entries)));
        Ok(Self { entries, watching: task.abort_handle() })
    }

    /// Records the present objects, and the missing ones as deleted. Returns the version of that
    /// moment.
    async fn list(api: &Api<K>, entries: &Mutex<Vec<Entry<K>>>) -> Result<String> {
        let all = ListParams::default();
        let list = answer(|| api.list(&all)).await?;
        let version = list.metadata.resource_version.clone().context("a list has a version")?;
        let mut entries = entries.lock().unwrap_or_else(PoisonError::into_inner);
        let there: BTreeSet<Option<String>> = list.items.iter().map(ResourceExt::uid).collect();
        let mut known: BTreeMap<Option<String>, Entry<K>> = BTreeMap::new();
        for entry in entries.iter() {
            known.insert(entry.object.uid(), entry.clone());
        }
        let gone = known.into_values().filter(|last| !last.deleted && !there.contains(&last.object.uid()));
        entries.extend(gone.map(|last| Entry { deleted: true, ..last }));
        entries.extend(list.items.into_iter().map(|object| Entry { object, deleted: false }));
        Ok(version)
    }

    async fn follow(api: Api<K>, mut version: String, entries: Arc<Mutex<Vec<Entry<K>>>>) {
        loop {
            let forgotten = match api.watch(&WatchParams::default(), &version).await {
                Ok(events) => Self::note(std::pin::pin!(events), &mut version, &entries).await,
                Err(kube::Error::Api(status)) => status.code == 410,
                Err(_) => false,
            };
            if forgotten && let Ok(present) = Self::list(&api, &entries).await {
                version = present;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Records events until they end. Returns true if the server no longer has the events after our
    /// version.
    async fn note(
        mut events: impl Stream<Item = kube::Result<WatchEvent<K>>> + Unpin,
        version: &mut String,
        entries: &Mutex<Vec<Entry<K>>>,
    ) -> bool {
        while let Some(Ok(event)) = events.next().await {
            let (object, deleted) = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                WatchEvent::Deleted(object) => (object, true),
                WatchEvent::Bookmark(mark) => {
                    *version = mark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) => return status.code == 410,
            };
            if let Some(next) = object.resource_version() {
                *version = next;
            }
            entries.lock().unwrap_or_else(PoisonError::into_inner).push(Entry { object, deleted });
        }
        false
    }

    /// Returns all entries so far.
    pub fn so_far(&self) -> Vec<Entry<K>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns all entries so far about one object.
    pub fn of(&self, name: &str) -> Vec<Entry<K>> {
        self.so_far().into_iter().filter(|entry| entry.object.name_any() == name).collect()
    }
}

impl<K> Drop for History<K> {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// Returns the version of an object as a number. Both servers number all kinds in one sequence, so
/// versions of different kinds show which was written first.
pub fn version<K: kube::Resource>(object: &K) -> u64 {
    object.meta().resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}
