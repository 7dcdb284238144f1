//! Launches sandboxes for a client's own use: from an image, a pool or a template, under one name.
//!
//! A sandbox from an image is a `Sandbox`. One from a pool or a template is a `SandboxClaim`, so
//! that the controllers apply the template's rules. Either has a shutdown time from the start,
//! which its owner extends for as long as it lives ([`renew`], [`keep`]). After a `kill -9` of the
//! owner, the controller deletes the sandbox.

mod held;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, EnvVar, PersistentVolumeClaimSpec, PodSpec, ResourceRequirements, VolumeMount,
    VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{
    Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy,
};
use kube::runtime::wait;
use kube::{Client, Resource as _, ResourceExt as _};
use serde_json::json;
use warren_api::blueprint::{
    EmbeddedObjectMetadata, PersistentVolumeClaimTemplate, PodMetadata, PodTemplate, SandboxBlueprint,
};
use warren_api::claim::{ClaimEnvVar, ClaimShutdownPolicy, Lifecycle, WarmPoolReference};
use warren_api::conditions::{self, ConditionType, Reason};
use warren_api::pool::SandboxTemplateReference;
use warren_api::sandbox::ShutdownPolicy;
use warren_api::{
    Sandbox, SandboxClaim, SandboxClaimSpec, SandboxSpec, SandboxTemplate, SandboxWarmPool,
    SandboxWarmPoolSpec,
};

pub use held::{Held, LEASE, container_of, default_container, is_controlled_by, keep, ready, stay};

use crate::sandbox::{self, Progress, SandboxError, SandboxKey, Standing, WaitError};

/// The program that the local home's node adds to every container. It waits until the sandbox is
/// deleted.
pub const INIT: &str = "/.warren/init";

const KEPT_VOLUME: &str = "kept";

/// The source of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// An image.
    Image {
        /// Its name.
        image: String,
        /// The first process, which has to run until the sandbox is deleted; `None` for the image's
        /// own.
        command: Option<Vec<String>>,
    },
    /// A `SandboxWarmPool` of the namespace.
    Pool(String),
    /// A `SandboxTemplate` of the namespace.
    Template(String),
}

/// A sandbox to launch.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The namespace and the name of the claim or sandbox.
    pub key: SandboxKey,
    /// The source that it is made from.
    pub source: Source,
    /// Labels of the claim or sandbox itself.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the claim or sandbox itself.
    pub annotations: BTreeMap<String, String>,
    /// A directory that is kept while the sandbox is suspended: a volume claim is made for it. For
    /// [`Source::Image`]; a template has volumes of its own.
    pub kept_directory: Option<String>,
    /// Labels and annotations of its pod.
    pub pod_metadata: PodMetadata,
    /// Environment variables. A template has to allow them.
    pub env: BTreeMap<String, String>,
    /// Resource limits as Kubernetes quantities. For [`Source::Image`]; a template has its own.
    pub limits: BTreeMap<String, String>,
    /// The time when it ends by itself.
    pub until: Timestamp,
}

/// The error of a sandbox that could not be launched.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The named pool or template does not exist in the namespace.
    #[error("there is no {kind} `{name}` in namespace `{namespace}`")]
    NoSource {
        /// `SandboxWarmPool` or `SandboxTemplate`.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The namespace.
        namespace: String,
    },
    /// The server refused.
    #[error(transparent)]
    Server(#[from] SandboxError),
}

/// The object of a launched sandbox.
#[derive(Clone, Debug)]
pub enum Launched {
    /// Made from an image.
    Sandbox(Box<Sandbox>),
    /// Made from a pool or a template.
    Claim(Box<SandboxClaim>),
}

impl Launched {
    /// Returns the namespace and name of the object.
    pub fn key(&self) -> SandboxKey {
        match self {
            Launched::Sandbox(sandbox) => SandboxKey::of(sandbox),
            Launched::Claim(claim) => {
                SandboxKey { namespace: claim.namespace().unwrap_or_default(), name: claim.name_any() }
            }
        }
    }

