//! Collects the facts about this machine.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use warren_oci::machine;
use warren_oci::privileges::FurtherIds;

use crate::lock::{Holder, holder};

/// The programs of runtimes that a RuntimeClass can name.
const RUNTIMES: [&str; 4] = ["runsc", "crun", "runc", "kata-runtime"];
const NAMESPACES: [(&str, &str); 7] = [
    ("user", "user"),
    ("pid", "pid"),
    ("mnt", "mount"),
    ("net", "network"),
    ("ipc", "ipc"),
    ("uts", "uts"),
    ("cgroup", "cgroup"),
];

/// The facts about this machine that matter to a local home. Errors are texts for people.
#[derive(Clone, Debug)]
pub struct Facts {
    /// True for root.
    pub root: bool,
    /// The result of making a home's namespaces as an ordinary user. Root does not try it.
    pub ordinary_user: Result<(), String>,
    /// The further ids that sandboxes of an ordinary user can have.
    pub further_ids: FurtherIds,
    /// The kernel's release.
    pub release: String,
    /// The kinds of namespaces that the kernel lacks.
    pub missing_namespaces: Vec<&'static str>,
    /// The result of making all of them.
    pub namespaces: Result<(), String>,
    /// The maximum number of user namespaces, if known.
    pub most_user_namespaces: Option<u64>,
    /// True if AppArmor denies them to unconfined programs.
    pub apparmor_restricts: bool,
    /// True if Debian's switch denies them to ordinary users.
    pub debian_forbids: bool,
    /// The version of cgroups with the controllers for limits, or 0 for an ordinary user without
    /// delegated cgroups.
    pub cgroup_version: Result<u8, String>,
    /// True if system calls can be filtered.
    pub seccomp: bool,
    /// True if programs cannot be executed from memory.
    pub forbids_programs_in_memory: bool,
    /// True if overlays can be mounted. An error if that is unknown.
    pub overlay: Result<bool, String>,
    /// The result of setting packet rules.
    pub packet_rules: Result<(), String>,
    /// The runtimes that were found, with their programs.
    pub runtimes: Vec<(&'static str, PathBuf)>,
    /// The data directory, existing or not.
    pub data_dir: PathBuf,
    /// The file system of the data directory.
    pub file_system: FileSystem,
    /// The free space.
    pub space: Space,
    /// The daemon that runs the home, if any.
    pub holder: Option<Holder>,
}

/// Kinds of file systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// ext4, ext3 or ext2.
    Ext4,
    /// XFS.
    Xfs,
    /// Btrfs.
    Btrfs,
    /// tmpfs.
    Tmpfs,
    /// An overlay, as in a container.
    Overlay,
    /// A network file system.
    Network,
    /// A FUSE file system.
    Fuse,
    /// Any other, by its number.
    Other(u64),
}

impl fmt::Display for FileSystem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileSystem::Ext4 => formatter.write_str("ext4"),
            FileSystem::Xfs => formatter.write_str("xfs"),
            FileSystem::Btrfs => formatter.write_str("btrfs"),
            FileSystem::Tmpfs => formatter.write_str("tmpfs"),
            FileSystem::Overlay => formatter.write_str("an overlay"),
            FileSystem::Network => formatter.write_str("a network file system"),
            FileSystem::Fuse => formatter.write_str("fuse"),
            FileSystem::Other(number) => write!(formatter, "a file system of type {number:#x}"),
        }
    }
}

impl FileSystem {
    /// Converts the number from `statfs`.
    fn of_type(number: u64) -> Self {
        match number {
            0xef53 => FileSystem::Ext4,
            0x5846_5342 => FileSystem::Xfs,
            0x9123_683e => FileSystem::Btrfs,
            0x0102_1994 => FileSystem::Tmpfs,
            0x794c_7630 => FileSystem::Overlay,
            0x6969 | 0xff53_4d42 | 0xfe53_4d42 | 0x0102_1997 => FileSystem::Network,
            0x6573_5546 => FileSystem::Fuse,
            other => FileSystem::Other(other),
        }
    }
}

