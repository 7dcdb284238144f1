//! Processes that are still the same process: a pid together with the moment it started.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// One process, never confused with a later one that got the same pid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// What it is, for people.
    pub name: String,
    /// Its process id.
    pub pid: i32,
    /// When it started, in clock ticks since the machine booted (field 22 of `/proc/<pid>/stat`).
    pub start_ticks: u64,
}

/// Ending processes did not work.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// The kernel refused to let us look at it or signal it.
    #[error("end {name} (pid {pid})")]
    Signal {
        /// What it is.
        name: String,
        /// Its process id.
        pid: i32,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// It was killed and yet did not end in time.
    #[error("{name} (pid {pid}) was killed but has not ended after {} s", after.as_secs())]
    StillRunning {
        /// What it is.
        name: String,
        /// Its process id.
        pid: i32,
        /// How long we waited.
        after: Duration,
    },
}

impl ProcessIdentity {
    /// The identity of a process that is running now.
    pub fn of(name: &str, pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
        match stat(pid)? {
            Some(Stat { start_ticks, .. }) => Ok(Self { name: name.to_owned(), pid, start_ticks }),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Whether it still runs. A zombie does not: it has ended, only nobody has asked how.
    pub fn is_running(&self) -> bool {
        matches!(self.open(), Ok(Some(_)))
    }

    /// A handle on exactly this process, or `None` if it has ended.
    fn open(&self) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(None) };
        let handle = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => handle,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // The order matters: whoever has our start time now also had the pid when the handle was opened.
        let same = stat(self.pid)?.is_some_and(|stat| stat.start_ticks == self.start_ticks && !stat.ended);
        Ok(same.then_some(handle))
    }
}

/// Kills those of the processes that still run, all of them first, then waits until they have ended.
pub fn end_and_wait(processes: &[ProcessIdentity], patience: Duration) -> Result<(), EndError> {
    let mut handles = Vec::new();
    for process in processes {
        let failed = |source| EndError::Signal { name: process.name.clone(), pid: process.pid, source };
        if let Some(handle) = process.open().map_err(failed)? {
            match pidfd_send_signal(&handle, Signal::KILL) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => handles.push((process, handle)),
                Err(error) => return Err(failed(error.into())),
            }
        }
    }
    let deadline = Instant::now() + patience;
    for (process, handle) in handles {
        let ended = ends_before(&handle, deadline).map_err(|source| EndError::Signal {
            name: process.name.clone(),
            pid: process.pid,
            source,
        })?;
        if !ended {
            return Err(EndError::StillRunning {
                name: process.name.clone(),
                pid: process.pid,
                after: patience,
            });
        }
    }
    Ok(())
}

/// Waits on a pidfd.
fn ends_before(handle: &OwnedFd, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = timespec(deadline.saturating_duration_since(Instant::now()));
        match poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// A duration as `poll` wants it.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec::try_from(duration).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 })
}

/// This boot of this machine: pids and start times mean nothing in another one.
pub(crate) fn boot_id() -> String {
    // A kernel without it gives the same empty string each time, which only makes the check weaker.
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

struct Stat {
    start_ticks: u64,
    ended: bool,
}

fn stat(pid: i32) -> io::Result<Option<Stat>> {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(text) => Ok(parse_stat(&text)),
        // A process that ends while we read gives ESRCH instead of ENOENT.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads fields 3 and 22. The program's name (field 2) may hold spaces and parentheses, so we count from its end.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ended = matches!(*fields.first()?, "Z" | "X");
    Some(Stat { start_ticks: fields.get(19)?.parse().ok()?, ended })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_program_name_may_look_like_fields() {
        let text = "42 (a) R 1 (b) S 1 42 42 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 9876 1000 10 0";
        let stat = parse_stat(text).unwrap();
        assert_eq!((stat.start_ticks, stat.ended), (9876, false));
        assert!(parse_stat("").is_none());
        assert!(parse_stat("42 (x) R 1").is_none());
    }

    #[test]
    fn ends_exactly_the_process_that_was_recorded() {
        let mut child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let process = ProcessIdentity::of("sleep", child.id()).unwrap();
        let other = ProcessIdentity { start_ticks: process.start_ticks + 1, ..process.clone() };

        end_and_wait(std::slice::from_ref(&other), Duration::from_secs(10)).unwrap();
        assert!(process.is_running(), "same pid, other start time: not ours to end");
        assert!(!other.is_running());

        end_and_wait(std::slice::from_ref(&process), Duration::from_secs(10)).unwrap();
        assert!(!process.is_running(), "a zombie has ended");
        child.wait().unwrap();
        assert!(!process.is_running());
    }
}
