//! Condition types, reasons, messages and events: the words by which the objects say what happens to them.
//!
//! Users and published clients match on these strings, so they are written once, here. [`set`] and [`find`] carry the
//! standard meaning of a condition list.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};

use crate::words::words;

words! {
    /// The `type` of a condition.
    pub enum ConditionType {
        /// The sandbox, or the claim's sandbox, can be used. Always present.
        Ready = "Ready",
        /// The sandbox has no pod because it was asked to have none. Always present on a Sandbox.
        Suspended = "Suspended",
        /// The pod's own condition, mirrored; present while the sandbox owns a pod.
        PodScheduled = "PodScheduled",
        /// The pod has ended by itself; present while that is so, and kept through expiry. On a claim also: it ended without
        /// a sandbox, because its deadline has passed.
        Finished = "Finished",
        /// Ours, on a Sandbox: its pod was made from an earlier pod template. Present only while that is so.
        PodOutdated = "warren.dev/PodOutdated",
        /// Ours, on a Sandbox and its claim: a container of its pod cannot start, and why. Present only while that is so.
        PodWaiting = "warren.dev/PodWaiting",
        /// Ours, on a claim: one of its annotations means nothing to us and is ignored. Present only while that is so.
        InvalidAnnotation = "warren.dev/InvalidAnnotation",
        /// On a task: it could be begun.
        Accepted = "Accepted",
        /// On a task: its command runs.
        Running = "Running",
        /// On a task: its command has ended with exit code 0. Present only then, and final.
        Succeeded = "Succeeded",
        /// On a task: it has ended otherwise. Present only then, and final.
        Failed = "Failed",
    }
}

words! {
    /// The `status` of a condition.
    pub enum ConditionStatus {
        /// It is so.
        True = "True",
        /// It is not so.
        False = "False",
        /// It could not be found out.
        Unknown = "Unknown",
    }
}

