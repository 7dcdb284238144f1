//! `warren-controllers` in miniature: the same caches, queues, wake-ups and passes, around the real decisions. The real
//! ones are asynchronous code over a Kubernetes client, with threads and a wall clock, so that no run would be like the
//! next; here every wait is a place where the simulation chooses what happens first.
//!
//! Each file mirrors the file of the same name there. When that changes, this must: a step or a question that a plan learns
//! does not compile here until it is understood.

pub mod brain;
pub mod cache;
pub mod claim;
pub mod cluster;
pub mod pool;
pub mod queue;
pub mod sandbox;
pub mod template;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;

use crate::clock::Clock;
use crate::wire::Wire;

pub use brain::Brain;
pub use queue::{Outcome, Queue, QueueKind};

/// A deliberate mistake, to show that the simulation would notice it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mutant {
    /// No mistake.
    #[default]
    None,
    /// The writes by which a claim takes a sandbox go without their resourceVersion.
    NoAssignmentGuard,
    /// A pool does not see members that are on their way out.
    TerminatingNotCounted,
}

/// Settings that a seed chooses and all processes share.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Of sandboxes.
    pub sandbox: warren_decide::sandbox::Settings,
    /// Of claims.
    pub claim: warren_decide::claim::Settings,
    /// Of pools.
    pub pool: warren_decide::pool::Settings,
    /// The deliberate mistake.
    pub mutant: Mutant,
}

/// One controller process: what it keeps in memory, and its way to the server.
#[derive(Debug)]
pub struct Process {
    /// Its number; a restarted process has a new one.
    pub number: usize,
    /// The common clock.
    pub clock: Clock,
    /// How wrong its wall clock is, in milliseconds.
    pub skew: Cell<i64>,
    /// Its memory.
    pub brain: RefCell<Brain>,
    /// Its requests.
    pub wire: RefCell<Wire>,
    /// Settings.
    pub settings: Rc<Settings>,
}

impl Process {
    /// A process that has just started and has seen nothing.
    #[must_use]
    pub fn new(number: usize, clock: Clock, skew: i64, settings: Rc<Settings>) -> Self {
        Self {
            number,
            clock,
            skew: Cell::new(skew),
            brain: RefCell::default(),
            wire: RefCell::default(),
            settings,
        }
    }

    /// What its wall clock shows.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now(self.skew.get())
    }

    /// The time by a clock that nobody sets.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        Duration::from_millis(self.clock.elapsed().unsigned_abs())
    }

    /// One pass over one key.
    pub async fn reconcile(self: Rc<Self>, queue: QueueKind, key: String) -> Outcome {
        match queue {
            QueueKind::Sandboxes => sandbox::reconcile(&self, &key).await,
            QueueKind::Claims => claim::reconcile(&self, &key).await,
            QueueKind::Pools => pool::reconcile(&self, &key).await,
            QueueKind::Templates => template::reconcile(&self, &key).await,
            QueueKind::Doubts => self.confirm(&key).await,
        }
    }
}
