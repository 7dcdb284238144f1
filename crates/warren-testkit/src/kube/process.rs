//! Processes identified by pid and start time.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// One process, never confused with a later one of the same pid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// The name for messages.
    pub name: String,
    /// The process id.
    pub pid: i32,
    /// The start time in clock ticks since boot (field 22 of `/proc/<pid>/stat`).
    pub start_ticks: u64,
}

/// An error of ending processes.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// The kernel refused to open or signal it.
    #[error("end {name} (pid {pid})")]
    Signal {
        /// The name.
        name: String,
        /// The process id.
        pid: i32,
        /// The underlying I/O error.
        #[source]
        source: io::Error,
    },
    /// It was killed but did not end in time.
    #[error("{name} (pid {pid}) was killed but has not ended after {} s", after.as_secs())]
    StillRunning {
        /// The name.
        name: String,
        /// The process id.
        pid: i32,
        /// The waiting time.
        after: Duration,
    },
}

impl ProcessIdentity {
    /// Returns the identity of a running process.
    pub fn of(name: &str, pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
        match stat(pid)? {
            Some(Stat { start_ticks, .. }) => Ok(Self { name: name.to_owned(), pid, start_ticks }),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Returns true if it still runs. A zombie has ended.
    pub fn is_running(&self) -> bool {
        matches!(self.open(), Ok(Some(_)))
    }

    /// Opens exactly this process. Returns `None` if it has ended.
    fn open(&self) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(None) };
        let handle = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => handle,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // Check after opening: if the start time matches now, the pid belonged to the same process
        // when it was opened.
        let same = stat(self.pid)?.is_some_and(|stat| stat.start_ticks == self.start_ticks && !stat.ended);
        Ok(same.then_some(handle))
    }
}

/// Kills all of the processes that still run, then waits until they have ended.
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

/// Converts a duration for `poll`.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec::try_from(duration).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 })
}

/// Returns the id of this boot. Pids and start times are valid within one boot only.
pub(crate) fn boot_id() -> String {
    // Without it the string is always empty, which only weakens the check.
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

struct Stat {
    start_ticks: u64,
    ended: bool,
}

fn stat(pid: i32) -> io::Result<Option<Stat>> {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(text) => Ok(parse_stat(&text)),
        // If a process ends during the read, the error is ESRCH instead of ENOENT.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Parses fields 3 and 22. The program's name (field 2) may contain spaces and parentheses, so
/// count from its end.
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
