//! Tests a sandbox's life: suspending, ending, expiring, and the metadata of its pod.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::jiff::{Timestamp, ToSpan as _};
use kube::ResourceExt as _;
use serde_json::json;
use warren_api::{NameHash, Sandbox, SandboxClaim, annotations, labels};
use warren_testkit::nodes::{FATE, Fate, SCHEDULER};

use crate::controllers::history::{Entry, version};
use crate::controllers::place::{Namespaced, Place, condition, ready, since, state};
use crate::controllers::workload::{ending, sandbox, simulated, volume, with};

/// A finalizer that holds a deleted object.
pub(super) const HOLD: &str = "test.warren.dev/hold";

pub(super) async fn row_01_suspended_is_always_there_and_its_time_moves_only_when_the_pod_is_gone(
    place: Place,
) -> Result<()> {
    place.create::<Sandbox>(sandbox("one", json!({}))).await?;
    let up: Sandbox = place.wait_ready("one", "True/DependenciesReady").await?;
    assert_eq!(state(&up, "Suspended"), "False/NotSuspended");
    let beginning = since(&up, "Suspended");
    place.second_after(&beginning).await?;

    // The pod dies while the sandbox should run: another one is made, and the sandbox does not
    // count as suspended.
    let pod: Pod = place.get("one").await?;
    place.delete::<Pod>("one").await?;
    place.wait_for("one", "replaced", |new: &Pod| new.uid() != pod.uid()).await?;
    let again: Sandbox = place.wait_ready("one", "True/DependenciesReady").await?;
    assert_eq!(
        (state(&again, "Suspended").as_str(), since(&again, "Suspended")),
        ("False/NotSuspended", beginning.clone())
    );

    place.patch::<Pod>("one", json!({"metadata": {"finalizers": [HOLD]}})).await?;
    place.patch::<Sandbox>("one", json!({"spec": {"operatingMode": "Suspended"}})).await?;
    let waiting = place
        .wait_for("one", "suspending", |one: &Sandbox| state(one, "Suspended") == "False/PodTerminating")
        .await?;
    assert_eq!(since(&waiting, "Suspended"), beginning, "False before, False now");
    assert_eq!(ready(&waiting), "False/SandboxSuspended");
    place.patch::<Pod>("one", json!({"metadata": {"finalizers": null}})).await?;
    let down = place
        .wait_for("one", "suspended", |one: &Sandbox| state(one, "Suspended") == "True/PodTerminated")
        .await?;
    assert!(since(&down, "Suspended") > beginning);
    assert!(place.get_opt::<Pod>("one").await?.is_none());
    Ok(())
}

pub(super) async fn row_02_a_terminating_pod_blocks_its_successor_after_a_quick_resume(
    place: Place,
) -> Result<()> {
    place.create::<Sandbox>(sandbox("one", json!({}))).await?;
    place.wait_ready::<Sandbox>("one", "True/DependenciesReady").await?;
    let pod: Pod = place.patch("one", json!({"metadata": {"finalizers": [HOLD]}})).await?;
    place.patch::<Sandbox>("one", json!({"spec": {"operatingMode": "Suspended"}})).await?;
    place
        .wait_for("one", "suspending", |one: &Sandbox| state(one, "Suspended") == "False/PodTerminating")
        .await?;
    place.patch::<Sandbox>("one", json!({"spec": {"operatingMode": "Running"}})).await?;
    place.wait_observed::<Sandbox>("one").await?;
    let pods: Vec<Pod> = place.list().await?;
    assert_eq!(pods.iter().map(|pod| pod.uid()).collect::<Vec<_>>(), [pod.uid()]);
    assert!(pods[0].metadata.deletion_timestamp.is_some());
    place.patch::<Pod>("one", json!({"metadata": {"finalizers": null}})).await?;
    place.wait_for("one", "replaced", |new: &Pod| new.uid() != pod.uid()).await?;
    place.wait_ready::<Sandbox>("one", "True/DependenciesReady").await?;
    Ok(())
}

