//! The common part of a Sandbox and a SandboxTemplate: the pod, its volume claims and its service.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeClaimSpec, PodSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The pod, volume claims and service that a sandbox is made from.
///
/// It has no level of its own on the wire: its fields are those of the `spec` it is part of.
///
/// Change a stored object by a patch of the fields in question, not by writing the whole back: a
/// quantity that was stored as a number, or a list that was stored empty, is written in other
/// words, and the server takes that for a change of `volumeClaimTemplates`, which it refuses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxBlueprint {
    /// podTemplate describes the pod that backs the sandbox.
    pub pod_template: PodTemplate,

    /// volumeClaimTemplates is a list of claims that the sandbox's pod is allowed to reference.
    /// One PersistentVolumeClaim is made for each, named `<template name>-<sandbox name>`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub volume_claim_templates: Vec<PersistentVolumeClaimTemplate>,

    /// service decides about the headless service of the sandbox: true creates and maintains it,
    /// false removes it, and when the field is absent none is created, but one that the sandbox
    /// owns is kept in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<bool>,
}

/// The pod of a sandbox: what it runs, and the labels and annotations it carries.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodTemplate {
    /// spec is the specification of the pod. It is used when the pod is created; later edits do not
    /// change a running pod.
    // Shared, because the controllers keep many sandboxes in memory, and those of one template are
    // mostly alike.
    #[serde(with = "shared")]
    #[schemars(with = "PodSpec")]
    pub spec: Arc<PodSpec>,

    /// metadata holds the labels and annotations of the pod. Edits are carried over to the running
    /// pod.
    #[serde(default, skip_serializing_if = "PodMetadata::is_empty")]
    pub metadata: PodMetadata,
}

/// Reads and writes a shared value like a plain one.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<T: Serialize, S: Serializer>(value: &Arc<T>, to: S) -> Result<S::Ok, S::Error> {
        T::serialize(value, to)
    }

    pub(super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Arc<T>, D::Error> {
        T::deserialize(from).map(Arc::new)
    }
}

/// Labels and annotations of a pod; no other metadata can be set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodMetadata {
    /// labels is a map of string keys and values to organise and select the pod by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,

    /// annotations is a map of string keys and values for arbitrary, non-identifying metadata.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl PodMetadata {
    /// Returns true if there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty()
    }
}

/// A volume claim that is made for every sandbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PersistentVolumeClaimTemplate {
    /// metadata holds the name, labels and annotations of the claim.
    #[serde(default, skip_serializing_if = "EmbeddedObjectMetadata::is_empty")]
    pub metadata: EmbeddedObjectMetadata,

    /// spec is the specification of the claim.
    pub spec: PersistentVolumeClaimSpec,
}

/// Name, labels and annotations of an object that is embedded in another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EmbeddedObjectMetadata {
    /// name is the first part of the name of the created object; volume mounts refer to it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,

    /// labels is a map of string keys and values to organise and select the object by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,

    /// annotations is a map of string keys and values for arbitrary, non-identifying metadata.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl EmbeddedObjectMetadata {
    /// Returns true if there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.name.is_empty() && self.labels.is_empty() && self.annotations.is_empty()
    }
}
