//! Defines every metric of the controllers, with the names, labels and buckets that agent-sandbox's
//! dashboards and load tests query. The metrics of its libraries (work queues, reconciles, the API
//! client) have the same names here, although those libraries are not used.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::family::{Counters, Family, Histograms, Text};

/// Buckets from a claim's first observation to Ready, in milliseconds.
const CLAIM_BUCKETS: [f64; 15] = [
    100., 250., 500., 750., 1000., 1250., 1500., 2000., 2500., 5000., 10_000., 30_000., 60_000., 120_000.,
    240_000.,
];

/// Buckets from a sandbox's creation to Ready, in milliseconds.
const CREATION_BUCKETS: [f64; 14] = [
    50., 100., 250., 500., 1000., 2500., 5000., 10_000., 30_000., 60_000., 120_000., 240_000., 300_000.,
    600_000.,
];

/// Finer buckets of our own for claims: a warm one takes a few milliseconds, which is a single
/// bucket above.
const READY_BUCKETS: [f64; 15] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1., 2., 5., 10., 30., 60.];

/// Buckets of reconciles, as in the Kubernetes controller library.
const PASS_BUCKETS: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1., 1.25,
    1.5, 1.75, 2., 2.5, 3., 3.5, 4., 4.5, 5., 6., 7., 8., 9., 10., 15., 20., 25., 30., 40., 50., 60.,
];

/// Buckets of requests, as in agent-sandbox: finer at the low end than in Kubernetes itself.
const REQUEST_BUCKETS: [f64; 16] =
    [0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1., 2., 4., 8., 15., 30., 60.];

/// The number of bounds of queue histograms.
pub(crate) const QUEUE_BOUNDS: usize = 12;

/// Buckets of queues: from ten nanoseconds on, each ten times the last, with the library's
/// rounding.
pub(crate) const QUEUE_BUCKETS: [f64; QUEUE_BOUNDS] = {
    let mut bounds = [10e-9; QUEUE_BOUNDS];
    let mut index = 1;
    while index < QUEUE_BOUNDS {
        bounds[index] = bounds[index - 1] * 10.0;
        index += 1;
    }
    bounds
};

/// A program's build information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildInfo {
    /// The full commit hash.
    pub git_commit: &'static str,
    /// The build date, as far as it is known.
    pub build_date: &'static str,
}

impl Default for BuildInfo {
    /// Returns placeholders for unknown values.
    fn default() -> Self {
        Self { git_commit: "unknown", build_date: "unknown" }
    }
}

/// The counters that are kept while the program runs. Present objects (sandboxes, queues, the
/// process) are counted at each scrape.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) claim_startup: Histograms<2, 15>,
    pub(crate) claim_controller_startup: Histograms<2, 15>,
    pub(crate) client_claim_startup: Histograms<2, 15>,
    pub(crate) creation: Histograms<3, 14>,
    pub(crate) claim_creation: Counters<6>,
    pub(crate) claim_ready: Histograms<2, 15>,
    pub(crate) passes: Counters<2>,
    pub(crate) pass_errors: Counters<1>,
    pub(crate) terminal_pass_errors: Counters<1>,
    pub(crate) pass_panics: Counters<1>,
    pub(crate) pass_time: Histograms<1, 40>,
    pub(crate) requests: Counters<3>,
    pub(crate) request_time: Histograms<2, 16>,
    pub(crate) limiter_time: Histograms<2, 16>,
    /// Leases by name, with true if this process holds them.
    pub(crate) leases: Mutex<BTreeMap<String, bool>>,
    pub(crate) build: BuildInfo,
}

