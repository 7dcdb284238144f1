//! Cleans up a task's sandboxes, and the task itself, when they have served their purpose.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::json;
use warren_api::conditions::{self, ConditionType};

use super::{OVERDUE, Plan, World, attempt_name, verdict, warm};
use crate::ownership;
use crate::step::{Action, Kind, Propagation, Stage, Step};

/// Plans for a task that has ended: nothing of it runs on, and after its time it is deleted. The sandbox of the last attempt stays
/// until then, so that its log can be read.
pub(super) fn plan(world: &World, now: Timestamp) -> Plan {
    let (present, present_claim) = (world.status().sandbox_name, world.status().claim_name);
    // A node that has not ended a pod by then does not: the sandbox goes, and its log with it.
    let last_moment = world.status().completion_time.map(|Time(time)| time + world.grace() + OVERDUE);
    let mut wait_for_node = None;
    let mut steps = Vec::new();
    for object in mine(world) {
        let pod = object.pod;
        let is_present = match object.kind {
            Kind::SandboxClaim => object.metadata.name == present_claim,
            _ => object.metadata.name == present,
        };
        match pod {
            // It only waits for a command, and there will be none.
            Some(pod) if object.kind == Kind::SandboxClaim && !warm::has_command(pod) => {
                steps.push(object.delete());
            }
            Some(pod) if verdict::has_ended(pod) && (is_present || keeps(world)) => {}
            // Ended by its deadline, unlike deleted, the pod keeps its log.
            Some(pod)
                if is_present
                    && verdict::is_running(pod)
                    && last_moment.is_some_and(|moment| now < moment) =>
            {
                wait_for_node = last_moment;
                steps.extend(stop(pod));
            }
            _ => steps.push(object.delete()),
        }
    }
    let end = end(world);
    if end.is_some_and(|end| now >= end) {
        steps = vec![Step::new(
            Stage::Subject,
            Action::Delete {
                kind: Kind::AgentTask,
                name: world.name().to_owned(),
                uid: world.uid().to_owned(),
                // The time may be extended meanwhile.
                version: world.task.metadata.resource_version.clone(),
                propagation: Propagation::Background,
            },
        )];
        return Plan { steps, ..Plan::default() };
    }
    let next = end.into_iter().chain(wait_for_node).min();
    let look_again = next.and_then(|next| Duration::try_from(next.duration_since(now)).ok());
    Plan { steps, look_again, ..Plan::default() }
}

/// Plans the removal of sandboxes of earlier attempts, whose failure the status has told.
pub(super) fn superseded(world: &World) -> Vec<Step> {
    let earlier: Vec<String> =
        (1..world.attempts()).map(|attempt| attempt_name(&world.task, attempt)).collect();
    let is_earlier =
        |object: &Owned<'_>| object.metadata.name.as_ref().is_some_and(|name| earlier.contains(name));
    let is_kept = |object: &Owned<'_>| keeps(world) && object.pod.is_some_and(verdict::has_ended);
    mine(world).filter(is_earlier).filter(|object| !is_kept(object)).map(|object| object.delete()).collect()
}

/// A sandbox or a claim that the task controls, and the pod that is there because of it.
struct Owned<'a> {
    kind: Kind,
    metadata: &'a ObjectMeta,
    pod: Option<&'a Pod>,
}

impl Owned<'_> {
    fn delete(&self) -> Step {
        let action = Action::Delete {
            kind: self.kind,
            name: self.metadata.name.clone().unwrap_or_default(),
            uid: self.metadata.uid.clone().unwrap_or_default(),
            version: None,
            propagation: Propagation::Background,
        };
        // Each stands for itself.
        Step::new(Stage::Members, action)
    }
}

fn mine(world: &World) -> impl Iterator<Item = Owned<'_>> {
    let sandboxes = world.sandboxes.iter().map(|sandbox| Owned {
        kind: Kind::Sandbox,
        metadata: &sandbox.metadata,
        pod: world.pod_controlled_by(sandbox),
    });
    let claims = world.own_claims().map(|claim| Owned {
        kind: Kind::SandboxClaim,
        metadata: &claim.metadata,
        pod: world.pod_of_claim(claim),
    });
    sandboxes.chain(claims).filter(|object| {
        ownership::is_controlled_by(object.metadata, world.uid())
            && object.metadata.deletion_timestamp.is_none()
    })
}

fn keeps(world: &World) -> bool {
    world.task.spec.keep_on_failure
}

/// Returns when a task that has ended is deleted.
fn end(world: &World) -> Option<Timestamp> {
    let status = world.status();
    let ttl = world.task.spec.ttl_seconds_after_finished?;
    if keeps(world) && conditions::is_true(&status.conditions, ConditionType::Failed) {
        return None;
    }
    let Time(completed) = status.completion_time?;
    completed.checked_add(SignedDuration::from_secs(ttl.into())).ok()
}

/// Ends a pod at once, unless that was asked for already.
fn stop(pod: &Pod) -> Option<Step> {
    let deadline = pod.spec.as_ref().and_then(|spec| spec.active_deadline_seconds);
    if deadline == Some(1) || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let action = Action::Merge {
        kind: Kind::Pod,
        name: pod.metadata.name.clone().unwrap_or_default(),
        body: json!({"metadata": {"uid": pod.metadata.uid}, "spec": {"activeDeadlineSeconds": 1}}),
    };
    Some(Step::new(Stage::Pod, action))
}
