//! Makes the server calls for a lease: creates its object once, finds it again, follows it to its
//! pod, and deletes it.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, DeleteParams, PostParams, Preconditions, PropagationPolicy};
use kube::runtime::wait;
use kube::{Client, ResourceExt as _};
use warren_api::claim::{ClaimShutdownPolicy, Lifecycle, WarmPoolReference};
use warren_api::sandbox::ShutdownPolicy;
use warren_api::{Sandbox, SandboxClaim, SandboxClaimSpec, SandboxTemplate, SandboxWarmPool};

use super::{Chain, Kind, Lease, LeaseStanding, Mismatch, Pinned, check_chain, check_root};
use crate::launch::{self, Launched};
use crate::sandbox::{self, SandboxError, SandboxKey};
use crate::sync::Place;

/// The most tries to create an object when answers are lost.
const ATTEMPTS: usize = 3;

/// The error of a lease's server call.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// A live object is not the lease's.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// The object does not exist.
    #[error("{kind} `{namespace}/{name}` of lease `{slug}` is not there")]
    Missing {
        /// The kind of the object.
        kind: &'static str,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The lease.
        slug: String,
    },
    /// The pool or template does not exist.
    #[error("there is no {kind} `{name}` in namespace `{namespace}`")]
    NoSource {
        /// `SandboxWarmPool` or `SandboxTemplate`.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The namespace.
        namespace: String,
    },
    /// The lease cannot be used in its present state.
    #[error("lease `{slug}` {standing}")]
    NotUsable {
        /// The lease.
        slug: String,
        /// The lease's state, as a predicate.
        standing: String,
    },
    /// The server refused, or could not be reached.
    #[error(transparent)]
    Server(#[from] SandboxError),
}

/// An object could not be created.
#[derive(Debug)]
pub enum CreateError {
    /// The server refused: there is no object.
    Refused(LeaseError),
    /// No answer came, so there may be an object.
    Unknown(LeaseError),
}

fn key(lease: &Lease) -> SandboxKey {
    SandboxKey { namespace: lease.namespace.clone(), name: lease.name.clone() }
}

fn failed(action: &'static str, lease: &Lease) -> impl FnOnce(kube::Error) -> SandboxError {
    let sandbox = key(lease);
    move |source| SandboxError { action, sandbox, source: Box::new(source) }
}

/// Checks that the pool or template that a lease names exists.
pub async fn check_source(client: &Client, lease: &Lease) -> Result<(), LeaseError> {
    let missing = |kind, name: &String| LeaseError::NoSource {
        kind,
        name: name.clone(),
        namespace: lease.namespace.clone(),
    };
    if let Some(template) = &lease.template {
        let api: Api<SandboxTemplate> = Api::namespaced(client.clone(), &lease.namespace);
        let found = api.get_opt(template).await.map_err(failed("find the template of", lease))?;
        found.map(drop).ok_or_else(|| missing("SandboxTemplate", template))
    } else if let Some(pool) = &lease.pool {
        let api: Api<SandboxWarmPool> = Api::namespaced(client.clone(), &lease.namespace);
        let found = api.get_opt(pool).await.map_err(failed("find the pool of", lease))?;
        found.map(drop).ok_or_else(|| missing("SandboxWarmPool", pool))
    } else {
        Ok(())
    }
}

/// Creates the object of a lease; `sandbox` is the object of a lease without a claim. If an answer
/// is lost, the object of that name is read, and adopted if it is this lease's; else it is created
/// again.
pub async fn create(
    client: &Client,
    lease: &Lease,
    sandbox: Option<&Sandbox>,
) -> Result<Launched, CreateError> {
    let mut attempt = 1;
    loop {
        let error = match create_once(client, lease, sandbox).await {
            Ok(launched) => return Ok(launched),
            Err(error) => error,
        };
        match &error {
            // It may be ours, from an attempt whose answer was lost, or foreign: the checks decide.
            kube::Error::Api(status) if status.code == 409 => {}
            kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429 => {
                return Err(CreateError::Refused(failed("create", lease)(error).into()));
            }
            error => tracing::debug!(lease = lease.slug, %error, "no answer to the create call"),
        }
        match get(client, lease).await {
            Ok(Some(found)) => {
                return match check_root(lease, &found) {
                    Ok(()) => Ok(found),
                    Err(mismatch) => Err(CreateError::Refused(mismatch.into())),
                };
            }
            Ok(None) if attempt < ATTEMPTS => attempt += 1,
            _ => return Err(CreateError::Unknown(failed("create", lease)(error).into())),
        }
    }
}

