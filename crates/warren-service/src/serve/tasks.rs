//! Tasks: commands that run once in a sandbox of their own. Each is an `AgentTask` of the home or
//! cluster, which keeps how it ended; nothing about tasks is stored here.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::AsyncReadExt as _;
use http::{Response, StatusCode};
use k8s_openapi::api::core::v1::{EnvVar, Pod};
use serde::Deserialize;
use serde_json::{Value, json};
use warren_api::conditions::{self, ConditionType};
use warren_api::task::{RUNNER_CONTAINER, TaskDescription, TaskRunner};
use warren_api::{AgentTask, AgentTaskSpec, Sandbox};
use warren_client::files::chain;
use warren_client::kube::api::{Api, DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams};
use warren_client::kube::{Client, Error, ResourceExt as _};
use warren_client::sandbox;
use warren_providers::{Connect as _, check_environment, check_image};

use super::Service;
use super::answer::{Body, Failure, data, data_with};
use super::changes::Topic;
use super::cluster::unavailable;
use super::request::Request;

type Answer = Result<Response<Body>, Failure>;

/// The largest number of lines and of bytes of a log that are sent: its end.
const MOST_LINES: i64 = 2000;
const MOST_BYTES: usize = 256 << 10;

/// The longest time that reading a log may take.
const LOG_TIMEOUT: Duration = Duration::from_secs(30);

/// The limits of the schema of `AgentTask`.
const LONGEST_DESCRIPTION: usize = 16 << 10;
const LONGEST_CONTEXT: usize = 64 << 10;
const MOST_WORDS: usize = 1024;
const MOST_RETRIES: i32 = 10;

/// The longest summary of a task in a list, in characters.
const LONGEST_SUMMARY: usize = 200;

/// The tasks of the service's namespace.
struct Tasks {
    client: Client,
    namespace: String,
    api: Api<AgentTask>,
}

impl Tasks {
    /// Connects to the home or cluster, and starts a local home if `start` is true.
    async fn connect(service: &Service, start: bool) -> Result<Self, Failure> {
        let Some(reach) = &service.reach else { return Err(not_served()) };
        let client = reach.connect(start).await.map_err(unavailable)?;
        let namespace = service.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        Ok(Self { api: Api::namespaced(client.clone(), &namespace), client, namespace })
    }

    async fn get(&self, name: &str) -> Result<AgentTask, Failure> {
        // A name becomes a part of a path.
        if !is_object_name(name) {
            return Err(not_found(name));
        }
        self.api.get(name).await.map_err(|error| failed(name, &error))
    }
}

fn not_served() -> Failure {
    let message = "tasks are not served here: they need Warren's home, or a cluster with the kind `AgentTask` and \
                   `warren controller --extensions --agent-tasks`";
    Failure::new(StatusCode::NOT_IMPLEMENTED, "TASKS_NOT_SERVED", message)
}

fn not_found(name: &str) -> Failure {
    let name: String = name.chars().take(64).filter(|letter| !letter.is_control()).collect();
    Failure::new(StatusCode::NOT_FOUND, "TASK_NOT_FOUND", format!("Task not found: {name}"))
}

/// Makes a failure of a refusal by the API server.
fn failed(name: &str, error: &Error) -> Failure {
    let Error::Api(status) = error else { return unavailable(chain(error)) };
    match status.code {
        404 if status.details.as_ref().is_some_and(|details| details.name == name) => not_found(name),
        404 => not_served(),
        409 => {
            let message = format!("there is a task `{name}` already; choose another name");
            Failure::new(StatusCode::CONFLICT, "TASK_ALREADY_EXISTS", message)
        }
        400 | 422 => Failure::new(StatusCode::BAD_REQUEST, "VALIDATION_ERROR", status.message.clone()),
        _ => unavailable(chain(error)),
    }
}

/// Returns true for the name of an object.
fn is_object_name(name: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let fits = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let bytes = name.as_bytes();
    bytes.len() <= 253 && bytes.iter().all(fits) && ends(bytes.first()) && ends(bytes.last())
}

