//! Finds a host path that a pod may have as a volume.

use std::io;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::Volume;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use warren_decide::pod::{HostPath, find_host_path};

/// Returns the allowed directory that contains a volume, and the path within it, if it exists and
/// has the type that the pod names. It is never created: the host's directories are not ours.
pub(crate) fn find(allowed: &[HostPath], path: &str, volume: &Volume) -> io::Result<(PathBuf, String)> {
    let wanted = match &volume.host_path {
        Some(source) => source.type_.as_deref().unwrap_or_default(),
        // A view is of a directory.
        None => "Directory",
    };
    let denied = || io::Error::new(io::ErrorKind::PermissionDenied, "pods may not have this path");
    let (directory, inside) = find_host_path(allowed, path).ok_or_else(denied)?;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let top = rustix::fs::open(directory.path.as_str(), flags | OFlags::DIRECTORY, Mode::empty())?;
    let stay = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let place = if inside.is_empty() { "." } else { inside.as_str() };
    let found = rustix::fs::openat2(&top, place, flags, Mode::empty(), stay)?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode);
    match (wanted, kind) {
        ("", _) | ("Directory", FileType::Directory) | ("File", FileType::RegularFile) => {}
        _ => return Err(io::Error::other(format!("hostPath type check failed: {path} is not a {wanted}"))),
    }
    Ok((directory.path.clone().into(), inside))
}
