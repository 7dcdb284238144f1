//! `SandboxTemplate`: the blueprint of the sandboxes of pools and claims.

use k8s_openapi::api::networking::v1::{NetworkPolicyEgressRule, NetworkPolicyIngressRule};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::blueprint::SandboxBlueprint;

/// What sandboxes made from a template are, and what a claim may change about them.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "extensions.agents.x-k8s.io",
    version = "v1beta1",
    kind = "SandboxTemplate",
    plural = "sandboxtemplates",
    shortname = "sandboxtemplate",
    namespaced,
    schema = "disabled",
    derive = "PartialEq",
    derive = "Default",
    doc = "SandboxTemplate is what the sandboxes of a warm pool, or of a claim, are made from."
)]
#[serde(rename_all = "camelCase")]
pub struct SandboxTemplateSpec {
    /// The pod, its volume claims and its service; copied into every sandbox made from this
    /// template.
    #[serde(flatten)]
    pub blueprint: SandboxBlueprint,

    /// networkPolicy holds the rules of the NetworkPolicy that is kept for this template's
    /// sandboxes. Without it they get a policy that lets the router in and only the public internet
    /// out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_policy: Option<NetworkPolicyRules>,

    /// networkPolicyManagement says whether a NetworkPolicy is kept for this template's sandboxes.
    #[serde(default)]
    pub network_policy_management: NetworkPolicyManagement,

    /// envVarsInjectionPolicy says whether a claim may set environment variables.
    #[serde(default)]
    pub env_vars_injection_policy: InjectionPolicy,

    /// volumeClaimTemplatesPolicy says whether a claim may bring volume claim templates of its own.
    #[serde(default)]
    #[schemars(extend("enum" = ["Disallowed", "Allowed", "Overrides"]))]
    pub volume_claim_templates_policy: InjectionPolicy,
}

/// Rules of a template's NetworkPolicy. Its pod selector and policy types are not for the user to
/// choose.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkPolicyRules {
    /// ingress lists the traffic that is let in; none is when the list is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ingress: Vec<NetworkPolicyIngressRule>,

    /// egress lists the traffic that is let out; none is when the list is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<NetworkPolicyEgressRule>,
}

/// Whether a NetworkPolicy is kept for a template's sandboxes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NetworkPolicyManagement {
    /// The controller keeps one.
    #[default]
    Managed,
    /// The controller keeps none, and removes the one it kept before.
    Unmanaged,
}

/// What a claim may change about a part of the template.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum InjectionPolicy {
    /// A claim may add what the template does not have.
    Allowed,
    /// A claim may also replace what the template has.
    Overrides,
    /// A claim that asks for a change is refused.
    #[default]
    Disallowed,
}
