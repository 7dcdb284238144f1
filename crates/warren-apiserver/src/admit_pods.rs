//! Admission of pods: the counterpart of kube-apiserver's plugins for service accounts, priority
//! classes and runtime classes. The volume with the account's token is added only if the server is
//! configured for it, because it needs nodes that support projected volumes.

use serde_json::{Value, json};
use warren_store::Key;

use crate::call::Call;
use crate::metadata;
use crate::server::Inner;
use crate::status::ApiError;

/// The service account of a pod that names none. Every namespace has one.
pub(crate) const DEFAULT_ACCOUNT: &str = "default";
/// The built-in priority classes and their values.
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
    // A missing default account is no error: nothing in the pod depends on it.
    if account != DEFAULT_ACCOUNT
        && server.store.newest(&Key::new("serviceaccounts", namespace, account.as_str())).is_none()
    {
        return Err(format!(
            "error looking up service account {namespace}/{account}: serviceaccount {account:?} not found"
        ));
    }
    pod["spec"]["serviceAccountName"] = account.as_str().into();
    pod["spec"]["serviceAccount"] = account.as_str().into();
    let key = Key::new("serviceaccounts", namespace, account);
    let account = server.store.newest(&key).map(|account| account.value()).unwrap_or_default();
    let secrets = account["imagePullSecrets"].as_array().filter(|secrets| !secrets.is_empty());
    if let Some(secrets) = secrets
        && pod["spec"]["imagePullSecrets"].as_array().is_none_or(Vec::is_empty)
    {
        pod["spec"]["imagePullSecrets"] = secrets.clone().into();
    }
    let wanted = pod["spec"]["automountServiceAccountToken"]
        .as_bool()
        .or_else(|| account["automountServiceAccountToken"].as_bool());
    if wanted.unwrap_or(server.accounts.token_volumes) {
        mount_token(pod);
    }
    Ok(())
}

/// Mounts the account's token, the server's certificate and the namespace's name into every
/// container that has no mount at the path where client libraries look for them.
fn mount_token(pod: &mut Value) {
    const PLACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
    let name = metadata::generate_name("kube-api-access-");
    let mut mounted = false;
    for list in ["initContainers", "containers"] {
        let containers = pod["spec"].get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
            let mounts = container.entry("volumeMounts").or_insert_with(|| json!([]));
            let Some(mounts) = mounts.as_array_mut() else { continue };
            if mounts.iter().all(|mount| mount["mountPath"] != PLACE) {
                mounts.push(json!({"name": name, "readOnly": true, "mountPath": PLACE}));
                mounted = true;
            }
        }
    }
    if !mounted {
        return;
    }
    let volume = json!({
        "name": name,
        "projected": {
            "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{
                    "path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                }]}},
            ],
            "defaultMode": 420,
        },
    });
    let volumes = pod["spec"].as_object_mut().map(|spec| spec.entry("volumes").or_insert_with(|| json!([])));
    if let Some(volumes) = volumes.and_then(Value::as_array_mut) {
        volumes.push(volume);
    }
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
