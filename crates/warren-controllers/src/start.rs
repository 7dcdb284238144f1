//! Starts and stops the controllers.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;

use kube::runtime::watcher;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;
use warren_api::labels;
use warren_decide::{claim as claims, pool as pools, sandbox as sandboxes};

use crate::cache::Cache;
use crate::claim::ClaimController;
use crate::cluster::Cluster;
use crate::config::Config;
use crate::events::Recorder;
use crate::pool::{self, PoolController};
use crate::queue::{ObjectKey, Outcome, QueueStatistics, WorkQueue};
use crate::sandbox::{self, SandboxController};
use crate::telemetry::{Passes, Scrape, Telemetry};
use crate::template::{self, TemplateController};
use crate::wake::Sides;
use crate::watch;

/// The running controllers. Dropping it stops them without waiting; [`Controllers::shutdown`] waits for what is under
/// way.
pub struct Controllers {
    stop: CancellationToken,
    /// Cancelled when work may begin.
    leading: CancellationToken,
    tasks: TaskTracker,
    telemetry: Telemetry,
    passes: Vec<Arc<Passes>>,
    queues: Queues,
    cluster: Cluster,
}

/// One queue per kind, named as existing dashboards know them.
#[derive(Clone)]
struct Queues {
    sandboxes: WorkQueue,
    claims: WorkQueue,
    pools: WorkQueue,
    templates: WorkQueue,
}

impl Controllers {
    /// Starts watching and reconciling. Returns at once; the first pass over anything waits until every kind has been
    /// listed, so that no decision is made on half a picture.
    #[must_use]
    pub fn start(client: Client, config: Config) -> Self {
        let controllers = Self::stand_by(client, config, Telemetry::default());
        controllers.lead();
        controllers
    }

    /// Starts watching, and writes nothing until [`Controllers::lead`].
    #[must_use]
    pub fn stand_by(client: Client, config: Config, telemetry: Telemetry) -> Self {
        let tasks = TaskTracker::new();
        let mut controllers = Self {
            stop: CancellationToken::new(),
            leading: CancellationToken::new(),
            telemetry,
            passes: Vec::new(),
            queues: Queues {
                sandboxes: WorkQueue::new("sandbox"),
                claims: WorkQueue::new("sandboxclaim"),
                pools: WorkQueue::new("sandboxwarmpool"),
                templates: WorkQueue::new("sandboxtemplate"),
            },
            cluster: Cluster::new(client.clone()),
            tasks: tasks.clone(),
        };
        let recorder = Recorder::new(client, config.reporting_instance.clone(), tasks);
        if config.extensions {
            controllers.start_extensions(&config, &recorder);
        } else {
            let queue = controllers.queues.sandboxes.clone();
            controllers.cluster.sandboxes.listen(move |change| queue.add(change.key.clone()));
            controllers.cluster.claims.mark_listed();
            controllers.cluster.pools.mark_listed();
            controllers.cluster.templates.mark_listed();
            controllers.cluster.policies.mark_listed();
        }
        controllers.start_sandboxes(&config, recorder);
        controllers
    }

    /// Begins to work. There is no way back: who leads no longer stops.
    pub fn lead(&self) {
        self.leading.cancel();
    }

    /// What pages of metrics are made of, for as long as somebody asks.
    #[must_use]
    pub fn scrape(&self) -> Scrape {
        let metrics = self.telemetry.metrics.clone();
        Scrape { metrics, cluster: self.cluster.clone(), passes: self.passes.clone() }
    }

    /// Waits until everything that exists has been seen once.
    pub async fn wait_until_listed(&self) {
        self.cluster.wait_until_listed().await;
    }

