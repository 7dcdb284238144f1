//! Reads what an interpreter writes. Its writer is hostile: each line, text and image has a limit.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tokio::io::AsyncWrite;
use tokio::sync::watch;

use super::{End, Output, Phase};

/// The longest line of the driver: an image of [`MOST_IMAGE`] and a text, both as JSON has them.
const MOST_LINE: usize = 16 << 20;

/// The values that one call may show. The driver's own limits are no larger.
const MOST_SHOWN: usize = 64;
const MOST_TEXT: usize = 1 << 20;
const MOST_IMAGES: usize = 16;
const MOST_IMAGE: usize = 4 << 20;
const MOST_IMAGE_BYTES: usize = 12 << 20;

/// The parts of an error, in characters.
const MOST_NAME: usize = 200;
const MOST_VALUE: usize = 10_000;
const MOST_TRACEBACK: usize = 60_000;

/// The byte around the end of a call in the output of a shell.
const SEPARATOR: u8 = 0x1e;

/// The longest exit code, in digits.
const MOST_DIGITS: usize = 10;

/// An error that ended Python code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CodeError {
    /// Its class.
    pub name: String,
    /// What it says.
    pub value: String,
    /// Where it happened, as Python prints it.
    pub traceback: String,
}

/// A value that code has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The value as text.
    pub text: String,
    /// The value as an image, if it is one.
    pub image: Option<Image>,
}

/// An image.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    /// Its format. The file begins as that format does; the rest is not checked.
    pub kind: ImageKind,
    /// The file.
    pub bytes: Vec<u8>,
}

impl fmt::Debug for Image {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?} of {} bytes", self.kind, self.bytes.len())
    }
}

/// The format of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageKind {
    /// PNG.
    Png,
    /// JPEG.
    Jpeg,
}

impl ImageKind {
    /// Returns its media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
        }
    }

    fn begins(self) -> &'static [u8] {
        match self {
            Self::Png => b"\x89PNG\r\n\x1a\n",
            Self::Jpeg => b"\xff\xd8\xff",
        }
    }
}

/// What the streams of an interpreter and its caller share.
pub(super) struct Shared {
    phase: watch::Sender<Phase>,
    call: Mutex<Call>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Shared").field("phase", &self.phase).finish_non_exhaustive()
    }
}

/// The call under way, or the last one.
#[derive(Default)]
struct Call {
    id: u64,
    mark: String,
    output: Option<Arc<dyn Output>>,
    shown: Vec<Shown>,
    text_bytes: usize,
    image_bytes: usize,
    left_out: usize,
    /// The exit code that standard output of a shell has brought.
    exit_code: Option<i32>,
    /// True when standard error of a shell is complete.
    stderr_complete: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

impl Shared {
    pub(super) fn new(phase: watch::Sender<Phase>) -> Self {
        Self { phase, call: Mutex::default() }
    }

    fn call(&self) -> MutexGuard<'_, Call> {
        self.call.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call, and returns the mark by which a shell reports its end.
    pub(super) fn begin(&self, id: u64, output: Arc<dyn Output>) -> String {
        let mark: String = std::iter::repeat_with(fastrand::alphanumeric).take(24).collect();
        *self.call() = Call { id, mark: mark.clone(), output: Some(output), ..Call::default() };
        mark
    }

    /// Takes the values that the call has shown, and how many were left out.
    pub(super) fn take_shown(&self) -> (Vec<Shown>, usize) {
        let mut call = self.call();
        (std::mem::take(&mut call.shown), std::mem::take(&mut call.left_out))
    }

    /// Notes that the interpreter has ended. The first reason counts.
    pub(super) fn end(&self, reason: String, exit_code: Option<i32>) {
        self.phase.send_if_modified(|phase| {
            let first = !matches!(phase, Phase::Ended { .. });
            if first {
                *phase = Phase::Ended { reason, exit_code };
            }
            first
        });
    }

    fn done(&self, id: u64, end: End) {
        self.phase.send_if_modified(|phase| {
            let running = !matches!(phase, Phase::Ended { .. });
            if running {
                *phase = Phase::Done { id, end };
            }
            running
        });
    }

    fn write(&self, stream: Stream, bytes: &[u8]) {
        let output = self.call().output.clone();
        match (output, stream) {
            (Some(output), _) if bytes.is_empty() => drop(output),
            (Some(output), Stream::Stdout) => output.stdout(bytes),
            (Some(output), Stream::Stderr) => output.stderr(bytes),
            (None, _) => {}
        }
    }

    /// Takes a line of the driver.
    fn line(&self, line: &[u8]) -> io::Result<()> {
        let line: Line = serde_json::from_slice(line)
            .map_err(|error| io::Error::other(format!("a line is not an answer of the driver: {error}")))?;
        if line.ready.is_some() {
            self.phase.send_if_modified(|phase| {
                let starting = *phase == Phase::Starting;
                if starting {
                    *phase = Phase::Ready;
                }
                starting
            });
        }
        if let Some(text) = line.stdout {
            self.write(Stream::Stdout, text.as_bytes());
        }
        if let Some(text) = line.stderr {
            self.write(Stream::Stderr, text.as_bytes());
        }
        if let Some(result) = line.result {
            self.show(result);
        }
        if let Some(id) = line.done
            && id == self.call().id
        {
            self.done(id, End::Code(line.error.map(CodeError::cut)));
        }
        if let Some(code) = line.ended {
            self.end(format!("it ended with exit code {code}"), Some(code));
        }
        Ok(())
    }

