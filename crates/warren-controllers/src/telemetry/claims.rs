//! Measures how long claims take: once each, when a claim is first seen Ready that was not before.
//! The caches see our own writes at once, so no code in the reconcile is needed.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use warren_api::conditions::{self, ConditionType};
use warren_api::{Sandbox, SandboxClaim, annotations, labels};
use warren_decide::claim::{Offer, Plan, World};
use warren_decide::ownership;
use warren_decide::propagation::normalise_created_by;
use warren_decide::step::{Action, Kind, Object};

use super::Telemetry;
use super::inventory::launch_type;
use super::metrics::Metrics;
use crate::cache::Change;
use crate::queue::ObjectKey;

/// The label value for an unknown template, except in the gauge, where it is `unknown`.
const NO_TEMPLATE: &str = "__unknown__";

/// Claims that are not ready yet, by name, and measured ones whose annotation does not show it.
#[derive(Debug, Default)]
pub(crate) struct ClaimClock {
    claims: Mutex<HashMap<ObjectKey, Seen>>,
}

#[derive(Debug)]
struct Seen {
    uid: Option<String>,
    first: Timestamp,
    measured: bool,
}

impl ClaimClock {
    /// Records a change of a claim. Returns when it was first seen if it has just become ready for
    /// the first time.
    pub(crate) fn observe(&self, change: &Change<'_, SandboxClaim>, now: Timestamp) -> Option<Timestamp> {
        let mut claims = self.claims();
        let Some(claim) = change.after else {
            claims.remove(change.key);
            return None;
        };
        let is_ready = is_ready(claim);
        let known = claims.get_mut(change.key).filter(|seen| seen.uid == claim.metadata.uid);
        match known {
            None => {
                claims.remove(change.key);
                // Already served when first seen: it was measured before, or can no longer be.
                if !was_served(claim) {
                    // A claim that has lost its sandbox, and the annotation with it, was measured
                    // when it got it.
                    let measured = change.before.is_some_and(|before| was_served(before));
                    let seen = Seen { uid: claim.metadata.uid.clone(), first: now, measured };
                    claims.insert(change.key.clone(), seen);
                }
                None
            }
            Some(seen) => {
                let first = (is_ready && !seen.measured).then_some(seen.first);
                seen.measured |= is_ready;
                // The annotation prevents a second measurement, so nothing needs to be remembered.
                if seen.measured && is_stamped(claim) {
                    claims.remove(change.key);
                }
                first
            }
        }
    }

    fn claims(&self) -> MutexGuard<'_, HashMap<ObjectKey, Seen>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_stamped(claim: &SandboxClaim) -> bool {
    ownership::annotation(&claim.metadata, annotations::CLAIM_FIRST_READY_AT).is_some()
}

fn is_ready(claim: &SandboxClaim) -> bool {
    claim.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, ConditionType::Ready))
}

/// Returns true if the claim is or was Ready. The annotation alone is no proof: it is written with
/// the assignment, two writes before the claim is Ready, and that leader may have died in between.
fn was_served(claim: &SandboxClaim) -> bool {
    let names_sandbox = || claim.status.as_ref().is_some_and(|status| status.sandbox.is_some());
    is_ready(claim) || is_stamped(claim) && names_sandbox()
}

impl Metrics {
    /// Records the latency of a claim that has just become ready.
    pub(crate) fn claim_became_ready(
        &self,
        claim: &SandboxClaim,
        sandbox: Option<&Sandbox>,
        first_seen: Timestamp,
        now: Timestamp,
    ) {
        let launch = sandbox.map_or("unknown", launch_type);
        let template = sandbox.map_or(NO_TEMPLATE, template);
        let values = || [launch.into(), template.to_owned().into()];
        // Other machines' clocks may be ahead: times in the future are ignored.
        let annotated = |key| {
            let text = ownership::annotation(&claim.metadata, key)?;
            match text.parse::<Timestamp>() {
                Ok(time) => Some(time).filter(|time| *time <= now),
                Err(error) => {
                    tracing::debug!(key, %error, "a time that cannot be read is not measured from");
                    None
                }
            }
        };
        let since = |key| milliseconds(annotated(key)?, now);
        if let Some(latency) = since(annotations::WEBHOOK_FIRST_OBSERVED_AT) {
            self.claim_startup.observe(values(), latency);
        }
        if let Some(latency) = since(annotations::CLIENT_FIRST_REQUESTED_AT) {
            self.client_claim_startup.observe(values(), latency);
        }
        // The annotation survives a restart. Without it, which may be configured, the remembered
        // time is used.
        let observed = annotated(annotations::CONTROLLER_FIRST_OBSERVED_AT).unwrap_or(first_seen);
        if let Some(latency) = milliseconds(observed, now) {
            self.claim_controller_startup.observe(values(), latency);
        }
        if let Ok(latency) = std::time::Duration::try_from(now.duration_since(observed)) {
            self.claim_ready.observe(values(), latency.as_secs_f64());
        }
        if let Some((sandbox, latency)) = sandbox.and_then(|sandbox| Some((sandbox, creation(sandbox)?))) {
            let namespace = sandbox.metadata.namespace.clone().unwrap_or_default();
            self.creation.observe([namespace.into(), launch.into(), template.to_owned().into()], latency);
        }
    }
}

