//! Validation of an applied configuration against its schema, with kube-apiserver's messages.

use std::collections::BTreeSet;

use serde_json::Value;

use super::shape::Shape;
use crate::schema::Type;

/// Returns all errors of a configuration as one message, or `None` if it is valid.
pub(super) fn complaint(configuration: &Value, shape: Shape<'_>) -> Option<String> {
    let mut errors = Vec::new();
    check(configuration, shape, "", &mut errors);
    match errors.as_slice() {
        [] => None,
        [only] => Some(only.clone()),
        several => {
            let lines: Vec<_> = several.iter().map(|error| format!("\n  {error}")).collect();
            Some(format!("errors:{}", lines.concat()))
        }
    }
}

fn check(value: &Value, shape: Shape<'_>, path: &str, errors: &mut Vec<String>) {
    let Some(schema) = shape.0 else { return };
    let mut complain = |what: String| errors.push(format!("{path}: {what}"));
    if value.is_null() || schema.int_or_string || schema.quantity {
        return;
    }
    match (schema.type_, value) {
        (Some(Type::String), Value::String(_))
        | (Some(Type::Boolean), Value::Bool(_))
        | (Some(Type::Integer | Type::Number), Value::Number(_)) => {}
        (Some(Type::String), _) => complain(format!("expected string, got {}", go_literal(value))),
        (Some(Type::Boolean), _) => complain(format!("expected boolean, got &{{{}}}", go_value(value))),
        (Some(Type::Integer | Type::Number), _) => {
            complain(format!("expected numeric (int or float), got {}", go_type(value)));
        }
        (Some(Type::Object) | None, Value::Object(object)) => {
            for (name, child) in object {
                let path = format!("{path}.{name}");
                if !shape.allows(name) {
                    // kube-apiserver stops looking at this object here.
                    errors.push(format!("{path}: field not declared in schema"));
                    return;
                }
                check(child, shape.field(name), &path, errors);
            }
        }
        (Some(Type::Object), _) => complain(format!("expected map, got &{{{}}}", go_value(value))),
        (Some(Type::Array), Value::Array(items)) => check_entries(items, shape, path, errors),
        (Some(Type::Array), _) => complain(format!("expected list, got &{{{}}}", go_value(value))),
        (None, _) => {}
    }
}

fn check_entries(items: &[Value], shape: Shape<'_>, path: &str, errors: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for (index, item) in items.iter().enumerate() {
        if !shape.takes_lists_apart() {
            check(item, shape.items(), &format!("{path}[{index}]"), errors);
            continue;
        }
        match shape.entry(item) {
            Ok(element) => {
                let below = format!("{path}{element}");
                if seen.contains(&element) {
                    errors.push(format!("{path}: duplicate entries for key {element}"));
                }
                seen.insert(element);
                check(item, shape.items(), &below, errors);
            }
            Err(cause) => {
                errors.push(format!("{path}: element {index}: {cause}"));
                return;
            }
        }
    }
}

/// Formats a value as Go prints it at the end of kube-apiserver's messages.
fn go_value(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(go_value).collect::<Vec<_>>().join(" ")),
        Value::Object(object) => {
            let mut fields: Vec<_> =
                object.iter().map(|(name, value)| format!("{name}:{}", go_value(value))).collect();
            fields.sort();
            format!("map[{}]", fields.join(" "))
        }
        other => other.to_string(),
    }
}

fn go_literal(value: &Value) -> String {
    let shown = match value {
        Value::Object(_) | Value::Array(_) => go_value(value),
        scalar => scalar.to_string(),
    };
    format!("&value.valueUnstructured{{Value:{shown}}}")
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
