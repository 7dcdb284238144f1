//! Waits for the command of a task and becomes it, as the first process of a container in a warm pool.
//!
//! The command comes in a file that shows an annotation of the pod: JSON with `command` (the words) and `env` (variables to add).
//! The file is empty until then. There is nothing to answer: how the command ends is how the container ends.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use serde::Deserialize;
use warren_sys::process::{ignore_signals, read_signal, reset_signals, signal_descriptor};

/// The longest file that is read. All annotations of a pod together have at most 256 KiB.
const LONGEST: u64 = 1 << 20;

const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;
const SIGCHLD: i32 = 17;

/// A command as the file has it.
#[derive(Debug, Deserialize, PartialEq, Eq)]
struct Wanted {
    command: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

/// The reason why no command runs.
#[derive(Debug)]
pub enum Stopped {
    /// A signal asked this process to end before there was a command.
    Signal(i32),
    /// The file cannot be watched or read, or has something else in it.
    Wait(io::Error),
    /// The command cannot be executed.
    Start(String, io::Error),
}

impl Stopped {
    /// Returns the exit code, by a shell's rules. It is never 0, which would mean that a command succeeded.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Signal(signal) => 128 + u8::try_from(*signal).unwrap_or(0),
            Self::Wait(_) => 125,
            Self::Start(_, error) if error.kind() == ErrorKind::NotFound => 127,
            Self::Start(..) => 126,
        }
    }
}

impl std::fmt::Display for Stopped {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Signal(signal) => write!(formatter, "signal {signal} came before a command"),
            Self::Wait(error) => write!(formatter, "wait for a command: {error}"),
            Self::Start(program, error) => write!(formatter, "start {program}: {error}"),
        }
    }
}

/// Waits until the file has a command, and replaces this process by it.
pub fn await_command(file: &Path) -> Result<Infallible, Stopped> {
    let wanted = wait(file)?;
    let [program, arguments @ ..] = wanted.command.as_slice() else {
        return Err(Stopped::Wait(io::Error::new(ErrorKind::InvalidData, "the command is empty")));
    };
    // An ignored signal would stay ignored; blocked signals are unblocked when the program is executed.
    reset_signals(&[SIGCHLD]);
    let error = Command::new(program).args(arguments).envs(&wanted.env).exec();
    Err(Stopped::Start(program.clone(), error))
}

fn wait(file: &Path) -> Result<Wanted, Stopped> {
    let directory = file.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    // The first process of a container does not get signals that it does not ask for. Processes that were left to it are
    // reaped by the kernel.
    let signals = signal_descriptor(&[SIGINT, SIGTERM]).map_err(Stopped::Wait)?;
    ignore_signals(&[SIGCHLD]);
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
    let watch = watch.map_err(|error| Stopped::Wait(error.into()))?;
    let changes = WatchFlags::MOVED_TO | WatchFlags::CREATE | WatchFlags::CLOSE_WRITE | WatchFlags::ONLYDIR;
    inotify::add_watch(&watch, directory, changes).map_err(|error| Stopped::Wait(error.into()))?;
    loop {
        // Read after the watch began, so that no change is missed.
        if let Some(wanted) = read(file).map_err(Stopped::Wait)? {
            return Ok(wanted);
        }
        let mut events = [PollFd::new(&watch, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
        match poll(&mut events, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Stopped::Wait(error.into())),
        }
        let [changed, signalled] = events.map(|event| !event.revents().is_empty());
        if signalled {
            return Err(Stopped::Signal(read_signal(signals.as_fd()).map_err(Stopped::Wait)?));
        }
        if changed {
            forget(&watch).map_err(Stopped::Wait)?;
        }
    }
}

/// Reads all events: only that there were some matters.
fn forget(watch: &impl std::os::fd::AsFd) -> io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        match rustix::io::read(watch, &mut buffer) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads the command, which is not there yet while the file is missing or empty.
fn read(file: &Path) -> io::Result<Option<Wanted>> {
    let mut text = Vec::new();
    match File::open(file) {
        Ok(file) => file.take(LONGEST).read_to_end(&mut text)?,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match text.is_empty() {
        true => Ok(None),
        false => Ok(Some(serde_json::from_slice(&text)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_content_is_no_command_and_any_other_content_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("command");
        assert_eq!(read(&file).unwrap(), None);
        std::fs::write(&file, "").unwrap();
        assert_eq!(read(&file).unwrap(), None);
        std::fs::write(&file, r#"{"command": ["a", "b c"], "env": {"X": "1"}}"#).unwrap();
        let wanted = read(&file).unwrap().unwrap();
        assert_eq!((wanted.command, wanted.env.len()), (vec!["a".to_owned(), "b c".to_owned()], 1));
        for content in ["true", "{\"command\": \"true\"}", "{\"command\": [", "\u{0}"] {
            std::fs::write(&file, content).unwrap();
            assert!(read(&file).is_err(), "{content}");
        }
    }
}
