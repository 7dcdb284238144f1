//! `warren doctor`: checks the requirements of a local home on this machine, and how to meet the
//! missing ones.
//!
//! [`Facts`] are read from the machine. [`examine`] judges them without any I/O.

mod facts;

use std::fmt;

use serde::Serialize;

pub use facts::{Facts, FileSystem, Space};

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All is well.
    Ok,
    /// Sandboxes run with a limitation.
    Warning,
    /// Sandboxes do not run.
    Problem,
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Problem => "problem",
        })
    }
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the check: one word, always the same.
    pub check: &'static str,
    /// The severity.
    pub verdict: Verdict,
    /// The state of the machine.
    pub found: String,
    /// The effect on sandboxes. Empty if all is well.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub meaning: String,
    /// The command that solves it, or other advice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, found: found.into(), meaning: String::new(), remedy: None }
    }

    fn bad(
        check: &'static str,
        verdict: Verdict,
        found: impl Into<String>,
        meaning: &str,
        remedy: impl Into<String>,
    ) -> Self {
        let (found, meaning) = (found.into(), meaning.to_owned());
        Self { check, verdict, found, meaning, remedy: Some(remedy.into()) }
    }
}

/// The oldest supported kernel: the first with overlays on id-mapped layers.
const OLDEST_KERNEL: (u32, u32) = (5, 19);
/// The first kernel whose tmpfs can map owners.
const TMPFS_KERNEL: (u32, u32) = (6, 3);
/// The free space below which a home fails: the store refuses writes on a full disk.
const NO_SPACE: u64 = 200 << 20;
/// The free space below which another image may not fit.
const LITTLE_SPACE: u64 = 2 << 30;
/// The approximate number of files in an image.
const LITTLE_INODES: u64 = 50_000;

/// Judges all facts, in the order in which problems should be solved.
pub fn examine(facts: &Facts) -> Vec<Finding> {
    vec![
        kernel(facts),
        privileges(facts),
        namespaces(facts),
        user_namespaces(facts),
        cgroups(facts),
        seccomp(facts),
        programs_in_memory(facts),
        overlay(facts),
        file_system(facts),
        disk(facts),
        nftables(facts),
        runtimes(facts),
        home(facts),
    ]
}

fn kernel(facts: &Facts) -> Finding {
    let (major, minor) = OLDEST_KERNEL;
    let found = format!("Linux {}", facts.release);
    match facts.is_at_least(OLDEST_KERNEL) {
        true => Finding::ok("kernel", found),
        false => Finding::bad(
            "kernel",
            Verdict::Problem,
            found,
            "It cannot map the owners of an image's files to those of a sandbox.",
            format!(
                "install Linux {major}.{minor} or later, and start it: `apt-get install linux-image-amd64`"
            ),
        ),
    }
}

fn privileges(facts: &Facts) -> Finding {
    const CHECK: &str = "privileges";
    match (facts.root, &facts.ordinary_user) {
        (true, _) => Finding::ok(CHECK, "root"),
        (false, Ok(())) => {
            let (install, give) = (
                "install `newuidmap` and `newgidmap`: `apt-get install uidmap`",
                "give yourself ids: `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER`",
            );
            let (found, remedy) = match (facts.further_ids.given > 0, facts.further_ids.has_programs) {
                (true, true) => {
                    let ids = facts.further_ids.in_pods();
                    return Finding::ok(CHECK, format!("an ordinary user with {ids} ids for sandboxes"));
                }
                (true, false) => ("an ordinary user without `newuidmap`", install.to_owned()),
                (false, true) => ("an ordinary user without further ids", give.to_owned()),
                (false, false) => {
                    ("an ordinary user without `newuidmap` and further ids", format!("{install}; and {give}"))
                }
            };
            let meaning = "The only user in sandboxes is their root: pods that ask for another are refused, and all files of \
                           an image are its.";
            Finding::bad(CHECK, Verdict::Warning, found, meaning, remedy)
        }
        (false, Err(error)) => Finding::bad(
            CHECK,
            Verdict::Problem,
            format!("an ordinary user, who cannot make sandboxes here: {error}"),
            "Ordinary users make sandboxes by user namespaces and by overlays in those.",
            "see the finding `user-namespaces`, or `sudo warren up`",
        ),
    }
}

