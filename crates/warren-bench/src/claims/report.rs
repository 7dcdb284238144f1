//! The results, as tables or JSON.

use serde::Serialize;

use super::Part;
use super::place::HomeKind;
use crate::process::Usage;
use crate::summary::Summary;

/// All results.
#[derive(Default, Serialize)]
pub struct Report {
    /// The results of loads.
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

/// The result of one load on one home.
#[derive(Serialize)]
pub struct Phase {
    /// The home.
    pub home: HomeKind,
    /// The load.
    pub part: Part,
    /// The number of claims created.
    pub claims: usize,
    /// The number of claims that became Ready.
    pub ready: usize,
    /// Ready claims per second, from the first create to the last Ready.
    pub per_second: f64,
    /// The time from a claim's arrival to the watch event that shows Ready, in milliseconds.
    pub times: Option<Summary>,
    /// The part of that from sending the create to its answer, in milliseconds. It is the cost of
    /// one write on this server under the load, without our controllers.
    pub creates: Option<Summary>,
    /// All writes during the load, including those of the pool's refill, per claim.
    pub writes_per_claim: f64,
    /// All writes during the load, per second.
    pub writes_per_second: f64,
    /// The average time that a claim waited for a free worker of the controllers, in milliseconds.
    pub wait_ms: f64,
    /// The disk waits of our own store.
    pub disk: Option<Disk>,
    /// Requests of the controllers that the server refused as conflicts.
    pub conflicts: u64,
    /// The resource usage of the controllers.
    pub controller: Usage,
    /// The resource usage of API server and etcd, if they are separate processes.
    pub server: Option<Usage>,
    /// The share of processor time that the machine's host gave to other guests, in percent.
    pub stolen: f64,
}

/// The disk waits of a store during a load.
#[derive(Serialize)]
pub struct Disk {
    /// The number of commits, each of which waits for the disk once.
    pub commits: u64,
    /// The average time of a commit, in milliseconds.
    pub commit_ms: f64,
    /// The number of commits of more than 8 ms.
    pub slow_commits: u64,
    /// The number of checkpoints, during which all writes wait.
    pub checkpoints: u64,
    /// The average time of a checkpoint, in milliseconds.
    pub checkpoint_ms: f64,
}

/// The writes of a warm claim, measured one claim at a time.
#[derive(Serialize)]
pub struct Writes {
    /// The home.
    pub home: HomeKind,
    /// Writes to the claim and its sandbox until the claim is Ready, without its create.
    pub until_ready: f64,
    /// All writes of a claim, including later ones, those to the pod, which gets its new labels,
    /// and events.
    pub in_all: f64,
}

/// The fill of a cold pool.
#[derive(Serialize)]
pub struct Fill {
    /// The home.
    pub home: HomeKind,
    /// The number of members.
    pub members: usize,
    /// The time until all were Ready, in seconds.
    pub seconds: f64,
    /// All writes during the fill.
    pub writes: u64,
    /// Creates of sandboxes per second on an otherwise empty server of the same kind, without
    /// controllers.
    pub raw_creates_per_second: f64,
    /// The machine's memory per member, in MB.
    pub mb_per_member: f64,
    /// The resource usage of the controllers.
    pub controller: Usage,
    /// The resource usage of API server and etcd, if they are separate processes.
    pub server: Option<Usage>,
}

/// Controllers with many objects in their caches.
#[derive(Serialize)]
pub struct Cached {
    /// The number of sandboxes, each with a pod.
    pub sandboxes: usize,
    /// The controllers' memory without any.
    pub empty_mb: f64,
    /// The controllers' memory after creating all of them.
    pub full_mb: f64,
    /// The controllers' memory after a restart with all of them.
    pub after_restart_mb: f64,
    /// The time to create them, in seconds.
    pub seconds: f64,
    /// Our API server's memory with all of them.
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
    /// Returns its name in the table.
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
