//! Sandbox: `replicas` became `operatingMode`, and the shutdown fields moved into `spec`.

use serde_json::Value;

use super::document::Document;
use super::{ConversionError, template};

pub(super) fn convert(document: &mut Document) -> Result<Vec<Value>, ConversionError> {
    template::convert_pod_template(document)?;

    match document.take_count("spec.replicas")? {
        None => {}
        Some(0) => document.put("spec.operatingMode", "Suspended")?,
        // Leave out the default mode, so that a plain manifest stays plain.
        Some(1) => {}
        Some(count) => document.note(
            "spec.replicas",
            format!("{count} replicas: a Sandbox has one pod or, when suspended, none"),
            "make a SandboxWarmPool for several sandboxes of a kind",
        ),
    }

    document.rename("spec.lifecycle.shutdownTime", "spec.shutdownTime")?;
    document.rename("spec.lifecycle.shutdownPolicy", "spec.shutdownPolicy")?;
    document.drop(
        "spec.lifecycle.ttlSecondsAfterFinished",
        "only a SandboxClaim ends by itself after its sandbox has finished",
        "claim the sandbox, or set `spec.shutdownTime`",
    );
    if document.get("spec.lifecycle").and_then(Value::as_object).is_some_and(serde_json::Map::is_empty) {
        document.take("spec.lifecycle");
    }
    for field in ["spec.ttlSecondsAfterIdle", "spec.idleTimeoutSeconds"] {
        document.drop(
            field,
            "a Sandbox does not watch for idleness; its end is an absolute time",
            "set `spec.shutdownTime`, or `spec.operatingMode: Suspended` when it is not needed",
        );
    }
    // The former scale subresource used this; nothing reads it now.
    document.take("status.replicas");
    Ok(Vec::new())
}
