//! Decides what a pod needs next on its node, and writes its status as kubelet would.
//!
//! [`decide`] is asked after every change of the Pod object, of the machine's report or of the
//! time. It has no memory. After a daemon's death the state comes back from two places that survive
//! it: the report of the shim (or the record the shim left on disk), and the last published status
//! in the API.

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

/// The inputs of a decision about one pod.
#[derive(Debug, Clone)]
pub struct World<'a> {
    /// The Pod as the API last showed it, perhaps stale.
    pub pod: &'a Pod,
    /// The node that is deciding.
    pub node: &'a NodeFacts,
    /// The state of the pod on the machine.
    pub machine: &'a Machine,
    /// The state of the pod's images on the node.
    pub images: &'a Images,
    /// The objects that the pod refers to, as far as they were found.
    pub sources: &'a Sources,
    /// The results of hooks and probes, by container.
    pub health: &'a BTreeMap<String, Health>,
    /// The containers that were asked to stop, and when.
    pub stopping: &'a BTreeMap<String, Timestamp>,
    /// The pod's eviction, if the node evicts it.
    pub eviction: Option<Eviction<'a>>,
}

/// A node's properties.
#[derive(Debug, Clone)]
pub struct NodeFacts {
    /// The Node object's name.
    pub name: String,
    /// The address that pods report as their `hostIP`.
    pub host_ip: IpAddr,
    /// True if this node takes pods that no scheduler has placed. It does in the local home, where
    /// it is the only node.
    pub bind_unassigned: bool,
    /// The network that pods can have here.
    pub network: Networks,
    /// True if memory and processors of a container can be limited.
    pub limits_are_enforced: bool,
    /// The number of users and groups that exist in a pod, from 0 on.
    pub ids: u32,
    /// True if each pod has a range of host ids of its own.
    pub ids_are_own: bool,
    /// The runtime classes that pods can have here. A pod may also have none.
    pub runtimes: BTreeMap<String, RuntimeFacts>,
    /// The host directories that pods may mount.
    pub host_paths: Vec<HostPath>,
}

/// The network that pods can have on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Networks {
    /// Only their own loopback.
    None,
    /// The egress proxy as well, at an address of their loopback: the most that an ordinary user
    /// can give.
    Proxy,
    /// Addresses of their own, and the network of their mode.
    All,
}

/// A node's properties of a runtime.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuntimeFacts {
    /// True if each container has a kernel and a network of its own, so that only one container of
    /// a pod can run at a time.
    pub one_at_a_time: bool,
}

/// The state of a pod on the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Machine {
    /// Never started here, or torn down.
    Absent,
    /// The pod's shim answers with this report.
    Present(Report),
    /// The shim died unexpectedly.
    Lost {
        /// The record it left.
        report: Report,
        /// The time when its absence was noticed.
        noticed: Timestamp,
    },
    /// The pod's sandbox could not be created; `message` gives the reason. It was tried `attempts`
    /// times, last at `at`.
    Broken {
        /// A readable error.
        message: String,
        /// The number of attempts.
        attempts: u32,
        /// The time of the last attempt.
        at: Timestamp,
    },
}

/// The shim's report about its pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The isolation that was reached, published as the pod condition [`ISOLATION_CONDITION`].
    pub isolation: Option<Isolation>,
    /// Its address in the pod network, if it has one.
    pub address: Option<Ipv4Addr>,
    /// The containers by name.
    pub containers: BTreeMap<String, ContainerReport>,
}

/// A pod's level of isolation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Isolation {
    /// One word in CamelCase, valid as a condition's reason.
    pub level: String,
    /// Its parts, as readable text.
    pub detail: String,
}

/// The shim's report about one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerReport {
    /// The runtime's id, without scheme.
    pub id: String,
    /// The number of earlier starts: 0 for the first run.
    pub attempt: u32,
    /// Its state.
    pub state: ContainerState,
    /// The end of the run before this one.
    pub previous: Option<Exit>,
    /// True if the kernel has killed one of its processes for memory during this run.
    pub memory_limit_hit: bool,
    /// True if the pids limit has refused it a new process during this run.
    pub pids_limit_hit: bool,
}

/// A container's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerState {
    /// Its process runs.
    Running {
        /// The time when the process was started.
        started_at: Timestamp,
    },
    /// Its process has ended, or could not be started.
    Exited(Exit),
}

/// The end of a container's run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// The time when the process was started.
    pub started_at: Timestamp,
    /// The time when it ended.
    pub finished_at: Timestamp,
    /// Its exit code; 128 + signal if a signal ended it.
    pub exit_code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The cause of the end, beyond the code.
    pub cause: ExitCause,
    /// Its termination message.
    pub message: Option<String>,
}

/// The cause of the end of a container's run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitCause {
    /// The process ended on its own or by a signal.
    Process,
    /// The kernel killed it for memory.
    OutOfMemory,
    /// The process could not be started.
    StartError(String),
    /// The end was not observed: the machine or the shim went down.
    Unknown,
}

