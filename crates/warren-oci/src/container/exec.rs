//! Starts another process in a running container.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use warren_sys::process::{self, Child, CloneOptions, Fork, Namespaces};
use warren_sys::socket::Seqpacket;
use warren_sys::{namespace, pty};

use super::child::{self, Failure, Streams};
use super::rootfs::{self, Step, StepError};
use super::{Container, Keeper, Workshop, adjust_oom_score, clone_inside, finish_child, pipe};
use crate::defaults;
use crate::idmap::IdRange;
use crate::protocol::{Activation, ExecRequest, Refusal, RefusalReason, TerminalSize};
use crate::spec::{Process, User};

/// A new process and the client's ends of its streams.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) child: Child,
    pub(crate) report: Option<OwnedFd>,
    pub(crate) streams: Vec<OwnedFd>,
    /// The number of the terminal in the container's `/dev/pts`.
    pub(crate) terminal: Option<u32>,
}

/// Starts a process in `container`.
pub(crate) fn exec(
    workshop: &Workshop,
    ids: IdRange,
    container: &Container,
    request: &ExecRequest,
) -> Result<Exec, Refusal> {
    let user = request.user.clone().unwrap_or_else(|| container.spec.process.user.clone());
    let program = Process {
        args: request.args.clone(),
        cwd: request.cwd.clone().unwrap_or_else(|| container.spec.process.cwd.clone()),
        user,
        ..container.spec.process.clone()
    };
    let environment = environment(&program, &request.env, request.terminal);
    let ends = make_ends(ids, container, &program.user, request).map_err(Refusal::from)?;
    match &container.keeper {
        Keeper::Itself { pid_namespace } => {
            start(workshop, container, pid_namespace, &program, &environment, ends).map_err(Refusal::from)
        }
        Keeper::Runtime(runtime) => {
            let (keeper, entrance) = (container.child.pid(), &container.entrance);
            runtime.exec(workshop, keeper, entrance, &program, &environment, ends).map_err(Refusal::from)
        }
    }
}

/// Starts the program of an [`Activation`] in `container`. It receives the listeners through its
/// standard input.
pub(crate) fn activate(
    workshop: &Workshop,
    container: &Container,
    activation: &Activation,
    listeners: &[OwnedFd],
) -> Result<Exec, Refusal> {
    let Keeper::Itself { pid_namespace } = &container.keeper else {
        let message = "another runtime keeps the container".to_owned();
        return Err(Refusal { reason: RefusalReason::Unsupported, message });
    };
    let program = Process { args: activation.args.clone(), ..container.spec.process.clone() };
    let environment = environment(&program, &[], None);
    let ends = activation_ends(listeners).step(|| "hand over the listening sockets".to_owned())?;
    start(workshop, container, pid_namespace, &program, &environment, ends).map_err(Refusal::from)
}

fn activation_ends(listeners: &[OwnedFd]) -> io::Result<Ends> {
    let (ours, theirs) = Seqpacket::pair()?;
    // The message can be read even after our end is closed.
    let listeners: Vec<BorrowedFd<'_>> = listeners.iter().map(AsFd::as_fd).collect();
    ours.send(b"listen", &listeners)?;
    let null = || std::fs::OpenOptions::new().write(true).open("/dev/null").map(OwnedFd::from);
    let inside = vec![theirs.into(), null()?, null()?];
    Ok(Ends { outside: Vec::new(), inside, has_stdin: true, terminal: None })
}

/// Both ends of all streams.
pub(super) struct Ends {
    pub(super) outside: Vec<OwnedFd>,
    inside: Vec<OwnedFd>,
    has_stdin: bool,
    pub(super) terminal: Option<u32>,
}

impl Ends {
    /// Returns the program's streams. `null` replaces an input that was not requested.
    pub(super) fn streams<'a>(&'a self, null: &'a OwnedFd) -> Result<Streams<'a>, StepError> {
        match self.inside.as_slice() {
            [terminal] if self.terminal.is_some() => Ok(Streams::Terminal(terminal.as_fd())),
            [stdin, stdout, stderr] if self.has_stdin => {
                Ok(Streams::Pipes { stdin: stdin.as_fd(), stdout: stdout.as_fd(), stderr: stderr.as_fd() })
            }
            [stdout, stderr] => {
                Ok(Streams::Pipes { stdin: null.as_fd(), stdout: stdout.as_fd(), stderr: stderr.as_fd() })
            }
            _ => Err(StepError {
                step: "count the streams".to_owned(),
                source: io::ErrorKind::InvalidInput.into(),
            }),
        }
    }
}

fn make_ends(
    ids: IdRange,
    container: &Container,
    user: &User,
    request: &ExecRequest,
) -> Result<Ends, StepError> {
    if let Some(size) = request.terminal {
        let step = || "open a terminal".to_owned();
        let pty = pty::open(container.terminals.as_fd(), size.columns, size.rows).step(step)?;
        // As usual, the terminal belongs to its user, and its group may write to it.
        rootfs::give(pty.slave.as_fd(), ids, user.uid, ids.terminal_group())?;
        let terminal = pty::number(pty.master.as_fd()).step(step)?;
        return Ok(Ends {
            outside: vec![pty.master],
            inside: vec![pty.slave],
            has_stdin: true,
            terminal: Some(terminal),
        });
    }
    let mut ends = Ends { outside: Vec::new(), inside: Vec::new(), has_stdin: request.stdin, terminal: None };
    let step = || "make a pipe".to_owned();
    if request.stdin {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).step(step)?;
        ends.inside.push(reader);
        ends.outside.push(writer);
    }
    for _ in ["stdout", "stderr"] {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).step(step)?;
        ends.inside.push(writer);
        ends.outside.push(reader);
    }
    for stream in &ends.inside {
        rootfs::give(stream.as_fd(), ids, user.uid, user.gid)?;
    }
    Ok(ends)
}

