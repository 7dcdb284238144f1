//! Tests features beyond agent-sandbox's: deadlines, caps, rolling updates, verdicts, kept volumes,
//! and reporting edits that a live pod does not have.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use warren_api::{NameHash, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, annotations, labels};
use warren_testkit::nodes::Fate;

use crate::controllers::place::{Place, answer, message, ready, since, state};
use crate::controllers::workload::{claim, pool, sandbox, simulated, template, volume, with};

fn annotated(object: Value, key: &str, value: &str) -> Value {
    with(object, json!({"metadata": {"annotations": {key: value}}}))
}

/// Returns the verdict on a pool's template as `status/reason`, or an empty text.
fn progressing(pool: &SandboxWarmPool) -> String {
    let text = pool.annotations().get(annotations::PROGRESSING).map(String::as_str).unwrap_or("{}");
    let verdict: Value = serde_json::from_str(text).unwrap_or_default();
    format!(
        "{}/{}",
        verdict["status"].as_str().unwrap_or_default(),
        verdict["reason"].as_str().unwrap_or_default()
    )
}

pub(super) async fn a_claim_that_is_not_ready_by_its_deadline_says_why_and_ends(place: Place) -> Result<()> {
    place.pool("pool", 0, json!({"podTemplate": simulated(Fate::Unschedulable)})).await?;
    let object = annotated(claim("c", "pool", json!({})), annotations::DEADLINE, "1h");
    let history = place.record::<SandboxClaim>().await?;
    place.create::<SandboxClaim>(object).await?;
    let waiting: SandboxClaim = place
        .wait_for("c", "waiting for room", |claim: &SandboxClaim| {
            state(claim, "PodScheduled") == "False/Unschedulable"
        })
        .await?;
    assert_eq!(ready(&waiting), "False/DependenciesNotReady");
    assert!(!since(&waiting, "Ready").is_empty());

    place
        .patch::<SandboxClaim>("c", json!({"metadata": {"annotations": {annotations::DEADLINE: "1s"}}}))
        .await?;
    place.wait_ready::<SandboxClaim>("c", "False/ClaimExpired").await?;
    place.wait_gone::<Sandbox>("c").await?;
    let ended: SandboxClaim = place
        .wait_for("c", "without a sandbox", |claim: &SandboxClaim| {
            claim.status.as_ref().is_some_and(|status| status.sandbox.is_none())
        })
        .await?;
    assert_eq!(state(&ended, "Finished"), "True/DeadlineExceeded");
    assert!(
        message(&ended, "Ready").contains("it was waiting on DependenciesNotReady"),
        "{}",
        message(&ended, "Ready")
    );
    let event = place.wait_event("c", "DeadlineExceeded").await?;
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    // The reason was stored before the deletion.
    let first = history
        .so_far()
        .into_iter()
        .find(|entry| state(&entry.object, "Finished") == "True/DeadlineExceeded");
    let first = first.context("the end was told")?.object;
    assert_eq!(first.status.and_then(|status| status.sandbox?.name).as_deref(), Some("c"));

    // A later deadline revives it.
    place
        .patch::<SandboxClaim>("c", json!({"metadata": {"annotations": {annotations::DEADLINE: "1h"}}}))
        .await?;
    let back: SandboxClaim = place.wait_ready("c", "False/DependenciesNotReady").await?;
    assert_eq!(state(&back, "Finished"), "");
    Ok(())
}

pub(super) async fn a_deadline_that_means_nothing_is_told_and_ignored(place: Place) -> Result<()> {
    place.pool("pool", 0, json!({"podTemplate": simulated(Fate::Ready)})).await?;
    let object = annotated(claim("c", "pool", json!({})), annotations::DEADLINE, "5 minutes");
    place.create::<SandboxClaim>(object).await?;
    place.wait_claimed("c").await?;
    let told: SandboxClaim = place.get("c").await?;
    assert_eq!(state(&told, "warren.dev/InvalidAnnotation"), "True/ValueIgnored");
    assert!(message(&told, "warren.dev/InvalidAnnotation").contains("\"5 minutes\""));
    place.wait_event("c", "InvalidAnnotation").await?;
    place
        .patch::<SandboxClaim>("c", json!({"metadata": {"annotations": {annotations::DEADLINE: "5m"}}}))
        .await?;
    place
        .wait_for("c", "without complaint", |claim: &SandboxClaim| {
            state(claim, "warren.dev/InvalidAnnotation").is_empty()
        })
        .await?;
    Ok(())
}

