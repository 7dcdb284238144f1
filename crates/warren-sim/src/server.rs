//! The simulated API server: objects with uid, resourceVersion and generation, guarded writes,
//! deletion with finalizers and grace, and a log of changes for every kind that watches read from.
//! It has a single namespace. Each request is atomic, as on a real server.

mod garbage;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Map, Value, json};
use warren_controllers::server::{Answer, Refusal};
use warren_decide::ownership;
use warren_decide::step::{FailureKind, Kind, Propagation};

use crate::object::{Any, KINDS, Typed, slot};

pub use garbage::Chore;

/// The finalizer that holds an object during foreground deletion.
const FOREGROUND: &str = "foregroundDeletion";
/// The image that marks objects as invalid for a server that refuses their kind.
pub const REFUSED_IMAGE: &str = "v3";
/// The only namespace.
pub const NAMESPACE: &str = "default";

/// The sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Caller {
    /// The simulated user.
    User,
    /// A simulated node or scheduler.
    Node,
    /// Garbage collection.
    Garbage,
    /// A controller process, by number.
    Process(usize),
}

impl fmt::Display for Caller {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Caller::User => formatter.write_str("user"),
            Caller::Node => formatter.write_str("node"),
            Caller::Garbage => formatter.write_str("garbage collection"),
            Caller::Process(number) => write!(formatter, "process {number}"),
        }
    }
}

/// The part of an object that a patch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Everything but the status.
    All,
    /// The status alone.
    Status,
}

/// Preconditions of a deletion.
#[derive(Clone, Copy, Debug, Default)]
pub struct Preconditions<'a> {
    /// The object must have this uid.
    pub uid: Option<&'a str>,
    /// The object must have this resourceVersion.
    pub resource_version: Option<&'a str>,
}

/// A stored change.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Its sender.
    pub by: Caller,
    /// The state before.
    pub before: Option<Any>,
    /// The state after.
    pub after: Option<Any>,
}

/// One entry of a kind's log.
#[derive(Clone, Debug)]
pub struct Change {
    /// The object, or its last state.
    pub object: Any,
    /// True if the object is gone.
    pub gone: bool,
}

struct Record {
    value: Value,
    object: Any,
}

/// The server.
#[derive(Default)]
pub struct Server {
    objects: [BTreeMap<String, Record>; KINDS.len()],
    logs: [Vec<Change>; KINDS.len()],
    uids: BTreeSet<String>,
    revision: u64,
    last_uid: u64,
    /// Changes that have not been checked yet.
    pub fresh: Vec<Commit>,
    /// The number of stored changes.
    pub commits: u64,
    garbage_may_be: bool,
    /// The kind whose objects with [`REFUSED_IMAGE`] are invalid, if there is one.
    refuses: Option<Kind>,
}

impl Server {
    /// Returns an empty server that refuses objects of a kind with [`REFUSED_IMAGE`].
    #[must_use]
    pub fn refusing(kind: Option<Kind>) -> Self {
        Self { refuses: kind, ..Self::default() }
    }

    /// Returns true if an object of a kind with this pod spec is invalid here.
    #[must_use]
    pub fn is_invalid(&self, kind: Kind, pod: &PodSpec) -> bool {
        let is_refused = |container: &Container| container.image.as_deref() == Some(REFUSED_IMAGE);
        self.refuses == Some(kind) && pod.containers.iter().any(is_refused)
    }

    /// Returns the log of a kind from a position on.
    #[must_use]
    pub fn log(&self, kind: Kind, from: usize) -> &[Change] {
        self.logs[slot(kind)].get(from..).unwrap_or_default()
    }

    /// Returns the length of a kind's log.
    #[must_use]
    pub fn log_length(&self, kind: Kind) -> usize {
        self.logs[slot(kind)].len()
    }

    /// Returns the object of this name.
    #[must_use]
    pub fn get(&self, kind: Kind, name: &str) -> Option<&Any> {
        self.objects[slot(kind)].get(name).map(|record| &record.object)
    }

    /// Returns the object that a reference names, by its uid.
    #[must_use]
    pub fn owner<K: Typed>(&self, reference: &OwnerReference) -> Option<&Arc<K>> {
        let object = self.get(K::KIND, &reference.name).filter(|object| object.uid() == reference.uid);
        object.and_then(K::of)
    }

    /// Returns every object of a kind, by name.
    pub fn all(&self, kind: Kind) -> impl Iterator<Item = &Any> {
        self.objects[slot(kind)].values().map(|record| &record.object)
    }

    /// Returns every object of a kind that has a label with this value.
    pub fn labelled(&self, kind: Kind, label: &str, value: &str) -> impl Iterator<Item = &Any> {
        self.all(kind).filter(move |object| ownership::label(object.meta(), label) == Some(value))
    }

    /// Returns true if an object with this uid exists.
    #[must_use]
    pub fn exists(&self, uid: &str) -> bool {
        self.uids.contains(uid)
    }

