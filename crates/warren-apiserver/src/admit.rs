//! Admission: what a new object takes over from others, and whether those are there. Does for pods what the real server's
//! plugins for service accounts, priorities and runtime classes do, except that no token volume is added: nodes here
//! have no projected volumes yet.

use serde_json::Value;
use warren_store::Key;

use crate::call::Call;
use crate::metadata;
use crate::server::Inner;
use crate::status::ApiError;

/// The service account of a pod that names none. It comes with its namespace.
pub(crate) const DEFAULT_ACCOUNT: &str = "default";
/// The classes that exist on every cluster, and what they are worth.
const PRIORITIES: [(&str, i64); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

pub(crate) fn admit(server: &Inner, call: &Call<'_>, object: &mut Value) -> Result<(), ApiError> {
    if &*call.target.definition.resource != "pods" || !object["spec"].is_object() {
        return Ok(());
    }
    let name = metadata::text(object, "name").to_owned();
    let refused = |why: String| ApiError::forbidden(call.target.definition.subject(&name), &why);
    admit_priority(object).map_err(refused)?;
    admit_service_account(server, call, object).map_err(refused)?;
    admit_runtime_class(server, object).map_err(refused)
}

fn admit_priority(pod: &mut Value) -> Result<(), String> {
    let Some(class) = pod["spec"]["priorityClassName"].as_str().filter(|class| !class.is_empty()) else {
        return Ok(());
    };
    let Some((_, value)) = PRIORITIES.iter().find(|(known, _)| *known == class) else {
        return Err(format!("no PriorityClass with name {class} was found"));
    };
    pod["spec"]["priority"] = (*value).into();
    Ok(())
}

fn admit_service_account(server: &Inner, call: &Call<'_>, pod: &mut Value) -> Result<(), String> {
    let namespace = call.namespace.unwrap_or_default();
    let account = match pod["spec"]["serviceAccountName"].as_str().unwrap_or_default() {
        "" => DEFAULT_ACCOUNT.to_owned(),
        named => named.to_owned(),
    };
    // Where the default account was deleted it has nothing that a pod could miss.
    if account != DEFAULT_ACCOUNT
        && server.store.newest(&Key::new("serviceaccounts", namespace, account.as_str())).is_none()
    {
        return Err(format!(
            "error looking up service account {namespace}/{account}: serviceaccount {account:?} not found"
        ));
    }
    pod["spec"]["serviceAccountName"] = account.as_str().into();
    pod["spec"]["serviceAccount"] = account.into();
    Ok(())
}

fn admit_runtime_class(server: &Inner, pod: &mut Value) -> Result<(), String> {
    let Some(name) = pod["spec"]["runtimeClassName"].as_str().filter(|name| !name.is_empty()) else {
        return Ok(());
    };
    let key = Key::new("runtimeclasses.node.k8s.io", "", name);
    let Some(class) = server.store.newest(&key) else {
        return Err(format!("pod rejected: RuntimeClass {name:?} not found"));
    };
    let class = class.value();
    if let Some(overhead) = class["overhead"].get("podFixed") {
        pod["spec"]["overhead"] = overhead.clone();
    }
    let wanted = class["scheduling"]["nodeSelector"].as_object().cloned().unwrap_or_default();
    for (label, value) in wanted {
        let selected = &mut pod["spec"]["nodeSelector"][label.as_str()];
        if !selected.is_null() && *selected != value {
            return Err(format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{label}] = {}; pod.spec.nodeSelector[{label}] = {}",
                value.as_str().unwrap_or_default(),
                selected.as_str().unwrap_or_default()
            ));
        }
        *selected = value;
    }
    Ok(())
}
