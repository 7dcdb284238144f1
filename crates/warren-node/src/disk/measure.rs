//! Counts a pod's files. They are hostile: trees of any depth, names that change meanwhile, deleted
//! files that are still open.

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use warren_decide::pod::{Amount, DiskUsage};
use warren_oci::protocol::ContainerStatus;

use crate::pod_registry::Entry;
use crate::pod_request::PodDirectory;

/// The depth limit: each level takes a descriptor while it is read. Real projects are not so deep.
const DEEPEST: usize = 4000;

/// File systems in memory, by the numbers of `statfs`: their files count as memory.
const IN_MEMORY: [i64; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];

/// The error of an incomplete count.
#[derive(Debug, thiserror::Error)]
pub(super) enum MeasureError {
    #[error("directories lie more than {DEEPEST} deep in each other")]
    TooDeep,
    #[error("count files")]
    Io(#[from] io::Error),
}

/// Counts a pod's files as far as possible: its directory, and deleted files that these processes
/// still have open.
pub(super) fn measure(directory: &PodDirectory, processes: &[i32]) -> (DiskUsage, Result<(), MeasureError>) {
    let mut usage = DiskUsage::default();
    let mut count = Count::default();
    let result = count_all(&mut usage, &mut count, directory);
    for pid in processes {
        usage.others = usage.others.saturating_add(count.nameless(*pid));
    }
    (usage, result)
}

/// Returns the first process of each of a pod's containers.
pub(super) fn first_processes(entry: &Entry) -> Vec<i32> {
    let state = entry.state.borrow();
    let containers = state.iter().flat_map(|state| state.containers.values());
    let first = containers.filter_map(|container| match &container.status {
        ContainerStatus::Running { process, .. } => Some(process.pid),
        _ => None,
    });
    first.collect()
}

/// Returns all processes in the same containers, that is in the same pid namespaces.
pub(super) fn processes_beside(first: &[i32]) -> Vec<i32> {
    let namespace = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let inside: HashSet<PathBuf> = first.iter().filter_map(|pid| namespace(*pid)).collect();
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| namespace(*pid).is_some_and(|namespace| inside.contains(&namespace))).collect()
}

fn count_all(usage: &mut DiskUsage, count: &mut Count, directory: &PodDirectory) -> Result<(), MeasureError> {
    let mut result = Ok(());
    for entry in read(&directory.0)? {
        let (name, path) = entry?;
        let kinds = match name.as_str() {
            "containers" | "logs" => &mut usage.containers,
            "volumes" => &mut usage.volumes,
            _ => {
                let (amount, counted) = count.tree(&path);
                usage.others = usage.others.saturating_add(amount);
                result = result.and(counted);
                continue;
            }
        };
        for entry in read(&path)? {
            let (name, path) = entry?;
            let (amount, counted) = count.tree(&path);
            let sum = kinds.entry(name).or_default();
            *sum = sum.saturating_add(amount);
            result = result.and(counted);
        }
    }
    result
}

/// Lists a directory of the node. A missing one counts as empty.
fn read(directory: &Path) -> io::Result<impl Iterator<Item = io::Result<(String, PathBuf)>>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        other => Some(other?),
    };
    Ok(entries
        .into_iter()
        .flatten()
        .map(|entry| entry.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()))))
}

#[derive(Default)]
struct Count {
    /// Files with several links, or none, that were counted already.
    seen: HashSet<(u64, u64)>,
}

impl Count {
    /// Returns the size of a file or tree, as far as it could be counted.
    fn tree(&mut self, path: &Path) -> (Amount, Result<(), MeasureError>) {
        let mut amount = Amount::default();
        let result = self.add_tree(path, &mut amount);
        (amount, result)
    }