    /// Counters of each kind's queue, by the controller's name.
    #[must_use]
    pub fn queues(&self) -> [(&'static str, QueueStatistics); 4] {
        let Queues { sandboxes, claims, pools, templates } = &self.queues;
        [sandboxes, claims, pools, templates].map(|queue| (queue.name(), queue.statistics()))
    }

    /// Stops: no new pass begins, and those under way are finished.
    pub async fn shutdown(self) {
        self.stop().await;
    }

    pub(crate) async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn start_sandboxes(&mut self, config: &Config, recorder: Recorder) {
        let cluster = self.cluster.clone();
        let queue = self.queues.sandboxes.clone();
        cluster.pods.listen(move |change| sandbox::wake_by_child(&queue, Sides::of(change)));
        let queue = self.queues.sandboxes.clone();
        cluster.services.listen(move |change| sandbox::wake_by_child(&queue, Sides::of(change)));

        let all = watcher::Config::default();
        let tracked = match config.cache_label_selectors {
            true => watcher::Config::default().labels(labels::SANDBOX_NAME_HASH),
            false => watcher::Config::default(),
        };
        self.watch(&cluster.sandboxes, all.clone());
        self.watch(&cluster.pods, tracked.clone());
        self.watch(&cluster.services, tracked);
        self.watch(&cluster.volume_claims, all);

        let settings = sandboxes::Settings { cluster_domain: config.cluster_domain.clone() };
        let controller = Arc::new(SandboxController { cluster: cluster.clone(), recorder, settings });
        self.work(self.queues.sandboxes.clone(), config.sandbox_concurrent_workers, move |key| {
            let controller = controller.clone();
            async move { controller.reconcile(key).await }
        });
    }

    fn start_extensions(&mut self, config: &Config, recorder: &Recorder) {
        let cluster = self.cluster.clone();
        let templates = Arc::new(TemplateController { cluster: cluster.clone() });
        let pools = Arc::new(PoolController::new(cluster.clone(), recorder.clone(), pool_settings(config)));
        let claims = Arc::new(ClaimController::new(
            cluster.clone(),
            recorder.clone(),
            claim_settings(config),
            &self.telemetry,
        ));

        let (queues, seen, pool, claim) =
            (self.queues.clone(), cluster.clone(), pools.clone(), claims.clone());
        cluster.sandboxes.listen(move |change| {
            queues.sandboxes.add(change.key.clone());
            claim.observe_sandbox(&queues.claims, change);
            pool.observe_sandbox(&queues.pools, change);
            pool::wake_by_label(&seen, &queues.pools, Sides::of(change), &change.key.namespace);
        });
        let (queue, claim) = (self.queues.claims.clone(), claims.clone());
        let (seen, telemetry, leading) = (cluster.clone(), self.telemetry.clone(), self.leading.clone());
        cluster.claims.listen(move |change| {
            telemetry.observe_claim(change, &seen, leading.is_cancelled());
            claim.observe_claim(&queue, change);
        });
        let (queues, claim) = (self.queues.clone(), claims.clone());
        cluster.pools.listen(move |change| {
            queues.pools.add(change.key.clone());
            claim.observe_pool(&queues.claims, change);
        });
        let (queues, seen, claim) = (self.queues.clone(), cluster.clone(), claims.clone());
        cluster.templates.listen(move |change| {
            queues.templates.add(change.key.clone());
            pool::wake_by_template(&seen, &queues.pools, change);
            claim.observe_template(&queues.claims, change);
        });
        let queue = self.queues.templates.clone();
        cluster.policies.listen(move |change| template::wake_by_policy(&queue, Sides::of(change)));

        let all = watcher::Config::default();
        self.watch(&cluster.claims, all.clone());
        self.watch(&cluster.pools, all.clone());
        self.watch(&cluster.templates, all.clone());
        self.watch(&cluster.policies, all);

        self.work(self.queues.templates.clone(), config.sandbox_template_concurrent_workers, move |key| {
            let controller = templates.clone();
            async move { controller.reconcile(key).await }
        });
        self.work(self.queues.pools.clone(), config.sandbox_warm_pool_concurrent_workers, move |key| {
            let controller = pools.clone();
            async move { controller.reconcile(key).await }
        });
        self.work(self.queues.claims.clone(), config.sandbox_claim_concurrent_workers, move |key| {
            let controller = claims.clone();
            async move { controller.reconcile(key).await }
        });
    }

    fn watch<K>(&self, cache: &Arc<Cache<K>>, config: watcher::Config)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        self.tasks.spawn(watch::run(self.cluster.client.clone(), config, cache.clone(), self.stop.clone()));
    }

    /// Works a queue off, once everything has been listed and we lead.
    fn work<F, R>(&mut self, queue: WorkQueue, workers: usize, reconcile: F)
    where
        F: Fn(ObjectKey) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Outcome> + Send + 'static,
    {
        let (stop, leading, cluster) = (self.stop.clone(), self.leading.clone(), self.cluster.clone());
        let passes = Arc::new(Passes::new(self.telemetry.metrics.clone(), queue.clone(), workers));
        self.passes.push(passes.clone());
        self.tasks.spawn(async move {
            let ready = async { tokio::join!(cluster.wait_until_listed(), leading.cancelled()) };
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ready => {}
            }
            let controller = queue.name();
            queue
                .run(workers, stop, move |key| {
                    let span = tracing::info_span!("reconcile", controller, %key);
                    let (pass, passes) = (reconcile(key), passes.clone());
                    async move { passes.measure(pass).await }.instrument(span)
                })
                .await;
        });
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn pool_settings(config: &Config) -> pools::Settings {
    pools::Settings {
        max_batch_size: config.sandbox_warm_pool_max_batch_size,
        replenish_delay: config.sandbox_warm_pool_replenish_delay,
        max_refill_rate: config.sandbox_warm_pool_max_refill_rate,
        readiness_grace_period: config.sandbox_warm_pool_readiness_grace_period,
        unschedulable_recheck_interval: config.sandbox_warm_pool_unschedulable_recheck_interval,
        enable_eviction: config.enable_warm_pool_eviction,
        max_size: config.sandbox_warm_pool_max_size,
        progress_deadline: config.sandbox_warm_pool_progress_deadline,
    }
}

fn claim_settings(config: &Config) -> claims::Settings {
    claims::Settings {
        allowed_label_domains: config.allowed_label_domains.clone(),
        disable_observability_annotations: config.disable_claim_observability_annotations,
        disable_events: config.disable_claim_events,
        deadline: config.claim_deadline,
    }
}
