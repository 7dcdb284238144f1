//! Limits concurrent writes while claims are served (an AIMD limiter): users wait for claims, so
//! they come first. While claims are served, all other work uses fewer concurrent requests if the
//! API server is busy. If the server has capacity, nothing is limited.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Clock;
use crate::queue::{ObjectKey, WorkQueue};

/// The time after a claim's last reconcile in which further claims are expected.
const CLAIM_WINDOW: Duration = Duration::from_millis(250);
/// The factor above the fastest status write at which the server counts as busy.
const BUSY_FACTOR: u32 = 2;
/// The slack that is added to that before the server counts as busy.
const LATENCY_SLACK: Duration = Duration::from_millis(5);
/// The lower limit on concurrent writes, so that other work still progresses.
const MIN_LIMIT: f64 = 1.0;
/// The upper limit on concurrent writes.
const MAX_LIMIT: f64 = 256.0;
/// The factor by which one slow write reduces the limit.
const DECREASE: f64 = 0.9;
/// The limit if a pool is empty, even if the server is busy: a claim that finds no member costs the
/// server three times as much as one that does.
const EMPTY_POOL_LIMIT: f64 = 16.0;
/// The limit below which deferrable work waits.
const SATURATED_BELOW: f64 = 8.0;
/// The time after which work without capacity tries again by itself: the claims may have ended
/// meanwhile, or the wake-up may have been lost.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// The time in which the remembered fastest write doubles unless a faster one comes: the server may
/// have moved farther away.
const BASELINE_DOUBLES: Duration = Duration::from_secs(60);
/// The number of such times after which every write counts as fast.
const MAX_DOUBLINGS: f64 = 20.0;

/// The limiter.
pub(crate) struct WriteLimiter {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    capacity: Capacity,
    under_way: usize,
    last_claim: Option<Duration>,
    /// The missing part of each pool that is not full.
    missing: HashMap<ObjectKey, f64>,
    /// The keys that found no capacity, in order of arrival, and as a set. The end of a permit
    /// wakes the next.
    waiting: VecDeque<ObjectKey>,
    queued: HashSet<ObjectKey>,
}

impl State {
    /// Returns the limit: the server's capacity, or more if a pool is empty. Quadratic: small while
    /// there are many members.
    fn limit(&self) -> usize {
        let missing = self.missing.values().copied().fold(0.0, f64::max);
        self.capacity.limit.max(EMPTY_POOL_LIMIT * missing * missing) as usize
    }
}

/// The server's capacity beside the claims, measured by the duration of status writes. They are the
/// simplest request, and depend on no other party; creating a pod also depends on what the server
/// has to call.
#[derive(Debug)]
struct Capacity {
    /// The duration of the fastest write, and its time.
    fastest: Option<(Duration, Duration)>,
    limit: f64,
}

impl Default for Capacity {
    fn default() -> Self {
        Self { fastest: None, limit: MAX_LIMIT }
    }
}

impl Capacity {
    /// Records the duration of a status write: a slow one reduces the limit by a factor, a fast one
    /// raises it by a step.
    fn observe(&mut self, took: Duration, uptime: Duration) {
        let quick = self.fastest.map(|(fastest, at)| {
            let doublings = uptime.saturating_sub(at).div_duration_f64(BASELINE_DOUBLES).min(MAX_DOUBLINGS);
            fastest.mul_f64(doublings.exp2())
        });
        let quick = match quick.filter(|quick| *quick < took) {
            Some(quick) => quick,
            None => {
                self.fastest = Some((took, uptime));
                took
            }
        };
        self.limit = match took > quick * BUSY_FACTOR + LATENCY_SLACK {
            true => (self.limit * DECREASE).max(MIN_LIMIT),
            false => (self.limit + 1.0 / self.limit).min(MAX_LIMIT),
        };
    }
}

impl WriteLimiter {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, state: Mutex::default() }
    }

    /// Records that a claim is being served.
    pub(crate) fn note_claim(&self) {
        self.state().last_claim = Some(self.clock.uptime());
    }

    pub(crate) fn observe(&self, took: Duration) {
        let uptime = self.clock.uptime();
        self.state().capacity.observe(took, uptime);
    }

    /// Records the missing part of a pool, from 0 to 1.
    pub(crate) fn note_missing(&self, pool: &ObjectKey, part: f64) {
        let missing = &mut self.state().missing;
        match part > 0.0 {
            true => missing.insert(pool.clone(), part),
            false => missing.remove(pool),
        };
    }

    /// Returns how many concurrent writes other work may make; unlimited while no claims are
    /// served.
    pub(crate) fn limit(&self) -> usize {
        let state = self.state();
        match self.claim_window_left(&state).is_zero() {
            true => usize::MAX,
            false => state.limit(),
        }
    }

    /// Returns true if claims are served and the server has little capacity for anything else,
    /// whatever a pool needs.
    pub(crate) fn is_saturated(&self) -> bool {
        let state = self.state();
        !self.claim_window_left(&state).is_zero() && state.capacity.limit < SATURATED_BELOW
    }

    /// Acquires a permit beside the claims; `None` if there is no capacity. The key is then added
    /// to the queue again when there is, and should be tried again after [`LONGEST_WAIT`]. A worker
    /// must not wait for a permit, since other keys need none.
    pub(crate) fn try_acquire<'a>(&'a self, key: &ObjectKey, queue: &'a WorkQueue) -> Option<Permit<'a>> {
        let mut state = self.state();
        if self.has_capacity(&state) {
            state.under_way += 1;
            return Some(Permit { write_limiter: self, queue });
        }
        if state.queued.insert(key.clone()) {
            state.waiting.push_back(key.clone());
        }
        None
    }

    fn has_capacity(&self, state: &State) -> bool {
        self.claim_window_left(state).is_zero() || state.under_way < state.limit()
    }

    /// Returns for how long claims are expected from now on, if no further one comes.
    fn claim_window_left(&self, state: &State) -> Duration {
        let until = state.last_claim.map_or(Duration::ZERO, |last| last + CLAIM_WINDOW);
        until.saturating_sub(self.clock.uptime())
    }

    /// Locks the state. A panic elsewhere leaves it valid: every change of it is of one number.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A permit, held until it is dropped.
