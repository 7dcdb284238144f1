//! Tests claims that cannot be served, outlive their pool or template, or expire.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::{Timestamp, ToSpan as _};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use warren_api::{NameHash, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, labels};

use super::life::HOLD;
use crate::controllers::history::version;
use crate::controllers::place::{Place, condition, ready, since, state};
use crate::controllers::workload::{ending, sandbox, template, volume, with};

/// Forces a reconcile of a claim by an edit without effect on its sandbox, and returns its status.
async fn after_a_pass(place: &Place, name: &str) -> Result<SandboxClaim> {
    let later = Timestamp::now() + 48.hours();
    place.patch::<SandboxClaim>(name, json!({"spec": {"lifecycle": {"shutdownTime": later}}})).await?;
    place.wait_observed(name).await
}

/// Returns the sandbox that a claim names in its status.
fn named(claim: &SandboxClaim) -> Option<&str> {
    claim.status.as_ref()?.sandbox.as_ref()?.name.as_deref()
}

/// The reason why a claim is refused that would change a label of its template.
const TEAM_IS_SET: &str =
    "Error seen: label sandbox.users.io/team is set by the template and cannot be changed by the claim";

pub(super) async fn row_21_errors_of_the_user_are_told_apart_from_errors_worth_a_retry(
    place: Place,
) -> Result<()> {
    let containers =
        json!([{"name": "main", "image": "warren.dev/host", "env": [{"name": "TAKEN", "value": "1"}]}]);
    let open = json!({"envVarsInjectionPolicy": "Allowed",
        "podTemplate": {"metadata": {"labels": {"sandbox.users.io/team": "a"}}, "spec": {"containers": containers}}});
    place.pool("open", 0, open).await?;
    place.pool("closed", 0, json!({})).await?;
    let metadata = |labels: Value| json!({"additionalPodMetadata": {"labels": labels}});
    let env = |name: &str| json!({"env": [{"name": name, "value": "2"}]});
    for (name, pool, spec, reason, text) in [
        (
            "no-prefix",
            "open",
            metadata(json!({"team": "b"})),
            "InvalidMetadata",
            "label key team is not in an allowed domain (sandbox.users.io)",
        ),
        (
            "router",
            "open",
            metadata(json!({"app": "Sandbox-Router"})),
            "InvalidMetadata",
            "label app=Sandbox-Router is reserved for the router",
        ),
        (
            "no-env",
            "closed",
            env("A"),
            "EnvVarsInjectionRejected",
            "the template does not allow env in a claim",
        ),
        (
            "no-volumes",
            "closed",
            json!({"volumeClaimTemplates": [volume("data")]}),
            "VolumeClaimTemplatesError",
            "the template does not allow volumeClaimTemplates in a claim",
        ),
        (
            "same-env",
            "open",
            env("TAKEN"),
            "ReconcilerError",
            "Error seen: variable TAKEN of container main is set already",
        ),
        (
            "unknown",
            "open",
            json!({"env": [{"name": "A", "value": "1", "containerName": "none"}]}),
            "ReconcilerError",
            "Error seen: no container is named none",
        ),
        ("override", "open", metadata(json!({"sandbox.users.io/team": "b"})), "ReconcilerError", TEAM_IS_SET),
    ] {
        place.claim(name, pool, spec).await?;
        place.wait_trouble::<SandboxClaim>(name, reason, text).await?;
        assert!(place.get_opt::<Sandbox>(name).await?.is_none());
    }
    // It does not reserve a warm member either.
    let team = json!({"podTemplate": {"metadata": {"labels": {"sandbox.users.io/team": "a"}},
        "spec": {"containers": [{"name": "main", "image": "warren.dev/host"}]}}});
    place.pool("full", 1, team).await?;
    place.wait_full("full", 1).await?;
    place.claim("clash", "full", metadata(json!({"sandbox.users.io/team": "b"}))).await?;
    let told: SandboxClaim = place.wait_trouble("clash", "ReconcilerError", TEAM_IS_SET).await?;
    assert!(!told.annotations().contains_key("agents.x-k8s.io/sandbox-name"), "{told:?}");
    place.patch::<SandboxClaim>("no-env", json!({"spec": {"env": null}})).await?;
    place.wait_claimed("no-env").await?;
    // A lasting problem is reported once: by now all other problems have been retried.
    let lasting: [SandboxClaim; 2] = [place.get("no-prefix").await?, place.get("same-env").await?];
    place.patch::<SandboxClaim>("no-volumes", json!({"spec": {"volumeClaimTemplates": null}})).await?;
    place.wait_claimed("no-volumes").await?;
    for before in lasting {
        let after: SandboxClaim = place.get(&before.name_any()).await?;
        assert_eq!(after.resource_version(), before.resource_version(), "{}", before.name_any());
    }
    Ok(())
}

