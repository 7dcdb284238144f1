//! Computes JSON merge patches (RFC 7386) from the present to the wanted state: a write carries
//! only the difference, and a converged object needs no write.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

/// Returns the merge patch that turns `from` into `to`, or `None` when they are equal.
#[must_use]
pub fn difference(from: &Value, to: &Value) -> Option<Value> {
    match (from, to) {
        (Value::Object(from), Value::Object(to)) => {
            let mut patch = Map::new();
            for key in from.keys() {
                if !to.contains_key(key) {
                    patch.insert(key.clone(), Value::Null);
                }
            }
            for (key, wanted) in to {
                match from.get(key) {
                    Some(present) => {
                        if let Some(inner) = difference(present, wanted) {
                            patch.insert(key.clone(), inner);
                        }
                    }
                    None => {
                        patch.insert(key.clone(), wanted.clone());
                    }
                }
            }
            (!patch.is_empty()).then_some(Value::Object(patch))
        }
        _ => (from != to).then(|| to.clone()),
    }
}

/// Returns the merge patch between two serialisable values, or `None` when they are equal. An empty
/// value that the type serialises differs from an absent one.
#[must_use]
pub fn between<T: Serialize + PartialEq>(from: &T, to: &T) -> Option<Value> {
    // Usually nothing has changed, and comparing is cheaper than serialising both.
    if from == to {
        return None;
    }
    difference(&json(from), &json(to))
}

/// Returns a value as JSON. Our API types are maps with string keys, which always serialise;
/// anything else becomes null.
#[must_use]
pub fn json<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}

/// Returns the merge patch for a string map (labels, annotations, selectors).
#[must_use]
pub fn between_maps(from: &BTreeMap<String, String>, to: &BTreeMap<String, String>) -> Option<Value> {
    between(from, to)
}

/// Puts `value` at a path of keys and makes the missing objects on the way.
pub fn set(patch: &mut Value, path: &[&str], value: Value) {
    if !patch.is_object() {
        *patch = Value::Object(Map::new());
    }
    let Value::Object(map) = patch else { return };
    match path {
        [] => {}
        [key] => {
            map.insert((*key).to_owned(), value);
        }
        [key, rest @ ..] => set(map.entry((*key).to_owned()).or_insert(Value::Null), rest, value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{difference, set};

    #[test]
    fn a_patch_removes_adds_and_changes_only_what_differs() {
        let from = json!({"a": 1, "b": {"c": 1, "d": 2}, "e": [1, 2]});
        let to = json!({"b": {"c": 1, "d": 3}, "e": [2], "f": {}});
        assert_eq!(difference(&from, &to), Some(json!({"a": null, "b": {"d": 3}, "e": [2], "f": {}})));
        assert_eq!(difference(&from, &from), None);
    }

    #[test]
    fn a_path_is_made_on_the_way() {
        let mut patch = json!({"metadata": {"labels": {"a": "b"}}});
        set(&mut patch, &["metadata", "annotations", "x"], json!("y"));
        assert_eq!(patch, json!({"metadata": {"labels": {"a": "b"}, "annotations": {"x": "y"}}}));
    }
}
