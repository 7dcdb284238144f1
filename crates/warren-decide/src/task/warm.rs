//! An attempt in a sandbox of a warm pool.
//!
//! A claim takes the sandbox. The program of its pod has waited for a command and becomes it, so the pod's termination state is
//! the verdict, as for every other attempt. The command is an annotation of the pod ([`annotations::TASK_COMMAND`]).
//!
//! An attempt runs its command at most once: the pod's UID is stored in the status before the pod gets the command, no other pod
//! gets it in the same attempt, and the pod never restarts what has ended.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::json;
use warren_api::claim::WarmPoolReference;
use warren_api::conditions::{self, ConditionStatus, ConditionType, Reason};
use warren_api::task::RUNNER_CONTAINER;
use warren_api::{
    AgentTask, Sandbox, SandboxClaim, SandboxClaimSpec, SandboxTemplate, SandboxWarmPool, annotations,
};

use super::attempt::{self, RESULT_FILE};
use super::{Plan, Progress, Verdict, World, attempt_name, verdict};
use crate::bounded::bounded;
use crate::ownership;
use crate::pod::expand;
use crate::step::{Action, Kind, Object, Stage, Step};

/// The longest command with its variables, in bytes of JSON. All annotations of a pod together may have twice as much.
const LONGEST_COMMAND: usize = 128 << 10;

/// The longest part of a claim's message that is repeated.
const LONGEST_CAUSE: usize = 512;

/// Returns the objects that the first step of an attempt needs: the pool, its template, and a template whose pods wait for
/// a command. An error is a plan that asks or waits for what is missing, or the reason why the attempt cannot be.
pub(super) fn creation(world: &World, attempt: i32, pool: &str, now: Timestamp) -> Result<Step, Missing> {
    let Some(found) = &world.pool else {
        return Err(absent(world, Kind::SandboxWarmPool, pool, now));
    };
    let template = &found.spec.sandbox_template_ref.name;
    let Some(template) = &world.template else {
        return Err(absent(world, Kind::SandboxTemplate, template, now));
    };
    is_fit(found, template).map_err(Missing::Invalid)?;
    command(world, None).map_err(Missing::Invalid)?;
    let task = &world.task;
    let metadata = ObjectMeta {
        name: Some(attempt_name(task, attempt)),
        namespace: task.metadata.namespace.clone(),
        owner_references: Some(vec![ownership::reference_to(&**task)]),
        annotations: Some(BTreeMap::from([
            (annotations::TASK.to_owned(), world.name().to_owned()),
            // The task has a timeout of its own.
            (annotations::DEADLINE.to_owned(), "0".to_owned()),
        ])),
        ..ObjectMeta::default()
    };
    let spec = SandboxClaimSpec {
        warm_pool_ref: WarmPoolReference { name: pool.to_owned() },
        ..SandboxClaimSpec::default()
    };
    let claim = SandboxClaim { metadata, spec, status: None };
    Ok(Step::new(Stage::Subject, Action::Create(Object::SandboxClaim(Box::new(claim)))))
}

/// The reason why an attempt cannot begin.
pub(super) enum Missing {
    /// Something may come yet, or the server must be asked for it.
    Yet(Plan),
    /// The task cannot run as it is written.
    Invalid(String),
}

/// Plans for an object that is not there.
fn absent(world: &World, kind: Kind, name: &str, now: Timestamp) -> Missing {
    if !world.knows(kind, name) {
        return Missing::Yet(Plan::asking(kind, name));
    }
    match world.patience(now) {
        Some(patience) => Missing::Yet(Plan { look_again: Some(patience), ..Plan::default() }),
        None => Missing::Invalid(format!("spec.runner.warmPoolName: there is no {kind} {name}")),
    }
}