pub(super) async fn row_21_what_is_worth_a_retry_heals_by_itself_and_what_is_not_waits_for_the_user(
    place: Place,
) -> Result<()> {
    let variables = |env: Value| json!({"podTemplate": {"spec": {"containers": [{"name": "main", "image": "warren.dev/host", "env": env}]}}});
    let allowed = json!({"envVarsInjectionPolicy": "Allowed"});
    let taken = variables(json!([{"name": "A", "value": "1"}]));
    place.pool("open", 0, with(taken, allowed.clone())).await?;
    place.pool("closed", 0, json!({})).await?;
    let env = |value: &str| json!({"env": [{"name": "A", "value": value}]});
    place.claim("retried", "open", env("2")).await?;
    place.wait_ready::<SandboxClaim>("retried", "False/ReconcilerError").await?;
    place.claim("refused", "closed", env("2")).await?;
    let text = "the template does not allow env in a claim";
    place.wait_trouble::<SandboxClaim>("refused", "EnvVarsInjectionRejected", text).await?;
    // A write to a claim wakes it, and an event follows the write. Once a later claim has been
    // handled, nothing is left that could wake this one.
    place.claim("later", "closed", env("2")).await?;
    place.wait_ready::<SandboxClaim>("later", "False/EnvVarsInjectionRejected").await?;
    // Both are fixed by edits of their templates, which wake no claim. A backoff lasts about as
    // long as the failures before it. If the younger one were retried, too, it would be by the time
    // that the older one is served.
    place.edit_template("closed", json!({"spec": allowed})).await?;
    place.edit_template("open", json!({"spec": variables(json!([]))})).await?;
    place.wait_claimed("retried").await?;
    let refused: SandboxClaim = place.get("refused").await?;
    assert_eq!(ready(&refused), "False/EnvVarsInjectionRejected");
    assert!(place.get_opt::<Sandbox>("refused").await?.is_none());
    // An edit by the user is enough.
    place.patch::<SandboxClaim>("refused", json!({"spec": env("3")})).await?;
    place.wait_claimed("refused").await?;
    Ok(())
}

pub(super) async fn row_22_a_foreign_sandbox_of_the_claim_s_name_blocks_it(place: Place) -> Result<()> {
    place.pool("pool", 1, json!({})).await?;
    place.wait_full("pool", 1).await?;
    let members = place.members("pool").await?;
    let foreign: Sandbox = place.create(sandbox("c1", json!({}))).await?;
    // The controllers know of it before they hear of the claim, which comes by another watch.
    place.wait_ready::<Sandbox>("c1", "True/DependenciesReady").await?;
    place.claim("c1", "pool", json!({})).await?;
    let text = "Error seen: sandbox c1 exists and is not controlled by this claim";
    let told: SandboxClaim = place.wait_trouble("c1", "ReconcilerError", text).await?;
    assert_eq!(told.status.and_then(|status| status.sandbox), None);
    let left: Sandbox = place.get("c1").await?;
    assert_eq!((left.uid(), left.owner_references().len()), (foreign.uid(), 0));
    assert_eq!(place.members("pool").await?[0].uid(), members[0].uid(), "the pool was not touched");
    place.delete::<Sandbox>("c1").await?;
    place.wait_claimed("c1").await?;
    Ok(())
}

