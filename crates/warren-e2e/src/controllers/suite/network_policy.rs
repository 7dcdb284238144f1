//! Tests the network policy of a template, and its effect on pods made from it.

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use warren_api::{NameHash, Sandbox, SandboxTemplate, labels};

use super::objects::controller;
use crate::controllers::place::Place;
use crate::controllers::workload;

fn spec(policy: &NetworkPolicy) -> Value {
    serde_json::to_value(&policy.spec).unwrap_or_default()
}

fn selector(template: &str) -> Value {
    json!({"matchLabels": {labels::SANDBOX_TEMPLATE_REF_HASH: NameHash::of(template).to_string()}})
}

async fn policy(place: &Place, name: &str, wanted: &Value) -> Result<NetworkPolicy> {
    let what = format!("{wanted}");
    place.wait_for(name, &what, |policy: &NetworkPolicy| spec(policy) == *wanted).await
}

fn secure(template: &str) -> Value {
    let v4 = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"];
    json!({
        "podSelector": selector(template),
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "agent-sandbox-system"}},
            "podSelector": {"matchLabels": {"app": "sandbox-router"}},
        }]}],
        "egress": [{"to": [
            {"ipBlock": {"cidr": "0.0.0.0/0", "except": v4}},
            {"ipBlock": {"cidr": "::/0", "except": ["fc00::/7", "fe80::/10"]}},
        ]}],
    })
}

/// Without rules: the router is allowed in, the open internet is allowed out, and names are
/// resolved by public servers.
pub async fn a_template_without_rules_is_secure_by_default(place: Place) -> Result<()> {
    place.pool("t", 0, json!({})).await?;
    let made = policy(&place, "t-network-policy", &secure("t")).await?;
    let template: SandboxTemplate = place
        .wait_for("t", "labelled", |template: &SandboxTemplate| {
            template.labels().get(labels::SANDBOX_TEMPLATE_REF_HASH) == Some(&NameHash::of("t").to_string())
        })
        .await?;
    let owner = format!(
        "extensions.agents.x-k8s.io/v1beta1 SandboxTemplate t {}",
        template.uid().unwrap_or_default()
    );
    assert_eq!(controller(&made), owner);

    place.claim("c", "t", json!({})).await?;
    place.wait_claimed("c").await?;
    let pod: Pod = place.get("c").await?;
    assert_eq!(
        pod.labels().get(labels::SANDBOX_TEMPLATE_REF_HASH),
        Some(&NameHash::of("t").to_string()),
        "the policy selects it"
    );
    let inside = pod.spec.unwrap_or_default();
    assert_eq!(inside.automount_service_account_token, Some(false));
    assert_eq!(inside.dns_policy.as_deref(), Some("None"));
    let nameservers = inside.dns_config.and_then(|dns| dns.nameservers).unwrap_or_default();
    assert_eq!(nameservers, ["8.8.8.8", "1.1.1.1"]);
    // A sandbox that was created directly gets none of this.
    place.create::<Sandbox>(workload::sandbox("plain", json!({}))).await?;
    place.wait_ready::<Sandbox>("plain", "True/DependenciesReady").await?;
    let plain: Pod = place.get("plain").await?;
    assert!(plain.spec.is_some_and(|spec| spec.dns_policy.as_deref() != Some("None")));

    // A changed policy is corrected. When the template goes, it goes too.
    place.patch::<NetworkPolicy>("t-network-policy", json!({"spec": {"egress": [{}]}})).await?;
    let mended = policy(&place, "t-network-policy", &secure("t")).await?;
    assert_eq!(mended.uid(), made.uid());
    place.delete::<SandboxTemplate>("t").await?;
    place.wait_gone::<NetworkPolicy>("t-network-policy").await
}

/// Rules of its own replace the default and are followed when they change; `Unmanaged` removes the
/// policy.
pub async fn a_template_with_rules_manages_its_policy_until_told_not_to(place: Place) -> Result<()> {
    let ingress = json!([{"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}]}]);
    place.pool("t", 0, json!({"networkPolicy": {"ingress": ingress}})).await?;
    // The server drops an empty list; with both directions named, that denies all egress.
    let closed =
        json!({"podSelector": selector("t"), "policyTypes": ["Ingress", "Egress"], "ingress": ingress});
    let made = policy(&place, "t-network-policy", &closed).await?;
    let egress = json!([{"to": [{"ipBlock": {"cidr": "203.0.113.0/24"}}]}]);
    place
        .patch::<SandboxTemplate>("t", json!({"spec": {"networkPolicy": {"ingress": [], "egress": egress}}}))
        .await?;
    let open = json!({"podSelector": selector("t"), "policyTypes": ["Ingress", "Egress"], "egress": egress});
    assert_eq!(policy(&place, "t-network-policy", &open).await?.uid(), made.uid());

    // Pods of a template with rules keep their DNS servers.
    place.claim("c", "t", json!({})).await?;
    place.wait_claimed("c").await?;
    let inside = place.get::<Pod>("c").await?.spec.unwrap_or_default();
    assert_ne!(inside.dns_policy.as_deref(), Some("None"));
    assert_eq!(inside.automount_service_account_token, Some(false));

    let manage = |word: &str| json!({"spec": {"networkPolicyManagement": word}});
    place.patch::<SandboxTemplate>("t", manage("Unmanaged")).await?;
    place.wait_gone::<NetworkPolicy>("t-network-policy").await?;
    place.patch::<SandboxTemplate>("t", manage("Managed")).await?;
    policy(&place, "t-network-policy", &open).await.map(drop)
}

/// A policy of that name with another owner is never changed, whatever the template wants.
pub async fn a_foreign_policy_is_left_alone(place: Place) -> Result<()> {
    let stranger = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "t-network-policy"}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}});
    let foreign: NetworkPolicy = place.create(stranger).await?;
    place.pool("t", 0, json!({})).await?;
    // The template has been reconciled once it has its label.
    let seen = |template: &SandboxTemplate| template.labels().contains_key(labels::SANDBOX_TEMPLATE_REF_HASH);
    place.wait_for("t", "labelled", seen).await?;
    place.patch::<SandboxTemplate>("t", json!({"spec": {"networkPolicyManagement": "Unmanaged"}})).await?;
    // Claims are served meanwhile, and by then the change has been seen too.
    place.claim("c", "t", json!({})).await?;
    place.wait_claimed("c").await?;
    let left: NetworkPolicy = place.get("t-network-policy").await?;
    assert_eq!((left.uid(), spec(&left), controller(&left)), (foreign.uid(), spec(&foreign), String::new()));

    // Once it is managed again and the other policy is gone, the template gets its own.
    place.patch::<SandboxTemplate>("t", json!({"spec": {"networkPolicyManagement": "Managed"}})).await?;
    place.delete::<NetworkPolicy>("t-network-policy").await?;
    policy(&place, "t-network-policy", &secure("t")).await.map(drop)
}
