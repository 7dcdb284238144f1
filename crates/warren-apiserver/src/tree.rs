//! Comparison of JSON trees that are mostly alike.

use serde_json::{Map, Value};

/// Returns true if two values are equal. Fast if both have their fields in the same order, like an
/// object and an edited copy: no field is looked up by name.
pub(crate) fn is_equal(left: &Value, right: &Value) -> bool {
    is_identical(left, right) || left == right
}

/// Returns true if two values are equal and have their fields in the same order.
pub(crate) fn is_identical(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left.iter().zip(right).all(|((name, value), (other_name, other))| {
                    name == other_name && is_identical(value, other)
                })
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| is_identical(left, right))
        }
        _ => left == right,
    }
}

/// Pairs each field of an object with the field of the same name in another object.
pub(crate) fn side_by_side<'a>(
    object: &'a Map<String, Value>,
    other: Option<&'a Map<String, Value>>,
) -> impl Iterator<Item = (&'a String, &'a Value, Option<&'a Value>)> {
    let mut beside = other.map(Map::iter);
    object.iter().map(move |(name, value)| {
        let next = beside.as_mut().and_then(Iterator::next).filter(|(next, _)| *next == name);
        let found = match next {
            Some((_, found)) => Some(found),
            None => other.and_then(|other| other.get(name)),
        };
        (name, value, found)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{is_equal, is_identical, side_by_side};

    #[test]
    fn equal_in_any_order_identical_in_one() {
        let one = json!({"a": [1, {"b": null, "c": "x"}], "d": {}});
        let other = json!({"d": {}, "a": [1, {"c": "x", "b": null}]});
        assert!(is_identical(&one, &one.clone()) && is_equal(&one, &other) && !is_identical(&one, &other));
        for different in [
            json!({"a": [1, {"b": null, "c": "x"}]}),
            json!({"a": [1, {"b": null, "c": "y"}], "d": {}}),
            json!({"a": [1, {"b": null}], "d": {}}),
            json!({"a": [{"b": null, "c": "x"}, 1], "d": {}}),
            json!({"a": [1, {"b": null, "c": "x"}], "e": {}}),
            json!(null),
        ] {
            assert!(!is_equal(&one, &different) && !is_identical(&one, &different), "{different}");
        }
    }

    #[test]
    fn fields_find_their_like_wherever_it_stands() {
        let one = json!({"a": 1, "b": 2, "c": 3});
        for other in
            [json!({"a": 4, "b": 5}), json!({"c": 6, "a": 4}), json!({}), json!({"b": 7, "x": 1, "a": 2})]
        {
            let pairs: Vec<_> = side_by_side(one.as_object().unwrap(), other.as_object()).collect();
            assert_eq!(pairs.len(), 3);
            assert!(pairs.iter().all(|(name, value, found)| {
                *value == &one[name.as_str()] && *found == other.get(name.as_str())
            }));
        }
        assert!(side_by_side(one.as_object().unwrap(), None).all(|(_, _, found)| found.is_none()));
    }
}
