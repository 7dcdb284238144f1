//! Reads the termination message of a container: the content of its `terminationMessagePath`, or
//! the end of its log.

use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Container;

use crate::pod_request::PodDirectory;

/// The longest message in bytes: kubelet's number.
const LONGEST_MESSAGE: u64 = 4096;
/// The longest message from a log in bytes: kubelet's number.
const LONGEST_FROM_LOG: usize = 2048;
/// The most lines of a message from a log: kubelet's number.
const MOST_LINES_FROM_LOG: usize = 80;
/// The part of a log that is searched: lines carry their time, and may be long.
const END_OF_LOG: u64 = 64 << 10;

/// Returns the path at which the shim keeps the message of one run of a container, if the run has
/// left one.
pub(crate) fn path(directory: &PodDirectory, container: &str, attempt: u32) -> PathBuf {
    directory.0.join("termination").join(container).join(attempt.to_string())
}

/// Returns the message of a run that ended with `exit_code`.
pub(crate) fn read(
    directory: &PodDirectory,
    container: &Container,
    attempt: u32,
    exit_code: i32,
) -> Option<String> {
    let mut message = Vec::new();
    // The file is ours; without one the container has left no message.
    let file = fs::File::open(path(directory, &container.name, attempt)).ok();
    file.and_then(|file| file.take(LONGEST_MESSAGE).read_to_end(&mut message).ok());
    if !message.is_empty() {
        return Some(String::from_utf8_lossy(&message).into_owned());
    }
    let from_log = container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError");
    if !from_log || exit_code == 0 {
        return None;
    }
    let end = end_of(&directory.log(&container.name, attempt)).ok()?;
    Some(last_lines(&String::from_utf8_lossy(&end))).filter(|text| !text.is_empty())
}

fn end_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = fs::File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(END_OF_LOG)))?;
    let mut end = Vec::new();
    file.take(END_OF_LOG).read_to_end(&mut end)?;
    Ok(end)
}

/// Returns the last lines without the log's prefixes.
fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter_map(|line| line.splitn(4, ' ').nth(3)).collect();
    let mut text = String::new();
    for line in &lines[lines.len().saturating_sub(MOST_LINES_FROM_LOG)..] {
        text.push_str(line);
        text.push('\n');
    }
    let mut start = text.len().saturating_sub(LONGEST_FROM_LOG);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text.split_off(start)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_file_comes_before_the_log_and_the_log_only_when_asked_for() {
        let home = tempfile::tempdir().unwrap();
        let directory = PodDirectory(home.path().to_owned());
        let container = |policy: &str| -> Container {
            serde_json::from_value(json!({"name": "main", "terminationMessagePolicy": policy})).unwrap()
        };
        let (file, log) = (path(&directory, "main", 0), directory.log("main", 0));
        for path in [&file, &log] {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
        }
        fs::write(&log, "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:01Z stderr F two words\n")
            .unwrap();
        fs::write(&file, "").unwrap();
        assert_eq!(read(&directory, &container("File"), 0, 1), None);
        assert_eq!(read(&directory, &container("FallbackToLogsOnError"), 0, 0), None);
        let from_log = read(&directory, &container("FallbackToLogsOnError"), 0, 1);
        assert_eq!(from_log.as_deref(), Some("one\ntwo words\n"));
        fs::write(&file, "x".repeat(5000)).unwrap();
        assert_eq!(read(&directory, &container("File"), 0, 0).unwrap().len(), 4096);
        assert_eq!(read(&directory, &container("File"), 1, 0), None);
    }
}