    /// Returns the object's labels.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        match self {
            Launched::Sandbox(sandbox) => sandbox.labels(),
            Launched::Claim(claim) => claim.labels(),
        }
    }

    /// Returns the object's annotations.
    pub fn annotations(&self) -> &BTreeMap<String, String> {
        match self {
            Launched::Sandbox(sandbox) => sandbox.annotations(),
            Launched::Claim(claim) => claim.annotations(),
        }
    }

    /// Returns the object's unique id.
    pub fn uid(&self) -> Option<String> {
        match self {
            Launched::Sandbox(sandbox) => sandbox.uid(),
            Launched::Claim(claim) => claim.uid(),
        }
    }

    /// Returns true if the object is being deleted.
    pub fn is_deleted(&self) -> bool {
        let metadata = match self {
            Launched::Sandbox(sandbox) => &sandbox.metadata,
            Launched::Claim(claim) => &claim.metadata,
        };
        metadata.deletion_timestamp.is_some()
    }

    /// Returns when the sandbox ends by itself.
    pub fn until(&self) -> Option<Timestamp> {
        let time = match self {
            Launched::Sandbox(sandbox) => sandbox.spec.shutdown_time.as_ref(),
            Launched::Claim(claim) => claim.spec.lifecycle.as_ref()?.shutdown_time.as_ref(),
        };
        time.map(|time| time.0)
    }

    /// Returns when the object was created.
    pub fn created(&self) -> Option<Timestamp> {
        let metadata = match self {
            Launched::Sandbox(sandbox) => &sandbox.metadata,
            Launched::Claim(claim) => &claim.metadata,
        };
        metadata.creation_timestamp.as_ref().map(|time| time.0)
    }

    /// Returns the sandbox's source as text, such as `image warren.dev/host` or `pool python`.
    pub fn source(&self) -> String {
        match self {
            Launched::Sandbox(sandbox) => {
                let containers = &sandbox.spec.blueprint.pod_template.spec.containers;
                let image = containers.first().and_then(|container| container.image.as_deref());
                format!("image {}", image.unwrap_or_default())
            }
            Launched::Claim(claim) => format!("pool {}", claim.spec.warm_pool_ref.name),
        }
    }

    /// Returns the sandbox's progress, from the object's conditions.
    pub fn progress(&self) -> Progress {
        match self {
            Launched::Sandbox(sandbox) => sandbox::progress(sandbox),
            Launched::Claim(claim) => claim_progress(claim),
        }
    }
}

/// Returns the first process that keeps a container of any image running: ours in the local home,
/// and on other nodes a program that nearly all images have.
pub fn idle_command(local_home: bool) -> Vec<String> {
    match local_home {
        true => vec![INIT.to_owned()],
        false => ["tail", "-f", "/dev/null"].map(str::to_owned).to_vec(),
    }
}

/// Creates the objects of a sandbox, without waiting for it.
///
/// If it is killed at any moment, at most a sandbox is left that ends at [`Launch::until`].
pub async fn launch(client: &Client, launch: &Launch) -> Result<Launched, LaunchError> {
    let namespace = &launch.key.namespace;
    match &launch.source {
        Source::Image { image, command } => {
            let wanted = wanted_sandbox(launch, image, command.clone());
            Ok(Launched::Sandbox(Box::new(sandbox::create(client, namespace, &wanted).await?)))
        }
        Source::Pool(pool) => {
            let pools: Api<SandboxWarmPool> = Api::namespaced(client.clone(), namespace);
            let found = pools.get_opt(pool).await.map_err(failed("find the pool of", &launch.key))?;
            let missing = || LaunchError::NoSource {
                kind: "SandboxWarmPool",
                name: pool.clone(),
                namespace: namespace.clone(),
            };
            found.ok_or_else(missing)?;
            Ok(Launched::Claim(Box::new(create_claim(client, launch, pool).await?)))
        }
        Source::Template(template) => from_template(client, launch, template).await,
    }
}

