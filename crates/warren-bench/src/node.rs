//! Measures the local node: sandboxes from create to first output, commands in them, a hundred at
//! once, pulls and memory. Compares it with a Docker daemon and with OCI runtimes called directly.
//!
//! Our API and Docker's are called directly, so that the start of a command line is not measured.
//! runc and crun have no API. Contenders take turns within each round. Start at [`measure`].
//! `ours`, `docker_api` and `oci_runtime` are the contenders, `pull` makes images, `memory` adds up
//! processes, `report` prints.

mod docker_api;
mod memory;
mod oci_runtime;
mod ours;
mod pull;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::bundle::Bundle;
use crate::legacy_cgroups::LegacyCgroups;
use crate::process::Usage;
use crate::summary::Summary;
use docker_api::DockerApi;
use oci_runtime::OciRuntime;
use ours::Ours;
use report::Report;

/// The number of first rounds that are not counted, because they fill caches.
const WARM_UP_ROUNDS: usize = 3;
/// The time without work after which a daemon counts as idle. Ours releases memory in this time.
const CALM: Duration = Duration::from_secs(8);

/// What to measure.
#[derive(Args)]
pub struct Options {
    /// The `warren` binary to measure.
    #[arg(long, env = "WARREN_BENCH_BINARY")]
    warren: PathBuf,
    /// How often each contender does each thing that is timed.
    #[arg(long, default_value_t = 100)]
    rounds: usize,
    /// How many sandboxes are started at once, and are idle while memory is looked at.
    #[arg(long, default_value_t = 100)]
    many: usize,
    /// How often an image is pulled.
    #[arg(long, default_value_t = 5)]
    pulls: usize,
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
    /// Memory and processor time of the daemons while nothing happens.
    Rest,
    /// From asking for a new sandbox until the first byte that a command in it has written.
    Cold,
    /// A command in a sandbox that is there, from asking for it until its exit code is known.
    Exec,
    /// A line to a command that is running, and back.
    RoundTrip,
    /// Many sandboxes at once, and what they take when they are idle.
    Many,
    /// An image pulled from a registry on this machine and unpacked.
    Pull,
}

impl Part {
    fn describe(self) -> &'static str {
        match self {
            Part::Rest => "daemon at rest",
            Part::Cold => "cold sandbox to first output",
            Part::Exec => "command in a running sandbox",
            Part::RoundTrip => "line to a running command and back",
            Part::Many => "many at once",
            Part::Pull => "pull and unpack",
        }
    }
}

/// A program that runs containers.
enum Contender {
    Ours(Box<Ours>),
    Docker(DockerApi),
    Runtime(OciRuntime),
}

impl Contender {
    fn name(&self) -> &'static str {
        match self {
            Contender::Ours(_) => "warren",
            Contender::Docker(_) => "docker",
            Contender::Runtime(runtime) => runtime.name(),
        }
    }

    /// Runs one timed operation once.
    async fn time(&mut self, part: Part) -> anyhow::Result<Duration> {
        match (self, part) {
            (Contender::Ours(ours), Part::Cold) => ours.cold().await,
            (Contender::Ours(ours), Part::Exec) => ours.exec().await,
            (Contender::Ours(ours), _) => ours.round_trip().await,
            (Contender::Docker(docker), Part::Cold) => docker.cold(),
            (Contender::Docker(docker), Part::Exec) => docker.exec(),
            (Contender::Docker(docker), _) => docker.round_trip(),
            (Contender::Runtime(runtime), Part::Cold) => runtime.cold(),
            (Contender::Runtime(runtime), Part::Exec) => runtime.exec(),
            (Contender::Runtime(runtime), _) => runtime.round_trip(),
        }
    }

    /// Starts a number of sandboxes at once. Returns the time until all of them run.
    async fn start_many(&mut self, count: usize) -> anyhow::Result<Duration> {
        match self {
            Contender::Ours(ours) => ours.start_many(count).await,
            Contender::Docker(docker) => docker.start_many(count),
            Contender::Runtime(runtime) => runtime.start_many(count),
        }
    }

    async fn end_many(&mut self) -> anyhow::Result<()> {
        match self {
            Contender::Ours(ours) => ours.end_many().await,
            Contender::Docker(docker) => docker.end_many(),
            Contender::Runtime(runtime) => runtime.end_many(),
        }
    }

    /// Returns the processes of its daemon and all their descendants. `None` without a daemon.
    fn processes(&self) -> anyhow::Result<Option<Vec<u32>>> {
        match self {
            Contender::Ours(ours) => Ok(Some(memory::family(&[ours.daemon()?])?)),
            Contender::Docker(docker) => Ok(Some(memory::family(&docker.seeds()?)?)),
            Contender::Runtime(_) => Ok(None),
        }
    }

    /// Returns the processes of its daemon only.
    fn daemons(&self) -> anyhow::Result<Option<Vec<u32>>> {
        match self {
            Contender::Ours(ours) => ours.daemons().map(Some),
            Contender::Docker(docker) => docker.daemons().map(Some),
            Contender::Runtime(_) => Ok(None),
        }
    }

    async fn pull(&mut self, pulls: usize, image: &pull::Image) -> anyhow::Result<Option<Vec<Duration>>> {
        match self {
            Contender::Ours(ours) => ours.pull(pulls, image).await.map(Some),
            Contender::Docker(docker) => docker.pull(pulls, image).map(Some),
            Contender::Runtime(_) => Ok(None),
        }
    }
}

