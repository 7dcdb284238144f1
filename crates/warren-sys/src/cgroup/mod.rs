//! Cgroups: one interface for versions 1 and 2.
//!
//! [`Hierarchy::detect`] finds the mounted version. A [`Cgroup`] is one directory on version 2, and
//! one per controller on version 1. Only the names and formats of files differ.

mod v1;
mod v2;

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The limits of one cgroup. Missing values are not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Limits {
    /// The memory limit in bytes, without additional swap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The limit of processor time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuQuota>,
    /// The weight when processors are busy, in version 1's scale: 1024 is one processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_shares: Option<u64>,
    /// The maximum number of processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
}

/// A limit of `quota` microseconds of processor time in every `period` microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuQuota {
    /// Microseconds of processor time, over all processors.
    pub quota: u64,
    /// The period in microseconds.
    pub period: u64,
}

impl CpuQuota {
    /// Converts Kubernetes' thousandths of a processor, with the usual period of 100 ms.
    pub fn from_millis(millis: u64) -> Self {
        // The kernel refuses a quota below 1 ms.
        Self { quota: (millis * 100).max(1000), period: 100_000 }
    }
}

/// The resource usage of a cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stats {
    /// Processor time used so far, in nanoseconds.
    pub cpu_nanoseconds: u64,
    /// The memory in use, in bytes.
    pub memory_bytes: u64,
    /// The memory in use without the inactive page cache, which can be dropped at once. This is
    /// Kubernetes' working set.
    pub memory_working_set_bytes: u64,
    /// The current number of processes and threads.
    pub pids: u64,
}

/// The cgroup file systems of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hierarchy {
    /// Version 1: one mount per controller.
    V1(v1::Mounts),
    /// Version 2: a single mount, or a delegated part of it.
    V2(PathBuf),
    /// No cgroups: a cgroup is only a name, without limits and counters.
    Absent,
}

impl Hierarchy {
    /// Reads the mount table. Version 2 is used if it has the controllers for limits. A "hybrid"
    /// version 2 mount without them, beside version 1, is not.
    pub fn detect() -> io::Result<Self> {
        Self::from_mount_table(&fs::read_to_string("/proc/self/mountinfo")?, |root| {
            fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default()
        })
    }

