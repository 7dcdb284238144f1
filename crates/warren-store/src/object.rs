//! One version of one object, as the store keeps it: the serialised body, and the few pieces of metadata that the
//! store itself needs (selectors, owners, deletion). Bodies are bytes because a parsed tree takes several times
//! the memory, and because most reads hand the bytes on as they are.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;

use crate::Key;

/// One immutable version of an object. Shared by reference: a list copies pointers, never bodies.
#[derive(Debug)]
pub struct Object {
    /// Where it lives.
    pub key: Key,
    /// The store-wide version that wrote it (`metadata.resourceVersion` in the body).
    pub version: u64,
    /// The whole object as JSON, with `metadata.resourceVersion` in it.
    pub body: Bytes,
    /// What the store needs to know without parsing the body.
    pub meta: Meta,
}

impl Object {
    /// The body as a tree, for those who change it.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.body).expect("the store serialised this body from a tree itself")
    }
}

/// The metadata that the store acts on.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `metadata.labels`.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// `metadata.ownerReferences`.
    pub owners: Box<[Owner]>,
    /// `metadata.finalizers`.
    pub finalizers: Box<[Box<str>]>,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
}

impl Meta {
    /// The value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(key, _)| &**key == name).map(|(_, value)| &**value)
    }

    /// Whether the object carries this finalizer.
    pub fn has_finalizer(&self, name: &str) -> bool {
        self.finalizers.iter().any(|finalizer| &**finalizer == name)
    }
}

/// One entry of `metadata.ownerReferences`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// The owner's uid, which is what identifies it.
    #[serde(default)]
    pub uid: Box<str>,
    /// The owner's name; an object with the uid but another name is not the owner.
    #[serde(default)]
    pub name: Box<str>,
    /// Whether a foreground deletion of the owner waits for this object.
    #[serde(default)]
    pub block_owner_deletion: bool,
}

#[derive(Deserialize, Default)]
struct Envelope {
    #[serde(default)]
    metadata: RawMeta,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RawMeta {
    #[serde(default)]
    uid: Option<Box<str>>,
    #[serde(default)]
    labels: Option<serde_json::Map<String, Value>>,
    #[serde(default)]
    owner_references: Option<Vec<Owner>>,
    #[serde(default)]
    finalizers: Option<Vec<Box<str>>>,
    #[serde(default)]
    deletion_timestamp: Option<Box<str>>,
}

impl Meta {
    /// Reads the metadata out of a serialised object, skipping everything else.
    pub(crate) fn read(body: &[u8]) -> Result<Meta, serde_json::Error> {
        Ok(Meta::from(serde_json::from_slice::<Envelope>(body)?.metadata))
    }

    /// The same out of a tree.
    pub(crate) fn of(object: &Value) -> Result<Meta, serde_json::Error> {
        Ok(Meta::from(Envelope::deserialize(object)?.metadata))
    }
}

impl From<RawMeta> for Meta {
    fn from(raw: RawMeta) -> Meta {
        let labels = raw.labels.unwrap_or_default().into_iter();
        Meta {
            uid: raw.uid.unwrap_or_default(),
            labels: labels
                .filter_map(|(key, value)| match value {
                    Value::String(value) => Some((key.into_boxed_str(), value.into_boxed_str())),
                    _ => None,
                })
                .collect(),
            owners: raw.owner_references.unwrap_or_default().into(),
            finalizers: raw.finalizers.unwrap_or_default().into(),
            deleting: raw.deletion_timestamp.is_some(),
        }
    }
}

/// The resourceVersion as it stands in a body.
pub(crate) fn stamp(value: &mut Value, version: u64) {
    let Value::Object(object) = value else { return };
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(serde_json::Map::new()));
    if let Value::Object(metadata) = metadata {
        metadata.insert("resourceVersion".to_owned(), Value::String(version.to_string()));
    }
}
