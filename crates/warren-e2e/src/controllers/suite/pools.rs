//! Tests pools: their size, and how a changed template reaches their members.

use std::collections::BTreeSet;

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use warren_api::{NameHash, Sandbox, SandboxTemplate, SandboxWarmPool, annotations, labels};

use super::objects::{controller, with_variable};
use crate::controllers::history::{Entry, History};
use crate::controllers::place::{Place, ready};
use crate::controllers::workload;

async fn names(place: &Place, pool: &str) -> Result<BTreeSet<String>> {
    Ok(place.members(pool).await?.iter().map(|member| member.name_any()).collect())
}

/// Returns the variable that marks the template's version in a sandbox.
fn version(sandbox: &Sandbox) -> String {
    let containers = &sandbox.spec.blueprint.pod_template.spec.containers;
    let variable = containers.first().and_then(|container| container.env.as_ref()?.first()?.value.clone());
    variable.unwrap_or_default()
}

async fn change(place: &Place, template: &str, value: &str) -> Result<()> {
    place.edit_template(template, with_variable("VERSION", value)).await.map(drop)
}

async fn scale(place: &Place, pool: &str, replicas: i32) -> Result<()> {
    place.patch::<SandboxWarmPool>(pool, json!({"spec": {"replicas": replicas}})).await.map(drop)
}

/// Waits until a pool has this number of members, all of this version.
async fn all_of(place: &Place, pool: &str, count: usize, wanted: &str) -> Result<BTreeSet<String>> {
    place
        .eventually(&format!("{count} members of version {wanted}"), async || {
            let members = place.members(pool).await?;
            let done = members.len() == count && members.iter().all(|member| version(member) == wanted);
            Ok(done.then(|| members.iter().map(|member| member.name_any()).collect()))
        })
        .await
}

/// Waits until a pool has this number of members, all ready. The pool's own status may lag behind a
/// claim.
async fn filled(place: &Place, pool: &str, count: usize) -> Result<Vec<Sandbox>> {
    place
        .eventually(&format!("{count} ready members"), async || {
            let members = place.members(pool).await?;
            let done = members.len() == count
                && members.iter().all(|member| ready(member) == "True/DependenciesReady");
            Ok(done.then_some(members))
        })
        .await
}

/// Scales up, down, to zero and up again; and once by the scale subresource, as an autoscaler does.
pub async fn a_pool_is_scaled_up_and_down(place: Place) -> Result<()> {
    place.pool("pool", 2, json!({})).await?;
    place.wait_full("pool", 2).await?;
    let two = names(&place, "pool").await?;
    scale(&place, "pool", 5).await?;
    let pool = place.wait_full("pool", 5).await?;
    let five = names(&place, "pool").await?;
    assert!(five.is_superset(&two), "{two:?} in {five:?}");
    let status = pool.status.clone().unwrap_or_default();
    assert_eq!(status.selector, Some(format!("{}={}", labels::WARM_POOL_SANDBOX, NameHash::of("pool"))));

    scale(&place, "pool", 1).await?;
    place.wait_full("pool", 1).await?;
    let one = names(&place, "pool").await?;
    assert!(one.len() == 1 && one.is_subset(&five), "{one:?}");
    scale(&place, "pool", 0).await?;
    place
        .eventually("nothing left", async || {
            let (sandboxes, pods) = (place.list::<Sandbox>().await?, place.list::<Pod>().await?);
            Ok((sandboxes.is_empty() && pods.is_empty()).then_some(()))
        })
        .await?;

    let patch = json!({"spec": {"replicas": 2}});
    let pools = place.api::<SandboxWarmPool>();
    place
        .eventually("scaled by the subresource", async || {
            Ok(pools.patch_scale("pool", &PatchParams::default(), &Patch::Merge(&patch)).await.ok())
        })
        .await?;
    place.wait_full("pool", 2).await?;
    let scale = place.eventually("its scale", async || Ok(pools.get_scale("pool").await.ok())).await?;
    assert_eq!(scale.status.map(|status| status.replicas), Some(2));

    // When the pool is deleted, its members are.
    place.delete::<SandboxWarmPool>("pool").await?;
    place
        .eventually("nothing left", async || Ok(place.list::<Sandbox>().await?.is_empty().then_some(())))
        .await
}

/// During filling, scaling, rolling and claiming there are never more members than requested,
/// including those being deleted. Checked on the whole history.
pub async fn a_pool_is_never_larger_than_asked_for(place: Place) -> Result<()> {
    let history = place.record::<Sandbox>().await?;
    place.create::<SandboxTemplate>(workload::template("pool", json!({}))).await?;
    let recreate = json!({"spec": {"updateStrategy": {"type": "Recreate"}}});
    place.create::<SandboxWarmPool>(workload::with(workload::pool("pool", "pool", 4), recreate)).await?;
    place.wait_full("pool", 4).await?;
    change(&place, "pool", "2").await?;
    all_of(&place, "pool", 4, "2").await?;
    scale(&place, "pool", 2).await?;
    place.wait_full("pool", 2).await?;
    for number in 0..3 {
        place.claim(&format!("c{number}"), "pool", json!({})).await?;
        place.wait_claimed(&format!("c{number}")).await?;
    }
    scale(&place, "pool", 4).await?;
    place.wait_full("pool", 4).await?;
    let most = most_members(&history.so_far());
    assert_eq!(most, 4, "members at the same time");
    Ok(())
}

