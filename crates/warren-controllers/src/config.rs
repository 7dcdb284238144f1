//! What can be set about the controllers. Names and defaults are those of agent-sandbox's controller flags.

use std::time::Duration;

/// Settings of all controllers.
#[derive(Clone, Debug)]
pub struct Config {
    /// Suffix of the service names in `status.serviceFQDN`.
    pub cluster_domain: String,
    /// Whether claims, pools and templates are served, besides sandboxes.
    pub extensions: bool,
    /// True if tasks are served. Otherwise their definition need not be there.
    pub agent_tasks: bool,
    /// Sandboxes that are reconciled at the same time.
    pub sandbox_concurrent_workers: usize,
    /// Claims that are reconciled at the same time.
    pub sandbox_claim_concurrent_workers: usize,
    /// Pools that are reconciled at the same time.
    pub sandbox_warm_pool_concurrent_workers: usize,
    /// Templates that are reconciled at the same time.
    pub sandbox_template_concurrent_workers: usize,
    /// Tasks that are reconciled at the same time.
    pub agent_task_concurrent_workers: usize,
    /// The most members that one pass over a pool creates, or deletes because there are too many. Those that are outdated or stuck
    /// are not counted.
    pub sandbox_warm_pool_max_batch_size: usize,
    /// How long refilling a pool waits after members have left it.
    pub sandbox_warm_pool_replenish_delay: Duration,
    /// The part of a pool, from 0 to 1, below which refilling does not wait.
    pub sandbox_warm_pool_reserve: f64,
    /// The most members of a pool that are being started at the same time; nothing is no limit.
    pub sandbox_warm_pool_max_starting: Option<usize>,
    /// The most members created per second and pool; 0 is no limit.
    pub sandbox_warm_pool_max_refill_rate: f64,
    /// How long a pool's member may take to become ready.
    pub sandbox_warm_pool_readiness_grace_period: Duration,
    /// How often a pool whose members nobody has room for is looked at.
    pub sandbox_warm_pool_unschedulable_recheck_interval: Duration,
    /// Whether waiting pods are marked as safe to evict.
    pub enable_warm_pool_eviction: bool,
    /// The most members that any pool may have, whatever it asks for, dying ones included; nothing is no limit.
    pub sandbox_warm_pool_max_size: Option<usize>,
    /// How long a pool may go without a new ready member, while it needs some, before it is said not to progress.
    pub sandbox_warm_pool_progress_deadline: Duration,
    /// How long a claim may wait for its sandbox to become ready before it ends; nothing is for ever.
    pub claim_deadline: Option<Duration>,
    /// Whether only pods and services that carry the tracking label are watched. It saves memory where most pods of the
    /// cluster are not ours; a pod in the way without that label is then seen only when creating ours fails.
    pub cache_label_selectors: bool,
    /// Whether no events about claims are written: one write less per claim.
    pub disable_claim_events: bool,
    /// Whether claims do not say when they were first seen. When they were first Ready they always say: deadlines go by it.
    pub disable_claim_observability_annotations: bool,
    /// Domains whose labels a claim may put on its pod.
    pub allowed_label_domains: Vec<String>,
    /// Who reports events, besides the controller: usually the host or pod name.
    pub reporting_instance: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cluster_domain: "cluster.local".to_owned(),
            extensions: false,
            agent_tasks: false,
            sandbox_concurrent_workers: 100,
            sandbox_claim_concurrent_workers: 50,
            sandbox_warm_pool_concurrent_workers: 1,
            sandbox_template_concurrent_workers: 1,
            agent_task_concurrent_workers: 10,
            sandbox_warm_pool_max_batch_size: 300,
            sandbox_warm_pool_replenish_delay: Duration::ZERO,
            sandbox_warm_pool_reserve: 0.0,
            sandbox_warm_pool_max_starting: None,
            sandbox_warm_pool_max_refill_rate: 0.0,
            sandbox_warm_pool_readiness_grace_period: Duration::from_secs(5 * 60),
            sandbox_warm_pool_unschedulable_recheck_interval: Duration::from_secs(60),
            enable_warm_pool_eviction: true,
            sandbox_warm_pool_max_size: None,
            sandbox_warm_pool_progress_deadline: Duration::from_secs(10 * 60),
            claim_deadline: None,
            cache_label_selectors: false,
            disable_claim_events: false,
            disable_claim_observability_annotations: false,
            allowed_label_domains: vec!["sandbox.users.io".to_owned()],
            reporting_instance: "warren".to_owned(),
        }
    }
}
