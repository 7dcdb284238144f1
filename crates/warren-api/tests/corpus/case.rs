//! The file of a case: the author's part, then `expect:`, which only the test writes.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

/// The author's part.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Script {
    /// The object to create.
    pub create: Value,
    /// The treatment of unknown fields in all steps. The default is `Ignore`.
    #[serde(default)]
    pub field_validation: FieldValidation,
    /// The steps that follow.
    #[serde(default)]
    pub then: Vec<Step>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub enum FieldValidation {
    #[default]
    Ignore,
    Warn,
    Strict,
}

/// An operation on the created object.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// A JSON merge patch.
    Patch(Value),
    /// A JSON merge patch of the status subresource.
    PatchStatus(Value),
    /// A JSON merge patch of the scale subresource.
    PatchScale(Value),
    /// Server-side apply of this `spec` by a manager of its own.
    Apply(Value),
}

pub struct Case {
    pub path: PathBuf,
    pub script: Script,
    /// The text below `expect:`.
    pub expected: String,
    author: String,
}

impl Case {
    pub fn load_all() -> Vec<Self> {
        let mut paths = Vec::new();
        collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus"), &mut paths);
        paths.sort();
        paths.into_iter().map(Self::load).collect()
    }

    fn load(path: PathBuf) -> Self {
        let text = std::fs::read_to_string(&path).unwrap();
        let (author, expected) = match text.split_once("\nexpect:\n") {
            Some((author, expected)) => (format!("{author}\n"), expected.to_owned()),
            None => (text, String::new()),
        };
        let script =
            serde_saphyr::from_str(&author).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { path, script, expected, author }
    }

    pub fn write_expected(&self, expected: &str) {
        std::fs::write(&self.path, format!("{}expect:\n{expected}", self.author)).unwrap();
    }
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            paths.push(path);
        }
    }
}
