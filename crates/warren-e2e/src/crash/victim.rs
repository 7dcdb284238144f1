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

/// Between two looks at something that tells nobody of its coming. Short, for what is looked for lives for milliseconds.
const PAUSE: Duration = Duration::from_micros(200);
/// What a shim calls itself. Its children are called so too, until they become a program.
const SHIM: &str = "warren-shim";

/// Whom to kill, and when.
#[derive(Debug)]
pub(super) struct Prey {
    target: Target,
    /// The pods' directory, if the moment begins with a pod there that was not before.
    begun: Option<PathBuf>,
    known: Vec<PathBuf>,
    delay: Duration,
}

#[derive(Debug)]
enum Target {
    Process(OwnedFd),
    /// The first shim of a pod that was not there before.
    Shim(PathBuf),
}

impl Prey {
    /// A process that is there.
    pub(super) fn known(
        pid: u32,
        begun: Option<PathBuf>,
        known: Vec<PathBuf>,
        delay: Duration,
    ) -> Result<Self, String> {
        let process = open(pid).map_err(|error| format!("open process {pid}: {error}"))?;
        Ok(Self { target: Target::Process(process), begun, known, delay })
    }

    /// The shim of a pod that is not there yet.
    pub(super) fn shim_to_come(pods: PathBuf, known: Vec<PathBuf>, delay: Duration) -> Self {
        Self { target: Target::Shim(pods), begun: None, known, delay }
    }

    /// Kills it and waits for its end; false if it had ended before.
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

/// Kills while others go on.
pub(super) async fn kill_in_the_background(prey: Prey) -> Result<bool, String> {
    tokio::task::spawn_blocking(move || prey.kill()).await.map_err(|error| error.to_string())?
}

/// Waits for the end of a process; whether it came.
pub(super) fn wait_for_end(pid: u32, patience: Duration) -> Result<bool, String> {
    match open(pid) {
        Ok(process) => ended_within(&process, Some(patience)).map_err(|error| error.to_string()),
        Err(Errno::SRCH) => Ok(true),
        Err(error) => Err(format!("open process {pid}: {error}")),
    }
}

/// The only child of a daemon's first thread: its zygote.
pub(super) fn child_of(daemon: u32) -> Result<u32, String> {
    let children = fs::read_to_string(format!("/proc/{daemon}/task/{daemon}/children"));
    let children = children.map_err(|error| format!("read the children of {daemon}: {error}"))?;
    children.trim().parse().map_err(|_| format!("the daemon {daemon} has the children `{children}`"))
}

/// Processes with exactly this command line, words ending in zeros.
pub(super) fn processes_of(command_line: &str) -> Vec<u32> {
    let is_wanted = |pid: &u32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == command_line.as_bytes())
    };
    all().filter(is_wanted).collect()
}

/// A shim of a pod below `pods` that is none of those `known`.
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

/// By a descriptor: the signal never reaches another process that was given the number later.
fn open(pid: u32) -> rustix::io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    pidfd_open(pid, PidfdFlags::empty())
}

/// Whether a process has ended by then; without a limit, when it has.
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
