//! A container's standard streams: pipes or a terminal. The shim holds the outer ends, logs the
//! output and lends them to clients that attach.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use warren_sys::pty;

use super::child::Streams;
use super::pipe;
use super::rootfs::{self, Step, StepError};
use crate::idmap::IdRange;
use crate::protocol::TerminalSize;
use crate::spec::{Process, StandardInput};

/// The size of a terminal until a client attaches and sets it.
pub(super) const FIRST_SIZE: TerminalSize = TerminalSize { columns: 80, rows: 24 };

/// The shim's ends.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    /// For writing, if the container has an input.
    pub(crate) stdin: Option<OwnedFd>,
    /// For reading. A terminal has only this one.
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
    /// A terminal comes with the mounts, because its file system is made only then.
    Terminal,
}

/// Makes the streams that are possible before the container's first process exists. For a terminal
/// there are none.
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

/// Opens a terminal of the container's own instance, if requested. Returns the shim's and the
/// container's end.
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
    /// Returns the program's streams. `null` replaces a missing input.
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
