//! What a pod needs next on its node, and the status it has, word for word as kubelet reports it.
//!
//! [`decide`] is asked after every change: of the Pod object, of what the machine reports, of the time. It never
//! remembers anything. What a daemon that died would have known comes back from two places that survive it: the
//! report of the shim (or the record the shim left on disk), and the last published status in the API.

mod backoff;
mod conditions;
mod containers;
mod disk;
mod environment;
mod fields;
mod guest;
mod health;
mod host_path;
mod image;
mod limits;
mod probe;
mod quantity;
mod refusal;
mod sources;
mod status;
mod stopping;
mod sysctls;
mod unsupported;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};

pub use backoff::restart_delay;
pub use conditions::{ISOLATION_CONDITION, LIMITS_CONDITION};
pub use containers::{Role, all_containers};
pub use disk::{Amount, DiskSpace, DiskUsage, Eviction, disk_eviction, disk_room, low_disk_eviction};
pub use environment::{EnvironmentError, environment, expand};
pub use fields::Addresses;
pub use guest::{Guest, GuestError, base_directory, guest, is_of_sandbox};
pub use health::Health;
pub use host_path::{HostPath, HostPathError, find_host_path};
pub use image::{ImageFacts, ImageState, Images, PullPolicy};
pub use limits::{
    DEFAULT_CPU_MILLIS, DEFAULT_DISK_BYTES, DEFAULT_MEMORY_BYTES, DEFAULT_PIDS, Limits, LimitsError,
    PidsLimitError, pids_limit,
};
pub use probe::{ProbeTiming, Tally};
pub use quantity::{Quantity, QuantityError};
pub use refusal::{BuiltInImage, ContainerProblem, HOST_IMAGE, Refusal, container_problem, refusal};
pub use sources::{Reference, SourceError, Sources, TokenWish, references};
pub use status::same_status;
pub use sysctls::sysctls;
pub use unsupported::BIND_MOUNT_OPTIONS;
pub use volumes::{VolumeFile, VolumeKind, volume_files, volume_kind};

/// Everything a decision about one pod rests on.
#[derive(Debug, Clone)]
pub struct World<'a> {
    /// The Pod as the API last showed it, perhaps stale.
    pub pod: &'a Pod,
    /// The node that is deciding.
    pub node: &'a NodeFacts,
    /// What runs on the machine for this pod.
    pub machine: &'a Machine,
    /// What the node has found out about the pod's images.
    pub images: &'a Images,
    /// What was found of the objects that the pod refers to.
    pub sources: &'a Sources,
    /// What hooks and probes have said, by container.
    pub health: &'a BTreeMap<String, Health>,
    /// Which containers were asked to stop, and when.
    pub stopping: &'a BTreeMap<String, Timestamp>,
    /// Set once the node wants to be rid of it.
    pub eviction: Option<Eviction<'a>>,
}

/// What a node knows about itself.
#[derive(Debug, Clone)]
pub struct NodeFacts {
    /// The Node object's name.
    pub name: String,
    /// The address that pods report as their `hostIP`.
    pub host_ip: IpAddr,
    /// Whether this node takes pods that no scheduler has placed: true in the local home, where it is the only one.
    pub bind_unassigned: bool,
    /// What network pods can have here.
    pub network: Networks,
    /// Whether memory and processors of a container can be limited.
    pub limits_are_enforced: bool,
    /// How many users and groups exist in a pod, from 0 on.
    pub ids: u32,
    /// Whether each pod has ids of the machine for itself.
    pub ids_are_own: bool,
    /// The runtime classes that pods can have here, besides none.
    pub runtimes: BTreeMap<String, RuntimeFacts>,
    /// The directories of the host that pods may have.
    pub host_paths: Vec<HostPath>,
}

/// What network pods can have on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Networks {
    /// Their own loopback.
    None,
    /// The egress proxy as well, at an address of their loopback: all that an ordinary user can give.
    Proxy,
    /// Addresses of their own, and what their mode says.
    All,
}

/// What a node knows about a runtime.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuntimeFacts {
    /// Each container has a kernel and a network of its own, so that one of a pod can run at a time.
    pub one_at_a_time: bool,
}

