//! Reads a probe's timing and counts its results.

use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;

/// The timing of a probe, with the API server's defaults for missing fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeTiming {
    /// The time from the container's start to the first check.
    pub initial_delay: Duration,
    /// The time between checks.
    pub period: Duration,
    /// The time limit of a check.
    pub timeout: Duration,
    /// The successes in a row that turn a bad verdict good.
    pub successes: u32,
    /// The failures in a row that turn a good verdict bad.
    pub failures: u32,
}

impl ProbeTiming {
    /// Returns the timing of a probe.
    pub fn of(probe: &Probe) -> ProbeTiming {
        // 0 stands for the default, as in the API server. The smallest value is 1.
        let number = |value: Option<i32>, default: u32| {
            value.and_then(|value| u32::try_from(value).ok()).filter(|value| *value > 0).unwrap_or(default)
        };
        let seconds = |value, default| Duration::from_secs(number(value, default).into());
        ProbeTiming {
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            successes: number(probe.success_threshold, 1),
            failures: number(probe.failure_threshold, 3),
        }
    }
}

/// A count of equal results in a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    last: Option<bool>,
    in_a_row: u32,
}

impl Tally {
    /// Counts a result. Returns the verdict when there are enough equal results in a row.
    pub fn count(&mut self, good: bool, timing: &ProbeTiming) -> Option<bool> {
        self.in_a_row = if self.last == Some(good) { self.in_a_row.saturating_add(1) } else { 1 };
        self.last = Some(good);
        let enough = if good { timing.successes } else { timing.failures };
        (self.in_a_row >= enough).then_some(good)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_kubernetes_default() {
        let timing = ProbeTiming::of(&Probe { timeout_seconds: Some(0), ..Probe::default() });
        let wanted = ProbeTiming {
            initial_delay: Duration::ZERO,
            period: Duration::from_secs(10),
            timeout: Duration::from_secs(1),
            successes: 1,
            failures: 3,
        };
        assert_eq!(timing, wanted);
    }

    #[test]
    fn a_verdict_takes_enough_answers_in_a_row() {
        let timing = ProbeTiming { successes: 2, failures: 3, ..ProbeTiming::of(&Probe::default()) };
        let mut tally = Tally::default();
        let verdicts = [true, true, false, false, true, false, false, false, false]
            .map(|good| tally.count(good, &timing));
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(verdicts, [None, yes, None, None, None, None, None, no, no]);
    }
}
