//! The documents of an image: its platforms, its layers, and how it runs. Unused fields are
//! dropped.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// The maximum size of a document in bytes. Registries have the same limit for manifests.
pub const LARGEST_DOCUMENT: u64 = 4 << 20;

/// A reference to content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// The kind of content.
    #[serde(default)]
    pub media_type: String,
    /// The digest of the content.
    pub digest: Digest,
    /// The length in bytes.
    pub size: u64,
    /// The platform, in an index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// Free-form annotations. `org.opencontainers.image.ref.name` names an image in a layout.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// A platform.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// Go's name of the architecture: `amd64`, `arm64`.
    pub architecture: String,
    /// The operating system: `linux`.
    pub os: String,
}

impl Platform {
    /// Returns the platform of this machine.
    pub fn here() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self { architecture: architecture.to_owned(), os: "linux".to_owned() }
    }
}

/// A list of manifests, one per platform.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Index {
    /// In order of preference.
    pub manifests: Vec<Descriptor>,
}

/// One image for one platform.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Manifest {
    /// The configuration, which has the digests of the unpacked layers.
    pub config: Descriptor,
    /// The layers, lowest first.
    pub layers: Vec<Descriptor>,
}

/// A parsed document.
#[derive(Debug, Clone)]
pub enum Document {
    /// An index, with one manifest per platform.
    Index(Index),
    /// A manifest.
    Manifest(Manifest),
}

/// The error for an unusable document.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The document is not JSON, or not of the right form.
    #[error("{what} is not of the expected form")]
    Form {
        /// The name of the document.
        what: String,
        /// The parse error.
        #[source]
        source: serde_json::Error,
    },
    /// The document is JSON, but neither an index nor a manifest.
    #[error("{0} has neither `manifests` nor `layers`: it is of the retired first schema, or no image")]
    Unknown(String),
    /// There is no manifest for this machine.
    #[error("the image is not for {wanted}; it is for: {present}")]
    Platform {
        /// This machine.
        wanted: String,
        /// The platforms in the index.
        present: String,
    },
    /// Manifest and configuration differ in the number of layers.
    #[error("the manifest has {layers} layers and its configuration {names}")]
    Layers {
        /// The number in the manifest.
        layers: usize,
        /// The number in the configuration.
        names: usize,
    },
}

impl Document {
    /// Parses a document. Its fields decide about its kind, because media types are often wrong.
    pub fn parse(what: &str, bytes: &[u8]) -> Result<Self, DocumentError> {
        let form = |source| DocumentError::Form { what: what.to_owned(), source };
        let value: serde_json::Value = serde_json::from_slice(bytes).map_err(form)?;
        if value.get("manifests").is_some() {
            serde_json::from_value(value).map(Document::Index).map_err(form)
        } else if value.get("layers").is_some() {
            serde_json::from_value(value).map(Document::Manifest).map_err(form)
        } else {
            Err(DocumentError::Unknown(what.to_owned()))
        }
    }
}

impl Index {
    /// Returns the manifest for this machine. A manifest without a platform counts as fitting.
    pub fn for_this_machine(&self) -> Result<&Descriptor, DocumentError> {
        let here = Platform::here();
        let fits = |wanted: &Descriptor| wanted.platform.as_ref().is_none_or(|platform| *platform == here);
        self.manifests.iter().find(|manifest| fits(manifest)).ok_or_else(|| {
            let present: Vec<String> = self
                .manifests
                .iter()
                .filter_map(|manifest| manifest.platform.as_ref())
                .map(|platform| format!("{}/{}", platform.os, platform.architecture))
                .take(20)
                .collect();
            DocumentError::Platform {
                wanted: format!("{}/{}", here.os, here.architecture),
                present: present.join(", "),
            }
        })
    }
}

/// The configuration of an image.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ImageConfig {
    /// The defaults of containers.
    #[serde(default)]
    pub config: RunConfig,
    /// The layers.
    pub rootfs: RootFs,
}

/// The defaults of a container on this image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RunConfig {
    /// A user by name or number, with or without a group after a colon.
    #[serde(deserialize_with = "null_as_default")]
    pub user: String,
    /// `NAME=value` lines.
    #[serde(deserialize_with = "null_as_default")]
    pub env: Vec<String>,
    /// The program and its first arguments.
    #[serde(deserialize_with = "null_as_default")]
    pub entrypoint: Vec<String>,
    /// Arguments of the entry point, or the program if there is none.
    #[serde(deserialize_with = "null_as_default")]
    pub cmd: Vec<String>,
    /// The working directory.
    #[serde(deserialize_with = "null_as_default")]
    pub working_dir: String,
    /// The signal that asks the container to end. Empty means `SIGTERM`.
    #[serde(deserialize_with = "null_as_default")]
    pub stop_signal: String,
}

/// The layers of an image.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RootFs {
    /// The digests of the uncompressed layers, lowest first.
    pub diff_ids: Vec<Digest>,
}

impl ImageConfig {
    /// Parses the configuration of a manifest.
    pub fn parse(bytes: &[u8], manifest: &Manifest) -> Result<Self, DocumentError> {
        let what = || format!("the image's configuration {}", manifest.config.digest);
        let config: Self =
            serde_json::from_slice(bytes).map_err(|source| DocumentError::Form { what: what(), source })?;
        let (layers, names) = (manifest.layers.len(), config.rootfs.diff_ids.len());
        match layers == names {
            true => Ok(config),
            false => Err(DocumentError::Layers { layers, names }),
        }
    }
}

/// Treats `null` as the default: Go writes an empty list as `null`.
fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn descriptor(platform: serde_json::Value) -> serde_json::Value {
        json!({"digest": Digest::of(b""), "size": 0, "platform": platform})
    }

    #[test]
    fn a_document_is_what_its_fields_say() {
        let parse = |value: serde_json::Value| Document::parse("it", value.to_string().as_bytes());
        assert!(matches!(parse(json!({"manifests": []})), Ok(Document::Index(_))));
        let config = descriptor(json!(null));
        assert!(matches!(parse(json!({"layers": [], "config": config})), Ok(Document::Manifest(_))));
        assert!(matches!(parse(json!({"fsLayers": []})), Err(DocumentError::Unknown(_))));
        assert!(matches!(parse(json!({"layers": 1})), Err(DocumentError::Form { .. })));
    }

    #[test]
    fn an_index_gives_the_manifest_for_this_machine_or_says_what_it_has() {
        let here = Platform::here();
        let other = json!({"architecture": "s390x", "os": "linux"});
        let index = |platforms: Vec<serde_json::Value>| -> Index {
            serde_json::from_value(
                json!({"manifests": platforms.into_iter().map(descriptor).collect::<Vec<_>>()}),
            )
            .unwrap()
        };
        let found = index(vec![other.clone(), json!(here)]);
        assert_eq!(found.for_this_machine().unwrap().platform, Some(here));
        let error = index(vec![other]).for_this_machine().unwrap_err().to_string();
        assert!(error.ends_with("it is for: linux/s390x"), "{error}");
    }

    #[test]
    fn absent_and_null_lists_of_a_configuration_are_empty() {
        let config: RunConfig = serde_json::from_value(json!({"Env": null, "Cmd": ["sh"]})).unwrap();
        assert_eq!(config, RunConfig { cmd: vec!["sh".to_owned()], ..RunConfig::default() });
    }
}