/// What the machine holds for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Machine {
    /// Nothing: never started here, or torn down.
    Absent,
    /// The pod's shim answers, and this is what it says.
    Present(Report),
    /// The shim is gone without having been told to.
    Lost {
        /// The record it left.
        report: Report,
        /// When its absence was noticed.
        noticed: Timestamp,
    },
    /// The pod's sandbox could not be made at all; the message says why. Tried `attempts` times, last at `at`.
    Broken {
        /// What went wrong, for people.
        message: String,
        /// How often it was tried.
        attempts: u32,
        /// When it was tried last.
        at: Timestamp,
    },
}

/// The shim's account of its pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The isolation that was reached; published as the pod condition [`ISOLATION_CONDITION`].
    pub isolation: Option<Isolation>,
    /// Its address in the pod network, if it has one.
    pub address: Option<Ipv4Addr>,
    /// By container name.
    pub containers: BTreeMap<String, ContainerReport>,
}

/// How well the pod is fenced in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Isolation {
    /// One word in CamelCase, fit for a condition's reason.
    pub level: String,
    /// The parts it consists of, for people.
    pub detail: String,
}

/// The shim's account of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerReport {
    /// The runtime's id, without scheme.
    pub id: String,
    /// How often it was started before: 0 for the first run.
    pub attempt: u32,
    /// Where it is in its life.
    pub state: ContainerState,
    /// How the run before this one ended.
    pub previous: Option<Exit>,
    /// Whether the kernel has killed a process in it for memory, during this run.
    pub memory_limit_hit: bool,
    /// Whether the pids limit has refused it a new process, during this run.
    pub pids_limit_hit: bool,
}

/// Where a container is in its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerState {
    /// Its process runs.
    Running {
        /// When the process was started.
        started_at: Timestamp,
    },
    /// Its process has ended, or never came to be.
    Exited(Exit),
}

/// How a container's run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// When the process was started.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Timestamp,
    /// What it returned; 128 + signal when a signal ended it.
    pub exit_code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Why it ended, beyond what the code says.
    pub cause: ExitCause,
    /// What it left to be told.
    pub message: Option<String>,
}

/// Why a container's run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitCause {
    /// The process ended on its own or by a signal.
    Process,
    /// The kernel killed it for memory.
    OutOfMemory,
    /// The process could not be started.
    StartError(String),
    /// It ended while nobody watched: the machine or the shim went down.
    Unknown,
}

/// What to do next, and what to tell the world.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// In this order. Every step may be repeated without harm.
    pub steps: Vec<Step>,
    /// The pod's whole status as things are, or `None` when this node has no say in it. Whoever carries out the steps asks
    /// again afterwards, and publishes what is said when no step is left: so a start that takes milliseconds is one
    /// write, not three.
    pub status: Option<PodStatus>,
    /// What people should hear of, as events: whatever holds now, again in every plan for as long as it does.
    pub notices: Vec<Notice>,
    /// When to ask again even if nothing changes.
    pub look_again: Option<Timestamp>,
}

/// What people should hear of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// The container that it is about; otherwise the pod.
    pub container: Option<String>,
    /// Whether something is wrong.
    pub is_warning: bool,
    /// As kubelet spells it.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

impl Notice {
    fn warning(reason: &'static str, message: String) -> Notice {
        Notice { container: None, is_warning: true, reason, message }
    }

    fn normal(reason: &'static str, message: String) -> Notice {
        Notice { container: None, is_warning: false, reason, message }
    }

    fn about(self, container: &Container) -> Notice {
        Notice { container: Some(container.name.clone()), ..self }
    }
}