/// Lists tasks, the newest first.
pub async fn list(service: &Service) -> Answer {
    if service.reach.is_none() {
        return data(&[(); 0]);
    }
    let tasks = Tasks::connect(service, false).await?;
    let listed = tasks.api.list(&ListParams::default()).await.map_err(|error| failed("", &error))?;
    let mut all = listed.items;
    all.sort_by(|one, other| {
        let created = |task: &AgentTask| task.metadata.creation_timestamp.clone();
        created(other).cmp(&created(one)).then_with(|| one.name_any().cmp(&other.name_any()))
    });
    data(&all.iter().map(row).collect::<Vec<_>>())
}

/// Shows one, with its conditions, its command and its result.
pub async fn one(service: &Service, name: &str) -> Answer {
    data(&details(&Tasks::connect(service, false).await?.get(name).await?))
}

/// Submits a task.
pub async fn create(service: &Service, request: Request) -> Answer {
    let submit: Submit = request.json().await?;
    let wanted = submit.wanted()?;
    let tasks = Tasks::connect(service, true).await?;
    let name = wanted.metadata.name.clone().unwrap_or_default();
    let created = tasks.api.create(&PostParams::default(), &wanted).await;
    let created = created.map_err(|error| failed(&name, &error))?;
    service.changes.tell(Topic::Tasks);
    data_with(StatusCode::CREATED, &details(&created))
}

/// Cancels a task. One that has ended stays as it is.
pub async fn cancel(service: &Service, name: &str) -> Answer {
    let tasks = Tasks::connect(service, false).await?;
    if is_final(state(&tasks.get(name).await?)) {
        let message = format!("task `{name}` has ended already");
        return Err(Failure::new(StatusCode::CONFLICT, "TASK_HAS_ENDED", message));
    }
    let patch = Patch::Merge(json!({ "spec": { "cancel": true } }));
    let patched = tasks.api.patch(name, &PatchParams::default(), &patch).await;
    let patched = patched.map_err(|error| failed(name, &error))?;
    service.changes.tell(Topic::Tasks);
    data(&details(&patched))
}

/// Deletes a task with its sandbox and its log.
pub async fn remove(service: &Service, name: &str) -> Answer {
    let tasks = Tasks::connect(service, false).await?;
    tasks.get(name).await?;
    let deleted = tasks.api.delete(name, &DeleteParams::background()).await;
    deleted.map_err(|error| failed(name, &error))?;
    service.changes.tell(Topic::Tasks);
    data(&json!({}))
}

/// Returns the end of the log of the last attempt. It is JSON, so that no browser shows it as a
/// page.
pub async fn log(service: &Service, name: &str) -> Answer {
    let tasks = Tasks::connect(service, false).await?;
    let task = tasks.get(name).await?;
    let none = |reason: String| Failure::new(StatusCode::NOT_FOUND, "TASK_LOG_NOT_FOUND", reason);
    let named = task.status.as_ref().and_then(|status| status.sandbox_name.clone());
    let named = named.ok_or_else(|| none("the command does not run yet".to_owned()))?;
    let sandboxes: Api<Sandbox> = Api::namespaced(tasks.client.clone(), &tasks.namespace);
    let found = sandboxes.get_opt(&named).await.map_err(|error| unavailable(chain(&error)))?;
    let found = found.ok_or_else(|| none(format!("its sandbox `{named}` is gone, with its log")))?;
    let containers = &found.spec.blueprint.pod_template.spec.containers;
    let container = containers.iter().find(|container| container.name == RUNNER_CONTAINER);
    let parameters = LogParams {
        container: container.or(containers.first()).map(|container| container.name.clone()),
        tail_lines: Some(MOST_LINES),
        ..LogParams::default()
    };
    let pods: Api<Pod> = Api::namespaced(tasks.client.clone(), &tasks.namespace);
    let stream = match pods.log_stream(&sandbox::pod_name(&found), &parameters).await {
        Ok(stream) => stream,
        Err(Error::Api(status)) if matches!(status.code, 400 | 404) => {
            return Err(none(format!("there is no log yet: {}", status.message)));
        }
        Err(error) => return Err(unavailable(chain(&error))),
    };
    let read = tokio::time::timeout(LOG_TIMEOUT, end_of(stream)).await;
    let read = read.map_err(|_| unavailable("the log could not be read in time"))?;
    let (bytes, is_cut) = read.map_err(|error| unavailable(format!("read the log: {error}")))?;
    let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
    let truncated = is_cut || i64::try_from(lines).is_ok_and(|lines| lines >= MOST_LINES);
    data(&json!({ "text": String::from_utf8_lossy(&bytes), "truncated": truncated }))
}

