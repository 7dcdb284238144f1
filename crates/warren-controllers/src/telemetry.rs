//! The controllers' metrics for Prometheus and spans for a tracing collector. Start with
//! [`Telemetry`]; the metrics by name are in `metrics.rs`.

mod claims;
mod client;
mod family;
mod inventory;
mod metrics;
mod passes;
mod process;
mod spans;

use std::sync::{Arc, PoisonError};

use kube::Client;
use warren_api::SandboxClaim;
use warren_decide::step::{Kind, Step};

pub(crate) use claims::Provision;
pub use client::{MeteredLayer, MeteredService, RateLimit};
pub(crate) use family::Histogram;
pub use metrics::BuildInfo;
pub(crate) use metrics::{QUEUE_BOUNDS, QUEUE_BUCKETS};
pub(crate) use passes::Passes;
pub use spans::{Exporter, OtlpConfig, OtlpError, OtlpProtocol, Sampling};
pub(crate) use spans::{SandboxSpans, Span, Tracer};

use crate::cache::Change;
use crate::cluster::Cluster;
use crate::queue::ObjectKey;
use claims::ClaimClock;
use family::Text;
use metrics::Metrics;

/// The media type of a page of metrics.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// The registry of all counters. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Telemetry {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tracer: Tracer,
    clock: Arc<ClaimClock>,
}

impl Telemetry {
    /// Creates the telemetry of a program with this build information.
    #[must_use]
    pub fn new(build: BuildInfo) -> Self {
        Self { metrics: Arc::new(Metrics { build, ..Metrics::default() }), ..Self::default() }
    }

    /// Adds spans, and returns the task that sends them. To be called in a runtime.
    pub fn with_spans(self, config: OtlpConfig) -> Result<(Self, Exporter), OtlpError> {
        let (tracer, exporter) = Exporter::start(config)?;
        Ok((Self { tracer, ..self }, exporter))
    }

    /// Returns a layer for a client's transport that counts requests to a host.
    #[must_use]
    pub fn client_layer(&self, host: &str) -> MeteredLayer {
        MeteredLayer::new(self.metrics.clone(), host)
    }

    /// Wraps a client so that requests beyond a limit wait.
    pub(crate) fn hold_back(&self, client: Client, host: &str, limit: RateLimit) -> Client {
        client::hold_back(client, self.metrics.clone(), host, limit)
    }

    pub(crate) fn set_leading(&self, lease: &str, leads: bool) {
        let mut leases = self.metrics.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.insert(lease.to_owned(), leads);
    }

    /// Records a change of a claim, and measures it when it becomes ready. A standby replica does
    /// not measure: the leader does.
    pub(crate) fn observe_claim(&self, change: &Change<'_, SandboxClaim>, cluster: &Cluster, leads: bool) {
        let now = cluster.now();
        let first_seen = self.clock.observe(change, now);
        if let (Some(first_seen), Some(claim), true) = (first_seen, change.after, leads) {
            let name = claim.status.as_ref().and_then(|status| status.sandbox.as_ref()?.name.clone());
            let sandbox = name.and_then(|name| {
                cluster.sandboxes.get(&ObjectKey { namespace: change.key.namespace.clone(), name })
            });
            self.metrics.claim_became_ready(claim, sandbox.as_deref(), first_seen, now);
        }
    }
}

impl Telemetry {
    /// Returns the span of a claim's reconcile. The claim carries its context from here on.
    pub(crate) async fn claim_span(&self, cluster: &Cluster, key: &ObjectKey) -> Option<Span> {
        let claim = cluster.claims.get(key).filter(|_| self.tracer.is_on())?;
        let span = self.tracer.pass("ReconcileSandboxClaim", &claim.metadata);
        let step = span.stamp(Kind::SandboxClaim, &claim.metadata);
        stamp(cluster, &key.namespace, crate::claim::MANAGER, step).await;
        Some(span)
    }

    pub(crate) fn template_span(&self, cluster: &Cluster, key: &ObjectKey) -> Option<Span> {
        let template = cluster.templates.get(key).filter(|_| self.tracer.is_on())?;
        Some(self.tracer.pass("ReconcileSandboxTemplate", &template.metadata))
    }
}

/// Gives an object the context of its reconcile, if it has none. A failure does not stop the
/// reconcile.
pub(crate) async fn stamp(cluster: &Cluster, namespace: &str, manager: &'static str, step: Option<Step>) {
    for failure in cluster.apply(namespace, manager, step.into_iter().collect()).await {
        tracing::debug!(problem = %failure.message, "the trace context was not written");
    }
}

/// The sources of a metrics page.
#[derive(Clone)]
pub struct Scrape {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) cluster: Cluster,
    pub(crate) passes: Vec<Arc<Passes>>,
}

impl Scrape {
    /// Returns the page in Prometheus' text format; see [`CONTENT_TYPE`].
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = Text::default();
        self.metrics.write(&mut text);
        passes::write(&self.passes, &mut text);
        inventory::write(&self.cluster.sandboxes, &mut text);
        process::write(&mut text);
        text.finish()
    }
}
