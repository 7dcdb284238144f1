//! Rate limiting for log lines that clients can cause at will.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The minimum time between two lines of one limiter.
const INTERVAL: Duration = Duration::from_secs(10);

/// Lets one event through per interval and counts the others.
pub(crate) struct Seldom {
    state: Mutex<State>,
}

struct State {
    last: Option<Instant>,
    held_back: u64,
}

impl Seldom {
    pub const fn new() -> Seldom {
        Seldom { state: Mutex::new(State { last: None, held_back: 0 }) }
    }

    /// Returns the number of events since the last line, this one included, if a line is due.
    pub fn is_due(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.held_back += 1;
        if state.last.is_some_and(|last| now.saturating_duration_since(last) < INTERVAL) {
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_interval_counts_what_was_held_back() {
        let seldom = Seldom::new();
        let begin = Instant::now();
        assert_eq!(seldom.is_due(begin), Some(1));
        for _ in 0..100 {
            assert_eq!(seldom.is_due(begin + Duration::from_secs(9)), None);
        }
        assert_eq!(seldom.is_due(begin + INTERVAL), Some(101));
        assert_eq!(seldom.is_due(begin + INTERVAL), None);
    }
}