/// One thing to do for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Tell the API that the pod is ours.
    Bind,
    /// Remove what a lost or finished shim left on the machine, except files.
    CleanUp,
    /// Remove what containers and volumes of a pod that is over have on the disk, except logs.
    FreeDisk,
    /// Find an image, or fetch it. Does not wait for it.
    FetchImage {
        /// Its name in the container's spec.
        name: String,
        /// When to fetch it.
        policy: PullPolicy,
    },
    /// Start the pod's shim.
    StartSandbox,
    /// Start a container in it.
    StartContainer {
        /// Its name in the pod's spec.
        name: String,
        /// How often it was started before.
        attempt: u32,
    },
    /// Ask containers to end: by their hooks, then by SIGTERM. Does not wait for it.
    AskToStop {
        /// Which.
        names: BTreeSet<String>,
        /// How many seconds they have.
        grace: i64,
    },
    /// End containers (SIGKILL).
    Kill {
        /// Which.
        names: BTreeSet<String>,
    },
    /// Remove everything of the pod from the machine, logs too.
    Remove,
    /// Remove the Pod object: grace period 0, this uid only.
    DeleteObject,
}

/// What this pod needs next. Pure: the same world and time give the same plan.
pub fn decide(world: &World<'_>, now: Timestamp) -> Plan {
    let pod = world.pod;
    let bound_to =
        pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).filter(|name| !name.is_empty());
    let ours = bound_to == Some(world.node.name.as_str());
    let ours_to_take = bound_to.is_none()
        && world.node.bind_unassigned
        && !has_scheduling_gates(pod)
        && !names_other_scheduler(pod);

    if pod.metadata.deletion_timestamp.is_some() {
        // An unbound pod is removed by the API server itself.
        return if ours { decide_deletion(world, now) } else { Plan::nothing() };
    }
    if !ours && !ours_to_take {
        return Plan::nothing();
    }
    let mut plan = decide_life(world, now);
    if ours_to_take {
        plan.steps.insert(0, Step::Bind);
    }
    plan
}

/// How a container's last run ended, for one that is about to be started again: the machine forgets it with the start.
pub fn last_exit(world: &World<'_>, container: &str, now: Timestamp) -> Option<Exit> {
    let (_, container) = all_containers(world.pod).find(|(_, known)| known.name == container)?;
    status::last_exit(world, container, now).map(|(_, exit)| exit)
}

/// The address that a pod without a network reports.
///
/// Clients take a pod for reachable only when it has an address, so it needs one, and it must not be one that could
/// belong to somebody else. `100::/64` is set aside for packets to be discarded (RFC 6666): no router forwards it,
/// and its 64 bits hold enough of the pod's uid to need no allocator, hence nothing to leak or to lose in a crash.
pub fn address_without_network(pod_uid: &str) -> Ipv6Addr {
    let hash = pod_uid.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Ipv6Addr::from((0x0100_u128 << 112) | u128::from(hash.max(1)))
}

impl Plan {
    fn nothing() -> Plan {
        Plan { steps: Vec::new(), status: None, notices: Vec::new(), look_again: None }
    }

    fn telling(status: PodStatus) -> Plan {
        Plan { status: Some(status), ..Plan::nothing() }
    }
}

impl Machine {
    fn report(&self) -> Option<&Report> {
        match self {
            Machine::Present(report) | Machine::Lost { report, .. } => Some(report),
            Machine::Absent | Machine::Broken { .. } => None,
        }
    }

    fn runs_anything(&self) -> bool {
        matches!(self, Machine::Present(report)
            if report.containers.values().any(|container| matches!(container.state, ContainerState::Running { .. })))
    }

    fn runs(&self, container: &str) -> bool {
        matches!(self, Machine::Present(report)
            if report.containers.get(container).is_some_and(|found| matches!(found.state, ContainerState::Running { .. })))
    }
}

fn has_scheduling_gates(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_ref()).is_some_and(|gates| !gates.is_empty())
}

/// A node that takes unassigned pods stands in for the default scheduler; pods of another one are left to it.
fn names_other_scheduler(pod: &Pod) -> bool {
    let name = pod.spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref()).unwrap_or_default();
    !matches!(name, "" | "default-scheduler")
}

