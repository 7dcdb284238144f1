//! Structural schemas in compiled form. They prune, default and validate custom resources, and
//! prune and type-check built-in kinds. To save memory, descriptions are dropped and named types
//! are shared: a schema may contain a whole pod.

use std::sync::{Arc, OnceLock};

use serde_json::Value;

mod compile;
mod defaults;
mod format;
mod properties;
mod prune;
mod reads;
mod rules;
mod validate;

pub(crate) use compile::{Compiler, SchemaError};
pub(crate) use defaults::apply_defaults;
pub(crate) use format::Format;
pub(crate) use properties::Properties;
pub(crate) use prune::{drop_empty_maps, drop_nulls, drop_unwanted_nulls, prune};
pub(crate) use rules::{check_rules, rule_error};
pub(crate) use validate::{Undecodable, canonical_quantities, check_types, validate};

/// One node of a schema.
#[derive(Debug, Default)]
pub(crate) struct Schema {
    pub type_: Option<Type>,
    pub properties: Properties,
    pub additional: Option<Arc<Schema>>,
    pub items: Option<Arc<Schema>>,
    pub required: Box<[Box<str>]>,
    pub nullable: bool,
    pub int_or_string: bool,
    pub format: Format,
    /// True for a resource quantity, a string with its own syntax.
    pub quantity: bool,
    pub embedded_resource: bool,
    /// True if unknown fields are kept: the schema says so, or is empty.
    pub preserve_unknown: bool,
    pub list: ListShape,
    /// `x-kubernetes-map-type: atomic`: the object is owned as a whole.
    pub atomic_map: bool,
    /// `x-kubernetes-patch-merge-key`: the key by which a strategic merge patch finds list entries.
    pub merge_key: Option<Box<str>>,
    /// True if `x-kubernetes-patch-strategy` contains `merge`.
    pub merges: bool,
    pub default: Option<Box<Value>>,
    pub limits: Option<Box<Limits>>,
    pub rules: Option<Box<rules::Rules>>,
    /// True if this node or one below has a default. Defaulting skips the other subtrees.
    pub has_defaults: bool,
    /// True if this node or one below has rules.
    pub has_rules: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum ListShape {
    #[default]
    Atomic,
    Set,
    Map(Box<[Box<str>]>),
}

/// Restrictions of a value beyond its type.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    pub one_of_values: Option<Vec<Value>>,
    pub minimum: Option<(f64, bool)>,
    pub maximum: Option<(f64, bool)>,
    pub multiple_of: Option<f64>,
    pub min_length: Option<usize>,
    pub max_length: Option<usize>,
    pub min_items: Option<usize>,
    pub max_items: Option<usize>,
    pub min_properties: Option<usize>,
    pub max_properties: Option<usize>,
    pub unique_items: bool,
    pub pattern: Option<Box<str>>,
    pub compiled_pattern: OnceLock<Option<regex::Regex>>,
    pub all_of: Vec<Schema>,
    pub any_of: Vec<Schema>,
    pub one_of: Vec<Schema>,
    pub not: Option<Box<Schema>>,
}

impl Type {
    pub fn name(self) -> &'static str {
        match self {
            Type::Object => "object",
            Type::Array => "array",
            Type::String => "string",
            Type::Integer => "integer",
            Type::Number => "number",
            Type::Boolean => "boolean",
        }
    }
}

impl Schema {
    /// Returns the schema of an object's field.
    pub fn field(&self, name: &str) -> Option<&Arc<Schema>> {
        self.properties.get(name).or(self.additional.as_ref())
    }
}

/// Calls `visit` with the path extended by a field. One string serves the whole walk. Paths are
/// needed only for errors, and a new string for each field would cost more than the check itself.
pub(crate) fn in_field<T>(path: &mut String, name: &str, visit: impl FnOnce(&mut String) -> T) -> T {
    let end = path.len();
    if end > 0 {
        path.push('.');
    }
    path.push_str(name);
    let outcome = visit(path);
    path.truncate(end);
    outcome
}

/// Calls `visit` with the path extended by a list index.
pub(crate) fn in_entry<T>(path: &mut String, index: usize, visit: impl FnOnce(&mut String) -> T) -> T {
    let end = path.len();
    path.push('[');
    path.push_str(&index.to_string());
    path.push(']');
    let outcome = visit(path);
    path.truncate(end);
    outcome
}

/// Returns `parent.child`, or the child alone at the root.
pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Returns Kubernetes' name for the type of a JSON value.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