fn start(
    workshop: &Workshop,
    container: &Container,
    pid_namespace: &OwnedFd,
    program: &Process,
    environment: &[String],
    mut ends: Ends,
) -> Result<Exec, StepError> {
    let step = || "clone a process".to_owned();
    let (report, report_inside) = pipe().step(step)?;
    let mut born_inside = container.entrance.clone_into().is_some();
    let mut options = CloneOptions {
        namespaces: Namespaces::NONE,
        sibling: false,
        cgroup: container.entrance.clone_into(),
    };
    let mut forked = clone_there(workshop, pid_namespace, options)?;
    if born_inside && forked.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EAGAIN)) {
        // The container has reached its pids limit. Start outside the cgroup and move in, so that
        // an operator can still look into it. Version 1 always works like this, because moving is
        // not forking.
        born_inside = false;
        options.cgroup = None;
        forked = clone_there(workshop, pid_namespace, options)?;
    }
    if let Ok(Fork::Child) = forked {
        ends.outside.clear();
        drop(report);
        let life = || exec_process(workshop, container, program, environment, &ends, born_inside);
        finish_child(&report_inside, life)
    }
    let Fork::Parent(child) = forked.step(step)? else {
        return Err(io::Error::other("the child has been dealt with")).step(step);
    };
    Ok(Exec { child, report: Some(report), streams: ends.outside, terminal: ends.terminal })
}

/// Clones a process into the container's pid namespace. Only children of a process that has entered
/// the namespace are in it.
fn clone_there(
    workshop: &Workshop,
    pid_namespace: &OwnedFd,
    options: CloneOptions<'_>,
) -> Result<io::Result<Fork>, StepError> {
    let inside = pid_namespace.as_fd();
    if !workshop.can_return() {
        return Ok(clone_inside(workshop.proof, &[inside], options.namespaces, options.cgroup));
    }
    // The shim enters, clones and leaves again, which saves the usual helper process.
    namespace::enter_one(inside).step(|| "enter the pid namespace".to_owned())?;
    let forked = process::clone(workshop.proof, options);
    if matches!(forked, Ok(Fork::Child)) {
        return Ok(forked);
    }
    let returned = namespace::enter_one(workshop.pid_namespace.as_fd());
    if let (Err(_), Ok(Fork::Parent(child))) = (&returned, &forked) {
        let _ = child.signal(libc::SIGKILL);
        let _ = child.wait();
    }
    returned.step(|| "leave the pid namespace".to_owned())?;
    Ok(forked)
}

fn exec_process(
    workshop: &Workshop,
    container: &Container,
    program: &Process,
    environment: &[String],
    ends: &Ends,
    born_inside: bool,
) -> Result<std::convert::Infallible, Failure> {
    child::die_with_parent()?;
    let null = child::open_null()?;
    // The process sets this itself, while it is still privileged. From outside it could come too
    // late or be refused.
    adjust_oom_score("self", program, workshop.privileges)?;
    if !born_inside {
        container.entrance.enter().step(|| "enter the cgroup".to_owned())?;
    }
    let all = Namespaces::USER
        .with(Namespaces::MOUNT)
        .with(Namespaces::NETWORK)
        .with(Namespaces::IPC)
        .with(Namespaces::UTS)
        .with(Namespaces::CGROUP);
    namespace::enter(container.child.pidfd(), all).step(|| "enter the container".to_owned())?;
    rustix::process::setsid().step(|| "make a session".to_owned())?;
    process::join_new_session_keyring().step(|| "make a keyring".to_owned())?;
    child::become_root(workshop.groups())?;
    let streams = ends.streams(&null)?;
    child::become_program(program, environment, streams, &workshop.filter, workshop.groups())
}

/// Sets the size of a terminal. It is opened by number for a moment only: a descriptor kept by the
/// shim would hide from the program that its user has gone.
pub(crate) fn resize(container: &Container, terminal: u32, size: TerminalSize) -> io::Result<()> {
    let slave = rustix::fs::openat(
        &container.terminals,
        terminal.to_string(),
        OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    pty::resize(slave.as_fd(), size.columns, size.rows)
}

/// Returns the container's environment with `more` on top, and with the variables that every
/// program expects.
pub(super) fn environment(process: &Process, more: &[String], terminal: Option<TerminalSize>) -> Vec<String> {
    let mut lines: Vec<String> = Vec::with_capacity(process.env.len() + more.len() + 3);
    fn name(line: &str) -> &str {
        line.split_once('=').map_or(line, |(name, _)| name)
    }
    for line in process.env.iter().chain(more) {
        match lines.iter_mut().find(|known| name(known) == name(line)) {
            Some(known) => known.clone_from(line),
            None => lines.push(line.clone()),
        }
    }
    let mut default = |line: String| {
        if !lines.iter().any(|known| name(known) == name(&line)) {
            lines.push(line);
        }
    };
    default(format!("PATH={}", defaults::PATH));
    default(format!("HOME={}", if process.user.uid == 0 { "/root" } else { "/" }));
    if terminal.is_some() {
        default("TERM=xterm".to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_lines_win_and_defaults_only_fill_gaps() {
        let mut process = Process::new(["sh"]);
        process.env = vec!["A=1".to_owned(), "B=2".to_owned(), "PATH=/x".to_owned()];
        let size = TerminalSize { columns: 80, rows: 24 };
        let lines = environment(&process, &["A=3".to_owned(), "TERM=vt100".to_owned()], Some(size));
        assert_eq!(lines, ["A=3", "B=2", "PATH=/x", "TERM=vt100", "HOME=/root"]);
    }
}
