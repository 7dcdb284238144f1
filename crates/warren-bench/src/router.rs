//! The router of a local home beside nginx as a plain proxy, and the guest daemon behind both.
//!
//! A sandbox runs nginx as a server of small answers and the guest daemon. The same requests go to it
//! directly, through an nginx on this machine, and through the home's router, in turns. Start at
//! [`measure`]; `load` sends requests, `servers` starts nginx here and in the sandbox.

mod load;
mod servers;

use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::home::Home;
use crate::process::Usage;
use crate::summary::{self, Summary};
use load::{Target, Throughput};
use servers::{Nginx, Sandboxed};

/// The guest daemon's port in the sandbox.
const GUEST_PORT: u16 = 8888;
/// Connections of the load that is compared in requests per second.
const CONNECTIONS: usize = 32;
/// The length of each contender's turn in that load.
const TURN: Duration = Duration::from_secs(2);
/// Bytes of a large file, up and down.
const LARGE: u64 = 1 << 30;

/// What to measure.
#[derive(Args)]
pub struct Options {
    /// The `warren` binary to measure.
    #[arg(long, env = "WARREN_BENCH_BINARY")]
    warren: PathBuf,
    /// How many turns each contender has.
    #[arg(long, default_value_t = 5)]
    turns: usize,
    /// How many requests are timed one by one, of each contender.
    #[arg(long, default_value_t = 2000)]
    requests: usize,
    /// How many idle WebSockets are held.
    #[arg(long, default_value_t = 10_000)]
    sockets: usize,
    /// Only these parts.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Part>,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// One part of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Small requests: how many a second over 32 connections, and how long one takes alone.
    Plain,
    /// `POST /execute` of `true`: a command in a running sandbox.
    Execute,
    /// A file of 1 GiB into the sandbox and out of it.
    Large,
    /// Idle WebSockets, and the memory that the daemon needs for them.
    Sockets,
}

/// Everything that was measured.
#[derive(Default, Serialize)]
struct Report {
    /// Requests per second of each contender, the median of its turns.
    throughput: Vec<Throughput>,
    /// Single requests.
    alone: Vec<Summary>,
    /// Commands.
    execute: Vec<Summary>,
    /// Large files.
    large: Vec<Large>,
    /// Idle WebSockets.
    sockets: Option<Sockets>,
}

/// A large file on its way through a contender.
#[derive(Serialize)]
struct Large {
    name: &'static str,
    up_mb_per_second: f64,
    down_mb_per_second: f64,
    /// The growth of the daemon's memory while it passed the file on; only for the router.
    growth_mb: Option<f64>,
}

/// Idle WebSockets through the router.
#[derive(Serialize)]
struct Sockets {
    count: usize,
    growth_mb: f64,
}

/// Measures, and prints the report.
pub async fn measure(options: &Options) -> anyhow::Result<()> {
    let home = Home::start(&options.warren)?;
    let wants = |part| options.only.is_empty() || options.only.contains(&part);
    let mut report = Report::default();
    let sandboxed = Sandboxed::start(&home, "bench").await?;
    let router = router(&home)?;
    if wants(Part::Plain) {
        let nginx = Nginx::start(sandboxed.address, servers::PORT).await?;
        let targets = [
            Target::router("warren router", router, &sandboxed.name, servers::PORT),
            Target::plain("nginx", nginx.address()),
            Target::plain("direct", SocketAddrV4::new(sandboxed.address, servers::PORT)),
        ];
        report.throughput = throughput(&targets, options.turns).await?;
        report.alone = alone(&targets, options.requests, Target::get).await?;
    }
    if wants(Part::Execute) {
        let targets = [
            Target::router("warren router", router, &sandboxed.name, GUEST_PORT),
            Target::plain("direct", SocketAddrV4::new(sandboxed.address, GUEST_PORT)),
        ];
        report.execute = alone(&targets, options.requests.min(1000), Target::execute).await?;
    }
    if wants(Part::Large) {
        let nginx = Nginx::start(sandboxed.address, GUEST_PORT).await?;
        let targets = [
            Target::router("warren router", router, &sandboxed.name, GUEST_PORT),
            Target::plain("nginx", nginx.address()),
            Target::plain("direct", SocketAddrV4::new(sandboxed.address, GUEST_PORT)),
        ];
        for (index, target) in targets.iter().enumerate() {
            report.large.push(large(target, (index == 0).then_some(home.daemon()?)).await?);
        }
    }
    if wants(Part::Sockets) && options.sockets > 0 {
        report.sockets = Some(sockets(&home, router, options.sockets).await?);
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&report);
    }
    Ok(())
}

/// Returns the address of the home's router.
fn router(home: &Home) -> anyhow::Result<std::net::SocketAddr> {
    let url =
        std::fs::read_to_string(home.directory().join("router-url")).context("read the router's URL")?;
    url.trim().trim_start_matches("http://").parse().context("read the router's address")
}

