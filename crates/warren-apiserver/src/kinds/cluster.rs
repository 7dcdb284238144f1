//! Small kinds of the cluster: nodes, runtime classes, leases.

use serde_json::{Value, json};

use super::network::validate_cidr;
use super::{Behaviour, PLAIN};
use crate::metadata::broken_label_rules;
use crate::status::FieldError;

pub(super) static NODE: Behaviour = Behaviour {
    default: default_node,
    validate: validate_node,
    validate_update: |new, old, errors| {
        let ranges = |node: &Value| node["spec"]["podCIDRs"].as_array().cloned().unwrap_or_default();
        if !ranges(old).is_empty() && ranges(new) != ranges(old) {
            let detail = "node updates may not change podCIDR except from \"\" to valid";
            errors.push(FieldError::forbidden("spec.podCIDRs", detail));
        }
    },
    ..PLAIN
};

pub(super) static RUNTIME_CLASS: Behaviour = Behaviour {
    unconditional_update: false,
    create_on_update: true,
    validate: |class, errors| {
        let handler = class["handler"].as_str().unwrap_or_default();
        for rule in broken_label_rules(handler) {
            errors.push(FieldError::invalid("handler", handler, rule));
        }
    },
    validate_update: |new, old, errors| {
        if new["handler"] != old["handler"] {
            errors.push(FieldError::invalid("handler", new["handler"].clone(), "field is immutable"));
        }
    },
    ..PLAIN
};

pub(super) static LEASE: Behaviour = Behaviour {
    unconditional_update: false,
    create_on_update: true,
    validate: |lease, errors| {
        let spec = &lease["spec"];
        for (field, lowest, detail) in [
            ("leaseDurationSeconds", 1, "must be greater than 0"),
            ("leaseTransitions", 0, "must be greater than or equal to 0"),
        ] {
            if spec[field].as_i64().is_some_and(|value| value < lowest) {
                errors.push(FieldError::invalid(format!("spec.{field}"), spec[field].clone(), detail));
            }
        }
    },
    ..PLAIN
};

fn default_node(node: &mut Value) {
    // `podCIDR` and the first of `podCIDRs` are the same value: fill in the missing one.
    let spec = &node["spec"];
    match (spec["podCIDR"].as_str(), spec["podCIDRs"][0].as_str()) {
        (Some(range), first) if first != Some(range) => node["spec"]["podCIDRs"] = json!([range]),
        (None, Some(range)) => node["spec"]["podCIDR"] = range.to_owned().into(),
        _ => {}
    }
    // Without `allocatable`, the whole capacity can be allocated.
    if node["status"].get("allocatable").is_none()
        && let Some(capacity) = node["status"].get("capacity").cloned()
    {
        node["status"]["allocatable"] = capacity;
    }
}

fn validate_node(node: &Value, errors: &mut Vec<FieldError>) {
    const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    let taints = node["spec"]["taints"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (index, taint) in taints.iter().enumerate() {
        let effect = taint["effect"].as_str().unwrap_or_default();
        // kube-apiserver's path begins with `metadata` here, although taints are in the spec.
        let path = format!("metadata.taints[{index}]");
        crate::metadata::check_qualified_name(
            taint["key"].as_str().unwrap_or_default(),
            &format!("{path}.key"),
            errors,
        );
        if effect.is_empty() {
            errors.push(FieldError::required(format!("{path}.effect"), ""));
        } else if !EFFECTS.contains(&effect) {
            errors.push(FieldError::unsupported(format!("{path}.effect"), effect, &EFFECTS));
        }
    }
    let ranges = node["spec"]["podCIDRs"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (index, range) in ranges.iter().enumerate() {
        let path = format!("spec.podCIDRs[{index}]");
        validate_cidr(range.as_str().unwrap_or_default(), &path, errors);
    }
}