words! {
    /// The `reason` of a condition.
    pub enum Reason {
        /// Ready: an error with a volume claim, pod or service stopped this pass.
        ReconcilerError = "ReconcilerError",
        /// Ready, of a sandbox and of a claim: the API server refuses an object that it needs as invalid. Nothing is tried
        /// again until the spec changes; clients take it for final.
        InvalidConfiguration = "InvalidConfiguration",
        /// Ready: more than one pod is controlled by this sandbox.
        MultiplePods = "MultiplePods",
        /// Ready: the sandbox is asked to be suspended.
        SandboxSuspended = "SandboxSuspended",
        /// Ready, Finished: the pod ended with success.
        PodSucceeded = "PodSucceeded",
        /// Ready, Finished: the pod ended with failure.
        PodFailed = "PodFailed",
        /// Ready: the pod or the service is not there yet.
        DependenciesNotReady = "DependenciesNotReady",
        /// Ready: the pod is ready, and so is the service if there is one.
        DependenciesReady = "DependenciesReady",
        /// Ready, on the sandbox and its claim: its shutdown time has passed.
        SandboxExpired = "SandboxExpired",
        /// Suspended: the sandbox is asked to run.
        NotSuspended = "NotSuspended",
        /// Suspended: the pod is gone.
        PodTerminated = "PodTerminated",
        /// Suspended: the pod is on its way out.
        PodTerminating = "PodTerminating",
        /// Suspended: the pod belongs to somebody else and is left alone.
        PodNotOwned = "PodNotOwned",
        /// Suspended: the pod could not be looked up.
        PodStateUnknown = "PodStateUnknown",
        /// Suspended, in older objects; never written any more.
        PodNotTerminated = "PodNotTerminated",
        /// PodScheduled: the pod is scheduled and gave no reason of its own.
        PodScheduled = "PodScheduled",
        /// PodScheduled: the pod says nothing about it, or could not be looked up.
        PodSchedulingUnknown = "PodSchedulingUnknown",
        /// Claim Ready: the pool's template does not exist.
        TemplateNotFound = "TemplateNotFound",
        /// Claim Ready: the pool does not exist.
        WarmPoolNotFound = "WarmPoolNotFound",
        /// Claim Ready: others wanted the same waiting sandboxes.
        AdoptionConflict = "AdoptionConflict",
        /// Claim Ready: a sandbox of that name was just made, perhaps by us.
        SandboxCreatePending = "SandboxCreatePending",
        /// Claim Ready: the additional pod metadata is not allowed.
        InvalidMetadata = "InvalidMetadata",
        /// Claim Ready: the template does not allow the environment variables.
        EnvVarsInjectionRejected = "EnvVarsInjectionRejected",
        /// Claim Ready: the template does not allow the volume claim templates, or they are not valid.
        VolumeClaimTemplatesError = "VolumeClaimTemplatesError",
        /// Claim Ready: the claim's time is over.
        ClaimExpired = "ClaimExpired",
        /// Claim Ready: the sandbox is gone.
        SandboxMissing = "SandboxMissing",
        /// Claim Ready: the sandbox does not say yet whether it is ready.
        SandboxNotReady = "SandboxNotReady",
        /// Claim Finished: the claim was not Ready by its deadline. Its Ready says `ClaimExpired`, which published clients
        /// take for the end that it is.
        DeadlineExceeded = "DeadlineExceeded",
        /// PodOutdated: the pod template was edited after the pod was made.
        PodTemplateChanged = "PodTemplateChanged",
        /// PodWaiting, where the container gives no reason of its own.
        ContainerWaiting = "ContainerWaiting",
        /// InvalidAnnotation: the value is ignored.
        ValueIgnored = "ValueIgnored",
        /// Progressing of a pool: members of the present template are being made.
        Updating = "Updating",
        /// Progressing of a pool: what is missing is only that claims take the outdated members.
        WaitingForClaims = "WaitingForClaims",
        /// Progressing of a pool: it has been full of ready members of the present template.
        Complete = "Complete",
        /// Progressing of a pool: no member has become ready for too long.
        ProgressDeadlineExceeded = "ProgressDeadlineExceeded",
        /// Accepted of a task: its first sandbox was made.
        TaskAccepted = "TaskAccepted",
        /// Running of a task: its sandbox is being made.
        Starting = "Starting",
        /// Running of a task: an attempt has failed, and the sandbox of the next one is being made.
        Retrying = "Retrying",
        /// Running of a task: its command runs.
        CommandRunning = "CommandRunning",
        /// Running of a task: the task has ended.
        TaskEnded = "TaskEnded",
        /// Succeeded of a task.
        CommandSucceeded = "CommandSucceeded",
        /// Failed of a task: the kernel killed the command because it reached its memory limit.
        OOM = "OOM",
        /// Failed of a task: it took longer than it may.
        Timeout = "Timeout",
        /// Failed of a task: the command ended with another exit code than 0.
        Application = "Application",
        /// Failed of a task: the node got rid of the sandbox.
        Evicted = "Evicted",
        /// Failed of a task: the node was lost, or lost sight of the command.
        NodeLost = "NodeLost",
        /// Failed of a task: it was asked to end.
        Cancelled = "Cancelled",
        /// Accepted and Failed of a task: it cannot run as it is written.
        Invalid = "Invalid",
        /// Failed of a task: it is not known how the command ended, or the sandbox was deleted under it.
        Unknown = "Unknown",
    }
}

