//! Tests objects of users who come from `v1alpha1`.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use warren_api::sandbox::OperatingMode;
use warren_api::{NameHash, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, annotations, labels};
use warren_testkit::nodes::Fate;

use crate::controllers::place::{Place, state};
use crate::controllers::workload::{claim, simulated, with};
use crate::local_home::warren_binary;

/// Returns the manifests that `warren migrate` makes of one.
fn migrated(manifest: &str) -> Result<Vec<Value>> {
    let mut child = Command::new(warren_binary())
        .args(["migrate", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    child.stdin.take().context("a pipe")?.write_all(manifest.as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "warren migrate ended with {}", output.status);
    let text = String::from_utf8(output.stdout)?;
    let documents = text.split("\n---").map(|document| document.trim_start_matches("---"));
    let documents =
        documents.filter(|text| text.lines().any(|line| !line.trim().is_empty() && !line.starts_with('#')));
    documents.map(|text| serde_saphyr::from_str(text).with_context(|| text.to_owned())).collect()
}

const OLD: &str = r"
apiVersion: agents.x-k8s.io/v1alpha1
kind: Sandbox
metadata: {name: asleep}
spec:
  replicas: 0
  podTemplate:
    spec:
      containers: [{name: main, image: warren.dev/host}]
---
apiVersion: extensions.agents.x-k8s.io/v1alpha1
kind: SandboxTemplate
metadata: {name: old}
spec:
  podTemplate:
    spec:
      containers: [{name: main, image: warren.dev/host}]
---
apiVersion: extensions.agents.x-k8s.io/v1alpha1
kind: SandboxWarmPool
metadata: {name: old}
spec:
  replicas: 1
  sandboxTemplateRef: {name: old}
---
apiVersion: extensions.agents.x-k8s.io/v1alpha1
kind: SandboxClaim
metadata: {name: from-pool}
spec:
  sandboxTemplateRef: {name: old}
  warmpool: old
---
apiVersion: extensions.agents.x-k8s.io/v1alpha1
kind: SandboxClaim
metadata: {name: from-template}
spec:
  sandboxTemplateRef: {name: old}
";

pub(super) async fn row_30_migrated_manifests_work(place: Place) -> Result<()> {
    let documents = tokio::task::spawn_blocking(|| migrated(OLD)).await??;
    let mut kinds = Vec::new();
    for document in documents {
        let kind = document["kind"].as_str().unwrap_or_default().to_owned();
        match kind.as_str() {
            "Sandbox" => drop(place.create::<Sandbox>(document).await?),
            "SandboxTemplate" => drop(place.create::<SandboxTemplate>(document).await?),
            "SandboxWarmPool" => drop(place.create::<SandboxWarmPool>(document).await?),
            "SandboxClaim" => drop(place.create::<SandboxClaim>(document).await?),
            other => anyhow::bail!("a {other}"),
        }
        kinds.push(kind);
    }
    assert_eq!(
        kinds.iter().filter(|kind| *kind == "SandboxWarmPool").count(),
        2,
        "one for the template: {kinds:?}"
    );
    place.wait_full("old", 1).await?;
    let asleep = place
        .wait_for("asleep", "suspended", |one: &Sandbox| state(one, "Suspended") == "True/PodTerminated")
        .await?;
    assert_eq!(asleep.spec.operating_mode, OperatingMode::Suspended, "it had no replicas");
    assert!(place.get_opt::<Pod>("asleep").await?.is_none());
    place.wait_claimed("from-pool").await?;
    let cold = place.wait_claimed("from-template").await?;
    assert_eq!(
        cold.labels()[labels::LAUNCH_TYPE],
        "cold",
        "from the pool of none that stands for the template"
    );
    for (claim, pool, replicas) in [("from-pool", "old", 1), ("from-template", "shadow-pool-old", 0)] {
        let claim: SandboxClaim = place.get(claim).await?;
        assert_eq!(claim.spec.warm_pool_ref.name, pool);
        let pool: SandboxWarmPool = place.get(pool).await?;
        assert_eq!((pool.spec.replicas, pool.spec.sandbox_template_ref.name.as_str()), (replicas, "old"));
    }
    Ok(())
}

pub(super) async fn row_30_owner_references_of_the_old_version_count(place: Place) -> Result<()> {
    place.pool("pool", 1, json!({"podTemplate": simulated(Fate::Ready)})).await?;
    place.wait_full("pool", 1).await?;
    // A member with an older controller's owner reference is a member, and may be claimed.
    let member = place.members("pool").await?.remove(0);
    let mut owners = serde_json::to_value(member.owner_references())?;
    owners[0]["apiVersion"] = json!("extensions.agents.x-k8s.io/v1alpha1");
    place.patch::<Sandbox>(&member.name_any(), json!({"metadata": {"ownerReferences": owners}})).await?;
    place.touch_pool("pool").await?;
    assert_eq!(place.wait_full("pool", 1).await?.status.map(|status| status.replicas), Some(1));
    place.claim("c", "pool", json!({})).await?;
    assert_eq!(place.wait_claimed("c").await?.name_any(), member.name_any());

    // A sandbox that an older controller has given to a claim is that claim's.
    place.wait_full("pool", 1).await?;
    let member = place.members("pool").await?.remove(0).name_any();
    let assigned = json!({"metadata": {"annotations": {annotations::SANDBOX_NAME: "by-hand"}}});
    let bound: SandboxClaim = place.create(with(claim("by-hand", "nowhere", json!({})), assigned)).await?;
    let own = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": {"name": "by-hand",
            "labels": {labels::SANDBOX_TEMPLATE_REF_HASH: NameHash::of("pool").to_string()},
            "ownerReferences": [{"apiVersion": "extensions.agents.x-k8s.io/v1alpha1", "kind": "SandboxClaim",
                "name": "by-hand", "uid": bound.uid(), "controller": true, "blockOwnerDeletion": true}]},
        "spec": {"podTemplate": simulated(Fate::Ready)}});
    place.create::<Sandbox>(own).await?;
    assert_eq!(place.wait_claimed("by-hand").await?.name_any(), "by-hand");
    assert_eq!(place.members("pool").await?[0].name_any(), member, "the pool was not touched");
    Ok(())
}
