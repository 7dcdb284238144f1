//! The controllers' settings. Names and defaults are those of agent-sandbox's controller flags.

use std::time::Duration;

/// Settings of all controllers.
#[derive(Clone, Debug)]
pub struct Config {
    /// Suffix of the service names in `status.serviceFQDN`.
    pub cluster_domain: String,
    /// Set to serve claims, pools and templates, besides sandboxes.
    pub extensions: bool,
    /// Set to serve tasks. Otherwise their CRD may be missing.
    pub agent_tasks: bool,
    /// The number of sandboxes that are reconciled at the same time.
    pub sandbox_concurrent_workers: usize,
    /// The number of claims that are reconciled at the same time.
    pub sandbox_claim_concurrent_workers: usize,
    /// The number of pools that are reconciled at the same time.
    pub sandbox_warm_pool_concurrent_workers: usize,
    /// The number of templates that are reconciled at the same time.
    pub sandbox_template_concurrent_workers: usize,
    /// The number of tasks that are reconciled at the same time.
    pub agent_task_concurrent_workers: usize,
    /// The most members that one reconcile of a pool creates, or deletes as surplus. Outdated and
    /// stuck members are not counted.
    pub sandbox_warm_pool_max_batch_size: usize,
    /// The delay before a pool is refilled after members have left.
    pub sandbox_warm_pool_replenish_delay: Duration,
    /// The fill level of a pool, from 0 to 1, below which refilling does not wait.
    pub sandbox_warm_pool_reserve: f64,
    /// The most members of a pool that may be starting at the same time; `None`: no limit.
    pub sandbox_warm_pool_max_starting: Option<usize>,
    /// The most members created per second and pool; 0: no limit.
    pub sandbox_warm_pool_max_refill_rate: f64,
    /// The time that a pool's member may take to become ready.
    pub sandbox_warm_pool_readiness_grace_period: Duration,
    /// The interval at which a pool with unschedulable members is checked.
    pub sandbox_warm_pool_unschedulable_recheck_interval: Duration,
    /// Set to mark waiting pods as safe to evict.
    pub enable_warm_pool_eviction: bool,
    /// The most members that any pool may have, whatever its spec says, including dying ones;
    /// `None`: no limit.
    pub sandbox_warm_pool_max_size: Option<usize>,
    /// The time without a new ready member after which a pool that needs some is reported as not
    /// progressing.
    pub sandbox_warm_pool_progress_deadline: Duration,
    /// The longest time that a claim may wait for its sandbox to become ready before it ends;
    /// `None`: no limit.
    pub claim_deadline: Option<Duration>,
    /// Set to watch only pods and services with the tracking label. It saves memory where most pods
    /// of the cluster are not ours. A conflicting pod without that label is then noticed only when
    /// creating ours fails.
    pub cache_label_selectors: bool,
    /// Set to write no events about claims: one write less per claim.
    pub disable_claim_events: bool,
    /// Set to leave out the annotation that says when a claim was first seen. The one for the first
    /// Ready is always written: deadlines need it.
    pub disable_claim_observability_annotations: bool,
    /// Domains whose labels a claim may put on its pod.
    pub allowed_label_domains: Vec<String>,
    /// The reporter of events beside the controller's name: usually the host or pod name.
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
