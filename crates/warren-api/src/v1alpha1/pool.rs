//! SandboxWarmPool: only spellings have changed. Drafts that described the sandbox in the pool get
//! a template.

use serde_json::{Map, Value, json};

use super::ConversionError;
use super::document::{Document, field_error};
use super::template::convert_pod_template;
use crate::{EXTENSIONS_GROUP, VERSION};

pub(super) fn convert(document: &mut Document) -> Result<Vec<Value>, ConversionError> {
    for field in ["spec.size", "spec.minReady"] {
        // Parse the count first, so that errors name the field that the author used.
        if let Some(count) = document.take_count(field)? {
            document.put(field, count)?;
            document.rename(field, "spec.replicas")?;
        }
    }
    document.drop(
        "spec.maxReady",
        "a pool has one size",
        "let a HorizontalPodAutoscaler set it: SandboxWarmPool has the scale subresource",
    );

    let current = matches!(document.get("spec.sandboxTemplateRef"), Some(Value::Object(_)))
        && ["templateRef", "sandboxTemplateName", "templateName"]
            .iter()
            .all(|field| document.get(&format!("spec.{field}")).is_none());
    if current {
        return Ok(Vec::new());
    }
    if let Some(template) = document.take_template_name()? {
        document.put("spec.sandboxTemplateRef.name", template)?;
        return Ok(Vec::new());
    }
    if document.get("spec.template").or_else(|| document.get("spec.podTemplate")).is_none() {
        return Err(field_error("spec.sandboxTemplateRef", "the pool names no template"));
    }
    let template = inline_template(document)?;
    Ok(vec![template])
}

/// Splits a pool that describes its sandboxes itself into a template of the same name and a pool.
fn inline_template(document: &mut Document) -> Result<Value, ConversionError> {
    let name = document.text("metadata.name")?.unwrap_or_default().to_owned();
    let mut metadata = Map::from_iter([("name".to_owned(), Value::from(name.clone()))]);
    if let Some(namespace) = document.get("metadata.namespace") {
        metadata.insert("namespace".to_owned(), namespace.clone());
    }
    let mut spec = Map::new();
    for field in ["template", "podTemplate"] {
        if let Some(value) = document.take(&format!("spec.{field}")) {
            spec.insert(field.to_owned(), value);
        }
    }
    let mut template = Document::new(json!({
        "apiVersion": format!("{EXTENSIONS_GROUP}/{VERSION}"),
        "kind": "SandboxTemplate",
        "metadata": metadata,
        "spec": spec,
    }))?;
    convert_pod_template(&mut template)?;
    document.notes.append(&mut template.notes);
    document.note(
        "spec.template",
        "a pool does not describe its sandboxes; this is now a SandboxTemplate",
        "",
    );
    document.put("spec.sandboxTemplateRef.name", name)?;
    Ok(template.object)
}
