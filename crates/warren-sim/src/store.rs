//! An API server in memory, as far as controllers can tell: versions, guards, generations, graceful deletion and a log
//! of everything that happened, which is what watches read.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::Value;
use warren_api::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool};
use warren_decide::merge;
use warren_decide::step::{Action, FailureKind, Kind, Object};

/// An object of any of the kinds in the simulation.
#[derive(Clone, Debug)]
pub enum Stored {
    /// A sandbox.
    Sandbox(Arc<Sandbox>),
    /// A claim.
    Claim(Arc<SandboxClaim>),
    /// A pool.
    Pool(Arc<SandboxWarmPool>),
    /// A template.
    Template(Arc<SandboxTemplate>),
    /// A pod.
    Pod(Arc<Pod>),
}

/// Kind and name; everything is in one namespace.
pub type Key = (u8, String);

/// One thing that happened.
#[derive(Clone, Debug)]
pub struct Event {
    /// To which object.
    pub key: Key,
    /// The version of the change.
    pub version: u64,
    /// What the object is now, or nothing.
    pub now: Option<Stored>,
}

/// The server.
#[derive(Debug, Default)]
pub struct Store {
    /// What exists.
    pub objects: BTreeMap<Key, Stored>,
    /// Everything that happened, in order.
    pub log: Vec<Event>,
    version: u64,
    names: u64,
    ignores_guards: bool,
}

/// What came of a write: the object, or why not.
pub type Answer = Result<Option<Stored>, FailureKind>;

/// The number that stands for a kind in a [`Key`].
#[must_use]
pub fn rank(kind: Kind) -> u8 {
    match kind {
        Kind::Sandbox => 0,
        Kind::SandboxClaim => 1,
        Kind::SandboxWarmPool => 2,
        Kind::SandboxTemplate => 3,
        Kind::Pod => 4,
        Kind::Service | Kind::PersistentVolumeClaim | Kind::NetworkPolicy => 5,
    }
}

impl Stored {
    /// The object's metadata.
    #[must_use]
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Stored::Sandbox(object) => &object.metadata,
            Stored::Claim(object) => &object.metadata,
            Stored::Pool(object) => &object.metadata,
            Stored::Template(object) => &object.metadata,
            Stored::Pod(object) => &object.metadata,
        }
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Stored::Sandbox(object) => &mut Arc::make_mut(object).metadata,
            Stored::Claim(object) => &mut Arc::make_mut(object).metadata,
            Stored::Pool(object) => &mut Arc::make_mut(object).metadata,
            Stored::Template(object) => &mut Arc::make_mut(object).metadata,
            Stored::Pod(object) => &mut Arc::make_mut(object).metadata,
        }
    }

    fn json(&self) -> Value {
        match self {
            Stored::Sandbox(object) => merge::json(&**object),
            Stored::Claim(object) => merge::json(&**object),
            Stored::Pool(object) => merge::json(&**object),
            Stored::Template(object) => merge::json(&**object),
            Stored::Pod(object) => merge::json(&**object),
        }
    }

    /// The same kind of object from JSON. What decisions write always reads back; were it not to, the write is refused.
    fn like(&self, json: Value) -> Option<Self> {
        Some(match self {
            Stored::Sandbox(_) => Stored::Sandbox(Arc::new(serde_json::from_value(json).ok()?)),
            Stored::Claim(_) => Stored::Claim(Arc::new(serde_json::from_value(json).ok()?)),
            Stored::Pool(_) => Stored::Pool(Arc::new(serde_json::from_value(json).ok()?)),
            Stored::Template(_) => Stored::Template(Arc::new(serde_json::from_value(json).ok()?)),
            Stored::Pod(_) => Stored::Pod(Arc::new(serde_json::from_value(json).ok()?)),
        })
    }

    /// The object's key.
    #[must_use]
    pub fn key(&self) -> Key {
        let rank = match self {
            Stored::Sandbox(_) => 0,
            Stored::Claim(_) => 1,
            Stored::Pool(_) => 2,
            Stored::Template(_) => 3,
            Stored::Pod(_) => 4,
        };
        (rank, self.metadata().name.clone().unwrap_or_default())
    }

    /// The object's version.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.metadata().resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or_default()
    }

    /// The object's uid.
    #[must_use]
    pub fn uid(&self) -> &str {
        self.metadata().uid.as_deref().unwrap_or_default()
    }
}

impl Store {
    /// An empty server, which may be broken on purpose: then it does not look at guards.
    #[must_use]
    pub fn new(ignores_guards: bool) -> Self {
        Self { ignores_guards, ..Self::default() }
    }

