//! The overlays of an ordinary user. Their layers are the directories themselves, with unmapped
//! owners.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use warren_sys::mount::{self, Attributes, FsOption};

use super::{
    Detached, Layers, Step, StepError, VOLATILE, Writable, open_shown, overlay_on_attached,
    overlay_on_detached,
};
use crate::kernel::{self, Layering};
use crate::protocol::Overlay;

/// Makes one overlay, or its replacement.
pub(super) fn overlay(
    overlay: &Overlay,
    writable: &Writable,
    layers: &Layers<'_>,
) -> Result<Vec<Detached>, StepError> {
    let attributes = Attributes { no_suid: layers.no_suid, ..Attributes::NO_SUID_NO_DEV };
    let lower = overlay
        .lower
        .iter()
        .map(|directory| match &overlay.view {
            Some(view) => open_shown(directory, view),
            None => {
                rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                    .step(|| format!("open {}", directory.display()))
            }
        })
        .collect::<Result<Vec<_>, _>>()?;
    let options = [VOLATILE, FsOption::Flag("userxattr")];
    let made = match layers.layering {
        Layering::Detached => overlay_on_detached(&lower, writable, &options, attributes),
        Layering::Attached => overlay_on_attached(&lower, writable, &options, attributes),
    };
    match made {
        Ok(mount) => Ok(vec![Detached { mount, target: overlay.target.clone(), is_directory: true }]),
        // The overlay failed. Either a mount below the directory (for example a separate
        // `/usr/local`) can be left out by root only, or the file system does not support overlays.
        // The read-only directory with its mounts is enough for programs, but not for the root or
        // for a view.
        Err(_) if overlay.target != Path::new("/") && overlay.view.is_none() => {
            read_only(overlay, &lower, attributes)
                .step(|| format!("show {} read-only", overlay.target.display()))
        }
        Err(error) => Err(kernel::explain_overlay(error))
            .step(|| format!("make the overlay of {}", overlay.target.display())),
    }
}

/// Shows the lowest layer itself and covers the paths that higher layers hide. Higher layers
/// contain nothing else: only system directories are shown below a root, and only covers lie over
/// them.
fn read_only(overlay: &Overlay, lower: &[OwnedFd], attributes: Attributes) -> io::Result<Vec<Detached>> {
    let (Some((directory, covers)), Some(layer)) = (overlay.lower.split_last(), lower.last()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let mount = mount::copy_mount_of(layer.as_fd(), true)?;
    mount::restrict(mount.as_fd(), attributes.read_only(), None, true)?;
    let mut mounts = vec![Detached { mount, target: overlay.target.clone(), is_directory: true }];
    let mut hidden = Vec::new();
    for cover in covers {
        find_hidden(cover, Path::new(""), &mut hidden)?;
    }
    for path in hidden {
        // A path that is missing outside is missing inside too.
        let Ok(found) = fs::symlink_metadata(directory.join(&path)) else { continue };
        let mount = match found.is_dir() {
            true => {
                let options = [FsOption::Text("size", "0"), FsOption::Text("nr_inodes", "1")];
                mount::new_file_system("tmpfs", &options, Attributes::NO_SUID_NO_DEV_NO_EXEC.read_only())?
            }
            false => mount::copy_mount(Path::new("/dev/null"), false)?,
        };
        mounts.push(Detached { mount, target: overlay.target.join(&path), is_directory: found.is_dir() });
    }
    Ok(mounts)
}

/// Collects the paths that a layer hides.
fn find_hidden(layer: &Path, below: &Path, hidden: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(layer.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            find_hidden(layer, &path, hidden)?;
        } else if kind.is_char_device() && entry.metadata()?.rdev() == 0 {
            hidden.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::fs::FileType;

    use super::*;

    #[test]
    fn what_a_cover_hides_is_found() {
        let layer = tempfile::tempdir().unwrap();
        fs::create_dir_all(layer.path().join("a/b")).unwrap();
        fs::write(layer.path().join("a/file"), "").unwrap();
        let hide = |path: &str| {
            let path = layer.path().join(path);
            rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        };
        hide("a/b/directory");
        hide("secret");
        let mut hidden = Vec::new();
        find_hidden(layer.path(), Path::new(""), &mut hidden).unwrap();
        hidden.sort();
        assert_eq!(hidden, [PathBuf::from("a/b/directory"), PathBuf::from("secret")]);
    }
}
