//! Garbage collection by owner references, and the emptying of namespaces. The [`Collector`]
//! decides which objects have to go. Its caller deletes them like a client's request would, so that
//! pods get their grace period.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::committed::Committed;
use crate::deletion::{FOREGROUND_FINALIZER, ORPHAN_FINALIZER, Propagation};
use crate::watch::{Change, ChangeKind};
use crate::{Key, Object, Store};

/// The resource of namespaces.
const NAMESPACES: &str = "namespaces";

/// One action. It is idempotent: it may be repeated, or find that its work is already done.
#[derive(Debug, Clone)]
pub enum Task {
    /// Delete this object, if it still has this UID.
    Delete(Arc<Object>, Propagation),
    /// Remove the owner references with these UIDs.
    DropOwners(Arc<Object>, Vec<Box<str>>),
    /// Remove this finalizer: its condition is met.
    Release(Arc<Object>, &'static str),
    /// Finish the deletion of this namespace: it is empty.
    FinishNamespace(Arc<Object>),
}

/// Follows every change and returns the tasks that result from it.
pub struct Collector {
    store: Store,
    changes: mpsc::UnboundedReceiver<Change>,
    /// Objects from the start that have not been checked yet.
    unseen: VecDeque<Key>,
}

/// Returns true if a change can make an object collectable.
pub(crate) fn concerns(change: &Change) -> bool {
    let object = &change.object;
    change.kind == ChangeKind::Deleted
        || !object.meta.owners.is_empty()
        || object.meta.deleting
        || change.previous.as_ref().is_some_and(|previous| !previous.meta.owners.is_empty())
}

impl Collector {
    /// Starts following the store. All existing objects are checked first.
    pub fn new(store: &Store) -> Collector {
        let changes = store.feed_collector();
        let unseen = store.read(|committed| {
            let concerned = |object: &&Arc<Object>| !object.meta.owners.is_empty() || object.meta.deleting;
            committed.all().filter(concerned).map(|object| object.key.clone()).collect()
        });
        Collector { store: store.clone(), changes, unseen }
    }