/// Returns the largest number of pool members that existed at the same time.
fn most_members(history: &[Entry<Sandbox>]) -> usize {
    let (mut present, mut most) = (BTreeSet::new(), 0);
    for entry in history {
        let uid = entry.object.uid();
        if !entry.deleted && controller(&entry.object).contains(" SandboxWarmPool ") {
            present.insert(uid);
        } else {
            present.remove(&uid);
        }
        most = most.max(present.len());
    }
    most
}

/// `OnReplenish`, explicit or by default: members stay as they are and are still handed out; only
/// new ones are of the new version.
pub async fn a_changed_template_reaches_a_pool_as_members_leave_it(place: Place) -> Result<()> {
    let said = json!({"spec": {"updateStrategy": {"type": "OnReplenish"}}});
    for (pool, more) in [("unsaid", json!({})), ("said", said)] {
        place.create::<SandboxTemplate>(workload::template(pool, json!({}))).await?;
        change(&place, pool, "1").await?;
        place.create::<SandboxWarmPool>(workload::with(workload::pool(pool, pool, 2), more)).await?;
    }
    for pool in ["unsaid", "said"] {
        place.wait_full(pool, 2).await?;
        let old = names(&place, pool).await?;
        change(&place, pool, "2").await?;
        let claim = format!("{pool}-claim");
        place.claim(&claim, pool, json!({})).await?;
        let taken = place.wait_claimed(&claim).await?;
        assert!(old.contains(&taken.name_any()), "an old one is as good as a new one");
        let versions: BTreeSet<(String, bool)> = filled(&place, pool, 2)
            .await?
            .iter()
            .map(|member| (version(member), old.contains(&member.name_any())))
            .collect();
        assert_eq!(versions, BTreeSet::from([("1".to_owned(), true), ("2".to_owned(), false)]));
        for name in &old {
            place.delete::<Sandbox>(name).await?;
        }
        all_of(&place, pool, 2, "2").await?;
    }
    Ok(())
}

/// `Recreate`: every member is replaced, and none of the old version is handed out from then on.
pub async fn a_changed_template_recreates_a_pool(place: Place) -> Result<()> {
    place.create::<SandboxTemplate>(workload::template("pool", json!({}))).await?;
    let recreate = json!({"spec": {"updateStrategy": {"type": "Recreate"}}});
    place.create::<SandboxWarmPool>(workload::with(workload::pool("pool", "pool", 3), recreate)).await?;
    place.wait_full("pool", 3).await?;
    let old = names(&place, "pool").await?;
    change(&place, "pool", "2").await?;
    let new = all_of(&place, "pool", 3, "2").await?;
    assert!(old.is_disjoint(&new));
    filled(&place, "pool", 3).await?;
    place.claim("c", "pool", json!({})).await?;
    let taken = place.wait_claimed("c").await?;
    assert_eq!((version(&taken).as_str(), taken.labels()[labels::LAUNCH_TYPE].as_str()), ("2", "warm"));
    Ok(())
}

/// Rolls a pool of four with one missing at a time, and returns the recording.
async fn roll(place: &Place) -> Result<History<Sandbox>> {
    place.create::<SandboxTemplate>(workload::template("pool", json!({}))).await?;
    let how =
        json!({annotations::UPDATE_STRATEGY: annotations::ROLLING_UPDATE, annotations::MAX_UNAVAILABLE: "1"});
    let pool = workload::with(workload::pool("pool", "pool", 4), json!({"metadata": {"annotations": how}}));
    place.create::<SandboxWarmPool>(pool).await?;
    let old: BTreeSet<String> = filled(place, "pool", 4).await?.iter().map(|one| one.name_any()).collect();
    let history = place.record::<Sandbox>().await?;
    change(place, "pool", "2").await?;
    assert!(all_of(place, "pool", 4, "2").await?.is_disjoint(&old));
    filled(place, "pool", 4).await?;
    place
        .wait_for("pool", "told to be complete", |pool: &SandboxWarmPool| {
            let verdict = pool.annotations().get(annotations::PROGRESSING);
            verdict.and_then(|text| serde_json::from_str::<Value>(text).ok()).is_some_and(|verdict| {
                (&verdict["status"], &verdict["reason"]) == (&json!("True"), &json!("Complete"))
            })
        })
        .await?;
    Ok(history)
}

