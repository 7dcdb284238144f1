//! Condition types, reasons, messages and events: the vocabulary of objects' statuses.
//!
//! Users and published clients match on these strings, so they are defined once, here. [`set`] and
//! [`find`] implement the standard semantics of a condition list.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};

use crate::words::words;

words! {
    /// The `type` of a condition.
    pub enum ConditionType {
        /// The sandbox, or the claim's sandbox, can be used. Always present.
        Ready = "Ready",
        /// The sandbox has no pod because it is suspended. Always present on a Sandbox.
        Suspended = "Suspended",
        /// A copy of the pod's own condition. Present while the sandbox owns a pod.
        PodScheduled = "PodScheduled",
        /// The pod has ended by itself. Present only then, and kept through expiry. On a claim
        /// also: it ended without a sandbox, because its deadline has passed.
        Finished = "Finished",
        /// Warren's own, on a Sandbox: its pod was made from an earlier pod template. Present only
        /// then.
        PodOutdated = "warren.dev/PodOutdated",
        /// Warren's own, on a Sandbox and its claim: a container of its pod cannot start. Present
        /// only then.
        PodWaiting = "warren.dev/PodWaiting",
        /// Warren's own, on a claim: one of its annotations is invalid and is ignored. Present only
        /// then.
        InvalidAnnotation = "warren.dev/InvalidAnnotation",
        /// On a task: it could be started.
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
        /// The condition holds.
        True = "True",
        /// The condition does not hold.
        False = "False",
        /// It is not known if the condition holds.
        Unknown = "Unknown",
    }
}

