//! The logs of components, for error messages.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

pub(crate) fn log_file(directory: &Path, component: &str) -> PathBuf {
    directory.join("logs").join(format!("{component}.log"))
}

/// Returns the end of a log, short enough for an error message.
pub(crate) fn last_lines(path: &Path) -> String {
    const BYTES: u64 = 8 * 1024;
    const LINES: usize = 12;
    let read = || {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(BYTES)))?;
        let mut bytes = Vec::new();
        file.take(BYTES).read_to_end(&mut bytes)?;
        io::Result::Ok(bytes)
    };
    let text = String::from_utf8_lossy(&read().unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_the_end_of_a_log_is_told() {
        let place = tempfile::tempdir().unwrap();
        let log = place.path().join("log");
        let lines: Vec<String> = (0..10_000).map(|number| format!("line {number}")).collect();
        fs::write(&log, lines.join("\n")).unwrap();
        let told = last_lines(&log);
        assert_eq!(told.lines().count(), 12);
        assert!(told.starts_with("line 9988\n") && told.ends_with("line 9999"), "{told}");
        assert_eq!(last_lines(&place.path().join("none")), "");
    }
}
