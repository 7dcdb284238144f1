//! Watches of directories, by inotify: as a stream (`WatchDir`), or kept here until they are asked for (`CreateWatcher`).

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::Envd;
use super::connect::{self, Code, Failure};
use super::filesystem::Wanted;
use super::paths::{self, Names};
use super::user::{self, User};
use crate::reply::Body;

/// The most watchers that are kept.
const MOST_WATCHERS: usize = 64;
/// The most events that a watcher keeps; the oldest go first.
const MOST_EVENTS: usize = 16_384;
/// The most directories that one watch covers.
const MOST_DIRECTORIES: usize = 8192;
/// Events on their way to a client that does not read.
const UNREAD: usize = 64;

/// The watchers that clients have made.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    all: Mutex<BTreeMap<String, Kept>>,
}

#[derive(Debug)]
struct Kept {
    events: Arc<Mutex<VecDeque<Value>>>,
    task: AbortHandle,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watchers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Kept>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Returns the events that a watcher has kept since the last call.
    pub(super) fn take(&self, id: &str) -> Result<Value, Failure> {
        let all = self.lock();
        let kept = all.get(id).ok_or_else(|| missing(id))?;
        let events: Vec<Value> =
            kept.events.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect();
        Ok(json!({ "events": events }))
    }

    /// Ends a watcher.
    pub(super) fn remove(&self, id: &str) -> Result<Value, Failure> {
        self.lock().remove(id).map(|_| json!({})).ok_or_else(|| missing(id))
    }
}

fn missing(id: &str) -> Failure {
    Failure::new(Code::NotFound, format!("there is no watcher `{}`", id.chars().take(64).collect::<String>()))
}

/// Makes a watcher.
pub(super) fn create(envd: &Envd, wanted: &Wanted, user: &User) -> Result<Value, Failure> {
    let watch = Watch::open(wanted, user)?;
    let mut all = envd.watchers.lock();
    if all.len() >= MOST_WATCHERS {
        return Err(Failure::new(Code::ResourceExhausted, format!("{MOST_WATCHERS} watchers exist already")));
    }
    let events: Arc<Mutex<VecDeque<Value>>> = Arc::default();
    let id = format!("w{:016x}", fastrand::u64(..));
    let kept = events.clone();
    let task = tokio::spawn(watch.run(async move |event| {
        let mut events = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() >= MOST_EVENTS {
            events.pop_front();
        }
        events.push_back(event);
        true
    }));
    all.insert(id.clone(), Kept { events, task: task.abort_handle() });
    Ok(json!({ "watcherId": id }))
}

