//! Decides whether a node's sandboxes may be handed out. A sandbox on a broken or draining node
//! would soon be lost.

use k8s_openapi::api::core::v1::Node;

/// Taints that say that a node is being drained or is gone. Other evicting taints say nothing about
/// a pod that already runs there, since it tolerates them. Taints that only repeat the node's own
/// conditions (`not-ready`, `unreachable`, `unschedulable`) are not needed: they come and go later
/// than the conditions.
const LEAVING: [&str; 5] = [
    "node.kubernetes.io/out-of-service",
    "node.cloudprovider.kubernetes.io/shutdown",
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
];

/// Returns true if sandboxes on this node may be handed out. A node without a Ready condition
/// counts as good.
#[must_use]
pub fn is_fit(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    let cordoned = spec.and_then(|spec| spec.unschedulable) == Some(true);
    let mut taints = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default().iter();
    let leaving = taints.any(|taint| LEAVING.contains(&taint.key.as_str()));
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let not_ready =
        conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status != "True");
    let going = node.metadata.deletion_timestamp.is_some();
    !(cordoned || leaving || not_ready || going)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::is_fit;

    fn fit(node: Value) -> bool {
        is_fit(&serde_json::from_value(node).unwrap())
    }

    #[test]
    fn broken_and_leaving_nodes_are_not_fit() {
        let ready = |status: &str| json!({"conditions": [{"type": "Ready", "status": status}]});
        let tainted = |key: &str, effect: &str| json!({"taints": [{"key": key, "effect": effect}]});
        assert!(fit(json!({"metadata": {"name": "n"}})));
        assert!(fit(json!({"metadata": {}, "status": ready("True")})));
        assert!(!fit(json!({"metadata": {}, "status": ready("False")})));
        assert!(!fit(json!({"metadata": {}, "status": ready("Unknown")})));
        assert!(!fit(json!({"metadata": {}, "spec": {"unschedulable": true}, "status": ready("True")})));
        assert!(!fit(
            json!({"metadata": {}, "spec": tainted("ToBeDeletedByClusterAutoscaler", "NoSchedule")})
        ));
        assert!(fit(json!({"metadata": {}, "spec": tainted("dedicated", "NoExecute")})));
        let new = tainted("node.kubernetes.io/not-ready", "NoSchedule");
        assert!(
            fit(json!({"metadata": {}, "spec": new, "status": ready("True")})),
            "it is ready, and the taint is late"
        );
        assert!(!fit(json!({"metadata": {"deletionTimestamp": "2027-01-15T08:00:00Z"}})));
    }
}
