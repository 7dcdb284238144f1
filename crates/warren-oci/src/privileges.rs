//! The privileges of this process, and how an ordinary user's process becomes root of its own user
//! namespace.
//!
//! There it can make mounts, further namespaces and containers, with no more rights than its user:
//! root of a namespace has power only over what belongs to that namespace. [`Privileges`] answers
//! the questions that depend on it (ids, cgroups, network).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::pipe::PipeFlags;
use warren_sys::cgroup::Hierarchy;
use warren_sys::process::{self, Exit, Fork, Namespaces, SingleThreaded};
use warren_sys::{mount, namespace};

use crate::idmap::IdRange;
use crate::kernel;

/// The privileges of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privileges {
    /// It is the machine's root.
    Machine,
    /// It is root of a user namespace, and an ordinary user of the machine.
    Namespace(Given),
    /// It is an ordinary user, and can make no container before [`become_namespace_root`].
    Ordinary,
}

/// The properties of a user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Given {
    /// The number of users and groups in it, from 0 on. 1 if there is only its root.
    pub ids: u32,
    /// True if a process can change its groups. If not, it keeps those of the user who made the
    /// namespace.
    pub sets_groups: bool,
}

impl Privileges {
    /// Detects them from `/proc`.
    pub fn of_this_process() -> io::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self::Ordinary);
        }
        let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}"));
        let (users, groups) = (read("uid_map")?, read("gid_map")?);
        if is_whole(&users) && is_whole(&groups) {
            return Ok(Self::Machine);
        }
        let ids = mapped(&users).min(mapped(&groups)).min(IdRange::LENGTH);
        Ok(Self::Namespace(Given { ids, sets_groups: read("setgroups")?.trim() == "allow" }))
    }

    /// Returns the ids that all pods share, if pods cannot have their own.
    pub fn shared_ids(self) -> Option<IdRange> {
        match self {
            // Ids are the same inside and in our own namespace: owners cannot be mapped here, so
            // files on disk have the ids that pods see.
            Self::Namespace(given) => Some(IdRange { first: 0, length: given.ids.max(1) }),
            Self::Machine | Self::Ordinary => None,
        }
    }

    /// Returns the hierarchy in which cgroups can be made. Without cgroups, root gets an error,
    /// because unlimited containers would be a surprise. An ordinary user has delegated cgroups, or
    /// often none.
    pub fn hierarchy(self) -> io::Result<Hierarchy> {
        match self {
            Self::Machine => Hierarchy::detect(),
            Self::Namespace(_) | Self::Ordinary => Hierarchy::delegated(),
        }
    }

    /// Takes possession of cgroups delegated to an ordinary user, if any. The daemon calls it once,
    /// before it starts anything.
    pub fn claim_cgroups(self) -> io::Result<()> {
        match self {
            Self::Machine => Ok(()),
            Self::Namespace(_) | Self::Ordinary => Hierarchy::claim_delegated().map(drop),
        }
    }

    /// Returns true if memory, processors and processes of a container can be limited.
    pub fn limits_are_enforced(self) -> bool {
        self.hierarchy().is_ok_and(|hierarchy| hierarchy != Hierarchy::Absent)
    }
}

/// Returns true if an id map is that of the machine itself.
fn is_whole(map: &str) -> bool {
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// Returns the number of ids from 0 on without a gap.
fn mapped(map: &str) -> u32 {
    let end = extents(map)
        .into_iter()
        .fold(0, |end, (first, length)| if first == end { end + length } else { end });
    u32::try_from(end).unwrap_or(u32::MAX)
}

/// Parses the inside ids of a map into pairs of first id and length, in order. Lines are `inside
/// outside length`.
fn extents(map: &str) -> Vec<(u64, u64)> {
    let mut lines: Vec<(u64, u64)> = map
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_ascii_whitespace().map(|field| field.parse::<u64>().ok());
            Some((fields.next()??, fields.nth(1)??))
        })
        .collect();
    lines.sort_unstable();
    lines
}

/// The ids that exist in this process's namespace, as the ranges of its map. The kernel maps a
/// pod's ids range by range: no line of a map may span two of them.
#[derive(Debug)]
pub(crate) struct OwnIds {
    users: Vec<(u64, u64)>,
    groups: Vec<(u64, u64)>,
}

