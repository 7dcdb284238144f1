//! Patches and accessors that several scenarios share.

use anyhow::Result;
use kube::Resource;
use serde::Serialize;
use serde_json::{Value, json};
use warren_api::SandboxClaim;

use crate::controllers::place::{Namespaced, Place, ready};
use crate::controllers::workload;

/// Returns the patch that gives a pod template's only container this variable.
pub fn with_variable(name: &str, value: &str) -> Value {
    let mut template = workload::running();
    template["spec"]["containers"][0]["env"] = json!([{"name": name, "value": value}]);
    json!({"spec": {"podTemplate": {"spec": template["spec"]}}})
}

/// Returns the patch that suspends a sandbox, or resumes it.
pub fn suspended(suspended: bool) -> Value {
    json!({"spec": {"operatingMode": if suspended { "Suspended" } else { "Running" }}})
}

/// Returns the patch that holds an object after its deletion.
pub fn held() -> Value {
    json!({"metadata": {"finalizers": ["test.warren.dev/hold"]}})
}

/// Returns the sandbox that a claim names in its status.
pub fn sandbox_of(claim: &SandboxClaim) -> Option<String> {
    claim.status.as_ref()?.sandbox.as_ref()?.name.clone()
}

/// Waits until a claim is refused for this reason.
pub async fn refused(place: &Place, claim: &str, reason: &str) -> Result<SandboxClaim> {
    let wanted = format!("False/{reason}");
    place.wait_for(claim, &wanted, |claim: &SandboxClaim| ready(claim) == wanted).await
}

/// Returns the controller among an object's owners, as `apiVersion kind name uid`; an empty text if
/// it has none.
pub fn controller<K: Resource>(object: &K) -> String {
    let owners = object.meta().owner_references.as_deref().unwrap_or_default();
    owners
        .iter()
        .find(|owner| owner.controller == Some(true))
        .map(|owner| format!("{} {} {} {}", owner.api_version, owner.kind, owner.name, owner.uid))
        .unwrap_or_default()
}

/// Returns every condition as `type status/reason at generation: message`, by type.
pub fn conditions<K: Serialize>(object: &K) -> Vec<String> {
    let value = serde_json::to_value(object).unwrap_or_default();
    let found = value["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let mut lines: Vec<String> = found
        .iter()
        .map(|condition| {
            let word = |field: &str| condition[field].as_str().unwrap_or_default();
            let (type_, status, reason) = (word("type"), word("status"), word("reason"));
            let generation = condition["observedGeneration"].as_i64().unwrap_or_default();
            format!("{type_} {status}/{reason} at {generation}: {}", word("message"))
        })
        .collect();
    lines.sort();
    lines
}

/// Returns true if a condition has the present generation.
pub fn observed<K: Namespaced>(object: &K, type_: &str) -> bool {
    let condition = crate::controllers::place::condition(object, type_);
    condition.is_some_and(|found| found["observedGeneration"].as_i64() == object.meta().generation)
}
