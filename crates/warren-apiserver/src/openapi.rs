//! OpenAPI documents. kubectl reads them for `apply`, validation and `explain`.

use http::{HeaderMap, Response, StatusCode};
use serde_json::{Map, Value, json};

use crate::definition::{Definition, SchemaSource, Version};
use crate::resource_registry::Registry;
use crate::respond::{self, ResponseBody};
use crate::{crd, kinds};

const METADATA: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// An empty document of version 2 in protobuf: `swagger`, `info` with title and version, `paths`.
const EMPTY_VERSION_2: &[u8] = b"\x0a\x032.0\x12\x15\x0a\x0aKubernetes\x12\x07v1.36.3\x42\x00";
/// The media type in requests and the one in the answer. The first is not valid by the letter of
/// the standard.
const ASKED_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
const ANSWERED_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// Serves `/openapi/v2`: an empty document. Clients that know version 3 take everything from there.
/// For an unknown kind, kubectl also asks here for protobuf, and an empty document tells it that
/// the kind does not exist.
pub(crate) fn version_2(headers: &HeaderMap) -> Response<ResponseBody> {
    let accept = headers.get(http::header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("*/*");
    let json_will_do = accept.split(',').any(|candidate| {
        matches!(candidate.split(';').next().map(str::trim), Some("application/json" | "*/*"))
    });
    match json_will_do {
        true => {
            let info = json!({"title": "Kubernetes", "version": "v1.36.3"});
            respond::json(
                StatusCode::OK,
                &json!({"swagger": "2.0", "info": info, "paths": {}, "definitions": {}}),
            )
        }
        false if accept.contains(ASKED_PROTOBUF) || accept.contains(ANSWERED_PROTOBUF) => {
            respond::bytes(StatusCode::OK, ANSWERED_PROTOBUF, bytes::Bytes::from_static(EMPTY_VERSION_2))
        }
        false => respond::bytes(StatusCode::NOT_ACCEPTABLE, "text/plain; charset=utf-8", bytes::Bytes::new()),
    }
}

/// Serves `/openapi/v3`: the list of all documents.
pub(crate) fn index(registry: &Registry) -> Response<ResponseBody> {
    let mut paths = Map::new();
    for (group, _) in registry.groups() {
        for version in registry.versions(group) {
            let path = prefix(group, version);
            let url = format!("/openapi/v3/{path}");
            paths.insert(path, json!({"serverRelativeURL": url}));
        }
    }
    let body = bytes::Bytes::from(json!({"paths": paths}).to_string());
    // kube-apiserver sends this type for its JSON.
    respond::bytes(StatusCode::OK, "text/plain; charset=utf-8", body)
}

fn prefix(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// Serves `/openapi/v3/apis/{group}/{version}`. Built on demand: requests are rare and the document
/// is large.
pub(crate) fn group(registry: &Registry, group: &str, version: &str) -> Option<Response<ResponseBody>> {
    let (_, definitions) = registry.groups().find(|(name, _)| *name == group)?;
    let builtin = kinds::builtin_schemas();
    let mut schemas = Map::new();
    let mut paths = Map::new();
    for definition in definitions {
        let Some(served) = definition.version(version) else { continue };
        let name = add_schema(definition, served, &builtin, &mut schemas);
        add_paths(definition, served, &name, &mut paths);
    }
    if paths.is_empty() {
        return None;
    }
    let document = json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.36.3"},
        "paths": paths,
        "components": {"schemas": schemas},
    });
    Some(respond::json(StatusCode::OK, &document))
}

/// Adds the schema of a kind and all schemas that it refers to. Returns its name.
fn add_schema(
    definition: &Definition,
    version: &Version,
    builtin: &Map<String, Value>,
    schemas: &mut Map<String, Value>,
) -> String {
    match &version.schema.source {
        SchemaSource::Builtin(name) => {
            add_component(name, builtin, schemas);
            (*name).to_owned()
        }
        SchemaSource::Custom { definition: body, version: version_name } => {
            let mut reversed: Vec<&str> = definition.group.split('.').collect();
            reversed.reverse();
            let name = format!("{}.{version_name}.{}", reversed.join("."), definition.kind);
            let mut schema = crd::schema_source(body, version_name).unwrap_or_default();
            schema["properties"]["metadata"] = json!({"$ref": format!("#/components/schemas/{METADATA}")});
            schema["x-kubernetes-group-version-kind"] = json!([group_version_kind(definition, version)]);
            add_component(METADATA, builtin, schemas);
            schemas.insert(name.clone(), schema);
            name
        }
    }
}

fn add_component(name: &str, builtin: &Map<String, Value>, schemas: &mut Map<String, Value>) {
    if schemas.contains_key(name) {
        return;
    }
    let Some(schema) = builtin.get(name) else { return };
    schemas.insert(name.to_owned(), schema.clone());
    let mut references = Vec::new();
    find_references(schema, &mut references);
    for reference in references {
        add_component(&reference, builtin, schemas);
    }
}

fn find_references(schema: &Value, found: &mut Vec<String>) {
    match schema {
        Value::Object(object) => {
            if let Some(reference) = object.get("$ref").and_then(Value::as_str) {
                found.extend(reference.rsplit('/').next().map(str::to_owned));
            }
            object.values().for_each(|child| find_references(child, found));
        }
        Value::Array(items) => items.iter().for_each(|item| find_references(item, found)),
        _ => {}
    }
}

fn group_version_kind(definition: &Definition, version: &Version) -> Value {
    json!({"group": &*definition.group, "version": &*version.name, "kind": &*definition.kind})
}

fn add_paths(definition: &Definition, version: &Version, schema: &str, paths: &mut Map<String, Value>) {
    let base = format!("/{}", prefix(&definition.group, &version.name));
    let collection = match definition.namespaced {
        true => format!("{base}/namespaces/{{namespace}}/{}", definition.plural),
        false => format!("{base}/{}", definition.plural),
    };
    let reference = json!({"$ref": format!("#/components/schemas/{schema}")});
    let parameter =
        |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}});
    let writes = json!([parameter("dryRun"), parameter("fieldManager"), parameter("fieldValidation")]);
    let operation = |action: &str, parameters: &Value, media_types: &[&str]| {
        let media_types =
            media_types.iter().map(|media_type| ((*media_type).to_owned(), json!({"schema": reference})));
        let mut operation = json!({
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": group_version_kind(definition, version),
            "parameters": parameters,
            "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": reference}}}},
        });
        let content: Map<String, Value> = media_types.collect();
        if !content.is_empty() {
            operation["requestBody"] = json!({"required": true, "content": content});
        }
        operation
    };
    let mut patches = vec!["application/json-patch+json", "application/merge-patch+json"];
    if !definition.custom {
        patches.push("application/strategic-merge-patch+json");
    }
    let none = json!([]);
    let json_body = ["application/json"];
    paths.insert(
        format!("{collection}/{{name}}"),
        json!({
            "get": operation("get", &none, &[]),
            "put": operation("put", &writes, &json_body),
            "patch": operation("patch", &writes, &patches),
            "delete": operation("delete", &json!([parameter("dryRun")]), &[]),
        }),
    );
    paths.insert(
        collection,
        json!({"get": operation("list", &none, &[]), "post": operation("post", &writes, &json_body)}),
    );
}