words! {
    /// The `reason` of an event.
    pub enum EventReason {
        /// Sandbox, Warning: more than one pod is controlled by it.
        MultiplePods = "MultiplePods",
        /// Claim, Normal: it expired, or is deleted because it did.
        ClaimExpired = "ClaimExpired",
        /// Claim, Normal: it took a waiting sandbox.
        SandboxAdopted = "SandboxAdopted",
        /// Claim, Normal: a sandbox was made for it.
        SandboxProvisioned = "SandboxProvisioned",
        /// Pool, Warning: members cannot be scheduled.
        WarmPoolNotProgressing = "WarmPoolNotProgressing",
        /// Pool, Normal: they can again.
        WarmPoolProgressing = "WarmPoolProgressing",
        /// Sandbox and template, Warning: something is in the way of what they need.
        ReconcilerError = "ReconcilerError",
        /// Sandbox, claim and template, Warning: the API server refuses an object that they need as invalid.
        InvalidConfiguration = "InvalidConfiguration",
        /// Sandbox, Warning: its pod has failed, and why.
        PodFailed = "PodFailed",
        /// Pool, Warning: a member could not be created.
        FailedCreate = "FailedCreate",
        /// Claim, Warning: it was not Ready by its deadline.
        DeadlineExceeded = "DeadlineExceeded",
        /// Claim and pool, Warning: an annotation means nothing to us and is ignored.
        InvalidAnnotation = "InvalidAnnotation",
        /// Any of ours, Warning: the server has stored something that cannot be read, so nothing is done about it.
        Unreadable = "Unreadable",
        /// Task, Normal: it has ended well.
        TaskSucceeded = "TaskSucceeded",
        /// Task, Warning: it has failed, or an attempt has.
        TaskFailed = "TaskFailed",
    }
}

words! {
    /// The `action` of an event.
    pub enum EventAction {
        /// Sandboxes and pools: seen while reconciling.
        Reconciling = "Reconciling",
        /// The expired status of a claim was stored.
        ClaimExpired = "Claim Expired",
        /// The claim is about to be deleted.
        Deleting = "Deleting",
        /// A claim took a waiting sandbox.
        Adoption = "Adoption",
        /// A sandbox was made for a claim.
        Provisioning = "Provisioning",
    }
}

words! {
    /// The `reportingController` of an event.
    pub enum ReportingController {
        /// Of sandboxes.
        Sandbox = "sandbox-controller",
        /// Of claims.
        SandboxClaim = "sandboxclaim-controller",
        /// Of templates.
        SandboxTemplate = "sandboxtemplate-controller",
        /// Of pools.
        SandboxWarmPool = "sandboxwarmpool-controller",
        /// Of tasks.
        AgentTask = "agenttask-controller",
    }
}

/// The `message` of a condition, where it is fixed.
pub mod message {
    /// Ready/ReconcilerError: followed by the errors.
    pub const ERROR_SEEN: &str = "Error seen: ";
    /// Ready/InvalidConfiguration: followed by the refusals.
    pub const INVALID_CONFIGURATION: &str = "Refused by the API server as invalid: ";
    /// Ready/SandboxSuspended while a pod exists.
    pub const SANDBOX_IS_SUSPENDING: &str = "Sandbox is suspending";
    /// Ready/SandboxSuspended once no pod exists.
    pub const SANDBOX_IS_SUSPENDED: &str = "Sandbox is suspended";
    /// Ready and Finished, PodSucceeded.
    pub const POD_COMPLETED_SUCCESSFULLY: &str = "Pod completed successfully";
    /// Ready and Finished, PodFailed; followed by the pod's own reason and message, if it has any.
    pub const POD_FAILED: &str = "Pod failed";
    /// Ready/DependenciesNotReady: no pod.
    pub const POD_DOES_NOT_EXIST: &str = "Pod does not exist";
    /// Ready/DependenciesNotReady: followed by the phase.
    pub const POD_EXISTS_WITH_PHASE: &str = "Pod exists with phase: ";
    /// Ready/DependenciesNotReady: the pod runs, its readiness does not hold.
    pub const POD_IS_RUNNING_BUT_NOT_READY: &str = "Pod is Running but not Ready";
    /// Ready/DependenciesNotReady: the pod is ready, its address is missing.
    pub const POD_HAS_NO_IPS: &str = "Pod is Ready but has no podIPs yet";
    /// Ready/DependenciesReady.
    pub const POD_IS_READY: &str = "Pod is Ready";
    /// Follows the pod's part where a service is required and exists.
    pub const SERVICE_EXISTS: &str = "; Service Exists";
    /// Follows the pod's part where a service is required and is missing.
    pub const SERVICE_DOES_NOT_EXIST: &str = "; Service does not exist";
    /// Ready/SandboxExpired.
    pub const SANDBOX_HAS_EXPIRED: &str = "Sandbox has expired";
    /// Suspended/NotSuspended.
    pub const SANDBOX_IS_NOT_SUSPENDED: &str = "Sandbox is not suspended";
    /// Suspended/PodTerminated.
    pub const POD_HAS_BEEN_TERMINATED: &str = "Pod has been terminated. Sandbox is suspended";
    /// Suspended/PodTerminating.
    pub const POD_IS_TERMINATING: &str = "Pod is terminating. Sandbox is suspending";
    /// Suspended/PodNotOwned.
    pub const POD_IS_NOT_OWNED: &str = "Refused to delete pod because it is not owned by this sandbox";
}

