//! Unpacks the archive of a layer into a directory that becomes one layer of an overlay.
//!
//! The archive is hostile. [`tree::Tree`] writes entries only below the directory, and refuses all
//! others with their name. Entries that remove files of lower layers ("whiteouts") are converted to
//! those of the kernel's overlay.

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

/// Limits on one layer.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The uncompressed size in bytes.
    pub bytes: u64,
    /// The number of files, directories and links.
    pub entries: u64,
}

impl Default for Limits {
    /// Returns limits far above those of real images, but low enough that a decompression bomb does
    /// not fill the disk.
    fn default() -> Self {
        Self { bytes: 64 << 30, entries: 2_000_000 }
    }
}

/// The digests of an unpacked archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpacked {
    /// The digest of the compressed bytes.
    pub blob: Digest,
    /// The number of compressed bytes.
    pub blob_size: u64,
    /// The digest of the uncompressed archive.
    pub diff_id: Digest,
}

/// An error of unpacking. The caller must remove the partly filled directory.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The bytes could not be read, or are no archive.
    #[error("read the archive")]
    Read(#[source] io::Error),
    /// The directory cannot be used.
    #[error("open the layer's directory")]
    Directory(#[source] io::Error),
    /// An entry is not allowed.
    #[error("the archive's entry {name:?} is refused: {why}")]
    Refused {
        /// The name of the entry.
        name: String,
        /// The reason.
        why: String,
    },
    /// An entry could not be created.
    #[error("make the archive's entry {name:?}")]
    Entry {
        /// The name of the entry.
        name: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The archive has too many entries.
    #[error("the archive has more than {0} entries")]
    TooMany(u64),
}

/// The error for an archive beyond its size limit.
#[derive(Debug, thiserror::Error)]
#[error("it unpacks to more than {0} bytes")]
struct TooLarge(u64);

/// Unpacks a layer into an empty directory and returns its digests. Reads all bytes, so that the
/// digests cover all of them. All files are on disk when this returns.
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

/// Decompresses the bytes, if they are compressed, up to a limit.
pub(crate) fn plain<'a>(bytes: impl BufRead + 'a, limit: u64) -> io::Result<impl Read + 'a> {
    Ok(Limited { inner: decompressed(bytes)?, limit, left: limit })
}

/// Detects the compression by the first bytes, because the media type is often wrong.
fn decompressed<'a>(mut bytes: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let start = bytes.fill_buf()?;
    Ok(match start {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(bytes)),
        // A frame, or a skippable frame, which some tools write first.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Box::new(Frames::new(bytes)),
        _ => Box::new(bytes),
    })
}

/// A reader that fails beyond a limit.
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