async fn create_once(client: &Client, lease: &Lease, sandbox: Option<&Sandbox>) -> kube::Result<Launched> {
    let parameters = PostParams::default();
    match sandbox {
        Some(sandbox) => {
            let mut wanted = sandbox.clone();
            wanted.metadata.name = Some(lease.name.clone());
            wanted.metadata.labels = Some(lease.labels());
            wanted.metadata.annotations = Some(lease.annotations());
            wanted.spec.shutdown_time = Some(Time(lease.expires));
            wanted.spec.shutdown_policy = ShutdownPolicy::Retain;
            let api: Api<Sandbox> = Api::namespaced(client.clone(), &lease.namespace);
            Ok(Launched::Sandbox(Box::new(api.create(&parameters, &wanted).await?)))
        }
        None => {
            let spec = SandboxClaimSpec {
                warm_pool_ref: WarmPoolReference { name: lease.pool.clone().unwrap_or_default() },
                lifecycle: Some(Lifecycle {
                    shutdown_time: Some(Time(lease.expires)),
                    ttl_seconds_after_finished: None,
                    shutdown_policy: ClaimShutdownPolicy::Retain,
                }),
                ..SandboxClaimSpec::default()
            };
            let mut wanted = SandboxClaim::new(&lease.name, spec);
            wanted.metadata.labels = Some(lease.labels());
            wanted.metadata.annotations = Some(lease.annotations());
            let api: Api<SandboxClaim> = Api::namespaced(client.clone(), &lease.namespace);
            Ok(Launched::Claim(Box::new(api.create(&parameters, &wanted).await?)))
        }
    }
}

/// Makes the empty pool that a template's claim names. The claim owns it.
pub async fn make_pool(client: &Client, lease: &Lease, made: &Launched) -> Result<(), LeaseError> {
    let (Launched::Claim(claim), Some(template)) = (made, &lease.template) else { return Ok(()) };
    match launch::create_pool_of(client, claim, template, &lease.labels()).await {
        Ok(()) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(failed("create the pool of", lease)(error).into()),
    }
}

/// Reads the object of a lease as the server has it now.
pub async fn get(client: &Client, lease: &Lease) -> Result<Option<Launched>, SandboxError> {
    let found = match lease.kind {
        Kind::Claim => {
            let api: Api<SandboxClaim> = Api::namespaced(client.clone(), &lease.namespace);
            api.get_opt(&lease.name).await.map(|found| found.map(|claim| Launched::Claim(Box::new(claim))))
        }
        Kind::Sandbox => {
            let api: Api<Sandbox> = Api::namespaced(client.clone(), &lease.namespace);
            api.get_opt(&lease.name)
                .await
                .map(|found| found.map(|sandbox| Launched::Sandbox(Box::new(sandbox))))
        }
    };
    found.map_err(failed("read", lease))
}

/// Reads the object of a lease, and compares it with the lease.
pub async fn get_checked(client: &Client, lease: &Lease) -> Result<Launched, LeaseError> {
    let found = get(client, lease).await?.ok_or_else(|| LeaseError::Missing {
        kind: match lease.kind {
            Kind::Claim => "SandboxClaim",
            Kind::Sandbox => "Sandbox",
        },
        namespace: lease.namespace.clone(),
        name: lease.name.clone(),
        slug: lease.slug.clone(),
    })?;
    check_root(lease, &found)?;
    Ok(found)
}

/// Follows a lease to its sandbox and its pod, and checks every owner and UID. A pod other than
/// `pinned_pod` is refused.
pub async fn resolve(
    client: &Client,
    lease: &Lease,
    root: &Launched,
    pinned_pod: Option<&Pinned>,
) -> Result<Chain, LeaseError> {
    let not_usable = |standing: String| LeaseError::NotUsable { slug: lease.slug.clone(), standing };
    if is_going(root) {
        return Err(not_usable("is being deleted".to_owned()));
    }
    let sandbox = launch::behind(client, root).await?;
    let sandbox = sandbox.ok_or_else(|| not_usable("has no sandbox".to_owned()))?;
    let name = sandbox::pod_name(&sandbox);
    let pods: Api<Pod> = Api::namespaced(client.clone(), &lease.namespace);
    let pod = pods.get_opt(&name).await.map_err(failed("read the pod of", lease))?;
    let pod = pod.ok_or_else(|| not_usable(format!("has no pod `{name}`")))?;
    let chain = check_chain(lease, &sandbox, &pod, pinned_pod)?;
    if sandbox.metadata.deletion_timestamp.is_some() || pod.metadata.deletion_timestamp.is_some() {
        return Err(not_usable("is losing its sandbox".to_owned()));
    }
    if let Some(phase) = ended_phase(&pod) {
        return Err(not_usable(format!("has ended: its pod is {phase}")));
    }
    Ok(chain)
}

