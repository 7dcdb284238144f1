//! A work queue of keys. A key waits at most once and is never handed out twice at the same time.
//! If it is added during its reconcile, it is handed out again. Failures are retried with backoff;
//! a delayed key comes back at its time.

mod line;

use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::telemetry::{Histogram, QUEUE_BOUNDS};
use line::Line;

/// The shortest delay that counts as a deadline; a shorter one is only the next step of ongoing
/// work.
const SHORTEST_DUE: Duration = Duration::from_secs(1);

/// The key of an object of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

/// A type that can be a key.
pub trait Key: Clone + Ord + Hash + fmt::Display + Send + Sync + 'static {}

impl<K: Clone + Ord + Hash + fmt::Display + Send + Sync + 'static> Key for K {}

/// The outcome of a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done, until an event wakes the key.
    Done,
    /// The object does not exist, so nothing is due. Its creation wakes the key.
    Gone,
    /// Done; reconcile again after this delay.
    LookAgain(Duration),
    /// The rest is deferred in favour of more urgent work: reconcile again after this delay. The
    /// backoff of earlier failures continues.
    NotNow(Duration),
    /// Failed: retry with backoff.
    Retry,
    /// Failed: retry with backoff, but after this delay at the latest.
    RetryWithin(Duration),
}

impl Outcome {
    /// Returns the outcome of a reconcile with an optional delay and an optional failure.
    #[must_use]
    pub fn of(look_again: Option<Duration>, failed: bool) -> Self {
        match look_again {
            // Backoff must not delay a deadline. But a very short delay, meant for after a success,
            // would disable the backoff.
            Some(delay) if failed && delay >= SHORTEST_DUE => Outcome::RetryWithin(delay),
            _ if failed => Outcome::Retry,
            Some(delay) => Outcome::LookAgain(delay),
            None => Outcome::Done,
        }
    }
}

/// A queue's counters since its creation.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueStatistics {
    /// Keys that were added.
    pub added: u64,
    /// The time that keys waited for a free worker.
    pub(crate) waits: Histogram<QUEUE_BOUNDS>,
    /// Keys that were handed to a worker.
    pub handed_out: u64,
    /// Keys that wait now.
    pub depth: usize,
}

/// The queue. Clones share it.
#[derive(Clone)]
pub struct WorkQueue<K = ObjectKey> {
    name: &'static str,
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    line: Mutex<Line<K>>,
    clock: Arc<dyn Clock>,
    /// Notified when a key can be handed out, or the earliest delayed key has changed.
    changed: Notify,
}

impl<K> fmt::Debug for WorkQueue<K> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("WorkQueue").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<K: Key> WorkQueue<K> {
    /// Returns an empty queue; the name appears in logs.
    #[must_use]
    pub fn new(name: &'static str, clock: Arc<dyn Clock>) -> Self {
        Self { name, shared: Arc::new(Shared { line: Mutex::default(), clock, changed: Notify::new() }) }
    }

