//! Tests claims that adopt warm sandboxes.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use serde_json::json;
use warren_api::{NameHash, Sandbox, SandboxClaim, SandboxWarmPool, annotations, labels};
use warren_testkit::nodes::{FATE, Fate};

use super::life::HOLD;
use crate::controllers::history::version;
use crate::controllers::place::{Place, condition, ready};
use crate::controllers::workload::{claim, sandbox, simulated, volume, with};

fn claims_of(sandbox: &Sandbox) -> Vec<String> {
    let owners = sandbox.owner_references().iter();
    owners.filter(|owner| owner.kind == "SandboxClaim").map(|owner| owner.uid.clone()).collect()
}

/// The seconds that a claim waits for members that may still get an address.
const WAIT: i64 = 2;

/// Returns the second in which the server created an object.
fn born<K: ResourceExt>(object: &K) -> Result<i64> {
    object.meta().creation_timestamp.as_ref().map(|time| time.0.as_second()).context("a time of creation")
}

async fn only_member(place: &Place, pool: &str) -> Result<Sandbox> {
    let mut members = place.members(pool).await?;
    anyhow::ensure!(members.len() == 1, "{pool} has {} members", members.len());
    Ok(members.remove(0))
}

/// Waits until a claim has a sandbox, ready or not, and returns it.
async fn bound(place: &Place, claim: &str) -> Result<Sandbox> {
    let claim = place
        .wait_for(claim, "bound", |claim: &SandboxClaim| {
            claim.status.as_ref().is_some_and(|status| status.sandbox.is_some())
        })
        .await?;
    place.get(&claim.status.and_then(|status| status.sandbox?.name).context("a name")?).await
}

pub(super) async fn row_15_a_warm_claim_takes_the_sandbox_with_its_pod(place: Place) -> Result<()> {
    place.pool("pool", 1, json!({})).await?;
    place.wait_full("pool", 1).await?;
    let waiting = only_member(&place, "pool").await?;
    let pod: Pod = place.get(&waiting.name_any()).await?;
    // Another owner that is not the controller. It exists, so only the claim can remove its
    // reference.
    let friend: ConfigMap = place.create(json!({"metadata": {"name": "friend"}})).await?;
    let mut owners = serde_json::to_value(waiting.owner_references())?;
    owners.as_array_mut().context("owners")?.push(
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": friend.name_any(), "uid": friend.uid()}),
    );
    let waiting: Sandbox =
        place.patch(&waiting.name_any(), json!({"metadata": {"ownerReferences": owners}})).await?;
    assert_eq!(waiting.owner_references().len(), 2, "the pool and the other");
    let history = place.record::<Sandbox>().await?;
    let claim = place.claim("c", "pool", json!({})).await?;
    let sandbox = place.wait_claimed("c").await?;

    assert_eq!((sandbox.name_any(), sandbox.uid()), (waiting.name_any(), waiting.uid()));
    assert_eq!(place.get::<Pod>(&pod.name_any()).await?.uid(), pod.uid());
    let owners: Vec<_> = sandbox.owner_references().iter().map(|owner| Some(owner.uid.clone())).collect();
    assert_eq!(owners, [claim.uid()], "all other owners are gone");
    for key in [labels::WARM_POOL_SANDBOX, labels::SANDBOX_TEMPLATE_HASH, labels::SANDBOX_POD_TEMPLATE_HASH] {
        assert!(waiting.labels().contains_key(key) && !sandbox.labels().contains_key(key), "{key}");
    }
    let kept = labels::SANDBOX_TEMPLATE_REF_HASH;
    assert_eq!(sandbox.labels()[kept], waiting.labels()[kept]);
    assert_eq!(sandbox.labels()[labels::LAUNCH_TYPE], "warm");
    let claim: SandboxClaim = place.get("c").await?;
    assert_eq!(claim.annotations()[annotations::SANDBOX_NAME], sandbox.name_any());

    // The recording uses another watch than the wait before.
    let reached = place
        .eventually("the record of the adoption", async || {
            let entries = history.of(&sandbox.name_any());
            Ok(entries.iter().any(|entry| !claims_of(&entry.object).is_empty()).then_some(entries))
        })
        .await?;
    for entry in &reached {
        let taken = !claims_of(&entry.object).is_empty();
        let named = entry.object.annotations().contains_key(annotations::POD_NAME);
        assert!(!(taken && ready(&entry.object).starts_with("True") && !named), "{:?}", entry.object);
    }
    Ok(())
}