    /// Carries a write out, as the real server would.
    pub fn act(&mut self, action: &Action, now: Timestamp) -> Answer {
        match action {
            Action::Create(Object::Sandbox(object)) => {
                self.create(Stored::Sandbox(Arc::new((**object).clone())), now)
            }
            Action::Create(Object::Pod(object)) => {
                self.create(Stored::Pod(Arc::new((**object).clone())), now)
            }
            Action::Create(_) => Err(FailureKind::Refused),
            Action::Merge { kind, name, body } => self.patch(*kind, name, body, false),
            Action::MergeStatus { kind, name, body } => self.patch(*kind, name, body, true),
            Action::Delete { kind, name, uid, version, .. } => {
                let key = (rank(*kind), name.clone());
                let present = self.objects.get(&key).map(|object| object.version().to_string());
                if version.is_some() && present.is_some() && *version != present && !self.ignores_guards {
                    return Err(FailureKind::Conflict);
                }
                self.delete(&key, Some(uid), now)
            }
        }
    }

    /// Creates an object, naming it if it asks for that.
    pub fn create(&mut self, mut object: Stored, now: Timestamp) -> Answer {
        self.names += 1;
        let number = self.names;
        let metadata = object.metadata_mut();
        if metadata.name.is_none() {
            metadata.name = Some(format!("{}{number}", metadata.generate_name.clone().unwrap_or_default()));
        }
        metadata.namespace = Some("default".to_owned());
        metadata.uid = Some(format!("uid-{number}"));
        metadata.creation_timestamp = Some(Time(now));
        metadata.generation = Some(1);
        if self.objects.contains_key(&object.key()) {
            return Err(FailureKind::AlreadyExists);
        }
        Ok(Some(self.commit(object)))
    }

    /// Asks for an object's end. Pods linger until their kubelet lets them go.
    pub fn delete(&mut self, key: &Key, uid: Option<&str>, now: Timestamp) -> Answer {
        let Some(object) = self.objects.get(key) else { return Ok(None) };
        if uid.is_some_and(|uid| uid != object.uid()) {
            return Ok(None);
        }
        if !matches!(object, Stored::Pod(_)) {
            self.remove(key);
            return Ok(None);
        }
        if object.metadata().deletion_timestamp.is_some() {
            return Ok(Some(object.clone()));
        }
        let mut dying = object.clone();
        dying.metadata_mut().deletion_timestamp = Some(Time(now));
        Ok(Some(self.commit(dying)))
    }

    /// Takes an object out for good.
    pub fn remove(&mut self, key: &Key) {
        if self.objects.remove(key).is_some() {
            self.version += 1;
            self.log.push(Event { key: key.clone(), version: self.version, now: None });
        }
    }

    /// Merge-patches an object, with the guard of a resourceVersion if there is one in the body.
    pub fn patch(&mut self, kind: Kind, name: &str, body: &Value, status: bool) -> Answer {
        let Some(present) = self.objects.get(&(rank(kind), name.to_owned())) else {
            return Err(FailureKind::NotFound);
        };
        let guard = body["metadata"]["resourceVersion"].as_str();
        if guard.is_some_and(|guard| !self.ignores_guards && guard != present.version().to_string()) {
            return Err(FailureKind::Conflict);
        }
        let before = present.json();
        let mut after = before.clone();
        match status {
            true => apply(&mut after["status"], &body["status"]),
            false => {
                let kept = after["status"].clone();
                apply(&mut after, body);
                after["status"] = kept;
            }
        }
        after["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
        if after["spec"] != before["spec"] {
            after["metadata"]["generation"] =
                (before["metadata"]["generation"].as_i64().unwrap_or_default() + 1).into();
        }
        if after == before {
            return Ok(Some(present.clone()));
        }
        let object = present.like(after).ok_or(FailureKind::Refused)?;
        Ok(Some(self.commit(object)))
    }

    fn commit(&mut self, mut object: Stored) -> Stored {
        self.version += 1;
        object.metadata_mut().resource_version = Some(self.version.to_string());
        let event = Event { key: object.key(), version: self.version, now: Some(object.clone()) };
        self.log.push(event);
        self.objects.insert(object.key(), object.clone());
        object
    }
}

fn apply(target: &mut Value, patch: &Value) {
    match patch {
        Value::Object(patch) => {
            if !target.is_object() {
                *target = Value::Object(serde_json::Map::new());
            }
            let Value::Object(target) = target else { return };
            for (key, value) in patch {
                if value.is_null() {
                    target.remove(key);
                } else {
                    apply(target.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        other => *target = other.clone(),
    }
}
