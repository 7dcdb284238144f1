//! Output of commands: kept on disk up to a limit, and shown in pieces.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;

/// The bytes of a stream that are kept. Output beyond them is counted and dropped; the command goes
/// on.
const KEPT: u64 = 16 << 20;

/// One stream of a command. Clones share it.
#[derive(Clone, Debug)]
pub struct Spool(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    /// Has no name: it is gone with the process.
    file: File,
    kept: u64,
    written: u64,
}

/// A piece of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its text; bytes that are not UTF-8 are replaced.
    pub text: String,
    /// The offset at which the next piece begins.
    pub next: u64,
}

impl Spool {
    /// Makes an empty one.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Mutex::new(Inner { file: tempfile::tempfile()?, kept: 0, written: 0 }))))
    }

    /// Returns how many bytes were kept, and how many the command wrote.
    pub fn sizes(&self) -> (u64, u64) {
        let inner = self.lock();
        (inner.kept, inner.written)
    }

    /// Reads at most `most` bytes from an offset on. The piece ends between two characters, unless it would be empty.
    pub fn piece(&self, offset: u64, most: usize) -> io::Result<Piece> {
        let inner = self.lock();
        let length = inner.kept.saturating_sub(offset).min(most as u64);
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(most)];
        inner.file.read_exact_at(&mut bytes, offset.min(inner.kept))?;
        let end = whole_characters(&bytes);
        let end = if end == 0 { bytes.len() } else { end };
        let text = String::from_utf8_lossy(&bytes[..end]).into_owned();
        Ok(Piece { text, next: offset.min(inner.kept) + end as u64 })
    }

    /// Returns the whole if it has at most `most` bytes; else its first and its last part, with a line between them that
    /// says where the rest begins.
    pub fn summary(&self, stream: &str, most: usize) -> io::Result<(String, bool)> {
        let (kept, written) = self.sizes();
        if written <= most as u64 {
            return Ok((self.piece(0, most)?.text, false));
        }
        let first = self.piece(0, most / 2)?;
        let last = self.piece(first_character(self, kept - (most / 2) as u64)?, most)?;
        let dropped = match written - kept {
            0 => String::new(),
            dropped => format!("; the last {dropped} bytes that the command wrote were not kept"),
        };
        let text = format!(
            "{}\n[… cut: {written} bytes in all; `poll_command` with `{stream}_offset` {} reads on{dropped} …]\n{}",
            first.text, first.next, last.text
        );
        Ok((text, true))
    }

    /// Adds bytes at the end.
    pub fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut inner = self.lock();
        let room = KEPT.saturating_sub(inner.kept).min(bytes.len() as u64);
        inner.file.write_all_at(&bytes[..usize::try_from(room).unwrap_or(bytes.len())], inner.kept)?;
        inner.kept += room;
        inner.written += bytes.len() as u64;
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a text if it has at most `most` bytes; else its beginning and its end.
pub fn ends(text: &str, most: usize) -> (String, bool) {
    if text.len() <= most {
        return (text.to_owned(), false);
    }
    let first = text.floor_char_boundary(most / 2);
    let last = text.ceil_char_boundary(text.len() - most / 2);
    (format!("{}\n[… cut: {} bytes in all …]\n{}", &text[..first], text.len(), &text[last..]), true)
}

/// Moves an offset on to the next byte that begins a character.
fn first_character(spool: &Spool, offset: u64) -> io::Result<u64> {
    let inner = spool.lock();
    let mut bytes = [0; 4];
    let read = inner.file.read_at(&mut bytes, offset)?;
    let continued = bytes[..read].iter().take_while(|byte| **byte & 0xc0 == 0x80).count();
    // Four in a row are not UTF-8.
    Ok(if continued < 4 { offset + continued as u64 } else { offset })
}

/// Returns the length without an incomplete character at the end.
fn whole_characters(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let byte = bytes[bytes.len() - back];
        let needed = match byte {
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            0x80..=0xbf => continue,
            _ => break,
        };
        return if needed > back { bytes.len() - back } else { bytes.len() };
    }
    bytes.len()
}

impl AsyncWrite for Spool {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // A file in the page cache: no slower than the channel to a thread that would write it.
        Poll::Ready(self.append(bytes).map(|()| bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spool(bytes: &[u8]) -> Spool {
        let spool = Spool::new().expect("make a spool");
        spool.append(bytes).expect("append");
        spool
    }

    #[test]
    fn pieces_end_between_characters_and_together_are_the_whole() {
        let whole = "a€𝄞ö".repeat(40);
        let spool = spool(whole.as_bytes());
        for most in 4..20 {
            let (mut text, mut offset) = (String::new(), 0);
            while offset < whole.len() as u64 {
                let piece = spool.piece(offset, most).expect("read");
                assert!(piece.next > offset, "no progress at {offset} with {most}");
                text.push_str(&piece.text);
                offset = piece.next;
            }
            assert_eq!(text, whole);
        }
    }

    #[test]
    fn bytes_that_are_no_text_do_not_stop_the_reader() {
        let spool = spool(&[0x80; 10]);
        let piece = spool.piece(0, 4).expect("read");
        assert_eq!((piece.text.chars().count(), piece.next), (4, 4));
        let spool = self::spool(&[b'a', 0xf0]);
        assert_eq!(spool.piece(0, 9).expect("read"), Piece { text: "a".to_owned(), next: 1 });
        assert_eq!(spool.piece(1, 9).expect("read").next, 2);
        assert_eq!(spool.piece(99, 9).expect("read"), Piece { text: String::new(), next: 2 });
    }

    #[test]
    fn long_output_is_shown_by_its_ends_with_the_way_to_the_rest() {
        let spool = spool(format!("begin{}end", "x".repeat(1000)).as_bytes());
        let (text, cut) = spool.summary("stdout", 100).expect("summary");
        assert!(cut && text.starts_with("begin") && text.ends_with("end"), "{text}");
        assert!(text.contains("1008 bytes") && text.contains("`stdout_offset` 50"), "{text}");
        assert!(!spool.summary("stdout", 2000).expect("summary").1);
    }

    #[test]
    fn long_text_keeps_its_ends_and_whole_characters() {
        assert_eq!(ends("größe", 7), ("größe".to_owned(), false));
        let (text, cut) = ends(&"€".repeat(100), 20);
        assert!(cut && text.starts_with("€€€\n") && text.ends_with("\n€€€"), "{text}");
        assert!(text.contains("300 bytes"), "{text}");
    }

    #[test]
    fn output_beyond_the_limit_is_counted_and_dropped() {
        let spool = spool(&vec![b'x'; (KEPT - 1) as usize]);
        spool.append(b"yz").expect("append");
        assert_eq!(spool.sizes(), (KEPT, KEPT + 1));
        assert_eq!(spool.piece(KEPT - 2, 9).expect("read").text, "xy");
    }
}
