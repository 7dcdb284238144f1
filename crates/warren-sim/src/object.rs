//! Converts between objects as the server stores them, in JSON, and as the controllers' caches keep
//! them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::Value;
use warren_api::conditions::{self, ConditionType};
use warren_decide::ownership;
use warren_decide::step::{Kind, Object};

pub use warren_controllers::object::{Any, KINDS, Typed};

/// Returns the place of a kind in an array of all kinds.
#[must_use]
pub fn slot(kind: Kind) -> usize {
    KINDS.iter().position(|other| *other == kind).unwrap_or_default()
}

/// The properties of an object that the invariants need.
pub trait Judged {
    /// Returns true if the object with this uid controls this one.
    fn is_controlled_by(&self, uid: &str) -> bool;
    /// Returns the object's conditions, for the kinds that have ours.
    fn conditions(&self) -> &[Condition];
    /// Returns true if the condition `Ready` is true.
    fn is_ready(&self) -> bool;
}

impl Judged for Any {
    fn is_controlled_by(&self, uid: &str) -> bool {
        ownership::is_controlled_by(self.meta(), uid)
    }

    fn conditions(&self) -> &[Condition] {
        match self {
            Any::Sandbox(object) => object.status.as_ref().map(|status| status.conditions.as_slice()),
            Any::SandboxClaim(object) => object.status.as_ref().map(|status| status.conditions.as_slice()),
            _ => None,
        }
        .unwrap_or_default()
    }

    fn is_ready(&self) -> bool {
        conditions::is_true(self.conditions(), ConditionType::Ready)
    }
}

/// Serialises a whole object of a plan.
pub fn to_value(object: &Object) -> Result<Value, serde_json::Error> {
    match object {
        Object::Sandbox(object) => serde_json::to_value(object),
        Object::SandboxClaim(object) => serde_json::to_value(object),
        Object::Pod(object) => serde_json::to_value(object),
        Object::Service(object) => serde_json::to_value(object),
        Object::PersistentVolumeClaim(object) => serde_json::to_value(object),
        Object::NetworkPolicy(object) => serde_json::to_value(object),
    }
}
