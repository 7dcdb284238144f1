//! Conversion of all four kinds from `v1alpha1` to `v1beta1`. Pure.
//!
//! There is no conversion webhook, so the earlier form of an object is not kept. [`convert`] takes
//! a manifest, renames fields, and returns [`Note`]s about fields that it could not convert. It
//! also accepts the spellings of earlier drafts and of integrations based on them (`templateName`,
//! `templateRef`, `size`, `minReady`), and old spellings in a `v1beta1` manifest, because published
//! examples contain all of these.
//!
//! Start with [`convert`]; each kind has a file of its own.

mod claim;
mod document;
mod pool;
mod sandbox;
mod template;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};

use crate::schema::check::{Finding, Problem};
use crate::{EXTENSIONS_GROUP, GROUP, VERSION, annotations};
use document::Document;

/// The result of a conversion.
#[derive(Clone, Debug, PartialEq)]
pub struct Converted {
    /// The manifest as `v1beta1`. Manifests of other kinds are unchanged.
    pub object: Value,
    /// True if `object` differs from the input.
    pub changed: bool,
    /// Fields that could not be converted, and other remarks.
    pub notes: Vec<Note>,
    /// Objects that the converted one needs and that the old manifest did not have to name. They
    /// may exist already: see [`missing_companions`].
    pub companions: Vec<Value>,
}

/// A field that could not be converted unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The path of the field in the input, such as `spec.replicas`.
    pub path: String,
    /// The change and its reason.
    pub reason: String,
    /// The recommended action. Empty if there is none.
    pub advice: String,
}

impl std::fmt::Display for Note {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}: {}", self.path, self.reason)?;
        if !self.advice.is_empty() {
            write!(formatter, "; {}", self.advice)?;
        }
        Ok(())
    }
}

/// The error if a manifest cannot be converted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConversionError {
    /// The document is not a Kubernetes object.
    #[error("`{path}` is missing: this is not a complete manifest")]
    NotAManifest {
        /// The missing field.
        path: &'static str,
    },
    /// A field has a value that cannot be converted, or a required field is missing.
    #[error("`{path}`: {problem}")]
    Field {
        /// The path of the field.
        path: String,
        /// The problem with it.
        problem: String,
    },
    /// The API group is ours, but the version or kind is unknown.
    #[error("`{api_version}` has no kind `{kind}`")]
    UnknownKind {
        /// The `apiVersion` of the manifest.
        api_version: String,
        /// The `kind` of the manifest.
        kind: String,
    },
}

/// Converts one manifest. Manifests of other API groups, and those that are already `v1beta1`, are
/// returned unchanged.
pub fn convert(manifest: Value) -> Result<Converted, ConversionError> {
    let text = |field: &'static str| match manifest.get(field) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(ConversionError::Field { path: field.to_owned(), problem: "not a string".to_owned() }),
        None => Err(ConversionError::NotAManifest { path: field }),
    };
    let (api_version, kind) = (text("apiVersion")?, text("kind")?);

    if (api_version.as_str(), kind.as_str()) == ("v1", "List") {
        return convert_items(manifest);
    }
    let Some((group @ (GROUP | EXTENSIONS_GROUP), version)) = api_version.split_once('/') else {
        let notes = old_references(&manifest);
        return Ok(Converted { object: manifest, changed: false, notes, companions: Vec::new() });
    };
    if !matches!(version, "v1alpha1" | VERSION) {
        return Err(ConversionError::UnknownKind { api_version, kind });
    }
    if kind.ends_with("List") {
        let group = group.to_owned();
        let mut list = convert_items(manifest)?;
        let current = format!("{group}/{VERSION}");
        list.changed |= list.object["apiVersion"] != current;
        list.object["apiVersion"] = Value::from(current);
        return Ok(list);
    }

    let mut document = Document::new(manifest)?;
    let companions = match (group, kind.as_str()) {
        (GROUP, "Sandbox") => sandbox::convert(&mut document)?,
        (EXTENSIONS_GROUP, "SandboxClaim") => claim::convert(&mut document)?,
        (EXTENSIONS_GROUP, "SandboxTemplate") => template::convert(&mut document)?,
        (EXTENSIONS_GROUP, "SandboxWarmPool") => pool::convert(&mut document)?,
        _ => return Err(ConversionError::UnknownKind { api_version, kind }),
    };
    document.set_api_version(&format!("{group}/{VERSION}"));
    let was_current = version == VERSION && !document.changed;
    finish(document, &kind, companions, was_current)
}