/// Reads a stream to its end and returns its last bytes, and true if there were more.
async fn end_of(stream: impl futures::AsyncRead) -> std::io::Result<(Vec<u8>, bool)> {
    let mut stream = std::pin::pin!(stream);
    let (mut kept, mut is_cut) = (Vec::new(), false);
    let mut buffer = vec![0; 16 << 10];
    loop {
        let length = stream.read(&mut buffer).await?;
        kept.extend_from_slice(&buffer[..length]);
        if kept.len() > 2 * MOST_BYTES || (length == 0 && kept.len() > MOST_BYTES) {
            kept.drain(..kept.len() - MOST_BYTES);
            is_cut = true;
        }
        if length == 0 {
            return Ok((kept, is_cut));
        }
    }
}

/// A task as a client describes it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Submit {
    name: Option<String>,
    command: Vec<String>,
    image: Option<String>,
    template: Option<String>,
    pool: Option<String>,
    env: BTreeMap<String, String>,
    timeout: Option<String>,
    retries: i32,
    description: String,
    context: String,
}

impl Submit {
    /// Checks each field and returns the object to create.
    fn wanted(self) -> Result<AgentTask, Failure> {
        self.check()?;
        let told = TaskDescription { description: self.description, context: self.context, repository: None };
        let runner = TaskRunner {
            sandbox_template_name: self.template,
            image: self.image,
            warm_pool_name: self.pool,
            command: self.command.into_iter().map(|word| escaped(&word)).collect(),
            env: self
                .env
                .into_iter()
                .map(|(name, value)| EnvVar { name, value: Some(escaped(&value)), value_from: None })
                .collect(),
            timeout: self.timeout.unwrap_or_else(|| TaskRunner::default().timeout),
            resources: None,
        };
        let spec = AgentTaskSpec {
            task: (told != TaskDescription::default()).then_some(told),
            runner,
            retries: self.retries,
            ..AgentTaskSpec::default()
        };
        let mut task = AgentTask::new("", spec);
        task.metadata.generate_name = self.name.is_none().then(|| "task-".to_owned());
        task.metadata.name = self.name;
        Ok(task)
    }

    fn check(&self) -> Result<(), Failure> {
        let sources = [("image", &self.image), ("template", &self.template), ("pool", &self.pool)];
        let mut named = sources.iter().filter(|(_, value)| value.is_some());
        if let (Some(_), Some((second, _))) = (named.next(), named.next()) {
            return Err(Failure::invalid(second, "excludes the others of `image`, `template` and `pool`"));
        }
        if let Some(image) = &self.image {
            check_image(image)?;
        }
        let objects = [("name", &self.name), ("template", &self.template), ("pool", &self.pool)];
        for (field, value) in objects {
            if value.as_ref().is_some_and(|value| !is_object_name(value)) {
                return Err(Failure::invalid(
                    field,
                    "has to be lower-case letters, digits, `-` and `.`, with a letter or digit at both ends",
                ));
            }
        }
        if self.command.is_empty() && self.image.is_none() && self.template.is_none() {
            return Err(Failure::invalid("command", "is needed without an `image` or a `template`"));
        }
        if self.command.len() > MOST_WORDS {
            return Err(Failure::invalid("command", format!("has more than {MOST_WORDS} words")));
        }
        if self.command.first().is_some_and(String::is_empty) {
            return Err(Failure::invalid("command", "has no program: its first word is empty"));
        }
        if self.command.iter().any(|word| word.contains('\0')) {
            return Err(Failure::invalid("command", "has a zero byte"));
        }
        if self.timeout.as_ref().is_some_and(|timeout| !is_duration(timeout)) {
            let problem = "has to be whole hours, minutes and seconds, such as `90s`, `30m` or `1h30m`";
            return Err(Failure::invalid("timeout", problem));
        }
        if !(0..=MOST_RETRIES).contains(&self.retries) {
            let problem = format!("is {}; it can be 0 to {MOST_RETRIES}", self.retries);
            return Err(Failure::invalid("retries", problem));
        }
        for (field, text, most) in [
            ("description", &self.description, LONGEST_DESCRIPTION),
            ("context", &self.context, LONGEST_CONTEXT),
        ] {
            if text.len() > most {
                return Err(Failure::invalid(field, format!("has more than {} KiB", most >> 10)));
            }
        }
        Ok(check_environment("env", &self.env)?)
    }
}