    /// Returns true if the object with this uid exists and is not being deleted.
    #[must_use]
    pub fn is_staying(&self, uid: &str) -> bool {
        let objects = KINDS.iter().flat_map(|kind| self.all(*kind));
        objects.into_iter().any(|object| object.uid() == uid && !object.is_deleting())
    }

    /// Creates an object. `suffix` completes a generated name.
    pub fn create(
        &mut self,
        by: Caller,
        kind: Kind,
        mut value: Value,
        suffix: u64,
        now: Timestamp,
    ) -> Answer {
        let metadata = &mut value["metadata"];
        let name = match (&metadata["name"], &metadata["generateName"]) {
            (Value::String(name), _) => name.clone(),
            (_, Value::String(prefix)) => format!("{prefix}{:05x}", suffix & 0xf_ffff),
            _ => return Err(refusal(FailureKind::Refused, "name or generateName is required")),
        };
        if self.objects[slot(kind)].contains_key(&name) {
            return Err(refusal(FailureKind::AlreadyExists, format!("{kind} {name} already exists")));
        }
        // From the request itself: the cached pod does not contain its images.
        let pod = if kind == Kind::Pod { &value["spec"] } else { &value["spec"]["podTemplate"]["spec"] };
        let mut containers = pod["containers"].as_array().into_iter().flatten();
        if self.refuses == Some(kind) && containers.any(|container| container["image"] == REFUSED_IMAGE) {
            return Err(refusal(FailureKind::Invalid, format!("{kind} {name} is invalid: its image")));
        }
        let metadata = &mut value["metadata"];
        self.last_uid += 1;
        let uid = format!("uid-{}", self.last_uid);
        metadata["name"] = json!(name);
        metadata["namespace"] = json!(NAMESPACE);
        metadata["uid"] = json!(uid);
        metadata["generation"] = json!(1);
        metadata["creationTimestamp"] = stamp(now);
        if let Value::Object(map) = &mut value {
            map.remove("status");
        }
        if kind == Kind::Pod {
            value["status"] = json!({"phase": "Pending"});
        }
        self.uids.insert(uid);
        self.garbage_may_be = true;
        self.store(by, kind, name, value)
    }

    /// Applies a JSON merge patch. A resourceVersion in its metadata is a guard, and so is a uid,
    /// except in a status patch: a real server discards everything but the status first.
    pub fn merge(&mut self, by: Caller, kind: Kind, name: &str, body: &Value, part: Part) -> Answer {
        let Some(record) = self.objects[slot(kind)].get(name) else { return Err(not_found(kind, name)) };
        let old = &record.value;
        if let Some(version) = body["metadata"]["resourceVersion"].as_str()
            && old["metadata"]["resourceVersion"] != version
        {
            let text = format!("{kind} {name}: the object has been modified");
            return Err(refusal(FailureKind::Conflict, text));
        }
        if part == Part::All
            && let Some(uid) = body["metadata"]["uid"].as_str()
            && old["metadata"]["uid"] != uid
        {
            let text = format!("{kind} {name} is invalid: metadata.uid: field is immutable");
            // As `KubeServer` reads the 422 of a real server: another object has the name by now.
            return Err(refusal(FailureKind::Conflict, text));
        }
        let mut new = old.clone();
        match part {
            Part::All => {
                merge(&mut new, body);
                keep(&mut new, old, "status");
                for key in ["uid", "creationTimestamp", "deletionTimestamp", "generation", "resourceVersion"]
                {
                    keep(&mut new["metadata"], &old["metadata"], key);
                }
            }
            Part::Status => {
                if let Some(status) = body.get("status") {
                    let mut target = new.get("status").cloned().unwrap_or(Value::Null);
                    merge(&mut target, status);
                    new["status"] = target;
                }
            }
        }
        if new == *old {
            return Ok(Some(record.object.clone()));
        }
        if new["spec"] != old["spec"] {
            grow(&mut new["metadata"]["generation"]);
        }
        if new["metadata"]["ownerReferences"] != old["metadata"]["ownerReferences"]
            || new["metadata"]["finalizers"] != old["metadata"]["finalizers"]
        {
            self.garbage_may_be = true;
        }
        if is_finished(&new) {
            return self.remove(by, kind, name);
        }
        self.store(by, kind, name.to_owned(), new)
    }

