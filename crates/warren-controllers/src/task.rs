//! The AgentTask controller: a sandbox for every attempt, and a verdict when the command has ended.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use warren_api::conditions::ReportingController;
use warren_api::{AgentTask, SandboxTemplate, annotations};
use warren_decide::ownership;
use warren_decide::step::{FailureKind, Kind};
use warren_decide::task::{World, attempt_name, decide, is_over, next_name};

use crate::cache::{Change, Index, key_of};
use crate::cluster::{Cluster, creates};
use crate::events::Recorder;
use crate::queue::{ObjectKey, Outcome, WorkQueue};
use crate::wake::Sides;

/// The field manager of this controller's writes.
const MANAGER: &str = "agenttask-controller";

/// The most times that one pass looks. An attempt that failed takes the most: its sandbox, its pod
/// and its template may have to be asked for, and the next sandbox may be there already.
const LOOKS: usize = 6;

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
        for _ in 0..LOOKS {
            let Some(world) = self.look(&key, &confirmed, refused.clone()) else { return Outcome::Gone };
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
    fn look(
        &self,
        key: &ObjectKey,
        confirmed: &BTreeSet<(Kind, String)>,
        refused: Option<String>,
    ) -> Option<World> {
        let task = self.cluster.tasks.get(key)?;
        let in_namespace = |name: &str| ObjectKey { namespace: key.namespace.clone(), name: name.to_owned() };
        let owned_by =
            |uid: &Option<String>| Index::Controller(key.namespace.clone(), uid.clone().unwrap_or_default());
        let mut sandboxes = self.cluster.sandboxes.find(&owned_by(&task.metadata.uid));
        let attempts = task.status.as_ref().map_or(0, |status| status.attempts);
        for name in [attempt_name(&task, attempts), next_name(&task)] {
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
        let template = task.spec.runner.sandbox_template_name.as_deref();
        let template = template.and_then(|name| self.cluster.templates.get(&in_namespace(name)));
        Some(World { task, sandboxes, pods, template, confirmed: confirmed.clone(), refused })
    }
}

/// Wakes the task that controls a changed sandbox.
pub(crate) fn wake_by_sandbox(queue: &WorkQueue, sides: Sides<'_>) {
    sides.owners(ownership::is_kind::<AgentTask>).for_each(|owner| queue.add(owner));
}

/// Wakes the task of a changed pod. The sandbox between them may be gone already, so the pod itself says whose it is.
pub(crate) fn wake_by_pod(cluster: &Cluster, queue: &WorkQueue, change: &Change<'_, Pod>) {
    for pod in [change.before, change.after].into_iter().flatten() {
        let Some(name) = ownership::annotation(&pod.metadata, annotations::TASK) else { continue };
        let task = ObjectKey { namespace: change.key.namespace.clone(), name: name.to_owned() };
        // Anybody can write the annotation.
        if cluster.tasks.holds(&task) {
            queue.add(task);
        }
    }
}

/// Wakes the tasks that may have waited for a template.
pub(crate) fn wake_by_template(cluster: &Cluster, queue: &WorkQueue, change: &Change<'_, SandboxTemplate>) {
    if change.before.is_some() {
        return;
    }
    let index = Index::Template(change.key.namespace.clone(), change.key.name.clone());
    for task in cluster.tasks.find(&index) {
        if !is_over(&task) {
            queue.add(key_of(&*task));
        }
    }
}
