//! How a container comes to be, from the shim's side.
//!
//! 1. The shim makes directories and cgroups, then clones a child into new namespaces.
//! 2. While the child enters its cgroups, the shim writes the id maps and makes the mounts that need the host's rights,
//!    detached, and sends their descriptors.
//! 3. The child attaches them, changes its root, gives up what it must not have, and becomes the program ([`child`]).
//!
//! The child says how it went through a pipe that its exec closes: an empty pipe is a success. The shim reads it in its
//! event loop, so that a program on a slow disk does not hold up the other containers.

mod child;
mod exec;
mod rootfs;

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use rustix::pipe::PipeFlags;
use warren_sys::cgroup::{Cgroup, Entrance, Hierarchy};
use warren_sys::process::{self, Child, CloneOptions, Fork, Namespaces, SingleThreaded};
use warren_sys::seccomp::Filter;
use warren_sys::socket::Seqpacket;
use warren_sys::{mount, namespace};

use self::child::{Failure, Streams};
use self::rootfs::{Detached, Step, StepError};
use crate::defaults;
use crate::protocol::{ContainerRequest, PodRequest, Refusal, RefusalReason};
use crate::spec::Spec;
use crate::timeline::Timeline;
use crate::wire;

pub(crate) use self::exec::{Exec, exec, resize};

/// What every start in one shim has in common.
#[derive(Debug)]
pub(crate) struct Workshop {
    pub(crate) proof: SingleThreaded,
    pub(crate) filter: Filter,
    pub(crate) hierarchy: Hierarchy,
    pub(crate) pid_namespace: OwnedFd,
}

/// Namespaces that the containers of a pod share. They live as long as the shim holds them, whichever containers run.
#[derive(Debug)]
pub(crate) struct PodNamespaces {
    user: OwnedFd,
    shared: Vec<OwnedFd>,
}

/// A container whose first process exists.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) child: Child,
    pub(crate) cgroup: Cgroup,
    /// The child's end of the story until it has become its program.
    pub(crate) report: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
    pub(crate) spec: Spec,
    entrance: Entrance,
    pid_namespace: OwnedFd,
    terminals: OwnedFd,
}

/// Reads what a child had to say. `None`: it has become its program. To be called once the pipe is readable or closed.
pub(crate) fn read_report(report: &OwnedFd) -> Option<Refusal> {
    let mut text = Vec::new();
    let mut buffer = [0u8; 4096];
    loop {
        match rustix::io::read(report, &mut buffer) {
            Ok(0) => break,
            Ok(length) => text.extend_from_slice(&buffer[..length]),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => break,
        }
    }
    if text.is_empty() {
        return None;
    }
    Some(serde_json::from_slice(&text).unwrap_or_else(|_| Refusal {
        reason: RefusalReason::CreateFailed,
        message: "the container's first process failed in an unknown way".to_owned(),
    }))
}

/// Starts a container. On an error nothing is left but directories.
pub(crate) fn start(
    workshop: &Workshop,
    pod: &PodRequest,
    namespaces: &mut Option<PodNamespaces>,
    request: &ContainerRequest,
    timeline: &mut Timeline,
) -> Result<Container, Refusal> {
    let cgroup_name = format!("{}/{}", pod.cgroup, request.name);
    start_steps(workshop, pod, namespaces, request, &cgroup_name, timeline).map_err(|failure| {
        // The child, if there was one, is dead and reaped, so the cgroup is empty.
        let _ = Cgroup::named(&workshop.hierarchy, &cgroup_name).remove();
        refusal(failure)
    })
}

fn refusal(error: StepError) -> Refusal {
    Refusal { reason: RefusalReason::CreateFailed, message: format!("{}: {}", error.step, error.source) }
}

