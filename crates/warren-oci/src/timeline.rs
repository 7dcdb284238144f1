//! Records the time of each step of a start, for a benchmark. Off unless a pod requests it.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use jiff::Timestamp;

/// Steps of one process, in order.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    file: Option<File>,
    text: String,
}

impl Timeline {
    /// Creates a timeline that writes to `<directory>/timeline`, if wanted.
    pub(crate) fn new(wanted: bool, directory: &Path) -> Self {
        let file = wanted
            .then(|| File::options().create(true).append(true).open(directory.join("timeline")).ok())
            .flatten();
        Self { file, text: String::new() }
    }

    /// Records the end of step `name` of `process`.
    pub(crate) fn mark(&mut self, process: &str, name: &str) {
        if self.file.is_some() {
            self.text.push_str(&format!("{} {process} {name}\n", Timestamp::now().as_nanosecond()));
        }
    }

    /// Writes the recorded steps. Each process makes a single write, so that lines do not mix.
    pub(crate) fn flush(&mut self) {
        if let Some(file) = &mut self.file {
            // A lost measurement must not fail a container.
            let _ = file.write_all(self.text.as_bytes());
            self.text.clear();
        }
    }
}