pub(super) async fn row_23_a_bound_claim_outlives_its_pool_and_follows_another(place: Place) -> Result<()> {
    for name in ["one", "two"] {
        place.pool(name, 0, json!({})).await?;
    }
    // With another pod spec, which would show if a sandbox took more than labels from it.
    let other = |value: &str| {
        json!({"podTemplate": {"spec": {"containers": [{"name": "main", "image": "warren.dev/host",
        "env": [{"name": "OTHER", "value": value}]}]}}})
    };
    place.pool("three", 0, other("3")).await?;
    place.create::<SandboxTemplate>(template("four", other("4"))).await?;
    place.claim("plain", "one", json!({})).await?;
    let extra = json!({"additionalPodMetadata": {"labels": {"sandbox.users.io/team": "a"}}});
    place.claim("extra", "one", extra).await?;
    place.claim("moved", "two", json!({})).await?;
    for name in ["plain", "extra", "moved"] {
        place.wait_claimed(name).await?;
    }
    place.pool("full", 1, json!({})).await?;
    place.wait_full("full", 1).await?;
    place.claim("warm", "full", json!({})).await?;
    let warm = place.wait_claimed("warm").await?;
    let warm_pod: Pod = place.get(&warm.name_any()).await?;
    place.wait_full("full", 1).await?;
    assert_eq!(place.get::<Pod>("extra").await?.labels()["sandbox.users.io/team"], "a");
    // The pool's warm members go with it. Once they are gone, garbage collection has run.
    place.delete::<SandboxWarmPool>("full").await?;
    place.eventually("no member", async || Ok(place.members("full").await?.is_empty().then_some(()))).await?;
    place.delete::<SandboxTemplate>("full").await?;
    place.wait_gone::<SandboxTemplate>("full").await?;
    place.delete::<SandboxWarmPool>("one").await?;
    place.wait_gone::<SandboxWarmPool>("one").await?;
    place.delete::<SandboxTemplate>("one").await?;
    place.wait_gone::<SandboxTemplate>("one").await?;
    // Its metadata can no longer be checked, but it keeps its sandbox. The end of a pool wakes no
    // claim that has a sandbox, so a reconcile must be forced after the controllers have heard of
    // it.
    let told = place
        .eventually("told that the pool is gone", async || {
            let told = after_a_pass(&place, "extra").await?;
            Ok((ready(&told) == "False/WarmPoolNotFound").then_some(told))
        })
        .await?;
    assert_eq!(named(&told), Some("extra"));
    place.get::<Pod>("extra").await?;
    assert_eq!(ready(&after_a_pass(&place, "plain").await?), "True/DependenciesReady");
    // An adopted sandbox is kept just like one that was made for its claim.
    assert_eq!(ready(&after_a_pass(&place, "warm").await?), "True/DependenciesReady");
    let (kept, pod) = (place.wait_claimed("warm").await?, place.get::<Pod>(&warm.name_any()).await?);
    assert_eq!((kept.uid(), pod.uid()), (warm.uid(), warm_pod.uid()));
    assert_eq!((kept.metadata.deletion_timestamp, pod.metadata.deletion_timestamp), (None, None));

    let pod: Pod = place.get("moved").await?;
    let owner: Sandbox = place.get("moved").await?;
    let hash = |name: &str| NameHash::of(name).to_string();
    let assert_only_labels_moved = async |name: &str| {
        let after: Sandbox = place.get("moved").await?;
        assert_eq!(after.labels()[labels::SANDBOX_TEMPLATE_REF_HASH], hash(name));
        assert_eq!(after.spec.blueprint.pod_template.spec, owner.spec.blueprint.pod_template.spec, "{name}");
        let moved = place
            .wait_for("moved", "relabelled", |pod: &Pod| {
                pod.labels()[labels::SANDBOX_TEMPLATE_REF_HASH] == hash(name)
            })
            .await?;
        assert_eq!((moved.uid(), &moved.spec), (pod.uid(), &pod.spec), "{name}");
        anyhow::Ok(())
    };
    assert_only_labels_moved("two").await?;
    place.patch::<SandboxClaim>("moved", json!({"spec": {"warmPoolRef": {"name": "three"}}})).await?;
    place
        .wait_for("moved", "relabelled", |owner: &Sandbox| {
            owner.labels()[labels::SANDBOX_TEMPLATE_REF_HASH] == hash("three")
        })
        .await?;
    assert_only_labels_moved("three").await?;
    // The same if the pool gets another template. That wakes no claim with a sandbox either.
    let repointed = json!({"spec": {"sandboxTemplateRef": {"name": "four"}}});
    place.patch::<SandboxWarmPool>("three", repointed).await?;
    place
        .eventually("relabelled by a pass", async || {
            after_a_pass(&place, "moved").await?;
            let owner: Sandbox = place.get("moved").await?;
            Ok((owner.labels()[labels::SANDBOX_TEMPLATE_REF_HASH] == hash("four")).then_some(()))
        })
        .await?;
    assert_only_labels_moved("four").await
}

