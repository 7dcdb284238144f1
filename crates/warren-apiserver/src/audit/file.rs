//! The file of the audit log and the thread that writes it.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use thiserror::Error;

/// The place and the size limits of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditConfig {
    /// The path of the current file. Older files are beside it as `PATH.1`, `PATH.2`….
    pub path: PathBuf,
    /// The size in bytes at which the file is rotated.
    pub largest_file: u64,
    /// The number of older files that are kept.
    pub older_files: usize,
}

impl AuditConfig {
    /// Limits the log to some 64 MiB: about two days at one write per second, and little on a small
    /// disk.
    pub fn new(path: PathBuf) -> AuditConfig {
        AuditConfig { path, largest_file: 16 << 20, older_files: 3 }
    }
}

/// An error while opening the audit log.
#[derive(Debug, Error)]
pub enum AuditError {
    /// The file could not be opened.
    #[error("open audit log {}", path.display())]
    Open {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The writer thread could not be started.
    #[error("start the thread of the audit log")]
    Thread(#[source] io::Error),
}

/// A message to the writer thread.
pub(super) enum Message {
    Line(Vec<u8>),
    /// Write the queued lines and end.
    End,
}

pub(super) struct LogFile {
    config: AuditConfig,
    file: File,
    size: u64,
    /// True if the file ends in the middle of a line, because the disk was full.
    torn: bool,
    /// True if the last write failed. The failure is logged once, not for every line.
    failing: bool,
}

impl LogFile {
    pub fn open(config: &AuditConfig) -> Result<LogFile, AuditError> {
        let failed = |source| AuditError::Open { path: config.path.clone(), source };
        let file = append_to(&config.path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        // A killed process may have left half a line. If not, an empty line does no harm.
        Ok(LogFile { config: config.clone(), file, size, torn: size > 0, failing: false })
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.size >= self.config.largest_file {
            self.rotate()?;
        }
        if self.torn {
            self.file.write_all(b"\n")?;
            self.torn = false;
            self.size += 1;
        }
        self.torn = true;
        self.file.write_all(lines)?;
        self.torn = false;
        self.size += lines.len() as u64;
        Ok(())
    }

    /// Renames each file to the next older name. The oldest is overwritten.
    fn rotate(&mut self) -> io::Result<()> {
        let path = |age: usize| match age {
            0 => self.config.path.clone(),
            age => PathBuf::from(format!("{}.{age}", self.config.path.display())),
        };
        for age in (0..self.config.older_files).rev() {
            match fs::rename(path(age), path(age + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if self.config.older_files == 0 {
            fs::remove_file(path(0))?;
        }
        self.file = append_to(&self.config.path)?;
        self.size = 0;
        self.torn = false;
        Ok(())
    }

    fn write_or_complain(&mut self, lines: &[u8]) {
        match self.write(lines) {
            Ok(()) if self.failing => {
                self.failing = false;
                tracing::info!(path = %self.config.path.display(), "the audit log is written again");
            }
            Ok(()) => {}
            Err(error) => {
                if !self.failing {
                    let path = self.config.path.display();
                    tracing::error!(%path, %error, "the audit log cannot be written; entries are lost");
                }
                self.failing = true;
            }
        }
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

/// The time that the first line waits for more: waking the thread for each line costs more than
/// writing it.
const GATHER: Duration = Duration::from_millis(5);

/// Writes lines in batches until told to end.
#[expect(
    clippy::disallowed_methods,
    reason = "what is waited for is more lines, and each of them must not wake us"
)]
pub(super) fn run(mut file: LogFile, messages: &Receiver<Message>) {
    const LARGEST_WRITE: usize = 256 << 10;
    let mut lines = Vec::new();
    while let Ok(first) = messages.recv() {
        let mut end = false;
        if matches!(first, Message::Line(_)) {
            std::thread::sleep(GATHER);
        }
        let mut next = Some(first);
        while let Some(message) = next.take() {
            match message {
                Message::Line(line) => lines.extend_from_slice(&line),
                Message::End => end = true,
            }
            if lines.len() < LARGEST_WRITE && !end {
                next = messages.try_recv().ok();
            }
        }
        if !lines.is_empty() {
            file.write_or_complain(&lines);
            lines.clear();
        }
        if end {
            return;
        }
    }
}
