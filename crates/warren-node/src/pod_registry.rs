//! The pods that this node knows, by uid and by name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use warren_oci::protocol::PodState;

use crate::pod_request::PodDirectory;

/// A pod as the API last showed it.
#[derive(Debug, Clone)]
pub(crate) enum Seen {
    Pod(Arc<Pod>),
    /// The object is gone.
    Gone,
}

/// One pod with its worker.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) directory: PodDirectory,
    pub(crate) seen: watch::Sender<Seen>,
    /// The shim's last reported state; `None` if there is no shim.
    pub(crate) state: watch::Receiver<Option<PodState>>,
    /// The reason for the pod's eviction, once it is evicted.
    pub(crate) eviction: watch::Sender<Option<String>>,
}

/// The pods by uid: a name may be used again while the former pod is still being removed.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    entries: Mutex<HashMap<String, Arc<Entry>>>,
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, uid: &str) -> Option<Arc<Entry>> {
        self.lock().get(uid).cloned()
    }

    pub(crate) fn insert(&self, uid: String, entry: Arc<Entry>) {
        self.lock().insert(uid, entry);
    }

    pub(crate) fn remove(&self, uid: &str) {
        self.lock().remove(uid);
    }

    /// Returns the pods with these uids that still exist, each with the value that was given for
    /// it.
    pub(crate) fn shown<'a, T>(&self, wanted: impl Iterator<Item = (&'a str, T)>) -> Vec<(T, Arc<Pod>)> {
        let entries = self.lock();
        let shown = wanted.filter_map(|(uid, with)| match &*entries.get(uid)?.seen.borrow() {
            Seen::Pod(pod) => Some((with, pod.clone())),
            Seen::Gone => None,
        });
        shown.collect()
    }

    /// Gives access to all pods at once, under the lock, so the access should be short.
    pub(crate) fn with_entries<T>(&self, read: impl FnOnce(&HashMap<String, Arc<Entry>>) -> T) -> T {
        read(&self.lock())
    }

    pub(crate) fn all(&self) -> Vec<(String, Arc<Entry>)> {
        self.lock().iter().map(|(uid, entry)| (uid.clone(), entry.clone())).collect()
    }

    /// Returns the pod of this name; of several, the one whose object exists.
    pub(crate) fn named(&self, namespace: &str, name: &str) -> Option<(Arc<Entry>, Arc<Pod>)> {
        self.lock().values().filter(|entry| entry.namespace == namespace && entry.name == name).find_map(
            |entry| match &*entry.seen.borrow() {
                Seen::Pod(pod) => Some((entry.clone(), pod.clone())),
                Seen::Gone => None,
            },
        )
    }
}
