//! The sandbox of one attempt.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, EnvVar, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use warren_api::blueprint::SandboxBlueprint;
use warren_api::task::RUNNER_CONTAINER;
use warren_api::{AgentTask, NameHash, Sandbox, SandboxSpec, annotations, labels};

use super::World;
use crate::ownership;
use crate::secure_defaults;
use crate::step::{Action, Object, Stage, Step};

/// The image of a task that names none: the machine's own programs.
const HOST_IMAGE: &str = "warren.dev/host";

/// The file for the result, where the template names no other: Kubernetes' default.
pub(super) const RESULT_FILE: &str = "/dev/termination-log";

/// Seconds between the signal to end and the end, where the template says nothing. Kubernetes' 30 seconds are for servers
/// that drain connections.
const GRACE: i64 = 5;

/// A name is part of label values and host names, which have 63 characters. Behind the task's name come a hash and the number of the
/// attempt.
const LONGEST_BASE: usize = 63 - "-01234567-11".len();

/// Returns the name of an attempt's sandbox. It depends on the uid, so that a task which takes the name of an earlier one never meets
/// that one's sandboxes.
#[must_use]
pub fn attempt_name(task: &AgentTask, attempt: i32) -> String {
    let name = task.metadata.name.as_deref().unwrap_or_default();
    let base: String = name.chars().map(|c| if c == '.' { '-' } else { c }).take(LONGEST_BASE).collect();
    let hash = NameHash::of(task.metadata.uid.as_deref().unwrap_or_default());
    format!("{}-{hash}-{attempt}", base.trim_end_matches('-'))
}

/// Returns the name of the sandbox of the attempt after the present one.
#[must_use]
pub fn next_name(task: &AgentTask) -> String {
    attempt_name(task, task.status.as_ref().map_or(0, |status| status.attempts).saturating_add(1))
}

/// The creation of an attempt's sandbox.
pub(super) fn creation(
    world: &World,
    attempt: i32,
    deadline: Timestamp,
    now: Timestamp,
) -> Result<Step, String> {
    let task = &world.task;
    let mut metadata = ObjectMeta {
        name: Some(attempt_name(task, attempt)),
        namespace: task.metadata.namespace.clone(),
        owner_references: Some(vec![ownership::reference_to(&**task)]),
        ..ObjectMeta::default()
    };
    let mut own_annotations = BTreeMap::from([
        (annotations::TASK.to_owned(), world.name().to_owned()),
        (annotations::POD_REPLACEMENT.to_owned(), annotations::NEVER.to_owned()),
    ]);
    let mut blueprint = match &world.template {
        None => SandboxBlueprint::default(),
        Some(template) => {
            let name = template.metadata.name.clone().unwrap_or_default();
            let hash = NameHash::of(&name).to_string();
            metadata.labels = Some(BTreeMap::from([(labels::SANDBOX_TEMPLATE_REF_HASH.to_owned(), hash)]));
            own_annotations.insert(annotations::SANDBOX_TEMPLATE_REF.to_owned(), name);
            template.spec.blueprint.clone()
        }
    };
    metadata.annotations = Some(own_annotations);

    let pod = Arc::make_mut(&mut blueprint.pod_template.spec);
    if let Some(template) = &world.template {
        secure_defaults::apply(&template.spec, pod);
    } else {
        secure_defaults::fill_in(pod, false);
        pod.enable_service_links = Some(false);
        let image = task.spec.runner.image.clone().unwrap_or_else(|| HOST_IMAGE.to_owned());
        pod.containers.push(Container {
            name: RUNNER_CONTAINER.to_owned(),
            image: Some(image),
            ..Container::default()
        });
    }
    pod.restart_policy = Some("Never".to_owned());
    pod.termination_grace_period_seconds.get_or_insert(GRACE);
    let seconds = deadline.duration_since(now).as_millis().div_euclid(1000) + 1;
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX).max(1);
    pod.active_deadline_seconds = Some(pod.active_deadline_seconds.map_or(seconds, |own| own.min(seconds)));
    command(task, attempt, pod)?;

    let pod_annotations = &mut blueprint.pod_template.metadata.annotations;
    pod_annotations.insert(annotations::TASK.to_owned(), world.name().to_owned());
    let spec = SandboxSpec { blueprint, ..SandboxSpec::default() };
    let sandbox = Sandbox { metadata, spec, status: None };
    Ok(Step::new(Stage::Subject, Action::Create(Object::Sandbox(Box::new(sandbox)))))
}

/// Puts the command into its container.
fn command(task: &AgentTask, attempt: i32, pod: &mut PodSpec) -> Result<(), String> {
    let runner = &task.spec.runner;
    let place = pod.containers.iter().position(|container| container.name == RUNNER_CONTAINER).unwrap_or(0);
    let Some(container) = pod.containers.get_mut(place) else {
        return Err("spec.runner.sandboxTemplateName: the template has no container".to_owned());
    };
    if !runner.command.is_empty() {
        container.command = Some(runner.command.clone());
        container.args = None;
    }
    if runner.resources.is_some() {
        container.resources = runner.resources.clone();
    }
    let result_file =
        container.termination_message_path.get_or_insert_with(|| RESULT_FILE.to_owned()).clone();
    let variables = container.env.get_or_insert_default();
    for variable in runner.env.iter().cloned().chain(told(task, attempt, result_file)) {
        match variables.iter_mut().find(|present| present.name == variable.name) {
            Some(present) => *present = variable,
            None => variables.push(variable),
        }
    }
    Ok(())
}

/// Returns the environment variables that tell the command about its task.
pub(super) fn told(task: &AgentTask, attempt: i32, result_file: String) -> Vec<EnvVar> {
    let description = task.spec.task.clone().unwrap_or_default();
    let repository = description.repository.unwrap_or_default();
    [
        ("WARREN_TASK_ID", task.metadata.name.clone().unwrap_or_default()),
        ("WARREN_TASK_ATTEMPT", attempt.to_string()),
        ("WARREN_TASK_RESULT", result_file),
        ("WARREN_TASK_DESCRIPTION", description.description),
        ("WARREN_TASK_CONTEXT", description.context),
        ("WARREN_TASK_REPOSITORY_URL", repository.url),
        ("WARREN_TASK_REPOSITORY_REF", repository.reference),
    ]
    .into_iter()
    .filter(|(_, value)| !value.is_empty())
    // A dollar sign would begin a reference to another variable.
    .map(|(name, value)| EnvVar {
        name: name.to_owned(),
        value: Some(value.replace('$', "$$")),
        value_from: None,
    })
    .collect()
}
