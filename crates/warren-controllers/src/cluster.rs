//! The cluster as the controllers see it: caches to read from, and a way to carry out steps. Every answer of the server
//! goes into the caches, so that the next look already sees what was done.

use std::error::Error as _;
use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use warren_api::Sandbox;
use warren_decide::step::{Action, Failure, FailureKind, Kind, Object, Propagation, Step};

use crate::cache::Cache;
use crate::trim;

/// The caches of all kinds, and the client to write with.
#[derive(Clone)]
pub struct Cluster {
    pub(crate) client: Client,
    pub(crate) sandboxes: Arc<Cache<Sandbox>>,
    pub(crate) pods: Arc<Cache<Pod>>,
    pub(crate) services: Arc<Cache<Service>>,
    pub(crate) volume_claims: Arc<Cache<PersistentVolumeClaim>>,
}

/// Why the server did not do what was asked.
enum Refusal {
    Conflict(String),
    NotFound(String),
    Other(String),
}

impl Cluster {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            sandboxes: Arc::new(Cache::new(trim::SANDBOX)),
            pods: Arc::new(Cache::new(trim::POD)),
            services: Arc::new(Cache::new(trim::SERVICE)),
            volume_claims: Arc::new(Cache::new(trim::VOLUME_CLAIM)),
        }
    }

    /// Waits until every kind has been listed once.
    pub(crate) async fn wait_until_listed(&self) {
        self.sandboxes.wait_until_listed().await;
        self.pods.wait_until_listed().await;
        self.services.wait_until_listed().await;
        self.volume_claims.wait_until_listed().await;
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

    async fn act(&self, namespace: &str, manager: &str, action: Action) -> Result<(), (FailureKind, String)> {
        let write = Write { client: &self.client, namespace, manager };
        match action {
            Action::Create(object) => match object {
                Object::Sandbox(object) => write.create(&self.sandboxes, *object).await,
                Object::Pod(object) => write.create(&self.pods, *object).await,
                Object::Service(object) => write.create(&self.services, *object).await,
                Object::PersistentVolumeClaim(object) => write.create(&self.volume_claims, *object).await,
                Object::NetworkPolicy(_) => unreachable_kind(Kind::NetworkPolicy),
            },
            Action::Merge { kind, name, body } => match kind {
                Kind::Sandbox => write.merge(&self.sandboxes, &name, &body).await,
                Kind::Pod => write.merge(&self.pods, &name, &body).await,
                Kind::Service => write.merge(&self.services, &name, &body).await,
                Kind::PersistentVolumeClaim => write.merge(&self.volume_claims, &name, &body).await,
                kind => unreachable_kind(kind),
            },
            Action::MergeStatus { kind, name, body } => match kind {
                Kind::Sandbox => write.merge_status(&self.sandboxes, &name, &body).await,
                kind => unreachable_kind(kind),
            },
            Action::Delete { kind, name, uid, propagation } => match kind {
                Kind::Sandbox => write.delete(&self.sandboxes, &name, uid, propagation).await,
                Kind::Pod => write.delete(&self.pods, &name, uid, propagation).await,
                Kind::Service => write.delete(&self.services, &name, uid, propagation).await,
                kind => unreachable_kind(kind),
            },
        }
    }
}

fn unreachable_kind(kind: Kind) -> Result<(), (FailureKind, String)> {
    Err((FailureKind::Other, format!("no such write for {kind}")))
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
                Refusal::NotFound(text) | Refusal::Other(text) => Err((FailureKind::Other, text)),
            },
        }
    }

    async fn merge<K: Kept>(
        &self,
        cache: &Cache<K>,
        name: &str,
        body: &Value,
    ) -> Result<(), (FailureKind, String)> {
        match self.api::<K>().patch(name, &self.patch_params(), &Patch::Merge(body)).await {
            Ok(patched) => {
                cache.remember(patched);
                Ok(())
            }
            Err(error) => Err(match refusal(&error) {
                Refusal::Conflict(text) => {
                    self.refresh(cache, name).await;
                    (FailureKind::Conflict, text)
                }
                Refusal::NotFound(text) => (FailureKind::NotFound, text),
                Refusal::Other(text) => (FailureKind::Other, text),
            }),
        }
    }

    async fn merge_status<K: Kept>(
        &self,
        cache: &Cache<K>,
        name: &str,
        body: &Value,
    ) -> Result<(), (FailureKind, String)> {
        match self.api::<K>().patch_status(name, &self.patch_params(), &Patch::Merge(body)).await {
            Ok(patched) => {
                cache.remember(patched);
                Ok(())
            }
            Err(error) => match refusal(&error) {
                Refusal::NotFound(_) => Ok(()),
                Refusal::Conflict(text) => Err((FailureKind::Conflict, text)),
                Refusal::Other(text) => Err((FailureKind::Other, text)),
            },
        }
    }

    async fn delete<K: Kept>(
        &self,
        cache: &Cache<K>,
        name: &str,
        uid: String,
        propagation: Propagation,
    ) -> Result<(), (FailureKind, String)> {
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: Some(uid), resource_version: None }),
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
                // Another object has the name by now: the one that was meant is gone.
                Refusal::Conflict(_) => Ok(()),
                Refusal::Other(text) => Err((FailureKind::Other, text)),
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
                _ => Refusal::Other(text),
            }
        }
        other => {
            let mut text = other.to_string();
            let mut cause = other.source();
            while let Some(source) = cause {
                text = format!("{text}: {source}");
                cause = source.source();
            }
            Refusal::Other(text)
        }
    }
}