    fn from_mount_table(table: &str, controllers: impl Fn(&Path) -> String) -> io::Result<Self> {
        let mut mounts = v1::Mounts::default();
        for line in table.lines() {
            // `36 35 98:0 /root /mount/point options [tags] - type source super-options`
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let Some(mount_point) = left.split(' ').nth(4).map(PathBuf::from) else { continue };
            let mut right = right.split(' ');
            match (right.next(), right.nth(1)) {
                (Some("cgroup2"), _) => {
                    let present = controllers(&mount_point);
                    let is_present = |wanted: &&str| present.split_whitespace().any(|name| name == *wanted);
                    if v2::CONTROLLERS.iter().all(is_present) {
                        return Ok(Self::V2(mount_point));
                    }
                    mounts.note_other(&mount_point);
                }
                (Some("cgroup"), Some(options)) => mounts.note(&mount_point, options),
                _ => {}
            }
        }
        if mounts.is_usable() {
            return Ok(Self::V1(mounts));
        }
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "no cgroup hierarchy with the memory, cpu and pids controllers is mounted",
        ))
    }

    /// Returns the part of version 2's tree that is delegated to an ordinary user and that this
    /// process or its ancestor has claimed by [`Self::claim_delegated`]. Otherwise returns
    /// `Absent`, also on version 1, whose controllers must not be given to users.
    pub fn delegated() -> io::Result<Self> {
        let (table, own) =
            (fs::read_to_string("/proc/self/mountinfo")?, fs::read_to_string("/proc/self/cgroup")?);
        Ok(match own_cgroup(&table, &own) {
            Some(OwnCgroup { given, is_claimed: true }) => Self::V2(given),
            _ => Self::Absent,
        })
    }

    /// Takes possession of the cgroup of this process, if its user may divide it (for example a
    /// systemd user service with `Delegate=yes`) and it has the controllers for limits. A cgroup
    /// with processes of its own cannot enable controllers for its children, so this process moves
    /// to a child cgroup. If other processes remain, nothing is changed.
    pub fn claim_delegated() -> io::Result<Self> {
        let (table, own) =
            (fs::read_to_string("/proc/self/mountinfo")?, fs::read_to_string("/proc/self/cgroup")?);
        let given = match own_cgroup(&table, &own) {
            None => return Ok(Self::Absent),
            Some(OwnCgroup { given, is_claimed: true }) => return Ok(Self::V2(given)),
            Some(OwnCgroup { given, is_claimed: false }) => given,
        };
        let present = fs::read_to_string(given.join("cgroup.controllers")).unwrap_or_default();
        let is_present = |wanted: &&str| present.split_whitespace().any(|name| name == *wanted);
        let is_ours = ["cgroup.procs", "cgroup.subtree_control"]
            .iter()
            .all(|file| rustix::fs::access(given.join(file), rustix::fs::Access::WRITE_OK).is_ok());
        if !is_ours || !v2::CONTROLLERS.iter().all(is_present) {
            return Ok(Self::Absent);
        }
        let place = given.join(DAEMON_PLACE);
        match fs::create_dir(&place) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        write_file(&place.join("cgroup.procs"), "0")?;
        if v2::pass_on_controllers(&given).is_ok() {
            return Ok(Self::V2(given));
        }
        write_file(&given.join("cgroup.procs"), "0")?;
        // This fails if another daemon is in it.
        let _ = fs::remove_dir(&place);
        Ok(Self::Absent)
    }

    /// Returns 1 or 2, or 0 without cgroups.
    pub fn version(&self) -> u8 {
        match self {
            Self::V1(_) => 1,
            Self::V2(_) => 2,
            Self::Absent => 0,
        }
    }

    /// Returns the directories of the cgroup `name`, existing or not.
    fn directories(&self, name: &str) -> Vec<PathBuf> {
        match self {
            Self::V1(mounts) => {
                let roots = mounts.roots().chain(mounts.others.iter().map(PathBuf::as_path));
                roots.map(|root| root.join(name)).collect()
            }
            Self::V2(root) => vec![root.join(name)],
            Self::Absent => Vec::new(),
        }
    }

    /// Returns the names of the cgroups directly below `name`, of all controllers.
    pub fn children(&self, name: &str) -> io::Result<Vec<String>> {
        let mut names = std::collections::BTreeSet::new();
        for directory in self.directories(name) {
            let entries = match fs::read_dir(directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            for entry in entries {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    names.insert(entry.file_name().to_string_lossy().into_owned());
                }
            }
        }
        Ok(names.into_iter().collect())
    }
}

/// One cgroup.
#[derive(Debug, Clone)]
pub struct Cgroup {
    hierarchy: Hierarchy,
    name: String,
}

impl Cgroup {
    /// Returns the cgroup `name` (relative to the hierarchy's root), existing or not.
    pub fn named(hierarchy: &Hierarchy, name: &str) -> Self {
        Self { hierarchy: hierarchy.clone(), name: name.to_owned() }
    }