/// The condition of this type.
pub fn find(conditions: &[Condition], type_: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.type_ == type_.as_str())
}

/// Whether the condition of this type is there and `True`.
pub fn is_true(conditions: &[Condition], type_: ConditionType) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == ConditionStatus::True.as_str())
}

/// A condition as a controller means it, before it is known when it last changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Which condition.
    pub type_: ConditionType,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// Why; never empty. Usually a [`Reason`], but mirrored conditions carry the reasons of others.
    pub reason: String,
    /// The same for a human.
    pub message: String,
}

impl Observation {
    /// An observation with one of our own reasons.
    pub fn new(
        type_: ConditionType,
        status: ConditionStatus,
        reason: Reason,
        message: impl Into<String>,
    ) -> Self {
        let mut message = message.into();
        if message.len() > LONGEST_MESSAGE {
            let mut end = LONGEST_MESSAGE - "…".len();
            while !message.is_char_boundary(end) {
                end -= 1;
            }
            message.truncate(end);
            message.push('…');
        }
        Self { type_, status, reason: reason.into(), message }
    }
}

/// The schema takes no longer message, and a status that is refused says nothing at all.
const LONGEST_MESSAGE: usize = 32_768;

/// Puts an observation into the condition list of the object with this metadata. `lastTransitionTime` moves only when
/// the status does; reason, message and generation are always refreshed. The order of the list is kept, a new condition
/// goes to its end.
pub fn set(conditions: &mut Vec<Condition>, observation: Observation, object: &ObjectMeta, now: &Time) {
    let Observation { type_, status, reason, message } = observation;
    let known = conditions.iter().find(|condition| condition.type_ == type_.as_str());
    let last_transition_time = match known {
        Some(known) if known.status == status.as_str() => known.last_transition_time.clone(),
        _ => now.clone(),
    };
    let condition = Condition {
        type_: type_.into(),
        status: status.into(),
        reason,
        message,
        observed_generation: None,
        last_transition_time,
    };
    put(conditions, condition, object);
}

/// Copies a condition of another object into the list of the object with this metadata: word for word, but about this
/// object's generation, and from no time before this object existed.
pub fn copy(conditions: &mut Vec<Condition>, condition: &Condition, object: &ObjectMeta) {
    put(conditions, condition.clone(), object);
}

/// Says of every condition of ours that is kept as it is that it holds for the object's present generation.
pub fn reaffirm(conditions: &mut [Condition], object: &ObjectMeta) {
    let of_ours = |condition: &&mut Condition| ConditionType::parse(&condition.type_).is_some();
    for condition in conditions.iter_mut().filter(of_ours) {
        condition.observed_generation = object.generation;
    }
}

/// Stores a condition. Nothing about an object has changed before its creation, even if a waiting sandbox was ready long
/// before the claim that it serves, or if the server's clock, which says when the object was created, is ahead of ours.
fn put(conditions: &mut Vec<Condition>, mut condition: Condition, object: &ObjectMeta) {
    condition.observed_generation = object.generation;
    if let Some(created) = &object.creation_timestamp {
        condition.last_transition_time.0 = condition.last_transition_time.0.max(created.0);
    }
    match conditions.iter_mut().find(|present| present.type_ == condition.type_) {
        Some(present) => *present = condition,
        None => conditions.push(condition),
    }
}

