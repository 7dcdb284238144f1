//! Tests claims: served from a pool or with a new sandbox, and with additions of their own.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{EnvVar, Pod};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use warren_api::{NameHash, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, annotations, labels};

use super::objects::{controller, observed, refused};
use super::referee::Referee;
use crate::controllers::place::{Place, message, ready, state};
use crate::controllers::workload;

/// A warm sandbox gets a new owner and keeps its pod, and none of the pool's labels stay; the pool
/// is refilled.
pub async fn a_claim_takes_a_waiting_sandbox(place: Place) -> Result<()> {
    place.pool("pool", 2, json!({})).await?;
    place.wait_full("pool", 2).await?;
    let waiting: BTreeSet<String> = place.members("pool").await?.iter().map(|one| one.name_any()).collect();
    let pods: Vec<Pod> = place.list().await?;
    for pod in &pods {
        assert_eq!(pod.annotations().get(annotations::SAFE_TO_EVICT).map(String::as_str), Some("true"));
        assert!(pod.labels().contains_key(labels::WARM_POOL_SANDBOX));
    }
    let history = place.record::<Sandbox>().await?;
    place.claim("c", "pool", json!({})).await?;
    let sandbox = place.wait_claimed("c").await?;
    let name = sandbox.name_any();
    assert!(waiting.contains(&name), "{name} is none of {waiting:?}");

    let claim: SandboxClaim = place.get("c").await?;
    let owner =
        format!("extensions.agents.x-k8s.io/v1beta1 SandboxClaim c {}", claim.uid().unwrap_or_default());
    assert_eq!(controller(&sandbox), owner);
    assert_eq!(sandbox.owner_references().len(), 1);
    for key in [labels::WARM_POOL_SANDBOX, labels::SANDBOX_TEMPLATE_HASH, labels::SANDBOX_POD_TEMPLATE_HASH] {
        assert!(!sandbox.labels().contains_key(key), "{key}");
    }
    let label = |key: &str| sandbox.labels().get(key).map(String::as_str);
    assert_eq!(label(labels::LAUNCH_TYPE), Some("warm"));
    assert_eq!(label(labels::CLAIM_UID), claim.uid().as_deref());
    assert_eq!(label(labels::SANDBOX_TEMPLATE_REF_HASH), Some(NameHash::of("pool").to_string().as_str()));
    assert_eq!(claim.annotations().get(annotations::SANDBOX_NAME), Some(&name));
    place.wait_told("c", "SandboxAdopted").await?;

    let before = pods.iter().find(|pod| pod.name_any() == name).context("its pod")?;
    let after: Pod = place
        .wait_for(&name, "free of the pool's marks", |pod: &Pod| {
            !pod.labels().contains_key(labels::WARM_POOL_SANDBOX)
                && !pod.annotations().contains_key(annotations::SAFE_TO_EVICT)
        })
        .await?;
    assert_eq!(after.uid(), before.uid(), "the pod is the same");
    for entry in history.of(&name) {
        let claimed = controller(&entry.object).contains(" SandboxClaim ");
        let named = entry.object.annotations().contains_key(annotations::POD_NAME);
        assert!(!claimed || named || ready(&entry.object) != "True/DependenciesReady", "ready without a pod");
    }

    // The pool is full again, and the claim now replaces a dead pod.
    place.wait_full("pool", 2).await?;
    place.delete::<Pod>(&name).await?;
    place.wait_for(&name, "replaced", |pod: &Pod| pod.uid() != before.uid()).await?;
    place.wait_claimed("c").await?;
    place.delete::<SandboxClaim>("c").await?;
    place.wait_gone::<Sandbox>(&name).await?;
    place.wait_gone::<Pod>(&name).await
}

