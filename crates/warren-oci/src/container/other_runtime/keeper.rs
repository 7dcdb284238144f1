//! The keeper: a process beside each container of another runtime. It is a fork of the shim with one thread, outside the
//! container's cgroup, and the one that the runtime's processes are left to when the runtime's command has ended.
//!
//! Its end is the container's: the same exit code, or the same signal. If the shim dies, it ends the container; if it is
//! killed itself, the shim does.

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

/// How long a command may take that only tidies up, or passes a signal on.
const PATIENCE: Duration = Duration::from_secs(10);

/// How soon to strike again at processes that were being started when they were to be killed.
const AGAIN: Duration = Duration::from_millis(20);

/// What a keeper is to do.
pub(super) struct Job<'a> {
    pub(super) workshop: &'a Workshop,
    pub(super) pod: &'a PodRequest,
    pub(super) request: &'a ContainerRequest,
    pub(super) invocation: &'a Invocation,
    pub(super) id: &'a str,
    pub(super) cgroup: &'a Cgroup,
    pub(super) entrance: &'a Entrance,
    pub(super) namespaces: &'a PodNamespaces,
    /// The shim's process id.
    pub(super) shim: i32,
}

/// The keeper's life. Never returns: neither a failure nor a panic may go on as a second shim.
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
    // The container runs.
    drop(report);
    let exit = catch_unwind(AssertUnwindSafe(|| keeper.keep(&container)));
    end_as(exit.unwrap_or(Exit::Signal(libc::SIGKILL)))
}

/// Ends in a given way.
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

/// Everything up to the container's start.
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
    // What else the shim has is its own: whoever is connected to it must notice its end.
    process::close_from(3, &kept).step(step)?;

    let kind = job.invocation.kind();
    let user = job.namespaces.user.as_fd();
    // The pod's root has to walk through the directories that are made for it.
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

/// The container's first process: left to us by the command that made it.
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

/// The shim holds the pod's namespaces, so its descriptors are their paths.
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

/// For commands that have nothing to do with the container's streams.
fn alone() -> Surroundings<'static> {
    Surroundings { entrance: None, streams: None, kept: None }
}

/// A container from its creation on.
struct Running<'a> {
    job: &'a Job<'a>,
    /// Readable once the shim has ended.
    shim: OwnedFd,
    signals: &'a Seqpacket,
    /// The termination messages that it leaves.
    messages: Vec<Message>,
    /// Nothing of it is to live on.
    killed: bool,
}

/// What a keeper may wait for.
enum Happened {
    Ended,
    Signal(i32),
    TimedOut,
}

impl Running<'_> {
    /// Passes signals on until the container has ended, and has the runtime forget it.
    fn keep(&mut self, container: &Child) -> Exit {
        loop {
            let timeout = self.killed.then_some(AGAIN);
            match self.wait_for(container, timeout) {
                Happened::Ended => break,
                Happened::Signal(libc::SIGKILL) | Happened::TimedOut => self.kill(),
                Happened::Signal(signal) => {
                    let number = signal.to_string();
                    let command = ["kill", self.job.id, &number];
                    // A container that has just ended cannot be sent any; that it has is seen next.
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

    /// Ends everything in the container's cgroup, now and whenever it is looked at again.
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

    /// Runs one of the runtime's commands to its end, or for as long as there is patience.
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
                // One that does not run yet, or not any more.
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

    /// Waits for the end of a child, or for a signal that is to be passed on. If the shim ends, so does everything.
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
                // Out of memory: what is known for certain is the child's end.
                Err(_) => return Happened::Ended,
            }
            // A process that is killed lets go of its sockets before it counts as ended.
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
            // Seen as its end when it is waited for again.
            Ok(None) | Err(_) => Happened::Signal(libc::SIGKILL),
        }
    }

    /// Whoever removes the pod in the shim's place does not wait for a command of ours.
    fn end_with_shim(&self, child: &Child) -> ! {
        let _ = child.signal(libc::SIGKILL);
        if let Err(error) = cleanup::remove_cgroup(self.job.cgroup) {
            complain!("warren: keeper: {error}");
        }
        process::exit_now(1)
    }
}
