//! Garbage collection by owner references: objects without owners are deleted, and an owner in
//! foreground deletion waits for its blocking dependents. A chore is one step of the collector, at
//! any time after it has become due.

use jiff::Timestamp;
use serde_json::json;
use warren_decide::step::{Kind, Propagation};

use super::{Caller, FOREGROUND, Part, Preconditions, Server, finalizers};
use crate::object::{KINDS, slot};

/// A step of the collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chore {
    /// Delete an object.
    Delete(Kind, String, Propagation),
    /// Remove an object whose dependents are gone.
    Release(Kind, String),
}

impl Server {
    /// Returns the present chores.
    pub fn chores(&mut self) -> Vec<Chore> {
        let mut chores = Vec::new();
        if !self.garbage_may_be {
            return chores;
        }
        for kind in KINDS {
            for (name, record) in &self.objects[slot(kind)] {
                let metadata = record.object.meta();
                let owners = metadata.owner_references.as_deref().unwrap_or_default();
                let in_foreground = finalizers(&record.value).any(|held| held == FOREGROUND);
                if record.object.is_deleting() {
                    if in_foreground && !self.has_blocking_dependents(record.object.uid()) {
                        chores.push(Chore::Release(kind, name.clone()));
                    }
                } else if owners.iter().any(|owner| self.is_going_in_foreground(&owner.uid)) {
                    chores.push(Chore::Delete(kind, name.clone(), Propagation::Foreground));
                } else if !owners.is_empty() && owners.iter().all(|owner| !self.exists(&owner.uid)) {
                    chores.push(Chore::Delete(kind, name.clone(), Propagation::Background));
                }
            }
        }
        self.garbage_may_be = !chores.is_empty();
        chores
    }

    /// Carries out one chore.
    pub fn collect(&mut self, chore: &Chore, now: Timestamp) {
        // It was due when it was found and nothing has happened since, so it cannot be refused.
        let _ = match chore {
            Chore::Delete(kind, name, propagation) => {
                self.delete(Caller::Garbage, *kind, name, Preconditions::default(), *propagation, now)
            }
            Chore::Release(kind, name) => {
                let held: Vec<String> =
                    self.finalizers(*kind, name).into_iter().filter(|held| held != FOREGROUND).collect();
                let body = json!({"metadata": {"finalizers": held}});
                self.merge(Caller::Garbage, *kind, name, &body, Part::All)
            }
        };
    }

    fn is_going_in_foreground(&self, uid: &str) -> bool {
        KINDS.iter().flat_map(|kind| self.objects[slot(*kind)].values()).any(|record| {
            record.object.uid() == uid
                && record.object.is_deleting()
                && finalizers(&record.value).any(|held| held == FOREGROUND)
        })
    }

    fn has_blocking_dependents(&self, uid: &str) -> bool {
        KINDS.iter().flat_map(|kind| self.objects[slot(*kind)].values()).any(|record| {
            let owners = record.object.meta().owner_references.as_deref().unwrap_or_default();
            owners.iter().any(|owner| owner.uid == uid && owner.block_owner_deletion == Some(true))
        })
    }
}
