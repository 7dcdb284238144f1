//! What a pod needs next on its node, and the status it has, word for word as kubelet reports it.
//!
//! [`decide`] is asked after every change: of the Pod object, of what the machine reports, of the time. It never
//! remembers anything. What a daemon that died would have known comes back from two places that survive it: the
//! report of the shim (or the record the shim left on disk), and the last published status in the API.

mod backoff;
mod conditions;
mod environment;
mod image;
mod limits;
mod quantity;
mod refusal;
mod status;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};

pub use backoff::restart_delay;
pub use conditions::{ISOLATION_CONDITION, LIMITS_CONDITION};
pub use environment::{Addresses, FieldError, environment, expand};
pub use image::{ImageFacts, ImageState, Images, PullPolicy};
pub use limits::{DEFAULT_CPU_MILLIS, DEFAULT_MEMORY_BYTES, DEFAULT_PIDS, Limits, LimitsError};
pub use quantity::{Quantity, QuantityError};
pub use refusal::{BuiltInImage, ContainerProblem, HOST_IMAGE, Refusal, container_problem, refusal};
pub use status::same_status;

use image::Readiness;

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
    /// When the pod's containers were asked to stop, if they were.
    pub asked_to_stop: Option<Timestamp>,
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
    /// When to ask again even if nothing changes.
    pub look_again: Option<Timestamp>,
}

/// One thing to do for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Tell the API that the pod is ours.
    Bind,
    /// Remove what a lost or finished shim left on the machine, except logs.
    CleanUp,
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
    /// Ask every container to end (SIGTERM).
    AskToStop,
    /// End every container (SIGKILL).
    Kill,
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
    let container = containers(world.pod).iter().find(|known| known.name == container)?;
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
        Plan { steps: Vec::new(), status: None, look_again: None }
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
}

fn has_scheduling_gates(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_ref()).is_some_and(|gates| !gates.is_empty())
}

/// A node that takes unassigned pods stands in for the default scheduler; pods of another one are left to it.
fn names_other_scheduler(pod: &Pod) -> bool {
    let name = pod.spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref()).unwrap_or_default();
    !matches!(name, "" | "default-scheduler")
}

fn containers(pod: &Pod) -> &[Container] {
    pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default()
}

/// Stop what runs, then remove what is left, then let the object go.
fn decide_deletion(world: &World<'_>, now: Timestamp) -> Plan {
    let grace = world.pod.metadata.deletion_grace_period_seconds.unwrap_or(0).max(0);
    let held = world.pod.metadata.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty());
    if world.machine.runs_anything() {
        let (steps, look_again) = stop(world, grace, now);
        return Plan { steps, status: Some(status_while_deleted(world, now)), look_again };
    }
    let remove = vec![Step::Remove, Step::DeleteObject];
    if !held {
        // Nobody can read the status of an object that is about to vanish: that write is saved.
        return Plan { steps: remove, status: None, look_again: None };
    }
    // A finalizer keeps the object for somebody who will read it, so the truth is published before its record goes.
    let status = status_while_deleted(world, now);
    let told = world.pod.status.as_ref().is_some_and(|published| same_status(published, &status));
    let already_final = grace == 0 && matches!(world.machine, Machine::Absent);
    let steps = if told && !already_final { remove } else { Vec::new() };
    Plan { steps, status: Some(status), look_again: None }
}

/// Deletion makes a new generation, but nothing in it concerns the node: a write only to acknowledge it is saved.
fn status_while_deleted(world: &World<'_>, now: Timestamp) -> PodStatus {
    let mut pod = world.pod.clone();
    pod.metadata.generation =
        pod.status.as_ref().and_then(|status| status.observed_generation).or(pod.metadata.generation);
    status::status(&World { pod: &pod, ..world.clone() }, &BTreeMap::new(), now)
}

/// Steps that end all containers within `grace` seconds.
fn stop(world: &World<'_>, grace: i64, now: Timestamp) -> (Vec<Step>, Option<Timestamp>) {
    match world.asked_to_stop {
        _ if grace == 0 => (vec![Step::Kill], None),
        None => (vec![Step::AskToStop], Some(now + SignedDuration::from_secs(grace))),
        Some(asked) => {
            // The node's own clock, as kubelet does it: the deletion timestamp is the API server's.
            let deadline = asked + SignedDuration::from_secs(grace);
            if now >= deadline { (vec![Step::Kill], None) } else { (Vec::new(), Some(deadline)) }
        }
    }
}

fn decide_life(world: &World<'_>, now: Timestamp) -> Plan {
    let pod = world.pod;
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    let finished = matches!(phase, "Succeeded" | "Failed");
    if finished {
        // A phase never goes back, and it is published before anything is cleaned up: the machine's record of how the
        // containers ended must not go before the API has it. The logs stay until the object goes.
        let steps = match world.machine {
            Machine::Present(_) | Machine::Lost { .. } => vec![Step::CleanUp],
            Machine::Absent | Machine::Broken { .. } => Vec::new(),
        };
        return Plan { steps, status: None, look_again: None };
    }
    if let Some(refusal) = refusal(pod).filter(|_| matches!(world.machine, Machine::Absent)) {
        return Plan {
            steps: Vec::new(),
            status: Some(status::refused(world, &refusal, now)),
            look_again: None,
        };
    }
    if let Some(deadline) = active_deadline(pod) {
        if now >= deadline {
            return decide_overdue(world, now);
        }
        let mut plan = decide_containers(world, now);
        plan.look_again = earlier(plan.look_again, Some(deadline));
        return plan;
    }
    decide_containers(world, now)
}

