//! Detects that the machine's clock was set. Waits for a time of day use a monotonic clock, and a
//! decision that something has expired may have come from a wrong clock.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;

/// The interval of checks.
const LOOK: Duration = Duration::from_secs(30);
/// The smallest jump that counts: synchronised clocks are never set by this much.
const STEP: Duration = Duration::from_secs(1);

/// Calls `was_set` whenever the time of day was set, until told to stop.
pub(crate) async fn watch(clock: Arc<dyn Clock>, stop: CancellationToken, was_set: impl Fn()) {
    let mut began = beginning(&*clock);
    while stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
        let now = beginning(&*clock);
        if now.duration_since(began).unsigned_abs() >= STEP {
            tracing::info!(by = %now.duration_since(began), "the clock was set");
            was_set();
        }
        began = now;
    }
}

/// Returns the time of day at which the uptime began.
fn beginning(clock: &dyn Clock) -> Timestamp {
    clock.now().checked_sub(clock.uptime()).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
    use std::time::Duration;

    use jiff::{SignedDuration, Timestamp};
    use tokio::time::Instant;
    use tokio_util::sync::CancellationToken;

    use super::{Clock, LOOK, watch};

    struct Wrong {
        started: Instant,
        by: AtomicI64,
    }

    impl Clock for Wrong {
        fn now(&self) -> Timestamp {
            let since = self.uptime() + Duration::from_secs(1_000_000);
            Timestamp::UNIX_EPOCH + since + SignedDuration::from_millis(self.by.load(Ordering::Relaxed))
        }

        fn uptime(&self) -> Duration {
            self.started.elapsed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_time_that_the_clock_is_set_is_told_once() {
        let clock = Arc::new(Wrong { started: Instant::now(), by: AtomicI64::new(0) });
        let told = Arc::new(AtomicUsize::new(0));
        let stop = CancellationToken::new();
        let counter = told.clone();
        let task = tokio::spawn(watch(clock.clone(), stop.clone(), move || {
            counter.fetch_add(1, Ordering::Relaxed);
        }));
        for (by, times) in [(0, 0), (300, 0), (5_000, 1), (5_000, 1), (-400_000, 2), (0, 3), (0, 3)] {
            clock.by.store(by, Ordering::Relaxed);
            tokio::time::sleep(LOOK + LOOK / 10).await;
            assert_eq!(told.load(Ordering::Relaxed), times, "wrong by {by} ms");
        }
        stop.cancel();
        task.await.unwrap();
    }
}
