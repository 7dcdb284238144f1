//! Roles and bindings: defaults and validation. Their enforcement is in `crate::access`.

use serde_json::{Value, json};

use super::{Behaviour, NameRule, PLAIN, set_default};
use crate::access::GROUP;
use crate::status::FieldError;

pub(super) static ROLE: Behaviour = Behaviour {
    prepare_create: write_rules,
    prepare_update: |role, _| write_rules(role),
    validate: |role, errors| validate_rules(role, true, errors),
    create_on_update: true,
    name: NameRule::PathSegment,
    ..PLAIN
};

pub(super) static CLUSTER_ROLE: Behaviour = Behaviour {
    prepare_create: write_rules,
    prepare_update: |role, _| write_rules(role),
    validate: |role, errors| {
        validate_rules(role, false, errors);
        let selectors = role["aggregationRule"]["clusterRoleSelectors"].as_array();
        if role["aggregationRule"].is_object() && selectors.is_none_or(Vec::is_empty) {
            let detail = "at least one clusterRoleSelector required if aggregationRule is non-nil";
            errors.push(FieldError::required("aggregationRule.clusterRoleSelectors", detail));
        }
    },
    create_on_update: true,
    name: NameRule::PathSegment,
    ..PLAIN
};

pub(super) static ROLE_BINDING: Behaviour = Behaviour {
    default: default_binding,
    validate: |binding, errors| validate_binding(binding, &["Role", "ClusterRole"], errors),
    validate_update: validate_role_reference,
    create_on_update: true,
    name: NameRule::PathSegment,
    ..PLAIN
};

pub(super) static CLUSTER_ROLE_BINDING: Behaviour = Behaviour {
    default: default_binding,
    validate: |binding, errors| validate_binding(binding, &["ClusterRole"], errors),
    validate_update: validate_role_reference,
    create_on_update: true,
    name: NameRule::PathSegment,
    ..PLAIN
};

/// Adds a null list of rules if a role has none.
fn write_rules(role: &mut Value) {
    if let Some(role) = role.as_object_mut() {
        set_default(role, "rules", Value::Null);
    }
}

fn default_binding(binding: &mut Value) {
    let unset = |value: &Value| value.as_str().unwrap_or_default().is_empty();
    if binding["roleRef"].is_object() && unset(&binding["roleRef"]["apiGroup"]) {
        binding["roleRef"]["apiGroup"] = GROUP.into();
    }
    for subject in binding.get_mut("subjects").and_then(Value::as_array_mut).into_iter().flatten() {
        if matches!(subject["kind"].as_str(), Some("User" | "Group")) && unset(&subject["apiGroup"]) {
            subject["apiGroup"] = GROUP.into();
        }
    }
}

fn items<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn validate_rules(role: &Value, namespaced: bool, errors: &mut Vec<FieldError>) {
    for (index, rule) in items(role, "rules").iter().enumerate() {
        let path = format!("rules[{index}]");
        let mut required = |field: &str, detail: &str| {
            if items(rule, field).is_empty() {
                errors.push(FieldError::required(format!("{path}.{field}"), detail));
            }
        };
        required("verbs", "verbs must contain at least one value");
        if items(rule, "nonResourceURLs").is_empty() {
            required("apiGroups", "resource rules must supply at least one api group");
            required("resources", "resource rules must supply at least one resource");
            continue;
        }
        let mut invalid = |detail: &str| {
            let field = format!("{path}.nonResourceURLs");
            errors.push(FieldError::invalid(field, rule["nonResourceURLs"].clone(), detail));
        };
        if namespaced {
            invalid("namespaced rules cannot apply to non-resource URLs");
        }
        if ["apiGroups", "resources", "resourceNames"].iter().any(|field| !items(rule, field).is_empty()) {
            invalid("rules cannot apply to both regular resources and non-resource URLs");
        }
    }
}

fn validate_binding(binding: &Value, kinds: &[&str], errors: &mut Vec<FieldError>) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let role = &binding["roleRef"];
    let (group, kind, name) = (text(&role["apiGroup"]), text(&role["kind"]), text(&role["name"]));
    if group != GROUP {
        errors.push(FieldError::unsupported("roleRef.apiGroup", group, &[GROUP]));
    }
    if !kinds.contains(&kind.as_str()) {
        errors.push(FieldError::unsupported("roleRef.kind", kind, kinds));
    }
    if name.is_empty() {
        errors.push(FieldError::required("roleRef.name", ""));
    }
    for rule in crate::metadata::broken_segment_rules(&name) {
        errors.push(FieldError::invalid("roleRef.name", name.as_str(), rule));
    }
    let namespaced = kinds.contains(&"Role");
    for (index, subject) in items(binding, "subjects").iter().enumerate() {
        validate_subject(subject, &format!("subjects[{index}]"), namespaced, errors);
    }
}

fn validate_subject(subject: &Value, path: &str, namespaced: bool, errors: &mut Vec<FieldError>) {
    let text = |field: &str| subject[field].as_str().unwrap_or_default();
    if text("name").is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    }
    let group = text("apiGroup");
    match text("kind") {
        "ServiceAccount" => {
            if !group.is_empty() {
                errors.push(FieldError::unsupported(format!("{path}.apiGroup"), group, &[""]));
            }
            if !namespaced && text("namespace").is_empty() {
                errors.push(FieldError::required(format!("{path}.namespace"), ""));
            }
        }
        "User" | "Group" if group == GROUP => {}
        "User" | "Group" => {
            errors.push(FieldError::unsupported(format!("{path}.apiGroup"), group, &[GROUP]));
        }
        other => {
            let known = ["ServiceAccount", "User", "Group"];
            errors.push(FieldError::unsupported(format!("{path}.kind"), other, &known));
        }
    }
}

/// Checks that a binding keeps its role: a binding to another role needs a new approval.
fn validate_role_reference(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let role = &new["roleRef"];
    if *role != old["roleRef"] {
        let shown = json!({"APIGroup": role["apiGroup"], "Kind": role["kind"], "Name": role["name"]});
        errors.push(FieldError::invalid("roleRef", shown, "cannot change roleRef"));
    }
}
