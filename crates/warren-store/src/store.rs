//! The store: reads from memory, and the queue of writes.

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

/// The estimated length of a new object: a small one with its managers. Nearly all objects reach
/// it.
const NEW_BODY: usize = 1024;
/// The number of writes waiting for the disk at which acknowledgements stop running ahead of it.
const FURTHEST_AHEAD: usize = 256;

/// The name of the thread that commits.
pub const WRITER_THREAD: &str = "store-writer";

/// The place where a store keeps its objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Storage {
    /// In memory only: the objects are gone with the process. For tests.
    Memory,
    /// In this SQLite file and its `-wal` neighbour.
    File(PathBuf),
}

/// The store. Clones share its state.
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

/// The newest state, including writes that are not committed. Writes are checked against it, so
/// that two conflicting writes of the same group commit are detected.
pub(crate) struct Head {
    next_version: u64,
    pub(crate) pending: HashMap<Key, Pending>,
    pub(crate) queue: Vec<Job>,
    /// Counts losses of writes that had been acknowledged.
    pub(crate) losses: watch::Sender<u64>,
    pub(crate) closed: bool,
}

pub(crate) struct Pending {
    pub version: u64,
    object: Option<Arc<Object>>,
}

/// One change and its precondition.
#[derive(Debug)]
pub struct Write {
    /// The key of the object.
    pub key: Key,
    /// The expected current state.
    pub expect: Expect,
    /// The change.
    pub action: Action,
}

/// The precondition of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// No object under this key.
    Absent,
    /// Exactly this version.
    Version(u64),
    /// An object of any version. For a write that follows another write of the same object in one
    /// call, whose version is not known yet.
    Present,
}

/// The effect of a write.
#[derive(Debug)]
pub enum Action {
    /// Stores this body; the store fills in `metadata.resourceVersion`.
    Put(Body),
    /// Removes the object.
    Delete,
}

/// The error of a write that was refused or lost. No part of it was applied.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The object exists already.
    #[error("{0} already exists")]
    Exists(Key),
    /// The object does not exist.
    #[error("{0} not found")]
    Missing(Key),
    /// The object has another version than expected.
    #[error("{key} has version {actual}")]
    Conflict {
        /// The key of the object.
        key: Key,
        /// Its newest version.
        actual: u64,
    },
    /// The disk refused the commit.
    #[error(transparent)]
    Commit(CommitError),
    /// An earlier write, which this one may depend on, was lost.
    #[error("an earlier write did not reach the disk")]
    Unfounded,
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
}

/// The result of ordering writes: the new objects, and the pending commit if there is a disk.
pub(crate) struct Ordered {
    pub objects: Vec<Arc<Object>>,
    done: Option<oneshot::Receiver<Result<(), CommitError>>>,
    /// True if too many writes wait for the disk to run further ahead of it.
    pub is_far_ahead: bool,
}

impl Ordered {
    /// Waits until the writes are on disk.
    pub async fn on_disk(self) -> Result<Vec<Arc<Object>>, WriteError> {
        let Some(done) = self.done else { return Ok(self.objects) };
        match done.await {
            Ok(Ok(())) => Ok(self.objects),
            Ok(Err(error)) => Err(WriteError::Commit(error)),
            Err(_) => Err(WriteError::Closed),
        }
    }
}

/// A request for a list.
#[derive(Debug)]
pub struct ListRequest<'a> {
    /// The resource to list.
    pub resource: &'a Arc<str>,
    /// The conditions that objects must meet.
    pub filter: &'a Filter,
    /// The maximum number of objects.
    pub limit: Option<usize>,
    /// List only objects after this namespace and name, to continue a list.
    pub after: Option<(&'a str, &'a str)>,
    /// List at this version instead of the current one.
    pub at: Option<u64>,
}

