//! The leak checker: finds everything that a local home has left on the machine. Every end-to-end
//! test ends with it.
//!
//! It reads the kernel's own lists and asks no part of Warren, because the important leaks are
//! those that the product does not know of.

mod packet_rules;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The leftovers of a home.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaks {
    /// Processes in a cgroup of the home, or with an open file or socket below its data directory.
    pub processes: Vec<String>,
    /// Mounts on or of paths below the data directory, in the mount namespaces of all processes.
    pub mounts: Vec<String>,
    /// Cgroups of pods, in every hierarchy. Also the home's own one if no daemon runs.
    pub cgroups: Vec<PathBuf>,
    /// Network devices, named network namespaces and tables of packet rules with the home's mark.
    /// The home's own bridge and table only if no daemon runs.
    pub network: Vec<String>,
    /// Files of pods in the data directory.
    pub files: Vec<PathBuf>,
}

impl Leaks {
    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Returns the leftovers, sorted. While the daemon runs, it and its direct helper (the zygote) are
/// not among them.
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

/// Returns the home's mark: 32-bit FNV-1a of the canonical path. It is repeated here, because the
/// product must take no part in the check.
fn home_id(data_dir: &Path) -> String {
    let hash = data_dir
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    format!("{hash:08x}")
}

/// Waits until nothing is left of any pod. Panics with the list if something stays.
pub fn assert_nothing_left(data_dir: &Path) {
    if let Err(leaks) = wait_until_only(data_dir, &Leaks::default()) {
        panic!("the home in {} leaked: {leaks:#?}", data_dir.display());
    }
}

/// Waits until the leftovers equal those of an earlier call, for homes whose pods continue. The
/// error has the actual ones.
///
/// Deletion is asynchronous, so this waits for a condition, with a generous deadline.
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
        // Check again. The loop ends with the condition or the deadline, not after a fixed time.
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

fn processes(data_dir: &Path, mark: &str, daemon: Option<u32>) -> io::Result<Vec<String>> {
    let sockets = sockets_below(data_dir)?;
    let mut found = Vec::new();
    for pid in all_processes()?.into_iter().filter(|pid| *pid != std::process::id()) {
        let path = PathBuf::from(format!("/proc/{pid}"));
        // A process that ends meanwhile is no leak.
        let in_cgroup = fs::read_to_string(path.join("cgroup")).is_ok_and(|text| text.contains(mark));
        let is_own = daemon.is_some() && (daemon == Some(pid) || daemon == parent(pid));
        if in_cgroup || (!is_own && holds_something(&path, data_dir, &sockets)) {
            found.push(describe(pid));
        }
    }
    Ok(found)
}

/// Returns all processes, sorted by number.
fn all_processes() -> io::Result<BTreeSet<u32>> {
    let entries = fs::read_dir("/proc")?.flatten();
    Ok(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// Returns the inodes of unix sockets that are bound below the directory.
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

/// Returns the daemon in the lock file if it is alive. A killed one has left its number there.
fn daemon(data_dir: &Path) -> Option<u32> {
    let holder: serde_json::Value = serde_json::from_slice(&fs::read(data_dir.join("lock")).ok()?).ok()?;
    let pid = u32::try_from(holder["pid"].as_u64()?).ok()?;
    // A zombie has no program.
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

/// Finds mounts. A container's mounts are in a namespace of its own under other paths, but their
/// sources still contain our path.
fn mounts(data_dir: &Path) -> io::Result<Vec<String>> {
    let name = data_dir.to_string_lossy();
    let mut namespaces = BTreeSet::new();
    let mut found = Vec::new();
    for pid in all_processes()? {
        // If the process ends meanwhile, another one shows its namespace, or that is gone too.
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

/// Returns the cgroups below the home's own one, and that one itself unless the daemon runs.
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

/// Returns the mount points of cgroups, of both versions.
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

/// Returns devices in the calling thread's network namespace, named namespaces, and packet rules.
/// The home's own bridge and rules are left out while it runs.
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

/// Returns the entries of a directory, or none if it does not exist.
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
        // The number of a process that has ended is not a daemon.
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
