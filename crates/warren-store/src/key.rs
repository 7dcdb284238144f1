//! Keys of objects.

use std::fmt;
use std::sync::Arc;

/// The identity of an object: its resource, its namespace (empty for cluster-scoped objects) and
/// its name.
///
/// Keys sort by resource, then namespace, then name. Lists are answered in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The group resource: `pods`, `sandboxes.agents.x-k8s.io`.
    pub resource: Arc<str>,
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// The object's name.
    pub name: Arc<str>,
}

impl Key {
    /// Creates a key from its three parts.
    pub fn new(
        resource: impl Into<Arc<str>>,
        namespace: impl Into<Arc<str>>,
        name: impl Into<Arc<str>>,
    ) -> Key {
        Key { resource: resource.into(), namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.namespace {
            "" => write!(formatter, "{} \"{}\"", self.resource, self.name),
            namespace => write!(formatter, "{} \"{}/{}\"", self.resource, namespace, self.name),
        }
    }
}
