//! What a local home has left behind on the machine: the check that every end-to-end test ends with.
//!
//! It looks from the outside, with the kernel's own lists, and asks no part of Warren: a leak that the product
//! does not know of is the kind that matters.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Everything of a home that is still there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaks {
    /// Processes in a cgroup of the home, or holding a file or a socket below its data directory.
    pub processes: Vec<String>,
    /// Mounts below the data directory, as the calling process sees them.
    pub mounts: Vec<String>,
    /// Cgroups of pods, in every hierarchy.
    pub cgroups: Vec<PathBuf>,
    /// Network devices and named network namespaces with the home's mark.
    pub network: Vec<String>,
    /// What is left of pods in the data directory.
    pub files: Vec<PathBuf>,
}

impl Leaks {
    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Lists what is left. The daemon itself and its direct helper (the zygote) are not leaks while the daemon runs.
pub fn find(data_dir: &Path) -> io::Result<Leaks> {
    let data_dir = data_dir.canonicalize()?;
    let mark = format!("warren-{}", home_id(&data_dir));
    Ok(Leaks {
        processes: processes(&data_dir, &mark)?,
        mounts: mounts(&data_dir)?,
        cgroups: cgroups(&mark)?,
        network: network(&mark, !own_processes(&data_dir).is_empty())?,
        files: entries(&data_dir.join("pods"))?,
    })
}

/// The home's mark: 32-bit FNV-1a of the canonical path. Written out here, because nothing of the product takes part
/// in judging it.
fn home_id(data_dir: &Path) -> String {
    let hash = data_dir
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    format!("{hash:08x}")
}

/// Waits until nothing is left of any pod; panics with the list if something stays.
///
/// Deleting is asynchronous by nature, so this waits for a condition, with a generous deadline.
pub fn assert_nothing_left(data_dir: &Path) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let leaks = find(data_dir).expect("list what is left");
        if leaks.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "the home in {} leaked: {leaks:#?}", data_dir.display());
        // Looking again, not waiting a fixed time: the loop ends with the condition or the deadline.
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

fn processes(data_dir: &Path, mark: &str) -> io::Result<Vec<String>> {
    let sockets = sockets_below(data_dir)?;
    let own = own_processes(data_dir);
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        let Some(pid) = path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok()) else {
            continue;
        };
        if pid == std::process::id() {
            continue;
        }
        // A process may end while it is looked at; then it is no leak.
        let in_cgroup = fs::read_to_string(path.join("cgroup")).is_ok_and(|text| text.contains(mark));
        let is_own = own.contains(&pid) || parent(pid).is_some_and(|parent| own.contains(&parent));
        if in_cgroup || (!is_own && holds_something(&path, data_dir, &sockets)) {
            found.push(describe(pid));
        }
    }
    Ok(found)
}

/// Inodes of unix sockets that are bound below the directory.
fn sockets_below(data_dir: &Path) -> io::Result<BTreeSet<String>> {
    let table = fs::read_to_string("/proc/net/unix")?;
    Ok(table
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_ascii_whitespace().skip(6);
            let inode = fields.next()?;
            Path::new(fields.next()?).starts_with(data_dir).then(|| format!("socket:[{inode}]"))
        })
        .collect())
}

fn holds_something(process: &Path, data_dir: &Path, sockets: &BTreeSet<String>) -> bool {
    fs::read_dir(process.join("fd")).into_iter().flatten().flatten().any(|descriptor| {
        fs::read_link(descriptor.path()).is_ok_and(|target| {
            target.starts_with(data_dir) || sockets.contains(target.to_string_lossy().as_ref())
        })
    })
}

/// The daemon that the lock file names, if it lives.
fn own_processes(data_dir: &Path) -> BTreeSet<u32> {
    let lock = fs::read(data_dir.join("lock")).unwrap_or_default();
    let holder: Option<serde_json::Value> = serde_json::from_slice(&lock).ok();
    holder.and_then(|holder| u32::try_from(holder["pid"].as_u64()?).ok()).into_iter().collect()
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

fn describe(pid: u32) -> String {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    format!("{pid}: {}", String::from_utf8_lossy(&command).replace('\0', " "))
}

fn mounts(data_dir: &Path) -> io::Result<Vec<String>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(table
        .lines()
        .filter(|line| line.split(' ').nth(4).is_some_and(|point| Path::new(point).starts_with(data_dir)))
        .map(str::to_owned)
        .collect())
}

/// Cgroups below the home's own one. The home's own, empty, may stay while the daemon runs.
fn cgroups(mark: &str) -> io::Result<Vec<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let mut hierarchies = BTreeSet::new();
    for line in table.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        if right.starts_with("cgroup")
            && let Some(point) = left.split(' ').nth(4)
        {
            hierarchies.insert(PathBuf::from(point));
        }
    }
    let mut found = Vec::new();
    for hierarchy in hierarchies {
        collect_cgroups(&hierarchy, mark, false, &mut found);
    }
    Ok(found)
}

fn collect_cgroups(directory: &Path, mark: &str, inside: bool, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if inside {
            found.push(entry.path());
        }
        let ours = inside || entry.file_name().to_string_lossy().starts_with(mark);
        collect_cgroups(&entry.path(), mark, ours, found);
    }
}

/// Devices of the calling thread's network, named namespaces, and packet rules. The home's own bridge and rules may stay
/// while it runs.
fn network(mark: &str, is_running: bool) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    let bridge = mark.replace("warren-", "wrn");
    let table = fs::read_to_string("/proc/thread-self/net/dev")?;
    let devices = table.lines().filter_map(|line| Some(line.split_once(':')?.0.trim()));
    let is_leak = |name: &&str| name.starts_with(&bridge) && !(is_running && *name == bridge);
    found.extend(devices.filter(is_leak).map(|name| format!("device {name}")));
    for directory in ["/run/netns", "/var/run/netns"] {
        for entry in entries(Path::new(directory))? {
            if entry.file_name().is_some_and(|name| name.to_string_lossy().starts_with(mark)) {
                found.push(entry.display().to_string());
            }
        }
    }
    // The kernel shows its rules to nobody but netlink; where `nft` is installed, it asks.
    if !is_running && let Ok(output) = std::process::Command::new("nft").args(["list", "tables"]).output() {
        let tables = String::from_utf8_lossy(&output.stdout);
        found.extend(tables.lines().filter(|line| line.ends_with(mark)).map(str::to_owned));
    }
    Ok(found)
}

/// What is in a directory; nothing if it is not there.
fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_an_open_file_and_a_left_directory_are_found() {
        let home = tempfile::tempdir().expect("make a directory");
        assert!(find(home.path()).expect("look").is_empty());

        fs::create_dir_all(home.path().join("pods/uid")).expect("make a pod's directory");
        let file = fs::File::create(home.path().join("pods/uid/log")).expect("make a file");
        let mut child =
            std::process::Command::new("sleep").arg("60").stdout(file).spawn().expect("start sleep");
        let leaks = find(home.path()).expect("look");
        child.kill().expect("kill sleep");
        child.wait().expect("reap sleep");

        assert_eq!(leaks.processes.len(), 1, "{leaks:?}");
        assert!(leaks.processes[0].starts_with(&child.id().to_string()), "{leaks:?}");
        assert_eq!(leaks.files.len(), 1, "{leaks:?}");
        assert!(find(home.path()).expect("look again").processes.is_empty());
    }
}
