//! What came of it, as tables or JSON.

use serde::Serialize;

use super::Part;
use super::place::HomeKind;
use crate::process::Usage;
use crate::summary::Summary;

/// Everything that was measured.
#[derive(Default, Serialize)]
pub struct Report {
    /// Loads.
    pub phases: Vec<Phase>,
    /// Writes per claim.
    pub writes: Vec<Writes>,
    /// Cold fills.
    pub fills: Vec<Fill>,
    /// The disk alone.
    pub disk: Option<Summary>,
    /// Controllers with many objects.
    pub cache: Option<Cached>,
}

/// One load on one home.
#[derive(Serialize)]
pub struct Phase {
    /// The home.
    pub home: HomeKind,
    /// The load.
    pub part: Part,
    /// Claims that were created.
    pub claims: usize,
    /// Those of them that became Ready.
    pub ready: usize,
    /// Ready claims per second, from the first create to the last Ready.
    pub per_second: f64,
    /// From when the claim was due to the watch event that shows Ready, in milliseconds.
    pub times: Option<Summary>,
    /// Of that, from sending the create to its answer: what one write costs on this server meanwhile, without anything of ours. In milliseconds.
    pub creates: Option<Summary>,
    /// Everything written meanwhile by anybody, the refilling of the pool included, per claim.
    pub writes_per_claim: f64,
    /// The same per second.
    pub writes_per_second: f64,
    /// How long a claim waited for a free worker of ours, on average, in milliseconds.
    pub wait_ms: f64,
    /// What our own store had to wait for.
    pub disk: Option<Disk>,
    /// Requests of the controllers that the server refused as conflicts.
    pub conflicts: u64,
    /// What the controllers used.
    pub controller: Usage,
    /// What API server and etcd used, where they are apart.
    pub server: Option<Usage>,
    /// How much of the processors' time others had, on the machine that this one is a guest of, in percent.
    pub stolen: f64,
}

/// What a store has waited for its disk during a load.
#[derive(Serialize)]
pub struct Disk {
    /// Commits, each of which waits for the disk once.
    pub commits: u64,
    /// How long one took, on average, in milliseconds.
    pub commit_ms: f64,
    /// Those that took more than 8 ms.
    pub slow_commits: u64,
    /// Foldings of the log into the file, for which everybody waits.
    pub checkpoints: u64,
    /// How long one took, on average, in milliseconds.
    pub checkpoint_ms: f64,
}

/// What a warm claim costs, one at a time.
#[derive(Serialize)]
pub struct Writes {
    /// The home.
    pub home: HomeKind,
    /// Writes to the claim and its sandbox until the claim is Ready, without its create.
    pub until_ready: f64,
    /// The same with what follows, with those to the pod, which gets its new labels meanwhile, and with events.
    pub in_all: f64,
}

/// A cold pool that was filled.
#[derive(Serialize)]
pub struct Fill {
    /// The home.
    pub home: HomeKind,
    /// How many.
    pub members: usize,
    /// Until all were Ready.
    pub seconds: f64,
    /// Everything written meanwhile.
    pub writes: u64,
    /// Creates of sandboxes per second on a server of the same kind that is otherwise empty, with nobody acting on them.
    pub raw_creates_per_second: f64,
    /// Memory of the whole machine that went into one member, in MB.
    pub mb_per_member: f64,
    /// What the controllers used.
    pub controller: Usage,
    /// What API server and etcd used, where they are apart.
    pub server: Option<Usage>,
}

/// Controllers with many objects in their caches.
#[derive(Serialize)]
pub struct Cached {
    /// How many sandboxes, each with a pod.
    pub sandboxes: usize,
    /// The controllers' memory with none.
    pub empty_mb: f64,
    /// After making them all.
    pub full_mb: f64,
    /// After a restart on them.
    pub after_restart_mb: f64,
    /// How long it took to make them.
    pub seconds: f64,
    /// Our API server's memory with all of it.
    pub server_mb: f64,
}

