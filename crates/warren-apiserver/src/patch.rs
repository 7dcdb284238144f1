//! The patch formats: what turns a current object and a patch body into the object to write.

use serde_json::Value;

use crate::schema::Schema;
use crate::status::ApiError;

mod json;
mod strategic;

/// The formats by content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl Format {
    /// The format of a content type, as far as a kind supports it: strategic merge needs to know the Go types, which
    /// custom resources have none of.
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

/// A patch that was read from a request body.
#[derive(Debug)]
pub(crate) enum Patch {
    Json {
        patch: json_patch::Patch,
        /// Members of operations that mean nothing.
        unknown: Vec<String>,
    },
    Merge(Value),
    Strategic(Value),
    /// What a manager wants to own. It is not a change to make to an object: `managed_fields` works out which one is.
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
    // JSON is YAML, but its own reader is faster and most clients send it.
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(_) => crate::limits::read_yaml(text).map_err(undecodable)?,
    };
    match value {
        Value::Object(_) => Ok(value),
        _ => Err(undecodable("the configuration is not an object".to_owned())),
    }
}
