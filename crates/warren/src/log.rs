//! Writes diagnostics to standard error, which for a detached daemon is `daemon.log` in its data
//! directory.
//!
//! Logging never panics and never blocks. Lines that cannot be written, because the disk is full or
//! the reader of a pipe has stopped reading, are dropped and counted. After [`write_by_thread`]
//! only a separate thread waits for the disk.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use tracing_subscriber::EnvFilter;

/// The size at which a log is moved to `daemon.log.1`, which replaces the previous one.
const LONGEST_LOG: u64 = 10 << 20;
/// The number of lines that may wait for the thread.
const QUEUE: usize = 1024;
/// The longest line; together with [`QUEUE`] it limits the memory of waiting lines.
const LONGEST_LINE: usize = 16 << 10;
/// The time limit for the last lines at the end of the process.
const FAREWELL: Duration = Duration::from_secs(1);

/// Starts to send diagnostics to standard error; `WARREN_LOG` filters them.
pub fn begin(default: &str, as_json: bool) {
    let filter = EnvFilter::try_from_env("WARREN_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Line)
        .with_ansi(false)
        // It would report a failure with `eprintln!`, which panics if standard error itself has
        // failed.
        .log_internal_errors(false);
    match as_json {
        true => lines.json().init(),
        false => lines.init(),
    }
}

/// Starts a writing thread, so that no other thread waits for the disk or for the reader of a pipe.
/// To be called when the process may have threads. If standard error is the file `log`, that file
/// is kept short.
pub fn write_by_thread(log: Option<&Path>) {
    let (sender, receiver) = sync_channel(QUEUE);
    let log = log.filter(|path| is_standard_error(path)).map(Path::to_owned);
    let thread = std::thread::Builder::new().name("log".to_owned());
    // Without a thread, lines are written as before.
    if thread.spawn(move || run(&receiver, log.as_deref())).is_ok() {
        let _ = QUEUED.set(Queue { messages: sender, lost: AtomicU64::new(0) });
    }
}

/// Waits for a short time until the thread has written its lines.
pub fn finish() {
    let Some(queue) = QUEUED.get() else { return };
    let (done, wait) = sync_channel(1);
    if queue.messages.try_send(Message::Flush(done)).is_ok() {
        let _ = wait.recv_timeout(FAREWELL);
    }
}

/// Opens a log for appending, for its owner only, and moves its lines aside if it is large.
pub fn open(path: &Path) -> io::Result<File> {
    let log = File::options().create(true).append(true).mode(0o600).open(path)?;
    let metadata = log.metadata()?;
    if metadata.permissions().mode() & 0o077 != 0 {
        log.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    }
    if metadata.len() > LONGEST_LOG {
        move_aside(path, || log.set_len(0))?;
    }
    Ok(log)
}

static QUEUED: OnceLock<Queue> = OnceLock::new();

struct Queue {
    messages: SyncSender<Message>,
    lost: AtomicU64,
}

enum Message {
    Line(Vec<u8>),
    /// The sender is dropped once all earlier lines are written.
    Flush(SyncSender<()>),
}

/// A writer that takes one formatted line at a time and never fails.
struct Line;

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match QUEUED.get() {
            Some(queue) => queue.push(line),
            None => write_to_standard_error(line),
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Queue {
    fn push(&self, line: &[u8]) {
        let mut kept = line[..line.len().min(LONGEST_LINE)].to_vec();
        if kept.len() < line.len() {
            kept.push(b'\n');
        }
        if let Err(TrySendError::Full(_)) = self.messages.try_send(Message::Line(kept)) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn write_to_standard_error(line: &[u8]) {
    // There is no place to report a failure.
    let _ = io::stderr().write_all(line);
}

fn run(messages: &Receiver<Message>, log: Option<&Path>) {
    for message in messages {
        let line = match message {
            Message::Line(line) => line,
            Message::Flush(_done) => continue,
        };
        let lost = QUEUED.get().map_or(0, |queue| queue.lost.swap(0, Ordering::Relaxed));
        if lost > 0 {
            write_to_standard_error(format!("{lost} lines of this log were lost\n").as_bytes());
        }
        write_to_standard_error(&line);
        if let Some(log) = log {
            keep_short(log);
        }
    }
}

/// Moves a large log aside. Shims and the zygote write to the same file, so it is emptied, not
/// replaced.
fn keep_short(log: &Path) {
    let standard_error = rustix::stdio::stderr();
    let length = rustix::fs::fstat(standard_error).map_or(0, |status| status.st_size.cast_unsigned());
    if length > LONGEST_LOG {
        // The next line tries again.
        let _ = move_aside(log, || Ok(rustix::fs::ftruncate(standard_error, 0)?));
    }
}

/// Copies a log to `PATH.1` and empties it. If the disk has no room for the copy, the lines are
/// lost.
fn move_aside(path: &Path, empty: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let aside = PathBuf::from(format!("{}.1", path.display()));
    let copied = File::open(path).and_then(|mut log| {
        // Removed first: the old one may have another mode.
        match std::fs::remove_file(&aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut copy = File::options().write(true).create_new(true).mode(0o600).open(&aside)?;
        io::copy(&mut log, &mut copy)
    });
    if copied.is_err() {
        let _ = std::fs::remove_file(&aside);
    }
    empty()
}

fn is_standard_error(path: &Path) -> bool {
    let (Ok(file), Ok(standard_error)) =
        (std::fs::metadata(path), rustix::fs::fstat(rustix::stdio::stderr()))
    else {
        return false;
    };
    (file.dev(), file.ino()) == (standard_error.st_dev, standard_error.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_log_is_moved_aside_and_only_its_owner_reads_either() {
        let directory = tempfile::tempdir().expect("make a directory");
        let path = directory.path().join("daemon.log");
        std::fs::write(&path, "first\n").expect("write");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("set the mode");
        let mut log = open(&path).expect("open");
        assert_eq!(log.metadata().expect("look").permissions().mode() & 0o777, 0o600);
        log.write_all(b"second\n").expect("write");
        let aside = directory.path().join("daemon.log.1");
        assert!(!aside.exists());

        log.set_len(LONGEST_LOG + 1).expect("make it long");
        open(&path).expect("open").write_all(b"third\n").expect("write");
        // The same file, so that processes with an open descriptor continue to write to it.
        log.write_all(b"fourth\n").expect("write");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "third\nfourth\n");
        let kept = std::fs::read(&aside).expect("read");
        assert_eq!((kept.len() as u64, kept.starts_with(b"first\nsecond\n")), (LONGEST_LOG + 1, true));
        assert_eq!(std::fs::metadata(&aside).expect("look").permissions().mode() & 0o777, 0o600);
    }
}
