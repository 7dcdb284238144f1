use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;

use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};

use crate::committed::Committed;
use crate::database::Database;
use crate::timing::DiskTimes;
use crate::watch::{Change, ChangeKind};
use crate::writer::{CommitError, Job};
use crate::{Ahead, Body, Expired, Filter, Key, Object, OpenError, Urgency, Watch, WatchFrom, writer};

/// A guess at the length of a new object: a small one with its managers, which nearly all grow into.
const NEW_BODY: usize = 1024;
/// With more writes than these waiting for the disk, nobody writes ahead of it.
const FURTHEST_AHEAD: usize = 256;

/// The thread that commits.
pub const WRITER_THREAD: &str = "store-writer";

/// Where a store keeps its objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Storage {
    /// Nowhere: gone with the process. For tests.
    Memory,
    /// In this SQLite file (and its `-wal` neighbour).
    File(PathBuf),
}

/// The store. Clones share it.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    writer: Arc<WriterHandle>,
}

pub(crate) struct Shared {
    head: Mutex<Head>,
    pub(crate) wake_writer: Condvar,
    committed: RwLock<Committed>,
    pub(crate) disk: DiskTimes,
    in_memory: bool,
    /// True if the writer thread has panicked.
    pub(crate) failed: watch::Sender<bool>,
}

/// The newest state, ahead of what is committed: writes are checked against it, so that two writers in the same
/// group commit conflict with each other just as if they had come one after the other.
pub(crate) struct Head {
    next_version: u64,
    pub(crate) pending: HashMap<Key, Pending>,
    pub(crate) queue: Vec<Job>,
    /// How often writes were lost that had been answered already.
    pub(crate) losses: watch::Sender<u64>,
    pub(crate) closed: bool,
}

pub(crate) struct Pending {
    pub version: u64,
    object: Option<Arc<Object>>,
}

/// One change to make, and what must hold for it.
#[derive(Debug)]
pub struct Write {
    /// The object.
    pub key: Key,
    /// What must be there now.
    pub expect: Expect,
    /// What to do.
    pub action: Action,
}

/// The precondition of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// No object under this key.
    Absent,
    /// Exactly this version.
    Version(u64),
    /// An object of whatever version: for a write that follows another of the same object in one call, when nobody
    /// can know yet which version that will be.
    Present,
}

/// What a write does.
#[derive(Debug)]
pub enum Action {
    /// Stores this body; the store fills in `metadata.resourceVersion`.
    Put(Body),
    /// Removes the object.
    Delete,
}

/// Why a write was refused or lost. Nothing of it was applied.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The object exists already.
    #[error("{0} already exists")]
    Exists(Key),
    /// The object is not there.
    #[error("{0} not found")]
    Missing(Key),
    /// The object has another version than expected.
    #[error("{key} has version {actual}")]
    Conflict {
        /// The object.
        key: Key,
        /// Its newest version.
        actual: u64,
    },
    /// The disk said no.
    #[error(transparent)]
    Commit(CommitError),
    /// A write was lost that this one may follow from.
    #[error("an earlier write did not reach the disk")]
    Unfounded,
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
}

/// What becomes of writes that are in order: the objects as they will be, and word of the disk unless there is none.
pub(crate) struct Ordered {
    pub objects: Vec<Arc<Object>>,
    done: Option<oneshot::Receiver<Result<(), CommitError>>>,
    /// Whether so many wait for the disk that nobody should run further ahead of it.
    pub is_far_ahead: bool,
}

impl Ordered {
    /// Waits until the writes are on the disk.
    pub async fn on_disk(self) -> Result<Vec<Arc<Object>>, WriteError> {
        let Some(done) = self.done else { return Ok(self.objects) };
        match done.await {
            Ok(Ok(())) => Ok(self.objects),
            Ok(Err(error)) => Err(WriteError::Commit(error)),
            Err(_) => Err(WriteError::Closed),
        }
    }
}

/// What to list.
#[derive(Debug)]
pub struct ListRequest<'a> {
    /// The resource.
    pub resource: &'a Arc<str>,
    /// Which of its objects.
    pub filter: &'a Filter,
    /// At most so many.
    pub limit: Option<usize>,
    /// Only those after this namespace and name, as a continued list does.
    pub after: Option<(&'a str, &'a str)>,
    /// As of this version, instead of now.
    pub at: Option<u64>,
}

