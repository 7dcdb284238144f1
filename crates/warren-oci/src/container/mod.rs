//! The start of a container, seen from the shim.
//!
//! 1. The shim clones a child into new namespaces, with an empty root ([`birthplace`]).
//! 2. The child makes its network namespace, which is a quarter of all the work. Meanwhile the shim
//!    makes directories and cgroups, writes the id maps, makes the mounts that need the host's
//!    rights, detached, and sends all descriptors to the child.
//! 3. The child enters the cgroups and hands over its network, to which the shim meanwhile connects
//!    the pod's device. It attaches the mounts on top of the empty root, drops its privileges and
//!    becomes the program ([`child`]).
//!
//! The child reports failures through a pipe that its exec closes: an empty pipe means success. The
//! shim reads it in its event loop, so that a program on a slow disk does not delay other
//! containers.

mod birthplace;
mod child;
mod exec;
mod network;
mod other_runtime;
mod pod_namespaces;
mod pod_network;
mod program;
mod rootfs;
mod streams;
mod volume;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use rustix::pipe::PipeFlags;
use warren_sys::cgroup::{Cgroup, Entrance, Hierarchy};
use warren_sys::namespace;
use warren_sys::process::{self, Child, CloneOptions, Fork, Namespaces, SingleThreaded};
use warren_sys::seccomp::Filter;
use warren_sys::socket::Seqpacket;

use self::child::{Failure, Groups, Streams};
use self::rootfs::{Detached, Kept, Layers, Message, Step, Volumes};
use self::streams::Outside;
use crate::cgroup_names;
use crate::defaults;
use crate::kernel::{self, Layering};
use crate::privileges::{OwnIds, Privileges};
use crate::protocol::{ContainerRequest, PodRequest, Refusal, RefusalReason};
use crate::spec::{Process, Rlimit, Spec};
use crate::timeline::Timeline;
use crate::wire;

pub(crate) use self::birthplace::Birthplace;
pub(crate) use self::child::{make_mount_point, resource, restrict_paths, set_ids};
pub(crate) use self::exec::{Exec, activate, exec, resize};
use self::other_runtime::RuntimeContainer;
pub(crate) use self::program::Program;
pub(crate) use self::rootfs::StepError;

/// Resources that all starts of one shim share.
#[derive(Debug)]
pub(crate) struct Workshop {
    pub(crate) proof: SingleThreaded,
    pub(crate) filter: Filter,
    pub(crate) hierarchy: Hierarchy,
    pub(crate) pid_namespace: OwnedFd,
    pub(crate) birthplace: Birthplace,
    pub(crate) layering: Layering,
    pub(crate) privileges: Privileges,
    pub(crate) own_ids: OwnIds,
    /// Memory that the pod's containers share, by name.
    pub(crate) volumes: BTreeMap<String, OwnedFd>,
}

impl Workshop {
    /// Returns the treatment of the groups of the user who started this process.
    fn groups(&self) -> Groups {
        match self.privileges {
            Privileges::Namespace(given) if !given.sets_groups => Groups::Kept,
            _ => Groups::Set,
        }
    }

    /// Returns true if this process can leave a namespace that it has entered. This needs rights
    /// over the namespace that it returns to.
    fn can_return(&self) -> bool {
        self.privileges == Privileges::Machine
    }

    /// Adapts a request to this machine. Without cgroups the number of processes is limited per
    /// user instead, which inside a user namespace means per user and pod.
    fn adapt<'a>(&self, request: &'a ContainerRequest) -> Cow<'a, ContainerRequest> {
        let has_own = request.spec.process.rlimits.iter().any(|limit| limit.kind == NPROC);
        match request.spec.linux.resources.pids {
            Some(pids) if self.hierarchy == Hierarchy::Absent && !has_own => {
                let mut request = request.clone();
                let limit = Rlimit { kind: NPROC.to_owned(), soft: pids, hard: pids };
                request.spec.process.rlimits.push(limit);
                Cow::Owned(request)
            }
            _ => Cow::Borrowed(request),
        }
    }
}

const NPROC: &str = "RLIMIT_NPROC";

/// Namespaces that the containers of a pod share. They live as long as the shim holds them.
#[derive(Debug)]
pub(crate) struct PodNamespaces {
    user: OwnedFd,
    ipc: OwnedFd,
    uts: OwnedFd,
    network: Network,
    /// Sockets that have been listening since before the pod's first program ran.
    listeners: Listeners,
    /// Layers of overlays. They are closed when the shim ends.
    layers: Vec<OwnedFd>,
}

