//! Decides about a SandboxWarmPool: keeps enough warm sandboxes, never too many, and replaces
//! outdated ones by its strategy.
//!
//! A pool has some state between reconciles ([`Memory`]): its own writes that the cache has not
//! shown yet, when it may refill, and whether it was stuck. The memory is data: it goes in and
//! comes out changed. Losing it (a restart) affects only pacing, never correctness, because members
//! are counted from the cluster.

mod member;
mod memory;
mod plan;
mod rollout;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use warren_api::{Sandbox, SandboxTemplate, SandboxWarmPool};

pub use memory::{Expectations, Memory};
pub use plan::{Plan, decide};
pub use rules::Strategy;

/// The observed state of one pool.
#[derive(Clone, Debug)]
pub struct World {
    /// The pool.
    pub pool: Arc<SandboxWarmPool>,
    /// Its template, if it exists.
    pub template: Option<Arc<SandboxTemplate>>,
    /// Every sandbox of the namespace that has the pool's label, with any controller.
    pub members: Vec<Arc<Sandbox>>,
    /// The pods of members that are not ready, by the member's name.
    pub pods: BTreeMap<String, Arc<Pod>>,
    /// A number between 0 and 1 that spreads the wake-ups of many pools.
    pub jitter: f64,
    /// The time of a monotonic clock, since any fixed moment. The pool's waits use it.
    pub uptime: Duration,
}

/// Settings of all pools.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The most members that one reconcile creates, or deletes as surplus. Outdated and stuck
    /// members are not counted.
    pub max_batch_size: usize,
    /// The delay before refilling after members have left.
    pub replenish_delay: Duration,
    /// The fill level, from 0 to 1, below which refilling does not wait: claims without a pause
    /// would empty the pool.
    pub reserve: f64,
    /// The most members that may be starting at the same time; `None`: no limit. A member that
    /// takes long waits for something else and does not count.
    pub max_starting: Option<usize>,
    /// The most members created per second and pool; 0: no limit.
    pub max_refill_rate: f64,
    /// The time that a member may take to become ready.
    pub readiness_grace_period: Duration,
    /// The interval at which a pool with unschedulable members is checked.
    pub unschedulable_recheck_interval: Duration,
    /// Set to mark waiting pods as safe to evict.
    pub enable_eviction: bool,
    /// The most members that any pool may have, including dying ones; `None`: no limit.
    pub max_size: Option<usize>,
    /// The time without a new ready member after which a pool that needs some is reported as not
    /// progressing.
    pub progress_deadline: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_batch_size: 300,
            replenish_delay: Duration::ZERO,
            reserve: 0.0,
            max_starting: None,
            max_refill_rate: 0.0,
            readiness_grace_period: Duration::from_secs(5 * 60),
            unschedulable_recheck_interval: Duration::from_secs(60),
            enable_eviction: true,
            max_size: None,
            // A Deployment's default.
            progress_deadline: Duration::from_secs(10 * 60),
        }
    }
}
