//! Creates a matching volume for every claim, so that the control plane binds the two.

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

pub(super) async fn bind(client: Client) {
    let claims: Api<PersistentVolumeClaim> = Api::all(client.clone());
    let volumes: Api<PersistentVolume> = Api::all(client);
    let events = watcher(claims, watcher::Config::default()).default_backoff().applied_objects();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        let Ok(claim) = event else { continue };
        if let Some(volume) = volume_for(&claim) {
            // An existing volume was created for this claim before.
            let _ = volumes.create(&PostParams::default(), &volume).await;
        }
    }
}

fn volume_for(claim: &PersistentVolumeClaim) -> Option<PersistentVolume> {
    let spec = claim.spec.as_ref()?;
    let pending = claim.status.as_ref().is_none_or(|status| status.phase.as_deref() != Some("Bound"));
    if spec.volume_name.is_some() || claim.metadata.deletion_timestamp.is_some() || !pending {
        return None;
    }
    let uid = claim.uid()?;
    let storage = spec.resources.as_ref()?.requests.as_ref()?.get("storage")?;
    serde_json::from_value(json!({
        "metadata": {"name": format!("simulated-{uid}")},
        "spec": {
            "capacity": {"storage": storage},
            "accessModes": spec.access_modes,
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": spec.storage_class_name.clone().unwrap_or_default(),
            "volumeMode": spec.volume_mode.clone().unwrap_or_else(|| "Filesystem".to_owned()),
            // The path is never opened, because pods of simulated nodes do not run.
            "hostPath": {"path": "/nonexistent"},
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": claim.name_any(),
                "namespace": claim.namespace()?, "uid": uid},
        },
    }))
    .ok()
}