/// Claims from an empty pool of the claim's own. The pool is created after the claim and owned by
/// it, so that it is garbage-collected with the claim.
async fn from_template(client: &Client, launch: &Launch, template: &str) -> Result<Launched, LaunchError> {
    let namespace = &launch.key.namespace;
    let templates: Api<SandboxTemplate> = Api::namespaced(client.clone(), namespace);
    let found = templates.get_opt(template).await.map_err(failed("find the template of", &launch.key))?;
    found.ok_or_else(|| LaunchError::NoSource {
        kind: "SandboxTemplate",
        name: template.to_owned(),
        namespace: namespace.clone(),
    })?;
    let claim = create_claim(client, launch, &launch.key.name).await?;
    if let Err(error) = create_pool_of(client, &claim, template, &launch.labels).await {
        let launched = Launched::Claim(Box::new(claim));
        if let Err(error) = delete(client, &launched).await {
            tracing::warn!(sandbox = %launch.key, %error, "claim left to its lease");
        }
        return Err(failed("create the pool of", &launch.key)(error).into());
    }
    Ok(Launched::Claim(Box::new(claim)))
}

/// Creates an empty pool on a template, under the name of the claim that owns it.
pub async fn create_pool_of(
    client: &Client,
    claim: &SandboxClaim,
    template: &str,
    labels: &BTreeMap<String, String>,
) -> kube::Result<()> {
    let spec = SandboxWarmPoolSpec {
        replicas: 0,
        sandbox_template_ref: SandboxTemplateReference { name: template.to_owned() },
        update_strategy: None,
    };
    let mut pool = SandboxWarmPool::new(&claim.name_any(), spec);
    pool.metadata.labels = Some(labels.clone());
    pool.metadata.owner_references = claim.controller_owner_ref(&()).map(|owner| vec![owner]);
    let pools: Api<SandboxWarmPool> = Api::namespaced(client.clone(), &claim.namespace().unwrap_or_default());
    pools.create(&PostParams::default(), &pool).await.map(drop)
}

async fn create_claim(client: &Client, launch: &Launch, pool: &str) -> Result<SandboxClaim, SandboxError> {
    let env = launch.env.iter();
    let spec = SandboxClaimSpec {
        warm_pool_ref: WarmPoolReference { name: pool.to_owned() },
        lifecycle: Some(Lifecycle {
            shutdown_time: Some(Time(launch.until)),
            ttl_seconds_after_finished: None,
            shutdown_policy: ClaimShutdownPolicy::Delete,
        }),
        additional_pod_metadata: launch.pod_metadata.clone(),
        env: env
            .map(|(name, value)| ClaimEnvVar {
                name: name.clone(),
                value: value.clone(),
                container_name: None,
            })
            .collect(),
        ..SandboxClaimSpec::default()
    };
    let mut claim = SandboxClaim::new(&launch.key.name, spec);
    claim.metadata.labels = Some(launch.labels.clone());
    claim.metadata.annotations = annotations(launch);
    let claims: Api<SandboxClaim> = Api::namespaced(client.clone(), &launch.key.namespace);
    claims.create(&PostParams::default(), &claim).await.map_err(failed("create", &launch.key))
}

fn wanted_sandbox(launch: &Launch, image: &str, command: Option<Vec<String>>) -> Sandbox {
    let limits: BTreeMap<String, Quantity> =
        launch.limits.iter().map(|(name, value)| (name.clone(), Quantity(value.clone()))).collect();
    let env: Vec<EnvVar> = launch
        .env
        .iter()
        .map(|(name, value)| EnvVar { name: name.clone(), value: Some(value.clone()), value_from: None })
        .collect();
    let container = Container {
        name: "sandbox".to_owned(),
        image: Some(image.to_owned()),
        command,
        env: (!env.is_empty()).then_some(env),
        resources: (!limits.is_empty())
            .then(|| ResourceRequirements { limits: Some(limits), ..ResourceRequirements::default() }),
        volume_mounts: launch.kept_directory.as_ref().map(|directory| {
            vec![VolumeMount {
                name: KEPT_VOLUME.to_owned(),
                mount_path: directory.clone(),
                ..VolumeMount::default()
            }]
        }),
        ..Container::default()
    };
    let pod = PodSpec {
        containers: vec![container],
        restart_policy: Some("Never".to_owned()),
        termination_grace_period_seconds: Some(0),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        ..PodSpec::default()
    };
    let spec = SandboxSpec {
        blueprint: SandboxBlueprint {
            pod_template: PodTemplate { metadata: launch.pod_metadata.clone(), spec: pod.into() },
            volume_claim_templates: launch.kept_directory.iter().map(|_| kept_claim()).collect(),
            ..SandboxBlueprint::default()
        },
        shutdown_time: Some(Time(launch.until)),
        shutdown_policy: ShutdownPolicy::Delete,
        ..SandboxSpec::default()
    };
    let mut sandbox = Sandbox::new(&launch.key.name, spec);
    sandbox.metadata.labels = Some(launch.labels.clone());
    sandbox.metadata.annotations = annotations(launch);
    sandbox
}

