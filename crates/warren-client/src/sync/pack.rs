//! Streams a checkout as an archive: a thread writes it while it is being sent.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256};
use rustix::fs::OFlags;
use tar::{Builder, EntryType, Header};

use super::manifest::{Digest, Entry, Manifest, finish, open_beneath, open_directory};

/// The state of a file when it was sent, to tell later which side has changed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// A regular file with this content.
    File {
        /// SHA-256 of the content.
        digest: Digest,
        /// True if it may be executed.
        executable: bool,
    },
    /// A symbolic link to this path.
    Link {
        /// The path.
        target: PathBuf,
    },
}

/// Everything that was sent, by path.
pub type SentFiles = BTreeMap<PathBuf, Sent>;

/// Writes the manifest's files as an archive that ends with an empty file called `last`, by which
/// the receiver knows that it is complete. Files that were deleted since the manifest was read are
/// left out.
pub fn pack(manifest: &Manifest, last: &str, writer: impl io::Write) -> io::Result<SentFiles> {
    let root = open_directory(&manifest.root)?;
    let mut archive = Builder::new(writer);
    let mut sent = SentFiles::new();
    for (path, entry) in &manifest.entries {
        let naming =
            |error: io::Error| io::Error::new(error.kind(), format!("`{}`: {error}", path.display()));
        match entry {
            Entry::Link { target } => {
                let mut header = header(EntryType::Symlink, 0, 0o777, 0);
                archive.append_link(&mut header, path, target).map_err(naming)?;
                sent.insert(path.clone(), Sent::Link { target: target.clone() });
            }
            Entry::File { .. } => {
                if let Some(file) = append_file(&mut archive, &root, path).map_err(naming)? {
                    sent.insert(path.clone(), file);
                }
            }
        }
    }
    archive.append_data(&mut header(EntryType::Regular, 0, 0o600, 0), last, io::empty())?;
    archive.into_inner()?.flush()?;
    Ok(sent)
}

fn append_file(
    archive: &mut Builder<impl io::Write>,
    root: &OwnedFd,
    path: &Path,
) -> io::Result<Option<Sent>> {
    // Non-blocking: the file may have been replaced by a pipe.
    let file = match open_beneath(root, path, OFlags::RDONLY | OFlags::NONBLOCK) {
        Ok(file) => File::from(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file any more"));
    }
    use std::os::unix::fs::MetadataExt as _;
    let executable = metadata.mode() & 0o100 != 0;
    let mode = if executable { 0o755 } else { 0o644 };
    let modified = u64::try_from(metadata.mtime()).unwrap_or_default();
    let mut header = header(EntryType::Regular, metadata.len(), mode, modified);
    let mut reader = Hashing { file: file.take(metadata.len()), context: Context::new(&SHA256) };
    archive.append_data(&mut header, path, &mut reader)?;
    if reader.file.limit() > 0 {
        return Err(io::Error::other("it became shorter while it was read"));
    }
    Ok(Some(Sent::File { digest: finish(reader.context), executable }))
}

fn header(kind: EntryType, size: u64, mode: u32, modified: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(mode);
    header.set_mtime(modified);
    header
}

struct Hashing {
    file: io::Take<File>,
    context: Context,
}

impl Read for Hashing {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.file.read(buffer)?;
        self.context.update(&buffer[..length]);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_has_modes_links_and_the_last_file() {
        let directory = tempfile::tempdir().expect("make a directory");
        let root = directory.path();
        std::fs::create_dir(root.join("bin")).expect("make a directory");
        std::fs::write(root.join("bin/tool"), "#!/bin/sh\n").expect("write");
        use std::os::unix::fs::PermissionsExt as _;
        let open = std::fs::Permissions::from_mode(0o775);
        std::fs::set_permissions(root.join("bin/tool"), open).expect("change the mode");
        std::fs::write(root.join("text"), "content").expect("write");
        std::os::unix::fs::symlink("bin/tool", root.join("link")).expect("link");
        let manifest = Manifest::read(root, &[]).expect("list");
        std::fs::remove_file(root.join("text")).expect("remove");
        let mut bytes = Vec::new();
        let sent = pack(&manifest, ".end", &mut bytes).expect("pack");
        assert_eq!(
            sent.keys().map(|path| path.to_str().expect("text")).collect::<Vec<_>>(),
            ["bin/tool", "link"]
        );
        let mut archive = tar::Archive::new(bytes.as_slice());
        let seen: Vec<(String, u32, Option<PathBuf>)> = archive
            .entries()
            .expect("an archive")
            .map(|entry| {
                let entry = entry.expect("an entry");
                let link = entry.link_name().expect("a name").map(|name| name.into_owned());
                let path = entry.path().expect("a path").display().to_string();
                (path, entry.header().mode().expect("a mode"), link)
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("bin/tool".to_owned(), 0o755, None),
                ("link".to_owned(), 0o777, Some("bin/tool".into())),
                (".end".to_owned(), 0o600, None),
            ]
        );
    }
}
