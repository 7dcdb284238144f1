//! Input that is wrong: told with the exact reason, and mended by mending it.

use anyhow::Result;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::ResourceExt as _;
use serde_json::json;
use warren_api::{Sandbox, SandboxClaim, SandboxWarmPool};

use crate::controllers::place::{Place, message, ready};
use crate::controllers::workload::{pool, sandbox, template};

pub(super) async fn an_invalid_reference_is_told_and_healed_by_what_was_missing(place: Place) -> Result<()> {
    place.claim("c", "later", json!({})).await?;
    let told: SandboxClaim = place.wait_ready("c", "False/WarmPoolNotFound").await?;
    assert!(message(&told, "Ready").contains("later"), "{}", message(&told, "Ready"));
    place.wait_event("c", "WarmPoolNotFound").await?;
    place.create::<SandboxWarmPool>(pool("later", "missing", 0)).await?;
    let told: SandboxClaim = place.wait_ready("c", "False/TemplateNotFound").await?;
    assert!(message(&told, "Ready").contains("missing"), "{}", message(&told, "Ready"));
    place.wait_event("c", "TemplateNotFound").await?;
    place.create::<warren_api::SandboxTemplate>(template("missing", json!({}))).await?;
    place.wait_claimed("c").await?;
    Ok(())
}

pub(super) async fn a_template_that_cannot_make_a_pod_is_told_with_the_server_s_words(
    place: Place,
) -> Result<()> {
    // The schema of a sandbox takes it; a pod with it is refused.
    let broken = json!({"podTemplate": {"spec": {"containers": [{"name": "Not A Name", "image": "warren.dev/host"}]}}});
    place.create::<Sandbox>(sandbox("one", broken.clone())).await?;
    let told: Sandbox = place.wait_ready("one", "False/ReconcilerError").await?;
    let text = message(&told, "Ready");
    assert!(text.starts_with("Error seen: ") && text.contains("spec.containers[0].name"), "{text}");
    let event = place.wait_event("one", "ReconcilerError").await?;
    assert!(event.note.as_deref().is_some_and(|note| note.contains("spec.containers[0].name")), "{event:?}");
    place.pool("pool", 1, broken).await?;
    let member = place
        .eventually("a member that says so", async || {
            let members = place.members("pool").await?;
            Ok(members.into_iter().find(|member| ready(member) == "False/ReconcilerError"))
        })
        .await?;
    assert!(message(&member, "Ready").contains("spec.containers[0].name"));
    place.wait_event(&member.name_any(), "ReconcilerError").await?;
    assert_eq!(place.list::<Pod>().await?.len(), 0);
    let mended = json!({"spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "warren.dev/host"}]}}}});
    place.patch::<Sandbox>("one", mended).await?;
    place.wait_ready::<Sandbox>("one", "True/DependenciesReady").await?;
    Ok(())
}

pub(super) async fn a_quota_that_is_used_up_is_told_and_healed_by_a_larger_one(place: Place) -> Result<()> {
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"},
        "spec": {"hard": {"pods": "1"}}});
    match place.try_create::<ResourceQuota>(quota).await? {
        Ok(_) => {}
        // The local home has no quotas, so nothing is denied by one.
        Err(kube::Error::Api(status)) if status.code == 404 => {
            println!("note: this home serves no quotas");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    }
    // Nothing is denied before the quota's own controller has counted once.
    place
        .wait_for("small", "counted", |quota: &ResourceQuota| {
            quota.status.as_ref().is_some_and(|status| status.used.is_some())
        })
        .await?;
    place.create::<Sandbox>(sandbox("first", json!({}))).await?;
    place.wait_ready::<Sandbox>("first", "True/DependenciesReady").await?;
    place.create::<Sandbox>(sandbox("second", json!({}))).await?;
    let told: Sandbox = place.wait_ready("second", "False/ReconcilerError").await?;
    assert!(message(&told, "Ready").contains("exceeded quota: small"), "{}", message(&told, "Ready"));
    place.wait_event("second", "ReconcilerError").await?;
    assert_eq!(place.list::<Pod>().await?.iter().map(|pod| pod.name_any()).collect::<Vec<_>>(), ["first"]);
    place.patch::<ResourceQuota>("small", json!({"spec": {"hard": {"pods": "2"}}})).await?;
    place.wait_ready::<Sandbox>("second", "True/DependenciesReady").await?;
    Ok(())
}