/// Returns true for a duration as the schema of tasks has it: `90s`, `1h30m`.
fn is_duration(text: &str) -> bool {
    let parts = text.split_inclusive(['h', 'm', 's']);
    let is_part = |part: &str| {
        let digits = part.strip_suffix(['h', 'm', 's']);
        digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
    };
    !text.is_empty() && text.len() <= 32 && parts.into_iter().all(is_part)
}

/// Keeps Kubernetes from expanding `$(NAME)`.
fn escaped(word: &str) -> String {
    word.replace('$', "$$")
}

/// Returns the progress of a task, from its conditions.
fn state(task: &AgentTask) -> &'static str {
    let conditions = task.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let is = |type_| conditions::is_true(conditions, type_);
    match () {
        () if is(ConditionType::Succeeded) => "succeeded",
        () if is(ConditionType::Failed) => "failed",
        () if is(ConditionType::Running) => "running",
        () => "pending",
    }
}

fn is_final(state: &str) -> bool {
    matches!(state, "succeeded" | "failed")
}

/// Returns the class of the failure, or the reason why the command does not run yet.
fn reason(task: &AgentTask) -> Option<&str> {
    let type_ = match state(task) {
        "failed" => ConditionType::Failed,
        "pending" => ConditionType::Running,
        _ => return None,
    };
    let conditions = &task.status.as_ref()?.conditions;
    conditions::find(conditions, type_).map(|condition| condition.reason.as_str())
}

/// Returns the description of a task, its command, or what it is made from, in one line.
fn summary(task: &AgentTask) -> String {
    let described = task.spec.task.as_ref().map(|told| told.description.trim()).unwrap_or_default();
    let text = match described.lines().next() {
        Some(line) => line.to_owned(),
        None if task.spec.runner.command.is_empty() => {
            let runner = &task.spec.runner;
            runner.image.clone().or_else(|| runner.sandbox_template_name.clone()).unwrap_or_default()
        }
        None => words(task).join(" "),
    };
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).take(LONGEST_SUMMARY).collect()
}

fn words(task: &AgentTask) -> Vec<String> {
    task.spec.runner.command.iter().map(|word| word.replace("$$", "$")).collect()
}

/// Returns a task as a list shows it.
fn row(task: &AgentTask) -> Value {
    let status = task.status.clone().unwrap_or_default();
    json!({
        "name": task.name_any(),
        "namespace": task.namespace(),
        "state": state(task),
        "reason": reason(task),
        "message": status.message,
        "exitCode": status.exit_code,
        "attempts": status.attempts,
        "cancelled": task.spec.cancel,
        "summary": summary(task),
        "createdAt": task.metadata.creation_timestamp,
        "startedAt": status.start_time,
        "completedAt": status.completion_time,
    })
}

