//! A container's standard streams: pipes, or a terminal. The outer ends are the shim's, which logs what comes out of them
//! and lends them to whoever attaches.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use warren_sys::pty;

use super::child::Streams;
use super::pipe;
use super::rootfs::{self, Step, StepError};
use crate::idmap::IdRange;
use crate::protocol::TerminalSize;
use crate::spec::{Process, StandardInput};

/// The size of a terminal until somebody attaches and says theirs.
pub(super) const FIRST_SIZE: TerminalSize = TerminalSize { columns: 80, rows: 24 };

/// The shim's ends.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    /// To write to, if the container has an input.
    pub(crate) stdin: Option<OwnedFd>,
    /// To read from; of a terminal, all there is.
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
}

/// The container's ends.
#[derive(Debug)]
pub(super) enum Inside {
    Pipes {
        stdin: Option<OwnedFd>,
        stdout: OwnedFd,
        stderr: OwnedFd,
    },
    /// It comes with the mounts: a terminal belongs to a file system that is made only then.
    Terminal,
}

/// What can be made before the container's first process. For a terminal, nothing.
pub(super) fn before_mounts(ids: IdRange, process: &Process) -> Result<(Outside, Inside), StepError> {
    if process.terminal {
        return Ok((Outside::default(), Inside::Terminal));
    }
    let step = || "make a pipe".to_owned();
    let (stdout, stdout_inside) = pipe().step(step)?;
    let (stderr, stderr_inside) = pipe().step(step)?;
    let (stdin_inside, stdin) = match process.stdin {
        StandardInput::Empty => (None, None),
        StandardInput::Open | StandardInput::Once => {
            let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).step(step)?;
            (Some(reader), Some(writer))
        }
    };
    for stream in [Some(&stdout_inside), Some(&stderr_inside), stdin_inside.as_ref()].into_iter().flatten() {
        rootfs::give(stream.as_fd(), ids, process.user.uid, process.user.gid)?;
    }
    let outside = Outside { stdin, stdout: Some(stdout), stderr: Some(stderr) };
    Ok((outside, Inside::Pipes { stdin: stdin_inside, stdout: stdout_inside, stderr: stderr_inside }))
}

/// A terminal of the container's own instance, if it is to have one: the shim's end, and the container's.
pub(super) fn terminal(
    instance: BorrowedFd<'_>,
    ids: IdRange,
    process: &Process,
) -> Result<Option<(Outside, OwnedFd)>, StepError> {
    if !process.terminal {
        return Ok(None);
    }
    let step = || "open a terminal".to_owned();
    let pty = pty::open(instance, FIRST_SIZE.columns, FIRST_SIZE.rows).step(step)?;
    rootfs::give(pty.slave.as_fd(), ids, process.user.uid, ids.terminal_group())?;
    rustix::io::ioctl_fionbio(&pty.master, true).step(step)?;
    let stdin = match process.stdin {
        StandardInput::Empty => None,
        StandardInput::Open | StandardInput::Once => Some(pty.master.try_clone().step(step)?),
    };
    Ok(Some((Outside { stdin, stdout: Some(pty.master), stderr: None }, pty.slave)))
}

impl Inside {
    /// What the program gets; `null` stands for an input that is not there.
    pub(super) fn streams<'a>(
        &'a self,
        null: &'a OwnedFd,
        terminal: Option<&'a OwnedFd>,
    ) -> Result<Streams<'a>, StepError> {
        match (self, terminal) {
            (Inside::Pipes { stdin, stdout, stderr }, _) => Ok(Streams::Pipes {
                stdin: stdin.as_ref().unwrap_or(null).as_fd(),
                stdout: stdout.as_fd(),
                stderr: stderr.as_fd(),
            }),
            (Inside::Terminal, Some(terminal)) => Ok(Streams::Terminal(terminal.as_fd())),
            (Inside::Terminal, None) => Err(StepError {
                step: "take over the terminal".to_owned(),
                source: std::io::ErrorKind::InvalidData.into(),
            }),
        }
    }
}
