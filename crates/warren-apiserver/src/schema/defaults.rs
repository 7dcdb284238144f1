//! Defaults of schemas.

use serde_json::Value;

use super::Schema;

/// Fills in the schema's defaults, at all levels.
pub(crate) fn apply_defaults(value: &mut Value, schema: &Schema) {
    if !schema.has_defaults {
        return;
    }
    match value {
        Value::Object(object) => {
            let concerned =
                schema.properties.iter().filter(|(_, below)| below.has_defaults || below.default.is_some());
            for (name, property) in concerned {
                if let Some(default) = &property.default {
                    let missing = match object.get(name) {
                        None => true,
                        // An explicit null means the default, unless the field is nullable.
                        Some(Value::Null) => !property.nullable,
                        Some(_) => false,
                    };
                    if missing {
                        object.insert(name.to_string(), (**default).clone());
                    }
                }
                if let Some(child) = object.get_mut(name) {
                    apply_defaults(child, property);
                }
            }
            if let Some(additional) = &schema.additional {
                for (name, child) in object.iter_mut() {
                    if !schema.properties.contains_key(name.as_str()) {
                        if child.is_null()
                            && !additional.nullable
                            && let Some(default) = &additional.default
                        {
                            *child = (**default).clone();
                        }
                        apply_defaults(child, additional);
                    }
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = &schema.items {
                for item in items {
                    apply_defaults(item, schema);
                }
            }
        }
        _ => {}
    }
}
