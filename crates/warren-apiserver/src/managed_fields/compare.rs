//! Differences between two values, and the set of fields of a value.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::element::Element;
use super::fields::Fields;
use super::shape::Shape;
use crate::tree::{is_equal, side_by_side};

/// The fields that differ between two values.
#[derive(Debug, Default)]
pub(super) struct Difference {
    pub added: Fields,
    pub modified: Fields,
    pub removed: Fields,
}

impl Difference {
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }

    /// Removes fields from the difference.
    pub fn ignore(&mut self, ignored: &Fields) {
        for fields in [&mut self.added, &mut self.modified, &mut self.removed] {
            fields.subtract_trees(ignored);
        }
    }

    fn insert(&mut self, element: Element, below: Difference) {
        let Difference { added, modified, removed } = below;
        if !modified.is_empty() {
            self.modified.insert(element.clone(), modified);
        }
        if !removed.is_empty() {
            self.removed.insert(element.clone(), removed);
        }
        self.added.insert(element, added);
    }
}

/// Compares two objects. Fails if an entry of a keyed list lacks its keys.
pub(super) fn compare(old: &Value, new: &Value, shape: Shape<'_>) -> Result<Difference, String> {
    difference(Some(old), Some(new), shape)
}

fn difference(old: Option<&Value>, new: Option<&Value>, shape: Shape<'_>) -> Result<Difference, String> {
    let mut found = Difference::default();
    if let Some((old, new)) = objects(old, new, shape) {
        for (name, value, other) in old.into_iter().flat_map(|old| side_by_side(old, new)) {
            if !other.is_some_and(|other| is_equal(value, other)) {
                found.insert(Element::field(name), difference(Some(value), other, shape.field(name))?);
            }
        }
        for (name, value) in new.into_iter().flatten() {
            if old.is_none_or(|old| !old.contains_key(name)) {
                found.insert(Element::field(name), difference(None, Some(value), shape.field(name))?);
            }
        }
    } else if let Some((old, new)) = lists(old, new, shape) {
        entries(old, new, shape, &mut found)?;
    } else if let (Some(old), Some(new)) = (old, new)
        && old != new
    {
        found.modified.owned = true;
    }
    found.added.owned = old.is_none();
    found.removed.owned = new.is_none();
    Ok(found)
}

/// One side of a comparison; `None` if it has no object.
type Side<'a> = Option<&'a Map<String, Value>>;

/// Returns both sides as objects to compare field by field. Two empty objects, or an empty and a
/// missing one, are compared as a whole.
fn objects<'a>(
    old: Option<&'a Value>,
    new: Option<&'a Value>,
    shape: Shape<'_>,
) -> Option<(Side<'a>, Side<'a>)> {
    let fits = |side: Option<&Value>| matches!(side, None | Some(Value::Null | Value::Object(_)));
    if !shape.takes_objects_apart() || !fits(old) || !fits(new) {
        return None;
    }
    let (old, new) = (old.and_then(Value::as_object), new.and_then(Value::as_object));
    let filled = |side: Side<'_>| side.is_some_and(|object| !object.is_empty());
    (filled(old) || filled(new)).then_some((old, new))
}

fn lists<'a>(
    old: Option<&'a Value>,
    new: Option<&'a Value>,
    shape: Shape<'_>,
) -> Option<(&'a [Value], &'a [Value])> {
    let fits = |side: Option<&Value>| matches!(side, None | Some(Value::Null | Value::Array(_)));
    if !shape.takes_lists_apart() || !fits(old) || !fits(new) {
        return None;
    }
    let items =
        |side: Option<&'a Value>| side.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let (old, new) = (items(old), items(new));
    (!old.is_empty() || !new.is_empty()).then_some((old, new))
}

fn entries(old: &[Value], new: &[Value], shape: Shape<'_>, found: &mut Difference) -> Result<(), String> {
    let mut sides: BTreeMap<Element, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
    for (index, item) in old.iter().enumerate() {
        sides.entry(entry(shape, index, item)?).or_default().0.push(item);
    }
    for (index, item) in new.iter().enumerate() {
        sides.entry(entry(shape, index, item)?).or_default().1.push(item);
    }
    let items = shape.items();
    for (element, (old, new)) in sides {
        let below = match (old.as_slice(), new.as_slice()) {
            ([] | [_], [] | [_]) => difference(old.first().copied(), new.first().copied(), items)?,
            // Entries with duplicate keys are compared as a whole.
            ([_, _, ..], [_, _, ..]) => {
                let mut below = Difference::default();
                below.modified.owned = old != new;
                below
            }
            ([_, _, ..], _) => {
                let mut below = match new.first() {
                    Some(new) => difference(None, Some(new), items)?,
                    None => Difference::default(),
                };
                below.removed.owned = true;
                below
            }
            (_, _) => {
                let mut below = match old.first() {
                    Some(old) => difference(Some(old), None, items)?,
                    None => Difference::default(),
                };
                below.added.owned = true;
                below
            }
        };
        found.insert(element, below);
    }
    Ok(())
}

fn entry(shape: Shape<'_>, index: usize, item: &Value) -> Result<Element, String> {
    shape.entry(item).map_err(|cause| format!("element {index}: {cause}"))
}

/// Returns every field that a value sets. An apply of the value owns these.
pub(super) fn fields_of(value: &Value, shape: Shape<'_>) -> Result<Fields, String> {
    let mut fields = Fields::default();
    match value {
        Value::Object(object) if shape.takes_objects_apart() => {
            for (name, child) in object {
                let mut below = fields_of(child, shape.field(name))?;
                let is_empty = child.is_null() || child.as_object().is_some_and(Map::is_empty);
                below.owned |= is_empty || !shape.declares(name);
                fields.insert(Element::field(name), below);
            }
        }
        Value::Array(items) if shape.takes_lists_apart() => {
            for (index, item) in items.iter().enumerate() {
                let mut below = fields_of(item, shape.items())?;
                below.owned = true;
                fields.insert(entry(shape, index, item)?, below);
            }
        }
        _ => fields.owned = true,
    }
    Ok(fields)
}

/// Adds the declared parents of every path, so that a parent is removed when all fields below it
/// are.
pub(super) fn with_parents(fields: &Fields, shape: Shape<'_>) -> Fields {
    let mut all = Fields::default();
    all.owned = fields.owned;
    for (element, below) in fields.children() {
        let below = match element {
            Element::Field(name) => {
                let mut inner = with_parents(below, shape.field(name));
                inner.owned |= shape.declares(name) && below.children().next().is_some();
                inner
            }
            _ => with_parents(below, shape.items()),
        };
        all.insert(element.clone(), below);
    }
    all
}
