//! An object of any kind that the controllers use, as the caches keep it: trimmed to the fields
//! that decisions read.

use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::NamespaceResourceScope;
use serde::Serialize;
use serde::de::DeserializeOwned;
use warren_api::{AgentTask, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool};
use warren_decide::step::Kind;

use crate::cache::Keeping;
use crate::queue::ObjectKey;
use crate::trim;

/// Every kind.
pub const KINDS: [Kind; 9] = [
    Kind::Sandbox,
    Kind::SandboxTemplate,
    Kind::SandboxClaim,
    Kind::SandboxWarmPool,
    Kind::Pod,
    Kind::Service,
    Kind::PersistentVolumeClaim,
    Kind::NetworkPolicy,
    Kind::AgentTask,
];

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
    AgentTask(Arc<AgentTask>),
}

/// Runs an expression with the type of a kind.
macro_rules! with_type {
    ($kind:expr, $type:ident => $body:expr) => {{
        use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
        use k8s_openapi::api::networking::v1::NetworkPolicy;
        use warren_api::{AgentTask, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool};
        macro_rules! arm {
            ($kind_type:ident) => {{
                type $type = $kind_type;
                $body
            }};
        }
        match $kind {
            Kind::Sandbox => arm!(Sandbox),
            Kind::SandboxTemplate => arm!(SandboxTemplate),
            Kind::SandboxClaim => arm!(SandboxClaim),
            Kind::SandboxWarmPool => arm!(SandboxWarmPool),
            Kind::Pod => arm!(Pod),
            Kind::Service => arm!(Service),
            Kind::PersistentVolumeClaim => arm!(PersistentVolumeClaim),
            Kind::NetworkPolicy => arm!(NetworkPolicy),
            Kind::AgentTask => arm!(AgentTask),
        }
    }};
}

/// Runs an expression with the typed object of an [`Any`].
macro_rules! with_object {
    ($any:expr, $object:ident => $body:expr) => {
        match $any {
            Any::Sandbox($object) => $body,
            Any::SandboxTemplate($object) => $body,
            Any::SandboxClaim($object) => $body,
            Any::SandboxWarmPool($object) => $body,
            Any::Pod($object) => $body,
            Any::Service($object) => $body,
            Any::PersistentVolumeClaim($object) => $body,
            Any::NetworkPolicy($object) => $body,
            Any::AgentTask($object) => $body,
        }
    };
}

pub(crate) use {with_object, with_type};

impl Any {
    /// Parses an object as a server stores it, and trims it.
    pub fn parse(kind: Kind, value: &serde_json::Value) -> Result<Self, serde_json::Error> {
        with_type!(kind, K => Ok(K::deserialize_from(value)?.keep()))
    }

    /// Returns the object's kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        with_object!(self, object => kind_of(object))
    }

    /// Returns the object's metadata.
    #[must_use]
    pub fn meta(&self) -> &ObjectMeta {
        with_object!(self, object => &object.metadata)
    }

    /// Returns the object's namespace and name.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        let metadata = self.meta();
        let (namespace, name) = (metadata.namespace.clone(), metadata.name.clone());
        ObjectKey { namespace: namespace.unwrap_or_default(), name: name.unwrap_or_default() }
    }

    /// Returns the object's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.meta().name.as_deref().unwrap_or_default()
    }

    /// Returns the object's uid.
    #[must_use]
    pub fn uid(&self) -> &str {
        self.meta().uid.as_deref().unwrap_or_default()
    }

    /// Returns the object's resourceVersion.
    #[must_use]
    pub fn version(&self) -> u64 {
        version(self.meta()).unwrap_or_default()
    }

    /// Returns true if the object is being deleted.
    #[must_use]
    pub fn is_deleting(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }
}

/// A type behind an [`Any`].
pub trait Typed:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// The kind of the type.
    const KIND: Kind;
    /// The cache's configuration for the type.
    const KEEPING: Keeping<Self>;

    /// Returns the typed object, if it is of this kind.
    fn of(any: &Any) -> Option<&Arc<Self>>;

    /// Wraps an object that is trimmed already.
    fn wrap(object: Arc<Self>) -> Any;

    /// Trims an object and shares it.
    #[must_use]
    fn keep(mut self) -> Any {
        (Self::KEEPING.trim)(&mut self);
        Self::wrap(Arc::new(self))
    }

    /// Parses an object.
    fn deserialize_from(value: &serde_json::Value) -> Result<Self, serde_json::Error> {
        Self::deserialize(value)
    }
}

macro_rules! typed {
    ($($name:ident: $keeping:ident),*) => {$(
        impl Typed for $name {
            const KIND: Kind = Kind::$name;
            const KEEPING: Keeping<Self> = trim::$keeping;

            fn of(any: &Any) -> Option<&Arc<Self>> {
                match any {
                    Any::$name(object) => Some(object),
                    _ => None,
                }
            }

            fn wrap(object: Arc<Self>) -> Any {
                Any::$name(object)
            }
        }
    )*};
}

typed!(
    Sandbox: SANDBOX,
    SandboxTemplate: TEMPLATE,
    SandboxClaim: CLAIM,
    SandboxWarmPool: POOL,
    Pod: POD,
    Service: SERVICE,
    PersistentVolumeClaim: VOLUME_CLAIM,
    NetworkPolicy: NETWORK_POLICY,
    AgentTask: TASK
);

fn kind_of<K: Typed>(_: &Arc<K>) -> Kind {
    K::KIND
}

/// Parses the resourceVersion. It is opaque to clients in principle, but in fact a growing number:
/// etcd's revision, or our store's.
pub(crate) fn version(metadata: &ObjectMeta) -> Option<u64> {
    metadata.resource_version.as_deref()?.parse().ok()
}
