//! Containers of another OCI runtime (`runsc`, `runc`), seen from the shim.
//!
//! Each has a process of ours beside it, the keeper ([`keeper`]): a fork of the shim that executes
//! no other program. It sets up the root file system in a mount namespace of its own ([`files`]),
//! writes the bundle ([`config`]), has the runtime create and start the container, and ends as the
//! container does. For the shim it takes the place of the first process of a native container: it
//! reports, runs and ends in the same way, and the event loop treats both alike.
//!
//! All processes of the runtime are in the container's cgroup, which we make and limit. The
//! runtime's state is in the pod's directory. Mounts end with their last process. So a `kill -9` of
//! any process leaves no more behind than with native containers.

mod command;
mod config;
mod files;
mod keeper;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::FdFlags;
use warren_sys::cgroup::Entrance;
use warren_sys::namespace;
use warren_sys::process::{self, Fork};
use warren_sys::socket::Seqpacket;

use self::command::{Invocation, Surroundings};
use self::keeper::Job;
use super::child::{self, Failure};
use super::exec::{Ends, Exec};
use super::rootfs::{self, Step, StepError};
use super::{
    Container, Keeper, PodNamespaces, Workshop, finish_child, make_cgroup, pipe, pod_namespaces, streams,
};
use crate::protocol::{ContainerRequest, PodRequest, RuntimeKind, RuntimeProgram};
use crate::spec::Process;

/// A container that another runtime keeps.
#[derive(Debug)]
pub(super) struct RuntimeContainer {
    invocation: Invocation,
    /// The runtime's name for it.
    id: String,
    /// A socket to the keeper, which forwards signals.
    signals: Seqpacket,
}

/// Starts a container. As for a native one, failures arrive through its report.
pub(super) fn start(
    workshop: &Workshop,
    pod: &PodRequest,
    program: &RuntimeProgram,
    namespaces: &mut Option<PodNamespaces>,
    request: &ContainerRequest,
) -> Result<Container, StepError> {
    if request.spec.process.terminal && program.kind == RuntimeKind::Plain {
        let message = format!("{} gives terminals to further processes only", program.path.display());
        return Err(io::Error::new(io::ErrorKind::Unsupported, message))
            .step(|| "open a terminal".to_owned());
    }
    let (outside, inside) = streams::before_mounts(pod.ids, &request.spec.process)?;
    let terminals = rootfs::terminals(pod.ids)?.mount;
    let terminal = streams::terminal(terminals.as_fd(), pod.ids, &request.spec.process)?;
    let (terminal, terminal_inside) = terminal.unzip();
    let (report, report_inside) = pipe().step(|| "make a pipe".to_owned())?;
    let (signals, signals_inside) = Seqpacket::pair().step(|| "make a socket pair".to_owned())?;
    let shared = match namespaces {
        Some(shared) => shared,
        None => namespaces.insert(pod_namespaces::make(workshop, pod)?),
    };
    if let Some(network) = &pod.network {
        shared.configure(network).step(|| "set up the network".to_owned())?;
    }
    let (cgroup, entrance) = make_cgroup(workshop, pod, request)?;
    let invocation = Invocation::new(program, pod, request);
    let id = container_id(&pod.uid, &request.name, request.attempt);
    let job = Job {
        workshop,
        pod,
        request,
        invocation: &invocation,
        id: &id,
        cgroup: &cgroup,
        entrance: &entrance,
        namespaces: shared,
        shim: rustix::process::getpid().as_raw_pid(),
    };
    let keeper = match process::fork(workshop.proof).step(|| "fork the keeper".to_owned())? {
        Fork::Parent(keeper) => keeper,
        Fork::Child => keeper::live(&job, &inside, terminal_inside.as_ref(), report_inside, &signals_inside),
    };
    Ok(Container {
        child: keeper,
        cgroup,
        report: Some(report),
        streams: terminal.unwrap_or(outside),
        spec: request.spec.clone(),
        entrance,
        terminals,
        // The keeper stores them.
        messages: Vec::new(),
        keeper: Keeper::Runtime(RuntimeContainer { invocation, id, signals }),
    })
}

