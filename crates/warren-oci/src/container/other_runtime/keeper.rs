//! The keeper: a process beside each container of another runtime. It is a single-threaded fork of
//! the shim, outside the container's cgroup. When a runtime's command ends, the keeper becomes the
//! parent of the processes that it left.
//!
//! The keeper ends as the container does: with the same exit code or signal. If the shim dies, the
//! keeper ends the container. If the keeper is killed, the shim does.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use warren_sys::cgroup::{Cgroup, Entrance};
use warren_sys::process::{self, Child, Exit, Fork};
use warren_sys::socket::Seqpacket;

use super::command::{Invocation, Surroundings, become_command};
use super::config::{self, NamespacePaths};
use super::files;
use crate::cleanup;
use crate::container::child::{self, Failure, Streams};
use crate::container::rootfs::{Message, Step, StepError, keep_all};
use crate::container::streams::Inside;
use crate::container::{Network, PodNamespaces, Workshop, finish_child, writable_directory};
use crate::protocol::{ContainerRequest, PodRequest};

/// The time limit of commands that only clean up or forward a signal.
const PATIENCE: Duration = Duration::from_secs(10);

/// The interval of repeated kills, for processes that were being started meanwhile.
const AGAIN: Duration = Duration::from_millis(20);

/// The parameters of a keeper.
pub(super) struct Job<'a> {
    pub(super) workshop: &'a Workshop,
    pub(super) pod: &'a PodRequest,
    pub(super) request: &'a ContainerRequest,
    pub(super) invocation: &'a Invocation,
    pub(super) id: &'a str,
    pub(super) cgroup: &'a Cgroup,
    pub(super) entrance: &'a Entrance,
    pub(super) namespaces: &'a PodNamespaces,
    pub(super) shim: i32,
}

/// Runs the keeper. Never returns: after a failure or panic there must not be a second shim.
pub(super) fn live(
    job: &Job<'_>,
    inside: &Inside,
    terminal: Option<&OwnedFd>,
    report: OwnedFd,
    signals: &Seqpacket,
) -> ! {
    let begun = catch_unwind(AssertUnwindSafe(|| begin(job, inside, terminal, &report, signals)));
    let (mut keeper, container) = match begun {
        Ok(Ok(running)) => running,
        Ok(Err(failure)) => finish_child(&report, || Err(failure)),
        Err(_) => finish_child(&report, || {
            let source = io::Error::other("its keeper panicked");
            Err(StepError { step: "start the container".to_owned(), source }.into())
        }),
    };
    drop(report);
    let exit = catch_unwind(AssertUnwindSafe(|| keeper.keep(&container)));
    end_as(exit.unwrap_or(Exit::Signal(libc::SIGKILL)))
}

/// Ends this process in a given way.
fn end_as(exit: Exit) -> ! {
    match exit {
        Exit::Code(code) => process::exit_now(code),
        Exit::Signal(signal) => {
            process::reset_signals(&[signal]);
            if let Some(signal) = rustix::process::Signal::from_named_raw(signal) {
                let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
            }
            process::exit_now(128 + signal)
        }
    }
}

