//! Named schema definitions. The names are the full ones that `$ref` uses.

use std::sync::LazyLock;

use serde_json::{Map, Value};

/// A set of schema definitions that refer to each other by name.
#[derive(Clone, Debug, Default)]
pub struct Definitions(Map<String, Value>);

impl Definitions {
    /// Returns Kubernetes' own definitions that a pod, a volume claim, a network policy rule and a
    /// condition refer to. They include `x-kubernetes-patch-merge-key` and `-strategy`, which a
    /// strategic merge patch needs.
    pub fn kubernetes() -> &'static Self {
        static KUBERNETES: LazyLock<Definitions> = LazyLock::new(|| {
            let definitions = serde_json::from_str(include_str!("kubernetes.json"))
                .expect("kubernetes.json is part of this crate and parsed by its tests");
            Definitions(definitions)
        });
        &KUBERNETES
    }

    /// Returns the definitions in the `$defs` of a JSON Schema document.
    pub fn of_document(document: &Value) -> Self {
        Self(document.get("$defs").and_then(Value::as_object).cloned().unwrap_or_default())
    }

    /// Returns the definition of this name, such as `io.k8s.api.core.v1.PodSpec`.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// Returns every name and definition.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, definition)| (name.as_str(), definition))
    }
}

#[cfg(test)]
mod tests {
    use super::Definitions;
    use serde_json::Value;

    /// Calls `visit` on every schema below `schema`, but not on the maps of properties in between.
    fn walk(schema: &Value, visit: &mut dyn FnMut(&Value)) {
        visit(schema);
        if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
            properties.values().for_each(|property| walk(property, visit));
        }
        for key in ["items", "additionalProperties"] {
            if let Some(inner) = schema.get(key) {
                walk(inner, visit);
            }
        }
    }

    #[test]
    fn every_reference_resolves() {
        let kubernetes = Definitions::kubernetes();
        assert!(kubernetes.iter().count() > 100);
        for (name, definition) in kubernetes.iter() {
            walk(definition, &mut |schema| {
                if let Some(reference) = schema.get("$ref") {
                    let reference = reference.as_str().expect("a name");
                    assert!(kubernetes.get(reference).is_some(), "{name} refers to {reference}");
                }
            });
        }
    }

    #[test]
    fn a_required_field_has_no_default() {
        for (name, definition) in Definitions::kubernetes().iter() {
            walk(definition, &mut |schema| {
                for field in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
                    let field = field.as_str().expect("a name");
                    let default = schema["properties"][field].get("default");
                    assert_eq!(default, None, "default of {name}.{field}, which is required");
                }
            });
        }
    }
}
