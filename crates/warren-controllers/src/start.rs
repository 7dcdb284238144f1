//! Starts and stops the controllers.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::watcher;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;
use warren_api::labels;

use crate::cache::Cache;
use crate::clock::SystemClock;
use crate::config::Config;
use crate::engine::{Controller, Engine};
use crate::kube_server::KubeServer;
use crate::nodes;
use crate::object::Typed;
use crate::queue::Outcome;
use crate::set_clock;
use crate::telemetry::{Passes, Scrape, Telemetry};
use crate::watch;
use crate::write_limiter::LONGEST_WAIT;

/// Objects per page of a list. A page is read completely before it is trimmed, and that memory is
/// not returned.
const PAGE: u32 = 100;

/// The time that the last events may take at shutdown. They are informational, so it is short.
const LAST_EVENTS: Duration = Duration::from_secs(5);

/// The running controllers. Dropping them stops them without waiting; [`Controllers::shutdown`]
/// waits for running work.
pub struct Controllers {
    client: Client,
    stop: CancellationToken,
    /// Cancelled when the nodes are known, or cannot be.
    nodes_asked: CancellationToken,
    tasks: TaskTracker,
    events: TaskTracker,
    telemetry: Telemetry,
    passes: Vec<Arc<Passes>>,
    engine: Arc<Engine>,
}

impl Controllers {
    /// Starts to watch and reconcile. Returns at once. The first reconcile waits until every kind
    /// has been listed, so that no decision uses incomplete caches.
    #[must_use]
    pub fn start(client: Client, config: Config) -> Self {
        let controllers = Self::stand_by(client, config, Telemetry::default());
        controllers.lead();
        controllers
    }

    /// Starts to watch, and writes nothing until [`Controllers::lead`].
    #[must_use]
    pub fn stand_by(client: Client, config: Config, telemetry: Telemetry) -> Self {
        let events = TaskTracker::new();
        let server = Arc::new(KubeServer::new(client.clone(), events.clone()));
        let clock = Arc::new(SystemClock::start());
        let mut controllers = Self {
            client,
            stop: CancellationToken::new(),
            nodes_asked: CancellationToken::new(),
            engine: Engine::new(server, clock.clone(), &config, &telemetry),
            tasks: TaskTracker::new(),
            events,
            telemetry,
            passes: Vec::new(),
        };
        controllers.engine.queues().close();
        controllers.start_watches(&config);
        let (engine, stop) = (controllers.engine.clone(), controllers.stop.clone());
        controllers.tasks.spawn(set_clock::watch(clock, stop, move || engine.reconsider()));
        controllers.work(Controller::Sandbox, config.sandbox_concurrent_workers);
        if config.extensions {
            controllers.work(Controller::Template, config.sandbox_template_concurrent_workers);
            controllers.work(Controller::Pool, config.sandbox_warm_pool_concurrent_workers);
            controllers.work(Controller::Claim, config.sandbox_claim_concurrent_workers);
        }
        if config.agent_tasks {
            controllers.work(Controller::Task, config.agent_task_concurrent_workers);
        }
        let (doubts, engine) = (controllers.engine.queues().doubts.clone(), controllers.engine.clone());
        controllers.run(move |stop| async move {
            let confirm = move |kind| {
                let engine = engine.clone();
                async move { engine.confirm(kind).await }
            };
            doubts.run(1, stop, confirm).await;
        });
        controllers
    }

    /// Starts to work. This cannot be undone: a process that loses leadership stops.
    pub fn lead(&self) {
        self.engine.lead();
    }

    /// Returns the source of metrics pages.
    #[must_use]
    pub fn scrape(&self) -> Scrape {
        let metrics = self.telemetry.metrics.clone();
        Scrape { metrics, cluster: self.engine.cluster().clone(), passes: self.passes.clone() }
    }

    /// Waits until every existing object has been seen once.
    pub async fn wait_until_listed(&self) {
        self.engine.cluster().wait_until_listed().await;
    }

