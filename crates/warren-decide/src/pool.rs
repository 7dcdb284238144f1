//! What a SandboxWarmPool needs: enough waiting sandboxes, never too many, and fresh ones where its strategy says so.
//!
//! A pool remembers a little between passes ([`Memory`]): what it has done that the cache has not shown yet, when it may
//! refill, and whether it was stuck. The memory is data like the rest: it goes in, and comes out changed. Losing it (a
//! restart) costs pacing, never correctness, because members are counted from the cluster.

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

/// What was seen of one pool.
#[derive(Clone, Debug)]
pub struct World {
    /// The pool.
    pub pool: Arc<SandboxWarmPool>,
    /// Its template, if it exists.
    pub template: Option<Arc<SandboxTemplate>>,
    /// Every sandbox of the namespace that carries the pool's label, whoever controls it.
    pub members: Vec<Arc<Sandbox>>,
    /// The pods of members that are not ready, by the member's name.
    pub pods: BTreeMap<String, Arc<Pod>>,
    /// A number between 0 and 1, so that a thousand pools do not wake at the same moment.
    pub jitter: f64,
    /// The time by a clock that nobody sets, since any fixed moment. What the pool waits for is measured by it.
    pub uptime: Duration,
}

/// Settings of all pools.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The most members that one pass creates, or deletes because there are too many. Those that are outdated or stuck are not counted.
    pub max_batch_size: usize,
    /// How long to wait with refilling after members have left.
    pub replenish_delay: Duration,
    /// The part of a pool, from 0 to 1, below which refilling does not wait: claims that never pause would empty it.
    pub reserve: f64,
    /// The most members that are on their way to being ready at the same time; nothing is no limit. One that does not get there
    /// soon is waiting for something, and does not count.
    pub max_starting: Option<usize>,
    /// The most members created per second and pool; 0 is no limit.
    pub max_refill_rate: f64,
    /// How long a member may take to become ready.
    pub readiness_grace_period: Duration,
    /// How often a pool with members that nobody has room for is looked at.
    pub unschedulable_recheck_interval: Duration,
    /// Whether waiting pods are marked as safe to evict.
    pub enable_eviction: bool,
    /// The most members that any pool may have, dying ones included; nothing is no limit.
    pub max_size: Option<usize>,
    /// How long a pool may go without a new ready member, while it needs some, before it is said not to progress.
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
            // What a Deployment has.
            progress_deadline: Duration::from_secs(10 * 60),
        }
    }
}