words! {
    /// The `reason` of a condition.
    pub enum Reason {
        /// Ready: an error with a volume claim, pod or service stopped this pass.
        ReconcilerError = "ReconcilerError",
        /// Ready, of a sandbox and of a claim: the API server refuses a required object as invalid.
        /// There is no retry until the spec changes. Clients treat it as final.
        InvalidConfiguration = "InvalidConfiguration",
        /// Ready: more than one pod is controlled by this sandbox.
        MultiplePods = "MultiplePods",
        /// Ready: the sandbox is to be suspended.
        SandboxSuspended = "SandboxSuspended",
        /// Ready, Finished: the pod succeeded.
        PodSucceeded = "PodSucceeded",
        /// Ready, Finished: the pod failed.
        PodFailed = "PodFailed",
        /// Ready: the pod or the service does not exist yet, or is not ready.
        DependenciesNotReady = "DependenciesNotReady",
        /// Ready: the pod is ready, and so is the service if required.
        DependenciesReady = "DependenciesReady",
        /// Ready, on the sandbox and its claim: its shutdown time has passed.
        SandboxExpired = "SandboxExpired",
        /// Suspended: the sandbox is to run.
        NotSuspended = "NotSuspended",
        /// Suspended: the pod is gone.
        PodTerminated = "PodTerminated",
        /// Suspended: the pod is being deleted.
        PodTerminating = "PodTerminating",
        /// Suspended: the pod has another owner and is left alone.
        PodNotOwned = "PodNotOwned",
        /// Suspended: the pod could not be looked up.
        PodStateUnknown = "PodStateUnknown",
        /// Suspended, in older objects only.
        PodNotTerminated = "PodNotTerminated",
        /// PodScheduled: the pod is scheduled and gave no reason of its own.
        PodScheduled = "PodScheduled",
        /// PodScheduled: the pod has no such condition, or could not be looked up.
        PodSchedulingUnknown = "PodSchedulingUnknown",
        /// Claim Ready: the pool's template does not exist.
        TemplateNotFound = "TemplateNotFound",
        /// Claim Ready: the pool does not exist.
        WarmPoolNotFound = "WarmPoolNotFound",
        /// Claim Ready: other claims took the same waiting sandboxes.
        AdoptionConflict = "AdoptionConflict",
        /// Claim Ready: a sandbox of that name was just created, perhaps by us.
        SandboxCreatePending = "SandboxCreatePending",
        /// Claim Ready: the additional pod metadata is not allowed.
        InvalidMetadata = "InvalidMetadata",
        /// Claim Ready: the template does not allow the environment variables.
        EnvVarsInjectionRejected = "EnvVarsInjectionRejected",
        /// Claim Ready: the template does not allow the volume claim templates, or they are not
        /// valid.
        VolumeClaimTemplatesError = "VolumeClaimTemplatesError",
        /// Claim Ready: the claim has expired.
        ClaimExpired = "ClaimExpired",
        /// Claim Ready: the sandbox is gone.
        SandboxMissing = "SandboxMissing",
        /// Claim Ready: the sandbox has no Ready condition yet.
        SandboxNotReady = "SandboxNotReady",
        /// Claim Finished: the claim was not Ready by its deadline. Its Ready condition has the
        /// reason `ClaimExpired`, which published clients treat as final.
        DeadlineExceeded = "DeadlineExceeded",
        /// PodOutdated: the pod template was edited after the pod was made.
        PodTemplateChanged = "PodTemplateChanged",
        /// PodWaiting: the container gives no reason of its own.
        ContainerWaiting = "ContainerWaiting",
        /// InvalidAnnotation: the value is ignored.
        ValueIgnored = "ValueIgnored",
        /// Progressing of a pool: members of the current template are being created.
        Updating = "Updating",
        /// Progressing of a pool: the rollout only waits for claims to take the outdated members.
        WaitingForClaims = "WaitingForClaims",
        /// Progressing of a pool: it has been full of ready members of the current template.
        Complete = "Complete",
        /// Progressing of a pool: no member has become ready for too long.
        ProgressDeadlineExceeded = "ProgressDeadlineExceeded",
        /// Accepted of a task: its first sandbox was created.
        TaskAccepted = "TaskAccepted",
        /// Running of a task: its sandbox is being created.
        Starting = "Starting",
        /// Running of a task: an attempt has failed, and the next sandbox is being created.
        Retrying = "Retrying",
        /// Running of a task: its command runs.
        CommandRunning = "CommandRunning",
        /// Running of a task: the task has ended.
        TaskEnded = "TaskEnded",
        /// Succeeded of a task: the command ended with exit code 0.
        CommandSucceeded = "CommandSucceeded",
        /// Failed of a task: the kernel killed the command because it reached its memory limit.
        OOM = "OOM",
        /// Failed of a task: it exceeded its timeout.
        Timeout = "Timeout",
        /// Failed of a task: the command ended with an exit code other than 0.
        Application = "Application",
        /// Failed of a task: the node evicted the sandbox.
        Evicted = "Evicted",
        /// Failed of a task: the node was lost, or lost track of the command.
        NodeLost = "NodeLost",
        /// Failed of a task: it was cancelled.
        Cancelled = "Cancelled",
        /// Accepted and Failed of a task: its spec cannot run.
        Invalid = "Invalid",
        /// Failed of a task: the command's end is not known, or the sandbox was deleted while it
        /// ran.
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
        /// Claim, Normal: a sandbox was created for it.
        SandboxProvisioned = "SandboxProvisioned",
        /// Pool, Warning: members cannot be scheduled.
        WarmPoolNotProgressing = "WarmPoolNotProgressing",
        /// Pool, Normal: members can be scheduled again.
        WarmPoolProgressing = "WarmPoolProgressing",
        /// Sandbox and template, Warning: a required object could not be reconciled.
        ReconcilerError = "ReconcilerError",
        /// Sandbox, claim and template, Warning: the API server refuses a required object as
        /// invalid.
        InvalidConfiguration = "InvalidConfiguration",
        /// Sandbox, Warning: its pod has failed. The note has the cause.
        PodFailed = "PodFailed",
        /// Pool, Warning: a member could not be created.
        FailedCreate = "FailedCreate",
        /// Claim, Warning: it was not Ready by its deadline.
        DeadlineExceeded = "DeadlineExceeded",
        /// Claim and pool, Warning: an annotation is invalid and is ignored.
        InvalidAnnotation = "InvalidAnnotation",
        /// Any of our kinds, Warning: the stored object cannot be read, so it is left alone.
        Unreadable = "Unreadable",
        /// Task, Normal: it has succeeded.
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
        /// A sandbox was created for a claim.
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

/// The fixed `message`s of conditions.
pub mod message {
    /// Ready/ReconcilerError. The errors follow.
    pub const ERROR_SEEN: &str = "Error seen: ";
    /// Ready/InvalidConfiguration. The refusals follow.
    pub const INVALID_CONFIGURATION: &str = "Refused by the API server as invalid: ";
    /// Ready/SandboxSuspended while a pod exists.
    pub const SANDBOX_IS_SUSPENDING: &str = "Sandbox is suspending";
    /// Ready/SandboxSuspended once no pod exists.
    pub const SANDBOX_IS_SUSPENDED: &str = "Sandbox is suspended";
    /// Ready and Finished, PodSucceeded.
    pub const POD_COMPLETED_SUCCESSFULLY: &str = "Pod completed successfully";
    /// Ready and Finished, PodFailed. The pod's own reason and message follow, if any.
    pub const POD_FAILED: &str = "Pod failed";
    /// Ready/DependenciesNotReady: there is no pod.
    pub const POD_DOES_NOT_EXIST: &str = "Pod does not exist";
    /// Ready/DependenciesNotReady. The phase follows.
    pub const POD_EXISTS_WITH_PHASE: &str = "Pod exists with phase: ";
    /// Ready/DependenciesNotReady: the pod runs but is not ready.
    pub const POD_IS_RUNNING_BUT_NOT_READY: &str = "Pod is Running but not Ready";
    /// Ready/DependenciesNotReady: the pod is ready but has no address.
    pub const POD_HAS_NO_IPS: &str = "Pod is Ready but has no podIPs yet";
    /// Ready/DependenciesReady.
    pub const POD_IS_READY: &str = "Pod is Ready";
    /// Follows the pod's part if a service is required and exists.
    pub const SERVICE_EXISTS: &str = "; Service Exists";
    /// Follows the pod's part if a service is required but missing.
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

/// Returns the condition of this type.
pub fn find(conditions: &[Condition], type_: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.type_ == type_.as_str())
}

/// Returns true if the condition of this type exists and is `True`.
pub fn is_true(conditions: &[Condition], type_: ConditionType) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == ConditionStatus::True.as_str())
}

