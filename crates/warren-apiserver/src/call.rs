//! One request on a resource, parsed.

use http::HeaderMap;
use jiff::Timestamp;
use warren_store::{Ahead, FieldSelector, Filter, Key, LabelSelector};

use crate::definition::Target;
use crate::identity::Identity;
use crate::query::Query;
use crate::respond::Representation;
use crate::status::ApiError;

/// The input of every verb.
pub(crate) struct Call<'a> {
    pub target: Target,
    pub namespace: Option<&'a str>,
    pub name: Option<&'a str>,
    pub subresource: Option<&'a str>,
    pub query: Query,
    pub headers: &'a HeaderMap,
    /// The user who sent the request.
    pub identity: &'a Identity,
    /// True if the path itself asks for a watch, the form that the oldest clients use.
    pub watch: bool,
    pub representation: Representation,
    pub now: Timestamp,
    /// Set if the client writes ahead of the disk.
    pub ahead: Option<&'a Ahead>,
}

/// The treatment of fields that the schema does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

impl Call<'_> {
    /// Returns the key of the object that the path names.
    pub fn key(&self) -> Result<Key, ApiError> {
        let name = self.name.ok_or_else(ApiError::method_not_allowed)?;
        Ok(self.key_of(name))
    }

    pub fn key_of(&self, name: &str) -> Key {
        Key::new(self.target.definition.resource.clone(), self.namespace.unwrap_or_default(), name)
    }

    /// Returns the path at which kube-apiserver stores an object. Some of its errors show it.
    pub fn registry_path(&self, name: &str) -> String {
        let definition = &self.target.definition;
        let group = if definition.custom { format!("{}/", definition.group) } else { String::new() };
        let namespace = self.namespace.map(|namespace| format!("{namespace}/")).unwrap_or_default();
        format!("/registry/{group}{}/{namespace}{name}", definition.plural)
    }

    pub fn not_found(&self) -> ApiError {
        ApiError::not_found(self.target.definition.subject(self.name.unwrap_or_default()))
    }

    pub fn dry_run(&self) -> Result<bool, ApiError> {
        match self.query.get("dryRun") {
            None => Ok(false),
            Some("All") => Ok(true),
            Some(other) => {
                let error =
                    crate::status::FieldError::unsupported("dryRun", serde_json::json!([other]), &["All"]);
                let subject =
                    crate::status::Subject { group: "meta.k8s.io", kind: "CreateOptions", name: "" };
                Err(ApiError::invalid(subject, vec![error]))
            }
        }
    }

    pub fn field_validation(&self) -> Result<FieldValidation, ApiError> {
        match self.query.text("fieldValidation") {
            None | Some("Warn") => Ok(FieldValidation::Warn),
            Some("Ignore") => Ok(FieldValidation::Ignore),
            Some("Strict") => Ok(FieldValidation::Strict),
            Some(other) => {
                let known = ["", "Ignore", "Strict", "Warn"];
                let error = crate::status::FieldError::unsupported("fieldValidation", other, &known);
                let subject =
                    crate::status::Subject { group: "meta.k8s.io", kind: "CreateOptions", name: "" };
                Err(ApiError::invalid(subject, vec![error]))
            }
        }
    }

    /// Parses the selectors of a list or watch.
    pub fn filter(&self) -> Result<Filter, ApiError> {
        let labels = LabelSelector::parse(self.query.get("labelSelector").unwrap_or_default())
            .map_err(|error| ApiError::bad_request(error.to_string()))?;
        let fields = FieldSelector::parse(self.query.get("fieldSelector").unwrap_or_default())
            .map_err(|error| ApiError::bad_request(error.to_string()))?;
        let known = &self.target.version().selectable_fields;
        for path in fields.paths() {
            let everywhere = path == "metadata.name"
                || (path == "metadata.namespace" && self.target.definition.namespaced);
            if !everywhere && !known.iter().any(|known| **known == *path) {
                let Target { definition, .. } = &self.target;
                // kube-apiserver has two wordings, for kinds with and without selectable fields of
                // their own.
                let message = if definition.custom || !known.is_empty() {
                    format!("field label not supported: {path}")
                } else {
                    format!(
                        "{path:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                    )
                };
                return Err(ApiError::bad_request(message));
            }
        }
        Ok(Filter {
            namespace: self.namespace.map(str::to_owned),
            name: self.name.map(str::to_owned),
            labels,
            fields,
        })
    }

    /// Returns the media type of the request body.
    pub fn content_type(&self) -> &str {
        let header = self.headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        header.and_then(|value| value.split(';').next()).map_or("application/json", str::trim)
    }
}
