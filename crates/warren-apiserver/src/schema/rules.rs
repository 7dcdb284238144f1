//! CEL rules (`x-kubernetes-validations`). Each node with rules is evaluated by `kube-cel` on its
//! own. A subtree without rules, such as a pod template, then costs nothing, and transition rules
//! match entries of list maps by key and not by position.

use std::cell::RefCell;

use kube_cel::{CompiledSchema, ErrorKind, Validator, compile_schema};
use serde_json::{Map, Value};

use super::reads::{Reads, looks_back};
use super::validate::map_key;
use super::{ListShape, Schema, SchemaError, in_entry, in_field};
use crate::status::{FieldError, Problem};

pub(crate) struct Rules {
    compiled: CompiledSchema,
    reads: Reads,
    /// True if every rule is a transition rule, so that none applies to a new value.
    judges_changes_alone: bool,
    /// Texts that the library does not return: rule, field path, message.
    texts: Vec<RuleText>,
}

struct RuleText {
    rule: Box<str>,
    field_path: Box<str>,
    message: Box<str>,
}

impl std::fmt::Debug for Rules {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} rules", self.compiled.validations.len())
    }
}

thread_local! {
    // A validator is expensive to build, because it registers all extension functions, and it
    // cannot be shared between threads.
    static VALIDATOR: RefCell<Option<Validator>> = const { RefCell::new(None) };
}

impl Rules {
    pub fn compile(source: &Value, path: &str) -> Result<Option<Rules>, SchemaError> {
        let Some(rules) = source.get("x-kubernetes-validations").and_then(Value::as_array) else {
            return Ok(None);
        };
        if rules.is_empty() {
            return Ok(None);
        }
        let compiled = compile(source).map_err(|cause| SchemaError::Rule {
            path: path.to_owned(),
            rule: "the rules here".to_owned(),
            cause,
        })?;
        for validation in &compiled.validations {
            if let Err(error) = validation {
                return Err(SchemaError::Rule {
                    path: path.to_owned(),
                    rule: rules
                        .iter()
                        .filter_map(|rule| rule.get("rule")?.as_str())
                        .collect::<Vec<_>>()
                        .join("; "),
                    cause: error.to_string(),
                });
            }
        }
        let text = |rule: &Value, field: &str| rule[field].as_str().unwrap_or_default().trim().into();
        let texts = rules.iter().map(|rule| RuleText {
            rule: rule["rule"].as_str().unwrap_or_default().into(),
            field_path: text(rule, "fieldPath"),
            message: text(rule, "message"),
        });
        let expressions = rules.iter().flat_map(|rule| [&rule["rule"], &rule["messageExpression"]]);
        let reads = Reads::of(expressions.filter_map(Value::as_str));
        let judges_changes_alone = rules.iter().all(|rule| {
            rule["rule"].as_str().is_some_and(looks_back) && rule["optionalOldSelf"] != Value::Bool(true)
        });
        Ok(Some(Rules { compiled, reads, judges_changes_alone, texts: texts.collect() }))
    }

    fn check(&self, value: &Value, old: Option<&Value>, path: &str, errors: &mut Vec<FieldError>) {
        if old.is_none() && self.judges_changes_alone {
            return;
        }
        let failures = VALIDATOR.with_borrow_mut(|validator| {
            let validator = validator.get_or_insert_with(Validator::new);
            let (read, read_before) = (self.reads.narrow(value), old.map(|old| self.reads.narrow(old)));
            match validator.validate_compiled(&self.compiled, &read, read_before.as_deref()) {
                Ok(()) => Vec::new(),
                Err(failures) => failures.into_vec(),
            }
        });
        for failure in failures {
            let texts = self.texts.iter().find(|texts| *texts.rule == *failure.rule);
            // kube-apiserver prints this for the path of the object itself.
            let shown = |field: String| if field.is_empty() { "<nil>".to_owned() } else { field };
            if failure.kind != ErrorKind::ValidationFailure {
                let rule =
                    texts.map(|texts| if texts.message.is_empty() { &texts.rule } else { &texts.message });
                let cause = failure.message.trim_start_matches("rule evaluation error: ");
                let cause = cause.replace("No such key", "no such key");
                let detail = format!("{cause} evaluating rule: {}", rule.map_or("", |rule| rule.trim()));
                errors.push(FieldError::invalid(shown(path.to_owned()), super::type_name(value), detail));
                continue;
            }
            let below = texts.map_or("", |texts| &texts.field_path);
            let field = shown(format!("{path}{below}"));
            let message = failure.message.clone();
            let problem = match failure.reason.as_deref() {
                Some("FieldValueForbidden") => Problem::Forbidden(message),
                Some("FieldValueRequired") => Problem::Required(message),
                Some("FieldValueDuplicate") => Problem::Duplicate(value.clone()),
                _ => match value {
                    Value::Object(_) | Value::Array(_) => Problem::InvalidUnshown(message),
                    scalar => Problem::Invalid(scalar.clone(), message),
                },
            };
            errors.push(FieldError { field, problem });
        }
    }
}

