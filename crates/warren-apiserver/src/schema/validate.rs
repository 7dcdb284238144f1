//! Validation against schemas.

use serde_json::Value;

use super::format::{Format, time_error};
use super::{Limits, ListShape, Schema, Type, in_entry, in_field, join, type_name};
use crate::status::{FieldError, Problem};

/// Checks a value against its schema. Adds one error per violation, with kube-apiserver's message.
pub(crate) fn validate(value: &Value, schema: &Schema, path: &str, errors: &mut Vec<FieldError>) {
    validate_below(value, schema, &mut path.to_owned(), errors);
}

fn validate_below(value: &Value, schema: &Schema, path: &mut String, errors: &mut Vec<FieldError>) {
    if value.is_null() && schema.nullable {
        return;
    }
    if !has_type(value, schema) {
        let wanted = if schema.int_or_string { Some("integer,string") } else { schema.type_.map(Type::name) };
        if let Some(wanted) = wanted {
            // If the schema has a format, errors name it instead of the type, except for strings
            // and lists.
            let by_format = schema.format.name().filter(|_| !value.is_string() && !value.is_array());
            let (wanted, actual) = match by_format {
                Some(format) => (format, format_of(value)),
                None => (wanted, type_name(value)),
            };
            let detail = format!("{path} in body must be of type {wanted}: {actual:?}");
            let problem = Problem::TypeInvalid(actual.into(), detail);
            errors.push(FieldError { field: path.clone(), problem });
        }
        check_range(value, schema, path, errors);
        // Of the limits only the list of values applies to any type.
        if let Some(limits) = &schema.limits {
            check_one_of_values(value, limits, path, errors);
        }
        return;
    }
    check_range(value, schema, path, errors);
    if let Some(limits) = &schema.limits {
        check_limits(value, schema, limits, path, errors);
    }
    if let Some(text) = value.as_str()
        && !schema.format.accepts(text)
    {
        let format = schema.format.name().unwrap_or_default();
        let detail = format!("{path} in body must be of type {format}: {text:?}");
        errors.push(FieldError { field: path.clone(), problem: Problem::TypeInvalid(text.into(), detail) });
    }
    match value {
        Value::Object(object) => {
            for required in schema.required.iter().filter(|required| !object.contains_key(&***required)) {
                errors.push(FieldError::required(join(path, required), ""));
            }
            for (name, child) in object {
                if let Some(schema) = schema.field(name) {
                    in_field(path, name, |path| validate_below(child, schema, path, errors));
                }
            }
        }
        Value::Array(items) => {
            check_list(items, schema, path, errors);
            if let Some(schema) = &schema.items {
                for (index, item) in items.iter().enumerate() {
                    in_entry(path, index, |path| validate_below(item, schema, path, errors));
                }
            }
        }
        _ => {}
    }
}

/// Converts all quantities of a built-in object to canonical form (`0.5` becomes `500m`). Returns
/// false if one is invalid.
pub(crate) fn canonical_quantities(value: &mut Value, schema: &Schema) -> bool {
    if schema.quantity {
        let Some(canonical) = crate::kinds::canonical_quantity(value) else { return false };
        if value.as_str() != Some(canonical.as_str()) {
            *value = canonical.into();
        }
        return true;
    }
    match value {
        Value::Object(object) => object
            .iter_mut()
            .all(|(name, child)| schema.field(name).is_none_or(|schema| canonical_quantities(child, schema))),
        Value::Array(items) => schema
            .items
            .as_ref()
            .is_none_or(|schema| items.iter_mut().all(|item| canonical_quantities(item, schema))),
        _ => true,
    }
}

/// Returns kube-apiserver's name for the format of a value that is neither string nor list.
fn format_of(value: &Value) -> &'static str {
    match value {
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        _ => "",
    }
}

/// Checks that a number fits its integer type.
fn check_range(value: &Value, schema: &Schema, path: &str, errors: &mut Vec<FieldError>) {
    let (Value::Number(number), Some(Type::Integer)) = (value, schema.type_) else { return };
    let whole = number.as_i64().or_else(|| {
        let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 9e18)?;
        // The cast is exact: the line above checked for a whole number in range.
        Some(float as i64)
    });
    let fits = whole.is_some_and(|whole| schema.format != Format::Int32 || i32::try_from(whole).is_ok());
    if !fits {
        let format = match schema.format.name() {
            Some(format) => format!("with format {format}"),
            None => "(default format)".to_owned(),
        };
        let detail = format!("Checked value must be of type integer {format} in {path}");
        errors.push(FieldError::invalid("<nil>", "", detail));
    }
}