/// A condition without the time of its last change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The type of the condition.
    pub type_: ConditionType,
    /// The status.
    pub status: ConditionStatus,
    /// The reason, never empty. Usually a [`Reason`], but mirrored conditions have the reasons of
    /// others.
    pub reason: String,
    /// The message for people.
    pub message: String,
}

impl Observation {
    /// Creates an observation with one of our own reasons.
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

/// The maximum length of a message by the schema. A longer one would make the server refuse the
/// whole status.
const LONGEST_MESSAGE: usize = 32_768;

/// Sets an observation in the condition list of the object with this metadata. `lastTransitionTime`
/// changes only with the status. Reason, message and generation are always updated. The order of
/// the list is kept, and a new condition is appended.
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

/// Copies a condition of another object into the list of the object with this metadata. Its text
/// stays the same. Its generation becomes that of this object, and its time is not before this
/// object's creation.
pub fn copy(conditions: &mut Vec<Condition>, condition: &Condition, object: &ObjectMeta) {
    put(conditions, condition.clone(), object);
}

/// Updates the generation of all our conditions that are kept unchanged.
pub fn reaffirm(conditions: &mut [Condition], object: &ObjectMeta) {
    let of_ours = |condition: &&mut Condition| ConditionType::parse(&condition.type_).is_some();
    for condition in conditions.iter_mut().filter(of_ours) {
        condition.observed_generation = object.generation;
    }
}

/// Stores a condition. Its time is not before the object's creation, even if a waiting sandbox was
/// ready long before its claim, or if the server's clock, which sets the creation time, is ahead of
/// ours.
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

/// Removes the condition of this type, if it exists.
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