fn is_going(root: &Launched) -> bool {
    let metadata = match root {
        Launched::Claim(claim) => &claim.metadata,
        Launched::Sandbox(sandbox) => &sandbox.metadata,
    };
    metadata.deletion_timestamp.is_some()
}

fn ended_phase(pod: &Pod) -> Option<&str> {
    let phase = pod.status.as_ref()?.phase.as_deref()?;
    matches!(phase, "Succeeded" | "Failed").then_some(phase)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Waits until the pod of a lease is Ready or has ended.
pub async fn wait_pod(
    client: &Client,
    lease: &Lease,
    pod: &Pinned,
    within: Duration,
) -> Result<(), LeaseError> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &lease.namespace);
    let uid = Some(pod.uid.clone());
    let settled = |pod: Option<&Pod>| {
        pod.is_none_or(|pod| pod.uid() != uid || is_ready(pod) || ended_phase(pod).is_some())
    };
    let not_usable = |standing: String| LeaseError::NotUsable { slug: lease.slug.clone(), standing };
    match tokio::time::timeout(within, wait::await_condition(api, &pod.name, settled)).await {
        Ok(Ok(Some(found))) if found.uid() == uid && is_ready(&found) => Ok(()),
        Ok(Ok(Some(found))) if found.uid() == uid => {
            let says = sandbox::describe_pod(&found).unwrap_or_default();
            Err(not_usable(format!(
                "has ended: its pod is {} ({says})",
                ended_phase(&found).unwrap_or("gone")
            )))
        }
        Ok(Ok(_)) => Err(not_usable(format!("has lost its pod `{}`", pod.name))),
        Ok(Err(error)) => {
            let source = kube::Error::Service(Box::new(error));
            Err(failed("watch the pod of", lease)(source).into())
        }
        Err(_) => Err(not_usable(format!("had no Ready pod within {} s", within.as_secs()))),
    }
}

/// The result of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// The server accepted it.
    Accepted,
    /// The object did not exist.
    Gone,
}

/// Deletes the object of a lease that [`check_root`] has accepted, if it still has its UID.
pub async fn delete(client: &Client, lease: &Lease, root: &Launched) -> Result<Deleted, LeaseError> {
    let uid = match root {
        Launched::Claim(claim) => claim.uid(),
        Launched::Sandbox(sandbox) => sandbox.uid(),
    };
    let parameters = DeleteParams {
        grace_period_seconds: Some(0),
        propagation_policy: Some(PropagationPolicy::Background),
        preconditions: Some(Preconditions { uid, resource_version: None }),
        ..DeleteParams::default()
    };
    let answer = match lease.kind {
        Kind::Claim => {
            let api: Api<SandboxClaim> = Api::namespaced(client.clone(), &lease.namespace);
            api.delete(&lease.name, &parameters).await.map(drop)
        }
        Kind::Sandbox => {
            let api: Api<Sandbox> = Api::namespaced(client.clone(), &lease.namespace);
            api.delete(&lease.name, &parameters).await.map(drop)
        }
    };
    match answer {
        Ok(()) => Ok(Deleted::Accepted),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Deleted::Gone),
        Err(error) => Err(failed("delete", lease)(error).into()),
    }
}

/// Checks the whole chain of a lease again, right before a command is executed in its pod.
#[derive(Clone)]
pub struct Guard {
    client: Client,
    lease: Lease,
    pod: Pinned,
}

impl Guard {
    /// Makes a guard for a lease and its objects.
    pub fn new(client: &Client, lease: &Lease, chain: &Chain) -> Self {
        let mut lease = lease.clone();
        lease.sandbox = Some(chain.sandbox.clone());
        lease.container = Some(chain.container.clone());
        Self { client: client.clone(), lease, pod: chain.pod.clone() }
    }

    /// Fails if any object of the chain was deleted, replaced or redirected.
    pub async fn check(&self) -> Result<(), LeaseError> {
        let root = get_checked(&self.client, &self.lease).await?;
        if super::judge(&self.lease, Some(&root), jiff::Timestamp::now()) == LeaseStanding::Expired {
            let standing = "has expired".to_owned();
            return Err(LeaseError::NotUsable { slug: self.lease.slug.clone(), standing });
        }
        resolve(&self.client, &self.lease, &root, Some(&self.pod)).await.map(drop)
    }

    /// Returns the place in which commands run.
    pub fn place(&self) -> Place {
        Place {
            namespace: self.lease.namespace.clone(),
            pod: self.pod.name.clone(),
            container: self.lease.container.clone().unwrap_or_default(),
        }
    }
}
