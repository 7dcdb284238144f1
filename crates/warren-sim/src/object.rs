//! An object of any kind that takes part, as the controllers keep it: trimmed like the caches of `warren-controllers` do
//! (`trim.rs` there), so that a decision which reads what is not kept fails here too.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, PodSpec, PodStatus, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::Deserialize;
use serde_json::Value;
use warren_api::conditions::{self, ConditionType};
use warren_api::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool};
use warren_decide::ownership;
use warren_decide::step::{Kind, Object};

/// Every kind, in the order of [`slot`].
pub const KINDS: [Kind; 8] = [
    Kind::Sandbox,
    Kind::SandboxTemplate,
    Kind::SandboxClaim,
    Kind::SandboxWarmPool,
    Kind::Pod,
    Kind::Service,
    Kind::PersistentVolumeClaim,
    Kind::NetworkPolicy,
];

/// The place of a kind in an array of all kinds.
#[must_use]
pub fn slot(kind: Kind) -> usize {
    match kind {
        Kind::Sandbox => 0,
        Kind::SandboxTemplate => 1,
        Kind::SandboxClaim => 2,
        Kind::SandboxWarmPool => 3,
        Kind::Pod => 4,
        Kind::Service => 5,
        Kind::PersistentVolumeClaim => 6,
        Kind::NetworkPolicy => 7,
    }
}

/// An object; clones share it.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "each variant is the kind of its own name")]
pub enum Any {
    Sandbox(Arc<Sandbox>),
    SandboxTemplate(Arc<SandboxTemplate>),
    SandboxClaim(Arc<SandboxClaim>),
    SandboxWarmPool(Arc<SandboxWarmPool>),
    Pod(Arc<Pod>),
    Service(Arc<Service>),
    PersistentVolumeClaim(Arc<PersistentVolumeClaim>),
    NetworkPolicy(Arc<NetworkPolicy>),
}

impl Any {
    /// Reads an object as the server stores it, and trims it.
    pub fn parse(kind: Kind, value: &Value) -> Result<Self, serde_json::Error> {
        Ok(match kind {
            Kind::Sandbox => Any::Sandbox(Arc::new(Sandbox::deserialize(value)?)),
            Kind::SandboxTemplate => Any::SandboxTemplate(Arc::new(SandboxTemplate::deserialize(value)?)),
            Kind::SandboxClaim => Any::SandboxClaim(Arc::new(SandboxClaim::deserialize(value)?)),
            Kind::SandboxWarmPool => Any::SandboxWarmPool(Arc::new(SandboxWarmPool::deserialize(value)?)),
            Kind::Pod => Any::Pod(Arc::new(trim_pod(Pod::deserialize(value)?))),
            Kind::Service => {
                let service = Service::deserialize(value)?;
                Any::Service(Arc::new(Service { status: None, ..service }))
            }
            Kind::PersistentVolumeClaim => {
                let claim = PersistentVolumeClaim::deserialize(value)?;
                Any::PersistentVolumeClaim(Arc::new(PersistentVolumeClaim {
                    spec: None,
                    status: None,
                    ..claim
                }))
            }
            Kind::NetworkPolicy => Any::NetworkPolicy(Arc::new(NetworkPolicy::deserialize(value)?)),
        })
    }

    /// The object's kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Any::Sandbox(_) => Kind::Sandbox,
            Any::SandboxTemplate(_) => Kind::SandboxTemplate,
            Any::SandboxClaim(_) => Kind::SandboxClaim,
            Any::SandboxWarmPool(_) => Kind::SandboxWarmPool,
            Any::Pod(_) => Kind::Pod,
            Any::Service(_) => Kind::Service,
            Any::PersistentVolumeClaim(_) => Kind::PersistentVolumeClaim,
            Any::NetworkPolicy(_) => Kind::NetworkPolicy,
        }
    }

    /// The object's metadata.
    #[must_use]
    pub fn meta(&self) -> &ObjectMeta {
        match self {
            Any::Sandbox(object) => &object.metadata,
            Any::SandboxTemplate(object) => &object.metadata,
            Any::SandboxClaim(object) => &object.metadata,
            Any::SandboxWarmPool(object) => &object.metadata,
            Any::Pod(object) => &object.metadata,
            Any::Service(object) => &object.metadata,
            Any::PersistentVolumeClaim(object) => &object.metadata,
            Any::NetworkPolicy(object) => &object.metadata,
        }
    }

    /// The object's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.meta().name.as_deref().unwrap_or_default()
    }

    /// The object's uid.
    #[must_use]
    pub fn uid(&self) -> &str {
        self.meta().uid.as_deref().unwrap_or_default()
    }

    /// The object's resourceVersion, which is a number here as it is in fact everywhere.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.meta().resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or_default()
    }

    /// Whether the object is on its way out.
    #[must_use]
    pub fn is_deleting(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }

    /// Whether the object with this uid controls this one.
    #[must_use]
    pub fn is_controlled_by(&self, uid: &str) -> bool {
        ownership::is_controlled_by(self.meta(), uid)
    }

    /// The object's conditions, for the kinds that have ours.
    #[must_use]
    pub fn conditions(&self) -> &[Condition] {
        match self {
            Any::Sandbox(object) => object.status.as_ref().map(|status| status.conditions.as_slice()),
            Any::SandboxClaim(object) => object.status.as_ref().map(|status| status.conditions.as_slice()),
            _ => None,
        }
        .unwrap_or_default()
    }

    /// Whether the condition `Ready` holds.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        conditions::is_true(self.conditions(), ConditionType::Ready)
    }
}

/// Gives the typed object behind an [`Any`].
pub trait Typed: Sized {
    /// The kind of the type.
    const KIND: Kind;
    /// The object, if it is of this kind.
    fn of(any: &Any) -> Option<&Arc<Self>>;
}

macro_rules! typed {
    ($($name:ident),*) => {$(
        impl Typed for $name {
            const KIND: Kind = Kind::$name;
            fn of(any: &Any) -> Option<&Arc<Self>> {
                match any {
                    Any::$name(object) => Some(object),
                    _ => None,
                }
            }
        }
    )*};
}

typed!(
    Sandbox,
    SandboxTemplate,
    SandboxClaim,
    SandboxWarmPool,
    Pod,
    Service,
    PersistentVolumeClaim,
    NetworkPolicy
);

/// A whole object of a plan, as it goes over the wire.
pub fn to_value(object: &Object) -> Result<Value, serde_json::Error> {
    match object {
        Object::Sandbox(object) => serde_json::to_value(object),
        Object::Pod(object) => serde_json::to_value(object),
        Object::Service(object) => serde_json::to_value(object),
        Object::PersistentVolumeClaim(object) => serde_json::to_value(object),
        Object::NetworkPolicy(object) => serde_json::to_value(object),
    }
}

fn trim_pod(mut pod: Pod) -> Pod {
    pod.metadata.finalizers = None;
    pod.spec = pod.spec.map(|spec| PodSpec { node_name: spec.node_name, ..PodSpec::default() });
    pod.status = pod.status.map(|status| PodStatus {
        phase: status.phase,
        pod_ips: status.pod_ips,
        conditions: status.conditions.map(|conditions| {
            let kept = [ConditionType::Ready.as_str(), ConditionType::PodScheduled.as_str()];
            conditions.into_iter().filter(|condition| kept.contains(&condition.type_.as_str())).collect()
        }),
        ..PodStatus::default()
    });
    pod
}
