//! The five controllers with their caches, queues and wake-ups. Nothing in here runs by itself: the
//! driver delivers the events of lists and watches, and chooses when a reconcile begins.
//! [`crate::Controllers`] drives the engine with watches and workers; the simulation drives it step
//! by step.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Resource;
use kube::core::DeserializeGuard;
use kube::core::error_boundary::InvalidObject;
use tokio_util::sync::CancellationToken;
use warren_api::conditions::{self, ConditionType, ReportingController};
use warren_api::{AgentTask, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool};
use warren_decide::ownership;
use warren_decide::step::{Kind, Note};
use warren_decide::{claim as claims, pool as pools, sandbox as sandboxes};

use crate::cache::{Cache, Change, named};
use crate::claim::ClaimController;
use crate::clock::Clock;
use crate::cluster::Cluster;
use crate::config::Config;
use crate::events::Recorder;
use crate::pool::{self, PoolController};
use crate::queue::{ObjectKey, Outcome, WorkQueue};
use crate::sandbox::{self, SandboxController};
use crate::server::Server;
use crate::task::{self, TaskController};
use crate::telemetry::Telemetry;
use crate::template::{self, TemplateController};
use crate::wake::Sides;
use crate::write_limiter::Permit;

/// The delay of a newly claimed, ready sandbox's next reconcile, so that the claim is served first.
/// That reconcile only writes informational fields: the claim's labels on the pod, and the status's
/// generation.
const DEFER: Duration = Duration::from_millis(100);
/// The repeated delay while other claims wait to be served.
const DEFER_AGAIN: Duration = Duration::from_millis(500);
/// The longest total delay. Before its reconcile, an autoscaler may take the pod for an unused one.
const MAX_DEFERRAL: Duration = Duration::from_secs(5);

/// The controllers, driven from outside.
pub struct Engine {
    cluster: Cluster,
    queues: Queues,
    sandboxes: SandboxController,
    templates: TemplateController,
    pools: PoolController,
    claims: ClaimController,
    tasks: TaskController,
    telemetry: Telemetry,
    extensions: bool,
    agent_tasks: bool,
    /// Sandboxes that are delayed in favour of claims, and since when.
    handed_over: Mutex<HashMap<ObjectKey, Duration>>,
    /// Cancelled when work may begin.
    pub(crate) leading: CancellationToken,
}

/// The queues: one per kind, named as existing dashboards expect, and one for kinds with objects in
/// doubt.
#[derive(Clone)]
#[expect(missing_docs, reason = "each queue is of the kind that it is named after")]
pub struct Queues {
    pub sandboxes: WorkQueue,
    pub claims: WorkQueue,
    pub pools: WorkQueue,
    pub templates: WorkQueue,
    pub tasks: WorkQueue,
    /// Kinds with objects that the server is to be asked about.
    pub doubts: WorkQueue<Kind>,
}

/// A controller, as the target of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the controller of its own name")]
pub enum Controller {
    Sandbox,
    Claim,
    Pool,
    Template,
    Task,
}

impl Controller {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Sandbox, Self::Claim, Self::Pool, Self::Template, Self::Task];
}

impl Queues {
    pub(crate) fn close(&self) {
        Controller::ALL.iter().for_each(|controller| self.of(*controller).close());
    }

    fn open(&self) {
        Controller::ALL.iter().for_each(|controller| self.of(*controller).open());
    }

    /// Returns the queue of a controller.
    #[must_use]
    pub fn of(&self, controller: Controller) -> &WorkQueue {
        match controller {
            Controller::Sandbox => &self.sandboxes,
            Controller::Claim => &self.claims,
            Controller::Pool => &self.pools,
            Controller::Template => &self.templates,
            Controller::Task => &self.tasks,
        }
    }
}

