//! Who is woken by a change: the owner of what changed, before or after.

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

    /// The controllers that are wanted, before and after; the same one comes twice, which a queue does not mind.
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

    /// Whether each side that is there has such a controller.
    pub(crate) fn all_controlled(self, is_wanted: impl Fn(&OwnerReference) -> bool) -> bool {
        [self.before, self.after]
            .into_iter()
            .flatten()
            .all(|metadata| ownership::controller(metadata).is_some_and(&is_wanted))
    }

    /// Whether a label key is there on either side.
    pub(crate) fn has_label(self, key: &str) -> bool {
        [self.before, self.after]
            .into_iter()
            .flatten()
            .any(|metadata| ownership::label(metadata, key).is_some())
    }
}
