//! Whether a node is a good place for somebody's work: a sandbox on a node that is broken or being emptied is not handed
//! out, as it would soon be gone.

use k8s_openapi::api::core::v1::Node;

/// Taints by which others say that a node is being emptied or is not there. Other taints that evict say nothing about a pod
/// that runs there in spite of them: it tolerates them. Those that only repeat the node's own words (`not-ready`,
/// `unreachable`, `unschedulable`) come and go later than these do, and are not needed.
const LEAVING: [&str; 5] = [
    "node.kubernetes.io/out-of-service",
    "node.cloudprovider.kubernetes.io/shutdown",
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
];

/// Whether sandboxes on this node may be handed out. A node that does not say how it is counts as good.
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