/// Answers `WatchDir`: events for as long as the client stays.
pub(super) async fn stream(envd: Arc<Envd>, request: Request<Incoming>) -> Result<Response<Body>, Failure> {
    let (timeout, keepalive) = (connect::timeout(request.headers()), connect::keepalive(request.headers()));
    let user = envd.users.named(user::of_request(request.headers())?.as_deref())?;
    let wanted: Wanted = connect::first_message(request).await?;
    let watch = Watch::open(&wanted, &user)?;
    let (sender, frames) = mpsc::channel::<Bytes>(UNREAD);
    let _ = sender.try_send(connect::framed(&json!({ "start": {} })));
    tokio::spawn(async move {
        let events = sender.clone();
        let following = watch.run(async move |event| {
            events.send(connect::framed(&json!({ "filesystem": event }))).await.is_ok()
        });
        let late = async {
            match timeout {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        let alive = async {
            loop {
                tokio::time::sleep(keepalive).await;
                if sender.send(connect::framed(&json!({ "keepalive": {} }))).await.is_err() {
                    return;
                }
            }
        };
        let result = tokio::select! {
            () = following => Ok(()),
            () = late => Err(Failure::new(Code::DeadlineExceeded, "the time limit is over")),
            () = alive => return,
            () = sender.closed() => return,
        };
        let _ = sender.send(connect::end(&result)).await;
    });
    Ok(connect::stream(frames))
}

/// A directory that is watched, and those below it if that was asked for.
struct Watch {
    base: PathBuf,
    recursive: bool,
    include_entry: bool,
    inotify: OwnedFd,
    /// The kernel's records about it.
    records: pipe::Receiver,
    directories: BTreeMap<i32, PathBuf>,
}

/// An event that the kernel reported.
struct Seen {
    watch: i32,
    name: Option<String>,
    events: ReadFlags,
}

impl Watch {
    fn open(wanted: &Wanted, user: &User) -> Result<Watch, Failure> {
        let base = paths::wanted("path", &wanted.path, user)?;
        let failed = |error: io::Error| Failure::io(&base.to_string_lossy(), &error);
        if !base.metadata().map_err(failed)?.is_dir() {
            return Err(Failure::new(
                Code::InvalidArgument,
                format!("{} is not a directory", base.display()),
            ));
        }
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let inotify = inotify.map_err(|error| failed(error.into()))?;
        // It is no pipe, but reading it is the same.
        let records = inotify.try_clone().and_then(|copy| pipe::Receiver::from_file_unchecked(copy.into()));
        let mut watch = Watch {
            recursive: wanted.recursive,
            include_entry: wanted.include_entry,
            inotify,
            records: records.map_err(failed)?,
            directories: BTreeMap::new(),
            base: base.clone(),
        };
        watch.add(&base).map_err(failed)?;
        if wanted.recursive {
            watch.add_below(&base, &mut Vec::new());
        }
        Ok(watch)
    }

    fn add(&mut self, directory: &Path) -> io::Result<()> {
        if self.directories.len() >= MOST_DIRECTORIES {
            return Err(io::Error::other(format!("more than {MOST_DIRECTORIES} directories")));
        }
        let flags = WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::MODIFY
            | WatchFlags::DELETE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::ONLYDIR
            | WatchFlags::DONT_FOLLOW;
        let follows = if directory == self.base { flags - WatchFlags::DONT_FOLLOW } else { flags };
        let id = inotify::add_watch(&self.inotify, directory, follows)?;
        self.directories.insert(id, directory.to_owned());
        Ok(())
    }

    /// Watches everything below a directory. What is there already may have come before the watch; it is added to `found`.
    fn add_below(&mut self, directory: &Path, found: &mut Vec<PathBuf>) {
        let mut left = vec![directory.to_owned()];
        while let Some(directory) = left.pop() {
            let Ok(entries) = std::fs::read_dir(&directory) else { continue };
            for entry in entries.flatten() {
                let path = entry.path();
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) && self.add(&path).is_ok() {
                    left.push(path.clone());
                }
                if found.len() < MOST_EVENTS {
                    found.push(path);
                }
            }
        }
    }

    /// Hands events on until `tell` returns false or the directory is gone.
    async fn run(mut self, tell: impl AsyncFn(Value) -> bool) {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let length = match self.records.read(&mut buffer).await {
                Ok(length @ 1..) => length,
                Ok(_) | Err(_) => return,
            };
            for seen in records(&buffer[..length]) {
                let mut events = Vec::new();
                let goes_on = self.understand(&seen, &mut events);
                for (kind, path) in events {
                    if !tell(self.event(kind, &path)).await {
                        return;
                    }
                }
                if !goes_on {
                    return;
                }
            }
        }
    }

    /// Turns what the kernel said into events. Returns false when the watched directory itself has gone.
    fn understand(&mut self, seen: &Seen, events: &mut Vec<(&'static str, PathBuf)>) -> bool {
        let Some(directory) = self.directories.get(&seen.watch).cloned() else { return true };
        if seen.events.contains(ReadFlags::IGNORED) {
            self.directories.remove(&seen.watch);
            return directory != self.base;
        }
        let Some(name) = &seen.name else { return true };
        let path = directory.join(name);
        if seen.events.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            events.push(("EVENT_TYPE_CREATE", path.clone()));
            if self.recursive && seen.events.contains(ReadFlags::ISDIR) && self.add(&path).is_ok() {
                let mut found = Vec::new();
                self.add_below(&path, &mut found);
                events.extend(found.into_iter().map(|path| ("EVENT_TYPE_CREATE", path)));
            }
        }
        for (flag, kind) in [
            (ReadFlags::MODIFY, "EVENT_TYPE_WRITE"),
            (ReadFlags::ATTRIB, "EVENT_TYPE_CHMOD"),
            (ReadFlags::MOVED_FROM, "EVENT_TYPE_RENAME"),
            (ReadFlags::DELETE, "EVENT_TYPE_REMOVE"),
        ] {
            if seen.events.contains(flag) {
                events.push((kind, path.clone()));
            }
        }
        true
    }

    fn event(&self, kind: &str, path: &Path) -> Value {
        let name = path.strip_prefix(&self.base).unwrap_or(path).to_string_lossy();
        let mut event = json!({ "name": name, "type": kind });
        if self.include_entry
            && let Ok(entry) = paths::entry(path, &Names::read())
        {
            event["entry"] = entry;
        }
        event
    }
}

/// Reads the kernel's records: the watch, the flags, a cookie, the length of the name, and the name.
fn records(mut bytes: &[u8]) -> Vec<Seen> {
    let mut all = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(16) {
        let number = |at: usize| [head[at], head[at + 1], head[at + 2], head[at + 3]];
        let length = u32::from_ne_bytes(number(12)) as usize;
        let Some((name, rest)) = rest.split_at_checked(length) else { break };
        let name = name.split(|byte| *byte == 0).next().filter(|name| !name.is_empty());
        all.push(Seen {
            watch: i32::from_ne_bytes(number(0)),
            name: name.map(|name| String::from_utf8_lossy(name).into_owned()),
            events: ReadFlags::from_bits_retain(u32::from_ne_bytes(number(4))),
        });
        bytes = rest;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_with_and_without_names_and_cut_ones_are_left() {
        let record = |watch: i32, flags: u32, name: &[u8]| {
            let length = u32::try_from(name.len()).unwrap();
            let numbers = [watch.cast_unsigned(), flags, 0, length].map(u32::to_ne_bytes).concat();
            [&numbers, name].concat()
        };
        let bytes = [record(3, ReadFlags::CREATE.bits(), b"a\0\0\0"), record(4, 0, b"")].concat();
        let seen = records(&bytes);
        assert_eq!((seen[0].watch, seen[0].name.as_deref()), (3, Some("a")));
        assert_eq!((seen[1].watch, seen[1].name.as_deref()), (4, None));
        assert_eq!(records(&bytes[..19]).len(), 0);
    }
}
