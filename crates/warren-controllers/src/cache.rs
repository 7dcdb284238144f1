//! A cache of every object of a kind: trimmed to the fields that decisions read, with indices
//! instead of scans.
//!
//! Answers to our own requests are added at once, so that a controller reads its own writes without
//! waiting for the watch. Answers and watch events arrive in any order, so versions decide: nothing
//! older replaces anything newer. A deletion that the server has confirmed is not undone by a watch
//! that is behind.
//!
//! An object that only an answer has shown is in doubt until the watch shows it, too. A list
//! without it may be older, or newer if the object was deleted since; only the server can tell. It
//! is asked at once after such a list, and after [`DOUBT`] otherwise.
//!
//! A watch can be limited to objects with a label ([`Cache::watch_only`]). It shows no others, so
//! these stay in doubt for as long as they are cached: the server is asked about each once in
//! [`DOUBT`], and only that shows its end. An object that loses the label ends as far as the watch
//! can tell, until an answer shows it again: a controller that tries to create another is told that
//! it exists, and reads it.

mod found;
#[cfg(test)]
mod tests;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::runtime::watcher;
use tokio::sync::watch;
use warren_decide::step::Kind;

use crate::object;
use crate::queue::{ObjectKey, WorkQueue};
use found::Found;

/// The time after which the server is asked about an object that only an answer has shown. A watch
/// is usually behind by milliseconds, and by seconds under load.
pub const DOUBT: Duration = Duration::from_secs(30);

/// A key by which objects are found, other than their name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Index {
    /// By the controller's uid, and the namespace that the two share.
    Controller(String, String),
    /// Sandboxes by the namespace and the hash in their pool label.
    PoolLabel(String, String),
    /// Claims by the namespace and the name of their pool.
    Pool(String, String),
    /// Claims by the namespace and the name of a sandbox that they have committed to and that is
    /// not (or no longer) in their status.
    Promise(String, String),
    /// Pools by the namespace and the name of their template.
    Template(String, String),
}

/// A change of one object. A side is `None` if the object did not exist then. Both sides are the
/// same object: if another object takes its name, that is an end and a beginning.
#[derive(Debug)]
pub struct Change<'a, K> {
    /// The object's key.
    pub key: &'a ObjectKey,
    /// The state before.
    pub before: Option<&'a Arc<K>>,
    /// The state after.
    pub after: Option<&'a Arc<K>>,
}

/// The cache's configuration for a kind.
#[derive(Clone, Copy, Debug)]
pub struct Keeping<K> {
    /// Removes fields that no decision reads.
    pub trim: fn(&mut K),
    /// Returns the indices of an object.
    pub indices: fn(&K) -> Vec<Index>,
}

