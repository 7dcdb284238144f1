//! A sandbox that a client holds for its own use: one that it made, or one that it claimed from a pool.
//!
//! Either has a lease, an end time that the client moves on while it lives. After a client is killed the controller
//! deletes the object within [`LEASE`].

use std::convert::Infallible;
use std::fmt::Debug;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::wait;
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use warren_api::claim::{ClaimShutdownPolicy, Lifecycle, WarmPoolReference};
use warren_api::conditions::{self, ConditionType, Reason};
use warren_api::pool::SandboxTemplateReference;
use warren_api::sandbox::ShutdownPolicy;
use warren_api::{Sandbox, SandboxClaim, SandboxClaimSpec, SandboxWarmPool, SandboxWarmPoolSpec};

use crate::sandbox::{self, SandboxError, SandboxKey, Standing, WaitError};
use crate::sync::Place;

/// How long a sandbox outlives a client that was killed. Renewed at a third of it: three writes a minute for each
/// client, and none for a command that takes less than 20 seconds.
pub const LEASE: Duration = Duration::from_secs(60);

/// The annotation by which `kubectl exec` chooses a container, too.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// What a client holds.
#[derive(Clone, Debug)]
pub enum Holding {
    /// A sandbox that it made.
    Sandbox(Box<Sandbox>),
    /// A claim on a pool.
    Claim(Box<SandboxClaim>),
}

/// A sandbox that is Ready, and the container in it that commands run in.
#[derive(Clone, Debug)]
pub struct Held {
    /// The sandbox.
    pub sandbox: Sandbox,
    /// Where commands run.
    pub place: Place,
}

impl Holding {
    /// Creates a sandbox with a lease.
    pub async fn sandbox(
        client: &Client,
        namespace: &str,
        mut wanted: Sandbox,
    ) -> Result<Self, SandboxError> {
        wanted.spec.shutdown_time = Some(Time(sandbox::lease_end(Timestamp::now(), LEASE)));
        wanted.spec.shutdown_policy = ShutdownPolicy::Delete;
        Ok(Self::Sandbox(Box::new(sandbox::create(client, namespace, &wanted).await?)))
    }

    /// Creates a claim on a pool, with a lease.
    pub async fn of_pool(
        client: &Client,
        namespace: &str,
        name: &str,
        pool: &str,
    ) -> Result<Self, SandboxError> {
        let spec = SandboxClaimSpec {
            warm_pool_ref: WarmPoolReference { name: pool.to_owned() },
            lifecycle: Some(Lifecycle {
                shutdown_time: Some(Time(sandbox::lease_end(Timestamp::now(), LEASE))),
                ttl_seconds_after_finished: None,
                shutdown_policy: ClaimShutdownPolicy::Delete,
            }),
            ..SandboxClaimSpec::default()
        };
        let api: Api<SandboxClaim> = Api::namespaced(client.clone(), namespace);
        let created = api.create(&PostParams::default(), &SandboxClaim::new(name, spec)).await;
        let claim = created.map_err(|source| failed("claim", namespace, name, source))?;
        Ok(Self::Claim(Box::new(claim)))
    }

    /// Creates a claim on an empty pool of its own, since a claim cannot name a template. The pool belongs to the claim
    /// and goes with it; a client that is killed between the two calls leaves an empty pool.
    pub async fn of_template(
        client: &Client,
        namespace: &str,
        name: &str,
        template: &str,
    ) -> Result<Self, SandboxError> {
        let failed = |action, source| failed(action, namespace, name, source);
        let pools: Api<SandboxWarmPool> = Api::namespaced(client.clone(), namespace);
        let spec = SandboxWarmPoolSpec {
            replicas: 0,
            sandbox_template_ref: SandboxTemplateReference { name: template.to_owned() },
            update_strategy: None,
        };
        let made = pools.create(&PostParams::default(), &SandboxWarmPool::new(name, spec)).await;
        made.map_err(|source| failed("make a pool for", source))?;
        let holding = match Self::of_pool(client, namespace, name, name).await {
            Ok(holding) => holding,
            Err(error) => {
                // The claim's error is the one to report; the pool holds nothing.
                let _ = pools.delete(name, &kube::api::DeleteParams::default()).await;
                return Err(error);
            }
        };
        if let Self::Claim(claim) = &holding {
            let owner: Option<OwnerReference> = claim.owner_ref(&());
            let patch = json!({ "metadata": { "ownerReferences": owner.into_iter().collect::<Vec<_>>() } });
            let owned = pools.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
            owned.map_err(|source| failed("give the pool to", source))?;
        }
        Ok(holding)
    }

