//! The cluster as the controllers see it: caches to read from, and a way to carry out steps. Every answer of the server
//! goes into the caches, so that the next look already sees what was done.

use std::error::Error as _;
use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use warren_api::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool};
use warren_decide::step::{Action, Failure, FailureKind, Kind, Object, Propagation, Step};

use crate::cache::Cache;
use crate::queue::ObjectKey;
use crate::trim;

/// The caches of all kinds, and the client to write with.
#[derive(Clone)]
pub struct Cluster {
    pub(crate) client: Client,
    pub(crate) sandboxes: Arc<Cache<Sandbox>>,
    pub(crate) pods: Arc<Cache<Pod>>,
    pub(crate) services: Arc<Cache<Service>>,
    pub(crate) volume_claims: Arc<Cache<PersistentVolumeClaim>>,
    pub(crate) claims: Arc<Cache<SandboxClaim>>,
    pub(crate) pools: Arc<Cache<SandboxWarmPool>>,
    pub(crate) templates: Arc<Cache<SandboxTemplate>>,
    pub(crate) policies: Arc<Cache<NetworkPolicy>>,
}

/// Runs an expression with the cache of a kind, which differs in type from kind to kind.
macro_rules! with_cache {
    ($cluster:expr, $kind:expr, $cache:ident => $body:expr) => {
        match $kind {
            Kind::Sandbox => {
                let $cache = &*$cluster.sandboxes;
                $body
            }
            Kind::SandboxTemplate => {
                let $cache = &*$cluster.templates;
                $body
            }
            Kind::SandboxClaim => {
                let $cache = &*$cluster.claims;
                $body
            }
            Kind::SandboxWarmPool => {
                let $cache = &*$cluster.pools;
                $body
            }
            Kind::Pod => {
                let $cache = &*$cluster.pods;
                $body
            }
            Kind::Service => {
                let $cache = &*$cluster.services;
                $body
            }
            Kind::PersistentVolumeClaim => {
                let $cache = &*$cluster.volume_claims;
                $body
            }
            Kind::NetworkPolicy => {
                let $cache = &*$cluster.policies;
                $body
            }
        }
    };
}

/// Why the server did not do what was asked.
enum Refusal {
    Conflict(String),
    NotFound(String),
    Refused(String),
    Unknown(String),
}

