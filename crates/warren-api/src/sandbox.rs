//! `Sandbox`: one isolated, stateful pod with a stable identity.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::blueprint::SandboxBlueprint;
use crate::time;

/// What a Sandbox should be.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "agents.x-k8s.io",
    version = "v1beta1",
    kind = "Sandbox",
    plural = "sandboxes",
    shortname = "sandbox",
    namespaced,
    status = "SandboxStatus",
    schema = "disabled",
    derive = "PartialEq",
    derive = "Default",
    doc = "Sandbox is one isolated, stateful pod with a stable identity.",
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status",
        "description": "Whether the sandbox can be used"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason",
        "description": "Why the sandbox is or is not ready"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": crate::sandbox::VOLUME_CLAIM_TEMPLATES_RULE,
    "message": crate::sandbox::VOLUME_CLAIM_TEMPLATES_MESSAGE,
}]))]
pub struct SandboxSpec {
    /// The pod, its volume claims and its service.
    #[serde(flatten)]
    pub blueprint: SandboxBlueprint,

    /// shutdownTime is when the sandbox expires, as an absolute time. It never expires when the
    /// field is absent.
    #[serde(default, deserialize_with = "time::within_reach", skip_serializing_if = "Option::is_none")]
    pub shutdown_time: Option<Time>,

    /// shutdownPolicy says what becomes of the Sandbox object when it has expired.
    /// Its pod and service are removed in either case.
    #[serde(default)]
    pub shutdown_policy: ShutdownPolicy,

    /// operatingMode is the desired state: a suspended sandbox keeps its identity and its volumes,
    /// but has no pod.
    #[serde(default)]
    pub operating_mode: OperatingMode,
}

/// The transition rule of `Sandbox.spec`. It covers changes, and adding and removing the field.
pub const VOLUME_CLAIM_TEMPLATES_RULE: &str = "has(self.volumeClaimTemplates) == has(oldSelf.volumeClaimTemplates) \
     && (!has(self.volumeClaimTemplates) || self.volumeClaimTemplates == oldSelf.volumeClaimTemplates)";

/// The server's message if [`VOLUME_CLAIM_TEMPLATES_RULE`] is broken.
pub const VOLUME_CLAIM_TEMPLATES_MESSAGE: &str = "volumeClaimTemplates is immutable";

/// What becomes of an expired Sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ShutdownPolicy {
    /// The object is deleted, and its volume claims with it.
    Delete,
    /// The object stays, with the reason in its status.
    #[default]
    Retain,
}

/// The desired state of a Sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OperatingMode {
    /// The sandbox has a pod.
    #[default]
    Running,
    /// The sandbox has no pod; its volumes are kept.
    Suspended,
}

/// What a Sandbox is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxStatus {
    /// conditions describe the current state: Ready, Suspended, PodScheduled, Finished.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,

    /// selector is the label selector of the sandbox's pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,

    /// podIPs are the addresses of the sandbox's pod.
    #[serde(rename = "podIPs", default, skip_serializing_if = "Vec::is_empty")]
    pub pod_ips: Vec<String>,

    /// nodeName is the node that the sandbox's pod runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,

    /// service is the name of the sandbox's headless service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,

    /// serviceFQDN is the fully qualified DNS name of that service.
    #[serde(rename = "serviceFQDN", default, skip_serializing_if = "Option::is_none")]
    pub service_fqdn: Option<String>,
}