fn active_deadline(pod: &Pod) -> Option<Timestamp> {
    let seconds = pod.spec.as_ref()?.active_deadline_seconds?;
    let start = pod.status.as_ref()?.start_time.as_ref()?;
    Some(start.0 + SignedDuration::from_secs(seconds))
}

fn decide_overdue(world: &World<'_>, now: Timestamp) -> Plan {
    if world.machine.runs_anything() {
        let grace =
            world.pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(30);
        let (steps, look_again) = stop(world, grace.max(0), now);
        return Plan { steps, status: Some(status::status(world, &BTreeMap::new(), now)), look_again };
    }
    Plan { steps: Vec::new(), status: Some(status::overdue(world, now)), look_again: None }
}

/// Starts what should run and does not.
fn decide_containers(world: &World<'_>, now: Timestamp) -> Plan {
    let (mut steps, mut fetches) = (Vec::new(), Vec::new());
    let mut look_again = None;
    let mut outlooks = BTreeMap::new();

    if let Machine::Broken { attempts, at, .. } = world.machine {
        let due = *at + restart_delay(*attempts);
        if now < due {
            return Plan {
                steps,
                status: Some(status::status(world, &outlooks, now)),
                look_again: Some(due),
            };
        }
    }
    for container in containers(world.pod) {
        let outlook = outlook(world, container, now);
        match outlook {
            Outlook::StartNow { attempt } => {
                steps.push(Step::StartContainer { name: container.name.clone(), attempt });
            }
            Outlook::StartAt { at, .. } | Outlook::ImageFailing { at, .. } => {
                look_again = earlier(look_again, Some(at));
            }
            Outlook::ImageWanted => fetches.push(Step::FetchImage {
                name: container.image.clone().unwrap_or_default(),
                policy: PullPolicy::of(container),
            }),
            Outlook::ImageComing | Outlook::Blocked(_) | Outlook::Done | Outlook::Runs => {}
        }
        outlooks.insert(container.name.clone(), outlook);
    }
    if !steps.is_empty() {
        match world.machine {
            Machine::Present(_) => {}
            Machine::Absent => steps.insert(0, Step::StartSandbox),
            Machine::Lost { .. } | Machine::Broken { .. } => {
                steps.splice(0..0, [Step::CleanUp, Step::StartSandbox]);
            }
        }
    }
    // Two containers on one image ask once.
    fetches.dedup();
    steps.splice(0..0, fetches);
    let status = status::status(world, &outlooks, now);
    Plan { steps, status: Some(status), look_again }
}

/// What is to become of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outlook {
    /// It runs; leave it.
    Runs,
    /// It ran and must not run again.
    Done,
    /// Start it.
    StartNow { attempt: u32 },
    /// It keeps failing: start it then.
    StartAt { at: Timestamp, delay: SignedDuration },
    /// Its image must be asked for.
    ImageWanted,
    /// Its image is on its way.
    ImageComing,
    /// Its image could not be had: it is asked for again then.
    ImageFailing { problem: ContainerProblem, at: Timestamp },
    /// It cannot be started as its spec has it.
    Blocked(ContainerProblem),
}

fn outlook(world: &World<'_>, container: &Container, now: Timestamp) -> Outlook {
    let reported = world.machine.report().and_then(|report| report.containers.get(&container.name));
    let last = match (world.machine, reported) {
        (Machine::Present(_), Some(ContainerReport { state: ContainerState::Running { .. }, .. })) => {
            return Outlook::Runs;
        }
        _ => status::last_exit(world, container, now),
    };
    if let Some(problem) = container_problem(world.pod, container) {
        return Outlook::Blocked(problem);
    }
    let Some((attempt, exit)) = last else {
        return start_on_image(world, container, 0, now);
    };
    let again = match world.pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()) {
        Some("Never") => false,
        Some("OnFailure") => exit.exit_code != 0,
        _ => true,
    };
    if !again {
        return Outlook::Done;
    }
    let delay = backoff::delay_after(attempt, &exit);
    let at = exit.finished_at + delay;
    if now >= at {
        start_on_image(world, container, attempt + 1, now)
    } else {
        Outlook::StartAt { at, delay }
    }
}

/// It is time to start a container; its image decides whether it can.
fn start_on_image(world: &World<'_>, container: &Container, attempt: u32, now: Timestamp) -> Outlook {
    match image::readiness(world.images, container, now) {
        Readiness::Wanted => Outlook::ImageWanted,
        Readiness::Coming => Outlook::ImageComing,
        Readiness::Failing(problem, at) => Outlook::ImageFailing { problem, at },
        Readiness::Ready(facts) => {
            match facts.and_then(|facts| image::user_problem(world.pod, container, facts)) {
                Some(problem) => Outlook::Blocked(problem),
                None => Outlook::StartNow { attempt },
            }
        }
    }
}

fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests;
