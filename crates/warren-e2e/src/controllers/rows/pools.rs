//! Tests pools: rolling, replacing, shrinking, and orphaned members.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use warren_api::{NameHash, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, annotations, labels};
use warren_testkit::nodes::{FATE, Fate};

use super::life::HOLD;
use crate::controllers::history::{Entry, version};
use crate::controllers::place::{Place, ready};
use crate::controllers::suite::process::ControllerProcess;
use crate::controllers::workload::{pool, sandbox, simulated, template, volume, with};

fn names(members: &[Sandbox]) -> BTreeSet<String> {
    members.iter().map(|member| member.name_any()).collect()
}

/// Returns an edit of a template that changes the pod.
fn another_pod() -> Value {
    json!({"spec": {"podTemplate": {"spec": {"containers": [
        {"name": "main", "image": "warren.dev/host", "env": [{"name": "NEW", "value": "1"}]}]}}}})
}

fn is_claimed(member: &Sandbox) -> bool {
    member.owner_references().iter().any(|owner| owner.kind == "SandboxClaim")
}

fn is_new(member: &Sandbox) -> bool {
    let container = &member.spec.blueprint.pod_template.spec.containers[0];
    container.env.iter().flatten().any(|variable| variable.name == "NEW")
}

/// Creates a pool with the strategy `Recreate`.
async fn recreating(place: &Place, name: &str, replicas: i32, spec: Value) -> Result<()> {
    place.create::<SandboxTemplate>(template(name, spec)).await?;
    let strategy = json!({"spec": {"updateStrategy": {"type": "Recreate"}}});
    place.create::<SandboxWarmPool>(with(pool(name, name, replicas), strategy)).await?;
    place.wait_full(name, replicas).await?;
    Ok(())
}

pub(super) async fn row_25_only_what_makes_another_pod_rolls_a_pool(place: Place) -> Result<()> {
    let spec = json!({"podTemplate": simulated(Fate::Ready), "volumeClaimTemplates": [volume("data")]});
    recreating(&place, "pool", 2, spec).await?;
    let first = place.members("pool").await?;
    let history = place.record::<Sandbox>().await?;
    for edit in [
        json!({"podTemplate": {"metadata": {"labels": {"x": "y"}, "annotations": {"x": "y"}}}}),
        json!({"volumeClaimTemplates": [with(volume("data"), json!({"metadata": {"labels": {"x": "y"}}}))]}),
    ] {
        // The annotation says which state of the template the pool has judged.
        let judged = |pool: &SandboxWarmPool| pool.annotations().get(annotations::PROGRESSING).cloned();
        let before = judged(&place.get("pool").await?);
        place.patch::<SandboxTemplate>("pool", json!({"spec": edit})).await?;
        place.wait_for("pool", "judged anew", |pool: &SandboxWarmPool| judged(pool) != before).await?;
    }
    // Only the policy: it would change a new member's DNS servers, and still does not roll the
    // pool.
    recreating(&place, "policy", 1, json!({"podTemplate": simulated(Fate::Ready)})).await?;
    let guarded = place.members("policy").await?;
    place.patch::<SandboxTemplate>("policy", json!({"spec": {"networkPolicy": {"egress": [{}]}}})).await?;
    place
        .wait_for("policy-network-policy", "opened", |policy: &NetworkPolicy| {
            let egress = policy.spec.as_ref().and_then(|spec| spec.egress.clone()).unwrap_or_default();
            egress.first().is_some_and(|rule| rule.to.is_none())
        })
        .await?;

    // The same pod in a template of another name does.
    let same: SandboxTemplate = place.get("pool").await?;
    place.create::<SandboxTemplate>(template("renamed", serde_json::to_value(&same.spec)?)).await?;
    let deleted =
        |entry: &Entry<Sandbox>| entry.deleted || entry.object.metadata.deletion_timestamp.is_some();
    assert!(!history.so_far().iter().any(deleted));
    assert_eq!(names(&place.members("pool").await?), names(&first));
    place
        .patch::<SandboxWarmPool>("pool", json!({"spec": {"sandboxTemplateRef": {"name": "renamed"}}}))
        .await?;
    let hash = NameHash::of("renamed").to_string();
    place
        .eventually("two members of the renamed template", async || {
            let members = place.members("pool").await?;
            let renamed =
                members.iter().filter(|member| member.labels()[labels::SANDBOX_TEMPLATE_REF_HASH] == hash);
            Ok((members.len() == 2 && renamed.count() == 2).then_some(()))
        })
        .await?;
    place.wait_full("pool", 2).await?;
    assert!(names(&place.members("pool").await?).is_disjoint(&names(&first)));
    assert_eq!(names(&place.members("policy").await?), names(&guarded));
    Ok(())
}

