//! What was last seen of every object of a kind, trimmed to what decisions read, with indices instead of scans.
//!
//! Answers to our own writes go in at once, so that a controller sees what it has just done without waiting for the watch
//! to bring it back. The watch alone takes objects out.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use kube::runtime::watcher;
use kube::{Resource, ResourceExt};
use tokio::sync::watch;

use crate::queue::ObjectKey;

/// A way to find objects by something other than their name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Index {
    /// By the uid of the controller.
    Controller(String),
    /// Sandboxes by the namespace and the hash of the pool that they are labelled with.
    PoolLabel(String, String),
    /// Claims by the namespace and the name of their pool.
    Pool(String, String),
    /// Pools by the namespace and the name of their template.
    Template(String, String),
}

/// How an object went from one state to the next. Neither side is there when it was or is not.
#[derive(Debug)]
pub struct Change<'a, K> {
    /// Which object.
    pub key: &'a ObjectKey,
    /// What it was.
    pub before: Option<&'a Arc<K>>,
    /// What it is.
    pub after: Option<&'a Arc<K>>,
}

/// How a kind is kept.
#[derive(Clone, Copy, Debug)]
pub struct Keeping<K> {
    /// Removes what no decision reads.
    pub trim: fn(&mut K),
    /// Where the object is found.
    pub indices: fn(&K) -> Vec<Index>,
}

