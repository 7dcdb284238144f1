//! The format of the scenario files in `scenarios/`.
//!
//! ```yaml
//! topic: configmaps
//! scenarios:
//!   - name: update-with-a-stale-version
//!     about: A write with an older resourceVersion is refused and changes nothing.
//!     steps:
//!       - POST: ${core}/configmaps
//!         body: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}
//!         save: {version: /metadata/resourceVersion}
//!       - PATCH: ${core}/configmaps/a
//!         type: merge
//!         body: {data: {k: v}}
//! ```
//!
//! `${…}` is replaced in paths, headers and strings of bodies. `${id}` is unique to the run of the
//! scenario, `${ns}` is its namespace, `${core}` is `/api/v1/namespaces/${ns}`, `${i}` counts a
//! step's repetitions from zero, `${large}` is a very long word. Every other name was saved by an
//! earlier step.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

/// One file of scenarios.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Topic {
    /// The prefix of its scenarios' names.
    pub topic: String,
    /// True if the scenarios create pods, so that each of them waits until its namespace has the
    /// `default` service account.
    #[serde(default)]
    pub wait_for_service_account: bool,
    /// The CustomResourceDefinitions to install before the topic begins (files or folders, from the
    /// root of the checkout).
    #[serde(default)]
    pub install: Vec<PathBuf>,
    /// Bodies that several steps share, kept here for YAML anchors; the runner does not read them.
    #[serde(default)]
    pub shared: Value,
    /// The first steps of every scenario of the topic; they are recorded like its own.
    #[serde(default)]
    pub before: Vec<Step>,
    /// Paths that are deleted after a scenario, with any outcome.
    #[serde(default)]
    pub cleanup: Vec<String>,
    /// The scenarios, in the order in which they are reported.
    pub scenarios: Vec<Scenario>,
}

/// A sequence of calls and its observations.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Scenario {
    /// Unique within its topic.
    pub name: String,
    /// The subject, in a sentence.
    #[serde(default)]
    pub about: String,
    /// The calls.
    pub steps: Vec<Step>,
    /// Paths that are deleted at the end, after the topic's.
    #[serde(default)]
    pub cleanup: Vec<String>,
}

/// One call, or one read of a watch that an earlier step opened. Exactly one of the capital words,
/// `watch` and `read` is set.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Step {
    /// `GET` this path.
    #[serde(rename = "GET")]
    pub get: Option<String>,
    /// `HEAD` this path.
    #[serde(rename = "HEAD")]
    pub head: Option<String>,
    /// `POST` to this path.
    #[serde(rename = "POST")]
    pub post: Option<String>,
    /// `PUT` to this path.
    #[serde(rename = "PUT")]
    pub put: Option<String>,
    /// `PATCH` this path; `type` is the content type.
    #[serde(rename = "PATCH")]
    pub patch: Option<String>,
    /// `DELETE` this path.
    #[serde(rename = "DELETE")]
    pub delete: Option<String>,
    /// `OPTIONS` of this path.
    #[serde(rename = "OPTIONS")]
    pub options: Option<String>,
    /// Watch this path (`watch=true` is added) and record the events.
    pub watch: Option<String>,
    /// Record events of the watch that an earlier step opened under this name.
    pub read: Option<String>,

    /// The body, sent as JSON.
    pub body: Option<Value>,
    /// The body, sent unchanged.
    pub raw: Option<String>,
    /// The content type: `json` (the default), `yaml`, `json-patch`, `merge`, `strategic`, `apply`,
    /// or a media type.
    #[serde(rename = "type")]
    pub content_type: Option<String>,
    /// The `Accept` header; `application/json` by default. `table` and `metadata` (with `-list` for
    /// lists) are short for the two views.
    pub accept: Option<String>,
    /// Other headers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Act as this user, by impersonation.
    pub user: Option<String>,
    /// Use this bearer token instead of the target's own credentials.
    pub token: Option<String>,
    /// The number of repetitions; only the last answer is recorded. `${i}` is the repetition.
    pub repeat: Option<usize>,

    /// Names for parts of the answer (JSON pointers) that later steps use.
    #[serde(default)]
    pub save: BTreeMap<String, String>,
    /// Repeat the call until this holds; only the answer that satisfies it is recorded.
    pub until: Option<Until>,
    /// Leave the watch open under this name for `read` steps.
    pub open: Option<String>,
    /// Read this number of events, without bookmarks.
    pub events: Option<usize>,
    /// Read until a bookmark, which is recorded, or until the server ends the watch.
    pub end: Option<WatchEnd>,

    /// Record only these parts of the answer.
    #[serde(default)]
    pub only: Vec<String>,
    /// Do not record these parts of the answer, which another component may write at any time.
    #[serde(default)]
    pub hide: Vec<String>,
    /// Record only the chosen elements of a list in the answer, in the order of their names.
    #[serde(default)]
    pub keep: Vec<Keep>,
}

/// The condition of a repeated call. All parts must hold.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Until {
    /// The status code.
    pub code: Option<u16>,
    /// This part of the answer exists.
    pub present: Option<String>,
    /// This part of the answer does not exist.
    pub absent: Option<String>,
    /// The part named by the key equals the value.
    #[serde(default)]
    pub equal: BTreeMap<String, Value>,
}

/// The end of reading a watch, other than a number of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WatchEnd {
    /// At the first bookmark.
    Bookmark,
    /// When the server closes the stream.
    Closed,
}

/// A choice of elements of a list.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keep {
    /// The pointer to the list.
    pub at: String,
    /// The field with an element's name.
    pub by: String,
    /// The names to keep.
    pub values: Vec<String>,
}

/// The error of scenarios that could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The folder or a file cannot be read.
    #[error("read {path}")]
    Read {
        /// Its path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A file is not a topic.
    #[error("parse {path}: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The parser's message, with the position.
        message: String,
    },
    /// Two scenarios have the same name.
    #[error("two scenarios are named {0}")]
    Twice(String),
}

/// Reads every topic in a folder, in the order of the file names.
///
/// # Errors
///
/// Fails if a file cannot be read, does not parse, or repeats a scenario's name.
pub fn load(folder: &Path) -> Result<Vec<Topic>, LoadError> {
    let read = |source| LoadError::Read { path: folder.to_owned(), source };
    let mut paths = std::fs::read_dir(folder)
        .map_err(read)?
        .map(|entry| entry.map(|found| found.path()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(read)?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    paths.sort();
    let mut names = std::collections::BTreeSet::new();
    let mut topics = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path)
            .map_err(|source| LoadError::Read { path: path.clone(), source })?;
        // `y` and `no` are plain words in a scenario, as for Kubernetes' own YAML parser in JSON
        // bodies.
        let options = serde_saphyr::options! { strict_booleans: true };
        let topic: Topic = serde_saphyr::from_str_with_options(&text, options)
            .map_err(|error| LoadError::Parse { path: path.clone(), message: error.to_string() })?;
        for scenario in &topic.scenarios {
            let name = format!("{}/{}", topic.topic, scenario.name);
            if !names.insert(name.clone()) {
                return Err(LoadError::Twice(name));
            }
        }
        topics.push(topic);
    }
    Ok(topics)
}