    /// Deletes an object at once, or marks it if a finalizer, dependents or a node hold it.
    pub fn delete(
        &mut self,
        by: Caller,
        kind: Kind,
        name: &str,
        preconditions: Preconditions<'_>,
        propagation: Propagation,
        now: Timestamp,
    ) -> Answer {
        let Some(record) = self.objects[slot(kind)].get(name) else { return Err(not_found(kind, name)) };
        let metadata = &record.value["metadata"];
        if preconditions.uid.is_some_and(|uid| metadata["uid"] != uid)
            || preconditions.resource_version.is_some_and(|version| metadata["resourceVersion"] != version)
        {
            let text = format!("{kind} {name}: a precondition of the deletion does not hold");
            return Err(refusal(FailureKind::Conflict, text));
        }
        let mut new = record.value.clone();
        if propagation == Propagation::Foreground && !finalizers(&new).any(|held| held == FOREGROUND) {
            let mut held: Vec<Value> = finalizers(&new).map(|held| json!(held)).collect();
            held.push(json!(FOREGROUND));
            new["metadata"]["finalizers"] = json!(held);
        }
        if new["metadata"]["deletionTimestamp"].is_null() {
            new["metadata"]["deletionTimestamp"] = stamp(now);
            // A pod on a node is gone only when the node says so.
            let grace = if kind == Kind::Pod && new["spec"]["nodeName"].is_string() { 30 } else { 0 };
            new["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
            grow(&mut new["metadata"]["generation"]);
        }
        self.garbage_may_be = true;
        if is_finished(&new) {
            return self.remove(by, kind, name);
        }
        if new == record.value {
            return Ok(Some(record.object.clone()));
        }
        self.store(by, kind, name.to_owned(), new)
    }

    /// Records that the node has ended a dying pod. A finalizer may still hold the object.
    pub fn pod_ended(&mut self, name: &str) -> Answer {
        let Some(record) = self.objects[slot(Kind::Pod)].get(name) else {
            return Err(not_found(Kind::Pod, name));
        };
        let mut new = record.value.clone();
        new["metadata"]["deletionGracePeriodSeconds"] = json!(0);
        if is_finished(&new) {
            return self.remove(Caller::Node, Kind::Pod, name);
        }
        if new == record.value {
            return Ok(Some(record.object.clone()));
        }
        self.store(Caller::Node, Kind::Pod, name.to_owned(), new)
    }

    /// Returns the finalizers of an object; the caches do not keep those of pods.
    #[must_use]
    pub fn finalizers(&self, kind: Kind, name: &str) -> Vec<String> {
        let record = self.objects[slot(kind)].get(name);
        record.map(|record| finalizers(&record.value).map(str::to_owned).collect()).unwrap_or_default()
    }

    fn store(&mut self, by: Caller, kind: Kind, name: String, mut value: Value) -> Answer {
        self.revision += 1;
        value["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let object = match Any::parse(kind, &value) {
            Ok(object) => object,
            Err(error) => {
                return Err(refusal(FailureKind::Refused, format!("{kind} {name} is invalid: {error}")));
            }
        };
        let record = Record { value, object: object.clone() };
        let before = self.objects[slot(kind)].insert(name, record).map(|record| record.object);
        self.committed(Commit { by, before, after: Some(object.clone()) });
        self.logs[slot(kind)].push(Change { object: object.clone(), gone: false });
        Ok(Some(object))
    }

    fn remove(&mut self, by: Caller, kind: Kind, name: &str) -> Answer {
        let Some(mut record) = self.objects[slot(kind)].remove(name) else {
            return Err(not_found(kind, name));
        };
        self.revision += 1;
        self.uids.remove(record.object.uid());
        self.garbage_may_be = true;
        // The last state has the revision of the deletion, by which a watch knows its position.
        record.value["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let last = Any::parse(kind, &record.value).unwrap_or_else(|_| record.object.clone());
        self.committed(Commit { by, before: Some(record.object), after: None });
        self.logs[slot(kind)].push(Change { object: last, gone: true });
        Ok(None)
    }

    fn committed(&mut self, commit: Commit) {
        self.commits += 1;
        self.fresh.push(commit);
    }
}

fn is_finished(value: &Value) -> bool {
    let metadata = &value["metadata"];
    !metadata["deletionTimestamp"].is_null()
        && metadata["deletionGracePeriodSeconds"] == 0
        && finalizers(value).next().is_none()
}

fn finalizers(value: &Value) -> impl Iterator<Item = &str> {
    value["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn refusal(kind: FailureKind, text: impl Into<String>) -> Refusal {
    Refusal { kind, text: text.into() }
}

fn not_found(kind: Kind, name: &str) -> Refusal {
    refusal(FailureKind::NotFound, format!("{kind} {name} not found"))
}

/// Formats a time in whole seconds, as in Kubernetes.
fn stamp(now: Timestamp) -> Value {
    json!(now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

fn grow(generation: &mut Value) {
    *generation = json!(generation.as_i64().unwrap_or_default() + 1);
}

fn keep(new: &mut Value, old: &Value, key: &str) {
    let Value::Object(map) = new else { return };
    match old.get(key) {
        Some(value) => map.insert(key.to_owned(), value.clone()),
        None => map.remove(key),
    };
}

/// Applies a merge patch by RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(map) = target else { return };
    for (key, value) in patch {
        match value {
            Value::Null => {
                map.remove(key);
            }
            value => merge(map.entry(key.clone()).or_insert(Value::Null), value),
        }
    }
}
