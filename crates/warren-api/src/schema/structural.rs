//! Converts JSON Schema into a structural schema.
//!
//! A CRD's schema has no references, no `null` type and no `allOf` around a type, and it has its
//! own form for quantities and int-or-string values. The result equals controller-gen's for the
//! same Go types.

use serde_json::{Map, Value, json};

use super::Definitions;

/// The error if a schema cannot be made structural. The cause is a mistake in a type, not in a
/// manifest.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SchemaError {
    /// A reference has no target.
    #[error("`{path}` refers to `{name}`, which is not defined")]
    Unresolved {
        /// The path in the resulting schema.
        path: String,
        /// The missing name.
        name: String,
    },
    /// A type contains itself, which a structural schema cannot express.
    #[error("`{path}` contains itself through `{name}`")]
    Recursive {
        /// The path in the resulting schema.
        path: String,
        /// The name of the recursive type.
        name: String,
    },
}

const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const CONDITION: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Condition";

/// The pattern of `resource.Quantity`, as controller-gen writes it into every CRD.
const QUANTITY_PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// The patterns of a condition's `type` and `reason`, from the markers on `metav1.Condition`.
const CONDITION_TYPE_PATTERN: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$";
const CONDITION_REASON_PATTERN: &str = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$";

/// The fields of an embedded object's metadata that have an effect.
const EMBEDDED_METADATA: [&str; 5] = ["annotations", "finalizers", "labels", "name", "namespace"];

/// Types that embed a LocalObjectReference. controller-gen copies the embedded type's
/// `x-kubernetes-map-type` to them; Kubernetes' own generator does not. Clients of server-side
/// apply notice the difference.
const EMBED_LOCAL_OBJECT_REFERENCE: [&str; 5] = [
    "io.k8s.api.core.v1.ConfigMapEnvSource",
    "io.k8s.api.core.v1.ConfigMapProjection",
    "io.k8s.api.core.v1.ConfigMapVolumeSource",
    "io.k8s.api.core.v1.SecretEnvSource",
    "io.k8s.api.core.v1.SecretProjection",
];
const AZURE_DISK: &str = "io.k8s.api.core.v1.AzureDiskVolumeSource";

/// Keywords that are copied unchanged.
const KEPT: [&str; 17] = [
    "default",
    "description",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "maxItems",
    "maxLength",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "pattern",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-validations",
];

/// Makes a schema structural. References to names that Kubernetes defines use Kubernetes'
/// definition, even if `own` also has one. All others use `own`.
pub fn structural(schema: &Value, own: &Definitions) -> Result<Value, SchemaError> {
    Rewriter { own, path: Vec::new(), open: Vec::new() }.rewrite(schema)
}

struct Rewriter<'a> {
    own: &'a Definitions,
    path: Vec<String>,
    /// The names being resolved, to detect recursion.
    open: Vec<String>,
}

impl Rewriter<'_> {
    fn rewrite(&mut self, schema: &Value) -> Result<Value, SchemaError> {
        let Some(object) = schema.as_object() else {
            // `true` is the schema of any value.
            return Ok(json!({ "x-kubernetes-preserve-unknown-fields": true }));
        };

        if let Some(inner) = single_alternative(object) {
            return self.rewrite(&overlay(inner, object));
        }
        if let Some(name) = object.get("$ref").and_then(Value::as_str) {
            return self.resolve(name.rsplit('/').next().unwrap_or(name), object);
        }

        let mut result = Map::new();
        for key in KEPT {
            if let Some(value) = object.get(key) {
                result.insert(key.to_owned(), value.clone());
            }
        }
        if let Some(description) = object.get("description").and_then(Value::as_str) {
            result.insert("description".to_owned(), Value::from(unwrap_lines(description)));
        }
        if let Some(type_) = object.get("type").and_then(single_type) {
            result.insert("type".to_owned(), type_.clone());
        }
        if let Some(words) = words_of(object) {
            // A field may list the words itself in another order, which the server's messages
            // repeat.
            result.entry("enum").or_insert_with(|| Value::from(words));
            result.insert("type".to_owned(), Value::from("string"));
        }
        if let Some(properties) = object.get("properties").and_then(Value::as_object) {
            let mut rewritten = Map::new();
            for (name, property) in properties {
                self.path.push(name.clone());
                rewritten.insert(name.clone(), self.rewrite(property)?);
                self.path.pop();
            }
            result.insert("properties".to_owned(), Value::Object(rewritten));
        }
        if let Some(required) = object.get("required").and_then(Value::as_array)
            && !required.is_empty()
        {
            let mut required = required.clone();
            required.sort_by(|left, right| left.as_str().cmp(&right.as_str()));
            result.insert("required".to_owned(), Value::Array(required));
        }
        for (key, step) in [("items", "[]"), ("additionalProperties", "{}")] {
            if let Some(inner) = object.get(key).filter(|inner| inner.is_object()) {
                self.path.push(step.to_owned());
                let mut inner = self.rewrite(inner)?;
                self.path.pop();
                // The list or map above already has this keyword.
                if key == "additionalProperties"
                    && let Some(inner) = inner.as_object_mut()
                {
                    inner.remove("description");
                }
                result.insert(key.to_owned(), inner);
            }
        }
        Ok(Value::Object(result))
    }

    /// Resolves a reference. Keywords beside the reference override the definition's.
    fn resolve(&mut self, name: &str, beside: &Map<String, Value>) -> Result<Value, SchemaError> {
        let path = || self.path.join(".");
        if self.open.iter().any(|open| open == name) {
            return Err(SchemaError::Recursive { path: path(), name: name.to_owned() });
        }
        let definition = match name {
            INT_OR_STRING => return Ok(with_description(int_or_string(), beside)),
            QUANTITY => {
                let mut quantity = int_or_string();
                quantity.insert("pattern".to_owned(), Value::from(QUANTITY_PATTERN));
                return Ok(with_description(quantity, beside));
            }
            name => Definitions::kubernetes()
                .get(name)
                .or_else(|| self.own.get(name))
                .ok_or_else(|| SchemaError::Unresolved { path: path(), name: name.to_owned() })?,
        };
        let mut definition = overlay(definition, beside);
        match name {
            OBJECT_META => keep_embedded_metadata(&mut definition),
            CONDITION => refine_condition(&mut definition),
            AZURE_DISK => drop_symbolic_defaults(&mut definition),
            name if EMBED_LOCAL_OBJECT_REFERENCE.contains(&name) => {
                definition["x-kubernetes-map-type"] = Value::from("atomic");
            }
            _ => {}
        }
        self.open.push(name.to_owned());
        let rewritten = self.rewrite(&definition);
        self.open.pop();
        rewritten
    }
}

