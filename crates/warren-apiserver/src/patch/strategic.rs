//! Strategic merge patch: like a merge patch, but keyed lists are merged entry by entry.

use serde_json::{Map, Value};

use crate::schema::Schema;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ELEMENT_ORDER: &str = "$setElementOrder/";

/// Merges `patch` into `original`. The schema names the keys of lists. Without a schema, lists are
/// replaced.
pub(super) fn merge(original: &mut Value, patch: &Value, schema: Option<&Schema>) {
    let Some(patch) = patch.as_object() else {
        *original = patch.clone();
        return;
    };
    match patch.get(DIRECTIVE).and_then(Value::as_str) {
        Some("replace") => {
            *original = without_directives(&Value::Object(patch.clone()));
            return;
        }
        Some("delete") => {
            *original = Value::Object(Map::new());
            return;
        }
        _ => {}
    }
    if !original.is_object() {
        *original = Value::Object(Map::new());
    }
    let Some(target) = original.as_object_mut() else { return };
    if let Some(retained) = patch.get(RETAIN_KEYS).and_then(Value::as_array) {
        target.retain(|name, _| retained.iter().any(|kept| kept == name));
    }
    for (name, removed) in directives(patch, DELETE_FROM) {
        if let (Some(list), Some(removed)) =
            (target.get_mut(name).and_then(Value::as_array_mut), removed.as_array())
        {
            list.retain(|item| !removed.contains(item));
        }
    }
    for (name, value) in patch.iter().filter(|(name, _)| !name.starts_with('$')) {
        let schema = schema.and_then(|schema| schema.field(name)).map(|schema| &**schema);
        match value {
            Value::Null => {
                target.shift_remove(name);
            }
            Value::Object(_) => merge(target.entry(name).or_insert(Value::Null), value, schema),
            Value::Array(items) => merge_list(target.entry(name).or_insert(Value::Null), items, schema),
            scalar => {
                target.insert(name.clone(), scalar.clone());
            }
        }
    }
    for (name, order) in directives(patch, ELEMENT_ORDER) {
        let key = schema.and_then(|schema| schema.field(name)).and_then(|schema| schema.merge_key.as_deref());
        if let (Some(list), Some(order)) =
            (target.get_mut(name).and_then(Value::as_array_mut), order.as_array())
        {
            reorder(list, order, key);
        }
    }
}

fn directives<'a>(
    patch: &'a Map<String, Value>,
    prefix: &'static str,
) -> impl Iterator<Item = (&'a str, &'a Value)> {
    patch.iter().filter_map(move |(name, value)| Some((name.strip_prefix(prefix)?, value)))
}

fn merge_list(original: &mut Value, patch: &[Value], schema: Option<&Schema>) {
    let merges = schema.filter(|schema| schema.merges);
    let replaces =
        patch.iter().any(|item| item.get(DIRECTIVE).is_some_and(|directive| directive == "replace"));
    let (Some(schema), false, Some(list)) = (merges, replaces, original.as_array_mut()) else {
        let kept = patch.iter().filter(|item| item.get(DIRECTIVE).is_none());
        *original = kept.map(without_directives).collect::<Vec<_>>().into();
        return;
    };
    let key = schema.merge_key.as_deref();
    let same = |left: &Value, right: &Value| match key {
        Some(key) => left.get(key) == right.get(key),
        None => left == right,
    };
    let mut old: Vec<(usize, Value)> = std::mem::take(list).into_iter().enumerate().collect();
    // The old position of each entry of the patch. `None` sorts first.
    let mut patched: Vec<(Option<usize>, Value)> = Vec::with_capacity(patch.len());
    for item in patch {
        let place = old.iter().position(|(_, candidate)| same(candidate, item));
        let existing = place.map(|place| old.remove(place));
        if item.get(DIRECTIVE).is_some_and(|directive| directive == "delete") {
            continue;
        }
        let (place, mut entry) = existing.map_or((None, Value::Null), |(place, entry)| (Some(place), entry));
        match entry {
            Value::Null => entry = without_directives(item),
            _ if key.is_some() => merge(&mut entry, item, schema.items.as_deref()),
            _ => {}
        }
        patched.push((place, entry));
    }
    // Both lists keep their order. Of two candidates, the one with the lower old position goes
    // first.
    let (mut old, mut patched) = (old.into_iter().peekable(), patched.into_iter().peekable());
    loop {
        let next = match (old.peek(), patched.peek()) {
            (Some((before, _)), Some((place, _))) if place.is_some_and(|place| *before < place) => {
                old.next().map(|(_, item)| item)
            }
            (_, Some(_)) => patched.next().map(|(_, item)| item),
            (_, None) => old.next().map(|(_, item)| item),
        };
        match next {
            Some(item) => list.push(item),
            None => return,
        }
    }
}