    /// Creates the cgroup `name` with `limits`, and missing parents without limits. The limits of
    /// an existing cgroup are replaced.
    pub fn create(hierarchy: &Hierarchy, name: &str, limits: &Limits) -> io::Result<Self> {
        let cgroup = Self::named(hierarchy, name);
        match hierarchy {
            Hierarchy::V1(mounts) => v1::create(mounts, name, limits)?,
            Hierarchy::V2(root) => v2::create(root, name, limits)?,
            Hierarchy::Absent => {}
        }
        Ok(cgroup)
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens descriptors with which a process can enter later, when it may no longer see the cgroup
    /// file system.
    pub fn entrance(&self) -> io::Result<Entrance> {
        match &self.hierarchy {
            Hierarchy::V1(mounts) => v1::entrance(mounts, &self.name),
            Hierarchy::V2(root) => v2::entrance(root, &self.name),
            Hierarchy::Absent => Ok(Entrance { directory: None, files: Vec::new() }),
        }
    }

    /// Moves a process into the cgroup.
    pub fn add(&self, pid: i32) -> io::Result<()> {
        for directory in self.hierarchy.directories(&self.name) {
            match write_file(&directory.join("cgroup.procs"), &pid.to_string()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Returns the processes in this cgroup and those below it.
    pub fn processes(&self) -> io::Result<Vec<i32>> {
        let mut pids = std::collections::BTreeSet::new();
        let mut pending = self.hierarchy.directories(&self.name);
        while let Some(directory) = pending.pop() {
            match fs::read_to_string(directory.join("cgroup.procs")) {
                Ok(text) => pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok())),
                Err(error) if is_gone(&error) => continue,
                Err(error) => return Err(error),
            }
            pending.extend(subdirectories(&directory)?);
        }
        Ok(pids.into_iter().collect())
    }

    /// Returns the number of processes killed for lack of memory. It includes those of child
    /// cgroups if the kernel counts them.
    pub fn oom_kills(&self) -> io::Result<u64> {
        match &self.hierarchy {
            Hierarchy::V1(mounts) => v1::oom_kills(mounts, &self.name),
            Hierarchy::V2(root) => v2::keyed(&root.join(&self.name).join("memory.events"), "oom_kill"),
            Hierarchy::Absent => Ok(0),
        }
    }

    /// Returns the number of forks that failed because of the pids limit.
    pub fn pids_limit_hits(&self) -> io::Result<u64> {
        let directory = match &self.hierarchy {
            Hierarchy::V1(mounts) => mounts.pids.join(&self.name),
            Hierarchy::V2(root) => root.join(&self.name),
            Hierarchy::Absent => return Ok(0),
        };
        v2::keyed(&directory.join("pids.events"), "max")
    }

    /// Returns descriptors that become ready (exceptional or readable) when [`Self::oom_kills`] may
    /// have changed, and on version 2 also [`Self::pids_limit_hits`].
    pub fn watch(&self) -> io::Result<Vec<Watch>> {
        match &self.hierarchy {
            Hierarchy::V1(mounts) => v1::watch(mounts, &self.name),
            Hierarchy::V2(root) => v2::watch(&root.join(&self.name)),
            Hierarchy::Absent => Ok(Vec::new()),
        }
    }

    /// Freezes every process in this cgroup and below.
    pub fn freeze(&self) -> io::Result<()> {
        match &self.hierarchy {
            Hierarchy::V1(mounts) => v1::set_frozen(mounts, &self.name, true),
            Hierarchy::V2(root) => v2::set_frozen(&root.join(&self.name), true),
            Hierarchy::Absent => Err(without_cgroups()),
        }
    }

    /// Thaws the processes.
    pub fn thaw(&self) -> io::Result<()> {
        match &self.hierarchy {
            Hierarchy::V1(mounts) => v1::set_frozen(mounts, &self.name, false),
            Hierarchy::V2(root) => v2::set_frozen(&root.join(&self.name), false),
            Hierarchy::Absent => Err(without_cgroups()),
        }
    }

    /// Sends `SIGKILL` to every process in this cgroup and below. Repeat it until
    /// [`Self::processes`] is empty: on version 1 a process may fork between the listing and the
    /// signal.
    pub fn kill_all(&self) -> io::Result<()> {
        if let Hierarchy::V2(root) = &self.hierarchy {
            match write_file(&root.join(&self.name).join("cgroup.kill"), "1") {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => return other,
            }
        }
        for pid in self.processes()? {
            // Check the membership after the process is pinned and before the signal is sent: the
            // number may have been reused.
            let Ok(pidfd) = crate::process::open_pidfd(pid) else { continue };
            if self.contains(pid) {
                let _ = crate::process::send_signal(pidfd.as_fd(), libc::SIGKILL);
            }
        }
        Ok(())
    }

    fn contains(&self, pid: i32) -> bool {
        let wanted = format!("/{}", self.name);
        fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| {
            text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).any(|path| {
                path.strip_prefix(&wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
        })
    }

    /// Returns the processor time used so far, in nanoseconds.
    pub fn processor_nanoseconds(&self) -> io::Result<u64> {
        match &self.hierarchy {
            Hierarchy::V1(mounts) => v1::processor_nanoseconds(mounts, &self.name),
            Hierarchy::V2(root) => v2::processor_nanoseconds(&root.join(&self.name)),
            Hierarchy::Absent => Err(without_cgroups()),
        }
    }

    /// Returns the resource usage.
    pub fn stats(&self) -> io::Result<Stats> {
        match &self.hierarchy {
            Hierarchy::V1(mounts) => v1::stats(mounts, &self.name),
            Hierarchy::V2(root) => v2::stats(&root.join(&self.name)),
            Hierarchy::Absent => Err(without_cgroups()),
        }
    }

    /// Removes the cgroup and everything below it. Fails with `ResourceBusy` while it contains
    /// processes. A missing cgroup is no error.
    pub fn remove(&self) -> io::Result<()> {
        for directory in self.hierarchy.directories(&self.name) {
            remove_tree(&directory)?;
        }
        Ok(())
    }
}

/// Descriptors with which a process enters a cgroup.
#[derive(Debug)]
pub struct Entrance {
    /// The directory on version 2, for `CLONE_INTO_CGROUP`.
    directory: Option<OwnedFd>,
    /// The files to which a process writes `0` to move itself.
    files: Vec<OwnedFd>,
}

impl Entrance {
    /// Returns the directory that a process can be cloned into (version 2 only).
    pub fn clone_into(&self) -> Option<BorrowedFd<'_>> {
        self.directory.as_ref().map(AsFd::as_fd)
    }

    /// Returns the files that [`Self::enter`] writes to, to pass them to another process.
    pub fn files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.files.iter().map(AsFd::as_fd)
    }

    /// Builds an entrance from the files of another process.
    pub fn from_files(files: Vec<OwnedFd>) -> Self {
        Self { directory: None, files }
    }

    /// Moves the calling process in. It must be single-threaded.
    pub fn enter(&self) -> io::Result<()> {
        for file in &self.files {
            rustix::io::write(file, b"0")?;
        }
        Ok(())
    }
}

/// A descriptor to wait on.
#[derive(Debug)]
pub struct Watch {
    /// The descriptor.
    pub descriptor: OwnedFd,
    /// True if it reports as exceptional (`POLLPRI`) and must be read from its start. False if it
    /// becomes readable.
    pub exceptional: bool,
}

/// The child cgroup that the daemon of an ordinary user moves to.
const DAEMON_PLACE: &str = "warren-daemon";

/// The cgroup of a process.
#[derive(Debug, PartialEq, Eq)]
struct OwnCgroup {
    /// The cgroup that is delegated to its user: its own, or the parent of the daemon's.
    given: PathBuf,
    /// True if the process is in the daemon's cgroup.
    is_claimed: bool,
}

/// Parses `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn own_cgroup(table: &str, own: &str) -> Option<OwnCgroup> {
    let path = Path::new(own.lines().find_map(|line| line.strip_prefix("0::/"))?);
    let is_claimed = path.file_name().is_some_and(|name| name == DAEMON_PLACE);
    let path = if is_claimed { path.parent()? } else { path };
    let mount_point = table.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ');
        // If only a part of the tree is mounted, the names do not match the kernel's.
        let (root, place) = (left.nth(3)?, left.next()?);
        (root == "/" && right.starts_with("cgroup2 ")).then(|| PathBuf::from(place))
    })?;
    Some(OwnCgroup { given: mount_point.join(path), is_claimed })
}

