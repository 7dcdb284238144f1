//! Decides what an AgentTask needs: one sandbox per attempt, and a status that says how the command
//! ended.
//!
//! The command is the main process of the sandbox's pod, which is made once and never restarted; in a sandbox of a pool, that process
//! waits for the command first ([`warm`]). So the pod's termination
//! state is the only source of the verdict ([`verdict`]), and it is there whatever has happened to the controller meanwhile.
//! The node ends the command at the task's deadline (`activeDeadlineSeconds`); this module steps in only where it does not.
//!
//! A verdict is published before anything is cleaned up for it, and is never changed afterwards.

mod attempt;
mod cleanup;
mod status;
#[cfg(test)]
mod tests;
mod verdict;
mod warm;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use warren_api::conditions::{self, ConditionType, Reason};
use warren_api::{
    AgentTask, AgentTaskStatus, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, annotations,
    go_duration,
};

pub use attempt::{attempt_name, next_name};
pub use verdict::Verdict;
pub use warm::template_name;

use crate::ownership;
use crate::step::{Kind, Note, Step};

/// The longest time that a task waits for its template. Manifests are often applied together, and
/// watches of different kinds come in no order.
const TEMPLATE_PATIENCE: Duration = Duration::from_secs(5);

/// The time after the deadline, beyond the pod's own grace period, that the node may take to end
/// the command. After that the task is ended without it.
const OVERDUE: SignedDuration = SignedDuration::from_secs(15);

/// The longest timeout of a task: one year. It keeps sums of times within what a timestamp can be.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// The observed state of one task. It may be a little out of date.
#[derive(Clone, Debug)]
pub struct World {
    /// The task.
    pub task: Arc<AgentTask>,
    /// The claims that the task controls, and those that have the name of its present or next attempt.
    pub claims: Vec<Arc<SandboxClaim>>,
    /// The sandboxes that the task or one of those claims controls, and those that have the name of its present or next attempt.
    pub sandboxes: Vec<Arc<Sandbox>>,
    /// The pods that those sandboxes control, and the one that has the name of the present attempt's sandbox.
    pub pods: Vec<Arc<Pod>>,
    /// The pool that the task names.
    pub pool: Option<Arc<SandboxWarmPool>>,
    /// The template that the task names, or the one of the pool.
    pub template: Option<Arc<SandboxTemplate>>,
    /// The objects that the server itself was asked for before this was seen ([`Plan::ask`]).
    pub confirmed: BTreeSet<(Kind, String)>,
    /// The server's message when it refused the next sandbox as invalid.
    pub refused: Option<String>,
}

/// The actions to take for a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Objects to ask the server for, before deciding again: they seem to be gone, and watches of different kinds come in no
    /// order. A plan that asks has no steps.
    pub ask: Vec<(Kind, String)>,
    /// Writes, in order.
    pub steps: Vec<Step>,
    /// Events to record once the steps are done.
    pub notes: Vec<Note>,
    /// When to look again without being woken.
    pub look_again: Option<Duration>,
}

impl Plan {
    fn asking(kind: Kind, name: &str) -> Self {
        Self { ask: vec![(kind, name.to_owned())], ..Self::default() }
    }
}

/// The progress of an attempt.
enum Progress {
    /// The server has to be asked.
    Doubtful(Kind, String),
    /// The command does not run yet, and why.
    Starting(String),
    /// A sandbox of the pool was claimed, and its pod may be given the command.
    Claimed { sandbox: String, pod: String },
    /// The pod of the status was not given the command yet.
    Undelivered,
    /// The command runs.
    Running,
    /// The attempt is over.
    Ended(Verdict),
}

/// Plans for a task.
#[must_use]
pub fn decide(world: &World, now: Timestamp) -> Plan {
    if world.task.metadata.deletion_timestamp.is_some() {
        return Plan::default();
    }
    if is_over(&world.task) {
        return cleanup::plan(world, now);
    }
    let timeout = match timeout(&world.task) {
        Ok(timeout) => timeout,
        Err(text) => return status::finish(world, &Verdict::new(Reason::Invalid, text), now),
    };
    match world.attempts() {
        0 => first(world, timeout, now),
        attempt => under_way(world, attempt, timeout, now),
    }
}

