//! Manages the volumes of one pod: makes them before its containers start, and keeps them up to
//! date while they run.

mod files;
mod group;
pub(crate) mod host_path;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Volume};
use warren_decide::pod::{
    Addresses, HostPath, SourceError, Sources, VolumeFile, VolumeKind, volume_files, volume_kind,
};
use warren_oci::client::CallError;
use warren_oci::idmap::IdRange;
use warren_oci::protocol::{Call, MemoryVolume};

use self::files::Owners;
use crate::pod_request::PodDirectory;
use crate::shim::Shim;

/// The size of a volume of files in memory: many times the size of one API object.
const FILES_IN_MEMORY_BYTES: u64 = 64 << 20;

/// The error of a volume that could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeError {
    #[error("make volume \"{name}\"")]
    Make {
        name: String,
        #[source]
        source: io::Error,
    },
    #[error("make volume \"{name}\"")]
    Source {
        name: String,
        #[source]
        source: SourceError,
    },
    #[error("make volume \"{name}\" in memory")]
    Memory {
        name: String,
        #[source]
        source: CallError,
    },
}

/// The pod's properties that volumes depend on.
pub(crate) struct Place<'a> {
    pub(crate) directory: &'a PodDirectory,
    /// The directory of the claims' data.
    pub(crate) claims: &'a Path,
    /// The host directories that pods may have.
    pub(crate) host_paths: &'a [HostPath],
    pub(crate) ids: IdRange,
    pub(crate) addresses: &'a Addresses<'a>,
}

/// The volumes of one pod.
#[derive(Debug, Default)]
pub(crate) struct PodVolumes {
    /// The volumes in memory, for as long as the sandbox is the same.
    memory: BTreeMap<String, OwnedFd>,
    /// The last written content of volumes that show other objects.
    written: BTreeMap<String, Vec<VolumeFile>>,
}

/// Returns true if a pod has volumes that only its shim can make.
pub(crate) fn need_shim(pod: &Pod) -> bool {
    let mut kinds = of_pod(pod).filter_map(|volume| volume_kind(pod, volume));
    kinds.any(|kind| matches!(kind, VolumeKind::Memory { .. } | VolumeKind::Files { in_memory: true }))
}

/// Returns true if a pod has volumes whose content may change while it runs.
pub(crate) fn show_objects(pod: &Pod) -> bool {
    of_pod(pod).any(|volume| matches!(volume_kind(pod, volume), Some(VolumeKind::Files { .. })))
}

fn of_pod(pod: &Pod) -> impl Iterator<Item = &Volume> {
    pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten())
}

fn fs_group(pod: &Pod) -> Option<u32> {
    let group = pod.spec.as_ref()?.security_context.as_ref()?.fs_group?;
    // Ids out of range were refused before.
    u32::try_from(group).ok()
}

impl PodVolumes {
    /// Forgets the volumes that went with the sandbox.
    pub(crate) fn forget(&mut self) {
        *self = PodVolumes::default();
    }

    /// Makes the volumes that are directories on disk. Idempotent.
    pub(crate) fn make_on_disk(
        &mut self,
        pod: &Pod,
        sources: &Sources,
        place: &Place<'_>,
    ) -> Result<(), VolumeError> {
        for volume in of_pod(pod) {
            let failed = |source| VolumeError::Make { name: volume.name.clone(), source };
            let path = place.directory.volume(&volume.name);
            match volume_kind(pod, volume) {
                Some(VolumeKind::Directory) => {
                    make_directory(&path, place.ids, fs_group(pod)).map_err(failed)?;
                }
                Some(VolumeKind::Files { in_memory: false }) => {
                    self.write(pod, volume, &path, sources, place)?;
                }
                Some(VolumeKind::Claim { name, .. }) => {
                    let bound = sources.bound_volume(&name);
                    let bound =
                        bound.map_err(|source| VolumeError::Source { name: volume.name.clone(), source })?;
                    let path = claim_path(place.claims, bound).map_err(failed)?;
                    if let Some(group) = fs_group(pod) {
                        group::hand_over(&path, group).map_err(failed)?;
                    }
                }
                Some(VolumeKind::Host { path } | VolumeKind::View { path }) => {
                    host_path::find(place.host_paths, &path, volume).map_err(failed)?;
                }
                Some(VolumeKind::Memory { .. } | VolumeKind::Files { in_memory: true }) | None => {}
            }
        }
        Ok(())
    }

