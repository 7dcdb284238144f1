//! A work queue of keys. A key waits at most once, is never worked on twice at the same time, and is worked on again when
//! it is added meanwhile. Failures come back later and later; a wish to look again comes back at its time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::telemetry::{Histogram, QUEUE_BOUNDS, QUEUE_BUCKETS};

/// The first and the longest wait after failures; the numbers of the Kubernetes controller library.
const BACKOFF_FIRST: Duration = Duration::from_millis(5);
const BACKOFF_LONGEST: Duration = Duration::from_secs(1000);

/// Names an object of one kind.
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

/// Counters of a queue since it was made.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueStatistics {
    /// Keys that were put in.
    pub added: u64,
    /// How long keys waited for a free worker.
    pub(crate) waits: Histogram<QUEUE_BOUNDS>,
    /// Keys that were handed to a worker.
    pub handed_out: u64,
    /// The sum of the times that keys waited for a free worker.
    pub waited: Duration,
    /// The longest such time.
    pub longest_wait: Duration,
    /// Keys that wait now.
    pub depth: usize,
}

/// The queue. Clones share it.
#[derive(Clone, Debug)]
pub struct WorkQueue {
    name: &'static str,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Woken when a key can be handed out.
    filled: Notify,
    /// Woken when the earliest delayed key has changed.
    rescheduled: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(ObjectKey, Instant)>,
    /// Everything in `waiting`, and everything that must be worked on again after its present pass.
    dirty: HashSet<ObjectKey>,
    working: HashSet<ObjectKey>,
    delayed: BinaryHeap<Reverse<(Instant, ObjectKey)>>,
    /// The earliest time for each delayed key; entries of the heap that disagree are outdated.
    due: HashMap<ObjectKey, Instant>,
    failures: HashMap<ObjectKey, u32>,
    statistics: QueueStatistics,
}

impl WorkQueue {
    /// An empty queue; the name appears in logs.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self { name, shared: Arc::new(Shared::default()) }
    }

    /// The queue's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Asks for a pass over the key as soon as there is a free worker.
    pub fn add(&self, key: ObjectKey) {
        self.state().add(key);
        self.shared.filled.notify_one();
    }

    /// Asks for a pass over the key after a while. Of several wishes the earliest counts.
    pub fn add_after(&self, key: ObjectKey, delay: Duration) {
        let due = Instant::now() + delay;
        let mut state = self.state();
        if state.due.get(&key).is_some_and(|earlier| *earlier <= due) {
            return;
        }
        state.due.insert(key.clone(), due);
        state.delayed.push(Reverse((due, key)));
        drop(state);
        self.shared.rescheduled.notify_one();
    }

    /// Counters for metrics.
    #[must_use]
    pub fn statistics(&self) -> QueueStatistics {
        let state = self.state();
        QueueStatistics { depth: state.waiting.len(), ..state.statistics }
    }

    /// Hands keys to `reconcile`, at most `workers` at a time, until told to stop; then waits for the passes that are
    /// under way, so that no write is cut off half-way through a plan.
    pub async fn run<F, R>(&self, workers: usize, stop: CancellationToken, reconcile: F)
    where
        F: Fn(ObjectKey) -> R + Clone + Send + 'static,
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
                let guard = Working { queue: &queue, key: &key };
                let outcome = reconcile(key.clone()).await;
                drop(guard);
                queue.settle(&key, outcome);
                drop(permit);
            });
        }
        passes.close();
        passes.wait().await;
    }

    /// The next key; it counts as being worked on from here.
    async fn next(&self) -> ObjectKey {
        loop {
            let wake_at = {
                let mut state = self.state();
                state.release_due(Instant::now());
                if let Some(key) = state.take() {
                    return key;
                }
                state.next_due()
            };
            let timer = async {
                match wake_at {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.shared.filled.notified() => {}
                () = self.shared.rescheduled.notified() => {}
                () = timer => {}
            }
        }
    }

    fn settle(&self, key: &ObjectKey, outcome: Outcome) {
        match outcome {
            Outcome::Done => {
                self.state().failures.remove(key);
            }
            Outcome::LookAgain(delay) => {
                self.state().failures.remove(key);
                self.add_after(key.clone(), delay);
            }
            Outcome::Retry => {
                let delay = {
                    let mut state = self.state();
                    let failures = state.failures.entry(key.clone()).or_default();
                    let delay =
                        BACKOFF_FIRST.saturating_mul(1_u32.checked_shl(*failures).unwrap_or(u32::MAX));
                    *failures = failures.saturating_add(1);
                    delay.min(BACKOFF_LONGEST)
                };
                tracing::debug!(queue = self.name, %key, ?delay, "pass failed, trying again");
                self.add_after(key.clone(), delay);
            }
        }
    }

    /// The state after a panic elsewhere is as good as before it: every change below is a single insertion or removal.
    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks the end of a pass even when it panics, so that its key does not stay locked.
struct Working<'a> {
    queue: &'a WorkQueue,
    key: &'a ObjectKey,
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.working.remove(self.key);
        if state.dirty.contains(self.key) {
            state.waiting.push_back((self.key.clone(), Instant::now()));
            drop(state);
            self.queue.shared.filled.notify_one();
        }
    }
}

impl State {
    fn add(&mut self, key: ObjectKey) {
        if self.dirty.insert(key.clone()) {
            self.statistics.added += 1;
            if !self.working.contains(&key) {
                self.waiting.push_back((key, Instant::now()));
            }
        }
    }

    fn take(&mut self) -> Option<ObjectKey> {
        let (key, since) = self.waiting.pop_front()?;
        self.dirty.remove(&key);
        self.working.insert(key.clone());
        let waited = since.elapsed();
        self.statistics.handed_out += 1;
        self.statistics.waited += waited;
        self.statistics.waits.observe(&QUEUE_BUCKETS, waited.as_secs_f64());
        self.statistics.longest_wait = self.statistics.longest_wait.max(waited);
        Some(key)
    }

    fn release_due(&mut self, now: Instant) {
        while let Some(Reverse((due, _))) = self.delayed.peek() {
            if *due > now {
                break;
            }
            if let Some(Reverse((due, key))) = self.delayed.pop()
                && self.due.get(&key) == Some(&due)
            {
                self.due.remove(&key);
                self.add(key);
            }
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.delayed.peek().map(|Reverse((due, _))| *due)
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

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: "default".to_owned(), name: name.to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_waits_once_and_is_never_worked_on_twice_at_a_time() {
        let queue = WorkQueue::new("test");
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
        // Three wishes before the first pass made one pass, two during it made one more.
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(starts.try_recv().is_err());
        assert_eq!(queue.statistics().handed_out, 2);
        stop.cancel();
        task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn failures_come_back_later_and_later_and_a_success_forgets_them() {
        let queue = WorkQueue::new("test");
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
    async fn of_several_delays_the_earliest_counts() {
        let queue = WorkQueue::new("test");
        queue.add_after(key("a"), Duration::from_secs(5));
        queue.add_after(key("a"), Duration::from_secs(1));
        queue.add_after(key("a"), Duration::from_secs(9));
        let start = Instant::now();
        assert_eq!(queue.next().await, key("a"));
        assert_eq!(start.elapsed().as_secs(), 1);
        let late = tokio::time::timeout(Duration::from_secs(60), queue.next()).await;
        assert!(late.is_err(), "the outdated wishes are not followed");
    }
}