pub(super) async fn row_16_a_taken_pod_loses_the_marks_of_the_pool(place: Place) -> Result<()> {
    let evict = annotations::SAFE_TO_EVICT;
    let own = |value: &str| json!({"podTemplate": {"metadata": {"annotations": {evict: value}}}});
    for (name, template, spec, before, after) in [
        ("plain", json!({}), json!({}), "true", None),
        ("template", own("false"), json!({}), "false", Some("false")),
        // A value from the template is not removed as the pool's, even if the pool would set the
        // same.
        ("same", own("true"), json!({}), "true", Some("true")),
        (
            "claim",
            json!({}),
            json!({"additionalPodMetadata": {"annotations": {evict: "true"}}}),
            "true",
            Some("true"),
        ),
    ] {
        place.pool(name, 1, template).await?;
        place.wait_full(name, 1).await?;
        let pod = only_member(&place, name).await?.name_any();
        let waiting: Pod = place.get(&pod).await?;
        assert!(waiting.labels().contains_key(labels::WARM_POOL_SANDBOX));
        assert_eq!(waiting.annotations().get(evict).map(String::as_str), Some(before), "{name}");
        place.claim(name, name, spec).await?;
        assert_eq!(place.wait_claimed(name).await?.name_any(), pod);
        let taken = place
            .wait_for(&pod, "free of the pool", |pod: &Pod| {
                !pod.labels().contains_key(labels::WARM_POOL_SANDBOX)
            })
            .await?;
        assert_eq!(taken.annotations().get(evict).map(String::as_str), after, "{name}");
        assert_eq!(taken.uid(), waiting.uid());
    }
    Ok(())
}

pub(super) async fn row_17_every_claim_gets_exactly_one_sandbox_across_kills(place: Place) -> Result<()> {
    const MEMBERS: i32 = 8;
    const CLAIMS: usize = 24;
    place.pool("pool", MEMBERS, json!({})).await?;
    place.wait_full("pool", MEMBERS).await?;
    let history = place.record::<Sandbox>().await?;
    let create = |number: usize| {
        let place = place.clone();
        async move { place.claim(&format!("c{number}"), "pool", json!({})).await }
    };
    let served = || {
        let entries = history.so_far().into_iter();
        let claimed = entries.filter(|entry| !claims_of(&entry.object).is_empty());
        claimed.map(|entry| entry.object.name_any()).collect::<BTreeSet<_>>().len()
    };
    for burst in [0..CLAIMS / 2, CLAIMS / 2..CLAIMS] {
        let before = served();
        let kill = async {
            // They are in the middle of it when the first of these claims has its sandbox.
            place.eventually("one more served", async || Ok((served() > before).then_some(()))).await?;
            place.home().restart_controllers().await
        };
        let (made, killed) = tokio::join!(futures::future::try_join_all(burst.map(create)), kill);
        made?;
        killed?;
    }
    let mut launches: BTreeMap<String, usize> = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for number in 0..CLAIMS {
        let name = format!("c{number}");
        let sandbox = place.wait_claimed(&name).await?;
        let claim: SandboxClaim = place.get(&name).await?;
        assert_eq!(claims_of(&sandbox), [claim.uid().unwrap_or_default()]);
        assert_eq!(claim.annotations()[annotations::SANDBOX_NAME], sandbox.name_any());
        assert!(taken.insert(sandbox.name_any()), "{} serves two claims", sandbox.name_any());
        *launches.entry(sandbox.labels()[labels::LAUNCH_TYPE].clone()).or_default() += 1;
    }
    assert!(launches["warm"] >= usize::try_from(MEMBERS)?, "all that waited were taken: {launches:?}");
    place.wait_full("pool", MEMBERS).await?;

    // In all recorded states: no sandbox ever had two claims, and no claim two sandboxes.
    let mut claims: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut sandboxes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in history.so_far() {
        for claim in claims_of(&entry.object) {
            let uid = entry.object.uid().unwrap_or_default();
            claims.entry(uid.clone()).or_default().insert(claim.clone());
            sandboxes.entry(claim).or_default().insert(uid);
        }
    }
    let greedy: Vec<_> = claims.iter().chain(&sandboxes).filter(|(_, others)| others.len() != 1).collect();
    assert!(greedy.is_empty(), "{greedy:?}");
    Ok(())
}