pub(super) async fn a_pool_is_never_larger_than_its_cap(place: Place) -> Result<()> {
    let history = place.record::<Sandbox>().await?;
    place.create::<SandboxTemplate>(template("pool", json!({"podTemplate": simulated(Fate::Ready)}))).await?;
    let object = annotated(pool("pool", "pool", 500), annotations::MAX_MEMBERS, "3");
    place.create::<SandboxWarmPool>(object).await?;
    place.wait_full("pool", 3).await?;
    place.claim("c", "pool", json!({})).await?;
    place.wait_claimed("c").await?;
    place.wait_full("pool", 3).await?;
    place
        .patch::<SandboxWarmPool>(
            "pool",
            json!({"metadata": {"annotations": {annotations::MAX_MEMBERS: "1"}}}),
        )
        .await?;
    place.wait_full("pool", 1).await?;
    assert!(largest(&history.so_far(), |_| true) <= 3);
    Ok(())
}

/// Returns the largest number of matching members that existed at the same time.
fn largest(
    history: &[crate::controllers::history::Entry<Sandbox>],
    counts: impl Fn(&Sandbox) -> bool,
) -> usize {
    counts_over_time(history, counts).into_iter().max().unwrap_or_default()
}

/// Returns the number of matching members of `pool` after each event.
fn counts_over_time(
    history: &[crate::controllers::history::Entry<Sandbox>],
    counts: impl Fn(&Sandbox) -> bool,
) -> Vec<usize> {
    let hash = NameHash::of("pool").to_string();
    let mut there: BTreeMap<String, bool> = BTreeMap::new();
    let after_each = history.iter().map(|entry| {
        let pooled = entry.object.labels().get(labels::WARM_POOL_SANDBOX) == Some(&hash);
        there.insert(entry.object.name_any(), pooled && !entry.deleted && counts(&entry.object));
        there.values().filter(|there| **there).count()
    });
    after_each.collect()
}