fn namespaces(facts: &Facts) -> Finding {
    if !facts.missing_namespaces.is_empty() {
        return Finding::bad(
            "namespaces",
            Verdict::Problem,
            format!("the kernel lacks: {}", facts.missing_namespaces.join(", ")),
            "A sandbox would share these with the machine, so none is started.",
            "start a kernel that has them, as those of all distributions do",
        );
    }
    match &facts.namespaces {
        Ok(()) => Finding::ok("namespaces", "user, pid, mount, network, ipc, uts and cgroup can be made"),
        Err(error) => Finding::bad(
            "namespaces",
            Verdict::Problem,
            format!("they cannot be made: {error}"),
            "Nothing can be isolated without them.",
            "see the finding `user-namespaces`; in a container, give it the right to make namespaces",
        ),
    }
}

/// Checks for settings that deny user namespaces to ordinary users. Only the last of them affects
/// root.
fn user_namespaces(facts: &Facts) -> Finding {
    const CHECK: &str = "user-namespaces";
    let meaning = "Ordinary users cannot make sandboxes.";
    let verdict = if facts.root { Verdict::Warning } else { Verdict::Problem };
    if facts.most_user_namespaces == Some(0) {
        return Finding::bad(
            CHECK,
            Verdict::Problem,
            "none are allowed (user.max_user_namespaces is 0)",
            "Every sandbox has one of its own.",
            "`sysctl -w user.max_user_namespaces=15000`",
        );
    }
    if facts.apparmor_restricts {
        return Finding::bad(
            CHECK,
            verdict,
            "AppArmor keeps programs without a profile from them",
            meaning,
            "`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`, or a profile for `warren` that allows `userns`",
        );
    }
    if facts.debian_forbids {
        return Finding::bad(
            CHECK,
            verdict,
            "only root may make them (kernel.unprivileged_userns_clone is 0)",
            meaning,
            "`sysctl -w kernel.unprivileged_userns_clone=1`",
        );
    }
    Finding::ok(CHECK, "everybody may make them")
}

fn cgroups(facts: &Facts) -> Finding {
    match &facts.cgroup_version {
        Ok(0) => Finding::bad(
            "cgroups",
            Verdict::Warning,
            "none were given to this user",
            "Memory and processors of sandboxes are not limited, and pods that ask for such limits are refused.",
            "`systemd-run --user --property=Delegate=yes warren up`, on a machine with version 2",
        ),
        Ok(version) => Finding::ok("cgroups", format!("version {version}, with memory, cpu and pids")),
        Err(error) => Finding::bad(
            "cgroups",
            Verdict::Problem,
            error.clone(),
            "Nothing would keep a sandbox from taking all memory and all processors.",
            "`mount -t cgroup2 cgroup2 /sys/fs/cgroup`, or start with `systemd.unified_cgroup_hierarchy=1`",
        ),
    }
}

fn seccomp(facts: &Facts) -> Finding {
    match facts.seccomp {
        true => Finding::ok("seccomp", "system calls can be filtered"),
        false => Finding::bad(
            "seccomp",
            Verdict::Problem,
            "the kernel cannot filter system calls",
            "A sandbox could make every system call, so none is started.",
            "start a kernel with CONFIG_SECCOMP_FILTER, as those of all distributions have it",
        ),
    }
}

fn programs_in_memory(facts: &Facts) -> Finding {
    const CHECK: &str = "programs-in-memory";
    match facts.forbids_programs_in_memory {
        false => Finding::ok(CHECK, "they can be run"),
        true => Finding::bad(
            CHECK,
            Verdict::Problem,
            "`vm.memfd_noexec` is 2, which forbids them",
            "The program that looks after sandboxes is run from memory, so no home starts.",
            "run `sysctl vm.memfd_noexec=1`, which allows them where they are asked for",
        ),
    }
}