impl Engine {
    /// Creates controllers with empty caches.
    #[must_use]
    pub fn new(
        server: Arc<dyn Server>,
        clock: Arc<dyn Clock>,
        config: &Config,
        telemetry: &Telemetry,
    ) -> Arc<Self> {
        let queues = Queues {
            sandboxes: WorkQueue::new("sandbox", clock.clone()),
            claims: WorkQueue::new("sandboxclaim", clock.clone()),
            pools: WorkQueue::new("sandboxwarmpool", clock.clone()),
            templates: WorkQueue::new("sandboxtemplate", clock.clone()),
            tasks: WorkQueue::new("agenttask", clock.clone()),
            doubts: WorkQueue::new("doubt", clock.clone()),
        };
        let cluster = Cluster::new(server.clone(), clock.clone(), &queues.doubts);
        let recorder = Recorder::new(server, clock, config.reporting_instance.clone());
        let settings = sandboxes::Settings { cluster_domain: config.cluster_domain.clone() };
        let engine = Arc::new(Self {
            sandboxes: SandboxController {
                cluster: cluster.clone(),
                recorder: recorder.clone(),
                settings,
                tracer: telemetry.tracer.clone(),
                postponed: Mutex::default(),
            },
            templates: TemplateController::new(cluster.clone(), recorder.clone()),
            pools: PoolController::new(cluster.clone(), recorder.clone(), pool_settings(config)),
            tasks: TaskController::new(cluster.clone(), recorder.clone()),
            claims: ClaimController::new(cluster.clone(), recorder, claim_settings(config), telemetry),
            telemetry: telemetry.clone(),
            extensions: config.extensions,
            agent_tasks: config.agent_tasks,
            handed_over: Mutex::default(),
            leading: CancellationToken::new(),
            cluster,
            queues,
        });
        engine.listen();
        engine
    }

    /// Returns the controllers' view of the cluster.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns the work queues.
    #[must_use]
    pub fn queues(&self) -> &Queues {
        &self.queues
    }

    /// Reconciles one key. It writes whether or not this process leads; cancelling it half-way is
    /// harmless.
    pub async fn reconcile(&self, controller: Controller, key: ObjectKey) -> Outcome {
        match controller {
            Controller::Sandbox => match self.deferred_for(controller, &key) {
                Some(delay) => Outcome::NotNow(delay),
                None => {
                    self.handed_over().remove(&key);
                    self.sandboxes.reconcile(key).await
                }
            },
            Controller::Claim => {
                if self.cluster.claims.get(&key).is_some_and(|claim| is_waiting(&claim)) {
                    self.cluster.write_limiter.note_claim();
                }
                let _span = self.telemetry.claim_span(&self.cluster, &key).await;
                self.claims.reconcile(key).await
            }
            Controller::Pool => self.pools.reconcile(key).await,
            Controller::Task => self.tasks.reconcile(key).await,
            Controller::Template => {
                let _span = self.telemetry.template_span(&self.cluster, &key);
                self.templates.reconcile(key).await
            }
        }
    }

    /// Returns true if no user waits for a reconcile: for sandboxes in pools, and for a while for
    /// those that a claim has just adopted.
    pub(crate) fn is_deferrable(&self, controller: Controller, key: &ObjectKey) -> bool {
        let has_waited = |since| self.cluster.uptime().saturating_sub(since) >= MAX_DEFERRAL;
        controller == Controller::Sandbox
            && (self.handed_over().get(key).is_some_and(|since| !has_waited(*since))
                || self
                    .cluster
                    .sandboxes
                    .get(key)
                    .is_some_and(|sandbox| ownership::is_pooled(&sandbox.metadata)))
    }

