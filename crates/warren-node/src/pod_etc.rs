//! Files of `/etc` that are the pod's and not its images': its name, the names it knows, and whom it asks for others.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use warren_decide::network::CLUSTER_DOMAIN;
use warren_oci::host_image::INIT_PATH;

use crate::network::Lease;

const FILES: [&str; 3] = ["hostname", "hosts", "resolv.conf"];

/// Writes them into a layer, a directory that becomes the topmost of the root file systems that the pod's containers have:
/// they can change them, each for itself, and see no path of the host, as they would of mounted files.
pub(crate) fn write(layer: &Path, hostname: &str, namespace: &str, lease: Option<&Lease>) -> io::Result<()> {
    let directory = layer.join("etc");
    std::fs::create_dir_all(&directory)?;
    let texts = [format!("{hostname}\n"), hosts(hostname, lease), resolver(namespace, lease)];
    for (name, text) in FILES.into_iter().zip(texts) {
        std::fs::write(directory.join(name), text)?;
    }
    // Whatever mask this process has.
    let open = std::fs::Permissions::from_mode;
    std::fs::set_permissions(layer, open(0o755))?;
    std::fs::set_permissions(&directory, open(0o755))?;
    FILES.into_iter().try_for_each(|name| std::fs::set_permissions(directory.join(name), open(0o644)))
}

/// Adds the program of idle containers to a layer, at [`INIT_PATH`]. Another name of the file in the built-in image will do: layers
/// are only read.
pub(crate) fn add_init(layer: &Path, program: &Path) -> io::Result<()> {
    let path = layer.join(INIT_PATH.trim_start_matches('/'));
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
        std::fs::set_permissions(parent, std::fs::Permissions::from_mode(0o755))?;
    }
    match std::fs::hard_link(program, &path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn hosts(hostname: &str, lease: Option<&Lease>) -> String {
    let own = lease.map_or_else(|| "127.0.0.1".to_owned(), |lease| lease.address.to_string());
    format!("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n{own}\t{hostname}\n")
}

/// As kubelet writes it for a pod that asks the cluster first; empty for a pod that has nobody to ask.
fn resolver(namespace: &str, lease: Option<&Lease>) -> String {
    let Some(lease) = lease else { return String::new() };
    format!(
        "search {namespace}.svc.{CLUSTER_DOMAIN} svc.{CLUSTER_DOMAIN} {CLUSTER_DOMAIN}\n\
         nameserver {}\noptions ndots:5\n",
        lease.gateway
    )
}
