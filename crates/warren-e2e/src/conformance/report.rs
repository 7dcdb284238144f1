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
    /// Scenarios that are known to differ, with words of which every differing field contains one; with no words any
    /// field may differ.
    pub not_yet: BTreeMap<String, Vec<String>>,
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
    Report { outcomes: outcomes.collect(), not_yet: BTreeMap::new() }
}

fn flat(run: &BTreeMap<String, Recorded>) -> BTreeMap<String, &Transcript> {
    run.iter()
        .flat_map(|(topic, recorded)| {
            recorded.iter().map(move |(name, one)| (format!("{topic}/{name}"), one))
        })
        .collect()
}

impl Report {
    /// Reads the list of scenarios that are known to differ: one name a line, `#` begins a remark. Words behind the
    /// name say which fields are wrong: `objects/create managedFields` does not excuse any other difference.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn allow(&mut self, path: &Path) -> Result<(), RecordError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| RecordError::File { path: path.to_owned(), source })?;
        for line in text.lines() {
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            if let Some(name) = words.next() {
                self.not_yet.insert(name.to_owned(), words.map(str::to_owned).collect());
            }
        }
        Ok(())
    }

    /// Whether `name` is a scenario of this run that does not differ.
    #[must_use]
    pub fn is_same(&self, name: Option<&str>) -> bool {
        name.and_then(|name| self.outcomes.get(name)) == Some(&Outcome::Same)
    }

    /// What makes the run fail: differences that are not on the list, and names on the list that do not differ.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let mut found: Vec<_> =
            self.outcomes.iter().filter_map(|(name, outcome)| self.complaint(name, outcome)).collect();
        for name in self.not_yet.keys().filter(|name| !self.outcomes.contains_key(*name)) {
            found.push(format!("{name} is on the list and is no scenario"));
        }
        found
    }

    fn complaint(&self, name: &str, outcome: &Outcome) -> Option<String> {
        let listed = self.not_yet.get(name);
        match (outcome, listed) {
            (Outcome::Same, None) => None,
            (Outcome::Same, Some(_)) => Some(format!("{name} is the same now: take it off the list")),
            (Outcome::Differs(_), None) => Some(format!("{name} differs")),
            (Outcome::Failed(_), None) => Some(format!("{name} failed")),
            (Outcome::Differs(found) | Outcome::Failed(found), Some(words)) => {
                let excused = |field: &str| words.is_empty() || words.iter().any(|word| field.contains(word));
                let more = found.iter().find(|difference| !excused(&difference.field))?;
                Some(format!("{name} differs in more than is listed: {}", more.field))
            }
        }
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (mut passed, mut known, mut failed) = (0, 0, 0);
        for (name, outcome) in &self.outcomes {
            let (word, found): (_, &[Difference]) = match outcome {
                Outcome::Same => ("same", &[]),
                Outcome::Differs(found) => ("differs", found),
                Outcome::Failed(found) => ("failed", found),
            };
            let listed = self.not_yet.contains_key(name);
            match (self.complaint(name, outcome), listed) {
                (Some(_), _) => failed += 1,
                (None, true) => known += 1,
                (None, false) => passed += 1,
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

#[cfg(test)]
mod tests {
    use super::super::transcript::Exchange;
    use super::*;
    use serde_json::json;

    /// Two scenarios of one topic: `a`, whose body is given, and `b`, which is always the same.
    fn run(body: serde_json::Value) -> BTreeMap<String, Recorded> {
        let exchange = |body| Exchange { code: 200, body, ..Exchange::default() };
        let transcript = |body| Transcript { exchanges: vec![exchange(body)], stopped: None };
        let recorded = [("a".to_owned(), transcript(body)), ("b".to_owned(), transcript(json!(1)))];
        BTreeMap::from([("t".to_owned(), Recorded::from(recorded))])
    }

    fn complaints(list: &str, ours: serde_json::Value) -> Vec<String> {
        let mut report = judge(&run(json!({"x": 1, "y": 1})), &run(ours));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), list).unwrap();
        report.allow(file.path()).unwrap();
        report.complaints()
    }

    #[test]
    fn the_list_excuses_what_it_names_and_nothing_else() {
        let (same, differs) = (json!({"x": 1, "y": 1}), json!({"x": 2, "y": 1}));
        assert!(complaints("", same.clone()).is_empty());
        assert_eq!(complaints("", differs.clone()), ["t/a differs"]);
        assert!(complaints("t/a # the reason", differs.clone()).is_empty());
        assert!(complaints("t/a body.y body.x", differs.clone()).is_empty());
        assert_eq!(complaints("t/a body.y", differs), ["t/a differs in more than is listed: body.x"]);
    }

    #[test]
    fn the_list_can_only_shrink_honestly() {
        let same = json!({"x": 1, "y": 1});
        assert_eq!(complaints("t/a", same.clone()), ["t/a is the same now: take it off the list"]);
        assert_eq!(complaints("t/gone", same), ["t/gone is on the list and is no scenario"]);
    }
}