impl OwnIds {
    /// Reads them from `/proc`.
    pub(crate) fn of_this_process() -> io::Result<Self> {
        let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}"));
        Ok(Self { users: extents(&read("uid_map")?), groups: extents(&read("gid_map")?) })
    }

    pub(crate) fn user_map(&self, ids: IdRange) -> String {
        map_by_pieces(&self.users, ids)
    }

    pub(crate) fn group_map(&self, ids: IdRange) -> String {
        map_by_pieces(&self.groups, ids)
    }
}

fn map_by_pieces(pieces: &[(u64, u64)], ids: IdRange) -> String {
    let (first, end) = (u64::from(ids.first), u64::from(ids.first) + u64::from(ids.length));
    pieces
        .iter()
        .map(|(start, length)| (first.max(*start), end.min(start + length)))
        .filter(|(start, end)| start < end)
        .map(|(start, end)| format!("{} {start} {}\n", start - first, end - start))
        .collect()
}

/// An error while making a user namespace.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// The process has several threads, and only one of them would be in the namespace.
    #[error("enter a user namespace before any thread")]
    Threads(#[source] io::Error),
    /// The kernel refused.
    #[error("make a user namespace")]
    Make(#[source] io::Error),
    /// The namespace could not be given ids.
    #[error("say who is root in the user namespace")]
    Map(#[source] io::Error),
    /// The namespace gives no rights. A security module that restricts user namespaces causes this.
    #[error("use the rights of a user namespace's root")]
    NoRights(#[source] io::Error),
}

/// Makes this process root of its own user namespace and mount namespace. It has further ids if
/// `/etc/subuid` and `/etc/subgid` give the user some and `newuidmap` is installed. Otherwise root
/// is its only id.
///
/// Afterwards the process must execute a program (its own, for example) before it makes containers.
/// Until then its memory belongs to the old namespace, and so do its files in `/proc` once the
/// process forbids dumps.
pub fn become_namespace_root() -> Result<(), EnterError> {
    let proof = SingleThreaded::verify().map_err(EnterError::Threads)?;
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let ranges = Ranges::of(user);
    let helper = match &ranges {
        Some(ranges) => Some(ranges.helper(proof, user, group).map_err(EnterError::Map)?),
        None => None,
    };
    namespace::unshare(Namespaces::USER.with(Namespaces::MOUNT))
        .map_err(|error| EnterError::Make(kernel::explain_namespaces(error)))?;
    let has_ranges = helper.is_some_and(Helper::map);
    if !has_ranges {
        map_alone(user, group).map_err(EnterError::Map)?;
    }
    // Keep mounts made here from appearing elsewhere.
    mount::keep_mounts_private().map_err(EnterError::NoRights)
}

/// The further ids that an ordinary user's pods can have, and what is missing for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FurtherIds {
    /// The number of ids given to the user in both `/etc/subuid` and `/etc/subgid`.
    pub given: u32,
    /// True if `newuidmap` and `newgidmap` are installed, which apply them.
    pub has_programs: bool,
}

impl FurtherIds {
    /// Returns those of this process's user.
    pub fn of_this_user() -> Self {
        let (users, groups) = given_ids(rustix::process::geteuid().as_raw());
        let given = users.zip(groups).map_or(0, |(users, groups)| users.1.min(groups.1));
        Self { given, has_programs: mapping_programs().is_some() }
    }

    /// Returns the number of users and groups in a pod, from 0 on. 1 if there is only its root.
    pub fn in_pods(self) -> u32 {
        if self.has_programs { 1 + self.given } else { 1 }
    }
}

/// Writes the only map that every user may write.
fn map_alone(user: u32, group: u32) -> io::Result<()> {
    // The kernel requires this: a process could otherwise drop a group that denies it something.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1\n"))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1\n"))
}

/// Further ids of a user, and the programs that apply them.
#[derive(Debug, PartialEq, Eq)]
struct Ranges {
    users: (u32, u32),
    groups: (u32, u32),
    for_users: PathBuf,
    for_groups: PathBuf,
}

impl Ranges {
    fn of(user: u32) -> Option<Self> {
        let (users, groups) = given_ids(user);
        let (for_users, for_groups) = mapping_programs()?;
        Some(Self { users: users?, groups: groups?, for_users, for_groups })
    }

    /// Forks a process that stays in the old namespace, where those programs have their rights. It
    /// maps this process when told to.
    fn helper(&self, proof: SingleThreaded, user: u32, group: u32) -> io::Result<Helper> {
        let (wait, go) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let target = std::process::id().to_string();
        match process::fork(proof)? {
            Fork::Parent(child) => Ok(Helper { child, go }),
            Fork::Child => {
                drop(go);
                let mut byte = [0u8; 1];
                if !matches!(rustix::io::read(&wait, &mut byte), Ok(1)) {
                    process::exit_now(1);
                }
                let run = |program: &Path, own: u32, (first, length): (u32, u32)| {
                    let numbers = [0, own, 1, 1, first, length].map(|number| number.to_string());
                    let status = Command::new(program).arg(&target).args(numbers).status();
                    status.is_ok_and(|status| status.success())
                };
                let done =
                    run(&self.for_users, user, self.users) && run(&self.for_groups, group, self.groups);
                process::exit_now(i32::from(!done))
            }
        }
    }
}

#[derive(Debug)]
struct Helper {
    child: process::Child,
    go: std::os::fd::OwnedFd,
}

impl Helper {
    /// Has the helper write the maps. Returns true on success.
    fn map(self) -> bool {
        let told = rustix::io::write(&self.go, b"!").is_ok();
        // If the message was not sent, the helper sees the pipe close.
        drop(self.go);
        matches!(self.child.wait(), Ok(Exit::Code(0))) && told
    }
}

/// The first id of a range, and its length.
type GivenRange = (u32, u32);

/// Returns the ranges of users and of groups that a user was given.
fn given_ids(user: u32) -> (Option<GivenRange>, Option<GivenRange>) {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let name = user_name(&read("/etc/passwd"), user);
    let range = |path: &str| range(&read(path), user, name.as_deref());
    (range("/etc/subuid"), range("/etc/subgid"))
}

/// Returns the programs that map users and groups, if both are installed.
fn mapping_programs() -> Option<(PathBuf, PathBuf)> {
    let program = |name: &str| {
        let directories = ["/usr/bin", "/usr/local/bin", "/bin"].into_iter();
        directories.map(|directory| Path::new(directory).join(name)).find(|path| path.is_file())
    };
    Some((program("newuidmap")?, program("newgidmap")?))
}

fn user_name(passwd: &str, user: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse::<u32>() == Ok(user)).then(|| name.to_owned())
    })
}

