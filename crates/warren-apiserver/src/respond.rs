//! Conversion of objects into responses: in full, as a table, or as metadata only.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use jiff::Timestamp;
use serde_json::{Value, json};
use warren_store::{List, Object};

use crate::audit::CreatedName;
use crate::definition::Target;
use crate::query::Query;
use crate::status::ApiError;
use crate::table;

/// The body of every response.
pub type ResponseBody = UnsyncBoxBody<Bytes, Infallible>;

/// The form in which a client wants objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Representation {
    Object,
    /// Objects without `managedFields`, for in-process clients that ask for it.
    Unmanaged,
    /// `as=Table`, with the contents of each row's object.
    Table(RowObject),
    /// `as=PartialObjectMetadata` and its list.
    Metadata,
}

/// `includeObject` of a table request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowObject {
    None,
    Metadata,
    Object,
}

impl Representation {
    /// Parses the `Accept` header. Returns the first form that this server offers.
    pub fn negotiate(headers: &HeaderMap, query: &Query, is_list: bool) -> Result<Representation, ApiError> {
        let accept = accepted(headers);
        let media_type = |candidate: &str| candidate.split(';').next().unwrap_or_default().trim().to_owned();
        let offered = |candidate: &str| {
            let known = ["", "*/*", "application/json", "application/yaml", PROTOBUF];
            known.contains(&media_type(candidate).as_str())
        };
        if !accept.split(',').any(offered) {
            return Err(ApiError::no_representation(is_list));
        }
        for candidate in accept.split(',') {
            if matches!(media_type(candidate).as_str(), PROTOBUF) || !offered(candidate) {
                continue;
            }
            let parameter = |name: &str| {
                let mut parts = candidate.split(';').map(str::trim);
                parts.find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
            };
            let is_meta =
                parameter("g") == Some("meta.k8s.io") && matches!(parameter("v"), Some("v1" | "v1beta1"));
            return Ok(match parameter("as") {
                None => Representation::Object,
                Some(_) if !is_meta => continue,
                Some("Table") => Representation::Table(match query.get("includeObject") {
                    Some("None") => RowObject::None,
                    Some("Object") => RowObject::Object,
                    None | Some("" | "Metadata") => RowObject::Metadata,
                    Some(other) => {
                        return Err(ApiError::bad_request(format!(
                            "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be 'Metadata', 'Object', 'None', or empty"
                        )));
                    }
                }),
                Some("PartialObjectMetadata" | "PartialObjectMetadataList") => Representation::Metadata,
                Some(_) => continue,
            });
        }
        let mut error = ApiError::bad_request(
            "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf",
        );
        error.code = StatusCode::NOT_ACCEPTABLE;
        error.reason = "NotAcceptable";
        Err(error)
    }
}

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

fn accepted(headers: &HeaderMap) -> &str {
    headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("*/*")
}

/// Returns true if the client prefers YAML to JSON.
pub(crate) fn wants_yaml(headers: &HeaderMap) -> bool {
    let media_type = |candidate: &str| candidate.split(';').next().unwrap_or_default().trim().to_owned();
    let mut types = accepted(headers).split(',').map(media_type);
    let known = types.find(|known| matches!(known.as_str(), "application/json" | "*/*" | "application/yaml"));
    known.is_some_and(|known| known == "application/yaml")
}

/// Converts a JSON answer to YAML. Streams are not changed.
pub(crate) async fn into_yaml(response: Response<ResponseBody>) -> Response<ResponseBody> {
    let is_json =
        response.headers().get(header::CONTENT_TYPE).is_some_and(|known| known == "application/json");
    if !is_json || http_body::Body::size_hint(response.body()).exact().is_none() {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let body = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(never) => match never {},
    };
    let tree: Value = serde_json::from_slice(&body).unwrap_or_default();
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/yaml"));
    Response::from_parts(parts, Full::new(Bytes::from(crate::yaml::write(&tree))).boxed_unsync())
}

/// Builds a response from a JSON value.
pub(crate) fn json(code: StatusCode, body: &Value) -> Response<ResponseBody> {
    bytes(code, "application/json", Bytes::from(body.to_string()))
}

pub(crate) fn bytes(code: StatusCode, content_type: &'static str, body: Bytes) -> Response<ResponseBody> {
    let mut response = Response::new(Full::new(body).boxed_unsync());
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

pub(crate) fn error(error: &ApiError) -> Response<ResponseBody> {
    let mut response = json(error.code, &error.body());
    if let Some(seconds) = error.retry_after() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Returns the body of an object in the requested version.
pub(crate) fn object_bytes(target: &Target, object: &Object) -> Bytes {
    match target.serves_as_stored() {
        true => object.body.clone(),
        false => converted(target, object.value()),
    }
}

/// Returns the body of an object without `metadata.managedFields`.
fn unmanaged_bytes(target: &Target, object: &Object) -> Bytes {
    match target.serves_as_stored() {
        true => object.unmanaged(),
        false => converted(target, object.split().tree),
    }
}

fn converted(target: &Target, mut value: Value) -> Bytes {
    target.convert_from_stored(&mut value);
    Bytes::from(value.to_string())
}

/// Returns the body of an object as an item of a list. Items of built-in kinds omit `kind` and
/// `apiVersion`, which the list gives once.
fn item_bytes(target: &Target, body: Bytes) -> Bytes {
    if target.definition.custom {
        return body;
    }
    // Decoding puts these two fields first, so the prefix can be cut off. Other bodies are parsed.
    let (kind, api_version) = (&target.definition.kind, &target.version().api_version);
    let head = format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",");
    if body.starts_with(head.as_bytes()) {
        let mut item = BytesMut::with_capacity(body.len() - head.len() + 1);
        item.put_u8(b'{');
        item.put_slice(&body[head.len()..]);
        return item.freeze();
    }
    let mut value: Value = serde_json::from_slice(&body).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        object.shift_remove("kind");
        object.shift_remove("apiVersion");
    }
    Bytes::from(value.to_string())
}

