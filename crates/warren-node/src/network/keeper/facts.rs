//! Extracts the properties of a pod that rules depend on. Every property that is read here is also
//! compared here.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use warren_decide::network::policy::{Labels, NamedPort, PodFacts, Protocol, are_told_apart};

use crate::network::Lease;

static NO_LABELS: Labels = Labels::new();

/// Returns the facts of a pod with an address.
pub(super) fn of(lease: Lease, pod: &Pod) -> PodFacts<'_> {
    PodFacts {
        address: lease.address,
        namespace: pod.metadata.namespace.as_deref().unwrap_or_default(),
        labels: labels(&pod.metadata),
        mode: lease.mode,
        ports: named_ports(pod).collect(),
    }
}

/// Returns true if rules see a difference between two states of a pod that kept its lease. The
/// policies are read only when labels have changed.
pub(super) fn differ(before: &Pod, after: &Pod, policies: impl FnOnce() -> Vec<Arc<NetworkPolicy>>) -> bool {
    if before.metadata.namespace != after.metadata.namespace || !named_ports(before).eq(named_ports(after)) {
        return true;
    }
    let (before, after) = (labels(&before.metadata), labels(&after.metadata));
    if before == after {
        return false;
    }
    let policies = policies();
    let policies: Vec<&NetworkPolicy> = policies.iter().map(|policy| &**policy).collect();
    are_told_apart(&policies, before, after)
}

/// Returns an object's labels.
pub(super) fn labels(metadata: &ObjectMeta) -> &Labels {
    metadata.labels.as_ref().unwrap_or(&NO_LABELS)
}

fn named_ports(pod: &Pod) -> impl Iterator<Item = NamedPort<'_>> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.flat_map(|container| container.ports.iter().flatten()).filter_map(|port| {
        Some(NamedPort {
            name: port.name.as_deref()?,
            protocol: Protocol::named(port.protocol.as_deref())?,
            number: u16::try_from(port.container_port).ok()?,
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(metadata: Value, port: &Value, phase: &str) -> Pod {
        let containers = json!([{"name": "main", "ports": [port]}]);
        let pod =
            json!({"metadata": metadata, "spec": {"containers": containers}, "status": {"phase": phase}});
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn only_what_rules_read_is_a_difference() {
        let policy =
            json!({"metadata": {"name": "p"}, "spec": {"podSelector": {"matchLabels": {"app": "a"}}}});
        let policies = || vec![Arc::new(serde_json::from_value(policy.clone()).unwrap())];
        let web = json!({"name": "web", "containerPort": 80});
        let labelled = |labels: Value| json!({"namespace": "one", "labels": labels});
        let before = pod(labelled(json!({"app": "a"})), &web, "Pending");
        let differs = |after: &Pod| differ(&before, after, policies);
        assert!(!differs(&pod(labelled(json!({"app": "a"})), &web, "Running")), "its state");
        assert!(
            !differs(&pod(labelled(json!({"app": "a", "claim": "x"})), &web, "Pending")),
            "nobody reads it"
        );
        assert!(differs(&pod(labelled(json!({"app": "b"})), &web, "Pending")));
        assert!(differs(&pod(json!({"namespace": "one"}), &web, "Pending")));
        let other = json!({"name": "web", "containerPort": 81});
        assert!(differs(&pod(labelled(json!({"app": "a"})), &other, "Pending")));
        assert!(differs(&pod(json!({"namespace": "two", "labels": {"app": "a"}}), &web, "Pending")));
    }
}