impl Cluster {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            sandboxes: Arc::new(Cache::new(trim::SANDBOX)),
            pods: Arc::new(Cache::new(trim::POD)),
            services: Arc::new(Cache::new(trim::SERVICE)),
            volume_claims: Arc::new(Cache::new(trim::VOLUME_CLAIM)),
            claims: Arc::new(Cache::new(trim::CLAIM)),
            pools: Arc::new(Cache::new(trim::POOL)),
            templates: Arc::new(Cache::new(trim::TEMPLATE)),
            policies: Arc::new(Cache::new(trim::NETWORK_POLICY)),
        }
    }

    /// Waits until every kind has been listed once.
    pub(crate) async fn wait_until_listed(&self) {
        self.sandboxes.wait_until_listed().await;
        self.pods.wait_until_listed().await;
        self.services.wait_until_listed().await;
        self.volume_claims.wait_until_listed().await;
        self.claims.wait_until_listed().await;
        self.pools.wait_until_listed().await;
        self.templates.wait_until_listed().await;
        self.policies.wait_until_listed().await;
    }

    /// Carries out steps in order. After a failure the rest of its stage is skipped. Stopping between any two steps is
    /// harmless: the next pass sees what is done and plans the rest.
    pub(crate) async fn apply(&self, namespace: &str, manager: &str, steps: Vec<Step>) -> Vec<Failure> {
        let mut failures: Vec<Failure> = Vec::new();
        for Step { stage, action } in steps {
            if failures.iter().any(|failure| failure.stage == stage) {
                continue;
            }
            tracing::debug!(%action, "step");
            if let Err((kind, message)) = self.act(namespace, manager, action).await {
                failures.push(Failure { stage, kind, message });
            }
        }
        failures
    }

    /// Carries out steps that do not depend on each other with a slow start: one, then two, four, eight at the same time.
    /// The first batch with a failure is the last, so that a cluster that says no is not asked hundreds of times. Gives
    /// the steps that were not carried out, each with why not.
    pub(crate) async fn apply_slowly(
        &self,
        namespace: &str,
        manager: &str,
        steps: Vec<Step>,
    ) -> Vec<(Step, Failure)> {
        let mut undone = Vec::new();
        let mut waiting = steps.into_iter();
        let mut size = 1;
        while undone.is_empty() {
            let batch: Vec<Step> = waiting.by_ref().take(size).collect();
            if batch.is_empty() {
                return undone;
            }
            size *= 2;
            let tried = batch.into_iter().map(|step| async move {
                let result = self.act(namespace, manager, step.action.clone()).await;
                (step, result)
            });
            for (step, result) in futures::future::join_all(tried).await {
                if let Err((kind, message)) = result {
                    let failure = Failure { stage: step.stage, kind, message };
                    undone.push((step, failure));
                }
            }
        }
        // The rest was never tried, so nothing of it can have been written.
        let reason =
            undone.first().map(|(_, failure)| Failure { kind: FailureKind::Refused, ..failure.clone() });
        undone.extend(waiting.filter_map(|step| Some((step, reason.clone()?))));
        undone
    }

    /// Asks the server itself whether a sandbox exists, and takes the answer in.
    pub(crate) async fn read_sandbox(&self, namespace: &str, name: &str) -> Result<bool, kube::Error> {
        let live = Api::<Sandbox>::namespaced(self.client.clone(), namespace).get_opt(name).await?;
        let exists = live.is_some();
        if let Some(live) = live {
            self.sandboxes.remember(live);
        }
        Ok(exists)
    }

    async fn act(&self, namespace: &str, manager: &str, action: Action) -> Result<(), (FailureKind, String)> {
        let write = Write { client: &self.client, namespace, manager };
        match action {
            Action::Create(object) => match object {
                Object::Sandbox(object) => write.create(&self.sandboxes, *object).await,
                Object::Pod(object) => write.create(&self.pods, *object).await,
                Object::Service(object) => write.create(&self.services, *object).await,
                Object::PersistentVolumeClaim(object) => write.create(&self.volume_claims, *object).await,
                Object::NetworkPolicy(object) => write.create(&self.policies, *object).await,
            },
            Action::Merge { kind, name, body } => {
                let part = Part::All;
                with_cache!(self, kind, cache => write.merge(cache, &name, &body, part).await)
            }
            Action::MergeStatus { kind, name, body } => {
                let part = Part::Status;
                match with_cache!(self, kind, cache => write.merge(cache, &name, &body, part).await) {
                    // What is gone needs no status.
                    Err((FailureKind::NotFound, _)) => Ok(()),
                    result => result,
                }
            }
            Action::Delete { kind, name, uid, version, propagation } => {
                let preconditions = Preconditions { uid: Some(uid), resource_version: version };
                with_cache!(self, kind, cache => write.delete(cache, &name, preconditions, propagation).await)
            }
        }
    }
}

/// Which part of an object a patch is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    All,
    Status,
}

struct Write<'a> {
    client: &'a Client,
    namespace: &'a str,
    manager: &'a str,
}

