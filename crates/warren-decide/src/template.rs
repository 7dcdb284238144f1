//! Decides about a SandboxTemplate: keeps a label with the hash of its own name, and the
//! NetworkPolicy of its sandboxes.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde_json::json;
use warren_api::conditions::{EventAction, EventReason};
use warren_api::template::NetworkPolicyManagement;
use warren_api::{NameHash, SandboxTemplate, labels};

use crate::bounded::{LONGEST_NOTE, bounded};
use crate::merge;
use crate::ownership;
use crate::semantic;
use crate::step::{Action, Failure, Kind, Note, Object, Propagation, Severity, Stage, Step};

/// The observed state of one template.
#[derive(Clone, Debug)]
pub struct World {
    /// The template.
    pub template: Arc<SandboxTemplate>,
    /// The policy with the name of the template's own.
    pub policy: Option<Arc<NetworkPolicy>>,
}

/// A plan for one template.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Writes, in order.
    pub steps: Vec<Step>,
    /// Problems; the reconcile is retried with backoff.
    pub problems: Vec<Failure>,
}

/// Returns the event of a failed reconcile. A template has no status for it.
#[must_use]
pub fn note(failures: &[Failure]) -> Option<Note> {
    let texts: Vec<&str> = failures.iter().map(|failure| failure.message.as_str()).collect();
    let reason = match failures.iter().all(Failure::is_final) {
        true => EventReason::InvalidConfiguration,
        false => EventReason::ReconcilerError,
    };
    (!texts.is_empty()).then(|| Note {
        severity: Severity::Warning,
        reason: reason.as_str(),
        action: EventAction::Reconciling.as_str(),
        text: bounded(&texts.join("\n"), LONGEST_NOTE).into_owned(),
    })
}

/// The namespace of the router, which the default policy allows. It and the router's label are the
/// same wherever Warren is installed: existing policies and clusters rely on them.
const ROUTER_NAMESPACE: &str = "agent-sandbox-system";
const ROUTER_APP: &str = "sandbox-router";

/// Private and link-local ranges, to which the default policy denies egress.
const PRIVATE_V4: [&str; 4] = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"];
const PRIVATE_V6: [&str; 2] = ["fc00::/7", "fe80::/10"];

const POLICY_SUFFIX: &str = "-network-policy";

/// Returns the name of a template's policy.
#[must_use]
pub fn policy_name(template: &str) -> String {
    format!("{template}{POLICY_SUFFIX}")
}

/// Returns the template's name if the policy's name is that of a template.
#[must_use]
pub fn template_of_policy(policy: &str) -> Option<&str> {
    policy.strip_suffix(POLICY_SUFFIX).filter(|template| !template.is_empty())
}

/// Plans for a template.
#[must_use]
pub fn decide(world: &World) -> Plan {
    let mut plan = Plan::default();
    let metadata = &world.template.metadata;
    if metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let name = metadata.name.clone().unwrap_or_default();
    let hash = NameHash::of(&name).to_string();
    if ownership::label(metadata, labels::SANDBOX_TEMPLATE_REF_HASH) != Some(&hash) {
        plan.steps.push(Step::new(
            Stage::Subject,
            Action::Merge {
                kind: Kind::SandboxTemplate,
                name: name.clone(),
                body: json!({"metadata": {"labels": {labels::SANDBOX_TEMPLATE_REF_HASH: hash}}}),
            },
        ));
    }
    let managed = world.template.spec.network_policy_management == NetworkPolicyManagement::Managed;
    let uid = metadata.uid.as_deref().unwrap_or_default();
    let wanted = wanted_policy(&world.template);
    let action = match &world.policy {
        None if managed => {
            Some(Action::Create(Object::NetworkPolicy(Box::new(new_policy(&world.template, wanted)))))
        }
        None => None,
        Some(policy) if ownership::is_controlled_by(&policy.metadata, uid) => match managed {
            true => correction(policy, &wanted).map(|patch| Action::Merge {
                kind: Kind::NetworkPolicy,
                name: policy_name(&name),
                // The uid guards against another policy of the same name.
                body: json!({"metadata": {"uid": policy.metadata.uid}, "spec": patch}),
            }),
            false => Some(delete(policy)),
        },
        Some(_) if managed => {
            let text = format!("network policy {} is not controlled by this template", policy_name(&name));
            plan.problems.push(Failure::found(Stage::Subject, text));
            None
        }
        Some(_) => None,
    };
    plan.steps.extend(action.map(|action| Step::new(Stage::Subject, action)));
    plan
}

