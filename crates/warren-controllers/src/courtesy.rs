//! Claims come first: somebody waits for each of them. While claims are served, everything else keeps out of the way of an API server
//! that is busy, by having fewer requests under way at a time. On one that has room for everything, nobody waits.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::clock::Clock;

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
/// With room for fewer than these, what can wait does.
const CROWDED: usize = 8;
/// In this time, what is called quick becomes twice as slow, unless something is: a server may have moved away.
const FORGET: Duration = Duration::from_secs(60);
/// After so many times that, everything is quick.
const ALL_FORGOTTEN: f64 = 20.0;

/// Who may go on now.
pub(crate) struct Courtesy {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Woken when one of those that were under way has ended.
    ended: Notify,
}

#[derive(Default)]
struct State {
    room: Room,
    under_way: usize,
    last_claim: Option<Duration>,
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
        Self { clock, state: Mutex::default(), ended: Notify::new() }
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

    /// How many writes may be made at the same time by those who are not claims; any number while no claims are served.
    pub(crate) fn most(&self) -> usize {
        let state = self.state();
        match self.claims_for(&state).is_zero() {
            true => usize::MAX,
            false => state.room.most as usize,
        }
    }

    /// Whether claims are served and there is room for hardly anything else.
    pub(crate) fn is_crowded(&self) -> bool {
        self.most() < CROWDED
    }

    /// Waits until others may go on beside the claims.
    pub(crate) async fn turn(&self) -> Turn<'_> {
        loop {
            let wait = {
                let mut state = self.state();
                let wait = self.claims_for(&state);
                if wait.is_zero() || state.under_way < state.room.most as usize {
                    state.under_way += 1;
                    return Turn(self);
                }
                wait
            };
            // Whoever is woken looks again; should the claims have ended meanwhile, time wakes everybody.
            let _ = timeout(wait, self.ended.notified()).await;
        }
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
pub(crate) struct Turn<'a>(&'a Courtesy);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.state().under_way -= 1;
        self.0.ended.notify_one();
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
        let courtesy = Courtesy::new(Arc::new(SystemClock::start()));
        for took in [[4; 100], [40; 100]].concat() {
            courtesy.observe(Duration::from_millis(took));
        }
        assert_eq!(courtesy.most(), usize::MAX, "there are no claims");
        courtesy.claim_comes();
        assert_eq!(courtesy.most(), 1);
        let first = courtesy.turn().await;
        assert!(timeout(Duration::from_millis(100), courtesy.turn()).await.is_err());
        drop(first);
        let _second = timeout(Duration::from_millis(10), courtesy.turn()).await.unwrap();
        assert!(
            timeout(Duration::from_millis(200), courtesy.turn()).await.is_ok(),
            "no claim has come for long"
        );
        sleep(CLAIMS_GO_ON).await;
        assert_eq!(courtesy.most(), usize::MAX);
    }
}
