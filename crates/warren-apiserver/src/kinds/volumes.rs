//! Storage: claims, volumes and classes.

use serde_json::{Value, json};

use super::{Behaviour, PLAIN, quantity, set_default};
use crate::metadata::metadata_mut;
use crate::protection::FINALIZER;
use crate::status::FieldError;

const MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
/// Fields of a volume's spec that are not its source.
const NOT_A_SOURCE: &[&str] = &[
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];

pub(super) static CLAIM: Behaviour = Behaviour {
    default: |claim| {
        if let Some(spec) = claim.get_mut("spec").and_then(Value::as_object_mut) {
            set_default(spec, "volumeMode", "Filesystem");
        }
    },
    prepare_create: |claim| {
        claim["status"] = json!({"phase": "Pending"});
        let finalizers = metadata_mut(claim).entry("finalizers").or_insert_with(|| json!([]));
        if let Some(finalizers) = finalizers.as_array_mut()
            && !finalizers.iter().any(|known| known == FINALIZER)
        {
            finalizers.push(FINALIZER.into());
        }
    },
    validate: validate_claim,
    validate_update: validate_claim_update,
    returns_deleted: true,
    ..PLAIN
};

pub(super) static VOLUME: Behaviour = Behaviour {
    default: |volume| {
        if let Some(spec) = volume.get_mut("spec").and_then(Value::as_object_mut) {
            set_default(spec, "persistentVolumeReclaimPolicy", "Retain");
            set_default(spec, "volumeMode", "Filesystem");
            if let Some(path) = spec.get_mut("hostPath").and_then(Value::as_object_mut) {
                set_default(path, "type", "");
            }
        }
    },
    prepare_create: |volume| volume["status"] = json!({"phase": "Pending"}),
    validate: validate_volume,
    returns_deleted: true,
    ..PLAIN
};

pub(super) static CLASS: Behaviour = Behaviour {
    default: |class| {
        if let Some(class) = class.as_object_mut() {
            set_default(class, "reclaimPolicy", "Delete");
            set_default(class, "volumeBindingMode", "Immediate");
        }
    },
    validate: |class, errors| {
        if class["provisioner"].as_str().unwrap_or_default().is_empty() {
            errors.push(FieldError::required("provisioner", ""));
        }
        one_of(class, "", "reclaimPolicy", &["Delete", "Retain"], errors);
        one_of(class, "", "volumeBindingMode", &["Immediate", "WaitForFirstConsumer"], errors);
    },
    validate_update: |new, old, errors| {
        for field in ["provisioner", "reclaimPolicy", "volumeBindingMode"] {
            if new[field] != old[field] {
                errors.push(FieldError::invalid(field, new[field].clone(), "field is immutable"));
            }
        }
        if new["parameters"] != old["parameters"] {
            errors.push(FieldError::forbidden("parameters", "updates to parameters are forbidden."));
        }
    },
    returns_deleted: true,
    ..PLAIN
};

fn one_of(object: &Value, path: &str, field: &str, known: &[&str], errors: &mut Vec<FieldError>) {
    if let Some(value) = object[field].as_str()
        && !known.contains(&value)
    {
        errors.push(FieldError::unsupported(crate::schema::join(path, field), value, known));
    }
}

fn validate_modes(spec: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let modes = spec["accessModes"].as_array().map(Vec::as_slice).unwrap_or_default();
    if modes.is_empty() {
        let field = format!("{path}.accessModes");
        errors.push(FieldError::required(field, "at least 1 access mode is required"));
    }
    for mode in modes.iter().filter(|mode| !mode.as_str().is_some_and(|mode| MODES.contains(&mode))) {
        errors.push(FieldError::unsupported(format!("{path}.accessModes"), mode.clone(), MODES));
    }
}

fn validate_claim(claim: &Value, errors: &mut Vec<FieldError>) {
    validate_claim_spec(&claim["spec"], "spec", errors);
}

/// Checks the spec of a claim or of a claim template.
pub(super) fn validate_claim_spec(spec: &Value, path: &str, errors: &mut Vec<FieldError>) {
    validate_modes(spec, path, errors);
    match spec["resources"]["requests"].get("storage") {
        None => errors.push(FieldError::required(format!("{path}.resources[storage]"), "")),
        Some(storage) if quantity::value(storage).is_some_and(|bytes| bytes <= 0.0) => {
            let detail = "must be greater than zero";
            let field = format!("{path}.resources[storage]");
            errors.push(FieldError::invalid(field, storage.clone(), detail));
        }
        Some(_) => {}
    }
    one_of(spec, path, "volumeMode", &["Block", "Filesystem"], errors);
}

fn validate_volume(volume: &Value, errors: &mut Vec<FieldError>) {
    let spec = &volume["spec"];
    validate_modes(spec, "spec", errors);
    let capacity = spec["capacity"].as_object();
    if capacity.is_none_or(serde_json::Map::is_empty) {
        errors.push(FieldError::required("spec.capacity", ""));
    }
    if capacity.is_none_or(|capacity| capacity.len() != 1 || !capacity.contains_key("storage")) {
        errors.push(FieldError::unsupported("spec.capacity", spec["capacity"].clone(), &["storage"]));
    }
    let fields = spec.as_object().into_iter().flat_map(serde_json::Map::keys);
    let sources: Vec<_> = fields.filter(|field| !NOT_A_SOURCE.contains(&field.as_str())).collect();
    match sources.as_slice() {
        [] => errors.push(FieldError::required("spec", "must specify a volume type")),
        [_] => {}
        [_, second, ..] => {
            let detail = "may not specify more than 1 volume type";
            errors.push(FieldError::forbidden(format!("spec.{second}"), detail));
        }
    }
    one_of(spec, "spec", "persistentVolumeReclaimPolicy", &["Delete", "Recycle", "Retain"], errors);
    one_of(spec, "spec", "volumeMode", &["Block", "Filesystem"], errors);
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
    // Binding a claim sets the volume's name once.
    let binds = old["spec"].get("volumeName").is_none() && new["spec"].get("volumeName").is_some();
    if frozen(new) != frozen(old) && !binds {
        let detail = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        errors.push(FieldError::forbidden("spec", detail));
    }
}