type Listener<K> = Box<dyn Fn(&Change<'_, K>) + Send + Sync>;

/// The objects of one kind.
pub struct Cache<K> {
    keeping: Keeping<K>,
    state: RwLock<State<K>>,
    listener: OnceLock<Listener<K>>,
    listed: watch::Sender<bool>,
}

struct State<K> {
    objects: HashMap<ObjectKey, Arc<K>>,
    indices: HashMap<Index, BTreeSet<ObjectKey>>,
    /// The newest resourceVersion that the watch has brought. An answer that is not newer tells nothing new: if its object
    /// is not here, it has been deleted since.
    horizon: u64,
    /// What a list under way has brought so far.
    listing: HashSet<ObjectKey>,
}

impl<K> Cache<K>
where
    K: Resource<DynamicType = ()> + Send + Sync + 'static,
{
    /// An empty cache.
    #[must_use]
    pub fn new(keeping: Keeping<K>) -> Self {
        let state =
            State { objects: HashMap::new(), indices: HashMap::new(), horizon: 0, listing: HashSet::new() };
        Self {
            keeping,
            state: RwLock::new(state),
            listener: OnceLock::new(),
            listed: watch::Sender::new(false),
        }
    }

    /// Who hears of every change, from the watch and from our own writes alike. Can be set once, before the watch runs.
    pub fn listen(&self, listener: impl Fn(&Change<'_, K>) + Send + Sync + 'static) {
        if self.listener.set(Box::new(listener)).is_err() {
            tracing::error!(kind = %K::kind(&()), "a second listener was refused");
        }
    }

    /// The object of this name.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read().objects.get(key).cloned()
    }

    /// The objects that an index holds, in the order of their names.
    #[must_use]
    pub fn find(&self, index: &Index) -> Vec<Arc<K>> {
        let state = self.read();
        let keys = state.indices.get(index).into_iter().flatten();
        keys.filter_map(|key| state.objects.get(key).cloned()).collect()
    }

    /// Every object. For start-up and metrics, not for decisions.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<K>> {
        self.read().objects.values().cloned().collect()
    }

    /// Waits until the first list is complete.
    pub async fn wait_until_listed(&self) {
        let mut listed = self.listed.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = listed.wait_for(|listed| *listed).await;
    }

    /// Calls the list complete although the server does not serve the kind: then there are none.
    pub fn mark_listed(&self) {
        self.listed.send_replace(true);
    }

    /// Takes in the answer to a write or a read of our own.
    pub fn remember(&self, object: K) {
        let Some(version) = version(&object) else { return };
        if version > self.read().horizon {
            self.put(object);
        }
    }

    /// Takes out an object that the server has just said does not exist. Should the watch be behind and bring an older
    /// state of it once more, it also brings its end.
    pub fn forget(&self, key: &ObjectKey) {
        self.take(key);
    }

    /// Takes in what the watch brings.
    pub fn observe(&self, event: watcher::Event<K>) {
        match event {
            watcher::Event::Init => self.write().listing.clear(),
            watcher::Event::InitApply(object) => {
                self.write().listing.insert(key_of(&object));
                self.advance(&object);
                self.put(object);
            }
            watcher::Event::InitDone => {
                let gone: Vec<ObjectKey> = {
                    let mut state = self.write();
                    let listing = std::mem::take(&mut state.listing);
                    state.objects.keys().filter(|key| !listing.contains(*key)).cloned().collect()
                };
                for key in gone {
                    self.take(&key);
                }
                self.mark_listed();
            }
            watcher::Event::Apply(object) => {
                self.advance(&object);
                self.put(object);
            }
            watcher::Event::Delete(object) => {
                self.advance(&object);
                self.take(&key_of(&object));
            }
        }
    }

    fn advance(&self, object: &K) {
        if let Some(version) = version(object) {
            let mut state = self.write();
            state.horizon = state.horizon.max(version);
        }
    }

    /// Puts an object in, unless the same or a newer version of it is there.
    fn put(&self, mut object: K) {
        (self.keeping.trim)(&mut object);
        let key = key_of(&object);
        let new = Arc::new(object);
        let before = {
            let mut state = self.write();
            let before = state.objects.get(&key).cloned();
            if let (Some(before), Some(version)) = (&before, version(&*new))
                && self::version(&**before).is_some_and(|present| present >= version)
            {
                return;
            }
            if let Some(before) = &before {
                state.leave(&key, (self.keeping.indices)(before));
            }
            for index in (self.keeping.indices)(&new) {
                state.indices.entry(index).or_default().insert(key.clone());
            }
            state.objects.insert(key.clone(), new.clone());
            before
        };
        self.tell(&Change { key: &key, before: before.as_ref(), after: Some(&new) });
    }

    fn take(&self, key: &ObjectKey) {
        let before = {
            let mut state = self.write();
            let Some(before) = state.objects.remove(key) else { return };
            state.leave(key, (self.keeping.indices)(&before));
            before
        };
        self.tell(&Change { key, before: Some(&before), after: None });
    }

    fn tell(&self, change: &Change<'_, K>) {
        if let Some(listener) = self.listener.get() {
            listener(change);
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, State<K>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<K>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> State<K> {
    fn leave(&mut self, key: &ObjectKey, indices: Vec<Index>) {
        for index in indices {
            if let Some(keys) = self.indices.get_mut(&index) {
                keys.remove(key);
                if keys.is_empty() {
                    self.indices.remove(&index);
                }
            }
        }
    }
}

/// The key of an object.
pub fn key_of<K: Resource<DynamicType = ()>>(object: &K) -> ObjectKey {
    ObjectKey { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
}

/// Versions are opaque to clients in principle, and numbers that grow in fact: etcd's revision, or our store's.
fn version<K: Resource<DynamicType = ()>>(object: &K) -> Option<u64> {
    object.meta().resource_version.as_deref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use k8s_openapi::api::core::v1::Pod;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
    use kube::runtime::watcher::Event;

    use super::{Cache, Index, Keeping, key_of};

    fn pod(name: &str, version: u64, owner: &str) -> Pod {
        Pod {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some("default".to_owned()),
                resource_version: Some(version.to_string()),
                owner_references: Some(vec![OwnerReference {
                    uid: owner.to_owned(),
                    ..OwnerReference::default()
                }]),
                ..ObjectMeta::default()
            },
            ..Pod::default()
        }
    }

    fn cache() -> (Cache<Pod>, Arc<Mutex<Vec<String>>>) {
        let cache = Cache::new(Keeping::<Pod> {
            trim: |_| {},
            indices: |pod| {
                let owners = pod.metadata.owner_references.iter().flatten();
                owners.map(|owner| Index::Controller(owner.uid.clone())).collect()
            },
        });
        let log = Arc::new(Mutex::new(Vec::new()));
        let sink = log.clone();
        cache.listen(move |change| {
            let version = |pod: &Arc<Pod>| pod.metadata.resource_version.clone().unwrap();
            sink.lock().unwrap().push(format!(
                "{} {}->{}",
                change.key.name,
                change.before.map(version).unwrap_or_default(),
                change.after.map(version).unwrap_or_default()
            ));
        });
        (cache, log)
    }

    #[test]
    fn our_own_write_is_seen_at_once_and_its_echo_is_silent() {
        let (cache, log) = cache();
        cache.remember(pod("a", 5, "x"));
        cache.observe(Event::Apply(pod("a", 5, "x")));
        cache.observe(Event::Apply(pod("a", 4, "x")));
        assert_eq!(*log.lock().unwrap(), ["a ->5"]);
    }

    #[test]
    fn a_late_answer_does_not_bring_back_the_dead() {
        let (cache, log) = cache();
        cache.observe(Event::Apply(pod("a", 5, "x")));
        cache.observe(Event::Delete(pod("a", 6, "x")));
        cache.remember(pod("a", 5, "x"));
        assert!(cache.get(&key_of(&pod("a", 5, "x"))).is_none());
        assert_eq!(*log.lock().unwrap(), ["a ->5", "a 5->"]);
    }

    #[test]
    fn a_new_list_takes_out_what_is_gone() {
        let (cache, log) = cache();
        cache.observe(Event::Apply(pod("a", 5, "x")));
        cache.observe(Event::Apply(pod("b", 6, "x")));
        cache.observe(Event::Init);
        cache.observe(Event::InitApply(pod("b", 6, "x")));
        cache.observe(Event::InitApply(pod("c", 8, "x")));
        cache.observe(Event::InitDone);
        assert_eq!(*log.lock().unwrap(), ["a ->5", "b ->6", "c ->8", "a 5->"]);
    }

    #[test]
    fn an_index_follows_the_object() {
        let (cache, _) = cache();
        cache.observe(Event::Apply(pod("a", 5, "x")));
        cache.observe(Event::Apply(pod("b", 6, "x")));
        cache.observe(Event::Apply(pod("a", 7, "y")));
        let names = |owner: &str| -> Vec<String> {
            let found = cache.find(&Index::Controller(owner.to_owned()));
            found.iter().map(|pod| pod.metadata.name.clone().unwrap()).collect()
        };
        assert_eq!((names("x"), names("y")), (vec!["b".to_owned()], vec!["a".to_owned()]));
    }
}
