//! Tests wrong input: it is reported with the exact reason, and correcting it fixes the object.

use anyhow::Result;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::ResourceExt as _;
use serde_json::json;
use warren_api::{Sandbox, SandboxClaim, SandboxWarmPool};

use crate::controllers::place::Place;
use crate::controllers::workload::{pool, sandbox, stranger, template, with};

pub(super) async fn an_invalid_reference_is_told_and_healed_by_what_was_missing(place: Place) -> Result<()> {
    place.claim("c", "later", json!({})).await?;
    let text = "SandboxWarmPool \"later\" not found";
    place.wait_trouble::<SandboxClaim>("c", "WarmPoolNotFound", text).await?;
    place.create::<SandboxWarmPool>(pool("later", "missing", 0)).await?;
    let text = "SandboxTemplate \"missing\" not found";
    place.wait_trouble::<SandboxClaim>("c", "TemplateNotFound", text).await?;
    place.create::<warren_api::SandboxTemplate>(template("missing", json!({}))).await?;
    place.wait_claimed("c").await?;
    Ok(())
}

pub(super) async fn a_template_that_cannot_make_a_pod_is_told_with_the_server_s_words(
    place: Place,
) -> Result<()> {
    // The schema of a sandbox accepts it; a pod with it is refused.
    let broken = json!({"spec": {"containers": [{"name": "Not A Name", "image": "warren.dev/host"}]}});
    // Creating such a pod directly gets the same answer.
    let answer = async |name: &str| {
        let pod = with(stranger(name, json!({})), broken.clone());
        match place.try_create::<Pod>(pod).await? {
            Err(kube::Error::Api(status)) => {
                Ok(format!("Refused by the API server as invalid: {}", status.message))
            }
            other => anyhow::bail!("not refused: {other:?}"),
        }
    };
    let text = answer("one").await?;
    assert!(text.contains("spec.containers[0].name: Invalid value: \"Not A Name\""), "{text}");
    place.create::<Sandbox>(sandbox("one", json!({"podTemplate": broken}))).await?;
    place.wait_trouble::<Sandbox>("one", "InvalidConfiguration", &text).await?;
    place.pool("pool", 1, json!({"podTemplate": broken})).await?;
    let member =
        place.eventually("a member", async || Ok(place.members("pool").await?.into_iter().next())).await?;
    let text = answer(&member.name_any()).await?;
    place.wait_trouble::<Sandbox>(&member.name_any(), "InvalidConfiguration", &text).await?;
    assert_eq!(place.list::<Pod>().await?.len(), 0);
    let mended = json!({"spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "warren.dev/host"}]}}}});
    place.patch::<Sandbox>("one", mended).await?;
    place.wait_ready::<Sandbox>("one", "True/DependenciesReady").await?;
    Ok(())
}

/// Makes a quota, and waits until it is enforced. Returns false in the local home, which has no
/// quotas.
async fn limit(place: &Place, resource: &str, count: usize) -> Result<bool> {
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"},
        "spec": {"hard": {resource: count.to_string()}}});
    match place.try_create::<ResourceQuota>(quota).await? {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => {
            println!("note: this home serves no quotas");
            return Ok(false);
        }
        Err(error) => return Err(error.into()),
    }
    // Its controller must have counted once. A controller that did not know our kinds then, as it
    // looks for new ones only twice a minute, counts again when the quota changes.
    place
        .eventually("a quota that is counted", async || {
            let another = json!({"spec": {"hard": {"count/configmaps": fastrand::u32(100..).to_string()}}});
            let quota: ResourceQuota = place.patch("small", another).await?;
            let used = quota.status.and_then(|status| status.used).unwrap_or_default();
            Ok(used.contains_key(resource).then_some(()))
        })
        .await?;
    Ok(true)
}

pub(super) async fn a_quota_that_is_used_up_is_told_and_healed_by_a_larger_one(place: Place) -> Result<()> {
    if !limit(&place, "pods", 1).await? {
        return Ok(());
    }
    place.create::<Sandbox>(sandbox("first", json!({}))).await?;
    place.wait_ready::<Sandbox>("first", "True/DependenciesReady").await?;
    place.create::<Sandbox>(sandbox("second", json!({}))).await?;
    let text = "Error seen: pods \"second\" is forbidden: exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1";
    place.wait_trouble::<Sandbox>("second", "ReconcilerError", text).await?;
    assert_eq!(place.list::<Pod>().await?.iter().map(|pod| pod.name_any()).collect::<Vec<_>>(), ["first"]);
    place.patch::<ResourceQuota>("small", json!({"spec": {"hard": {"pods": "2"}}})).await?;
    place.wait_ready::<Sandbox>("second", "True/DependenciesReady").await?;
    Ok(())
}

pub(super) async fn a_quota_of_no_sandboxes_is_told_on_claim_and_pool_and_healed_by_a_larger_one(
    place: Place,
) -> Result<()> {
    let resource = "count/sandboxes.agents.x-k8s.io";
    if !limit(&place, resource, 0).await? {
        return Ok(());
    }
    let refused = |name: &str| {
        format!(
            "sandboxes.agents.x-k8s.io \"{name}\" is forbidden: exceeded quota: small, requested: {resource}=1, \
             used: {resource}=0, limited: {resource}=0"
        )
    };
    place.pool("empty", 0, json!({})).await?;
    place.claim("c", "empty", json!({})).await?;
    let text = format!("Error seen: {}", refused("c"));
    place.wait_trouble::<SandboxClaim>("c", "ReconcilerError", &text).await?;
    place.pool("full", 1, json!({})).await?;
    let warning = place.wait_event("full", "FailedCreate").await?;
    let words = [&warning.type_, &warning.action, &warning.note].map(Option::as_deref);
    assert_eq!(words, ["Warning", "Reconciling", refused("full-").as_str()].map(Some));
    assert!(place.list::<Sandbox>().await?.is_empty());

    let larger = json!({"spec": {"hard": {resource: "2"}}});
    place.patch::<ResourceQuota>("small", larger).await?;
    assert_eq!(place.wait_claimed("c").await?.name_any(), "c");
    place.wait_full("full", 1).await?;
    // Many tries have failed by now, and each problem was reported once.
    for (name, reason) in [("c", "ReconcilerError"), ("full", "FailedCreate")] {
        let events = place.events(name).await?;
        let told = events.iter().filter(|event| event.reason.as_deref() == Some(reason)).count();
        assert_eq!(told, 1, "{events:?}");
    }
    Ok(())
}
