//! From the bytes of a request to an object that may be stored: decoding, pruning, defaulting, validation.

use serde_json::{Map, Value};

use crate::call::{Call, FieldValidation};
use crate::definition::{SchemaSource, Target};
use crate::metadata::{self, metadata_mut};
use crate::protobuf;
use crate::schema::{
    apply_defaults, canonical_quantities, check_rules, check_types, drop_empty_maps, drop_nulls,
    drop_unwanted_nulls, prune, validate,
};
use crate::status::{ApiError, FieldError, Problem};

/// An object as decoded, with the warnings to send along.
pub(crate) struct Decoded {
    pub object: Value,
    pub warnings: Vec<String>,
}

/// Reads a body as JSON, YAML or Kubernetes' protobuf; `message` is the type that it should be.
pub(crate) fn parse(content_type: &str, body: &[u8], message: &str) -> Result<Value, ApiError> {
    let kind = message.rsplit('.').next().unwrap_or(message);
    let unrecognized = |cause: String| {
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): {cause} ({})",
            summary(body)
        ))
    };
    let unreadable =
        |why: String| unrecognized(format!("couldn't get version/kind; json parse error: {why}"));
    let value: Value = match content_type {
        "application/json" | "" | "*/*" => {
            serde_json::from_slice(body).map_err(|error| unreadable(crate::go_json::message(body, &error)))?
        }
        "application/yaml" => {
            let text = std::str::from_utf8(body).map_err(|error| ApiError::bad_request(error.to_string()))?;
            serde_saphyr::from_str(text)
                .map_err(|error| ApiError::bad_request(format!("error converting YAML to JSON: {error}")))?
        }
        "application/vnd.kubernetes.protobuf" if message.contains('.') => {
            protobuf::decode(message, body).map_err(|error| unrecognized(error.to_string()))?
        }
        _ if message.contains('.') => {
            let accepted = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
            return Err(ApiError::unsupported_media_type(accepted));
        }
        _ => return Err(ApiError::unsupported_media_type("application/json, application/yaml")),
    };
    match value {
        Value::Object(_) => Ok(value),
        Value::Null => Ok(Value::Object(Map::new())),
        other => Err(unreadable(format!(
            "json: cannot unmarshal {} into Go value of type struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}",
            crate::schema::type_name(&other)
        ))),
    }
}

/// The beginning of a body, as text if it looks like an object.
fn summary(body: &[u8]) -> String {
    const LONGEST: usize = 30;
    let (shown, more) = match body.get(..LONGEST) {
        Some(beginning) if body.len() > LONGEST => (beginning, " ..."),
        _ => (body, ""),
    };
    match body.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(shown)),
        Some(_) => shown.iter().map(|byte| format!("{byte:02x}")).chain([more.to_owned()]).collect(),
    }
}

/// The body of a request that creates or replaces an object of the kind in the path.
pub(crate) fn parse_object(call: &Call<'_>, body: &[u8]) -> Result<Value, ApiError> {
    let message: &str = match call.target.version().schema.source {
        SchemaSource::Builtin(message) => message,
        // Custom resources have no protobuf form.
        SchemaSource::Custom { .. } => &call.target.definition.kind,
    };
    parse(call.content_type(), body, message)
}

