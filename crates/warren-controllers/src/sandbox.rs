//! The Sandbox controller: a pod, its volumes and its service for every sandbox.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use warren_api::conditions::{self, ConditionType, ReportingController};
use warren_api::{Sandbox, annotations, labels};
use warren_decide::ownership;
use warren_decide::sandbox::{Settings, World, claim_name, conclude, decide};
use warren_decide::step::{Action, Failure, FailureKind, Step};

use crate::cache::{Change, Index};
use crate::cluster::Cluster;
use crate::events::Recorder;
use crate::queue::{ObjectKey, Outcome, WorkQueue};
use crate::telemetry::{self, SandboxSpans, Tracer};
use crate::wake::Sides;

const MANAGER: &str = "sandbox-controller";

/// The most rounds of writes in one reconcile. One try and one conflict (another object of the
/// name, a stale cache) are ordinary; more are left to another reconcile.
const ATTEMPTS: usize = 3;

/// The repeated delay of a status that changes only its generation, while claims leave little room.
const POSTPONED: Duration = Duration::from_secs(1);
/// The longest total delay.
const LONGEST_POSTPONED: Duration = Duration::from_secs(30);

/// Reconciles sandboxes.
pub(crate) struct SandboxController {
    pub(crate) cluster: Cluster,
    pub(crate) recorder: Recorder,
    pub(crate) settings: Settings,
    pub(crate) tracer: Tracer,
    /// Sandboxes whose status is delayed, and since when.
    pub(crate) postponed: Mutex<HashMap<ObjectKey, Duration>>,
}

impl SandboxController {
    pub(crate) async fn reconcile(&self, key: ObjectKey) -> Outcome {
        let mut deleted = HashSet::new();
        let mut failed: Vec<Failure> = Vec::new();
        let mut attempts = 0;
        let mut spans = self.begin_spans(&key).await;
        // The status must be about the same observation as the decision, so this repeats until a
        // decision contains no new steps.
        let (world, failures) = loop {
            let Some(world) = self.observe(&key) else {
                self.is_postponed(&key, false);
                return Outcome::Gone;
            };
            let mut plan = decide(&world, self.cluster.now());
            // A completed deletion may not have reached the cache yet.
            plan.steps.retain(|step| deletion(step).is_none_or(|uid| !deleted.contains(uid)));
            let conflicted = !failed.is_empty() && failed.iter().all(is_surprise);
            if plan.steps.is_empty() {
                // All conflicts are resolved.
                failed.retain(|failure| !is_surprise(failure));
            }
            if plan.steps.is_empty() || attempts == ATTEMPTS || !(failed.is_empty() || conflicted) {
                plan.problems.append(&mut failed);
                break (world, plan.problems);
            }
            match self.cluster.is_still_asked_for(&*world.sandbox, &plan.steps).await {
                Ok(true) => {}
                Ok(false) => continue,
                Err(failure) => {
                    plan.problems.push(failure);
                    break (world, plan.problems);
                }
            }
            deleted.extend(plan.steps.iter().filter_map(deletion).map(str::to_owned));
            failed = spans.apply(&self.cluster, &key.namespace, MANAGER, plan.steps).await;
            attempts += 1;
        };
        spans.observe(&world);
        let conclusion = conclude(&world, &failures, &self.settings, self.cluster.now());
        if self.is_postponed(&key, conclusion.is_of_generation_only) {
            return Outcome::NotNow(conclusion.look_again.map_or(POSTPONED, |due| due.min(POSTPONED)));
        }
        for failure in &failures {
            tracing::warn!(sandbox = %key, problem = %failure.message, "sandbox has a problem");
        }
        let unpublished = self.cluster.apply(&key.namespace, MANAGER, conclusion.steps).await;
        for failure in &unpublished {
            tracing::warn!(sandbox = %key, problem = %failure.message, "status was not published");
        }
        if unpublished.is_empty() {
            for note in conclusion.notes {
                self.recorder.record(ReportingController::Sandbox, &*world.sandbox, note);
            }
        }
        Outcome::of(conclusion.look_again, conclusion.retry || !unpublished.is_empty())
    }

    /// Returns true if a status that can wait is delayed.
    fn is_postponed(&self, key: &ObjectKey, can_wait: bool) -> bool {
        // A panic elsewhere leaves the map valid: every change of it is one insertion or removal.
        let mut postponed = self.postponed.lock().unwrap_or_else(PoisonError::into_inner);
        if can_wait && self.cluster.write_limiter.is_saturated() {
            let uptime = self.cluster.uptime();
            let since = *postponed.entry(key.clone()).or_insert(uptime);
            if uptime.saturating_sub(since) < LONGEST_POSTPONED {
                return true;
            }
        }
        postponed.remove(key);
        false
    }

    /// Begins the spans of a reconcile. The sandbox carries their context from here on.
    async fn begin_spans(&self, key: &ObjectKey) -> SandboxSpans {
        if !self.tracer.is_on() {
            return SandboxSpans::default();
        }
        let Some(world) = self.observe(key) else { return SandboxSpans::default() };
        let spans = SandboxSpans::begin(&self.tracer, &world);
        telemetry::stamp(&self.cluster, &key.namespace, MANAGER, spans.stamp(&world)).await;
        spans
    }