/// Returns whether a task has ended, so that its verdict never changes again.
#[must_use]
pub fn is_over(task: &AgentTask) -> bool {
    let conditions = task.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    [ConditionType::Succeeded, ConditionType::Failed]
        .into_iter()
        .any(|type_| conditions::is_true(conditions, type_))
}

fn timeout(task: &AgentTask) -> Result<SignedDuration, String> {
    let text = &task.spec.runner.timeout;
    let field = "spec.runner.timeout";
    let timeout = go_duration::parse(text).map_err(|error| format!("{field}: {text:?} is {error}"))?;
    if timeout.is_zero() || timeout > LONGEST_TIMEOUT {
        return Err(format!("{field}: {text:?} is not between 1s and 8760h"));
    }
    SignedDuration::try_from(timeout).map_err(|_| format!("{field}: {text:?} is too long"))
}

/// Begins the first attempt, or says why that cannot be.
fn first(world: &World, timeout: SignedDuration, now: Timestamp) -> Plan {
    if world.task.spec.cancel {
        let text = "The task was cancelled before its command ran";
        return status::finish(world, &Verdict::new(Reason::Cancelled, text), now);
    }
    begin(world, 1, now + timeout, None, now)
}

/// Makes the sandbox of an attempt and says so in the status. If the sandbox is there already, an earlier pass was ended
/// between these two writes.
fn begin(world: &World, attempt: i32, deadline: Timestamp, failed: Option<&Verdict>, now: Timestamp) -> Plan {
    let invalid = |text: String| status::finish(world, &Verdict::new(Reason::Invalid, text), now);
    let name = attempt_name(&world.task, attempt);
    if let Some(pool) = &world.task.spec.runner.warm_pool_name {
        return begin_warm(world, attempt, pool, failed, now);
    }
    if let Some(present) = world.sandbox_named(&name) {
        return match ownership::is_controlled_by(&present.metadata, world.uid()) {
            true => {
                let started = present.metadata.creation_timestamp.as_ref().map_or(now, |Time(time)| *time);
                status::record(world, attempt, Begun::Sandbox(&name), failed, started, now)
            }
            false => invalid(format!("sandbox {name} exists already and belongs to another object")),
        };
    }
    if let Some(text) = &world.refused {
        return invalid(format!("The API server refuses the sandbox as invalid: {text}"));
    }
    if let Some(template) = &world.task.spec.runner.sandbox_template_name
        && world.template.is_none()
    {
        if !world.knows(Kind::SandboxTemplate, template) {
            return Plan::asking(Kind::SandboxTemplate, template);
        }
        if let Some(patience) = world.patience(now) {
            return Plan { look_again: Some(patience), ..Plan::default() };
        }
        return invalid(format!("spec.runner.sandboxTemplateName: there is no SandboxTemplate {template}"));
    }
    let creation = match attempt::creation(world, attempt, deadline, now) {
        Ok(creation) => creation,
        Err(text) => return invalid(text),
    };
    let mut plan = status::record(world, attempt, Begun::Sandbox(&name), failed, now, now);
    plan.steps.insert(0, creation);
    plan
}

