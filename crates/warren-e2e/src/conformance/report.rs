//! Judging a run: every scenario by name, what differs, and a last line that counts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::compare::{Difference, differences};
use super::transcript::{RecordError, Recorded, Transcript};

/// What came of one scenario.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Nothing that a client can see differs.
    Same,
    /// Something does.
    Differs(Vec<Difference>),
    /// It did not reach its end, where the expected one did.
    Failed(Vec<Difference>),
}

/// Every scenario's outcome, by `topic/name`.
#[derive(Debug, Default)]
pub struct Report {
    /// In the order of the names.
    pub outcomes: BTreeMap<String, Outcome>,
    /// Scenarios that are known to differ.
    pub not_yet: BTreeSet<String>,
}

/// Compares two runs. A scenario that only one of them has differs.
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
    Report { outcomes: outcomes.collect(), not_yet: BTreeSet::new() }
}

fn flat(run: &BTreeMap<String, Recorded>) -> BTreeMap<String, &Transcript> {
    run.iter()
        .flat_map(|(topic, recorded)| recorded.iter().map(move |(name, one)| (format!("{topic}/{name}"), one)))
        .collect()
}

impl Report {
    /// Reads the list of scenarios that are known to differ: one name a line, `#` begins a remark.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn allow(&mut self, path: &Path) -> Result<(), RecordError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| RecordError::File { path: path.to_owned(), source })?;
        let names = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        self.not_yet = names.filter(|name| !name.is_empty()).map(str::to_owned).collect();
        Ok(())
    }

    /// What makes the run fail: differences that are not on the list, and names on the list that do not differ.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (name, outcome) in &self.outcomes {
            match (outcome, self.not_yet.contains(name)) {
                (Outcome::Same, true) => found.push(format!("{name} is the same now: take it off the list")),
                (Outcome::Differs(_), false) => found.push(format!("{name} differs")),
                (Outcome::Failed(_), false) => found.push(format!("{name} failed")),
                _ => {}
            }
        }
        for name in &self.not_yet {
            if !self.outcomes.contains_key(name) {
                found.push(format!("{name} is on the list and is no scenario"));
            }
        }
        found
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (mut passed, mut known, mut failed) = (0, 0, 0);
        for (name, outcome) in &self.outcomes {
            let listed = self.not_yet.contains(name);
            let (word, found): (_, &[Difference]) = match outcome {
                Outcome::Same => ("same", &[]),
                Outcome::Differs(found) => ("differs", found),
                Outcome::Failed(found) => ("failed", found),
            };
            match (outcome, listed) {
                (Outcome::Same, false) => passed += 1,
                (Outcome::Same, true) => failed += 1,
                (_, true) => known += 1,
                (_, false) => failed += 1,
            }
            writeln!(out, "{word:8}{name}{}", if listed { " (not yet)" } else { "" })?;
            for difference in found {
                writeln!(out, "{difference}")?;
            }
        }
        if known > 0 {
            writeln!(out, "{known} not yet the same, as listed")?;
        }
        write!(out, "{passed} passed, {failed} failed")
    }
}