/// Checks that sandboxes of a pool wait for a command and run it once.
fn is_fit(pool: &SandboxWarmPool, template: &SandboxTemplate) -> Result<(), String> {
    let name = |metadata: &ObjectMeta| metadata.name.clone().unwrap_or_default();
    let refused = |problem: &str| {
        let (template, pool) = (name(&template.metadata), name(&pool.metadata));
        Err(format!("spec.runner.warmPoolName: SandboxTemplate {template} of pool {pool} {problem}"))
    };
    let pod = &template.spec.blueprint.pod_template.spec;
    if pod.containers.is_empty() {
        return refused("has no container");
    }
    if !is_made_once(pod) {
        return refused("needs `restartPolicy: Never`, because a command must not run twice");
    }
    if !pod.volumes.iter().flatten().any(shows_the_command) {
        let key = annotations::TASK_COMMAND;
        return refused(&format!(
            "shows its pods no annotation `{key}` in a volume, so that they cannot wait for a command"
        ));
    }
    Ok(())
}

fn is_made_once(pod: &PodSpec) -> bool {
    pod.restart_policy.as_deref() == Some("Never")
}

fn shows_the_command(volume: &Volume) -> bool {
    let path = format!("metadata.annotations['{}']", annotations::TASK_COMMAND);
    let own = volume.downward_api.iter().flat_map(|source| source.items.iter().flatten());
    let projected = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
    let projected = projected.filter_map(|source| source.downward_api.as_ref());
    own.chain(projected.flat_map(|source| source.items.iter().flatten()))
        .filter_map(|item| item.field_ref.as_ref())
        .any(|field| field.field_path == path)
}

/// Returns the command and its variables as the waiting program reads them. The sandbox, where it is known, says where the
/// result goes.
fn command(world: &World, sandbox: Option<&Sandbox>) -> Result<String, String> {
    let task = &world.task;
    let container = sandbox.and_then(|sandbox| runner(&sandbox.spec.blueprint.pod_template.spec));
    let result_file = container.and_then(|container| container.termination_message_path.as_deref());
    let told = attempt::told(task, world.attempts().max(1), result_file.unwrap_or(RESULT_FILE).to_owned());
    // As kubelet does it: a reference is to a variable above, and one that is unknown stays as it is.
    let mut variables = HashMap::new();
    for variable in task.spec.runner.env.iter().chain(&told) {
        if variable.value_from.is_some() {
            return Err(format!("spec.runner.env: {} has valueFrom", bounded(&variable.name, 63)));
        }
        let value = expand(variable.value.as_deref().unwrap_or_default(), &variables);
        variables.insert(variable.name.clone(), value);
    }
    let words: Vec<String> = task.spec.runner.command.iter().map(|word| expand(word, &variables)).collect();
    let variables: BTreeMap<&String, &String> = variables.iter().collect();
    let text = json!({"command": words, "env": variables}).to_string();
    match text.len() > LONGEST_COMMAND {
        true => Err(format!(
            "spec: the command and its variables have {} bytes; a sandbox of a pool takes at most {LONGEST_COMMAND}",
            text.len()
        )),
        false => Ok(text),
    }
}

fn runner(pod: &PodSpec) -> Option<&Container> {
    let containers = &pod.containers;
    containers.iter().find(|container| container.name == RUNNER_CONTAINER).or(containers.first())
}

