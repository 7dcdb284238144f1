//! Finds the keys that a change wakes: the owners of the object, before and after.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use warren_decide::ownership;

use crate::cache::Change;
use crate::queue::ObjectKey;

/// The metadata of both sides of a change.
#[derive(Clone, Copy)]
pub(crate) struct Sides<'a> {
    pub(crate) before: Option<&'a ObjectMeta>,
    pub(crate) after: Option<&'a ObjectMeta>,
}

impl<'a> Sides<'a> {
    pub(crate) fn of<K: Resource<DynamicType = ()>>(change: &Change<'a, K>) -> Self {
        Self {
            before: change.before.map(|object| object.meta()),
            after: change.after.map(|object| object.meta()),
        }
    }

    /// Returns the wanted controllers before and after. The same one may come twice, which a queue
    /// tolerates.
    pub(crate) fn owners(
        self,
        is_wanted: impl Fn(&OwnerReference) -> bool,
    ) -> impl Iterator<Item = ObjectKey> {
        [self.before, self.after].into_iter().flatten().filter_map(move |metadata| {
            let owner = ownership::controller(metadata).filter(|owner| is_wanted(owner))?;
            let namespace = metadata.namespace.clone().unwrap_or_default();
            Some(ObjectKey { namespace, name: owner.name.clone() })
        })
    }

    /// Returns true if each existing side has such a controller.
    pub(crate) fn all_controlled(self, is_wanted: impl Fn(&OwnerReference) -> bool) -> bool {
        [self.before, self.after]
            .into_iter()
            .flatten()
            .all(|metadata| ownership::controller(metadata).is_some_and(&is_wanted))
    }

    /// Returns true if either side has the label.
    pub(crate) fn has_label(self, key: &str) -> bool {
        [self.before, self.after]
            .into_iter()
            .flatten()
            .any(|metadata| ownership::label(metadata, key).is_some())
    }
}