fn overlay(facts: &Facts) -> Finding {
    match &facts.overlay {
        Ok(true) => Finding::ok("overlay", "overlays can be mounted"),
        Ok(false) => Finding::bad(
            "overlay",
            Verdict::Problem,
            "the kernel does not know overlays",
            "The files of a sandbox lie in an overlay over its image.",
            "`modprobe overlay`",
        ),
        Err(error) => Finding::bad(
            "overlay",
            Verdict::Warning,
            format!("not tried: {error}"),
            "Whether overlays can be mounted shows only for root.",
            "`sudo warren doctor`",
        ),
    }
}

fn file_system(facts: &Facts) -> Finding {
    let place = facts.data_dir.display();
    let found = format!("`{place}` lies on {}", facts.file_system);
    let elsewhere = "name a directory on ext4, xfs or btrfs with `--data-dir` or `WARREN_HOME`";
    match facts.file_system {
        FileSystem::Ext4 | FileSystem::Xfs | FileSystem::Btrfs => Finding::ok("file-system", found),
        FileSystem::Tmpfs if facts.is_at_least(TMPFS_KERNEL) => Finding::ok("file-system", found),
        FileSystem::Tmpfs | FileSystem::Overlay | FileSystem::Network | FileSystem::Fuse => Finding::bad(
            "file-system",
            Verdict::Problem,
            found,
            "It cannot map owners or carry an overlay, which sandboxes need.",
            elsewhere,
        ),
        FileSystem::Other(_) => Finding::bad(
            "file-system",
            Verdict::Warning,
            found,
            "It is not known whether it can map owners and carry overlays.",
            format!("if sandboxes do not start, {elsewhere}"),
        ),
    }
}

fn disk(facts: &Facts) -> Finding {
    let Space { free_bytes, free_inodes } = facts.space;
    let found = format!("{} free for `{}`", in_words(free_bytes), facts.data_dir.display());
    let remedy = "remove images with `warren image remove`, or name another place with `--data-dir`";
    if free_bytes < NO_SPACE {
        let meaning = "The store refuses writes on a full disk.";
        return Finding::bad("disk", Verdict::Problem, found, meaning, remedy);
    }
    if free_bytes < LITTLE_SPACE {
        let meaning = "A few images or sandboxes may fill it.";
        return Finding::bad("disk", Verdict::Warning, found, meaning, remedy);
    }
    // Some file systems do not count inodes.
    if free_inodes.is_some_and(|free| free < LITTLE_INODES) {
        let found = format!("{found}, but few new files fit");
        return Finding::bad("disk", Verdict::Warning, found, "Unpacking an image may fail.", remedy);
    }
    Finding::ok("disk", found)
}

fn in_words(bytes: u64) -> String {
    match bytes {
        0..0x4000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

fn nftables(facts: &Facts) -> Finding {
    if !facts.root {
        return Finding::ok(
            "nftables",
            "not needed: an ordinary user's sandboxes reach only the egress proxy",
        );
    }
    match &facts.packet_rules {
        Ok(()) => Finding::ok("nftables", "packet rules can be set"),
        Err(error) => Finding::bad(
            "nftables",
            Verdict::Problem,
            format!("packet rules cannot be set: {error}"),
            "What a sandbox may reach could not be enforced.",
            "`modprobe nf_tables`",
        ),
    }
}

/// Checks for further runtimes. They are optional, so having none is no problem.
fn runtimes(facts: &Facts) -> Finding {
    if !facts.root {
        return Finding::ok("runtimes", "our own; others (`runsc`, say) are for the homes of root");
    }
    if facts.runtimes.is_empty() {
        return Finding::ok("runtimes", "our own; no other is installed (`runsc` would add gVisor)");
    }
    let found: Vec<String> =
        facts.runtimes.iter().map(|(name, path)| format!("`{name}` ({})", path.display())).collect();
    Finding::ok("runtimes", format!("our own, and {}", found.join(", ")))
}

fn home(facts: &Facts) -> Finding {
    let place = facts.data_dir.display();
    match &facts.holder {
        Some(holder) => Finding::ok(
            "home",
            format!("running in `{place}` (process {}, warren {})", holder.pid, holder.version),
        ),
        None => Finding::ok("home", format!("not running in `{place}`; `warren up` starts it")),
    }
}

#[cfg(test)]
mod tests;
