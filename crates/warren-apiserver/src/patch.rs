//! Patch formats: computes the object to write from the current object and a patch body.

use json_patch::PatchOperation;
use serde_json::Value;

use crate::schema::Schema;
use crate::status::ApiError;

mod json;
mod strategic;

/// The format, given by the content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl Format {
    /// Returns the format of a content type, if the kind supports it. Custom resources have no Go
    /// types and so no strategic merge.
    pub fn from_content_type(content_type: &str, custom: bool) -> Result<Format, ApiError> {
        match content_type {
            "application/json-patch+json" => Ok(Format::Json),
            "application/merge-patch+json" => Ok(Format::Merge),
            "application/strategic-merge-patch+json" if !custom => Ok(Format::Strategic),
            "application/strategic-merge-patch+json" => Err(ApiError::unsupported_media_type(
                "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
            )),
            "application/apply-patch+yaml" => Ok(Format::Apply),
            _ => Err(ApiError::unknown_patch_type()),
        }
    }
}

#[derive(Debug)]
pub(crate) enum Patch {
    Json {
        patch: json_patch::Patch,
        /// Unknown members of operations, for warnings.
        unknown: Vec<String>,
    },
    Merge(Value),
    Strategic(Value),
    /// The configuration of an apply. `managed_fields` computes the resulting change.
    Apply(Value),
}

impl Patch {
    pub fn parse(format: Format, body: &[u8]) -> Result<Patch, ApiError> {
        let unreadable = |error: serde_json::Error| {
            let why = crate::go_json::message(body, &error);
            ApiError::bad_request(format!("error decoding patch: {why}"))
        };
        Ok(match format {
            Format::Json => {
                let operations: Value = serde_json::from_slice(body).map_err(unreadable)?;
                json::check_count(operations.as_array().map_or(0, Vec::len))?;
                if !operations.is_array() {
                    let found = crate::schema::type_name(&operations);
                    return Err(ApiError::bad_request(format!(
                        "error decoding patch: json: cannot unmarshal {found} into Go value of type []handlers.jsonPatchOp"
                    )));
                }
                let unknown = unknown_members(&operations);
                let patch =
                    serde_json::from_value(operations).map_err(|_| ApiError::patch_does_not_apply())?;
                Patch::Json { patch, unknown }
            }
            Format::Merge => Patch::Merge(serde_json::from_slice(body).map_err(unreadable)?),
            Format::Strategic => Patch::Strategic(serde_json::from_slice(body).map_err(unreadable)?),
            Format::Apply => Patch::Apply(parse_configuration(body)?),
        })
    }

    /// Returns true if the patch may read or change `metadata.managedFields`. Any other patch has
    /// the same result without them.
    pub fn may_touch_managers(&self) -> bool {
        match self {
            Patch::Json { patch, .. } => patch.0.iter().any(|operation| {
                let from = match operation {
                    PatchOperation::Copy(copy) => Some(copy.from.as_str()),
                    PatchOperation::Move(moved) => Some(moved.from.as_str()),
                    _ => None,
                };
                leads_to_managers(operation.path().as_str()) || from.is_some_and(leads_to_managers)
            }),
            // A patch that is no object replaces everything. A strategic merge directive may do so
            // too.
            Patch::Merge(patch) | Patch::Strategic(patch) => names(patch, |name, below| match name {
                "metadata" => names(below, |name, _| name == "managedFields"),
                _ => false,
            }),
            Patch::Apply(_) => false,
        }
    }

    pub fn apply(&self, object: &mut Value, schema: &Schema) -> Result<(), ApiError> {
        match self {
            Patch::Json { patch, .. } => json::apply(object, &patch.0),
            Patch::Merge(patch) => {
                json_patch::merge(object, patch);
                Ok(())
            }
            Patch::Strategic(patch) => {
                strategic::merge(object, patch, Some(schema));
                Ok(())
            }
            Patch::Apply(_) => Err(ApiError::unsupported_media_type(
                "application/json-patch+json, application/merge-patch+json",
            )),
        }
    }
}

/// Returns true if a merge patch is no object, or if `is_such` holds for one of its fields.
fn names(patch: &Value, is_such: impl Fn(&str, &Value) -> bool) -> bool {
    patch
        .as_object()
        .is_none_or(|patch| patch.iter().any(|(name, below)| name.starts_with('$') || is_such(name, below)))
}

/// Returns true if a JSON pointer leads to `metadata.managedFields`, into it or to a parent of it.
fn leads_to_managers(path: &str) -> bool {
    match path.strip_prefix("/metadata") {
        None => path.is_empty(),
        Some(rest) => rest.is_empty() || rest.starts_with("/managedFields"),
    }
}

fn unknown_members(operations: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    for (index, operation) in operations.as_array().into_iter().flatten().enumerate() {
        for name in operation.as_object().into_iter().flatten().map(|(name, _)| name) {
            if !matches!(name.as_str(), "op" | "path" | "from" | "value") {
                unknown.push(format!("json patch unknown field \"[{index}].{name}\""));
            }
        }
    }
    unknown
}

