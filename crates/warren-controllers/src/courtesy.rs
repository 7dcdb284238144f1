//! Limits concurrent writes while claims are served (an AIMD limiter): users wait for claims, so
//! they come first. While claims are served, all other work uses fewer concurrent requests if the
//! API server is busy. If the server has room, nothing is limited.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Clock;
use crate::queue::{ObjectKey, WorkQueue};

/// The time after a claim's last reconcile in which further claims are expected.
const CLAIMS_GO_ON: Duration = Duration::from_millis(250);
/// The factor above the fastest status write at which the server counts as busy.
const BUSY: u32 = 2;
/// The slack that is added to that before the server counts as busy.
const A_LITTLE: Duration = Duration::from_millis(5);
/// The lower limit on concurrent writes, so that other work still progresses.
const FEWEST: f64 = 1.0;
/// The upper limit on concurrent writes.
const MOST: f64 = 256.0;
/// The factor by which one slow write reduces the limit.
const LESS: f64 = 0.9;
/// The limit if a pool is empty, even if the server is busy: a claim that finds no member costs the
/// server three times as much as one that does.
const NEEDED: f64 = 16.0;
/// The limit below which deferrable work waits.
const CROWDED: f64 = 8.0;
/// The time after which work without room tries again by itself: the claims may have ended
/// meanwhile, or the wake-up may have been lost.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// The time in which the remembered fastest write doubles unless a faster one comes: the server may
/// have moved farther away.
const FORGET: Duration = Duration::from_secs(60);
/// The number of such times after which every write counts as fast.
const ALL_FORGOTTEN: f64 = 20.0;

/// The limiter.
pub(crate) struct Courtesy {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    room: Room,
    under_way: usize,
    last_claim: Option<Duration>,
    /// The missing part of each pool that is not full.
    missing: HashMap<ObjectKey, f64>,
    /// The keys that found no room, in order of arrival, and as a set. The end of a turn wakes the
    /// next.
    waiting: VecDeque<ObjectKey>,
    named: HashSet<ObjectKey>,
}

impl State {
    /// Returns the limit: the server's room, or more if a pool is empty. Quadratic: small while
    /// there are many members.
    fn most(&self) -> usize {
        let missing = self.missing.values().copied().fold(0.0, f64::max);
        self.room.most.max(NEEDED * missing * missing) as usize
    }
}

/// The server's room beside the claims, measured by the duration of status writes. They are the
/// simplest request, and depend on no other party; creating a pod also depends on what the server
/// has to call.
#[derive(Debug)]
struct Room {
    /// The duration of the fastest write, and its time.
    quickest: Option<(Duration, Duration)>,
    most: f64,
}

impl Default for Room {
    fn default() -> Self {
        Self { quickest: None, most: MOST }
    }
}

impl Room {
    /// Records the duration of a status write: a slow one reduces the limit by a factor, a fast one
    /// raises it by a step.
    fn observe(&mut self, took: Duration, uptime: Duration) {
        let quick = self.quickest.map(|(quickest, at)| {
            let doublings = uptime.saturating_sub(at).div_duration_f64(FORGET).min(ALL_FORGOTTEN);
            quickest.mul_f64(doublings.exp2())
        });
        let quick = match quick.filter(|quick| *quick < took) {
            Some(quick) => quick,
            None => {
                self.quickest = Some((took, uptime));
                took
            }
        };
        self.most = match took > quick * BUSY + A_LITTLE {
            true => (self.most * LESS).max(FEWEST),
            false => (self.most + 1.0 / self.most).min(MOST),
        };
    }
}