pub(super) async fn row_03_an_ended_pod_is_kept_and_never_replaced(place: Place) -> Result<()> {
    for (name, code, reason) in [("good", 0, "PodSucceeded"), ("bad", 1, "PodFailed")] {
        place.create::<Sandbox>(sandbox(name, json!({"podTemplate": ending(code)}))).await?;
        let ended: Sandbox = place.wait_ready(name, &format!("False/{reason}")).await?;
        assert_eq!(state(&ended, "Finished"), format!("True/{reason}"));
        let pod: Pod = place.get(name).await?;
        // It is still maintained, and still the same.
        let label = json!({"spec": {"podTemplate": {"metadata": {"labels": {"later": "yes"}}}}});
        place.patch::<Sandbox>(name, label).await?;
        let after = place.wait_for(name, "labelled", |pod: &Pod| pod.labels().contains_key("later")).await?;
        assert_eq!(after.uid(), pod.uid());
        let after: Sandbox = place.wait_observed(name).await?;
        assert_eq!(
            (ready(&after), state(&after, "Finished")),
            (format!("False/{reason}"), format!("True/{reason}"))
        );
    }
    Ok(())
}

pub(super) async fn row_04_metadata_of_the_template_reaches_the_live_pod_and_its_spec_does_not(
    place: Place,
) -> Result<()> {
    let metadata =
        json!({"labels": {"kept": "1", "dropped": "1"}, "annotations": {"note": "1", "gone": "1"}});
    place.create::<Sandbox>(sandbox("one", json!({"podTemplate": {"metadata": metadata}}))).await?;
    place.wait_ready::<Sandbox>("one", "True/DependenciesReady").await?;
    let pod: Pod = place
        .patch("one", json!({"metadata": {"labels": {"manual": "yes"}, "annotations": {"manual": "yes"}}}))
        .await?;
    assert_eq!((pod.labels()["dropped"].as_str(), pod.annotations()["gone"].as_str()), ("1", "1"));
    let edit = json!({"spec": {"podTemplate": {
        "metadata": {"labels": {"kept": "2", "dropped": null}, "annotations": {"note": "2", "gone": null}},
        "spec": {"containers": [{"name": "main", "image": "warren.dev/host", "env": [{"name": "NEW", "value": "1"}]}]},
    }}});
    place.patch::<Sandbox>("one", edit).await?;
    let after = place
        .wait_for("one", "relabelled", |pod: &Pod| pod.labels().get("kept").is_some_and(|value| value == "2"))
        .await?;
    assert!(!after.labels().contains_key("dropped") && !after.annotations().contains_key("gone"));
    assert_eq!(after.annotations()["note"], "2");
    assert_eq!((after.labels()["manual"].as_str(), after.annotations()["manual"].as_str()), ("yes", "yes"));
    assert_eq!(after.uid(), pod.uid());
    let spec = after.spec.context("a pod has a spec")?;
    assert!(spec.containers[0].env.iter().flatten().all(|variable| variable.name != "NEW"));
    Ok(())
}

