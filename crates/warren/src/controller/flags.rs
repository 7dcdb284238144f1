//! The flags of `warren controller`: those of agent-sandbox's controller, by name and default. Each
//! flag with an effect has an environment variable. Flags without a meaning here are accepted with
//! a warning, so that an existing Deployment needs no edit.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::{ArgAction, Args};
use jiff::SignedDuration;
use warren_controllers::{SecureServing, TlsCipherSuite, TlsVersion};

use super::go_syntax::{boolean, duration};

/// The default address of metrics, also for an empty flag, as in the Kubernetes controller library.
pub const METRICS: &str = ":8080";

#[derive(Args, Clone, Debug)]
#[command(args_override_self = true, allow_negative_numbers = true)]
pub struct Flags {
    /// The kubeconfig of the cluster to work for [default: `KUBECONFIG`, `~/.kube/config`, or the service account of the pod]
    #[arg(long, env = "WARREN_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Print what this program is, and end
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = boolean, value_name = "BOOL", hide_default_value = true, hide_possible_values = true)]
    pub version: bool,
    /// Serve SandboxClaim, SandboxTemplate and SandboxWarmPool, besides Sandbox
    #[arg(long, env = "WARREN_EXTENSIONS", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = boolean, value_name = "BOOL", hide_possible_values = true)]
    pub extensions: bool,
    /// Serve AgentTask of `warren.dev`, too; needs `--extensions`
    #[arg(long, env = "WARREN_AGENT_TASKS", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = boolean, value_name = "BOOL", hide_possible_values = true)]
    pub agent_tasks: bool,
    /// Suffix of the service names in `status.serviceFQDN`
    #[arg(long, env = "WARREN_CLUSTER_DOMAIN", value_name = "DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Where `/metrics` is served; `0` is nowhere
    #[arg(long, env = "WARREN_METRICS_BIND_ADDRESS", value_name = "ADDRESS", default_value = METRICS)]
    pub metrics_bind_address: String,
    #[command(flatten)]
    pub metrics_tls: MetricsTls,
    /// Where `/healthz` and `/readyz` are served; `0` is nowhere
    #[arg(long, env = "WARREN_HEALTH_PROBE_BIND_ADDRESS", value_name = "ADDRESS", default_value = ":8081")]
    pub health_probe_bind_address: String,
    /// Wait for a Lease before working, so that only one of several replicas does
    #[arg(long, env = "WARREN_LEADER_ELECT", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", value_parser = boolean, value_name = "BOOL", hide_possible_values = true)]
    pub leader_elect: bool,
    /// The namespace of that Lease [default: the pod's own, or the kubeconfig's]
    #[arg(
        long,
        env = "WARREN_LEADER_ELECTION_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "",
        hide_default_value = true
    )]
    pub leader_election_namespace: String,
    /// Send spans of passes to the collector that `OTEL_EXPORTER_OTLP_ENDPOINT` names
    #[arg(long, env = "WARREN_ENABLE_TRACING", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = boolean, value_name = "BOOL", hide_possible_values = true)]
    pub enable_tracing: bool,
    /// Most requests per second to the API server; -1 is no limit
    #[arg(long, env = "WARREN_KUBE_API_QPS", value_name = "NUMBER", default_value_t = -1.0, allow_hyphen_values = true)]
    pub kube_api_qps: f64,
    /// Requests that may go at once before that limit counts
    #[arg(
        long,
        env = "WARREN_KUBE_API_BURST",
        value_name = "NUMBER",
        default_value_t = 10,
        allow_hyphen_values = true
    )]
    pub kube_api_burst: i64,
    #[command(flatten)]
    pub workers: Workers,
    #[command(flatten)]
    pub pools: Pools,
    /// Watch only pods and services that carry the tracking label
    #[arg(long, env = "WARREN_CACHE_LABEL_SELECTORS", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = boolean, value_name = "BOOL", hide_possible_values = true)]
    pub cache_label_selectors: bool,
    /// Write no events about claims
    #[arg(long, env = "WARREN_DISABLE_CLAIM_EVENTS", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = boolean, value_name = "BOOL", hide_possible_values = true)]
    pub disable_claim_events: bool,
    /// Do not write on claims when they were first seen; when they were first Ready is always written
    #[arg(long, env = "WARREN_DISABLE_CLAIM_OBSERVABILITY_ANNOTATIONS", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = boolean, value_name = "BOOL", hide_possible_values = true)]
    pub disable_claim_observability_annotations: bool,
    /// How long a claim may wait for its sandbox to become ready before it ends; 0 is for ever
    #[arg(long, env = "WARREN_CLAIM_DEADLINE", value_name = "DURATION", default_value = "0s", value_parser = duration, allow_hyphen_values = true)]
    pub claim_deadline: SignedDuration,
    /// The file that lists the domains whose labels claims may put on pods [without it: `sandbox.users.io`]
    #[arg(
        long,
        env = "WARREN_ALLOWED_LABEL_DOMAINS_FILE",
        value_name = "FILE",
        default_value = "/etc/sandbox-config/allowed-label-domains"
    )]
    pub allowed_label_domains_file: PathBuf,
    #[command(flatten)]
    pub logging: Logging,
    #[command(flatten)]
    pub meaningless: Meaningless,
}

