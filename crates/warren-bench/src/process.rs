//! What a process has used, as the kernel counts it.

use std::fs;

use anyhow::Context;
use serde::Serialize;

/// Clock ticks per second in `/proc`: fixed to this in Linux's interface, whatever the kernel's own rate is.
const TICKS: f64 = 100.0;

/// What one process, or several together, hold and have used since their start.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Usage {
    /// Resident memory in MB.
    pub rss_mb: f64,
    /// Processor time in seconds, user and system.
    pub cpu_seconds: f64,
}

impl Usage {
    /// The sum over some processes.
    pub fn of(pids: &[u32]) -> anyhow::Result<Usage> {
        let mut sum = Usage::default();
        for pid in pids {
            let one = Self::of_one(*pid).with_context(|| format!("look at process {pid}"))?;
            sum.rss_mb += one.rss_mb;
            sum.cpu_seconds += one.cpu_seconds;
        }
        Ok(sum)
    }

    /// What was used since an earlier look; what is held is what is held now.
    pub fn since(self, earlier: Usage) -> Usage {
        Usage { rss_mb: self.rss_mb, cpu_seconds: self.cpu_seconds - earlier.cpu_seconds }
    }

    fn of_one(pid: u32) -> anyhow::Result<Usage> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("it has no memory")?;
        let kilobytes: f64 = rss.trim().trim_end_matches(" kB").parse()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The name, in brackets, may hold anything; what follows is numbers.
        let numbers = stat.rsplit_once(')').context("an unreadable /proc/PID/stat")?.1;
        let field = |index: usize| numbers.split_whitespace().nth(index).unwrap_or("0").parse::<f64>();
        Ok(Usage { rss_mb: kilobytes / 1024.0, cpu_seconds: (field(11)? + field(12)?) / TICKS })
    }
}