    fn show(&self, result: Data) {
        let image = result.image();
        let image_bytes = image.as_ref().map_or(0, |image| image.bytes.len());
        let mut call = self.call();
        let images = call.shown.iter().filter(|shown| shown.image.is_some()).count();
        if call.shown.len() >= MOST_SHOWN
            || call.text_bytes + result.text.len() > MOST_TEXT
            || image.is_some() && images >= MOST_IMAGES
            || call.image_bytes + image_bytes > MOST_IMAGE_BYTES
        {
            call.left_out += 1;
            return;
        }
        call.text_bytes += result.text.len();
        call.image_bytes += image_bytes;
        call.shown.push(Shown { text: result.text, image });
    }

    /// Takes the end of a call in one stream of a shell.
    fn marked(&self, stream: Stream, exit_code: i32) {
        let mut call = self.call();
        match stream {
            Stream::Stdout => call.exit_code = Some(exit_code),
            Stream::Stderr => call.stderr_complete = true,
        }
        if let (Some(exit_code), true) = (call.exit_code, call.stderr_complete) {
            let id = call.id;
            drop(call);
            self.done(id, End::Line(exit_code));
        }
    }
}

/// A line of the driver.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Line {
    ready: Option<String>,
    stdout: Option<String>,
    stderr: Option<String>,
    result: Option<Data>,
    done: Option<u64>,
    error: Option<CodeError>,
    ended: Option<i32>,
}

/// A value in its forms.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Data {
    #[serde(rename = "text/plain")]
    text: String,
    #[serde(rename = "image/png")]
    png: Option<String>,
    #[serde(rename = "image/jpeg")]
    jpeg: Option<String>,
}

impl Data {
    /// Decodes the image. One that is not what it is called, or too large, is none.
    fn image(&self) -> Option<Image> {
        let (kind, text) = match (&self.png, &self.jpeg) {
            (Some(png), _) => (ImageKind::Png, png),
            (None, Some(jpeg)) => (ImageKind::Jpeg, jpeg),
            (None, None) => return None,
        };
        let bytes = STANDARD.decode(text).ok()?;
        let valid = bytes.len() <= MOST_IMAGE && bytes.starts_with(kind.begins());
        valid.then_some(Image { kind, bytes })
    }
}

impl CodeError {
    fn cut(self) -> Self {
        let first = |text: String, most: usize| match text.char_indices().nth(most) {
            Some((end, _)) => text[..end].to_owned(),
            None => text,
        };
        Self {
            name: first(self.name, MOST_NAME),
            value: first(self.value, MOST_VALUE),
            traceback: first(self.traceback, MOST_TRACEBACK),
        }
    }
}

/// Standard output of the Python driver.
pub(super) struct Python {
    shared: Arc<Shared>,
    line: Vec<u8>,
}

impl Python {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, line: Vec::new() }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.line.len() + piece.len() > MOST_LINE {
                return Err(io::Error::other(format!("a line has more than {MOST_LINE} bytes")));
            }
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.shared.line(&line)?;
            }
        }
        Ok(())
    }
}

/// A stream of a shell, with marks in it where calls end.
pub(super) struct Shell {
    shared: Arc<Shared>,
    stream: Stream,
    /// Bytes that may be the beginning of a mark.
    held: Vec<u8>,
}

impl Shell {
    /// Returns standard output and standard error.
    pub(super) fn pair(shared: Arc<Shared>) -> (Self, Self) {
        let stream = |stream| Self { shared: shared.clone(), stream, held: Vec::new() };
        (stream(Stream::Stdout), stream(Stream::Stderr))
    }

    /// Takes a piece of the stream. Returns true if a call has ended in it.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> bool {
        let mut marked = false;
        self.held.extend_from_slice(bytes);
        let held = std::mem::take(&mut self.held);
        let mut rest = held.as_slice();
        while !rest.is_empty() {
            let plain = rest.iter().position(|byte| *byte == SEPARATOR).unwrap_or(rest.len());
            self.shared.write(self.stream, &rest[..plain]);
            rest = &rest[plain..];
            let mark = format!("\u{1e}{} ", self.shared.call().mark);
            match read_mark(rest, mark.as_bytes()) {
                Mark::Whole { exit_code, length } => {
                    self.shared.marked(self.stream, exit_code);
                    marked = true;
                    rest = &rest[length..];
                }
                Mark::Beginning => break,
                Mark::None if rest.is_empty() => {}
                Mark::None => {
                    self.shared.write(self.stream, &rest[..1]);
                    rest = &rest[1..];
                }
            }
        }
        self.held = rest.to_vec();
        marked
    }
}

enum Mark {
    Whole { exit_code: i32, length: usize },
    Beginning,
    None,
}

/// Reads a mark at the beginning of what a shell has written.
fn read_mark(bytes: &[u8], mark: &[u8]) -> Mark {
    let Some(after) = bytes.strip_prefix(mark) else {
        return if mark.starts_with(bytes) && !bytes.is_empty() { Mark::Beginning } else { Mark::None };
    };
    let digits = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
    match after.get(digits) {
        None if digits <= MOST_DIGITS => Mark::Beginning,
        Some(&SEPARATOR) => {
            match std::str::from_utf8(&after[..digits]).ok().and_then(|code| code.parse().ok()) {
                Some(exit_code) => Mark::Whole { exit_code, length: mark.len() + digits + 1 },
                None => Mark::None,
            }
        }
        _ => Mark::None,
    }
}

impl AsyncWrite for Python {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(self.feed(bytes).map(|()| bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Shell {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.feed(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
