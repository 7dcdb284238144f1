//! Runs `warren migrate`: prints manifests for `v1alpha1` as `v1beta1`.
//!
//! Documents that need no change are printed unchanged, including comments. Each part that could
//! not be converted becomes a `#` comment above its document. A pool that a claim now needs follows
//! at the end, so that the output can be applied as it is. The conversion itself is
//! [`warren_api::v1alpha1`].

use std::fmt::Write as _;
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;
use warren_api::v1alpha1::{ConversionError, Converted, convert, missing_companions};

use crate::cli;

/// The reason why nothing was printed.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// An input could not be read.
    #[error("read `{}`", file.display())]
    Read {
        /// The file as given.
        file: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// A document is not YAML.
    #[error("{file}, document {document}: not YAML: {problem}")]
    NotYaml {
        /// The file as given.
        file: String,
        /// Counted from 1.
        document: usize,
        /// The position and the problem, in one line.
        problem: String,
    },
    /// A document cannot be converted.
    #[error("{file}, document {document}")]
    Convert {
        /// The file as given.
        file: String,
        /// Counted from 1.
        document: usize,
        /// The field and its problem.
        #[source]
        source: ConversionError,
    },
    /// A converted document cannot be written and read back.
    #[error("{file}, document {document}: cannot be written as YAML: {problem}")]
    Unwritable {
        /// The file as given.
        file: String,
        /// Counted from 1.
        document: usize,
        /// The problem.
        problem: String,
    },
    /// The output could not be written.
    #[error("write the result")]
    Write(#[source] io::Error),
}

/// Reads and converts the files, and prints the result only if all of them could be converted.
pub fn migrate(arguments: &cli::Migrate, output: &mut dyn Write) -> Result<(), MigrateError> {
    let mut inputs = Vec::new();
    for file in &arguments.files {
        let failed = |source| MigrateError::Read { file: file.clone(), source };
        let text = if file == Path::new("-") {
            let mut text = String::new();
            io::stdin().lock().read_to_string(&mut text).map_err(failed)?;
            text
        } else {
            std::fs::read_to_string(file).map_err(failed)?
        };
        let name =
            if file == Path::new("-") { "standard input".to_owned() } else { file.display().to_string() };
        inputs.push((name, text));
    }
    let migrated = migrate_texts(&inputs)?;
    output.write_all(migrated.as_bytes()).map_err(MigrateError::Write)
}

/// Converts inputs, given by name and text, into one stream of YAML documents.
fn migrate_texts(inputs: &[(String, String)]) -> Result<String, MigrateError> {
    let mut result = String::new();
    let mut documents = Vec::new();
    for (file, text) in inputs {
        let mut number = 0;
        for text in split_documents(text) {
            let Some(value) = parse(text).map_err(|problem| MigrateError::NotYaml {
                file: file.clone(),
                document: number + 1,
                problem,
            })?
            else {
                // Leading comments stay; an empty document is dropped.
                if !text.trim().is_empty() {
                    separate(&mut result);
                    result.push_str(text);
                }
                continue;
            };
            number += 1;
            let converted = convert(value).map_err(|source| MigrateError::Convert {
                file: file.clone(),
                document: number,
                source,
            })?;
            append(&mut result, &converted, text).map_err(|problem| MigrateError::Unwritable {
                file: file.clone(),
                document: number,
                problem,
            })?;
            documents.push(converted);
        }
    }
    for companion in missing_companions(&documents) {
        let text = to_yaml(companion).map_err(|problem| MigrateError::Unwritable {
            file: "what the documents need".to_owned(),
            document: 1,
            problem,
        })?;
        separate(&mut result);
        let kind = companion["kind"].as_str().unwrap_or_default();
        let _ = writeln!(result, "# Added by `warren migrate`: a {kind} that a document above refers to.");
        result.push_str(&text);
    }
    Ok(result)
}

fn append(result: &mut String, converted: &Converted, text: &str) -> Result<(), String> {
    separate(result);
    for note in &converted.notes {
        // A note quotes the manifest, and a line break in it must not end the comment.
        let _ = writeln!(result, "# {}", note.to_string().replace(['\n', '\r'], " "));
    }
    if converted.changed {
        result.push_str(&to_yaml(&converted.object)?);
    } else {
        result.push_str(text.trim_start_matches('\n'));
        if !text.ends_with('\n') {
            result.push('\n');
        }
    }
    Ok(())
}

fn separate(result: &mut String) {
    if !result.is_empty() && !result.ends_with('\n') {
        result.push('\n');
    }
    if !result.is_empty() {
        result.push_str("---\n");
    }
}

/// Splits a text at document markers. A line that begins with `---` is always a marker in YAML,
/// even inside a block of text, so no parser is needed.
fn split_documents(text: &str) -> Vec<&str> {
    let mut documents = Vec::new();
    let (mut start, mut at) = (0, 0);
    for line in text.split_inclusive('\n') {
        let end = at + line.len();
        let is_marker = line.trim_end() == "---" || line.starts_with("--- ");
        if is_marker {
            documents.push(&text[start..at]);
            // Text after the marker on its line belongs to the document, such as a comment.
            start = at + "---".len();
            if line.trim_end() == "---" {
                start = end;
            }
        }
        at = end;
    }
    documents.push(&text[start..]);
    documents
}

/// Parses the object in a document, if there is one. The error is one line.
fn parse(text: &str) -> Result<Option<Value>, String> {
    // As in kubectl: `0644` is octal, `yes` is true.
    let options = serde_saphyr::options! { legacy_octal_numbers: true, with_snippet: false };
    let value: Value = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let problem = error.to_string();
        let problem = problem.lines().next().unwrap_or_default().to_owned();
        match problem.split_once(", set DuplicateKeyPolicy") {
            Some((problem, _)) => format!("{problem}; is a `---` missing between two documents?"),
            None => problem,
        }
    })?;
    Ok((!value.is_null()).then_some(value))
}

/// Formats the object as YAML, and reads it back: a word such as `no` must not become another
/// value.
fn to_yaml(object: &Value) -> Result<String, String> {
    let text = serde_saphyr::to_string(object).map_err(|error| error.to_string())?;
    match parse(&text)? {
        Some(read) if read == *object => Ok(text),
        _ => Err("it would be read back as something else".to_owned()),
    }
}

#[cfg(test)]
mod tests;