fn start_steps(
    workshop: &Workshop,
    pod: &PodRequest,
    namespaces: &mut Option<PodNamespaces>,
    request: &ContainerRequest,
    cgroup_name: &str,
    timeline: &mut Timeline,
) -> Result<Container, StepError> {
    let directory = writable_directory(&pod.directory, &request.name, request.attempt);
    let writable = rootfs::make_writable(&directory, &request.rootfs, pod.ids)?;
    timeline.mark("shim", "directories");
    let cgroup = Cgroup::create(&workshop.hierarchy, cgroup_name, &request.spec.linux.resources)
        .step(|| "make the cgroup".to_owned())?;
    let entrance = cgroup.entrance().step(|| "open the cgroup".to_owned())?;
    timeline.mark("shim", "cgroup");

    let (stdout, stdout_inside) = pipe().step(|| "make a pipe".to_owned())?;
    let (stderr, stderr_inside) = pipe().step(|| "make a pipe".to_owned())?;
    let (report, report_inside) = pipe().step(|| "make a pipe".to_owned())?;
    let user = &request.spec.process.user;
    for stream in [&stdout_inside, &stderr_inside] {
        rootfs::give(stream.as_fd(), pod.ids, user.uid, user.gid)?;
    }
    let (starter, starter_inside) = Seqpacket::pair().step(|| "make a socket pair".to_owned())?;

    let forked = clone_container(workshop, namespaces.as_ref(), &entrance)?;
    let Some(child) = forked else {
        drop((starter, stdout, stderr, report));
        let is_first = namespaces.is_none();
        let streams =
            Streams::Pipes { stdin: None, stdout: stdout_inside.as_fd(), stderr: stderr_inside.as_fd() };
        let process = || container_process(workshop, pod, &request.spec, is_first, &entrance, &starter_inside, streams, timeline);
        finish_child(&report_inside, process)
    };
    timeline.mark("shim", "clone");
    drop((stdout_inside, stderr_inside, report_inside, starter_inside));

    let equipped = equip(pod, request, namespaces, &child, &writable, &starter, timeline);
    match equipped {
        Ok((pid_namespace, terminals)) => Ok(Container {
            child,
            cgroup,
            report: Some(report),
            stdout: Some(stdout),
            stderr: Some(stderr),
            spec: request.spec.clone(),
            entrance,
            pid_namespace,
            terminals,
        }),
        Err(error) => {
            let _ = child.signal(libc::SIGKILL);
            let _ = child.wait();
            Err(error)
        }
    }
}

/// Where an attempt of a container writes.
pub(crate) fn writable_directory(pod_directory: &Path, name: &str, attempt: u32) -> PathBuf {
    pod_directory.join("containers").join(name).join(attempt.to_string())
}

/// Clones the first process of a container; `None` in the new process.
fn clone_container(
    workshop: &Workshop,
    namespaces: Option<&PodNamespaces>,
    entrance: &Entrance,
) -> Result<Option<Child>, StepError> {
    let step = || "clone the first process".to_owned();
    let own = Namespaces::PID.with(Namespaces::MOUNT);
    let Some(namespaces) = namespaces else {
        let shared = Namespaces::USER.with(Namespaces::NETWORK).with(Namespaces::IPC).with(Namespaces::UTS);
        let options =
            CloneOptions { namespaces: own.with(shared), sibling: false, cgroup: entrance.clone_into() };
        return match process::clone(workshop.proof, options).step(step)? {
            Fork::Child => Ok(None),
            Fork::Parent(child) => Ok(Some(child)),
        };
    };
    // The pod has its namespaces, and a process that enters the user namespace cannot come back. So a helper enters and
    // clones there, and the clone is made the shim's child.
    let (number, number_inside) = pipe().step(step)?;
    let options = CloneOptions { namespaces: Namespaces::NONE, sibling: false, cgroup: entrance.clone_into() };
    match process::clone(workshop.proof, options).step(step)? {
        Fork::Parent(helper) => {
            drop(number_inside);
            let mut bytes = [0u8; 4];
            let read = read_blocking(&number, &mut bytes);
            let _ = helper.wait();
            match read {
                Ok(4) => Ok(Some(Child::adopt(i32::from_ne_bytes(bytes)).step(step)?)),
                Ok(_) => Err(io::Error::other("the helper could not enter the pod's namespaces")).step(step),
                Err(error) => Err(error).step(step),
            }
        }
        Fork::Child => {
            drop(number);
            let entered = namespaces
                .shared
                .iter()
                .chain([&namespaces.user])
                .try_for_each(|namespace| namespace::enter_one(namespace.as_fd()));
            let options = CloneOptions { namespaces: own, sibling: true, cgroup: None };
            match entered.and_then(|()| process::clone(workshop.proof, options)) {
                Ok(Fork::Child) => Ok(None),
                Ok(Fork::Parent(child)) => {
                    let _ = rustix::io::write(&number_inside, &child.pid().to_ne_bytes());
                    process::exit_now(0)
                }
                Err(_) => process::exit_now(1),
            }
        }
    }
}

