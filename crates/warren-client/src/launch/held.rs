//! A launched sandbox that a client holds. Its lease is renewed while the client lives, and
//! commands run in one container that is verified to belong to it.
//!
//! After the client is killed, the controller deletes the object within [`LEASE`].

use std::convert::Infallible;
use std::fmt::Debug;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt as _};
use serde_json::{Value, json};
use warren_api::{Sandbox, SandboxClaim};

use super::{Launched, failed, renew, wait_ready};
use crate::sandbox::{self, SandboxError, SandboxKey, Standing, WaitError};
use crate::sync::Place;

/// The time that a sandbox outlives a killed client. The client renews it after a third of it:
/// three writes a minute for each client, and none for a command that takes less than 20 seconds.
pub const LEASE: Duration = Duration::from_secs(60);

/// The annotation by which `kubectl exec` chooses a container.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// A sandbox that is Ready, and the container in it that commands run in.
#[derive(Clone, Debug)]
pub struct Held {
    /// The sandbox.
    pub sandbox: Sandbox,
    /// The place that commands run in.
    pub place: Place,
}

/// Waits until commands can be run. Fails early, with the reason, if that can no longer happen.
pub async fn ready(client: &Client, launched: &Launched, within: Duration) -> Result<Held, WaitError> {
    let sandbox = wait_ready(client, launched.clone(), within).await?;
    let pod = sandbox::pod_name(&sandbox);
    let container = match launched {
        // It is as requested, so nothing has to be read.
        Launched::Sandbox(_) => first_container(&sandbox),
        Launched::Claim(_) => container_of(client, &sandbox, &pod).await?,
    };
    let place = Place { namespace: SandboxKey::of(&sandbox).namespace, pod, container };
    Ok(Held { sandbox, place })
}

/// Renews the lease for as long as it is polled; never returns.
pub async fn keep(client: &Client, launched: &Launched) -> Infallible {
    loop {
        tokio::time::sleep(LEASE / 3).await;
        let end = sandbox::lease_end(Timestamp::now(), LEASE);
        if let Err(error) = renew(client, launched, end).await {
            tracing::warn!(sandbox = %launched.key(), %error, "lease not renewed");
        }
    }
}

/// Removes the lease: the object stays until it is deleted.
pub async fn stay(client: &Client, launched: &Launched) -> Result<(), SandboxError> {
    let key = launched.key();
    let parameters = PatchParams::default();
    match launched {
        Launched::Sandbox(_) => {
            let api: Api<Sandbox> = Api::namespaced(client.clone(), &key.namespace);
            let patch = json!({ "spec": { "shutdownTime": Value::Null } });
            api.patch(&key.name, &parameters, &Patch::Merge(patch)).await.map(drop)
        }
        Launched::Claim(_) => {
            let api: Api<SandboxClaim> = Api::namespaced(client.clone(), &key.namespace);
            let patch = json!({ "spec": { "lifecycle": { "shutdownTime": Value::Null } } });
            api.patch(&key.name, &parameters, &Patch::Merge(patch)).await.map(drop)
        }
    }
    .map_err(failed("keep", &key))
}

/// Returns true if the object with this UID controls the given one.
pub fn is_controlled_by<K: Resource>(object: &K, uid: Option<&str>) -> bool {
    let owners = object.meta().owner_references.iter().flatten();
    owners.filter(|owner| owner.controller == Some(true)).any(|owner| Some(owner.uid.as_str()) == uid)
}

/// Returns the error for an object that does not belong to the chain from claim to pod.
pub(super) fn not_ours(sandbox: SandboxKey, message: String) -> WaitError {
    let standing = Box::new(Standing { reason: "NotOwned".to_owned(), message, pod: None });
    WaitError::Ended { sandbox, standing }
}

/// Returns the container in which commands run by default, after checking that the pod belongs to
/// this sandbox.
pub async fn container_of(client: &Client, sandbox: &Sandbox, pod: &str) -> Result<String, WaitError> {
    let key = SandboxKey::of(sandbox);
    let pods: Api<Pod> = Api::namespaced(client.clone(), &key.namespace);
    let found = pods.get(pod).await.map_err(failed("read the pod of", &key))?;
    if !is_controlled_by(&found, sandbox.uid().as_deref()) {
        return Err(not_ours(key, format!("pod `{pod}` does not belong to the sandbox")));
    }
    Ok(default_container(&found).unwrap_or_default())
}

/// Returns a pod's container in which commands run by default.
pub fn default_container(pod: &Pod) -> Option<String> {
    let chosen = pod.annotations().get(DEFAULT_CONTAINER).cloned();
    let first = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    chosen.or_else(|| first.map(|container| container.name.clone()))
}

fn first_container(sandbox: &Sandbox) -> String {
    let containers = &sandbox.spec.blueprint.pod_template.spec.containers;
    containers.first().map(|container| container.name.clone()).unwrap_or_default()
}
