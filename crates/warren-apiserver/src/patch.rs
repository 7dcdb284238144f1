//! The patch formats: what turns a current object and a patch body into the object to write.

use serde_json::Value;

use crate::schema::Schema;
use crate::status::ApiError;

mod strategic;

/// The formats by content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Merge,
    Strategic,
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
            "application/apply-patch+yaml" => Err(ApiError::unsupported_media_type(
                "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json",
            )),
            _ => Err(ApiError::unknown_patch_type()),
        }
    }
}

/// A patch that was read from a request body.
#[derive(Debug)]
pub(crate) enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Value),
}

impl Patch {
    pub fn parse(format: Format, body: &[u8]) -> Result<Patch, ApiError> {
        let unreadable =
            |error: serde_json::Error| ApiError::bad_request(format!("error decoding patch: {error}"));
        Ok(match format {
            Format::Json => Patch::Json(serde_json::from_slice(body).map_err(unreadable)?),
            Format::Merge => Patch::Merge(serde_json::from_slice(body).map_err(unreadable)?),
            Format::Strategic => Patch::Strategic(serde_json::from_slice(body).map_err(unreadable)?),
        })
    }

    pub fn apply(&self, object: &mut Value, schema: &Schema) -> Result<(), ApiError> {
        match self {
            Patch::Json(patch) => {
                json_patch::patch(object, patch).map_err(|_| ApiError::patch_does_not_apply())
            }
            Patch::Merge(patch) => {
                json_patch::merge(object, patch);
                Ok(())
            }
            Patch::Strategic(patch) => {
                strategic::merge(object, patch, Some(schema));
                Ok(())
            }
        }
    }
}
