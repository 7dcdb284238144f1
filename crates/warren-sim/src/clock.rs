//! Simulated time, which moves only when the simulation says so. Every process has a wall clock
//! that may be wrong and be corrected in one step. Waits use the common clock, which never jumps.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;

/// The first moment: Friday, 15 January 2027, 08:00 UTC. Any other would do.
const START: i64 = 1_800_000_000_000;

/// The common clock; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Clock(Arc<AtomicI64>);

impl Clock {
    /// Returns the milliseconds since the start.
    #[must_use]
    pub fn elapsed(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Advances to a moment, given in milliseconds since the start. It never goes back.
    pub fn advance_to(&self, elapsed: i64) {
        self.0.fetch_max(elapsed, Ordering::Relaxed);
    }

    /// Returns the time of day on a wall clock that is wrong by so many milliseconds.
    #[must_use]
    pub fn now(&self, skew: i64) -> Timestamp {
        Timestamp::from_millisecond(START + self.elapsed() + skew).unwrap_or(Timestamp::MAX)
    }
}

/// The clocks of one process.
#[derive(Debug, Default)]
pub struct ProcessClock {
    common: Clock,
    skew: AtomicI64,
}

impl ProcessClock {
    /// Returns clocks with a correct wall clock.
    #[must_use]
    pub fn new(common: Clock) -> Self {
        Self { common, skew: AtomicI64::new(0) }
    }

    /// Returns true if the wall clock is wrong.
    #[must_use]
    pub fn is_wrong(&self) -> bool {
        self.skew.load(Ordering::Relaxed) != 0
    }

    /// Sets how many milliseconds the wall clock is wrong.
    pub fn set(&self, skew: i64) {
        self.skew.store(skew, Ordering::Relaxed);
    }
}

impl warren_controllers::clock::Clock for ProcessClock {
    fn now(&self) -> Timestamp {
        self.common.now(self.skew.load(Ordering::Relaxed))
    }

    fn uptime(&self) -> Duration {
        Duration::from_millis(self.common.elapsed().unsigned_abs())
    }
}

/// Returns a moment of the common clock in whole milliseconds, rounded up, so that nothing wakes
/// too early.
#[must_use]
pub fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}