/// A consistent list: the objects as they all were at one version.
#[derive(Debug)]
pub struct List {
    /// The objects, sorted by namespace and name.
    pub items: Vec<Arc<Object>>,
    /// The version of the list.
    pub version: u64,
    /// True if the limit cut the list short.
    pub more: bool,
    /// The number of remaining objects. Known only without a selector.
    pub remaining: Option<usize>,
}

/// The error of a list.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ListError {
    /// The version has left the history.
    #[error(transparent)]
    Expired(#[from] Expired),
    /// The version is in the future.
    #[error("Too large resource version: {requested}, current: {current}")]
    Future {
        /// The requested version.
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
    // Poisoning is ignored. A panic under a lock cannot leave half a change behind: each section
    // below either builds its result first or only moves finished values.
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
    /// Opens a store and reads all of its objects into memory.
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

    /// Writes the queued changes and ends the writer thread. Later writes fail; reads still work.
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

    /// Ends the writer thread and leaves the store open, so that a test can act as the writer.
    #[cfg(test)]
    pub(crate) fn without_its_writer(&self) -> Arc<Shared> {
        self.close();
        self.shared.head().closed = false;
        Arc::clone(&self.shared)
    }

    /// Returns when the writer thread has panicked. All later writes are refused until the process
    /// is restarted.
    pub async fn failed(&self) {
        let mut failed = self.shared.failed.subscribe();
        // The sender lives as long as `self`.
        let _ = failed.wait_for(|failed| *failed).await;
    }

    /// Returns the latencies of the disk as metrics in Prometheus' text format.
    pub fn metrics(&self) -> String {
        self.shared.disk.text()
    }

    /// Returns the acknowledged version of an object.
    pub fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.shared.committed().get(key).cloned()
    }

    /// Returns the version of an object that the next write will meet. Unlike [`Store::get`] this
    /// includes writes that are not on disk yet. Read-modify-write loops start from it.
    pub fn newest(&self, key: &Key) -> Option<Arc<Object>> {
        let head = self.shared.head();
        self.in_head(&head, key)
    }

    /// Returns the newest acknowledged version.
    pub fn version(&self) -> u64 {
        self.shared.committed().version
    }

    /// Returns the object with this UID.
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
                // As in kube-apiserver, `more` is set if any object follows, selected or not.
                more = true;
                remaining += 1;
            }
            // Without a selector, count the rest. kube-apiserver reports it as well.
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

    /// Starts a watch. For [`WatchFrom::Start`] there is neither a gap nor an overlap between the
    /// initial objects and the later changes.
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

    /// Makes all of these changes or none. Returns once they are on disk and visible. Dropping the
    /// future does not cancel the write. A deletion returns the last state, under the version of
    /// the deletion.
    pub async fn write(&self, writes: Vec<Write>) -> Result<Vec<Arc<Object>>, WriteError> {
        self.submit(writes, None, Urgency::Awaited)?.on_disk().await
    }

    /// Writes a single change, like [`Store::write`].
    pub async fn write_one(&self, write: Write) -> Result<Arc<Object>, WriteError> {
        let key = write.key.clone();
        self.write(vec![write]).await?.pop().ok_or(WriteError::Missing(key))
    }

    /// Waits until a version that was read from [`Store::newest`] is on disk.
    pub async fn reaches_disk(&self, version: u64) -> Result<(), WriteError> {
        match self.version() >= version {
            true => Ok(()),
            false => self.write(Vec::new()).await.map(drop),
        }
    }

    /// Starts writing ahead of the disk.
    pub fn ahead(&self) -> Ahead {
        let losses = self.shared.head().losses.subscribe();
        Ahead::new(self.clone(), losses)
    }

    /// Checks the writes and queues them; without a disk, applies them. `founded_on` is the number
    /// of losses when the data behind these writes was read.
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

    /// Returns the state at version `at` of every key that has changed since.
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
        // Iterate from the newest change, so that the `previous` of the oldest one remains.
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

/// Turns a write into a change, if its precondition holds.
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