fn annotations(launch: &Launch) -> Option<BTreeMap<String, String>> {
    (!launch.annotations.is_empty()).then(|| launch.annotations.clone())
}

/// Returns the template of the volume claim for the kept directory. The controller adds the volume
/// of that name to the pod.
fn kept_claim() -> PersistentVolumeClaimTemplate {
    let storage = BTreeMap::from([("storage".to_owned(), Quantity("10Gi".to_owned()))]);
    PersistentVolumeClaimTemplate {
        metadata: EmbeddedObjectMetadata {
            name: KEPT_VOLUME.to_owned(),
            ..EmbeddedObjectMetadata::default()
        },
        spec: PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            resources: Some(VolumeResourceRequirements {
                requests: Some(storage),
                ..VolumeResourceRequirements::default()
            }),
            ..PersistentVolumeClaimSpec::default()
        },
    }
}

/// Waits until a launched sandbox is Ready and returns it. Fails early, with the reason, if it can
/// no longer become Ready.
pub async fn wait_ready(client: &Client, launched: Launched, within: Duration) -> Result<Sandbox, WaitError> {
    let claim = match launched {
        Launched::Sandbox(sandbox) => return sandbox::wait_ready(client, *sandbox, within).await,
        Launched::Claim(claim) => claim,
    };
    let key = Launched::Claim(claim.clone()).key();
    let claims: Api<SandboxClaim> = Api::namespaced(client.clone(), &key.namespace);
    let uid = claim.uid();
    let settled = |claim: Option<&SandboxClaim>| match claim {
        Some(claim) => claim.uid() != uid || !matches!(claim_progress(claim), Progress::Waiting(_)),
        None => true,
    };
    let seen =
        match tokio::time::timeout(within, wait::await_condition(claims.clone(), &key.name, settled)).await {
            Ok(Ok(seen)) => seen,
            Ok(Err(wait::Error::ProbeFailed(error))) => {
                tracing::debug!(sandbox = %key, %error, "watch of the claim failed");
                claims.get_opt(&key.name).await.map_err(failed("watch", &key))?
            }
            Err(_) => claims.get_opt(&key.name).await.map_err(failed("read", &key))?,
        };
    // A later claim of the same name does not count.
    let seen = seen.filter(|claim| claim.uid() == uid);
    let Some(claim) = seen else { return Err(WaitError::Deleted { sandbox: key }) };
    match claim_progress(&claim) {
        Progress::Ready => match behind_claim(client, &claim).await? {
            Some(sandbox) if is_controlled_by(&sandbox, uid.as_deref()) => Ok(sandbox),
            Some(sandbox) => {
                let message = format!("sandbox `{}` does not belong to the claim", sandbox.name_any());
                Err(held::not_ours(key, message))
            }
            None => Err(WaitError::Deleted { sandbox: key }),
        },
        Progress::Ended(standing) => Err(WaitError::Ended { sandbox: key, standing: Box::new(standing) }),
        Progress::Waiting(standing) => {
            Err(WaitError::TimedOut { sandbox: key, within, standing: Box::new(standing) })
        }
    }
}

