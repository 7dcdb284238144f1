//! Changes of objects, and watches that follow them.

use std::collections::VecDeque;
use std::sync::Arc;

use thiserror::Error;
use tokio::sync::mpsc;

use crate::{Filter, Object};

/// One change of one object. Its version is `object.version`.
#[derive(Debug, Clone)]
pub struct Change {
    /// The kind of change.
    pub kind: ChangeKind,
    /// The object after the change. For a deletion: its last state, under the version of the
    /// deletion.
    pub object: Arc<Object>,
    /// The object before the change.
    pub previous: Option<Arc<Object>>,
}

/// The kinds of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// The object is new to this watcher.
    Added,
    /// The object was modified.
    Modified,
    /// The object is gone, or this watcher no longer selects it.
    Deleted,
}

/// The start of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchFrom {
    /// With the existing objects (in [`Watch::initial`]), then all later changes.
    Start,
    /// With all changes after this version.
    Version(u64),
}

/// The requested version has left the bounded history. The client must list again.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("too old resource version: {requested} ({oldest})")]
pub struct Expired {
    /// The requested version.
    pub requested: u64,
    /// The oldest version that can still be watched.
    pub oldest: u64,
}

/// A stream of changes to one resource. It ends (`None`) when the store closes or when the watcher
/// falls too far behind. In both cases the client resumes from the last version it saw.
#[derive(Debug)]
pub struct Watch {
    /// The existing objects at [`Watch::version`] that match, for a watch from the start.
    pub initial: Vec<Arc<Object>>,
    /// The version at which the watch began.
    pub version: u64,
    pub(crate) filter: Filter,
    pub(crate) backlog: VecDeque<Change>,
    pub(crate) receiver: mpsc::Receiver<Change>,
}

impl Watch {
    /// Returns the next matching change. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Change> {
        loop {
            let change = match self.backlog.pop_front() {
                Some(change) => change,
                None => self.receiver.recv().await?,
            };
            if let Some(selected) = self.select(change) {
                return Some(selected);
            }
        }
    }

    /// Returns the next matching change if it has already arrived.
    pub fn next_ready(&mut self) -> Option<Change> {
        loop {
            let change = self.backlog.pop_front().or_else(|| self.receiver.try_recv().ok())?;
            if let Some(selected) = self.select(change) {
                return Some(selected);
            }
        }
    }

    /// Translates a change for a watcher with selectors. An object that begins to match is added.
    /// One that ceases to match is deleted, and the change shows its last matching state.
    fn select(&self, change: Change) -> Option<Change> {
        if self.filter.selects_all() {
            return Some(change).filter(|change| self.filter.matches(&change.object));
        }
        let before = change.previous.as_ref().is_some_and(|previous| self.filter.matches(previous));
        let after = change.kind != ChangeKind::Deleted && self.filter.matches(&change.object);
        match (before, after) {
            (false, false) => None,
            (false, true) => Some(Change { kind: ChangeKind::Added, ..change }),
            (true, true) => Some(change),
            (true, false) if change.kind == ChangeKind::Deleted => Some(change),
            (true, false) => {
                let previous = change.previous.as_ref()?;
                let object = previous.at_version(change.object.version);
                Some(Change {
                    kind: ChangeKind::Deleted,
                    object: Arc::new(object),
                    previous: change.previous,
                })
            }
        }
    }
}