pub(super) async fn row_17_as_many_claims_as_members_are_warm_and_the_others_cold_across_a_kill(
    place: Place,
) -> Result<()> {
    const MEMBERS: i32 = 4;
    const CLAIMS: usize = 10;
    place.pool("pool", MEMBERS, json!({})).await?;
    place.wait_full("pool", MEMBERS).await?;
    let members: BTreeSet<String> = place.members("pool").await?.iter().map(ResourceExt::name_any).collect();
    // Their replacements never get an address, so only these can be adopted.
    let gate = json!({"schedulingGates": [{"name": "test.warren.dev/gate"}]});
    place.edit_template("pool", json!({"spec": {"podTemplate": {"spec": gate}}})).await?;
    let history = place.record::<Sandbox>().await?;
    let kill = async {
        place
            .eventually("one served", async || {
                let mut entries = history.so_far().into_iter();
                Ok(entries.any(|entry| !claims_of(&entry.object).is_empty()).then_some(()))
            })
            .await?;
        place.home().restart_controllers().await
    };
    let names: Vec<String> = (0..CLAIMS).map(|number| format!("c{number}")).collect();
    let claims = names.iter().map(|name| place.claim(name, "pool", json!({})));
    tokio::try_join!(futures::future::try_join_all(claims), kill)?;
    let mut taken = BTreeSet::new();
    for name in &names {
        let sandbox = bound(&place, name).await?;
        let is_warm = sandbox.labels()[labels::LAUNCH_TYPE] == "warm";
        assert_eq!(is_warm, members.contains(&sandbox.name_any()), "{sandbox:?}");
        assert_eq!(is_warm, sandbox.name_any() != *name, "{sandbox:?}");
        assert_eq!(claims_of(&sandbox), [place.get::<SandboxClaim>(name).await?.uid().unwrap_or_default()]);
        assert!(!is_warm || taken.insert(sandbox.name_any()), "{} serves two claims", sandbox.name_any());
    }
    assert_eq!(taken, members, "all that waited were taken");
    Ok(())
}