fn read_blocking(pipe: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    rustix::io::ioctl_fionbio(pipe, false)?;
    loop {
        match rustix::io::read(pipe, &mut *buffer) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// The shim's work between the child's birth and its start: id maps, mounts, and the word to go.
fn equip(
    pod: &PodRequest,
    request: &ContainerRequest,
    namespaces: &mut Option<PodNamespaces>,
    child: &Child,
    writable: &[rootfs::Writable],
    starter: &Seqpacket,
    timeline: &mut Timeline,
) -> Result<(OwnedFd, OwnedFd), StepError> {
    let pid = child.pid();
    let process_file = |name: &str, text: &str| {
        fs::write(format!("/proc/{pid}/{name}"), text).step(|| format!("write {name}"))
    };
    if namespaces.is_none() {
        let map = format!("0 {} {}\n", pod.ids.first, crate::idmap::IdRange::LENGTH);
        process_file("uid_map", &map)?;
        process_file("gid_map", &map)?;
        let open = |kind: &str| namespace::open(pid, kind).step(|| format!("open the {kind} namespace"));
        *namespaces = Some(PodNamespaces { user: open("user")?, shared: vec![open("net")?, open("ipc")?, open("uts")?] });
    }
    let adjustment = request.spec.process.oom_score_adj.unwrap_or(defaults::OOM_SCORE_ADJUSTMENT);
    process_file("oom_score_adj", &adjustment.clamp(0, 1000).to_string())?;
    let pid_namespace = namespace::open(pid, "pid").step(|| "open the pid namespace".to_owned())?;
    timeline.mark("shim", "id maps");

    let Some(PodNamespaces { user, .. }) = namespaces.as_ref() else {
        return Err(io::Error::other("they were made above")).step(|| "find the pod's namespaces".to_owned());
    };
    let mut mounts = rootfs::overlays(&request.rootfs, writable, user.as_fd())?;
    timeline.mark("shim", "overlays");
    mounts.extend(rootfs::files(&request.rootfs.files)?);
    let terminals = rootfs::terminals(pod.ids)?;
    let kept = terminals.mount.try_clone().step(|| "keep the terminals".to_owned())?;
    mounts.push(terminals);
    mounts.extend(rootfs::volumes(&request.spec.mounts, pod.ids, user.as_fd())?);

    let list: Vec<(&Path, bool)> = mounts.iter().map(|mount| (mount.target.as_path(), mount.is_directory)).collect();
    let descriptors: Vec<BorrowedFd<'_>> = mounts.iter().map(|mount| mount::root_of(&mount.mount)).collect();
    wire::send(starter, &list, &descriptors).step(|| "hand over the mounts".to_owned())?;
    timeline.mark("shim", "mounts");
    Ok((pid_namespace, kept))
}

/// The life of a container's first process until it is its program.
#[expect(clippy::too_many_arguments, reason = "the new process gets all that the shim has, once")]
fn container_process(
    workshop: &Workshop,
    pod: &PodRequest,
    spec: &Spec,
    is_first: bool,
    entrance: &Entrance,
    starter: &Seqpacket,
    streams: Streams<'_>,
    timeline: &mut Timeline,
) -> Result<std::convert::Infallible, Failure> {
    child::die_with_parent()?;
    if entrance.clone_into().is_none() {
        entrance.enter().step(|| "enter the cgroup".to_owned())?;
    }
    child::hide_cgroups()?;
    rustix::process::setsid().step(|| "make a session".to_owned())?;
    process::join_new_session_keyring().step(|| "make a keyring".to_owned())?;
    if is_first {
        child::prepare_network()?;
        rustix::system::sethostname(pod.hostname.as_bytes()).step(|| "set the host name".to_owned())?;
    }
    timeline.mark("container", "cgroup, session, loopback");
    let step = || "take over the mounts".to_owned();
    let (list, descriptors) = wire::receive::<Vec<(PathBuf, bool)>>(starter)
        .and_then(|message| message.ok_or_else(|| io::ErrorKind::UnexpectedEof.into()))
        .step(step)?;
    timeline.mark("container", "wait for mounts");
    let mounts: Vec<Detached> = list
        .into_iter()
        .zip(descriptors)
        .map(|((target, is_directory), mount)| Detached { mount, target, is_directory })
        .collect();
    child::become_root()?;
    child::enter_root(spec, mounts)?;
    timeline.mark("container", "root file system");
    let environment = exec::environment(&spec.process, &[], None);
    timeline.flush();
    child::become_program(&spec.process, &environment, streams, &workshop.filter)
}

/// Runs the rest of a child's life and never returns: neither a failure nor a panic may go on as a second shim.
fn finish_child(report: &OwnedFd, life: impl FnOnce() -> Result<std::convert::Infallible, Failure>) -> ! {
    let refusal = match catch_unwind(AssertUnwindSafe(life)) {
        Ok(Err(failure)) => Refusal::from(failure),
        Ok(Ok(never)) => match never {},
        Err(_) => Refusal {
            reason: RefusalReason::CreateFailed,
            message: "the container's first process panicked".to_owned(),
        },
    };
    if let Ok(text) = serde_json::to_vec(&refusal) {
        let _ = rustix::io::write(report, &text);
    }
    process::exit_now(127)
}

/// A pipe whose reading end, the shim's, does not block.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((reader, writer))
}
