//! Claims come first: somebody waits for each of them. While claims are served, everything else keeps out of the way of an API server
//! that is busy, by having fewer requests under way at a time. On one that has room for everything, nobody waits.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Clock;
use crate::queue::{ObjectKey, WorkQueue};

/// How long after the last pass over a claim the next one is expected.
const CLAIMS_GO_ON: Duration = Duration::from_millis(250);
/// A server is busy when a status takes so many times as long as the quickest, and a little.
const BUSY: u32 = 2;
const A_LITTLE: Duration = Duration::from_millis(5);
/// How many others may be under way at a time: at least, so that they come to an end, and at most.
const FEWEST: f64 = 1.0;
const MOST: f64 = 256.0;
/// What one slow write leaves of that.
const LESS: f64 = 0.9;
/// How many may be under way whatever the server says, if a pool is empty: a claim that finds no member costs the server three times as
/// much as one that does.
const NEEDED: f64 = 16.0;
/// With room for fewer than these, what can wait does.
const CROWDED: f64 = 8.0;
/// Who found no room looks again by itself after this long: the claims may have ended meanwhile, or those that were to call the next.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// In this time, what is called quick becomes twice as slow, unless something is: a server may have moved away.
const FORGET: Duration = Duration::from_secs(60);
/// After so many times that, everything is quick.
const ALL_FORGOTTEN: f64 = 20.0;

/// Who may go on now.
pub(crate) struct Courtesy {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    room: Room,
    under_way: usize,
    last_claim: Option<Duration>,
    /// The part of each pool that is missing, of those that are not full.
    missing: HashMap<ObjectKey, f64>,
    /// Whoever found no room, in the order in which they came, and the same by name. The end of one that is under way calls the next.
    waiting: VecDeque<ObjectKey>,
    named: HashSet<ObjectKey>,
}

impl State {
    /// As many as there is room for, and more the emptier the emptiest pool is. By the square: few for as long as there are many
    /// members.
    fn most(&self) -> usize {
        let missing = self.missing.values().copied().fold(0.0, f64::max);
        self.room.most.max(NEEDED * missing * missing) as usize
    }
}

/// How much a server can take beside the claims, by how long it takes to tell it a status. That is the least which can be asked of a
/// server, and nobody else has a say in it; how long the creation of a pod takes depends on whom the server has to ask.
#[derive(Debug)]
struct Room {
    /// How long the quickest has taken, and when that was.
    quickest: Option<(Duration, Duration)>,
    most: f64,
}

impl Default for Room {
    fn default() -> Self {
        Self { quickest: None, most: MOST }
    }
}

impl Room {
    /// Takes note of a status that was told: a slow one makes the room smaller by a part, a quick one larger by a bit.
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

    /// A claim is being served.
    pub(crate) fn claim_comes(&self) {
        self.state().last_claim = Some(self.clock.uptime());
    }

    /// To tell a status has taken so long.
    pub(crate) fn observe(&self, took: Duration) {
        let uptime = self.clock.uptime();
        self.state().room.observe(took, uptime);
    }

    /// Takes note of which part of a pool is missing: none, or up to all of it.
    pub(crate) fn note_missing(&self, pool: &ObjectKey, part: f64) {
        let missing = &mut self.state().missing;
        match part > 0.0 {
            true => missing.insert(pool.clone(), part),
            false => missing.remove(pool),
        };
    }

    /// How many writes may be made at the same time by those who are not claims; any number while no claims are served.
    pub(crate) fn most(&self) -> usize {
        let state = self.state();
        match self.claims_for(&state).is_zero() {
            true => usize::MAX,
            false => state.most(),
        }
    }

    /// Whether claims are served and the server has room for hardly anything else, whatever a pool needs.
    pub(crate) fn is_crowded(&self) -> bool {
        let state = self.state();
        !self.claims_for(&state).is_zero() && state.room.most < CROWDED
    }

    /// A turn beside the claims; nothing if there is no room. Then the key is put into the queue again when there is, or should look
    /// again after [`LONGEST_WAIT`]: a worker has better things to do than to wait, since others need no turn.
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

    /// How long claims will be expected from now on, unless one more comes.
    fn claims_for(&self, state: &State) -> Duration {
        let until = state.last_claim.map_or(Duration::ZERO, |last| last + CLAIMS_GO_ON);
        until.saturating_sub(self.clock.uptime())
    }

    /// After a panic elsewhere it is as good as before: every change of it is of one number.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of those under way, until dropped.
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