fn parse_configuration(body: &[u8]) -> Result<Value, ApiError> {
    let undecodable = |cause: String| ApiError::bad_request(format!("error decoding YAML: {cause}"));
    let text = std::str::from_utf8(body).map_err(|error| undecodable(error.to_string()))?;
    // JSON is YAML, but the JSON parser is faster and most clients send JSON.
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(_) => crate::limits::read_yaml(text).map_err(undecodable)?,
    };
    match value {
        Value::Object(_) => Ok(value),
        _ => Err(undecodable("the configuration is not an object".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use warren_store::Body;

    use super::{Format, Patch};
    use crate::schema::Schema;

    fn object() -> Value {
        json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {
                "name": "a", "labels": {"a": "1", "b/c": "2"}, "finalizers": ["x", "y"],
                "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}, {"manager": "n"}],
            },
            "spec": {"managedFields": [1], "list": [{"name": "a"}, {"name": "b"}], "metadata": {"managedFields": 1}},
        })
    }

    /// Patches the whole object, and also the object without its managers, which are put back
    /// afterwards. Returns both results.
    fn both_ways(format: Format, patch: &Value) -> (bool, Option<Value>, Option<Value>) {
        let patch = Patch::parse(format, patch.to_string().as_bytes()).unwrap();
        let schema = Schema::default();
        let mut whole = object();
        let on_whole = patch.apply(&mut whole, &schema).is_ok().then_some(whole);
        let mut tree = object();
        let list = tree["metadata"].as_object_mut().unwrap().shift_remove("managedFields").unwrap();
        let managed_fields = list.to_string().into();
        let on_rest = patch.apply(&mut tree, &schema).is_ok();
        let joined = on_rest.then(|| Body { tree, managed_fields }.whole());
        (patch.may_touch_managers(), on_whole, joined)
    }

    #[test]
    fn a_patch_that_leaves_managers_alone_comes_to_the_same_without_them() {
        for patch in [
            json!({}),
            json!({"metadata": {}}),
            json!({"metadata": {"labels": {"a": null, "d": "3"}, "annotations": {"managedFields": "x"}}}),
            json!({"metadata": {"name": null, "labels": null, "finalizers": []}, "spec": null}),
            json!({"spec": {"managedFields": null, "metadata": {"managedFields": [2]}, "list": [{"name": "b"}]}}),
            json!({"status": {"metadata": {"managedFields": []}}}),
        ] {
            for format in [Format::Merge, Format::Strategic] {
                let (touches, whole, joined) = both_ways(format, &patch);
                assert!(!touches, "{patch}");
                assert_eq!(whole, joined, "{format:?} {patch}");
            }
        }
        for operations in [
            json!([]),
            json!([{"op": "add", "path": "/metadata/labels/d", "value": "3"}, {"op": "remove", "path": "/metadata/finalizers/0"}]),
            json!([{"op": "test", "path": "/metadata/name", "value": "a"}, {"op": "replace", "path": "/spec", "value": 1}]),
            json!([{"op": "test", "path": "/metadata/name", "value": "b"}]),
            json!([{"op": "move", "from": "/metadata/labels/b~1c", "path": "/metadata/labels/e"}]),
            json!([{"op": "copy", "from": "/spec/managedFields", "path": "/status"}]),
            json!([{"op": "remove", "path": "/metadata/missing"}]),
        ] {
            let (touches, whole, joined) = both_ways(Format::Json, &operations);
            assert!(!touches, "{operations}");
            assert_eq!(whole, joined, "{operations}");
        }
    }

    #[test]
    fn a_patch_that_may_touch_managers_is_known() {
        for patch in [
            json!(null),
            json!([1]),
            json!({"metadata": null}),
            json!({"metadata": "x"}),
            json!({"metadata": {"managedFields": null}}),
            json!({"metadata": {"managedFields": [{}], "labels": {"a": "2"}}}),
            json!({"$patch": "replace"}),
            json!({"metadata": {"$patch": "replace", "name": "a"}}),
            json!({"metadata": {"$setElementOrder/managedFields": []}}),
        ] {
            assert!(both_ways(Format::Strategic, &patch).0 && both_ways(Format::Merge, &patch).0, "{patch}");
        }
        for operation in [
            json!({"op": "replace", "path": "", "value": {}}),
            json!({"op": "test", "path": "/metadata", "value": {}}),
            json!({"op": "remove", "path": "/metadata/managedFields"}),
            json!({"op": "add", "path": "/metadata/managedFields/-", "value": {}}),
            json!({"op": "move", "from": "/metadata/managedFields/0", "path": "/spec"}),
            json!({"op": "copy", "from": "/metadata", "path": "/spec"}),
        ] {
            assert!(both_ways(Format::Json, &json!([operation])).0, "{operation}");
        }
    }
}