/// Returns the patch of a policy, unless it already means the same.
fn correction(policy: &NetworkPolicy, wanted: &NetworkPolicySpec) -> Option<serde_json::Value> {
    let present = policy.spec.clone().unwrap_or_default();
    if semantic::same(&present, wanted) { None } else { merge::between(&present, wanted) }
}

/// Deletes a policy of ours.
pub(crate) fn delete(policy: &NetworkPolicy) -> Action {
    Action::Delete {
        kind: Kind::NetworkPolicy,
        name: policy.metadata.name.clone().unwrap_or_default(),
        uid: policy.metadata.uid.clone().unwrap_or_default(),
        version: None,
        propagation: Propagation::Background,
    }
}

fn wanted_policy(template: &SandboxTemplate) -> NetworkPolicySpec {
    let (mut ingress, mut egress) = match &template.spec.network_policy {
        Some(rules) => (rules.ingress.clone(), rules.egress.clone()),
        None => (vec![router_ingress()], vec![public_egress()]),
    };
    // The server writes the default protocol but no other defaults. Without this, the stored policy
    // would always differ from the wanted one.
    let ports =
        ingress.iter_mut().map(|rule| &mut rule.ports).chain(egress.iter_mut().map(|rule| &mut rule.ports));
    for port in ports.flatten().flatten() {
        port.protocol.get_or_insert_with(|| "TCP".to_owned());
    }
    let hash = NameHash::of(template.metadata.name.as_deref().unwrap_or_default()).to_string();
    NetworkPolicySpec {
        pod_selector: Some(selector(labels::SANDBOX_TEMPLATE_REF_HASH, &hash)),
        policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
        // For the server, an empty list and no list mean the same. It stores no list.
        ingress: (!ingress.is_empty()).then_some(ingress),
        egress: (!egress.is_empty()).then_some(egress),
    }
}

