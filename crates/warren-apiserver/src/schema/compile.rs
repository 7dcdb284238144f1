//! Compilation of OpenAPI schemas.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use thiserror::Error;

use super::rules::Rules;
use super::{Format, Limits, ListShape, Schema, Type};

/// The maximum nesting. Real schemas stay below a third of it.
const DEEPEST: usize = 64;

#[derive(Debug, Error, PartialEq)]
pub(crate) enum SchemaError {
    #[error("schema nests deeper than {DEEPEST} levels")]
    TooDeep,
    #[error("schema refers to an unknown type {0:?}")]
    UnknownReference(String),
    #[error("{path}: rule {rule:?} does not compile: {cause}")]
    Rule { path: String, rule: String, cause: String },
}

/// Compiles schemas. Schemas that are referred to by name are shared.
#[derive(Default)]
pub(crate) struct Compiler<'a> {
    /// The targets of `$ref`. `None` for custom resources, whose schemas have no references.
    components: Option<&'a Map<String, Value>>,
    named: HashMap<String, Arc<Schema>>,
}

impl<'a> Compiler<'a> {
    pub fn with_components(components: &'a Map<String, Value>) -> Compiler<'a> {
        Compiler { components: Some(components), named: HashMap::new() }
    }

    pub fn component(&mut self, name: &str) -> Result<Arc<Schema>, SchemaError> {
        self.reference(name, 0)
    }

    pub fn compile_root(&mut self, source: &Value) -> Result<Schema, SchemaError> {
        self.node(source, 0, "")
    }

    fn reference(&mut self, reference: &str, depth: usize) -> Result<Arc<Schema>, SchemaError> {
        let name = reference.rsplit('/').next().unwrap_or(reference);
        // The schema of schemas refers to itself and prunes nothing.
        if name.ends_with(".JSONSchemaProps") {
            return Ok(Arc::new(Schema { preserve_unknown: true, ..Schema::default() }));
        }
        if let Some(known) = self.named.get(name) {
            return Ok(Arc::clone(known));
        }
        let source = self.components.and_then(|components| components.get(name));
        let source = source.ok_or_else(|| SchemaError::UnknownReference(name.to_owned()))?;
        let mut compiled = self.node(source, depth + 1, "")?;
        compiled.quantity = name.ends_with(".resource.Quantity");
        if name.ends_with(".MicroTime") {
            compiled.format = Format::MicroTime;
        }
        // The embedded schemas have no defaults. This one is needed because the protocol is part of
        // a port's key.
        if name.ends_with(".ServicePort") || name.ends_with(".ContainerPort") {
            let default = Some(Box::new(Value::from("TCP")));
            let protocol = Schema { type_: Some(Type::String), default, ..Schema::default() };
            compiled.properties.insert("protocol".into(), Arc::new(protocol));
        }
        let compiled = Arc::new(compiled);
        self.named.insert(name.to_owned(), Arc::clone(&compiled));
        Ok(compiled)
    }

    fn child(&mut self, source: &Value, depth: usize, path: &str) -> Result<Arc<Schema>, SchemaError> {
        match source.get("$ref").and_then(Value::as_str) {
            Some(reference) => self.reference(reference, depth),
            None => self.node(source, depth + 1, path).map(Arc::new),
        }
    }

    fn node(&mut self, source: &Value, depth: usize, path: &str) -> Result<Schema, SchemaError> {
        if depth > DEEPEST {
            return Err(SchemaError::TooDeep);
        }
        let flag = |name: &str| source.get(name).and_then(Value::as_bool).unwrap_or(false);
        let text = |name: &str| source.get(name).and_then(Value::as_str);
        let strategy = text("x-kubernetes-patch-strategy").unwrap_or_default();
        let mut schema = Schema {
            type_: text("type").and_then(type_from_name),
            nullable: flag("nullable"),
            format: text("format").map(Format::from_name).unwrap_or_default(),
            int_or_string: flag("x-kubernetes-int-or-string") || text("format") == Some("int-or-string"),
            embedded_resource: flag("x-kubernetes-embedded-resource"),
            preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            list: list_shape(source),
            atomic_map: text("x-kubernetes-map-type") == Some("atomic"),
            merge_key: text("x-kubernetes-patch-merge-key").map(Into::into),
            merges: strategy.split(',').any(|part| part == "merge"),
            default: source.get("default").cloned().map(Box::new),
            required: strings(source.get("required")),
            ..Schema::default()
        };
        if let Some(properties) = source.get("properties").and_then(Value::as_object) {
            let compiled = properties.iter().map(|(name, property)| {
                Ok((name.as_str().into(), self.child(property, depth, &super::join(path, name))?))
            });
            schema.properties = compiled.collect::<Result<_, SchemaError>>()?;
        }
        match source.get("additionalProperties") {
            Some(Value::Bool(true)) => schema.preserve_unknown = true,
            Some(additional @ Value::Object(_)) => {
                schema.additional = Some(self.child(additional, depth, &format!("{path}[*]"))?);
            }
            _ => {}
        }
        if let Some(items) = source.get("items") {
            schema.items = Some(self.child(items, depth, &format!("{path}[*]"))?);
        }
        // A bare object or an empty schema does not list its fields. Built-in types of this form
        // (raw JSON, managed fields) keep all fields.
        let says_nothing =
            schema.properties.is_empty() && schema.additional.is_none() && schema.items.is_none();
        if self.components.is_some() && says_nothing && matches!(schema.type_, None | Some(Type::Object)) {
            schema.preserve_unknown = true;
        }
        schema.limits = self.limits(source, depth, path)?.map(Box::new);
        schema.rules = Rules::compile(source, path)?.map(Box::new);
        let children =
            schema.properties.iter().map(|(_, child)| child).chain(&schema.additional).chain(&schema.items);
        let (mut has_defaults, mut has_rules) = (schema.default.is_some(), schema.rules.is_some());
        for child in children {
            has_defaults |= child.has_defaults || child.default.is_some();
            has_rules |= child.has_rules;
        }
        schema.has_defaults = has_defaults;
        schema.has_rules = has_rules;
        Ok(schema)
    }

    fn limits(&mut self, source: &Value, depth: usize, path: &str) -> Result<Option<Limits>, SchemaError> {
        let number = |name: &str| source.get(name).and_then(Value::as_f64);
        let size =
            |name: &str| source.get(name).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
        let flag = |name: &str| source.get(name).and_then(Value::as_bool).unwrap_or(false);
        let mut branches = |name: &str| {
            let sources = source.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            sources.iter().map(|source| self.node(source, depth + 1, path)).collect::<Result<Vec<_>, _>>()
        };
        // Built-in schemas spell quantities as `oneOf: string, number`. Integers pass as numbers.
        let limits = Limits {
            one_of_values: source.get("enum").and_then(Value::as_array).cloned(),
            minimum: number("minimum").map(|bound| (bound, flag("exclusiveMinimum"))),
            maximum: number("maximum").map(|bound| (bound, flag("exclusiveMaximum"))),
            multiple_of: number("multipleOf"),
            min_length: size("minLength"),
            max_length: size("maxLength"),
            min_items: size("minItems"),
            max_items: size("maxItems"),
            min_properties: size("minProperties"),
            max_properties: size("maxProperties"),
            unique_items: flag("uniqueItems"),
            pattern: source.get("pattern").and_then(Value::as_str).map(Into::into),
            compiled_pattern: std::sync::OnceLock::new(),
            all_of: branches("allOf")?,
            any_of: branches("anyOf")?,
            one_of: branches("oneOf")?,
            not: match source.get("not") {
                Some(not) => Some(Box::new(self.node(not, depth + 1, path)?)),
                None => None,
            },
        };
        Ok(limits.restricts().then_some(limits))
    }
}

impl Limits {
    fn restricts(&self) -> bool {
        self.one_of_values.is_some()
            || self.minimum.is_some()
            || self.maximum.is_some()
            || self.multiple_of.is_some()
            || self.min_length.is_some()
            || self.max_length.is_some()
            || self.min_items.is_some()
            || self.max_items.is_some()
            || self.min_properties.is_some()
            || self.max_properties.is_some()
            || self.unique_items
            || self.pattern.is_some()
            || !self.all_of.is_empty()
            || !self.any_of.is_empty()
            || !self.one_of.is_empty()
            || self.not.is_some()
    }
}

fn type_from_name(name: &str) -> Option<Type> {
    Some(match name {
        "object" => Type::Object,
        "array" => Type::Array,
        "string" => Type::String,
        "integer" => Type::Integer,
        "number" => Type::Number,
        "boolean" => Type::Boolean,
        _ => return None,
    })
}

fn list_shape(source: &Value) -> ListShape {
    match source.get("x-kubernetes-list-type").and_then(Value::as_str) {
        Some("map") => ListShape::Map(strings(source.get("x-kubernetes-list-map-keys"))),
        Some("set") => ListShape::Set,
        _ => ListShape::Atomic,
    }
}

fn strings(source: Option<&Value>) -> Box<[Box<str>]> {
    let values = source.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    values.iter().filter_map(Value::as_str).map(Into::into).collect()
}