    /// Returns its namespace and name.
    pub fn key(&self) -> SandboxKey {
        match self {
            Self::Sandbox(sandbox) => SandboxKey::of(sandbox),
            Self::Claim(claim) => {
                SandboxKey { namespace: claim.namespace().unwrap_or_default(), name: claim.name_any() }
            }
        }
    }

    /// Waits until commands can be run. Returns early, with the reason, when that cannot happen any more.
    pub async fn ready(&self, client: &Client, within: Duration) -> Result<Held, WaitError> {
        let began = tokio::time::Instant::now();
        let (sandbox, own) = match self {
            Self::Sandbox(sandbox) => ((**sandbox).clone(), true),
            Self::Claim(claim) => (claimed(client, claim, within).await?, false),
        };
        let left = within.saturating_sub(began.elapsed());
        let ready = sandbox::wait_ready(client, sandbox, left).await?;
        let key = SandboxKey::of(&ready);
        let pod = sandbox::pod_name(&ready);
        let container = match own {
            // As it was asked for; nothing has to be looked up.
            true => first_container(&ready),
            false => container_of(client, &ready, &pod).await?,
        };
        let place = Place { namespace: key.namespace, pod, container };
        Ok(Held { sandbox: ready, place })
    }

    /// Renews the lease for as long as it is polled; never returns.
    pub async fn keep(&self, client: &Client) -> Infallible {
        loop {
            tokio::time::sleep(LEASE / 3).await;
            let end = json!(sandbox::lease_end(Timestamp::now(), LEASE));
            if let Err(error) = self.set_end(client, end).await {
                tracing::warn!(sandbox = %self.key(), %error, "lease not renewed");
            }
        }
    }

    /// Takes the lease away: the object stays until it is deleted.
    pub async fn stay(&self, client: &Client) -> Result<(), SandboxError> {
        self.set_end(client, Value::Null).await
    }

    async fn set_end(&self, client: &Client, end: Value) -> Result<(), SandboxError> {
        let key = self.key();
        let patched = match self {
            Self::Sandbox(_) => {
                let patch = json!({ "spec": { "shutdownTime": end } });
                patch_spec::<Sandbox>(client, &key, &patch).await
            }
            Self::Claim(_) => {
                let patch = json!({ "spec": { "lifecycle": { "shutdownTime": end } } });
                patch_spec::<SandboxClaim>(client, &key, &patch).await
            }
        };
        patched.map_err(|source| SandboxError { action: "extend", sandbox: key, source: Box::new(source) })
    }

    /// Deletes exactly this object, and with it what it owns. Returns when the server has accepted that.
    pub async fn delete(&self, client: &Client) -> Result<(), SandboxError> {
        match self {
            Self::Sandbox(sandbox) => sandbox::delete(client, &**sandbox).await,
            Self::Claim(claim) => sandbox::delete(client, &**claim).await,
        }
    }
}

fn failed(action: &'static str, namespace: &str, name: &str, source: kube::Error) -> SandboxError {
    let sandbox = SandboxKey { namespace: namespace.to_owned(), name: name.to_owned() };
    SandboxError { action, sandbox, source: Box::new(source) }
}

async fn patch_spec<K>(client: &Client, key: &SandboxKey, patch: &Value) -> kube::Result<()>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), &key.namespace);
    api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
}

