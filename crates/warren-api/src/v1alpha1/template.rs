//! SandboxTemplate: the policy that `v1alpha1` carried as an annotation is now a field.

use serde_json::{Map, Value, json};

use super::ConversionError;
use super::document::{Document, field_error};
use crate::annotations;
use crate::schema::Definitions;

pub(super) fn convert(document: &mut Document) -> Result<Vec<Value>, ConversionError> {
    convert_pod_template(document)?;
    let annotation = annotations::V1BETA1_VOLUME_CLAIM_TEMPLATES_POLICY;
    let Some(found) =
        document.object.get_mut("metadata").and_then(|metadata| metadata.get_mut("annotations"))
    else {
        return Ok(Vec::new());
    };
    let Some(policy) = found.as_object_mut().and_then(|found| found.shift_remove(annotation)) else {
        return Ok(Vec::new());
    };
    document.changed = true;
    if document.get("metadata.annotations").and_then(Value::as_object).is_some_and(Map::is_empty) {
        document.take("metadata.annotations");
    }
    match policy.as_str() {
        Some("Disallowed" | "Allowed" | "Overrides") => {
            document.put("spec.volumeClaimTemplatesPolicy", policy)?;
        }
        _ => {
            return Err(field_error(
                &format!("metadata.annotations[{annotation}]"),
                "neither `Disallowed`, `Allowed` nor `Overrides`",
            ));
        }
    }
    Ok(Vec::new())
}

/// Converts a pod in the short form of early drafts (`image`, `resources`, … directly in the spec,
/// or in `template.spec`).
pub(super) fn convert_pod_template(document: &mut Document) -> Result<(), ConversionError> {
    if document.get("spec.podTemplate").is_some() {
        return Ok(());
    }
    document.rename("spec.template", "spec.podTemplate")?;
    if document.get("spec.containers").is_some() {
        return move_pod_fields(document);
    }
    let at = if document.get("spec.podTemplate.spec").is_some() { "spec.podTemplate.spec" } else { "spec" };
    if document.get(&format!("{at}.containers")).is_some() || document.get(&format!("{at}.image")).is_none() {
        return Ok(());
    }

    let mut container = Map::from_iter([("name".to_owned(), Value::from("sandbox"))]);
    for field in ["image", "command", "args", "workingDir", "env", "ports", "resources"] {
        if let Some(value) = document.take(&format!("{at}.{field}")) {
            let value = if field == "env" { environment(value) } else { value };
            container.insert(field.to_owned(), value);
        }
    }
    document.put("spec.podTemplate.spec.containers", json!([container]))?;
    for field in ["runtimeClassName", "securityContext", "volumes"] {
        document.rename(&format!("{at}.{field}"), &format!("spec.podTemplate.spec.{field}"))?;
    }
    document.note(
        &format!("{at}.image"),
        "written as the one container `sandbox` of `spec.podTemplate`",
        "rename it if something refers to it",
    );
    Ok(())
}

/// Moves the fields of a pod's spec out of a spec that mixes them with ours.
fn move_pod_fields(document: &mut Document) -> Result<(), ConversionError> {
    let pod = Definitions::kubernetes().get("io.k8s.api.core.v1.PodSpec");
    for field in pod.and_then(|pod| pod["properties"].as_object()).into_iter().flat_map(Map::keys) {
        document.rename(&format!("spec.{field}"), &format!("spec.podTemplate.spec.{field}"))?;
    }
    document.note("spec.containers", "the pod's fields are now in `spec.podTemplate.spec`", "");
    Ok(())
}

/// Converts a plain map of variables into the list that a container has.
fn environment(value: Value) -> Value {
    match value {
        Value::Object(variables) => variables
            .into_iter()
            .map(|(name, value)| {
                let value = match value {
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                json!({ "name": name, "value": value })
            })
            .collect(),
        list => list,
    }
}
