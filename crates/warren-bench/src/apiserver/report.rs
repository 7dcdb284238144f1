//! The results of both servers, side by side.

use serde::Serialize;

use super::load::{Load, Outcome};
use crate::process::Usage;
use crate::summary::Summary;

/// All results.
#[derive(Default, Serialize)]
pub struct Report {
    /// The results of loads.
    pub measurements: Vec<Measurement>,
    /// The memory of the servers.
    pub memory: Vec<Memory>,
}

/// The result of one load on one server.
#[derive(Serialize)]
pub struct Measurement {
    server: &'static str,
    load: Load,
    clients: usize,
    /// Answered requests per second. For a watch: delivered events per second.
    per_second: f64,
    /// The latencies in milliseconds.
    times: Option<Summary>,
    /// The server's resource usage during the load.
    used: Usage,
}

/// The resident memory of one server.
#[derive(Serialize)]
pub struct Memory {
    /// The server.
    pub server: &'static str,
    /// With an empty store.
    pub empty_mb: f64,
    /// The number of sandboxes stored afterwards.
    pub sandboxes: usize,
    /// With these sandboxes.
    pub filled_mb: f64,
}

impl Measurement {
    /// Summarises a load.
    pub fn new(server: &'static str, load: Load, clients: usize, outcome: Outcome, used: Usage) -> Self {
        let per_second = outcome.times.len() as f64 / outcome.took.as_secs_f64();
        let times = Summary::of(server, outcome.times);
        Measurement { server, load, clients, per_second, times, used }
    }
}

impl Report {
    /// Prints JSON, or tables for SPECIFICATION.md.
    pub fn print(&self, json: bool) -> anyhow::Result<()> {
        if json {
            println!("{}", serde_json::to_string_pretty(self)?);
            return Ok(());
        }
        println!(
            "| load | clients | server | per second | p50 ms | p99 ms | CPU s | ours to theirs: rate, p99 |"
        );
        println!("|---|---|---|---|---|---|---|---|");
        for measurement in &self.measurements {
            let (p50, p99) = measurement.times.as_ref().map_or((0.0, 0.0), |times| (times.p50, times.p99));
            println!(
                "| {} | {} | {} | {:.0} | {p50:.2} | {p99:.2} | {:.1} | {} |",
                measurement.load,
                measurement.clients,
                measurement.server,
                measurement.per_second,
                measurement.used.cpu_seconds,
                self.comparison(measurement).unwrap_or_default(),
            );
        }
        println!();
        println!("| server | MB with nothing stored | sandboxes | MB with them |");
        println!("|---|---|---|---|");
        for memory in &self.memory {
            println!(
                "| {} | {:.0} | {} | {:.0} |",
                memory.server, memory.empty_mb, memory.sandboxes, memory.filled_mb
            );
        }
        Ok(())
    }

    /// Compares the first server with this one, for the row of the second.
    fn comparison(&self, theirs: &Measurement) -> Option<String> {
        let ours = self.measurements.iter().find(|other| {
            other.server != theirs.server && other.load == theirs.load && other.clients == theirs.clients
        })?;
        if self.measurements.first()?.server == theirs.server {
            return None;
        }
        let rate = ours.per_second / theirs.per_second;
        let slowest = ours.times.as_ref()?.p99 / theirs.times.as_ref()?.p99;
        Some(format!("{rate:.1}, {slowest:.2}"))
    }
}