pub(super) async fn row_18_a_committed_assignment_is_completed_first(place: Place) -> Result<()> {
    place.pool("silent", 1, json!({"podTemplate": simulated(Fate::NoAddress)})).await?;
    place.pool("pool", 1, json!({})).await?;
    place.pool("empty", 0, json!({})).await?;
    place.wait_full("pool", 1).await?;
    let silent = place
        .eventually("a member", async || Ok(place.members("silent").await?.into_iter().next()))
        .await?
        .name_any();
    place.claim("owner", "pool", json!({})).await?;
    let owned = place.wait_claimed("owner").await?.name_any();
    place.wait_full("pool", 1).await?;
    let pooled = only_member(&place, "pool").await?.name_any();
    let assigned = |name: &str, pool: &str, sandbox: &str| {
        let body = with(
            claim(name, pool, json!({})),
            json!({"metadata": {"annotations": {annotations::SANDBOX_NAME: sandbox}}}),
        );
        place.create::<SandboxClaim>(body)
    };

    // Half-done by a controller that died: it is completed, although a new claim would not adopt a
    // sandbox without an address.
    let half: SandboxClaim = assigned("half", "silent", &silent).await?;
    let finished = place
        .wait_for("half", "bound", |claim: &SandboxClaim| {
            claim.status.as_ref().and_then(|status| status.sandbox.as_ref()?.name.as_deref())
                == Some(silent.as_str())
        })
        .await?;
    assert_eq!(claims_of(&place.get(&silent).await?), [half.uid().unwrap_or_default()]);
    assert_eq!(finished.annotations()[annotations::SANDBOX_NAME], silent);

    // Sandboxes of the claims' own pool that cannot be adopted: one without its labels, one that is
    // being deleted, and one without a controller.
    let pool: SandboxWarmPool = place.get("empty").await?;
    let owner = json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "name": "empty",
        "uid": pool.uid(), "controller": true, "blockOwnerDeletion": true});
    let hash = NameHash::of("empty").to_string();
    let pool_labels = json!({labels::WARM_POOL_SANDBOX: hash, labels::SANDBOX_TEMPLATE_REF_HASH: hash});
    for (name, metadata) in [
        ("bare", json!({"ownerReferences": [owner]})),
        ("dying", json!({"ownerReferences": [owner], "labels": pool_labels, "finalizers": [HOLD]})),
        ("nobody", json!({})),
    ] {
        place.create::<Sandbox>(with(sandbox(name, json!({})), json!({"metadata": metadata}))).await?;
    }
    place.delete::<Sandbox>("dying").await?;

    // Missing, of another pool, of another claim, or no longer available: the reference is dropped,
    // and the claim is served like any other. A reference to an orphan is dropped, too, where
    // agent-sandbox's controller would keep it: no claim may adopt that sandbox.
    for (name, sandbox) in [
        ("gone", "no-such-sandbox"),
        ("other-pool", pooled.as_str()),
        ("taken", owned.as_str()),
        ("unlabelled", "bare"),
        ("deleted", "dying"),
        ("unowned", "nobody"),
    ] {
        assigned(name, "empty", sandbox).await?;
        let own = place.wait_claimed(name).await?;
        assert_eq!(own.name_any(), name, "a cold start, as its pool is empty");
        let claim: SandboxClaim = place.get(name).await?;
        assert_eq!(claim.annotations()[annotations::SANDBOX_NAME], name);
        place.wait_event(name, "SandboxProvisioned").await?;
    }
    assert_eq!(
        claims_of(&place.get(&owned).await?),
        [place.get::<SandboxClaim>("owner").await?.uid().unwrap_or_default()]
    );
    assert_eq!(only_member(&place, "pool").await?.name_any(), pooled);
    for name in ["bare", "dying", "nobody"] {
        assert!(claims_of(&place.get(name).await?).is_empty(), "{name}");
    }
    place.release::<Sandbox>("dying").await?;
    place.wait_event("owner", "SandboxAdopted").await?;
    let events = place.events("half").await?;
    assert!(events.iter().all(|event| event.reason.as_deref() != Some("SandboxAdopted")), "{events:?}");
    Ok(())
}

pub(super) async fn row_19_ready_members_come_first_and_a_member_with_an_address_beats_a_cold_start(
    place: Place,
) -> Result<()> {
    let addressed =
        |member: &Sandbox| member.status.as_ref().is_some_and(|status| !status.pod_ips.is_empty());
    place.pool("pool", 1, json!({"podTemplate": simulated(Fate::NotReady)})).await?;
    let first = place
        .eventually("a member with an address", async || {
            Ok(place.members("pool").await?.into_iter().find(addressed))
        })
        .await?;
    // Not ready, but better than a cold start.
    place.claim("first", "pool", json!({})).await?;
    let taken = bound(&place, "first").await?;
    assert_eq!((taken.name_any(), taken.labels()[labels::LAUNCH_TYPE].as_str()), (first.name_any(), "warm"));

    // An older one that is not ready, and a younger one that is.
    let older = place
        .eventually("another member with an address", async || {
            Ok(place.members("pool").await?.into_iter().find(addressed))
        })
        .await?;
    let healed = json!({"spec": {"podTemplate": {"metadata": {"annotations": {FATE: "ready"}}}}});
    place.edit_template("pool", healed).await?;
    place.patch::<SandboxWarmPool>("pool", json!({"spec": {"replicas": 2}})).await?;
    place
        .wait_for("pool", "one of two ready", |pool: &SandboxWarmPool| {
            let status = pool.status.clone().unwrap_or_default();
            (status.replicas, status.ready_replicas) == (2, 1)
        })
        .await?;
    place.claim("second", "pool", json!({})).await?;
    let taken = place.wait_claimed("second").await?;
    assert_ne!(taken.name_any(), older.name_any());
    assert_eq!(taken.labels()[labels::LAUNCH_TYPE], "warm");

    // An empty pool causes no wait. A busy machine may delay some of these claims; a wait would
    // delay all.
    place.pool("empty", 0, json!({"podTemplate": simulated(Fate::Ready)})).await?;
    let mut waits = Vec::new();
    for number in 0..5 {
        let name = format!("cold-{number}");
        let claim = place.claim(&name, "empty", json!({})).await?;
        let own = place.wait_claimed(&name).await?;
        assert_eq!(own.labels()[labels::LAUNCH_TYPE], "cold");
        waits.push(born(&own)? - born(&claim)?);
    }
    assert!(
        waits.iter().any(|seconds| *seconds < WAIT),
        "made so many seconds after they were asked for: {waits:?}"
    );
    Ok(())
}

