//! The suite of this crate: its scenarios and recordings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::runner::{Pace, play_all};
use super::scenario::{self, LoadError, Topic};
use super::target::Target;
use super::transcript::{self, RecordError, Recorded};

/// The scenarios of this crate, optionally only those whose `topic/name` contains a word.
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

/// Returns the checkout, which contains the product's own CRDs.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

impl Suite {
    /// Reads the scenarios; with `only`, those whose `topic/name` contains it.
    ///
    /// # Errors
    ///
    /// Fails if a scenario file does not parse.
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

    /// Returns the number of scenarios by topic.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&str, usize> {
        self.topics.iter().map(|topic| (topic.topic.as_str(), topic.scenarios.len())).collect()
    }

    /// Plays the scenarios and returns the masked transcripts.
    pub async fn play(&self, target: &dyn Target, pace: Pace) -> BTreeMap<String, Recorded> {
        play_all(target, &self.topics, &root(), pace).await
    }

    /// Returns the real server's recording of these scenarios.
    ///
    /// # Errors
    ///
    /// Fails if a recording does not parse.
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

    /// Records a run of the real server: a run of the whole suite replaces the recording, a run of
    /// a part replaces that part.
    ///
    /// # Errors
    ///
    /// Fails if a recording cannot be read or written.
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
}