/// Runs the parts in order and prints the results.
pub async fn measure(options: &Options) -> anyhow::Result<()> {
    let wanted = |part: Part| options.only.is_empty() || options.only.contains(&part);
    let bundle = Bundle::create()?;
    let mut contenders = gather(options, &bundle).await?;
    let mut report = Report::default();
    if wanted(Part::Rest) {
        rest(&contenders, &mut report).await?;
    }
    for part in [Part::Cold, Part::Exec, Part::RoundTrip].into_iter().filter(|part| wanted(*part)) {
        eprintln!("{}", part.describe());
        report.times.extend(take_turns(&mut contenders, part, options.rounds).await?);
    }
    if wanted(Part::Many) {
        for contender in &mut contenders {
            eprintln!("{}: {} at once", contender.name(), options.many);
            report.many.push(many(contender, options.many).await?);
        }
    }
    if wanted(Part::Pull) {
        let image = pull::Image::make();
        for contender in &mut contenders {
            eprintln!("{}: pulls", contender.name());
            if let Some(times) = contender.pull(options.pulls, &image).await? {
                report.pulls.extend(report::Pulled::of(contender.name(), image.megabytes(), times));
            }
        }
    }
    report.print(options.json)
}

/// Returns the contenders that work on this machine. Ours must.
async fn gather(options: &Options, bundle: &Bundle) -> anyhow::Result<Vec<Contender>> {
    let mut contenders = vec![Contender::Ours(Box::new(Ours::start(&options.warren).await?))];
    let others = [
        DockerApi::start(&bundle.rootfs()).map(Contender::Docker),
        LegacyCgroups::where_needed()
            .and_then(|place| OciRuntime::start("crun", &bundle.rootfs(), place))
            .map(Contender::Runtime),
        OciRuntime::start("runc", &bundle.rootfs(), None).map(Contender::Runtime),
    ];
    for other in others {
        match other {
            Ok(other) => contenders.push(other),
            Err(error) => eprintln!("left out: {error:#}"),
        }
    }
    Ok(contenders)
}

async fn take_turns(
    contenders: &mut [Contender],
    part: Part,
    rounds: usize,
) -> anyhow::Result<Vec<report::Timed>> {
    let mut times: Vec<Vec<Duration>> = vec![Vec::with_capacity(rounds); contenders.len()];
    for round in 0..WARM_UP_ROUNDS + rounds {
        for (contender, times) in contenders.iter_mut().zip(&mut times) {
            let time = contender.time(part).await?;
            if round >= WARM_UP_ROUNDS {
                times.push(time);
            }
        }
    }
    let summaries = contenders.iter().zip(times).filter_map(|(contender, times)| {
        Some(report::Timed { part, times: Summary::of(contender.name(), times)? })
    });
    Ok(summaries.collect())
}

/// Measures idle daemons. Each has one idle sandbox.
async fn rest(contenders: &[Contender], report: &mut Report) -> anyhow::Result<()> {
    const WINDOW: Duration = Duration::from_secs(10);
    eprintln!("at rest");
    tokio::time::sleep(CALM).await;
    let mut before = Vec::new();
    for contender in contenders {
        if let Some(processes) = contender.daemons()? {
            before.push((contender.name(), Usage::of(&processes)?, processes));
        }
    }
    tokio::time::sleep(WINDOW).await;
    for (name, earlier, processes) in before {
        let used = Usage::of(&processes)?.since(earlier);
        let percent = used.cpu_seconds / WINDOW.as_secs_f64() * 100.0;
        report.rest.push(report::AtRest { name: name.to_owned(), rss_mb: used.rss_mb, cpu_percent: percent });
    }
    Ok(())
}

/// Starts many sandboxes and measures their memory once they are idle.
async fn many(contender: &mut Contender, count: usize) -> anyhow::Result<report::Many> {
    tokio::time::sleep(CALM).await;
    let before = contender.processes()?.map(|processes| memory::proportional_mb(&processes));
    let took = contender.start_many(count).await?;
    tokio::time::sleep(CALM).await;
    let after = contender.processes()?.map(|processes| memory::proportional_mb(&processes));
    contender.end_many().await?;
    Ok(report::Many {
        name: contender.name().to_owned(),
        count,
        seconds: took.as_secs_f64(),
        mb_each: before.zip(after).map(|(before, after)| (after - before) / count as f64),
    })
}
