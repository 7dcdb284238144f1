//! Decoding: from the body of a request to an object of the kind that the path names. Reads the
//! text, checks types and handles unknown fields.

use serde_json::{Map, Value};

use crate::call::{Call, FieldValidation};
use crate::definition::{SchemaSource, Target};
use crate::json_body::Tree;
use crate::protobuf;
use crate::schema::{
    Undecodable, canonical_quantities, check_types, drop_empty_maps, drop_nulls, drop_unwanted_nulls, prune,
};
use crate::status::ApiError;

/// A decoded object and the warnings for its sender.
pub(crate) struct Decoded {
    pub object: Value,
    pub warnings: Vec<String>,
}

/// Parses a body as JSON, YAML or Kubernetes' protobuf. `message` names the expected type.
pub(crate) fn parse(content_type: &str, body: &[u8], message: &str) -> Result<Value, ApiError> {
    parse_tree(content_type, body, message).map(|tree| tree.value)
}

/// Parses a body like [`parse`] and also returns the duplicate fields.
fn parse_tree(content_type: &str, body: &[u8], message: &str) -> Result<Tree, ApiError> {
    let kind = message.rsplit('.').next().unwrap_or(message);
    let unrecognized = |cause: String| {
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): {cause} ({})",
            summary(body)
        ))
    };
    let unreadable =
        |why: String| unrecognized(format!("couldn't get version/kind; json parse error: {why}"));
    let tree: Tree = match content_type {
        "application/json" | "" | "*/*" => {
            serde_json::from_slice(body).map_err(|error| unreadable(crate::go_json::message(body, &error)))?
        }
        "application/yaml" => {
            let text = std::str::from_utf8(body).map_err(|error| ApiError::bad_request(error.to_string()))?;
            crate::limits::read_yaml(text)
                .map_err(|error| ApiError::bad_request(format!("error converting YAML to JSON: {error}")))?
        }
        "application/vnd.kubernetes.protobuf" if message.contains('.') => {
            protobuf::decode(message, body).map_err(|error| unrecognized(error.to_string()))?.into()
        }
        _ if message.contains('.') => {
            let accepted = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
            return Err(ApiError::unsupported_media_type(accepted));
        }
        _ => return Err(ApiError::unsupported_media_type("application/json, application/yaml")),
    };
    match tree.value {
        Value::Object(_) => Ok(tree),
        Value::Null => Ok(Value::Object(Map::new()).into()),
        other => Err(unreadable(format!(
            "json: cannot unmarshal {} into Go value of type struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}",
            crate::schema::type_name(&other)
        ))),
    }
}

/// Returns the beginning of a body for error messages.
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

/// Parses the body of a request that creates or replaces an object.
pub(crate) fn parse_object(call: &Call<'_>, body: &[u8]) -> Result<Tree, ApiError> {
    let message: &str = match call.target.version().schema.source {
        SchemaSource::Builtin(message) => message,
        // Custom resources have no protobuf form.
        SchemaSource::Custom { .. } => &call.target.definition.kind,
    };
    let tree = parse_tree(call.content_type(), body, message)?;
    check_named(call, &tree.value, body)?;
    Ok(tree)
}

/// Checks that `kind` and `apiVersion` are present and well formed. Nothing else is checked without
/// them.
fn check_named(call: &Call<'_>, object: &Value, body: &[u8]) -> Result<(), ApiError> {
    let definition = &call.target.definition;
    let unrecognized = |cause: String| {
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {cause} ({})",
            definition.kind,
            summary(body)
        ))
    };
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    if text("apiVersion").matches('/').count() > 1 {
        return Err(unrecognized(format!("unexpected GroupVersion string: {}", text("apiVersion"))));
    }
    if definition.custom {
        for (field, shown) in [("kind", "Kind"), ("apiVersion", "apiVersion")] {
            if text(field).is_empty() {
                let body = String::from_utf8_lossy(body);
                return Err(unrecognized(format!("Object '{shown}' is missing in '{body}'")));
            }
        }
    }
    Ok(())
}

