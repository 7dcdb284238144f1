//! Tests sandboxes and claims that end at a set time, or some time after their work is done.
//!
//! Times are set when everything is ready, so that a busy machine does not use them up before the
//! scenario begins.

use anyhow::{Context as _, Result};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use warren_api::{Sandbox, SandboxClaim};

use super::objects::{self, sandbox_of};
use crate::controllers::place::{Place, message, ready, since, state};
use crate::controllers::workload;

/// Returns a moment from now, in whole seconds as in the API.
fn soon() -> Result<Timestamp> {
    let moment = Timestamp::now() + SignedDuration::from_secs(2);
    Ok(Timestamp::from_second(moment.as_second())?)
}

fn never() -> Timestamp {
    Timestamp::now() + SignedDuration::from_hours(1)
}

fn time_of<K: serde::Serialize>(object: &K, type_: &str) -> Result<Timestamp> {
    since(object, type_).parse().with_context(|| format!("when {type_} changed"))
}

/// The status of a kept sandbox is emptied, its children are deleted, its result stays; a later
/// time revives it.
pub async fn an_expired_sandbox_is_kept_without_its_children_and_can_be_revived(place: Place) -> Result<()> {
    place.create::<Sandbox>(workload::sandbox("keep", json!({"service": true}))).await?;
    place.wait_ready::<Sandbox>("keep", "True/DependenciesReady").await?;
    let pod: Pod = place.get("keep").await?;
    let end = soon()?;
    place
        .patch::<Sandbox>("keep", json!({"spec": {"shutdownTime": end, "shutdownPolicy": "Retain"}}))
        .await?;
    let expired: Sandbox = place
        .wait_for("keep", "expired and empty", |sandbox: &Sandbox| {
            let status = sandbox.status.clone().unwrap_or_default();
            ready(sandbox) == "False/SandboxExpired" && status.pod_ips.is_empty() && status.selector.is_none()
        })
        .await?;
    assert!(time_of(&expired, "Ready")? >= end, "not before its time");
    assert_eq!(message(&expired, "Ready"), "Sandbox has expired");
    assert_eq!(state(&expired, "Suspended"), "False/NotSuspended");
    let status = expired.status.clone().unwrap_or_default();
    assert_eq!((status.service, status.service_fqdn, status.node_name), (None, None, None));
    place.wait_gone::<Pod>("keep").await?;
    place.wait_gone::<Service>("keep").await?;

    place.patch::<Sandbox>("keep", json!({"spec": {"shutdownTime": never()}})).await?;
    place.wait_for("keep", "another pod", |next: &Pod| next.uid() != pod.uid()).await?;
    place.wait_ready::<Sandbox>("keep", "True/DependenciesReady").await?;
    place.wait_for("keep", "there", |_: &Service| true).await.map(drop)
}

/// With the policy `Delete` nothing is left.
pub async fn an_expired_sandbox_is_deleted_with_its_children(place: Place) -> Result<()> {
    let spec = json!({"service": true, "shutdownPolicy": "Delete"});
    place.create::<Sandbox>(workload::sandbox("drop", spec)).await?;
    place.wait_ready::<Sandbox>("drop", "True/DependenciesReady").await?;
    place.patch::<Sandbox>("drop", json!({"spec": {"shutdownTime": soon()?}})).await?;
    place.wait_gone::<Sandbox>("drop").await?;
    place.wait_gone::<Pod>("drop").await?;
    place.wait_gone::<Service>("drop").await
}

/// A sandbox's result survives its expiry.
pub async fn a_finished_sandbox_says_so_after_it_has_expired(place: Place) -> Result<()> {
    for (name, code, reason, words) in
        [("good", 0, "PodSucceeded", "Pod completed successfully"), ("bad", 3, "PodFailed", "Pod failed")]
    {
        place
            .create::<Sandbox>(workload::sandbox(name, json!({"podTemplate": workload::ending(code)})))
            .await?;
        let finished: Sandbox = place.wait_ready(name, &format!("False/{reason}")).await?;
        assert_eq!(message(&finished, "Ready"), words);
        assert_eq!(state(&finished, "Finished"), format!("True/{reason}"));
        let pod: Pod = place.get(name).await?;

        place.patch::<Sandbox>(name, json!({"spec": {"shutdownTime": Timestamp::now()}})).await?;
        place.wait_gone::<Pod>(name).await?;
        let expired: Sandbox = place.wait_ready(name, "False/SandboxExpired").await?;
        assert_eq!(state(&expired, "Finished"), format!("True/{reason}"));
        assert_eq!(since(&expired, "Finished"), since(&finished, "Finished"));
        assert_eq!(pod.metadata.deletion_timestamp, None, "it was kept until then");
    }
    Ok(())
}

