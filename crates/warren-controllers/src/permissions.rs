//! What the controllers may do on a cluster, as the manifests that allow it: a right is here because something in this crate uses it.
//! Tests act with exactly these rights, and are never refused.
//!
//! `xtask` takes this file in by its path, so it names nothing else of this crate.

use serde_json::{Value, json};

/// The namespace of agent-sandbox's controller, and so of ours.
pub const NAMESPACE: &str = "agent-sandbox-system";
/// The service account of agent-sandbox's Deployment, so that ours can be put into it.
pub const SERVICE_ACCOUNT: &str = "agent-sandbox-controller";

/// Of every role and binding here. Not agent-sandbox's names: whoever goes back to its controller must find its roles as they were.
const ROLE: &str = "warren-controller";
const ROLE_OF_EXTENSIONS: &str = "warren-controller-extensions";
const ROLE_OF_TASKS: &str = "warren-controller-tasks";

const CORE: &str = "";
const SANDBOXES: &str = "agents.x-k8s.io";
const EXTENSIONS: &str = "extensions.agents.x-k8s.io";
const OWN: &str = "warren.dev";

/// For what is made, changed and deleted. Every cache is filled by a list and a watch, and what was written in vain, or is in doubt, is
/// read again.
const EVERYTHING: &[&str] = &["create", "delete", "get", "list", "patch", "watch"];

/// What may be done with which resources.
struct Rule {
    group: &'static str,
    resources: &'static [&'static str],
    /// All, if there are none.
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

/// What the controller of `Sandbox` needs.
///
/// Owner references block the deletion of the owner, and on clusters with the admission plugin `OwnerReferencesPermissionEnforcement`
/// such a reference needs `update` of the owner's `finalizers`. Nobody updates them, and nobody deletes volume claims: the plugin asks for
/// `delete` whenever the owners of something change.
const FOR_SANDBOXES: &[Rule] = &[
    rule(CORE, &["persistentvolumeclaims", "pods", "services"], EVERYTHING),
    rule(SANDBOXES, &["sandboxes"], &["delete", "get", "list", "patch", "watch"]),
    rule(SANDBOXES, &["sandboxes/status"], &["patch"]),
    rule(SANDBOXES, &["sandboxes/finalizers"], &["update"]),
    rule("events.k8s.io", &["events"], &["create"]),
];

/// What claims, pools and templates need besides.
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
];

/// What leading needs. Creating cannot be allowed by name: the server does not know the name yet when it decides.
const FOR_THE_LEASE: &[Rule] = &[
    rule("coordination.k8s.io", &["leases"], &["create"]),
    Rule {
        names: &["a3317529.agent-sandbox.x-k8s.io"],
        ..rule("coordination.k8s.io", &["leases"], &["get", "list", "update", "watch"])
    },
];

/// Everything that gives the controllers their rights, by the name of the file that it is in. The account is in a file of its own, as
/// it is agent-sandbox's where that is installed; extensions and tasks are, as not everybody has them.
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

/// A role, and what gives it to the account.
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
