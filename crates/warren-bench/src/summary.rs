//! Percentiles, and a table of them.

use std::time::Duration;

use serde::Serialize;

/// The times of one contender over all rounds, in milliseconds.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// The contender.
    pub name: String,
    /// The number of measured rounds.
    pub rounds: usize,
    /// Half of the rounds took no longer than this.
    pub p50: f64,
    /// Nine of ten rounds took no longer than this.
    pub p90: f64,
    /// All but one in a hundred rounds took no longer than this.
    pub p99: f64,
}

impl Summary {
    /// Summarises one contender's rounds. Returns `None` without any.
    pub fn of(name: &str, mut times: Vec<Duration>) -> Option<Summary> {
        times.sort_unstable();
        let rank = |percent: usize| {
            let index = (times.len() * percent).div_ceil(100).saturating_sub(1);
            times.get(index).map(|time| time.as_secs_f64() * 1000.0)
        };
        Some(Summary {
            name: name.to_owned(),
            rounds: times.len(),
            p50: rank(50)?,
            p90: rank(90)?,
            p99: rank(99)?,
        })
    }
}

/// Formats a Markdown table. Each median is also given as a multiple of the first row's.
pub fn table(summaries: &[Summary]) -> String {
    let mut text = String::from(
        "| what | rounds | p50 ms | p90 ms | p99 ms | p50 / ours |\n|---|---|---|---|---|---|\n",
    );
    let ours = summaries.first().map_or(1.0, |first| first.p50);
    for summary in summaries {
        let Summary { name, rounds, p50, p90, p99 } = summary;
        let ratio = p50 / ours;
        text.push_str(&format!("| {name} | {rounds} | {p50:.1} | {p90:.1} | {p99:.1} | {ratio:.2} |\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_ranks_of_what_was_measured() {
        let times = (1..=200).rev().map(Duration::from_millis).collect();
        let summary = Summary::of("x", times).unwrap();
        assert_eq!((summary.p50, summary.p90, summary.p99), (100.0, 180.0, 198.0));
    }

    #[test]
    fn one_round_is_every_percentile_and_none_is_nothing() {
        let summary = Summary::of("x", vec![Duration::from_millis(7)]).unwrap();
        assert_eq!((summary.p50, summary.p99), (7.0, 7.0));
        assert!(Summary::of("x", Vec::new()).is_none());
    }

    #[test]
    fn the_table_compares_with_its_first_row() {
        let rows = [
            Summary::of("warren", vec![Duration::from_millis(10)]).unwrap(),
            Summary::of("other", vec![Duration::from_millis(25)]).unwrap(),
        ];
        assert!(table(&rows).contains("| other | 1 | 25.0 | 25.0 | 25.0 | 2.50 |"));
    }
}