/// Returns the number of host threads that a runtime needs for a number of threads in the
/// container.
pub(super) fn threads(kind: RuntimeKind, inside: u64) -> u64 {
    match kind {
        RuntimeKind::Plain => inside,
        // Measured with releases of 2022 and 2026: about forty when idle, and two for each thread
        // inside. If the limit is reached, `runsc` does not fail a fork but ends, and the container
        // with it.
        RuntimeKind::Gvisor => inside.saturating_mul(2).saturating_add(128),
    }
}

/// Returns a name that is unique on the machine. It is short because `runsc` makes a socket name of
/// it, which is limited to 108 bytes.
fn container_id(pod_uid: &str, name: &str, attempt: u32) -> String {
    // FNV-1a.
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{pod_uid}-{hash:08x}-{attempt}")
}

impl RuntimeContainer {
    /// Sends a signal through the keeper. If the keeper has ended, so has the container.
    pub(super) fn signal(&self, signal: i32) -> io::Result<()> {
        if !(1..=64).contains(&signal) {
            let message = format!("{signal} is not a signal that can be sent");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        match self.signals.send(&signal.to_ne_bytes(), &[]) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(io::ErrorKind::NotFound.into()),
            other => other,
        }
    }

    /// Starts another process. A process of the runtime represents it.
    pub(super) fn exec(
        &self,
        workshop: &Workshop,
        keeper: i32,
        entrance: &Entrance,
        program: &Process,
        environment: &[String],
        mut ends: Ends,
    ) -> Result<Exec, StepError> {
        let (report, report_inside) = pipe().step(|| "make a pipe".to_owned())?;
        let forked = process::fork(workshop.proof).step(|| "clone a process".to_owned())?;
        let Fork::Parent(child) = forked else {
            ends.outside.clear();
            drop(report);
            let life = || -> Result<std::convert::Infallible, Failure> {
                let null = child::open_null()?;
                // Enter the namespace of the container's files. `runc` starts in its root
                // directory.
                let step = || "enter the keeper's mount namespace".to_owned();
                let files = namespace::open(keeper, "mnt").step(step)?;
                namespace::enter_one(files.as_fd()).step(step)?;
                let described = describe(program, environment, ends.terminal.is_some())?;
                let surroundings = Surroundings {
                    entrance: Some(entrance),
                    streams: Some(ends.streams(&null)?),
                    kept: Some(described.as_fd()),
                };
                let file = format!("/proc/self/fd/{}", described.as_raw_fd());
                let words = self.invocation.words(&["exec", "--process", &file, &self.id]);
                Ok(command::become_command(&words, surroundings)?)
            };
            finish_child(&report_inside, life)
        };
        Ok(Exec { child, report: Some(report), streams: ends.outside, terminal: ends.terminal })
    }
}

/// Writes a process description to a memory file, so that an exec leaves no file behind.
fn describe(program: &Process, environment: &[String], terminal: bool) -> Result<OwnedFd, StepError> {
    let step = || "describe the process".to_owned();
    let file = rustix::fs::memfd_create("warren-process", rustix::fs::MemfdFlags::CLOEXEC).step(step)?;
    let text = config::process(program, environment, terminal).to_string();
    write_all(file.as_fd(), text.as_bytes()).step(step)?;
    Ok(file)
}

fn write_all(file: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    std::fs::File::from(file.try_clone_to_owned()?).write_all(bytes)
}

/// Lets the next program inherit a descriptor.
fn keep_open(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::io::fcntl_setfd(descriptor, FdFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use super::{RuntimeKind, container_id, threads};

    #[test]
    fn a_user_space_kernel_has_threads_beside_those_of_the_container() {
        assert_eq!(threads(RuntimeKind::Plain, 256), 256);
        assert_eq!(threads(RuntimeKind::Gvisor, 256), 640);
        assert_eq!(threads(RuntimeKind::Gvisor, u64::MAX), u64::MAX);
    }

    #[test]
    fn names_are_short_and_distinct() {
        let uid = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";
        let long = "a".repeat(63);
        let id = container_id(uid, &long, u32::MAX);
        assert!(id.len() < 80, "{id}");
        assert_ne!(container_id(uid, "one", 0), container_id(uid, "two", 0));
        assert_ne!(container_id(uid, "one", 0), container_id(uid, "one", 1));
    }
}
