//! Preparing and checking objects before they are stored: defaulting, validation, and fields that a
//! client may not change. Decoding is in `decode.rs`.

use serde_json::{Map, Value};

use crate::call::Call;
use crate::definition::Target;
use crate::metadata::{self, metadata_mut};
use crate::schema::{apply_defaults, check_rules, validate};
use crate::status::{ApiError, FieldError, Problem, Subject};
use crate::tree::{is_equal, is_identical, side_by_side};

mod decode;

pub(crate) use decode::{Decoded, decode, parse, parse_object};

/// Fills in defaults: from the schema for custom resources, from the kind's own function for
/// built-in kinds.
pub(crate) fn default(target: &Target, object: &mut Value) -> Result<(), ApiError> {
    if target.definition.custom && object["kind"] == *target.definition.kind {
        apply_defaults(object, target.schema()?);
    }
    (target.definition.behaviour.default)(object);
    Ok(())
}

/// Fills in the defaults of the storage version, whichever version the request uses. These fields
/// get no manager.
pub(crate) fn default_as_stored(target: &Target, object: &mut Value) -> Result<(), ApiError> {
    let stored = target.definition.versions.iter().find(|version| version.storage);
    if let Some(stored) = stored
        && target.definition.custom
        && stored.name != target.version().name
    {
        apply_defaults(object, stored.schema.get()?);
    }
    Ok(())
}

/// Validates an object. `old` is the version that it replaces.
pub(crate) fn check(call: &Call<'_>, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    let target = &call.target;
    crate::limits::check_depth(object)?;
    let definition = &target.definition;
    let mut errors = Vec::new();
    metadata::validate(object, definition, &mut errors);
    if let Some(old) = old {
        // kube-apiserver validates the metadata of built-in kinds twice and so reports each error
        // twice.
        metadata::validate_update(object, old, &mut errors);
        if !definition.custom {
            metadata::validate_update(object, old, &mut errors);
            metadata::validate_contents(object, &mut errors);
        }
    }
    if definition.custom {
        check_custom(call, object, old, &mut errors)?;
    }
    (definition.behaviour.validate)(object, &mut errors);
    if let Some(old) = old {
        (definition.behaviour.validate_update)(object, old, &mut errors);
    }
    match errors.is_empty() {
        true => Ok(()),
        false => {
            // If a custom resource has another kind in its body, errors name that kind.
            let kind = object["kind"].as_str().unwrap_or(&definition.kind);
            // A kind that is stored as another kind is validated as that one, which is in the core
            // group.
            let group = if target.version().conversion.is_some() { "" } else { &*definition.group };
            let subject = Subject { group, kind, name: metadata::text(object, "name") };
            Err(ApiError::invalid(subject, errors))
        }
    }
}

fn check_custom(
    call: &Call<'_>,
    object: &Value,
    old: Option<&Value>,
    errors: &mut Vec<FieldError>,
) -> Result<(), ApiError> {
    let target = &call.target;
    let schema = target.schema()?;
    let kind = object["kind"].as_str().unwrap_or_default();
    if kind != &*target.definition.kind {
        let detail = format!("must be {}", target.definition.kind);
        errors.push(FieldError::invalid("kind", kind, detail));
    }
    match (call.subresource, schema.properties.get("status")) {
        // kube-apiserver validates the status on its own, with field paths that begin there.
        (Some("status"), Some(below)) if object.get("status").is_some() => {
            let first = errors.len();
            validate(&object["status"], below, "", errors);
            for error in errors.iter_mut().skip(first).filter(|error| error.field != "<nil>") {
                error.field = match error.field.as_str() {
                    "" => "status".to_owned(),
                    field => format!("status.{field}"),
                };
            }
        }
        _ => validate(object, schema, "", errors),
    }
    if let Some(scale) = &target.version().scale {
        for path in [&scale.spec_replicas, &scale.status_replicas] {
            check_replicas(object, &path.fields().unwrap_or_default(), errors);
        }
    }
    if !schema.has_rules {
        return Ok(());
    }
    // Rules assume a value of the right shape. If the shape is broken, skip them and say so in the
    // answer.
    let is_blocking = |error: &FieldError| {
        matches!(
            error.problem,
            Problem::Required(_)
                | Problem::Unsupported(..)
                | Problem::TooLong(_)
                | Problem::TooMany(..)
                | Problem::TypeInvalid(..)
        )
    };
    if errors.iter().any(is_blocking) {
        let detail = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
        errors.push(FieldError {
            field: "<nil>".to_owned(),
            problem: Problem::Invalid(Value::Null, detail.to_owned()),
        });
        return Ok(());
    }
    check_rules(object, old, schema, errors);
    Ok(())
}

