//! Measures the duration of each step of a command.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// A stopwatch with marks.
#[derive(Debug)]
pub struct Timings {
    began: Instant,
    marks: Vec<(&'static str, Instant)>,
}

impl Timings {
    /// Starts the clock.
    pub fn start() -> Self {
        Self { began: Instant::now(), marks: Vec::new() }
    }

    /// Ends a step and begins the next.
    pub fn mark(&mut self, step: &'static str) {
        self.marks.push((step, Instant::now()));
    }

    /// Formats the table: each step, its duration, and the time of its end.
    pub fn table(&self) -> String {
        let mut table = String::from("step                ms   at ms\n");
        let mut before = self.began;
        for (step, at) in &self.marks {
            row(&mut table, step, *at - before, *at - self.began);
            before = *at;
        }
        table
    }
}

fn row(table: &mut String, step: &str, took: Duration, at: Duration) {
    // Writing to a string cannot fail.
    let _ = writeln!(table, "{step:<14} {:>7.2} {:>7.2}", milliseconds(took), milliseconds(at));
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