/// Returns a task with everything that its page shows. Values of variables may be secrets, so there
/// are only their names.
fn details(task: &AgentTask) -> Value {
    let status = task.status.clone().unwrap_or_default();
    let runner = &task.spec.runner;
    let told = task.spec.task.clone().unwrap_or_default();
    let conditions: Vec<Value> = status
        .conditions
        .iter()
        .map(|condition| {
            json!({
                "type": condition.type_,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message,
                "at": condition.last_transition_time,
            })
        })
        .collect();
    let more = json!({
        "description": told.description,
        "context": told.context,
        "repository": told.repository,
        "image": runner.image,
        "template": runner.sandbox_template_name,
        "pool": runner.warm_pool_name,
        "command": words(task),
        "env": runner.env.iter().map(|variable| &variable.name).collect::<Vec<_>>(),
        "timeout": runner.timeout,
        "retries": task.spec.retries,
        "ttlSeconds": task.spec.ttl_seconds_after_finished,
        // A claim is the id of its sandbox.
        "sandboxId": status.claim_name.or(status.sandbox_name),
        "result": status.result,
        "conditions": conditions,
    });
    let mut all = row(task);
    if let (Some(all), Value::Object(more)) = (all.as_object_mut(), more) {
        all.extend(more);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(submit: Value) -> Result<Value, String> {
        let submit: Submit = serde_json::from_value(submit).map_err(|error| error.to_string())?;
        let task = submit.wanted().map_err(|failure| failure.message)?;
        Ok(serde_json::to_value(task).expect("JSON"))
    }

    #[test]
    fn fields_become_those_of_a_task() {
        let task = wanted(json!({ "name": "mine", "command": ["sh", "-c", "echo $HOME $(date)"],
            "env": { "A": "$x" }, "timeout": "1h30m", "retries": 2, "description": "do it" }));
        assert_eq!(
            task.expect("a task"),
            json!({
                "apiVersion": "warren.dev/v1alpha1", "kind": "AgentTask", "metadata": { "name": "mine" },
                "spec": {
                    "task": { "description": "do it" },
                    "runner": {
                        "command": ["sh", "-c", "echo $$HOME $$(date)"],
                        "env": [{ "name": "A", "value": "$$x" }],
                        "timeout": "1h30m",
                    },
                    "retries": 2, "keepOnFailure": false, "cancel": false,
                },
            })
        );
        let unnamed = wanted(json!({ "image": "i" })).expect("the image has a program");
        assert_eq!(unnamed["metadata"], json!({ "generateName": "task-" }));
        assert_eq!(unnamed["spec"]["runner"]["timeout"], "30m");
    }

    #[test]
    fn fields_that_cannot_be_meant_are_named() {
        for (submit, word) in [
            (json!({}), "`command` is needed"),
            (json!({ "pool": "p" }), "`command` is needed"),
            (json!({ "command": [""] }), "`command` has no program"),
            (json!({ "command": ["a\0"] }), "zero byte"),
            (json!({ "command": vec!["a"; 1025] }), "`command` has more than 1024"),
            (json!({ "command": ["a"], "image": "a", "template": "b" }), "`template` excludes"),
            (json!({ "command": ["a"], "pool": "../x" }), "`pool` has to be"),
            (json!({ "command": ["a"], "name": "A" }), "`name` has to be"),
            (json!({ "command": ["a"], "image": "a b" }), "`image`"),
            (json!({ "command": ["a"], "timeout": "1.5s" }), "`timeout` has to be"),
            (json!({ "command": ["a"], "timeout": "m" }), "`timeout`"),
            (json!({ "command": ["a"], "timeout": "" }), "`timeout`"),
            (json!({ "command": ["a"], "timeout": "30" }), "`timeout`"),
            (json!({ "command": ["a"], "retries": 11 }), "`retries` is 11"),
            (json!({ "command": ["a"], "description": "x".repeat(16 * 1024 + 1) }), "`description` has more"),
            (json!({ "command": ["a"], "env": { "DATABASE_URL": "x" } }), "never passed"),
            (json!({ "command": "a" }), "invalid type"),
            (json!({ "hostPath": "/" }), "unknown field"),
        ] {
            let refused = wanted(submit.clone()).expect_err("refused");
            assert!(refused.contains(word), "{submit}: {refused}");
        }
    }

    #[test]
    fn summary_is_one_line_of_the_description_or_the_command() {
        let task = |spec: Value| -> AgentTask {
            let task = json!({ "apiVersion": "warren.dev/v1alpha1", "kind": "AgentTask",
                "metadata": { "name": "t" }, "spec": spec });
            serde_json::from_value(task).expect("a task")
        };
        let command = json!({ "command": ["sh", "-c", "a $$b\n\u{1b}c"] });
        assert_eq!(summary(&task(json!({ "runner": command }))), "sh -c a $b  c");
        let told = json!({ "description": "\nfirst\nsecond" });
        assert_eq!(summary(&task(json!({ "runner": command, "task": told }))), "first");
        assert_eq!(summary(&task(json!({ "runner": { "image": "i" } }))), "i");
        assert_eq!(state(&task(json!({ "runner": command }))), "pending");
    }

    #[tokio::test]
    async fn end_of_a_long_log_is_kept() {
        let short = end_of(&b"all of it"[..]).await.expect("read");
        assert_eq!(short, (b"all of it".to_vec(), false));
        let mut long = vec![b'a'; 3 * MOST_BYTES];
        long.extend_from_slice(b"the end");
        let (kept, is_cut) = end_of(&long[..]).await.expect("read");
        assert!(is_cut && kept.len() <= MOST_BYTES + 7 && kept.ends_with(b"the end"), "{}", kept.len());
    }
}
