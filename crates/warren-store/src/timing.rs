//! Histograms of disk latency, the first thing to look at when writes are slow.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bounds of the buckets in microseconds. Each is twice the one before, from half a
/// millisecond to a second.
const BOUNDS: [u64; 12] =
    [500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 512_000, 1_024_000];

/// The duration of the writer's disk operations since the store was opened.
#[derive(Default)]
pub(crate) struct DiskTimes {
    /// Commits, until they are on disk.
    pub commits: Histogram,
    /// Checkpoints.
    pub checkpoints: Histogram,
}

/// A histogram of durations.
#[derive(Default)]
pub(crate) struct Histogram {
    /// One count per bound, and one for longer durations.
    counts: [AtomicU64; BOUNDS.len() + 1],
    microseconds: AtomicU64,
}

impl Histogram {
    pub fn observe(&self, took: Duration) {
        let microseconds = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.partition_point(|bound| *bound < microseconds);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.microseconds.fetch_add(microseconds, Ordering::Relaxed);
    }

    fn write(&self, name: &str, help: &str, text: &mut String) {
        let seconds = |microseconds: u64| microseconds as f64 / 1e6;
        let mut count = 0;
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram");
        for (index, bucket) in self.counts.iter().enumerate() {
            count += bucket.load(Ordering::Relaxed);
            let bound = BOUNDS.get(index).map_or("+Inf".to_owned(), |bound| seconds(*bound).to_string());
            let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {count}");
        }
        let sum = seconds(self.microseconds.load(Ordering::Relaxed));
        let _ = writeln!(text, "{name}_sum {sum}\n{name}_count {count}");
    }
}

impl DiskTimes {
    /// Formats the histograms for Prometheus.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.checkpoints.write(
            "warren_store_checkpoint_duration_seconds",
            "How long folding the store's log into its file takes.",
            &mut text,
        );
        self.commits.write(
            "warren_store_commit_duration_seconds",
            "How long a commit of the store takes until it is on the disk.",
            &mut text,
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_add_up() {
        let times = DiskTimes::default();
        for milliseconds in [1, 3, 3, 2_000] {
            times.commits.observe(Duration::from_millis(milliseconds));
        }
        let text = times.text();
        let values = |start: &str| {
            let lines = text.lines().filter(|line| line.starts_with(start));
            lines.map(|line| line.rsplit_once(' ').unwrap().1).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(values("warren_store_commit_duration_seconds_bucket"), "0 1 1 3 3 3 3 3 3 3 3 3 4");
        assert_eq!(values("warren_store_commit_duration_seconds_sum"), "2.007");
        assert_eq!(values("warren_store_checkpoint_duration_seconds_count"), "0");
    }
}
