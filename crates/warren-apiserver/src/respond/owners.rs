//! Leaves `metadata.managedFields` out of a stored body, without reading the body as a tree. It is half of many objects, and those
//! who ask in process never look at it.

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};

/// The body without its managers. A body that is not written the way the store writes stays as it is.
pub(super) fn without_managed_fields(body: Bytes) -> Bytes {
    let Some(Range { start, end }) = managed_fields(&body) else { return body };
    let mut rest = BytesMut::with_capacity(body.len() - (end - start));
    rest.put_slice(&body[..start]);
    rest.put_slice(&body[end..]);
    rest.freeze()
}

/// Where the managers stand, with the comma that goes with them.
fn managed_fields(body: &[u8]) -> Option<Range<usize>> {
    let metadata = find(body, 0, b"\"metadata\"")?;
    let member = find(body, metadata.value, b"\"managedFields\"")?;
    let end = skip_value(body, member.value)?;
    match (body.get(member.key.checked_sub(1)?)?, body.get(end)?) {
        (b',', _) => Some(member.key - 1..end),
        (_, b',') => Some(member.key..end + 1),
        _ => Some(member.key..end),
    }
}

/// Where a field of an object stands.
struct Member {
    key: usize,
    value: usize,
}

/// Finds a field of the object that begins at `at`, by its name in quotes.
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

/// The place behind a text.
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

/// The place behind a value.
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

    use super::without_managed_fields;

    fn check(body: &Value) {
        let mut wanted = body.clone();
        if let Some(metadata) = wanted.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.shift_remove("managedFields");
        }
        let rest = without_managed_fields(Bytes::from(body.to_string()));
        assert_eq!(String::from_utf8_lossy(&rest), wanted.to_string());
    }

    #[test]
    fn managers_are_left_out_and_nothing_else() {
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
    fn half_a_body_stays_as_it_is() {
        let whole = json!({"metadata": {"name": "a", "managedFields": [{"a": "b"}]}}).to_string();
        for end in 0..whole.len() - 2 {
            let half = Bytes::from(whole[..end].to_owned());
            assert_eq!(without_managed_fields(half.clone()), half);
        }
    }
}