/// A sandbox that is about to be provided to a claim; counted when that has worked.
#[derive(Debug)]
pub(crate) struct Provision {
    values: [String; 6],
}

impl Provision {
    /// Returns the provision of a plan: a sandbox adopted from the queue, or a new one. Completing
    /// an earlier adoption does not count.
    pub(crate) fn of(world: &World, plan: &Plan) -> Option<Self> {
        let (launch, template, is_ready) = plan.steps.iter().find_map(|step| match &step.action {
            Action::Create(Object::Sandbox(sandbox)) => {
                Some((labels::LAUNCH_TYPE_COLD, template(sandbox).to_owned(), false))
            }
            Action::Merge { kind: Kind::Sandbox, name, .. } => match &world.offer {
                Offer::Sandbox(offered) if offered.metadata.name.as_ref() == Some(name) => {
                    // Aligning a claimed sandbox is a patch of it, too; only a change of its owner
                    // counts.
                    let sandbox = world.sandboxes.get(name)?;
                    let uid = world.claim.metadata.uid.as_deref().unwrap_or_default();
                    if ownership::is_controlled_by(&sandbox.metadata, uid) {
                        return None;
                    }
                    let is_ready = sandbox
                        .status
                        .as_ref()
                        .is_some_and(|status| conditions::is_true(&status.conditions, ConditionType::Ready));
                    Some((labels::LAUNCH_TYPE_WARM, template(sandbox).to_owned(), is_ready))
                }
                _ => None,
            },
            _ => None,
        })?;
        let metadata = &world.claim.metadata;
        let created_by =
            ownership::label(metadata, labels::CREATED_BY).map_or("unknown", normalise_created_by);
        Some(Self {
            values: [
                metadata.namespace.clone().unwrap_or_default(),
                template,
                launch.to_owned(),
                world.claim.spec.warm_pool_ref.name.clone(),
                if is_ready { "ready" } else { "not_ready" }.to_owned(),
                created_by.to_owned(),
            ],
        })
    }

    /// Counts it as done.
    pub(crate) fn count(self, telemetry: &Telemetry) {
        telemetry.metrics.claim_creation.add(self.values.map(Into::into), 1);
    }
}

fn template(sandbox: &Sandbox) -> &str {
    ownership::annotation(&sandbox.metadata, annotations::SANDBOX_TEMPLATE_REF)
        .filter(|name| !name.is_empty())
        .unwrap_or(NO_TEMPLATE)
}

/// Returns whole milliseconds; `None` for a time in the future.
fn milliseconds(from: Timestamp, to: Timestamp) -> Option<f64> {
    let elapsed = to.duration_since(from);
    (!elapsed.is_negative()).then(|| elapsed.as_millis() as f64)
}