/// Does everything up to the container's start.
fn begin<'a>(
    job: &'a Job<'a>,
    inside: &Inside,
    terminal: Option<&OwnedFd>,
    report: &OwnedFd,
    signals: &'a Seqpacket,
) -> Result<(Running<'a>, Child), Failure> {
    let _ = rustix::thread::set_name(c"warren-keeper");
    let step = || "begin to keep the container".to_owned();
    let shim = process::open_pidfd(job.shim).step(step)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).step(step)?;
    let null = child::open_null()?;
    let streams = inside.streams(&null, terminal)?;
    let mut kept = vec![report.as_fd(), shim.as_fd(), signals.as_fd(), null.as_fd()];
    let Network::Here(network) = &job.namespaces.network else {
        let source = io::Error::other("the pod has none");
        return Err(StepError { step: "find the network namespace".to_owned(), source }.into());
    };
    kept.extend([job.namespaces.user.as_fd(), network.as_fd()]);
    kept.extend(descriptors(&streams));
    kept.extend(job.entrance.files());
    kept.extend(job.entrance.clone_into());
    kept.extend(job.workshop.volumes.values().map(AsFd::as_fd));
    // Close everything else of the shim: its clients must notice when it ends.
    process::close_from(3, &kept).step(step)?;

    let kind = job.invocation.kind();
    let user = job.namespaces.user.as_fd();
    // The pod's root must be able to enter the new directories.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let files = files::assemble(job.workshop, kind, job.pod, job.request, user, network.as_fd())?;
    let directory = writable_directory(&job.pod.directory, &job.request.name, job.request.attempt);
    let bundle = directory.join("bundle");
    let step = || "write the bundle".to_owned();
    fs::create_dir(&bundle).step(step)?;
    fs::create_dir_all(job.invocation.state()).step(step)?;
    let config = config::config(kind, job.pod, job.request, &files, &namespace_paths(job, network));
    fs::write(bundle.join("config.json"), config.to_string()).step(step)?;

    let mut running = Running { job, shim, signals, messages: files.messages, killed: false };
    let pid_file = directory.join("pid");
    let (bundle, pid_text) = (text(&bundle), text(&pid_file));
    let create = ["create", "--bundle", &bundle, "--pid-file", &pid_text, job.id];
    let around = Surroundings { entrance: Some(job.entrance), streams: Some(streams), kept: None };
    let created = running.command(&create, around, None).and_then(|()| adopt(&pid_file));
    let started = match created {
        Ok(container) => match running.command(&["start", job.id], alone(), None) {
            Ok(()) => return Ok((running, container)),
            Err(error) => Failure::starting(error),
        },
        Err(error) => error.into(),
    };
    running.delete();
    Err(started)
}

/// Takes over the container's first process from the command that made it.
fn adopt(pid_file: &Path) -> Result<Child, StepError> {
    let step = || "find the container's process".to_owned();
    let number = fs::read_to_string(pid_file).step(step)?;
    let number = number.trim().parse::<i32>().map_err(io::Error::other).step(step)?;
    Child::adopt(number).step(step)
}

fn descriptors<'a>(streams: &Streams<'a>) -> Vec<BorrowedFd<'a>> {
    match streams {
        Streams::Pipes { stdin, stdout, stderr } => vec![*stdin, *stdout, *stderr],
        Streams::Terminal(terminal) => vec![*terminal],
    }
}

/// Returns the paths of the pod's namespaces: descriptors of the shim, which holds them.
fn namespace_paths(job: &Job<'_>, network: &OwnedFd) -> NamespacePaths {
    let path = |descriptor: &OwnedFd| format!("/proc/{}/fd/{}", job.shim, descriptor.as_raw_fd());
    NamespacePaths {
        user: path(&job.namespaces.user),
        ipc: path(&job.namespaces.ipc),
        uts: path(&job.namespaces.uts),
        network: path(network),
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Returns the environment of commands that do not use the container's streams.
fn alone() -> Surroundings<'static> {
    Surroundings { entrance: None, streams: None, kept: None }
}

/// A container after its creation.
struct Running<'a> {
    job: &'a Job<'a>,
    /// Readable once the shim has ended.
    shim: OwnedFd,
    signals: &'a Seqpacket,
    messages: Vec<Message>,
    /// True once the container is to be killed.
    killed: bool,
}

/// The events that a keeper waits for.
enum Happened {
    Ended,
    Signal(i32),
    TimedOut,
}

