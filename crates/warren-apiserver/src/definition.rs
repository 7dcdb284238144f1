//! The description of a served resource: names, versions, schema, columns and behaviour. Built-in
//! kinds come from the table in `kinds`, custom ones from their CustomResourceDefinition. The rest
//! of the code treats them alike.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;

use crate::json_path::JsonPath;
use crate::kinds::Behaviour;
use crate::schema::Schema;
use crate::status::{ApiError, Subject};

#[derive(Debug)]
pub(crate) struct Definition {
    pub group: Box<str>,
    pub kind: Box<str>,
    pub list_kind: Box<str>,
    pub plural: Box<str>,
    pub singular: Box<str>,
    pub short_names: Vec<Box<str>>,
    pub categories: Vec<Box<str>>,
    pub namespaced: bool,
    /// The resource's name in the store: `pods`, `sandboxes.agents.x-k8s.io`.
    pub resource: Arc<str>,
    pub versions: Vec<Version>,
    pub behaviour: &'static Behaviour,
    /// True if it comes from a CustomResourceDefinition.
    pub custom: bool,
}

#[derive(Debug)]
pub(crate) struct Version {
    pub name: Box<str>,
    /// Such as `v1` or `agents.x-k8s.io/v1beta1`.
    pub api_version: Box<str>,
    /// True if objects are stored in this version.
    pub storage: bool,
    pub status: bool,
    pub scale: Option<Scale>,
    /// Other subresources, for discovery: name, kind, verbs.
    pub subresources: &'static [(&'static str, &'static str, &'static [&'static str])],
    pub columns: Columns,
    /// Field selectors beyond `metadata.name` and `metadata.namespace`.
    pub selectable_fields: Vec<Box<str>>,
    pub schema: LazySchema,
    /// Converts between stored objects and this version, if they differ in more than `apiVersion`.
    pub conversion: Option<&'static Conversion>,
    pub deprecated: bool,
    pub deprecation_warning: Option<Box<str>>,
}

/// A schema that is compiled at its first use, so that start-up and unused kinds cost nothing.
#[derive(Debug)]
pub(crate) struct LazySchema {
    pub source: SchemaSource,
    compiled: OnceLock<Result<Arc<Schema>, String>>,
}

#[derive(Debug)]
pub(crate) enum SchemaSource {
    /// The name of a type in the built-in table.
    Builtin(&'static str),
    /// A version of a CustomResourceDefinition. The bytes are shared with the store.
    Custom {
        /// The whole definition, serialised.
        definition: Bytes,
        version: Box<str>,
    },
}

/// The field paths of the `scale` subresource.
#[derive(Debug, Clone)]
pub(crate) struct Scale {
    pub spec_replicas: JsonPath,
    pub status_replicas: JsonPath,
    /// The path of a text or of a `LabelSelector`.
    pub label_selector: Option<JsonPath>,
}

impl Scale {
    /// Returns the paths that all built-in kinds use.
    pub fn of_replicas() -> Scale {
        let path =
            |text| JsonPath::parse(text).expect("a path of this file is well formed: a test parses it");
        Scale {
            spec_replicas: path(".spec.replicas"),
            status_replicas: path(".status.replicas"),
            label_selector: Some(path(".spec.selector")),
        }
    }
}

/// Converts between the stored form and another one.
#[derive(Debug)]
pub(crate) struct Conversion {
    pub from_stored: fn(&mut Value),
    pub to_stored: fn(&mut Value),
}

/// The columns that `kubectl get` shows.
#[derive(Debug)]
pub(crate) enum Columns {
    Builtin(&'static [Column]),
    Custom(Vec<CustomColumn>),
}

#[derive(Debug)]
pub(crate) struct Column {
    pub name: &'static str,
    pub type_: &'static str,
    pub format: &'static str,
    pub priority: i32,
    pub description: &'static str,
    pub cell: fn(&Value, Timestamp) -> Value,
}

/// An additional printer column.
#[derive(Debug)]
pub(crate) struct CustomColumn {
    pub name: Box<str>,
    pub type_: Box<str>,
    pub format: Box<str>,
    pub description: Box<str>,
    pub priority: i64,
    pub path: JsonPath,
}

impl LazySchema {
    pub fn new(source: SchemaSource) -> LazySchema {
        LazySchema { source, compiled: OnceLock::new() }
    }

    /// Returns the compiled schema. Definitions with invalid schemas are refused, so an error means
    /// that another version of the program stored this one.
    pub fn get(&self) -> Result<&Arc<Schema>, ApiError> {
        let compiled = self.compiled.get_or_init(|| match &self.source {
            SchemaSource::Builtin(name) => crate::kinds::builtin_schema(name),
            SchemaSource::Custom { definition, version } => crate::crd::compile_schema(definition, version),
        });
        compiled.as_ref().map_err(ApiError::internal)
    }
}

impl Definition {
    /// Returns the subject of errors about the resource (`pods "a" not found`).
    pub fn subject<'a>(&'a self, name: &'a str) -> Subject<'a> {
        Subject { group: &self.group, kind: &self.plural, name }
    }

    /// Returns the subject of errors about the kind (`Pod "a" is invalid`).
    pub fn kind_subject<'a>(&'a self, name: &'a str) -> Subject<'a> {
        Subject { group: &self.group, kind: &self.kind, name }
    }

    pub fn version(&self, name: &str) -> Option<&Version> {
        self.versions.iter().find(|version| *version.name == *name)
    }
}

/// A resource in one of its versions, as a request path names it.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub definition: Arc<Definition>,
    index: usize,
}

impl Target {
    pub fn new(definition: &Arc<Definition>, version: &str) -> Option<Target> {
        let index = definition.versions.iter().position(|candidate| *candidate.name == *version)?;
        Some(Target { definition: Arc::clone(definition), index })
    }

    pub fn version(&self) -> &Version {
        &self.definition.versions[self.index]
    }

    pub fn schema(&self) -> Result<&Arc<Schema>, ApiError> {
        self.version().schema.get()
    }

    /// Returns true if a stored body can be sent unchanged.
    pub fn serves_as_stored(&self) -> bool {
        self.version().conversion.is_none() && self.definition.versions.len() == 1
    }

    /// Converts a stored body into the requested version.
    pub fn convert_from_stored(&self, value: &mut Value) {
        let version = self.version();
        if let Some(conversion) = version.conversion {
            (conversion.from_stored)(value);
        }
        if let Some(object) = value.as_object_mut()
            && object.get("apiVersion").is_none_or(|stored| *stored != *version.api_version)
        {
            object.insert("apiVersion".to_owned(), (*version.api_version).into());
        }
    }

    /// Converts a body of the requested version into stored form.
    pub fn convert_to_stored(&self, value: &mut Value) {
        if let Some(conversion) = self.version().conversion {
            (conversion.to_stored)(value);
        }
    }
}