/// How `/metrics` is served over TLS.
#[derive(Args, Clone, Debug)]
pub struct MetricsTls {
    /// Serve `/metrics` over HTTPS instead of HTTP
    #[arg(long, env = "WARREN_METRICS_SECURE_SERVING", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = boolean, value_name = "BOOL", hide_possible_values = true)]
    pub metrics_secure_serving: bool,
    /// The directory of `tls.crt` and `tls.key` for `/metrics`, read again when they change [default: a self-signed certificate]
    #[arg(
        long,
        env = "WARREN_METRICS_CERT_DIR",
        value_name = "DIR",
        default_value = "",
        hide_default_value = true
    )]
    pub metrics_cert_dir: String,
    /// The oldest TLS version of `/metrics`, by Go's name: `VersionTLS12` or `VersionTLS13`. TLS 1.0 and 1.1 are never served
    #[arg(
        long,
        env = "WARREN_TLS_MIN_VERSION",
        value_name = "VERSION",
        default_value = "",
        hide_default_value = true
    )]
    pub tls_min_version: String,
    /// The cipher suites of TLS 1.2 for `/metrics`, by Go's names, separated by commas. Those of TLS 1.3 are always taken [default: all]
    #[arg(
        long,
        env = "WARREN_TLS_CIPHER_SUITES",
        value_name = "NAMES",
        default_value = "",
        hide_default_value = true
    )]
    pub tls_cipher_suites: String,
}

impl MetricsTls {
    /// Returns the settings for serving `/metrics` over TLS, if it is enabled. Invalid flags are
    /// refused in either case.
    pub fn serving(&self) -> anyhow::Result<Option<SecureServing>> {
        let given = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let oldest_version = given(&self.tls_min_version)
            .map(|name| name.parse::<TlsVersion>().context("use `--tls-min-version`"))
            .transpose()?
            .unwrap_or_default();
        let cipher_suites = given(&self.tls_cipher_suites)
            .map(|names| {
                let parse = |name: &str| name.trim().parse::<TlsCipherSuite>();
                names.split(',').map(parse).collect::<Result<_, _>>().context("use `--tls-cipher-suites`")
            })
            .transpose()?;
        let certificates = given(&self.metrics_cert_dir).map(PathBuf::from);
        Ok(self.metrics_secure_serving.then_some(SecureServing {
            certificates,
            oldest_version,
            cipher_suites,
        }))
    }

    /// Returns the flags that were given and have no effect without `--metrics-secure-serving`.
    pub fn without_effect(&self) -> Vec<&'static str> {
        let given = [
            ("--metrics-cert-dir", &self.metrics_cert_dir),
            ("--tls-min-version", &self.tls_min_version),
            ("--tls-cipher-suites", &self.tls_cipher_suites),
        ];
        let is_idle = |text: &str| !self.metrics_secure_serving && !text.is_empty();
        given.into_iter().filter(|(_, text)| is_idle(text)).map(|(flag, _)| flag).collect()
    }
}

