//! What was last seen of every object of a kind, trimmed to what decisions read, with indices instead of scans.
//!
//! Answers to our own requests go in at once, so that a controller sees what it has just done without waiting for the watch
//! to bring it back. The two come in no order, so versions decide: nothing older replaces anything newer, and what the
//! server has said is gone is not brought back by a watch that is behind. What only an answer has brought is in doubt until
//! the watch brings it too: a list may be older than it and lack it, or may be newer and lack it because it is gone, and
//! only the server can tell. It is asked at once after such a list, and after [`DOUBT`] otherwise.
//!
//! A watch can be limited to objects with a label ([`Cache::watch_only`]). Of the others it tells nothing, so they stay in doubt for
//! as long as they are here: each is asked for once in [`DOUBT`], and only that tells its end. One that loses the label ends as far as
//! the watch can tell, until an answer brings it again: whoever tries to make another is told that it exists, and reads it.

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

/// What only an answer has brought is asked for again after this long. A watch is behind by milliseconds as a rule, and by
/// seconds under load.
pub const DOUBT: Duration = Duration::from_secs(30);

/// A way to find objects by something other than their name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Index {
    /// By the namespace, which is the controller's, too, and its uid.
    Controller(String, String),
    /// Sandboxes by the namespace and the hash of the pool that they are labelled with.
    PoolLabel(String, String),
    /// Claims by the namespace and the name of their pool.
    Pool(String, String),
    /// Claims by the namespace and the name of a sandbox that they have committed to and do not show (yet, or any more).
    Promise(String, String),
    /// Pools by the namespace and the name of their template.
    Template(String, String),
}

/// How an object went from one state to the next. Neither side is there when it was or is not. Both sides are the same
/// object: one that took the name of another is told as an end and a beginning.
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

