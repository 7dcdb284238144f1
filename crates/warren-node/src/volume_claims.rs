//! Serves volume claims with directories of this machine: all claims of the local home, and on a
//! cluster those of our class, if enabled. On a cluster the control plane binds our volumes to the
//! claims, as for any provisioner. In the local home this module does.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use serde_json::json;
use tracing::{debug, info, warn};
use warren_decide::storage::{PROVISIONER, Provision, is_to_go, provision, storage_class, volume_name};

use crate::worker::chain;

/// The claim annotation that names the provisioner which the control plane waits for.
const WAITED_FOR: &str = "volume.kubernetes.io/storage-provisioner";

/// The error of a claim that could not be served, or of a volume that could not be removed.
#[derive(Debug, thiserror::Error)]
enum ClaimError {
    #[error("make {path}")]
    Make {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("remove {path}")]
    Remove {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{what}")]
    Api {
        what: &'static str,
        #[source]
        source: kube::Error,
    },
}

fn api(what: &'static str) -> impl FnOnce(kube::Error) -> ClaimError {
    move |source| ClaimError::Api { what, source }
}

/// Treats a status code as success: the object exists already, or is already gone.
pub(crate) fn tolerate<T>(result: kube::Result<T>, code: u16) -> kube::Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.code == code => Ok(()),
        other => other.map(drop),
    }
}

/// Serves claims until the task is ended. With `binds`, this module also binds volumes to claims.
pub(crate) async fn serve(client: Client, node_name: String, directory: PathBuf, binds: bool) {
    let shelf = Shelf { client: client.clone(), node_name, directory, binds };
    if let Err(problem) = shelf.prepare().await {
        warn!(error = %chain(&problem), "storage class not made");
    }
    let claims: Api<PersistentVolumeClaim> = Api::all(client);
    let mut events = watcher::watcher(claims, watcher::Config::default()).default_backoff().boxed();
    let mut there = BTreeSet::new();
    loop {
        let result = match events.try_next().await {
            Ok(None) => return,
            Err(error) => {
                warn!(%error, "watch of volume claims interrupted");
                continue;
            }
            Ok(Some(Event::Init)) => {
                there.clear();
                Ok(())
            }
            Ok(Some(Event::InitApply(claim) | Event::Apply(claim))) => {
                there.extend(claim.metadata.uid.clone());
                shelf.serve(&claim).await
            }
            Ok(Some(Event::InitDone)) => shelf.clear(&there).await,
            Ok(Some(Event::Delete(claim))) => {
                claim.metadata.uid.iter().for_each(|uid| {
                    there.remove(uid);
                });
                shelf.clear(&there).await
            }
        };
        if let Err(problem) = result {
            warn!(error = %chain(&problem), "volume claim not served");
        }
    }
}

/// The directory of the claims' data, and the client.
struct Shelf {
    client: Client,
    node_name: String,
    directory: PathBuf,
    binds: bool,
}

impl Shelf {
    async fn prepare(&self) -> Result<(), ClaimError> {
        let failed = |source| ClaimError::Make { path: self.directory.clone(), source };
        std::fs::create_dir_all(&self.directory).map_err(failed)?;
        // Pods reach it by mounts, not by this path.
        std::fs::set_permissions(&self.directory, std::fs::Permissions::from_mode(0o700)).map_err(failed)?;
        let class: StorageClass = match serde_json::from_value(storage_class()) {
            Ok(class) => class,
            Err(error) => return Err(api("make the storage class")(kube::Error::SerdeError(error))),
        };
        let classes: Api<StorageClass> = Api::all(self.client.clone());
        tolerate(classes.create(&PostParams::default(), &class).await, 409)
            .map_err(api("make the storage class"))
    }

