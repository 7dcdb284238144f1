//! The state that readers see: acknowledged objects, the recent changes of each resource, and the
//! watchers.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::watch::{Change, ChangeKind};
use crate::{Filter, Key, Object};

/// The number of changes kept per resource for watches that resume. A watcher that falls further
/// behind must list again. The watch cache of kube-apiserver is of the same order.
const HISTORY_CHANGES: usize = 4096;
/// The maximum size of the bodies that one resource's history keeps alive.
const HISTORY_BYTES: usize = 4 << 20;
/// The number of changes that a watcher may lag behind. Beyond that it is cut off and must resume
/// from its last version.
pub(crate) const WATCH_BACKLOG: usize = 2048;

#[derive(Default)]
pub(crate) struct Committed {
    pub version: u64,
    /// The version found at opening. Earlier changes are in no history.
    pub opened_at: u64,
    objects: BTreeMap<Key, Arc<Object>>,
    resources: HashMap<Arc<str>, Resource>,
    keys_by_uid: HashMap<Box<str>, Key>,
    dependents_by_uid: HashMap<Box<str>, BTreeSet<Key>>,
    collector: Option<mpsc::UnboundedSender<Change>>,
}

#[derive(Default)]
struct Resource {
    history: VecDeque<Change>,
    history_bytes: usize,
    /// Every change with a version above this is still in `history`.
    dropped_through: u64,
    watchers: Vec<Watcher>,
    /// Watchers of one object by name. Changes of other objects do not wake them.
    named_watchers: HashMap<(Arc<str>, Arc<str>), Vec<Watcher>>,
    subscriptions: usize,
}

struct Watcher {
    namespace: Option<Box<str>>,
    sender: mpsc::Sender<Change>,
}

impl Committed {
    pub fn load(version: u64, objects: Vec<Arc<Object>>) -> Committed {
        let mut committed = Committed { version, opened_at: version, ..Committed::default() };
        for object in objects {
            committed.index(&object);
            committed.objects.insert(object.key.clone(), object);
        }
        committed
    }

    pub fn get(&self, key: &Key) -> Option<&Arc<Object>> {
        self.objects.get(key)
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.objects.values()
    }

