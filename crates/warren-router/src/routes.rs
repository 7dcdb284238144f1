//! Keeps the table of routes as the API server shows the pods.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch_objects};
use kube::{Api, Client};
use tokio::sync::{OnceCell, Semaphore, watch};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};
use warren_api::Sandbox;
use warren_api::labels::{SANDBOX_NAME_HASH, WARM_POOL_SANDBOX};
use warren_decide::route::{Resolution, Route, RouteTable, Wanted};

use crate::PodScope;

/// Requests to the API server for pods that the table does not have, at the same time.
const LOOKUPS: usize = 16;

/// The routes, and where they come from.
pub(crate) struct Routes {
    client: Client,
    scope: PodScope,
    table: Arc<RwLock<RouteTable>>,
    lookups: Semaphore,
    watching: OnceCell<Watching>,
}

struct Watching {
    listed: watch::Receiver<bool>,
    _task: AbortOnDropHandle<()>,
}

impl Routes {
    pub(crate) fn new(client: Client, scope: PodScope) -> Routes {
        let lookups = Semaphore::new(LOOKUPS);
        Routes { client, scope, table: Arc::default(), lookups, watching: OnceCell::new() }
    }

    /// Returns when all pods are known. The first caller starts the watch: a router that is not used
    /// costs the API server nothing.
    pub(crate) async fn wait_until_listed(&self) {
        let start = || async {
            let (sender, listed) = watch::channel(false);
            let task = follow(self.client.clone(), self.scope.clone(), Arc::clone(&self.table), sender);
            Watching { listed, _task: AbortOnDropHandle::new(tokio::spawn(task)) }
        };
        let watching = self.watching.get_or_init(start).await;
        let mut listed = watching.listed.clone();
        // Fails only if the watch has ended, which it does with us.
        let _ = listed.wait_for(|listed| *listed).await;
    }

    /// Finds the pod that a request is for. What the table does not have is asked for at the API
    /// server: a client that has just been told of its sandbox may be ahead of our watch.
    pub(crate) async fn find(&self, wanted: &Wanted) -> Option<Arc<Route>> {
        self.wait_until_listed().await;
        if let Resolution::Found(route) = self.resolve(wanted) {
            return Some(route);
        }
        if self.scope.namespace.as_ref().is_some_and(|only| *only != wanted.namespace) {
            return None;
        }
        if let Err(error) = self.look_up(wanted).await {
            debug!(%error, namespace = wanted.namespace, pod = wanted.id, "pod not looked up");
        }
        match self.resolve(wanted) {
            Resolution::Found(route) => Some(route),
            unresolved => {
                debug!(?unresolved, namespace = wanted.namespace, pod = wanted.id, "no route");
                None
            }
        }
    }

    fn resolve(&self, wanted: &Wanted) -> Resolution {
        self.table.read().unwrap_or_else(PoisonError::into_inner).resolve(wanted)
    }

    /// Asks the API server for the pod of a name and, if the pod is still marked as a pool's, for its
    /// Sandbox, which loses the mark first.
    async fn look_up(&self, wanted: &Wanted) -> Result<(), kube::Error> {
        // Fails only if the semaphore is closed, which it never is.
        let _permit = self.lookups.acquire().await;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &wanted.namespace);
        let Some(pod) = pods.get_opt(&wanted.id).await? else { return Ok(()) };
        let Some(mut route) = Route::of(&pod, self.scope.addressless) else { return Ok(()) };
        if route.is_in_pool {
            let sandboxes: Api<Sandbox> = Api::namespaced(self.client.clone(), &wanted.namespace);
            let sandbox = sandboxes.get_metadata_opt(&wanted.id).await?;
            route.is_in_pool = !sandbox.is_some_and(|sandbox| {
                let labels = sandbox.metadata.labels.unwrap_or_default();
                sandbox.metadata.uid.as_deref() == Some(&route.sandbox_uid)
                    && !labels.contains_key(WARM_POOL_SANDBOX)
            });
        }
        self.table.write().unwrap_or_else(PoisonError::into_inner).insert(route);
        Ok(())
    }
}

/// Follows the pods of sandboxes.
async fn follow(
    client: Client,
    scope: PodScope,
    table: Arc<RwLock<RouteTable>>,
    listed: watch::Sender<bool>,
) {
    let pods: Api<Pod> = match &scope.namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let config = watcher::Config::default().labels(SANDBOX_NAME_HASH);
    let mut events = std::pin::pin!(watch_objects(pods, config).default_backoff());
    let mut seen = HashSet::new();
    let change = |change: &dyn Fn(&mut RouteTable)| {
        change(&mut table.write().unwrap_or_else(PoisonError::into_inner));
    };
    loop {
        match events.try_next().await {
            Ok(Some(Event::Init)) => seen.clear(),
            Ok(Some(Event::InitApply(pod))) => {
                seen.extend(pod.metadata.uid.clone());
                change(&|table| table.update(&pod, scope.addressless));
            }
            Ok(Some(Event::InitDone)) => {
                change(&|table| table.retain(|uid| seen.contains(uid)));
                seen = HashSet::new();
                listed.send_replace(true);
            }
            Ok(Some(Event::Apply(pod))) => change(&|table| table.update(&pod, scope.addressless)),
            Ok(Some(Event::Delete(pod))) => {
                change(&|table| table.remove(pod.metadata.uid.as_deref().unwrap_or_default()));
            }
            Ok(None) => return,
            Err(error) => warn!(%error, "watch of pods interrupted"),
        }
    }
}