/// A consistent answer: the objects as they all were at one version.
#[derive(Debug)]
pub struct List {
    /// The objects, by namespace and name.
    pub items: Vec<Arc<Object>>,
    /// The version at which this holds.
    pub version: u64,
    /// Whether the limit cut the list short.
    pub more: bool,
    /// How many follow, where that is known without looking at each (no selector).
    pub remaining: Option<usize>,
}

/// Why a list could not be answered.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ListError {
    /// That version has left the history.
    #[error(transparent)]
    Expired(#[from] Expired),
    /// That version has not happened yet.
    #[error("Too large resource version: {requested}, current: {current}")]
    Future {
        /// What was asked for.
        requested: u64,
        /// The newest version.
        current: u64,
    },
}

struct WriterHandle {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for WriterHandle {
    fn drop(&mut self) {
        self.shared.head().closed = true;
        self.shared.wake_writer.notify_all();
    }
}

impl Shared {
    // A panic while a lock was held cannot leave half a change behind: every section below either builds its
    // result before touching the shared state or only moves finished values. So poisoning is ignored.
    pub(crate) fn head(&self) -> MutexGuard<'_, Head> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn committed(&self) -> RwLockReadGuard<'_, Committed> {
        self.committed.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn committed_mut(&self) -> RwLockWriteGuard<'_, Committed> {
        self.committed.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    /// Opens a store, reading everything it holds into memory.
    pub fn open(storage: &Storage) -> Result<Store, OpenError> {
        let (database, version, objects) = match storage {
            Storage::Memory => (None, 1, Vec::new()),
            Storage::File(path) => {
                let (database, version, objects) = Database::open(path)?;
                (Some(database), version, objects)
            }
        };
        let shared = Arc::new(Shared {
            head: Mutex::new(Head {
                next_version: version + 1,
                pending: HashMap::new(),
                queue: Vec::new(),
                losses: watch::Sender::new(0),
                closed: false,
            }),
            wake_writer: Condvar::new(),
            committed: RwLock::new(Committed::load(version, objects)),
            disk: DiskTimes::default(),
            in_memory: database.is_none(),
            failed: watch::Sender::new(false),
        });
        let thread = match database {
            None => None,
            Some(database) => {
                let shared = Arc::clone(&shared);
                let thread = std::thread::Builder::new().name(WRITER_THREAD.to_owned());
                Some(thread.spawn(move || writer::run(&shared, database)).map_err(OpenError::Thread)?)
            }
        };
        let writer = Arc::new(WriterHandle { shared: Arc::clone(&shared), thread: Mutex::new(thread) });
        Ok(Store { shared, writer })
    }

    /// Writes what is queued, then ends the writer thread. Later writes fail; reads still work.
    pub fn close(&self) {
        self.shared.head().closed = true;
        self.shared.wake_writer.notify_all();
        let thread = self.writer.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the store's writer thread panicked");
        }
    }

    /// Ends the writer thread and leaves the store open, so that a test can take the thread's part.
    #[cfg(test)]
    pub(crate) fn without_its_writer(&self) -> Arc<Shared> {
        self.close();
        self.shared.head().closed = false;
        Arc::clone(&self.shared)
    }

    /// Returns when the writer thread has panicked. From then on every write is refused, and only a new process helps.
    pub async fn failed(&self) {
        let mut failed = self.shared.failed.subscribe();
        // The sender lives as long as `self`.
        let _ = failed.wait_for(|failed| *failed).await;
    }

    /// How long the disk takes, as metrics in the text form of Prometheus.
    pub fn metrics(&self) -> String {
        self.shared.disk.text()
    }

    /// The object as acknowledged.
    pub fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.shared.committed().get(key).cloned()
    }

    /// The object as the next write to it will find it: like [`Store::get`], but including writes that are still
    /// on their way to the disk. What read-modify-write loops start from.
    pub fn newest(&self, key: &Key) -> Option<Arc<Object>> {
        let head = self.shared.head();
        self.in_head(&head, key)
    }

    /// The newest acknowledged version.
    pub fn version(&self) -> u64 {
        self.shared.committed().version
    }