/// Checks that an object has the kind and version of the path, and removes the fields that its
/// schema does not know.
pub(crate) fn decode(call: &Call<'_>, tree: Tree) -> Result<Decoded, ApiError> {
    let Tree { value: mut object, duplicates } = tree;
    crate::limits::check_depth(&object)?;
    let target = &call.target;
    check_kind(target, &mut object)?;
    let schema = target.schema()?;
    let definition = &target.definition;
    if definition.custom {
        let metadata = object.get_mut("metadata");
        if let Some(metadata) = metadata {
            drop_nulls(metadata, Some(crate::kinds::metadata_schema()));
            drop_empty_maps(metadata, crate::kinds::metadata_schema());
        }
    } else {
        drop_nulls(&mut object, Some(schema));
        drop_empty_maps(&mut object, schema);
        if let Some(undecodable) = check_types(&object, schema) {
            let why = match (undecodable, &target.version().schema.source) {
                (Undecodable::Time(why), _) => why,
                (Undecodable::Type { path, actual }, SchemaSource::Builtin(name)) => {
                    let (field, type_) = crate::kinds::describe(name, &path);
                    format!("json: cannot unmarshal {actual} into Go struct field {field} of type {type_}")
                }
                (Undecodable::Type { path, actual }, SchemaSource::Custom { .. }) => {
                    format!("json: cannot unmarshal {actual} into {path}")
                }
            };
            return Err(ApiError::bad_request(format!(
                "{kind} in version {version:?} cannot be handled as a {kind}: {why}",
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
        // Keep an empty `managedFields` list: it is a request to clear the managers.
        metadata
            .retain(|name, value| name == "managedFields" || !value.as_array().is_some_and(Vec::is_empty));
    }
    let mut unknown = Vec::new();
    prune(&mut object, schema, &mut unknown);
    if definition.custom {
        unknown.sort();
    }
    let twice = duplicates.iter().map(|path| format!("duplicate field {path:?}"));
    let warnings: Vec<String> =
        twice.chain(unknown.iter().map(|path| format!("unknown field {path:?}"))).collect();
    let warnings = match call.field_validation()? {
        _ if warnings.is_empty() => Vec::new(),
        FieldValidation::Ignore => Vec::new(),
        FieldValidation::Warn => warnings,
        FieldValidation::Strict => {
            let list = warnings.join(", ");
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

/// Checks that the values of a map are base64. The error is the position of the first invalid byte.
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
            // The path implies kind and version of a built-in type, so the body may omit them.
            "" if !target.definition.custom => {
                object.insert(field.to_owned(), wanted.into());
            }
            actual if actual == wanted => {}
            // For custom resources a wrong kind is a validation error and is reported with the
            // others.
            _ if field == "kind" && target.definition.custom => {}
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
                let sent = object.get("kind").and_then(Value::as_str).filter(|sent| !sent.is_empty());
                return Err(unregistered(target, actual, sent.unwrap_or(kind)));
            }
            actual => {
                return Err(ApiError::bad_request(format!(
                    "the API version in the data ({actual}) does not match the expected API version ({api_version})"
                )));
            }
        }
    }
    // Move kind and version to the front: a list can then strip them without parsing the object.
    if !object.keys().take(2).eq(["kind", "apiVersion"]) {
        for field in ["apiVersion", "kind"] {
            if let Some(value) = object.shift_remove(field) {
                object.shift_insert(0, field.to_owned(), value);
            }
        }
    }
    // Built-in kinds get a full type check later.
    if target.definition.custom
        && !object.get("metadata").is_none_or(|metadata| metadata.is_object() || metadata.is_null())
    {
        return Err(ApiError::bad_request("metadata must be an object"));
    }
    Ok(())
}

/// Returns the error for an object of another group or version.
fn unregistered(target: &Target, api_version: &str, sent: &str) -> ApiError {
    let kind = &target.definition.kind;
    let version = api_version.rsplit('/').next().unwrap_or_default();
    let why = match crate::kinds::is_registered(api_version, sent) {
        true => {
            let group = target.definition.group.split('.').next().filter(|group| !group.is_empty());
            let group = group.unwrap_or("core");
            format!("converting ({version}.{sent}) to ({group}.{kind}): unknown conversion")
        }
        false => format!(
            "no kind {sent:?} is registered for version {api_version:?} in scheme \"pkg/runtime/scheme.go:111\""
        ),
    };
    ApiError::bad_request(format!("{sent} in version {version:?} cannot be handled as a {kind}: {why}"))
}