type Ending<K> = Box<dyn Fn(&K) + Send + Sync>;
type Changed<K> = Box<dyn Fn(&Change<'_, K>) + Send + Sync>;

/// The callbacks for changes.
struct Listener<K> {
    /// Called when an object is about to be removed, so that its owner can be marked before the
    /// removal is visible.
    ending: Ending<K>,
    /// Called for each change.
    changed: Changed<K>,
}

/// The objects of one kind.
pub struct Cache<K> {
    keeping: Keeping<K>,
    state: RwLock<State<K>>,
    /// Held from a change until the listener was called, so that it is called in the order of
    /// changes.
    order: Mutex<()>,
    listener: OnceLock<Listener<K>>,
    listed: watch::Sender<bool>,
    /// The label that limits the watch, if there is one.
    only: OnceLock<&'static str>,
    doubts: Option<(Kind, WorkQueue<Kind>)>,
}

struct State<K> {
    objects: HashMap<ObjectKey, Arc<K>>,
    /// Indices with the objects themselves: a pool of a thousand members is read often, and each
    /// change adds only one.
    indices: HashMap<Index, Found<K>>,
    /// The newest resourceVersion that the watch has shown. An answer that is not newer contains
    /// nothing new: if its object is not cached, it was deleted since.
    horizon: u64,
    /// The keys in the present list so far.
    listing: HashSet<ObjectKey>,
    /// The newest resourceVersion in that list so far. It becomes the horizon only when the list is
    /// complete: the rest may be older.
    listing_horizon: u64,
    /// The objects to ask the server about.
    doubts: HashMap<ObjectKey, Doubt>,
    /// Owners that have lost a child and may have been deleted before it: the server is asked about
    /// them before another child is made.
    bereft: HashSet<ObjectKey>,
    /// Tombstones: objects that the server has confirmed as deleted before the watch did. Older
    /// states of them are ignored.
    tombstones: HashMap<ObjectKey, Tombstone>,
}

struct Tombstone {
    uid: String,
    /// The last version that was seen. An older one belongs to another object of that name.
    version: u64,
}

#[derive(Clone, Copy)]
struct Doubt {
    /// The time since when it is in doubt; zero: ask at once.
    since: Duration,
    /// True if only an answer has shown it. Otherwise it seemed to be deleted, which one answer
    /// settles.
    unconfirmed: bool,
}

impl<K> Cache<K>
where
    K: Resource<DynamicType = ()> + Send + Sync + 'static,
{
    /// Returns an empty cache.
    #[must_use]
    pub fn new(keeping: Keeping<K>) -> Self {
        Self {
            keeping,
            state: RwLock::new(State {
                objects: HashMap::new(),
                indices: HashMap::new(),
                horizon: 0,
                listing: HashSet::new(),
                listing_horizon: 0,
                doubts: HashMap::new(),
                bereft: HashSet::new(),
                tombstones: HashMap::new(),
            }),
            order: Mutex::new(()),
            listener: OnceLock::new(),
            listed: watch::Sender::new(false),
            only: OnceLock::new(),
            doubts: None,
        }
    }

    /// Returns an empty cache that also accepts answers, and adds its kind to a queue when the
    /// server is to be asked about some of them.
    #[must_use]
    pub fn with_answers(keeping: Keeping<K>, kind: Kind, queue: WorkQueue<Kind>) -> Self {
        Self { doubts: Some((kind, queue)), ..Self::new(keeping) }
    }

    /// Sets the listener for every change, from the watch and from our own writes. `ending` is
    /// called while the object is still cached. Can be set once, before the watch runs.
    pub fn listen(
        &self,
        ending: impl Fn(&K) + Send + Sync + 'static,
        changed: impl Fn(&Change<'_, K>) + Send + Sync + 'static,
    ) {
        let listener = Listener { ending: Box::new(ending), changed: Box::new(changed) };
        if self.listener.set(listener).is_err() {
            tracing::error!(kind = %K::kind(&()), "a second listener was refused");
        }
    }

    /// Declares that the watch shows only objects with this label. To be called before it runs.
    pub fn watch_only(&self, label: &'static str) {
        self.only.get_or_init(|| label);
    }

    /// Returns true if the watch shows changes of an object in this state.
    fn is_watched(&self, object: &ObjectMeta) -> bool {
        let has = |label: &&str| object.labels.as_ref().is_some_and(|labels| labels.contains_key(*label));
        self.only.get().is_none_or(has)
    }

    /// Returns the object of this name.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read().objects.get(key).cloned()
    }

    /// Returns true if there is an object of this name.
    #[must_use]
    pub fn holds(&self, key: &ObjectKey) -> bool {
        self.read().objects.contains_key(key)
    }

    /// Returns the uid of the object of this name.
    #[must_use]
    pub fn uid_of(&self, key: &ObjectKey) -> Option<String> {
        self.read().objects.get(key)?.meta().uid.clone()
    }

    /// Returns the objects of an index in the order of their names.
    #[must_use]
    pub fn find(&self, index: &Index) -> Vec<Arc<K>> {
        let state = self.read();
        state.indices.get(index).map(Found::all).unwrap_or_default()
    }

    /// Returns the keys of all objects, in order.
    #[must_use]
    pub fn keys(&self) -> Vec<ObjectKey> {
        let mut keys: Vec<ObjectKey> = self.read().objects.keys().cloned().collect();
        keys.sort();
        keys
    }

    /// Returns every object, in random order. For metrics only: actions in such an order could not
    /// be reproduced.
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

    /// Returns true if the first list is complete.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        *self.listed.borrow()
    }

    /// Marks the list as complete although the server does not serve the kind: then there are no
    /// objects.
    pub fn mark_listed(&self) {
        self.listed.send_replace(true);
    }

    /// Adds the answer to a write or a read of our own.
    pub fn remember(&self, object: Arc<K>) {
        let Some(version) = object::version(object.meta()) else { return };
        let key = key_of(&*object);
        let _order = self.in_order();
        {
            let state = self.read();
            let is_old = version <= state.horizon && self.is_watched(object.meta());
            if is_old || state.has_tombstone(&key, object.meta()) {
                return;
            }
        }
        if self.put(object)
            && let Some((kind, queue)) = &self.doubts
        {
            self.write().doubts.insert(key, Doubt { since: queue.uptime(), unconfirmed: true });
            queue.add_after(*kind, DOUBT);
        }
    }

    /// Removes an object that the server has just reported as missing, if its uid is still the
    /// same: another may have the name by now. Older states from the watch are then ignored.
    pub fn forget(&self, key: &ObjectKey, uid: &str) {
        let _order = self.in_order();
        {
            let mut state = self.write();
            let Some(present) =
                state.objects.get(key).filter(|object| object.meta().uid.as_deref() == Some(uid))
            else {
                return;
            };
            let version = object::version(present.meta()).unwrap_or_default();
            state.tombstones.insert(key.clone(), Tombstone { version, uid: uid.to_owned() });
        }
        self.take(key);
    }

    /// Puts an object in doubt, because it seems to be deleted.
    pub fn doubt(&self, key: &ObjectKey) {
        let Some((kind, queue)) = &self.doubts else { return };
        let mut state = self.write();
        if state.objects.contains_key(key) {
            let doubt = Doubt { since: Duration::ZERO, unconfirmed: false };
            state.doubts.entry(key.clone()).or_insert(doubt).since = Duration::ZERO;
            drop(state);
            queue.add(*kind);
        }
    }

    /// Records that a child of an object is gone. The owner may have been deleted first, which the
    /// watch has not shown yet.
    pub fn mark_child_lost(&self, key: &ObjectKey) {
        let mut state = self.write();
        if state.objects.contains_key(key) {
            state.bereft.insert(key.clone());
        }
    }

    /// Returns true if a child of an object has gone since the last call of
    /// [`Cache::is_newly_bereft`]. A reader that does not see the child any more sees this.
    #[must_use]
    pub fn is_bereft(&self, key: &ObjectKey) -> bool {
        self.read().bereft.contains(key)
    }

    /// Returns true if a child of an object has gone since the last call of this function.
    pub fn is_newly_bereft(&self, key: &ObjectKey) -> bool {
        !self.read().bereft.is_empty() && self.write().bereft.remove(key)
    }

    /// Returns the objects to ask about now, and the time until the next one.
    #[must_use]
    pub fn doubtful(&self, uptime: Duration) -> (Vec<ObjectKey>, Option<Duration>) {
        let state = self.read();
        let mut due = Vec::new();
        let mut next: Option<Duration> = None;
        for (key, doubt) in &state.doubts {
            let left = doubt.since.saturating_add(DOUBT).saturating_sub(uptime);
            if doubt.since.is_zero() || left.is_zero() {
                due.push(key.clone());
            } else {
                next = Some(next.map_or(left, |earlier| earlier.min(left)));
            }
        }
        due.sort();
        (due, next)
    }

    /// Records that the server has confirmed an object. If the watch has still not shown it, it is
    /// in doubt again, and this returns true.
    pub fn is_still_doubtful(&self, key: &ObjectKey, uptime: Duration) -> bool {
        let mut state = self.write();
        let Some(doubt) = state.doubts.get_mut(key) else { return false };
        let unconfirmed = doubt.unconfirmed;
        doubt.since = uptime;
        if !unconfirmed {
            state.doubts.remove(key);
        }
        unconfirmed
    }

    /// Adds an event of the watch.
    pub fn observe(&self, event: watcher::Event<K>) {
        match event {
            watcher::Event::Init => self.begin_list(),
            watcher::Event::InitApply(object) => self.list(self.trimmed(object)),
            watcher::Event::InitDone => self.end_list(),
            watcher::Event::Apply(object) => self.apply(self.trimmed(object)),
            watcher::Event::Delete(object) => self.end(object.meta()),
        }
    }

    /// Begins a list.
    pub fn begin_list(&self) {
        let mut state = self.write();
        state.listing.clear();
        state.listing_horizon = 0;
    }

    /// Adds an object of a list.
    pub fn list(&self, object: Arc<K>) {
        {
            let mut state = self.write();
            state.listing.insert(key_of(&*object));
            state.listing_horizon =
                state.listing_horizon.max(object::version(object.meta()).unwrap_or_default());
        }
        let _order = self.in_order();
        self.bring(object);
    }

    /// Records an object of a list that cannot be parsed. It exists, so its last readable state
    /// stays.
    pub fn list_unread(&self, object: &ObjectMeta) {
        self.write().listing.insert(named(object));
    }

    /// Ends a list: objects that it does not contain are gone, unless they are in doubt.
    pub fn end_list(&self) {
        let order = self.in_order();
        let (mut gone, doubted) = {
            let mut state = self.write();
            let state = &mut *state;
            let listing = std::mem::take(&mut state.listing);
            state.horizon = state.horizon.max(std::mem::take(&mut state.listing_horizon));
            let missing = |key: &&ObjectKey| !listing.contains(*key);
            let gone: Vec<ObjectKey> = state
                .objects
                .keys()
                .filter(missing)
                .filter(|key| !state.doubts.get(*key).is_some_and(|doubt| doubt.unconfirmed))
                .cloned()
                .collect();
            let mut doubted = false;
            for (_, doubt) in state.doubts.iter_mut().filter(|(key, _)| !listing.contains(*key)) {
                doubt.since = Duration::ZERO;
                doubted = true;
            }
            // The watch continues after the list, so older tombstones are needed only for objects
            // that are in the list.
            let horizon = state.horizon;
            state.tombstones.retain(|key, gone| gone.version > horizon || listing.contains(key));
            (gone, doubted)
        };
        gone.sort();
        for key in gone {
            self.take(&key);
        }
        drop(order);
        if let Some((kind, queue)) = self.doubts.as_ref().filter(|_| doubted) {
            queue.add(*kind);
        }
        self.mark_listed();
    }

    /// Adds an object from the watch.
    pub fn apply(&self, object: Arc<K>) {
        // Held to the end: versions up to the horizon are assumed to be cached.
        let _order = self.in_order();
        if let Some(version) = object::version(object.meta()) {
            let mut state = self.write();
            state.horizon = state.horizon.max(version);
        }
        self.bring(object);
    }

    /// Adds an object from a list or a watch. The caller holds `order`.
    fn bring(&self, object: Arc<K>) {
        let key = key_of(&*object);
        if let Some(version) = object::version(object.meta()) {
            let mut state = self.write();
            if state.has_tombstone(&key, object.meta()) {
                return;
            }
            state.tombstones.remove(&key);
            if state.version(&key).is_none_or(|present| present <= version) {
                state.doubts.remove(&key);
            }
        }
        self.put(object);
    }

    /// Removes an object by a watch event. The event may belong to an older object than the one
    /// that an answer has added.
    pub fn end(&self, last: &ObjectMeta) {
        let key = named(last);
        let _order = self.in_order();
        if let Some(version) = object::version(last) {
            let mut state = self.write();
            state.horizon = state.horizon.max(version);
            let settled = |gone: &Tombstone| Some(&gone.uid) == last.uid.as_ref() || gone.version < version;
            if state.tombstones.get(&key).is_some_and(settled) {
                state.tombstones.remove(&key);
            }
            // The loss of the label arrives as a deletion with the version of the object without
            // it. A real deletion has a newer version.
            let is_past = |present: &Arc<K>| {
                let newest = object::version(present.meta());
                newest > Some(version) || newest == Some(version) && !self.is_watched(present.meta())
            };
            if state.objects.get(&key).is_some_and(is_past) {
                return;
            }
        }
        self.take(&key);
    }

    fn trimmed(&self, mut object: K) -> Arc<K> {
        (self.keeping.trim)(&mut object);
        Arc::new(object)
    }

    /// Adds an object unless the same or a newer version is cached. Returns true if it did. The
    /// caller holds `order`.
    fn put(&self, new: Arc<K>) -> bool {
        let key = key_of(&*new);
        let replaced = self.get(&key).filter(|before| before.meta().uid != new.meta().uid);
        if let (Some(replaced), Some(listener)) = (replaced, self.listener.get()) {
            (listener.ending)(&replaced);
        }
        let before = {
            let mut state = self.write();
            let before = state.objects.get(&key).cloned();
            if let (Some(before), Some(version)) = (&before, object::version(new.meta()))
                && object::version(before.meta()).is_some_and(|present| present >= version)
            {
                return false;
            }
            let left = before.as_ref().map(|before| (self.keeping.indices)(before));
            let found = (self.keeping.indices)(&new);
            if let Some(left) = left.filter(|left| *left != found) {
                state.leave(&key, left);
            }
            state.enter(&key, found, &new);
            state.objects.insert(key.clone(), new.clone());
            before
        };
        let same = before.as_ref().filter(|before| before.meta().uid == new.meta().uid);
        if let (Some(before), None) = (&before, same) {
            self.tell(&Change { key: &key, before: Some(before), after: None });
        }
        self.tell(&Change { key: &key, before: same, after: Some(&new) });
        true
    }

    /// Removes an object. The caller holds `order`.
    fn take(&self, key: &ObjectKey) {
        if let (Some(present), Some(listener)) = (self.get(key), self.listener.get()) {
            (listener.ending)(&present);
        }
        let before = {
            let mut state = self.write();
            state.doubts.remove(key);
            state.bereft.remove(key);
            let Some(before) = state.objects.remove(key) else { return };
            state.leave(key, (self.keeping.indices)(&before));
            before
        };
        self.tell(&Change { key, before: Some(&before), after: None });
    }

    fn tell(&self, change: &Change<'_, K>) {
        if let Some(listener) = self.listener.get() {
            (listener.changed)(change);
        }
    }

    fn in_order(&self) -> impl Drop {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, State<K>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<K>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Resource<DynamicType = ()>> State<K> {
    fn version(&self, key: &ObjectKey) -> Option<u64> {
        self.objects.get(key).and_then(|object| object::version(object.meta()))
    }

    fn has_tombstone(&self, key: &ObjectKey, metadata: &ObjectMeta) -> bool {
        self.tombstones.get(key).is_some_and(|gone| {
            Some(&gone.uid) == metadata.uid.as_ref()
                || object::version(metadata).is_some_and(|version| version <= gone.version)
        })
    }

    /// Adds an object to its indices, in place of an earlier state of it.
    fn enter(&mut self, key: &ObjectKey, indices: Vec<Index>, object: &Arc<K>) {
        for index in indices {
            match self.indices.entry(index) {
                Entry::Occupied(mut found) => found.get_mut().insert(key, object.clone()),
                Entry::Vacant(place) => {
                    place.insert(Found::One(key.clone(), object.clone()));
                }
            }
        }
    }

    fn leave(&mut self, key: &ObjectKey, indices: Vec<Index>) {
        for index in indices {
            if self.indices.get_mut(&index).is_some_and(|found| found.remove(key)) {
                self.indices.remove(&index);
            }
        }
    }
}

/// Returns the key of an object.
pub fn key_of<K: Resource<DynamicType = ()>>(object: &K) -> ObjectKey {
    named(object.meta())
}

pub(crate) fn named(metadata: &ObjectMeta) -> ObjectKey {
    ObjectKey {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}