/// An error while decoding an object of a built-in kind.
#[derive(Debug, PartialEq)]
pub(crate) enum Undecodable {
    /// A value of the wrong type: its path and its actual type.
    Type { path: String, actual: String },
    /// An invalid time.
    Time(String),
}

/// Returns the first value that cannot be decoded.
pub(crate) fn check_types(value: &Value, schema: &Schema) -> Option<Undecodable> {
    check_types_below(value, schema, &mut String::new())
}

fn check_types_below(value: &Value, schema: &Schema, path: &mut String) -> Option<Undecodable> {
    if !value.is_null() && !has_type(value, schema) {
        let wanted = schema.type_?;
        let actual = match value {
            // The message shows a number that is no integer.
            Value::Number(number) if wanted == Type::Integer => format!("number {number}"),
            Value::Number(_) => "number".to_owned(),
            Value::Bool(_) => "bool".to_owned(),
            other => type_name(other).to_owned(),
        };
        return Some(Undecodable::Type { path: path.clone(), actual });
    }
    if let Value::String(text) = value
        && let Some(message) = time_error(text, schema.format)
    {
        return Some(Undecodable::Time(message));
    }
    match value {
        Value::Object(object) => object.iter().find_map(|(name, child)| {
            let below = schema.field(name)?;
            in_field(path, name, |path| check_types_below(child, below, path))
        }),
        Value::Array(items) => {
            let schema = schema.items.as_ref()?;
            items.iter().find_map(|item| check_types_below(item, schema, path))
        }
        _ => None,
    }
}

fn has_type(value: &Value, schema: &Schema) -> bool {
    if schema.int_or_string {
        return value.is_string() || value.is_i64() || value.is_u64();
    }
    let Some(wanted) = schema.type_ else { return true };
    match (wanted, value) {
        (Type::Object, Value::Object(_))
        | (Type::Array, Value::Array(_))
        | (Type::String, Value::String(_))
        | (Type::Number, Value::Number(_))
        | (Type::Boolean, Value::Bool(_)) => true,
        // kube-apiserver accepts 1.0 as an integer too.
        (Type::Integer, Value::Number(number)) => number.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => false,
    }
}

fn check_limits(value: &Value, schema: &Schema, limits: &Limits, path: &str, errors: &mut Vec<FieldError>) {
    if let Some(number) = value.as_f64() {
        check_factor(value, number, limits, path, errors);
    }
    let mut invalid = |shown: Value, detail: String| {
        errors.push(FieldError::invalid(path, shown, format!("{path} in body {detail}")));
    };
    if let Some(number) = value.as_f64() {
        if let Some((bound, exclusive)) = limits.minimum
            && (number < bound || (exclusive && number == bound))
        {
            let or_equal = if exclusive { "" } else { " or equal to" };
            invalid(value.clone(), format!("should be greater than{or_equal} {bound}"));
        }
        if let Some((bound, exclusive)) = limits.maximum
            && (number > bound || (exclusive && number == bound))
        {
            let or_equal = if exclusive { "" } else { " or equal to" };
            invalid(value.clone(), format!("should be less than{or_equal} {bound}"));
        }
    }
    if let (Some(items), Some(least)) = (value.as_array(), limits.min_items)
        && items.len() < least
    {
        invalid(items.len().into(), format!("should have at least {least} items"));
    }
    if let Some(object) = value.as_object() {
        if let Some(least) = limits.min_properties
            && object.len() < least
        {
            invalid(object.len().into(), format!("should have at least {least} properties"));
        }
        if let Some(most) = limits.max_properties
            && object.len() > most
        {
            let problem = Problem::TooMany(object.len(), most);
            errors.push(FieldError { field: path.to_owned(), problem });
        }
    }
    if let Some(text) = value.as_str() {
        errors.extend(check_text(text, limits, path));
    }
    if let (Some(items), Some(most)) = (value.as_array(), limits.max_items)
        && items.len() > most
    {
        errors.push(FieldError { field: path.to_owned(), problem: Problem::TooMany(items.len(), most) });
    }
    check_one_of_values(value, limits, path, errors);
    check_logic(value, schema, limits, path, errors);
}