/// How many objects are worked on at the same time.
#[derive(Args, Clone, Debug)]
pub struct Workers {
    /// Sandboxes worked on at the same time
    #[arg(long, env = "WARREN_SANDBOX_CONCURRENT_WORKERS", value_name = "NUMBER", default_value_t = 100)]
    pub sandbox_concurrent_workers: i64,
    /// Claims worked on at the same time
    #[arg(
        long,
        env = "WARREN_SANDBOX_CLAIM_CONCURRENT_WORKERS",
        value_name = "NUMBER",
        default_value_t = 50
    )]
    pub sandbox_claim_concurrent_workers: i64,
    /// Pools worked on at the same time
    #[arg(
        long,
        env = "WARREN_SANDBOX_WARM_POOL_CONCURRENT_WORKERS",
        value_name = "NUMBER",
        default_value_t = 1
    )]
    pub sandbox_warm_pool_concurrent_workers: i64,
    /// Templates worked on at the same time
    #[arg(
        long,
        env = "WARREN_SANDBOX_TEMPLATE_CONCURRENT_WORKERS",
        value_name = "NUMBER",
        default_value_t = 1
    )]
    pub sandbox_template_concurrent_workers: i64,
}

/// How pools are kept full.
#[derive(Args, Clone, Debug)]
pub struct Pools {
    /// Most members that one pass over a pool creates, or deletes because there are too many
    #[arg(
        long,
        env = "WARREN_SANDBOX_WARM_POOL_MAX_BATCH_SIZE",
        value_name = "NUMBER",
        default_value_t = 300
    )]
    pub sandbox_warm_pool_max_batch_size: i64,
    /// Most members that any pool may have, dying ones included; 0 is no limit
    #[arg(long, env = "WARREN_SANDBOX_WARM_POOL_MAX_SIZE", value_name = "NUMBER", default_value_t = 0)]
    pub sandbox_warm_pool_max_size: usize,
    /// How long a pool that needs members may go without a new ready one before it is said not to progress
    #[arg(long, env = "WARREN_SANDBOX_WARM_POOL_PROGRESS_DEADLINE", value_name = "DURATION", default_value = "10m", value_parser = duration, allow_hyphen_values = true)]
    pub sandbox_warm_pool_progress_deadline: SignedDuration,
    /// How long refilling a pool waits after members have left it
    #[arg(long, env = "WARREN_SANDBOX_WARM_POOL_REPLENISH_DELAY", value_name = "DURATION", default_value = "0s", value_parser = duration, allow_hyphen_values = true)]
    pub sandbox_warm_pool_replenish_delay: SignedDuration,
    /// Most members created per second and pool; 0 is no limit
    #[arg(
        long,
        env = "WARREN_SANDBOX_WARM_POOL_MAX_REFILL_RATE",
        value_name = "NUMBER",
        default_value_t = 0.0,
        allow_hyphen_values = true
    )]
    pub sandbox_warm_pool_max_refill_rate: f64,
    /// How long a member may take to become ready
    #[arg(long, env = "WARREN_SANDBOX_WARM_POOL_READINESS_GRACE_PERIOD", value_name = "DURATION", default_value = "5m", value_parser = duration, allow_hyphen_values = true)]
    pub sandbox_warm_pool_readiness_grace_period: SignedDuration,
    /// How often a pool whose members no node has room for is looked at
    #[arg(long, env = "WARREN_SANDBOX_WARM_POOL_UNSCHEDULABLE_RECHECK_INTERVAL", value_name = "DURATION", default_value = "1m", value_parser = duration, allow_hyphen_values = true)]
    pub sandbox_warm_pool_unschedulable_recheck_interval: SignedDuration,
    /// Mark waiting pods as safe to evict
    #[arg(long, env = "WARREN_ENABLE_WARM_POOL_EVICTION", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", value_parser = boolean, value_name = "BOOL", hide_possible_values = true)]
    pub enable_warm_pool_eviction: bool,
}