pub(super) async fn row_05_reserved_keys_of_a_template_never_reach_the_pod(place: Place) -> Result<()> {
    let forged = json!({
        "labels": {labels::SANDBOX_NAME_HASH: "deadbeef", labels::CLAIM_UID: "x",
            "extensions.agents.x-k8s.io/y": "z", "plain": "1"},
        "annotations": {"agents.x-k8s.io/z": "1", annotations::TRACE_CONTEXT: "{}", "plain": "1"},
    });
    place.create::<Sandbox>(sandbox("one", json!({"podTemplate": {"metadata": forged}}))).await?;
    place.wait_ready::<Sandbox>("one", "True/DependenciesReady").await?;
    let clean = |pod: &Pod| {
        assert_eq!(pod.labels()[labels::SANDBOX_NAME_HASH], NameHash::of("one").to_string());
        assert!(!pod.labels().contains_key(labels::CLAIM_UID));
        assert!(!pod.labels().contains_key("extensions.agents.x-k8s.io/y"));
        assert!(!pod.annotations().contains_key("agents.x-k8s.io/z"));
        assert!(!pod.annotations().contains_key(annotations::TRACE_CONTEXT));
        assert_eq!((pod.labels()["plain"].as_str(), pod.annotations()["plain"].as_str()), ("1", "1"));
    };
    clean(&place.get("one").await?);
    // Nor by an edit, which reaches a live pod.
    let edit =
        json!({"labels": {labels::SANDBOX_NAME_HASH: "cafe", labels::WARM_POOL_SANDBOX: "x", "later": "1"}});
    place.patch::<Sandbox>("one", json!({"spec": {"podTemplate": {"metadata": edit}}})).await?;
    let after = place.wait_for("one", "labelled", |pod: &Pod| pod.labels().contains_key("later")).await?;
    clean(&after);
    assert!(!after.labels().contains_key(labels::WARM_POOL_SANDBOX));

    place.pool("pool", 0, json!({})).await?;
    let claim = place.claim("c", "pool", json!({})).await?;
    let claimed = place.wait_claimed("c").await?;
    assert_eq!(Some(claimed.labels()[labels::CLAIM_UID].clone()), claim.uid());
    assert!(!place.get::<Pod>("c").await?.labels().contains_key(labels::CLAIM_UID));
    Ok(())
}

pub(super) async fn row_10_expiry_is_stored_before_anything_goes_and_can_be_taken_back(
    place: Place,
) -> Result<()> {
    let sandboxes = place.record::<Sandbox>().await?;
    let pods = place.record::<Pod>().await?;
    let pod = with(simulated(Fate::Succeeded), json!({"spec": {"restartPolicy": "Never"}}));
    let spec = json!({"podTemplate": pod, "service": true, "volumeClaimTemplates": [volume("data")]});
    place.create::<Sandbox>(sandbox("one", spec)).await?;
    place.wait_ready::<Sandbox>("one", "False/PodSucceeded").await?;
    place.patch::<Sandbox>("one", json!({"spec": {"shutdownTime": "2020-01-01T00:00:00Z"}})).await?;
    let empty = place
        .wait_for("one", "expired and empty", |one: &Sandbox| {
            let status = one.status.clone().unwrap_or_default();
            ready(one) == "False/SandboxExpired" && status.pod_ips.is_empty() && status.selector.is_none()
        })
        .await?;
    assert_eq!(state(&empty, "Finished"), "True/PodSucceeded", "how it ended is kept");
    assert_eq!(state(&empty, "PodScheduled"), "");
    let status = empty.status.unwrap_or_default();
    assert_eq!((status.service, status.service_fqdn, status.node_name), (None, None, None));
    place.wait_gone::<Pod>("one").await?;
    place.wait_gone::<Service>("one").await?;
    let kept: PersistentVolumeClaim = place.get("data-one").await?;
    assert!(kept.metadata.deletion_timestamp.is_none(), "{kept:?}");

    let told = place
        .eventually("the record of the expiry", async || {
            let told =
                sandboxes.of("one").into_iter().find(|entry| ready(&entry.object) == "False/SandboxExpired");
            Ok(told.map(|entry| version(&entry.object)))
        })
        .await?;
    let went = place
        .eventually("the record of the pod's end", async || {
            let end = pods
                .of("one")
                .into_iter()
                .find(|entry| entry.deleted || entry.object.metadata.deletion_timestamp.is_some());
            Ok(end.map(|entry| version(&entry.object)))
        })
        .await?;
    assert!(told < went, "the pod went at {went}, the expiry was stored at {told}");

    let later = Timestamp::now() + 1.hour();
    let revival = json!({"spec": {"shutdownTime": later, "podTemplate": {"metadata": {"annotations": {FATE: "ready"}}}}});
    place.patch::<Sandbox>("one", revival).await?;
    place.wait_ready::<Sandbox>("one", "True/DependenciesReady").await?;
    assert_eq!(place.get::<PersistentVolumeClaim>("data-one").await?.uid(), kept.uid());

    let spec = json!({"shutdownPolicy": "Delete", "shutdownTime": "2020-01-01T00:00:00Z"});
    place.create::<Sandbox>(sandbox("two", spec)).await?;
    place.wait_gone::<Sandbox>("two").await
}

