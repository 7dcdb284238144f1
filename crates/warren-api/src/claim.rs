//! `SandboxClaim`: a user's request for a sandbox, served from a pool if possible.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::blueprint::{PersistentVolumeClaimTemplate, PodMetadata};
use crate::time;

/// What a claim asks for.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "extensions.agents.x-k8s.io",
    version = "v1beta1",
    kind = "SandboxClaim",
    plural = "sandboxclaims",
    shortname = "sandboxclaim",
    namespaced,
    status = "SandboxClaimStatus",
    schema = "disabled",
    derive = "PartialEq",
    derive = "Default",
    doc = "SandboxClaim asks for a sandbox: a waiting one from a warm pool, or else a new one.",
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status",
        "description": "Whether the claim's sandbox can be used"}"#,
    printcolumn = r#"{"name": "Sandbox", "type": "string", "jsonPath": ".status.sandbox.name",
        "description": "The sandbox that the claim was given"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason",
        "description": "Why the claim is or is not ready"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct SandboxClaimSpec {
    /// warmPoolRef names the pool, in the claim's namespace, that supplies waiting sandboxes and,
    /// through its template, the blueprint of a new one.
    pub warm_pool_ref: WarmPoolReference,

    /// lifecycle says when the claim ends. Without it the claim never expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,

    /// additionalPodMetadata is merged into the metadata of the sandbox's pod template.
    #[serde(default, skip_serializing_if = "PodMetadata::is_empty")]
    pub additional_pod_metadata: PodMetadata,

    /// env lists environment variables for the sandbox's containers, if the template allows them.
    /// A claim that sets any is never served from the pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub env: Vec<ClaimEnvVar>,

    /// volumeClaimTemplates lists volume claims of the claim's own, if the template allows them.
    /// A claim that sets any is never served from the pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub volume_claim_templates: Vec<PersistentVolumeClaimTemplate>,
}

/// A pool in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WarmPoolReference {
    /// name of the SandboxWarmPool.
    pub name: String,
}

/// When a claim ends, and what becomes of it then.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Lifecycle {
    /// shutdownTime is when the claim expires, as an absolute time.
    #[serde(default, deserialize_with = "time::within_reach", skip_serializing_if = "Option::is_none")]
    pub shutdown_time: Option<Time>,

    /// ttlSecondsAfterFinished is how long the claim is kept after its sandbox has finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,

    /// shutdownPolicy says what becomes of the claim when it has expired.
    #[serde(default)]
    pub shutdown_policy: ClaimShutdownPolicy,
}

/// What becomes of an expired claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClaimShutdownPolicy {
    /// The claim is deleted, and its sandbox with it.
    Delete,
    /// The same, but the claim stays visible until its sandbox and pod are gone.
    DeleteForeground,
    /// The sandbox is deleted; the claim stays, with the reason in its status.
    #[default]
    Retain,
}

/// An environment variable that a claim sets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimEnvVar {
    /// name of the environment variable.
    pub name: String,

    /// value of the environment variable.
    pub value: String,

    /// containerName is the container that gets the variable; the first one when it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_name: Option<String>,
}

/// What a claim has been given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxClaimStatus {
    /// conditions describe the current state: Ready, Finished; sorted by type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,

    /// sandbox is the sandbox that the claim was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<ClaimedSandbox>,
}

/// The sandbox that a claim was given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimedSandbox {
    /// name of the Sandbox, in the claim's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,

    /// podIPs are the addresses of the sandbox's pod.
    #[serde(rename = "podIPs", default, skip_serializing_if = "Vec::is_empty")]
    pub pod_ips: Vec<String>,
}
