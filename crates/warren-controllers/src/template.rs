//! The SandboxTemplate controller: a label on the template and a network policy for its sandboxes.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use warren_api::SandboxTemplate;
use warren_api::conditions::ReportingController;
use warren_decide::ownership;
use warren_decide::step::Note;
use warren_decide::template::{World, decide, note, policy_name};

use crate::cluster::{Cluster, creates};
use crate::events::Recorder;
use crate::queue::{ObjectKey, Outcome, WorkQueue};
use crate::wake::Sides;

const MANAGER: &str = "sandboxtemplate-controller";

pub(crate) struct TemplateController {
    cluster: Cluster,
    recorder: Recorder,
    /// What was last reported of each template that is in trouble.
    reported: Mutex<HashMap<ObjectKey, Note>>,
}

impl TemplateController {
    pub(crate) fn new(cluster: Cluster, recorder: Recorder) -> Self {
        Self { cluster, recorder, reported: Mutex::default() }
    }

    /// One pass over one template.
    pub(crate) async fn reconcile(&self, key: ObjectKey) -> Outcome {
        let Some(template) = self.cluster.templates.get(&key) else {
            self.is_news(&key, None);
            return Outcome::Done;
        };
        let policy = ObjectKey { namespace: key.namespace.clone(), name: policy_name(&key.name) };
        let plan = decide(&World { template: template.clone(), policy: self.cluster.policies.get(&policy) });
        let is_there = match creates(&plan.steps) {
            true => self.cluster.is_still_there(&*template).await,
            false => Ok(true),
        };
        let mut failures = plan.problems;
        match is_there {
            Ok(true) => failures.extend(self.cluster.apply(&key.namespace, MANAGER, plan.steps).await),
            Ok(false) => return Outcome::Done,
            Err(failure) => failures.push(failure),
        }
        for failure in &failures {
            tracing::warn!(template = %key, problem = %failure.message, "template has a problem");
        }
        let note = note(&failures);
        // Also where there is nothing to say: the same trouble is news after it was gone.
        let is_news = self.is_news(&key, note.as_ref());
        if let Some(note) = note.filter(|_| is_news) {
            self.recorder.record(ReportingController::SandboxTemplate, &*template, note);
        }
        if failures.is_empty() { Outcome::Done } else { Outcome::Retry }
    }

    /// Takes note of how a template is, and says whether that is new.
    fn is_news(&self, key: &ObjectKey, note: Option<&Note>) -> bool {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        match note {
            Some(note) => reported.insert(key.clone(), note.clone()).as_ref() != Some(note),
            None => reported.remove(key).is_some(),
        }
    }
}

/// Wakes the template that controls a changed network policy.
pub(crate) fn wake_by_policy(queue: &WorkQueue, sides: Sides<'_>) {
    sides.owners(ownership::is_kind::<SandboxTemplate>).for_each(|owner| queue.add(owner));
}
