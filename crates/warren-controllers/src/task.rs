//! The AgentTask controller: a sandbox for every attempt, and a verdict when the command has ended.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use warren_api::conditions::ReportingController;
use warren_api::{AgentTask, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, annotations};
use warren_decide::ownership;
use warren_decide::step::{FailureKind, Kind};
use warren_decide::task::{World, attempt_name, decide, is_over, next_name, template_name};

use crate::cache::{Change, Index, key_of};
use crate::cluster::{Cluster, creates};
use crate::events::Recorder;
use crate::queue::{ObjectKey, Outcome, WorkQueue};
use crate::wake::Sides;

/// The field manager of this controller's writes.
const MANAGER: &str = "agenttask-controller";

/// The most times that one pass looks. An attempt that failed takes the most: its sandbox, its pod
/// its pool and its template may have to be asked for, and the next sandbox may be there already.
const ATTEMPTS: usize = 7;

/// Reconciles tasks.
pub(crate) struct TaskController {
    cluster: Cluster,
    recorder: Recorder,
}

impl TaskController {
    pub(crate) fn new(cluster: Cluster, recorder: Recorder) -> Self {
        Self { cluster, recorder }
    }

    /// One pass over one task.
    pub(crate) async fn reconcile(&self, key: ObjectKey) -> Outcome {
        let mut confirmed = BTreeSet::new();
        let mut refused = None;
        for _ in 0..ATTEMPTS {
            let Some(world) = self.observe(&key, &confirmed, refused.clone()) else { return Outcome::Gone };
            let plan = decide(&world, self.cluster.now());
            if !plan.ask.is_empty() {
                for (kind, name) in plan.ask {
                    if let Err(refusal) = self.cluster.read(&key.namespace, kind, &name).await {
                        tracing::warn!(task = %key, %kind, name, problem = %refusal, "could not be asked for");
                        return Outcome::Retry;
                    }
                    confirmed.insert((kind, name));
                }
                continue;
            }
            match self.cluster.is_still_asked_for(&*world.task, &plan.steps).await {
                Ok(true) => {}
                Ok(false) => continue,
                Err(failure) => {
                    tracing::warn!(task = %key, problem = %failure.message, "task has a problem");
                    return Outcome::Retry;
                }
            }
            let makes_a_sandbox = creates(&plan.steps);
            let failures = self.cluster.apply(&key.namespace, MANAGER, plan.steps).await;
            if failures.is_empty() {
                for note in plan.notes {
                    self.recorder.record(ReportingController::AgentTask, &*world.task, note);
                }
                return Outcome::of(plan.look_again, false);
            }
            if let Some(refusal) =
                failures.iter().find(|failure| makes_a_sandbox && failure.kind == FailureKind::Invalid)
            {
                refused = Some(refusal.message.clone());
                continue;
            }
            let is_surprise = |kind| {
                matches!(kind, FailureKind::AlreadyExists | FailureKind::Conflict | FailureKind::NotFound)
            };
            if !failures.iter().all(|failure| is_surprise(failure.kind)) {
                for failure in &failures {
                    tracing::warn!(task = %key, problem = %failure.message, "task has a problem");
                }
                return Outcome::of(plan.look_again, true);
            }
        }
        Outcome::Retry
    }

    /// Returns the state of a task in the caches, or nothing once the task is gone.
    fn observe(
        &self,
        key: &ObjectKey,
        confirmed: &BTreeSet<(Kind, String)>,
        refused: Option<String>,
    ) -> Option<World> {
        let task = self.cluster.tasks.get(key)?;
        let in_namespace = |name: &str| ObjectKey { namespace: key.namespace.clone(), name: name.to_owned() };
        let owned_by =
            |uid: &Option<String>| Index::Controller(key.namespace.clone(), uid.clone().unwrap_or_default());
        let attempts = task.status.as_ref().map_or(0, |status| status.attempts);
        let names = [attempt_name(&task, attempts), next_name(&task)];
        let mut sandboxes = self.cluster.sandboxes.find(&owned_by(&task.metadata.uid));
        let pool = task.spec.runner.warm_pool_name.as_deref();
        let mut claims = Vec::new();
        if pool.is_some() {
            claims = self.cluster.claims.find(&owned_by(&task.metadata.uid));
            for name in &names {
                if !claims.iter().any(|claim| claim.metadata.name.as_deref() == Some(name)) {
                    claims.extend(self.cluster.claims.get(&in_namespace(name)));
                }
            }
            for claim in &claims {
                sandboxes.extend(self.cluster.sandboxes.find(&owned_by(&claim.metadata.uid)));
            }
        }
        let pool = pool.and_then(|name| self.cluster.pools.get(&in_namespace(name)));
        for name in names {
            if !sandboxes.iter().any(|sandbox| sandbox.metadata.name.as_deref() == Some(&*name)) {
                sandboxes.extend(self.cluster.sandboxes.get(&in_namespace(&name)));
            }
        }
        let mut pods: Vec<_> = sandboxes
            .iter()
            .flat_map(|sandbox| self.cluster.pods.find(&owned_by(&sandbox.metadata.uid)))
            .collect();
        if let Some(name) = task.status.as_ref().and_then(|status| status.sandbox_name.as_deref())
            && !pods.iter().any(|pod| pod.metadata.name.as_deref() == Some(name))
        {
            pods.extend(self.cluster.pods.get(&in_namespace(name)));
        }
        let template = template_name(&task, pool.as_deref());
        let template = template.and_then(|name| self.cluster.templates.get(&in_namespace(name)));
        Some(World { task, claims, sandboxes, pods, pool, template, confirmed: confirmed.clone(), refused })
    }
}

