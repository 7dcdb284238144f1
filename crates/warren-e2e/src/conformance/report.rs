//! Reports a run: every scenario by name, its differences, and a last line with the counts.

use std::collections::{BTreeMap, BTreeSet};

use super::compare::{Difference, differences};
use super::transcript::{Recorded, Transcript};

/// The outcome of one scenario.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// No difference that a client can observe.
    Same,
    /// Observable differences.
    Differs(Vec<Difference>),
    /// It did not reach its end, and the expected one did.
    Failed(Vec<Difference>),
}

/// Every scenario's outcome, by `topic/name`.
#[derive(Debug, Default)]
pub struct Report {
    /// The outcomes in the order of the names.
    pub outcomes: BTreeMap<String, Outcome>,
}

/// Compares two runs. A scenario that only one of them has counts as different.
#[must_use]
pub fn judge(expected: &BTreeMap<String, Recorded>, actual: &BTreeMap<String, Recorded>) -> Report {
    let (expected, actual) = (flat(expected), flat(actual));
    let nothing = Transcript::default();
    let names: BTreeSet<_> = expected.keys().chain(actual.keys()).collect();
    let outcomes = names.into_iter().map(|name| {
        let left = expected.get(name).copied().unwrap_or(&nothing);
        let right = actual.get(name).copied().unwrap_or(&nothing);
        let found = differences(left, right);
        let outcome = match (found.is_empty(), right.stopped.is_some() && left.stopped.is_none()) {
            (true, _) => Outcome::Same,
            (false, true) => Outcome::Failed(found),
            (false, false) => Outcome::Differs(found),
        };
        (name.clone(), outcome)
    });
    Report { outcomes: outcomes.collect() }
}

fn flat(run: &BTreeMap<String, Recorded>) -> BTreeMap<String, &Transcript> {
    run.iter()
        .flat_map(|(topic, recorded)| {
            recorded.iter().map(move |(name, one)| (format!("{topic}/{name}"), one))
        })
        .collect()
}

impl Report {
    /// Returns the reasons for a failed run: every difference.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let complaint = |(name, outcome): (&String, &Outcome)| match outcome {
            Outcome::Same => None,
            Outcome::Differs(_) => Some(format!("{name} differs")),
            Outcome::Failed(_) => Some(format!("{name} failed")),
        };
        self.outcomes.iter().filter_map(complaint).collect()
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (name, outcome) in &self.outcomes {
            let (word, found): (_, &[Difference]) = match outcome {
                Outcome::Same => ("same", &[]),
                Outcome::Differs(found) => ("differs", found),
                Outcome::Failed(found) => ("failed", found),
            };
            writeln!(out, "{word:8}{name}")?;
            for difference in found {
                writeln!(out, "{difference}")?;
            }
        }
        let failed = self.complaints().len();
        write!(out, "{} passed, {failed} failed", self.outcomes.len() - failed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::transcript::Exchange;
    use super::*;
    use serde_json::json;

    /// Builds a run with two scenarios of one topic: `a`, with this body, and `b`, which is always
    /// the same.
    fn run(body: serde_json::Value) -> BTreeMap<String, Recorded> {
        let exchange = |body| Exchange { code: 200, body, ..Exchange::default() };
        let transcript = |body| Transcript { exchanges: vec![exchange(body)], stopped: None };
        let recorded = [("a".to_owned(), transcript(body)), ("b".to_owned(), transcript(json!(1)))];
        BTreeMap::from([("t".to_owned(), Recorded::from(recorded))])
    }

    #[test]
    fn a_difference_is_named_and_counted() {
        let recorded = run(json!({"x": 1, "y": 1}));
        let same = judge(&recorded, &run(json!({"x": 1, "y": 1})));
        assert!(same.complaints().is_empty());
        assert!(same.to_string().ends_with("2 passed, 0 failed"));
        let differs = judge(&recorded, &run(json!({"x": 2, "y": 1})));
        assert_eq!(differs.complaints(), ["t/a differs"]);
        let shown = differs.to_string();
        assert!(shown.contains("body.x") && shown.ends_with("1 passed, 1 failed"), "{shown}");
        let missing = judge(&recorded, &BTreeMap::new());
        assert_eq!(missing.complaints(), ["t/a differs", "t/b differs"]);
    }
}