    /// Provisions a claim in idempotent steps: first the directory, then the volume, then the
    /// claim's reference to it.
    async fn serve(&self, claim: &PersistentVolumeClaim) -> Result<(), ClaimError> {
        // The control plane names the provisioner. Another one may have a class of the same name.
        if !self.binds && !is_asked_for(claim) {
            return Ok(());
        }
        let Some(given) = provision(claim, &self.node_name, &self.directory.to_string_lossy()) else {
            return Ok(());
        };
        let Provision { name, volume, claim: merged, claim_status } = given;
        make_directory(&self.directory.join(&name))?;
        let volume: PersistentVolume = match serde_json::from_value(volume) {
            Ok(volume) => volume,
            Err(error) => return Err(api("make the volume")(kube::Error::SerdeError(error))),
        };
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        tolerate(volumes.create(&PostParams::default(), &volume).await, 409)
            .map_err(api("make the volume"))?;
        if !self.binds {
            // The control plane finds the claim by the volume's reference.
            return Ok(());
        }
        let parameters = PatchParams::default();
        let bound = Patch::Merge(json!({"status": {"phase": "Bound"}}));
        volumes.patch_status(&name, &parameters, &bound).await.map_err(api("bind the volume"))?;

        let namespace = claim.metadata.namespace.as_deref().unwrap_or("default");
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let claim_name = claim.metadata.name.as_deref().unwrap_or_default();
        let merged = claims.patch(claim_name, &parameters, &Patch::Merge(merged)).await;
        // If the claim is deleted meanwhile, its deletion is handled after this and removes the
        // volume.
        tolerate(merged, 404).map_err(api("bind the claim"))?;
        let status = claims.patch_status(claim_name, &parameters, &Patch::Merge(claim_status)).await;
        tolerate(status, 404).map_err(api("say that the claim is bound"))?;
        info!(claim = claim_name, namespace, volume = name, "volume claim served");
        Ok(())
    }

    /// Removes the volumes and directories of deleted claims.
    async fn clear(&self, there: &BTreeSet<String>) -> Result<(), ClaimError> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let known = volumes.list(&ListParams::default()).await.map_err(api("list volumes"))?.items;
        for volume in known.iter().filter(|volume| is_to_go(volume, |uid| there.contains(uid))) {
            let name = volume.metadata.name.clone().unwrap_or_default();
            // Remove the data first: a volume without data is found again, while data without a
            // volume would be found only by the next start.
            remove_directory(&self.directory.join(&name)).await?;
            tolerate(volumes.delete(&name, &DeleteParams::default()).await, 404)
                .map_err(api("delete the volume"))?;
            info!(volume = name, "volume removed with its claim");
        }
        // If a claim went before its volume was made, its directory is empty. A directory with data
        // but without a volume is kept: the store may have been lost, and a user may want the data
        // back.
        let wanted: BTreeSet<String> = there.iter().map(|uid| volume_name(uid)).collect();
        let named: BTreeSet<&str> =
            known.iter().filter_map(|volume| volume.metadata.name.as_deref()).collect();
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("pvc-") && !wanted.contains(&name) && !named.contains(name.as_str()) {
                match std::fs::remove_dir(entry.path()) {
                    Ok(()) => debug!(volume = name, "a directory without a claim removed"),
                    Err(error) => {
                        warn!(%error, path = %entry.path().display(), "data without a claim, left where it is");
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns true if the control plane waits for us to make a volume for a claim.
fn is_asked_for(claim: &PersistentVolumeClaim) -> bool {
    let annotations = claim.metadata.annotations.as_ref();
    annotations.and_then(|annotations| annotations.get(WAITED_FOR)).is_some_and(|by| by == PROVISIONER)
}

/// Makes a claim's directory, writable for any user of the pod. On the host its parent is closed.
fn make_directory(path: &Path) -> Result<(), ClaimError> {
    let failed = |source| ClaimError::Make { path: path.to_owned(), source };
    std::fs::DirBuilder::new().recursive(true).mode(0o777).create(path).map_err(failed)?;
    // Independent of the umask.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).map_err(failed)
}

async fn remove_directory(path: &Path) -> Result<(), ClaimError> {
    let own = path.to_owned();
    let removed = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(own)).await;
    match removed.unwrap_or_else(|gone| Err(io::Error::other(gone))) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(ClaimError::Remove { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}
