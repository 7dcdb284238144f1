//! The SandboxTemplate controller.

use warren_api::SandboxTemplate;
use warren_decide::template::{World, decide, policy_name};

use super::{Outcome, Process};

/// One pass over one template.
pub async fn reconcile(process: &Process, key: &str) -> Outcome {
    let world = {
        let brain = process.brain.borrow();
        let Some(template) = brain.get::<SandboxTemplate>(key) else { return Outcome::Done };
        World { template, policy: brain.get(&policy_name(key)) }
    };
    let plan = decide(&world);
    let mut failures = plan.problems;
    failures.extend(process.apply(plan.steps).await);
    if failures.is_empty() { Outcome::Done } else { Outcome::Retry }
}