/// What is logged, in the words of the Go libraries' logger. `WARREN_LOG` has the last word.
#[derive(Args, Clone, Debug)]
pub struct Logging {
    /// `debug`, `info`, `error`, `panic`, or a number, where more is more
    #[arg(long, env = "WARREN_ZAP_LOG_LEVEL", value_name = "LEVEL", default_value = "info", value_parser = log_filter)]
    pub zap_log_level: &'static str,
    /// `json` or `console` [default: `console` on a terminal, else `json`]
    #[arg(long, env = "WARREN_ZAP_ENCODER", value_name = "ENCODER", value_parser = ["json", "console"], ignore_case = true, hide_possible_values = true)]
    pub zap_encoder: Option<String>,
}

impl Logging {
    /// Returns true if the log is JSON, as agent-sandbox's is for log collectors. A person at a
    /// terminal gets text.
    pub fn as_json(&self, on_terminal: bool) -> bool {
        self.zap_encoder.as_deref().map_or(!on_terminal, |encoder| encoder.eq_ignore_ascii_case("json"))
    }
}

/// Flags of agent-sandbox's controller that have nothing to act on here.
#[derive(Args, Clone, Debug)]
pub struct Meaningless {
    /// No effect: connections are opened as needed
    #[arg(long, value_name = "NUMBER", hide_short_help = true)]
    pub api_connections: Option<i64>,
    /// No effect: every watch has a connection of its own
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean, value_name = "BOOL", hide_possible_values = true, hide_short_help = true)]
    pub separate_watch_connection: Option<bool>,
    /// No effect: the pod's metadata is written as soon as claims leave room for it
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true, hide_short_help = true)]
    pub sandbox_write_behind_window: Option<SignedDuration>,
    /// No effect: there is no Go runtime to profile
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean, value_name = "BOOL", hide_possible_values = true, hide_short_help = true)]
    pub enable_pprof: Option<bool>,
    /// No effect: there is no Go runtime to profile
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean, value_name = "BOOL", hide_possible_values = true, hide_short_help = true)]
    pub enable_pprof_debug: Option<bool>,
    /// No effect: there is no Go runtime to profile
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, hide_short_help = true)]
    pub pprof_block_profile_rate: Option<i64>,
    /// No effect: there is no Go runtime to profile
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true, hide_short_help = true)]
    pub pprof_mutex_profile_fraction: Option<i64>,
    /// No effect: `v1alpha1` is converted by `warren migrate`, not by a webhook
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean, value_name = "BOOL", hide_possible_values = true, hide_short_help = true)]
    pub enable_webhook: Option<bool>,
    /// No effect: there is no webhook
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean, value_name = "BOOL", hide_possible_values = true, hide_short_help = true)]
    pub manage_webhook_certs: Option<bool>,
    /// No effect: there is no webhook
    #[arg(long, value_name = "PORT", hide_short_help = true)]
    pub webhook_port: Option<i64>,
    /// No effect: there is no webhook
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub webhook_cert_dir: Option<String>,
    /// No effect: there is no webhook
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub webhook_cert_name: Option<String>,
    /// No effect: there is no webhook
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub webhook_key_name: Option<String>,
    /// No effect: there is no webhook
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub webhook_service_name: Option<String>,
    /// No effect: there is no webhook
    #[arg(long, value_name = "NAMESPACE", hide_short_help = true)]
    pub webhook_namespace: Option<String>,
    /// No effect: choose with `--zap-log-level` and `--zap-encoder`
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean, value_name = "BOOL", hide_possible_values = true, hide_short_help = true)]
    pub zap_devel: Option<bool>,
    /// No effect: there are no stack traces in the log
    #[arg(long, value_name = "LEVEL", hide_short_help = true)]
    pub zap_stacktrace_level: Option<String>,
    /// No effect: times are RFC 3339
    #[arg(long, value_name = "ENCODING", hide_short_help = true)]
    pub zap_time_encoding: Option<String>,
}