impl Report {
    /// Prints JSON, or tables for SPECIFICATION.md.
    pub fn print(&self, json: bool) -> anyhow::Result<()> {
        if json {
            println!("{}", serde_json::to_string_pretty(self)?);
            return Ok(());
        }
        if !self.phases.is_empty() {
            println!(
                "| home | load | claims | Ready | per second | p50 ms | p90 ms | p99 ms | create alone p50 ms | p99 ms | writes per claim, refill included | writes per second | wait for a worker ms | conflicts | controller CPU s | MB | API server CPU s | stolen % |"
            );
            println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
        }
        for phase in &self.phases {
            let times = phase.times.as_ref();
            let (p50, p90, p99) = times.map_or((0.0, 0.0, 0.0), |times| (times.p50, times.p90, times.p99));
            let (create, slow_create) =
                phase.creates.as_ref().map_or((0.0, 0.0), |times| (times.p50, times.p99));
            println!(
                "| {} | {} | {} | {} | {:.0} | {p50:.1} | {p90:.1} | {p99:.1} | {create:.1} | {slow_create:.1} | {:.1} | {:.0} | {:.1} | {} | {:.1} | {:.0} | {} | {:.1} |",
                phase.home,
                phase.part.describe(),
                phase.claims,
                phase.ready,
                phase.per_second,
                phase.writes_per_claim,
                phase.writes_per_second,
                phase.wait_ms,
                phase.conflicts,
                phase.controller.cpu_seconds,
                phase.controller.rss_mb,
                server_seconds(phase.server),
                phase.stolen,
            );
        }
        let disks: Vec<_> =
            self.phases.iter().filter_map(|phase| Some((phase.part, phase.disk.as_ref()?))).collect();
        if !disks.is_empty() {
            println!(
                "\n| the store's disk meanwhile | commits | ms | over 8 ms | checkpoints | ms |\n|---|---|---|---|---|---|"
            );
        }
        for (part, disk) in disks {
            println!(
                "| {} | {} | {:.2} | {} | {} | {:.2} |",
                part.describe(),
                disk.commits,
                disk.commit_ms,
                disk.slow_commits,
                disk.checkpoints,
                disk.checkpoint_ms,
            );
        }
        if !self.writes.is_empty() {
            println!(
                "\n| home | writes of a warm claim until Ready | and in all, with those to the pod and events |\n|---|---|---|"
            );
        }
        for writes in &self.writes {
            println!("| {} | {:.2} | {:.2} |", writes.home, writes.until_ready, writes.in_all);
        }
        if !self.fills.is_empty() {
            println!(
                "\n| home | cold pool of | seconds | members per second | writes per second | Sandbox creates per second on the server alone | writes to those creates | MB per member | controller CPU s | API server CPU s |"
            );
            println!("|---|---|---|---|---|---|---|---|---|---|");
        }
        for fill in &self.fills {
            let writes = fill.writes as f64 / fill.seconds;
            let raw = fill.raw_creates_per_second;
            println!(
                "| {} | {} | {:.1} | {:.0} | {writes:.0} | {raw:.0} | {:.2} | {:.1} | {:.1} | {} |",
                fill.home,
                fill.members,
                fill.seconds,
                fill.members as f64 / fill.seconds,
                writes / raw,
                fill.mb_per_member,
                fill.controller.cpu_seconds,
                server_seconds(fill.server),
            );
        }
        if let Some(disk) = &self.disk {
            println!("\n| the disk alone, 75/s for 10 s | p50 ms | p90 ms | p99 ms |\n|---|---|---|---|");
            println!("| {} | {:.1} | {:.1} | {:.1} |", disk.name, disk.p50, disk.p90, disk.p99);
        }
        if let Some(cache) = &self.cache {
            println!(
                "\n| sandboxes with pods | controllers with none, MB | with them | after a restart on them | our API server with them |"
            );
            println!("|---|---|---|---|---|");
            println!(
                "| {} | {:.0} | {:.0} | {:.0} | {:.0} |",
                cache.sandboxes, cache.empty_mb, cache.full_mb, cache.after_restart_mb, cache.server_mb
            );
        }
        Ok(())
    }
}

impl Part {
    /// What the table calls it.
    fn describe(self) -> &'static str {
        match self {
            Part::Fill => "cold fill",
            Part::Writes => "one at a time",
            Part::Steady => "75/s for 10 s",
            Part::Disk => "the disk alone",
            Part::Poisson => "45/s at random for 60 s",
            Part::Calm => "10/s at random for 60 s",
            Part::Burst300 => "300 at once",
            Part::Saturation => "the whole pool at once",
            Part::Burst3600 => "3,600 at once",
            Part::Cache => "caches",
        }
    }
}

fn server_seconds(server: Option<Usage>) -> String {
    server.map_or_else(String::new, |server| format!("{:.1}", server.cpu_seconds))
}