/// The network namespace. The first container's process makes it while the shim does other work.
#[derive(Debug)]
enum Network {
    /// It arrives, or has arrived, through this socket.
    Promised(Seqpacket),
    Here(OwnedFd),
}

/// Sockets that listen in the pod's network.
#[derive(Debug, Default)]
struct Listeners {
    /// The listener through which programs in the pod reach the proxy.
    egress_listener: Option<OwnedFd>,
    /// The listeners for the program of [`crate::protocol::Activation`].
    activation: Vec<OwnedFd>,
}

/// A container whose first process exists.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) child: Child,
    pub(crate) cgroup: Cgroup,
    /// The pipe for the child's failure report. `None` once it has become its program.
    pub(crate) report: Option<OwnedFd>,
    pub(crate) streams: Outside,
    pub(crate) spec: Spec,
    entrance: Entrance,
    terminals: OwnedFd,
    messages: Vec<Message>,
    keeper: Keeper,
}

/// The process that keeps a container.
#[derive(Debug)]
enum Keeper {
    /// The container's first process, which is `child`.
    Itself { pid_namespace: OwnedFd },
    /// Another runtime, in the care of the keeper process `child`. The keeper ends as the container
    /// does.
    Runtime(RuntimeContainer),
}

impl Container {
    /// Sends a signal to the container's first process. `SIGKILL` ends the whole container.
    pub(crate) fn signal(&self, signal: i32) -> io::Result<()> {
        match &self.keeper {
            Keeper::Itself { .. } => self.child.signal(signal),
            Keeper::Runtime(runtime) => runtime.signal(signal),
        }
    }

    /// Returns true if the kernel would discard a signal to the container's first process. The
    /// first process of a pid namespace gets only signals that it handles or blocks, whatever their
    /// default effect. A program that has just started does neither.
    pub(crate) fn would_discard(&self, signal: i32) -> bool {
        match &self.keeper {
            Keeper::Itself { .. } => {
                let read = |name: &str| fs::read_to_string(format!("/proc/{}/{name}", self.child.pid()));
                match (read("status"), read("syscall"), read("status")) {
                    (Ok(before), Ok(call), Ok(after)) => !would_notice(&before, &call, &after, signal),
                    // If the answer is unknown, do not hold the signal back.
                    _ => false,
                }
            }
            // The first process belongs to the other runtime.
            Keeper::Runtime(_) => false,
        }
    }

    /// Stores the termination messages of a container that has ended. For another runtime's
    /// container the keeper does this.
    pub(crate) fn keep_messages(&mut self) {
        rootfs::keep_all(&std::mem::take(&mut self.messages));
    }

    /// Removes the cgroup of a container that has ended.
    pub(crate) fn remove_cgroup(&self) {
        match &self.keeper {
            // Execs that are not reaped yet keep it busy. It is then removed when the pod ends.
            Keeper::Itself { .. } => drop(self.cgroup.remove()),
            // Whatever is left in it is of no use.
            Keeper::Runtime(_) => {
                if let Err(error) = crate::cleanup::remove_cgroup(&self.cgroup) {
                    complain!("warren: shim: {error}");
                }
            }
        }
    }
}

/// System calls around which programs block all signals for a moment: shells do so when they fork.
const FORKS: &[i64] = &[
    libc::SYS_clone,
    libc::SYS_clone3,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];

/// Returns true if a process would notice a signal, by its `/proc/PID/status`, then its
/// `/proc/PID/syscall`, then its status again. It notices a signal that it has a handler for. It
/// notices any signal while it waits in `sigtimedwait` or similar: the kernel does not show which
/// signals such a process blocks. It also notices a blocked signal while it waits for anything but
/// a fork, if it has waited since before the first status was read: otherwise that status may be of
/// a fork, and the system call of what came after it.
fn would_notice(status: &str, call: &str, after: &str, signal: i32) -> bool {
    let bit = u32::try_from(signal - 1).ok().and_then(|shift| 1u64.checked_shl(shift)).unwrap_or(0);
    let has = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & bit != 0)
    };
    // A running process is in no system call; -1 stands for one that waits outside of any.
    let call = call.split(' ').next().and_then(|number| number.parse().ok()).filter(|number| *number >= 0);
    let waits = call.is_some_and(|call| !FORKS.contains(&call));
    // The kernel counts when a process stops running.
    let switches = |status: &str| -> Vec<String> {
        let lines = status.lines().filter(|line| line.contains("ctxt_switches:"));
        lines.map(str::to_owned).collect()
    };
    let still_waits = waits && switches(status) == switches(after);
    has("SigCgt:") || call == Some(libc::SYS_rt_sigtimedwait) || (still_waits && has("SigBlk:"))
}

