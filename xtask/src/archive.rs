//! Reproducible archives: sorted entries, a single time stamp, root as owner, no name of the
//! machine.

use std::io::Write;

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use ring::digest;
use tar::{Builder, EntryType, Header};

/// A file or directory of an archive.
pub struct Entry {
    /// The path in the archive, without a leading slash.
    pub path: String,
    pub mode: u32,
    /// The content of a file; `None` for a directory.
    pub content: Option<Vec<u8>>,
}

impl Entry {
    pub fn file(path: impl Into<String>, mode: u32, content: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), mode, content: Some(content.into()) }
    }

    pub fn directory(path: impl Into<String>) -> Self {
        Self { path: path.into(), mode: 0o755, content: None }
    }
}

/// Returns the entries as a tar archive, sorted by path, each with the time `epoch`.
pub fn tar(mut entries: Vec<Entry>, epoch: u64) -> Result<Vec<u8>> {
    entries.sort_by(|left, right| left.path.cmp(&right.path));
    let mut builder = Builder::new(Vec::new());
    for Entry { path, mode, content } in entries {
        let mut header = Header::new_gnu();
        let bytes = content.as_deref().unwrap_or_default();
        header.set_entry_type(if content.is_some() { EntryType::Regular } else { EntryType::Directory });
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(epoch);
        header.set_size(bytes.len() as u64);
        builder.append_data(&mut header, &path, bytes).with_context(|| format!("add `{path}`"))?;
    }
    builder.into_inner().context("finish the archive")
}

/// Compresses without a name or a time in the header.
pub fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    encoder.write_all(bytes).context("compress")?;
    encoder.finish().context("compress")
}

/// Returns the SHA-256 of the bytes in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    digest::digest(&digest::SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_does_not_depend_on_the_order_in_which_it_was_filled() {
        let entries =
            || [Entry::directory("a/"), Entry::file("a/one", 0o644, "1"), Entry::file("b", 0o755, "2")];
        let reversed: Vec<Entry> = entries().into_iter().rev().collect();
        let archive = tar(entries().into(), 7).unwrap();
        assert_eq!(archive, tar(reversed, 7).unwrap());
        assert_eq!(gzip(&archive).unwrap(), gzip(&archive).unwrap());
        let mut read = tar::Archive::new(&archive[..]);
        let found: Vec<_> = read
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let header = entry.header();
                (entry.path().unwrap().display().to_string(), header.mode().unwrap(), header.mtime().unwrap())
            })
            .collect();
        let expected = [("a/", 0o755, 7), ("a/one", 0o644, 7), ("b", 0o755, 7)];
        assert_eq!(found, expected.map(|(path, mode, time)| (path.to_owned(), mode, time)));
    }
}