pub(crate) struct Permit<'a> {
    write_limiter: &'a WriteLimiter,
    queue: &'a WorkQueue,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.write_limiter.state();
        state.under_way -= 1;
        let next = match self.write_limiter.claim_window_left(&state).is_zero() {
            true => state.waiting.len(),
            false => state.limit().saturating_sub(state.under_way).min(state.waiting.len()),
        };
        for key in state.waiting.drain(..next).collect::<Vec<_>>() {
            state.queued.remove(&key);
            self.queue.add(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::clock::SystemClock;

    const EVERY: Duration = Duration::from_millis(10);

    fn after(statuses: &[u64]) -> usize {
        let mut capacity = Capacity::default();
        for (number, took) in (0..).zip(statuses) {
            capacity.observe(Duration::from_millis(*took), EVERY * number);
        }
        capacity.limit as usize
    }

    #[test]
    fn a_server_that_slows_down_is_left_alone_and_found_again() {
        assert_eq!(after(&[4; 100]), 256);
        assert_eq!(after(&[[4; 10], [40; 10]].concat()), 89);
        assert_eq!(after(&[[4; 100], [40; 100]].concat()), 1);
        let recovered = after(&[vec![4; 100], vec![40; 100], vec![4; 1000]].concat());
        assert!((40..60).contains(&recovered), "{recovered}");
    }

    #[test]
    fn a_server_that_is_far_away_is_not_a_busy_one() {
        assert_eq!(after(&[80; 1000]), 256);
        let minutes = |minutes: usize| minutes * 60_000 / EVERY.as_millis() as usize;
        let moved_away = |since: usize| after(&[vec![4; 100], vec![80; minutes(since)]].concat());
        assert_eq!(moved_away(3), 1);
        assert!(moved_away(5) > 40);
        let mut capacity = Capacity::default();
        capacity.observe(Duration::from_millis(4), Duration::ZERO);
        capacity.observe(Duration::from_secs(30), Duration::from_secs(30 * 24 * 60 * 60));
        assert_eq!(capacity.limit as usize, 256, "what was quick a month ago says nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn others_take_turns_while_claims_come_and_go_on_after_them() {
        let clock = Arc::new(SystemClock::start());
        let (write_limiter, queue) = (WriteLimiter::new(clock.clone()), WorkQueue::new("test", clock));
        let [a, b, c, d] =
            ["a", "b", "c", "d"].map(|name| ObjectKey { namespace: "n".to_owned(), name: name.to_owned() });
        for took in [[4; 100], [40; 100]].concat() {
            write_limiter.observe(Duration::from_millis(took));
        }
        assert_eq!(write_limiter.limit(), usize::MAX, "there are no claims");
        write_limiter.note_claim();
        assert_eq!(write_limiter.limit(), 1);
        for (missing, most) in [(0.2, 1), (0.5, 4), (1.0, 16), (0.0, 1)] {
            write_limiter.note_missing(&a, missing);
            assert_eq!(write_limiter.limit(), most, "with {missing} of a pool missing");
            assert!(write_limiter.is_saturated(), "the server has no more capacity for that");
        }
        let first = write_limiter.try_acquire(&a, &queue).unwrap();
        for key in [&b, &b, &c, &d] {
            assert!(write_limiter.try_acquire(key, &queue).is_none());
        }
        assert_eq!(queue.begin(), None, "nobody looks again before something has ended");
        drop(first);
        assert_eq!((queue.begin(), queue.begin()), (Some(b.clone()), None), "one has ended, and one comes");
        let second = write_limiter.try_acquire(&b, &queue).unwrap();
        sleep(CLAIM_WINDOW).await;
        assert_eq!(write_limiter.limit(), usize::MAX);
        drop(second);
        assert_eq!((queue.begin(), queue.begin()), (Some(c), Some(d)), "no claim has come for long");
    }
}