    /// Returns the queue's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the time by the queue's clock.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        self.shared.clock.uptime()
    }

    /// Ignores added keys until [`Self::open`]: without workers the queue would grow without limit.
    pub fn close(&self) {
        self.line().is_closed = true;
    }

    /// Accepts keys again. Those that came meanwhile are lost, so the caller adds every existing
    /// object.
    pub fn open(&self) {
        self.line().is_closed = false;
    }

    /// Requests a reconcile of the key as soon as a worker is free.
    pub fn add(&self, key: K) {
        self.line().add(key, self.uptime());
        self.shared.changed.notify_one();
    }

    /// Requests a reconcile of the key after a delay. The earliest of several requests counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        if self.line().add_at(key, self.uptime().saturating_add(delay)) {
            self.shared.changed.notify_one();
        }
    }

    /// Returns the counters for metrics.
    #[must_use]
    pub fn statistics(&self) -> QueueStatistics {
        self.line_by_now().statistics()
    }

    /// Returns true if keys wait while others are being reconciled.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.line_by_now().is_busy()
    }

    /// Returns true if a key can be handed out with this number of workers.
    #[must_use]
    pub fn has_work(&self, workers: usize) -> bool {
        self.line_by_now().has_work(workers)
    }

    /// Hands out the next key, which counts as running until [`Self::end`].
    #[must_use]
    pub fn begin(&self) -> Option<K> {
        self.line_by_now().begin(self.uptime())
    }

    /// Records the end of a reconcile.
    pub fn end(&self, key: &K, outcome: Outcome) {
        if let Some(delay) = self.line().end(key, outcome, self.uptime()) {
            tracing::debug!(queue = self.name, %key, ?delay, "pass failed, trying again");
        }
        self.shared.changed.notify_one();
    }

    /// Returns when the next delayed key is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Duration> {
        self.line().next_due()
    }

    /// Returns when this key is due, if it is delayed.
    #[must_use]
    pub fn due(&self, key: &K) -> Option<Duration> {
        self.line().due(key)
    }

    /// Hands keys to `reconcile`, at most `workers` at a time, until told to stop. Then it waits
    /// for running reconciles, so that none is cut off in the middle of a plan.
    pub async fn run<F, R>(&self, workers: usize, stop: CancellationToken, reconcile: F)
    where
        F: Fn(K) -> R + Clone + Send + 'static,
        R: Future<Output = Outcome> + Send + 'static,
    {
        let free = Arc::new(Semaphore::new(workers.max(1)));
        let passes = TaskTracker::new();
        loop {
            let permit = tokio::select! {
                () = stop.cancelled() => break,
                permit = free.clone().acquire_owned() => permit,
            };
            // The semaphore is never closed, so the only way out is the stop above.
            let Ok(permit) = permit else { break };
            let key = tokio::select! {
                () = stop.cancelled() => break,
                key = self.next() => key,
            };
            let (queue, reconcile) = (self.clone(), reconcile.clone());
            passes.spawn(async move {
                let mut pass = Pass { queue: &queue, key: &key, outcome: Outcome::Retry };
                pass.outcome = reconcile(key.clone()).await;
                drop(pass);
                drop(permit);
            });
        }
        passes.close();
        passes.wait().await;
    }

    /// Returns the next key, as soon as there is one.
    async fn next(&self) -> K {
        loop {
            // Under one lock: a key that becomes due between two checks would be missed by both.
            let next_due = {
                let mut line = self.line_by_now();
                if let Some(key) = line.begin(self.uptime()) {
                    return key;
                }
                line.next_due()
            };
            let wake_in = next_due.map(|due| due.saturating_sub(self.uptime()));
            let timer = async {
                match wake_in {
                    Some(delay) => sleep(delay).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.shared.changed.notified() => {}
                () = timer => {}
            }
        }
    }

    /// Locks the line and adds every key whose time has come. Nothing else adds them while all
    /// workers are busy.
    fn line_by_now(&self) -> MutexGuard<'_, Line<K>> {
        let mut line = self.line();
        line.release_due(self.uptime());
        line
    }

    /// Locks the line. A panic elsewhere leaves it valid: every change of it is a few insertions
    /// and removals.
    fn line(&self) -> MutexGuard<'_, Line<K>> {
        self.shared.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks the end of a reconcile even if it panics: that counts as a failure, and its key does not
/// stay locked.
struct Pass<'a, K: Key> {
    queue: &'a WorkQueue<K>,
    key: &'a K,
    outcome: Outcome,
}

