//! JSON patches, with limits. A few operations that copy or nest could exhaust the memory, or build
//! an object so deep that walking it overflows the stack. Each operation is checked before it is
//! applied.

use json_patch::PatchOperation;
use serde_json::Value;

use crate::limits::{DEEPEST_OBJECT, depth_within};
use crate::status::ApiError;

/// The limit of kube-apiserver.
const MOST_OPERATIONS: usize = 10_000;
/// The maximum size that copies may add, in bytes: the limit of kube-apiserver, and its largest
/// body.
const LARGEST_COPIES: usize = 3 << 20;

pub(super) fn check_count(operations: usize) -> Result<(), ApiError> {
    match operations > MOST_OPERATIONS {
        true => Err(ApiError::entity_too_large(format!(
            "The allowed maximum operations in a JSON patch is {MOST_OPERATIONS}, got {operations}"
        ))),
        false => Ok(()),
    }
}

/// Applies a patch. After an error the object is partly changed and must be discarded.
pub(super) fn apply(object: &mut Value, patch: &[PatchOperation]) -> Result<(), ApiError> {
    let mut copied = 0;
    for operation in patch {
        let inserted = match operation {
            PatchOperation::Add(add) => Some((&add.path, Some(&add.value))),
            PatchOperation::Replace(replace) => Some((&replace.path, Some(&replace.value))),
            PatchOperation::Copy(copy) => Some((&copy.path, object.pointer(copy.from.as_str()))),
            PatchOperation::Move(moved) => Some((&moved.path, object.pointer(moved.from.as_str()))),
            PatchOperation::Remove(_) | PatchOperation::Test(_) => None,
        };
        if let Some((path, Some(value))) = inserted {
            let above = path.as_str().matches('/').count();
            if above > DEEPEST_OBJECT || !depth_within(value, DEEPEST_OBJECT - above) {
                return Err(crate::limits::too_deep());
            }
            if matches!(operation, PatchOperation::Copy(_)) {
                copied += size(value);
                if copied > LARGEST_COPIES {
                    return Err(ApiError::entity_too_large(format!(
                        "the copies of a JSON patch may add up to {LARGEST_COPIES} bytes"
                    )));
                }
            }
        }
        // kube-apiserver treats a missing field as null. The finalizers of `kube` depend on it.
        if let PatchOperation::Test(test) = operation
            && test.value.is_null()
            && let Some((parent, _)) = test.path.as_str().rsplit_once('/')
            && object.pointer(parent).is_some_and(Value::is_object)
            && object.pointer(test.path.as_str()).is_none()
        {
            continue;
        }
        // kube-apiserver lets a replace operation add a missing field to an existing object.
        if let PatchOperation::Replace(replace) = operation
            && let Some((parent, name)) = replace.path.as_str().rsplit_once('/')
            && let Some(Value::Object(parent)) = object.pointer_mut(parent)
        {
            parent.insert(name.replace("~1", "/").replace("~0", "~"), replace.value.clone());
            continue;
        }
        // Do not roll back after an error: the object is a copy, and the library panics where it
        // cannot roll back.
        json_patch::patch_unsafe(object, std::slice::from_ref(operation))
            .map_err(|_| ApiError::patch_does_not_apply())?;
    }
    Ok(())
}

/// Returns the approximate size of a value as text.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| size(item) + 1).sum::<usize>() + 2,
        Value::Object(fields) => {
            fields.iter().map(|(name, field)| name.len() + size(field) + 4).sum::<usize>() + 2
        }
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(object: &Value, operations: &Value) -> Result<Value, ApiError> {
        let patch: json_patch::Patch = serde_json::from_value(operations.clone()).unwrap();
        let mut object = object.clone();
        apply(&mut object, &patch.0).map(|()| object)
    }

    #[test]
    fn copies_cannot_double_for_ever() {
        let bomb: Vec<Value> = (0..64)
            .flat_map(|_| {
                [
                    json!({"op": "copy", "from": "/a", "path": "/b"}),
                    json!({"op": "copy", "from": "/b", "path": "/a/-"}),
                ]
            })
            .collect();
        let error = patched(&json!({"a": ["x".repeat(1000)]}), &bomb.into()).unwrap_err();
        assert_eq!(error.code.as_u16(), 413, "{}", error.message);
    }

    #[test]
    fn nesting_is_refused_before_it_is_built() {
        let deep = (1..100).fold(json!({}), |inner, _| json!({ "a": inner }));
        let path = "/a".repeat(100);
        let operations = json!([
            {"op": "add", "path": "/a", "value": deep},
            {"op": "add", "path": path, "value": deep},
        ]);
        let error = patched(&json!({}), &operations).unwrap_err();
        assert_eq!(error.code.as_u16(), 400, "{}", error.message);
        let moved = json!([
            {"op": "add", "path": "/a", "value": deep},
            {"op": "copy", "from": "/a", "path": path},
        ]);
        assert_eq!(patched(&json!({}), &moved).unwrap_err().code.as_u16(), 400);
    }

    #[test]
    fn ordinary_patches_apply() {
        let operations = json!([
            {"op": "test", "path": "/a", "value": 1},
            {"op": "copy", "from": "/a", "path": "/b"},
            {"op": "move", "from": "/b", "path": "/c"},
            {"op": "replace", "path": "/a", "value": {"x": []}},
            {"op": "add", "path": "/a/x/-", "value": 2},
            {"op": "remove", "path": "/c"},
        ]);
        assert_eq!(patched(&json!({"a": 1}), &operations).unwrap(), json!({"a": {"x": [2]}}));
        let missing = json!([{"op": "remove", "path": "/nothing"}]);
        assert_eq!(patched(&json!({}), &missing).unwrap_err().code.as_u16(), 422);
        let absent = |path: &str| json!([{"op": "test", "path": path, "value": null}]);
        assert!(patched(&json!({"a": {}}), &absent("/a/b")).is_ok(), "what is not there is null");
        assert!(patched(&json!({"a": {"b": 1}}), &absent("/a/b")).is_err());
        assert!(patched(&json!({}), &absent("/a/b")).is_err(), "in an object that is not there, nothing is");
        assert!(check_count(MOST_OPERATIONS).is_ok());
        assert_eq!(check_count(MOST_OPERATIONS + 1).unwrap_err().code.as_u16(), 413);
    }
}
