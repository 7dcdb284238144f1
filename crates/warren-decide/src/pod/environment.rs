//! A container's environment: literals, fields of the pod, and `$(NAME)` in them and in the command, as kubelet expands
//! them.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};

/// Values of pod fields that the object itself does not carry yet when its containers start.
#[derive(Debug, Clone)]
pub struct Addresses<'a> {
    /// The node the pod is on.
    pub node_name: &'a str,
    /// The node's address.
    pub host_ip: &'a str,
    /// The pod's own.
    pub pod_ip: &'a str,
}

/// A variable whose value cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("env[{name}]: fieldPath `{path}` is not supported")]
pub struct FieldError {
    name: String,
    path: String,
}

/// The variables of a container in the order of the spec; the last one of a name wins.
pub fn environment(
    pod: &Pod,
    container: &Container,
    addresses: &Addresses<'_>,
) -> Result<Vec<(String, String)>, FieldError> {
    let mut values: HashMap<String, String> = HashMap::new();
    let mut order: Vec<String> = Vec::new();
    for variable in container.env.as_deref().unwrap_or_default() {
        let value = value(pod, variable, addresses, &values)?;
        if values.insert(variable.name.clone(), value).is_none() {
            order.push(variable.name.clone());
        }
    }
    Ok(order.into_iter().filter_map(|name| values.remove(&name).map(|value| (name, value))).collect())
}

fn value(
    pod: &Pod,
    variable: &EnvVar,
    addresses: &Addresses<'_>,
    before: &HashMap<String, String>,
) -> Result<String, FieldError> {
    let field = variable.value_from.as_ref().and_then(|source| source.field_ref.as_ref());
    match field {
        None => Ok(expand(variable.value.as_deref().unwrap_or_default(), before)),
        Some(field) => field_value(pod, &field.field_path, addresses)
            .ok_or_else(|| FieldError { name: variable.name.clone(), path: field.field_path.clone() }),
    }
}

fn field_value(pod: &Pod, path: &str, addresses: &Addresses<'_>) -> Option<String> {
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    let subscript = |kind: &str| path.strip_prefix(kind)?.strip_prefix("['")?.strip_suffix("']");
    if let Some(key) = subscript("metadata.labels") {
        return Some(meta.labels.as_ref().and_then(|labels| labels.get(key)).cloned().unwrap_or_default());
    }
    if let Some(key) = subscript("metadata.annotations") {
        return Some(
            meta.annotations
                .as_ref()
                .and_then(|annotations| annotations.get(key))
                .cloned()
                .unwrap_or_default(),
        );
    }
    match path {
        "metadata.name" => meta.name.clone(),
        "metadata.namespace" => meta.namespace.clone(),
        "metadata.uid" => meta.uid.clone(),
        "spec.nodeName" => Some(addresses.node_name.to_owned()),
        "spec.serviceAccountName" => Some(
            spec.and_then(|spec| spec.service_account_name.clone()).unwrap_or_else(|| "default".to_owned()),
        ),
        "status.hostIP" | "status.hostIPs" => Some(addresses.host_ip.to_owned()),
        "status.podIP" | "status.podIPs" => Some(addresses.pod_ip.to_owned()),
        _ => None,
    }
}

/// Replaces `$(NAME)`; `$$` is a dollar, and a name that is not known stays as it is written.
pub fn expand(text: &str, values: &HashMap<String, String>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        expanded.push_str(&rest[..dollar]);
        rest = &rest[dollar..];
        if let Some(after) = rest.strip_prefix("$$") {
            expanded.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix("$(").and_then(|inner| inner.split_once(')')) {
            match values.get(name) {
                Some(value) => expanded.push_str(value),
                None => {
                    expanded.push_str("$(");
                    expanded.push_str(name);
                    expanded.push(')');
                }
            }
            rest = after;
        } else {
            expanded.push('$');
            rest = &rest[1..];
        }
    }
    expanded.push_str(rest);
    expanded
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_expanded_as_kubelet_expands_them() {
        let values: HashMap<String, String> =
            [("A", "one"), ("EMPTY", "")].map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        for (given, wanted) in [
            ("$(A)", "one"),
            ("x$(A)y$(A)", "xoneyone"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$one"),
            ("$(NOT)", "$(NOT)"),
            ("$(EMPTY)", ""),
            ("$A ${A} $", "$A ${A} $"),
            ("$(A", "$(A"),
        ] {
            assert_eq!(expand(given, &values), wanted, "{given}");
        }
    }

    #[test]
    fn variables_see_those_before_them_and_fields_of_the_pod() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "box", "namespace": "team", "labels": {"app": "x"}},
            "spec": {"containers": [{"name": "main", "env": [
                {"name": "LATE", "value": "$(NAME)"},
                {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "BOTH", "value": "$(NAME).$(SPACE)"},
                {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "LATE", "value": "again $(NAME)"},
            ]}]},
        }))
        .unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let addresses = Addresses { node_name: "here", host_ip: "127.0.0.1", pod_ip: "100::1" };
        let variables = environment(&pod, container, &addresses).unwrap();
        let shown: Vec<String> = variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(shown, ["LATE=again box", "NAME=box", "BOTH=box.$(SPACE)", "LABEL=x", "IP=100::1"]);
    }

    #[test]
    fn an_unknown_field_is_named() {
        let pod: Pod = serde_json::from_value(json!({
            "spec": {"containers": [{"name": "main", "env": [
                {"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "spec.secrets"}}},
            ]}]},
        }))
        .unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let addresses = Addresses { node_name: "", host_ip: "", pod_ip: "" };
        let error = environment(&pod, container, &addresses).unwrap_err();
        assert_eq!(error.to_string(), "env[X]: fieldPath `spec.secrets` is not supported");
    }
}
