//! `SandboxWarmPool`: running sandboxes that wait for a claim.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many sandboxes should wait, and what they are made from.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "extensions.agents.x-k8s.io",
    version = "v1beta1",
    kind = "SandboxWarmPool",
    plural = "sandboxwarmpools",
    shortname = "swp",
    namespaced,
    status = "SandboxWarmPoolStatus",
    schema = "disabled",
    derive = "PartialEq",
    derive = "Default",
    doc = "SandboxWarmPool keeps sandboxes of one template running, ready for the next claim.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn = r#"{"name": "Ready", "type": "integer", "jsonPath": ".status.readyReplicas",
        "description": "Waiting sandboxes that can be used"}"#,
    printcolumn = r#"{"name": "Desired", "type": "integer", "jsonPath": ".spec.replicas",
        "description": "Sandboxes that should wait"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct SandboxWarmPoolSpec {
    /// replicas is how many sandboxes should wait in the pool. An autoscaler may set it.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 0))]
    pub replicas: i32,

    /// sandboxTemplateRef names the template that the pool's sandboxes are made from.
    pub sandbox_template_ref: SandboxTemplateReference,

    /// updateStrategy says what becomes of waiting sandboxes when the template changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,
}

fn default_replicas() -> i32 {
    1
}

impl Default for SandboxWarmPoolSpec {
    fn default() -> Self {
        Self {
            replicas: default_replicas(),
            sandbox_template_ref: SandboxTemplateReference::default(),
            update_strategy: None,
        }
    }
}

impl SandboxWarmPoolSpec {
    /// Returns the strategy in force. By default members are replaced only as they are used.
    pub fn update_strategy_type(&self) -> UpdateStrategyType {
        self.update_strategy.as_ref().map_or_else(UpdateStrategyType::default, |strategy| strategy.type_)
    }
}

/// A template in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxTemplateReference {
    /// name of the SandboxTemplate.
    pub name: String,
}

/// What becomes of waiting sandboxes when the template changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStrategy {
    /// type of the update strategy.
    #[serde(rename = "type", default)]
    pub type_: UpdateStrategyType,
}

/// The kinds of update strategy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UpdateStrategyType {
    /// Stale waiting sandboxes are replaced at once.
    Recreate,
    /// Stale waiting sandboxes are handed out first; only new ones come from the new template.
    #[default]
    OnReplenish,
}

/// How many sandboxes wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxWarmPoolStatus {
    /// replicas counts the pool's live sandboxes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub replicas: i32,

    /// readyReplicas counts those that can be used.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ready_replicas: i32,

    /// selector is the label selector of the pool's pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,

    /// observedGeneration is the generation of the pool that this status was made from.
    #[serde(default, skip_serializing_if = "is_zero_generation")]
    pub observed_generation: i64,
}

fn is_zero(count: &i32) -> bool {
    *count == 0
}

fn is_zero_generation(generation: &i64) -> bool {
    *generation == 0
}