    /// The object with this uid.
    pub fn find_by_uid(&self, uid: &str) -> Option<Arc<Object>> {
        self.shared.committed().find_by_uid(uid).cloned()
    }

    /// Lists a resource at one version.
    pub fn list(&self, request: &ListRequest<'_>) -> Result<List, ListError> {
        let committed = self.shared.committed();
        let at = request.at.unwrap_or(committed.version);
        if at > committed.version {
            return Err(ListError::Future { requested: at, current: committed.version });
        }
        let rolled_back = self.roll_back(&committed, request.resource, at)?;
        let scan = committed.scan(request.resource, request.filter.namespace.as_deref(), request.after);
        let mut items = Vec::new();
        let mut more = false;
        let limit = request.limit.unwrap_or(usize::MAX);
        let mut remaining = 0;
        let mut take = |object: &Arc<Object>| {
            if items.len() < limit {
                if request.filter.matches(object) {
                    items.push(Arc::clone(object));
                }
            } else {
                // As on the real server there is more as soon as there is another object, selected or not.
                more = true;
                remaining += 1;
            }
            // Without a selector the rest is counted, which the real server reports as well.
            !more || request.filter.selects_all()
        };
        if rolled_back.is_empty() {
            for object in scan {
                if !take(object) {
                    break;
                }
            }
        } else {
            let mut then: Vec<&Arc<Object>> =
                scan.filter(|object| !rolled_back.contains_key(&object.key)).collect();
            let after = request.after;
            then.extend(rolled_back.values().flatten().filter(|object| {
                after.is_none_or(|after| (&*object.key.namespace, &*object.key.name) > after)
            }));
            then.sort_by(|a, b| a.key.cmp(&b.key));
            for object in then {
                if !take(object) {
                    break;
                }
            }
        }
        let remaining = (more && request.filter.selects_all()).then_some(remaining);
        Ok(List { items, version: at, more, remaining })
    }

    /// Begins a watch. For [`WatchFrom::Start`] the present objects and the later changes meet without gap or overlap.
    pub fn watch(&self, resource: &Arc<str>, filter: Filter, from: WatchFrom) -> Result<Watch, Expired> {
        let mut committed = self.shared.committed_mut();
        let mut initial = Vec::new();
        let mut backlog = std::collections::VecDeque::new();
        let version = match from {
            WatchFrom::Start => {
                let scan = committed.scan(resource, filter.namespace.as_deref(), None);
                initial.extend(scan.filter(|object| filter.matches(object)).cloned());
                committed.version
            }
            WatchFrom::Version(version) => {
                let oldest = committed.oldest_version(resource);
                if version < oldest {
                    return Err(Expired { requested: version, oldest });
                }
                backlog.extend(committed.changes_since(resource, version).cloned());
                version
            }
        };
        let receiver = committed.subscribe(resource, &filter);
        Ok(Watch { initial, version, filter, backlog, receiver })
    }

    /// Makes all of these changes or none, and returns once they are on the disk and visible. Once begun it is
    /// carried through even if the returned future is dropped. A deletion returns the last state under the
    /// deletion's version.
    pub async fn write(&self, writes: Vec<Write>) -> Result<Vec<Arc<Object>>, WriteError> {
        self.submit(writes, None, Urgency::Awaited)?.on_disk().await
    }

    /// [`Store::write`] of a single change.
    pub async fn write_one(&self, write: Write) -> Result<Arc<Object>, WriteError> {
        let key = write.key.clone();
        self.write(vec![write]).await?.pop().ok_or(WriteError::Missing(key))
    }

    /// Waits until a version that was read from [`Store::newest`] is on the disk.
    pub async fn reaches_disk(&self, version: u64) -> Result<(), WriteError> {
        match self.version() >= version {
            true => Ok(()),
            false => self.write(Vec::new()).await.map(drop),
        }
    }

    /// Begins to write ahead of the disk.
    pub fn ahead(&self) -> Ahead {
        let losses = self.shared.head().losses.subscribe();
        Ahead::new(self.clone(), losses)
    }

