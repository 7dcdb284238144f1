//! The observations of a scenario, and their storage.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// All answers that a client saw while one scenario was played.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Transcript {
    /// One entry per step, in order.
    pub exchanges: Vec<Exchange>,
    /// The reason why the scenario did not reach its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
}

/// One answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// Method and path, as in the scenario.
    pub request: String,
    /// Status code.
    pub code: u16,
    /// The headers that clients act on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Vec<String>>,
    /// The body: JSON as a value, anything else as a string.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub body: Value,
    /// The events of a watch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<Value>>,
}

/// The masked transcripts of one topic, by scenario.
pub type Recorded = BTreeMap<String, Transcript>;

/// The error of a recording that could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file system reports an error.
    #[error("access {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// It is not a recording.
    #[error("parse {path}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
}

/// Reads `folder/topic.json`; a topic without a recording is empty.
///
/// # Errors
///
/// Fails if the file exists and is not a recording.
pub fn read(folder: &Path, topic: &str) -> Result<Recorded, RecordError> {
    let path = folder.join(format!("{topic}.json"));
    match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|source| RecordError::Parse { path, source }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Recorded::new()),
        Err(source) => Err(RecordError::File { path, source }),
    }
}

/// Writes `folder/topic.json`, formatted so that a change of one field is a change of one line.
///
/// # Errors
///
/// Fails if the file cannot be written.
pub fn write(folder: &Path, topic: &str, recorded: &Recorded) -> Result<(), RecordError> {
    let path = folder.join(format!("{topic}.json"));
    let mut text = serde_json::to_string_pretty(recorded)
        .map_err(|source| RecordError::Parse { path: path.clone(), source })?;
    text.push('\n');
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&path, text))
        .map_err(|source| RecordError::File { path, source })
}
