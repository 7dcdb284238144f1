//! Copies a log to its reader and follows it as it grows.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use warren_oci::protocol::{ContainerStatus, PodState};

use super::{LogOptions, position};
use crate::directory_watch::DirectoryWatch;

/// The most bytes that are read and sent at once.
const CHUNK: usize = 64 << 10;
/// The longest line that is shown. The shim splits lines at 16 KiB, so a longer one without an end
/// is not the shim's and is skipped.
const LONGEST_LINE: usize = 256 << 10;

/// One run of a container: while it lasts, its log may grow.
pub(super) struct Run {
    pub(super) container: String,
    pub(super) attempt: u32,
    pub(super) state: watch::Receiver<Option<PodState>>,
}

impl Run {
    fn lasts(&self) -> bool {
        self.state.borrow().as_ref().and_then(|state| state.containers.get(&self.container)).is_some_and(
            |container| {
                container.attempt == self.attempt
                    && matches!(container.status, ContainerStatus::Starting | ContainerStatus::Running { .. })
            },
        )
    }

    async fn changed(&mut self) {
        // If the worker is gone, no more states come, and the run counts as ended.
        if self.state.changed().await.is_err() {
            self.state = watch::channel(None).1;
        }
    }
}

/// Sends the log to `reader` until its end; with `follow`, until the run's end. Fails with
/// `BrokenPipe` when the reader is gone.
pub(super) async fn copy(
    path: &Path,
    mut run: Run,
    options: LogOptions,
    reader: &mpsc::Sender<Bytes>,
) -> io::Result<()> {
    // Watch before the first read, so that no change between them is missed.
    let watch = match (options.follow, path.parent()) {
        (true, Some(directory)) => Some(DirectoryWatch::new(directory)?),
        _ => None,
    };
    let files = blocking({
        let path = path.to_owned();
        move || position::files(&path)
    })
    .await?;
    let (first, mut offset) = match options.tail_lines {
        None => (0, 0),
        Some(lines) => {
            let found = position::tail(&files, lines)?;
            (found.0, found.1)
        }
    };
    let mut lines = Lines::new(&options);
    let mut files = files.into_iter().skip(first).map(Arc::new).peekable();
    let mut current: Option<Arc<File>> = None;
    while let Some(file) = files.next() {
        offset = drain(&file, offset, &mut lines, reader).await?;
        if files.peek().is_some() {
            offset = 0;
        }
        current = Some(file);
    }
    let Some(watch) = watch else { return Ok(()) };
    loop {
        if lines.full() {
            return Ok(());
        }
        let lasts = run.lasts();
        // If the run has ended, its output is complete now: one more read is enough.
        if let Some(file) = &current {
            offset = drain(file, offset, &mut lines, reader).await?;
        }
        if let Some(next) = successor(path, current.as_deref())? {
            // The rest of the old file was read after its rotation.
            if let Some(file) = &current {
                drain(file, offset, &mut lines, reader).await?;
            }
            current = Some(Arc::new(next));
            offset = 0;
            continue;
        }
        if !lasts {
            return Ok(());
        }
        tokio::select! {
            event = watch.event() => event?,
            () = run.changed() => {}
            () = reader.closed() => return Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

/// Returns the file at `path` if it differs from `current`.
fn successor(path: &Path, current: Option<&File>) -> io::Result<Option<File>> {
    let file = match File::open(path) {
        Ok(file) => file,
        // The file is being rotated, or not written yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let same = match current {
        Some(current) => current.metadata()?.ino() == file.metadata()?.ino(),
        None => false,
    };
    Ok((!same).then_some(file))
}

/// Sends the file's content from `offset` on. Returns the offset of its end.
async fn drain(
    file: &Arc<File>,
    mut offset: u64,
    lines: &mut Lines,
    reader: &mpsc::Sender<Bytes>,
) -> io::Result<u64> {
    loop {
        let (file, from) = (file.clone(), offset);
        let data = blocking(move || {
            let mut data = vec![0; CHUNK];
            let length = file.read_at(&mut data, from)?;
            data.truncate(length);
            Ok(data)
        })
        .await?;
        if data.is_empty() || lines.full() {
            return Ok(offset);
        }
        offset += data.len() as u64;
        let shown = lines.show(&data);
        if !shown.is_empty() && reader.send(shown).await.is_err() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Formats log records for the reader.
struct Lines {
    timestamps: bool,
    since: Option<Timestamp>,
    left: Option<u64>,
    /// A record whose end has not been read yet.
    unfinished: BytesMut,
    /// True if the last shown record was a part of a line.
    inside_line: bool,
}

impl Lines {
    fn new(options: &LogOptions) -> Lines {
        Lines {
            timestamps: options.timestamps,
            since: options.since,
            left: options.limit_bytes,
            unfinished: BytesMut::new(),
            inside_line: false,
        }
    }

    /// Returns true if the reader has all it asked for.
    fn full(&self) -> bool {
        self.left == Some(0)
    }

    fn show(&mut self, mut data: &[u8]) -> Bytes {
        let mut shown = BytesMut::with_capacity(data.len());
        while let Some(end) = data.iter().position(|byte| *byte == b'\n') {
            if self.unfinished.is_empty() {
                self.record(&data[..end], &mut shown);
            } else {
                self.unfinished.extend_from_slice(&data[..end]);
                let record = self.unfinished.split();
                self.record(&record, &mut shown);
            }
            data = &data[end + 1..];
        }
        if self.unfinished.len() + data.len() > LONGEST_LINE {
            self.unfinished.clear();
        } else {
            self.unfinished.extend_from_slice(data);
        }
        if let Some(left) = &mut self.left {
            shown.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= shown.len() as u64;
        }
        shown.freeze()
    }

    fn record(&mut self, record: &[u8], shown: &mut BytesMut) {
        let mut fields = record.splitn(4, |byte| *byte == b' ');
        let (Some(time), Some(_stream), Some(tag)) = (fields.next(), fields.next(), fields.next()) else {
            return;
        };
        let content = fields.next().unwrap_or_default();
        if let Some(since) = self.since {
            let time: Option<Timestamp> = std::str::from_utf8(time).ok().and_then(|time| time.parse().ok());
            if time.is_none_or(|time| time < since) {
                return;
            }
        }
        if self.timestamps && !self.inside_line {
            shown.extend_from_slice(time);
            shown.extend_from_slice(b" ");
        }
        shown.extend_from_slice(content);
        self.inside_line = tag == b"P";
        if !self.inside_line {
            shown.extend_from_slice(b"\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(options: &LogOptions, chunks: &[&str]) -> String {
        let mut lines = Lines::new(options);
        let shown: Vec<u8> = chunks.iter().flat_map(|chunk| lines.show(chunk.as_bytes())).collect();
        String::from_utf8(shown).unwrap()
    }

    const LOG: &str = "2026-11-15T12:00:00.5Z stdout F one\n\
                       2026-11-15T12:00:01Z stderr P tw\n\
                       2026-11-15T12:00:02Z stderr F o\n\
                       2026-11-15T12:00:03Z stdout F \n";

    #[test]
    fn records_become_lines() {
        assert_eq!(show(&LogOptions::default(), &[LOG]), "one\ntwo\n\n");
        let (first, second) = LOG.split_at(20);
        assert_eq!(show(&LogOptions::default(), &[first, second]), "one\ntwo\n\n");
        assert_eq!(show(&LogOptions::default(), &["garbage\n", "also garbage\n"]), "");
    }

    #[test]
    fn options_shape_what_is_shown() {
        let with_times = LogOptions { timestamps: true, ..LogOptions::default() };
        assert_eq!(
            show(&with_times, &[LOG]),
            "2026-11-15T12:00:00.5Z one\n2026-11-15T12:00:01Z two\n2026-11-15T12:00:03Z \n"
        );
        let since = Some("2026-11-15T12:00:03Z".parse().unwrap());
        assert_eq!(show(&LogOptions { since, ..LogOptions::default() }, &[LOG]), "\n");
        assert_eq!(
            show(&LogOptions { limit_bytes: Some(5), ..LogOptions::default() }, &[LOG, LOG]),
            "one\nt"
        );
    }

    #[tokio::test]
    async fn following_sees_growth_rotation_and_the_end() {
        use std::io::Write as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        let running = serde_json::json!({
            "uid": "u", "revision": 1, "shim": {"pid": 1, "start_ticks": 1},
            "containers": {"main": {"attempt": 0, "status": {"phase": "starting"}}},
        });
        let (state, receiver) = watch::channel(Some(serde_json::from_value::<PodState>(running).unwrap()));
        let (sender, mut chunks) = mpsc::channel(1);
        let run = Run { container: "main".to_owned(), attempt: 0, state: receiver };
        let options = LogOptions { follow: true, ..LogOptions::default() };
        let copied = tokio::spawn({
            let path = path.clone();
            async move { copy(&path, run, options, &sender).await }
        });
        let mut seen = String::new();
        for (index, text) in ["one", "two", "three"].into_iter().enumerate() {
            if index == 2 {
                std::fs::rename(&path, directory.path().join("0.log.1")).unwrap();
            }
            let mut file = File::options().append(true).create(true).open(&path).unwrap();
            writeln!(file, "2026-11-15T12:00:00Z stdout F {text}").unwrap();
            let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
            while !seen.ends_with(&format!("{text}\n")) {
                let chunk = tokio::time::timeout_at(deadline, chunks.recv())
                    .await
                    .expect("follows")
                    .expect("goes on");
                seen.push_str(std::str::from_utf8(&chunk).unwrap());
            }
        }
        state.send_replace(None);
        assert!(copied.await.unwrap().is_ok());
        assert_eq!(seen, "one\ntwo\nthree\n");
    }
}