    /// Stops: no new reconcile begins, running ones are finished, and their events are written.
    pub async fn shutdown(self) {
        self.stop().await;
        self.tell_the_rest().await;
    }

    /// Stops the workers: no new reconcile begins, and running ones are finished.
    pub(crate) async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Writes the remaining events, up to a time limit.
    pub(crate) async fn tell_the_rest(&self) {
        self.events.close();
        if tokio::time::timeout(LAST_EVENTS, self.events.wait()).await.is_err() {
            tracing::warn!(lost = self.events.len(), "events were not recorded, because they took too long");
        }
    }

    fn start_watches(&self, config: &Config) {
        let cluster = self.engine.cluster();
        let all = watcher::Config::default().page_size(PAGE);
        let mut tracked = all.clone();
        if config.cache_label_selectors {
            tracked = tracked.labels(labels::SANDBOX_NAME_HASH);
            cluster.pods.watch_only(labels::SANDBOX_NAME_HASH);
            cluster.services.watch_only(labels::SANDBOX_NAME_HASH);
        }
        self.watch(&cluster.sandboxes, all.clone());
        self.watch(&cluster.pods, tracked.clone());
        self.watch(&cluster.services, tracked);
        self.watch(&cluster.volume_claims, all.clone());
        if config.agent_tasks {
            self.watch(&cluster.tasks, all.clone());
        }
        if config.extensions {
            self.watch(&cluster.claims, all.clone());
            self.watch(&cluster.pools, all.clone());
            self.watch(&cluster.templates, all.clone());
            self.watch(&cluster.policies, all);
            let engine = self.engine.clone();
            let is_fit = move |node: &str, is_fit| engine.observe_node(node, is_fit);
            let (stop, asked) = (self.stop.clone(), self.nodes_asked.clone());
            self.tasks.spawn(nodes::run(self.client.clone(), stop, asked, is_fit));
        } else {
            self.nodes_asked.cancel();
        }
    }

    fn watch<K: Typed>(&self, cache: &Arc<Cache<K>>, config: watcher::Config) {
        let engine = self.engine.clone();
        let (stop, leading) = (self.stop.clone(), self.engine.leading.clone());
        let tell = move |object: &InvalidObject| engine.tell_unreadable::<K>(object);
        self.tasks.spawn(watch::run(self.client.clone(), config, cache.clone(), stop, leading, tell));
    }

    fn work(&mut self, controller: Controller, workers: usize) {
        let (engine, queue) = (self.engine.clone(), self.engine.queues().of(controller).clone());
        let passes = Arc::new(Passes::new(self.telemetry.metrics.clone(), queue.clone(), workers));
        self.passes.push(passes.clone());
        self.run(move |stop| async move {
            let name = queue.name();
            let pass = move |key| {
                let span = tracing::info_span!("reconcile", controller = name, %key);
                let (engine, passes) = (engine.clone(), passes.clone());
                async move {
                    // A delayed key has not begun a reconcile, so there is nothing to measure.
                    if let Some(delay) = engine.deferred_for(controller, &key) {
                        return Outcome::NotNow(delay);
                    }
                    let _permit = match engine.is_deferrable(controller, &key) {
                        true => match engine.try_acquire(&key) {
                            None => return Outcome::NotNow(LONGEST_WAIT),
                            permit => permit,
                        },
                        false => None,
                    };
                    passes.measure(engine.reconcile(controller, key)).await
                }
                .instrument(span)
            };
            queue.run(workers, stop, pass).await;
        });
    }

    /// Starts a task once everything has been listed, including nodes, and this process leads.
    fn run<F, R>(&self, task: F)
    where
        F: FnOnce(CancellationToken) -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let (stop, engine, asked) = (self.stop.clone(), self.engine.clone(), self.nodes_asked.clone());
        self.tasks.spawn(async move {
            let listed = engine.cluster().wait_until_listed();
            let ready = async { tokio::join!(listed, asked.cancelled(), engine.leading.cancelled()) };
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ready => {}
            }
            task(stop).await;
        });
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