fn lifecycle(fields: Value) -> Value {
    json!({"lifecycle": fields})
}

fn end_soon(policy: &str) -> Result<(Timestamp, Value)> {
    let end = soon()?;
    Ok((end, json!({"spec": lifecycle(json!({"shutdownTime": end, "shutdownPolicy": policy}))})))
}

/// `Delete` of a claim deletes all that it had.
pub async fn an_expired_claim_is_deleted_with_all_it_had(place: Place) -> Result<()> {
    place.pool("pool", 1, json!({})).await?;
    place.claim("c", "pool", json!({})).await?;
    let sandbox = place.wait_claimed("c").await?.name_any();
    let (_, patch) = end_soon("Delete")?;
    place.patch::<SandboxClaim>("c", patch).await?;
    place.wait_gone::<SandboxClaim>("c").await?;
    place.wait_gone::<Sandbox>(&sandbox).await?;
    place.wait_gone::<Pod>(&sandbox).await
}

/// `DeleteForeground` keeps the claim until all that it had is gone.
pub async fn an_expired_claim_waits_for_its_pod_when_deleted_in_the_foreground(place: Place) -> Result<()> {
    place.pool("pool", 0, json!({})).await?;
    place.claim("c", "pool", json!({})).await?;
    place.wait_claimed("c").await?;
    place.patch::<Pod>("c", objects::held()).await?;
    let (_, patch) = end_soon("DeleteForeground")?;
    place.patch::<SandboxClaim>("c", patch).await?;
    all_terminating(&place, "c").await?;
    place.release::<Pod>("c").await?;
    all_gone(&place, "c").await
}

/// Waits until the claim, its sandbox and its pod are all being deleted.
async fn all_terminating(place: &Place, name: &str) -> Result<()> {
    place.wait_for(name, "terminating", |pod: &Pod| pod.metadata.deletion_timestamp.is_some()).await?;
    let claim: SandboxClaim = place.get(name).await?;
    assert!(claim.metadata.deletion_timestamp.is_some(), "the claim is still there, on its way out");
    let sandbox: Sandbox = place.get(name).await?;
    assert!(sandbox.metadata.deletion_timestamp.is_some(), "and so is the sandbox");
    Ok(())
}

async fn all_gone(place: &Place, name: &str) -> Result<()> {
    place.wait_gone::<SandboxClaim>(name).await?;
    assert!(place.get_opt::<Sandbox>(name).await?.is_none(), "the claim is the last to go");
    assert!(place.get_opt::<Pod>(name).await?.is_none(), "the claim is the last to go");
    Ok(())
}

/// `Retain` keeps the claim without a sandbox; a later time gives it another.
pub async fn an_expired_claim_is_kept_without_its_sandbox_and_can_be_revived(place: Place) -> Result<()> {
    place.pool("pool", 0, json!({})).await?;
    place.claim("c", "pool", json!({})).await?;
    let first = place.wait_claimed("c").await?;
    let (end, patch) = end_soon("Retain")?;
    place.patch::<SandboxClaim>("c", patch).await?;
    let expired: SandboxClaim = place
        .wait_for("c", "expired without a sandbox", |claim: &SandboxClaim| {
            ready(claim) == "False/ClaimExpired" && sandbox_of(claim).is_none()
        })
        .await?;
    assert!(time_of(&expired, "Ready")? >= end, "not before its time");
    place.wait_told("c", "ClaimExpired").await?;
    place.wait_gone::<Sandbox>("c").await?;
    place.wait_gone::<Pod>("c").await?;
    place.patch::<SandboxClaim>("c", json!({"spec": lifecycle(json!({"shutdownTime": never()}))})).await?;
    assert_ne!(place.wait_claimed("c").await?.uid(), first.uid());
    Ok(())
}