pub(super) async fn row_25_a_rollout_never_has_more_than_the_pool_s_size(place: Place) -> Result<()> {
    const SIZE: i32 = 3;
    recreating(&place, "pool", SIZE, json!({"podTemplate": simulated(Fate::Ready)})).await?;
    let first = place.members("pool").await?;
    for member in &first {
        place.patch::<Sandbox>(&member.name_any(), json!({"metadata": {"finalizers": [HOLD]}})).await?;
    }
    let history = place.record::<Sandbox>().await?;
    place.patch::<SandboxTemplate>("pool", another_pod()).await?;
    // All are being deleted, and held by finalizers. No replacements are made, and a new claim gets
    // none of them.
    place
        .eventually("all old members are going", async || {
            Ok(place.members("pool").await?.is_empty().then_some(()))
        })
        .await?;
    place.claim("c", "pool", json!({})).await?;
    let served = place.wait_claimed("c").await?;
    assert!(!names(&first).contains(&served.name_any()) && is_new(&served), "{served:?}");
    assert!(place.members("pool").await?.is_empty());
    for member in &first {
        place.patch::<Sandbox>(&member.name_any(), json!({"metadata": {"finalizers": null}})).await?;
    }
    place.wait_full("pool", SIZE).await?;
    let members = place.members("pool").await?;
    assert!(members.iter().all(is_new) && names(&members).is_disjoint(&names(&first)));

    let selector = NameHash::of("pool").to_string();
    let mut there: BTreeMap<String, bool> = BTreeMap::new();
    for entry in history.so_far() {
        let pooled = entry.object.labels().get(labels::WARM_POOL_SANDBOX) == Some(&selector);
        there.insert(entry.object.name_any(), pooled && !entry.deleted);
        let count = there.values().filter(|there| **there).count();
        assert!(count <= usize::try_from(SIZE)?, "{there:?}");
    }
    Ok(())
}

/// Claims arrive while a pool is rolled. A claim that arrives once the first outdated member is
/// being deleted must get none of them, although most still exist. An earlier claim may get one: an
/// assignment that was decided before the edit was seen may be written a moment later, and an
/// assignment is never swapped.
pub(super) async fn row_25_outdated_members_are_not_handed_out_while_a_pool_is_rolled(
    place: Place,
) -> Result<()> {
    const SIZE: i32 = 16;
    const CLIENTS: usize = 4;
    // Each client creates claims until the first outdated member is being deleted, and then this
    // many more. None is deleted if all were assigned before.
    const MORE: usize = 3;
    const MOST: usize = 20;
    // A round without a claim during the deletions proves nothing; such rounds are rare.
    const ROUNDS: usize = 12;
    const ENOUGH: usize = 2;
    recreating(&place, "pool", SIZE, json!({"podTemplate": simulated(Fate::Ready)})).await?;
    let (sandboxes, claims) = (place.record::<Sandbox>().await?, place.record::<SandboxClaim>().await?);
    let mut shown = 0;
    for round in 0..ROUNDS {
        let outdated = names(&place.members("pool").await?);
        let is_going = |Entry { object, deleted }: &Entry<Sandbox>| {
            outdated.contains(&object.name_any())
                && !is_claimed(object)
                && (*deleted || object.metadata.deletion_timestamp.is_some())
        };
        let ask = async |client: usize| {
            let (mut asked, mut more) = (Vec::new(), MORE);
            while more > 0 && asked.len() < MOST {
                let name = format!("c{round}-{client}-{}", asked.len());
                place.claim(&name, "pool", json!({})).await?;
                asked.push(name);
                more -= usize::from(sandboxes.so_far().iter().any(is_going));
            }
            anyhow::Ok(asked)
        };
        let edit = json!({"spec": {"podTemplate": {"spec": {"hostname": format!("round-{round}")}}}});
        place.patch::<SandboxTemplate>("pool", edit).await?;
        let asked = futures::future::try_join_all((0..CLIENTS).map(ask)).await?;
        let all: BTreeSet<String> = asked.into_iter().flatten().collect();
        for claim in &all {
            place.wait_claimed(claim).await?;
        }
        place.wait_full("pool", SIZE).await?;

        // The recordings use other watches than the wait before.
        let (sandboxes, claims) = place
            .eventually("the records of the round", async || {
                let (sandboxes, claims) = (sandboxes.so_far(), claims.so_far());
                let left = sandboxes.iter().filter(|entry| entry.deleted || is_claimed(&entry.object));
                let left: BTreeSet<String> = left.map(|entry| entry.object.name_any()).collect();
                let served = claims.iter().filter(|entry| ready(&entry.object).starts_with("True"));
                let served: BTreeSet<String> = served.map(|entry| entry.object.name_any()).collect();
                let whole = outdated.is_subset(&left) && all.is_subset(&served);
                Ok(whole.then_some((sandboxes, claims)))
            })
            .await?;
        let going = sandboxes.iter().filter(|entry| is_going(entry));
        let going: Vec<u64> = going.map(|entry| version(&entry.object)).collect();
        let (Some(first), Some(last)) = (going.iter().min(), going.iter().max()) else { continue };
        let mut asked: BTreeMap<String, u64> = BTreeMap::new();
        let mut between = false;
        for Entry { object, .. } in claims.iter().filter(|entry| all.contains(&entry.object.name_any())) {
            let asked = *asked.entry(object.name_any()).or_insert(version(object));
            between |= (*first..*last).contains(&asked);
            let promised = object.annotations().get(annotations::SANDBOX_NAME);
            let is_outdated = promised.is_some_and(|sandbox| outdated.contains(sandbox));
            assert!(!is_outdated || asked < *first, "asked for at {asked}, going since {first}: {object:?}");
        }
        shown += usize::from(between);
        if shown == ENOUGH {
            break;
        }
    }
    anyhow::ensure!(shown > 0, "no claim ever came while outdated members were going");
    Ok(())
}

