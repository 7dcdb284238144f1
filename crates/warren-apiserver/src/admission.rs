//! From the bytes of a request to an object that may be stored: decoding, pruning, defaulting, validation.

use serde_json::{Map, Value};

use crate::call::{Call, FieldValidation};
use crate::definition::{SchemaSource, Target};
use crate::json_body::Tree;
use crate::metadata::{self, metadata_mut};
use crate::protobuf;
use crate::schema::{
    Undecodable, apply_defaults, canonical_quantities, check_rules, check_types, drop_empty_maps, drop_nulls,
    drop_unwanted_nulls, prune, validate,
};
use crate::status::{ApiError, FieldError, Problem, Subject};

/// An object as decoded, with the warnings to send along.
pub(crate) struct Decoded {
    pub object: Value,
    pub warnings: Vec<String>,
}

/// Reads a body as JSON, YAML or Kubernetes' protobuf; `message` is the type that it should be.
pub(crate) fn parse(content_type: &str, body: &[u8], message: &str) -> Result<Value, ApiError> {
    parse_tree(content_type, body, message).map(|tree| tree.value)
}

/// Like [`parse`], with the fields that were there twice.
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
            serde_saphyr::from_str(text)
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

/// A body that does not say what it is, or says what cannot be, is not looked at any further.
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

/// Checks that an object is of the kind and version that the path says, and drops what its schema does not know.
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
        if let Some(undecodable) = check_types(&object, schema, "") {
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
        // An empty list of managers means something: to forget those there are.
        metadata
            .retain(|name, value| name == "managedFields" || !value.as_array().is_some_and(Vec::is_empty));
    }
    let mut unknown = Vec::new();
    prune(&mut object, schema, "", &mut unknown);
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
            // A typed path says it already.
            "" if !target.definition.custom => {
                object.insert(field.to_owned(), wanted.into());
            }
            actual if actual == wanted => {}
            // Another kind is a mistake in the object's contents there, found with all others.
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

/// What is wrong with an object of another group or version.
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

/// Fills in defaults: the schema's for custom resources, the kind's own for built-in ones.
pub(crate) fn default(target: &Target, object: &mut Value) -> Result<(), ApiError> {
    if target.definition.custom && object["kind"] == *target.definition.kind {
        apply_defaults(object, target.schema()?);
    }
    (target.definition.behaviour.default)(object);
    Ok(())
}

/// Fills in what the version that is stored has defaults for, whatever version was asked for. Nobody owns these.
pub(crate) fn default_as_stored(target: &Target, object: &mut Value) -> Result<(), ApiError> {
    let stored = target.definition.versions.iter().find(|version| version.storage);
    match stored.filter(|stored| target.definition.custom && stored.name != target.version().name) {
        Some(stored) => apply_defaults(object, stored.schema.get()?),
        None => {}
    }
    Ok(())
}

/// Everything that can be wrong with an object, given what it was before.
pub(crate) fn check(call: &Call<'_>, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    let target = &call.target;
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
        check_custom(call, object, old, &mut errors)?;
    }
    (definition.behaviour.validate)(object, &mut errors);
    if let Some(old) = old {
        (definition.behaviour.validate_update)(object, old, &mut errors);
    }
    match errors.is_empty() {
        true => Ok(()),
        false => {
            // A custom resource of another kind is spoken of by its own name.
            let kind = object["kind"].as_str().unwrap_or(&definition.kind);
            // What is stored as another kind is checked as that, which is a core kind.
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
        // The real server looks at a status on its own, and names its fields from there.
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
    let detail = match at.as_i64() {
        Some(..0) => "should be a non-negative integer",
        Some(2_147_483_648..) => "should be less than or equal to 2147483647",
        _ => return,
    };
    errors.push(FieldError::invalid(shown, at.clone(), detail));
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
    for unset in ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"] {
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
        Some(subresource @ ("ephemeralcontainers" | "resize")) => {
            let sent = std::mem::replace(new, old.clone());
            match subresource {
                "resize" => take_over_resources(&sent, new),
                _ => new["spec"]["ephemeralContainers"] = sent["spec"]["ephemeralContainers"].clone(),
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

/// Of a pod, only what its containers may use.
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