/// Checks that replica counts are numbers, also if the schema does not require it.
fn check_replicas(object: &Value, path: &[&str], errors: &mut Vec<FieldError>) {
    let shown = format!(".{}", path.join("."));
    let mut at = object;
    for (depth, name) in path.iter().enumerate() {
        let Some(next) = at.get(name) else { return };
        at = next;
        let last = depth + 1 == path.len();
        let expected = if last { "int64" } else { "map[string]interface{}" };
        let fits = if last { at.is_i64() } else { at.is_object() };
        if !fits {
            let value = at.as_str().map_or_else(|| at.to_string(), str::to_owned);
            let detail = format!(
                "{shown} accessor error: {value} is of the type {}, expected {expected}",
                go_type(at)
            );
            errors.push(FieldError::invalid(shown, 0, detail));
            return;
        }
    }
    let detail = match at.as_i64() {
        Some(..0) => "should be a non-negative integer",
        Some(2_147_483_648..) => "should be less than or equal to 2147483647",
        _ => return,
    };
    errors.push(FieldError::invalid(shown, at.clone(), detail));
}

/// Returns the Go type that kube-apiserver's decoder gives this value.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// Sets the metadata that only the server may set.
pub(crate) fn fill_new_metadata(call: &Call<'_>, object: &mut Value) {
    let behaviour = call.target.definition.behaviour;
    let metadata = metadata_mut(object);
    for unset in ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        metadata.shift_remove(unset);
    }
    metadata.insert("uid".to_owned(), uuid::Uuid::new_v4().to_string().into());
    metadata.insert("creationTimestamp".to_owned(), warren_store::deletion::timestamp(call.now).into());
    if behaviour.has_generation {
        metadata.insert("generation".to_owned(), 1.into());
    }
}

/// Restores the fields that a client may not change. Both objects are in stored form.
pub(crate) fn combine_update(call: &Call<'_>, new: &mut Value, old: &Value) {
    let version = call.target.version();
    let custom = call.target.definition.custom;
    match call.subresource {
        Some("status") => {
            let mut sent = std::mem::take(new);
            *new = with_status(old, &mut sent);
            if !custom {
                let sent = metadata_mut(&mut sent);
                let metadata = metadata_mut(new);
                for field in ["labels", "annotations", "finalizers"] {
                    match sent.shift_remove(field) {
                        Some(value) => metadata.insert(field.to_owned(), value),
                        None => metadata.shift_remove(field),
                    };
                }
            }
        }
        Some(subresource @ ("ephemeralcontainers" | "resize")) => {
            let sent = std::mem::replace(new, old.clone());
            match subresource {
                "resize" => take_over_resources(&sent, new),
                _ => new["spec"]["ephemeralContainers"] = sent["spec"]["ephemeralContainers"].clone(),
            }
        }
        _ if version.status => {
            let is_kept = match (new.get("status"), old.get("status")) {
                (Some(new), Some(old)) => is_identical(new, old),
                (new, old) => new.is_none() && old.is_none(),
            };
            if !is_kept {
                set_or_remove(new, "status", old.get("status").cloned());
            }
        }
        _ => {}
    }
    let kept = old["metadata"].as_object();
    let metadata = metadata_mut(new);
    for field in [
        "uid",
        "name",
        "namespace",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "selfLink",
        "resourceVersion",
    ] {
        match kept.and_then(|kept| kept.get(field)) {
            Some(value) if metadata.get(field) == Some(value) => None,
            Some(value) => metadata.insert(field.to_owned(), value.clone()),
            None => metadata.shift_remove(field),
        };
    }
}