/// The free space of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// The number of bytes that we may still use.
    pub free_bytes: u64,
    /// The number of files that we may still create, if counted.
    pub free_inodes: Option<u64>,
}

impl Facts {
    /// Examines the machine for a home in `data_dir`. Programs are looked up in `path`. It leaves
    /// nothing behind. The process must be single-threaded.
    pub fn read(data_dir: &Path, path: Option<&std::ffi::OsStr>) -> io::Result<Facts> {
        let root = rustix::process::geteuid().is_root();
        let in_words = |error: io::Error| error.to_string();
        let there = nearest_existing(data_dir);
        let kind = rustix::fs::statfs(there)?;
        let room = rustix::fs::statvfs(there)?;
        let ordinary_user = if root { Ok(()) } else { machine::try_ordinary_user().map_err(in_words) };
        Ok(Facts {
            root,
            further_ids: FurtherIds::of_this_user(),
            release: rustix::system::uname().release().to_string_lossy().into_owned(),
            missing_namespaces: NAMESPACES
                .into_iter()
                .filter(|(file, _)| !Path::new("/proc/self/ns").join(file).exists())
                .map(|(_, name)| name)
                .collect(),
            namespaces: machine::try_namespaces().map_err(in_words),
            most_user_namespaces: number("/proc/sys/user/max_user_namespaces"),
            apparmor_restricts: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(1),
            debian_forbids: number("/proc/sys/kernel/unprivileged_userns_clone") == Some(0),
            cgroup_version: machine::cgroup_version().map_err(in_words),
            seccomp: Path::new("/proc/sys/kernel/seccomp/actions_avail").exists(),
            forbids_programs_in_memory: number("/proc/sys/vm/memfd_noexec") == Some(2),
            // For an ordinary user, the check above included it.
            overlay: if root || ordinary_user.is_err() { overlay(root).map_err(in_words) } else { Ok(true) },
            ordinary_user,
            packet_rules: machine::try_packet_rules().map_err(in_words),
            runtimes: runtimes(path),
            data_dir: data_dir.to_owned(),
            // The type of this field differs between architectures.
            file_system: FileSystem::of_type(kind.f_type as u64 & 0xffff_ffff),
            space: Space {
                free_bytes: room.f_bavail.saturating_mul(room.f_frsize),
                free_inodes: (room.f_files > 0).then_some(room.f_favail),
            },
            holder: holder(data_dir).ok().flatten(),
        })
    }

    /// Returns true if the kernel is of this version or later. A release that cannot be parsed
    /// counts as later.
    pub(super) fn is_at_least(&self, version: (u32, u32)) -> bool {
        let mut numbers =
            self.release.split(|character: char| !character.is_ascii_digit()).map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= version,
            _ => true,
        }
    }
}

fn number(path: &str) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Checks for overlays. Root tries one. An ordinary user only sees if the kernel has already loaded
/// the module.
fn overlay(root: bool) -> io::Result<bool> {
    let known = std::fs::read_to_string("/proc/filesystems")?;
    if known.lines().any(|line| line.trim_start_matches("nodev").trim() == "overlay") {
        return Ok(true);
    }
    match root {
        true => machine::knows_overlay(),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

fn runtimes(path: Option<&std::ffi::OsStr>) -> Vec<(&'static str, PathBuf)> {
    let directories: Vec<PathBuf> =
        path.map(|path| std::env::split_paths(path).collect()).unwrap_or_default();
    let find =
        |name: &str| directories.iter().map(|directory| directory.join(name)).find(|path| path.is_file());
    RUNTIMES.into_iter().filter_map(|name| Some((name, find(name)?))).collect()
}

fn nearest_existing(path: &Path) -> &Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"))
}