fn claim_progress(claim: &SandboxClaim) -> Progress {
    let conditions = claim.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let standing = match conditions::find(conditions, ConditionType::Ready) {
        Some(ready) => Standing { reason: ready.reason.clone(), message: ready.message.clone(), pod: None },
        None => Standing {
            reason: "Pending".to_owned(),
            message: "no controller has looked at the claim yet".to_owned(),
            pod: None,
        },
    };
    // These reasons stay until the claim or its template is changed; a missing pool may still be
    // created.
    let stays = matches!(
        Reason::parse(&standing.reason),
        Some(
            Reason::InvalidMetadata
                | Reason::EnvVarsInjectionRejected
                | Reason::VolumeClaimTemplatesError
                | Reason::ClaimExpired
                | Reason::SandboxExpired
                | Reason::SandboxSuspended
        )
    );
    if conditions::is_true(conditions, ConditionType::Ready) {
        Progress::Ready
    } else if stays || conditions::is_true(conditions, ConditionType::Finished) {
        Progress::Ended(standing)
    } else {
        Progress::Waiting(standing)
    }
}

/// Returns the sandbox that a claim was given, if there is one that still exists.
async fn behind_claim(client: &Client, claim: &SandboxClaim) -> Result<Option<Sandbox>, SandboxError> {
    let given = claim.status.as_ref().and_then(|status| status.sandbox.as_ref()?.name.clone());
    let Some(name) = given else { return Ok(None) };
    let key = SandboxKey { namespace: claim.namespace().unwrap_or_default(), name };
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), &key.namespace);
    sandboxes.get_opt(&key.name).await.map_err(failed("read", &key))
}

/// Returns the sandbox in which a launched one's commands run, as the server has it now.
pub async fn behind(client: &Client, launched: &Launched) -> Result<Option<Sandbox>, SandboxError> {
    match launched {
        Launched::Sandbox(sandbox) => Ok(Some(sandbox.as_ref().clone())),
        Launched::Claim(claim) => behind_claim(client, claim).await,
    }
}

/// Finds a claim or, if there is none of that name, a sandbox.
pub async fn find(client: &Client, key: &SandboxKey) -> Result<Option<Launched>, SandboxError> {
    let claims: Api<SandboxClaim> = Api::namespaced(client.clone(), &key.namespace);
    if let Some(claim) = claims.get_opt(&key.name).await.map_err(failed("find", key))? {
        return Ok(Some(Launched::Claim(Box::new(claim))));
    }
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), &key.namespace);
    let sandbox = sandboxes.get_opt(&key.name).await.map_err(failed("find", key))?;
    Ok(sandbox.map(|sandbox| Launched::Sandbox(Box::new(sandbox))))
}

/// Lists claims, and the sandboxes without an owner, with the labels of a selector.
pub async fn list(client: &Client, namespace: &str, selector: &str) -> Result<Vec<Launched>, SandboxError> {
    let key = SandboxKey { namespace: namespace.to_owned(), name: "*".to_owned() };
    let parameters = ListParams::default().labels(selector);
    let claims: Api<SandboxClaim> = Api::namespaced(client.clone(), namespace);
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    let claims = claims.list(&parameters).await.map_err(failed("list", &key))?;
    let sandboxes = sandboxes.list(&parameters).await.map_err(failed("list", &key))?;
    // Sandboxes of pools and claims have an owner.
    let own = sandboxes.items.into_iter().filter(|sandbox| sandbox.owner_references().is_empty());
    let claims = claims.items.into_iter().map(|claim| Launched::Claim(Box::new(claim)));
    Ok(claims.chain(own.map(|sandbox| Launched::Sandbox(Box::new(sandbox)))).collect())
}