/// Waits until a claim has a sandbox, and returns the sandbox if it belongs to this very claim.
async fn claimed(client: &Client, claim: &SandboxClaim, within: Duration) -> Result<Sandbox, WaitError> {
    let key = SandboxKey { namespace: claim.namespace().unwrap_or_default(), name: claim.name_any() };
    let api: Api<SandboxClaim> = Api::namespaced(client.clone(), &key.namespace);
    let uid = claim.uid();
    let settled = |object: Option<&SandboxClaim>| match object {
        Some(claim) => claim.uid() != uid || is_ready(claim) || fault(claim).is_some(),
        None => true,
    };
    let settled = wait::await_condition(api, &key.name, settled);
    let found = match tokio::time::timeout(within, settled).await {
        Ok(Ok(Some(found))) if found.uid() == uid => found,
        Ok(Ok(_)) => return Err(WaitError::Deleted { sandbox: key }),
        Ok(Err(error)) => {
            let source = kube::Error::Service(Box::new(error));
            return Err(failed("watch the claim of", &key.namespace, &key.name, source).into());
        }
        Err(_) => {
            let standing = Box::new(Standing {
                reason: "Pending".to_owned(),
                message: "the claim has no sandbox that is Ready".to_owned(),
                pod: None,
            });
            return Err(WaitError::TimedOut { sandbox: key, within, standing });
        }
    };
    if let Some(standing) = fault(&found) {
        return Err(WaitError::Ended { sandbox: key, standing: Box::new(standing) });
    }
    let name = found.status.and_then(|status| status.sandbox).and_then(|sandbox| sandbox.name);
    let name = name.unwrap_or_default();
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), &key.namespace);
    let sandbox = sandboxes.get(&name).await;
    let sandbox = sandbox.map_err(|source| failed("read", &key.namespace, &name, source))?;
    match is_owned_by(&sandbox, uid.as_deref()) {
        true => Ok(sandbox),
        false => Err(not_ours(key, format!("sandbox `{name}` does not belong to the claim"))),
    }
}

fn is_ready(claim: &SandboxClaim) -> bool {
    let status = claim.status.as_ref();
    status.is_some_and(|status| {
        conditions::is_true(&status.conditions, ConditionType::Ready)
            && status.sandbox.as_ref().is_some_and(|sandbox| sandbox.name.is_some())
    })
}

/// Returns why a claim will not be served as it is.
fn fault(claim: &SandboxClaim) -> Option<Standing> {
    let ready = conditions::find(&claim.status.as_ref()?.conditions, ConditionType::Ready)?;
    let stays = matches!(
        Reason::parse(&ready.reason)?,
        Reason::TemplateNotFound
            | Reason::WarmPoolNotFound
            | Reason::InvalidMetadata
            | Reason::EnvVarsInjectionRejected
            | Reason::VolumeClaimTemplatesError
            | Reason::ClaimExpired
            | Reason::SandboxExpired
            | Reason::PodFailed
            | Reason::PodSucceeded
    );
    stays.then(|| Standing { reason: ready.reason.clone(), message: ready.message.clone(), pod: None })
}

fn is_owned_by<K: Resource>(object: &K, uid: Option<&str>) -> bool {
    let owners = object.meta().owner_references.iter().flatten();
    owners.filter(|owner| owner.controller == Some(true)).any(|owner| Some(owner.uid.as_str()) == uid)
}

fn not_ours(sandbox: SandboxKey, message: String) -> WaitError {
    let standing = Box::new(Standing { reason: "NotOwned".to_owned(), message, pod: None });
    WaitError::Ended { sandbox, standing }
}

/// Returns the container that commands run in by default, of a pod that belongs to this very sandbox.
pub async fn container_of(client: &Client, sandbox: &Sandbox, pod: &str) -> Result<String, WaitError> {
    let key = SandboxKey::of(sandbox);
    let pods: Api<Pod> = Api::namespaced(client.clone(), &key.namespace);
    let found =
        pods.get(pod).await.map_err(|source| failed("read the pod of", &key.namespace, &key.name, source))?;
    if !is_owned_by(&found, sandbox.uid().as_deref()) {
        return Err(not_ours(key, format!("pod `{pod}` does not belong to the sandbox")));
    }
    let chosen = found.annotations().get(DEFAULT_CONTAINER).cloned();
    let first =
        found.spec.and_then(|spec| spec.containers.into_iter().next()).map(|container| container.name);
    Ok(chosen.or(first).unwrap_or_default())
}

fn first_container(sandbox: &Sandbox) -> String {
    let containers = &sandbox.spec.blueprint.pod_template.spec.containers;
    containers.first().map(|container| container.name.clone()).unwrap_or_default()
}