fn check_factor(value: &Value, number: f64, limits: &Limits, path: &str, errors: &mut Vec<FieldError>) {
    let Some(factor) = limits.multiple_of.filter(|factor| *factor != 0.0) else { return };
    // kube-apiserver first converts the factor to the type of the value.
    let factor = if value.is_f64() { factor } else { factor.trunc() };
    if factor <= 0.0 {
        let detail = format!("factor MultipleOf declared for {path} must be positive: {factor}");
        errors.push(FieldError::invalid(path, 0, detail));
    } else if (number / factor).fract() != 0.0 {
        let detail = format!("{path} in body should be a multiple of {factor}");
        errors.push(FieldError::invalid(path, value.clone(), detail));
    }
}

fn check_one_of_values(value: &Value, limits: &Limits, path: &str, errors: &mut Vec<FieldError>) {
    if let Some(known) = &limits.one_of_values
        && !known.contains(value)
    {
        let known = known.iter().map(Value::to_string).collect();
        let problem = Problem::Unsupported(value.clone(), known);
        errors.push(FieldError { field: path.to_owned(), problem });
    }
}

/// Returns the first error of a string. kube-apiserver stops there too.
fn check_text(text: &str, limits: &Limits, path: &str) -> Option<FieldError> {
    let length = text.chars().count();
    if let Some(most) = limits.max_length.filter(|most| length > *most) {
        return Some(FieldError { field: path.to_owned(), problem: Problem::TooLong(most) });
    }
    if let Some(least) = limits.min_length.filter(|least| length < *least) {
        let detail = format!("{path} in body should be at least {least} chars long");
        return Some(FieldError::invalid(path, text, detail));
    }
    let pattern = limits.pattern.as_ref()?;
    let regex = limits.compiled_pattern.get_or_init(|| regex::Regex::new(pattern).ok());
    if regex.as_ref().is_some_and(|regex| regex.is_match(text)) {
        return None;
    }
    Some(FieldError::invalid(path, text, format!("{path} in body should match '{pattern}'")))
}

fn check_logic(value: &Value, schema: &Schema, limits: &Limits, path: &str, errors: &mut Vec<FieldError>) {
    let passes = |branch: &Schema| {
        let mut found = Vec::new();
        validate(value, branch, path, &mut found);
        found.is_empty()
    };
    for branch in &limits.all_of {
        validate(value, branch, path, errors);
    }
    // An int-or-string is spelled `anyOf: integer, string`; its type has already been checked.
    if schema.int_or_string {
        return;
    }
    let mut invalid = |detail: &str| {
        let shown = type_name(value);
        errors.push(FieldError::invalid(path, shown, format!("{path} in body {detail}")));
    };
    if !limits.any_of.is_empty() && !limits.any_of.iter().any(passes) {
        invalid("must validate at least one schema (anyOf)");
    }
    if !limits.one_of.is_empty() && limits.one_of.iter().filter(|branch| passes(branch)).count() != 1 {
        invalid("must validate one and only one schema (oneOf)");
    }
    if limits.not.as_ref().is_some_and(|branch| passes(branch)) {
        invalid("must not validate the schema (not)");
    }
}

/// Checks list types: entries of a set, and keys of a map, must be distinct.
fn check_list(items: &[Value], schema: &Schema, path: &str, errors: &mut Vec<FieldError>) {
    let identity = |item: &Value| match &schema.list {
        ListShape::Atomic => None,
        ListShape::Set => Some(item.clone()),
        ListShape::Map(keys) => Some(map_key(item, keys, schema)),
    };
    let mut seen: Vec<Value> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let Some(identity) = identity(item) else { return };
        if seen.contains(&identity) {
            errors.push(FieldError::duplicate(format!("{path}[{index}]"), identity));
        } else {
            seen.push(identity);
        }
    }
}

/// Returns the key fields of a list-map entry, with the schema's defaults.
pub(super) fn map_key(item: &Value, keys: &[Box<str>], list: &Schema) -> Value {
    let field = |key: &str| {
        item.get(key).cloned().or_else(|| {
            let property = list.items.as_ref()?.properties.get(key)?;
            property.default.as_deref().cloned()
        })
    };
    Value::Object(keys.iter().filter_map(|key| Some((key.to_string(), field(key)?))).collect())
}