    /// Checks the writes and queues them; in memory, applies them. `founded_on` is how many losses there were when what they
    /// follow from was read.
    pub(crate) fn submit(
        &self,
        writes: Vec<Write>,
        founded_on: Option<u64>,
        urgency: Urgency,
    ) -> Result<Ordered, WriteError> {
        let mut head = self.shared.head();
        if head.closed {
            return Err(WriteError::Closed);
        }
        if founded_on.is_some_and(|losses| losses != *head.losses.borrow()) {
            return Err(WriteError::Unfounded);
        }
        let mut changes: Vec<Change> = Vec::with_capacity(writes.len());
        for (offset, write) in writes.into_iter().enumerate() {
            let current = match changes.iter().rev().find(|change| change.object.key == write.key) {
                Some(change) if change.kind == ChangeKind::Deleted => None,
                Some(change) => Some(Arc::clone(&change.object)),
                None => self.in_head(&head, &write.key),
            };
            let version = head.next_version + offset as u64;
            changes.push(check(write, current, version)?);
        }
        head.next_version += changes.len() as u64;
        let objects = changes.iter().map(|change| Arc::clone(&change.object)).collect();
        if self.shared.in_memory {
            let mut committed = self.shared.committed_mut();
            changes.into_iter().for_each(|change| committed.apply(change));
            return Ok(Ordered { objects, done: None, is_far_ahead: false });
        }
        for change in &changes {
            let object = (change.kind != ChangeKind::Deleted).then(|| Arc::clone(&change.object));
            head.pending
                .insert(change.object.key.clone(), Pending { version: change.object.version, object });
        }
        let (done, receiver) = oneshot::channel();
        let is_first = head.queue.is_empty();
        head.queue.push(Job { changes, urgency, done });
        let is_far_ahead = head.queue.len() > FURTHEST_AHEAD;
        drop(head);
        if is_first || urgency != Urgency::CanWait {
            self.shared.wake_writer.notify_one();
        }
        Ok(Ordered { objects, done: Some(receiver), is_far_ahead })
    }

    fn in_head(&self, head: &Head, key: &Key) -> Option<Arc<Object>> {
        match head.pending.get(key) {
            Some(pending) => pending.object.clone(),
            None => self.shared.committed().get(key).cloned(),
        }
    }

    /// What each key touched since `at` held at that version.
    fn roll_back(
        &self,
        committed: &Committed,
        resource: &Arc<str>,
        at: u64,
    ) -> Result<HashMap<Key, Option<Arc<Object>>>, Expired> {
        if at == committed.version {
            return Ok(HashMap::new());
        }
        let oldest = committed.oldest_version(resource);
        if at < oldest {
            return Err(Expired { requested: at, oldest });
        }
        // Newest first, so that the oldest change's `previous` is what remains.
        Ok(committed
            .changes_since(resource, at)
            .rev()
            .map(|change| (change.object.key.clone(), change.previous.clone()))
            .collect())
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&Committed) -> T) -> T {
        read(&self.shared.committed())
    }

    pub(crate) fn feed_collector(&self) -> mpsc::UnboundedReceiver<Change> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.shared.committed_mut().feed_collector(sender);
        receiver
    }
}

/// Turns a write into the change it makes, if its precondition holds.
fn check(write: Write, current: Option<Arc<Object>>, version: u64) -> Result<Change, WriteError> {
    let Write { key, expect, action } = write;
    match (expect, &current) {
        (Expect::Absent, None) => {}
        (Expect::Absent, Some(_)) => return Err(WriteError::Exists(key)),
        (Expect::Version(_) | Expect::Present, None) => return Err(WriteError::Missing(key)),
        (Expect::Present, Some(_)) => {}
        (Expect::Version(expected), Some(current)) if expected == current.version => {}
        (Expect::Version(_), Some(current)) => {
            return Err(WriteError::Conflict { key, actual: current.version });
        }
    }
    let (kind, object) = match (action, &current) {
        (Action::Put(body), None) => (ChangeKind::Added, Object::new(key, version, body, NEW_BODY)),
        (Action::Put(body), Some(current)) => {
            (ChangeKind::Modified, Object::new(key, version, body, current.body.len()))
        }
        (Action::Delete, Some(current)) => (ChangeKind::Deleted, current.at_version(version)),
        (Action::Delete, None) => return Err(WriteError::Missing(key)),
    };
    Ok(Change { kind, object: Arc::new(object), previous: current })
}
