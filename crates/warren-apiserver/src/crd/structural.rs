//! Checks that a schema is structural, with kube-apiserver's messages. If there is one version, or
//! all versions have the same schema, error paths begin with `spec.validation`, as they do there.

use serde_json::Value;

use crate::schema::rule_error;
use crate::status::FieldError;

/// The position of a schema in the tree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Field,
    Item,
}

/// The maximum depth of the walk. The compiler refuses deeper schemas.
const DEEPEST: usize = 64;

pub(super) fn validate(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    node(schema, Level::Root, path, 0, errors);
}

fn node(schema: &Value, level: Level, path: &str, depth: usize, errors: &mut Vec<FieldError>) {
    if depth > DEEPEST {
        return;
    }
    let type_ = schema["type"].as_str().unwrap_or_default();
    let is_set = |name: &str| schema[name] == true;
    if type_ == "array" && schema.get("items").is_none() {
        errors.push(FieldError::required(format!("{path}.items"), "must be specified"));
    }
    if schema["items"].is_object() {
        node(&schema["items"], Level::Item, &format!("{path}.items"), depth + 1, errors);
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        // `metadata` has a fixed schema, whatever the definition says.
        if level == Level::Root && name == "metadata" {
            continue;
        }
        node(property, Level::Field, &format!("{path}.properties[{name}]"), depth + 1, errors);
    }
    let additional = format!("{path}.additionalProperties");
    if schema.get("additionalProperties").is_some_and(|value| !value.is_null()) {
        if level == Level::Root {
            errors.push(FieldError::forbidden(additional.as_str(), "must not be used at the root"));
        }
        if schema["additionalProperties"].is_object() {
            node(&schema["additionalProperties"], Level::Field, &additional, depth + 1, errors);
        }
    }
    let any_type = is_set("x-kubernetes-int-or-string") || is_set("x-kubernetes-preserve-unknown-fields");
    let type_path = format!("{path}.type");
    if is_set("x-kubernetes-embedded-resource") && type_ != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(match type_ {
            "" => FieldError::required(type_path, detail),
            other => FieldError::invalid(type_path, other, detail),
        });
    } else if type_.is_empty() && !any_type {
        errors.push(FieldError::required(
            type_path,
            match level {
                Level::Root => "must not be empty at the root",
                Level::Item => "must not be empty for specified array items",
                Level::Field => "must not be empty for specified object fields",
            },
        ));
    } else if level == Level::Root && !type_.is_empty() && type_ != "object" {
        errors.push(FieldError::invalid(type_path, type_, "must be object at the root"));
    }
    let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
    for (index, rule) in rules.enumerate() {
        let field = format!("{path}.x-kubernetes-validations[{index}].rule");
        let text = rule["rule"].as_str().unwrap_or_default();
        if text.trim().is_empty() {
            errors.push(FieldError::required(field, "rule is not specified"));
        } else if let Some(cause) = rule_error(schema, rule) {
            errors.push(FieldError::invalid(field, text, format!("compilation failed: {cause}")));
        }
    }
}