    /// Returns the cached state of a sandbox and its children; `None` once it is gone.
    fn observe(&self, key: &ObjectKey) -> Option<World> {
        let sandbox = self.cluster.sandboxes.get(key)?;
        let uid = sandbox.metadata.uid.clone().unwrap_or_default();
        let mut pods = self.cluster.pods.find(&Index::Controller(key.namespace.clone(), uid));
        let annotated = ownership::annotation(&sandbox.metadata, annotations::POD_NAME);
        for name in annotated.into_iter().chain([key.name.as_str()]) {
            let named = ObjectKey { namespace: key.namespace.clone(), name: name.to_owned() };
            if !pods.iter().any(|pod| pod.metadata.name.as_deref() == Some(name)) {
                pods.extend(self.cluster.pods.get(&named));
            }
        }
        let templates = &sandbox.spec.blueprint.volume_claim_templates;
        let volume_claims = templates.iter().filter_map(|template| {
            let name = claim_name(template, &key.name);
            self.cluster.volume_claims.get(&ObjectKey { namespace: key.namespace.clone(), name })
        });
        Some(World {
            pods,
            service: self.cluster.services.get(key),
            volume_claims: volume_claims.collect(),
            sandbox,
        })
    }
}

fn deletion(step: &Step) -> Option<&str> {
    match &step.action {
        Action::Delete { uid, .. } => Some(uid),
        _ => None,
    }
}

/// Returns true if the cluster differed from the caches, so that a new decision helps.
fn is_surprise(failure: &Failure) -> bool {
    matches!(failure.kind, FailureKind::AlreadyExists | FailureKind::Conflict | FailureKind::NotFound)
}

/// Returns true if the only change of a ready sandbox is that a claim adopted it, and none of its
/// reconcile is urgent. A sandbox whose volumes are to be kept is urgent: the claim may be deleted
/// at once.
pub(crate) fn is_handed_over(change: &Change<'_, Sandbox>) -> bool {
    let (Some(before), Some(after)) = (change.before, change.after) else { return false };
    let keeps_volumes = ownership::annotation(&after.metadata, annotations::PVC_RETENTION).is_some()
        && !after.spec.blueprint.volume_claim_templates.is_empty();
    !keeps_volumes
        && ownership::is_pooled(&before.metadata)
        && ownership::is_claimed(&after.metadata)
        && after.metadata.deletion_timestamp.is_none()
        && before.spec.operating_mode == after.spec.operating_mode
        && before.spec.shutdown_time == after.spec.shutdown_time
        && before.status == after.status
        && after
            .status
            .as_ref()
            .is_some_and(|status| conditions::is_true(&status.conditions, ConditionType::Ready))
}

/// Wakes the sandbox with the name of a pod or service that is not its own: it may have begun or
/// ceased to conflict.
pub(crate) fn wake_by_name(cluster: &Cluster, queue: &WorkQueue, key: &ObjectKey, sides: Sides<'_>) {
    let is_own = |owner: &OwnerReference| owner.name == key.name && ownership::is_kind::<Sandbox>(owner);
    if !sides.all_controlled(is_own) && cluster.sandboxes.holds(key) {
        queue.add(key.clone());
    }
}

/// Wakes the sandbox that controls a changed child, if the child carries the tracking label.
pub(crate) fn wake_by_child(queue: &WorkQueue, sides: Sides<'_>) {
    if sides.has_label(labels::SANDBOX_NAME_HASH) {
        sides.owners(ownership::is_kind::<Sandbox>).for_each(|owner| queue.add(owner));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use warren_api::Sandbox;

    use super::is_handed_over;
    use crate::cache::Change;
    use crate::queue::ObjectKey;

    fn sandbox(owner: &str, ready: &str, mode: &str) -> Value {
        json!({
            "metadata": {"name": "a", "ownerReferences": [{
                "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": owner,
                "name": "o", "uid": "u", "controller": true,
            }]},
            "spec": {"operatingMode": mode, "podTemplate": {"spec": {"containers": []}}},
            "status": {"conditions": [{
                "type": "Ready", "status": ready, "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        })
    }

    fn is_handed(before: Option<Value>, after: Option<Value>) -> bool {
        let read = |value: Value| Arc::new(serde_json::from_value::<Sandbox>(value).unwrap());
        let (before, after) = (before.map(read), after.map(read));
        let key = ObjectKey { namespace: "default".to_owned(), name: "a".to_owned() };
        is_handed_over(&Change { key: &key, before: before.as_ref(), after: after.as_ref() })
    }

    #[test]
    fn only_a_ready_sandbox_that_goes_from_its_pool_to_a_claim_is_handed_over() {
        let pooled = || Some(sandbox("SandboxWarmPool", "True", "Running"));
        let claimed = || Some(sandbox("SandboxClaim", "True", "Running"));
        assert!(is_handed(pooled(), claimed()));
        assert!(!is_handed(claimed(), claimed()), "it has been for long");
        assert!(!is_handed(None, claimed()) && !is_handed(pooled(), None));
        let suspended = sandbox("SandboxClaim", "True", "Suspended");
        assert!(!is_handed(pooled(), Some(suspended)), "its mode has changed as well");
        let starting = |owner: &str| Some(sandbox(owner, "False", "Running"));
        assert!(!is_handed(starting("SandboxWarmPool"), starting("SandboxClaim")), "it is not ready");
        let mut dying = sandbox("SandboxClaim", "True", "Running");
        dying["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(!is_handed(pooled(), Some(dying)));
    }

    #[test]
    fn volumes_that_are_to_be_kept_are_let_go_at_once() {
        let with = |owner: &str, retention: Option<&str>| {
            let mut sandbox = sandbox(owner, "True", "Running");
            sandbox["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}, "spec": {}}]);
            if let Some(retention) = retention {
                sandbox["metadata"]["annotations"] = json!({"warren.dev/pvc-retention": retention});
            }
            Some(sandbox)
        };
        let pooled = || with("SandboxWarmPool", None);
        assert!(is_handed(pooled(), with("SandboxClaim", None)));
        assert!(!is_handed(pooled(), with("SandboxClaim", Some("Retain"))));
    }
}
