//! Files of a sandbox by commands in it, for providers that have no other way to them.

use std::future::Future;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use serde_json::json;
use warren_client::files::{ByExec, Files as _, Runner};

use crate::error::{Code, ProviderError};
use crate::limits::check_path;
use crate::provider::{Entry, FileKind, FileStream, LARGEST_WRITE};

/// The longest time that one of our own commands in a sandbox may take, such as one that lists a
/// directory.
pub(crate) const FILE_TIMEOUT: Duration = Duration::from_secs(60);

/// The bytes of a file that are fetched at a time.
const PART: u64 = 4 << 20;

/// Reads a file. The path is checked before the sandbox is looked for.
pub(crate) async fn read<R: Runner + Send + Sync + 'static>(
    path: &str,
    files: impl Future<Output = Result<ByExec<R>, ProviderError>>,
) -> Result<FileStream, ProviderError> {
    let path = check_path(path)?;
    let files = files.await?;
    let first = files.read(&path, 0, PART).await;
    let first = first.map_err(|said| failed(Code::SandboxReadFailed, &path, said))?;
    let (size, offset) = (first.size, first.bytes.len() as u64);
    let rest = stream::try_unfold((files, path, offset), move |(files, path, offset)| async move {
        if offset >= size {
            return Ok(None);
        }
        let part = files.read(&path, offset, PART.min(size - offset)).await;
        let part = part.map_err(|said| failed(Code::SandboxReadFailed, &path, said))?;
        if part.bytes.is_empty() {
            let message = format!("`{path}` became shorter while it was read");
            return Err(ProviderError::new(Code::SandboxReadFailed, message));
        }
        let offset = offset + part.bytes.len() as u64;
        Ok(Some((part.bytes, (files, path, offset))))
    });
    let mut bytes = first.bytes;
    bytes.truncate(usize::try_from(size).unwrap_or(usize::MAX));
    let parts = stream::once(async move { Ok(bytes) }).chain(rest).boxed();
    Ok(FileStream { size, parts })
}

/// Writes a file.
pub(crate) async fn write<R: Runner + Send + Sync>(
    path: &str,
    content: Vec<u8>,
    files: impl Future<Output = Result<ByExec<R>, ProviderError>>,
) -> Result<(), ProviderError> {
    let path = check_path(path)?;
    check_size(&path, content.len())?;
    let written = files.await?.write(&path, &content).await;
    written.map_err(|said| ProviderError::new(Code::SandboxWriteFailed, said).with(json!({ "path": path })))
}

/// Lists a directory.
pub(crate) async fn list<R: Runner + Send + Sync>(
    path: &str,
    files: impl Future<Output = Result<ByExec<R>, ProviderError>>,
) -> Result<Vec<Entry>, ProviderError> {
    let path = check_path(path)?;
    let listed = files.await?.list(&path).await;
    let listed = listed.map_err(|said| failed(Code::SandboxReadFailed, &path, said))?;
    let parent = path.trim_end_matches('/').to_owned();
    Ok(listed
        .into_iter()
        .map(|entry| Entry {
            path: format!("{parent}/{}", entry.name),
            name: entry.name,
            kind: match entry.kind {
                "file" => FileKind::File,
                "directory" => FileKind::Directory,
                "symlink" => FileKind::Symlink,
                _ => FileKind::Other,
            },
            size: entry.size,
            modified_at: Timestamp::from_second(entry.modified).ok(),
        })
        .collect())
}

/// Makes an error of what a command of ours for files said.
fn failed(code: Code, path: &str, said: String) -> ProviderError {
    match ["no such file", "No such file", "nonexistent"].iter().any(|words| said.contains(words)) {
        true => ProviderError::file_not_found(path),
        false => ProviderError::new(code, said).with(json!({ "path": path })),
    }
}

/// Refuses content that is larger than can be written at once.
pub(crate) fn check_size(path: &str, size: usize) -> Result<(), ProviderError> {
    match size > LARGEST_WRITE {
        true => Err(ProviderError::new(
            Code::SandboxFileTooLarge,
            format!("{size} bytes for `{path}`; {LARGEST_WRITE} can be written at once"),
        )
        .with(json!({ "path": path, "limit": LARGEST_WRITE }))),
        false => Ok(()),
    }
}
