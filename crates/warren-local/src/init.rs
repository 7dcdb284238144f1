//! The program that the node adds to containers.

use warren_oci::host_image::HostImage;

/// Returns the command of an idle container, for any image.
pub fn init_command() -> Vec<String> {
    HostImage::default_command()
}