    /// Waits for a change that results in tasks. Returns `None` once the store is gone.
    pub async fn next(&mut self) -> Option<Vec<Task>> {
        loop {
            let tasks = if let Some(key) = self.unseen.pop_front() {
                self.store.read(|committed| committed.get(&key).map(|object| judge(committed, object)))
            } else {
                let change = self.changes.recv().await?;
                Some(self.store.read(|committed| follow(committed, &change)))
            };
            match tasks {
                Some(tasks) if !tasks.is_empty() => return Some(tasks),
                _ => {}
            }
        }
    }
}

fn follow(committed: &Committed, change: &Change) -> Vec<Task> {
    let mut tasks = Vec::new();
    if change.kind == ChangeKind::Deleted {
        let dependents: Vec<_> = committed.dependents(&change.object.meta.uid).cloned().collect();
        for dependent in dependents {
            tasks.extend(judge(committed, &dependent));
        }
    } else if let Some(current) = committed.get(&change.object.key) {
        // Use the newest state: the change may be outdated, and its task already done.
        tasks.extend(judge(committed, current));
    }
    // This change may release an owner that waits for the dependent.
    let owners = change.previous.iter().chain([&change.object]).flat_map(|object| &object.meta.owners);
    let waiting: HashSet<&str> = owners.map(|owner| &*owner.uid).collect();
    for owner in waiting.into_iter().filter_map(|uid| committed.find_by_uid(uid)) {
        tasks.extend(judge_owner(committed, owner));
    }
    // It may also release a namespace.
    if !change.object.key.namespace.is_empty() {
        let namespace = Key::new(NAMESPACES, "", Arc::clone(&change.object.key.namespace));
        if let Some(namespace) = committed.get(&namespace).filter(|namespace| namespace.meta.deleting) {
            match change.kind {
                ChangeKind::Deleted if committed.in_namespace(&namespace.key.name).next().is_none() => {
                    tasks.push(Task::FinishNamespace(Arc::clone(namespace)));
                }
                ChangeKind::Deleted => {}
                // The object was created after the namespace was swept.
                ChangeKind::Added | ChangeKind::Modified if change.object.meta.deleting => {}
                ChangeKind::Added | ChangeKind::Modified => {
                    tasks.push(Task::Delete(Arc::clone(&change.object), Propagation::Background));
                }
            }
        }
    }
    tasks
}

fn judge(committed: &Committed, object: &Arc<Object>) -> Vec<Task> {
    let mut tasks = judge_owner(committed, object);
    if object.meta.deleting {
        if &*object.key.resource == NAMESPACES {
            tasks.extend(judge_namespace(committed, object));
        }
        return tasks;
    }
    tasks.extend(judge_dependent(committed, object));
    tasks
}

/// Returns the task for an object by the state of its owners.
fn judge_dependent(committed: &Committed, object: &Arc<Object>) -> Option<Task> {
    let (mut solid, mut absent, mut waiting) = (0, Vec::new(), Vec::new());
    for owner in &object.meta.owners {
        let found = committed.find_by_uid(&owner.uid).filter(|found| {
            let reachable = found.key.namespace.is_empty() || found.key.namespace == object.key.namespace;
            reachable && *found.key.name == *owner.name
        });
        match found {
            None => absent.push(owner.uid.clone()),
            Some(owner_object)
                if owner_object.meta.deleting && owner_object.meta.has_finalizer(FOREGROUND_FINALIZER) =>
            {
                waiting.push(owner.uid.clone());
            }
            Some(_) => solid += 1,
        }
    }
    match (solid, absent.is_empty(), waiting.is_empty()) {
        (_, true, true) => None,
        (0, _, false) => Some(Task::Delete(Arc::clone(object), Propagation::Foreground)),
        (0, false, true) => Some(Task::Delete(Arc::clone(object), Propagation::Background)),
        _ => {
            absent.extend(waiting);
            Some(Task::DropOwners(Arc::clone(object), absent))
        }
    }
}

/// Returns the tasks for an owner that waits for its dependents.
fn judge_owner(committed: &Committed, object: &Arc<Object>) -> Vec<Task> {
    let meta = &object.meta;
    if !meta.deleting || meta.uid.is_empty() {
        return Vec::new();
    }
    let dependents: Vec<_> = committed.dependents(&meta.uid).cloned().collect();
    if meta.has_finalizer(ORPHAN_FINALIZER) {
        if dependents.is_empty() {
            return vec![Task::Release(Arc::clone(object), ORPHAN_FINALIZER)];
        }
        return dependents
            .into_iter()
            .map(|dependent| Task::DropOwners(dependent, vec![meta.uid.clone()]))
            .collect();
    }
    if meta.has_finalizer(FOREGROUND_FINALIZER) {
        let blocks = |dependent: &Arc<Object>| {
            dependent.meta.owners.iter().any(|owner| owner.uid == meta.uid && owner.block_owner_deletion)
        };
        let mut tasks: Vec<_> = dependents
            .iter()
            .filter(|dependent| !dependent.meta.deleting)
            .filter_map(|dependent| judge_dependent(committed, dependent))
            .collect();
        if !dependents.iter().any(blocks) {
            tasks.push(Task::Release(Arc::clone(object), FOREGROUND_FINALIZER));
        }
        return tasks;
    }
    Vec::new()
}

fn judge_namespace(committed: &Committed, namespace: &Arc<Object>) -> Vec<Task> {
    let mut contents = committed.in_namespace(&namespace.key.name).peekable();
    if contents.peek().is_none() {
        return vec![Task::FinishNamespace(Arc::clone(namespace))];
    }
    let alive = contents.filter(|object| !object.meta.deleting);
    alive.map(|object| Task::Delete(Arc::clone(object), Propagation::Background)).collect()
}
