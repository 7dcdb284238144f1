//! Where the controllers get the time from. Whoever decides anything gets it here, so that a simulation can run them at its own pace;
//! spans, measured requests and the Lease, which a simulation does not have, read the machine's clocks.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

/// Two clocks: one that people set, and one that nobody does.
pub trait Clock: Send + Sync {
    /// The time of day, for what is written down and for deadlines that people have set.
    fn now(&self) -> Timestamp;
    /// The time since some fixed moment, for waiting. It never goes back and never jumps.
    fn uptime(&self) -> Duration;
}

/// The clocks of the machine.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    started: Instant,
}

impl SystemClock {
    /// A clock whose uptime begins now.
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