/// The object that an attempt begins with.
enum Begun<'a> {
    /// A sandbox of the task's own.
    Sandbox(&'a str),
    /// A claim of a sandbox from a pool.
    Claim(&'a str),
}

/// Makes the claim of an attempt and says so in the status, as [`begin`] does with a sandbox.
fn begin_warm(world: &World, attempt: i32, pool: &str, failed: Option<&Verdict>, now: Timestamp) -> Plan {
    let invalid = |text: String| status::finish(world, &Verdict::new(Reason::Invalid, text), now);
    let name = attempt_name(&world.task, attempt);
    let begun = Begun::Claim(&name);
    let is_named = |claim: &&Arc<SandboxClaim>| claim.metadata.name.as_deref() == Some(&*name);
    if let Some(present) = world.claims.iter().find(is_named) {
        return match ownership::is_controlled_by(&present.metadata, world.uid()) {
            true => {
                let started = present.metadata.creation_timestamp.as_ref().map_or(now, |Time(time)| *time);
                status::record(world, attempt, begun, failed, started, now)
            }
            false => invalid(format!("claim {name} exists already and belongs to another object")),
        };
    }
    if let Some(text) = &world.refused {
        return invalid(format!("The API server refuses the claim as invalid: {text}"));
    }
    match warm::creation(world, attempt, pool, now) {
        Ok(creation) => {
            let mut plan = status::record(world, attempt, begun, failed, now, now);
            plan.steps.insert(0, creation);
            plan
        }
        Err(warm::Missing::Yet(plan)) => plan,
        Err(warm::Missing::Invalid(text)) => invalid(text),
    }
}

/// Follows an attempt that the status speaks of.
fn under_way(world: &World, attempt: i32, timeout: SignedDuration, now: Timestamp) -> Plan {
    let status = world.status();
    let started = status.start_time.as_ref().map_or(now, |Time(time)| *time);
    let deadline = started + timeout;
    let overdue = deadline + world.grace() + OVERDUE;
    let progress = if world.is_warm() { warm::progress(world) } else { progress(world) };
    let finish = |reason, text: String| status::finish(world, &Verdict::new(reason, text), now);
    match progress {
        Progress::Doubtful(kind, name) => Plan::asking(kind, &name),
        Progress::Ended(verdict) => ended(world, attempt, verdict, deadline, now),
        _ if world.task.spec.cancel => finish(Reason::Cancelled, "The task was cancelled".to_owned()),
        _ if now >= overdue => {
            let waiting = match progress {
                Progress::Starting(text) => format!("; {text}"),
                _ => String::new(),
            };
            finish(Reason::Timeout, format!("The task took longer than {}{waiting}", world.timeout_text()))
        }
        Progress::Claimed { .. } | Progress::Undelivered if now >= deadline => finish(
            Reason::Timeout,
            format!("No sandbox of the pool was ready within {}", world.timeout_text()),
        ),
        Progress::Starting(text) => {
            status::observe(world, (Reason::Starting, &text), Some(overdue), now).sweeping(world)
        }
        Progress::Claimed { sandbox, pod } => status::assign(world, &sandbox, &pod, Some(overdue), now),
        Progress::Undelivered => match warm::deliver(world, deadline) {
            Ok(steps) => {
                let look_again = Duration::try_from(overdue.duration_since(now)).ok();
                Plan { steps, look_again, ..Plan::default() }
            }
            Err(text) => finish(Reason::Invalid, text),
        },
        Progress::Running => {
            let text = "The command is running";
            status::observe(world, (Reason::CommandRunning, text), Some(overdue), now).sweeping(world)
        }
    }
}

/// Ends the task after an attempt, or begins another one.
fn ended(world: &World, attempt: i32, verdict: Verdict, deadline: Timestamp, now: Timestamp) -> Plan {
    let is_retried = verdict.is_retryable()
        && attempt <= world.task.spec.retries
        && !world.task.spec.cancel
        && now < deadline;
    if !is_retried {
        return status::finish(world, &verdict, now);
    }
    // A sandbox that was deleted may leave a pod that still runs; two attempts must not run at the same time.
    let name = world.status().sandbox_name.unwrap_or_default();
    if world.is_warm() && world.status().pod_uid.is_none() {
        // No pod was to have the command.
        return begin(world, attempt + 1, deadline, Some(&verdict), now);
    }
    let pod = if world.is_warm() { world.present_pod() } else { world.pod_of(&name) };
    match pod {
        Some(pod) if !verdict::has_ended(pod) => {
            let text = format!("{}; waiting for its pod to end", verdict.message);
            return status::observe(world, (Reason::Retrying, &text), Some(deadline), now);
        }
        Some(_) => {}
        None if !world.knows(Kind::Pod, &name) => return Plan::asking(Kind::Pod, &name),
        None => {}
    }
    begin(world, attempt + 1, deadline, Some(&verdict), now)
}

fn progress(world: &World) -> Progress {
    let name = world.status().sandbox_name.unwrap_or_default();
    let sandbox = world
        .sandbox_named(&name)
        .filter(|sandbox| ownership::is_controlled_by(&sandbox.metadata, world.uid()));
    let pod = match sandbox {
        Some(sandbox) => world.pod_controlled_by(sandbox),
        None => world.pod_of(&name),
    };
    if let Some(pod) = pod {
        match verdict::of_pod(pod) {
            verdict::PodState::Ended(verdict) => return Progress::Ended(verdict),
            verdict::PodState::Running if sandbox.is_some() => return Progress::Running,
            verdict::PodState::Running | verdict::PodState::Starting => {}
        }
    }
    let Some(sandbox) = sandbox else {
        if !world.knows(Kind::Sandbox, &name) {
            return Progress::Doubtful(Kind::Sandbox, name);
        }
        let text = format!("Sandbox {name} was deleted before the command ended");
        return Progress::Ended(Verdict::new(Reason::Unknown, text));
    };
    if let Some(text) = verdict::refusal(sandbox) {
        return Progress::Ended(Verdict::new(Reason::Invalid, text));
    }
    // The annotation is written when the pod has been made; no other is made in its place.
    let was_made = ownership::annotation(&sandbox.metadata, annotations::POD_NAME).is_some();
    if pod.is_none() && was_made {
        if !world.knows(Kind::Pod, &name) {
            return Progress::Doubtful(Kind::Pod, name);
        }
        let text = format!("The pod of sandbox {name} was deleted before the command ended");
        return Progress::Ended(Verdict::new(Reason::Unknown, text));
    }
    Progress::Starting(verdict::waiting(sandbox))
}

impl World {
    fn name(&self) -> &str {
        self.task.metadata.name.as_deref().unwrap_or_default()
    }

    fn uid(&self) -> &str {
        self.task.metadata.uid.as_deref().unwrap_or_default()
    }

    fn status(&self) -> AgentTaskStatus {
        self.task.status.clone().unwrap_or_default()
    }

    fn attempts(&self) -> i32 {
        self.task.status.as_ref().map_or(0, |status| status.attempts)
    }

    fn timeout_text(&self) -> &str {
        &self.task.spec.runner.timeout
    }

    /// Returns whether the server was asked for an object, so that it is gone if it is not seen.
    fn knows(&self, kind: Kind, name: &str) -> bool {
        self.confirmed.iter().any(|(known, of)| *known == kind && of == name)
    }

    fn sandbox_named(&self, name: &str) -> Option<&Sandbox> {
        let is_named = |sandbox: &&Arc<Sandbox>| sandbox.metadata.name.as_deref() == Some(name);
        self.sandboxes.iter().find(is_named).map(|sandbox| &**sandbox)
    }

    /// Returns the pod of a sandbox.
    fn pod_controlled_by(&self, sandbox: &Sandbox) -> Option<&Pod> {
        let uid = sandbox.metadata.uid.as_deref().unwrap_or_default();
        self.pods.iter().map(|pod| &**pod).find(|pod| ownership::is_controlled_by(&pod.metadata, uid))
    }

    /// Returns the pod of the sandbox of this name, which may be gone already.
    fn pod_of(&self, name: &str) -> Option<&Pod> {
        let is_of_the_task =
            |pod: &&Pod| ownership::annotation(&pod.metadata, annotations::TASK) == Some(self.name());
        let mut named = self.pods.iter().map(|pod| &**pod);
        named.find(|pod| pod.metadata.name.as_deref() == Some(name) && is_of_the_task(pod))
    }

    /// Returns how long the pod of the present attempt has between the signal to end and its end.
    fn grace(&self) -> SignedDuration {
        let name = self.status().sandbox_name.unwrap_or_default();
        let seconds = self
            .sandbox_named(&name)
            .and_then(|sandbox| sandbox.spec.blueprint.pod_template.spec.termination_grace_period_seconds);
        // Kubernetes' own default; a longer period than an hour is not waited for.
        SignedDuration::from_secs(seconds.unwrap_or(30).clamp(0, 3600))
    }

    /// Returns for how long a missing template is still waited for.
    fn patience(&self, now: Timestamp) -> Option<Duration> {
        let Time(created) = self.task.metadata.creation_timestamp.as_ref()?;
        let age = Duration::try_from(now.duration_since(*created)).ok()?;
        TEMPLATE_PATIENCE.checked_sub(age).filter(|rest| !rest.is_zero())
    }
}

impl Plan {
    /// Adds the removal of sandboxes that other attempts have left.
    fn sweeping(mut self, world: &World) -> Self {
        self.steps.extend(cleanup::superseded(world));
        self
    }
}