/// Reads a child's failure report. `None` means that it has become its program. Call it once the
/// pipe is readable or closed.
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

/// Starts a container. After an error only directories are left.
pub(crate) fn start(
    workshop: &Workshop,
    pod: &PodRequest,
    namespaces: &mut Option<PodNamespaces>,
    request: &ContainerRequest,
    timeline: &mut Timeline,
) -> Result<Container, Refusal> {
    let request = &*workshop.adapt(request);
    let started = match &pod.runtime {
        None => start_steps(workshop, pod, namespaces, request, timeline),
        Some(program) => {
            other_runtime::start(workshop, pod, program, namespaces, request).map_err(Refusal::from)
        }
    };
    started.inspect_err(|_| {
        // The child, if there was one, is dead and reaped, so the cgroup is empty.
        let name = cgroup_names::container(&pod.cgroup, &request.name);
        let _ = Cgroup::named(&workshop.hierarchy, &name).remove();
    })
}

impl From<StepError> for Refusal {
    fn from(error: StepError) -> Self {
        Failure::from(error).into()
    }
}

fn start_steps(
    workshop: &Workshop,
    pod: &PodRequest,
    namespaces: &mut Option<PodNamespaces>,
    request: &ContainerRequest,
    timeline: &mut Timeline,
) -> Result<Container, Refusal> {
    let (outside, inside) = streams::before_mounts(pod.ids, &request.spec.process)?;
    let (report, report_inside) = pipe().step(|| "make a pipe".to_owned())?;
    let (starter, starter_inside) = Seqpacket::pair().step(|| "make a socket pair".to_owned())?;
    // On version 2 it is best to clone the process into its cgroup. On version 1 it moves in by
    // itself later.
    let early = match workshop.hierarchy.version() {
        2 => Some(make_cgroup(workshop, pod, request)?),
        _ => None,
    };
    let birthplace = early.as_ref().and_then(|(_, entrance)| entrance.clone_into());
    let shared = match namespaces.as_mut().map(PodNamespaces::complete) {
        None => None,
        Some(Ok(shared)) => Some(shared),
        Some(Err(_)) => {
            // The process that was to make the network namespace died first, so the other
            // namespaces are empty too.
            *namespaces = None;
            None
        }
    };
    let is_first = shared.is_none();
    let Some(child) = clone_container(workshop, shared, birthplace)? else {
        let born_inside = birthplace.is_some();
        drop((starter, outside, report));
        let life = || {
            let null = child::open_null()?;
            let has_terminal = request.spec.process.terminal;
            let mut equipment =
                child_before_mounts(pod, is_first, born_inside, has_terminal, &starter_inside, timeline)?;
            let terminal = equipment.terminal.take();
            let streams = inside.streams(&null, terminal.as_ref())?;
            child_after_mounts(workshop, pod, &request.spec, equipment, &starter_inside, streams, timeline)
        };
        finish_child(&report_inside, life)
    };
    timeline.mark("shim", "clone");
    drop((inside, report_inside, starter_inside));

    let equipped =
        early.map_or_else(|| make_cgroup(workshop, pod, request), Ok).and_then(|(cgroup, entrance)| {
            timeline.mark("shim", "cgroups");
            let equipped = equip(workshop, pod, request, namespaces, &child, &entrance, starter, timeline)?;
            Ok((cgroup, entrance, equipped))
        });
    match equipped {
        Ok((cgroup, entrance, Equipped { pid_namespace, terminals, terminal, messages })) => Ok(Container {
            child,
            cgroup,
            report: Some(report),
            streams: terminal.unwrap_or(outside),
            spec: request.spec.clone(),
            entrance,
            terminals,
            messages,
            keeper: Keeper::Itself { pid_namespace },
        }),
        Err(error) => {
            let _ = child.signal(libc::SIGKILL);
            let _ = child.wait();
            // If the child failed by itself, its report has the cause. The error here only says
            // that it is gone.
            Err(read_report(&report).unwrap_or_else(|| error.into()))
        }
    }
}

