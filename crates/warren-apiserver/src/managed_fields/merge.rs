//! Merging an applied configuration into an object, and removing fields from an object.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::element::Element;
use super::fields::Fields;
use super::shape::Shape;

/// Merges `over` into `under`. For atomic values `over` wins.
pub(super) fn merge(under: &Value, over: &Value, shape: Shape<'_>) -> Result<Value, String> {
    match (under, over) {
        (Value::Object(under), Value::Object(over))
            if shape.takes_objects_apart() && !(under.is_empty() && over.is_empty()) =>
        {
            let mut merged = Map::with_capacity(under.len() + over.len());
            for (name, value) in under {
                let value = match over.get(name) {
                    Some(over) => merge(value, over, shape.field(name))?,
                    None => value.clone(),
                };
                merged.insert(name.clone(), value);
            }
            let new = over.iter().filter(|(name, _)| !under.contains_key(*name));
            merged.extend(new.map(|(name, value)| (name.clone(), value.clone())));
            Ok(Value::Object(merged))
        }
        (Value::Array(under), Value::Array(over))
            if shape.takes_lists_apart() && !(under.is_empty() && over.is_empty()) =>
        {
            merge_lists(under, over, shape).map(Value::Array)
        }
        // A null makes no statement about the fields below.
        (Value::Object(_), Value::Null) if shape.takes_objects_apart() => Ok(under.clone()),
        (Value::Array(_), Value::Null) if shape.takes_lists_apart() => Ok(under.clone()),
        _ => Ok(over.clone()),
    }
}

/// Merges two lists. Entries of `over` come in its order. An entry that only `under` has stays
/// behind its predecessor.
fn merge_lists(under: &[Value], over: &[Value], shape: Shape<'_>) -> Result<Vec<Value>, String> {
    let elements = |list: &[Value]| -> Result<Vec<Element>, String> {
        let entries = list.iter().enumerate();
        entries
            .map(|(index, item)| shape.entry(item).map_err(|cause| format!("element {index}: {cause}")))
            .collect()
    };
    let (under_elements, over_elements) = (elements(under)?, elements(over)?);
    let over_by: BTreeMap<&Element, &Value> = over_elements.iter().zip(over).collect();
    // A duplicate element cannot be merged with.
    let mut under_by: BTreeMap<&Element, Option<&Value>> = BTreeMap::new();
    for (element, item) in under_elements.iter().zip(under) {
        under_by.entry(element).and_modify(|item| *item = None).or_insert(Some(item));
    }
    let items = shape.items();
    let merged = |element: &Element| -> Result<Option<Value>, String> {
        let Some(over) = over_by.get(element) else { return Ok(None) };
        match under_by.get(element).copied().flatten() {
            Some(under) => merge(under, over, items).map(Some),
            None => Ok(Some((*over).clone())),
        }
    };
    let mut shared = over_elements.iter().filter(|element| under_by.contains_key(element));
    let mut next_shared = shared.next();
    let mut done: BTreeSet<&Element> = BTreeSet::new();
    let mut out = Vec::with_capacity(under.len().max(over.len()));
    let (mut left, mut right) = (0, 0);
    while left < under.len() || right < over.len() {
        if let (Some(element), Some(wanted)) = (under_elements.get(left), over_elements.get(right)) {
            if element == wanted {
                done.insert(element);
                out.extend(merged(element)?);
                left += 1;
                right += 1;
                next_shared = shared.next();
                continue;
            }
            if over_by.contains_key(element) && next_shared.is_some_and(|next| next != element) {
                left += 1;
                continue;
            }
        }
        if let Some(element) = under_elements.get(left) {
            if !over_by.contains_key(element) {
                out.push(under[left].clone());
                left += 1;
                continue;
            }
            if done.contains(element) {
                left += 1;
            }
        }
        if let Some(element) = over_elements.get(right) {
            done.insert(element);
            out.extend(merged(element)?);
            right += 1;
            if next_shared == Some(element) {
                next_shared = shared.next();
            }
        }
    }
    Ok(out)
}

/// Removes fields from a value. An empty result becomes null.
pub(super) fn remove(value: &Value, fields: &Fields, shape: Shape<'_>) -> Value {
    match value {
        Value::Object(object) if shape.takes_objects_apart() => {
            let kept: Map<String, Value> = object
                .iter()
                .filter_map(|(name, child)| {
                    let child = match fields.get(&Element::field(name)) {
                        Some(below) if below.owned => return None,
                        Some(below) => remove(child, below, shape.field(name)),
                        None => child.clone(),
                    };
                    Some((name.clone(), child))
                })
                .collect();
            if kept.is_empty() { Value::Null } else { Value::Object(kept) }
        }
        Value::Array(list) if shape.takes_lists_apart() => {
            let kept: Vec<Value> = list
                .iter()
                .filter_map(|item| {
                    let below = shape.entry(item).ok().and_then(|element| fields.get(&element));
                    match below {
                        Some(below) if below.owned => None,
                        Some(below) => Some(remove(item, below, shape.items())),
                        None => Some(item.clone()),
                    }
                })
                .collect();
            if kept.is_empty() { Value::Null } else { Value::Array(kept) }
        }
        Value::Object(_) | Value::Array(_) => Value::Null,
        scalar => scalar.clone(),
    }
}
