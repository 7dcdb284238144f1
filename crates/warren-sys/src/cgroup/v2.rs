//! Version 2: one directory tree.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::{Entrance, Limits, Stats, Watch, read_number, write_file};

/// The controllers that limit and measure containers.
pub(super) const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];

pub(super) fn create(root: &Path, name: &str, limits: &Limits) -> io::Result<()> {
    // A controller reaches a cgroup only if every ancestor enables it. Enabling it again costs
    // nothing, so do not read first. An existing cgroup already has it.
    if !root.join(name).join("memory.max").exists() {
        let mut ancestor = root.to_owned();
        for part in Path::new(name).components() {
            pass_on_controllers(&ancestor)?;
            ancestor.push(part);
            match fs::create_dir(&ancestor) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
    }
    let directory = root.join(name);
    if let Some(bytes) = limits.memory_bytes {
        write_file(&directory.join("memory.max"), &bytes.to_string())?;
        match write_file(&directory.join("memory.swap.max"), "0") {
            // A kernel without swap accounting lacks this file.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    if let Some(cpu) = limits.cpu {
        write_file(&directory.join("cpu.max"), &format!("{} {}", cpu.quota, cpu.period))?;
    }
    if let Some(shares) = limits.cpu_shares {
        write_file(&directory.join("cpu.weight"), &weight_from_shares(shares).to_string())?;
    }
    if let Some(pids) = limits.pids {
        write_file(&directory.join("pids.max"), &pids.to_string())?;
    }
    Ok(())
}

pub(super) fn pass_on_controllers(directory: &Path) -> io::Result<()> {
    let request = CONTROLLERS.map(|controller| format!("+{controller}")).join(" ");
    write_file(&directory.join("cgroup.subtree_control"), &request)
        .map_err(|error| io::Error::new(error.kind(), explain_refusal(directory, &error)))
}

/// Explains an error that the kernel uses for several situations, each with its own solution.
fn explain_refusal(directory: &Path, error: &io::Error) -> String {
    let name = directory.display();
    let read = |file: &str| fs::read_to_string(directory.join(file)).unwrap_or_default();
    let present = read("cgroup.controllers");
    let is_present = |wanted: &str| present.split_whitespace().any(|name| name == wanted);
    let missing: Vec<&str> = CONTROLLERS.into_iter().filter(|wanted| !is_present(wanted)).collect();
    if !missing.is_empty() {
        return format!("the cgroup {name} was not given the controllers {}", missing.join(", "));
    }
    // The machine's root cgroup is exempt; it lacks this file.
    if directory.join("cgroup.type").exists() && !read("cgroup.procs").trim().is_empty() {
        return format!(
            "the cgroup {name} holds processes itself, and then the kernel lets it pass no controllers on: move \
             them to a cgroup below it"
        );
    }
    error.to_string()
}

/// Converts by the kubelet's formula: 2–262144 to 1–10000.
pub(super) fn weight_from_shares(shares: u64) -> u64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}

pub(super) fn entrance(root: &Path, name: &str) -> io::Result<Entrance> {
    let directory = root.join(name);
    let file = fs::OpenOptions::new().write(true).open(directory.join("cgroup.procs"))?;
    let directory =
        rustix::fs::open(&directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(Entrance { directory: Some(directory), files: vec![OwnedFd::from(file)] })
}

pub(super) fn watch(directory: &Path) -> io::Result<Vec<Watch>> {
    ["memory.events", "pids.events"]
        .iter()
        .map(|file| Ok(Watch { descriptor: fs::File::open(directory.join(file))?.into(), exceptional: true }))
        .collect()
}

pub(super) fn set_frozen(directory: &Path, frozen: bool) -> io::Result<()> {
    write_file(&directory.join("cgroup.freeze"), if frozen { "1" } else { "0" })
}

pub(super) fn processor_nanoseconds(directory: &Path) -> io::Result<u64> {
    Ok(keyed(&directory.join("cpu.stat"), "usage_usec")? * 1000)
}

pub(super) fn stats(directory: &Path) -> io::Result<Stats> {
    let used = read_number(&directory.join("memory.current"))?;
    let inactive = keyed(&directory.join("memory.stat"), "inactive_file")?;
    Ok(Stats {
        cpu_nanoseconds: processor_nanoseconds(directory)?,
        memory_bytes: used,
        memory_working_set_bytes: used.saturating_sub(inactive),
        pids: read_number(&directory.join("pids.current"))?,
    })
}

/// Returns the number after `key` in a file of `key number` lines, or 0 if the key is missing.
pub(super) fn keyed(path: &Path, key: &str) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    Ok(text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(name, _)| *name == key)
        .and_then(|(_, number)| number.trim().parse().ok())
        .unwrap_or(0))
}
