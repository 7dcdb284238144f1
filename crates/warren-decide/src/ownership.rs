//! Decides which object controls another, and whether it may be adopted. Owners are compared by API
//! group and kind or by uid, never by version: old references still say `v1alpha1`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use warren_api::{AgentTask, SandboxClaim, SandboxWarmPool, labels};

/// A child's relation to a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// Controlled by the sandbox.
    Mine,
    /// Without a controller, and labelled so that the sandbox may adopt it.
    Adoptable,
    /// Without a controller, and not ours to adopt.
    Unowned,
    /// Controlled by another object.
    Foreign,
}

/// Returns the reference of the object's controller, if it has one.
#[must_use]
pub fn controller(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    metadata.owner_references.as_deref()?.iter().find(|reference| reference.controller == Some(true))
}

/// Returns true if the object with this uid controls `metadata`'s object. An empty uid controls
/// nothing.
#[must_use]
pub fn is_controlled_by(metadata: &ObjectMeta, uid: &str) -> bool {
    !uid.is_empty() && controller(metadata).is_some_and(|reference| reference.uid == uid)
}

/// Classifies a child for the sandbox with this uid and tracking hash.
#[must_use]
pub fn classify(child: &ObjectMeta, uid: &str, tracking_hash: &str) -> Ownership {
    match controller(child) {
        Some(reference) if reference.uid == uid => Ownership::Mine,
        Some(_) => Ownership::Foreign,
        None if label(child, labels::ADOPTABLE) == Some("true") => Ownership::Adoptable,
        None if label(child, labels::SANDBOX_NAME_HASH) == Some(tracking_hash) => Ownership::Adoptable,
        None => Ownership::Unowned,
    }
}

/// Returns a controller reference to `owner` that blocks the owner's foreground deletion, as
/// garbage collection expects.
#[must_use]
pub fn reference_to<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.meta().name.clone().unwrap_or_default(),
        uid: owner.meta().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Returns true if the object's controller is a pool, of any version.
#[must_use]
pub fn is_pooled(metadata: &ObjectMeta) -> bool {
    controller(metadata).is_some_and(is_kind::<SandboxWarmPool>)
}

/// Returns true if the object's controller is a claim, of any version.
#[must_use]
pub fn is_claimed(metadata: &ObjectMeta) -> bool {
    controller(metadata).is_some_and(is_kind::<SandboxClaim>)
}

/// Returns true if the object's controller is a task, of any version.
#[must_use]
pub fn is_of_a_task(metadata: &ObjectMeta) -> bool {
    controller(metadata).is_some_and(is_kind::<AgentTask>)
}

/// Returns true if the object's controller belongs to the extensions group.
#[must_use]
pub fn is_extension_owned(metadata: &ObjectMeta) -> bool {
    controller(metadata).is_some_and(|reference| group(reference) == SandboxClaim::group(&()))
}

/// Returns true if a reference names an object of kind `K`, of any version.
#[must_use]
pub fn is_kind<K: Resource<DynamicType = ()>>(reference: &OwnerReference) -> bool {
    group(reference) == K::group(&()) && reference.kind == K::kind(&())
}

/// Returns the value of a label.
#[must_use]
pub fn label<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Returns the value of an annotation.
#[must_use]
pub fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn group(reference: &OwnerReference) -> &str {
    reference.api_version.split_once('/').map_or("", |(group, _)| group)
}

#[cfg(test)]
mod tests {
    use super::{
        ObjectMeta, OwnerReference, Ownership, classify, is_claimed, is_extension_owned, is_pooled, labels,
    };

    fn owned(api_version: &str, kind: &str, uid: &str) -> ObjectMeta {
        ObjectMeta {
            owner_references: Some(vec![OwnerReference {
                api_version: api_version.to_owned(),
                kind: kind.to_owned(),
                uid: uid.to_owned(),
                controller: Some(true),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        }
    }

    /// Row 30: references of an old version still count.
    #[test]
    fn old_versions_still_own() {
        for version in ["v1alpha1", "v1beta1", "v9"] {
            let api_version = format!("extensions.agents.x-k8s.io/{version}");
            assert!(is_pooled(&owned(&api_version, "SandboxWarmPool", "u")));
            assert!(is_claimed(&owned(&api_version, "SandboxClaim", "u")));
            assert!(is_extension_owned(&owned(&api_version, "SandboxClaim", "u")));
        }
        assert!(!is_pooled(&owned("agents.x-k8s.io/v1beta1", "SandboxWarmPool", "u")));
        assert!(!is_extension_owned(&owned("apps/v1", "Deployment", "u")));
    }

    /// Row 6: an unowned child may be adopted only with a label that allows it, or with our own
    /// tracking hash.
    #[test]
    fn taking_over_needs_a_label() {
        let labelled = |key: &str, value: &str| ObjectMeta {
            labels: Some([(key.to_owned(), value.to_owned())].into()),
            ..ObjectMeta::default()
        };
        let class = |metadata: &ObjectMeta| classify(metadata, "me", "374de8f5");
        assert_eq!(class(&ObjectMeta::default()), Ownership::Unowned);
        assert_eq!(class(&labelled(labels::ADOPTABLE, "yes")), Ownership::Unowned);
        assert_eq!(class(&labelled(labels::ADOPTABLE, "true")), Ownership::Adoptable);
        assert_eq!(class(&labelled(labels::SANDBOX_NAME_HASH, "374de8f5")), Ownership::Adoptable);
        assert_eq!(class(&labelled(labels::SANDBOX_NAME_HASH, "deadbeef")), Ownership::Unowned);
        assert_eq!(class(&owned("agents.x-k8s.io/v1beta1", "Sandbox", "me")), Ownership::Mine);
        assert_eq!(class(&owned("agents.x-k8s.io/v1beta1", "Sandbox", "you")), Ownership::Foreign);
    }
}
