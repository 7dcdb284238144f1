//! The locks of a data directory: one daemon at a time.
//!
//! The kernel releases both locks however their holder ends. `lock` is held for a daemon's whole
//! life, and its text describes the holder. `start.lock` is taken before it and held until the API
//! is ready. So waiting for `start.lock` is waiting for the end of a start, without polling the
//! API.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::Config;

/// The longest time that a daemon needs to leave: the store finishes, and the kernel frees the
/// process.
const LEAVING: Duration = Duration::from_secs(30);
/// The maximum length of a holder's description.
const LONGEST_HOLDER: u64 = 64 << 10;
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The holder of a home. It is written to the lock file, for other daemons and for `warren down`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// The daemon's process id.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// The settings that it was started with. Nodes of clusters and older programs do not report
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Settings>,
}

/// The settings that a home is started with and keeps until it is stopped, in the form of its
/// flags.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// The address that the API listens on.
    pub listen: SocketAddr,
    /// The address that the router listens on. Earlier versions have none.
    #[serde(default)]
    pub router_listen: Option<SocketAddr>,
    /// Registries that are accessed without TLS.
    pub insecure_registries: Vec<String>,
    /// Further runtimes, as `NAME=PATH`.
    pub runtimes: Vec<String>,
    /// Directories that pods may mount, as `DIR` or `DIR:rw`.
    pub host_paths: Vec<String>,
}

impl Settings {
    /// Reads them from a configuration.
    pub fn of(config: &Config) -> Settings {
        Settings {
            listen: config.listen,
            router_listen: Some(config.router_listen),
            insecure_registries: config.registries.insecure.clone(),
            runtimes: config
                .runtimes
                .iter()
                .map(|runtime| format!("{}={}", runtime.name, runtime.path.display()))
                .collect(),
            host_paths: config.host_paths.iter().map(ToString::to_string).collect(),
        }
    }
}

/// An error of taking the lock.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another daemon holds it.
    #[error("process {} (warren {}) already runs the home in `{}`", holder.pid, holder.version, directory.display())]
    Held {
        /// The data directory.
        directory: PathBuf,
        /// The other daemon.
        holder: Box<Holder>,
    },
    /// The file could not be opened, locked or written.
    #[error("lock `{}`", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

/// A start in progress. Dropping it, or the end of the process, ends the start.
#[derive(Debug)]
pub struct Starting {
    _file: File,
}

/// The lock of our home. It is held as long as this value exists.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

fn open(path: &Path) -> Result<File, LockError> {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|source| LockError::File { path: path.to_owned(), source })
}

fn start_lock(directory: &Path) -> PathBuf {
    directory.join("start.lock")
}

fn home_lock(directory: &Path) -> PathBuf {
    directory.join("lock")
}

impl Starting {
    /// Begins a start, after any other has ended.
    pub fn begin(directory: &Path) -> Result<Self, LockError> {
        Self::wait(directory, FlockOperation::LockExclusive)
    }

    fn wait(directory: &Path, operation: FlockOperation) -> Result<Self, LockError> {
        let path = start_lock(directory);
        let file = open(&path)?;
        flock(&file, operation).map_err(|error| LockError::File { path, source: error.into() })?;
        Ok(Self { _file: file })
    }
}

/// Waits until no start is in progress. The home is then either ready or not running.
pub fn wait_for_start(directory: &Path) -> Result<(), LockError> {
    Starting::wait(directory, FlockOperation::LockShared).map(drop)
}

impl Lock {
    /// Takes a home. Fails if another daemon runs it. Call it during our own start. No other start
    /// is then in progress, so a holder that does not answer is leaving, and this waits for it.
    pub fn take(directory: &Path, holder: &Holder, answers: impl Fn() -> bool) -> Result<Self, LockError> {
        let path = home_lock(directory);
        let mut file = open(&path)?;
        let failed = |source| LockError::File { path: path.clone(), source };
        let begun = Instant::now();
        while !try_lock(&file).map_err(failed)? {
            if answers() || begun.elapsed() > LEAVING {
                let holder = Box::new(read_holder(&mut file).map_err(failed)?);
                return Err(LockError::Held { directory: directory.to_owned(), holder });
            }
            #[expect(clippy::disallowed_methods, reason = "a lock cannot be waited for with a deadline")]
            std::thread::sleep(LOOK_AGAIN);
        }
        let text = serde_json::to_vec(holder).map_err(|error| failed(error.into()))?;
        // Truncate last: on a full disk, space that is given up may not be available again.
        file.rewind()
            .and_then(|()| file.write_all(&text))
            .and_then(|()| file.set_len(text.len() as u64))
            .map_err(failed)?;
        Ok(Self { _file: file })
    }
}

/// Returns the holder of the home, if any.
pub fn holder(directory: &Path) -> Result<Option<Holder>, LockError> {
    let path = home_lock(directory);
    let failed = |source| LockError::File { path: path.clone(), source };
    let mut file = match File::options().read(true).write(true).open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if try_lock(&file).map_err(failed)? {
        return Ok(None);
    }
    read_holder(&mut file).map(Some).map_err(failed)
}

fn try_lock(file: &File) -> std::io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn read_holder(file: &mut File) -> std::io::Result<Holder> {
    let mut text = String::new();
    file.rewind()?;
    // A holder writes one object. Limit the read in case the file contains anything else.
    file.take(LONGEST_HOLDER).read_to_string(&mut text)?;
    // The end of an older text may follow.
    let first = serde_json::Deserializer::from_str(&text).into_iter().next();
    Ok(first.ok_or(std::io::ErrorKind::UnexpectedEof)??)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn somebody(pid: u32) -> Holder {
        Holder { pid, version: "1.2.3".to_owned(), settings: None }
    }

    #[test]
    fn the_second_is_told_who_holds_it() {
        let directory = tempfile::tempdir().expect("make a directory");
        assert_eq!(holder(directory.path()).expect("look"), None);
        let lock = Lock::take(directory.path(), &somebody(12), || false).expect("take");
        let error = Lock::take(directory.path(), &somebody(34), || true).expect_err("held");
        assert!(
            error.to_string().starts_with("process 12 (warren 1.2.3) already runs the home in"),
            "{error}"
        );
        assert_eq!(holder(directory.path()).expect("look"), Some(somebody(12)));

        drop(lock);
        assert_eq!(holder(directory.path()).expect("look"), None);
        Lock::take(directory.path(), &somebody(34), || false).expect("take again");
    }

    #[test]
    fn one_that_no_longer_answers_is_waited_for() {
        let directory = tempfile::tempdir().expect("make a directory");
        let leaving =
            std::cell::Cell::new(Some(Lock::take(directory.path(), &somebody(12), || false).expect("take")));
        // The holder exits while it is probed.
        let taken = Lock::take(directory.path(), &somebody(34), || {
            drop(leaving.take());
            false
        });
        let _lock = taken.expect("take what was left");
        assert_eq!(holder(directory.path()).expect("look"), Some(somebody(34)));
    }

    #[test]
    fn a_start_is_waited_for() {
        let directory = tempfile::tempdir().expect("make a directory");
        wait_for_start(directory.path()).expect("none is going on");
        let starting = Starting::begin(directory.path()).expect("begin");
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                wait_for_start(directory.path()).expect("wait");
                sender.send("waited").expect("send");
            });
            // This is sent before the start ends. If the other did not wait, its message would come
            // first.
            sender.send("ended").expect("send");
            drop(starting);
        });
        assert_eq!(receiver.recv().expect("first"), "ended");
        assert_eq!(receiver.recv().expect("second"), "waited");
    }
}
