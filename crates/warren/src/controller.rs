//! Runs `warren controller`: the controllers as a process of their own, for any API server.

mod flags;
mod go_syntax;
mod otlp;

use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use jiff::SignedDuration;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use warren_controllers::leader::Election;
use warren_controllers::telemetry::{BuildInfo, RateLimit, Telemetry};
use warren_controllers::{BindAddress, Config, Endpoints, Program, SecureServing};

use crate::version::BUILD;

pub use flags::Flags;
pub use go_syntax::normalise;

/// The number of workers that causes a warning: more would strain an API server.
const MANY_WORKERS: i64 = 1000;

/// The most workers. More are a mistake, and a semaphore cannot count any number of them.
const MOST_WORKERS: i64 = 100_000;

/// The time limit for sending the last spans.
const LAST_SPANS: Duration = Duration::from_secs(5);

/// Runs the controllers until SIGTERM or SIGINT.
pub fn controller(flags: &Flags) -> anyhow::Result<()> {
    if flags.version {
        let BuildInfo { git_commit, build_date } = BUILD;
        println!(
            "warren {} (commit {git_commit}, built {build_date}, {}/{})",
            env!("CARGO_PKG_VERSION"),
            std::env::consts::OS,
            std::env::consts::ARCH
        );
        return Ok(());
    }
    let (config, limit) = config(flags)?;
    let metrics = match flags.metrics_bind_address.as_str() {
        "" => flags::METRICS,
        given => given,
    };
    let metrics = address("--metrics-bind-address", metrics)?;
    let health = address("--health-probe-bind-address", &flags.health_probe_bind_address)?;
    let tls = flags.metrics_tls.serving()?;
    for (flag, why) in flags.meaningless.given() {
        warn!(flag, why, "flag without effect");
    }
    for flag in flags.metrics_tls.without_effect() {
        warn!(flag, why = "`--metrics-secure-serving` is not given", "flag without effect");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("warren")
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(serve(flags, config, limit, Addresses { metrics, health }, tls))
}

struct Addresses {
    metrics: Option<BindAddress>,
    health: Option<BindAddress>,
}

async fn serve(
    flags: &Flags,
    config: Config,
    limit: Option<RateLimit>,
    Addresses { metrics, health }: Addresses,
    tls: Option<SecureServing>,
) -> anyhow::Result<()> {
    let shutdown = CancellationToken::new();
    watch_signals(shutdown.clone()).context("listen for signals")?;
    let mut endpoints = Endpoints::open(metrics.as_ref(), health.as_ref()).await?;
    if let Some(tls) = tls {
        endpoints = endpoints.secure_metrics(tls).context("serve metrics over TLS")?;
    }
    let telemetry = Telemetry::new(BUILD);
    let (telemetry, exporter) = match flags.enable_tracing {
        true => {
            let config = otlp::config(|name| std::env::var(name).ok())?;
            let (telemetry, exporter) = telemetry.with_spans(config)?;
            (telemetry, Some(exporter))
        }
        false => (telemetry, None),
    };
    let connection = warren_controllers::connect(flags.kubeconfig.as_deref(), limit, &telemetry).await?;
    let election = flags.leader_elect.then(|| {
        let namespace = match flags.leader_election_namespace.as_str() {
            "" => connection.namespace.as_str(),
            namespace => namespace,
        };
        // Unique among replicas and restarts: a lease of our own earlier process is waited for like
        // any other.
        Election::new(namespace, format!("{}_{:016x}", config.reporting_instance, fastrand::u64(..)))
    });
    let program = Program { controllers: config, election };
    let outcome = warren_controllers::run(connection, telemetry, program, endpoints, shutdown).await;
    if let Some(exporter) = exporter {
        exporter.flush(LAST_SPANS).await;
    }
    Ok(outcome?)
}

/// Cancels at the first signal. A second signal ends the process at once.
pub fn watch_signals(shutdown: CancellationToken) -> io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        next().await;
        shutdown.cancel();
        next().await;
        info!("ended by a second signal");
        std::process::exit(1);
    });
    Ok(())
}

