//! Compares two masked transcripts, by the path of the field.

use serde_json::Value;

use super::transcript::{Exchange, Transcript};

/// An observable difference.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// The step as in the scenario, with its number.
    pub step: String,
    /// The path in the answer: `code`, `headers.warning`, `body.status.phase`, `events[2].type`.
    pub field: String,
    /// The real server's value; `None` if the field is missing.
    pub expected: Option<Value>,
    /// The other server's value.
    pub actual: Option<Value>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let show = |value: &Option<Value>| match value {
            Some(value) => {
                let text = value.to_string();
                // If one side lacks a whole object, the text may be long; its beginning is enough.
                match text.char_indices().nth(600) {
                    Some((end, _)) => format!("{}…", &text[..end]),
                    None => text,
                }
            }
            None => "(absent)".to_owned(),
        };
        writeln!(out, "  {}: {}", self.step, self.field)?;
        writeln!(out, "    - {}", show(&self.expected))?;
        write!(out, "    + {}", show(&self.actual))
    }
}

/// Returns every difference, in the order of the steps.
#[must_use]
pub fn differences(expected: &Transcript, actual: &Transcript) -> Vec<Difference> {
    let mut found = Vec::new();
    let empty = Exchange::default();
    for index in 0..expected.exchanges.len().max(actual.exchanges.len()) {
        let (left, right) = (expected.exchanges.get(index), actual.exchanges.get(index));
        let request = &left.or(right).unwrap_or(&empty).request;
        let step = format!("step {} {request}", index + 1);
        let as_value =
            |side: Option<&Exchange>| side.and_then(|exchange| serde_json::to_value(exchange).ok());
        walk(&step, "", as_value(left).as_ref(), as_value(right).as_ref(), &mut found);
    }
    if expected.stopped != actual.stopped {
        found.push(Difference {
            step: format!("after step {}", actual.exchanges.len()),
            field: "stopped".to_owned(),
            expected: expected.stopped.clone().map(Value::String),
            actual: actual.stopped.clone().map(Value::String),
        });
    }
    found
}

fn walk(step: &str, field: &str, left: Option<&Value>, right: Option<&Value>, found: &mut Vec<Difference>) {
    match (left, right) {
        (Some(Value::Object(left)), Some(Value::Object(right))) => {
            let mut keys: Vec<_> =
                left.keys().chain(right.keys().filter(|key| !left.contains_key(*key))).collect();
            keys.sort();
            for key in keys {
                let inner = if field.is_empty() { key.clone() } else { format!("{field}.{key}") };
                walk(step, &inner, left.get(key), right.get(key), found);
            }
        }
        (Some(Value::Array(left)), Some(Value::Array(right))) => {
            for index in 0..left.len().max(right.len()) {
                walk(step, &format!("{field}[{index}]"), left.get(index), right.get(index), found);
            }
        }
        _ if left == right => {}
        _ => found.push(Difference {
            step: step.to_owned(),
            field: field.to_owned(),
            expected: left.cloned(),
            actual: right.cloned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn transcript(code: u16, body: Value) -> Transcript {
        let exchange = Exchange { request: "GET /x".to_owned(), code, body, ..Exchange::default() };
        Transcript { exchanges: vec![exchange], stopped: None }
    }

    #[test]
    fn a_changed_field_an_absent_field_and_a_code_are_named() {
        let real = transcript(200, json!({"a": [1, {"b": 2}], "c": 3}));
        let ours = transcript(201, json!({"a": [1, {"b": 4}]}));
        let fields: Vec<_> = differences(&real, &ours).into_iter().map(|one| one.field).collect();
        assert_eq!(fields, ["body.a[1].b", "body.c", "code"]);
        assert!(differences(&real, &real).is_empty());
    }
}
