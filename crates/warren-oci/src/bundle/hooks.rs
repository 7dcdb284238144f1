//! Hooks: programs that the configuration runs at certain moments. Each gets the container's state
//! on standard input.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::config::Hook;
use super::state::State;
use super::{Error, Step as _};

/// Runs hooks in order and stops at the first failure. Without `directory` they run in the current
/// directory.
pub(super) fn run_all(hooks: &[Hook], state: &State, directory: Option<&Path>) -> Result<(), Error> {
    hooks.iter().try_for_each(|hook| {
        run(hook, state, directory).step(|| format!("run the hook {}", hook.path.display()))
    })
}

/// Runs hooks in order. A failure only causes a warning, because the step that the hooks follow is
/// complete.
pub(super) fn run_each(hooks: &[Hook], state: &State, directory: Option<&Path>) {
    for hook in hooks {
        if let Err(error) = run(hook, state, directory) {
            complain!("warning: the hook {} failed: {error}", hook.path.display());
        }
    }
}

fn run(hook: &Hook, state: &State, directory: Option<&Path>) -> io::Result<()> {
    let mut command = Command::new(&hook.path);
    if let Some((name, arguments)) = hook.args.split_first() {
        command.arg0(name).args(arguments);
    }
    if let Some(directory) = directory {
        command.current_dir(directory);
    }
    command.env_clear().envs(hook.env.iter().filter_map(|line| line.split_once('=')));
    let mut child = command.stdin(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A hook need not read its input.
        let _ = stdin.write_all(&serde_json::to_vec(state)?);
    }
    if let Some(seconds) = hook.timeout {
        let handle = rustix::process::pidfd_open(
            rustix::process::Pid::from_child(&child),
            rustix::process::PidfdFlags::empty(),
        )?;
        let timeout = Timespec { tv_sec: i64::try_from(seconds).unwrap_or(i64::MAX), tv_nsec: 0 };
        if poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&timeout))? == 0 {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("it ran for more than {seconds} s")));
        }
    }
    match child.wait()? {
        status if status.success() => Ok(()),
        status => Err(io::Error::other(format!("it ended with {status}"))),
    }
}
