//! A layer, from the bytes of its archive to a directory that is one layer of an overlay.
//!
//! The archive is hostile. Its entries go where [`tree::Tree`] puts them, which is nowhere but below the directory, and an
//! entry that asks for something else is refused by its name. What an archive removes from the layers below it ("whiteouts")
//! becomes what the kernel's overlay understands by that.

mod archive;
mod frames;
mod tree;

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use crate::digest::{Digest, Hashing};
use archive::Entries;
use frames::Frames;
use tree::Tree;

/// The most that one layer may become.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes after decompression.
    pub bytes: u64,
    /// Files, directories and links.
    pub entries: u64,
}

impl Default for Limits {
    /// Far more than images of people have, and little enough that a bomb ends before a disk does.
    fn default() -> Self {
        Self { bytes: 64 << 30, entries: 2_000_000 }
    }
}

/// What an archive turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpacked {
    /// The name of the bytes as they came, compressed.
    pub blob: Digest,
    /// How many there were.
    pub blob_size: u64,
    /// The name of the archive itself, before compression.
    pub diff_id: Digest,
}

/// A layer that was not unpacked. What it had made so far is in the directory still: it is the caller's to remove.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The bytes could not be read or are no archive.
    #[error("read the archive")]
    Read(#[source] io::Error),
    /// The directory cannot be used.
    #[error("open the layer's directory")]
    Directory(#[source] io::Error),
    /// An entry that no honest archive has.
    #[error("the archive's entry {name:?} is refused: {why}")]
    Refused {
        /// The entry.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// An entry could not be made.
    #[error("make the archive's entry {name:?}")]
    Entry {
        /// The entry.
        name: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// There are too many.
    #[error("the archive has more than {0} entries")]
    TooMany(u64),
}

/// The archive is larger than it may be.
#[derive(Debug, thiserror::Error)]
#[error("it unpacks to more than {0} bytes")]
struct TooLarge(u64);

/// Unpacks a layer into an empty directory, and says what it was. Reads to the end, so that the digests are of all of it. What was
/// written has reached the disk when this returns.
pub fn unpack(compressed: impl Read, directory: &Path, limits: Limits) -> Result<Unpacked, UnpackError> {
    let mut blob = Hashing::new(compressed);
    let diff_id = {
        let bytes = BufReader::with_capacity(1 << 16, &mut blob);
        let mut plain = Hashing::new(plain(bytes, limits.bytes).map_err(UnpackError::Read)?);
        let mut tree = Tree::open(directory).map_err(UnpackError::Directory)?;
        let mut archive = tar::Archive::new(&mut plain);
        let mut entries = Entries::new(&mut archive).map_err(UnpackError::Read)?;
        let mut count = 0;
        while let Some(mut entry) = entries.next()? {
            count += 1;
            if count > limits.entries {
                return Err(UnpackError::TooMany(limits.entries));
            }
            tree.place(&entry.head, &mut entry.content)?;
        }
        tree.finish().map_err(UnpackError::Directory)?;
        plain.finish().map_err(UnpackError::Read)?.0
    };
    let (blob, blob_size) = blob.finish().map_err(UnpackError::Read)?;
    Ok(Unpacked { blob, blob_size, diff_id })
}

/// The bytes without their compression, if they have any, up to a limit.
pub(crate) fn plain<'a>(bytes: impl BufRead + 'a, limit: u64) -> io::Result<impl Read + 'a> {
    Ok(Limited { inner: decompressed(bytes)?, limit, left: limit })
}

/// By the first bytes: what an archive is called is often wrong.
fn decompressed<'a>(mut bytes: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let start = bytes.fill_buf()?;
    Ok(match start {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(bytes)),
        // A frame, or one to be skipped, with which some tools begin.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Box::new(Frames::new(bytes)),
        _ => Box::new(bytes),
    })
}

/// Ends with an error when there is more than allowed.
struct Limited<R> {
    inner: R,
    limit: u64,
    left: u64,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = match self.left.checked_sub(count as u64) {
            Some(left) => left,
            None => return Err(io::Error::other(TooLarge(self.limit))),
        };
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
