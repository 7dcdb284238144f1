//! Runs `warren up` in the foreground, as a child that a test can kill at any moment, on a data
//! directory that outlives it.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::local_home::warren_binary;

/// A running daemon. Dropping it kills it.
#[derive(Debug)]
pub struct Foreground {
    child: Child,
    log: PathBuf,
}

/// A daemon's report that it is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    /// The process that runs the home: not the child, if the home was already running.
    pub pid: u32,
    /// True if the child runs it.
    pub started: bool,
}

impl Foreground {
    /// Starts `warren up` with more arguments, optionally by another program (`wrapper`) that
    /// finally executes it. Its log goes to `log`.
    pub fn spawn(data_dir: &Path, wrapper: &[OsString], arguments: &[&str], log: &Path) -> Self {
        let mut words = wrapper.to_vec();
        words.push(warren_binary().into());
        let file = std::fs::File::options().create(true).append(true).open(log).expect("open the log");
        let child = Command::new(&words[0])
            .args(&words[1..])
            .args(["up", "--output", "json"])
            .args(arguments)
            .env("WARREN_HOME", data_dir)
            .env_remove("WARREN_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .expect("start warren");
        Self { child, log: log.to_owned() }
    }

    /// Returns the child's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the API is ready; `None` if the child ended before.
    pub fn wait_ready(&mut self) -> Option<Ready> {
        let mut line = String::new();
        let stdout = self.child.stdout.as_mut().expect("asked once");
        BufReader::new(stdout).read_line(&mut line).expect("read from the daemon");
        let report: serde_json::Value = serde_json::from_str(&line).ok()?;
        let pid = u32::try_from(report["pid"].as_u64()?).ok()?;
        Some(Ready { pid, started: report["started"] == true })
    }

    /// Does the same for a daemon that must become ready.
    ///
    /// # Panics
    ///
    /// Panics with its log if it ends instead.
    pub fn expect_ready(&mut self) -> Ready {
        self.wait_ready().unwrap_or_else(|| {
            let words = std::fs::read_to_string(&self.log).unwrap_or_default();
            panic!("the daemon ended before it was ready:\n{words}")
        })
    }

    /// Kills it (`kill -9`); returns when it is gone.
    pub fn kill(mut self) {
        self.end();
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("send a signal");
    }

    /// Waits for its end; `None` after `patience`.
    pub fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        let handle =
            rustix::process::pidfd_open(Pid::from_child(&self.child), rustix::process::PidfdFlags::empty())
                .expect("the child has not been reaped");
        let timeout = rustix::event::Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: 0 };
        let mut poll = [rustix::event::PollFd::new(&handle, rustix::event::PollFlags::IN)];
        match rustix::event::poll(&mut poll, Some(&timeout)).expect("wait for the child") {
            0 => None,
            _ => Some(self.child.wait().expect("reap the child")),
        }
    }

    fn end(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns the process that forks shims: the daemon's only child.
pub fn zygote_of(daemon: u32) -> u32 {
    let children =
        std::fs::read_to_string(format!("/proc/{daemon}/task/{daemon}/children")).expect("read children");
    children.trim().parse().expect("one child")
}
