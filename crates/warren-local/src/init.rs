//! The program that the node brings into containers.

use warren_oci::host_image::HostImage;

/// What runs as the first process of a container that only has to be there, whatever its image.
pub fn init_command() -> Vec<String> {
    HostImage::default_command()
}
