//! SandboxClaim: it used to name a template and perhaps a pool. Now it names a pool, and the pool
//! names the template.

use serde_json::{Map, Value};

use super::document::{Document, field_error};
use super::{ConversionError, shadow_pool, shadow_pool_name};
use crate::{annotations, labels};

pub(super) fn convert(document: &mut Document) -> Result<Vec<Value>, ConversionError> {
    let mut companions = Vec::new();
    if document.get("spec.warmPoolRef").is_none() {
        let pool = document.text("spec.warmpool")?.map(str::to_owned);
        let bound = bound_sandbox(document)?;
        let template = document.take_template_name()?;
        document.take("spec.warmpool");
        let claim = document.text("metadata.name")?.unwrap_or_default().to_owned();
        let pool_name = match (pool.as_deref(), bound, template) {
            (Some(pool), _, _) if !matches!(pool, "" | "default" | "none") => pool.to_owned(),
            (_, Some(bound), _) if bound != claim && bound.contains('-') => {
                let (pool, _suffix) = bound.rsplit_once('-').unwrap_or((&bound, ""));
                pool.to_owned()
            }
            (pool, _, Some(template)) => {
                let reason = match pool {
                    Some("none") => format!("served by new sandboxes of template `{template}`, as before"),
                    _ => format!(
                        "`warmpool: default` took a waiting sandbox of template `{template}` from any pool; a claim now \
                         names one pool, and this one has none waiting"
                    ),
                };
                let advice = match pool {
                    Some("none") => "",
                    _ => "name a pool of that template in `spec.warmPoolRef` to be served at once",
                };
                document.note("spec.sandboxTemplateRef", reason, advice);
                companions.push(shadow_pool(&template, document.get("metadata.namespace")));
                shadow_pool_name(&template)
            }
            (_, _, None) => {
                return Err(field_error("spec.warmPoolRef", "the claim names neither a pool nor a template"));
            }
        };
        document.put("spec.warmPoolRef.name", pool_name)?;
    } else {
        for path in ["spec.sandboxTemplateRef", "spec.warmpool"] {
            document.drop(path, "`spec.warmPoolRef` is set as well and wins", "");
        }
    }

    for field in ["shutdownTime", "shutdownPolicy", "ttlSecondsAfterFinished"] {
        document.rename(&format!("spec.{field}"), &format!("spec.lifecycle.{field}"))?;
    }
    move_assignment(document)?;
    Ok(companions)
}

/// Returns the sandbox assigned to the claim, from any of the fields in use.
fn bound_sandbox(document: &Document) -> Result<Option<String>, ConversionError> {
    for path in ["status.sandbox.name", "status.sandbox.Name"] {
        if let Some(name) = document.text(path)?.filter(|name| !name.is_empty()) {
            return Ok(Some(name.to_owned()));
        }
    }
    let metadata = |kind: &str, key: &str| document.object.get("metadata")?.get(kind)?.get(key)?.as_str();
    Ok(metadata("annotations", annotations::SANDBOX_NAME)
        .or_else(|| metadata("labels", labels::LEGACY_SANDBOX_NAME))
        .map(str::to_owned))
}

/// Moves the assigned sandbox from a label, whose value is limited to 63 characters, to an
/// annotation.
fn move_assignment(document: &mut Document) -> Result<(), ConversionError> {
    let Some(found) = document.object.get_mut("metadata").and_then(|metadata| metadata.get_mut("labels"))
    else {
        return Ok(());
    };
    let Some(name) = found.as_object_mut().and_then(|found| found.shift_remove(labels::LEGACY_SANDBOX_NAME))
    else {
        return Ok(());
    };
    document.changed = true;
    if document.get("metadata.labels").and_then(Value::as_object).is_some_and(Map::is_empty) {
        document.take("metadata.labels");
    }
    document.object_at("metadata.annotations")?.entry(annotations::SANDBOX_NAME).or_insert(name);
    Ok(())
}
