//! The resource usage of processes, from the kernel's counters.

use std::fs;

use anyhow::Context;
use serde::Serialize;

/// Clock ticks per second in `/proc`. Linux's interface fixes this, whatever the kernel's own rate.
const TICKS: f64 = 100.0;

/// The memory and the processor time of one or several processes.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Usage {
    /// Resident memory in MB.
    pub rss_mb: f64,
    /// Processor time in seconds, user and system.
    pub cpu_seconds: f64,
}

/// Processor time of the whole machine so far, in ticks.
#[derive(Debug, Clone, Copy)]
pub struct MachineTime {
    all: u64,
    stolen: u64,
}

impl MachineTime {
    /// Reads the time up to now.
    pub fn now() -> anyhow::Result<MachineTime> {
        let stat = fs::read_to_string("/proc/stat").context("look at the machine")?;
        // The fields are user nice system idle iowait irq softirq steal. The time of guests is
        // included in user.
        let line = stat.lines().next().and_then(|line| line.strip_prefix("cpu ")).unwrap_or_default();
        let ticks: Vec<u64> =
            line.split_whitespace().take(8).filter_map(|ticks| ticks.parse().ok()).collect();
        Ok(MachineTime { all: ticks.iter().sum(), stolen: ticks.get(7).copied().unwrap_or_default() })
    }

    /// Returns the share of time since `earlier` that a virtual machine's host has given to other
    /// guests, in percent.
    pub fn stolen_since(self, earlier: MachineTime) -> f64 {
        100.0 * (self.stolen - earlier.stolen) as f64 / (self.all - earlier.all).max(1) as f64
    }
}

impl Usage {
    /// Adds up some processes.
    pub fn of(pids: &[u32]) -> anyhow::Result<Usage> {
        let mut sum = Usage::default();
        for pid in pids {
            let one = Self::of_one(*pid).with_context(|| format!("look at process {pid}"))?;
            sum.rss_mb += one.rss_mb;
            sum.cpu_seconds += one.cpu_seconds;
        }
        Ok(sum)
    }

    /// Returns the processor time since `earlier`, and the current memory.
    pub fn since(self, earlier: Usage) -> Usage {
        Usage { rss_mb: self.rss_mb, cpu_seconds: self.cpu_seconds - earlier.cpu_seconds }
    }

    fn of_one(pid: u32) -> anyhow::Result<Usage> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("it has no memory")?;
        let kilobytes: f64 = rss.trim().trim_end_matches(" kB").parse()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The name, in brackets, may contain anything. Numbers follow it.
        let numbers = stat.rsplit_once(')').context("an unreadable /proc/PID/stat")?.1;
        let field = |index: usize| numbers.split_whitespace().nth(index).unwrap_or("0").parse::<f64>();
        Ok(Usage { rss_mb: kilobytes / 1024.0, cpu_seconds: (field(11)? + field(12)?) / TICKS })
    }
}
