//! Carries out the steps of plans. Makes no choices; every answer of the server goes into the caches.

use std::time::Duration;

use serde_json::Value;
use warren_decide::step::{Action, Failure, FailureKind, Kind, Step};

use super::{Mutant, Outcome, Process};
use crate::clock::milliseconds;
use crate::object::{Any, KINDS, slot};
use crate::wire::{Call, Intent, Request};

/// An answer that the watch has not confirmed after this long is doubted.
const DOUBT: Duration = Duration::from_secs(30);

impl Process {
    /// Carries out steps in order. After a failure the rest of its stage is skipped.
    pub async fn apply(&self, steps: Vec<Step>) -> Vec<Failure> {
        let mut failures: Vec<Failure> = Vec::new();
        for Step { stage, action } in steps {
            if failures.iter().any(|failure| failure.stage == stage) {
                continue;
            }
            let call = self.call(&action, None);
            if let Err((kind, message)) = self.finish(&action, call).await {
                failures.push(Failure { stage, kind, message });
            }
        }
        failures
    }

    /// Carries out steps that do not depend on each other: one, then two, four, eight at the same time. Gives the steps
    /// that were not carried out, each with why not.
    pub async fn apply_slowly(&self, steps: Vec<Step>, intent: &Intent) -> Vec<(Step, Failure)> {
        let mut undone = Vec::new();
        let mut waiting = steps.into_iter();
        let mut size = 1;
        while undone.is_empty() {
            let batch: Vec<Step> = waiting.by_ref().take(size).collect();
            if batch.is_empty() {
                return undone;
            }
            size *= 2;
            let calls: Vec<_> =
                batch.iter().map(|step| self.call(&step.action, Some(intent.clone()))).collect();
            for (step, call) in batch.into_iter().zip(calls) {
                if let Err((kind, message)) = self.finish(&step.action, call).await {
                    let failure = Failure { stage: step.stage, kind, message };
                    undone.push((step, failure));
                }
            }
        }
        // The rest was never tried, so nothing of it can have been written.
        let reason =
            undone.first().map(|(_, failure)| Failure { kind: FailureKind::Refused, ..failure.clone() });
        undone.extend(waiting.filter_map(|step| Some((step, reason.clone()?))));
        undone
    }

    /// Asks the server itself whether a sandbox exists, and takes the answer in.
    pub async fn read_sandbox(&self, name: &str) -> Result<bool, String> {
        match self.read(Kind::Sandbox, name).await {
            Ok(Some(live)) => {
                self.remember(live);
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(refusal) => Err(refusal.text),
        }
    }

    /// Takes in an answer. Should the watch not bring the same soon, the server is asked again.
    fn remember(&self, object: Any) {
        let (kind, name) = (object.kind(), object.name().to_owned());
        let mut brain = self.brain.borrow_mut();
        brain.remember(object, self.now());
        if brain.unconfirmed(kind, &name).is_some() {
            let due = self.clock.elapsed() + milliseconds(DOUBT);
            brain.queues.doubts.add_at(&format!("{}:{name}", slot(kind)), due);
        }
    }

    /// Looks again at what only an answer has brought.
    pub async fn confirm(&self, key: &str) -> Outcome {
        let Some((index, name)) = key.split_once(':') else { return Outcome::Done };
        let Some(kind) = index.parse().ok().and_then(|index: usize| KINDS.get(index).copied()) else {
            return Outcome::Done;
        };
        let Some(version) = self.brain.borrow().unconfirmed(kind, name) else { return Outcome::Done };
        match self.read(kind, name).await {
            Err(_) => return Outcome::Retry,
            Ok(None) => self.brain.borrow_mut().forget(kind, name, Some(version), self.now()),
            Ok(Some(live)) => self.remember(live),
        }
        Outcome::LookAgain(DOUBT)
    }

    fn call(&self, action: &Action, intent: Option<Intent>) -> Call<'_> {
        let mut action = action.clone();
        if self.settings.mutant == Mutant::NoAssignmentGuard {
            drop_guard(&mut action);
        }
        Call::send(&self.wire, Request::Act(action), intent)
    }

    async fn read(&self, kind: Kind, name: &str) -> crate::server::Answer {
        Call::send(&self.wire, Request::Read(kind, name.to_owned()), None).await
    }

    async fn finish(&self, action: &Action, call: Call<'_>) -> Result<(), (FailureKind, String)> {
        let tried = self.brain.borrow().version(action);
        let answer = call.await;
        if let Ok(object) = answer {
            if let Some(object) = object {
                self.remember(object);
            }
            return Ok(());
        }
        let Err(refusal) = answer else { return Ok(()) };
        match (action, refusal.kind) {
            (Action::Create(object), FailureKind::AlreadyExists) => {
                self.refresh(object.kind(), object.name()).await;
            }
            (
                Action::Merge { kind, name, .. } | Action::MergeStatus { kind, name, .. },
                FailureKind::Conflict,
            ) => {
                self.refresh(*kind, name).await;
            }
            (Action::Merge { kind, name, .. }, FailureKind::NotFound) => {
                self.brain.borrow_mut().forget(*kind, name, tried, self.now());
            }
            // What is gone needs no status.
            (Action::MergeStatus { kind, name, .. }, FailureKind::NotFound) => {
                self.brain.borrow_mut().forget(*kind, name, tried, self.now());
                return Ok(());
            }
            // A create is told so when its namespace is gone, which is a refusal like another.
            (Action::Create(_), FailureKind::NotFound) => return Err((FailureKind::Refused, refusal.text)),
            (Action::Delete { .. }, FailureKind::NotFound) => return Ok(()),
            // It has changed since it was looked at; or another object has its name, and it is gone.
            (Action::Delete { kind, name, version: Some(_), .. }, FailureKind::Conflict) => {
                self.refresh(*kind, name).await;
            }
            (Action::Delete { version: None, .. }, FailureKind::Conflict) => return Ok(()),
            (
                Action::Create(_) | Action::Merge { .. } | Action::MergeStatus { .. } | Action::Delete { .. },
                _,
            ) => {}
        }
        Err((refusal.kind, refusal.text))
    }

    /// Reads an object past the cache, after a write has shown that the cache is behind.
    async fn refresh(&self, kind: Kind, name: &str) {
        if let Ok(Some(live)) = self.read(kind, name).await {
            self.remember(live);
        }
    }
}

/// The mistake of [`Mutant::NoAssignmentGuard`].
fn drop_guard(action: &mut Action) {
    if let Action::Merge { kind: Kind::SandboxClaim | Kind::Sandbox, body, .. } = action
        && let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut)
    {
        metadata.remove("resourceVersion");
    }
}
