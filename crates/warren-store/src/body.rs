//! Serialisation of bodies, and the position of `metadata.managedFields` in them. That list makes
//! up half of many objects, and most readers and writers never look at it. So it is kept last in
//! the metadata, where it can be cut out and put back as text, without parsing it.

use std::ops::Range;

use bytes::Bytes;
use serde_json::{Map, Value};

const FIELD: &str = "managedFields";
const KEY: &[u8] = b"\"managedFields\":";
/// Extra capacity for the bytes that a write adds, so that most bodies need one allocation.
const MARGIN: usize = 256;

/// An object in two parts: a tree, and its `metadata.managedFields`. If the tree contains them, it
/// is whole by itself.
#[derive(Debug, Clone, Default)]
pub struct Body {
    /// The object, without its managers if those are given separately.
    pub tree: Value,
    /// `metadata.managedFields` as compact JSON. Empty if there are none, or if the tree contains
    /// them.
    pub managed_fields: Bytes,
}

impl From<Value> for Body {
    fn from(tree: Value) -> Body {
        Body { tree, managed_fields: Bytes::new() }
    }
}

impl Body {
    /// Returns the whole object as one tree.
    pub fn whole(self) -> Value {
        let Body { mut tree, managed_fields } = self;
        if !managed_fields.is_empty()
            && let Ok(list) = serde_json::from_slice(&managed_fields)
            && let Some(metadata) = tree.get_mut("metadata").and_then(Value::as_object_mut)
        {
            metadata.insert(FIELD.to_owned(), list);
        }
        tree
    }

    /// Returns the tree, stamped with the version that writes it.
    pub(crate) fn stamped(&mut self, version: u64) -> &Value {
        if let Value::Object(object) = &mut self.tree {
            let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(metadata) = metadata {
                metadata.insert("resourceVersion".to_owned(), Value::String(version.to_string()));
            }
        }
        &self.tree
    }

    /// Serialises the object. Also returns the position of its managers. `size` is an estimate of
    /// the length.
    pub(crate) fn write(&self, size: usize) -> (Bytes, Range<usize>) {
        let mut text = Vec::with_capacity(size + MARGIN);
        let mut managers = 0..0;
        match &self.tree {
            Value::Object(object) => {
                text.push(b'{');
                for (index, (name, value)) in object.iter().enumerate() {
                    put_key(&mut text, index == 0, name);
                    match value {
                        Value::Object(metadata) if name == "metadata" => {
                            managers = self.write_metadata(&mut text, metadata);
                        }
                        value => put(&mut text, value),
                    }
                }
                text.push(b'}');
            }
            other => put(&mut text, other),
        }
        // Objects are kept for long, so release the unused capacity.
        text.shrink_to_fit();
        (Bytes::from(text), managers)
    }

    fn write_metadata(&self, text: &mut Vec<u8>, metadata: &Map<String, Value>) -> Range<usize> {
        text.push(b'{');
        let mut is_first = true;
        for (name, value) in metadata.iter().filter(|(name, _)| *name != FIELD) {
            put_key(text, is_first, name);
            put(text, value);
            is_first = false;
        }
        let start = text.len();
        match metadata.get(FIELD) {
            _ if !self.managed_fields.is_empty() => {
                put_key(text, is_first, FIELD);
                text.extend_from_slice(&self.managed_fields);
            }
            Some(list) => {
                put_key(text, is_first, FIELD);
                put(text, list);
            }
            None => {}
        }
        let end = text.len();
        text.push(b'}');
        start..end
    }
}

fn put_key(text: &mut Vec<u8>, is_first: bool, name: &str) {
    if !is_first {
        text.push(b',');
    }
    put(text, name);
    text.push(b':');
}

fn put<T: serde::Serialize + ?Sized>(text: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(text, value).expect("trees and texts are JSON, and memory takes every byte");
}

/// Returns the list of managers, given its position in the body.
pub(crate) fn list(body: &Bytes, managers: &Range<usize>) -> Bytes {
    let member = &body[managers.clone()];
    let key = if member.first() == Some(&b',') { KEY.len() + 1 } else { KEY.len() };
    let comma = usize::from(member.last() == Some(&b','));
    match member.get(key..member.len() - comma) {
        Some(_) => body.slice(managers.start + key..managers.end - comma),
        None => Bytes::new(),
    }
}

/// Returns the position of the managers in a serialised body, with the adjacent comma. Empty if
/// there are none.
pub(crate) fn managers(body: &[u8]) -> Range<usize> {
    let place = || {
        let metadata = find(body, 0, b"\"metadata\"")?;
        let member = find(body, metadata.value, &KEY[..KEY.len() - 1])?;
        let end = skip_value(body, member.value)?;
        match (body.get(member.key.checked_sub(1)?)?, body.get(end)?) {
            (b',', _) => Some(member.key - 1..end),
            (_, b',') => Some(member.key..end + 1),
            _ => Some(member.key..end),
        }
    };
    place().unwrap_or(0..0)
}