impl Meaningless {
    /// Refuses values that agent-sandbox's controller refuses, so that a change of controllers does
    /// not hide a mistake.
    pub fn check(&self) -> anyhow::Result<()> {
        if let Some(connections) = self.api_connections {
            ensure!(connections >= 1, "`--api-connections` must be greater than 0, and is {connections}");
        }
        let window = self.sandbox_write_behind_window.unwrap_or_default();
        ensure!(!window.is_negative(), "`--sandbox-write-behind-window` must not be negative");
        for (flag, name) in
            [("--webhook-cert-name", &self.webhook_cert_name), ("--webhook-key-name", &self.webhook_key_name)]
        {
            ensure!(name.as_ref().is_none_or(|name| !name.trim().is_empty()), "`{flag}` must not be blank");
        }
        Ok(())
    }

    /// Returns the given flags that have no effect, each with the reason. Flags that ask for the
    /// present behaviour are left out.
    pub fn given(&self) -> Vec<(&'static str, &'static str)> {
        const PPROF: &str = "there is no Go runtime to profile";
        const WEBHOOK: &str = "there is no webhook; `warren migrate` converts `v1alpha1` manifests";
        const LOG: &str = "`--zap-log-level` and `--zap-encoder` choose what is logged";
        let on = |given: Option<bool>| given == Some(true);
        let number = |given: Option<i64>| given.is_some();
        let any = Option::<String>::is_some;
        [
            ("--api-connections", "connections are opened as needed", number(self.api_connections)),
            (
                "--separate-watch-connection",
                "every watch has a connection of its own",
                on(self.separate_watch_connection),
            ),
            (
                "--sandbox-write-behind-window",
                "the metadata of pods is written as soon as claims leave room for it",
                self.sandbox_write_behind_window.is_some_and(|window| !window.is_zero()),
            ),
            ("--enable-pprof", PPROF, on(self.enable_pprof)),
            ("--enable-pprof-debug", PPROF, on(self.enable_pprof_debug)),
            ("--pprof-block-profile-rate", PPROF, number(self.pprof_block_profile_rate)),
            ("--pprof-mutex-profile-fraction", PPROF, number(self.pprof_mutex_profile_fraction)),
            ("--enable-webhook", WEBHOOK, on(self.enable_webhook)),
            ("--manage-webhook-certs", WEBHOOK, on(self.manage_webhook_certs)),
            ("--webhook-port", WEBHOOK, number(self.webhook_port)),
            ("--webhook-cert-dir", WEBHOOK, any(&self.webhook_cert_dir)),
            ("--webhook-cert-name", WEBHOOK, any(&self.webhook_cert_name)),
            ("--webhook-key-name", WEBHOOK, any(&self.webhook_key_name)),
            ("--webhook-service-name", WEBHOOK, any(&self.webhook_service_name)),
            ("--webhook-namespace", WEBHOOK, any(&self.webhook_namespace)),
            ("--zap-devel", LOG, on(self.zap_devel)),
            ("--zap-stacktrace-level", LOG, any(&self.zap_stacktrace_level)),
            ("--zap-time-encoding", LOG, any(&self.zap_time_encoding)),
        ]
        .into_iter()
        .filter_map(|(flag, why, given)| given.then_some((flag, why)))
        .collect()
    }
}

/// Translates a level of the Go logger into a filter of ours.
fn log_filter(text: &str) -> Result<&'static str, String> {
    match text.to_ascii_lowercase().as_str() {
        "debug" | "1" => Ok("debug,hyper=info,hyper_util=info,rustls=info,tower=info,kube=info"),
        "info" | "0" => Ok("info"),
        "error" => Ok("error"),
        "panic" => Ok("off"),
        text if text.parse::<u8>().is_ok() => Ok("trace,hyper=info,hyper_util=info,rustls=info,tower=info"),
        _ => Err("it is none of `debug`, `info`, `error`, `panic` and no number".to_owned()),
    }
}
