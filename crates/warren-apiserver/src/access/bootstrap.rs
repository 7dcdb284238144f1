//! The default roles and bindings of every cluster, limited to the kinds served here. Users may
//! change them. Missing ones are created again at the next start.

use serde_json::{Value, json};

use super::GROUP;

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "update", "patch", "delete", "deletecollection"];
const READ_WRITE: &[&str] =
    &["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

fn rule(verbs: &[&str], groups: &[&str], resources: &[&str]) -> Value {
    json!({"verbs": verbs, "apiGroups": groups, "resources": resources})
}

fn urls(urls: &[&str]) -> Value {
    json!({"verbs": ["get"], "nonResourceURLs": urls})
}

fn view() -> Vec<Value> {
    let objects = [
        "pods",
        "serviceaccounts",
        "services",
        "services/status",
        "persistentvolumeclaims",
        "persistentvolumeclaims/status",
        "configmaps",
    ];
    vec![
        rule(READ, &[""], &objects),
        rule(READ, &[""], &["bindings", "pods/status", "namespaces/status", "pods/log"]),
        rule(READ, &[""], &["namespaces"]),
        rule(READ, &["", "events.k8s.io"], &["events"]),
        rule(
            READ,
            &["apps"],
            &[
                "daemonsets",
                "daemonsets/status",
                "deployments",
                "deployments/scale",
                "deployments/status",
                "replicasets",
                "replicasets/scale",
                "replicasets/status",
                "statefulsets",
                "statefulsets/scale",
                "statefulsets/status",
            ],
        ),
        rule(READ, &["discovery.k8s.io"], &["endpointslices"]),
        rule(READ, &["networking.k8s.io"], &["networkpolicies"]),
        rule(READ, &["policy"], &["poddisruptionbudgets", "poddisruptionbudgets/status"]),
    ]
}

fn edit() -> Vec<Value> {
    let streams = ["pods/attach", "pods/proxy", "pods/exec", "pods/portforward", "secrets", "services/proxy"];
    vec![
        rule(READ, &[""], &streams),
        rule(&["impersonate"], &[""], &["serviceaccounts"]),
        rule(WRITE, &[""], &["pods", "pods/attach", "pods/proxy", "pods/exec", "pods/portforward"]),
        rule(&["create"], &[""], &["pods/eviction"]),
        rule(
            WRITE,
            &[""],
            &[
                "serviceaccounts",
                "services",
                "services/proxy",
                "persistentvolumeclaims",
                "configmaps",
                "secrets",
            ],
        ),
        rule(&["create"], &[""], &["serviceaccounts/token"]),
        rule(WRITE, &["", "events.k8s.io"], &["events"]),
        rule(
            WRITE,
            &["apps"],
            &[
                "daemonsets",
                "deployments",
                "deployments/scale",
                "replicasets",
                "replicasets/scale",
                "statefulsets",
                "statefulsets/scale",
            ],
        ),
        rule(WRITE, &["networking.k8s.io"], &["networkpolicies"]),
        rule(WRITE, &["policy"], &["poddisruptionbudgets"]),
        rule(READ_WRITE, &["coordination.k8s.io"], &["leases"]),
    ]
}

fn admin() -> Vec<Value> {
    vec![
        rule(&["create"], &["authorization.k8s.io"], &["localsubjectaccessreviews"]),
        rule(READ_WRITE, &[GROUP], &["roles", "rolebindings"]),
    ]
}

fn discovery() -> Value {
    let everything =
        ["/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz"];
    urls(&[&everything[..], &["/version", "/version/"]].concat())
}

fn role(name: &str, labels: &Value, rules: Vec<Value>, aggregates: Option<&str>) -> Value {
    let mut role = json!({
        "kind": "ClusterRole",
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "metadata": metadata(name, labels),
        "rules": rules,
    });
    if let Some(label) = aggregates {
        role["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]});
    }
    role
}

fn metadata(name: &str, labels: &Value) -> Value {
    let mut metadata = json!({
        "name": name,
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
    });
    for (label, value) in labels.as_object().into_iter().flatten() {
        metadata["labels"][label] = value.clone();
    }
    metadata
}

const TO_ADMIN: &str = "rbac.authorization.k8s.io/aggregate-to-admin";
const TO_EDIT: &str = "rbac.authorization.k8s.io/aggregate-to-edit";
const TO_VIEW: &str = "rbac.authorization.k8s.io/aggregate-to-view";

fn roles() -> Vec<Value> {
    let none = json!({});
    let everything = vec![rule(&["*"], &["*"], &["*"]), json!({"verbs": ["*"], "nonResourceURLs": ["*"]})];
    let reviews = ["selfsubjectaccessreviews", "selfsubjectrulesreviews"];
    let basic = vec![
        rule(&["create"], &["authorization.k8s.io"], &reviews),
        rule(&["create"], &["authentication.k8s.io"], &["selfsubjectreviews"]),
    ];
    let delegator = vec![
        rule(&["create"], &["authentication.k8s.io"], &["tokenreviews"]),
        rule(&["create"], &["authorization.k8s.io"], &["subjectaccessreviews"]),
    ];
    let monitoring =
        ["/metrics", "/metrics/slis", "/livez", "/readyz", "/healthz", "/livez/*", "/readyz/*", "/healthz/*"];
    vec![
        role("cluster-admin", &none, everything, None),
        role("system:discovery", &none, vec![discovery()], None),
        role(
            "system:public-info-viewer",
            &none,
            vec![urls(&["/healthz", "/livez", "/readyz", "/version", "/version/"])],
            None,
        ),
        role("system:basic-user", &none, basic, None),
        role("system:monitoring", &none, vec![urls(&monitoring)], None),
        role("system:auth-delegator", &none, delegator, None),
        role("admin", &none, [admin(), edit(), view()].concat(), Some(TO_ADMIN)),
        role("edit", &json!({TO_ADMIN: "true"}), [edit(), view()].concat(), Some(TO_EDIT)),
        role("view", &json!({TO_EDIT: "true"}), view(), Some(TO_VIEW)),
        role("system:aggregate-to-admin", &json!({TO_ADMIN: "true"}), admin(), None),
        role("system:aggregate-to-edit", &json!({TO_EDIT: "true"}), edit(), None),
        role("system:aggregate-to-view", &json!({TO_VIEW: "true"}), view(), None),
    ]
}

fn bindings() -> Vec<Value> {
    let authenticated = &["system:authenticated"][..];
    let everybody = &["system:authenticated", "system:unauthenticated"][..];
    let binding = |name: &str, groups: &[&str]| {
        let subjects: Vec<Value> =
            groups.iter().map(|group| json!({"kind": "Group", "apiGroup": GROUP, "name": group})).collect();
        json!({
            "kind": "ClusterRoleBinding",
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "metadata": metadata(name, &json!({})),
            "subjects": subjects,
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name},
        })
    };
    vec![
        binding("cluster-admin", &["system:masters"]),
        binding("system:monitoring", &["system:monitoring"]),
        binding("system:discovery", authenticated),
        binding("system:basic-user", authenticated),
        binding("system:public-info-viewer", everybody),
    ]
}

/// Returns the initial objects, each with the resource that it belongs to.
pub(crate) fn first_objects() -> Vec<(String, Value)> {
    let resource = |plural: &str| format!("{plural}.{GROUP}");
    let roles = roles().into_iter().map(|role| (resource("clusterroles"), role));
    let bindings = bindings().into_iter().map(|binding| (resource("clusterrolebindings"), binding));
    roles.chain(bindings).collect()
}