/// Returns the position of the text of `metadata.resourceVersion`, with its quotes.
pub(crate) fn version(body: &[u8]) -> Option<Range<usize>> {
    let metadata = find(body, 0, b"\"metadata\"")?;
    let member = find(body, metadata.value, b"\"resourceVersion\"")?;
    Some(member.value..skip_text(body, member.value)?)
}

/// The position of a field in an object.
struct Member {
    key: usize,
    value: usize,
}

/// Finds a field of the object that begins at `at`, by its quoted name.
fn find(body: &[u8], at: usize, name: &[u8]) -> Option<Member> {
    let mut at = at.checked_add(1).filter(|_| body.get(at) == Some(&b'{'))?;
    loop {
        let key = at;
        let colon = skip_text(body, key)?;
        let value = colon.checked_add(1).filter(|_| body.get(colon) == Some(&b':'))?;
        if &body[key..colon] == name {
            return Some(Member { key, value });
        }
        at = skip_value(body, value)?;
        if body.get(at) != Some(&b',') {
            return None;
        }
        at += 1;
    }
}

/// Returns the position after a string.
fn skip_text(body: &[u8], at: usize) -> Option<usize> {
    let mut at = at.checked_add(1).filter(|_| body.get(at) == Some(&b'"'))?;
    loop {
        match body.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Returns the position after a value.
fn skip_value(body: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    loop {
        match body.get(at)? {
            b'"' => at = skip_text(body, at)?,
            b'{' | b'[' => {
                depth += 1;
                at += 1;
                continue;
            }
            b'}' | b']' if depth == 0 => return Some(at),
            b'}' | b']' => {
                depth -= 1;
                at += 1;
            }
            b',' if depth == 0 => return Some(at),
            _ => {
                at += 1;
                continue;
            }
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::{Value, json};

    use super::{Body, list, managers};

    /// Cuts the managers out of a body, compares with the parsed tree, and puts them back.
    fn check(body: &Value) {
        let mut rest = body.clone();
        let metadata = rest.get_mut("metadata").and_then(Value::as_object_mut);
        let wanted = metadata.and_then(|metadata| metadata.shift_remove("managedFields"));
        let wanted = wanted.map(|list| list.to_string()).unwrap_or_default();

        let text = Bytes::from(body.to_string());
        let place = managers(&text);
        assert_eq!(list(&text, &place), wanted);
        let cut = [&text[..place.start], &text[place.end..]].concat();
        assert_eq!(String::from_utf8_lossy(&cut), rest.to_string());

        let (written, place) = Body::from(body.clone()).write(0);
        assert_eq!(list(&written, &place), wanted);
        assert_eq!(serde_json::from_slice::<Value>(&written).unwrap(), *body);
        let cut = [&written[..place.start], &written[place.end..]].concat();
        assert_eq!(String::from_utf8_lossy(&cut), rest.to_string());
        let body = Body { tree: rest, managed_fields: Bytes::from(wanted) };
        assert_eq!(body.write(0), (written.clone(), place));
        assert_eq!(body.whole(), serde_json::from_slice::<Value>(&written).unwrap());
    }

    #[test]
    fn managers_are_cut_out_and_put_back_and_nothing_else() {
        let list =
            json!([{"manager": "a\"],{", "fieldsV1": {"f:metadata": {"f:managedFields": {}, ".": {}}}}]);
        for metadata in [
            json!({"managedFields": list}),
            json!({"managedFields": list, "name": "a"}),
            json!({"name": "a", "managedFields": list}),
            json!({"name": "a", "managedFields": [], "labels": {}, "generation": 1}),
            json!({"name": "a", "annotations": {"x": "{\"metadata\":{\"managedFields\":[]}}", "y\\": "\\"}, "managedFields": list, "z": null}),
            json!({"name": "a"}),
            json!({}),
            json!(null),
            json!("managedFields"),
        ] {
            check(&json!({"kind": "A", "metadata": metadata, "spec": {"metadata": {"managedFields": list}}}));
            check(
                &json!({"spec": {"n": [1, -2.5e3, true, null], "metadata": {"managedFields": list}}, "metadata": metadata}),
            );
        }
        check(&json!({"kind": "A"}));
        check(&json!({}));
        check(&json!([{"metadata": {"managedFields": []}}]));
    }

    #[test]
    fn half_a_body_has_no_managers() {
        let whole = json!({"metadata": {"name": "a", "managedFields": [{"a": "b"}]}}).to_string();
        for end in 0..whole.len() - 2 {
            let half = Bytes::from(whole[..end].to_owned());
            assert_eq!(managers(&half), 0..0);
            assert!(list(&half, &(0..0)).is_empty());
        }
    }
}
