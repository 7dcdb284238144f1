//! The controllers' source of time. Every decision gets its time from here, so that a simulation
//! can run the controllers at its own pace. Spans, request metrics and the Lease, which a
//! simulation does not have, use the machine's clocks.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

/// Two clocks: a wall clock and a monotonic one.
pub trait Clock: Send + Sync {
    /// Returns the time of day, for timestamps and for deadlines that users have set.
    fn now(&self) -> Timestamp;
    /// Returns the time since some fixed moment, for waits. It never goes back and never jumps.
    fn uptime(&self) -> Duration;
}

/// The machine's clocks.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    started: Instant,
}

impl SystemClock {
    /// Returns a clock whose uptime begins now.
    #[must_use]
    pub fn start() -> Self {
        Self { started: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn uptime(&self) -> Duration {
        self.started.elapsed()
    }
}
