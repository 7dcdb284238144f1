//! Prevents privilege escalation: the rules of a role, or of the role that a binding refers to,
//! must be covered by the permissions of the user who writes it. The verbs `escalate` and `bind`
//! lift this limit.

use serde_json::Value;
use warren_store::Key;

use super::rule::{missing, quoted};
use super::{Attributes, GROUP, Rule};
use crate::call::Call;
use crate::metadata;
use crate::server::Inner;
use crate::status::{ApiError, Subject};

/// Checks a role or binding before it is written. `old` is the version that it replaces.
pub(crate) fn check_escalation(
    server: &Inner,
    call: &Call<'_>,
    new: &Value,
    old: Option<&Value>,
) -> Result<(), ApiError> {
    let definition = &call.target.definition;
    if &*definition.group != GROUP || call.identity.is_all_powerful() {
        return Ok(());
    }
    let name = metadata::text(new, "name");
    let forbidden = |why: &str| ApiError::forbidden(definition.subject(name), why);
    match &*definition.plural {
        plural @ ("roles" | "clusterroles") => {
            let unchanged = |field: &str| old.is_some_and(|old| old.get(field) == new.get(field));
            if (unchanged("rules") && unchanged("aggregationRule"))
                || may(server, call, "escalate", plural, name)
            {
                return Ok(());
            }
            if new["aggregationRule"].is_object() && !unchanged("aggregationRule") {
                let all = ["*".to_owned()];
                let everything = Rule {
                    verbs: all.to_vec(),
                    api_groups: all.to_vec(),
                    resources: all.to_vec(),
                    ..Rule::default()
                };
                let everywhere =
                    Rule { verbs: all.to_vec(), non_resource_urls: all.to_vec(), ..Rule::default() };
                check_covered(server, call, &[everything, everywhere]).map_err(|_| {
                    forbidden("must have cluster-admin privileges to use the aggregationRule")
                })?;
            }
            check_covered(server, call, &Rule::list(&new["rules"])).map_err(|why| forbidden(&why))
        }
        _ => {
            let unchanged = |field: &str| old.is_some_and(|old| old.get(field) == new.get(field));
            if unchanged("subjects") && unchanged("roleRef") {
                return Ok(());
            }
            let role = &new["roleRef"];
            let role_name = role["name"].as_str().unwrap_or_default();
            let plural = if role["kind"] == "Role" { "roles" } else { "clusterroles" };
            if may(server, call, "bind", plural, role_name) {
                return Ok(());
            }
            let namespace = if plural == "roles" { call.namespace.unwrap_or_default() } else { "" };
            let key = Key::new(format!("{plural}.{GROUP}"), namespace, role_name);
            let Some(role) = server.store.newest(&key) else {
                // kube-apiserver names the resource of the binding here, not that of the role.
                let kind = &*definition.plural;
                return Err(ApiError::not_found(Subject { group: GROUP, kind, name: role_name }));
            };
            check_covered(server, call, &Rule::list(&role.value()["rules"])).map_err(|why| forbidden(&why))
        }
    }
}

fn may(server: &Inner, call: &Call<'_>, verb: &str, resource: &str, name: &str) -> bool {
    let namespace = call.namespace.unwrap_or_default();
    let attributes = Attributes::Resource { verb, group: GROUP, resource, subresource: "", namespace, name };
    server.access.authorize(&server.store, call.identity, &attributes).is_ok()
}

fn check_covered(server: &Inner, call: &Call<'_>, wanted: &[Rule]) -> Result<(), String> {
    let policy = server.access.policy(&server.store);
    let (owned, broken) = policy.rules(call.identity, call.namespace.unwrap_or_default());
    let missing = missing(&owned, wanted);
    if missing.is_empty() {
        return Ok(());
    }
    let resolution = match broken.is_empty() {
        true => String::new(),
        false => format!("; resolution errors: [{}]", broken.join(" ")),
    };
    Err(format!(
        "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}{resolution}",
        call.identity.user,
        quoted(&call.identity.groups),
        missing.join("\n")
    ))
}