/// Stop what runs, then remove what is left, then let the object go.
fn decide_deletion(world: &World<'_>, now: Timestamp) -> Plan {
    let grace = world.pod.metadata.deletion_grace_period_seconds.unwrap_or(0).max(0);
    let held = world.pod.metadata.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty());
    if world.machine.runs_anything() {
        let (steps, look_again) = stopping::stop(world, grace, now);
        return Plan { steps, look_again, ..Plan::telling(status_while_deleted(world, now)) };
    }
    let remove = vec![Step::Remove, Step::DeleteObject];
    if !held {
        // Nobody can read the status of an object that is about to vanish: that write is saved.
        return Plan { steps: remove, ..Plan::nothing() };
    }
    // A finalizer keeps the object for somebody who will read it, so the truth is published before its record goes.
    let status = status_while_deleted(world, now);
    let told = world.pod.status.as_ref().is_some_and(|published| same_status(published, &status));
    let already_final = grace == 0 && matches!(world.machine, Machine::Absent);
    let steps = if told && !already_final { remove } else { Vec::new() };
    Plan { steps, ..Plan::telling(status) }
}

/// Deletion makes a new generation, but nothing in it concerns the node: a write only to acknowledge it is saved.
fn status_while_deleted(world: &World<'_>, now: Timestamp) -> PodStatus {
    let mut pod = world.pod.clone();
    pod.metadata.generation =
        pod.status.as_ref().and_then(|status| status.observed_generation).or(pod.metadata.generation);
    status::status(&World { pod: &pod, ..world.clone() }, &BTreeMap::new(), now)
}

fn decide_life(world: &World<'_>, now: Timestamp) -> Plan {
    let pod = world.pod;
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    let finished = matches!(phase, "Succeeded" | "Failed");
    if finished {
        // A phase never goes back, and it is published before anything is cleaned up: the machine's record of how the
        // containers ended must not go before the API has it. The logs stay until the object goes.
        let steps = match world.machine {
            Machine::Present(_) | Machine::Lost { .. } => vec![Step::CleanUp, Step::FreeDisk],
            Machine::Absent | Machine::Broken { .. } => Vec::new(),
        };
        return Plan { steps, ..Plan::nothing() };
    }
    if let Some(eviction) = world.eviction {
        return decide_eviction(world, eviction, now);
    }
    if let Some(refusal) = refusal(pod, world.node).filter(|_| matches!(world.machine, Machine::Absent)) {
        return Plan::telling(status::refused(world, &refusal, now));
    }
    if let Some(deadline) = active_deadline(pod) {
        if now >= deadline {
            return decide_overdue(world, now);
        }
        let mut plan = containers::decide(world, now);
        plan.look_again = earlier(plan.look_again, Some(deadline));
        return plan;
    }
    containers::decide(world, now)
}

fn active_deadline(pod: &Pod) -> Option<Timestamp> {
    let seconds = pod.spec.as_ref()?.active_deadline_seconds?;
    let start = pod.status.as_ref()?.start_time.as_ref()?;
    Some(start.0 + SignedDuration::from_secs(seconds))
}

fn decide_overdue(world: &World<'_>, now: Timestamp) -> Plan {
    if world.machine.runs_anything() {
        let (steps, look_again) = stopping::stop(world, stopping::grace(world.pod), now);
        return Plan { steps, look_again, ..Plan::telling(status::status(world, &BTreeMap::new(), now)) };
    }
    Plan::telling(status::overdue(world, now))
}

/// Seconds that an evicted pod has (kubelet's number).
const EVICTION_GRACE: i64 = 1;

fn decide_eviction(world: &World<'_>, eviction: Eviction<'_>, now: Timestamp) -> Plan {
    let notices = vec![Notice::warning("Evicted", eviction.message.to_owned())];
    if world.machine.runs_anything() {
        let (steps, look_again) = stopping::stop(world, EVICTION_GRACE, now);
        let status = status::status(world, &BTreeMap::new(), now);
        return Plan { steps, look_again, notices, ..Plan::telling(status) };
    }
    // Where the disk is full, the status can be written only afterwards.
    let steps = if eviction.disk_is_free { Vec::new() } else { vec![Step::FreeDisk] };
    Plan { steps, notices, ..Plan::telling(status::evicted(world, eviction.message, now)) }
}

fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests;