impl Running<'_> {
    /// Forwards signals until the container has ended, and then removes it from the runtime.
    fn keep(&mut self, container: &Child) -> Exit {
        loop {
            let timeout = self.killed.then_some(AGAIN);
            match self.wait_for(container, timeout) {
                Happened::Ended => break,
                Happened::Signal(libc::SIGKILL) | Happened::TimedOut => self.kill(),
                Happened::Signal(signal) => {
                    let number = signal.to_string();
                    let command = ["kill", self.job.id, &number];
                    // Signalling a container that has just ended fails. The end is seen next.
                    if let Err(error) = self.command(&command, alone(), Some(PATIENCE)) {
                        complain!("warren: keeper: {}: {}", error.step, error.source);
                    }
                }
            }
        }
        let exit = container.wait().unwrap_or(Exit::Signal(libc::SIGKILL));
        keep_all(&self.messages);
        self.delete();
        exit
    }

    /// Kills all processes in the container's cgroup. The caller repeats it until they are gone.
    fn kill(&mut self) {
        self.killed = true;
        if let Err(error) = self.job.cgroup.kill_all() {
            complain!("warren: keeper: kill {}: {error}", self.job.id);
        }
    }

    fn delete(&mut self) {
        if let Err(error) = self.command(&["delete", "--force", self.job.id], alone(), Some(PATIENCE)) {
            complain!("warren: keeper: {}: {}", error.step, error.source);
        }
    }

    /// Runs a command of the runtime until it ends or times out.
    fn command(
        &mut self,
        command: &[&str],
        around: Surroundings<'_>,
        patience: Option<Duration>,
    ) -> Result<(), StepError> {
        let name = command.first().copied().unwrap_or_default();
        let step = || format!("have the runtime {name} the container");
        let words = self.job.invocation.words(command);
        let child = match process::fork(self.job.workshop.proof).step(step)? {
            Fork::Parent(child) => child,
            Fork::Child => {
                let Err(error) = become_command(&words, around);
                complain!("warren: keeper: {}: {}", error.step, error.source);
                process::exit_now(127)
            }
        };
        let deadline = patience.map(|patience| Instant::now() + patience);
        loop {
            let again = self.killed.then(|| Instant::now() + AGAIN);
            let due = [deadline, again].into_iter().flatten().min();
            match self.wait_for(&child, due.map(|due| due.saturating_duration_since(Instant::now()))) {
                Happened::Ended => break,
                Happened::TimedOut if deadline.is_some_and(|deadline| deadline <= Instant::now()) => {
                    let _ = child.signal(libc::SIGKILL);
                    break;
                }
                Happened::Signal(libc::SIGKILL) | Happened::TimedOut => self.kill(),
                // The container is not running yet or any more.
                Happened::Signal(_) => {}
            }
        }
        match child.wait().step(step)? {
            Exit::Code(0) => Ok(()),
            _ if self.killed => Err(io::Error::other("it was to be killed meanwhile")).step(step),
            exit => {
                let said = self.job.invocation.complaint();
                Err(io::Error::other(said.unwrap_or_else(|| format!("it ended with {exit:?}")))).step(step)
            }
        }
    }

    /// Waits for the end of a child or a signal to forward. If the shim ends, ends everything.
    fn wait_for(&self, child: &Child, timeout: Option<Duration>) -> Happened {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        loop {
            let mut waits = [
                PollFd::from_borrowed_fd(child.pidfd(), PollFlags::IN),
                PollFd::new(&self.shim, PollFlags::IN),
                PollFd::new(self.signals, PollFlags::IN),
            ];
            match poll(&mut waits, timeout.as_ref()) {
                Err(rustix::io::Errno::INTR) => continue,
                Ok(0) => return Happened::TimedOut,
                Ok(_) => {}
                // Out of memory. Waiting for the child still works.
                Err(_) => return Happened::Ended,
            }
            // A killed process closes its sockets before it counts as ended.
            let let_go = waits[2].revents().contains(PollFlags::HUP);
            let [ended, shim, signal] = waits.map(|wait| !wait.revents().is_empty());
            if shim || let_go {
                self.end_with_shim(child);
            }
            if ended {
                return Happened::Ended;
            }
            if signal {
                return self.next_signal();
            }
        }
    }

    fn next_signal(&self) -> Happened {
        match self.signals.receive(4) {
            Ok(Some(packet)) => {
                let number = packet.bytes.as_slice().try_into().map_or(0, i32::from_ne_bytes);
                Happened::Signal(number)
            }
            // The next wait sees the end.
            Ok(None) | Err(_) => Happened::Signal(libc::SIGKILL),
        }
    }

    /// Ends everything after the shim is gone. Does not run the runtime's commands: the process
    /// that cleans up in the shim's place does not wait for them.
    fn end_with_shim(&self, child: &Child) -> ! {
        let _ = child.signal(libc::SIGKILL);
        if let Err(error) = cleanup::remove_cgroup(self.job.cgroup) {
            complain!("warren: keeper: {error}");
        }
        process::exit_now(1)
    }
}
