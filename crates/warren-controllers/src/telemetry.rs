//! What the controllers tell about themselves: metrics for Prometheus, and spans for a tracing collector. Start with
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

/// Where everything is counted. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Telemetry {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tracer: Tracer,
    clock: Arc<ClaimClock>,
}

impl Telemetry {
    /// Telemetry of a program that was built so.
    #[must_use]
    pub fn new(build: BuildInfo) -> Self {
        Self { metrics: Arc::new(Metrics { build, ..Metrics::default() }), ..Self::default() }
    }

    /// The same with spans, and the task that sends them. To be called in a runtime.
    pub fn with_spans(self, config: OtlpConfig) -> Result<(Self, Exporter), OtlpError> {
        let (tracer, exporter) = Exporter::start(config)?;
        Ok((Self { tracer, ..self }, exporter))
    }

    /// A layer for a client's transport that counts requests to a host.
    #[must_use]
    pub fn client_layer(&self, host: &str) -> MeteredLayer {
        MeteredLayer::new(self.metrics.clone(), host)
    }

    /// A client that sends by another one, and holds back what is beyond a limit.
    pub(crate) fn hold_back(&self, client: Client, host: &str, limit: RateLimit) -> Client {
        client::hold_back(client, self.metrics.clone(), host, limit)
    }

    /// Says whether we hold a lease.
    pub(crate) fn set_leading(&self, lease: &str, leads: bool) {
        let mut leases = self.metrics.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.insert(lease.to_owned(), leads);
    }

    /// Takes note of a change of a claim, and measures it when it has become ready. Who only stands by does not measure:
    /// the leader does.
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
    /// The span of a pass over a claim, whose context it carries from here on.
    pub(crate) async fn claim_span(&self, cluster: &Cluster, key: &ObjectKey) -> Option<Span> {
        let claim = cluster.claims.get(key).filter(|_| self.tracer.is_on())?;
        let span = self.tracer.pass("ReconcileSandboxClaim", &claim.metadata);
        let step = span.stamp(Kind::SandboxClaim, &claim.metadata);
        stamp(cluster, &key.namespace, crate::claim::MANAGER, step).await;
        Some(span)
    }

    /// The span of a pass over a template.
    pub(crate) fn template_span(&self, cluster: &Cluster, key: &ObjectKey) -> Option<Span> {
        let template = cluster.templates.get(key).filter(|_| self.tracer.is_on())?;
        Some(self.tracer.pass("ReconcileSandboxTemplate", &template.metadata))
    }
}

/// Gives an object the context of the pass over it, if it has none. That it did not work is no reason to do nothing else.
pub(crate) async fn stamp(cluster: &Cluster, namespace: &str, manager: &'static str, step: Option<Step>) {
    for failure in cluster.apply(namespace, manager, step.into_iter().collect()).await {
        tracing::debug!(problem = %failure.message, "the trace context was not written");
    }
}

/// Everything that a page of metrics is made of.
#[derive(Clone)]
pub struct Scrape {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) cluster: Cluster,
    pub(crate) passes: Vec<Arc<Passes>>,
}

impl Scrape {
    /// The page, in Prometheus' text format; see [`CONTENT_TYPE`].
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