/// Returns the first range of a user, by name or number. Lines are `user:first:length`.
fn range(table: &str, user: u32, name: Option<&str>) -> Option<(u32, u32)> {
    let number = user.to_string();
    table.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        let who = fields.next()?;
        if who != number && Some(who) != name {
            return None;
        }
        let (first, length) = (fields.next()?.parse::<u32>().ok()?, fields.next()?.parse::<u32>().ok()?);
        (length > 0).then(|| (first, length.min(IdRange::LENGTH - 1)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_read_as_the_kernel_writes_them() {
        assert!(is_whole("         0          0 4294967295\n"));
        let alone = "         0       1000          1\n";
        assert!(!is_whole(alone));
        assert_eq!(mapped(alone), 1);
        assert_eq!(mapped("0 1000 1\n1 100000 65535\n"), 65_536);
        assert_eq!(mapped("1 100000 65535\n0 1000 1\n"), 65_536);
        // Only root is mapped below the gap.
        assert_eq!(mapped("0 1000 1\n5 100000 10\n"), 1);
        assert_eq!(mapped("1000 1000 1\n"), 0);
        assert_eq!(mapped("nonsense"), 0);
    }

    #[test]
    fn a_pods_ids_are_mapped_by_the_pieces_that_we_have() {
        let map = |own: &str, first, length| map_by_pieces(&extents(own), IdRange { first, length });
        let machine = "         0          0 4294967295\n";
        assert_eq!(map(machine, 0x7000_0000, 65_536), "0 1879048192 65536\n");
        assert_eq!(map("0 1000 1\n1 100000 65535\n", 0, 65_536), "0 0 1\n1 1 65535\n");
        assert_eq!(map("0 1000 1\n1 100000 65535\n", 0, 10), "0 0 1\n1 1 9\n");
        assert_eq!(map("0 1000 1\n", 0, 1), "0 0 1\n");
    }

    #[test]
    fn ranges_belong_to_names_or_numbers() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nada:x:1000:1000:,,,:/home/ada:/bin/sh\n";
        assert_eq!(user_name(passwd, 1000).as_deref(), Some("ada"));
        assert_eq!(user_name(passwd, 7), None);
        let table = "bob:100000:65536\nada:165536:65536\n1001:300000:10\nbad\nada:x:y\n";
        assert_eq!(range(table, 1000, Some("ada")), Some((165_536, 65_535)));
        assert_eq!(range(table, 1001, None), Some((300_000, 10)));
        assert_eq!(range(table, 7, None), None);
    }
}