/// Checks the flags before any connection is made.
fn config(flags: &Flags) -> anyhow::Result<(Config, Option<RateLimit>)> {
    let Flags { workers, pools, .. } = flags;
    let positive = |flag: &str, number: i64| {
        ensure!(number > 0, "`{flag}` must be greater than 0, and is {number}");
        Ok(usize::try_from(number)?)
    };
    let workers_of = |flag: &str, number: i64| {
        ensure!(number <= MOST_WORKERS, "`{flag}` must be {MOST_WORKERS} at most, and is {number}");
        positive(flag, number)
    };
    let duration = |flag: &str, duration: SignedDuration| {
        let length = Duration::try_from(duration);
        length.map_err(|_| anyhow!("`{flag}` must not be negative"))
    };
    let length = |flag: &str, duration: SignedDuration| {
        ensure!(duration.is_positive(), "`{flag}` must be greater than 0");
        Ok(Duration::try_from(duration)?)
    };
    flags.meaningless.check()?;
    let rate = pools.sandbox_warm_pool_max_refill_rate;
    ensure!(
        rate.is_finite() && rate >= 0.0,
        "`--sandbox-warm-pool-max-refill-rate` must be a number from 0 on, and is {rate}"
    );
    ensure!(!flags.kube_api_qps.is_nan(), "`--kube-api-qps` must be a number");
    let burst = positive("--kube-api-burst", flags.kube_api_burst)?;
    let limit = (flags.kube_api_qps > 0.0).then(|| RateLimit {
        queries_per_second: flags.kube_api_qps,
        burst: u32::try_from(burst).unwrap_or(u32::MAX),
    });
    let total = workers
        .sandbox_concurrent_workers
        .saturating_add(workers.sandbox_claim_concurrent_workers)
        .saturating_add(workers.sandbox_warm_pool_concurrent_workers)
        .saturating_add(workers.sandbox_template_concurrent_workers);
    if total > MANY_WORKERS {
        warn!(total, "so many workers may be more than the API server likes");
    }
    if limit.is_some() && total > flags.kube_api_burst {
        warn!(total, burst, "workers will wait for each other: more of them than `--kube-api-burst`");
    }
    ensure!(
        flags.extensions || !flags.agent_tasks,
        "`--agent-tasks` needs `--extensions`: tasks are made from templates"
    );
    let config = Config {
        cluster_domain: flags.cluster_domain.clone(),
        extensions: flags.extensions,
        agent_tasks: flags.agent_tasks,
        sandbox_concurrent_workers: workers_of(
            "--sandbox-concurrent-workers",
            workers.sandbox_concurrent_workers,
        )?,
        sandbox_claim_concurrent_workers: workers_of(
            "--sandbox-claim-concurrent-workers",
            workers.sandbox_claim_concurrent_workers,
        )?,
        sandbox_warm_pool_concurrent_workers: workers_of(
            "--sandbox-warm-pool-concurrent-workers",
            workers.sandbox_warm_pool_concurrent_workers,
        )?,
        sandbox_template_concurrent_workers: workers_of(
            "--sandbox-template-concurrent-workers",
            // agent-sandbox's controller accepts any number here: below 1 it uses 1.
            workers.sandbox_template_concurrent_workers.max(1),
        )?,
        sandbox_warm_pool_max_batch_size: positive(
            "--sandbox-warm-pool-max-batch-size",
            pools.sandbox_warm_pool_max_batch_size,
        )?,
        sandbox_warm_pool_max_size: Some(pools.sandbox_warm_pool_max_size).filter(|size| *size > 0),
        sandbox_warm_pool_progress_deadline: length(
            "--sandbox-warm-pool-progress-deadline",
            pools.sandbox_warm_pool_progress_deadline,
        )?,
        sandbox_warm_pool_replenish_delay: duration(
            "--sandbox-warm-pool-replenish-delay",
            pools.sandbox_warm_pool_replenish_delay,
        )?,
        // A cluster's nodes start pods in parallel, and beside the claims.
        sandbox_warm_pool_reserve: 0.0,
        sandbox_warm_pool_max_starting: None,
        sandbox_warm_pool_max_refill_rate: rate,
        sandbox_warm_pool_readiness_grace_period: length(
            "--sandbox-warm-pool-readiness-grace-period",
            pools.sandbox_warm_pool_readiness_grace_period,
        )?,
        sandbox_warm_pool_unschedulable_recheck_interval: length(
            "--sandbox-warm-pool-unschedulable-recheck-interval",
            pools.sandbox_warm_pool_unschedulable_recheck_interval,
        )?,
        enable_warm_pool_eviction: pools.enable_warm_pool_eviction,
        claim_deadline: Some(duration("--claim-deadline", flags.claim_deadline)?)
            .filter(|deadline| !deadline.is_zero()),
        cache_label_selectors: flags.cache_label_selectors,
        disable_claim_events: flags.disable_claim_events,
        disable_claim_observability_annotations: flags.disable_claim_observability_annotations,
        allowed_label_domains: match flags.extensions {
            true => allowed_label_domains(&flags.allowed_label_domains_file)?,
            false => Config::default().allowed_label_domains,
        },
        reporting_instance: host_name(),
        agent_task_concurrent_workers: Config::default().agent_task_concurrent_workers,
    };
    Ok((config, limit))
}

/// Parses an address to listen on; `0` or empty is none.
fn address(flag: &str, text: &str) -> anyhow::Result<Option<BindAddress>> {
    match text {
        "" | "0" => Ok(None),
        text => Ok(Some(text.parse().with_context(|| format!("use `{flag}`"))?)),
    }
}

/// Reads the domains in a file, separated by commas or lines. They replace the defaults, which are
/// used if the file is missing or empty.
fn allowed_label_domains(path: &Path) -> anyhow::Result<Vec<String>> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read.with_context(|| format!("read the allowed label domains in `{}`", path.display()))?,
    };
    let domains = text.split([',', '\n']).map(|domain| domain.trim().to_lowercase());
    let domains: Vec<String> = domains.filter(|domain| !domain.is_empty()).collect();
    Ok(if domains.is_empty() { Config::default().allowed_label_domains } else { domains })
}

/// Returns the host's name, which in a pod is the pod's.
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