impl Courtesy {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, state: Mutex::default() }
    }

    /// Records that a claim is being served.
    pub(crate) fn claim_comes(&self) {
        self.state().last_claim = Some(self.clock.uptime());
    }

    pub(crate) fn observe(&self, took: Duration) {
        let uptime = self.clock.uptime();
        self.state().room.observe(took, uptime);
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
    pub(crate) fn most(&self) -> usize {
        let state = self.state();
        match self.claims_for(&state).is_zero() {
            true => usize::MAX,
            false => state.most(),
        }
    }

    /// Returns true if claims are served and the server has little room for anything else, whatever
    /// a pool needs.
    pub(crate) fn is_crowded(&self) -> bool {
        let state = self.state();
        !self.claims_for(&state).is_zero() && state.room.most < CROWDED
    }

    /// Takes a turn beside the claims; `None` if there is no room. The key is then added to the
    /// queue again when there is, and should be tried again after [`LONGEST_WAIT`]. A worker must
    /// not wait for a turn, since other keys need none.
    pub(crate) fn turn<'a>(&'a self, key: &ObjectKey, queue: &'a WorkQueue) -> Option<Turn<'a>> {
        let mut state = self.state();
        if self.has_room(&state) {
            state.under_way += 1;
            return Some(Turn { courtesy: self, queue });
        }
        if state.named.insert(key.clone()) {
            state.waiting.push_back(key.clone());
        }
        None
    }

    fn has_room(&self, state: &State) -> bool {
        self.claims_for(state).is_zero() || state.under_way < state.most()
    }

    /// Returns for how long claims are expected from now on, if no further one comes.
    fn claims_for(&self, state: &State) -> Duration {
        let until = state.last_claim.map_or(Duration::ZERO, |last| last + CLAIMS_GO_ON);
        until.saturating_sub(self.clock.uptime())
    }

    /// Locks the state. A panic elsewhere leaves it valid: every change of it is of one number.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A turn, held until it is dropped.
pub(crate) struct Turn<'a> {
    courtesy: &'a Courtesy,
    queue: &'a WorkQueue,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.courtesy.state();
        state.under_way -= 1;
        let next = match self.courtesy.claims_for(&state).is_zero() {
            true => state.waiting.len(),
            false => state.most().saturating_sub(state.under_way).min(state.waiting.len()),
        };
        for key in state.waiting.drain(..next).collect::<Vec<_>>() {
            state.named.remove(&key);
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
        let mut room = Room::default();
        for (number, took) in (0..).zip(statuses) {
            room.observe(Duration::from_millis(*took), EVERY * number);
        }
        room.most as usize
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
        let mut room = Room::default();
        room.observe(Duration::from_millis(4), Duration::ZERO);
        room.observe(Duration::from_secs(30), Duration::from_secs(30 * 24 * 60 * 60));
        assert_eq!(room.most as usize, 256, "what was quick a month ago says nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn others_take_turns_while_claims_come_and_go_on_after_them() {
        let clock = Arc::new(SystemClock::start());
        let (courtesy, queue) = (Courtesy::new(clock.clone()), WorkQueue::new("test", clock));
        let [a, b, c, d] =
            ["a", "b", "c", "d"].map(|name| ObjectKey { namespace: "n".to_owned(), name: name.to_owned() });
        for took in [[4; 100], [40; 100]].concat() {
            courtesy.observe(Duration::from_millis(took));
        }
        assert_eq!(courtesy.most(), usize::MAX, "there are no claims");
        courtesy.claim_comes();
        assert_eq!(courtesy.most(), 1);
        for (missing, most) in [(0.2, 1), (0.5, 4), (1.0, 16), (0.0, 1)] {
            courtesy.note_missing(&a, missing);
            assert_eq!(courtesy.most(), most, "with {missing} of a pool missing");
            assert!(courtesy.is_crowded(), "the server has no more room for that");
        }
        let first = courtesy.turn(&a, &queue).unwrap();
        for key in [&b, &b, &c, &d] {
            assert!(courtesy.turn(key, &queue).is_none());
        }
        assert_eq!(queue.begin(), None, "nobody looks again before something has ended");
        drop(first);
        assert_eq!((queue.begin(), queue.begin()), (Some(b.clone()), None), "one has ended, and one comes");
        let second = courtesy.turn(&b, &queue).unwrap();
        sleep(CLAIMS_GO_ON).await;
        assert_eq!(courtesy.most(), usize::MAX);
        drop(second);
        assert_eq!((queue.begin(), queue.begin()), (Some(c), Some(d)), "no claim has come for long");
    }
}