pub(super) async fn row_23_a_claim_with_metadata_misses_its_template_alone_too(place: Place) -> Result<()> {
    place.pool("pool", 0, json!({})).await?;
    let extra = json!({"additionalPodMetadata": {"labels": {"sandbox.users.io/team": "a"}}});
    place.claim("c", "pool", extra).await?;
    let sandbox = place.wait_claimed("c").await?;
    place.delete::<SandboxTemplate>("pool").await?;
    place.wait_gone::<SandboxTemplate>("pool").await?;
    // The end of a template wakes no claim, so a reconcile must be forced after the controllers
    // have heard of it.
    let told = place
        .eventually("told that the template is gone", async || {
            let told = after_a_pass(&place, "c").await?;
            Ok((ready(&told) == "False/TemplateNotFound").then_some(told))
        })
        .await?;
    assert_eq!(named(&told), Some("c"));
    // A new one of that name does.
    place.create::<SandboxTemplate>(template("pool", json!({}))).await?;
    assert_eq!(place.wait_claimed("c").await?.uid(), sandbox.uid());
    Ok(())
}

/// The time is never before the claim's creation, however long its sandbox had been ready.
/// agent-sandbox differs here.
pub(super) async fn row_24_a_claim_is_ready_since_its_sandbox_is(place: Place) -> Result<()> {
    place.pool("pool", 1, json!({})).await?;
    place.wait_full("pool", 1).await?;
    let waiting = place.members("pool").await?.remove(0);
    place.second_after(&since(&waiting, "Ready")).await?;
    let claim = place.claim("c", "pool", json!({})).await?;
    let sandbox = place.wait_claimed("c").await?;
    assert_eq!(sandbox.name_any(), waiting.name_any());
    let bound: SandboxClaim = place.get("c").await?;
    let asked = claim.metadata.creation_timestamp.context("a time of creation")?.0;
    assert!(since(&waiting, "Ready").parse::<Timestamp>()? < asked, "it waited before the claim");
    assert_eq!(since(&bound, "Ready").parse::<Timestamp>()?, asked);
    let generation =
        |claim: &SandboxClaim| condition(claim, "Ready").map(|ready| ready["observedGeneration"].clone());
    assert_eq!(generation(&bound), Some(json!(1)), "the claim's own");
    let edited = after_a_pass(&place, "c").await?;
    assert_eq!((edited.metadata.generation, generation(&edited)), (Some(2), Some(json!(2))));
    assert_eq!(since(&edited, "Ready"), since(&bound, "Ready"));

    // An error does not take its sandbox away.
    let name = sandbox.name_any();
    let wrong = json!({"spec": {"additionalPodMetadata": {"labels": {"team": "a"}}}});
    place.patch::<SandboxClaim>("c", wrong).await?;
    let told: SandboxClaim = place.wait_ready("c", "False/InvalidMetadata").await?;
    assert_eq!(named(&told), Some(name.as_str()));
    place.patch::<SandboxClaim>("c", json!({"spec": {"additionalPodMetadata": null}})).await?;
    assert_eq!(place.wait_claimed("c").await?.uid(), sandbox.uid());
    assert_eq!(since(&place.get::<SandboxClaim>("c").await?, "Ready"), since(&bound, "Ready"));

    // A sandbox that is being deleted is not gone. Once a claim that was made later has been
    // served, the controllers know of the deletion.
    let (claims, sandboxes) = (place.record::<SandboxClaim>().await?, place.record::<Sandbox>().await?);
    place.patch::<Sandbox>(&name, json!({"metadata": {"finalizers": [HOLD]}})).await?;
    place.delete::<Sandbox>(&name).await?;
    place.create::<Sandbox>(self::sandbox("later", json!({}))).await?;
    place.wait_ready::<Sandbox>("later", "True/DependenciesReady").await?;
    assert_eq!(named(&after_a_pass(&place, "c").await?), Some(name.as_str()));
    // It is released only when it is gone.
    place.release::<Sandbox>(&name).await?;
    let another = place
        .wait_for("c", "served by another sandbox", |claim: &SandboxClaim| {
            named(claim).is_some_and(|other| other != name) && ready(claim) == "True/DependenciesReady"
        })
        .await?;
    assert_eq!(another.uid(), claim.metadata.uid);
    let gone = place
        .eventually("the record of the end", async || {
            Ok(sandboxes.of(&name).into_iter().find(|entry| entry.deleted))
        })
        .await?;
    let let_go = place
        .eventually("the record of letting go", async || {
            Ok(claims.of("c").into_iter().find(|entry| named(&entry.object) != Some(name.as_str())))
        })
        .await?;
    assert!(version(&let_go.object) > version(&gone.object), "{let_go:?}");
    Ok(())
}

