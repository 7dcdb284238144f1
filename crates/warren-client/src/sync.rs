//! Transfers files into and out of a sandbox, as archives over exec.
//!
//! [`manifest`] lists a checkout, [`pack`] makes an archive of it, and [`upload`] runs a script in
//! the sandbox that unpacks it. [`download`] fetches an archive, and [`back`] decides which of its
//! files may be written here. The image needs `/bin/sh` and `tar`.

pub mod back;
pub mod manifest;
pub mod pack;

use std::fs::File;
use std::io;
use std::path::PathBuf;

use kube::Client;
use tokio::io::AsyncWrite;

use crate::exec::{self, Captured, ExecError, ExecRequest};
use manifest::Manifest;
use pack::SentFiles;

/// A container in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container.
    pub container: String,
}

/// The error of a transfer.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The local files could not be read.
    #[error("read the files to send")]
    Read(#[source] io::Error),
    /// The script in the sandbox failed.
    #[error("{action} in the sandbox: {}", complaint(captured))]
    Remote {
        /// The action that failed.
        action: &'static str,
        /// The script's exit code and error output.
        captured: Captured,
    },
    /// The script could not be run.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// The directory cannot be used.
    #[error("`{directory}` cannot be the work directory: {fault}")]
    Directory {
        /// The directory in the sandbox.
        directory: String,
        /// The reason that the directory cannot be used.
        fault: &'static str,
    },
}

fn complaint(captured: &Captured) -> String {
    match captured.complaint.as_str() {
        "" => format!("exit code {}", captured.code),
        text => text.to_owned(),
    }
}

/// Checks a directory that files are unpacked into: absolute, without `..`, and not a system
/// directory.
pub fn check_directory(directory: &str) -> Result<(), SyncError> {
    let refused = |fault| SyncError::Directory { directory: directory.to_owned(), fault };
    let parts: Vec<&str> = directory.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if !directory.starts_with('/') || parts.contains(&"..") {
        return Err(refused("name an absolute path without `..`"));
    }
    let broad = [
        "bin", "boot", "dev", "etc", "home", "lib", "lib64", "media", "mnt", "opt", "proc", "root", "run",
        "sbin", "srv", "sys", "tmp", "usr", "var",
    ];
    match parts.as_slice() {
        [] => Err(refused("it is the root directory")),
        [one] if broad.contains(one) => Err(refused("it is a directory of the system; name one below it")),
        [first, ..] if matches!(*first, "proc" | "sys" | "dev") => Err(refused("it holds no ordinary files")),
        _ => Ok(()),
    }
}

/// Unpacks an archive from standard input beside the work directory's content (`$1`) and moves its
/// entries into place only when its last file (`$2`) has come. Other entries of the work directory
/// stay, unless `$3` asks to delete them. The directory itself always stays: it may be a volume.
const UNPACK: &str = r#"
set -e
umask 022
mkdir -p -- "$1"
stage=$1/$2.stage
rm -rf -- "$stage"
mkdir -- "$stage"
trap 'rm -rf -- "$stage"' EXIT
tar -xpof - -C "$stage"
if [ ! -f "$stage/$2" ]; then echo 'the archive broke off' >&2; exit 1; fi
rm -f -- "$stage/$2"
if [ -n "$3" ]; then
    for file in "$1"/* "$1"/.[!.]* "$1"/..?*; do
        if [ "$file" != "$stage" ] && { [ -e "$file" ] || [ -L "$file" ]; }; then rm -rf -- "$file"; fi
    done
fi
for file in "$stage"/* "$stage"/.[!.]* "$stage"/..?*; do
    if [ -e "$file" ] || [ -L "$file" ]; then
        rm -rf -- "$1/${file##*/}"
        mv -- "$file" "$1/"
    fi
done
"#;

/// Prints the names of all files below `$1`, each followed by a zero byte.
const LIST: &str = r#"cd -- "$1" && find . -name .git -prune -o \( -type f -o -type l \) -print0"#;

/// Writes an archive of the files below `$1` whose names are on standard input.
const PACK: &str = r#"cd -- "$1" && exec tar -cf - -T -"#;

impl Place {
    /// Returns a request that runs a script with arguments in this container, without a terminal.
    pub fn script(&self, script: &str, arguments: &[&str], stdin: bool) -> ExecRequest {
        let mut command = vec!["/bin/sh".to_owned(), "-c".to_owned(), script.to_owned(), "sh".to_owned()];
        command.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        ExecRequest {
            namespace: self.namespace.clone(),
            pod: self.pod.clone(),
            container: Some(self.container.clone()),
            command,
            stdin,
            tty: false,
        }
    }
}

/// Sends the files of a manifest into a directory of a container. A failure leaves the directory as
/// it was. `token` is a name that no file has. Entries of the directory that are not sent stay.
pub async fn upload(
    client: &Client,
    place: &Place,
    manifest: Manifest,
    directory: &str,
    token: &str,
) -> Result<SentFiles, SyncError> {
    send(client, place, manifest, directory, token, "").await
}

