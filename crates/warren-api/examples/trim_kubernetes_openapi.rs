//! Makes `src/schema/kubernetes.json` from the OpenAPI v3 documents in Kubernetes' source tree.
//!
//! ```text
//! cargo run -p warren-api --example trim_kubernetes_openapi -- <kubernetes>/api/openapi-spec/v3 \
//!     > crates/warren-api/src/schema/kubernetes.json
//! ```
//!
//! It keeps the definitions that [`ROOTS`] refer to, one per line so that updates have readable
//! diffs. It drops the parts that only the API server's own generator needs: zero defaults of
//! required fields and of list items, which would turn a missing field into an empty one.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;

use serde_json::{Map, Value};

/// The documents, and the definitions in them that all kept ones are reached from.
const DOCUMENTS: [&str; 2] = ["api__v1_openapi.json", "apis__networking.k8s.io__v1_openapi.json"];
const ROOTS: [&str; 5] = [
    "io.k8s.api.core.v1.PodSpec",
    "io.k8s.api.core.v1.PersistentVolumeClaimSpec",
    "io.k8s.api.networking.v1.NetworkPolicyIngressRule",
    "io.k8s.api.networking.v1.NetworkPolicyEgressRule",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Condition",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args_os().nth(1).ok_or("name the folder api/openapi-spec/v3")?);
    let mut known = Map::new();
    for document in DOCUMENTS {
        let text = std::fs::read_to_string(folder.join(document))?;
        let mut document: Value = serde_json::from_str(&text)?;
        let schemas = document["components"]["schemas"].take();
        known.extend(schemas.as_object().cloned().ok_or("no components.schemas")?);
    }

    let mut kept = BTreeMap::new();
    let mut wanted: BTreeSet<String> = ROOTS.iter().map(ToString::to_string).collect();
    while let Some(name) = wanted.pop_first() {
        let mut definition = known.get(&name).cloned().ok_or_else(|| format!("no definition {name}"))?;
        trim(&mut definition);
        let mut references = Vec::new();
        collect_references(&definition, &mut references);
        kept.insert(name, definition);
        wanted.extend(references.into_iter().filter(|reference| !kept.contains_key(reference)));
    }

    let mut output = std::io::stdout().lock();
    let lines: Vec<String> = kept
        .iter()
        .map(|(name, definition)| format!("{}:{definition}", Value::from(name.as_str())))
        .collect();
    writeln!(output, "{{\n{}\n}}", lines.join(",\n"))?;
    Ok(())
}

/// Removes meaningless defaults, wrappers around a single reference, and unused vendor keys.
fn trim(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else { return };
    for key in ["x-kubernetes-unions", "x-kubernetes-group-version-kind"] {
        object.remove(key);
    }
    if let Some(all_of) = object.remove("allOf")
        && let Some([Value::Object(only)]) = all_of.as_array().map(Vec::as_slice)
    {
        object.extend(only.clone());
    }
    if let Some(Value::String(reference)) = object.get_mut("$ref") {
        *reference = last_segment(reference).to_owned();
    }
    let required: BTreeSet<String> = object
        .get("required")
        .and_then(Value::as_array)
        .map(|names| names.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        .unwrap_or_default();
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        for (name, property) in properties {
            trim(property);
            if let Some(property) = property.as_object_mut() {
                let empty =
                    property.get("default").is_some_and(|default| default == &Value::from(Map::new()));
                if empty || required.contains(name) {
                    property.remove("default");
                }
            }
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = object.get_mut(key) {
            trim(inner);
            if let Some(inner) = inner.as_object_mut() {
                inner.remove("default");
            }
        }
    }
}

fn collect_references(schema: &Value, into: &mut Vec<String>) {
    match schema {
        Value::Object(object) => {
            for (key, value) in object {
                match value {
                    Value::String(name) if key == "$ref" => into.push(name.clone()),
                    value => collect_references(value, into),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect_references(value, into)),
        _ => {}
    }
}

fn last_segment(reference: &str) -> &str {
    reference.rsplit('/').next().unwrap_or(reference)
}