/// Takes the condition of this type out of the list, if it is there.
pub fn remove(conditions: &mut Vec<Condition>, type_: ConditionType) {
    conditions.retain(|condition| condition.type_ != type_.as_str());
}

#[cfg(test)]
mod tests {
    use super::{
        ConditionStatus, ConditionType, EventReason, Observation, Reason, copy, find, is_true, message,
        reaffirm, remove, set,
    };
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
    use k8s_openapi::jiff::Timestamp;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    fn object(generation: i64, created: i64) -> ObjectMeta {
        let creation_timestamp = Some(at(created));
        ObjectMeta { generation: Some(generation), creation_timestamp, ..ObjectMeta::default() }
    }

    #[test]
    fn a_condition_changed_at_no_time_before_its_object_existed() {
        let ready = || {
            let (type_, status) = (ConditionType::Ready, ConditionStatus::True);
            Observation::new(type_, status, Reason::DependenciesReady, message::POD_IS_READY)
        };
        let (mut sandbox, mut claim) = (Vec::new(), Vec::new());
        set(&mut sandbox, ready(), &object(3, 10), &at(9));
        assert_eq!(sandbox[0].last_transition_time, at(10), "our clock is behind the server's");
        copy(&mut claim, &sandbox[0], &object(1, 20));
        assert_eq!(claim[0].last_transition_time, at(20), "the sandbox had waited for the claim");
        assert_eq!(claim[0].observed_generation, Some(1));
        sandbox[0].last_transition_time = at(30);
        copy(&mut claim, &sandbox[0], &object(2, 20));
        assert_eq!((&claim[0].last_transition_time, claim[0].observed_generation), (&at(30), Some(2)));
        reaffirm(&mut claim, &object(5, 20));
        assert_eq!(claim[0].observed_generation, Some(5));
    }

    #[test]
    fn a_message_is_no_longer_than_the_schema_takes() {
        let told = |text: String| {
            Observation::new(ConditionType::Ready, ConditionStatus::False, Reason::ReconcilerError, text)
                .message
        };
        assert_eq!(told("ä".repeat(16_384)).len(), 32_768);
        let long = told("ä".repeat(20_000));
        assert!(long.len() <= 32_768 && long.ends_with("ä…"), "{}", long.len());
    }

    #[test]
    fn transition_time_moves_with_the_status_only() {
        let mut conditions = Vec::new();
        let waiting =
            |reason, text: &str| Observation::new(ConditionType::Ready, ConditionStatus::False, reason, text);
        set(
            &mut conditions,
            waiting(Reason::DependenciesNotReady, message::POD_DOES_NOT_EXIST),
            &object(1, 0),
            &at(10),
        );
        set(&mut conditions, waiting(Reason::PodFailed, message::POD_FAILED), &object(2, 0), &at(20));
        let ready = find(&conditions, ConditionType::Ready).unwrap();
        assert_eq!(
            (ready.reason.as_str(), ready.observed_generation, &ready.last_transition_time),
            ("PodFailed", Some(2), &at(10))
        );

        let up = Observation::new(
            ConditionType::Ready,
            ConditionStatus::True,
            Reason::DependenciesReady,
            message::POD_IS_READY,
        );
        set(&mut conditions, up, &object(2, 0), &at(30));
        assert!(is_true(&conditions, ConditionType::Ready));
        assert_eq!(find(&conditions, ConditionType::Ready).unwrap().last_transition_time, at(30));

        remove(&mut conditions, ConditionType::Ready);
        assert!(conditions.is_empty());
    }

    #[test]
    fn words_are_unique_and_parse_back() {
        for reason in Reason::ALL {
            assert_eq!(Reason::parse(reason.as_str()), Some(*reason));
            assert_eq!(format!("{reason:?}"), reason.as_str(), "a reason is spelled like its variant");
        }
        for reason in EventReason::ALL {
            assert_eq!(EventReason::parse(reason.as_str()), Some(*reason));
        }
        assert_eq!(Reason::parse("Unschedulable"), None);
    }
}
