//! Ends a sandbox whose shutdown time has passed. First the reason is stored; the next reconcile
//! deletes its pod and service. A pod never goes before the status says why.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use warren_api::conditions::{self, ConditionStatus, ConditionType, Observation, Reason, message};
use warren_api::sandbox::ShutdownPolicy;
use warren_api::{Sandbox, SandboxStatus};

use super::{Conclusion, Plan, World, pod, service, status, volumes};
use crate::lifetime;
use crate::ownership::Ownership;
use crate::step::{Action, Failure, Kind, Propagation, Stage, Step};

/// The delay before the reconcile that follows the stored reason; agent-sandbox's number.
const AT_ONCE: Duration = Duration::from_millis(1);
/// The shortest delay of a wake-up for the expiry; agent-sandbox's number.
const FLOOR: Duration = Duration::from_secs(2);

/// Returns the earlier of the sandbox's shutdown time and the end of its time to live.
fn shutdown_time(sandbox: &Sandbox) -> Option<Timestamp> {
    let asked = sandbox.spec.shutdown_time.as_ref().map(|Time(time)| *time);
    asked.into_iter().chain(lifetime::end(&sandbox.metadata)).min()
}

/// Returns true if the shutdown time has come, including the exact moment.
pub(super) fn is_expired(sandbox: &Sandbox, now: Timestamp) -> bool {
    shutdown_time(sandbox).is_some_and(|time| now >= time)
}

/// Returns the delay until the sandbox is checked for its expiry.
pub(super) fn look_again(sandbox: &Sandbox, now: Timestamp) -> Option<Duration> {
    let time = shutdown_time(sandbox)?;
    let remaining = Duration::try_from(time.duration_since(now)).unwrap_or_default();
    Some(remaining.max(FLOOR))
}

/// Plans the removal of the pod and the service, once the reason is stored. Volume claims that are
/// to be kept are released first.
pub(super) fn children(world: &World) -> Plan {
    let mut plan = Plan::default();
    if !is_announced(&world.sandbox) {
        return plan;
    }
    volumes::release(world, &mut plan);
    // A pod that is already being deleted needs no second call.
    for pod in pod::mine(world).filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
        plan.steps.push(Step::new(Stage::Pod, pod::delete(pod)));
    }
    if let (Some(service), Some(Ownership::Mine)) = (&world.service, service::ownership(world))
        && service.metadata.deletion_timestamp.is_none()
    {
        plan.steps.push(Step::new(Stage::Service, service::delete(service)));
    }
    plan
}

/// Plans the status of an expired sandbox, or its deletion.
pub(super) fn conclude(world: &World, failures: &[Failure], now: Timestamp) -> Conclusion {
    if !is_announced(&world.sandbox) {
        // Earlier problems no longer matter and must not delay the end.
        let mut wanted = world.sandbox.status.clone().unwrap_or_default();
        announce(&world.sandbox, &mut wanted, message::SANDBOX_HAS_EXPIRED.to_owned(), now);
        let steps = status::write(world, &wanted).into_iter().collect();
        return Conclusion { steps, look_again: Some(AT_ONCE), ..Conclusion::default() };
    }
    let (volumes, others): (Vec<&Failure>, Vec<&Failure>) =
        failures.iter().partition(|failure| failure.stage == Stage::Volumes);
    if volumes.is_empty() && world.sandbox.spec.shutdown_policy == ShutdownPolicy::Delete {
        let action = Action::Delete {
            kind: Kind::Sandbox,
            name: world.name().to_owned(),
            uid: world.uid().to_owned(),
            version: world.sandbox.metadata.resource_version.clone(),
            propagation: Propagation::Background,
        };
        // Deleting the sandbox deletes its children, so their problems no longer matter. Problems
        // with the volumes do: the deletion would take data that may have to be kept.
        return Conclusion { steps: vec![Step::new(Stage::Subject, action)], ..Conclusion::default() };
    }
    if !others.is_empty() {
        return Conclusion { retry: true, ..Conclusion::default() };
    }
    let conditions = world.sandbox.status.clone().unwrap_or_default().conditions;
    let mut wanted = SandboxStatus { conditions, ..SandboxStatus::default() };
    let said = [message::SANDBOX_HAS_EXPIRED].into_iter();
    let text: Vec<&str> = said.chain(volumes.iter().map(|failure| failure.message.as_str())).collect();
    announce(&world.sandbox, &mut wanted, text.join("; "), now);
    let steps = status::write(world, &wanted).into_iter().collect();
    Conclusion { steps, retry: !volumes.is_empty(), ..Conclusion::default() }
}

fn is_announced(sandbox: &Sandbox) -> bool {
    let conditions = sandbox.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions::find(conditions, ConditionType::Ready)
        .is_some_and(|ready| ready.reason == Reason::SandboxExpired.as_str())
}

fn announce(sandbox: &Sandbox, status: &mut SandboxStatus, text: String, now: Timestamp) {
    let expired =
        Observation::new(ConditionType::Ready, ConditionStatus::False, Reason::SandboxExpired, text);
    conditions::set(&mut status.conditions, expired, &sandbox.metadata, &Time(now));
    for type_ in [ConditionType::PodScheduled, ConditionType::PodOutdated, ConditionType::PodWaiting] {
        conditions::remove(&mut status.conditions, type_);
    }
    conditions::reaffirm(&mut status.conditions, &sandbox.metadata);
}
