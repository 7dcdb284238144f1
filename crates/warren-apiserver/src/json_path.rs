//! The part of JSONPath that CustomResourceDefinitions use: fields, indices, `[*]` and
//! one-condition filters.

use serde_json::Value;
use thiserror::Error;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JsonPath(Vec<Step>);

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    All,
    /// A filter such as `[?(@.type=="Ready")]`.
    Where(Vec<String>, Comparison, Value),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Comparison {
    Equal,
    NotEqual,
}

#[derive(Debug, Error, PartialEq)]
#[error("is an invalid path: {0}")]
pub(crate) struct JsonPathError(String);

impl JsonPath {
    pub fn parse(text: &str) -> Result<JsonPath, JsonPathError> {
        let bad = || JsonPathError(text.to_owned());
        let mut rest = text.strip_prefix('$').unwrap_or(text);
        let mut steps = Vec::new();
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('[') {
                let end = closing_bracket(after).ok_or_else(bad)?;
                steps.push(bracket(&after[..end]).ok_or_else(bad)?);
                rest = &after[end + 1..];
                continue;
            }
            let after = rest.strip_prefix('.').ok_or_else(bad)?;
            if after.is_empty() && steps.is_empty() {
                break;
            }
            if after.starts_with('[') {
                rest = after;
                continue;
            }
            let (name, remaining) = field(after);
            if name.is_empty() {
                return Err(bad());
            }
            steps.push(if name == "*" { Step::All } else { Step::Field(name) });
            rest = remaining;
        }
        Ok(JsonPath(steps))
    }

    /// Returns all values that the path reaches.
    pub fn find<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![value];
        for step in &self.0 {
            found = found.into_iter().flat_map(|value| step.follow(value)).collect();
        }
        found
    }

    /// Returns the first value that the path reaches.
    pub fn first<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        self.find(value).into_iter().next()
    }

    /// Returns the field names if the path consists of nothing else.
    pub fn fields(&self) -> Option<Vec<&str>> {
        self.0
            .iter()
            .map(|step| if let Step::Field(name) = step { Some(name.as_str()) } else { None })
            .collect()
    }
}

impl Step {
    fn follow<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match (self, value) {
            (Step::Field(name), Value::Object(object)) => object.get(name).into_iter().collect(),
            (Step::Index(index), Value::Array(items)) => {
                let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
                let index = if *index < 0 { length + index } else { *index };
                usize::try_from(index).ok().and_then(|index| items.get(index)).into_iter().collect()
            }
            (Step::All, Value::Array(items)) => items.iter().collect(),
            (Step::All, Value::Object(object)) => object.values().collect(),
            (Step::Where(path, comparison, wanted), Value::Array(items)) => items
                .iter()
                .filter(|item| {
                    let actual = path.iter().try_fold(*item, |value, name| value.get(name));
                    (actual == Some(wanted)) == (*comparison == Comparison::Equal)
                })
                .collect(),
            _ => Vec::new(),
        }
    }
}

/// Splits off a field name, up to the next `.` or `[`. A backslash escapes the next character.
fn field(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut characters = text.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            '\\' => name.extend(characters.next().map(|(_, literal)| literal)),
            '.' | '[' => return (name, &text[index..]),
            other => name.push(other),
        }
    }
    (name, "")
}

fn closing_bracket(text: &str) -> Option<usize> {
    let mut quote = None;
    for (index, character) in text.char_indices() {
        match (quote, character) {
            (None, ']') => return Some(index),
            (None, '\'' | '"') => quote = Some(character),
            (Some(open), close) if open == close => quote = None,
            _ => {}
        }
    }
    None
}

fn bracket(text: &str) -> Option<Step> {
    let text = text.trim();
    if text == "*" {
        return Some(Step::All);
    }
    if let Some(condition) = text.strip_prefix("?(").and_then(|text| text.strip_suffix(')')) {
        let (path, comparison, wanted) = if let Some((path, wanted)) = condition.split_once("==") {
            (path, Comparison::Equal, wanted)
        } else {
            let (path, wanted) = condition.split_once("!=")?;
            (path, Comparison::NotEqual, wanted)
        };
        let path = path.trim().strip_prefix("@.")?;
        let wanted = literal(wanted.trim())?;
        return Some(Step::Where(path.split('.').map(str::to_owned).collect(), comparison, wanted));
    }
    match literal(text)? {
        Value::String(name) => Some(Step::Field(name)),
        Value::Number(index) => index.as_i64().map(Step::Index),
        _ => None,
    }
}

fn literal(text: &str) -> Option<Value> {
    let quoted = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    match quoted('\'').or_else(|| quoted('"')) {
        Some(inner) => Some(inner.into()),
        None => serde_json::from_str(text).ok(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::JsonPath;

    #[test]
    fn paths_of_printer_columns() {
        let object = json!({
            "metadata": {"labels": {"example.com/a": "x"}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}]},
        });
        for (path, expected) in [
            (".status.conditions[0].type", json!("Ready")),
            (".status.conditions[-1].type", json!("Other")),
            (r#".status.conditions[?(@.type=="Ready")].status"#, json!("True")),
            (".status.conditions[?(@.type=='Other')].status", json!("False")),
            (r".metadata.labels.example\.com/a", json!("x")),
            (".metadata.labels['example.com/a']", json!("x")),
        ] {
            assert_eq!(JsonPath::parse(path).unwrap().first(&object), Some(&expected), "{path}");
        }
        assert_eq!(JsonPath::parse(".status.conditions[*].type").unwrap().find(&object).len(), 2);
        assert_eq!(JsonPath::parse(".status.missing").unwrap().first(&object), None);
        for bad in ["status", ".status[", ".status[x]", "..a", ".a[?(b)]"] {
            assert!(JsonPath::parse(bad).is_err(), "{bad}");
        }
    }
}
