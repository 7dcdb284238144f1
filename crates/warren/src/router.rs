//! Runs `warren router`: the router as a process of its own, for any cluster.

mod access;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::info;
use warren_api::go_duration::{self, GoDurationError};
use warren_controllers::telemetry::Telemetry;
use warren_router::{ByAddress, CONTENT_TYPE, Config, Listener, MOST_HEADER_BYTES, PodScope, Router};

use crate::controller::watch_signals;
use crate::version::BUILD;

/// The time limit for the first list of pods.
const FIRST_LIST: Duration = Duration::from_secs(60);

#[derive(Args, Clone, Debug)]
pub struct Flags {
    /// The kubeconfig of the cluster [default: as kubectl finds it, or as programs in pods do]
    #[arg(long, env = "WARREN_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Where requests to sandboxes are taken; `0` is nowhere
    #[arg(long, value_name = "ADDRESS", default_value = ":8080", value_parser = address)]
    pub http_bind_address: Bind,
    /// Where they are taken with TLS; `0` is nowhere
    #[arg(long, value_name = "ADDRESS", default_value = "0", value_parser = address)]
    pub https_bind_address: Bind,
    /// Where `/metrics` is served; `0` is nowhere
    #[arg(long, value_name = "ADDRESS", default_value = ":9090", value_parser = address)]
    pub metrics_bind_address: Bind,
    /// Where `/healthz` and `/readyz` are served; `0` is nowhere
    #[arg(long, value_name = "ADDRESS", default_value = ":8081", value_parser = address)]
    pub health_probe_bind_address: Bind,
    /// Route to pods of this namespace only
    #[arg(long, value_name = "NAMESPACE")]
    pub cache_namespace: Option<String>,
    /// Let paths `PREFIX/<namespace>/<sandbox>/<port>/…` name sandboxes, for browsers
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    pub path_routing_prefix: Option<String>,
    /// Let hosts `<port>-<sandbox>.<namespace>.DOMAIN` name sandboxes, for browsers
    #[arg(long, value_name = "DOMAIN", value_parser = domain)]
    pub host_routing_domain: Option<String>,
    /// The longest silence of a sandbox, and the most that `X-Sandbox-Timeout` can ask for [default: 180s, or
    /// `PROXY_TIMEOUT_SECONDS`]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub proxy_timeout: Option<Duration>,
    /// The largest request body; 0 is no limit
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub max_request_body_bytes: u64,
    /// The most requests and upgraded connections of one sandbox at the same time
    #[arg(long, value_name = "NUMBER", default_value_t = Config::default().max_requests_per_sandbox)]
    pub max_requests_per_sandbox: usize,
    /// The most requests of one client at the same time, by its address; 0 is no limit
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub max_requests_per_client: usize,
    /// The most connections of one client at the same time, by its address; 0 is no limit
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub max_connections_per_client: usize,
    /// The longest head of a request
    #[arg(long, value_name = "BYTES", default_value_t = MOST_HEADER_BYTES as u64,
        value_parser = clap::value_parser!(u64).range(8 << 10..=1 << 20))]
    pub max_header_bytes: u64,
    /// How often a connection to a sandbox that failed is tried again
    #[arg(long, value_name = "NUMBER", default_value_t = 3)]
    pub upstream_max_retries: u32,
    /// The pause before the first of those; each further one is twice as long
    #[arg(long, value_name = "DURATION", default_value = "200ms", value_parser = duration)]
    pub upstream_retry_initial_delay: Duration,
    /// The longest of those pauses
    #[arg(long, value_name = "DURATION", default_value = "800ms", value_parser = duration)]
    pub upstream_retry_max_delay: Duration,
    /// How long requests that are under way may take after SIGTERM
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub shutdown_timeout: Duration,
    /// Log each request
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, require_equals = true,
        default_missing_value = "true", action = clap::ArgAction::Set)]
    pub access_log: bool,
    #[command(flatten)]
    pub access: access::AccessFlags,
}

/// Parses the prefix of path routes.
fn prefix(text: &str) -> Result<String, String> {
    let is_part = |part: &str| {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        !part.is_empty() && part.bytes().all(is_good) && part.bytes().any(|byte| byte != b'.')
    };
    let text = text.strip_suffix('/').unwrap_or(text);
    match text.strip_prefix('/') {
        Some(parts) if parts.split('/').all(is_part) => Ok(text.to_owned()),
        _ => Err(format!("`{text}` is not a path such as `/sandboxes`")),
    }
}

/// Parses the domain of host routes.
fn domain(text: &str) -> Result<String, String> {
    let text = text.to_ascii_lowercase();
    let is_label = |label: &str| {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !label.is_empty() && label.bytes().all(is_good)
    };
    match text.split('.').all(is_label) {
        true => Ok(text),
        false => Err(format!("`{text}` is not a domain such as `sandboxes.example.com`")),
    }
}

/// An address to listen on, or `None`.
pub type Bind = Option<SocketAddr>;

/// Parses an address in Go's notation: `:8080` is every address of the machine, `0` or empty is
/// none.
fn address(text: &str) -> Result<Bind, String> {
    match text {
        "" | "0" => Ok(None),
        text => {
            let whole = match text.strip_prefix(':') {
                Some(port) => format!("[::]:{port}"),
                None => text.to_owned(),
            };
            let wrong = || format!("`{text}` is not an address such as `:8080` or `127.0.0.1:8080`");
            whole.parse().map(Some).map_err(|_| wrong())
        }
    }
}