fn new_policy(template: &SandboxTemplate, spec: NetworkPolicySpec) -> NetworkPolicy {
    NetworkPolicy {
        metadata: ObjectMeta {
            name: Some(policy_name(template.metadata.name.as_deref().unwrap_or_default())),
            namespace: template.metadata.namespace.clone(),
            owner_references: Some(vec![ownership::reference_to(template)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
    }
}

fn selector(key: &str, value: &str) -> LabelSelector {
    LabelSelector {
        match_labels: Some(BTreeMap::from([(key.to_owned(), value.to_owned())])),
        ..LabelSelector::default()
    }
}

fn router_ingress() -> NetworkPolicyIngressRule {
    NetworkPolicyIngressRule {
        from: Some(vec![NetworkPolicyPeer {
            namespace_selector: Some(selector("kubernetes.io/metadata.name", ROUTER_NAMESPACE)),
            pod_selector: Some(selector("app", ROUTER_APP)),
            ..NetworkPolicyPeer::default()
        }]),
        ..NetworkPolicyIngressRule::default()
    }
}

fn public_egress() -> NetworkPolicyEgressRule {
    let block = |cidr: &str, except: &[&str]| NetworkPolicyPeer {
        ip_block: Some(IPBlock {
            cidr: cidr.to_owned(),
            except: Some(except.iter().map(|&range| range.to_owned()).collect()),
        }),
        ..NetworkPolicyPeer::default()
    };
    NetworkPolicyEgressRule {
        to: Some(vec![block("0.0.0.0/0", &PRIVATE_V4), block("::/0", &PRIVATE_V6)]),
        ..NetworkPolicyEgressRule::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use expect_test::{Expect, expect};
    use serde_json::{Value, json};

    use super::{Action, Object, World, decide};
    use crate::merge;

    fn world(spec: Value, policy: Option<Value>) -> World {
        let mut template = json!({
            "metadata": {"name": "test-template", "namespace": "default", "uid": "t",
                "labels": {"agents.x-k8s.io/sandbox-template-ref-hash": "69155462"}},
            "spec": {"podTemplate": {"spec": {"containers": []}}},
        });
        for (key, value) in spec.as_object().unwrap() {
            template["spec"][key] = value.clone();
        }
        World {
            template: Arc::new(serde_json::from_value(template).unwrap()),
            policy: policy.map(|policy| Arc::new(serde_json::from_value(policy).unwrap())),
        }
    }

    fn policy(owner: &str, spec: Value) -> Option<Value> {
        Some(json!({"metadata": {"name": "test-template-network-policy", "uid": "n", "ownerReferences": [
            {"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate", "name": "test-template", "uid": owner, "controller": true}]},
            "spec": spec}))
    }

    fn check(world: &World, expect: Expect) {
        let plan = decide(world);
        let mut lines: Vec<String> = plan.steps.iter().map(|step| step.action.to_string()).collect();
        lines.extend(plan.problems.iter().map(|problem| format!("problem: {}", problem.message)));
        expect.assert_eq(&lines.join("\n"));
    }

    #[test]
    fn the_secure_default_lets_the_router_in_and_only_the_public_out() {
        let plan = decide(&world(json!({}), None));
        let Action::Create(Object::NetworkPolicy(policy)) = &plan.steps[0].action else { panic!("{plan:?}") };
        expect![[r#"{"egress":[{"to":[{"ipBlock":{"cidr":"0.0.0.0/0","except":["10.0.0.0/8","172.16.0.0/12","192.168.0.0/16","169.254.0.0/16"]}},{"ipBlock":{"cidr":"::/0","except":["fc00::/7","fe80::/10"]}}]}],"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"agent-sandbox-system"}},"podSelector":{"matchLabels":{"app":"sandbox-router"}}}]}],"podSelector":{"matchLabels":{"agents.x-k8s.io/sandbox-template-ref-hash":"69155462"}},"policyTypes":["Ingress","Egress"]}"#]]
        .assert_eq(&merge::json(&policy.spec).to_string());
        // The created policy equals the wanted one: nothing more to do.
        let made = merge::json(&policy.spec);
        check(&world(json!({}), self::policy("t", made)), expect![""]);
    }

    #[test]
    fn row_28_only_a_policy_of_its_own_is_touched() {
        check(
            &world(json!({"networkPolicyManagement": "Unmanaged"}), policy("t", json!({}))),
            expect!["delete NetworkPolicy test-template-network-policy"],
        );
        check(&world(json!({"networkPolicyManagement": "Unmanaged"}), policy("x", json!({}))), expect![""]);
        check(&world(json!({"networkPolicyManagement": "Unmanaged"}), None), expect![""]);
        check(
            &world(json!({}), policy("x", json!({}))),
            expect![
                "problem: network policy test-template-network-policy is not controlled by this template"
            ],
        );
    }

    #[test]
    fn own_rules_are_copied_and_drift_is_repaired() {
        let rules = json!({"networkPolicy": {"egress": [{"ports": [{"port": 53}]}]}});
        let drifted =
            json!({"podSelector": {"matchLabels": {"a": "b"}}, "policyTypes": ["Egress"], "ingress": [{}]});
        check(
            &world(rules, policy("t", drifted)),
            expect![[
                r#"patch NetworkPolicy test-template-network-policy {"metadata":{"uid":"n"},"spec":{"ingress":null,"egress":[{"ports":[{"port":53,"protocol":"TCP"}]}],"podSelector":{"matchLabels":{"a":null,"agents.x-k8s.io/sandbox-template-ref-hash":"69155462"}},"policyTypes":["Ingress","Egress"]}}"#
            ]],
        );
    }

    #[test]
    fn a_policy_as_the_server_stores_it_is_not_written_again() {
        let rules = json!({"networkPolicy": {
            "egress": [{"ports": [{"port": 53}, {"port": 53, "protocol": "UDP"}]}],
            "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": "http"}]}],
        }});
        let stored = json!({
            "podSelector": {"matchLabels": {"agents.x-k8s.io/sandbox-template-ref-hash": "69155462"}},
            "policyTypes": ["Ingress", "Egress"],
            "egress": [{"ports": [{"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}],
            "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": "http", "protocol": "TCP"}]}],
        });
        check(&world(rules, policy("t", stored)), expect![""]);
    }

    #[test]
    fn a_template_is_labelled_with_its_own_hash() {
        let mut world = world(json!({"networkPolicyManagement": "Unmanaged"}), None);
        Arc::make_mut(&mut world.template).metadata.labels = None;
        check(
            &world,
            expect![[
                r#"patch SandboxTemplate test-template {"metadata":{"labels":{"agents.x-k8s.io/sandbox-template-ref-hash":"69155462"}}}"#
            ]],
        );
        Arc::make_mut(&mut world.template).metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
        check(&world, expect![""]);
    }
}