/// Extends the time at which a launched sandbox ends by itself.
pub async fn renew(client: &Client, launched: &Launched, until: Timestamp) -> Result<(), SandboxError> {
    let key = launched.key();
    let parameters = PatchParams::default();
    match launched {
        Launched::Sandbox(_) => {
            let api: Api<Sandbox> = Api::namespaced(client.clone(), &key.namespace);
            let patch = Patch::Merge(json!({ "spec": { "shutdownTime": until } }));
            api.patch(&key.name, &parameters, &patch).await.map(drop)
        }
        Launched::Claim(_) => {
            let api: Api<SandboxClaim> = Api::namespaced(client.clone(), &key.namespace);
            let patch = Patch::Merge(json!({ "spec": { "lifecycle": { "shutdownTime": until } } }));
            api.patch(&key.name, &parameters, &patch).await.map(drop)
        }
    }
    .map_err(failed("renew the lease of", &key))
}

/// Deletes a launched sandbox and, by garbage collection, the objects that it owns. A missing one
/// is a success; a later one of the same name is not deleted.
pub async fn delete(client: &Client, launched: &Launched) -> Result<(), SandboxError> {
    let claim = match launched {
        Launched::Sandbox(sandbox) => return sandbox::delete(client, sandbox.as_ref()).await,
        Launched::Claim(claim) => claim,
    };
    let key = launched.key();
    let claims: Api<SandboxClaim> = Api::namespaced(client.clone(), &key.namespace);
    let parameters = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Background),
        preconditions: claim.uid().map(|uid| Preconditions { uid: Some(uid), resource_version: None }),
        ..DeleteParams::default()
    };
    match claims.delete(&key.name, &parameters).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        Err(source) => Err(failed("delete", &key)(source)),
    }
}

fn failed(action: &'static str, key: &SandboxKey) -> impl FnOnce(kube::Error) -> SandboxError {
    let sandbox = key.clone();
    move |source| SandboxError { action, sandbox, source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch() -> Launch {
        Launch {
            key: SandboxKey { namespace: "n".to_owned(), name: "s".to_owned() },
            source: Source::Pool("p".to_owned()),
            labels: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
            annotations: BTreeMap::from([("c".to_owned(), "d".to_owned())]),
            kept_directory: Some("/home/user".to_owned()),
            pod_metadata: PodMetadata::default(),
            env: BTreeMap::from([("K".to_owned(), "v".to_owned())]),
            limits: BTreeMap::from([("memory".to_owned(), "64Mi".to_owned())]),
            until: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn sandbox_from_an_image_expires_and_carries_labels_limits_and_environment() {
        let sandbox = wanted_sandbox(&launch(), "busybox", Some(idle_command(true)));
        let value = serde_json::to_value(&sandbox).expect("serialize");
        assert_eq!(value["metadata"]["labels"], json!({ "a": "b" }));
        assert_eq!(value["metadata"]["annotations"], json!({ "c": "d" }));
        assert_eq!(value["spec"]["volumeClaimTemplates"][0]["metadata"]["name"], KEPT_VOLUME);
        assert_eq!(value["spec"]["shutdownPolicy"], "Delete");
        assert_eq!(value["spec"]["shutdownTime"], "1970-01-01T00:00:00Z");
        let pod = &value["spec"]["podTemplate"]["spec"];
        assert_eq!(pod["automountServiceAccountToken"], false);
        let container = &pod["containers"][0];
        assert_eq!(container["volumeMounts"][0]["mountPath"], "/home/user");
        assert_eq!(container["command"], json!(["/.warren/init"]));
        assert_eq!(container["env"], json!([{ "name": "K", "value": "v" }]));
        assert_eq!(container["resources"]["limits"], json!({ "memory": "64Mi" }));
    }

    #[test]
    fn claim_whose_pool_is_not_there_yet_is_waiting_and_a_rejected_one_has_ended() {
        let claim = |reason: &str| -> SandboxClaim {
            serde_json::from_value(json!({
                "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
                "metadata": { "name": "c" }, "spec": { "warmPoolRef": { "name": "p" } },
                "status": { "conditions": [{ "type": "Ready", "status": "False", "reason": reason,
                    "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
            }))
            .expect("a claim")
        };
        assert!(matches!(claim_progress(&claim("WarmPoolNotFound")), Progress::Waiting(_)));
        assert!(matches!(claim_progress(&claim("EnvVarsInjectionRejected")), Progress::Ended(_)));
    }
}