impl<K: Key> Drop for Pass<'_, K> {
    fn drop(&mut self) {
        self.queue.end(self.key, self.outcome);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::sync::mpsc;
    use tokio::time::Instant;
    use tokio_util::sync::CancellationToken;

    use super::{ObjectKey, Outcome, WorkQueue};
    use crate::clock::SystemClock;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: "default".to_owned(), name: name.to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_waits_once_and_is_never_worked_on_twice_at_a_time() {
        let queue = WorkQueue::new("test", Arc::new(SystemClock::start()));
        for _ in 0..3 {
            queue.add(key("a"));
        }
        let stop = CancellationToken::new();
        let (started, mut starts) = mpsc::unbounded_channel();
        let at_once = Arc::new(AtomicUsize::new(0));
        let (again, reconcile_at_once) = (queue.clone(), at_once.clone());
        let runner = queue.clone();
        let task = tokio::spawn({
            let stop = stop.clone();
            async move {
                let passes = Arc::new(AtomicUsize::new(0));
                runner
                    .run(4, stop, move |key| {
                        let (again, at_once) = (again.clone(), reconcile_at_once.clone());
                        let (passes, started) = (passes.clone(), started.clone());
                        async move {
                            assert_eq!(at_once.fetch_add(1, Ordering::SeqCst), 0);
                            if passes.fetch_add(1, Ordering::SeqCst) == 0 {
                                again.add(key.clone());
                                again.add(key);
                            }
                            tokio::time::sleep(Duration::from_secs(1)).await;
                            at_once.fetch_sub(1, Ordering::SeqCst);
                            let _ = started.send(());
                            Outcome::Done
                        }
                    })
                    .await;
            }
        });
        starts.recv().await.unwrap();
        starts.recv().await.unwrap();
        // Three requests before the first reconcile caused one, two during it caused one more.
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(starts.try_recv().is_err());
        assert_eq!(queue.statistics().handed_out, 2);
        stop.cancel();
        task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn failures_come_back_later_and_later_and_a_success_forgets_them() {
        let queue = WorkQueue::new("test", Arc::new(SystemClock::start()));
        queue.add(key("a"));
        let stop = CancellationToken::new();
        let (send, mut times) = mpsc::unbounded_channel();
        let runner = queue.clone();
        let task = tokio::spawn({
            let stop = stop.clone();
            async move {
                let passes = Arc::new(AtomicUsize::new(0));
                runner
                    .run(1, stop, move |_| {
                        let (passes, send) = (passes.clone(), send.clone());
                        async move {
                            let _ = send.send(Instant::now());
                            match passes.fetch_add(1, Ordering::SeqCst) {
                                0..=3 => Outcome::Retry,
                                4 => Outcome::LookAgain(Duration::from_secs(60)),
                                5 => Outcome::Retry,
                                _ => Outcome::Done,
                            }
                        }
                    })
                    .await;
            }
        });
        let mut seen = Vec::new();
        for _ in 0..7 {
            seen.push(times.recv().await.unwrap());
        }
        let gaps: Vec<u128> = seen.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).collect();
        assert_eq!(gaps, [5, 10, 20, 40, 60_000, 5]);
        stop.cancel();
        task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_tried_again_in_time_for_what_else_is_due() {
        let queue = WorkQueue::new("test", Arc::new(SystemClock::start()));
        queue.add(key("a"));
        let mut waits = Vec::new();
        for _ in 0..5 {
            let start = Instant::now();
            let next = queue.next().await;
            waits.push(start.elapsed().as_millis());
            queue.end(&next, Outcome::RetryWithin(Duration::from_millis(12)));
        }
        assert_eq!(waits, [0, 5, 10, 12, 12]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_due_while_all_workers_are_busy_counts_as_waiting_since_then() {
        let queue = WorkQueue::new("test", Arc::new(SystemClock::start()));
        queue.add(key("a"));
        queue.add_after(key("b"), Duration::from_secs(1));
        assert_eq!(queue.begin(), Some(key("a")));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!((queue.statistics().depth, queue.is_busy()), (1, true));
        queue.end(&key("a"), Outcome::Done);
        assert_eq!(queue.begin(), Some(key("b")));
        assert_eq!(queue.statistics().waits.sum, 4.0);
    }

    #[tokio::test(start_paused = true)]
    async fn of_several_delays_the_earliest_counts() {
        let queue = WorkQueue::new("test", Arc::new(SystemClock::start()));
        queue.add_after(key("a"), Duration::from_secs(5));
        queue.add_after(key("a"), Duration::from_secs(1));
        queue.add_after(key("a"), Duration::from_secs(9));
        let start = Instant::now();
        assert_eq!(queue.next().await, key("a"));
        assert_eq!(start.elapsed().as_secs(), 1);
        let late = tokio::time::timeout(Duration::from_secs(60), queue.next()).await;
        assert!(late.is_err(), "the outdated wishes are not followed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_that_wakes_itself_is_tried_again_later_and_later_all_the_same() {
        let queue = WorkQueue::new("test", Arc::new(SystemClock::start()));
        queue.add(key("a"));
        let mut waits = Vec::new();
        for _ in 0..16 {
            let start = Instant::now();
            let next = queue.next().await;
            waits.push(start.elapsed().as_millis());
            // It reports its failure, with another text each time.
            queue.add(next.clone());
            queue.end(&next, Outcome::Retry);
        }
        assert_eq!(waits[..5], [0, 5, 10, 20, 40]);
        assert_eq!(waits[13..], [20_480, 30_000, 30_000], "it may also have been woken by what heals it");
        queue.add(key("a"));
        assert_eq!(queue.next().await, key("a"), "what changes between two passes does not wait");
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_way_comes_back_and_goes_on_backing_off() {
        let queue = WorkQueue::new("test", Arc::new(SystemClock::start()));
        queue.add(key("a"));
        let mut waits = Vec::new();
        let (way, retry) = (Outcome::NotNow(Duration::from_secs(1)), Outcome::Retry);
        for outcome in [retry, way, retry, way, retry, Outcome::Done] {
            let start = Instant::now();
            let next = queue.next().await;
            waits.push(start.elapsed().as_millis());
            queue.end(&next, outcome);
        }
        assert_eq!(waits, [0, 5, 1000, 10, 1000, 20]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_queue_keeps_nothing() {
        let queue = WorkQueue::new("test", Arc::new(SystemClock::start()));
        queue.close();
        queue.add(key("a"));
        queue.add_after(key("b"), Duration::from_secs(1));
        queue.open();
        queue.add(key("c"));
        assert_eq!((queue.begin(), queue.begin(), queue.next_due()), (Some(key("c")), None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_kept_of_what_is_gone() {
        let queue = WorkQueue::new("test", Arc::new(SystemClock::start()));
        queue.add(key("a"));
        let next = queue.next().await;
        queue.end(&next, Outcome::LookAgain(Duration::from_secs(3600)));
        queue.add(key("a"));
        let next = queue.next().await;
        queue.add(key("a"));
        queue.end(&next, Outcome::Gone);
        assert_eq!(queue.next_due(), None);
        assert_eq!(queue.next().await, key("a"), "it was made again during the pass");
    }

    #[test]
    fn what_is_due_at_once_is_not_tried_again_at_once() {
        let (soon, later) = (Duration::from_millis(1), Duration::from_secs(60));
        assert_eq!(Outcome::of(Some(soon), false), Outcome::LookAgain(soon));
        assert_eq!(Outcome::of(Some(soon), true), Outcome::Retry);
        assert_eq!(Outcome::of(Some(later), true), Outcome::RetryWithin(later));
        assert_eq!((Outcome::of(None, true), Outcome::of(None, false)), (Outcome::Retry, Outcome::Done));
    }
}