/// Returns the old object with the status that was sent. Where a field was sent unchanged, its
/// value is moved instead of copied: a patch of a status sends all other fields unchanged.
fn with_status(old: &Value, sent: &mut Value) -> Value {
    let mut status = sent.as_object_mut().and_then(|sent| sent.shift_remove("status"));
    let mut fields = Map::new();
    for (name, value) in old.as_object().into_iter().flatten() {
        let value = match (name.as_str(), sent.get_mut(name)) {
            ("status", _) => match status.take() {
                Some(status) => status,
                None => continue,
            },
            // Keep the sent metadata: the caller may still need it.
            ("metadata", _) => value.clone(),
            (_, Some(sent)) if is_identical(sent, value) => sent.take(),
            _ => value.clone(),
        };
        fields.insert(name.clone(), value);
    }
    fields.extend(status.map(|status| ("status".to_owned(), status)));
    Value::Object(fields)
}

/// Takes over the resources of a pod's containers. All other fields of the pod stay.
fn take_over_resources(sent: &Value, pod: &mut Value) {
    for list in ["containers", "initContainers"] {
        let containers = pod["spec"].get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let wanted = sent["spec"][list].as_array().into_iter().flatten();
            let wanted = wanted.into_iter().find(|wanted| wanted["name"] == container["name"]);
            if let Some(resources) = wanted.and_then(|wanted| wanted.get("resources")) {
                container["resources"] = resources.clone();
            }
        }
    }
}

/// Increments `metadata.generation` if a field other than metadata and status has changed.
pub(crate) fn bump_generation(call: &Call<'_>, new: &mut Value, old: &Value) {
    if !call.target.definition.behaviour.has_generation {
        return;
    }
    let keeps_status_apart = call.target.version().status || !call.target.definition.custom;
    let is_counted = |name: &str| match name {
        "metadata" | "apiVersion" => false,
        "status" => !keeps_status_apart,
        _ => true,
    };
    if !equal_in(new, old, is_counted) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
        metadata_mut(new).insert("generation".to_owned(), (generation + 1).into());
    }
}

/// Returns true if two objects agree in all fields that `is_wanted` selects.
fn equal_in(left: &Value, right: &Value, is_wanted: impl Fn(&str) -> bool) -> bool {
    let wanted = |object: &Value| {
        object.as_object().into_iter().flat_map(Map::keys).filter(|name| is_wanted(name)).count()
    };
    let fields = left.as_object().into_iter().flat_map(|left| side_by_side(left, right.as_object()));
    wanted(left) == wanted(right)
        && fields
            .filter(|(name, ..)| is_wanted(name))
            .all(|(_, value, other)| other.is_some_and(|other| is_equal(value, other)))
}

fn set_or_remove(object: &mut Value, field: &str, value: Option<Value>) {
    let Some(object) = object.as_object_mut() else { return };
    match value {
        Some(value) => {
            object.insert(field.to_owned(), value);
        }
        None => {
            object.shift_remove(field);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::with_status;

    #[test]
    fn of_what_was_sent_only_the_status_counts() {
        let old = json!({"kind": "A", "metadata": {"name": "a"}, "status": {"a": 1}, "spec": {"b": [1, 2]}, "data": null});
        for (sent, wanted) in [
            (
                json!({"status": {"a": 2}}),
                json!({"kind": "A", "metadata": {"name": "a"}, "status": {"a": 2}, "spec": {"b": [1, 2]}, "data": null}),
            ),
            (
                json!({"kind": "B", "spec": {"b": [2]}, "more": 1}),
                json!({"kind": "A", "metadata": {"name": "a"}, "spec": {"b": [1, 2]}, "data": null}),
            ),
            (
                json!({"spec": {"b": [1, 2]}, "metadata": {"name": "b"}, "status": null}),
                json!({"kind": "A", "metadata": {"name": "a"}, "status": null, "spec": {"b": [1, 2]}, "data": null}),
            ),
        ] {
            assert_eq!(with_status(&old, &mut sent.clone()).to_string(), wanted.to_string(), "{sent}");
        }
        let without = json!({"kind": "A", "spec": {}});
        let sent = json!({"status": 1, "spec": {}});
        assert_eq!(
            with_status(&without, &mut sent.clone()).to_string(),
            r#"{"kind":"A","spec":{},"status":1}"#
        );
    }
}
