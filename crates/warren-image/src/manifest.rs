//! The documents of an image: which platforms it is for, what its layers are, and how it wants to be run. Fields that
//! nobody here reads are not kept.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// A document is never larger than this; registries refuse such manifests as well.
pub const LARGEST_DOCUMENT: u64 = 4 << 20;

/// Points at content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// What kind of content it is.
    #[serde(default)]
    pub media_type: String,
    /// Its name.
    pub digest: Digest,
    /// Its length.
    pub size: u64,
    /// The machine it is for, in an index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// Free-form marks; `org.opencontainers.image.ref.name` names an image in a layout.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// A kind of machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// In Go's words: `amd64`, `arm64`.
    pub architecture: String,
    /// `linux`.
    pub os: String,
}

impl Platform {
    /// This machine.
    pub fn here() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self { architecture: architecture.to_owned(), os: "linux".to_owned() }
    }
}

/// A list of manifests, one a platform.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Index {
    /// In order of preference.
    pub manifests: Vec<Descriptor>,
}

/// One image for one platform.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Manifest {
    /// How to run it, and the names of its layers when unpacked.
    pub config: Descriptor,
    /// From the lowest up.
    pub layers: Vec<Descriptor>,
}

/// What a document at the end of a reference turned out to be.
#[derive(Debug, Clone)]
pub enum Document {
    /// Look further: it has one manifest for each platform.
    Index(Index),
    /// The image.
    Manifest(Manifest),
}

/// A document that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// It is not JSON, or not of the right form.
    #[error("{what} is not of the expected form")]
    Form {
        /// The document.
        what: String,
        /// Where.
        #[source]
        source: serde_json::Error,
    },
    /// It is JSON, but neither of both.
    #[error("{0} has neither `manifests` nor `layers`: it is of the retired first schema, or no image")]
    Unknown(String),
    /// No manifest for this machine.
    #[error("the image is not for {wanted}; it is for: {present}")]
    Platform {
        /// This machine.
        wanted: String,
        /// What there is.
        present: String,
    },
    /// The two lists of layers differ in length.
    #[error("the manifest has {layers} layers and its configuration {names}")]
    Layers {
        /// In the manifest.
        layers: usize,
        /// In the configuration.
        names: usize,
    },
}

impl Document {
    /// Tells from the fields what it is; media types are often wrong.
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
    /// The manifest for this machine. One that names no platform is taken at its word.
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

/// How an image wants to be run, and what its layers hold.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ImageConfig {
    /// How to run it.
    #[serde(default)]
    pub config: RunConfig,
    /// The layers.
    pub rootfs: RootFs,
}

/// The defaults of a container on this image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RunConfig {
    /// A user, by name or number, with or without a group behind a colon.
    #[serde(deserialize_with = "null_as_default")]
    pub user: String,
    /// `NAME=value` lines.
    #[serde(deserialize_with = "null_as_default")]
    pub env: Vec<String>,
    /// The program, and its first arguments.
    #[serde(deserialize_with = "null_as_default")]
    pub entrypoint: Vec<String>,
    /// Arguments behind the entry point, or the program if there is none.
    #[serde(deserialize_with = "null_as_default")]
    pub cmd: Vec<String>,
    /// Where it is started.
    #[serde(deserialize_with = "null_as_default")]
    pub working_dir: String,
    /// What ends it politely, `SIGTERM` if it says nothing.
    #[serde(deserialize_with = "null_as_default")]
    pub stop_signal: String,
}

/// The layers of an image.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RootFs {
    /// The digests of the layers before compression, from the lowest up.
    pub diff_ids: Vec<Digest>,
}

impl ImageConfig {
    /// Reads a configuration that belongs to a manifest.
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

/// Go writes an empty list as `null`.
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
