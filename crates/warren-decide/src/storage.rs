//! Provisions storage for volume claims on one machine: each claim of the default class gets a
//! volume of its own, as from a dynamic provisioner. The volume is deleted with the claim.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::{Value, json};

/// The storage class that is served here. Claims without a class use it.
pub const STORAGE_CLASS: &str = "standard";
/// The provisioner's name, in the class and on its volumes.
pub const PROVISIONER: &str = "warren.dev/directory";

const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// Returns the StorageClass object.
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

/// The writes for a new claim.
#[derive(Debug, Clone, PartialEq)]
pub struct Provision {
    /// The volume's name, which is also that of its directory.
    pub name: String,
    /// The PersistentVolume to create.
    pub volume: Value,
    /// The merge patch for the claim that binds it to the volume.
    pub claim: Value,
    /// The merge patch for the claim's status.
    pub claim_status: Value,
}

/// Returns the writes for a claim; `None` if it has its volume, or has another class. Repeating the
/// writes does no harm.
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

/// Returns the name of a claim's volume.
pub fn volume_name(claim_uid: &str) -> String {
    format!("pvc-{claim_uid}")
}

/// Returns true if a volume was made here for a claim that is gone, and is to be deleted.
pub fn is_to_go(volume: &PersistentVolume, is_there: impl Fn(&str) -> bool) -> bool {
    let by_us = volume.metadata.annotations.as_ref().and_then(|annotations| annotations.get(PROVISIONED_BY));
    let Some(spec) = volume.spec.as_ref().filter(|_| by_us.is_some_and(|by| by == PROVISIONER)) else {
        return false;
    };
    let claim = spec.claim_ref.as_ref().and_then(|claim| claim.uid.as_deref());
    // With Retain the user wants to keep the data.
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