pub(super) async fn row_25_without_recreate_stale_members_are_handed_out(place: Place) -> Result<()> {
    place.pool("pool", 1, json!({})).await?;
    place.wait_full("pool", 1).await?;
    let stale = place.members("pool").await?.remove(0);
    place.edit_template("pool", another_pod()).await?;
    place.touch_pool("pool").await?;
    place.claim("c", "pool", json!({})).await?;
    let taken = place.wait_claimed("c").await?;
    assert_eq!((taken.name_any(), is_new(&taken)), (stale.name_any(), false));
    let next = place
        .eventually("a new member", async || Ok(place.members("pool").await?.into_iter().find(is_new)))
        .await?;
    assert_ne!(next.name_any(), stale.name_any());
    Ok(())
}

/// Returns the second of an object's creation.
fn born(member: &Sandbox) -> Result<Timestamp> {
    member.metadata.creation_timestamp.clone().map(|time| time.0).context("a time of creation")
}

/// Creates a member of a pool directly: independent controllers could each make one. The pool has
/// no template, so that no controller makes another. It stays after its deletion, to be inspected.
async fn member_by_hand(place: &Place, name: &str, spec: Value) -> Result<Sandbox> {
    let owner: SandboxWarmPool = place.create(pool(name, "missing", 1)).await?;
    let metadata = json!({
        "finalizers": [HOLD],
        "labels": {labels::WARM_POOL_SANDBOX: NameHash::of(name).to_string()},
        "ownerReferences": [{"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "name": name,
            "uid": owner.uid(), "controller": true, "blockOwnerDeletion": true}],
    });
    place.create(with(sandbox(name, spec), json!({"metadata": metadata}))).await
}

