//! A work queue of keys: a key waits at most once and is never worked on twice at a time; failures come back later and
//! later.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::clock::milliseconds;

/// The first and the longest wait after failures, in milliseconds.
const BACKOFF_FIRST: i64 = 5;
const BACKOFF_LONGEST: i64 = 1_000_000;

/// Which of a process's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// Of sandboxes.
    Sandboxes,
    /// Of claims.
    Claims,
    /// Of pools.
    Pools,
    /// Of templates.
    Templates,
    /// Of objects that only an answer has brought.
    Doubts,
}

impl QueueKind {
    /// All of them.
    pub const ALL: [QueueKind; 5] =
        [QueueKind::Sandboxes, QueueKind::Claims, QueueKind::Pools, QueueKind::Templates, QueueKind::Doubts];
}

/// What a pass over one key ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done, until something wakes the key.
    Done,
    /// Done, but look again after this long.
    LookAgain(Duration),
    /// It failed: try again with backoff.
    Retry,
}

/// The queue. Times are milliseconds of the common clock.
#[derive(Debug, Default)]
pub struct Queue {
    waiting: VecDeque<String>,
    dirty: BTreeSet<String>,
    working: BTreeSet<String>,
    due: BTreeMap<String, i64>,
    failures: BTreeMap<String, u32>,
}

impl Queue {
    /// Asks for a pass over the key.
    pub fn add(&mut self, key: &str) {
        if self.dirty.insert(key.to_owned()) && !self.working.contains(key) {
            self.waiting.push_back(key.to_owned());
        }
    }

    /// Whether a key waits and one of so many workers is free.
    #[must_use]
    pub fn can_begin(&self, workers: usize) -> bool {
        !self.waiting.is_empty() && self.working.len() < workers
    }

    /// The next key; it counts as being worked on from here.
    pub fn begin(&mut self) -> Option<String> {
        let key = self.waiting.pop_front()?;
        self.dirty.remove(&key);
        self.working.insert(key.clone());
        Some(key)
    }

    /// A pass has ended.
    pub fn end(&mut self, key: &str, outcome: Outcome, now: i64) {
        self.working.remove(key);
        if self.dirty.contains(key) {
            self.waiting.push_back(key.to_owned());
        }
        match outcome {
            Outcome::Done => {
                self.failures.remove(key);
            }
            Outcome::LookAgain(delay) => {
                self.failures.remove(key);
                self.add_at(key, now.saturating_add(milliseconds(delay)));
            }
            Outcome::Retry => {
                let failures = self.failures.entry(key.to_owned()).or_default();
                let delay = BACKOFF_FIRST.checked_shl((*failures).min(30)).unwrap_or(BACKOFF_LONGEST);
                *failures += 1;
                self.add_at(key, now + delay.min(BACKOFF_LONGEST));
            }
        }
    }

    /// The earliest time at which a key is due.
    #[must_use]
    pub fn next_due(&self) -> Option<i64> {
        self.due.values().min().copied()
    }

    /// Adds every key whose time has come.
    pub fn release(&mut self, now: i64) {
        let due: Vec<String> =
            self.due.iter().filter(|(_, due)| **due <= now).map(|(key, _)| key.clone()).collect();
        for key in due {
            self.due.remove(&key);
            self.add(&key);
        }
    }

    /// Asks for a pass at a time. Of several wishes the earliest counts.
    pub fn add_at(&mut self, key: &str, due: i64) {
        let earliest = self.due.entry(key.to_owned()).or_insert(due);
        *earliest = due.min(*earliest);
    }
}
