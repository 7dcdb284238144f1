//! Measures claims on a warm pool, from the create until a watch shows them Ready: on a real
//! kube-apiserver with simulated nodes, and on the local home with real containers.
//!
//! The load is open: claims arrive at fixed times, even if earlier ones are unfinished. Each is
//! timed from its arrival, including the wait for a free connection. Start at [`measure`].
//! [`phase`] runs one load, [`arrivals`] computes the times of claims, [`place`] starts a home,
//! [`report`] prints.

mod arrivals;
mod cache;
mod disk;
mod observer;
mod phase;
mod place;
mod pool;
mod report;
mod writes;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

use place::{HomeKind, Place};
use report::Report;

use crate::connection::Endpoint;
use crate::serve::Server;

/// The size of the pool: enough for a burst of a thousand, as upstream measures.
const POOL: usize = 1050;

/// What to measure.
#[derive(Args)]
pub struct Options {
    /// The `warren` binary to measure.
    #[arg(long, env = "WARREN_BENCH_BINARY")]
    warren: PathBuf,
    /// Where; both by default.
    #[arg(long, value_delimiter = ',')]
    home: Vec<HomeKind>,
    /// Only these parts.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Part>,
    /// Members of the pool.
    #[arg(long, default_value_t = POOL)]
    pool: usize,
    /// Sandboxes for the part `cache`.
    #[arg(long, default_value_t = 20_000)]
    cached: usize,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// One part of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// A cold pool is filled, beside the creates that the server can do at all.
    Fill,
    /// Claims one after the other, with every write counted.
    Writes,
    /// 75 claims a second for ten seconds.
    Steady,
    /// The writes of as many claims on the disk, and nothing else.
    Disk,
    /// 45 claims a second for a minute, at random times.
    Poisson,
    /// 10 claims a second for a minute, at random times: what a server on two cores has room for.
    Calm,
    /// 300 claims at once.
    #[serde(rename = "burst-300")]
    #[value(name = "burst-300")]
    Burst300,
    /// As many claims at once as the pool has members.
    Saturation,
    /// 3,600 claims at once: most of them find the pool empty.
    #[serde(rename = "burst-3600")]
    #[value(name = "burst-3600")]
    Burst3600,
    /// The controllers' memory with many sandboxes in their caches.
    Cache,
}

/// Runs the parts in order and prints the results.
pub async fn measure(options: &Options) -> anyhow::Result<()> {
    let wanted = |part: Part| options.only.is_empty() || options.only.contains(&part);
    let homes: &[HomeKind] =
        if options.home.is_empty() { &[HomeKind::Kube, HomeKind::Local] } else { &options.home };
    let mut report = Report::default();
    let loads = arrivals::loads(options.pool);
    let loads: Vec<_> = loads.into_iter().filter(|(part, _)| wanted(*part)).collect();
    for home in homes {
        if loads.is_empty() && !wanted(Part::Fill) && !wanted(Part::Writes) {
            break;
        }
        eprintln!("{home}: starting");
        let raw = match wanted(Part::Fill) {
            true => Some(raw_creates(*home).await?),
            false => None,
        };
        let place = Place::start(*home, &options.warren).await?;
        match raw {
            Some(raw) => report.fills.push(pool::measure_fill(&place, options.pool, raw).await?),
            None => pool::fill(&place, options.pool).await?,
        }
        if wanted(Part::Writes) {
            report.writes.push(writes::count(&place).await?);
        }
        for (part, arrivals) in &loads {
            pool::settle(&place, options.pool).await?;
            eprintln!("{home}: {part:?}, {} claims", arrivals.len());
            report.phases.push(phase::run(&place, *part, arrivals).await?);
        }
        place.end();
    }
    if wanted(Part::Disk) {
        report.disk = disk::measure(&arrivals::steady())?;
    }
    if wanted(Part::Cache) {
        report.cache = Some(cache::measure(&options.warren, options.cached).await?);
    }
    report.print(options.json)
}

/// Measures the create rate of a home's API server alone, on a temporary one without controllers
/// and nodes.
async fn raw_creates(home: HomeKind) -> anyhow::Result<f64> {
    eprintln!("{home}: creates on the API server alone");
    match home {
        HomeKind::Kube => {
            let control_plane = place::control_plane().await?;
            pool::raw_creates(&Endpoint::from_kubeconfig(control_plane.kubeconfig()).await?).await
        }
        HomeKind::Local => {
            let server = Server::start()?;
            pool::raw_creates(&Endpoint::from_kubeconfig(&server.kubeconfig()).await?).await
        }
    }
}
