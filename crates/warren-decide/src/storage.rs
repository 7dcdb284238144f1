//! Storage for volume claims on one machine: each claim of the default class gets a volume of its own, as a dynamic provisioner
//! would make it, and the volume goes with the claim.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::{Value, json};

/// The class of claims that are served here, and of those that name none.
pub const STORAGE_CLASS: &str = "standard";
/// Who serves them, in the class and on what was made for it.
pub const PROVISIONER: &str = "warren.dev/directory";

const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// The class itself.
pub fn storage_class() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": STORAGE_CLASS,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    })
}

/// What a claim is to get.
#[derive(Debug, Clone, PartialEq)]
pub struct Provision {
    /// The volume's name, which is also that of its directory.
    pub name: String,
    /// The volume to create.
    pub volume: Value,
    /// What to merge into the claim, so that the two belong together.
    pub claim: Value,
    /// What to merge into the claim's status.
    pub claim_status: Value,
}

/// What a claim is to get; `None` if it has it, or is not ours to serve. Repeating what it says does no harm.
pub fn provision(claim: &PersistentVolumeClaim, node_name: &str, directory: &str) -> Option<Provision> {
    let (meta, spec) = (&claim.metadata, claim.spec.as_ref()?);
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    let class = spec.storage_class_name.as_deref().unwrap_or(STORAGE_CLASS);
    let uid = meta.uid.as_deref()?;
    let name = volume_name(uid);
    let named = spec.volume_name.as_deref().filter(|name| !name.is_empty());
    let ours = class == STORAGE_CLASS
        && meta.deletion_timestamp.is_none()
        && phase == "Pending"
        && named.is_none_or(|named| named == name)
        && spec.volume_mode.as_deref().is_none_or(|mode| mode == "Filesystem");
    if !ours {
        return None;
    }
    let storage = spec.resources.as_ref()?.requests.as_ref()?.get("storage")?;
    let volume = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {PROVISIONED_BY: PROVISIONER}},
        "spec": {
            "capacity": {"storage": storage},
            "accessModes": spec.access_modes,
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": STORAGE_CLASS,
            "volumeMode": "Filesystem",
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "name": meta.name,
                "namespace": meta.namespace,
                "uid": uid,
            },
            "local": {"path": format!("{directory}/{name}")},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [node_name]},
            ]}]}},
        },
    });
    let claim = json!({
        "metadata": {"annotations": {
            "pv.kubernetes.io/bind-completed": "yes",
            "pv.kubernetes.io/bound-by-controller": "yes",
            "volume.kubernetes.io/storage-provisioner": PROVISIONER,
        }},
        "spec": {"volumeName": name, "storageClassName": STORAGE_CLASS},
    });
    let claim_status = json!({"status": {"phase": "Bound", "accessModes": spec.access_modes, "capacity": {"storage": storage}}});
    Some(Provision { name, volume, claim, claim_status })
}

/// The name of the volume that a claim gets.
pub fn volume_name(claim_uid: &str) -> String {
    format!("pvc-{claim_uid}")
}

/// Whether a volume was made here for a claim that is gone, and is to go as well.
pub fn is_to_go(volume: &PersistentVolume, is_there: impl Fn(&str) -> bool) -> bool {
    let by_us = volume.metadata.annotations.as_ref().and_then(|annotations| annotations.get(PROVISIONED_BY));
    let Some(spec) = volume.spec.as_ref().filter(|_| by_us.is_some_and(|by| by == PROVISIONER)) else {
        return false;
    };
    let claim = spec.claim_ref.as_ref().and_then(|claim| claim.uid.as_deref());
    // Whoever says Retain has a use for the data.
    let retained = spec.persistent_volume_reclaim_policy.as_deref() == Some("Retain");
    !retained && claim.is_some_and(|uid| !is_there(uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(spec: Value, status: Value) -> PersistentVolumeClaim {
        let mut whole =
            json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        serde_json::from_value(json!({
            "metadata": {"name": "data", "namespace": "team", "uid": "1"}, "spec": whole, "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn a_claim_without_a_class_or_of_ours_gets_a_volume() {
        for spec in [json!({}), json!({"storageClassName": "standard"}), json!({"volumeName": "pvc-1"})] {
            let given = provision(&claim(spec, json!({})), "here", "/data").unwrap();
            let volume: PersistentVolume = serde_json::from_value(given.volume).unwrap();
            assert_eq!(volume.metadata.name.as_deref(), Some("pvc-1"));
            assert_eq!(volume.spec.as_ref().unwrap().local.as_ref().unwrap().path, "/data/pvc-1");
            assert_eq!(given.claim["spec"]["volumeName"], "pvc-1");
            assert!(is_to_go(&volume, |_| false));
            assert!(!is_to_go(&volume, |uid| uid == "1"));
        }
    }

    #[test]
    fn other_claims_are_left_alone() {
        for (spec, status) in [
            (json!({"storageClassName": "fast"}), json!({})),
            (json!({"storageClassName": ""}), json!({})),
            (json!({"volumeMode": "Block"}), json!({})),
            (json!({"volumeName": "other"}), json!({})),
            (json!({"volumeName": "pvc-1"}), json!({"phase": "Bound"})),
        ] {
            assert_eq!(provision(&claim(spec.clone(), status), "here", "/data"), None, "{spec}");
        }
        let foreign = json!({"metadata": {"name": "pvc-2"}, "spec": {"claimRef": {"uid": "2"}}});
        assert!(!is_to_go(&serde_json::from_value(foreign).unwrap(), |_| false));
    }
}
