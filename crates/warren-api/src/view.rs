//! Views: volumes that show a directory of the machine, and keep apart what a container writes there.
//!
//! A view is an inline CSI volume of the driver [`DRIVER`]. A node that does not know the driver does not start the pod,
//! so that no other node takes it for a directory that may be written.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{CSIVolumeSource, Volume};

/// The name of the CSI driver.
pub const DRIVER: &str = "view.warren.dev";

/// The volume attribute that names the directory.
pub const PATH: &str = "path";

/// Returns a volume that is a view of a directory.
pub fn volume(name: &str, path: &str) -> Volume {
    let csi = CSIVolumeSource {
        driver: DRIVER.to_owned(),
        volume_attributes: Some(BTreeMap::from([(PATH.to_owned(), path.to_owned())])),
        ..CSIVolumeSource::default()
    };
    Volume { name: name.to_owned(), csi: Some(csi), ..Volume::default() }
}

/// Returns the directory that a view shows, which is empty if the volume does not say; none for another volume.
pub fn path(volume: &Volume) -> Option<&str> {
    let csi = volume.csi.as_ref().filter(|csi| csi.driver == DRIVER)?;
    let attributes = csi.volume_attributes.as_ref();
    Some(attributes.and_then(|attributes| attributes.get(PATH)).map_or("", String::as_str))
}