/// With an empty pool, a sandbox of the claim's own name is made at once.
pub async fn a_claim_on_an_empty_pool_starts_cold(place: Place) -> Result<()> {
    let begun = Timestamp::now();
    let metadata = json!({"labels": {"team": "burrows"}});
    place.pool("pool", 0, json!({"service": true, "podTemplate": {"metadata": metadata}})).await?;
    place.claim("c", "pool", json!({})).await?;
    let sandbox = place.wait_claimed("c").await?;
    assert_eq!(sandbox.name_any(), "c");
    assert_eq!(sandbox.labels().get(labels::LAUNCH_TYPE).map(String::as_str), Some("cold"));
    assert_eq!(
        sandbox.annotations().get(annotations::SANDBOX_TEMPLATE_REF).map(String::as_str),
        Some("pool")
    );
    let claim: SandboxClaim = place.get("c").await?;
    assert_eq!(message(&claim, "Ready"), message(&sandbox, "Ready"));
    assert!(observed(&claim, "Ready"), "the claim speaks of its own generation");
    let status = claim.status.clone().and_then(|status| status.sandbox).unwrap_or_default();
    assert_eq!(status.pod_ips, sandbox.status.clone().unwrap_or_default().pod_ips);
    place.wait_told("c", "SandboxProvisioned").await?;

    let pod: Pod = place.get("c").await?;
    assert_eq!(pod.labels().get("team").map(String::as_str), Some("burrows"));
    assert!(!pod.labels().contains_key(labels::CLAIM_UID));
    // The times of the first observation and the first Ready, to the fraction of a second.
    let stamped: SandboxClaim = place
        .wait_for("c", "stamped", |claim: &SandboxClaim| {
            claim.annotations().contains_key(annotations::CLAIM_FIRST_READY_AT)
        })
        .await?;
    for key in [annotations::CONTROLLER_FIRST_OBSERVED_AT, annotations::CLAIM_FIRST_READY_AT] {
        let text = stamped.annotations().get(key).with_context(|| key.to_owned())?;
        // A controller that was killed between the two writes has lost the time, and the next one
        // writes `unknown`.
        if text == "unknown" && key == annotations::CLAIM_FIRST_READY_AT && place.is_disturbed() {
            continue;
        }
        let time: Timestamp = text.parse().with_context(|| format!("{key}: {text}"))?;
        assert!(time >= begun, "{key}: {text}");
        assert!(text.contains('.'), "{key}: {text}");
    }
    Ok(())
}

/// Missing references are named in the status, and resolved as soon as they exist.
pub async fn a_claim_waits_for_its_pool_and_its_template(place: Place) -> Result<()> {
    place.claim("c", "later", json!({})).await?;
    refused(&place, "c", "WarmPoolNotFound").await?;
    place.create::<SandboxWarmPool>(workload::pool("later", "blueprint", 0)).await?;
    let told = refused(&place, "c", "TemplateNotFound").await?;
    assert!(message(&told, "Ready").contains("blueprint"), "{}", message(&told, "Ready"));
    place.create::<SandboxTemplate>(workload::template("blueprint", json!({}))).await?;
    place.wait_claimed("c").await.map(drop)
}