pub(super) async fn row_19_members_without_an_address_make_a_claim_wait_for_two_seconds(
    place: Place,
) -> Result<()> {
    place.pool("pool", 1, json!({"podTemplate": simulated(Fate::NoAddress)})).await?;
    let member =
        place.eventually("a member", async || Ok(place.members("pool").await?.into_iter().next())).await?;
    place
        .wait_for(&member.name_any(), "running", |pod: &Pod| {
            pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
        })
        .await?;
    let (claims, sandboxes) = (place.record::<SandboxClaim>().await?, place.record::<Sandbox>().await?);
    let claim = place.claim("c", "pool", json!({})).await?;
    let cold: Sandbox = place
        .eventually("the record of a sandbox", async || Ok(sandboxes.of("c").into_iter().next()))
        .await?
        .object;
    assert_eq!(cold.labels()[labels::LAUNCH_TYPE], "cold");
    // Not earlier. The upper limit depends on the machine. That the sandbox is made at all while
    // the member stays as it is shows that the wait ends; its exact end is tested in
    // `warren-decide`.
    let waited = born(&cold)? - born(&claim)?;
    assert!(waited >= WAIT, "made {waited} s after it was asked for");
    // Until then the claim has no status at all.
    let told = place
        .eventually("the record of a status", async || {
            let mut entries = claims.of("c").into_iter();
            Ok(entries.find(|entry| condition(&entry.object, "Ready").is_some()))
        })
        .await?
        .object;
    assert!(version(&told) > version(&cold), "told before the sandbox was made: {told:?}");
    Ok(())
}

pub(super) async fn row_19_the_node_with_most_members_gives_first(place: Place) -> Result<()> {
    // The oldest is alone on its node, and two younger ones share another.
    let on =
        |node: &str| json!({"podTemplate": {"spec": {"nodeSelector": {"kubernetes.io/hostname": node}}}});
    let template = with(json!({"podTemplate": simulated(Fate::Ready)}), on("simulated-0"));
    place.pool("pool", 1, template).await?;
    place.wait_full("pool", 1).await?;
    place.edit_template("pool", json!({"spec": on("simulated-1")})).await?;
    place.patch::<SandboxWarmPool>("pool", json!({"spec": {"replicas": 3}})).await?;
    place.wait_full("pool", 3).await?;
    place.claim("c", "pool", json!({})).await?;
    let taken = place.wait_claimed("c").await?;
    assert_eq!(taken.status.and_then(|status| status.node_name).as_deref(), Some("simulated-1"));
    Ok(())
}

pub(super) async fn row_20_own_env_or_volumes_bypass_a_full_pool(place: Place) -> Result<()> {
    let template = json!({"envVarsInjectionPolicy": "Allowed", "volumeClaimTemplatesPolicy": "Allowed",
        "podTemplate": simulated(Fate::Ready)});
    place.pool("pool", 1, template).await?;
    place.wait_full("pool", 1).await?;
    let member = only_member(&place, "pool").await?;
    place.claim("env", "pool", json!({"env": [{"name": "A", "value": "1"}]})).await?;
    place.claim("vol", "pool", json!({"volumeClaimTemplates": [volume("data")]})).await?;
    for name in ["env", "vol"] {
        let own = place.wait_claimed(name).await?;
        assert_eq!((own.name_any().as_str(), own.labels()[labels::LAUNCH_TYPE].as_str()), (name, "cold"));
    }
    let pod: Pod = place.get("env").await?;
    let variables = pod.spec.and_then(|spec| spec.containers[0].env.clone()).unwrap_or_default();
    assert!(variables.iter().any(|variable| variable.name == "A" && variable.value.as_deref() == Some("1")));
    let after = only_member(&place, "pool").await?;
    assert_eq!(
        (after.name_any(), after.uid()),
        (member.name_any(), member.uid()),
        "the pool was not touched"
    );
    Ok(())
}