/// The number of tries for row 11: on a busy machine the controller may look only after the
/// deadline, and then the test proves nothing.
const ATTEMPTS: usize = 10;

/// The names of concurrent objects in one try of row 11.
fn letters(attempt: usize) -> [String; 5] {
    ["a", "b", "c", "d", "e"].map(|letter| format!("{letter}{attempt}"))
}

/// Returns true if an object was reconciled in this generation and had not expired.
fn looked_at<K: Namespaced>(versions: &[Entry<K>], generation: Option<i64>) -> bool {
    versions.iter().filter(|entry| entry.object.meta().generation == generation).any(|entry| {
        let ready = condition(&entry.object, "Ready").unwrap_or_default();
        ready["status"] == "True" && ready["observedGeneration"] == json!(generation)
    })
}

/// Returns the second of a time.
fn second(text: &str) -> Result<i64> {
    Ok(text.parse::<Timestamp>()?.as_second())
}

/// Claims that were reconciled less than a second before their deadline expire in the second of the
/// deadline. One that is reconciled two seconds later, as sandboxes are, expires in a later second.
pub(super) async fn row_11_claims_expire_in_the_second_of_their_deadline(place: Place) -> Result<()> {
    place.pool("pool", 0, json!({"podTemplate": simulated(Fate::Ready)})).await?;
    let history = place.record::<SandboxClaim>().await?;
    for attempt in 0..ATTEMPTS {
        let names = letters(attempt);
        for name in &names {
            place.claim(name, "pool", json!({})).await?;
        }
        for name in &names {
            place.wait_claimed(name).await?;
        }
        // Early in a second, so that the deadline is almost a second away.
        place.second_after(&Timestamp::now().to_string()).await?;
        let deadline = Timestamp::from_second(Timestamp::now().as_second() + 1)?;
        let lifecycle =
            json!({"spec": {"lifecycle": {"shutdownTime": deadline, "shutdownPolicy": "Retain"}}});
        let mut asked = Vec::new();
        for name in &names {
            asked.push(place.patch::<SandboxClaim>(name, lifecycle.clone()).await?);
        }
        let (mut looked, mut exact) = (0, 0);
        for claim in asked {
            let name = claim.name_any();
            let expired: SandboxClaim = place.wait_ready(&name, "False/ClaimExpired").await?;
            let end = second(&since(&expired, "Ready"))?;
            assert!(end >= deadline.as_second(), "{name} expired at {end}, before {deadline}");
            let versions = place
                .eventually("the record of the expiry", async || {
                    let versions = history.of(&name);
                    let over = versions.iter().any(|entry| ready(&entry.object) == "False/ClaimExpired");
                    Ok(over.then_some(versions))
                })
                .await?;
            if looked_at(&versions, claim.metadata.generation) {
                looked += 1;
                exact += usize::from(end == deadline.as_second());
            }
        }
        if exact * 2 > looked {
            return Ok(());
        }
    }
    anyhow::bail!("claims that were looked at before their deadline were not over in the second of it")
}