/// Variables follow the template's policy; a claim with variables gets a sandbox of its own.
pub async fn variables_of_a_claim_follow_the_policy_of_the_template(place: Place) -> Result<()> {
    let containers = json!([
        {"name": "main", "image": "warren.dev/host", "env": [{"name": "HOME", "value": "/"}]},
        {"name": "side", "image": "warren.dev/host"},
    ]);
    let blueprint = json!({"podTemplate": {"spec": {"containers": containers}}});
    let with_policy =
        |policy: &str| workload::with(blueprint.clone(), json!({"envVarsInjectionPolicy": policy}));
    place.pool("unset", 0, blueprint.clone()).await?;
    place.pool("no", 0, with_policy("Disallowed")).await?;
    place.pool("add", 1, with_policy("Allowed")).await?;
    place.pool("replace", 0, with_policy("Overrides")).await?;
    place.wait_full("add", 1).await?;
    let waiting = place.members("add").await?[0].name_any();

    let brings = |name: &str, value: &str| json!({"env": [{"name": name, "value": value}]});
    for (name, pool) in [("refused", "no"), ("refused-by-default", "unset")] {
        place.claim(name, pool, brings("A", "1")).await?;
        refused(&place, name, "EnvVarsInjectionRejected").await?;
        assert!(place.get_opt::<Sandbox>(name).await?.is_none());
    }
    place.claim("clash", "add", brings("HOME", "/tmp")).await?;
    refused(&place, "clash", "ReconcilerError").await?;
    let nowhere = json!({"env": [{"name": "A", "value": "1", "containerName": "none"}]});
    place.claim("nowhere", "add", nowhere).await?;
    refused(&place, "nowhere", "ReconcilerError").await?;

    let both =
        json!({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2", "containerName": "side"}]});
    place.claim("adds", "add", both).await?;
    let added = place.wait_claimed("adds").await?;
    assert_eq!((added.name_any(), added.labels()[labels::LAUNCH_TYPE].as_str()), ("adds".to_owned(), "cold"));
    assert_eq!(variables(&place, "adds").await?, ["main HOME=/", "main A=1", "side B=2"]);
    place.claim("replaces", "replace", brings("HOME", "/tmp")).await?;
    place.wait_claimed("replaces").await?;
    assert_eq!(variables(&place, "replaces").await?, ["main HOME=/tmp"]);
    assert!(controller(&place.get::<Sandbox>(&waiting).await?).contains("SandboxWarmPool"), "nobody took it");

    // A refused claim that is corrected is served.
    place.patch::<SandboxClaim>("refused", json!({"spec": {"env": null}})).await?;
    place.wait_claimed("refused").await.map(drop)
}

/// Returns every variable of a pod, as `container name=value`.
async fn variables(place: &Place, pod: &str) -> Result<Vec<String>> {
    let spec = place.get::<Pod>(pod).await?.spec.unwrap_or_default();
    let line = |container: &str, variable: &EnvVar| {
        format!("{container} {}={}", variable.name, variable.value.clone().unwrap_or_default())
    };
    let all = spec
        .containers
        .iter()
        .flat_map(|container| container.env.iter().flatten().map(|variable| line(&container.name, variable)));
    Ok(all.collect())
}

/// Labels and annotations of domains that users may use reach the pod, warm or cold; others are
/// refused.
pub async fn metadata_of_a_claim_reaches_the_pod_if_it_may(place: Place) -> Result<()> {
    let own = json!({"labels": {"sandbox.users.io/fixed": "template"}});
    place.pool("pool", 1, json!({"podTemplate": {"metadata": own}})).await?;
    place.wait_full("pool", 1).await?;
    let brings = |labels: Value, annotations: Value| json!({"additionalPodMetadata": {"labels": labels, "annotations": annotations}});
    for (name, labels, annotations) in [
        ("no-domain", json!({"team": "x"}), json!({})),
        ("other-domain", json!({"example.com/team": "x"}), json!({})),
        ("reserved", json!({"agents.x-k8s.io/team": "x"}), json!({})),
        ("bad-value", json!({"sandbox.users.io/team": "no spaces please"}), json!({})),
        ("router", json!({"app": "Sandbox-Router"}), json!({})),
        ("system", json!({}), json!({"kubernetes.io/note": "x"})),
        ("nested", json!({}), json!({"sub.k8s.io/note": "x"})),
    ] {
        place.claim(name, "pool", brings(labels, annotations)).await?;
        refused(&place, name, "InvalidMetadata").await?;
    }
    let overrides = brings(json!({"sandbox.users.io/fixed": "claim"}), json!({}));
    place.claim("overrides", "pool", overrides).await?;
    refused(&place, "overrides", "ReconcilerError").await?;

    let labels = json!({"sandbox.users.io/team": "x", "deep.sandbox.users.io/team": "y"});
    let annotations = json!({"note": "free", annotations::SAFE_TO_EVICT: "false"});
    place.claim("warm", "pool", brings(labels, annotations)).await?;
    let sandbox = place.wait_claimed("warm").await?;
    assert_eq!(sandbox.labels().get(labels::LAUNCH_TYPE).map(String::as_str), Some("warm"));
    place
        .wait_for(&sandbox.name_any(), "marked", |pod: &Pod| {
            let label = |key: &str| pod.labels().get(key).map(String::as_str);
            let note = |key: &str| pod.annotations().get(key).map(String::as_str);
            label("sandbox.users.io/team") == Some("x")
                && label("deep.sandbox.users.io/team") == Some("y")
                && label("sandbox.users.io/fixed") == Some("template")
                && note("note") == Some("free")
                && note(annotations::SAFE_TO_EVICT) == Some("false")
        })
        .await?;

    // A corrected claim is served, and reverted metadata is removed.
    place.patch::<SandboxClaim>("no-domain", json!({"spec": {"additionalPodMetadata": null}})).await?;
    place.wait_claimed("no-domain").await?;
    let taken_back = json!({"spec": {"additionalPodMetadata": {"labels": {"sandbox.users.io/team": null}}}});
    place.patch::<SandboxClaim>("warm", taken_back).await?;
    place
        .wait_for(&sandbox.name_any(), "rid of the label", |pod: &Pod| {
            !pod.labels().contains_key("sandbox.users.io/team")
        })
        .await?;
    Ok(())
}

/// More sandboxes than claims, then more claims than sandboxes: every claim is served, and no
/// sandbox twice.
pub async fn many_claims_at_once_get_one_sandbox_each(place: Place) -> Result<()> {
    let referee = Referee::watch(&place).await?;
    let mut given = Vec::new();
    for (pool, replicas, claims) in [("enough", 6, 5), ("scarce", 3, 9)] {
        place.pool(pool, replicas, json!({})).await?;
        place.wait_full(pool, replicas).await?;
        let names: Vec<String> = (0..claims).map(|number| format!("{pool}-claim-{number}")).collect();
        try_join_all(names.iter().map(|name| place.claim(name, pool, json!({})))).await?;
        let sandboxes = try_join_all(names.iter().map(|name| place.wait_claimed(name))).await?;
        let different: BTreeSet<String> = sandboxes.iter().map(|sandbox| sandbox.name_any()).collect();
        assert_eq!(different.len(), names.len(), "{different:?}");
        let warm = sandboxes.iter().filter(|one| one.labels()[labels::LAUNCH_TYPE] == "warm").count();
        assert!(warm >= names.len().min(3), "only {warm} of {} took a waiting one", names.len());
        place.wait_full(pool, replicas).await?;
        given.extend(sandboxes);
    }
    referee.verdict(&place, &given).await
}

/// A claim's status shows the end of its sandbox's work, and a lost sandbox.
pub async fn a_claim_tells_what_became_of_its_sandbox(place: Place) -> Result<()> {
    place.pool("good", 0, json!({"podTemplate": workload::ending(0)})).await?;
    place.pool("bad", 0, json!({"podTemplate": workload::ending(1)})).await?;
    for (name, reason) in [("good", "PodSucceeded"), ("bad", "PodFailed")] {
        place.claim(name, name, json!({})).await?;
        let ended = refused(&place, name, reason).await?;
        assert_eq!(state(&ended, "Finished"), format!("True/{reason}"));
    }
    // After its sandbox is deleted, a claim gets another.
    place.pool("pool", 0, json!({})).await?;
    place.claim("c", "pool", json!({})).await?;
    let first = place.wait_claimed("c").await?;
    place.delete::<Sandbox>("c").await?;
    place.wait_for("c", "another", |sandbox: &Sandbox| sandbox.uid() != first.uid()).await?;
    assert_ne!(place.wait_claimed("c").await?.uid(), first.uid());
    Ok(())
}
