//! Records the commands that were run in sandboxes, with their results and durations, and prints
//! them (`warren history`).
//!
//! Each command is one JSON object, in a line of a file in the state directory that only its user
//! may read. It contains neither values of the environment nor the command's output.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use jiff::Timestamp;
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

use crate::cli::{Format, Output};
use crate::leases::state_directory;
use crate::sandboxes::list::{cell, table};

/// The size at which a new file is begun; the previous one stays beside it.
const LARGEST: u64 = 1 << 20;

/// The longest part of a command line that is kept.
const LONGEST_COMMAND: usize = 400;

/// `warren history`.
#[derive(Args, Debug)]
pub struct History {
    /// Show only so many of the last commands
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    pub last: usize,
    #[command(flatten)]
    pub output: Output,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Entry<'a> {
    /// The time when it was requested.
    pub began: Timestamp,
    /// Its duration.
    pub took: Duration,
    /// Its words.
    pub command: &'a [String],
    /// Its exit code; `None` if it could not be run.
    pub code: Option<i32>,
    /// The home as readable text.
    pub home: String,
    /// The lease that it ran in.
    pub lease: Option<&'a str>,
    /// The isolation of its containers, if their node reported it in time.
    pub isolation: Option<&'a str>,
}

/// Adds an entry. Errors are only logged: the command's own result matters more.
pub fn note(entry: &Entry<'_>) {
    let noted = state_directory().and_then(|directory| Ok(append(&directory, &line(entry))?));
    if let Err(error) = noted {
        tracing::debug!(%error, "history not written");
    }
}

fn line(entry: &Entry<'_>) -> String {
    let mut command = entry.command.join(" ");
    if let Some((end, _)) = command.char_indices().nth(LONGEST_COMMAND) {
        command.truncate(end);
        command.push('…');
    }
    let line = json!({
        "began": entry.began, "seconds": (entry.took.as_secs_f64() * 1e3).round() / 1e3, "code": entry.code,
        "command": command, "home": entry.home, "lease": entry.lease, "isolation": entry.isolation,
    });
    format!("{line}\n")
}

fn append(directory: &Path, line: &str) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let path = directory.join("history.jsonl");
    let open = || fs::OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
    let mut file = open()?;
    flock(&file, FlockOperation::LockExclusive)?;
    if file.metadata()?.len() + line.len() as u64 > LARGEST {
        fs::rename(&path, directory.join("history.1.jsonl"))?;
        file = open()?;
    }
    // A single write, so that a reader sees the whole line or nothing of it.
    file.write_all(line.as_bytes())
}

/// Prints the last commands, the newest last.
pub fn history(arguments: &History) -> anyhow::Result<()> {
    let rows = read(&state_directory()?, arguments.last).context("read the history")?;
    match arguments.output.output {
        Format::Json => println!("{}", json!({ "commands": rows })),
        Format::Text => print!("{}", text(&rows)),
    }
    Ok(())
}

fn read(directory: &Path, last: usize) -> std::io::Result<Vec<Value>> {
    let mut rows = std::collections::VecDeque::new();
    for name in ["history.1.jsonl", "history.jsonl"] {
        let file = match File::open(directory.join(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for line in BufReader::new(file).lines() {
            // A line that a full disk has cut short is skipped.
            let Ok(row) = serde_json::from_str(&line?) else { continue };
            rows.push_back(row);
            if rows.len() > last {
                rows.pop_front();
            }
        }
    }
    Ok(rows.into())
}

fn text(rows: &[Value]) -> String {
    let rows = rows.iter().map(|row| {
        let seconds = row["seconds"].as_f64().map(|seconds| format!("{seconds:.1} s")).unwrap_or_default();
        let [began, code, lease, isolation, command] =
            ["began", "code", "lease", "isolation", "command"].map(|key| cell(&row[key]));
        let began = began.split('.').next().unwrap_or_default().trim_end_matches('Z').replace('T', " ");
        [began, code, seconds, lease, isolation, command]
    });
    table(&["BEGAN (UTC)", "CODE", "TOOK", "LEASE", "ISOLATION", "COMMAND"], &rows.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(directory: &Path, command: &str) {
        let words = [command.to_owned()];
        let entry = Entry {
            began: Timestamp::UNIX_EPOCH,
            took: Duration::from_millis(1234),
            command: &words,
            code: Some(3),
            home: "h".to_owned(),
            lease: Some("mine"),
            isolation: Some("Namespaces"),
        };
        append(directory, &line(&entry)).expect("append");
    }

    #[test]
    fn last_commands_are_shown_and_the_file_stays_small() {
        let directory = tempfile::tempdir().expect("make a directory");
        noted(directory.path(), "first\u{1b}[2J");
        noted(directory.path(), "second");
        let rows = read(directory.path(), 5).expect("read");
        assert_eq!(
            text(&rows),
            "BEGAN (UTC)          CODE  TOOK   LEASE  ISOLATION   COMMAND\n\
             1970-01-01 00:00:00  3     1.2 s  mine   Namespaces  first [2J\n\
             1970-01-01 00:00:00  3     1.2 s  mine   Namespaces  second\n"
        );
        assert_eq!(read(directory.path(), 1).expect("read")[0]["command"], "second");
        for _ in 0..3000 {
            noted(directory.path(), &"x".repeat(1000));
        }
        let size = |name: &str| fs::metadata(directory.path().join(name)).expect("it is there").len();
        assert!(size("history.jsonl") <= LARGEST && size("history.1.jsonl") <= LARGEST);
        assert_eq!(read(directory.path(), 7).expect("read").len(), 7);
    }
}