/// `RollingUpdate`, which is ours: in the end every member is new, and the pool's status says that
/// it is done.
pub async fn a_changed_template_rolls_a_pool_a_few_at_a_time(place: Place) -> Result<()> {
    roll(&place).await?;
    place.claim("c", "pool", json!({})).await?;
    let taken = place.wait_claimed("c").await?;
    assert_eq!((version(&taken).as_str(), taken.labels()[labels::LAUNCH_TYPE].as_str()), ("2", "warm"));
    Ok(())
}

/// A rolling update never leaves more members missing than allowed. Checked on the whole history.
pub async fn a_rolling_pool_stays_as_large_as_it_must(place: Place) -> Result<()> {
    let history = roll(&place).await?.so_far();
    let (mut usable, mut fewest) = (BTreeSet::new(), usize::MAX);
    for (place, entry) in history.iter().enumerate() {
        let member = &entry.object;
        let counts = !entry.deleted
            && member.metadata.deletion_timestamp.is_none()
            && ready(member) == "True/DependenciesReady";
        if counts {
            usable.insert(member.uid());
        } else {
            usable.remove(&member.uid());
        }
        // The first four are the initial members.
        if place >= 3 {
            fewest = fewest.min(usable.len());
        }
    }
    assert_eq!(fewest, 3, "of four, one at a time");
    Ok(())
}

/// Labels, rules and policies of a template do not roll a pool; only later members have them. A
/// member that is made after the edit proves that it was seen.
pub async fn a_change_of_labels_rolls_nothing(place: Place) -> Result<()> {
    place.create::<SandboxTemplate>(workload::template("pool", json!({}))).await?;
    let recreate = json!({"spec": {"updateStrategy": {"type": "Recreate"}}});
    place.create::<SandboxWarmPool>(workload::with(workload::pool("pool", "pool", 2), recreate)).await?;
    place.wait_full("pool", 2).await?;
    let old = names(&place, "pool").await?;
    let labels = json!({"spec": {"podTemplate": {"metadata": {"labels": {"team": "burrows"}}},
        "envVarsInjectionPolicy": "Allowed"}});
    place.edit_template("pool", labels).await?;
    scale(&place, "pool", 3).await?;
    place.wait_full("pool", 3).await?;
    let members = place.members("pool").await?;
    assert!(old.is_subset(&members.iter().map(|member| member.name_any()).collect()), "{old:?}");
    for member in members.iter().filter(|member| !old.contains(&member.name_any())) {
        let labels = &member.spec.blueprint.pod_template.metadata.labels;
        assert_eq!(labels.get("team").map(String::as_str), Some("burrows"));
    }
    Ok(())
}

/// Two independent pools, and one that changes to another template of the same content.
pub async fn only_the_pool_of_a_changed_template_rolls(place: Place) -> Result<()> {
    let recreate = json!({"spec": {"updateStrategy": {"type": "Recreate"}}});
    for name in ["left", "right"] {
        place.create::<SandboxTemplate>(workload::template(name, json!({}))).await?;
        let pool = workload::with(workload::pool(name, name, 2), recreate.clone());
        place.create::<SandboxWarmPool>(pool).await?;
    }
    place.wait_full("left", 2).await?;
    place.wait_full("right", 2).await?;
    let (left, right) = (names(&place, "left").await?, names(&place, "right").await?);
    change(&place, "left", "2").await?;
    assert!(all_of(&place, "left", 2, "2").await?.is_disjoint(&left));
    assert_eq!(names(&place, "right").await?, right);

    let before = names(&place, "right").await?;
    place.create::<SandboxTemplate>(workload::template("twin", json!({}))).await?;
    let other = json!({"spec": {"sandboxTemplateRef": {"name": "twin"}}});
    place.patch::<SandboxWarmPool>("right", other).await?;
    let twin = NameHash::of("twin").to_string();
    place
        .eventually("members of the other template", async || {
            let members = place.members("right").await?;
            let switched = members.len() == 2
                && members.iter().all(|member| {
                    member.labels().get(labels::SANDBOX_TEMPLATE_REF_HASH) == Some(&twin)
                        && !before.contains(&member.name_any())
                });
            Ok(switched.then_some(()))
        })
        .await
}

/// A pool whose template is missing creates nothing and reports no error, and is filled when the
/// template exists.
pub async fn a_pool_waits_for_its_template(place: Place) -> Result<()> {
    place.create::<SandboxWarmPool>(workload::pool("pool", "blueprint", 2)).await?;
    place.claim("c", "pool", json!({})).await?;
    super::objects::refused(&place, "c", "TemplateNotFound").await?;
    assert!(place.list::<Sandbox>().await?.is_empty());
    place.create::<SandboxTemplate>(workload::template("blueprint", json!({}))).await?;
    place.wait_full("pool", 2).await?;
    place.wait_claimed("c").await?;
    filled(&place, "pool", 2).await?;
    // Templates come and go; present members stay.
    place.delete::<SandboxTemplate>("blueprint").await?;
    place.wait_gone::<SandboxTemplate>("blueprint").await?;
    assert_eq!(filled(&place, "pool", 2).await?.len(), 2);
    place.wait_claimed("c").await.map(drop)
}
