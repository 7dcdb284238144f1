use serde_json::{Value, json};

use super::{Behaviour, PLAIN, set_default};
use crate::status::FieldError;

pub(super) static CLAIM: Behaviour = Behaviour {
    default: |claim| {
        if let Some(spec) = claim.get_mut("spec").and_then(Value::as_object_mut) {
            set_default(spec, "volumeMode", "Filesystem");
        }
    },
    prepare_create: |claim| claim["status"] = json!({"phase": "Pending"}),
    validate: validate_claim,
    validate_update: validate_claim_update,
    returns_deleted: true,
    ..PLAIN
};

pub(super) static SECRET: Behaviour = Behaviour {
    default: default_secret,
    validate_update: |new, old, errors| {
        if new["type"] != old["type"] {
            errors.push(FieldError::invalid("type", new["type"].clone(), "field is immutable"));
        }
    },
    ..PLAIN
};

fn validate_claim(claim: &Value, errors: &mut Vec<FieldError>) {
    const MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    let modes = claim["spec"]["accessModes"].as_array().map(Vec::as_slice).unwrap_or_default();
    if modes.is_empty() {
        errors.push(FieldError::required("spec.accessModes", "at least 1 access mode is required"));
    }
    for mode in modes.iter().filter(|mode| !mode.as_str().is_some_and(|mode| MODES.contains(&mode))) {
        errors.push(FieldError::unsupported("spec.accessModes", mode.clone(), MODES));
    }
    if claim["spec"]["resources"]["requests"].get("storage").is_none() {
        errors.push(FieldError::required("spec.resources[storage]", ""));
    }
}

fn validate_claim_update(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let frozen = |claim: &Value| {
        let mut spec = claim["spec"].clone();
        if let Some(spec) = spec.as_object_mut() {
            spec.shift_remove("resources");
            spec.shift_remove("volumeAttributesClassName");
        }
        spec
    };
    // Binding fills in the volume's name once.
    let binds = old["spec"].get("volumeName").is_none() && new["spec"].get("volumeName").is_some();
    if frozen(new) != frozen(old) && !binds {
        let detail = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        errors.push(FieldError::forbidden("spec", detail));
    }
}

fn default_secret(secret: &mut Value) {
    use base64::Engine as _;
    let Some(secret) = secret.as_object_mut() else { return };
    set_default(secret, "type", "Opaque");
    // `stringData` is the write-only convenience that becomes `data`.
    if let Some(Value::Object(strings)) = secret.shift_remove("stringData")
        && let Some(data) = super::child(secret, "data")
    {
        for (name, value) in strings {
            let encoded =
                base64::engine::general_purpose::STANDARD.encode(value.as_str().unwrap_or_default());
            data.insert(name, encoded.into());
        }
    }
}
