//! Decides about a Sandbox: makes its volume claims, its pod and its service, in that order, and
//! publishes its status.
//!
//! A reconcile has two halves. [`decide`] plans the writes for the children. After they have been
//! tried, [`conclude`] reads the world again, with the failures, and plans the status. Both depend
//! on state alone. If a reconcile dies between two writes, another one finishes the work.

mod drift;
mod expiry;
mod pod;
mod service;
mod status;
#[cfg(test)]
mod tests;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;
use warren_api::Sandbox;

pub use pod::PodView;
pub use volumes::claim_name;

use crate::step::{Action, Failure, FailureKind, Kind, Note, Stage, Step};
use crate::{merge, ownership, propagation};

/// The observed state of one sandbox and its children, perhaps slightly stale.
#[derive(Clone, Debug)]
pub struct World {
    /// The sandbox.
    pub sandbox: Arc<Sandbox>,
    /// The relevant pods: those that the sandbox controls, the one that its annotation names and
    /// the one that has its name.
    pub pods: Vec<Arc<Pod>>,
    /// The service that has the sandbox's name.
    pub service: Option<Arc<Service>>,
    /// The volume claims that have the names of the sandbox's own.
    pub volume_claims: Vec<Arc<PersistentVolumeClaim>>,
}

/// Settings that decisions about sandboxes depend on.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The suffix of `status.serviceFQDN`.
    pub cluster_domain: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self { cluster_domain: "cluster.local".to_owned() }
    }
}

/// The first half of a reconcile: the writes for the children.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Writes, in order.
    pub steps: Vec<Step>,
    /// Problems that were found before any write.
    pub problems: Vec<Failure>,
}

/// The second half of a reconcile: the status and the next wake-up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conclusion {
    /// The status write, or the deletion of an expired sandbox; empty if nothing changed.
    pub steps: Vec<Step>,
    /// Events to record.
    pub notes: Vec<Note>,
    /// The delay of the next reconcile if no event wakes the sandbox.
    pub look_again: Option<Duration>,
    /// True if the reconcile failed and is to be retried with backoff.
    pub retry: bool,
    /// True if only the status's generation changed. Such a write can wait if others are more
    /// urgent.
    pub is_of_generation_only: bool,
}

/// Plans the writes for a sandbox's children.
#[must_use]
pub fn decide(world: &World, now: Timestamp) -> Plan {
    if world.is_deleting() {
        return Plan::default();
    }
    if expiry::is_expired(&world.sandbox, now) {
        return expiry::children(world);
    }
    let mut plan = Plan::default();
    volumes::plan(world, &mut plan);
    let view = pod::view(world);
    pod::plan(world, &view, &mut plan);
    if !matches!(view, PodView::Multiple(_)) {
        service::plan(world, &mut plan);
    }
    // The server would refuse the same spec again as invalid, so only deletions are carried out
    // until the spec changes.
    let asks = |step: &Step| !matches!(step.action, Action::Delete { .. });
    if let Some(refusal) = status::standing_refusal(&world.sandbox).filter(|_| plan.steps.iter().any(asks)) {
        plan.steps.retain(|step| !asks(step));
        let message = refusal.to_owned();
        plan.problems.push(Failure { stage: Stage::Subject, kind: FailureKind::Invalid, message });
    }
    plan
}

/// Plans the status after the children's writes were tried. `failures` are the plan's own problems
/// and the failed steps.
#[must_use]
pub fn conclude(world: &World, failures: &[Failure], settings: &Settings, now: Timestamp) -> Conclusion {
    if world.is_deleting() {
        return Conclusion::default();
    }
    if expiry::is_expired(&world.sandbox, now) {
        return expiry::conclude(world, failures, now);
    }
    let status = status::observe(world, failures, settings, now);
    let notes = status::notes(world, &status);
    let quiet = status::quiet_for(world, &status, now);
    let steps = status::write(world, &status).filter(|_| quiet.is_none()).into_iter().collect();
    let multiple = matches!(pod::view(world), PodView::Multiple(_));
    Conclusion {
        steps,
        notes,
        look_again: quiet.into_iter().chain(expiry::look_again(&world.sandbox, now)).min(),
        retry: failures.iter().any(|failure| !failure.is_final()) && !multiple,
        is_of_generation_only: failures.is_empty() && status::is_of_generation_only(world, &status),
    }
}

impl World {
    fn name(&self) -> &str {
        self.sandbox.metadata.name.as_deref().unwrap_or_default()
    }

    fn uid(&self) -> &str {
        self.sandbox.metadata.uid.as_deref().unwrap_or_default()
    }

    fn tracking_hash(&self) -> String {
        propagation::tracking_hash(&self.sandbox)
    }

    fn is_deleting(&self) -> bool {
        self.sandbox.metadata.deletion_timestamp.is_some()
    }

    /// Returns the patch that makes the sandbox the controller of an unowned child, together with
    /// `body`. It is guarded: the child must still be unowned when the patch arrives.
    fn adopt(&self, kind: Kind, child: &ObjectMeta, mut body: Value) -> Action {
        let mut references = child.owner_references.clone().unwrap_or_default();
        references.push(ownership::reference_to(&*self.sandbox));
        merge::set(&mut body, &["metadata", "ownerReferences"], merge::json(&references));
        merge::set(&mut body, &["metadata", "resourceVersion"], merge::json(&child.resource_version));
        Action::Merge { kind, name: child.name.clone().unwrap_or_default(), body }
    }
}
