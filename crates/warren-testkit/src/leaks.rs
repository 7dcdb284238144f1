//! What a local home has left behind on the machine: the check that every end-to-end test ends with.
//!
//! It looks from the outside, with the kernel's own lists, and asks no part of Warren: a leak that the product
//! does not know of is the kind that matters.

mod packet_rules;

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
    /// Mounts on or of something below the data directory, in every mount namespace that a process is in.
    pub mounts: Vec<String>,
    /// Cgroups of pods, in every hierarchy, and the home's own one when no daemon runs.
    pub cgroups: Vec<PathBuf>,
    /// Network devices, named network namespaces and tables of packet rules with the home's mark; the home's own bridge and table only
    /// when no daemon runs.
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

/// Lists what is left, each list in order. The daemon itself and its direct helper (the zygote) are not leaks while the daemon
/// runs.
pub fn find(data_dir: &Path) -> io::Result<Leaks> {
    let data_dir = data_dir.canonicalize()?;
    let mark = format!("warren-{}", home_id(&data_dir));
    let daemon = daemon(&data_dir);
    let mut leaks = Leaks {
        processes: processes(&data_dir, &mark, daemon)?,
        mounts: mounts(&data_dir)?,
        cgroups: cgroups(&mark, daemon.is_some())?,
        network: network(&mark, daemon.is_some())?,
        files: entries(&data_dir.join("pods"))?,
    };
    leaks.cgroups.sort();
    leaks.network.sort();
    leaks.files.sort();
    Ok(leaks)
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
pub fn assert_nothing_left(data_dir: &Path) {
    if let Err(leaks) = wait_until_only(data_dir, &Leaks::default()) {
        panic!("the home in {} leaked: {leaks:#?}", data_dir.display());
    }
}

/// Waits until there is exactly what there was at an earlier look, for homes whose pods go on; what there is if it does not come to
/// that.
///
/// Deleting is asynchronous by nature, so this waits for a condition, with a generous deadline.
pub fn wait_until_only(data_dir: &Path, before: &Leaks) -> Result<(), Box<Leaks>> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let leaks = find(data_dir).expect("list what is left");
        if leaks == *before {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Box::new(leaks));
        }
        // Looking again, not waiting a fixed time: the loop ends with the condition or the deadline.
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

fn processes(data_dir: &Path, mark: &str, daemon: Option<u32>) -> io::Result<Vec<String>> {
    let sockets = sockets_below(data_dir)?;
    let mut found = Vec::new();
    for pid in all_processes()?.into_iter().filter(|pid| *pid != std::process::id()) {
        let path = PathBuf::from(format!("/proc/{pid}"));
        // A process may end while it is looked at; then it is no leak.
        let in_cgroup = fs::read_to_string(path.join("cgroup")).is_ok_and(|text| text.contains(mark));
        let is_own = daemon.is_some() && (daemon == Some(pid) || daemon == parent(pid));
        if in_cgroup || (!is_own && holds_something(&path, data_dir, &sockets)) {
            found.push(describe(pid));
        }
    }
    Ok(found)
}

/// Every process, in the order of their numbers.
fn all_processes() -> io::Result<BTreeSet<u32>> {
    let entries = fs::read_dir("/proc")?.flatten();
    Ok(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
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

/// The daemon that the lock file names, if it lives: one that was killed has left its number there.
fn daemon(data_dir: &Path) -> Option<u32> {
    let holder: serde_json::Value = serde_json::from_slice(&fs::read(data_dir.join("lock")).ok()?).ok()?;
    let pid = u32::try_from(holder["pid"].as_u64()?).ok()?;
    // One that nobody has reaped yet has no program any more.
    let lives = fs::read_link(format!("/proc/{pid}/exe")).is_ok();
    lives.then_some(pid)
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

fn describe(pid: u32) -> String {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    format!("{pid}: {}", String::from_utf8_lossy(&command).replace('\0', " "))
}

/// A mount of a container is in a namespace of its own, where its point has another path; what it is of still names ours.
fn mounts(data_dir: &Path) -> io::Result<Vec<String>> {
    let name = data_dir.to_string_lossy();
    let mut namespaces = BTreeSet::new();
    let mut found = Vec::new();
    for pid in all_processes()? {
        // A process may end while it is looked at; then another one shows what is in its namespace, or it is gone too.
        let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/mnt")) else { continue };
        if namespaces.contains(&namespace) {
            continue;
        }
        let Ok(table) = fs::read_to_string(format!("/proc/{pid}/mountinfo")) else { continue };
        let ours = table.lines().filter(|line| line.contains(name.as_ref()));
        found.extend(ours.map(|line| format!("{}: {line}", namespace.display())));
        namespaces.insert(namespace);
    }
    found.sort();
    Ok(found)
}

/// Cgroups below the home's own one, and that one itself unless the daemon runs.
fn cgroups(mark: &str, is_running: bool) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for hierarchy in hierarchies()? {
        collect_cgroups(&hierarchy, mark, false, &mut found);
    }
    if is_running {
        found.retain(|path| path.file_name().is_none_or(|name| name != mark));
    }
    Ok(found)
}

/// Where cgroups are mounted, of either version.
fn hierarchies() -> io::Result<BTreeSet<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let points = table.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let point = left.split(' ').nth(4)?;
        right.starts_with("cgroup").then(|| PathBuf::from(point))
    });
    Ok(points.collect())
}

fn collect_cgroups(directory: &Path, mark: &str, inside: bool, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let ours = inside || entry.file_name().to_string_lossy().starts_with(mark);
        if ours {
            found.push(entry.path());
        }
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
    if !is_running {
        let tables = packet_rules::tables()?;
        found.extend(tables.iter().filter(|name| *name == mark).map(|name| format!("table {name}")));
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

    #[test]
    fn the_homes_own_cgroup_is_a_leak_only_while_no_daemon_runs() {
        let home = tempfile::tempdir().expect("make a directory");
        let path = home.path().canonicalize().expect("a path");
        let mark = format!("warren-{}", home_id(&path));
        let mut places =
            hierarchies().expect("read the mount table").into_iter().map(|root| root.join(&mark));
        let Some(cgroup) = places.find(|place| fs::create_dir(place).is_ok()) else {
            eprintln!("skipped: no cgroup can be made here");
            return;
        };
        let alone = find(&path);
        fs::write(path.join("lock"), format!("{{\"pid\": {}}}", std::process::id())).expect("write");
        let with_daemon = find(&path);
        // The number of a process that has ended says nothing.
        let mut ended = std::process::Command::new("true").spawn().expect("run true");
        ended.wait().expect("reap it");
        fs::write(path.join("lock"), format!("{{\"pid\": {}}}", ended.id())).expect("write");
        let after_kill = find(&path);
        fs::remove_dir(&cgroup).expect("remove the cgroup");

        assert_eq!(alone.expect("look").cgroups, std::slice::from_ref(&cgroup));
        assert!(with_daemon.expect("look").is_empty());
        assert_eq!(after_kill.expect("look").cgroups, [cgroup]);
    }
}