/// Does the same, and deletes the entries of the directory that are not sent.
pub async fn replace(
    client: &Client,
    place: &Place,
    manifest: Manifest,
    directory: &str,
    token: &str,
) -> Result<SentFiles, SyncError> {
    send(client, place, manifest, directory, token, "delete").await
}

async fn send(
    client: &Client,
    place: &Place,
    manifest: Manifest,
    directory: &str,
    token: &str,
    others: &str,
) -> Result<SentFiles, SyncError> {
    let last = format!(".warren-{token}");
    let request = place.script(UNPACK, &[directory, &last, others], true);
    let (reader, writer) = io::pipe().map_err(SyncError::Read)?;
    let packing = tokio::task::spawn_blocking(move || {
        // More than the default of one page per write, so that the sender is not woken for each
        // file.
        pack::pack(&manifest, &last, io::BufWriter::with_capacity(64 << 10, writer))
    });
    let reader = tokio::net::unix::pipe::Receiver::from_owned_fd(reader.into()).map_err(SyncError::Read)?;
    let ended = exec::capture(client, request, reader, tokio::io::sink()).await;
    // The reader is gone, so a thread that is still packing ends with a broken pipe.
    let sent = match packing.await {
        Ok(sent) => sent,
        Err(error) => Err(io::Error::other(error)),
    };
    match (sent, ended?) {
        (Ok(sent), Captured { code: 0, .. }) => Ok(sent),
        (Err(error), _) if error.kind() != io::ErrorKind::BrokenPipe => Err(SyncError::Read(error)),
        (_, captured) => Err(SyncError::Remote { action: "unpack the files", captured }),
    }
}

/// The most bytes of file names that are read from a sandbox.
const MOST_NAMES: usize = 64 << 20;

/// Returns the names of all files below a directory of a container, unchecked and so hostile.
pub async fn list(client: &Client, place: &Place, directory: &str) -> Result<Vec<PathBuf>, SyncError> {
    use std::os::unix::ffi::OsStrExt as _;
    let mut names = exec::Bounded::new(MOST_NAMES);
    let request = place.script(LIST, &[directory], false);
    let captured = exec::capture(client, request, tokio::io::empty(), &mut names).await?;
    if captured.code != 0 {
        return Err(SyncError::Remote { action: "list files", captured });
    }
    let names = names.kept.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(|name| PathBuf::from(std::ffi::OsStr::from_bytes(name))).collect())
}

/// Returns false for names that `tar -T` would not take literally: those with a newline or a
/// backslash.
pub fn can_be_named(path: &std::path::Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    !bytes.contains(&b'\n') && !bytes.contains(&b'\\')
}

/// Fetches files of a directory in a container as an archive, into a file. Stops when it becomes
/// too large.
pub async fn download(
    client: &Client,
    place: &Place,
    directory: &str,
    paths: &[PathBuf],
    spool: File,
) -> Result<(), SyncError> {
    use std::os::unix::ffi::OsStrExt as _;
    let mut names = Vec::new();
    for path in paths {
        // A prefix, so that a name is never taken for an option.
        names.extend_from_slice(b"./");
        names.extend_from_slice(path.as_os_str().as_bytes());
        names.push(b'\n');
    }
    let request = place.script(PACK, &[directory], true);
    let captured = exec::capture(client, request, names.as_slice(), Limited::new(spool)).await?;
    match captured.code {
        0 => Ok(()),
        _ => Err(SyncError::Remote { action: "pack files", captured }),
    }
}

/// The largest archive: the largest files, and the same again for names and padding.
const MOST_ARCHIVE: u64 = back::MOST_BYTES + (256 << 20);

/// A file that refuses to grow beyond what a sandbox may send.
#[derive(Debug)]
pub struct Limited {
    file: tokio::fs::File,
    left: u64,
}

impl Limited {
    /// Limits a file.
    pub fn new(file: File) -> Self {
        Self { file: tokio::fs::File::from_std(file), left: MOST_ARCHIVE }
    }
}

impl AsyncWrite for Limited {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<io::Result<usize>> {
        if self.left < bytes.len() as u64 {
            let limit = io::Error::new(io::ErrorKind::FileTooLarge, "the sandbox sends more than 1 GiB");
            return std::task::Poll::Ready(Err(limit));
        }
        let written = std::task::ready!(std::pin::Pin::new(&mut self.file).poll_write(context, bytes))?;
        self.left -= written as u64;
        std::task::Poll::Ready(Ok(written))
    }

    fn poll_flush(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.file).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.file).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_directories_of_the_system_are_refused() {
        for refused in
            ["/", "/tmp", "/usr/", "//var", "/home", "work", "/work/../etc", "/proc/1/root", "/etc"]
        {
            assert!(check_directory(refused).is_err(), "{refused}");
        }
        for accepted in ["/workspace", "/home/user", "/var/work", "/tmp/x"] {
            assert!(check_directory(accepted).is_ok(), "{accepted}");
        }
    }

    #[test]
    fn names_that_tar_would_read_differently_are_told_apart() {
        assert!(can_be_named("a b/-c".as_ref()));
        assert!(!can_be_named("a\nb".as_ref()));
        assert!(!can_be_named("a\\n".as_ref()));
    }
}
