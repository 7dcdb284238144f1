//! Builds a container's environment: literals, fields of the pod, keys of config maps and secrets.
//! `$(NAME)` in them and in the command is expanded as in kubelet.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};

use super::fields::{Addresses, field_value, resource_value};
use super::sources::{SourceError, Sources};

/// The error of a variable without a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// The pod has no such field.
    #[error("env[{name}]: fieldPath `{path}` is not supported")]
    Field {
        /// The variable.
        name: String,
        /// The path as written in the pod.
        path: String,
    },
    /// A container has no such resource.
    #[error("env[{name}]: resource `{resource}` is not supported")]
    Resource {
        /// The variable.
        name: String,
        /// The resource as written in the pod.
        resource: String,
    },
    /// The variable has a source of an unknown kind.
    #[error("env[{0}]: this kind of valueFrom is not supported")]
    Kind(String),
    /// The variable's source is missing.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// Returns the variables of a container in the order of the spec, those of whole objects first; the
/// last one of a name wins.
pub fn environment(
    pod: &Pod,
    container: &Container,
    addresses: &Addresses<'_>,
    sources: &Sources,
) -> Result<Vec<(String, String)>, EnvironmentError> {
    let mut values: HashMap<String, String> = HashMap::new();
    let mut order: Vec<String> = Vec::new();
    let mut set = |values: &mut HashMap<String, String>, name: String, value: String| {
        if values.insert(name.clone(), value).is_none() {
            order.push(name);
        }
    };
    for source in container.env_from.as_deref().unwrap_or_default() {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        let mut entries: BTreeMap<String, String> = BTreeMap::new();
        if let Some(wanted) = &source.config_map_ref {
            let found = sources.config_map(&wanted.name, wanted.optional == Some(true))?;
            entries.extend(found.iter().flat_map(|found| found.data.clone().unwrap_or_default()));
        }
        if let Some(wanted) = &source.secret_ref {
            let found = sources.secret(&wanted.name, wanted.optional == Some(true))?;
            let data = found.iter().flat_map(|found| found.data.iter().flatten());
            entries.extend(data.map(|(key, value)| (key.clone(), text(&value.0))));
        }
        for (key, value) in entries {
            let name = format!("{prefix}{key}");
            // Keys that are not valid variable names are skipped, as in kubelet.
            if is_variable_name(&name) {
                set(&mut values, name, value);
            }
        }
    }
    for variable in container.env.as_deref().unwrap_or_default() {
        if let Some(value) = value(pod, container, variable, addresses, sources, &values)? {
            set(&mut values, variable.name.clone(), value);
        }
    }
    Ok(order.into_iter().filter_map(|name| values.remove(&name).map(|value| (name, value))).collect())
}

/// Returns true for printable ASCII without `=`.
fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=')
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns a variable's value. `None`: an optional source is missing, and the variable is not set.
fn value(
    pod: &Pod,
    container: &Container,
    variable: &EnvVar,
    addresses: &Addresses<'_>,
    sources: &Sources,
    before: &HashMap<String, String>,
) -> Result<Option<String>, EnvironmentError> {
    let Some(source) = &variable.value_from else {
        return Ok(Some(expand(variable.value.as_deref().unwrap_or_default(), before)));
    };
    let name = || variable.name.clone();
    if let Some(field) = &source.field_ref {
        let found = field_value(pod, &field.field_path, addresses);
        return match found {
            Some(value) => Ok(Some(value)),
            None => Err(EnvironmentError::Field { name: name(), path: field.field_path.clone() }),
        };
    }
    if let Some(field) = &source.resource_field_ref {
        return match resource_value(pod, Some(container), field) {
            Some(value) => Ok(Some(value)),
            None => Err(EnvironmentError::Resource { name: name(), resource: field.resource.clone() }),
        };
    }
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let (kind, wanted, key, optional, found) = if let Some(wanted) = &source.config_map_key_ref {
        let optional = wanted.optional == Some(true);
        let found = sources.config_map(&wanted.name, optional)?;
        let found = found.and_then(|found| found.data.as_ref()?.get(&wanted.key).cloned());
        ("ConfigMap", &wanted.name, &wanted.key, optional, found)
    } else if let Some(wanted) = &source.secret_key_ref {
        let optional = wanted.optional == Some(true);
        let found = sources.secret(&wanted.name, optional)?;
        let found = found.and_then(|found| found.data.as_ref()?.get(&wanted.key));
        ("Secret", &wanted.name, &wanted.key, optional, found.map(|value| text(&value.0)))
    } else {
        return Err(EnvironmentError::Kind(name()));
    };
    if found.is_none() && !optional {
        let message = format!("couldn't find key {key} in {kind} {namespace}/{wanted}");
        return Err(SourceError::Missing(message).into());
    }
    Ok(found)
}

/// Replaces `$(NAME)` by the variable's value. `$$` becomes a dollar, and an unknown name stays as
/// it is written.
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
        let variables = environment(&pod, container, &addresses, &Sources::default()).unwrap();
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
        let error = environment(&pod, container, &addresses, &Sources::default()).unwrap_err();
        assert_eq!(error.to_string(), "env[X]: fieldPath `spec.secrets` is not supported");
    }

    #[test]
    fn keys_of_other_objects_come_by_name_or_all_at_once() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "team"},
            "spec": {"containers": [{"name": "main",
                "envFrom": [
                    {"configMapRef": {"name": "settings"}},
                    {"prefix": "S_", "secretRef": {"name": "keys"}},
                    {"configMapRef": {"name": "none", "optional": true}},
                ],
                "env": [
                    {"name": "MODE", "value": "own $(S_token)"},
                    {"name": "ONE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "MODE"}}},
                    {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
                    {"name": "GONE", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "x", "optional": true}}},
                    {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                ]}]},
        }))
        .unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let addresses = Addresses { node_name: "", host_ip: "", pod_ip: "" };
        let mut sources = Sources::default();
        let answer = |sources: &Sources| environment(&pod, container, &addresses, sources);
        assert_eq!(answer(&sources), Err(SourceError::NotYet.into()));

        sources.config_maps.insert("none".to_owned(), None);
        sources.config_maps.insert("settings".to_owned(), None);
        let error = answer(&sources).unwrap_err().to_string();
        assert_eq!(error, "configmap \"settings\" not found");

        let settings = json!({"data": {"MODE": "fast", "bad=name": "x"}});
        let settings = std::sync::Arc::new(serde_json::from_value(settings).unwrap());
        sources.config_maps.insert("settings".to_owned(), Some(settings));
        let secret = |data| Some(std::sync::Arc::new(serde_json::from_value(json!({"data": data})).unwrap()));
        sources.secrets.insert("keys".to_owned(), secret(json!({"other": "eA=="})));
        let error = answer(&sources).unwrap_err().to_string();
        assert_eq!(error, "couldn't find key token in Secret team/keys");

        sources.secrets.insert("keys".to_owned(), secret(json!({"token": "c2VjcmV0"})));
        let shown: Vec<String> =
            answer(&sources).unwrap().iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(shown, ["MODE=own secret", "S_token=secret", "ONE=fast", "KEY=secret", "CPU=2"]);
    }
}
