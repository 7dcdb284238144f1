//! The controllers' rights on a cluster, as manifests. Each right is used by code in this crate.
//! Tests run with exactly these rights, and no request is refused.
//!
//! `xtask` includes this file by its path, so it uses nothing else of this crate.

use serde_json::{Value, json};

/// The namespace of agent-sandbox's controller, and so of ours.
pub const NAMESPACE: &str = "agent-sandbox-system";
/// The service account of agent-sandbox's Deployment, so that ours can be put into it.
pub const SERVICE_ACCOUNT: &str = "agent-sandbox-controller";

/// The name of every role and binding here. It differs from agent-sandbox's, so that a user who
/// returns to its controller finds its roles unchanged.
const ROLE: &str = "warren-controller";
const ROLE_OF_EXTENSIONS: &str = "warren-controller-extensions";
const ROLE_OF_TASKS: &str = "warren-controller-tasks";

const CORE: &str = "";
const SANDBOXES: &str = "agents.x-k8s.io";
const EXTENSIONS: &str = "extensions.agents.x-k8s.io";
const OWN: &str = "warren.dev";

/// The verbs for objects that are made, changed and deleted. Every cache needs list and watch, and
/// objects in doubt are read with get.
const EVERYTHING: &[&str] = &["create", "delete", "get", "list", "patch", "watch"];

/// Verbs on resources.
struct Rule {
    group: &'static str,
    resources: &'static [&'static str],
    /// The names of the objects; all, if empty.
    names: &'static [&'static str],
    verbs: &'static [&'static str],
}

const fn rule(
    group: &'static str,
    resources: &'static [&'static str],
    verbs: &'static [&'static str],
) -> Rule {
    Rule { group, resources, names: &[], verbs }
}

/// The rules for `Sandbox`.
///
/// Owner references block the deletion of the owner. On clusters with the admission plugin
/// `OwnerReferencesPermissionEnforcement` such a reference needs `update` of the owner's
/// `finalizers`, although nothing updates them. It also asks for `delete` whenever the owners of an
/// object change, so volume claims have it although they are never deleted.
const FOR_SANDBOXES: &[Rule] = &[
    rule(CORE, &["persistentvolumeclaims", "pods", "services"], EVERYTHING),
    rule(SANDBOXES, &["sandboxes"], &["delete", "get", "list", "patch", "watch"]),
    rule(SANDBOXES, &["sandboxes/status"], &["patch"]),
    rule(SANDBOXES, &["sandboxes/finalizers"], &["update"]),
    rule("events.k8s.io", &["events"], &["create"]),
];

/// The additional rules for claims, pools and templates.
const FOR_EXTENSIONS: &[Rule] = &[
    rule(SANDBOXES, &["sandboxes"], &["create"]),
    rule(EXTENSIONS, &["sandboxclaims"], &["delete", "get", "list", "patch", "watch"]),
    rule(EXTENSIONS, &["sandboxtemplates", "sandboxwarmpools"], &["get", "list", "patch", "watch"]),
    rule(EXTENSIONS, &["sandboxclaims/status", "sandboxwarmpools/status"], &["patch"]),
    rule(
        EXTENSIONS,
        &["sandboxclaims/finalizers", "sandboxtemplates/finalizers", "sandboxwarmpools/finalizers"],
        &["update"],
    ),
    rule("networking.k8s.io", &["networkpolicies"], EVERYTHING),
    rule(CORE, &["nodes"], &["list", "watch"]),
];

/// The rules that tasks need in addition to both of the above.
const FOR_TASKS: &[Rule] = &[
    rule(OWN, &["agenttasks"], &["delete", "get", "list", "watch"]),
    rule(OWN, &["agenttasks/status"], &["patch"]),
    rule(OWN, &["agenttasks/finalizers"], &["update"]),
    rule(EXTENSIONS, &["sandboxclaims"], &["create"]),
];

/// The rules for leader election. Creation cannot be limited by name: the server does not know the
/// name yet when it decides.
const FOR_THE_LEASE: &[Rule] = &[
    rule("coordination.k8s.io", &["leases"], &["create"]),
    Rule {
        names: &["a3317529.agent-sandbox.x-k8s.io"],
        ..rule("coordination.k8s.io", &["leases"], &["get", "list", "update", "watch"])
    },
];

/// Returns the manifests of the controllers' rights, by file name. The account has a file of its
/// own, as it is agent-sandbox's where that is installed. Extensions and tasks have one each, as
/// they are optional.
#[must_use]
pub fn manifests() -> [(&'static str, Vec<Value>); 4] {
    let account = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": SERVICE_ACCOUNT, "namespace": NAMESPACE}}),
    ];
    let mut controller = of_cluster(ROLE, FOR_SANDBOXES);
    let metadata = json!({"name": ROLE, "namespace": NAMESPACE});
    controller.extend(role("Role", &metadata, FOR_THE_LEASE));
    let extensions = of_cluster(ROLE_OF_EXTENSIONS, FOR_EXTENSIONS);
    let tasks = of_cluster(ROLE_OF_TASKS, FOR_TASKS);
    [
        ("account.yaml", account),
        ("controller.yaml", controller),
        ("extensions.yaml", extensions),
        ("tasks.yaml", tasks),
    ]
}

/// Returns the bare rules, for charts that name roles themselves, by the name of their file.
#[must_use]
pub fn rules() -> [(&'static str, Value); 3] {
    let values = |rules: &[Rule]| Value::Array(rules.iter().map(Rule::to_value).collect());
    [
        ("controller.yaml", values(FOR_SANDBOXES)),
        ("extensions.yaml", values(FOR_EXTENSIONS)),
        ("lease.yaml", values(FOR_THE_LEASE)),
    ]
}

fn of_cluster(name: &str, rules: &[Rule]) -> Vec<Value> {
    role("ClusterRole", &json!({"name": name}), rules).to_vec()
}

/// Returns a role and its binding to the account.
fn role(kind: &str, metadata: &Value, rules: &[Rule]) -> [Value; 2] {
    let api_version = "rbac.authorization.k8s.io/v1";
    let rules: Vec<Value> = rules.iter().map(Rule::to_value).collect();
    [
        json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "rules": rules}),
        json!({"apiVersion": api_version, "kind": format!("{kind}Binding"), "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": metadata["name"]},
            "subjects": [{"kind": "ServiceAccount", "name": SERVICE_ACCOUNT, "namespace": NAMESPACE}]}),
    ]
}

impl Rule {
    fn to_value(&self) -> Value {
        let mut value = json!({"apiGroups": [self.group], "resources": self.resources, "verbs": self.verbs});
        if !self.names.is_empty() {
            value["resourceNames"] = json!(self.names);
        }
        value
    }
}