/// Returns the progress of the present attempt.
pub(super) fn progress(world: &World) -> Progress {
    let status = world.status();
    let claim = status.claim_name.clone().unwrap_or_default();
    let sandbox = status.sandbox_name.clone().unwrap_or_default();
    let unknown = |text: String| Progress::Ended(Verdict::new(Reason::Unknown, text));
    if status.pod_uid.is_none() {
        return match world.claim_named(&claim) {
            Some(claim) => before_the_command(world, claim),
            None if !world.knows(Kind::SandboxClaim, &claim) => Progress::Doubtful(Kind::SandboxClaim, claim),
            None => unknown(format!("Claim {claim} was deleted before the command ran")),
        };
    }
    let Some(pod) = world.present_pod() else {
        if !world.knows(Kind::Pod, &sandbox) {
            return Progress::Doubtful(Kind::Pod, sandbox);
        }
        return unknown(format!("The pod of sandbox {sandbox} was deleted before the command ended"));
    };
    if !has_command(pod) {
        return match is_over(pod) {
            true => unknown(ended_early(&sandbox)),
            false => Progress::Undelivered,
        };
    }
    match verdict::of_pod(pod) {
        verdict::PodState::Ended(verdict) => Progress::Ended(verdict),
        verdict::PodState::Running => Progress::Running,
        verdict::PodState::Starting => Progress::Starting("The sandbox is being made".to_owned()),
    }
}

/// Returns whether a pod was given its command.
pub(super) fn has_command(pod: &Pod) -> bool {
    ownership::annotation(&pod.metadata, annotations::TASK_COMMAND).is_some()
}

fn is_over(pod: &Pod) -> bool {
    verdict::has_ended(pod) || pod.metadata.deletion_timestamp.is_some()
}

fn ended_early(sandbox: &str) -> String {
    format!("Sandbox {sandbox} ended before it was given the command")
}

/// Follows a claim until it has a sandbox whose pod runs.
fn before_the_command(world: &World, claim: &SandboxClaim) -> Progress {
    let status = claim.status.clone().unwrap_or_default();
    let ended = |reason, text: String| Progress::Ended(Verdict::new(reason, text));
    let ready = conditions::find(&status.conditions, ConditionType::Ready);
    let not_ready = ready.filter(|ready| ready.status != ConditionStatus::True.as_str());
    if let Some(sandbox) = world.sandbox_of(claim) {
        let name = sandbox.metadata.name.clone().unwrap_or_default();
        if let Some(text) = verdict::refusal(sandbox) {
            return ended(Reason::Invalid, text);
        }
        let pod = world.pod_controlled_by(sandbox).filter(|pod| pod.metadata.name.as_ref() == Some(&name));
        if let Some(pod) = pod {
            if is_over(pod) {
                return ended(Reason::Unknown, ended_early(&name));
            }
            if !pod.spec.as_ref().is_some_and(is_made_once) {
                let text = format!("Sandbox {name} of the pool was made without `restartPolicy: Never`");
                return ended(Reason::Invalid, text);
            }
            if verdict::is_running(pod) {
                return Progress::Claimed {
                    sandbox: name,
                    pod: pod.metadata.uid.clone().unwrap_or_default(),
                };
            }
        }
    }
    match not_ready {
        Some(ready) if ready.reason == Reason::InvalidConfiguration.as_str() => {
            ended(Reason::Invalid, bounded(&ready.message, LONGEST_CAUSE).into_owned())
        }
        Some(ready) if ready.reason == Reason::ClaimExpired.as_str() => {
            ended(Reason::Unknown, "The claim ended before the command ran".to_owned())
        }
        Some(ready) => {
            let text = bounded(&ready.message, LONGEST_CAUSE);
            Progress::Starting(format!("Waiting for a sandbox of the pool: {text}"))
        }
        None => Progress::Starting("Waiting for a sandbox of the pool".to_owned()),
    }
}

