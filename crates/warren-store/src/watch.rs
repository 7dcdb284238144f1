use std::collections::VecDeque;
use std::sync::Arc;

use thiserror::Error;
use tokio::sync::mpsc;

use crate::{Filter, Object};

/// One change of one object. Its version is `object.version`.
#[derive(Debug, Clone)]
pub struct Change {
    /// What happened.
    pub kind: ChangeKind,
    /// The object after the change; for a deletion its last state, under the version of the deletion.
    pub object: Arc<Object>,
    /// The object before the change.
    pub previous: Option<Arc<Object>>,
}

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// It is new (to this watcher).
    Added,
    /// It changed.
    Modified,
    /// It is gone (or no longer selected by this watcher).
    Deleted,
}

/// Where a watch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchFrom {
    /// With the present objects (in [`Watch::initial`]), then every change after them.
    Start,
    /// With every change after this version.
    Version(u64),
}

/// The version asked for has left the bounded history; the client has to list again.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("too old resource version: {requested} ({oldest})")]
pub struct Expired {
    /// What was asked for.
    pub requested: u64,
    /// The oldest version that would still do.
    pub oldest: u64,
}

/// A stream of changes to one resource. It ends (`None`) when the store closes or when the watcher was too slow;
/// either way the client resumes from the last version it saw.
#[derive(Debug)]
pub struct Watch {
    /// The objects present at [`Watch::version`], for a watch from the start; already filtered.
    pub initial: Vec<Arc<Object>>,
    /// The version at which the watch began.
    pub version: u64,
    pub(crate) filter: Filter,
    pub(crate) backlog: VecDeque<Change>,
    pub(crate) receiver: mpsc::Receiver<Change>,
}

impl Watch {
    /// The next change that this watcher selects. Dropping the future loses nothing.
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

    /// The next change if one is already there.
    pub fn next_ready(&mut self) -> Option<Change> {
        loop {
            let change = self.backlog.pop_front().or_else(|| self.receiver.try_recv().ok())?;
            if let Some(selected) = self.select(change) {
                return Some(selected);
            }
        }
    }

    /// What a change means to somebody who sees only selected objects: one that begins to match is an addition,
    /// one that ceases to match is a deletion that shows its last matching state.
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
