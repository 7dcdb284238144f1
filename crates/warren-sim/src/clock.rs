//! Time that only moves when the simulation says so. Every process has a wall clock that may be wrong and be set right
//! in one step; waiting is measured by the common clock, which never jumps, as `Instant` never does.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;

/// The first moment: Friday, 15 January 2027, 08:00 UTC. Any would do.
const START: i64 = 1_800_000_000_000;

/// The common clock; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Clock(Rc<Cell<i64>>);

impl Clock {
    /// Milliseconds since the start.
    #[must_use]
    pub fn elapsed(&self) -> i64 {
        self.0.get()
    }

    /// Lets time pass until a moment, given in milliseconds since the start. It never goes back.
    pub fn advance_to(&self, elapsed: i64) {
        self.0.set(self.0.get().max(elapsed));
    }

    /// The time of day, on a wall clock that is wrong by so many milliseconds.
    #[must_use]
    pub fn now(&self, skew: i64) -> Timestamp {
        Timestamp::from_millisecond(START + self.0.get() + skew).unwrap_or(Timestamp::MAX)
    }
}

/// A duration in whole milliseconds, rounded up, so that nothing wakes too early.
#[must_use]
pub fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}
