//! `AgentTask`: a command that runs once in a sandbox of its own.

use k8s_openapi::api::core::v1::{EnvVar, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time;

/// A task: where it runs, what it runs, and what becomes of it afterwards.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "warren.dev",
    version = "v1alpha1",
    kind = "AgentTask",
    plural = "agenttasks",
    shortname = "at",
    namespaced,
    status = "AgentTaskStatus",
    schema = "disabled",
    derive = "PartialEq",
    derive = "Default",
    doc = "AgentTask is a command that runs once, to its end, in a sandbox of its own.",
    printcolumn = r#"{"name": "Running", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Running')].status",
        "description": "True while the command runs"}"#,
    printcolumn = r#"{"name": "Succeeded", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Succeeded')].status",
        "description": "True once the command has ended with exit code 0"}"#,
    printcolumn = r#"{"name": "Failed", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Failed')].reason",
        "description": "Why the task failed"}"#,
    printcolumn = r#"{"name": "Exit", "type": "integer", "jsonPath": ".status.exitCode",
        "description": "The exit code of the command"}"#,
    printcolumn = r#"{"name": "Sandbox", "type": "string", "jsonPath": ".status.sandboxName", "priority": 1,
        "description": "The sandbox of the last attempt"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    { "rule": crate::task::IMMUTABLE_RULE, "message": crate::task::IMMUTABLE_MESSAGE },
    { "rule": "!oldSelf.cancel || self.cancel", "message": "a task that was cancelled stays cancelled" },
]))]
pub struct AgentTaskSpec {
    /// task is what the command is told: it finds each field in an environment variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskDescription>,

    /// runner says where and how the command runs.
    pub runner: TaskRunner,

    /// retries is how often the command is run again, in a new sandbox, after it failed for a
    /// reason that another attempt may not have: Application, Evicted, NodeLost or Unknown.
    #[serde(default)]
    #[schemars(range(min = 0, max = 10))]
    pub retries: i32,

    /// keepOnFailure keeps the sandboxes of attempts that were followed by another one, and a
    /// failed task beyond its ttlSecondsAfterFinished.
    #[serde(default)]
    pub keep_on_failure: bool,

    /// ttlSecondsAfterFinished is how long the task is kept after it has ended; it is deleted with
    /// its sandbox then. Without it, both stay until the task is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,

    /// cancel ends the task.
    #[serde(default)]
    pub cancel: bool,
}

/// The transition rule of `AgentTask.spec`.
pub const IMMUTABLE_RULE: &str = "has(self.task) == has(oldSelf.task) && (!has(self.task) || self.task == oldSelf.task) \
     && self.runner == oldSelf.runner && self.retries == oldSelf.retries \
     && self.keepOnFailure == oldSelf.keepOnFailure";

/// The server's message if [`IMMUTABLE_RULE`] is broken.
pub const IMMUTABLE_MESSAGE: &str = "only cancel and ttlSecondsAfterFinished can be changed";

/// What a task is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskDescription {
    /// description says what is to be done; the command finds it in WARREN_TASK_DESCRIPTION.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 16384))]
    pub description: String,

    /// context is what the command should know besides; it finds it in WARREN_TASK_CONTEXT.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 65536))]
    pub context: String,

    /// repository is the repository that the task is about. It is for the command to fetch it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<Repository>,
}

/// A repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Repository {
    /// url is where the repository is; the command finds it in WARREN_TASK_REPOSITORY_URL.
    #[schemars(length(min = 1, max = 2048))]
    pub url: String,

    /// ref is the branch, tag or commit; the command finds it in WARREN_TASK_REPOSITORY_REF.
    #[serde(rename = "ref", default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 255))]
    pub reference: String,
}

/// Where and how the command of a task runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    { "rule": "!has(self.warmPoolName) || !(has(self.sandboxTemplateName) || has(self.image) || has(self.resources))",
      "message": "warmPoolName excludes sandboxTemplateName, image and resources: the pool's template has them" },
    { "rule": "!has(self.warmPoolName) || !has(self.env) || self.env.all(variable, !has(variable.valueFrom))",
      "message": "env cannot use valueFrom with warmPoolName: the sandbox has started already" },
    { "rule": "!(has(self.sandboxTemplateName) && has(self.image))",
      "message": "sandboxTemplateName and image exclude each other" },
    { "rule": "has(self.sandboxTemplateName) || has(self.image) || has(self.command)",
      "message": "a command is required without sandboxTemplateName and image" },
]))]
pub struct TaskRunner {
    /// sandboxTemplateName names the SandboxTemplate, in the task's namespace, that the sandbox is
    /// made from. The command runs in its container `runner`, or else in its first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub sandbox_template_name: Option<String>,

    /// image is the image that the sandbox is made from, where no template is named. Without either
    /// it is the machine's own `/usr`, as `warren run` has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,

    /// warmPoolName names the SandboxWarmPool, in the task's namespace, that a sandbox is claimed from. The sandbox runs already,
    /// and its container waits for the command: its program is `/.warren/guest await-task`, and it is never restarted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub warm_pool_name: Option<String>,

    /// command is the program and its arguments. Without it the template's or the image's own
    /// program runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 1024), extend("x-kubernetes-list-type" = "atomic"))]
    pub command: Vec<String>,

    /// env lists environment variables of the command. They replace those of the same name in the
    /// template.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "atomic"))]
    pub env: Vec<EnvVar>,

    /// timeout is how long the task may take in all, from its first attempt on, such as 90s, 30m or
    /// 1h30m.
    #[serde(default = "default_timeout")]
    #[schemars(length(max = 32), regex(pattern = r"^([0-9]+(h|m|s))+$"))]
    pub timeout: String,

    /// resources replaces the requests and limits of the container that the command runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
}

fn default_timeout() -> String {
    "30m".to_owned()
}

impl Default for TaskRunner {
    fn default() -> Self {
        Self {
            sandbox_template_name: None,
            image: None,
            warm_pool_name: None,
            command: Vec::new(),
            env: Vec::new(),
            timeout: default_timeout(),
            resources: None,
        }
    }
}

/// How a task is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentTaskStatus {
    /// conditions describe the current state: Accepted, Running, and at the end either Succeeded or
    /// Failed, which never change again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// attempts counts the sandboxes that were made for the task.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts: i32,

    /// sandboxName is the Sandbox of the last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_name: Option<String>,

    /// claimName is the SandboxClaim of the last attempt, if the task names a pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_name: Option<String>,

    /// podUID is the pod of the claimed sandbox that the command is for. It is stored before the pod gets the command, and no
    /// other pod gets the command in the same attempt.
    #[serde(rename = "podUID", default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,

    /// startTime is when the first attempt began; the timeout counts from it.
    #[serde(default, deserialize_with = "time::within_reach", skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,

    /// completionTime is when the task ended.
    #[serde(default, deserialize_with = "time::within_reach", skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,

    /// exitCode is the exit code of the command; it is absent if the command did not end by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,

    /// result is the content that the command left in the file that WARREN_TASK_RESULT names; it is absent if the command
    /// left none, or did not end by itself. The command wrote it, so readers must not trust it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = crate::task::LONGEST_RESULT))]
    pub result: Option<String>,

    /// message says for people how the task ended, or what it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

fn is_zero(count: &i32) -> bool {
    *count == 0
}

/// The longest result of a task in bytes: the longest termination message that kubelet reads.
pub const LONGEST_RESULT: usize = 4096;

/// The name of a template's container for the command. Without it, the first container is used.
pub const RUNNER_CONTAINER: &str = "runner";
