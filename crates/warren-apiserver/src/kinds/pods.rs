//! Pods: first status, rules for updates, and the grace period. Defaults and validation have files
//! of their own.

use serde_json::{Map, Value, json};

use super::pods_defaults::{self, quality_of_service};
use super::{Behaviour, PLAIN, pods_validation};
use crate::status::FieldError;

pub(super) static BEHAVIOUR: Behaviour = Behaviour {
    default: pods_defaults::default,
    prepare_create,
    prepare_update,
    prepare_status: keep_class,
    validate: pods_validation::validate,
    validate_update,
    grace_period,
    marks_before_removal: true,
    has_generation: true,
    returns_deleted: true,
    ..PLAIN
};

fn prepare_create(pod: &mut Value) {
    pods_defaults::admit(pod);
    let mut status = json!({"phase": "Pending", "qosClass": quality_of_service(&pod["spec"])});
    let gated = pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty());
    if gated {
        status["conditions"] = json!([{
            "type": "PodScheduled",
            "status": "False",
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
            "lastProbeTime": null,
            "lastTransitionTime": pod["metadata"]["creationTimestamp"],
        }]);
    }
    pod["status"] = status;
}

fn prepare_update(new: &mut Value, old: &Value) {
    pods_defaults::admit(new);
    keep_class(new, old);
}

/// Keeps the QoS class, which is fixed at creation.
fn keep_class(new: &mut Value, old: &Value) {
    if let Some(class) = old["status"].get("qosClass") {
        new["status"]["qosClass"] = class.clone();
    }
}

/// Returns the grace period. It is zero for a pod that has ended or that no node has taken.
fn grace_period(pod: &Value, requested: Option<i64>) -> i64 {
    let spec = &pod["spec"];
    let wanted = requested.or_else(|| spec["terminationGracePeriodSeconds"].as_i64()).unwrap_or(30);
    let unscheduled = spec["nodeName"].as_str().unwrap_or_default().is_empty();
    let ended = matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
    match wanted {
        _ if unscheduled || ended => 0,
        // A negative period means the shortest one that is not immediate.
        negative if negative < 0 => 1,
        wanted => wanted,
    }
}

const IMMUTABLE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

fn validate_update(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let mut comparable = new["spec"].clone();
    let before = &old["spec"];
    for list in ["containers", "initContainers"] {
        let now = comparable.get_mut(list).and_then(Value::as_array_mut);
        let (Some(now), Some(then)) = (now, before[list].as_array()) else { continue };
        if now.len() != then.len() {
            let detail = "pod updates may not add or remove containers";
            errors.push(FieldError::forbidden(format!("spec.{list}"), detail));
            return;
        }
        for (now, then) in now.iter_mut().zip(then) {
            if let (Some(now), Some(image)) = (now.as_object_mut(), then.get("image")) {
                now.insert("image".to_owned(), image.clone());
            }
        }
    }
    let (deadline, earlier) =
        (new["spec"]["activeDeadlineSeconds"].as_i64(), before["activeDeadlineSeconds"].as_i64());
    match (deadline, earlier) {
        (Some(deadline), Some(earlier)) if deadline > earlier => {
            let detail = "must be less than or equal to previous value";
            errors.push(FieldError::invalid("spec.activeDeadlineSeconds", deadline, detail));
            return;
        }
        (None, Some(_)) => {
            let detail = "must not update from a positive integer to nil value";
            errors.push(FieldError::invalid("spec.activeDeadlineSeconds", Value::Null, detail));
            return;
        }
        _ => {}
    }
    let Some(spec) = comparable.as_object_mut() else { return };
    restore(spec, before, "activeDeadlineSeconds");
    if adds_only(&new["spec"]["tolerations"], &before["tolerations"]) {
        restore(spec, before, "tolerations");
    }
    let gates = |spec: &Value| spec["schedulingGates"].as_array().cloned().unwrap_or_default();
    if gates(&new["spec"]).iter().all(|gate| gates(before).contains(gate)) {
        restore(spec, before, "schedulingGates");
    }
    if comparable != *before {
        // kube-apiserver appends a diff of the two specs. It is left out here.
        errors.push(FieldError::forbidden("spec", IMMUTABLE));
    }
}

fn adds_only(new: &Value, old: &Value) -> bool {
    let new = new.as_array().map(Vec::as_slice).unwrap_or_default();
    old.as_array().is_none_or(|old| old.iter().all(|toleration| new.contains(toleration)))
}

fn restore(spec: &mut Map<String, Value>, before: &Value, field: &str) {
    match before.get(field) {
        Some(value) => {
            spec.insert(field.to_owned(), value.clone());
        }
        None => {
            spec.shift_remove(field);
        }
    }
}