/// Wakes the task that controls a changed sandbox, or the sandbox's claim.
pub(crate) fn wake_by_sandbox(cluster: &Cluster, queue: &WorkQueue, sides: Sides<'_>) {
    sides.owners(ownership::is_kind::<AgentTask>).for_each(|owner| queue.add(owner));
    for claim in sides.owners(ownership::is_kind::<SandboxClaim>) {
        let claim = cluster.claims.get(&claim);
        let metadata = claim.as_deref().map(|claim| &claim.metadata);
        wake_by_claim(queue, Sides { before: None, after: metadata });
    }
}

/// Wakes the task that controls a changed claim.
pub(crate) fn wake_by_claim(queue: &WorkQueue, sides: Sides<'_>) {
    sides.owners(ownership::is_kind::<AgentTask>).for_each(|owner| queue.add(owner));
}

/// Wakes the task of a changed pod. The sandbox between them may be gone already, so the pod itself
/// says whose it is.
pub(crate) fn wake_by_pod(cluster: &Cluster, queue: &WorkQueue, change: &Change<'_, Pod>) {
    // A pod of a pool has no task yet. It can be given one as soon as it runs, which may be seen
    // after its claim.
    let runs =
        |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"));
    if change.after.is_some_and(|pod| runs(pod)) && !change.before.is_some_and(|pod| runs(pod)) {
        for sandbox in Sides::of(change).owners(ownership::is_kind::<Sandbox>) {
            let sandbox = cluster.sandboxes.get(&sandbox);
            let metadata = sandbox.as_deref().map(|sandbox| &sandbox.metadata);
            wake_by_sandbox(cluster, queue, Sides { before: None, after: metadata });
        }
    }
    for pod in [change.before, change.after].into_iter().flatten() {
        let Some(name) = ownership::annotation(&pod.metadata, annotations::TASK) else { continue };
        let task = ObjectKey { namespace: change.key.namespace.clone(), name: name.to_owned() };
        // Anybody can write the annotation.
        if cluster.tasks.holds(&task) {
            queue.add(task);
        }
    }
}

/// Wakes the tasks that may have waited for a template, which may be a pool's.
pub(crate) fn wake_by_template(cluster: &Cluster, queue: &WorkQueue, change: &Change<'_, SandboxTemplate>) {
    if change.before.is_some() {
        return;
    }
    let index = Index::Template(change.key.namespace.clone(), change.key.name.clone());
    wake_by_index(cluster, queue, &index);
    for pool in cluster.pools.find(&index) {
        let name = pool.metadata.name.clone().unwrap_or_default();
        wake_by_index(cluster, queue, &Index::Pool(change.key.namespace.clone(), name));
    }
}

/// Wakes the tasks that may have waited for a pool.
pub(crate) fn wake_by_pool(cluster: &Cluster, queue: &WorkQueue, change: &Change<'_, SandboxWarmPool>) {
    if change.before.is_none() {
        wake_by_index(cluster, queue, &Index::Pool(change.key.namespace.clone(), change.key.name.clone()));
    }
}

fn wake_by_index(cluster: &Cluster, queue: &WorkQueue, index: &Index) {
    for task in cluster.tasks.find(index) {
        if !is_over(&task) {
            queue.add(key_of(&*task));
        }
    }
}
