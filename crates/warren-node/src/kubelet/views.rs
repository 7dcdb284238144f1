//! `GET /views/NAMESPACE/POD/CONTAINER/VOLUME`: what the last run of a container has changed in a view, as a layer of an
//! OCI image: changed files with their content, and an empty file `.wh.NAME` for each name that is gone.
//!
//! The last entry is [`END`], so that a reader can tell a whole answer from one that broke off. Its content is when the
//! view was made, in nanoseconds since 1970.
//!
//! A hostile container may change its files while they are read. Nothing is opened by a path that it could change
//! meanwhile, no link is followed, and nothing but regular files is opened for reading.

use std::convert::Infallible;
use std::ffi::{CStr, OsStr};
use std::io::{self, BufWriter, Read as _, Write};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::StreamExt as _;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use rustix::fs::{Dir, FileType, Mode, OFlags, Stat};
use tar::{Builder, EntryType, Header};
use tokio::sync::mpsc;
use tracing::debug;
use warren_decide::pod::{VolumeKind, volume_kind};
use warren_oci::protocol::View;

use super::{Body, Place, Refused, text};

/// The prefix of entries that are no files. Files whose names begin so are left out.
const MARK: &str = ".wh.";
/// The entry in a directory that hides everything that was in it before.
const OPAQUE: &str = ".wh..wh..opq";
/// The last entry.
const END: &str = ".wh..wh.end";
/// How deep directories may lie in each other; a hostile container may have made more than a stack can take.
const DEEPEST: usize = 256;
/// How much is sent at a time, and how many such pieces wait for a slow reader.
const CHUNK: usize = 64 << 10;
const CHUNKS: usize = 4;

/// Answers with the changes, which are read while they are sent.
pub(super) fn answer(place: &Place, volume: &str) -> Result<Response<Body>, Refused> {
    let missing = |what: String| Refused(StatusCode::NOT_FOUND, what);
    let volumes = place.pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let known = volumes.into_iter().find(|known| known.name == volume);
    let is_view =
        known.is_some_and(|known| matches!(volume_kind(&place.pod, known), Some(VolumeKind::View { .. })));
    if !is_view {
        return Err(missing(format!("the pod has no view \"{volume}\"")));
    }
    let run = place.entry.directory.last_run(&place.container);
    let run = run.map_err(|problem| Refused(StatusCode::INTERNAL_SERVER_ERROR, problem.to_string()))?;
    let run = run.ok_or_else(|| missing(format!("container \"{}\" has not run yet", place.container)))?;
    let (upper, work) = (run.join(View::upper(volume)), run.join(View::work(volume)));
    let not_mounted = |_| missing(format!("container \"{}\" has no view \"{volume}\"", place.container));
    let made = std::fs::metadata(work).map_err(not_mounted)?;
    let made = i128::from(made.mtime()) * 1_000_000_000 + i128::from(made.mtime_nsec());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let upper = rustix::fs::open(upper, flags, Mode::empty()).map_err(|error| not_mounted(error.into()))?;

    let (sender, receiver) = mpsc::channel(CHUNKS);
    tokio::task::spawn_blocking(move || {
        let written = write(&upper, made, BufWriter::with_capacity(CHUNK, Pieces(sender)));
        if let Err(problem) = written {
            // The reader misses the last entry.
            debug!(error = %problem, "changes in a view not sent");
        }
    });
    let frames =
        futures::stream::unfold(
            receiver,
            |mut receiver| async move { Some((receiver.recv().await?, receiver)) },
        );
    let mut response = text(StatusCode::OK, "");
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    *response.body_mut() =
        StreamBody::new(frames.map(|piece| Ok::<_, Infallible>(Frame::data(piece)))).boxed_unsync();
    Ok(response)
}

