//! Writes files that show other objects and replaces them atomically: a reader sees all of the old
//! or all of the new.
//!
//! As in kubelet, the files lie in a directory that is named by the time, the link `..data` leads
//! to the newest, and each visible name is a link through `..data`.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, lchown, symlink};
use std::path::Path;

use jiff::Timestamp;
use warren_decide::pod::VolumeFile;
use warren_oci::idmap::{IdRange, no_such_id};

/// The owners of the files, as seen inside the pod.
pub(super) struct Owners {
    pub(super) ids: IdRange,
    pub(super) group: u32,
}

impl Owners {
    fn give(&self, path: &Path, user: u32) -> io::Result<()> {
        let unmapped = || no_such_id(self.ids);
        let user = self.ids.to_host(user).ok_or_else(unmapped)?;
        let group = self.ids.to_host(self.group).ok_or_else(unmapped)?;
        lchown(path, Some(user), Some(group))
    }
}

const NEWEST: &str = "..data";

/// Makes `base` show exactly these files. Only this process writes there: containers have it
/// read-only. After a crash at any point, a repetition gives the same result.
pub(super) fn write(base: &Path, files: &[VolumeFile], owners: &Owners, now: Timestamp) -> io::Result<()> {
    fs::create_dir_all(base)?;
    fs::set_permissions(base, fs::Permissions::from_mode(0o755))?;
    owners.give(base, 0)?;
    let version = format!("..{}", now.strftime("%Y_%m_%d_%H_%M_%S.%9f"));
    let fresh = base.join(&version);
    make_directory(&fresh, owners)?;
    for file in files {
        let path = fresh.join(&file.path);
        let parents = Path::new(&file.path).ancestors().skip(1).filter(|parent| *parent != Path::new(""));
        let mut parents: Vec<&Path> = parents.collect();
        parents.reverse();
        for parent in parents {
            match make_directory(&fresh.join(parent), owners) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                other => other?,
            }
        }
        let mut written = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        io::Write::write_all(&mut written, &file.data)?;
        owners.give(&path, file.owner.unwrap_or(0))?;
        // Last, because a change of owner clears bits.
        fs::set_permissions(&path, fs::Permissions::from_mode(file.mode))?;
    }
    link(&version, &base.join("..data_tmp"), owners)?;
    fs::rename(base.join("..data_tmp"), base.join(NEWEST))?;
    let wanted: BTreeSet<&str> = files.iter().filter_map(|file| file.path.split('/').next()).collect();
    for name in &wanted {
        let path = base.join(name);
        if fs::symlink_metadata(&path).is_err() {
            link(&format!("{NEWEST}/{name}"), &path, owners)?;
        }
    }
    for entry in fs::read_dir(base)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name == NEWEST || name == version || wanted.contains(&*name) {
            continue;
        }
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

fn make_directory(path: &Path, owners: &Owners) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o755).create(path)?;
    owners.give(path, 0)
}

fn link(target: &str, path: &Path, owners: &Owners) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(target, path)?;
    owners.give(path, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, data: &str) -> VolumeFile {
        VolumeFile { path: path.to_owned(), data: data.into(), mode: 0o640, owner: None }
    }

    fn shown(base: &Path) -> Vec<String> {
        let entries =
            fs::read_dir(base).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = entries.filter(|name| !name.starts_with("..")).collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_shown_is_exchanged_as_a_whole() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("volume");
        // Without root the tests cannot give files to other owners.
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: files can be given to others by root only");
            return;
        }
        let owners = Owners { ids: IdRange::starting_at(0x7000_0000), group: 7 };
        let at = |second| Timestamp::from_second(second).unwrap();
        write(&path, &[file("a", "1"), file("deep/b", "2")], &owners, at(1)).unwrap();
        assert_eq!(shown(&path), ["a", "deep"]);
        assert_eq!(fs::read_to_string(path.join("deep/b")).unwrap(), "2");
        let metadata = fs::metadata(path.join("a")).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o640);
        use std::os::unix::fs::MetadataExt as _;
        assert_eq!((metadata.uid(), metadata.gid()), (0x7000_0000, 0x7000_0007));

        // A reader that had it open before continues with the old file.
        let before = fs::File::open(path.join("a")).unwrap();
        write(&path, &[file("a", "changed"), file("c", "3")], &owners, at(2)).unwrap();
        assert_eq!(shown(&path), ["a", "c"]);
        assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "changed");
        assert_eq!(io::read_to_string(before).unwrap(), "1");
        let hidden = fs::read_dir(&path).unwrap().count() - shown(&path).len();
        assert_eq!(hidden, 2, "the newest and the link to it");
    }
}