pub(super) async fn row_29_nothing_is_deleted_before_expiry_is_stored(place: Place) -> Result<()> {
    place.pool("pool", 0, json!({})).await?;
    for name in ["keep", "drop"] {
        place.claim(name, "pool", json!({})).await?;
        place.wait_claimed(name).await?;
    }
    let claims = place.record::<SandboxClaim>().await?;
    let sandboxes = place.record::<Sandbox>().await?;
    for (name, policy) in [("keep", "Retain"), ("drop", "Delete")] {
        let lifecycle = json!({"shutdownTime": "2020-01-01T00:00:00Z", "shutdownPolicy": policy});
        place.patch::<SandboxClaim>(name, json!({"spec": {"lifecycle": lifecycle}})).await?;
    }
    place
        .wait_for("keep", "expired without a sandbox", |claim: &SandboxClaim| {
            ready(claim) == "False/ClaimExpired"
                && claim.status.as_ref().is_some_and(|status| status.sandbox.is_none())
        })
        .await?;
    place.wait_gone::<SandboxClaim>("drop").await?;
    for name in ["keep", "drop"] {
        place.wait_gone::<Sandbox>(name).await?;
        let went = place
            .eventually("the record of the end", async || {
                let mut entries = sandboxes.of(name).into_iter();
                Ok(entries.find(|entry| entry.deleted || entry.object.metadata.deletion_timestamp.is_some()))
            })
            .await?;
        let told = place
            .eventually("the record of expiry", async || {
                let mut entries = claims.of(name).into_iter();
                Ok(entries.find(|entry| ready(&entry.object) == "False/ClaimExpired"))
            })
            .await?;
        assert!(version(&told.object) < version(&went.object), "{name}");
        place.wait_event(name, "ClaimExpired").await?;
    }
    // After the edit is reverted, it is served again.
    place.patch::<SandboxClaim>("keep", json!({"spec": {"lifecycle": null}})).await?;
    place.wait_claimed("keep").await?;
    Ok(())
}

pub(super) async fn row_29_deleting_in_the_foreground_shows_on_claim_sandbox_and_pod(
    place: Place,
) -> Result<()> {
    place.pool("pool", 0, json!({})).await?;
    place.claim("c", "pool", json!({})).await?;
    place.wait_claimed("c").await?;
    place.patch::<Pod>("c", json!({"metadata": {"finalizers": [HOLD]}})).await?;
    let lifecycle = json!({"shutdownTime": "2020-01-01T00:00:00Z", "shutdownPolicy": "DeleteForeground"});
    place.patch::<SandboxClaim>("c", json!({"spec": {"lifecycle": lifecycle}})).await?;
    place.wait_for("c", "going", |pod: &Pod| pod.metadata.deletion_timestamp.is_some()).await?;
    // All three are being deleted, and stay while the pod does.
    let claim: SandboxClaim = place.get("c").await?;
    let sandbox: Sandbox = place.get("c").await?;
    assert!(claim.metadata.deletion_timestamp.is_some() && sandbox.metadata.deletion_timestamp.is_some());
    assert_eq!(claim.finalizers(), ["foregroundDeletion"]);
    place.patch::<Pod>("c", json!({"metadata": {"finalizers": null}})).await?;
    place.wait_gone::<SandboxClaim>("c").await?;
    assert!(place.get_opt::<Sandbox>("c").await?.is_none());
    Ok(())
}

pub(super) async fn row_29_the_earlier_end_counts_and_finished_stays(place: Place) -> Result<()> {
    place.pool("pool", 0, json!({"podTemplate": ending(0)})).await?;
    let later = Timestamp::now() + 1.hour();
    let lifecycle = |ttl: Value| json!({"lifecycle": {"shutdownTime": later, "ttlSecondsAfterFinished": ttl, "shutdownPolicy": "Retain"}});
    place.claim("soon", "pool", lifecycle(json!(0))).await?;
    place.claim("late", "pool", lifecycle(json!(null))).await?;
    place.claim("never", "pool", json!({})).await?;
    let cleaned = place
        .wait_for("soon", "expired without a sandbox", |claim: &SandboxClaim| {
            ready(claim) == "False/ClaimExpired"
                && claim.status.as_ref().is_some_and(|status| status.sandbox.is_none())
        })
        .await?;
    assert_eq!(state(&cleaned, "Finished"), "True/PodSucceeded", "how it ended outlives the sandbox");
    place.wait_gone::<Sandbox>("soon").await?;
    for name in ["late", "never"] {
        let kept: SandboxClaim = place.wait_ready(name, "False/PodSucceeded").await?;
        assert_eq!(state(&kept, "Finished"), "True/PodSucceeded");
        place.get::<Sandbox>(name).await?;
    }
    Ok(())
}