/// Returns one object in the requested representation. Also used for watch events.
pub(crate) fn represent(
    target: &Target,
    object: &Object,
    representation: Representation,
    with_columns: bool,
    now: Timestamp,
) -> Bytes {
    match representation {
        Representation::Object => object_bytes(target, object),
        Representation::Unmanaged => unmanaged_bytes(target, object),
        Representation::Metadata => Bytes::from(table::partial_metadata(&object.value()).to_string()),
        Representation::Table(row) => {
            let table =
                table::table(target, [&object.value()], &object.version.to_string(), row, with_columns, now);
            Bytes::from(table.to_string())
        }
    }
}

pub(crate) fn object(
    code: StatusCode,
    target: &Target,
    object: &Object,
    representation: Representation,
    now: Timestamp,
) -> Response<ResponseBody> {
    let body = represent(target, object, representation, true, now);
    let mut response = bytes(code, "application/json", body);
    if code == StatusCode::CREATED {
        response.extensions_mut().insert(CreatedName(Arc::clone(&object.key.name)));
    }
    response
}

/// Answers with an object that is not stored, such as the result of a dry run.
pub(crate) fn value(
    code: StatusCode,
    target: &Target,
    value: &Value,
    representation: Representation,
    now: Timestamp,
) -> Response<ResponseBody> {
    let mut converted = value.clone();
    target.convert_from_stored(&mut converted);
    let body = match representation {
        Representation::Object | Representation::Unmanaged => converted,
        Representation::Metadata => table::partial_metadata(&converted),
        Representation::Table(row) => table::table(target, [value], "", row, true, now),
    };
    json(code, &body)
}

/// Answers with a list. Bodies are copied once, from the store's bytes into the response.
pub(crate) fn list(
    target: &Target,
    list: &List,
    continue_token: Option<String>,
    representation: Representation,
    now: Timestamp,
) -> Response<ResponseBody> {
    let mut metadata = json!({"resourceVersion": list.version.to_string()});
    if target.definition.custom
        && matches!(representation, Representation::Object | Representation::Unmanaged)
    {
        // Lists of custom resources have this field even without a next page.
        metadata["continue"] = "".into();
    }
    if let Some(token) = continue_token {
        metadata["continue"] = token.into();
        if let Some(remaining) = list.remaining {
            metadata["remainingItemCount"] = remaining.into();
        }
    }
    let (kind, api_version): (&str, &str) = match representation {
        Representation::Object | Representation::Unmanaged => {
            (&target.definition.list_kind, &target.version().api_version)
        }
        Representation::Metadata => ("PartialObjectMetadataList", "meta.k8s.io/v1"),
        Representation::Table(row) => {
            let values: Vec<Value> = list.items.iter().map(|object| object.value()).collect();
            let mut table = table::table(target, &values, "", row, true, now);
            table["metadata"] = metadata;
            return json(StatusCode::OK, &table);
        }
    };
    let size: usize = list.items.iter().map(|object| object.body.len() + 1).sum();
    let mut body = BytesMut::with_capacity(size + 256);
    let head = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata}).to_string();
    body.put_slice(&head.as_bytes()[..head.len() - 1]);
    body.put_slice(b",\"items\":[");
    for (index, object) in list.items.iter().enumerate() {
        if index > 0 {
            body.put_u8(b',');
        }
        match representation {
            Representation::Object => body.put_slice(&item_bytes(target, object_bytes(target, object))),
            Representation::Unmanaged => {
                body.put_slice(&item_bytes(target, unmanaged_bytes(target, object)));
            }
            _ => body.put_slice(&represent(target, object, representation, false, now)),
        }
    }
    body.put_slice(b"]}\n");
    bytes(StatusCode::OK, "application/json", body.freeze())
}

/// Builds the `Status` that answers a completed deletion of most kinds.
pub(crate) fn deleted(target: &Target, object: &Arc<Object>) -> Response<ResponseBody> {
    let mut details = json!({"name": &*object.key.name});
    if !target.definition.group.is_empty() {
        details["group"] = (*target.definition.group).into();
    }
    details["kind"] = (*target.definition.plural).into();
    details["uid"] = (*object.meta.uid).into();
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
    });
    json(StatusCode::OK, &status)
}