/// A plan for one pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The steps, in order. Every step is idempotent.
    pub steps: Vec<Step>,
    /// The pod's whole status, or `None` when it is not for this node to write. The caller carries
    /// out the steps, decides again, and publishes the status only when no step is left: a start
    /// that takes milliseconds is then one write, not three.
    pub status: Option<PodStatus>,
    /// The pod's events. Each plan contains an event for as long as it applies.
    pub notices: Vec<Notice>,
    /// The time of the next decision if nothing changes.
    pub look_again: Option<Timestamp>,
}

/// An event for users.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// The container that it concerns; `None` for the whole pod.
    pub container: Option<String>,
    /// True for a warning.
    pub is_warning: bool,
    /// The reason, spelled as in kubelet.
    pub reason: &'static str,
    /// A readable message.
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

/// One step of a plan for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Bind the pod to this node in the API.
    Bind,
    /// Remove the remains of a lost or finished shim from the machine, except files.
    CleanUp,
    /// Remove the files of a finished pod's containers and volumes, except logs.
    FreeDisk,
    /// Find an image, or start to fetch it. Does not wait.
    FetchImage {
        /// Its name in the container's spec.
        name: String,
        /// The pull policy.
        policy: PullPolicy,
    },
    /// Start the pod's shim.
    StartSandbox,
    /// Start a container in the sandbox.
    StartContainer {
        /// Its name in the pod's spec.
        name: String,
        /// The number of earlier starts.
        attempt: u32,
    },
    /// Ask containers to end: first by their hooks, then by SIGTERM. Does not wait.
    AskToStop {
        /// Their names.
        names: BTreeSet<String>,
        /// Their grace period in seconds.
        grace: i64,
    },
    /// End containers (SIGKILL).
    Kill {
        /// Their names.
        names: BTreeSet<String>,
    },
    /// Remove everything of the pod from the machine, including logs.
    Remove,
    /// Delete the Pod object: grace period 0, this uid only.
    DeleteObject,
}

/// Plans the next steps for a pod. Pure: the same world and time give the same plan.
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
        // The API server itself removes an unbound pod.
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

/// Returns the end of a container's last run. Used before a restart, since the machine forgets it
/// with the start.
pub fn last_exit(world: &World<'_>, container: &str, now: Timestamp) -> Option<Exit> {
    let (_, container) = all_containers(world.pod).find(|(_, known)| known.name == container)?;
    status::last_exit(world, container, now).map(|(_, exit)| exit)
}

/// Returns the address that a pod without a network reports.
///
/// Clients treat a pod as reachable only when it has an address, so it needs one that cannot belong
/// to another host. `100::/64` is reserved for discarded packets (RFC 6666): no router forwards it.
/// Its 64 bits hold enough of the pod's uid to need no allocator, so that nothing can leak or get
/// lost in a crash.
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

/// Returns true if the pod names another scheduler than the default one. This node leaves such pods
/// alone: it replaces only the default scheduler.
fn names_other_scheduler(pod: &Pod) -> bool {
    let name = pod.spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref()).unwrap_or_default();
    !matches!(name, "" | "default-scheduler")
}

/// Plans a deletion: stop the containers, remove what is left, then delete the object.
fn decide_deletion(world: &World<'_>, now: Timestamp) -> Plan {
    let grace = world.pod.metadata.deletion_grace_period_seconds.unwrap_or(0).max(0);
    let held = world.pod.metadata.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty());
    if world.machine.runs_anything() {
        let (steps, look_again) = stopping::stop(world, grace, now);
        return Plan { steps, look_again, ..Plan::telling(status_while_deleted(world, now)) };
    }
    let remove = vec![Step::Remove, Step::DeleteObject];
    if !held {
        // The object vanishes before its status could be read: skip the write.
        return Plan { steps: remove, ..Plan::nothing() };
    }
    // A finalizer keeps the object for a reader: publish the final status before the machine's
    // record is removed.
    let status = status_while_deleted(world, now);
    let told = world.pod.status.as_ref().is_some_and(|published| same_status(published, &status));
    let already_final = grace == 0 && matches!(world.machine, Machine::Absent);
    let steps = if told && !already_final { remove } else { Vec::new() };
    Plan { steps, ..Plan::telling(status) }
}

/// Returns the status of a pod that is being deleted. Deletion makes a new generation that does not
/// concern the node, so acknowledging it is not worth a write.
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
        // A phase never goes back. It is published before the cleanup, because the machine's record
        // of the containers' ends must stay until the API has it. The logs stay until the object is
        // deleted.
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

/// An evicted pod's grace period in seconds (kubelet's number).
const EVICTION_GRACE: i64 = 1;

fn decide_eviction(world: &World<'_>, eviction: Eviction<'_>, now: Timestamp) -> Plan {
    let notices = vec![Notice::warning("Evicted", eviction.message.to_owned())];
    if world.machine.runs_anything() {
        let (steps, look_again) = stopping::stop(world, EVICTION_GRACE, now);
        let status = status::status(world, &BTreeMap::new(), now);
        return Plan { steps, look_again, notices, ..Plan::telling(status) };
    }
    // If the disk is full, the status can be written only after it is freed.
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
