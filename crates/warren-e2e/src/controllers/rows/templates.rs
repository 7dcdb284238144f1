//! Tests templates: their network policy, and the defaults of sandboxes made from them.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt as _;
use serde_json::json;
use warren_api::{NameHash, Sandbox, SandboxTemplate, SandboxWarmPool, labels};

use crate::controllers::place::Place;
use crate::controllers::workload::{pool, sandbox, template};

pub(super) async fn row_28_a_policy_of_others_is_left_alone(place: Place) -> Result<()> {
    let own = |name: &str| format!("{name}-network-policy");
    let foreign = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": own("taken")}, "spec": {"podSelector": {"matchLabels": {"app": "theirs"}}}});
    let foreign: NetworkPolicy = place.create(foreign).await?;
    place.create::<SandboxTemplate>(template("taken", json!({}))).await?;
    place.create::<SandboxTemplate>(template("free", json!({}))).await?;
    let policy = place
        .wait::<NetworkPolicy>(&own("free"), "made", |policy: Option<&NetworkPolicy>| policy.is_some())
        .await?
        .context("a policy")?;
    assert_eq!(policy.owner_references()[0].name, "free");
    let selector = policy.spec.as_ref().and_then(|spec| spec.pod_selector.as_ref()?.match_labels.clone());
    let hash = NameHash::of("free").to_string();
    assert_eq!(selector.unwrap_or_default().get(labels::SANDBOX_TEMPLATE_REF_HASH), Some(&hash));
    // The label on the template is written in the same reconcile, so the template has been
    // reconciled.
    let labelled =
        |template: &SandboxTemplate| template.labels().contains_key(labels::SANDBOX_TEMPLATE_REF_HASH);
    place.wait_for("taken", "labelled", labelled).await?;
    let event = place.wait_event("taken", "ReconcilerError").await?;
    let words = [&event.type_, &event.action, &event.note].map(Option::as_deref);
    let text = format!("network policy {} is not controlled by this template", own("taken"));
    assert_eq!(words, ["Warning", "Reconciling", text.as_str()].map(Some));
    let left: NetworkPolicy = place.get(&own("taken")).await?;
    assert_eq!((left.uid(), left.resource_version()), (foreign.uid(), foreign.resource_version()));

    let unmanaged = json!({"spec": {"networkPolicyManagement": "Unmanaged"}});
    place.patch::<SandboxTemplate>("taken", unmanaged.clone()).await?;
    place.patch::<SandboxTemplate>("free", unmanaged).await?;
    place.wait_gone::<NetworkPolicy>(&own("free")).await?;
    let left: NetworkPolicy = place.get(&own("taken")).await?;
    assert_eq!((left.uid(), left.resource_version()), (foreign.uid(), foreign.resource_version()));
    // Once it is removed, its manager creates its own in its place.
    place.delete::<NetworkPolicy>(&own("taken")).await?;
    place.patch::<SandboxTemplate>("taken", json!({"spec": {"networkPolicyManagement": "Managed"}})).await?;
    place
        .wait_for(&own("taken"), "the template's", |policy: &NetworkPolicy| {
            !policy.owner_references().is_empty()
        })
        .await?;
    Ok(())
}

pub(super) async fn row_28_secure_defaults_are_for_derived_sandboxes_that_say_nothing_else(
    place: Place,
) -> Result<()> {
    let own_words =
        json!({"podTemplate": {"spec": {"dnsPolicy": "Default", "automountServiceAccountToken": true}}});
    for (name, spec, dns, token) in [
        ("secure", json!({}), Some("None"), Some(false)),
        ("policy", json!({"networkPolicy": {"egress": [{}]}}), None, Some(false)),
        ("unmanaged", json!({"networkPolicyManagement": "Unmanaged"}), None, Some(false)),
        ("own", own_words, Some("Default"), Some(true)),
    ] {
        place.pool(name, 0, spec).await?;
        place.claim(name, name, json!({})).await?;
        let made = place
            .wait::<Sandbox>(name, "made", |sandbox: Option<&Sandbox>| sandbox.is_some())
            .await?
            .context("a sandbox")?;
        // The same for members of a pool.
        let warm = format!("{name}-warm");
        place.create::<SandboxWarmPool>(pool(&warm, name, 1)).await?;
        let member =
            place.eventually("a member", async || Ok(place.members(&warm).await?.into_iter().next())).await?;
        let servers = |pod: &PodSpec| pod.dns_config.as_ref().and_then(|config| config.nameservers.clone());
        let secure = (name == "secure").then(|| ["8.8.8.8", "1.1.1.1"].map(str::to_owned).to_vec());
        for derived in [made, member] {
            let (who, pod) = (derived.name_any(), &derived.spec.blueprint.pod_template.spec);
            let policy = (pod.dns_policy.as_deref(), pod.automount_service_account_token);
            assert_eq!((policy, servers(pod)), ((dns, token), secure.clone()), "{who}");
        }
    }
    place.create::<Sandbox>(sandbox("plain", json!({}))).await?;
    let plain: Sandbox = place.wait_ready("plain", "True/DependenciesReady").await?;
    let pod = &plain.spec.blueprint.pod_template.spec;
    assert_eq!((pod.dns_policy.as_deref(), pod.automount_service_account_token), (None, None));
    assert!(place.get_opt::<NetworkPolicy>("plain-network-policy").await?.is_none());
    Ok(())
}