    /// Makes the volumes that are memory. Idempotent.
    pub(crate) async fn make_in_memory(
        &mut self,
        pod: &Pod,
        sources: &Sources,
        place: &Place<'_>,
        shim: &mut Shim,
    ) -> Result<(), VolumeError> {
        for volume in of_pod(pod) {
            match volume_kind(pod, volume) {
                Some(VolumeKind::Memory { bytes }) => {
                    self.memory(volume, bytes, 0o2777, fs_group(pod), shim).await?;
                }
                Some(VolumeKind::Files { in_memory: true }) => {
                    self.memory(volume, FILES_IN_MEMORY_BYTES, 0o755, fs_group(pod), shim).await?;
                    if let Some(descriptor) = self.memory.get(&volume.name) {
                        // With the dot, the path means the directory and not the link to it.
                        let path = PathBuf::from(format!("/proc/self/fd/{}/.", descriptor.as_raw_fd()));
                        self.write(pod, volume, &path, sources, place)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn memory(
        &mut self,
        volume: &Volume,
        bytes: u64,
        mode: u32,
        group: Option<u32>,
        shim: &mut Shim,
    ) -> Result<(), VolumeError> {
        if self.memory.contains_key(&volume.name) {
            return Ok(());
        }
        let failed = |source| VolumeError::Memory { name: volume.name.clone(), source };
        let wanted = MemoryVolume { name: volume.name.clone(), bytes, mode, group: group.unwrap_or(0) };
        let (_, descriptors) = shim.call(Call::Volume(wanted)).await.map_err(failed)?;
        let descriptor = descriptors.into_iter().next();
        let descriptor =
            descriptor.ok_or_else(|| failed(io::Error::from(io::ErrorKind::InvalidData).into()))?;
        self.memory.insert(volume.name.clone(), descriptor);
        Ok(())
    }

    /// Writes the files of a volume if they changed since the last write.
    fn write(
        &mut self,
        pod: &Pod,
        volume: &Volume,
        path: &Path,
        sources: &Sources,
        place: &Place<'_>,
    ) -> Result<(), VolumeError> {
        let name = || volume.name.clone();
        let wanted = volume_files(pod, volume, place.addresses, sources);
        let wanted = wanted.map_err(|source| VolumeError::Source { name: name(), source })?;
        if self.written.get(&volume.name) == Some(&wanted) {
            return Ok(());
        }
        let owners = Owners { ids: place.ids, group: fs_group(pod).unwrap_or(0) };
        files::write(path, &wanted, &owners, Timestamp::now())
            .map_err(|source| VolumeError::Make { name: name(), source })?;
        self.written.insert(name(), wanted);
        Ok(())
    }
}

/// Returns the directory of a claim's data. A volume's name comes from the API, so it is checked
/// before it becomes a path.
pub(crate) fn claim_path(claims: &Path, volume: &str) -> io::Result<PathBuf> {
    let fits = !volume.is_empty()
        && !volume.starts_with('.')
        && volume.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    let path = claims.join(volume);
    if fits && path.is_dir() {
        return Ok(path);
    }
    let shown: String = volume.chars().take(256).collect();
    Err(io::Error::new(io::ErrorKind::NotFound, format!("volume `{shown}` is not on this node")))
}

/// Makes an empty directory that belongs to the pod's root, or to its `fsGroup`, and is open to all
/// in the pod, as in kubelet. Its parent is closed to other users of the host.
fn make_directory(path: &Path, ids: IdRange, group: Option<u32>) -> io::Result<()> {
    std::fs::create_dir_all(path)?;
    let owner = ids.to_host(0);
    let group = ids.to_host(group.unwrap_or(0));
    std::os::unix::fs::chown(path, owner, group)?;
    // With the setgid bit, so that files in it keep the group.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o2777))
}