/// Returns the compile error of one rule, if any.
pub(crate) fn rule_error(schema: &Value, rule: &Value) -> Option<String> {
    let mut alone = schema.clone();
    alone["x-kubernetes-validations"] = Value::Array(vec![rule.clone()]);
    match compile(&alone) {
        Ok(compiled) => {
            let mut validations = compiled.validations.iter();
            validations.find_map(|validation| validation.as_ref().err().map(ToString::to_string))
        }
        Err(cause) => Some(cause),
    }
}

/// Compiles the rules of one node. The parser recurses through several functions for each level of
/// an expression, so larger expressions get a stack of their own and extreme ones are refused.
fn compile(source: &Value) -> Result<CompiledSchema, String> {
    const SMALL: usize = 200;
    let rules = source["x-kubernetes-validations"].as_array().map(Vec::as_slice).unwrap_or_default();
    let expressions = || {
        rules.iter().flat_map(|rule| [&rule["rule"], &rule["messageExpression"]]).filter_map(Value::as_str)
    };
    if !expressions().all(crate::limits::expression_is_flat) {
        return Err("the expression is nested too deeply".to_owned());
    }
    let schema = shallow(source, true);
    if expressions().all(|text| text.len() < SMALL && text.matches(['(', '[', '{', '?']).count() < 6) {
        return Ok(compile_schema(&schema));
    }
    crate::limits::on_a_deep_stack(|| compile_schema(&schema)).map_err(|error| error.to_string())
}

/// Returns the schema that `kube-cel` needs to convert values to CEL: names, maps and formats,
/// without the rules and defaults below the node.
fn shallow(source: &Value, root: bool) -> Value {
    let Some(source) = source.as_object() else { return source.clone() };
    let mut out = Map::new();
    for (name, value) in source {
        match name.as_str() {
            "properties" => {
                let Some(properties) = value.as_object() else { continue };
                let kept = properties.iter().map(|(name, property)| (name.clone(), shallow(property, false)));
                out.insert(name.clone(), kept.collect::<Map<_, _>>().into());
            }
            "items" | "additionalProperties" => {
                out.insert(name.clone(), shallow(value, false));
            }
            "x-kubernetes-validations" if root => {
                out.insert(name.clone(), value.clone());
            }
            "type"
            | "format"
            | "x-kubernetes-preserve-unknown-fields"
            | "x-kubernetes-embedded-resource"
            | "x-kubernetes-int-or-string" => {
                out.insert(name.clone(), value.clone());
            }
            _ => {}
        }
    }
    out.into()
}

/// Evaluates all rules that apply to `value`. `old` is the previous value, for transition rules.
pub(crate) fn check_rules(value: &Value, old: Option<&Value>, schema: &Schema, errors: &mut Vec<FieldError>) {
    check_below(value, old, schema, &mut String::new(), errors);
}

fn check_below(
    value: &Value,
    old: Option<&Value>,
    schema: &Schema,
    path: &mut String,
    errors: &mut Vec<FieldError>,
) {
    if !schema.has_rules || value.is_null() {
        return;
    }
    if let Some(rules) = &schema.rules {
        rules.check(value, old, path, errors);
    }
    match value {
        Value::Object(object) => {
            for (name, child) in object {
                if let Some(schema) = schema.field(name) {
                    let old = old.and_then(|old| old.get(name));
                    in_field(path, name, |path| check_below(child, old, schema, path, errors));
                }
            }
        }
        Value::Array(items) => {
            let Some(item_schema) = &schema.items else { return };
            for (index, item) in items.iter().enumerate() {
                // Only entries of list maps can be matched across versions.
                let old = match &schema.list {
                    ListShape::Map(keys) => {
                        let key = map_key(item, keys, schema);
                        let olds = old.and_then(Value::as_array);
                        olds.and_then(|olds| olds.iter().find(|old| map_key(old, keys, schema) == key))
                    }
                    ListShape::Atomic | ListShape::Set => None,
                };
                in_entry(path, index, |path| check_below(item, old, item_schema, path, errors));
            }
        }
        _ => {}
    }
}
