//! Tables, the form that `kubectl get` prints.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::definition::{Columns, CustomColumn, Target};
use crate::kinds::columns::{AGE, NAME, since};
use crate::respond::RowObject;

/// Builds a `Table` of objects in their stored form.
pub(crate) fn table<'a>(
    target: &Target,
    objects: impl IntoIterator<Item = &'a Value>,
    version: &str,
    row: RowObject,
    with_columns: bool,
    now: Timestamp,
) -> Value {
    let columns = &target.version().columns;
    let rows: Vec<Value> = objects
        .into_iter()
        .map(|object| {
            let mut entry = json!({"cells": cells(columns, object, now)});
            match row {
                RowObject::None => entry["object"] = Value::Null,
                RowObject::Metadata => entry["object"] = partial_metadata(object),
                RowObject::Object => {
                    let mut converted = object.clone();
                    target.convert_from_stored(&mut converted);
                    entry["object"] = converted;
                }
            }
            entry
        })
        .collect();
    let mut metadata = json!({});
    if !version.is_empty() {
        metadata["resourceVersion"] = version.into();
    }
    let definitions = if with_columns { column_definitions(columns) } else { Value::Null };
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": definitions,
        "rows": rows,
    })
}

/// Reduces an object to its metadata.
pub(crate) fn partial_metadata(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

fn column_definitions(columns: &Columns) -> Value {
    let definition = |name: &str, type_: &str, format: &str, description: &str, priority: i64| json!({"name": name, "type": type_, "format": format, "description": description, "priority": priority});
    match columns {
        Columns::Builtin(columns) => columns
            .iter()
            .map(|column| {
                definition(
                    column.name,
                    column.type_,
                    column.format,
                    column.description,
                    column.priority.into(),
                )
            })
            .collect(),
        Columns::Custom(columns) => {
            let name = definition(NAME.name, NAME.type_, NAME.format, NAME.description, 0);
            let own = columns.iter().map(|column| {
                definition(&column.name, &column.type_, &column.format, &column.description, column.priority)
            });
            let age = columns.is_empty().then(|| definition(AGE.name, "date", "", AGE.description, 0));
            std::iter::once(name).chain(own).chain(age).collect()
        }
    }
}

fn cells(columns: &Columns, object: &Value, now: Timestamp) -> Vec<Value> {
    match columns {
        Columns::Builtin(columns) => columns.iter().map(|column| (column.cell)(object, now)).collect(),
        Columns::Custom(columns) => {
            let name = object["metadata"]["name"].clone();
            let own = columns.iter().map(|column| cell(column, object, now));
            let age = columns.is_empty().then(|| (AGE.cell)(object, now));
            std::iter::once(name).chain(own).chain(age).collect()
        }
    }
}

/// Formats a value for its column. A value of the wrong type is left out.
fn cell(column: &CustomColumn, object: &Value, now: Timestamp) -> Value {
    let Some(value) = column.path.first(object) else { return Value::Null };
    match (&*column.type_, value) {
        ("integer", Value::Number(number)) if !number.is_f64() => value.clone(),
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
        ("date", Value::String(_)) => since(value, now),
        ("string", Value::String(_)) => value.clone(),
        ("string", Value::Null) | ("date", _) => Value::Null,
        ("string", other) => other.to_string().into(),
        _ => Value::Null,
    }
}
