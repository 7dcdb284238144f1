//! The suite as it lies in this crate: where the scenarios, the recording and the list of known differences are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::report::{Report, judge};
use super::runner::{Pace, play_all};
use super::scenario::{self, LoadError, Topic};
use super::target::Target;
use super::transcript::{self, RecordError, Recorded};

/// The scenarios of this crate, or those of them whose `topic/name` contains a word.
pub struct Suite {
    topics: Vec<Topic>,
    whole: bool,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios")
}

fn recordings() -> PathBuf {
    folder().join("recorded")
}

/// The scenarios in which our server is known to differ.
fn list() -> PathBuf {
    folder().join("not-yet.txt")
}

/// The checkout, where the product's own definitions are.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

impl Suite {
    /// Reads the scenarios; with `only`, those whose `topic/name` contains it.
    ///
    /// # Errors
    /// When a scenario file does not parse.
    pub fn load(only: Option<&str>) -> Result<Self, LoadError> {
        let mut topics = scenario::load(&folder())?;
        for topic in &mut topics {
            let name = topic.topic.clone();
            topic
                .scenarios
                .retain(|one| only.is_none_or(|word| format!("{name}/{}", one.name).contains(word)));
        }
        topics.retain(|topic| !topic.scenarios.is_empty());
        Ok(Self { topics, whole: only.is_none() })
    }

    /// How many scenarios there are, by topic.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&str, usize> {
        self.topics.iter().map(|topic| (topic.topic.as_str(), topic.scenarios.len())).collect()
    }

    /// Plays the scenarios and returns what was seen, masked.
    pub async fn play(&self, target: &dyn Target, pace: Pace) -> BTreeMap<String, Recorded> {
        play_all(target, &self.topics, &root(), pace).await
    }

    /// What was recorded of the real server for these scenarios.
    ///
    /// # Errors
    /// When a recording does not parse.
    pub fn recorded(&self) -> Result<BTreeMap<String, Recorded>, RecordError> {
        let mut all = BTreeMap::new();
        for topic in &self.topics {
            let mut recorded = transcript::read(&recordings(), &topic.topic)?;
            if !self.whole {
                recorded.retain(|name, _| topic.scenarios.iter().any(|one| one.name == *name));
            }
            all.insert(topic.topic.clone(), recorded);
        }
        Ok(all)
    }

    /// Makes a run of the real server the recording: a run of the whole suite replaces it, a run of a part of the suite
    /// replaces that part.
    ///
    /// # Errors
    /// When a recording cannot be read or written.
    pub fn record(&self, run: &BTreeMap<String, Recorded>) -> Result<(), RecordError> {
        for topic in &self.topics {
            let played = run.get(&topic.topic).cloned().unwrap_or_default();
            let mut recorded =
                if self.whole { Recorded::new() } else { transcript::read(&recordings(), &topic.topic)? };
            recorded.extend(played);
            transcript::write(&recordings(), &topic.topic, &recorded)?;
        }
        Ok(())
    }

    /// Takes the scenarios that no longer differ off the list; never adds any.
    ///
    /// # Errors
    /// When the list cannot be read or written.
    pub fn shrink_list(&self, report: &Report) -> Result<(), RecordError> {
        let path = list();
        let failed = |source| RecordError::File { path: path.clone(), source };
        let text = std::fs::read_to_string(&path).map_err(failed)?;
        let kept: Vec<_> =
            text.lines().filter(|line| !report.is_same(line.split_whitespace().next())).collect();
        std::fs::write(&path, kept.join("\n") + "\n").map_err(failed)
    }

    /// Holds a run of our server against an expected one, with the list of what is known to differ.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn judge_ours(
        &self,
        expected: &BTreeMap<String, Recorded>,
        ours: &BTreeMap<String, Recorded>,
    ) -> Result<Report, RecordError> {
        let mut report = judge(expected, ours);
        report.allow(&list())?;
        if !self.whole {
            report.not_yet.retain(|name, _| report.outcomes.contains_key(name));
        }
        Ok(report)
    }
}
