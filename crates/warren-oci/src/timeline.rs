//! When each step of a start was over, for the benchmark that says where the time goes. Off unless a pod asks for it.

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
    /// A timeline that goes to `<directory>/timeline` if it is wanted.
    pub(crate) fn new(wanted: bool, directory: &Path) -> Self {
        let file = wanted
            .then(|| File::options().create(true).append(true).open(directory.join("timeline")).ok())
            .flatten();
        Self { file, text: String::new() }
    }

    /// The step `name` of `process` is over now.
    pub(crate) fn mark(&mut self, process: &str, name: &str) {
        if self.file.is_some() {
            self.text.push_str(&format!("{} {process} {name}\n", Timestamp::now().as_nanosecond()));
        }
    }

    /// Writes down what was marked. One write a process, so that lines of two do not mix.
    pub(crate) fn flush(&mut self) {
        if let Some(file) = &mut self.file {
            // A measurement that cannot be written is no reason to fail a container.
            let _ = file.write_all(self.text.as_bytes());
            self.text.clear();
        }
    }
}
