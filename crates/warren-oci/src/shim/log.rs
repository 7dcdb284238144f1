//! Writes container output to log files in CRI format, with rotation. Memory is bounded: a line
//! longer than the limit is written in parts, each marked `P`, and the last one `F`.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use jiff::Timestamp;

use crate::protocol::LogFile;

/// The longest part of a line, the same as in other container runtimes.
const MAX_PART: usize = 16 << 10;

/// The stream that a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

#[derive(Debug)]
pub(super) struct Log {
    request: LogFile,
    file: Option<File>,
    written: u64,
    // The beginning of an incomplete line, by stream.
    pending: [Vec<u8>; 2],
}

impl Log {
    pub(super) fn new(request: LogFile) -> Self {
        Self { request, file: None, written: 0, pending: [Vec::new(), Vec::new()] }
    }

    /// Reads the available output, at most `chunks` times and as long as `show` accepts it, and
    /// logs it. Returns false when the stream has ended.
    pub(super) fn pump(
        &mut self,
        stream: Stream,
        pipe: &OwnedFd,
        chunks: usize,
        mut show: impl FnMut(&[u8]) -> bool,
    ) -> bool {
        let mut buffer = [0u8; 16 << 10];
        for _ in 0..chunks {
            match rustix::io::read(pipe.as_fd(), &mut buffer) {
                Ok(0) => return false,
                Ok(length) => {
                    let output = self.add(stream, &buffer[..length], Timestamp::now());
                    self.write(&output);
                    if !show(&buffer[..length]) {
                        return true;
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        true
    }

    /// Writes the incomplete last line of each stream.
    pub(super) fn finish(&mut self) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let rest = std::mem::take(&mut self.pending[stream as usize]);
            if !rest.is_empty() {
                let mut output = Vec::with_capacity(rest.len() + 64);
                line(&mut output, Timestamp::now(), stream, 'F', &rest);
                self.write(&output);
            }
        }
    }

    /// Returns the log lines that `bytes` complete.
    fn add(&mut self, stream: Stream, bytes: &[u8], now: Timestamp) -> Vec<u8> {
        let pending = &mut self.pending[stream as usize];
        let mut output = Vec::with_capacity(bytes.len() + 128);
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = MAX_PART - pending.len();
            match rest.iter().take(room).position(|&byte| byte == b'\n') {
                Some(end) => {
                    pending.extend_from_slice(&rest[..end]);
                    rest = &rest[end + 1..];
                    line(&mut output, now, stream, 'F', pending);
                    pending.clear();
                }
                None => {
                    let taken = room.min(rest.len());
                    pending.extend_from_slice(&rest[..taken]);
                    rest = &rest[taken..];
                    if pending.len() == MAX_PART {
                        line(&mut output, now, stream, 'P', pending);
                        pending.clear();
                    }
                }
            }
        }
        output
    }

    /// Writes lines. If that fails (a full disk), they are lost: a log never stops a container.
    fn write(&mut self, output: &[u8]) {
        if let Err(error) = self.try_write(output) {
            complain!("warren: log {}: {error}", self.request.path.display());
        }
    }

    fn try_write(&mut self, output: &[u8]) -> io::Result<()> {
        if output.is_empty() {
            return Ok(());
        }
        if self.file.is_some() && self.written + output.len() as u64 > self.request.max_bytes {
            self.rotate()?;
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let file = File::options().create(true).append(true).open(&self.request.path)?;
                self.written = file.metadata()?.len();
                self.file.insert(file)
            }
        };
        file.write_all(output)?;
        self.written += output.len() as u64;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file = None;
        let name = |number: u32| -> PathBuf {
            let mut path = self.request.path.clone().into_os_string();
            if number > 0 {
                path.push(format!(".{number}"));
            }
            path.into()
        };
        let oldest = self.request.max_files.max(1) - 1;
        if oldest == 0 {
            return fs::remove_file(name(0));
        }
        for number in (0..oldest).rev() {
            match fs::rename(name(number), name(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Creates the file, so that a reader finds it as soon as the container runs.
    pub(super) fn open(&mut self) -> io::Result<()> {
        if let Some(parent) = self.request.path.parent() {
            fs::create_dir_all(parent)?;
        }
        let file = File::options().create(true).append(true).open(&self.request.path)?;
        self.written = file.metadata()?.len();
        self.file = Some(file);
        Ok(())
    }
}

fn line(output: &mut Vec<u8>, now: Timestamp, stream: Stream, tag: char, text: &[u8]) {
    output.extend_from_slice(format!("{now:.9} {} {tag} ", stream.name()).as_bytes());
    output.extend_from_slice(text);
    output.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(directory: &std::path::Path, max_bytes: u64, max_files: u32) -> Log {
        Log::new(LogFile { path: directory.join("0.log"), max_bytes, max_files })
    }

    #[test]
    fn lines_are_joined_and_split_as_cri_has_them() {
        let mut log = log("/nowhere".as_ref(), 1 << 20, 2);
        let now: Timestamp = "2026-01-02T03:04:05.000000006Z".parse().unwrap();
        assert_eq!(log.add(Stream::Stdout, b"hal", now), b"");
        assert_eq!(log.add(Stream::Stderr, b"\n", now), b"2026-01-02T03:04:05.000000006Z stderr F \n");
        assert_eq!(
            String::from_utf8(log.add(Stream::Stdout, b"lo\nyou", now)).unwrap(),
            "2026-01-02T03:04:05.000000006Z stdout F hallo\n"
        );
        let long = vec![b'x'; MAX_PART * 2];
        let output = log.add(Stream::Stdout, &long, now);
        let tags: Vec<u8> =
            output.split(|&byte| byte == b'\n').filter_map(|line| line.get(38).copied()).collect();
        assert_eq!(tags, b"PP");
        assert_eq!(log.pending[0].len(), 3);
    }

    #[test]
    fn files_are_put_aside_and_the_oldest_goes() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = log(directory.path(), 100, 3);
        log.open().unwrap();
        for number in 0..10 {
            let output = log.add(
                Stream::Stdout,
                format!("line {number} {}\n", "x".repeat(50)).as_bytes(),
                Timestamp::UNIX_EPOCH,
            );
            log.write(&output);
        }
        let mut names: Vec<_> = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["0.log", "0.log.1", "0.log.2"]);
        assert!(fs::read_to_string(directory.path().join("0.log")).unwrap().contains("line 9"));
        assert!(fs::read_to_string(directory.path().join("0.log.1")).unwrap().contains("line 8"));
    }
}
