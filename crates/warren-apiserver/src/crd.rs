//! CustomResourceDefinitions: validation, and conversion into resources that are served.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use thiserror::Error;
use warren_store::Object;

use crate::call::Call;
use crate::definition::{Columns, CustomColumn, Definition, LazySchema, Scale, SchemaSource, Version};
use crate::json_path::JsonPath;
use crate::kinds::{self, set_default};
use crate::respond::{self, ResponseBody};
use crate::schema::{Compiler, Schema, Type};
use crate::status::FieldError;

mod structural;

/// The resource name of definitions in the store.
pub(crate) const RESOURCE: &str = "customresourcedefinitions.apiextensions.k8s.io";
/// The finalizer that keeps a deleted definition until its objects are gone.
pub(crate) const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// An error in a stored definition that prevents serving it.
#[derive(Debug, Error)]
pub(crate) enum DefinitionError {
    #[error("read the definition")]
    Read(#[from] serde_json::Error),
}

/// The parts of a definition that are read at once. Schemas are by far the largest part: they are
/// skipped here and compiled when the kind is first used.
#[derive(Deserialize)]
struct Head {
    spec: HeadSpec,
}

#[derive(Deserialize)]
struct HeadSpec {
    group: Box<str>,
    scope: Box<str>,
    names: Names,
    versions: Vec<HeadVersion>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Names {
    plural: Box<str>,
    kind: Box<str>,
    #[serde(default)]
    singular: Option<Box<str>>,
    #[serde(default)]
    list_kind: Option<Box<str>>,
    #[serde(default)]
    short_names: Vec<Box<str>>,
    #[serde(default)]
    categories: Vec<Box<str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HeadVersion {
    name: Box<str>,
    #[serde(default)]
    served: bool,
    #[serde(default)]
    storage: bool,
    #[serde(default)]
    deprecated: bool,
    #[serde(default)]
    deprecation_warning: Option<Box<str>>,
    #[serde(default)]
    subresources: Option<Map<String, Value>>,
    #[serde(default)]
    additional_printer_columns: Vec<PrinterColumn>,
    #[serde(default)]
    selectable_fields: Vec<SelectableField>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PrinterColumn {
    name: Box<str>,
    #[serde(rename = "type")]
    type_: Box<str>,
    #[serde(default)]
    format: Box<str>,
    #[serde(default)]
    description: Box<str>,
    #[serde(default)]
    priority: i64,
    json_path: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SelectableField {
    json_path: String,
}

/// Builds the served resource from a stored definition.
pub(crate) fn definition(body: &Bytes) -> Result<Definition, DefinitionError> {
    let HeadSpec { group, scope, names, versions } = serde_json::from_slice::<Head>(body)?.spec;
    let served = versions.into_iter().filter(|version| version.served);
    Ok(Definition {
        resource: format!("{}.{group}", names.plural).into(),
        list_kind: names.list_kind.unwrap_or_else(|| format!("{}List", names.kind).into()),
        singular: names.singular.unwrap_or_else(|| names.kind.to_lowercase().into()),
        versions: served.map(|version| version.into_version(&group, body)).collect(),
        group,
        kind: names.kind,
        plural: names.plural,
        short_names: names.short_names,
        categories: names.categories,
        namespaced: &*scope == "Namespaced",
        behaviour: &kinds::CUSTOM,
        custom: true,
    })
}

impl HeadVersion {
    fn into_version(self, group: &str, body: &Bytes) -> Version {
        let subresource = |name: &str| self.subresources.as_ref().and_then(|all| all.get(name));
        let scale = subresource("scale").and_then(|scale| {
            let path = |name: &str| JsonPath::parse(scale.get(name)?.as_str()?).ok();
            Some(Scale {
                spec_replicas: path("specReplicasPath")?,
                status_replicas: path("statusReplicasPath")?,
                label_selector: path("labelSelectorPath"),
            })
        });
        // Definitions with invalid paths are refused. If one was stored by another program, only
        // the column is lost.
        let columns = self.additional_printer_columns.into_iter().filter_map(|column| {
            Some(CustomColumn {
                path: JsonPath::parse(&column.json_path).ok()?,
                name: column.name,
                type_: column.type_,
                format: column.format,
                description: match &*column.description {
                    "" => format!(
                        "Custom resource definition column (in JSONPath format): {}",
                        column.json_path
                    )
                    .into(),
                    _ => column.description,
                },
                priority: column.priority,
            })
        });
        let fields =
            self.selectable_fields.iter().map(|field| field.json_path.trim_start_matches('.').into());
        Version {
            api_version: format!("{group}/{}", self.name).into(),
            storage: self.storage,
            status: subresource("status").is_some(),
            scale,
            subresources: &[],
            columns: Columns::Custom(columns.collect()),
            selectable_fields: fields.collect(),
            schema: LazySchema::new(SchemaSource::Custom {
                definition: body.clone(),
                version: self.name.clone(),
            }),
            conversion: None,
            deprecated: self.deprecated,
            deprecation_warning: self.deprecation_warning,
            name: self.name,
        }
    }
}

/// Returns the schema of one version as JSON.
pub(crate) fn schema_source(definition: &Bytes, version: &str) -> Option<Value> {
    let mut definition: Value = serde_json::from_slice(definition).ok()?;
    let versions = definition["spec"]["versions"].as_array_mut()?;
    let version = versions.iter_mut().find(|candidate| candidate["name"] == version)?;
    Some(version["schema"]["openAPIV3Schema"].take())
}

pub(crate) fn compile_schema(definition: &Bytes, version: &str) -> Result<Arc<Schema>, String> {
    let source =
        schema_source(definition, version).ok_or_else(|| format!("no schema for version {version}"))?;
    compile_root(&source).map(Arc::new).map_err(|error| error.to_string())
}

/// Compiles a schema and sets the types of `apiVersion`, `kind` and `metadata`, which a custom
/// resource has whatever its schema says about them.
fn compile_root(source: &Value) -> Result<Schema, crate::schema::SchemaError> {
    let mut schema = Compiler::default().compile_root(source)?;
    let string = Arc::new(Schema { type_: Some(Type::String), ..Schema::default() });
    schema.properties.insert("apiVersion".into(), Arc::clone(&string));
    schema.properties.insert("kind".into(), string);
    schema.properties.insert("metadata".into(), Arc::clone(kinds::metadata_schema()));
    Ok(schema)
}

pub(crate) fn default_definition(definition: &mut Value) {
    let Some(spec) = definition.get_mut("spec").and_then(Value::as_object_mut) else { return };
    set_default(spec, "conversion", json!({"strategy": "None"}));
    if let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut) {
        let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        if !kind.is_empty() {
            set_default(names, "singular", kind.to_lowercase());
            set_default(names, "listKind", format!("{kind}List"));
        }
    }
    let versions = spec.get_mut("versions").and_then(Value::as_array_mut);
    for version in versions.into_iter().flatten() {
        let columns = version.get_mut("additionalPrinterColumns").and_then(Value::as_array_mut);
        for column in columns.into_iter().flatten().filter_map(Value::as_object_mut) {
            set_default(column, "priority", 0);
        }
    }
}

/// Fills in the status and accepts the names at once: with one server there is no competing
/// definition.
pub(crate) fn prepare_definition(definition: &mut Value) {
    let since = definition["metadata"]["creationTimestamp"].clone();
    let condition = |type_: &str, reason: &str, message: &str| {
        json!({
            "type": type_, "status": "True", "lastTransitionTime": since, "reason": reason, "message": message,
        })
    };
    let versions = definition["spec"]["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let stored: Vec<_> = versions.iter().filter(|version| version["storage"] == true).collect();
    let mut stored_versions: Vec<Value> =
        definition["status"]["storedVersions"].as_array().cloned().unwrap_or_default();
    for version in stored {
        if !stored_versions.contains(&version["name"]) {
            stored_versions.push(version["name"].clone());
        }
    }
    let status = json!({
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
        "acceptedNames": definition["spec"]["names"],
        "storedVersions": stored_versions,
    });
    definition["status"] = status;
    let metadata = crate::metadata::metadata_mut(definition);
    let finalizers = metadata.entry("finalizers").or_insert_with(|| Value::Array(Vec::new()));
    let deleting = finalizers.is_null();
    if let Some(finalizers) = finalizers.as_array_mut()
        && !deleting
        && !finalizers.iter().any(|name| name == CLEANUP_FINALIZER)
    {
        finalizers.push(CLEANUP_FINALIZER.into());
    }
}

pub(crate) fn validate_definition(definition: &Value, errors: &mut Vec<FieldError>) {
    let spec = &definition["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
    if group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
    }
    for name in ["plural", "singular", "kind", "listKind"] {
        if text(&spec["names"][name]).is_empty() {
            errors.push(FieldError::required(format!("spec.names.{name}"), ""));
        }
    }
    let wanted = format!("{plural}.{group}");
    let name = text(&definition["metadata"]["name"]);
    if name != wanted {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid("metadata.name", name, detail));
    }
    let scope = text(&spec["scope"]);
    if !matches!(scope.as_str(), "Namespaced" | "Cluster") {
        errors.push(FieldError::unsupported("spec.scope", scope, &["Cluster", "Namespaced"]));
    }
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        let detail = "must have exactly one version marked as storage version";
        let shown: Vec<Value> = versions.iter().map(internal_version).collect();
        errors.push(FieldError::invalid("spec.versions", shown, detail));
        if definition["status"]["storedVersions"].as_array().is_none_or(Vec::is_empty) {
            let detail = "must have at least one stored version";
            errors.push(FieldError::invalid("status.storedVersions", Value::Null, detail));
        }
    }
    let shared = versions.iter().all(|version| version["schema"] == versions[0]["schema"]);
    for (index, version) in versions.iter().enumerate() {
        let path = format!("spec.versions[{index}]");
        validate_version(version, &path, shared, errors);
        if shared && index == 0 {
            validate_schema(&version["schema"]["openAPIV3Schema"], "spec.validation.openAPIV3Schema", errors);
        }
    }
}

/// Returns a version in kube-apiserver's internal form, which its errors show. The parts that all
/// versions share are left out.
fn internal_version(version: &Value) -> Value {
    json!({
        "Name": version["name"],
        "Served": version["served"],
        "Storage": version["storage"],
        "Deprecated": version["deprecated"].as_bool().unwrap_or(false),
        "DeprecationWarning": version["deprecationWarning"],
        "Schema": null,
        "Subresources": null,
        "AdditionalPrinterColumns": null,
        "SelectableFields": null,
    })
}

fn validate_schema(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if !schema.is_object() {
        return;
    }
    let found = errors.len();
    structural::validate(schema, path, errors);
    if errors.len() == found
        && let Err(error) = compile_root(schema)
    {
        errors.push(FieldError::invalid(path, "object", error.to_string()));
    }
}

/// Returns the answer to a create. The cleanup finalizer is removed from it: kube-apiserver adds it
/// a moment later, so its answer does not show it either.
pub(crate) fn created(call: &Call<'_>, stored: &Object) -> Response<ResponseBody> {
    let mut value = stored.value();
    let metadata = crate::metadata::metadata_mut(&mut value);
    if let Some(finalizers) = metadata.get_mut("finalizers").and_then(Value::as_array_mut) {
        finalizers.retain(|name| name != CLEANUP_FINALIZER);
        if finalizers.is_empty() {
            metadata.shift_remove("finalizers");
        }
    }
    respond::value(StatusCode::CREATED, &call.target, &value, call.representation, call.now)
}

fn validate_version(version: &Value, path: &str, shared: bool, errors: &mut Vec<FieldError>) {
    let schema = &version["schema"]["openAPIV3Schema"];
    let schema_path = format!("{path}.schema.openAPIV3Schema");
    if !schema.is_object() {
        errors.push(FieldError::required(schema_path, ""));
        return;
    }
    if !shared {
        validate_schema(schema, &schema_path, errors);
    }
    let columns = version["additionalPrinterColumns"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (index, column) in columns.iter().enumerate() {
        let json_path = column["jsonPath"].as_str().unwrap_or_default();
        if let Err(error) = JsonPath::parse(json_path) {
            let field = format!("{path}.additionalPrinterColumns[{index}].jsonPath");
            errors.push(FieldError::invalid(field, json_path, error.to_string()));
        }
    }
}