/// Sends what is written to it.
struct Pieces(mpsc::Sender<Bytes>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Bytes::copy_from_slice(bytes));
        sent.map(|()| bytes.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write(upper: &OwnedFd, made: i128, to: impl Write) -> io::Result<()> {
    let mut layer = Layer { archive: Builder::new(to) };
    layer.directory(upper, Path::new(""), 0)?;
    let made = made.to_string();
    layer.mark(Path::new(END), made.as_bytes())?;
    layer.archive.into_inner()?.flush()
}

/// The archive while it is written.
struct Layer<W: Write> {
    archive: Builder<W>,
}

impl<W: Write> Layer<W> {
    fn directory(&mut self, directory: &OwnedFd, path: &Path, depth: usize) -> io::Result<()> {
        if depth > DEEPEST {
            return Err(io::Error::other("directories lie too deep in each other"));
        }
        if is_opaque(directory) {
            self.mark(&path.join(OPAQUE), &[])?;
        }
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." || name.to_bytes().starts_with(MARK.as_bytes()) {
                continue;
            }
            match self.entry(directory, name, path, depth) {
                // Gone meanwhile, or another kind of file took its place.
                Err(error) if is_race(&error) => {}
                done => done?,
            }
        }
        Ok(())
    }

    fn entry(&mut self, directory: &OwnedFd, name: &CStr, parent: &Path, depth: usize) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = rustix::fs::openat(directory, name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&found)?;
        let path = parent.join(OsStr::from_bytes(name.to_bytes()));
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let inside = rustix::fs::openat(&found, ".", flags, Mode::empty())?;
                let mut header = header(&stat, EntryType::Directory, 0);
                self.archive.append_data(&mut header, &path, io::empty())?;
                self.directory(&inside, &path, depth + 1)
            }
            FileType::RegularFile => {
                // By its descriptor: this leads to that very file, which is known to be no device and no pipe.
                let file = std::fs::File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
                let size = file.metadata()?.len();
                let mut header = header(&stat, EntryType::Regular, size);
                // A file that shrinks meanwhile must not shift what follows it.
                let content = file.take(size).chain(io::repeat(0)).take(size);
                self.archive.append_data(&mut header, &path, content)
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&found, "", Vec::new())?;
                let target = PathBuf::from(OsStr::from_bytes(target.to_bytes()));
                self.archive.append_link(&mut header(&stat, EntryType::Symlink, 0), &path, target)
            }
            FileType::CharacterDevice if stat.st_rdev == 0 => {
                let mut name = std::ffi::OsString::from(MARK);
                name.push(path.file_name().unwrap_or_default());
                self.mark(&parent.join(name), &[])
            }
            // Sockets and pipes mean nothing elsewhere.
            _ => Ok(()),
        }
    }

    fn mark(&mut self, path: &Path, content: &[u8]) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        self.archive.append_data(&mut header, path, content)
    }
}

fn header(stat: &Stat, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header.set_size(size);
    header
}

/// Returns true if what was in a directory before is not there any more. The kernel keeps its note where the overlay's user
/// may write: ordinary users have another namespace of attributes.
fn is_opaque(directory: &OwnedFd) -> bool {
    let mut value = [0u8; 1];
    let mut is_set = |name: &str| {
        matches!(rustix::fs::fgetxattr(directory, name, &mut value[..]), Ok(1)) && value == *b"y"
    };
    is_set("trusted.overlay.opaque") || is_set("user.overlay.opaque")
}

fn is_race(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn changes(upper: &Path) -> Vec<String> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let upper = rustix::fs::open(upper, flags, Mode::empty()).unwrap();
        let mut bytes = Vec::new();
        write(&upper, 17, &mut bytes).unwrap();
        let mut archive = tar::Archive::new(&bytes[..]);
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let link = entry.link_name().unwrap().map(|link| link.display().to_string());
            let mut content = String::new();
            entry.read_to_string(&mut content).unwrap();
            format!("{path} {}", link.unwrap_or(content)).trim_end().to_owned()
        });
        let mut entries: Vec<String> = entries.collect();
        let last = entries.pop();
        assert_eq!(last.as_deref(), Some(".wh..wh.end 17"));
        entries.sort();
        entries
    }

    #[test]
    fn changes_of_a_hostile_container_are_sent_and_no_link_is_followed() {
        let upper = tempfile::tempdir().unwrap();
        let at = |path: &str| upper.path().join(path);
        std::fs::create_dir(at("a")).unwrap();
        std::fs::write(at("a/changed"), "new").unwrap();
        std::os::unix::fs::symlink("/etc", at("link")).unwrap();
        std::fs::write(at(".wh.forged"), "").unwrap();
        let made =
            |path: &str, kind| rustix::fs::mknodat(rustix::fs::CWD, at(path), kind, Mode::RUSR, 0).unwrap();
        made("a/gone", FileType::CharacterDevice);
        // Opening it would wait for ever.
        made("pipe", FileType::Fifo);
        made("socket", FileType::Socket);
        assert_eq!(changes(upper.path()), ["a", "a/.wh.gone", "a/changed new", "link /etc"]);
    }

    #[test]
    fn replaced_directory_hides_what_was_in_it() {
        let upper = tempfile::tempdir().unwrap();
        let directory = upper.path().join("d");
        std::fs::create_dir(&directory).unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        if rustix::fs::setxattr(&directory, "user.overlay.opaque", b"y", flags).is_err() {
            eprintln!("skipped: the temporary directory's file system has no attributes");
            return;
        }
        assert_eq!(changes(upper.path()), ["d", "d/.wh..wh..opq"]);
    }
}
