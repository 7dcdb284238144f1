//! Checks a manifest against the schema of its kind without a server: unknown fields, missing
//! fields, wrong types and values.
//!
//! It lets tools report early what a server would report later. It does not replace the server,
//! which also checks formats, patterns, limits and rules between fields.

use std::sync::LazyLock;

use serde_json::Value;

/// A field of a manifest that the server would drop or refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The path of the field.
    pub path: Path,
    /// The problem with it.
    pub problem: Problem,
}

/// The problem with a field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The schema has no such field.
    #[error("unknown field")]
    Unknown,
    /// The schema requires the field, and it is missing.
    #[error("required, and missing")]
    Missing,
    /// The schema requires another type.
    #[error("not of type {0}")]
    NotOfType(String),
    /// The value is none of those that the schema lists.
    #[error("not one of {0}")]
    NotOneOf(String),
}

/// The path of a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Field(String),
    Index(usize),
}

impl Path {
    fn child(&self, step: Step) -> Self {
        let mut path = self.0.clone();
        path.push(step);
        Self(path)
    }

    /// Removes the field from an object, if it is there. Never removes an item of a list, which
    /// would shift the others.
    pub fn remove_from(&self, object: &mut Value) {
        let Some((Step::Field(name), parents)) = self.0.split_last() else { return };
        let parent = parents.iter().try_fold(object, |place, step| match step {
            Step::Field(name) => place.get_mut(name),
            Step::Index(index) => place.get_mut(index),
        });
        if let Some(parent) = parent.and_then(Value::as_object_mut) {
            parent.shift_remove(name);
        }
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (position, step) in self.0.iter().enumerate() {
            match step {
                Step::Field(name) if position == 0 => write!(formatter, "{name}")?,
                Step::Field(name) => write!(formatter, ".{name}")?,
                Step::Index(index) => write!(formatter, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// Returns the problems of an object by the schema of `kind`. Empty for kinds that are not ours.
pub fn check(kind: &str, object: &Value) -> Vec<Finding> {
    static SCHEMAS: LazyLock<Vec<(String, Value)>> = LazyLock::new(|| {
        crate::crds()
            .into_iter()
            .filter_map(|crd| {
                let schema = crd.spec.versions.first()?.schema.as_ref()?.open_api_v3_schema.as_ref()?;
                Some((crd.spec.names.kind, serde_json::to_value(schema).ok()?))
            })
            .collect()
    });
    let mut findings = Vec::new();
    if let Some((_, schema)) = SCHEMAS.iter().find(|(name, _)| name == kind) {
        walk(schema, object, &Path::default(), &mut findings);
    }
    findings
}

fn walk(schema: &Value, value: &Value, path: &Path, findings: &mut Vec<Finding>) {
    let mut found = |problem| findings.push(Finding { path: path.clone(), problem });
    if schema.get("x-kubernetes-int-or-string").is_some() {
        if !value.is_i64() && !value.is_string() {
            found(Problem::NotOfType("integer or string".to_owned()));
        }
        return;
    }
    let type_ = schema.get("type").and_then(Value::as_str).unwrap_or_default();
    let fits = match type_ {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        _ => true,
    };
    if !fits {
        return found(Problem::NotOfType(type_.to_owned()));
    }
    if let Some(words) = schema.get("enum").and_then(Value::as_array)
        && !words.contains(value)
    {
        let words: Vec<String> = words.iter().map(Value::to_string).collect();
        return found(Problem::NotOneOf(words.join(", ")));
    }
    match value {
        Value::Object(fields) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let others = schema.get("additionalProperties");
            for name in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
                if let Some(name) = name.as_str().filter(|name| !fields.contains_key(*name)) {
                    let path = path.child(Step::Field(name.to_owned()));
                    findings.push(Finding { path, problem: Problem::Missing });
                }
            }
            for (name, value) in fields {
                let path = path.child(Step::Field(name.clone()));
                match properties.and_then(|properties| properties.get(name)).or(others) {
                    Some(schema) => walk(schema, value, &path, findings),
                    // An object without properties, such as `metadata`, is not checked here.
                    None if properties.is_none() => {}
                    None => findings.push(Finding { path, problem: Problem::Unknown }),
                }
            }
        }
        Value::Array(values) => {
            if let Some(items) = schema.get("items") {
                for (index, value) in values.iter().enumerate() {
                    walk(items, value, &path.child(Step::Index(index)), findings);
                }
            }
        }
        _ => {}
    }
}