/// Gives the pod of the present attempt its command, with the task's deadline in the same write. Repeating it changes nothing.
pub(super) fn deliver(world: &World, deadline: Timestamp) -> Result<Vec<Step>, String> {
    let Some(pod) = world.present_pod() else { return Ok(Vec::new()) };
    let sandbox = world.status().sandbox_name.unwrap_or_default();
    let sandbox = world.sandbox_named(&sandbox);
    let mut steps = Vec::new();
    if let Some(sandbox) = sandbox {
        // Another pod would only wait.
        let annotations =
            json!({annotations::POD_REPLACEMENT: annotations::NEVER, annotations::TASK: world.name()});
        let action = Action::Merge {
            kind: Kind::Sandbox,
            name: sandbox.metadata.name.clone().unwrap_or_default(),
            body: json!({"metadata": {"uid": sandbox.metadata.uid, "annotations": annotations}}),
        };
        steps.push(Step::new(Stage::Subject, action));
    }
    let annotations =
        json!({annotations::TASK: world.name(), annotations::TASK_COMMAND: command(world, sandbox)?});
    let action = Action::Merge {
        kind: Kind::Pod,
        name: pod.metadata.name.clone().unwrap_or_default(),
        body: json!({
            "metadata": {"uid": pod.metadata.uid, "annotations": annotations},
            "spec": {"activeDeadlineSeconds": active_deadline(pod, deadline)},
        }),
    };
    steps.push(Step::new(Stage::Subject, action));
    Ok(steps)
}

/// Returns the pod's time to run, which counts from its start. The pod has waited for a part of it.
fn active_deadline(pod: &Pod, deadline: Timestamp) -> i64 {
    let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    let started = started.or(pod.metadata.creation_timestamp.as_ref()).map_or(deadline, |Time(time)| *time);
    let seconds = deadline.duration_since(started).as_secs().saturating_add(1).max(1);
    // A limit of a pod can only be lowered.
    let own = pod.spec.as_ref().and_then(|spec| spec.active_deadline_seconds);
    own.map_or(seconds, |own| own.min(seconds))
}

impl World {
    /// Returns whether the task runs in sandboxes of a pool.
    pub(super) fn is_warm(&self) -> bool {
        self.task.spec.runner.warm_pool_name.is_some()
    }

    /// Returns the claim of this name that the task controls.
    pub(super) fn claim_named(&self, name: &str) -> Option<&SandboxClaim> {
        self.own_claims().find(|claim| claim.metadata.name.as_deref() == Some(name))
    }

    /// Returns the claims that the task controls.
    pub(super) fn own_claims(&self) -> impl Iterator<Item = &SandboxClaim> {
        let claims = self.claims.iter().map(|claim| &**claim);
        claims.filter(|claim| ownership::is_controlled_by(&claim.metadata, self.uid()))
    }

    /// Returns the sandbox that a claim says it has, and does have.
    fn sandbox_of(&self, claim: &SandboxClaim) -> Option<&Sandbox> {
        let name = claim.status.as_ref()?.sandbox.as_ref()?.name.as_deref()?;
        let sandbox = self.sandbox_named(name)?;
        self.has(claim, sandbox).then_some(sandbox)
    }

    fn has(&self, claim: &SandboxClaim, sandbox: &Sandbox) -> bool {
        ownership::is_controlled_by(&sandbox.metadata, claim.metadata.uid.as_deref().unwrap_or_default())
    }

    /// Returns the pod that a claim's sandbox has.
    pub(super) fn pod_of_claim(&self, claim: &SandboxClaim) -> Option<&Pod> {
        let mut sandboxes = self.sandboxes.iter().filter(|sandbox| self.has(claim, sandbox));
        sandboxes.find_map(|sandbox| self.pod_controlled_by(sandbox))
    }

    /// Returns the pod that the command of the present attempt is for.
    pub(super) fn present_pod(&self) -> Option<&Pod> {
        let uid = self.task.status.as_ref()?.pod_uid.as_ref()?;
        self.pods.iter().map(|pod| &**pod).find(|pod| pod.metadata.uid.as_ref() == Some(uid))
    }
}

/// Returns the name of the template that a task's sandboxes are made from.
#[must_use]
pub fn template_name<'a>(task: &'a AgentTask, pool: Option<&'a SandboxWarmPool>) -> Option<&'a str> {
    let runner = &task.spec.runner;
    let of_pool = pool.map(|pool| pool.spec.sandbox_template_ref.name.as_str());
    runner.sandbox_template_name.as_deref().or(of_pool)
}
