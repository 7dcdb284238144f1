//! The results, as tables or JSON.

use std::time::Duration;

use serde::Serialize;

use super::Part;
use crate::summary::Summary;

/// All results.
#[derive(Default, Serialize)]
pub struct Report {
    /// The timed parts. Ours is the first of each.
    pub times: Vec<Timed>,
    /// Idle daemons.
    pub rest: Vec<AtRest>,
    /// Many sandboxes at once.
    pub many: Vec<Many>,
    /// Pulls.
    pub pulls: Vec<Pulled>,
}

/// The times of one contender in one part.
#[derive(Serialize)]
pub struct Timed {
    /// The part.
    pub part: Part,
    /// The times in milliseconds.
    pub times: Summary,
}

/// An idle daemon and its helpers.
#[derive(Serialize)]
pub struct AtRest {
    /// The contender.
    pub name: String,
    /// Resident memory in MB.
    pub rss_mb: f64,
    /// Processor time in percent of one processor.
    pub cpu_percent: f64,
}

/// Many sandboxes that were started at once.
#[derive(Serialize)]
pub struct Many {
    /// The contender.
    pub name: String,
    /// The number of sandboxes.
    pub count: usize,
    /// The time until all of them ran, in seconds.
    pub seconds: f64,
    /// The additional memory of all processes per sandbox, in MB, including the sandbox's own first
    /// process. Shared pages are divided among all that share them. `None` if no process of the
    /// contender stays.
    pub mb_each: Option<f64>,
}

/// Pulls of one image.
#[derive(Serialize)]
pub struct Pulled {
    /// The contender.
    pub name: String,
    /// The number of pulls.
    pub pulls: usize,
    /// The unpacked size per second, in MB, of the median pull.
    pub mb_per_second: f64,
}

impl Pulled {
    /// Summarises pulls. Returns `None` without any.
    pub fn of(name: &str, megabytes: f64, mut times: Vec<Duration>) -> Option<Pulled> {
        times.sort_unstable();
        let median = times.get(times.len() / 2)?.as_secs_f64();
        Some(Pulled { name: name.to_owned(), pulls: times.len(), mb_per_second: megabytes / median })
    }
}

impl Report {
    /// Prints JSON, or tables for SPECIFICATION.md.
    pub fn print(&self, json: bool) -> anyhow::Result<()> {
        match json {
            true => println!("{}", serde_json::to_string_pretty(self)?),
            false => print!("{}", self.tables()),
        }
        Ok(())
    }

    fn tables(&self) -> String {
        let mut text = String::new();
        if !self.times.is_empty() {
            text.push_str("| what | who | rounds | p50 ms | p90 ms | p99 ms | p50 / ours |\n|---|---|---|---|---|---|---|\n");
        }
        for Timed { part, times } in &self.times {
            let ours =
                self.times.iter().find(|other| other.part == *part).map_or(times.p50, |ours| ours.times.p50);
            let Summary { name, rounds, p50, p90, p99 } = times;
            text.push_str(&format!(
                "| {} | {name} | {rounds} | {p50:.2} | {p90:.2} | {p99:.2} | {:.2} |\n",
                part.describe(),
                p50 / ours
            ));
        }
        if !self.many.is_empty() {
            text.push_str(
                "\n| who | at once | s until all run | MB for each when idle |\n|---|---|---|---|\n",
            );
        }
        for Many { name, count, seconds, mb_each } in &self.many {
            let mb_each = mb_each.map_or("–".to_owned(), |mb| format!("{mb:.1}"));
            text.push_str(&format!("| {name} | {count} | {seconds:.2} | {mb_each} |\n"));
        }
        if !self.rest.is_empty() {
            text.push_str("\n| who, at rest | MB | % of a processor |\n|---|---|---|\n");
        }
        for AtRest { name, rss_mb, cpu_percent } in &self.rest {
            text.push_str(&format!("| {name} | {rss_mb:.0} | {cpu_percent:.1} |\n"));
        }
        if !self.pulls.is_empty() {
            text.push_str("\n| who | pulls | MB/s, pulled and unpacked |\n|---|---|---|\n");
        }
        for Pulled { name, pulls, mb_per_second } in &self.pulls {
            text.push_str(&format!("| {name} | {pulls} | {mb_per_second:.0} |\n"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_compared_with_our_own_time_in_it() {
        let timed = |part, name: &str, milliseconds| {
            let times = Summary::of(name, vec![Duration::from_millis(milliseconds)]);
            Timed { part, times: times.unwrap() }
        };
        let report = Report {
            times: vec![
                timed(Part::Cold, "warren", 10),
                timed(Part::Cold, "docker", 40),
                timed(Part::Exec, "warren", 2),
                timed(Part::Exec, "docker", 30),
            ],
            ..Report::default()
        };
        let text = report.tables();
        assert!(
            text.contains("| cold sandbox to first output | docker | 1 | 40.00 | 40.00 | 40.00 | 4.00 |"),
            "{text}"
        );
        assert!(
            text.contains("| command in a running sandbox | docker | 1 | 30.00 | 30.00 | 30.00 | 15.00 |"),
            "{text}"
        );
    }

    #[test]
    fn pulls_are_told_by_their_median() {
        let times = [4, 1, 2].map(Duration::from_secs).to_vec();
        assert_eq!(Pulled::of("x", 100.0, times).unwrap().mb_per_second, 50.0);
        assert!(Pulled::of("x", 100.0, Vec::new()).is_none());
    }
}