/// Converts every item of a list, such as the output of `kubectl get --output yaml`.
fn convert_items(mut list: Value) -> Result<Converted, ConversionError> {
    let (mut changed, mut notes, mut companions) = (false, Vec::new(), Vec::new());
    for (index, item) in list.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten().enumerate()
    {
        let below = |path: &str| format!("items[{index}].{path}");
        let converted = convert(item.take()).map_err(|error| match error {
            ConversionError::Field { path, problem } => {
                ConversionError::Field { path: below(&path), problem }
            }
            ConversionError::NotAManifest { path } => {
                ConversionError::Field { path: below(path), problem: "missing".to_owned() }
            }
            error @ ConversionError::UnknownKind { .. } => error,
        })?;
        *item = converted.object;
        changed |= converted.changed;
        notes.extend(converted.notes.into_iter().map(|note| Note { path: below(&note.path), ..note }));
        companions.extend(converted.companions);
    }
    Ok(Converted { object: list, changed, notes, companions })
}

/// Checks the result against the schema and notes what the server would drop or refuse. A manifest
/// that was already `v1beta1` is left alone: its errors do not come from the conversion.
fn finish(
    document: Document,
    kind: &str,
    companions: Vec<Value>,
    was_current: bool,
) -> Result<Converted, ConversionError> {
    let Document { mut object, mut notes, changed } = document;
    for Finding { path, problem } in crate::schema::check::check(kind, &object) {
        match problem {
            Problem::Unknown => {
                if !was_current {
                    path.remove_from(&mut object);
                }
                notes.push(Note {
                    path: path.to_string(),
                    reason: format!("{kind} has no such field in {VERSION}; the server drops it"),
                    advice: "remove it or look up its successor".to_owned(),
                });
            }
            problem if was_current => notes.push(Note {
                path: path.to_string(),
                reason: format!("the server will refuse this: {problem}"),
                advice: String::new(),
            }),
            problem => {
                return Err(ConversionError::Field { path: path.to_string(), problem: problem.to_string() });
            }
        }
    }
    Ok(Converted { object, changed, notes, companions })
}

/// Returns the companions that are not among the manifests themselves, each once.
pub fn missing_companions<'a>(converted: impl IntoIterator<Item = &'a Converted> + Clone) -> Vec<&'a Value> {
    let mut missing: Vec<&Value> = Vec::new();
    for companion in converted.clone().into_iter().flat_map(|converted| &converted.companions) {
        let given = converted.clone().into_iter().any(|other| {
            let items = other.object.get("items").and_then(Value::as_array).into_iter().flatten();
            std::iter::once(&other.object).chain(items).any(|other| same_object(other, companion))
        });
        if !given && !missing.iter().any(|other| same_object(other, companion)) {
            missing.push(companion);
        }
    }
    missing
}

fn same_object(left: &Value, right: &Value) -> bool {
    // Objects without a namespace all go to the client's current one.
    ["/kind", "/metadata/name", "/metadata/namespace"]
        .iter()
        .all(|pointer| left.pointer(pointer) == right.pointer(pointer))
}

/// Returns the pool for claims that named only a template, as upstream's migration makes it. It has
/// no waiting sandboxes, so that claims get new ones, as before.
fn shadow_pool(template: &str, namespace: Option<&Value>) -> Value {
    let mut metadata = Map::from_iter([("name".to_owned(), Value::from(shadow_pool_name(template)))]);
    if let Some(namespace) = namespace {
        metadata.insert("namespace".to_owned(), namespace.clone());
    }
    metadata.insert(
        "annotations".to_owned(),
        json!({ annotations::MIGRATION_SHADOW: "true", annotations::MIGRATION_SOURCE_TEMPLATE: template }),
    );
    json!({
        "apiVersion": format!("{EXTENSIONS_GROUP}/{VERSION}"),
        "kind": "SandboxWarmPool",
        "metadata": metadata,
        "spec": { "replicas": 0, "sandboxTemplateRef": { "name": template } },
    })
}

fn shadow_pool_name(template: &str) -> String {
    format!("shadow-pool-{template}")
}

/// Returns notes for other objects that refer to ours by an old version, such as an autoscaler's
/// target.
fn old_references(manifest: &Value) -> Vec<Note> {
    fn walk(value: &Value, path: &str, notes: &mut Vec<Note>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    walk(value, &path, notes);
                }
            }
            Value::Array(values) => {
                for (index, value) in values.iter().enumerate() {
                    walk(value, &format!("{path}[{index}]"), notes);
                }
            }
            Value::String(text) => {
                if let Some(group @ (GROUP | EXTENSIONS_GROUP)) = text.strip_suffix("/v1alpha1") {
                    notes.push(Note {
                        path: path.to_owned(),
                        reason: format!("`{text}` is not served any more"),
                        advice: format!("write `{group}/{VERSION}`"),
                    });
                }
            }
            _ => {}
        }
    }
    let mut notes = Vec::new();
    walk(manifest, "", &mut notes);
    notes
}