fn without_cgroups() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "this needs cgroups, and none were given to this user")
}

fn write_file(path: &Path, text: &str) -> io::Result<()> {
    // Neither create nor truncate: the file exists, or the controller does not.
    let opened = fs::OpenOptions::new().write(true).open(path);
    opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| {
        io::Error::new(error.kind(), format!("write `{text}` to {}: {error}", path.display()))
    })
}

fn read_number(path: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    text.trim().parse().map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{} is not a number", path.display()))
    })
}

fn make_directories(root: &Path, name: &str) -> io::Result<()> {
    match fs::create_dir(root.join(name)) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match name.rsplit_once('/') {
            Some((parent, _)) => {
                make_directories(root, parent)?;
                match fs::create_dir(root.join(name)) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                    _ => Ok(()),
                }
            }
            None => Err(error),
        },
        Err(error) => Err(error),
    }
}

fn subdirectories(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

fn remove_tree(directory: &Path) -> io::Result<()> {
    match fs::remove_dir(directory) {
        Err(error) if is_gone(&error) => return Ok(()),
        // Busy means processes or children. Remove the children.
        Err(error) if error.kind() != io::ErrorKind::ResourceBusy => return Err(error),
        Err(_) => {}
        Ok(()) => return Ok(()),
    }
    for child in subdirectories(directory)? {
        remove_tree(&child)?;
    }
    match fs::remove_dir(directory) {
        Err(error) if !is_gone(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Returns true for errors of removed cgroups: an open file of one returns ENODEV.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

#[cfg(test)]
mod tests;