/// Creates a claim whose work is done, with these lifecycle fields.
async fn finished_claim(place: &Place, name: &str, fields: Value) -> Result<SandboxClaim> {
    place.claim(name, "pool", lifecycle(fields)).await?;
    place
        .wait_for(name, "finished", |claim: &SandboxClaim| state(claim, "Finished") == "True/PodSucceeded")
        .await
}

/// The time to live counts from the end of the work; the earlier of the two ends counts; without
/// either nothing happens.
pub async fn a_finished_claim_ends_after_its_time_to_live(place: Place) -> Result<()> {
    place.pool("pool", 0, json!({"podTemplate": workload::ending(0)})).await?;
    finished_claim(&place, "stays", json!({"shutdownPolicy": "Delete"})).await?;
    finished_claim(&place, "kept", json!({"ttlSecondsAfterFinished": 2, "shutdownPolicy": "Retain"})).await?;
    let kept: SandboxClaim = place.wait_ready("kept", "False/ClaimExpired").await?;
    // Ready was False before and keeps its time, so only our clock can show that it was not too
    // early.
    let lived = Timestamp::now().duration_since(time_of(&kept, "Finished")?);
    assert!(lived >= SignedDuration::from_secs(2), "it lived {lived:?}");

    // The set end wins over a long time to live.
    let end = soon()?;
    let spec = json!({"shutdownTime": end, "ttlSecondsAfterFinished": 3600, "shutdownPolicy": "Retain"});
    place.claim("earlier", "pool", lifecycle(spec)).await?;
    place.wait_ready::<SandboxClaim>("earlier", "False/ClaimExpired").await?;
    assert!(Timestamp::now() >= end, "not before its time");

    // Deleted with all it had, which also shows that time has passed for the one that stays.
    let ttl = json!({"ttlSecondsAfterFinished": 1, "shutdownPolicy": "Delete"});
    place.claim("goes", "pool", lifecycle(ttl)).await?;
    place.wait_told("goes", "ClaimExpired").await?;
    place.wait_gone::<SandboxClaim>("goes").await?;
    place.wait_gone::<Sandbox>("goes").await?;
    place.wait_gone::<Pod>("goes").await?;
    let stays: SandboxClaim = place.get("stays").await?;
    assert_eq!(
        (ready(&stays).as_str(), sandbox_of(&stays).as_deref()),
        ("False/PodSucceeded", Some("stays"))
    );
    assert!(place.get::<Sandbox>("stays").await?.metadata.deletion_timestamp.is_none());
    Ok(())
}

/// With a time to live of zero the sandbox is deleted as soon as its work is done, and the claim's
/// status still has both results.
pub async fn a_finished_claim_with_a_time_to_live_of_zero_keeps_what_it_said(place: Place) -> Result<()> {
    place.pool("pool", 0, json!({"podTemplate": workload::ending(0)})).await?;
    let ttl = json!({"ttlSecondsAfterFinished": 0, "shutdownPolicy": "Retain"});
    place.claim("c", "pool", lifecycle(ttl)).await?;
    let expired: SandboxClaim = place
        .wait_for("c", "expired without a sandbox", |claim: &SandboxClaim| {
            ready(claim) == "False/ClaimExpired" && sandbox_of(claim).is_none()
        })
        .await?;
    assert_eq!(state(&expired, "Finished"), "True/PodSucceeded");
    place.wait_gone::<Sandbox>("c").await?;
    place.wait_gone::<Pod>("c").await?;
    let later: SandboxClaim = place.get("c").await?;
    assert_eq!(
        (ready(&later).as_str(), state(&later, "Finished").as_str()),
        ("False/ClaimExpired", "True/PodSucceeded")
    );
    Ok(())
}

/// A time to live together with foreground deletion.
pub async fn a_finished_claim_is_deleted_in_the_foreground(place: Place) -> Result<()> {
    place.pool("pool", 0, json!({"podTemplate": workload::ending(0)})).await?;
    finished_claim(&place, "c", json!({"shutdownPolicy": "DeleteForeground"})).await?;
    place.patch::<Pod>("c", objects::held()).await?;
    let ttl = json!({"ttlSecondsAfterFinished": 1, "shutdownPolicy": "DeleteForeground"});
    place.patch::<SandboxClaim>("c", json!({"spec": lifecycle(ttl)})).await?;
    all_terminating(&place, "c").await?;
    place.release::<Pod>("c").await?;
    all_gone(&place, "c").await
}
