//! Releases memory when a home becomes idle.
//!
//! There are many kinds of work (requests, watches, containers that end), and none of them marks
//! the last one. All of them use processor time, so that is checked at intervals.

use std::time::Duration;

use warren_sys::memory;

/// The interval of checks. It is longer than a user's usual pause between two commands, so that the
/// next command does not have to reload memory.
const LOOK: Duration = Duration::from_secs(3);
/// The processor time per interval below which the process counts as idle. Timers use a tenth of
/// it.
const CALM: Duration = Duration::from_millis(15);
/// The processor time since the last release that makes another one worthwhile. A command in a
/// sandbox uses a few times as much.
const WORK: Duration = Duration::from_millis(30);

/// Checks as long as it is polled.
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

/// The processor time at the last check and at the last release.
#[derive(Debug, Default)]
struct Rest {
    seen: Duration,
    given: Duration,
}

impl Rest {
    /// Returns true if the process has become idle after work. `used` is its processor time so far.
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