fn make_cgroup(
    workshop: &Workshop,
    pod: &PodRequest,
    request: &ContainerRequest,
) -> Result<(Cgroup, Entrance), StepError> {
    let step = || "make the cgroup".to_owned();
    let mut limits = request.spec.linux.resources;
    if let Some(runtime) = &pod.runtime {
        limits.pids = limits.pids.map(|pids| other_runtime::threads(runtime.kind, pids));
    }
    let cgroup =
        Cgroup::create(&workshop.hierarchy, &cgroup_names::container(&pod.cgroup, &request.name), &limits)
            .step(step)?;
    let entrance = cgroup.entrance().step(step)?;
    Ok((cgroup, entrance))
}

impl PodNamespaces {
    /// Returns all namespaces. Fails if one was never made: a container with only some of them
    /// would use the host's for the others.
    fn complete(&mut self) -> io::Result<[BorrowedFd<'_>; 4]> {
        if let Network::Promised(socket) = &self.network {
            let (network, listeners) = receive_network(socket)?;
            self.network = Network::Here(network);
            self.listeners = listeners;
        }
        match &self.network {
            // The user namespace comes last: entering it takes away the right to enter the others.
            Network::Here(network) => {
                Ok([network.as_fd(), self.ipc.as_fd(), self.uts.as_fd(), self.user.as_fd()])
            }
            Network::Promised(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

/// Waits for the network namespace that the first container's process makes, and for its listeners.
fn receive_network(starter: &Seqpacket) -> io::Result<(OwnedFd, Listeners)> {
    let packet = starter.receive(16)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let mut descriptors = packet.descriptors.into_iter();
    let namespace = descriptors.next().ok_or(io::ErrorKind::InvalidData)?;
    let egress_listener = if packet.bytes == NETWORK_WITH_EGRESS { descriptors.next() } else { None };
    Ok((namespace, Listeners { egress_listener, activation: descriptors.collect() }))
}

/// The messages that hand over the pod's network, without and with a listener for the proxy.
const NETWORK: &[u8] = b"net";
const NETWORK_WITH_EGRESS: &[u8] = b"net, way out";

/// Returns the directory that one attempt of a container writes to.
pub(crate) fn writable_directory(pod_directory: &Path, name: &str, attempt: u32) -> PathBuf {
    pod_directory.join("containers").join(name).join(attempt.to_string())
}

/// Clones the first process of a container. Returns `None` in the new process.
fn clone_container(
    workshop: &Workshop,
    namespaces: Option<[BorrowedFd<'_>; 4]>,
    cgroup: Option<BorrowedFd<'_>>,
) -> Result<Option<Child>, StepError> {
    let step = || "clone the first process".to_owned();
    let own = Namespaces::PID.with(Namespaces::MOUNT);
    let Some(namespaces) = namespaces else {
        let shared = Namespaces::USER.with(Namespaces::IPC).with(Namespaces::UTS);
        let options = CloneOptions { namespaces: own.with(shared), sibling: false, cgroup };
        let cloned = workshop.birthplace.clone_process(workshop.proof, options);
        return match cloned.map_err(kernel::explain_namespaces).step(step)? {
            Fork::Child => Ok(None),
            Fork::Parent(child) => Ok(Some(child)),
        };
    };
    // The pod has its namespaces, and a process that enters the user namespace cannot come back.
    let [network, ipc, uts, user] = namespaces;
    let namespaces = [workshop.birthplace.as_fd(), network, ipc, uts, user];
    match clone_inside(workshop.proof, &namespaces, own, cgroup).step(step)? {
        Fork::Child => Ok(None),
        Fork::Parent(child) => Ok(Some(child)),
    }
}

/// Clones a process inside namespaces that this one could not leave again. A helper enters them and
/// clones there, and the clone becomes this process's child.
fn clone_inside(
    proof: SingleThreaded,
    namespaces: &[BorrowedFd<'_>],
    own: Namespaces,
    cgroup: Option<BorrowedFd<'_>>,
) -> io::Result<Fork> {
    let (number, number_inside) = pipe()?;
    let options = CloneOptions { namespaces: Namespaces::NONE, sibling: false, cgroup };
    match process::clone(proof, options)? {
        Fork::Parent(helper) => {
            drop(number_inside);
            let mut bytes = [0u8; 4];
            let read = read_blocking(&number, &mut bytes);
            let _ = helper.wait();
            match read? {
                4 => Ok(Fork::Parent(Child::adopt(i32::from_ne_bytes(bytes))?)),
                _ => Err(io::Error::other("the helper could not enter the pod's namespaces")),
            }
        }
        Fork::Child => {
            drop(number);
            let entered = namespaces.iter().try_for_each(|namespace| namespace::enter_one(*namespace));
            let options = CloneOptions { namespaces: own, sibling: true, cgroup: None };
            match entered.and_then(|()| process::clone(proof, options)) {
                Ok(Fork::Child) => Ok(Fork::Child),
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

/// Sets the likelihood of being killed when memory runs out.
fn adjust_oom_score(process: &str, program: &Process, privileges: Privileges) -> Result<(), StepError> {
    let adjustment = program.oom_score_adj.unwrap_or(defaults::OOM_SCORE_ADJUSTMENT).clamp(0, 1000);
    match fs::write(format!("/proc/{process}/oom_score_adj"), adjustment.to_string()) {
        // The daemon of an ordinary user may have a raised value, for example from systemd. Only
        // root can lower it.
        Err(error)
            if privileges != Privileges::Machine && error.kind() == io::ErrorKind::PermissionDenied =>
        {
            Ok(())
        }
        written => written.step(|| "write oom_score_adj".to_owned()),
    }
}

/// The shim's state of a container after its setup.
struct Equipped {
    pid_namespace: OwnedFd,
    terminals: OwnedFd,
    terminal: Option<Outside>,
    messages: Vec<Message>,
}

/// Does the shim's work between the child's clone and its start: id maps, mounts, and the message
/// to continue.
#[expect(
    clippy::too_many_arguments,
    reason = "it is the second half of a start and needs what the first has"
)]
fn equip(
    workshop: &Workshop,
    pod: &PodRequest,
    request: &ContainerRequest,
    namespaces: &mut Option<PodNamespaces>,
    child: &Child,
    entrance: &Entrance,
    starter: Seqpacket,
    timeline: &mut Timeline,
) -> Result<Equipped, StepError> {
    let directory = writable_directory(&pod.directory, &request.name, request.attempt);
    let writable = rootfs::make_writable(&directory, &request.rootfs, pod.ids)?;
    timeline.mark("shim", "directories");
    let pid = child.pid();
    let process_file = |name: &str, text: &str| {
        fs::write(format!("/proc/{pid}/{name}"), text).step(|| format!("write {name}"))
    };
    let mut fresh = None;
    if namespaces.is_none() {
        process_file("uid_map", &workshop.own_ids.user_map(pod.ids))?;
        process_file("gid_map", &workshop.own_ids.group_map(pod.ids))?;
        let open = |kind: &str| namespace::open(pid, kind).step(|| format!("open the {kind} namespace"));
        fresh = Some((open("user")?, open("ipc")?, open("uts")?));
    }
    adjust_oom_score(&pid.to_string(), &request.spec.process, workshop.privileges)?;
    let pid_namespace = namespace::open(pid, "pid").step(|| "open the pid namespace".to_owned())?;
    timeline.mark("shim", "id maps");

    let mut kept = Kept::default();
    let Some(user) = fresh.as_ref().map(|(user, ..)| user).or(namespaces.as_ref().map(|shared| &shared.user))
    else {
        return Err(io::Error::other("they were made above")).step(|| "find the pod's namespaces".to_owned());
    };
    let user = (workshop.privileges == Privileges::Machine).then(|| user.as_fd());
    let layers = Layers {
        layering: workshop.layering,
        place: &directory,
        user_namespace: user,
        no_suid: request.spec.process.no_new_privileges,
    };
    let mut mounts = rootfs::overlays(&request.rootfs, &writable, &layers, &mut kept)?;
    timeline.mark("shim", "overlays");
    let terminals = rootfs::terminals(pod.ids)?;
    let terminals_kept = terminals.mount.try_clone().step(|| "keep the terminals".to_owned())?;
    mounts.push(terminals);
    let Volumes { mounts: volumes, messages } =
        rootfs::volumes(&request.spec.mounts, pod.ids, &layers, &workshop.volumes)?;
    mounts.extend(volumes);

    let list: Vec<(&Path, bool)> =
        mounts.iter().map(|mount| (mount.target.as_path(), mount.is_directory)).collect();
    let mut descriptors: Vec<BorrowedFd<'_>> = mounts.iter().map(|mount| mount.mount.as_fd()).collect();
    descriptors.extend(entrance.files());
    let terminal = streams::terminal(terminals_kept.as_fd(), pod.ids, &request.spec.process)?;
    let (terminal, terminal_inside) = terminal.unzip();
    descriptors.extend(terminal_inside.as_ref().map(AsFd::as_fd));
    wire::send(&starter, &list, &descriptors).step(|| "hand over the mounts".to_owned())?;
    timeline.mark("shim", "mounts");
    let mut listeners = Listeners::default();
    let network = match (&fresh, &pod.network) {
        (Some(_), Some(wanted)) => {
            let step = || "make the network devices".to_owned();
            let namespace;
            (namespace, listeners) = receive_network(&starter).step(step)?;
            pod_network::connect(wanted, namespace.as_fd()).step(step)?;
            starter.send(b"go", &[]).step(step)?;
            timeline.mark("shim", "network");
            Network::Here(namespace)
        }
        _ => Network::Promised(starter),
    };
    // Set this only now that nothing can fail: a later container must not find the namespaces of
    // one that never ran.
    if let Some((user, ipc, uts)) = fresh {
        *namespaces = Some(PodNamespaces { user, ipc, uts, network, listeners, layers: Vec::new() });
    }
    if let Some(namespaces) = namespaces {
        namespaces.layers.append(&mut kept.detached);
    }
    Ok(Equipped { pid_namespace, terminals: terminals_kept, terminal, messages })
}

/// The shim's message to the child: mounts with their targets, the entrance to the cgroups, and a
/// terminal if requested. Also the namespaces that the first container's process has made for the
/// whole pod.
struct Equipment {
    mounts: Vec<Detached>,
    cgroups: Option<Entrance>,
    terminal: Option<OwnedFd>,
    network: Option<OwnNetwork>,
}

/// The pod's network namespace and its listeners.
struct OwnNetwork {
    namespace: OwnedFd,
    listeners: Listeners,
}

impl OwnNetwork {
    fn make(pod: &PodRequest) -> Result<Self, StepError> {
        let namespace = child::make_network()?;
        let egress_listener = match pod.proxy_port {
            // Listen before any program runs that could take the port or find it missing.
            Some(port) => Some(
                std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, port))
                    .step(|| format!("listen on port {port} for the proxy"))?
                    .into(),
            ),
            None => None,
        };
        let ports = pod.activation.iter().flat_map(|activation| &activation.ports);
        let activation = ports.map(|port| {
            std::net::TcpListener::bind((std::net::Ipv4Addr::UNSPECIFIED, *port))
                .map(OwnedFd::from)
                .step(|| format!("listen on port {port}"))
        });
        let activation = activation.collect::<Result<Vec<_>, _>>()?;
        Ok(Self { namespace, listeners: Listeners { egress_listener, activation } })
    }

    /// Hands over the network: to the shim, which makes the pod's device, and for the pod's other
    /// containers.
    fn hand_over(&self, shim: &Seqpacket) -> Result<(), StepError> {
        let Listeners { egress_listener, activation } = &self.listeners;
        let message = if egress_listener.is_some() { NETWORK_WITH_EGRESS } else { NETWORK };
        let descriptors: Vec<BorrowedFd<'_>> = std::iter::once(&self.namespace)
            .chain(egress_listener)
            .chain(activation)
            .map(AsFd::as_fd)
            .collect();
        shim.send(message, &descriptors).step(|| "hand over the network namespace".to_owned())
    }
}

/// Runs the first half of a child: the work that needs nothing from the shim.
fn child_before_mounts(
    pod: &PodRequest,
    is_first: bool,
    born_inside: bool,
    has_terminal: bool,
    starter: &Seqpacket,
    timeline: &mut Timeline,
) -> Result<Equipment, StepError> {
    child::die_with_parent()?;
    rustix::process::setsid().step(|| "make a session".to_owned())?;
    process::join_new_session_keyring().step(|| "make a keyring".to_owned())?;
    let mut network = None;
    if is_first {
        rustix::system::sethostname(pod.hostname.as_bytes()).step(|| "set the host name".to_owned())?;
        network = Some(OwnNetwork::make(pod)?);
    }
    timeline.mark("container", "session, network");
    let step = || "take over the mounts".to_owned();
    let Some((list, mut descriptors)) = wire::receive::<Vec<(PathBuf, bool)>>(starter).step(step)? else {
        given_up()
    };
    timeline.mark("container", "wait for mounts");
    let terminal = if has_terminal { descriptors.pop() } else { None };
    if descriptors.len() < list.len() {
        return Err(io::Error::from(io::ErrorKind::InvalidData)).step(step);
    }
    let cgroups = descriptors.split_off(list.len());
    let mounts = list
        .into_iter()
        .zip(descriptors)
        .map(|((target, is_directory), mount)| Detached { mount, target, is_directory })
        .collect();
    let cgroups = (!born_inside).then(|| Entrance::from_files(cgroups));
    Ok(Equipment { mounts, cgroups, terminal, network })
}

/// Runs the second half: enters the cgroups and the root and becomes the program.
fn child_after_mounts(
    workshop: &Workshop,
    pod: &PodRequest,
    spec: &Spec,
    equipment: Equipment,
    starter: &Seqpacket,
    streams: Streams<'_>,
    timeline: &mut Timeline,
) -> Result<std::convert::Infallible, Failure> {
    if let Some(entrance) = &equipment.cgroups {
        entrance.enter().step(|| "enter the cgroup".to_owned())?;
    }
    child::hide_cgroups()?;
    child::become_root(workshop.groups())?;
    let proc = child::make_proc()?;
    let network = pod.network.as_ref().filter(|_| equipment.network.is_some());
    if equipment.network.is_some() {
        child::set_parameters(proc.as_fd(), &pod.sysctls)?;
    }
    if network.is_some() {
        pod_network::without_version_6(proc.as_fd()).step(|| "switch off IP version 6".to_owned())?;
    }
    if let Some(own) = equipment.network {
        own.hand_over(starter)?;
    }
    child::enter_root(spec, &proc, equipment.mounts)?;
    timeline.mark("container", "root file system");
    if let Some(network) = network {
        // The shim makes the devices meanwhile. On failure it kills this process and reports the
        // cause.
        let step = || "set up the network".to_owned();
        if starter.receive(16).step(step)?.is_none() {
            given_up()
        }
        pod_network::configure(network).step(step)?;
        timeline.mark("container", "network");
    }
    let environment =
        exec::environment(&spec.process, &[], spec.process.terminal.then_some(streams::FIRST_SIZE));
    timeline.flush();
    child::become_program(&spec.process, &environment, streams, &workshop.filter, workshop.groups())
}

/// Ends the process after the shim has closed the connection. The shim has failed and reports the
/// cause itself.
fn given_up() -> ! {
    process::exit_now(127)
}

/// Runs the rest of a child and never returns: after a failure or panic there must not be a second
/// shim.
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

/// Makes a pipe whose reading end, the shim's, is non-blocking.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((reader, writer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_noticed_that_is_handled_awaited_or_blocked_for_longer() {
        let status =
            "Name:\tsh\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000000004\nSigCgt:\t0000000000004000\n";
        let in_call = |number: i64| format!("{number} 0x1 0x2\n");
        let (poll, fork) = (in_call(libc::SYS_ppoll), in_call(libc::SYS_clone));
        for call in ["running\n", "-1 0x1 0x2\n", "", &poll, &fork] {
            assert!(would_notice(status, call, status, libc::SIGTERM), "handled: {call}");
            assert!(!would_notice(status, call, status, libc::SIGQUIT), "ignored: {call}");
            assert!(!would_notice("", call, "", libc::SIGTERM));
            assert_eq!(would_notice(status, call, status, libc::SIGINT), call == poll, "blocked: {call}");
        }
        assert!(would_notice(status, &in_call(libc::SYS_rt_sigtimedwait), status, libc::SIGQUIT));
        assert!(!would_notice(status, &poll, status, 0));
        // The shell was about to fork when its status was read, and waited for the child after that.
        let at = |switches: u32| format!("{status}voluntary_ctxt_switches:\t{switches}\n");
        assert!(!would_notice(&at(1), &poll, &at(2), libc::SIGINT));
        assert!(would_notice(&at(1), &poll, &at(1), libc::SIGINT));
    }
}