    /// Returns the objects of a resource in order, after a given position.
    pub fn scan<'a>(
        &'a self,
        resource: &'a Arc<str>,
        namespace: Option<&str>,
        after: Option<(&str, &str)>,
    ) -> impl Iterator<Item = &'a Arc<Object>> + use<'a> {
        let start = match (after, namespace) {
            (Some((namespace, name)), _) => Bound::Excluded(Key::new(resource.clone(), namespace, name)),
            (None, namespace) => Bound::Included(Key::new(resource.clone(), namespace.unwrap_or(""), "")),
        };
        let namespace: Option<Box<str>> = namespace.map(Into::into);
        self.objects.range((start, Bound::Unbounded)).map(|(_, object)| object).take_while(move |object| {
            object.key.resource == *resource
                && namespace.as_deref().is_none_or(|n| *n == *object.key.namespace)
        })
    }

    pub fn find_by_uid(&self, uid: &str) -> Option<&Arc<Object>> {
        self.keys_by_uid.get(uid).and_then(|key| self.objects.get(key))
    }

    pub fn dependents(&self, uid: &str) -> impl Iterator<Item = &Arc<Object>> {
        self.dependents_by_uid.get(uid).into_iter().flatten().filter_map(|key| self.objects.get(key))
    }

    /// Returns the objects of all resources in a namespace.
    pub fn in_namespace<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Arc<Object>> {
        let mut resource: Option<&'a Arc<str>> = None;
        // Jump from resource to resource instead of walking all objects.
        let resources = std::iter::from_fn(move || {
            let start = match resource {
                None => Bound::Unbounded,
                // This sorts after every namespace.
                Some(resource) => Bound::Excluded(Key::new(Arc::clone(resource), "\u{10ffff}", "")),
            };
            resource = self.objects.range((start, Bound::Unbounded)).next().map(|(key, _)| &key.resource);
            resource
        });
        resources.flat_map(move |resource| self.scan(resource, Some(namespace), None))
    }

    pub fn apply(&mut self, change: Change) {
        let object = &change.object;
        self.version = self.version.max(object.version);
        if let Some(previous) = &change.previous {
            self.unindex(previous);
        }
        match change.kind {
            ChangeKind::Deleted => {
                self.objects.remove(&object.key);
            }
            ChangeKind::Added | ChangeKind::Modified => {
                self.index(object);
                self.objects.insert(object.key.clone(), Arc::clone(object));
            }
        }
        let opened_at = self.opened_at;
        let resource = self
            .resources
            .entry(Arc::clone(&object.key.resource))
            .or_insert_with(|| Resource { dropped_through: opened_at, ..Resource::default() });
        resource.dispatch(&change);
        if let Some(collector) = &self.collector
            && crate::garbage::concerns(&change)
        {
            // A closed channel means that the collector has ended.
            let _ = collector.send(change.clone());
        }
        resource.remember(change);
    }

    pub fn feed_collector(&mut self, sender: mpsc::UnboundedSender<Change>) {
        self.collector = Some(sender);
    }

    /// Returns the oldest version from which this resource can still be watched.
    pub fn oldest_version(&self, resource: &str) -> u64 {
        self.resources.get(resource).map_or(self.opened_at, |resource| resource.dropped_through)
    }

    pub fn changes_since(&self, resource: &str, version: u64) -> impl DoubleEndedIterator<Item = &Change> {
        let history = self.resources.get(resource).map(|resource| &resource.history);
        let start =
            history.map_or(0, |history| history.partition_point(|change| change.object.version <= version));
        history.into_iter().flat_map(move |history| history.range(start..))
    }

    /// Registers a watcher. It gets every later change that matches its namespace and name.
    pub fn subscribe(&mut self, resource: &Arc<str>, filter: &Filter) -> mpsc::Receiver<Change> {
        let (sender, receiver) = mpsc::channel(WATCH_BACKLOG);
        let opened_at = self.opened_at;
        let resource = self
            .resources
            .entry(Arc::clone(resource))
            .or_insert_with(|| Resource { dropped_through: opened_at, ..Resource::default() });
        resource.subscriptions += 1;
        if resource.subscriptions.is_multiple_of(64) {
            resource.forget_closed_watchers();
        }
        let name = filter.name.as_deref().or_else(|| filter.fields.required("metadata.name"));
        let namespace = filter.namespace.as_deref().or_else(|| filter.fields.required("metadata.namespace"));
        let watcher = Watcher { namespace: namespace.map(Into::into), sender };
        match name {
            Some(name) => {
                let key = (namespace.unwrap_or_default().into(), name.into());
                resource.named_watchers.entry(key).or_default().push(watcher);
            }
            None => resource.watchers.push(watcher),
        }
        receiver
    }

    fn index(&mut self, object: &Arc<Object>) {
        if !object.meta.uid.is_empty() {
            self.keys_by_uid.insert(object.meta.uid.clone(), object.key.clone());
        }
        for owner in &object.meta.owners {
            self.dependents_by_uid.entry(owner.uid.clone()).or_default().insert(object.key.clone());
        }
    }

    fn unindex(&mut self, object: &Arc<Object>) {
        if self.keys_by_uid.get(&object.meta.uid).is_some_and(|key| *key == object.key) {
            self.keys_by_uid.remove(&object.meta.uid);
        }
        for owner in &object.meta.owners {
            if let Some(dependents) = self.dependents_by_uid.get_mut(&owner.uid) {
                dependents.remove(&object.key);
                if dependents.is_empty() {
                    self.dependents_by_uid.remove(&owner.uid);
                }
            }
        }
    }
}

impl Resource {
    fn dispatch(&mut self, change: &Change) {
        let key = &change.object.key;
        let deliver = |watcher: &mut Watcher| {
            if watcher.namespace.as_deref().is_some_and(|namespace| *namespace != *key.namespace) {
                return true;
            }
            // Drop a watcher whose channel is full: waiting for it would delay everybody else. The
            // client gets the queued changes and then resumes from there.
            watcher.sender.try_send(change.clone()).is_ok()
        };
        self.watchers.retain_mut(deliver);
        if self.named_watchers.is_empty() {
            return;
        }
        // A watch by name across namespaces is registered under the empty namespace.
        for namespace in [Arc::clone(&key.namespace), Arc::from("")] {
            let slot = (namespace, Arc::clone(&key.name));
            if let Some(watchers) = self.named_watchers.get_mut(&slot) {
                watchers.retain_mut(deliver);
                if watchers.is_empty() {
                    self.named_watchers.remove(&slot);
                }
            }
            if key.namespace.is_empty() {
                break;
            }
        }
    }

    fn remember(&mut self, change: Change) {
        self.history_bytes += change.object.body.len();
        self.history.push_back(change);
        while self.history.len() > HISTORY_CHANGES
            || (self.history_bytes > HISTORY_BYTES && self.history.len() > 1)
        {
            let Some(dropped) = self.history.pop_front() else { break };
            self.history_bytes -= dropped.object.body.len();
            self.dropped_through = dropped.object.version;
        }
    }

    fn forget_closed_watchers(&mut self) {
        self.watchers.retain(|watcher| !watcher.sender.is_closed());
        self.named_watchers.retain(|_, watchers| {
            watchers.retain(|watcher| !watcher.sender.is_closed());
            !watchers.is_empty()
        });
    }
}
