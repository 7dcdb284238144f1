//! Finds processes of a home and kills them at their moment.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::DEADLINE;

/// The interval of polling for a process without an event. Short, because some processes live for
/// milliseconds.
const PAUSE: Duration = Duration::from_micros(200);
/// The command line of a shim. Its children have it too, until they execute a program.
const SHIM: &str = "warren-shim";

/// The process to kill, and the time.
#[derive(Debug)]
pub(super) struct Prey {
    target: Target,
    /// The pods' directory, if the moment begins with a new pod there.
    begun: Option<PathBuf>,
    known: Vec<PathBuf>,
    delay: Duration,
}

#[derive(Debug)]
enum Target {
    Process(OwnedFd),
    /// The first shim of a new pod.
    Shim(PathBuf),
}

impl Prey {
    /// Returns an existing process as the victim.
    pub(super) fn known(
        pid: u32,
        begun: Option<PathBuf>,
        known: Vec<PathBuf>,
        delay: Duration,
    ) -> Result<Self, String> {
        let process = open(pid).map_err(|error| format!("open process {pid}: {error}"))?;
        Ok(Self { target: Target::Process(process), begun, known, delay })
    }

    /// Returns the shim of a future pod as the victim.
    pub(super) fn shim_to_come(pods: PathBuf, known: Vec<PathBuf>, delay: Duration) -> Self {
        Self { target: Target::Shim(pods), begun: None, known, delay }
    }

    /// Kills it and waits for its end; returns false if it had ended before.
    fn kill(self) -> Result<bool, String> {
        if let Some(pods) = &self.begun {
            let is_new = || fs::read_dir(pods).ok()?.flatten().find(|pod| !self.known.contains(&pod.path()));
            look_until("a pod begins", is_new)?;
        }
        let process = match self.target {
            Target::Process(process) => process,
            Target::Shim(pods) => look_until("a shim comes", || open(shim_beside(&pods, &self.known)?).ok())?,
        };
        // Wakes early if it ends by itself.
        if ended_within(&process, Some(self.delay)).map_err(|error| error.to_string())? {
            return Ok(false);
        }
        match pidfd_send_signal(&process, Signal::KILL) {
            Err(Errno::SRCH) => return Ok(false),
            sent => sent.map_err(|error| error.to_string())?,
        }
        ended_within(&process, None).map_err(|error| error.to_string())
    }
}

/// Kills it in the background.
pub(super) async fn kill_in_the_background(prey: Prey) -> Result<bool, String> {
    tokio::task::spawn_blocking(move || prey.kill()).await.map_err(|error| error.to_string())?
}

/// Waits for the end of a process; returns false after the time limit.
pub(super) fn wait_for_end(pid: u32, patience: Duration) -> Result<bool, String> {
    match open(pid) {
        Ok(process) => ended_within(&process, Some(patience)).map_err(|error| error.to_string()),
        Err(Errno::SRCH) => Ok(true),
        Err(error) => Err(format!("open process {pid}: {error}")),
    }
}

/// Returns the only child of a daemon's first thread: its zygote.
pub(super) fn child_of(daemon: u32) -> Result<u32, String> {
    let children = fs::read_to_string(format!("/proc/{daemon}/task/{daemon}/children"));
    let children = children.map_err(|error| format!("read the children of {daemon}: {error}"))?;
    children.trim().parse().map_err(|_| format!("the daemon {daemon} has the children `{children}`"))
}

/// Returns the processes with exactly this command line, its words ended by zeros.
pub(super) fn processes_of(command_line: &str) -> Vec<u32> {
    let is_wanted = |pid: &u32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == command_line.as_bytes())
    };
    all().filter(is_wanted).collect()
}

/// Returns a shim of a pod below `pods` that is none of those `known`.
pub(super) fn shim_beside(pods: &Path, known: &[PathBuf]) -> Option<u32> {
    let is_wanted = |pid: &u32| {
        let log = fs::read_link(format!("/proc/{pid}/fd/2")).unwrap_or_default();
        log.starts_with(pods) && !known.iter().any(|pod| log.starts_with(pod))
    };
    let is_child = |pid: u32| parent(pid).is_some_and(|parent| name(parent) == SHIM);
    all().filter(|pid| name(*pid) == SHIM).filter(is_wanted).find(|pid| !is_child(*pid))
}

fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

/// Opens a descriptor, so that the signal never reaches another process with a reused number.
fn open(pid: u32) -> rustix::io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    pidfd_open(pid, PidfdFlags::empty())
}

/// Waits for the end of a process, up to a time limit if there is one. Returns true if it has
/// ended.
fn ended_within(process: &OwnedFd, patience: Option<Duration>) -> io::Result<bool> {
    let deadline = patience.map(|patience| Instant::now() + patience);
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::new(process, PollFlags::IN)], left.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn look_until<T>(what: &str, look: impl Fn() -> Option<T>) -> Result<T, String> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if Instant::now() >= deadline {
            return Err(format!("never: {what}"));
        }
        std::thread::park_timeout(PAUSE);
    }
}
