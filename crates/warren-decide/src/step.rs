//! Defines the parts of a plan. A [`Step`] is one write to the API server, as plain data: an
//! executor carries it out without making choices, a simulation applies it to its own store, a test
//! prints it.

use std::fmt;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;
use warren_api::conditions::{EventAction, EventReason};
use warren_api::{Sandbox, SandboxClaim};

use crate::bounded::{LONGEST_NOTE, bounded};

/// The kinds that our controllers write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `agents.x-k8s.io` Sandbox.
    Sandbox,
    /// `extensions.agents.x-k8s.io` SandboxTemplate.
    SandboxTemplate,
    /// `extensions.agents.x-k8s.io` SandboxClaim.
    SandboxClaim,
    /// `extensions.agents.x-k8s.io` SandboxWarmPool.
    SandboxWarmPool,
    /// Core Pod.
    Pod,
    /// Core Service.
    Service,
    /// Core PersistentVolumeClaim.
    PersistentVolumeClaim,
    /// `networking.k8s.io` NetworkPolicy.
    NetworkPolicy,
    /// `warren.dev` AgentTask.
    AgentTask,
}

/// A whole object to create.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant is the kind of its own name")]
pub enum Object {
    Sandbox(Box<Sandbox>),
    SandboxClaim(Box<SandboxClaim>),
    Pod(Box<Pod>),
    Service(Box<Service>),
    PersistentVolumeClaim(Box<PersistentVolumeClaim>),
    NetworkPolicy(Box<NetworkPolicy>),
}

/// A group of steps that depend on each other: after a failure the rest of the stage is skipped.
/// Stages are independent, and the next one is still carried out: a broken volume must not prevent
/// the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// PersistentVolumeClaims of a sandbox.
    Volumes,
    /// The pod of a sandbox.
    Pod,
    /// The service of a sandbox.
    Service,
    /// The object that is being reconciled, or the only write of a plan.
    Subject,
    /// The members of a pool: they are independent, so nothing is skipped.
    Members,
    /// Remains of an older controller on a claim.
    Legacy,
}

/// The propagation of a deletion to owned objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// The object goes at once, its dependents follow.
    Background,
    /// The object stays, marked as deleting, until its dependents are gone.
    Foreground,
}

/// A write.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Create the object. If it exists already, the executor reads it and asks for a new decision.
    Create(Object),
    /// JSON merge patch of everything but the status. With `metadata.resourceVersion` in the body,
    /// the server refuses it if the object has changed.
    Merge {
        /// The object's kind.
        kind: Kind,
        /// Its name, in the namespace of the object being reconciled.
        name: String,
        /// The merge patch.
        body: Value,
    },
    /// JSON merge patch of the status. Not-found is a success: a deleted object needs no status.
    MergeStatus {
        /// The object's kind.
        kind: Kind,
        /// Its name.
        name: String,
        /// The merge patch: `{"status": …}`.
        body: Value,
    },
    /// Delete the object if it still has this uid, and this version if one is given. Not-found is a
    /// success.
    Delete {
        /// The object's kind.
        kind: Kind,
        /// Its name.
        name: String,
        /// The observed uid, as a precondition.
        uid: String,
        /// The observed version, as a precondition, where the reason to delete may have ended
        /// since: a warm sandbox may have been claimed, a deadline extended.
        version: Option<String>,
        /// Foreground or background.
        propagation: Propagation,
    },
}

/// One write and the stage that it belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The stage that is skipped when this fails.
    pub stage: Stage,
    /// The write.
    pub action: Action,
}

impl Step {
    /// Creates a step of a stage.
    #[must_use]
    pub fn new(stage: Stage, action: Action) -> Self {
        Self { stage, action }
    }
}

/// The kind of a failure, as far as decisions depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The object to be created exists already.
    AlreadyExists,
    /// The object has changed since it was observed.
    Conflict,
    /// The object to be patched does not exist.
    NotFound,
    /// The server refused: nothing was written.
    Refused,
    /// The server refused the object as invalid: nothing was written, and the same object will be
    /// refused again.
    Invalid,
    /// There was no clear answer: it may have been written.
    Unknown,
}

/// A failed step, or a problem that a decision found before any step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The stage that it stopped.
    pub stage: Stage,
    /// The kind of failure.
    pub kind: FailureKind,
    /// The text for a condition.
    pub message: String,
}

impl Failure {
    /// Creates a failure for a problem that was found before any step.
    #[must_use]
    pub fn found(stage: Stage, message: impl Into<String>) -> Self {
        Self { stage, kind: FailureKind::Refused, message: message.into() }
    }

    /// Returns true if a retry of the same step is useless.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.kind == FailureKind::Invalid
    }
}

/// The severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// `type: Normal`.
    Normal,
    /// `type: Warning`.
    Warning,
}

/// An event to record about the object being reconciled (events.k8s.io/v1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Normal or Warning.
    pub severity: Severity,
    /// CamelCase reason.
    pub reason: &'static str,
    /// The controller's activity.
    pub action: &'static str,
    /// The readable text.
    pub text: String,
}

impl Note {
    /// Creates the event of a stored object that cannot be parsed.
    #[must_use]
    pub fn unreadable(error: &str) -> Self {
        let text = format!("cannot be read, so that nothing is done about it: {error}");
        Self {
            severity: Severity::Warning,
            reason: EventReason::Unreadable.as_str(),
            action: EventAction::Reconciling.as_str(),
            text: bounded(&text, LONGEST_NOTE).into_owned(),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}

impl Object {
    /// Returns the kind of the object.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Object::Sandbox(_) => Kind::Sandbox,
            Object::SandboxClaim(_) => Kind::SandboxClaim,
            Object::Pod(_) => Kind::Pod,
            Object::Service(_) => Kind::Service,
            Object::PersistentVolumeClaim(_) => Kind::PersistentVolumeClaim,
            Object::NetworkPolicy(_) => Kind::NetworkPolicy,
        }
    }

    /// Returns the object's metadata.
    #[must_use]
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Object::Sandbox(object) => &object.metadata,
            Object::SandboxClaim(object) => &object.metadata,
            Object::Pod(object) => &object.metadata,
            Object::Service(object) => &object.metadata,
            Object::PersistentVolumeClaim(object) => &object.metadata,
            Object::NetworkPolicy(object) => &object.metadata,
        }
    }

    /// Returns the object's name, or the prefix from which the server makes one.
    #[must_use]
    pub fn name(&self) -> &str {
        let metadata = self.metadata();
        metadata.name.as_deref().or(metadata.generate_name.as_deref()).unwrap_or_default()
    }
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Create(object) => write!(formatter, "create {} {}", object.kind(), object.name()),
            Action::Merge { kind, name, body } => write!(formatter, "patch {kind} {name} {body}"),
            Action::MergeStatus { kind, name, body } => {
                write!(formatter, "patch {kind}/status {name} {body}")
            }
            Action::Delete { kind, name, propagation: Propagation::Background, .. } => {
                write!(formatter, "delete {kind} {name}")
            }
            Action::Delete { kind, name, propagation: Propagation::Foreground, .. } => {
                write!(formatter, "delete {kind} {name} in the foreground")
            }
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?} {} ({}): {}", self.severity, self.reason, self.action, self.text)
    }
}