impl Default for Metrics {
    fn default() -> Self {
        let claim = ["launch_type", "sandbox_template"];
        Self {
            claim_startup: Histograms::new(
                "agent_sandbox_claim_startup_latency_ms",
                "Time from an admission webhook's first look at a claim (annotation \
                 agents.x-k8s.io/webhook-first-observed-at) until it is Ready, in milliseconds.",
                claim,
                &CLAIM_BUCKETS,
            ),
            claim_controller_startup: Histograms::new(
                "agent_sandbox_claim_controller_startup_latency_ms",
                "Time from the controller's first look at a claim until it is Ready, in milliseconds.",
                claim,
                &CLAIM_BUCKETS,
            ),
            client_claim_startup: Histograms::new(
                "agent_sandbox_client_claim_startup_latency_ms",
                "Time from a client's request (annotation agents.x-k8s.io/client-first-requested-at) until the claim is \
                 Ready, in milliseconds.",
                claim,
                &CLAIM_BUCKETS,
            ),
            creation: Histograms::new(
                "agent_sandbox_creation_latency_ms",
                "Time from a sandbox's creation until it is Ready, in milliseconds, by its own whole-second timestamps.",
                ["namespace", "launch_type", "sandbox_template"],
                &CREATION_BUCKETS,
            ),
            claim_creation: Counters::new(
                "agent_sandbox_claim_creation_total",
                "Claims that were given a sandbox.",
                [
                    "namespace",
                    "sandbox_template",
                    "launch_type",
                    "warmpool_name",
                    "pod_condition",
                    "created_by",
                ],
            ),
            claim_ready: Histograms::new(
                "warren_claim_ready_seconds",
                "Time from the controller's first look at a claim until it is Ready, in seconds, in fine steps.",
                claim,
                &READY_BUCKETS,
            ),
            passes: Counters::new(
                "controller_runtime_reconcile_total",
                "Passes by controller and result.",
                ["controller", "result"],
            ),
            pass_errors: Counters::new(
                "controller_runtime_reconcile_errors_total",
                "Passes that failed, by controller.",
                ["controller"],
            ),
            terminal_pass_errors: Counters::new(
                "controller_runtime_terminal_reconcile_errors_total",
                "Passes that failed for good, by controller.",
                ["controller"],
            ),
            pass_panics: Counters::new(
                "controller_runtime_reconcile_panics_total",
                "Passes that panicked, by controller.",
                ["controller"],
            ),
            pass_time: Histograms::new(
                "controller_runtime_reconcile_time_seconds",
                "How long passes take, by controller.",
                ["controller"],
                &PASS_BUCKETS,
            ),
            requests: Counters::new(
                "rest_client_requests_total",
                "Requests to the API server by status code, method and host.",
                ["code", "method", "host"],
            ),
            request_time: Histograms::new(
                "rest_client_request_duration_seconds",
                "Time until the API server begins to answer, by verb and host.",
                ["verb", "host"],
                &REQUEST_BUCKETS,
            ),
            limiter_time: Histograms::new(
                "rest_client_rate_limiter_duration_seconds",
                "Time that requests are held back on our side, by verb and host.",
                ["verb", "host"],
                &REQUEST_BUCKETS,
            ),
            leases: Mutex::default(),
            build: BuildInfo::default(),
        }
    }
}

impl Metrics {
    pub(crate) fn write(&self, text: &mut Text) {
        self.claim_startup.write(text);
        self.claim_controller_startup.write(text);
        self.client_claim_startup.write(text);
        self.creation.write(text);
        self.claim_creation.write(text);
        self.claim_ready.write(text);
        self.passes.write(text);
        self.pass_errors.write(text);
        self.terminal_pass_errors.write(text);
        self.pass_panics.write(text);
        self.pass_time.write(text);
        self.requests.write(text);
        self.request_time.write(text);
        self.limiter_time.write(text);
        let leases = self.leases.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let leases: Vec<_> =
            leases.into_iter().map(|(name, held)| ([name.into()], f64::from(u8::from(held)))).collect();
        let family = Family {
            name: "leader_election_master_status",
            help: "Whether we hold the lease of this name: 1 leads, 0 stands by.",
            labels: ["name"],
        };
        text.numbers(&family, "gauge", leases.iter().map(|(values, held)| (values, *held)));
        build_info(self.build, text);
    }
}

/// Writes the build information. The labels are agent-sandbox's, so there is a `go_version`,
/// although there is no Go.
fn build_info(build: BuildInfo, text: &mut Text) {
    let family = Family {
        name: "agent_sandbox_build_info",
        help: "Agent sandbox controller build metadata exposed as labels with a constant value of 1.",
        labels: ["git_version", "git_commit", "build_date", "go_version", "compiler", "platform"],
    };
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let values = [
        concat!("warren-", env!("CARGO_PKG_VERSION")).into(),
        build.git_commit.into(),
        build.build_date.into(),
        "none".into(),
        "rustc".into(),
        format!("{}/{architecture}", std::env::consts::OS).into(),
    ];
    text.numbers(&family, "gauge", [(&values, 1.0)]);
}

#[cfg(test)]
mod tests {
    use super::{BuildInfo, build_info};
    use crate::telemetry::family::Text;

    /// The exact lines: agent-sandbox has a test of them, too.
    #[test]
    fn what_it_was_built_from_is_told_in_the_words_of_agent_sandbox() {
        let mut text = Text::default();
        build_info(BuildInfo { git_commit: "0123abcd", build_date: "2027-01-15T08:00:00Z" }, &mut text);
        let page = text.finish();
        let (head, labels) = page.split_once("info{").unwrap();
        assert_eq!(
            head,
            "# HELP agent_sandbox_build_info Agent sandbox controller build metadata exposed as labels with a constant value of 1.\n\
             # TYPE agent_sandbox_build_info gauge\nagent_sandbox_build_"
        );
        let known = "build_date=\"2027-01-15T08:00:00Z\",compiler=\"rustc\",git_commit=\"0123abcd\",git_version=\"warren-";
        assert!(labels.starts_with(known) && labels.ends_with("\"} 1\n"), "{labels}");
    }
}
