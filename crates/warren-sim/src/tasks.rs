//! Tasks in the simulation: the user's actions on them, and their invariants.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use warren_api::{AgentTask, Sandbox, SandboxClaim, annotations, go_duration};
use warren_decide::ownership;
use warren_decide::step::Kind;
use warren_decide::task::is_over;

use crate::object::{Any, Judged as _, Typed};
use crate::random::Random;
use crate::server::{Commit, Server};

/// The names of tasks; few, so that they are used again.
pub const NAMES: [&str; 4] = ["k0", "k1", "k2", "k3"];

/// The time after its deadline by which a task must have ended without obstacles: the pod's grace
/// period, fifteen seconds for the node, and a clock that is slightly wrong.
const SLACK: SignedDuration = SignedDuration::from_secs(60);

/// Returns true if tasks are part of a seed. Taken from the seed itself, so that it does not depend
/// on random draws.
#[must_use]
pub fn are_in(seed: u64) -> bool {
    seed % 4 == 1
}

/// Generates the spec of a task.
pub fn spec(random: &mut Random) -> Value {
    let timeout = random.pick(&["5s", "60s", "10m"]).unwrap_or("60s");
    let mut runner = json!({"command": ["work"], "timeout": timeout});
    match random.below(10) {
        0..3 => runner["sandboxTemplateName"] = json!(random.pick(&["t0", "t1", "t9"])),
        3..8 => runner["warmPoolName"] = json!(random.pick(&["p0", "p1", "p0", "p1", "p9"])),
        _ => {}
    }
    let mut spec = json!({"runner": runner, "retries": random.below(3), "keepOnFailure": random.chance(200)});
    if random.chance(200) {
        spec["ttlSecondsAfterFinished"] = json!(random.below(60));
    }
    spec
}

/// Checks a write of a task: a final status stays as it is.
pub fn judge_task(commit: &Commit) -> Result<(), String> {
    let side = |any: &Option<Any>| any.as_ref().and_then(AgentTask::of).cloned();
    let (Some(before), Some(after)) = (side(&commit.before), side(&commit.after)) else { return Ok(()) };
    let name = after.metadata.name.clone().unwrap_or_default();
    if is_over(&before) && before.status != after.status {
        return Err(format!("task {name} had ended, and {} changed its status", commit.by));
    }
    let attempts = |task: &AgentTask| task.status.as_ref().map_or(0, |status| status.attempts);
    if attempts(&after) < attempts(&before) || attempts(&after) > attempts(&before) + 1 {
        return Err(format!("task {name} went from attempt {} to {}", attempts(&before), attempts(&after)));
    }
    let pod = |task: &AgentTask| task.status.as_ref().and_then(|status| status.pod_uid.clone());
    if attempts(&after) == attempts(&before) && pod(&before).is_some() && pod(&after) != pod(&before) {
        return Err(format!("task {name} has another pod in attempt {}", attempts(&after)));
    }
    match attempts(&after) > after.spec.retries + 1 {
        true => Err(format!("task {name} is in attempt {} of {}", attempts(&after), after.spec.retries + 1)),
        false => Ok(()),
    }
}

/// Checks a pod that is new, begins to run or is given a command. Two attempts of a task never run
/// at the same time. A pod of a pool gets the command only while the task's status names that pod.
pub fn judge_pod(server: &Server, commit: &Commit) -> Result<(), String> {
    let Some(pod) = commit.after.as_ref().and_then(Pod::of) else { return Ok(()) };
    let Some(task) = task_of(server, pod) else { return Ok(()) };
    let before = commit.before.as_ref().and_then(Pod::of);
    if has_command(pod) && runs(pod) && !before.is_some_and(|before| has_command(before)) {
        let status = AgentTask::of(task).and_then(|task| task.status.clone()).unwrap_or_default();
        if status.pod_uid != pod.metadata.uid {
            return Err(format!(
                "task {} named {:?}, and {:?} got the command",
                task.name(),
                status.pod_uid,
                pod.metadata.uid
            ));
        }
    }
    let running: BTreeSet<&str> = server
        .all(Kind::Pod)
        .filter_map(Pod::of)
        .filter(|pod| {
            may_work(server, pod) && task_of(server, pod).is_some_and(|other| other.uid() == task.uid())
        })
        .filter_map(|pod| pod.metadata.name.as_deref())
        .collect();
    match running.len() > 1 {
        true => Err(format!("task {} has more than one attempt that runs: {running:?}", task.name())),
        false => Ok(()),
    }
}