    /// Acquires a permit for a sandbox beside the claims. If there is none, the sandbox is queued
    /// again when there is.
    pub(crate) fn try_acquire(&self, key: &ObjectKey) -> Option<Permit<'_>> {
        self.cluster.write_limiter.try_acquire(key, &self.queues.sandboxes)
    }

    /// Returns how long this sandbox is still delayed in favour of claims; `None` if it is due, as
    /// all other keys are.
    pub(crate) fn deferred_for(&self, controller: Controller, key: &ObjectKey) -> Option<Duration> {
        if controller != Controller::Sandbox {
            return None;
        }
        let since = *self.handed_over().get(key)?;
        let waited = self.cluster.uptime().saturating_sub(since);
        let rest = DEFER.checked_sub(waited).filter(|rest| !rest.is_zero());
        rest.or_else(|| (waited < MAX_DEFERRAL && self.claims_wait()).then_some(DEFER_AGAIN))
    }

    /// Returns true if claims wait for a worker or for the server.
    fn claims_wait(&self) -> bool {
        self.queues.claims.is_busy() || self.cluster.write_limiter.is_saturated()
    }

    /// Locks the map. A panic elsewhere leaves it valid: every change of it is one insertion or
    /// removal.
    fn handed_over(&self) -> MutexGuard<'_, HashMap<ObjectKey, Duration>> {
        self.handed_over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the server about the objects of a kind that are in doubt.
    pub async fn confirm(&self, kind: Kind) -> Outcome {
        self.cluster.confirm(kind).await
    }

    /// Queues every object that may be due by the time of day, because that was set.
    pub fn reconsider(&self) {
        let (cluster, queues) = (&self.cluster, &self.queues);
        cluster.sandboxes.keys().into_iter().for_each(|key| queues.sandboxes.add(key));
        if self.extensions {
            cluster.claims.keys().into_iter().for_each(|key| queues.claims.add(key));
            cluster.pools.keys().into_iter().for_each(|key| queues.pools.add(key));
        }
        cluster.tasks.keys().into_iter().for_each(|key| queues.tasks.add(key));
    }

    /// Starts the work: queues everything that is cached by now. Later changes wake their objects.
    pub(crate) fn lead(&self) {
        self.queues.open();
        self.reconsider();
        if self.extensions {
            self.cluster.templates.keys().into_iter().for_each(|key| self.queues.templates.add(key));
        }
        self.leading.cancel();
    }

    /// Records the event of an object that cannot be parsed. Returns true if that is done. If this
    /// process does not lead, it returns false and must be called again once it does.
    pub(crate) fn tell_unreadable<K: Resource<DynamicType = ()>>(&self, object: &InvalidObject) -> bool {
        let reporter = match &*K::kind(&()) {
            "Sandbox" => {
                self.claims.withdraw(&named(&object.metadata));
                ReportingController::Sandbox
            }
            "SandboxClaim" if self.claims.settings.disable_events => return true,
            "SandboxClaim" => ReportingController::SandboxClaim,
            "SandboxTemplate" => ReportingController::SandboxTemplate,
            "SandboxWarmPool" => ReportingController::SandboxWarmPool,
            "AgentTask" => ReportingController::AgentTask,
            _ => return true,
        };
        let leads = self.leading.is_cancelled();
        if leads {
            let note = Note::unreadable(&object.error);
            self.sandboxes.recorder.record(reporter, &DeserializeGuard::<K>(Err(object.clone())), note);
        }
        leads
    }

    /// Records whether a node's sandboxes may be handed out.
    pub fn observe_node(&self, node: &str, is_fit: bool) {
        self.claims.observe_node(node, is_fit);
    }

    /// Returns the pools that still wait for events of their own writes. With every event delivered
    /// there are none.
    #[must_use]
    pub fn waiting_pools(&self) -> Vec<ObjectKey> {
        self.pools.waiting()
    }

    fn listen(self: &Arc<Self>) {
        let cluster = &self.cluster;
        self.hear(&cluster.sandboxes, Self::sandbox_changed);
        self.hear(&cluster.pods, |engine, change: &Change<'_, Pod>| {
            engine.child_changed(change.key, Sides::of(change));
            task::wake_by_pod(&engine.cluster, &engine.queues.tasks, change);
        });
        self.hear(&cluster.services, |engine, change: &Change<'_, Service>| {
            engine.child_changed(change.key, Sides::of(change));
        });
        // Volume claims wake no controller. Their end marks the owner, as for every child.
        self.hear(&cluster.volume_claims, |_, _| {});
        if self.extensions {
            self.hear(&cluster.claims, Self::claim_changed);
            self.hear(&cluster.pools, Self::pool_changed);
            self.hear(&cluster.templates, Self::template_changed);
            self.hear(&cluster.policies, |engine, change: &Change<'_, NetworkPolicy>| {
                let (templates, queue) = (&engine.cluster.templates, &engine.queues.templates);
                template::wake_by_policy(templates, queue, change.key, Sides::of(change));
            });
        } else {
            cluster.claims.mark_listed();
            cluster.pools.mark_listed();
            cluster.templates.mark_listed();
            cluster.policies.mark_listed();
        }
        if self.agent_tasks {
            self.hear(&cluster.tasks, |engine, change: &Change<'_, AgentTask>| {
                engine.queues.tasks.add(change.key.clone());
            });
        } else {
            cluster.tasks.mark_listed();
        }
    }

    /// Listens to the changes of a cache, and marks the owners of deleted objects. The cache holds
    /// a weak reference: the engine owns the cache.
    fn hear<K>(self: &Arc<Self>, cache: &Cache<K>, tell: fn(&Self, &Change<'_, K>))
    where
        K: Resource<DynamicType = ()> + Send + Sync + 'static,
    {
        let [owner_marker, listening] = [Arc::downgrade(self), Arc::downgrade(self)];
        let ending = move |gone: &K| {
            if let Some(engine) = owner_marker.upgrade() {
                engine.cluster.mark_owner_of(gone.meta());
            }
        };
        cache.listen(ending, move |change| {
            if let Some(engine) = listening.upgrade() {
                tell(&engine, change);
            }
        });
    }

    fn sandbox_changed(&self, change: &Change<'_, Sandbox>) {
        let mut handed_over = self.handed_over();
        if sandbox::is_handed_over(change) {
            handed_over.insert(change.key.clone(), self.cluster.uptime());
        } else {
            // Another change, which must not be delayed.
            handed_over.remove(change.key);
        }
        drop(handed_over);
        self.queues.sandboxes.add(change.key.clone());
        if self.agent_tasks {
            task::wake_by_sandbox(&self.cluster, &self.queues.tasks, Sides::of(change));
        }
        if self.extensions {
            self.claims.observe_sandbox(&self.queues.claims, change);
            self.pools.observe_sandbox(&self.queues.pools, change);
            pool::wake_by_label(&self.cluster, &self.queues.pools, Sides::of(change), &change.key.namespace);
        }
    }

    fn child_changed(&self, key: &ObjectKey, sides: Sides<'_>) {
        for owner in sides.owners(ownership::is_kind::<Sandbox>) {
            self.handed_over().remove(&owner);
        }
        sandbox::wake_by_child(&self.queues.sandboxes, sides);
        sandbox::wake_by_name(&self.cluster, &self.queues.sandboxes, key, sides);
    }

    fn claim_changed(&self, change: &Change<'_, SandboxClaim>) {
        self.telemetry.observe_claim(change, &self.cluster, self.leading.is_cancelled());
        self.claims.observe_claim(&self.queues.claims, change);
        if self.agent_tasks {
            task::wake_by_claim(&self.queues.tasks, Sides::of(change));
        }
    }

    fn pool_changed(&self, change: &Change<'_, SandboxWarmPool>) {
        self.queues.pools.add(change.key.clone());
        self.claims.observe_pool(&self.queues.claims, change);
        task::wake_by_pool(&self.cluster, &self.queues.tasks, change);
    }

    fn template_changed(&self, change: &Change<'_, SandboxTemplate>) {
        self.queues.templates.add(change.key.clone());
        pool::wake_by_template(&self.cluster, &self.queues.pools, change);
        task::wake_by_template(&self.cluster, &self.queues.tasks, change);
        self.claims.observe_template(&self.queues.claims, change);
    }
}

/// Returns true if a user waits for a claim.
fn is_waiting(claim: &SandboxClaim) -> bool {
    claim.metadata.deletion_timestamp.is_none()
        && !claim
            .status
            .as_ref()
            .is_some_and(|status| conditions::is_true(&status.conditions, ConditionType::Ready))
}

fn pool_settings(config: &Config) -> pools::Settings {
    pools::Settings {
        max_batch_size: config.sandbox_warm_pool_max_batch_size,
        replenish_delay: config.sandbox_warm_pool_replenish_delay,
        reserve: config.sandbox_warm_pool_reserve,
        max_starting: config.sandbox_warm_pool_max_starting,
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
