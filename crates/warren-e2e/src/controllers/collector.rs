//! Waits until a control plane's garbage collector knows our kinds.
//!
//! It looks for new kinds only twice a minute. Before it has found them, owners in foreground
//! deletion go without waiting for their dependents, which must not look like a fault of ours.

use std::time::Duration;

use anyhow::{Result, bail};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::time::Instant;
use warren_api::{Sandbox, SandboxClaim};

use super::harness::DEADLINE;
use super::workload;

const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Returns when the foreground deletion of a claim deletes its sandbox first. To be called before
/// any controllers run, which would interfere.
pub(super) async fn wait_until_it_knows_our_kinds(client: &Client) -> Result<()> {
    let deadline = Instant::now() + DEADLINE;
    for number in 0.. {
        if takes_along(client, &format!("known-to-the-collector-{number}"), deadline).await? {
            return Ok(());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    Ok(())
}

async fn takes_along(client: &Client, name: &str, deadline: Instant) -> Result<bool> {
    let claims: Api<SandboxClaim> = Api::namespaced(client.clone(), "default");
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), "default");
    let claim = serde_json::from_value(workload::claim(name, "none", json!({})))?;
    let claim = match claims.create(&PostParams::default(), &claim).await {
        // A server with a new CRD may need a moment until it serves it.
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(false),
        created => created?,
    };
    let owner = json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "name": name,
        "uid": claim.uid(), "controller": true, "blockOwnerDeletion": true});
    let metadata = json!({"ownerReferences": [owner], "finalizers": ["test.warren.dev/hold"]});
    let sandbox = workload::with(workload::sandbox(name, json!({})), json!({"metadata": metadata}));
    sandboxes.create(&PostParams::default(), &serde_json::from_value(sandbox)?).await?;
    claims.delete(name, &DeleteParams::foreground()).await?;
    let known = loop {
        let deleted = sandboxes.get(name).await?.metadata.deletion_timestamp.is_some();
        let waits = claims.get_opt(name).await?.is_some();
        if deleted || !waits {
            break deleted && waits;
        }
        if Instant::now() > deadline {
            bail!("the garbage collector never came to know our kinds");
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    };
    let released = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    sandboxes.patch(name, &PatchParams::default(), &released).await?;
    match sandboxes.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        ended => drop(ended?),
    }
    Ok(known)
}