fn has_command(pod: &Pod) -> bool {
    ownership::annotation(&pod.metadata, annotations::TASK_COMMAND).is_some()
}

/// Returns whether the command of a task may run in a pod. One of a pool waits for it at first.
fn may_work(server: &Server, pod: &Pod) -> bool {
    let sandbox = ownership::controller(&pod.metadata).and_then(|owner| server.owner::<Sandbox>(owner));
    let owner = sandbox.and_then(|sandbox| ownership::controller(&sandbox.metadata));
    runs(pod) && (has_command(pod) || owner.is_some_and(ownership::is_kind::<AgentTask>))
}

/// Returns the task that a pod runs for, by its sandbox, which a claim of the task may have.
fn task_of<'a>(server: &'a Server, pod: &Pod) -> Option<&'a Any> {
    let sandbox = server.owner::<Sandbox>(ownership::controller(&pod.metadata)?)?;
    let mut owner = ownership::controller(&sandbox.metadata)?;
    if ownership::is_kind::<SandboxClaim>(owner) {
        owner = ownership::controller(&server.owner::<SandboxClaim>(owner)?.metadata)?;
    }
    server.get(Kind::AgentTask, &owner.name).filter(|task| task.uid() == owner.uid)
}

fn runs(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Succeeded" | "Failed"))
}

/// Returns true if a sandbox has no pod because it was made once and is gone.
#[must_use]
pub fn is_spent(sandbox: &Sandbox) -> bool {
    let annotation = |key| ownership::annotation(&sandbox.metadata, key);
    annotation(annotations::POD_REPLACEMENT) == Some(annotations::NEVER)
        && annotation(annotations::POD_NAME).is_some()
}

/// Checks a task at rest: it has ended, or still has time, and nothing of it runs on after its end.
pub fn check(server: &Server, task: &AgentTask, now: Timestamp) -> Result<(), String> {
    let (metadata, status) = (&task.metadata, task.status.clone().unwrap_or_default());
    let (name, uid) = (metadata.name.clone().unwrap_or_default(), metadata.uid.clone().unwrap_or_default());
    let mine: Vec<&Any> =
        server.all(Kind::Sandbox).filter(|sandbox| sandbox.is_controlled_by(&uid)).collect();
    if is_over(task) {
        for claim in server.all(Kind::SandboxClaim).filter(|claim| claim.is_controlled_by(&uid)) {
            if Some(claim.name()) != status.claim_name.as_deref() && !task.spec.keep_on_failure {
                return Err(format!("task {name} has ended, and left claim {}", claim.name()));
            }
            for sandbox in server.all(Kind::Sandbox).filter(|sandbox| sandbox.is_controlled_by(claim.uid())) {
                let pods = server.all(Kind::Pod).filter(|pod| pod.is_controlled_by(sandbox.uid()));
                if let Some(pod) = pods.filter_map(Pod::of).find(|pod| runs(pod)) {
                    let pod = pod.metadata.name.as_deref().unwrap_or_default();
                    return Err(format!("task {name} has ended, and its pod {pod} runs on"));
                }
            }
        }
        for sandbox in mine {
            let pods = server.all(Kind::Pod).filter(|pod| pod.is_controlled_by(sandbox.uid()));
            if let Some(pod) = pods.filter_map(Pod::of).find(|pod| runs(pod)) {
                let pod = pod.metadata.name.as_deref().unwrap_or_default();
                return Err(format!("task {name} has ended, and its pod {pod} runs on"));
            }
            if Some(sandbox.name()) != status.sandbox_name.as_deref() && !task.spec.keep_on_failure {
                return Err(format!("task {name} has ended, and left sandbox {}", sandbox.name()));
            }
        }
        return Ok(());
    }
    let Some(Time(started)) = status.start_time else {
        return Err(format!("task {name} was never begun, and has not ended"));
    };
    let timeout = go_duration::parse(&task.spec.runner.timeout).unwrap_or(Duration::ZERO);
    let timeout = SignedDuration::try_from(timeout).unwrap_or(SignedDuration::MAX);
    match now > started + timeout + SLACK {
        true => Err(format!("task {name} began at {started} with {timeout:?}, and goes on at {now}")),
        false => Ok(()),
    }
}