fn creation(sandbox: &Sandbox) -> Option<f64> {
    let Time(created) = sandbox.metadata.creation_timestamp.as_ref()?;
    let ready = conditions::find(&sandbox.status.as_ref()?.conditions, ConditionType::Ready)?;
    let Time(since) = &ready.last_transition_time;
    (ready.status == "True").then(|| milliseconds(*created, *since))?
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use serde_json::json;
    use warren_api::{NameHash, Sandbox, SandboxClaim, annotations};
    use warren_decide::claim::{Offer, Settings, World, decide};
    use warren_decide::step::{Action, Kind};

    use super::{ClaimClock, Provision};
    use crate::cache::{Change, key_of};
    use crate::telemetry::family::Text;
    use crate::telemetry::metrics::Metrics;

    fn claim(ready: bool, stamped: bool) -> Arc<SandboxClaim> {
        let annotations = match stamped {
            true => json!({"agents.x-k8s.io/claim-first-ready-at": "2027-01-15T08:00:00Z"}),
            false => json!({}),
        };
        let claim = json!({
            "metadata": {"name": "c", "namespace": "default", "uid": "u", "annotations": annotations},
            "spec": {"warmPoolRef": {"name": "p"}},
            "status": {"conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }, "reason": "r",
                "message": "", "lastTransitionTime": "2027-01-15T08:00:00Z"}], "sandbox": {"name": "w"}},
        });
        Arc::new(serde_json::from_value(claim).unwrap())
    }

    #[test]
    fn row_18_finishing_what_an_earlier_pass_began_provides_nothing() {
        let member: Arc<Sandbox> = Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": "w", "namespace": "default", "uid": "wu", "resourceVersion": "1",
                    "labels": {"agents.x-k8s.io/warm-pool-sandbox": NameHash::of("p").to_string(),
                        "agents.x-k8s.io/sandbox-template-ref-hash": "h"},
                    "ownerReferences": [{"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool",
                        "name": "p", "uid": "pu", "controller": true}]},
                "spec": {"podTemplate": {"spec": {"containers": []}}},
            }))
            .unwrap(),
        );
        let mut claim = claim(false, false);
        Arc::make_mut(&mut claim).status = None;
        Arc::make_mut(&mut claim).metadata.annotations =
            Some([(annotations::SANDBOX_NAME.to_owned(), "w".to_owned())].into());
        let provided = |offer: Offer| {
            let world = World {
                claim: claim.clone(),
                pool: None,
                template: None,
                sandboxes: [("w".to_owned(), member.clone())].into(),
                confirmed_gone: Default::default(),
                confirmed: Default::default(),
                legacy_policy: None,
                offer,
                first_seen: Timestamp::UNIX_EPOCH,
                refused: None,
            };
            let plan = decide(&world, &Settings::default(), Timestamp::UNIX_EPOCH);
            assert!(matches!(&plan.steps[0].action, Action::Merge { kind: Kind::Sandbox, .. }), "{plan:?}");
            Provision::of(&world, &plan).is_some()
        };
        assert!(provided(Offer::Sandbox(member.clone())));
        assert!(!provided(Offer::NotAsked));
    }

    #[test]
    fn a_claim_is_measured_once_also_if_it_loses_its_sandbox_and_its_stamp() {
        let served = [claim(false, false), claim(true, false), claim(true, true)];
        let again = [claim(false, false), claim(true, false), claim(true, true)];
        // Either may come first: the loss of Ready, or the removal of the annotation.
        for lost in [claim(false, true), claim(true, false)] {
            let states = [&served[..], &[lost], &again[..]].concat();
            assert_eq!(measured(&states), 1, "{states:?}");
        }
    }

    #[test]
    fn a_claim_that_was_promised_a_sandbox_before_a_restart_is_measured() {
        let mut promised = claim(false, true);
        Arc::make_mut(&mut promised).status.as_mut().unwrap().sandbox = None;
        assert_eq!(measured(&[promised.clone(), claim(true, true)]), 1);
        let taken_back = {
            let mut claim = promised.clone();
            Arc::make_mut(&mut claim).metadata.annotations = None;
            claim
        };
        assert_eq!(measured(&[promised, taken_back, claim(true, true)]), 1);
        assert_eq!(measured(&[claim(false, true), claim(true, true)]), 0, "it was Ready before");
    }

    /// Returns how often a claim is measured that goes through these states.
    fn measured(states: &[Arc<SandboxClaim>]) -> usize {
        let (clock, mut before) = (ClaimClock::default(), None);
        let measured = states.iter().filter(|after| {
            let change =
                Change { key: &key_of(&***after), before: before.replace(*after), after: Some(after) };
            clock.observe(&change, Timestamp::UNIX_EPOCH).is_some()
        });
        measured.count()
    }

    #[test]
    fn the_time_before_a_restart_counts() {
        let metrics = Metrics::default();
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let mut claim = SandboxClaim::clone(&claim(true, false));
        let key = annotations::CONTROLLER_FIRST_OBSERVED_AT.to_owned();
        let (restart, now) = (at("2027-01-15T08:00:09Z"), at("2027-01-15T08:00:10Z"));
        // The second one is from a clock that is ahead, so the local observation counts.
        for observed in ["2027-01-15T08:00:00Z", "2027-01-15T09:00:00Z"] {
            claim.metadata.annotations = Some([(key.clone(), observed.to_owned())].into());
            metrics.claim_became_ready(&claim, None, restart, now);
        }
        let mut text = Text::default();
        metrics.write(&mut text);
        let page = text.finish();
        for sum in [
            "agent_sandbox_claim_controller_startup_latency_ms_sum 11000",
            "warren_claim_ready_seconds_sum 11",
        ] {
            let (name, number) = sum.split_once(' ').unwrap();
            let line =
                format!("{name}{{launch_type=\"unknown\",sandbox_template=\"__unknown__\"}} {number}\n");
            assert!(page.contains(&line), "{line}{page}");
        }
    }
}
