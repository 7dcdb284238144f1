//! Decides how an attempt ended, from its pod and its sandbox.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use warren_api::Sandbox;
use warren_api::conditions::{self, ConditionType, Reason};
use warren_api::task::{LONGEST_RESULT, RUNNER_CONTAINER};

use crate::bounded::bounded;

/// The longest part of a pod's message that is repeated. The message may come from anywhere.
const LONGEST_CAUSE: usize = 512;

/// The outcome of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// [`Reason::CommandSucceeded`], or the class of the failure.
    pub reason: Reason,
    /// The same for people.
    pub message: String,
    /// The exit code of the command, if it ended by itself.
    pub exit_code: Option<i32>,
    /// The result that the command left, if it ended by itself.
    pub result: Option<String>,
}

impl Verdict {
    pub(super) fn new(reason: Reason, message: impl Into<String>) -> Self {
        let message = message.into().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        Self { reason, message, exit_code: None, result: None }
    }

    /// Returns whether the command ended with exit code 0.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.reason == Reason::CommandSucceeded
    }

    /// Returns whether another attempt may end differently. One that ran out of memory would do so again.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self.reason, Reason::Application | Reason::Evicted | Reason::NodeLost | Reason::Unknown)
    }
}

/// The progress of the command.
#[derive(Debug)]
pub(super) enum PodState {
    Starting,
    Running,
    Ended(Verdict),
}

/// Returns whether nothing of a pod runs any more.
pub(super) fn has_ended(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Returns whether a pod may still do something.
pub(super) fn is_running(pod: &Pod) -> bool {
    phase(pod) == "Running"
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

/// Reads a pod.
pub(super) fn of_pod(pod: &Pod) -> PodState {
    let status = pod.status.clone().unwrap_or_default();
    let failed = phase(pod) == "Failed";
    let told = cause(&status);
    if failed && let Some(reason) = ended_by_the_node(&status) {
        let text = match reason {
            Reason::Timeout => "The task took longer than it may".to_owned(),
            Reason::Evicted => format!("The sandbox was evicted{told}"),
            _ => format!("The node of the sandbox was lost{told}"),
        };
        return PodState::Ended(Verdict::new(reason, text));
    }
    if let Some(ended) = runner(&status).and_then(terminated) {
        let mut verdict = of_container(pod, "The command", ended);
        // A container that did not run has a message of its node.
        if verdict.exit_code.is_some() {
            let left = ended.message.as_deref().filter(|left| !left.is_empty());
            verdict.result = left.map(|left| bounded(left, LONGEST_RESULT).into_owned());
        }
        return PodState::Ended(verdict);
    }
    match phase(pod) {
        "Succeeded" => PodState::Ended(Verdict {
            exit_code: Some(0),
            ..Verdict::new(Reason::CommandSucceeded, "The command succeeded")
        }),
        "Failed" => PodState::Ended(never_ran(pod, &status)),
        // A pod that is deleted while its command runs says how that ended, or goes.
        "Running" if runner(&status).is_none_or(is_started) => PodState::Running,
        _ => PodState::Starting,
    }
}

fn is_started(container: &ContainerStatus) -> bool {
    container.state.as_ref().is_none_or(|state| state.waiting.is_none())
}

/// The pod's own reason, where it was not the command that ended.
fn ended_by_the_node(status: &PodStatus) -> Option<Reason> {
    match status.reason.as_deref() {
        Some("DeadlineExceeded") => return Some(Reason::Timeout),
        Some("Evicted" | "Preempting") => return Some(Reason::Evicted),
        Some("NodeLost" | "NodeShutdown" | "Shutdown" | "Terminated") => return Some(Reason::NodeLost),
        _ => {}
    }
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let disrupted = conditions.iter().find(|condition| condition.type_ == "DisruptionTarget")?;
    if disrupted.status != "True" {
        return None;
    }
    match disrupted.reason.as_deref() {
        Some("DeletionByTaintManager" | "DeletionByPodGC") => Some(Reason::NodeLost),
        _ => Some(Reason::Evicted),
    }
}

/// The container that the command runs in, by the rule by which it was given to it.
fn runner(status: &PodStatus) -> Option<&ContainerStatus> {
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    containers.iter().find(|container| container.name == RUNNER_CONTAINER).or(containers.first())
}

fn terminated(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    container.state.as_ref()?.terminated.as_ref()
}

fn of_container(pod: &Pod, subject: &str, ended: &ContainerStateTerminated) -> Verdict {
    let code = ended.exit_code;
    let told = ended.message.as_deref().unwrap_or_default().trim();
    let told = match told {
        "" => String::new(),
        told => format!(": {}", bounded(told, LONGEST_CAUSE)),
    };
    let verdict = |reason, text: String| Verdict { exit_code: Some(code), ..Verdict::new(reason, text) };
    match ended.reason.as_deref() {
        // The exit code alone says nothing: 137 is any SIGKILL.
        Some("OOMKilled") => verdict(Reason::OOM, format!("{subject} ran out of memory{told}")),
        Some("StartError" | "ContainerCannotRun") => {
            Verdict::new(Reason::Invalid, format!("{subject} could not be started{told}"))
        }
        Some("ContainerStatusUnknown") => {
            Verdict::new(Reason::NodeLost, format!("The node lost sight of the command{told}"))
        }
        _ if code == 0 => verdict(Reason::CommandSucceeded, format!("{subject} succeeded")),
        _ if pod.metadata.deletion_timestamp.is_some() => {
            Verdict::new(Reason::Unknown, "The sandbox was deleted before the command ended")
        }
        _ => verdict(Reason::Application, format!("{subject} ended with exit code {code}{told}")),
    }
}

/// A pod that has failed before the command ran: an init container failed, or the node refused the pod.
fn never_ran(pod: &Pod, status: &PodStatus) -> Verdict {
    let first = status.init_container_statuses.as_deref().unwrap_or_default();
    let failed = first.iter().find_map(|container| {
        let ended = terminated(container).filter(|ended| ended.exit_code != 0)?;
        Some((container, ended))
    });
    if let Some((container, ended)) = failed {
        let subject = format!("Init container {}", bounded(&container.name, 63));
        return of_container(pod, &subject, ended);
    }
    let told = cause(status);
    match status.reason {
        Some(_) => Verdict::new(Reason::Invalid, format!("The sandbox cannot run on this node{told}")),
        None => Verdict::new(Reason::Unknown, "The pod failed without a reason"),
    }
}

/// The pod's own reason and message, as the end of a sentence.
fn cause(status: &PodStatus) -> String {
    let words = status.reason.iter().chain(&status.message).map(|text| text.trim());
    let words = words.filter(|text| !text.is_empty());
    words.map(|text| format!(": {}", bounded(text, LONGEST_CAUSE))).collect()
}

/// Returns what the API server said when it refused a sandbox's pod as invalid.
pub(super) fn refusal(sandbox: &Sandbox) -> Option<String> {
    let conditions = &sandbox.status.as_ref()?.conditions;
    let ready = conditions::find(conditions, ConditionType::Ready)?;
    (ready.reason == Reason::InvalidConfiguration.as_str()).then(|| ready.message.clone())
}

/// Says what a sandbox that does not run yet waits for.
pub(super) fn waiting(sandbox: &Sandbox) -> String {
    let conditions = sandbox.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    match conditions::find(conditions, ConditionType::PodWaiting) {
        Some(waiting) => format!("{}: {}", waiting.reason, bounded(&waiting.message, LONGEST_CAUSE)),
        None => "The sandbox is being made".to_owned(),
    }
}
