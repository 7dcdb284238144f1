//! Version 1: one directory tree per controller.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::{Entrance, Limits, Stats, Watch, make_directories, read_number, write_file};

/// The mounts of the controllers that we use. Several may share one mount.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mounts {
    pub(super) memory: PathBuf,
    pub(super) cpu: PathBuf,
    pub(super) cpuacct: PathBuf,
    pub(super) pids: PathBuf,
    pub(super) freezer: PathBuf,
    /// Other hierarchies. We create nothing there, but a runtime that uses one of our names does.
    pub(super) others: Vec<PathBuf>,
}

impl Mounts {
    pub(super) fn note(&mut self, mount_point: &Path, options: &str) {
        let mut is_ours = false;
        for option in options.split(',') {
            let place = match option {
                "memory" => &mut self.memory,
                "cpu" => &mut self.cpu,
                "cpuacct" => &mut self.cpuacct,
                "pids" => &mut self.pids,
                "freezer" => &mut self.freezer,
                _ => continue,
            };
            is_ours = true;
            // If a hierarchy is mounted twice, either mount will do.
            if place.as_os_str().is_empty() {
                *place = mount_point.to_owned();
            }
        }
        if !is_ours {
            self.note_other(mount_point);
        }
    }

    pub(super) fn note_other(&mut self, mount_point: &Path) {
        self.others.push(mount_point.to_owned());
    }

    pub(super) fn is_usable(&self) -> bool {
        [&self.memory, &self.cpu, &self.cpuacct, &self.pids, &self.freezer]
            .iter()
            .all(|path| !path.as_os_str().is_empty())
    }

    /// Returns each of our mounts once.
    pub(super) fn roots(&self) -> impl Iterator<Item = &Path> {
        let all = [&self.memory, &self.cpu, &self.cpuacct, &self.pids, &self.freezer];
        (0..all.len())
            .filter(move |&index| !all[..index].contains(&all[index]))
            .map(move |index| all[index].as_path())
    }
}

pub(super) fn create(mounts: &Mounts, name: &str, limits: &Limits) -> io::Result<()> {
    for root in mounts.roots() {
        make_directories(root, name)?;
    }
    if let Some(bytes) = limits.memory_bytes {
        let directory = mounts.memory.join(name);
        let text = bytes.to_string();
        // The limit on memory plus swap must never be below that on memory, so lowering and raising
        // need opposite orders. For a new cgroup memory first is right. An old one that is raised
        // gets a second attempt.
        let plain = directory.join("memory.limit_in_bytes");
        let with_swap = directory.join("memory.memsw.limit_in_bytes");
        let has_swap_limit = with_swap.exists();
        if write_file(&plain, &text).is_err() && has_swap_limit {
            write_file(&with_swap, &text)?;
            write_file(&plain, &text)?;
        } else if has_swap_limit {
            write_file(&with_swap, &text)?;
        } else {
            write_file(&directory.join("memory.swappiness"), "0")?;
        }
    }
    if let Some(cpu) = limits.cpu {
        let directory = mounts.cpu.join(name);
        let period = directory.join("cpu.cfs_period_us");
        // Skip a write without a change: for each write the kernel visits all cgroups.
        if read_number(&period)? != cpu.period {
            write_file(&period, &cpu.period.to_string())?;
        }
        write_file(&directory.join("cpu.cfs_quota_us"), &cpu.quota.to_string())?;
    }
    if let Some(shares) = limits.cpu_shares {
        write_file(&mounts.cpu.join(name).join("cpu.shares"), &shares.clamp(2, 262_144).to_string())?;
    }
    if let Some(pids) = limits.pids {
        write_file(&mounts.pids.join(name).join("pids.max"), &pids.to_string())?;
    }
    Ok(())
}

pub(super) fn entrance(mounts: &Mounts, name: &str) -> io::Result<Entrance> {
    // A thread that moves itself through `tasks` avoids the lock of every fork and exit, for which
    // `cgroup.procs` waits a grace period: microseconds against milliseconds.
    let files = mounts
        .roots()
        .map(|root| fs::OpenOptions::new().write(true).open(root.join(name).join("tasks")).map(OwnedFd::from))
        .collect::<io::Result<_>>()?;
    Ok(Entrance { directory: None, files })
}

pub(super) fn oom_kills(mounts: &Mounts, name: &str) -> io::Result<u64> {
    super::v2::keyed(&mounts.memory.join(name).join("memory.oom_control"), "oom_kill")
}

pub(super) fn watch(mounts: &Mounts, name: &str) -> io::Result<Vec<Watch>> {
    let directory = mounts.memory.join(name);
    let event = rustix::event::eventfd(
        0,
        rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK,
    )?;
    let control = fs::File::open(directory.join("memory.oom_control"))?;
    write_file(
        &directory.join("cgroup.event_control"),
        &format!("{} {}", event.as_raw_fd(), control.as_fd().as_raw_fd()),
    )?;
    // `pids.events` has a count here, but the kernel does not notify readers.
    Ok(vec![Watch { descriptor: event, exceptional: false }])
}

pub(super) fn set_frozen(mounts: &Mounts, name: &str, frozen: bool) -> io::Result<()> {
    write_file(&mounts.freezer.join(name).join("freezer.state"), if frozen { "FROZEN" } else { "THAWED" })
}

pub(super) fn processor_nanoseconds(mounts: &Mounts, name: &str) -> io::Result<u64> {
    read_number(&mounts.cpuacct.join(name).join("cpuacct.usage"))
}

pub(super) fn stats(mounts: &Mounts, name: &str) -> io::Result<Stats> {
    let memory = mounts.memory.join(name);
    let used = read_number(&memory.join("memory.usage_in_bytes"))?;
    let inactive = super::v2::keyed(&memory.join("memory.stat"), "total_inactive_file")?;
    Ok(Stats {
        cpu_nanoseconds: processor_nanoseconds(mounts, name)?,
        memory_bytes: used,
        memory_working_set_bytes: used.saturating_sub(inactive),
        pids: read_number(&mounts.pids.join(name).join("pids.current"))?,
    })
}
