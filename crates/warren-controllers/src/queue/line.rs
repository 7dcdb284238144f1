//! The order of a work queue: which key is handed out next, and when. It has no clock and never
//! waits; times are uptimes.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use super::{Outcome, QueueStatistics};
use crate::telemetry::QUEUE_BUCKETS;

/// The first wait after a failure, which doubles each time; the number of the Kubernetes controller
/// library.
const BACKOFF_FIRST: Duration = Duration::from_millis(5);
/// The longest wait after failures; the library's number, too.
const BACKOFF_LONGEST: Duration = Duration::from_secs(1000);
/// The longest wait if the key was added during a failed reconcile: the change may come from the
/// reconcile itself, or may fix the problem.
const WOKEN_LONGEST: Duration = Duration::from_secs(30);

/// Keys that wait, run, or are due later.
#[derive(Debug)]
pub(super) struct Line<K> {
    waiting: VecDeque<(K, Duration)>,
    /// Every key in `waiting`, and every key that must run again after its present reconcile.
    dirty: HashSet<K>,
    working: HashSet<K>,
    /// The earliest time of each delayed key, in both directions.
    delayed: BTreeSet<(Duration, K)>,
    due: HashMap<K, Duration>,
    failures: HashMap<K, u32>,
    /// True if there are no workers, so keys are ignored.
    pub(super) is_closed: bool,
    statistics: QueueStatistics,
}

impl<K> Default for Line<K> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            dirty: HashSet::new(),
            working: HashSet::new(),
            delayed: BTreeSet::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            is_closed: false,
            statistics: QueueStatistics::default(),
        }
    }
}

impl<K: Clone + Ord + Hash> Line<K> {
    /// Requests a reconcile of the key.
    pub(super) fn add(&mut self, key: K, uptime: Duration) {
        if !self.is_closed && self.dirty.insert(key.clone()) {
            self.statistics.added += 1;
            if !self.working.contains(&key) {
                self.waiting.push_back((key, uptime));
            }
        }
    }

    /// Requests a reconcile of the key at a time. The earliest of several requests counts; returns
    /// true if this one does.
    pub(super) fn add_at(&mut self, key: K, due: Duration) -> bool {
        if self.is_closed {
            return false;
        }
        match self.due.get(&key).copied() {
            Some(earlier) if earlier <= due => return false,
            Some(later) => {
                self.delayed.remove(&(later, key.clone()));
            }
            None => {}
        }
        self.due.insert(key.clone(), due);
        self.delayed.insert((due, key));
        true
    }

    /// Returns true if a key waits while another is running.
    pub(super) fn is_busy(&self) -> bool {
        !self.waiting.is_empty() && !self.working.is_empty()
    }

    /// Returns true if a key waits and fewer keys than this are running.
    pub(super) fn has_work(&self, workers: usize) -> bool {
        !self.waiting.is_empty() && self.working.len() < workers
    }

    /// Hands out the next key, which counts as running from now on.
    pub(super) fn begin(&mut self, uptime: Duration) -> Option<K> {
        let (key, since) = self.waiting.pop_front()?;
        self.dirty.remove(&key);
        self.working.insert(key.clone());
        let waited = uptime.saturating_sub(since);
        self.statistics.handed_out += 1;
        self.statistics.waits.observe(&QUEUE_BUCKETS, waited.as_secs_f64());
        Some(key)
    }

    /// Records the end of a reconcile. Returns the wait of its key after a failure.
    pub(super) fn end(&mut self, key: &K, outcome: Outcome, uptime: Duration) -> Option<Duration> {
        self.working.remove(key);
        match outcome {
            Outcome::Done | Outcome::Gone => {
                self.failures.remove(key);
                if outcome == Outcome::Gone
                    && let Some(due) = self.due.remove(key)
                {
                    self.delayed.remove(&(due, key.clone()));
                }
                self.wait_if_dirty(key, uptime);
                None
            }
            Outcome::LookAgain(delay) | Outcome::NotNow(delay) => {
                if outcome == Outcome::LookAgain(delay) {
                    self.failures.remove(key);
                }
                self.wait_if_dirty(key, uptime);
                self.add_at(key.clone(), uptime.saturating_add(delay));
                None
            }
            Outcome::Retry | Outcome::RetryWithin(_) => {
                let longest = match outcome {
                    Outcome::RetryWithin(longest) => longest.min(BACKOFF_LONGEST),
                    _ => BACKOFF_LONGEST,
                };
                // A failed reconcile writes its error, and that write wakes its key. If the key ran
                // at once, an error with a changing text would be retried without backoff.
                let longest = match self.dirty.remove(key) {
                    true => longest.min(WOKEN_LONGEST),
                    false => longest,
                };
                let failures = self.failures.entry(key.clone()).or_default();
                let doubled = BACKOFF_FIRST.saturating_mul(1_u32.checked_shl(*failures).unwrap_or(u32::MAX));
                *failures = failures.saturating_add(1);
                let delay = doubled.min(longest);
                self.add_at(key.clone(), uptime.saturating_add(delay));
                Some(delay)
            }
        }
    }

    /// Queues a key that was added during its reconcile.
    fn wait_if_dirty(&mut self, key: &K, uptime: Duration) {
        if self.dirty.contains(key) {
            self.waiting.push_back((key.clone(), uptime));
        }
    }

    /// Adds every key whose time has come; it has waited since then.
    pub(super) fn release_due(&mut self, uptime: Duration) {
        while self.delayed.first().is_some_and(|(due, _)| *due <= uptime)
            && let Some((due, key)) = self.delayed.pop_first()
        {
            self.due.remove(&key);
            self.add(key, due);
        }
    }

    /// Returns the earliest time at which a key is due.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.delayed.first().map(|(due, _)| *due)
    }

    /// Returns when this key is due, if it is delayed.
    pub(super) fn due(&self, key: &K) -> Option<Duration> {
        self.due.get(key).copied()
    }

    pub(super) fn statistics(&self) -> QueueStatistics {
        QueueStatistics { depth: self.waiting.len(), ..self.statistics }
    }
}
