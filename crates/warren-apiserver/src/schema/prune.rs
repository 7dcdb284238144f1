//! Removal of unknown fields, empty maps and nulls.

use serde_json::{Map, Value};

use super::{Schema, Type, in_entry, in_field, join};

/// Removes the fields that the schema does not know and adds their paths to `unknown`.
pub(crate) fn prune(value: &mut Value, schema: &Schema, unknown: &mut Vec<String>) {
    prune_below(value, schema, &mut String::new(), unknown);
}

fn prune_below(value: &mut Value, schema: &Schema, path: &mut String, unknown: &mut Vec<String>) {
    match value {
        Value::Object(object) => prune_object(object, schema, path, unknown),
        Value::Array(items) => {
            if let Some(schema) = &schema.items {
                for (index, item) in items.iter_mut().enumerate() {
                    in_entry(path, index, |path| prune_below(item, schema, path, unknown));
                }
            }
        }
        _ => {}
    }
}

fn prune_object(
    object: &mut Map<String, Value>,
    schema: &Schema,
    path: &mut String,
    unknown: &mut Vec<String>,
) {
    object.retain(|name, child| {
        // The root and embedded resources always have these fields, even if the schema does not
        // name them.
        let is_resource =
            schema.embedded_resource && matches!(name.as_str(), "apiVersion" | "kind" | "metadata");
        match schema.field(name) {
            Some(schema) => {
                in_field(path, name, |path| prune_below(child, schema, path, unknown));
                true
            }
            None if schema.preserve_unknown || is_resource => true,
            None => {
                unknown.push(join(path, name));
                false
            }
        }
    });
}

/// Removes empty maps, as encoding with kube-apiserver's Go types does: an empty map equals none.
/// Empty structs stay; they are recognised by having named fields.
pub(crate) fn drop_empty_maps(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(object) => object.retain(|name, child| {
            let Some(below) = schema.field(name) else { return true };
            drop_empty_maps(child, below);
            let is_map = below.additional.is_some() && below.properties.is_empty();
            !(is_map && child.as_object().is_some_and(Map::is_empty))
        }),
        Value::Array(items) => {
            if let Some(below) = &schema.items {
                items.iter_mut().for_each(|item| drop_empty_maps(item, below));
            }
        }
        _ => {}
    }
}

/// Removes nulls that a custom resource's schema does not allow.
pub(crate) fn drop_unwanted_nulls(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(object) => object.retain(|name, child| {
            let Some(schema) = schema.field(name) else { return true };
            drop_unwanted_nulls(child, schema);
            !child.is_null() || schema.nullable
        }),
        Value::Array(items) => {
            if let Some(schema) = &schema.items {
                items.iter_mut().for_each(|item| drop_unwanted_nulls(item, schema));
            }
        }
        _ => {}
    }
}

/// Removes nulls, as decoding into kube-apiserver's Go types does: a null equals an absent field.
/// In a map of strings a null becomes the empty string.
pub(crate) fn drop_nulls(value: &mut Value, schema: Option<&Schema>) {
    match value {
        Value::Object(object) => {
            object.retain(|name, child| {
                let text = |below: &Schema| below.type_ == Some(Type::String) && below.properties.is_empty();
                if !child.is_null() {
                    return true;
                }
                let entry = schema.filter(|schema| !schema.properties.contains_key(name.as_str()));
                let is_text = entry.and_then(|schema| schema.additional.as_deref()).is_some_and(text);
                if is_text {
                    *child = "".into();
                }
                is_text
            });
            for (name, child) in object.iter_mut() {
                drop_nulls(child, schema.and_then(|schema| schema.field(name)).map(|schema| &**schema));
            }
        }
        Value::Array(items) => {
            let below = schema.and_then(|schema| schema.items.as_deref());
            items.iter_mut().for_each(|item| drop_nulls(item, below));
        }
        _ => {}
    }
}