/// Sorts the entries that `order` names. Each other entry stays behind its predecessor.
fn reorder(list: &mut Vec<Value>, order: &[Value], key: Option<&str>) {
    let rank = |item: &Value| {
        let same = |wanted: &Value| match key {
            Some(key) => wanted.get(key) == item.get(key),
            None => wanted == item,
        };
        order.iter().position(same)
    };
    let mut last = 0;
    let mut ranked: Vec<(usize, bool, Value)> = Vec::with_capacity(list.len());
    for item in list.drain(..) {
        match rank(&item) {
            Some(position) => {
                last = position;
                ranked.push((position, false, item));
            }
            None => ranked.push((last, true, item)),
        }
    }
    ranked.sort_by_key(|(position, follower, _)| (*position, *follower));
    list.extend(ranked.into_iter().map(|(_, _, item)| item));
}

fn without_directives(value: &Value) -> Value {
    match value {
        Value::Object(object) => object
            .iter()
            .filter(|(name, value)| !name.starts_with('$') && !value.is_null())
            .map(|(name, value)| (name.clone(), without_directives(value)))
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(items) => items.iter().map(without_directives).collect::<Vec<_>>().into(),
        scalar => scalar.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::merge;

    fn check(original: Value, patch: Value, expected: Value) {
        let schema = crate::kinds::builtin_schema("io.k8s.api.core.v1.Pod").unwrap();
        let mut object = original;
        merge(&mut object, &patch, Some(&schema));
        assert_eq!(object, expected, "{patch}");
    }

    #[test]
    fn containers_merge_by_name() {
        check(
            json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}}),
            json!({"spec": {"containers": [{"name": "b", "image": "2"}, {"name": "c", "image": "3"}]}}),
            json!({"spec": {"containers": [
                {"name": "a", "image": "1"}, {"name": "b", "image": "2"}, {"name": "c", "image": "3"}
            ]}}),
        );
        check(
            json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}),
            json!({"spec": {
                "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
                "containers": [{"name": "a", "$patch": "delete"}]
            }}),
            json!({"spec": {"containers": [{"name": "b"}]}}),
        );
    }

    #[test]
    fn primitive_lists_unite_and_atomic_lists_are_replaced() {
        check(
            json!({"metadata": {"finalizers": ["a", "b"]}}),
            json!({"metadata": {"finalizers": ["c"], "$deleteFromPrimitiveList/finalizers": ["a"]}}),
            json!({"metadata": {"finalizers": ["c", "b"]}}),
        );
        check(
            json!({"spec": {"tolerations": [{"key": "a"}]}}),
            json!({"spec": {"tolerations": [{"key": "b"}]}}),
            json!({"spec": {"tolerations": [{"key": "b"}]}}),
        );
    }

    #[test]
    fn directives_replace_delete_and_retain() {
        check(
            json!({"metadata": {"labels": {"a": "1"}}}),
            json!({"metadata": {"labels": {"$patch": "replace", "b": "2"}}}),
            json!({"metadata": {"labels": {"b": "2"}}}),
        );
        check(
            json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}),
            json!({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/x"}, "$retainKeys": ["name", "hostPath"]}]}}),
            json!({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}}),
        );
        check(json!({"a": 1, "b": 2}), json!({"a": null}), json!({"b": 2}));
    }
}
