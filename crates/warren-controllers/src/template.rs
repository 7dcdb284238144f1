//! The SandboxTemplate controller: a label on the template and a network policy for its sandboxes.

use warren_api::SandboxTemplate;
use warren_decide::ownership;
use warren_decide::template::{World, decide, policy_name};

use crate::cluster::Cluster;
use crate::queue::{ObjectKey, Outcome, WorkQueue};
use crate::wake::Sides;

const MANAGER: &str = "sandboxtemplate-controller";

pub(crate) struct TemplateController {
    pub(crate) cluster: Cluster,
}

impl TemplateController {
    /// One pass over one template.
    pub(crate) async fn reconcile(&self, key: ObjectKey) -> Outcome {
        let Some(template) = self.cluster.templates.get(&key) else { return Outcome::Done };
        let policy = ObjectKey { namespace: key.namespace.clone(), name: policy_name(&key.name) };
        let plan = decide(&World { template, policy: self.cluster.policies.get(&policy) });
        let mut failures = plan.problems;
        failures.extend(self.cluster.apply(&key.namespace, MANAGER, plan.steps).await);
        for failure in &failures {
            tracing::warn!(template = %key, problem = %failure.message, "template has a problem");
        }
        if failures.is_empty() { Outcome::Done } else { Outcome::Retry }
    }
}

/// Wakes the template that controls a changed network policy.
pub(crate) fn wake_by_policy(queue: &WorkQueue, sides: Sides<'_>) {
    for owner in sides.owners(ownership::is_kind::<SandboxTemplate>) {
        queue.add(owner);
    }
}
