//! Converts the shim's reports into the types of the decisions.

use std::collections::BTreeMap;

use warren_decide::network::Mode;
use warren_decide::pod::{ContainerReport, ContainerState, Exit, ExitCause, Isolation, NodeFacts, Report};
use warren_oci::protocol::{ContainerStatus, PodState, RuntimeKind};

use crate::network::Lease;

/// Kubelet's and the container engines' exit code for a program that could not be started.
const START_ERROR: i32 = 128;

/// The isolation by namespaces and filters of the host's kernel.
const NAMESPACES: &str = "user, pid, mount, network, ipc, uts and cgroup namespaces; no new privileges; reduced capabilities; \
                          seccomp allow-list";

/// Returns the isolation of every container on this node, by the built-in runtime or the pod's own.
/// A container without all of it fails, so a running one has it.
fn isolation(lease: Option<&Lease>, node: &NodeFacts, runtime: Option<RuntimeKind>) -> Isolation {
    let network = match lease.map(|lease| lease.mode) {
        None | Some(Mode::None) => "no network",
        Some(Mode::Restricted) => "network restricted to the egress proxy",
        Some(Mode::Full) => "network full, but not to this machine or other pods",
    };
    let (level, made_of) = match (runtime, node.limits_are_enforced) {
        (Some(RuntimeKind::Gvisor), _) => (
            "UserSpaceKernel",
            "a kernel of its own in user space, behind a seccomp filter and in user, pid, mount, network, ipc and uts namespaces; \
             no new privileges; reduced capabilities",
        ),
        (None | Some(RuntimeKind::Plain), true) => ("Namespaces", NAMESPACES),
        (None | Some(RuntimeKind::Plain), false) => ("NamespacesWithoutLimits", NAMESPACES),
    };
    let limits = match node.limits_are_enforced {
        true => "limits on memory, processors and processes",
        false => {
            "a limit on processes, none on memory and processors as the user who runs this node was given no cgroups"
        }
    };
    let ids = if node.ids_are_own { "" } else { "; user ids shared with the other pods of this home" };
    Isolation { level: level.to_owned(), detail: format!("{made_of}; {limits}; {network}{ids}") }
}

/// Builds a report on a pod. `previous` are the ends of earlier runs, by container; `lease` is its
/// network; `message` returns the termination message of a container.
pub(crate) fn report(
    state: &PodState,
    previous: &BTreeMap<String, Exit>,
    lease: Option<&Lease>,
    node: &NodeFacts,
    message: impl Fn(&str, u32, i32) -> Option<String>,
) -> Report {
    let containers = state.containers.iter().filter_map(|(name, container)| {
        let state_now = match &container.status {
            // Not created yet: the shim reports it later.
            ContainerStatus::Starting => return None,
            ContainerStatus::Running { started_at, .. } => {
                ContainerState::Running { started_at: *started_at }
            }
            ContainerStatus::Exited { exit, started_at, finished_at } => ContainerState::Exited(Exit {
                started_at: *started_at,
                finished_at: *finished_at,
                exit_code: exit.code,
                signal: exit.signal,
                cause: if exit.oom_killed { ExitCause::OutOfMemory } else { ExitCause::Process },
                message: message(name, container.attempt, exit.code),
            }),
            ContainerStatus::Failed { refusal, finished_at } => ContainerState::Exited(Exit {
                started_at: *finished_at,
                finished_at: *finished_at,
                exit_code: START_ERROR,
                signal: None,
                cause: ExitCause::StartError(refusal.message.clone()),
                message: None,
            }),
        };
        let report = ContainerReport {
            id: format!("{}/{name}/{}", state.uid, container.attempt),
            attempt: container.attempt,
            state: state_now,
            previous: previous.get(name).cloned(),
            memory_limit_hit: container.oom_kills > 0,
            pids_limit_hit: container.pids_limit_hits > 0,
        };
        Some((name.clone(), report))
    });
    Report {
        isolation: Some(isolation(lease, node, state.runtime)),
        address: lease.filter(|lease| lease.is_reachable()).map(|lease| lease.address),
        containers: containers.collect(),
    }
}

/// Returns true if no container is still starting.
pub(crate) fn settled(state: &PodState) -> bool {
    !state.containers.values().any(|container| matches!(container.status, ContainerStatus::Starting))
}