pub(super) async fn row_26_members_that_turn_not_ready_are_replaced_and_unschedulable_ones_held(
    place: Place,
) -> Result<()> {
    const GRACE: SignedDuration = SignedDuration::from_secs(10);
    /// The number of members that become unready, one after the other.
    const TURNING: i32 = 3;
    let not_ready = || json!({"podTemplate": simulated(Fate::NotReady)});
    place.pool("flips", TURNING, json!({"podTemplate": simulated(Fate::Ready)})).await?;
    // No node handles it: it has no room until this scenario provides it.
    place.pool("held", 1, json!({"podTemplate": simulated(Fate::Ignored)})).await?;
    place.wait_full("flips", TURNING).await?;
    let held =
        place.eventually("a member", async || Ok(place.members("held").await?.into_iter().next())).await?;
    let pod = held.name_any();
    place.wait::<Pod>(&pod, "made", |pod: Option<&Pod>| pod.is_some()).await?;
    let scheduled = |status: &str, more: Value| with(json!({"type": "PodScheduled", "status": status}), more);
    let no_room = scheduled("False", json!({"reason": "Unschedulable", "message": "no room"}));
    place.patch_status::<Pod>(&pod, json!({"conditions": [no_room]})).await?;
    // A controller with a short grace period beside the others, which have a long one and see
    // nothing to do. The members exist before it starts: two independent controllers could both
    // make one.
    let grace = format!("--sandbox-warm-pool-readiness-grace-period={}s", GRACE.as_secs());
    let _impatient = ControllerProcess::start(place.home(), &["--leader-elect=false", &grace])?;
    let warning = place.wait_event("held", "WarmPoolNotProgressing").await?;
    assert_eq!(warning.type_.as_deref(), Some("Warning"));

    // Created after the controller has started, and never ready; nothing else happens to it or its
    // pool.
    let stuck = member_by_hand(&place, "stuck", not_ready()).await?;

    let still: Sandbox = place.get(&held.name_any()).await?;
    assert_eq!(ready(&still), "False/DependenciesNotReady");
    // It is scheduled, and the pod is ready at once: a node's speed is not tested here.
    let up = json!({"phase": "Running", "podIP": "192.0.2.1", "podIPs": [{"ip": "192.0.2.1"}],
        "conditions": [scheduled("True", json!({})), {"type": "Ready", "status": "True"}]});
    place.patch_status::<Pod>(&pod, up).await?;
    place.wait_full("held", 1).await?;
    let relief = place.wait_event("held", "WarmPoolProgressing").await?;
    assert_eq!(relief.type_.as_deref(), Some("Normal"));
    assert_eq!(names(&place.members("held").await?), names(&[held]), "held, not replaced");

    turning_not_ready_is_no_birth(&place, GRACE, place.members("flips").await?, not_ready()).await?;

    // It gets its grace period, and no more.
    let ended = place
        .wait_for("stuck", "on its way out", |stuck: &Sandbox| stuck.metadata.deletion_timestamp.is_some())
        .await?;
    let end = ended.metadata.deletion_timestamp.context("just seen")?.0;
    assert!(end >= born(&stuck)? + GRACE, "{end:?} after {:?}", born(&stuck)?);

    // Only the controller with the short grace period had an event to write, and wrote it once.
    let events = place.events("held").await?;
    let reasons: Vec<&str> = events.iter().filter_map(|event| event.reason.as_deref()).collect();
    assert_eq!(reasons, ["WarmPoolNotProgressing", "WarmPoolProgressing"]);
    Ok(())
}

/// A member past its grace period becomes unready, while one that never was ready still has time:
/// the former must be deleted first. With a new grace period from that moment on, it would be
/// deleted last.
async fn turning_not_ready_is_no_birth(
    place: &Place,
    grace: SignedDuration,
    members: Vec<Sandbox>,
    not_ready: Value,
) -> Result<()> {
    // The pod of a sandbox is changed by its template: a direct change of the pod would be
    // reverted.
    let turn = json!({"spec": {"podTemplate": {"metadata": {"annotations": {FATE: "not-ready"}}}}});
    let history = place.record::<Sandbox>().await?;
    let end = async |name: &str| {
        place
            .eventually(&format!("the record of the end of {name}"), async || {
                let mut versions = history.of(name).into_iter();
                let end =
                    versions.find(|one| one.deleted || one.object.metadata.deletion_timestamp.is_some());
                Ok(end.map(|entry| version(&entry.object)))
            })
            .await
    };
    for old in &members {
        let old_name = old.name_any();
        place.second_after(&(born(old)? + grace).to_string()).await?;
        let young_name = format!("young-{old_name}");
        let young = member_by_hand(place, &young_name, not_ready.clone()).await?;
        place.second_after(&(born(&young)? + grace / 2).to_string()).await?;
        place.patch::<Sandbox>(&old_name, turn.clone()).await?;
        place
            .wait(&old_name, "not ready", |old: Option<&Sandbox>| {
                old.is_none_or(|old| !ready(old).starts_with("True"))
            })
            .await?;
        let in_time = Timestamp::now() + SignedDuration::from_secs(2) < born(&young)? + grace;
        // Over for the young one, but not for the old one if it had a new grace period.
        place.second_after(&(born(&young)? + grace).to_string()).await?;
        place.touch_pool(&young_name).await?;
        let (old_end, young_end) = (end(&old_name).await?, end(&young_name).await?);
        if in_time {
            assert!(old_end < young_end, "the old one went at {old_end}, the young one at {young_end}");
            place.wait_full("flips", i32::try_from(members.len())?).await?;
            return Ok(());
        }
    }
    anyhow::bail!("a member never turned not ready within half of a grace of {grace:?}")
}

