//! The SandboxTemplate controller: a label on the template and a network policy for its sandboxes.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use warren_api::SandboxTemplate;
use warren_api::conditions::ReportingController;
use warren_decide::ownership;
use warren_decide::step::{Failure, Note};
use warren_decide::template::{World, decide, note, policy_name, template_of_policy};

use crate::cache::Cache;
use crate::cluster::Cluster;
use crate::events::Recorder;
use crate::queue::{ObjectKey, Outcome, WorkQueue};
use crate::wake::Sides;

const MANAGER: &str = "sandboxtemplate-controller";

pub(crate) struct TemplateController {
    cluster: Cluster,
    recorder: Recorder,
    /// The last reported problem of each template.
    reported: Mutex<HashMap<ObjectKey, Note>>,
}

impl TemplateController {
    pub(crate) fn new(cluster: Cluster, recorder: Recorder) -> Self {
        Self { cluster, recorder, reported: Mutex::default() }
    }

    pub(crate) async fn reconcile(&self, key: ObjectKey) -> Outcome {
        let Some(template) = self.cluster.templates.get(&key) else {
            self.is_news(&key, None);
            return Outcome::Gone;
        };
        let policy = ObjectKey { namespace: key.namespace.clone(), name: policy_name(&key.name) };
        let plan = decide(&World { template: template.clone(), policy: self.cluster.policies.get(&policy) });
        let mut failures = plan.problems;
        match self.cluster.is_still_asked_for(&*template, &plan.steps).await {
            Ok(true) => failures.extend(self.cluster.apply(&key.namespace, MANAGER, plan.steps).await),
            Ok(false) => return Outcome::Done,
            Err(failure) => failures.push(failure),
        }
        for failure in &failures {
            tracing::warn!(template = %key, problem = %failure.message, "template has a problem");
        }
        let note = note(&failures);
        // Also called without a problem: the same one counts as new after it was gone.
        let is_news = self.is_news(&key, note.as_ref());
        if let Some(note) = note.filter(|_| is_news) {
            self.recorder.record(ReportingController::SandboxTemplate, &*template, note);
        }
        // An invalid policy stays invalid until the template changes, which wakes it.
        if failures.iter().all(Failure::is_final) { Outcome::Done } else { Outcome::Retry }
    }

    /// Records a template's problem, and returns true if it is new.
    fn is_news(&self, key: &ObjectKey, note: Option<&Note>) -> bool {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        match note {
            Some(note) => reported.insert(key.clone(), note.clone()).as_ref() != Some(note),
            None => reported.remove(key).is_some(),
        }
    }
}

/// Wakes the template that controls a changed network policy, and the one whose policy has that
/// name: a policy of another owner may have begun or ceased to conflict.
pub(crate) fn wake_by_policy(
    templates: &Cache<SandboxTemplate>,
    queue: &WorkQueue,
    key: &ObjectKey,
    sides: Sides<'_>,
) {
    sides.owners(ownership::is_kind::<SandboxTemplate>).for_each(|owner| queue.add(owner));
    let named = template_of_policy(&key.name)
        .map(|name| ObjectKey { namespace: key.namespace.clone(), name: name.to_owned() });
    if let Some(template) = named.filter(|template| templates.holds(template)) {
        queue.add(template);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use serde_json::json;
    use warren_api::SandboxTemplate;

    use super::wake_by_policy;
    use crate::cache::Cache;
    use crate::clock::SystemClock;
    use crate::queue::{ObjectKey, WorkQueue};
    use crate::trim;
    use crate::wake::Sides;

    #[test]
    fn a_policy_that_is_out_of_the_way_wakes_the_template_of_its_name() {
        let templates = Cache::new(trim::TEMPLATE);
        let template = json!({"metadata": {"name": "t", "namespace": "default", "resourceVersion": "1"},
            "spec": {"podTemplate": {"spec": {"containers": []}}}});
        templates.apply(Arc::new(serde_json::from_value::<SandboxTemplate>(template).unwrap()));
        let woken = |policy: &str| {
            let queue = WorkQueue::new("test", Arc::new(SystemClock::start()));
            let key = ObjectKey { namespace: "default".to_owned(), name: policy.to_owned() };
            let foreign = ObjectMeta::default();
            wake_by_policy(&templates, &queue, &key, Sides { before: Some(&foreign), after: None });
            queue.begin().map(|key| key.name)
        };
        assert_eq!(woken("t-network-policy").as_deref(), Some("t"));
        assert_eq!(woken("other-network-policy"), None, "there is no such template");
        assert_eq!(woken("t"), None);
    }
}