/// A sandbox that was reconciled before its deadline is not reconciled again within two seconds.
/// Another event may wake the controller, but not for most of them.
pub(super) async fn row_11_a_sandbox_does_not_expire_within_two_seconds_of_a_look(
    place: Place,
) -> Result<()> {
    let history = place.record::<Sandbox>().await?;
    let (mut looked, mut left_alone) = (0, 0);
    for attempt in 0..ATTEMPTS {
        let names = letters(attempt);
        for name in &names {
            let spec = json!({"podTemplate": simulated(Fate::Ready)});
            place.create::<Sandbox>(sandbox(name, spec)).await?;
        }
        for name in &names {
            place.wait_ready::<Sandbox>(name, "True/DependenciesReady").await?;
        }
        // Early in a second, the deadline is almost a second away, and two seconds after the
        // request are a later second than the deadline.
        place.second_after(&Timestamp::now().to_string()).await?;
        let mut asked = Vec::new();
        for name in &names {
            let now = Timestamp::now().as_second();
            let deadline = Timestamp::from_second(now + 1)?;
            asked.push((
                now,
                place.patch::<Sandbox>(name, json!({"spec": {"shutdownTime": deadline}})).await?,
            ));
        }
        for (asked, patched) in asked {
            let name = patched.name_any();
            let expired: Sandbox = place.wait_ready(&name, "False/SandboxExpired").await?;
            let end = second(&since(&expired, "Ready"))?;
            assert!(end > asked, "expired at {end}, to expire a second after {asked}");
            let versions = place
                .eventually("the record of the expiry", async || {
                    let versions = history.of(&name);
                    let over = versions.iter().any(|entry| ready(&entry.object) == "False/SandboxExpired");
                    Ok(over.then_some(versions))
                })
                .await?;
            if looked_at(&versions, patched.metadata.generation) {
                looked += 1;
                left_alone += usize::from(end >= asked + 2);
            }
        }
        if looked >= 3 {
            anyhow::ensure!(
                left_alone * 2 > looked,
                "of {looked} sandboxes that were looked at before their deadline, {left_alone} were left alone for two seconds"
            );
            return Ok(());
        }
    }
    anyhow::bail!("hardly any sandbox was looked at before its deadline")
}

pub(super) async fn row_12_scheduling_is_mirrored_word_for_word(place: Place) -> Result<()> {
    let mirrored = |one: &Sandbox, pod: &Pod| {
        let [mirror, original] = [condition(one, "PodScheduled"), condition(pod, "PodScheduled")];
        let words = |found: &Option<serde_json::Value>| {
            found.as_ref().map(|found| {
                (
                    found["status"].clone(),
                    found["reason"].clone(),
                    found["message"].as_str().unwrap_or_default().to_owned(),
                )
            })
        };
        assert_eq!(words(&mirror), words(&original));
    };
    let huge = json!({"spec": {"schedulerName": SCHEDULER, "containers": [{"name": "main", "image": "warren.dev/host",
        "resources": {"requests": {"cpu": "1000000"}}}]}});
    place.create::<Sandbox>(sandbox("huge", json!({"podTemplate": huge}))).await?;
    let told = place
        .wait_for("huge", "told", |one: &Sandbox| state(one, "PodScheduled") == "False/Unschedulable")
        .await?;
    mirrored(&told, &place.get("huge").await?);
    assert_eq!(ready(&told), "False/DependenciesNotReady");

    // A pod behind a gate: the server's own reason, or ours if it has none.
    let gated = json!({"spec": {"schedulingGates": [{"name": "test.warren.dev/gate"}]}});
    place.create::<Sandbox>(sandbox("gated", json!({"podTemplate": gated}))).await?;
    place.wait::<Pod>("gated", "made", |pod: Option<&Pod>| pod.is_some()).await?;
    let told =
        place.wait_for("gated", "told", |one: &Sandbox| condition(one, "PodScheduled").is_some()).await?;
    let pod: Pod = place.get("gated").await?;
    match condition(&pod, "PodScheduled") {
        Some(_) => mirrored(&told, &pod),
        None => assert_eq!(state(&told, "PodScheduled"), "Unknown/PodSchedulingUnknown"),
    }

    // A condition without a reason gets one.
    place.create::<Sandbox>(sandbox("plain", json!({"podTemplate": simulated(Fate::Ready)}))).await?;
    let up: Sandbox = place.wait_ready("plain", "True/DependenciesReady").await?;
    assert_eq!(
        condition(&place.get::<Pod>("plain").await?, "PodScheduled")
            .and_then(|found| found.get("reason").cloned()),
        None
    );
    assert_eq!(state(&up, "PodScheduled"), "True/PodScheduled");
    place.patch::<Sandbox>("plain", json!({"spec": {"operatingMode": "Suspended"}})).await?;
    let down = place
        .wait_for("plain", "suspended", |one: &Sandbox| state(one, "Suspended") == "True/PodTerminated")
        .await?;
    assert_eq!(state(&down, "PodScheduled"), "", "gone with the pod");
    Ok(())
}