/// Returns the schema inside an `allOf` with one member, or an `anyOf` with one member and `null`.
fn single_alternative(schema: &Map<String, Value>) -> Option<&Value> {
    if let Some([only]) = schema.get("allOf").and_then(Value::as_array).map(Vec::as_slice) {
        return Some(only);
    }
    let alternatives = schema.get("anyOf").and_then(Value::as_array)?;
    let mut real = alternatives.iter().filter(|alternative| alternative.get("type") != Some(&json!("null")));
    let first = real.next()?;
    (real.next().is_none() && alternatives.len() == 2).then_some(first)
}

/// Adds the keywords of `outer` to `inner`, except for wrappers. The outer ones win.
fn overlay(inner: &Value, outer: &Map<String, Value>) -> Value {
    let mut merged = inner.as_object().cloned().unwrap_or_default();
    for (key, value) in outer {
        if !matches!(key.as_str(), "$ref" | "allOf" | "anyOf") {
            merged.insert(key.clone(), value.clone());
        }
    }
    Value::Object(merged)
}

/// Returns `"string"` for `"string"` and for `["string", "null"]`: an absent value is not written
/// as null.
fn single_type(type_: &Value) -> Option<&Value> {
    match type_ {
        Value::Array(types) => types.iter().find(|type_| *type_ != "null"),
        type_ => Some(type_),
    }
}

/// Returns the words of an enum with documented variants: `oneOf` with a `const` or an `enum` each.
fn words_of(schema: &Map<String, Value>) -> Option<Vec<Value>> {
    let mut words = Vec::new();
    for variant in schema.get("oneOf").and_then(Value::as_array)? {
        match (variant.get("const"), variant.get("enum").and_then(Value::as_array)) {
            (Some(word), _) => words.push(word.clone()),
            (None, Some(more)) => words.extend(more.iter().cloned()),
            (None, None) => return None,
        }
    }
    Some(words)
}

fn int_or_string() -> Map<String, Value> {
    Map::from_iter([
        ("anyOf".to_owned(), json!([{ "type": "integer" }, { "type": "string" }])),
        ("x-kubernetes-int-or-string".to_owned(), Value::Bool(true)),
    ])
}

fn with_description(mut schema: Map<String, Value>, beside: &Map<String, Value>) -> Value {
    if let Some(description) = beside.get("description") {
        schema.insert("description".to_owned(), description.clone());
    }
    Value::Object(schema)
}

/// Removes all other metadata fields. The server owns them, and an embedded object has no use for
/// them.
fn keep_embedded_metadata(definition: &mut Value) {
    if let Some(properties) = definition.get_mut("properties").and_then(Value::as_object_mut) {
        properties.retain(|name, _| EMBEDDED_METADATA.contains(&name.as_str()));
        if let Some(finalizers) = properties.get_mut("finalizers").and_then(Value::as_object_mut) {
            finalizers.remove("x-kubernetes-list-type");
        }
    }
}

/// Removes two defaults that the Go source gives by the name of a constant, which controller-gen
/// does not resolve.
fn drop_symbolic_defaults(definition: &mut Value) {
    for field in ["cachingMode", "kind"] {
        if let Some(property) = definition["properties"][field].as_object_mut() {
            property.remove("default");
        }
    }
}

/// Adds the markers of `metav1.Condition`, which Kubernetes' published schema lacks.
fn refine_condition(definition: &mut Value) {
    let refinements = json!({
        "message": { "maxLength": 32768 },
        "observedGeneration": { "minimum": 0 },
        "reason": { "maxLength": 1024, "minLength": 1, "pattern": CONDITION_REASON_PATTERN },
        "status": { "enum": ["True", "False", "Unknown"] },
        "type": { "maxLength": 316, "pattern": CONDITION_TYPE_PATTERN },
    });
    for (field, keywords) in refinements.as_object().into_iter().flatten() {
        if let (Some(property), Some(keywords)) =
            (definition["properties"][field].as_object_mut(), keywords.as_object())
        {
            property.extend(keywords.clone());
        }
    }
}

/// Joins the lines of each paragraph: line breaks come only from wrapping in the source.
fn unwrap_lines(text: &str) -> String {
    let paragraphs: Vec<String> = text
        .split("\n\n")
        .map(|paragraph| {
            let is_layout = paragraph.lines().any(|line| line.starts_with([' ', '\t', '-', '*']));
            if is_layout { paragraph.to_owned() } else { paragraph.replace('\n', " ") }
        })
        .collect();
    paragraphs.join("\n\n")
}

#[cfg(test)]
mod tests;