/// Checks that an object is of the kind and version that the path says, and drops what its schema does not know.
pub(crate) fn decode(call: &Call<'_>, mut object: Value) -> Result<Decoded, ApiError> {
    crate::limits::check_depth(&object)?;
    let target = &call.target;
    check_kind(target, &mut object)?;
    let schema = target.schema()?;
    let definition = &target.definition;
    if definition.custom {
        let metadata = object.get_mut("metadata");
        if let Some(metadata) = metadata {
            drop_nulls(metadata);
            drop_empty_maps(metadata, crate::kinds::metadata_schema());
        }
    } else {
        drop_nulls(&mut object);
        drop_empty_maps(&mut object, schema);
        if let Some((path, actual)) = check_types(&object, schema, "") {
            let (field, type_) = match target.version().schema.source {
                SchemaSource::Builtin(name) => crate::kinds::describe(name, &path),
                SchemaSource::Custom { .. } => (path, String::new()),
            };
            return Err(ApiError::bad_request(format!(
                "{kind} in version {version:?} cannot be handled as a {kind}: json: cannot unmarshal {actual} into Go struct field {field} of type {type_}",
                kind = definition.kind,
                version = target.version().name,
            )));
        }
    }
    if !definition.custom && !canonical_quantities(&mut object, schema) {
        return Err(ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            kind = definition.kind,
            version = target.version().name,
        )));
    }
    if definition.custom {
        drop_unwanted_nulls(&mut object, schema);
    }
    for field in definition.behaviour.binary_maps {
        check_base64(&object[field]).map_err(|at| {
            ApiError::bad_request(format!(
                "{kind} in version {version:?} cannot be handled as a {kind}: illegal base64 data at input byte {at}",
                kind = definition.kind,
                version = target.version().name,
            ))
        })?;
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        // An empty list of managers means something: to forget those there are.
        metadata
            .retain(|name, value| name == "managedFields" || !value.as_array().is_some_and(Vec::is_empty));
    }
    let mut unknown = Vec::new();
    prune(&mut object, schema, "", &mut unknown);
    if definition.custom {
        unknown.sort();
    }
    let warnings = match call.field_validation()? {
        _ if unknown.is_empty() => Vec::new(),
        FieldValidation::Ignore => Vec::new(),
        FieldValidation::Warn => unknown.iter().map(|path| format!("unknown field {path:?}")).collect(),
        FieldValidation::Strict => {
            let list =
                unknown.iter().map(|path| format!("unknown field {path:?}")).collect::<Vec<_>>().join(", ");
            return Err(ApiError::bad_request(format!(
                "{kind} in version {version:?} cannot be handled as a {kind}: strict decoding error: {list}",
                kind = definition.kind,
                version = target.version().name,
            )));
        }
    };
    target.convert_to_stored(&mut object);
    Ok(Decoded { object, warnings })
}

/// The place of the first byte in a map's values that is not base64.
fn check_base64(map: &Value) -> Result<(), usize> {
    use base64::Engine as _;
    let mut values = map.as_object().into_iter().flat_map(Map::values).filter_map(Value::as_str);
    values.try_for_each(|text| match base64::engine::general_purpose::STANDARD.decode(text) {
        Ok(_) => Ok(()),
        Err(base64::DecodeError::InvalidByte(at, _)) => Err(at),
        Err(_) => Err(text.len() / 4 * 4),
    })
}

fn check_kind(target: &Target, object: &mut Value) -> Result<(), ApiError> {
    let (kind, api_version) = (&*target.definition.kind, &*target.version().api_version);
    let Some(object) = object.as_object_mut() else {
        return Err(ApiError::bad_request("the object provided is unrecognized (must be of type Object)"));
    };
    for (field, wanted) in [("apiVersion", api_version), ("kind", kind)] {
        match object.get(field).and_then(Value::as_str).unwrap_or_default() {
            "" if target.definition.custom && field == "kind" => {
                let shown = Value::Object(object.clone()).to_string();
                return Err(ApiError::bad_request(format!("Object 'Kind' is missing in '{shown}'")));
            }
            // A typed path says it already.
            "" if !target.definition.custom => {
                object.insert(field.to_owned(), wanted.into());
            }
            actual if actual == wanted => {}
            actual if field == "kind" => {
                return Err(ApiError::bad_request(format!(
                    "{actual} in version {:?} cannot be handled as a {kind}: converting ({version}.{actual}) to ({group}.{kind}): unknown conversion",
                    target.version().name,
                    version = target.version().name,
                    group = target
                        .definition
                        .group
                        .split('.')
                        .next()
                        .filter(|group| !group.is_empty())
                        .unwrap_or("core"),
                )));
            }
            actual if !target.definition.custom => {
                return Err(ApiError::bad_request(format!(
                    "{kind} in version {actual:?} cannot be handled as a {kind}: no kind {kind:?} is registered for version {actual:?} in scheme \"pkg/runtime/scheme.go:111\""
                )));
            }
            actual => {
                return Err(ApiError::bad_request(format!(
                    "the API version in the data ({actual}) does not match the expected API version ({api_version})"
                )));
            }
        }
    }
    // Kind and version stand first, where a list can leave them out without reading the object.
    for field in ["apiVersion", "kind"] {
        if let Some(value) = object.shift_remove(field) {
            object.shift_insert(0, field.to_owned(), value);
        }
    }
    // The types of the built-in kinds are checked one and all, a little later.
    if target.definition.custom
        && !object.get("metadata").is_none_or(|metadata| metadata.is_object() || metadata.is_null())
    {
        return Err(ApiError::bad_request("metadata must be an object"));
    }
    Ok(())
}

