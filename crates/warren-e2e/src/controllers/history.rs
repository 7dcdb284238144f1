//! Every version of every object of a kind, in the order in which the server tells of them: what a look now and then
//! would miss.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use futures::{Stream, StreamExt as _};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt};
use tokio::task::AbortHandle;

use super::place::{AGAIN, Namespaced, answer};

/// One thing that a watch told.
#[derive(Clone, Debug)]
pub struct Entry<K> {
    /// The object as it was then.
    pub object: K,
    /// Whether that was its last state.
    pub deleted: bool,
}

/// A record of a kind's objects, kept until it is dropped.
pub struct History<K> {
    entries: Arc<Mutex<Vec<Entry<K>>>>,
    watching: AbortHandle,
}

impl<K: Namespaced> History<K> {
    /// Records from now on, beginning with what there is. When the server ends the watch, or goes away, the watch goes on
    /// where it was; nothing is left out, unless a server that was started again has forgotten what it had told: then
    /// the record goes on with what there is.
    pub async fn start(api: Api<K>) -> Result<Self> {
        let entries = Arc::new(Mutex::new(Vec::new()));
        let version = Self::list(&api, &entries).await?;
        let task = tokio::spawn(Self::follow(api, version, Arc::clone(&entries)));
        Ok(Self { entries, watching: task.abort_handle() })
    }

    /// Notes what there is, and what is no longer there. Gives the version of that moment.
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

    /// Notes events until they end. Says whether the server has forgotten what came after our version.
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

    /// Everything so far.
    pub fn so_far(&self) -> Vec<Entry<K>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Everything so far about one object.
    pub fn of(&self, name: &str) -> Vec<Entry<K>> {
        self.so_far().into_iter().filter(|entry| entry.object.name_any() == name).collect()
    }
}

impl<K> Drop for History<K> {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// The version of an object as a number. Both servers count all kinds in one row, so versions of different kinds tell
/// what was written first.
pub fn version<K: kube::Resource>(object: &K) -> u64 {
    object.meta().resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}
