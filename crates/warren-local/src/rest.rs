//! A home at rest gives back the memory that it needed while it was at work.
//!
//! Work is of many kinds (requests, watches, containers that end), and none of them says that it was the last one. All of it takes
//! processor time, so that is what is looked at, seldom.

use std::time::Duration;

use warren_sys::memory;

/// Between two looks. Longer than a user's pause between two commands should be, so that the next one finds everything at hand.
const LOOK: Duration = Duration::from_secs(3);
/// Who used less than this between two looks was at rest. Timers take a tenth of it.
const CALM: Duration = Duration::from_millis(15);
/// Less work than this brings back too little to be worth it: a command in a sandbox takes a few times as much.
const WORK: Duration = Duration::from_millis(30);

/// Looks, for as long as it is polled.
pub async fn give_memory_back() {
    let mut rest = Rest::default();
    loop {
        tokio::time::sleep(LOOK).await;
        let given = memory::processor_time().and_then(|used| match rest.begins(used) {
            true => memory::give_back(),
            false => Ok(()),
        });
        if let Err(error) = given {
            tracing::warn!(%error, "memory is not given back");
            return;
        }
    }
}

/// What was seen at the last look, and when something was given back.
#[derive(Debug, Default)]
struct Rest {
    seen: Duration,
    given: Duration,
}

impl Rest {
    /// Whether the process, which has used so much processor time, has come to rest after work.
    fn begins(&mut self, used: Duration) -> bool {
        let is_calm = used.saturating_sub(self.seen) < CALM;
        let has_worked = used.saturating_sub(self.given) >= WORK;
        self.seen = used;
        if is_calm && has_worked {
            self.given = used;
        }
        is_calm && has_worked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_begins_once_after_each_time_of_work() {
        let mut rest = Rest::default();
        let looks =
            [(200, false), (201, true), (202, false), (203, false), (260, false), (261, true), (275, false)];
        for (used, begins) in looks {
            assert_eq!(rest.begins(Duration::from_millis(used)), begins, "after {used} ms");
        }
    }
}