pub(super) async fn a_rolling_update_leaves_most_of_a_pool_to_be_claimed(place: Place) -> Result<()> {
    place.create::<SandboxTemplate>(template("pool", json!({"podTemplate": simulated(Fate::Ready)}))).await?;
    let rolling =
        annotated(pool("pool", "pool", 4), annotations::UPDATE_STRATEGY, annotations::ROLLING_UPDATE);
    place.create::<SandboxWarmPool>(annotated(rolling, annotations::MAX_UNAVAILABLE, "1")).await?;
    place.wait_full("pool", 4).await?;
    place
        .wait_for("pool", "up to date", |pool: &SandboxWarmPool| progressing(pool) == "True/Complete")
        .await?;
    let old: Vec<String> = place.members("pool").await?.iter().map(|member| member.name_any()).collect();

    let history = place.record::<Sandbox>().await?;
    let verdicts = place.record::<SandboxWarmPool>().await?;
    let edit = json!({"spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "warren.dev/host", "args": ["new"]}]}}}});
    place.patch::<SandboxTemplate>("pool", edit).await?;
    place
        .eventually("four new members", async || {
            let members = place.members("pool").await?;
            let new = members.iter().filter(|member| !old.contains(&member.name_any()));
            Ok((members.len() == 4 && new.count() == 4).then_some(()))
        })
        .await?;
    place.wait_full("pool", 4).await?;
    let done: SandboxWarmPool = place
        .wait_for("pool", "up to date", |pool: &SandboxWarmPool| progressing(pool) == "True/Complete")
        .await?;
    assert_eq!(done.annotations().get(annotations::UPDATED_REPLICAS), None);
    let told: Vec<String> = verdicts.so_far().iter().map(|entry| progressing(&entry.object)).collect();
    assert!(told.iter().any(|verdict| verdict == "True/Updating"), "{told:?}");

    let usable =
        |member: &Sandbox| member.metadata.deletion_timestamp.is_none() && ready(member).starts_with("True");
    // The recording begins with four entries, one for each present member.
    let fewest = counts_over_time(&history.so_far(), usable).into_iter().skip(3).min().unwrap_or_default();
    assert!(fewest >= 3, "{fewest} of 4 could be claimed");
    assert!(largest(&history.so_far(), |_| true) <= 4);
    Ok(())
}

pub(super) async fn a_template_that_does_not_work_is_told_on_the_pool(place: Place) -> Result<()> {
    let missing = annotated(pool("pool", "pool", 2), annotations::PROGRESS_DEADLINE, "10s");
    place.create::<SandboxWarmPool>(missing).await?;
    place
        .wait_for("pool", "without a template", |pool: &SandboxWarmPool| {
            progressing(pool) == "False/TemplateNotFound"
        })
        .await?;
    place
        .create::<SandboxTemplate>(template("pool", json!({"podTemplate": simulated(Fate::NotReady)})))
        .await?;
    let told: SandboxWarmPool = place
        .wait_for("pool", "not progressing", |pool: &SandboxWarmPool| {
            progressing(pool) == "False/ProgressDeadlineExceeded"
        })
        .await?;
    let verdict = &told.annotations()[annotations::PROGRESSING];
    // The pod's progress by then depends on the machine.
    assert!(
        verdict.contains("has become ready for 10s") && verdict.contains(": DependenciesNotReady: Pod "),
        "{verdict}"
    );
    place.wait_event("pool", "ProgressDeadlineExceeded").await?;
    Ok(())
}

pub(super) async fn retained_volume_claims_outlive_their_sandbox(place: Place) -> Result<()> {
    let spec = json!({"podTemplate": simulated(Fate::Ready), "volumeClaimTemplates": [volume("data")]});
    let kept = || annotated(sandbox("kept", spec.clone()), annotations::PVC_RETENTION, annotations::RETAIN);
    place.create::<Sandbox>(kept()).await?;
    place.create::<Sandbox>(sandbox("later", spec.clone())).await?;
    place.wait_ready::<Sandbox>("kept", "True/DependenciesReady").await?;
    place.wait_ready::<Sandbox>("later", "True/DependenciesReady").await?;
    let first: PersistentVolumeClaim = place.get("data-kept").await?;
    assert!(first.owner_references().is_empty());
    let owned: PersistentVolumeClaim = place.get("data-later").await?;
    assert_eq!(owned.owner_references().len(), 1);
    // Set later, it takes effect once the owner reference is removed.
    let says = json!({"metadata": {"annotations": {annotations::PVC_RETENTION: annotations::RETAIN}}});
    place.patch::<Sandbox>("later", says).await?;
    place
        .wait_for("data-later", "free", |claim: &PersistentVolumeClaim| claim.owner_references().is_empty())
        .await?;
    for name in ["kept", "later"] {
        place.delete::<Sandbox>(name).await?;
        place.wait_gone::<Pod>(name).await?;
    }
    place.create::<Sandbox>(kept()).await?;
    place.wait_ready::<Sandbox>("kept", "True/DependenciesReady").await?;
    let again: PersistentVolumeClaim = place.get("data-kept").await?;
    assert_eq!((again.uid(), again.owner_references().len()), (first.uid(), 0));
    assert!(place.get::<PersistentVolumeClaim>("data-later").await?.metadata.deletion_timestamp.is_none());
    // After it is reverted, they are deleted with it.
    place
        .patch::<Sandbox>("kept", json!({"metadata": {"annotations": {annotations::PVC_RETENTION: null}}}))
        .await?;
    place
        .wait_for("data-kept", "owned", |claim: &PersistentVolumeClaim| claim.owner_references().len() == 1)
        .await?;
    place
        .patch::<Sandbox>("kept", json!({"metadata": {"annotations": {annotations::PVC_RETENTION: "keep"}}}))
        .await?;
    let told: Sandbox = place.wait_ready("kept", "False/ReconcilerError").await?;
    assert!(
        message(&told, "Ready").contains("\"keep\" is neither Retain nor Delete"),
        "{}",
        message(&told, "Ready")
    );
    Ok(())
}

pub(super) async fn retained_volume_claims_outlive_an_expired_sandbox(place: Place) -> Result<()> {
    let spec = json!({"podTemplate": simulated(Fate::Ready), "volumeClaimTemplates": [volume("data")]});
    place.create::<Sandbox>(sandbox("s", spec)).await?;
    place.wait_ready::<Sandbox>("s", "True/DependenciesReady").await?;
    place.patch::<Sandbox>("s", json!({"spec": {"shutdownTime": "2020-01-01T00:00:00Z"}})).await?;
    place.wait_ready::<Sandbox>("s", "False/SandboxExpired").await?;
    place.wait_gone::<Pod>("s").await?;
    // For an expired sandbox, it also takes effect once the owner reference is removed.
    let says = json!({"metadata": {"annotations": {annotations::PVC_RETENTION: annotations::RETAIN}}});
    place.patch::<Sandbox>("s", says).await?;
    place
        .wait_for("data-s", "free", |claim: &PersistentVolumeClaim| claim.owner_references().is_empty())
        .await?;
    place.patch::<Sandbox>("s", json!({"spec": {"shutdownPolicy": "Delete"}})).await?;
    place.wait_gone::<Sandbox>("s").await?;
    assert!(place.get::<PersistentVolumeClaim>("data-s").await?.metadata.deletion_timestamp.is_none());
    Ok(())
}

pub(super) async fn a_claim_passes_on_that_its_volumes_are_kept(place: Place) -> Result<()> {
    let spec = json!({"podTemplate": simulated(Fate::Ready), "volumeClaimTemplates": [volume("data")]});
    place.pool("pool", 1, spec).await?;
    place.wait_full("pool", 1).await?;
    let member = place.members("pool").await?.remove(0).name_any();
    let object = annotated(claim("c", "pool", json!({})), annotations::PVC_RETENTION, annotations::RETAIN);
    place.create::<SandboxClaim>(object).await?;
    assert_eq!(place.wait_claimed("c").await?.name_any(), member);
    let name = format!("data-{member}");
    place
        .wait_for(&name, "free", |claim: &PersistentVolumeClaim| claim.owner_references().is_empty())
        .await?;
    place.delete::<SandboxClaim>("c").await?;
    place.wait_gone::<Pod>(&member).await?;
    assert!(place.get::<PersistentVolumeClaim>(&name).await?.metadata.deletion_timestamp.is_none());
    Ok(())
}

pub(super) async fn an_edit_that_the_live_pod_does_not_have_is_told(place: Place) -> Result<()> {
    place.create::<Sandbox>(sandbox("s", json!({"podTemplate": simulated(Fate::Ready)}))).await?;
    place.wait_ready::<Sandbox>("s", "True/DependenciesReady").await?;
    let pod: Pod = place.get("s").await?;
    let edit = json!({"spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "warren.dev/host", "args": ["x"]}]}}}});
    place.patch::<Sandbox>("s", edit).await?;
    let outdated = "warren.dev/PodOutdated";
    let told: Sandbox = place
        .wait_for("s", "outdated", |sandbox: &Sandbox| state(sandbox, outdated) == "True/PodTemplateChanged")
        .await?;
    assert!(
        message(&told, outdated).contains("differs in containers[main].args;"),
        "{}",
        message(&told, outdated)
    );
    assert_eq!(ready(&told), "True/DependenciesReady");
    assert_eq!(place.get::<Pod>("s").await?.uid(), pod.uid());
    place.patch::<Sandbox>("s", json!({"spec": {"operatingMode": "Suspended"}})).await?;
    place.wait_ready::<Sandbox>("s", "False/SandboxSuspended").await?;
    place.wait_gone::<Pod>("s").await?;
    place.patch::<Sandbox>("s", json!({"spec": {"operatingMode": "Running"}})).await?;
    place.wait_for("s", "another pod", |next: &Pod| next.uid() != pod.uid()).await?;
    let applied: Sandbox = place.wait_ready("s", "True/DependenciesReady").await?;
    assert_eq!(state(&applied, outdated), "");
    Ok(())
}

/// Cordons a node, as `kubectl cordon` does, or uncordons it.
async fn cordon(place: &Place, node: &str, closed: bool) -> Result<()> {
    let body = json!({"spec": {"unschedulable": closed}});
    let (nodes, parameters, patch) =
        (Api::<Node>::all(place.client()), PatchParams::default(), Patch::Merge(&body));
    answer(|| nodes.patch(node, &parameters, &patch)).await?;
    Ok(())
}

pub(super) async fn members_on_a_node_that_is_being_emptied_are_not_handed_out(place: Place) -> Result<()> {
    place.pool("pool", 1, json!({"podTemplate": simulated(Fate::Ready)})).await?;
    let tries = AtomicUsize::new(0);
    // No event shows when the controllers have seen the cordon, so one claim may be too early.
    let (member, node) = place
        .eventually("a claim that leaves the member alone", async || {
            place.wait_full("pool", 1).await?;
            let member = place.members("pool").await?.remove(0);
            let node = member.status.as_ref().and_then(|status| status.node_name.clone());
            let node = node.context("a ready member has a node")?;
            cordon(&place, &node, true).await?;
            let name = format!("early-{}", tries.fetch_add(1, Ordering::Relaxed));
            place.claim(&name, "pool", json!({})).await?;
            let served = place.wait_claimed(&name).await?;
            if served.name_any() == member.name_any() {
                cordon(&place, &node, false).await?;
                return Ok(None);
            }
            assert_eq!(served.labels()[labels::LAUNCH_TYPE], labels::LAUNCH_TYPE_COLD);
            assert_ne!(served.status.and_then(|status| status.node_name).as_deref(), Some(node.as_str()));
            Ok(Some((member, node)))
        })
        .await?;
    let kept: Sandbox = place.get(&member.name_any()).await?;
    assert_eq!((kept.uid(), ready(&kept).as_str()), (member.uid(), "True/DependenciesReady"));
    cordon(&place, &node, false).await?;
    place
        .eventually("a claim that gets it", async || {
            let name = format!("late-{}", tries.fetch_add(1, Ordering::Relaxed));
            place.claim(&name, "pool", json!({})).await?;
            Ok((place.wait_claimed(&name).await?.name_any() == member.name_any()).then_some(()))
        })
        .await
}