    fn add_tree(&mut self, path: &Path, amount: &mut Amount) -> Result<(), MeasureError> {
        let mut add = |bytes| *amount = amount.saturating_add(Amount { bytes, inodes: 1 });
        let flags =
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let top = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(top) => top,
            Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                if let Ok(file) = std::fs::symlink_metadata(path) {
                    add(file.blocks() * 512);
                }
                return Ok(());
            }
            Err(error) => return Err(io::Error::from(error).into()),
        };
        add(on_disk(&rustix::fs::fstat(&top).map_err(io::Error::from)?));
        let mut open = vec![Dir::new(top).map_err(io::Error::from)?];
        while let Some(directory) = open.last_mut() {
            let Some(entry) = directory.read() else {
                open.pop();
                continue;
            };
            let entry = entry.map_err(io::Error::from)?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let here = directory.fd().map_err(io::Error::from)?;
            let found = match rustix::fs::statat(here, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) => found,
                // Deleted meanwhile.
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(io::Error::from(error).into()),
            };
            let is_directory = FileType::from_raw_mode(found.st_mode).is_dir();
            if !is_directory && found.st_nlink > 1 && !self.seen.insert((found.st_dev, found.st_ino)) {
                continue;
            }
            add(on_disk(&found));
            if is_directory {
                match rustix::fs::openat(here, name, flags, Mode::empty()) {
                    Ok(_) if open.len() >= DEEPEST => return Err(MeasureError::TooDeep),
                    Ok(next) => open.push(Dir::new(next).map_err(io::Error::from)?),
                    // Deleted or replaced meanwhile.
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                    Err(error) => return Err(io::Error::from(error).into()),
                }
            }
        }
        Ok(())
    }

    /// Returns the size of deleted files that a process has open or mapped. Processes come and go;
    /// unreadable entries are skipped.
    fn nameless(&mut self, pid: i32) -> Amount {
        let mut amount = Amount::default();
        for place in ["fd", "map_files"] {
            let entries = std::fs::read_dir(format!("/proc/{pid}/{place}")).into_iter().flatten().flatten();
            for path in entries.map(|entry| entry.path()) {
                // The kernel resolves this link to the very file, whatever its name was.
                let Ok(file) = std::fs::metadata(&path) else { continue };
                let is_nameless = file.is_file() && file.nlink() == 0;
                if !is_nameless || !self.seen.insert((file.dev(), file.ino())) {
                    continue;
                }
                let kind = rustix::fs::statfs(&path).map_or(0, |kind| kind.f_type);
                if !IN_MEMORY.contains(&kind) {
                    amount = amount.saturating_add(Amount { bytes: file.blocks() * 512, inodes: 1 });
                }
            }
        }
        amount
    }
}

fn on_disk(file: &rustix::fs::Stat) -> u64 {
    u64::try_from(file.st_blocks).unwrap_or(0) * 512
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    const MIB: usize = 1 << 20;

    fn write(path: &Path, bytes: usize) -> std::fs::File {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut file = std::fs::File::create(path).unwrap();
        file.write_all(&vec![1; bytes]).unwrap();
        file.sync_all().unwrap();
        file
    }

    #[test]
    fn files_are_counted_where_they_belong_and_once() {
        let place = tempfile::tempdir().unwrap();
        let pod = PodDirectory(place.path().to_owned());
        let big = place.path().join("containers/main/0/0.upper/deep/er/big");
        write(&big, MIB);
        std::fs::hard_link(&big, big.with_file_name("same")).unwrap();
        std::os::unix::fs::symlink(place.path(), big.with_file_name("round")).unwrap();
        write(&place.path().join("logs/main/0.log"), MIB / 2);
        write(&place.path().join("volumes/tmp/file"), MIB);
        // A large file without blocks.
        std::fs::File::create(place.path().join("volumes/tmp/sparse")).unwrap().set_len(1 << 40).unwrap();
        write(&place.path().join("state.json"), 100);
        let (usage, result) = measure(&pod, &[]);
        result.unwrap();
        // Directories have blocks, too.
        let near =
            |bytes: u64, expected: usize| (expected as u64..expected as u64 + (64 << 10)).contains(&bytes);
        assert!(near(usage.containers["main"].bytes, 3 * MIB / 2), "{usage:?}");
        assert!(near(usage.volumes["tmp"].bytes, MIB), "{usage:?}");
        assert!(near(usage.total().bytes, 5 * MIB / 2), "{usage:?}");
        // `main`, `0`, `0.upper`, `deep`, `er`, the file by both its names, the link; of the logs,
        // `main` and the file.
        assert_eq!(usage.containers["main"].inodes, 7 + 2, "{usage:?}");
        assert_eq!(usage.volumes["tmp"].inodes, 3, "{usage:?}");
        assert_eq!(usage.others.inodes, 1, "{usage:?}");
        assert_eq!(measure(&PodDirectory(place.path().join("gone")), &[]).0, DiskUsage::default());
    }

    #[test]
    fn files_without_a_name_are_counted_too() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("volumes/tmp/file");
        let file = write(&path, MIB);
        let own = i32::try_from(std::process::id()).unwrap();
        let pod = PodDirectory(place.path().to_owned());
        let before = measure(&pod, &[own]).0;
        assert_eq!(before.volumes["tmp"].inodes, 2, "{before:?}");
        std::fs::remove_file(&path).unwrap();
        let after = measure(&pod, &[own]).0;
        let kind = rustix::fs::statfs(place.path()).unwrap().f_type;
        if !IN_MEMORY.contains(&kind) {
            assert!(after.others.bytes >= before.others.bytes + MIB as u64, "{before:?} {after:?}");
            assert!(after.others.inodes > before.others.inodes, "{before:?} {after:?}");
        }
        assert!(after.volumes["tmp"].bytes < MIB as u64, "{after:?}");
        drop(file);
    }
}
