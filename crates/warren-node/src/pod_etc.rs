//! Files of `/etc` that are the pod's and not its images': its name, the names it knows, and whom it asks for others.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use warren_decide::network::CLUSTER_DOMAIN;
use warren_oci::idmap::IdRange;
use warren_oci::spec::{Mount, MountKind};

use crate::network::Lease;

const FILES: [&str; 3] = ["hostname", "hosts", "resolv.conf"];

/// Writes them into a directory of the pod.
pub(crate) fn write(
    directory: &Path,
    hostname: &str,
    namespace: &str,
    lease: Option<&Lease>,
    ids: IdRange,
) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let texts = [format!("{hostname}\n"), hosts(hostname, lease), resolver(namespace, lease)];
    for (name, text) in FILES.into_iter().zip(texts) {
        let path = directory.join(name);
        std::fs::write(&path, text)?;
        std::os::unix::fs::chown(&path, ids.to_host(0), ids.to_host(0))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644))?;
    }
    Ok(())
}

/// They appear in each container, which may write to them, as in Kubernetes.
pub(crate) fn mounts(directory: &Path) -> Vec<Mount> {
    let mount = |name: &str| Mount {
        destination: Path::new("/etc").join(name),
        kind: MountKind::Bind,
        source: Some(directory.join(name)),
        options: vec!["nosuid".to_owned(), "nodev".to_owned()],
    };
    FILES.into_iter().map(mount).collect()
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