/// Counts requests per second of each target, in turns.
async fn throughput(targets: &[Target], turns: usize) -> anyhow::Result<Vec<Throughput>> {
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); targets.len()];
    // The first turn fills caches and pools of connections, and is not counted.
    for turn in 0..=turns {
        for (target, rates) in targets.iter().zip(&mut rates) {
            let rate = load::requests_per_second(target, CONNECTIONS, TURN).await?;
            if turn > 0 {
                rates.push(rate);
            }
        }
    }
    Ok(targets.iter().zip(rates).filter_map(|(target, rates)| Throughput::of(target.name, rates)).collect())
}

/// Times single requests on one connection of each target, in turns.
async fn alone<F>(targets: &[Target], requests: usize, request: F) -> anyhow::Result<Vec<Summary>>
where
    F: Fn(&Target) -> load::Sent,
{
    let mut connections = Vec::new();
    for target in targets {
        connections.push((target, target.connect().await?, Vec::new()));
    }
    for round in 0..requests + 20 {
        for (target, connection, times) in &mut connections {
            let sent = request(target);
            let begun = Instant::now();
            connection.send(sent).await.with_context(|| format!("ask {}", target.name))?;
            if round >= 20 {
                times.push(begun.elapsed());
            }
        }
    }
    let all = connections.into_iter();
    Ok(all.filter_map(|(target, _, times)| Summary::of(target.name, times)).collect())
}

/// Sends a large file up and fetches it again.
async fn large(target: &Target, daemon: Option<u32>) -> anyhow::Result<Large> {
    let rate = |elapsed: Duration| LARGE as f64 / 1e6 / elapsed.as_secs_f64();
    let watched = load::watching_memory(daemon, async {
        let begun = Instant::now();
        load::upload(target, "large", LARGE)
            .await
            .with_context(|| format!("upload through {}", target.name))?;
        let up = begun.elapsed();
        let begun = Instant::now();
        let received = load::download(target, "large").await?;
        ensure!(received == LARGE, "{received} bytes came back through {}", target.name);
        anyhow::Ok((up, begun.elapsed()))
    });
    let ((up, down), growth_mb) = watched.await?;
    Ok(Large { name: target.name, up_mb_per_second: rate(up), down_mb_per_second: rate(down), growth_mb })
}

/// Holds idle WebSockets to several sandboxes, because each sandbox has a limit.
async fn sockets(home: &Home, router: std::net::SocketAddr, count: usize) -> anyhow::Result<Sockets> {
    const EACH: usize = 1000;
    servers::allow_open_files(count as u64 + 4096)?;
    let daemon = home.daemon()?;
    let mut sandboxes = Vec::new();
    for number in 0..count.div_ceil(EACH) {
        let sandboxed = Sandboxed::start(home, &format!("sockets-{number}")).await?;
        sandboxed.accept_websockets().await?;
        sandboxes.push(sandboxed);
    }
    let before = Usage::of(&[daemon])?.rss_mb;
    let mut held = Vec::with_capacity(count);
    for number in 0..count {
        let sandboxed = &sandboxes[number / EACH];
        let socket = load::websocket(router, &sandboxed.name, servers::WEBSOCKET_PORT).await;
        held.push(socket.with_context(|| format!("open WebSocket {number}"))?);
    }
    let growth_mb = Usage::of(&[daemon])?.rss_mb - before;
    Ok(Sockets { count: held.len(), growth_mb })
}

fn print(report: &Report) {
    if let Some(ours) = report.throughput.first() {
        println!("| small requests, {CONNECTIONS} connections | per second | ours / theirs |\n|---|---|---|");
        for row in &report.throughput {
            println!("| {} | {:.0} | {:.2} |", row.name, row.per_second, ours.per_second / row.per_second);
        }
        println!("\nOne request at a time:\n\n{}", fine(&report.alone));
    }
    if !report.execute.is_empty() {
        println!("`POST /execute` of `true`:\n\n{}", summary::table(&report.execute));
    }
    if !report.large.is_empty() {
        println!("| 1 GiB through | up MB/s | down MB/s | growth of the daemon MB |\n|---|---|---|---|");
        for row in &report.large {
            let growth = row.growth_mb.map_or("–".to_owned(), |growth| format!("{growth:.1}"));
            println!(
                "| {} | {:.0} | {:.0} | {growth} |",
                row.name, row.up_mb_per_second, row.down_mb_per_second
            );
        }
        println!();
    }
    if let Some(sockets) = &report.sockets {
        println!("{} idle WebSockets: {:.0} MB more in the daemon", sockets.count, sockets.growth_mb);
    }
}

/// Prints times in microseconds: a proxy adds less than a millisecond.
fn fine(summaries: &[Summary]) -> String {
    let mut text = String::from("| what | rounds | p50 µs | p90 µs | p99 µs |\n|---|---|---|---|---|\n");
    for Summary { name, rounds, p50, p90, p99 } in summaries {
        let [p50, p90, p99] = [p50, p90, p99].map(|time| time * 1000.0);
        text.push_str(&format!("| {name} | {rounds} | {p50:.0} | {p90:.0} | {p99:.0} |\n"));
    }
    text
}