/// Fills in defaults: the schema's for custom resources, the kind's own for built-in ones.
pub(crate) fn default(target: &Target, object: &mut Value) -> Result<(), ApiError> {
    if target.definition.custom {
        apply_defaults(object, target.schema()?);
    }
    (target.definition.behaviour.default)(object);
    Ok(())
}

/// Everything that can be wrong with an object, given what it was before.
pub(crate) fn check(target: &Target, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    crate::limits::check_depth(object)?;
    let definition = &target.definition;
    let mut errors = Vec::new();
    metadata::validate(object, definition, &mut errors);
    if let Some(old) = old {
        // The real server checks the metadata of a built-in kind once for all kinds and once more for the kind.
        metadata::validate_update(object, old, &mut errors);
        if !definition.custom {
            metadata::validate_update(object, old, &mut errors);
            metadata::validate_contents(object, &mut errors);
        }
    }
    if definition.custom {
        check_custom(target, object, old, &mut errors)?;
    }
    (definition.behaviour.validate)(object, &mut errors);
    if let Some(old) = old {
        (definition.behaviour.validate_update)(object, old, &mut errors);
    }
    match errors.is_empty() {
        true => Ok(()),
        false => Err(ApiError::invalid(definition.kind_subject(metadata::text(object, "name")), errors)),
    }
}

fn check_custom(
    target: &Target,
    object: &Value,
    old: Option<&Value>,
    errors: &mut Vec<FieldError>,
) -> Result<(), ApiError> {
    let schema = target.schema()?;
    validate(object, schema, "", errors);
    if let Some(scale) = &target.version().scale {
        for path in [&scale.spec_replicas, &scale.status_replicas] {
            check_replicas(object, &path.fields().unwrap_or_default(), errors);
        }
    }
    if !schema.has_rules {
        return Ok(());
    }
    // Rules assume a value of the right shape. Where the shape is broken they are not run, and the answer says so.
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
    check_rules(object, old, schema, "", errors);
    Ok(())
}

/// Replica counts are numbers, whatever the schema says about them.
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
    if let Some(negative) = at.as_i64().filter(|replicas| *replicas < 0) {
        errors.push(FieldError::invalid(shown, negative, "should be a non-negative integer"));
    }
}

/// What the real server's decoder makes of a value.
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

/// The metadata that only the server sets.
pub(crate) fn fill_new_metadata(call: &Call<'_>, object: &mut Value) {
    let behaviour = call.target.definition.behaviour;
    let metadata = metadata_mut(object);
    for unset in ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"] {
        metadata.shift_remove(unset);
    }
    metadata.insert("uid".to_owned(), uuid::Uuid::new_v4().to_string().into());
    metadata.insert("creationTimestamp".to_owned(), warren_store::deletion::timestamp(call.now).into());
    if behaviour.has_generation {
        metadata.insert("generation".to_owned(), 1.into());
    }
}

/// Combines what a client sent with what it may not change. Both are in stored form.
pub(crate) fn combine_update(call: &Call<'_>, new: &mut Value, old: &Value) {
    let version = call.target.version();
    let custom = call.target.definition.custom;
    match call.subresource {
        Some("status") => {
            let status = new.get("status").cloned();
            let sent = metadata_mut(new).clone();
            *new = old.clone();
            set_or_remove(new, "status", status);
            if !custom {
                let metadata = metadata_mut(new);
                for field in ["labels", "annotations", "finalizers"] {
                    match sent.get(field) {
                        Some(value) => metadata.insert(field.to_owned(), value.clone()),
                        None => metadata.shift_remove(field),
                    };
                }
            }
        }
        _ if version.status => set_or_remove(new, "status", old.get("status").cloned()),
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
            Some(value) => metadata.insert(field.to_owned(), value.clone()),
            None => metadata.shift_remove(field),
        };
    }
}

/// Counts a change of anything but metadata and status.
pub(crate) fn bump_generation(call: &Call<'_>, new: &mut Value, old: &Value) {
    if !call.target.definition.behaviour.has_generation {
        return;
    }
    let rest = |object: &Value| -> Map<String, Value> {
        let fields = object.as_object().into_iter().flatten();
        let counted = fields.filter(|(name, _)| {
            let kept_apart =
                *name == "status" && (call.target.version().status || !call.target.definition.custom);
            *name != "metadata" && *name != "apiVersion" && !kept_apart
        });
        counted.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    if rest(new) != rest(old) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
        metadata_mut(new).insert("generation".to_owned(), (generation + 1).into());
    }
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