impl Write<'_> {
    fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    fn patch_params(&self) -> PatchParams {
        PatchParams { field_manager: Some(self.manager.to_owned()), ..PatchParams::default() }
    }

    async fn create<K: Kept>(&self, cache: &Cache<K>, object: K) -> Result<(), (FailureKind, String)> {
        let params = PostParams { field_manager: Some(self.manager.to_owned()), ..PostParams::default() };
        match self.api::<K>().create(&params, &object).await {
            Ok(created) => {
                cache.remember(created);
                Ok(())
            }
            Err(error) => match refusal(&error) {
                Refusal::Conflict(text) => {
                    if let Some(name) = &object.meta().name {
                        self.refresh(cache, name).await;
                    }
                    Err((FailureKind::AlreadyExists, text))
                }
                Refusal::NotFound(text) | Refusal::Refused(text) => Err((FailureKind::Refused, text)),
                Refusal::Unknown(text) => Err((FailureKind::Unknown, text)),
            },
        }
    }

    async fn merge<K: Kept>(
        &self,
        cache: &Cache<K>,
        name: &str,
        body: &Value,
        part: Part,
    ) -> Result<(), (FailureKind, String)> {
        let (api, params, patch) = (self.api::<K>(), self.patch_params(), Patch::Merge(body));
        let answer = match part {
            Part::All => api.patch(name, &params, &patch).await,
            Part::Status => api.patch_status(name, &params, &patch).await,
        };
        match answer {
            Ok(patched) => {
                cache.remember(patched);
                Ok(())
            }
            Err(error) => Err(match refusal(&error) {
                Refusal::Conflict(text) => {
                    self.refresh(cache, name).await;
                    (FailureKind::Conflict, text)
                }
                Refusal::NotFound(text) => {
                    cache.forget(&ObjectKey { namespace: self.namespace.to_owned(), name: name.to_owned() });
                    (FailureKind::NotFound, text)
                }
                Refusal::Refused(text) => (FailureKind::Refused, text),
                Refusal::Unknown(text) => (FailureKind::Unknown, text),
            }),
        }
    }

    async fn delete<K: Kept>(
        &self,
        cache: &Cache<K>,
        name: &str,
        preconditions: Preconditions,
        propagation: Propagation,
    ) -> Result<(), (FailureKind, String)> {
        let params = DeleteParams {
            preconditions: Some(preconditions.clone()),
            propagation_policy: Some(match propagation {
                Propagation::Background => PropagationPolicy::Background,
                Propagation::Foreground => PropagationPolicy::Foreground,
            }),
            ..DeleteParams::default()
        };
        match self.api::<K>().delete(name, &params).await {
            // The answer is the dying object, or nothing but success when it is gone at once. The watch says so too, in
            // its own order with what came before, so the cache waits for that.
            Ok(answer) => {
                if let Some(dying) = answer.left() {
                    cache.remember(dying);
                }
                Ok(())
            }
            Err(error) => match refusal(&error) {
                Refusal::NotFound(_) => Ok(()),
                // It has changed since it was looked at; or another object has its name, and it is gone.
                Refusal::Conflict(text) => match preconditions.resource_version {
                    Some(_) => {
                        self.refresh(cache, name).await;
                        Err((FailureKind::Conflict, text))
                    }
                    None => Ok(()),
                },
                Refusal::Refused(text) => Err((FailureKind::Refused, text)),
                Refusal::Unknown(text) => Err((FailureKind::Unknown, text)),
            },
        }
    }

    /// Reads an object past the cache, after a write has shown that the cache is behind.
    async fn refresh<K: Kept>(&self, cache: &Cache<K>, name: &str) {
        match self.api::<K>().get_opt(name).await {
            Ok(Some(live)) => cache.remember(live),
            Ok(None) => {}
            Err(error) => tracing::debug!(name, %error, "fresh read failed"),
        }
    }
}

/// What an object must be to be written here.
trait Kept:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<K> Kept for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

fn refusal(error: &kube::Error) -> Refusal {
    match error {
        kube::Error::Api(status) => {
            let text = status.message.clone();
            match status.code {
                404 => Refusal::NotFound(text),
                409 => Refusal::Conflict(text),
                // The server may have failed after it had written.
                429 | 500.. => Refusal::Unknown(text),
                _ => Refusal::Refused(text),
            }
        }
        other => {
            let mut text = other.to_string();
            let mut cause = other.source();
            while let Some(source) = cause {
                text = format!("{text}: {source}");
                cause = source.source();
            }
            Refusal::Unknown(text)
        }
    }
}
