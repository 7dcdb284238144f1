//! Features of this machine's kernel, and explanations of missing ones. The zygote checks them
//! once, so that no start pays for it.
//!
//! The oldest supported kernel is Linux 5.19, the first with overlays on id-mapped layers. All
//! other features are older: `mount_setattr` (5.12), `cgroup.kill` (5.14, with a replacement
//! before), `close_range` to mark descriptors (5.11), `volatile` overlays (5.10), `setns` by a
//! pidfd (5.8), `CLONE_INTO_CGROUP` (5.7), `waitid` by a pidfd (5.4), `clone3` (5.3), the mount API
//! (5.2).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use warren_sys::mount::{self, Attributes, FsOption};

/// The way in which overlays get their layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layering {
    /// From detached mounts: Linux 6.15 and later.
    Detached,
    /// From mounts in the shim's own mount namespace: earlier kernels.
    Attached,
}

/// Checks the features that every start needs. An error names a missing one.
pub(crate) fn probe() -> io::Result<Layering> {
    if !mount::can_restrict() {
        return Err(unsupported("mount_setattr (Linux 5.12)"));
    }
    if !mount::knows_file_system("overlay")? {
        return Err(unsupported("the overlay file system, which is in the kernel's module `overlay`"));
    }
    // Do not try on old kernels: they would log an error about the unknown option.
    if !is_at_least(&release(), 6, 15) {
        return Ok(Layering::Attached);
    }
    let tmpfs = || mount::new_file_system("tmpfs", &[], Attributes::NO_SUID_NO_DEV.read_only());
    let layers = [tmpfs()?, tmpfs()?];
    Ok(if overlay_of(&layers).is_ok() { Layering::Detached } else { Layering::Attached })
}

/// Makes a read-only overlay from detached mounts.
fn overlay_of(layers: &[OwnedFd]) -> io::Result<OwnedFd> {
    let names: Vec<String> =
        layers.iter().map(|layer| format!("/proc/self/fd/{}", layer.as_raw_fd())).collect();
    let options: Vec<FsOption<'_>> = names.iter().map(|name| FsOption::Text("lowerdir+", name)).collect();
    mount::new_file_system("overlay", &options, Attributes::NO_SUID_NO_DEV.read_only())
}

fn unsupported(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        format!("this machine lacks {what}; containers need Linux 5.19 or later, and this is {}", release()),
    )
}

fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Explains an error about owners of files that cannot be mapped.
pub(crate) fn explain_mapping(error: io::Error, directory: &Path) -> io::Error {
    if error.kind() != io::ErrorKind::InvalidInput {
        return error;
    }
    let text = format!(
        "the file system of {} cannot map owners on Linux {}: ext4, xfs and btrfs can, tmpfs from 6.3 on, and an \
         overlay cannot: {error}",
        directory.display(),
        release()
    );
    io::Error::new(io::ErrorKind::Unsupported, text)
}

pub(crate) fn explain_overlay(error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::InvalidInput || is_at_least(&release(), 5, 19) {
        return error;
    }
    io::Error::new(
        io::ErrorKind::Unsupported,
        format!("overlays on id-mapped layers need Linux 5.19, and this is {}: {error}", release()),
    )
}

pub(crate) fn explain_namespaces(error: io::Error) -> io::Error {
    let meaning = match error.raw_os_error() {
        Some(libc::ENOSPC) => "the machine allows no more namespaces: see the files in /proc/sys/user",
        Some(libc::EINVAL) => {
            "the kernel lacks a kind of namespace: user, pid, mount, ipc and uts are needed"
        }
        Some(libc::ENOSYS) => "the kernel lacks clone3 (Linux 5.3)",
        _ => return error,
    };
    io::Error::new(error.kind(), format!("{meaning}: {error}"))
}

/// Returns true if a release such as `6.1.0-54-cloud-amd64` is `major.minor` or later, or cannot be
/// parsed.
fn is_at_least(release: &str, major: u32, minor: u32) -> bool {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(found)), Some(Ok(second))) => (found, second) >= (major, minor),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        assert!(is_at_least("6.1.0-54-cloud-amd64", 5, 19));
        assert!(is_at_least("5.19", 5, 19));
        assert!(!is_at_least("5.4.0-1", 5, 19));
        assert!(is_at_least("strange", 5, 19));
    }
}
