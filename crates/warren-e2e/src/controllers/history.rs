//! Every version of every object of a kind, in the order in which the server tells of them: what a look now and then
//! would miss.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt as _};
use tokio::task::AbortHandle;

use super::place::Namespaced;

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
    /// where it was; nothing is left out.
    pub async fn start(api: Api<K>) -> Result<Self> {
        let list = api.list(&ListParams::default()).await?;
        let mut version = list.metadata.resource_version.clone().context("a list has a version")?;
        let first = list.items.into_iter().map(|object| Entry { object, deleted: false }).collect();
        let entries = Arc::new(Mutex::new(first));
        let writing = Arc::clone(&entries);
        let task = tokio::spawn(async move {
            loop {
                let parameters = WatchParams::default();
                if let Ok(events) = api.watch(&parameters, &version).await {
                    let mut events = std::pin::pin!(events);
                    while let Some(Ok(event)) = events.next().await {
                        let (object, deleted) = match event {
                            WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                            WatchEvent::Deleted(object) => (object, true),
                            WatchEvent::Bookmark(mark) => {
                                version = mark.metadata.resource_version;
                                continue;
                            }
                            WatchEvent::Error(_) => break,
                        };
                        version = object.resource_version().unwrap_or(version);
                        let entry = Entry { object, deleted };
                        writing.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
                    }
                }
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        });
        Ok(Self { entries, watching: task.abort_handle() })
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