pub(super) async fn row_27_not_ready_members_go_first_and_then_the_newest(place: Place) -> Result<()> {
    // One after the other, so that each has another second.
    place.pool("pool", 1, json!({"podTemplate": simulated(Fate::NotReady)})).await?;
    let mut ages: Vec<String> = Vec::new();
    for count in 1..=3_usize {
        place.patch::<SandboxWarmPool>("pool", json!({"spec": {"replicas": count}})).await?;
        let member = place
            .eventually("one more member", async || {
                let members = place.members("pool").await?;
                Ok(members.into_iter().find(|member| !ages.contains(&member.name_any())))
            })
            .await?;
        ages.push(member.name_any());
        place.second_after(&born(&member)?.to_string()).await?;
        if count == 1 {
            let healthy = json!({"spec": {"podTemplate": {"metadata": {"annotations": {FATE: "ready"}}}}});
            place.edit_template("pool", healthy).await?;
        } else {
            place.wait_ready::<Sandbox>(&member.name_any(), "True/DependenciesReady").await?;
        }
    }
    for (replicas, left) in [(2, vec![&ages[1], &ages[2]]), (1, vec![&ages[1]])] {
        place.patch::<SandboxWarmPool>("pool", json!({"spec": {"replicas": replicas}})).await?;
        place.wait_full("pool", replicas).await?;
        let members = names(&place.members("pool").await?);
        assert_eq!(members, left.into_iter().cloned().collect());
    }
    Ok(())
}

pub(super) async fn row_27_orphans_are_taken_in_if_equal_and_deleted_if_not(place: Place) -> Result<()> {
    place.pool("pool", 1, json!({"podTemplate": simulated(Fate::Ready)})).await?;
    place.wait_full("pool", 1).await?;
    let member = place.members("pool").await?.remove(0);
    let history = place.record::<Sandbox>().await?;
    let orphan = |name: &str, spec: Value| {
        let own = serde_json::to_value(&member.spec).unwrap_or_default();
        json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": {"name": name, "labels": member.labels()}, "spec": with(own, spec)})
    };
    place.patch::<SandboxWarmPool>("pool", json!({"spec": {"replicas": 2}})).await?;
    place.create::<Sandbox>(orphan("equal", json!({}))).await?;
    let other = json!({"podTemplate": {"spec": {"containers": [{"name": "main", "image": "warren.dev/host",
        "env": [{"name": "NEW", "value": "1"}]}]}}});
    place.create::<Sandbox>(orphan("different", other)).await?;
    place.wait_gone::<Sandbox>("different").await?;
    // The pool may have filled the room faster, and then the newest goes; the equal one is adopted
    // in either case.
    place
        .eventually("the equal one taken in", async || {
            let taken = history.of("equal").iter().any(|entry| {
                entry.object.owner_references().iter().any(|owner| owner.kind == "SandboxWarmPool")
            });
            Ok(taken.then_some(()))
        })
        .await?;
    place.wait_full("pool", 2).await?;

    // A sandbox without a controller is never claimed. Its pool has no template to compare it with,
    // and so does not adopt it.
    place.create::<SandboxWarmPool>(pool("later", "missing", 0)).await?;
    let lonely = with(
        orphan("lonely", json!({})),
        json!({"metadata": {"labels": {labels::WARM_POOL_SANDBOX: NameHash::of("later").to_string()}}}),
    );
    place.create::<Sandbox>(lonely).await?;
    place.wait_ready::<Sandbox>("lonely", "True/DependenciesReady").await?;
    place.claim("c", "later", json!({})).await?;
    place.wait_ready::<SandboxClaim>("c", "False/TemplateNotFound").await?;
    assert!(place.get::<Sandbox>("lonely").await?.owner_references().is_empty());
    Ok(())
}
