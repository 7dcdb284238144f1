//! Starts and stops the controllers.

use std::fmt::Debug;
use std::sync::Arc;

use kube::runtime::watcher;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;
use warren_api::labels;
use warren_decide::sandbox::Settings;

use crate::cache::Cache;
use crate::cluster::Cluster;
use crate::config::Config;
use crate::events::Recorder;
use crate::queue::{QueueStatistics, WorkQueue};
use crate::sandbox::{self, SandboxController};
use crate::watch;

/// The running controllers. Dropping it stops them without waiting; [`Controllers::shutdown`] waits for what is under
/// way.
pub struct Controllers {
    stop: CancellationToken,
    tasks: TaskTracker,
    sandboxes: WorkQueue,
    cluster: Cluster,
}

impl Controllers {
    /// Starts watching and reconciling. Returns at once; the first pass over anything waits until every kind has been
    /// listed, so that no decision is made on half a picture.
    #[must_use]
    pub fn start(client: Client, config: Config) -> Self {
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let cluster = Cluster::new(client.clone());
        let sandboxes = WorkQueue::new("sandbox");
        let recorder = Recorder::new(client, config.reporting_instance.clone(), tasks.clone());

        let queue = sandboxes.clone();
        cluster.sandboxes.listen(move |change| sandbox::wake_self(&queue, change));
        let queue = sandboxes.clone();
        cluster.pods.listen(move |change| {
            let (before, after) = sandbox::sides(change);
            sandbox::wake_owner(&queue, before, after);
        });
        let queue = sandboxes.clone();
        cluster.services.listen(move |change| {
            let (before, after) = sandbox::sides(change);
            sandbox::wake_owner(&queue, before, after);
        });

        let all = watcher::Config::default();
        let tracked = match config.cache_label_selectors {
            true => watcher::Config::default().labels(labels::SANDBOX_NAME_HASH),
            false => watcher::Config::default(),
        };
        let starting = Starting { cluster: &cluster, tasks: &tasks, stop: &stop };
        starting.watch(&cluster.sandboxes, all.clone());
        starting.watch(&cluster.pods, tracked.clone());
        starting.watch(&cluster.services, tracked);
        starting.watch(&cluster.volume_claims, all);

        let controller = Arc::new(SandboxController {
            cluster: cluster.clone(),
            recorder,
            settings: Settings { cluster_domain: config.cluster_domain },
        });
        let (queue, stopping, seen) = (sandboxes.clone(), stop.clone(), cluster.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = stopping.cancelled() => return,
                () = seen.wait_until_listed() => {}
            }
            queue
                .run(config.sandbox_concurrent_workers, stopping, move |key| {
                    let controller = controller.clone();
                    let span = tracing::info_span!("reconcile", sandbox = %key);
                    async move { controller.reconcile(key).await }.instrument(span)
                })
                .await;
        });
        Self { stop, tasks, sandboxes, cluster }
    }

    /// Waits until everything that exists has been seen once.
    pub async fn wait_until_listed(&self) {
        self.cluster.wait_until_listed().await;
    }

    /// Counters of the sandbox queue.
    #[must_use]
    pub fn sandbox_queue(&self) -> QueueStatistics {
        self.sandboxes.statistics()
    }

    /// Stops: no new pass begins, and those under way are finished.
    pub async fn shutdown(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

struct Starting<'a> {
    cluster: &'a Cluster,
    tasks: &'a TaskTracker,
    stop: &'a CancellationToken,
}

impl Starting<'_> {
    fn watch<K>(&self, cache: &Arc<Cache<K>>, config: watcher::Config)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        self.tasks.spawn(watch::run(self.cluster.client.clone(), config, cache.clone(), self.stop.clone()));
    }
}
