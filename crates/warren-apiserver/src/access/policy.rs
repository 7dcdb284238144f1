//! The roles and bindings of a store, indexed by subject.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;
use warren_store::{Filter, ListRequest, Object, Store};

use super::{Attributes, Rule, account_user};
use crate::identity::Identity;

/// The result of an authorization check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    Allowed {
        /// The binding that allows it. Empty for members of `system:masters`.
        reason: String,
    },
    Denied {
        /// The bindings whose roles do not exist. Empty if there are none.
        reason: String,
    },
}

/// All bindings, indexed by subject.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    users: HashMap<String, Vec<Grant>>,
    groups: HashMap<String, Vec<Grant>>,
}

/// The effect of one binding on one of its subjects.
#[derive(Debug)]
struct Grant {
    /// The namespace where it holds; `None` means everywhere.
    namespace: Option<Arc<str>>,
    /// The rules of the role, or the message if the role does not exist.
    rules: Result<Arc<[Rule]>, String>,
    /// A text such as `RoleBinding "b/n" of Role "r" to User "u"`.
    description: String,
}

/// The roles of a store by namespace and name. The namespace of a cluster role is empty.
pub(super) type Roles = HashMap<(String, String), Arc<[Rule]>>;

pub(super) fn list(store: &Store, plural: &str) -> Vec<Arc<Object>> {
    let resource = format!("{plural}.{}", super::GROUP).into();
    let filter = Filter::default();
    let request = ListRequest { resource: &resource, filter: &filter, limit: None, after: None, at: None };
    store.list(&request).map(|list| list.items).unwrap_or_default()
}

impl Policy {
    pub fn compile(store: &Store) -> Policy {
        let mut roles = Roles::new();
        for plural in ["roles", "clusterroles"] {
            for role in list(store, plural) {
                let rules: Arc<[Rule]> = Rule::list(&role.value()["rules"]).into();
                roles.insert((role.key.namespace.to_string(), role.key.name.to_string()), rules);
            }
        }
        let mut policy = Policy::default();
        for plural in ["clusterrolebindings", "rolebindings"] {
            for binding in list(store, plural) {
                policy.add(&binding, &roles);
            }
        }
        policy
    }

    fn add(&mut self, binding: &Object, roles: &Roles) {
        let (namespace, name) = (&*binding.key.namespace, &*binding.key.name);
        let value = binding.value();
        let role = &value["roleRef"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (role_kind, role_name) = (text(&role["kind"]), text(&role["name"]));
        let role_namespace = if role_kind == "Role" { namespace } else { "" };
        let rules = roles
            .get(&(role_namespace.to_owned(), role_name.clone()))
            .cloned()
            .ok_or_else(|| format!("{}.{} {role_name:?} not found", role_kind.to_lowercase(), super::GROUP));
        let (kind, shown, holds_in) = match namespace {
            "" => ("ClusterRoleBinding", name.to_owned(), None),
            namespace => ("RoleBinding", format!("{name}/{namespace}"), Some(Arc::from(namespace))),
        };
        for subject in value["subjects"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let subject_name = text(&subject["name"]);
            let subject_kind = text(&subject["kind"]);
            let of_account = match subject["namespace"].as_str() {
                Some(named) if !named.is_empty() => named,
                _ => namespace,
            };
            let (whom, to) = match subject_kind.as_str() {
                "User" => (&mut self.users, subject_name.clone()),
                "Group" => (&mut self.groups, subject_name.clone()),
                "ServiceAccount" if !of_account.is_empty() => {
                    (&mut self.users, account_user(of_account, &subject_name))
                }
                _ => continue,
            };
            let subject_shown = match subject_kind.as_str() {
                "ServiceAccount" => format!("{subject_name}/{of_account}"),
                _ => subject_name,
            };
            whom.entry(to).or_default().push(Grant {
                namespace: holds_in.clone(),
                rules: rules.clone(),
                description: format!(
                    "{kind} {shown:?} of {role_kind} {role_name:?} to {subject_kind} {subject_shown:?}"
                ),
            });
        }
    }

    /// Returns the grants of a user in a namespace. If the namespace is empty, returns only those
    /// that hold everywhere.
    fn grants<'a>(&'a self, identity: &'a Identity, namespace: &'a str) -> impl Iterator<Item = &'a Grant> {
        let of_groups = identity.groups.iter().filter_map(|group| self.groups.get(group));
        let all = self.users.get(&identity.user).into_iter().chain(of_groups).flatten();
        all.filter(move |grant| grant.namespace.as_deref().is_none_or(|known| known == namespace))
    }

    pub fn decide(&self, identity: &Identity, attributes: &Attributes<'_>) -> Decision {
        let namespace = match attributes {
            Attributes::Resource { namespace, .. } => namespace,
            Attributes::Path { .. } => "",
        };
        let mut broken: Vec<&str> = Vec::new();
        for grant in self.grants(identity, namespace) {
            match &grant.rules {
                Ok(rules) if rules.iter().any(|rule| rule.allows(attributes)) => {
                    return Decision::Allowed { reason: format!("RBAC: allowed by {}", grant.description) };
                }
                Ok(_) => {}
                Err(missing) if broken.contains(&missing.as_str()) => {}
                Err(missing) => broken.push(missing),
            }
        }
        let reason = match broken.as_slice() {
            [] => String::new(),
            [one] => format!("RBAC: {one}"),
            several => format!("RBAC: [{}]", several.join(", ")),
        };
        Decision::Denied { reason }
    }

    /// Returns the rules that hold for a user in a namespace, and the messages about missing roles.
    pub fn rules(&self, identity: &Identity, namespace: &str) -> (Vec<Rule>, Vec<String>) {
        let (mut rules, mut broken) = (Vec::new(), Vec::new());
        for grant in self.grants(identity, namespace) {
            match &grant.rules {
                Ok(granted) => rules.extend(granted.iter().cloned()),
                Err(missing) => broken.push(missing.clone()),
            }
        }
        (rules, broken)
    }
}