type Ending<K> = Box<dyn Fn(&K) + Send + Sync>;
type Changed<K> = Box<dyn Fn(&Change<'_, K>) + Send + Sync>;

/// Who hears of changes.
struct Listener<K> {
    /// That an object is about to be taken out: whoever misses it later can be warned before.
    ending: Ending<K>,
    /// What has changed.
    changed: Changed<K>,
}

/// The objects of one kind.
pub struct Cache<K> {
    keeping: Keeping<K>,
    state: RwLock<State<K>>,
    /// Held from a change until the listener has heard of it, so that it hears of changes in their order.
    order: Mutex<()>,
    listener: OnceLock<Listener<K>>,
    listed: watch::Sender<bool>,
    /// The label without which the watch brings nothing of an object, if there is one.
    only: OnceLock<&'static str>,
    doubts: Option<(Kind, WorkQueue<Kind>)>,
}

struct State<K> {
    objects: HashMap<ObjectKey, Arc<K>>,
    /// With the objects themselves: a pool of a thousand members is looked at often, and each change puts in one.
    indices: HashMap<Index, Found<K>>,
    /// The newest resourceVersion that the watch has brought. An answer that is not newer tells nothing new: if its object
    /// is not here, it has been deleted since.
    horizon: u64,
    /// What a list under way has brought so far.
    listing: HashSet<ObjectKey>,
    /// The newest resourceVersion of that list so far. It is the horizon only when the list is complete: what it has not brought
    /// yet may be older.
    listing_horizon: u64,
    /// What is to be asked for.
    doubts: HashMap<ObjectKey, Doubt>,
    /// Owners that have lost a child, and may have gone before it: to be asked for before another child is made.
    bereft: HashSet<ObjectKey>,
    /// Objects that the server said are gone before the watch did: states of them are not news.
    forgotten: HashMap<ObjectKey, Forgotten>,
}

struct Forgotten {
    uid: String,
    /// The last version that was seen: what is older is the past of another of that name.
    version: u64,
}

#[derive(Clone, Copy)]
struct Doubt {
    /// Since when; zero is to be asked for at once.
    since: Duration,
    /// Whether only an answer has brought it. Otherwise something looked as if it were gone, which one answer settles.
    unconfirmed: bool,
}

impl<K> Cache<K>
where
    K: Resource<DynamicType = ()> + Send + Sync + 'static,
{
    /// An empty cache.
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
                forgotten: HashMap::new(),
            }),
            order: Mutex::new(()),
            listener: OnceLock::new(),
            listed: watch::Sender::new(false),
            only: OnceLock::new(),
            doubts: None,
        }
    }

    /// An empty cache that also takes answers, and puts its kind into a queue when some of them are to be asked for again.
    #[must_use]
    pub fn with_answers(keeping: Keeping<K>, kind: Kind, queue: WorkQueue<Kind>) -> Self {
        Self { doubts: Some((kind, queue)), ..Self::new(keeping) }
    }

    /// Who hears of every change, from the watch and from our own writes alike; and of an end also while the object still is here.
    /// Can be set once, before the watch runs.
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

    /// The watch brings only objects that carry this label. To be said before it runs.
    pub fn watch_only(&self, label: &'static str) {
        self.only.get_or_init(|| label);
    }

    /// Whether the watch tells what becomes of an object in this state.
    fn is_watched(&self, object: &ObjectMeta) -> bool {
        let has = |label: &&str| object.labels.as_ref().is_some_and(|labels| labels.contains_key(*label));
        self.only.get().is_none_or(has)
    }

    /// The object of this name.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read().objects.get(key).cloned()
    }

    /// Whether there is an object of this name.
    #[must_use]
    pub fn holds(&self, key: &ObjectKey) -> bool {
        self.read().objects.contains_key(key)
    }

    /// The uid of the object of this name.
    #[must_use]
    pub fn uid_of(&self, key: &ObjectKey) -> Option<String> {
        self.read().objects.get(key)?.meta().uid.clone()
    }

    /// The objects that an index holds, in the order of their names.
    #[must_use]
    pub fn find(&self, index: &Index) -> Vec<Arc<K>> {
        let state = self.read();
        state.indices.get(index).map(Found::all).unwrap_or_default()
    }

    /// The keys of all objects, in order.
    #[must_use]
    pub fn keys(&self) -> Vec<ObjectKey> {
        let mut keys: Vec<ObjectKey> = self.read().objects.keys().cloned().collect();
        keys.sort();
        keys
    }

    /// Every object, in no order. For metrics: whoever acts on them in such an order acts differently each time.
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

    /// Whether the first list is complete.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        *self.listed.borrow()
    }

    /// Calls the list complete although the server does not serve the kind: then there are none.
    pub fn mark_listed(&self) {
        self.listed.send_replace(true);
    }

    /// Takes in the answer to a write or a read of our own.
    pub fn remember(&self, object: Arc<K>) {
        let Some(version) = object::version(object.meta()) else { return };
        let key = key_of(&*object);
        let _order = self.in_order();
        {
            let state = self.read();
            let is_old = version <= state.horizon && self.is_watched(object.meta());
            if is_old || state.is_forgotten(&key, object.meta()) {
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

    /// Takes out an object that the server has just said does not exist, if it is still the one that it was asked about: by now
    /// there may be another of that name. Should the watch be behind and bring more of its past, that is not taken in.
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
            state.forgotten.insert(key.clone(), Forgotten { version, uid: uid.to_owned() });
        }
        self.take(key);
    }

    /// Asks for an object again, because something looks as if it were gone.
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

    /// A child of an object is gone. It may have gone with its owner, of which we have not heard yet.
    pub fn bereave(&self, key: &ObjectKey) {
        let mut state = self.write();
        if state.objects.contains_key(key) {
            state.bereft.insert(key.clone());
        }
    }

    /// Whether a child of an object has gone since [`Cache::is_newly_bereft`] was last asked. Whoever sees that the child is gone
    /// sees this, too.
    #[must_use]
    pub fn is_bereft(&self, key: &ObjectKey) -> bool {
        self.read().bereft.contains(key)
    }

    /// Whether a child of an object has gone since this was last asked.
    pub fn is_newly_bereft(&self, key: &ObjectKey) -> bool {
        !self.read().bereft.is_empty() && self.write().bereft.remove(key)
    }

    /// What is to be asked for by now, and how long the rest has time.
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

    /// The server has just said that an object exists. If the watch has still not brought it, it is in doubt anew; says so.
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

    /// Takes in what the watch brings.
    pub fn observe(&self, event: watcher::Event<K>) {
        match event {
            watcher::Event::Init => self.begin_list(),
            watcher::Event::InitApply(object) => self.list(self.trimmed(object)),
            watcher::Event::InitDone => self.end_list(),
            watcher::Event::Apply(object) => self.apply(self.trimmed(object)),
            watcher::Event::Delete(object) => self.end(object.meta()),
        }
    }

    /// A list begins.
    pub fn begin_list(&self) {
        let mut state = self.write();
        state.listing.clear();
        state.listing_horizon = 0;
    }

    /// A list brings an object.
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

    /// A list brings an object that cannot be read. It is not gone: what was seen of it before stays.
    pub fn list_unread(&self, object: &ObjectMeta) {
        self.write().listing.insert(named(object));
    }

    /// A list is complete: what it did not bring is gone, unless that is in doubt.
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
            // The watch goes on behind the list, which is no older than the newest that it brought: what was forgotten before that,
            // and is not in the list, does not come again.
            let horizon = state.horizon;
            state.forgotten.retain(|key, gone| gone.version > horizon || listing.contains(key));
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

    /// The watch brings an object.
    pub fn apply(&self, object: Arc<K>) {
        // To the end: what is not beyond the horizon is taken to be here.
        let _order = self.in_order();
        if let Some(version) = object::version(object.meta()) {
            let mut state = self.write();
            state.horizon = state.horizon.max(version);
        }
        self.bring(object);
    }

    /// Takes in an object from a list or a watch. In order.
    fn bring(&self, object: Arc<K>) {
        let key = key_of(&*object);
        if let Some(version) = object::version(object.meta()) {
            let mut state = self.write();
            if state.is_forgotten(&key, object.meta()) {
                return;
            }
            state.forgotten.remove(&key);
            if state.version(&key).is_none_or(|present| present <= version) {
                state.doubts.remove(&key);
            }
        }
        self.put(object);
    }

    /// The watch brings the end of an object, which may be of another than the one that an answer has put here.
    pub fn end(&self, last: &ObjectMeta) {
        let key = named(last);
        let _order = self.in_order();
        if let Some(version) = object::version(last) {
            let mut state = self.write();
            state.horizon = state.horizon.max(version);
            let settled = |gone: &Forgotten| Some(&gone.uid) == last.uid.as_ref() || gone.version < version;
            if state.forgotten.get(&key).is_some_and(settled) {
                state.forgotten.remove(&key);
            }
            // The loss of the label is told as an end, with the version of the object without it. A real end has one of its own.
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

    /// Puts an object in, unless the same or a newer version is there, and says whether it did. In order.
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

    /// Takes an object out. In order.
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

    fn is_forgotten(&self, key: &ObjectKey, metadata: &ObjectMeta) -> bool {
        self.forgotten.get(key).is_some_and(|gone| {
            Some(&gone.uid) == metadata.uid.as_ref()
                || object::version(metadata).is_some_and(|version| version <= gone.version)
        })
    }

    /// Makes an object found by its indices, in the place of an earlier state of it.
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

/// The key of an object.
pub fn key_of<K: Resource<DynamicType = ()>>(object: &K) -> ObjectKey {
    named(object.meta())
}

pub(crate) fn named(metadata: &ObjectMeta) -> ObjectKey {
    ObjectKey {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}