fn duration(text: &str) -> Result<Duration, GoDurationError> {
    go_duration::parse(text)
}

/// Runs the router until SIGTERM or SIGINT.
pub fn router(flags: &Flags) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("warren")
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(serve(flags))
}

async fn serve(flags: &Flags) -> anyhow::Result<()> {
    let shutdown = CancellationToken::new();
    watch_signals(shutdown.clone()).context("listen for signals")?;
    let config = config(flags, |name| std::env::var(name).ok())?;
    let plain = bind(flags.http_bind_address).await?;
    let encrypted = bind(flags.https_bind_address).await?;
    ensure!(
        plain.is_some() || encrypted.is_some(),
        "one of `--http-bind-address` and `--https-bind-address` must be an address"
    );
    let tls = match encrypted {
        Some(_) => Some(flags.access.tls()?),
        None => None,
    };
    let metrics = bind(flags.metrics_bind_address).await?;
    let probes = bind(flags.health_probe_bind_address).await?;
    let connection =
        warren_controllers::connect(flags.kubeconfig.as_deref(), None, &Telemetry::new(BUILD)).await?;
    let router = Router::new(connection.client, ByAddress, config);
    let ready = Arc::new(AtomicBool::new(false));
    let pages = CancellationToken::new();
    if let Some(socket) = probes {
        let (ready, stopping) = (Arc::clone(&ready), shutdown.clone());
        let answer = move |path: &str| probe(path, ready.load(Ordering::Relaxed), stopping.is_cancelled());
        tokio::spawn(warren_router::serve_pages(socket, answer, pages.clone()));
    }
    if let Some(socket) = metrics {
        let (router, tls) = (router.clone(), tls.clone());
        let answer = move |path: &str| {
            let tls = || tls.as_ref().map(|tls| tls.metrics_page()).unwrap_or_default();
            (path == "/metrics").then(|| (http::StatusCode::OK, CONTENT_TYPE, router.metrics_page() + &tls()))
        };
        tokio::spawn(warren_router::serve_pages(socket, answer, pages.clone()));
    }
    tokio::select! {
        listed = tokio::time::timeout(FIRST_LIST, router.start()) => listed.context("list the pods of sandboxes")?,
        () = shutdown.cancelled() => return Ok(()),
    }
    ready.store(true, Ordering::Relaxed);
    let mut listeners = Vec::new();
    for (socket, tls) in [(plain, None), (encrypted, tls)] {
        let Some(socket) = socket else { continue };
        info!(address = %socket.local_addr()?, tls = tls.is_some(), "ready");
        let listener = Listener {
            most_connections_per_client: flags.max_connections_per_client,
            most_header_bytes: usize::try_from(flags.max_header_bytes).unwrap_or(MOST_HEADER_BYTES),
            tls,
            ..Listener::new(socket)
        };
        let serving =
            warren_router::serve(router.clone(), listener, shutdown.clone(), flags.shutdown_timeout);
        listeners.push(serving);
    }
    futures::future::join_all(listeners).await;
    pages.cancel();
    info!("stopped");
    Ok(())
}

/// Returns the answer of the probe port.
fn probe(path: &str, ready: bool, stopping: bool) -> Option<(http::StatusCode, &'static str, String)> {
    let unavailable = http::StatusCode::SERVICE_UNAVAILABLE;
    match path {
        "/healthz" => Some((http::StatusCode::OK, "application/json", "{\"status\":\"ok\"}".to_owned())),
        "/readyz" if stopping => Some((unavailable, "text/plain", "draining".to_owned())),
        "/readyz" if ready => Some((http::StatusCode::OK, "text/plain", "ok".to_owned())),
        "/readyz" => Some((unavailable, "text/plain", "not ready".to_owned())),
        _ => None,
    }
}

async fn bind(address: Bind) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = address else { return Ok(None) };
    let listener = match TcpListener::bind(address).await {
        // A machine without IPv6.
        Err(_) if address.ip() == Ipv6Addr::UNSPECIFIED => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        listener => listener,
    };
    Ok(Some(listener.with_context(|| format!("listen on {address}"))?))
}

fn config(flags: &Flags, variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Config> {
    let from_environment = || {
        let seconds: f64 = variable("PROXY_TIMEOUT_SECONDS")?.trim().parse().ok()?;
        Duration::try_from_secs_f64(seconds).ok().filter(|timeout| !timeout.is_zero())
    };
    let defaults = Config::default();
    let urls_name_sandboxes = flags.path_routing_prefix.is_some() || flags.host_routing_domain.is_some();
    Ok(Config {
        proxy_timeout: flags.proxy_timeout.or_else(from_environment).unwrap_or(defaults.proxy_timeout),
        max_request_body_bytes: flags.max_request_body_bytes,
        max_requests_per_sandbox: flags.max_requests_per_sandbox,
        max_retries: flags.upstream_max_retries,
        retry_initial_delay: flags.upstream_retry_initial_delay,
        retry_max_delay: flags.upstream_retry_max_delay,
        pods: PodScope { namespace: flags.cache_namespace.clone(), addressless: false },
        path_routing_prefix: flags.path_routing_prefix.clone(),
        host_routing_domain: flags.host_routing_domain.clone(),
        authorization: flags.access.authorization()?,
        browser: flags.access.browser(urls_name_sandboxes)?,
        max_requests_per_client: flags.max_requests_per_client,
        ..defaults
    })
}
