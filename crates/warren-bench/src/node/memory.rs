//! The processes of a contender and their memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::Context;

/// Returns some processes and all their descendants.
pub fn family(seeds: &[u32]) -> anyhow::Result<Vec<u32>> {
    let parents = parents()?;
    let mut found: BTreeSet<u32> = seeds.iter().copied().collect();
    loop {
        let more: Vec<u32> = parents
            .iter()
            .filter(|(pid, parent)| found.contains(parent) && !found.contains(pid))
            .map(|(pid, _)| *pid)
            .collect();
        if more.is_empty() {
            return Ok(found.into_iter().collect());
        }
        found.extend(more);
    }
}

/// Returns the processes with a text on their command line.
pub fn named(text: &str) -> anyhow::Result<Vec<u32>> {
    let command_line = |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let is_named = |pid: &u32| String::from_utf8_lossy(&command_line(pid)).contains(text);
    Ok(parents()?.into_keys().filter(|pid| *pid != std::process::id()).filter(is_named).collect())
}

/// Returns the children of a process.
pub fn children(pid: u32) -> anyhow::Result<Vec<u32>> {
    Ok(parents()?.into_iter().filter(|(_, parent)| *parent == pid).map(|(child, _)| child).collect())
}

/// Returns the name of a process, at most fifteen bytes.
pub fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

/// Returns the memory of processes, in MB. Shared pages are divided among all that share them. A
/// process that has ended counts as zero.
pub fn proportional_mb(pids: &[u32]) -> f64 {
    pids.iter().filter_map(|pid| proportional_kilobytes(*pid)).sum::<f64>() / 1024.0
}

fn proportional_kilobytes(pid: u32) -> Option<f64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

/// Returns every process with its parent.
fn parents() -> anyhow::Result<BTreeMap<u32, u32>> {
    let entries = fs::read_dir("/proc").context("list processes")?.flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let with_parent = pids.filter_map(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        Some((pid, parent.trim().parse().ok()?))
    });
    Ok(with_parent.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_belong_to_the_family_and_hold_something() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let family = family(&[std::process::id()]).unwrap();
        let held = proportional_mb(&[std::process::id()]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(family.contains(&child.id()) && family.contains(&std::process::id()), "{family:?}");
        assert!(held > 0.0);
    }
}
