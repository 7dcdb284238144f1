//! One version of one object: the serialised body, and the metadata that the store itself needs
//! (selectors, owners, deletion). Bodies are bytes, because a parsed tree takes several times the
//! memory and most readers pass the bytes on unchanged.

use std::ops::Range;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;

use crate::Key;
use crate::body::{self, Body};

/// One immutable version of an object. It is shared by reference: a list copies pointers, never
/// bodies.
#[derive(Debug)]
pub struct Object {
    /// The key of the object.
    pub key: Key,
    /// The store-wide version that wrote it (`metadata.resourceVersion` in the body).
    pub version: u64,
    /// The whole object as JSON, including `metadata.resourceVersion`.
    pub body: Bytes,
    /// The metadata that the store needs without parsing the body.
    pub meta: Meta,
    /// The position of `metadata.managedFields` in the body, with the adjacent comma.
    managers: Range<usize>,
}

impl Object {
    /// Builds an object from a write. `size` is an estimate of its length.
    pub(crate) fn new(key: Key, version: u64, mut body: Body, size: usize) -> Object {
        let meta = Meta::of(body.stamped(version));
        let (body, managers) = body.write(size);
        Object { key, version, body, meta, managers }
    }

    /// Builds an object that was read from disk.
    pub(crate) fn read(key: Key, version: u64, body: Bytes) -> Result<Object, (Key, serde_json::Error)> {
        match Meta::read(&body) {
            Ok(meta) => Ok(Object { managers: body::managers(&body), key, version, body, meta }),
            Err(error) => Err((key, error)),
        }
    }

    /// Returns the same state under a later version. Watchers see a deletion like this.
    pub(crate) fn at_version(&self, version: u64) -> Object {
        let key = self.key.clone();
        let Some(place) = body::version(&self.body) else {
            return Object::new(key, version, self.value().into(), self.body.len());
        };
        let stamp = format!("\"{version}\"");
        let body = [&self.body[..place.start], stamp.as_bytes(), &self.body[place.end..]].concat();
        let moved = |at: usize| if at > place.start { at + stamp.len() - place.len() } else { at };
        let managers = moved(self.managers.start)..moved(self.managers.end);
        Object { key, version, body: body.into(), meta: self.meta.clone(), managers }
    }

    /// Parses the body.
    pub fn value(&self) -> Value {
        tree(&self.body)
    }

    /// Returns the body without `metadata.managedFields`.
    pub fn unmanaged(&self) -> Bytes {
        match self.managers.is_empty() {
            true => self.body.clone(),
            false => [&self.body[..self.managers.start], &self.body[self.managers.end..]].concat().into(),
        }
    }

    /// Returns the body in its two parts. The managers share their bytes with it and are not
    /// parsed.
    pub fn split(&self) -> Body {
        Body { tree: tree(&self.unmanaged()), managed_fields: body::list(&self.body, &self.managers) }
    }
}

fn tree(body: &[u8]) -> Value {
    serde_json::from_slice(body).expect("the store serialised this body from a tree itself")
}

/// The metadata that the store acts on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Meta {
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `metadata.labels`.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// `metadata.ownerReferences`.
    pub owners: Box<[Owner]>,
    /// `metadata.finalizers`.
    pub finalizers: Box<[Box<str>]>,
    /// True if `metadata.deletionTimestamp` is set.
    pub deleting: bool,
}

impl Meta {
    /// Returns the value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(key, _)| &**key == name).map(|(_, value)| &**value)
    }

    /// Returns true if the object has this finalizer.
    pub fn has_finalizer(&self, name: &str) -> bool {
        self.finalizers.iter().any(|finalizer| &**finalizer == name)
    }
}

/// One entry of `metadata.ownerReferences`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// The UID, which identifies the owner.
    #[serde(default)]
    pub uid: Box<str>,
    /// The name. An object with the UID but another name is not the owner.
    #[serde(default)]
    pub name: Box<str>,
    /// True if a foreground deletion of the owner waits for this object.
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
    /// Reads the metadata from a serialised object and skips everything else.
    pub(crate) fn read(body: &[u8]) -> Result<Meta, serde_json::Error> {
        Ok(Meta::from(serde_json::from_slice::<Envelope>(body)?.metadata))
    }

    /// Reads the metadata from a tree. Metadata of a wrong shape counts as absent; callers have
    /// refused it before.
    pub(crate) fn of(object: &Value) -> Meta {
        let metadata = &object["metadata"];
        let text = |value: &Value| value.as_str().map(Box::<str>::from);
        let items = |name: &str| metadata[name].as_array().into_iter().flatten();
        let labels = metadata["labels"].as_object().into_iter().flatten();
        Meta {
            uid: text(&metadata["uid"]).unwrap_or_default(),
            labels: labels.filter_map(|(key, value)| Some((key.as_str().into(), text(value)?))).collect(),
            owners: items("ownerReferences")
                .map(|owner| Owner {
                    uid: text(&owner["uid"]).unwrap_or_default(),
                    name: text(&owner["name"]).unwrap_or_default(),
                    block_owner_deletion: owner["blockOwnerDeletion"] == true,
                })
                .collect(),
            finalizers: items("finalizers").filter_map(text).collect(),
            deleting: metadata["deletionTimestamp"].is_string(),
        }
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::{Meta, Object};
    use crate::{Body, Key};

    #[test]
    fn metadata_reads_the_same_from_a_tree_and_from_its_text() {
        for metadata in [
            json!({
                "uid": "u", "labels": {"a": "b", "c\n": "\"", "number": 1}, "finalizers": ["x", "y"],
                "ownerReferences": [{"uid": "o", "name": "n", "blockOwnerDeletion": true}, {"kind": "K"}],
                "deletionTimestamp": "2026-01-01T00:00:00Z",
            }),
            json!({"uid": null, "labels": null, "finalizers": null, "ownerReferences": null}),
            json!({}),
        ] {
            let object = json!({"kind": "A", "metadata": metadata, "spec": {"metadata": {"uid": "other"}}});
            assert_eq!(Meta::of(&object), Meta::read(object.to_string().as_bytes()).unwrap());
        }
        assert_eq!(Meta::of(&json!({})), Meta::default());
    }

    #[test]
    fn a_later_version_differs_in_its_version_alone() {
        let list = json!([{"manager": "resourceVersion"}]);
        let metadata = json!({"labels": {"a": "b", "resourceVersion": "7"}, "name": "a"});
        let key = Key::new("as", "", "a");
        let tree = json!({"metadata": metadata, "spec": {"resourceVersion": "7"}});
        let object =
            Object::new(key.clone(), 9, Body { tree, managed_fields: Bytes::from(list.to_string()) }, 0);
        let first = json!({"metadata": {"managedFields": list, "resourceVersion": "9", "name": "a"}});
        let read = Object::read(key.clone(), 9, first.to_string().into()).unwrap();
        let unstamped = Object::read(key, 9, Bytes::from_static(b"{\"metadata\":{\"uid\":\"u\"}}")).unwrap();
        for object in [object, read, unstamped] {
            let later = object.at_version(1234);
            let mut wanted = object.value();
            wanted["metadata"]["resourceVersion"] = "1234".into();
            assert_eq!((later.version, later.value()), (1234, wanted));
            assert_eq!(later.meta, object.meta);
            assert_eq!(later.split().managed_fields, object.split().managed_fields);
            assert_eq!(later.split().whole(), later.value());
        }
    }
}
