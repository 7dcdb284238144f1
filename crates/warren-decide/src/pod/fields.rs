//! Reads values of a pod's own fields, for its environment and its downward API files.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector};

use super::{Limits, Quantity, all_containers};

/// Values of pod fields that the object itself does not have yet when its containers start.
#[derive(Debug, Clone)]
pub struct Addresses<'a> {
    /// The name of the pod's node.
    pub node_name: &'a str,
    /// The node's address.
    pub host_ip: &'a str,
    /// The pod's own address.
    pub pod_ip: &'a str,
}

/// Returns the value of a single-valued field; `None` if the field is unknown.
pub(super) fn field_value(pod: &Pod, path: &str, addresses: &Addresses<'_>) -> Option<String> {
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    let subscript = |kind: &str| path.strip_prefix(kind)?.strip_prefix("['")?.strip_suffix("']");
    let entry = |map: &Option<BTreeMap<String, String>>, key: &str| {
        map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default()
    };
    if let Some(key) = subscript("metadata.labels") {
        return Some(entry(&meta.labels, key));
    }
    if let Some(key) = subscript("metadata.annotations") {
        return Some(entry(&meta.annotations, key));
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

/// Returns a field's text for a file: a single value as above, or a whole map.
pub(super) fn file_value(pod: &Pod, path: &str, addresses: &Addresses<'_>) -> Option<String> {
    match path {
        "metadata.labels" => Some(lines(pod.metadata.labels.as_ref())),
        "metadata.annotations" => Some(lines(pod.metadata.annotations.as_ref())),
        _ => field_value(pod, path, addresses),
    }
}

fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> =
        map.into_iter().flatten().map(|(key, value)| format!("{key}={}", quoted(value))).collect();
    lines.join("\n")
}

/// Quotes and escapes a text as Go does.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\0'..='\x1f' | '\x7f' => quoted.push_str(&format!("\\x{:02x}", u32::from(character))),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns a container's resource in units of the divisor, rounded up. A limit that the container
/// does not set is the default that it runs under.
pub(super) fn resource_value(
    pod: &Pod,
    own: Option<&Container>,
    field: &ResourceFieldSelector,
) -> Option<String> {
    let named = field.container_name.as_deref().filter(|name| !name.is_empty());
    let container = match named {
        Some(name) => all_containers(pod).find(|(_, known)| known.name == name)?.1,
        None => own?,
    };
    let resources = container.resources.as_ref();
    let (kind, resource) = field.resource.split_once('.')?;
    let given = match kind {
        "limits" => resources.and_then(|resources| resources.limits.as_ref()),
        "requests" => resources.and_then(|resources| resources.requests.as_ref()),
        _ => return None,
    };
    let given = match given.and_then(|given| given.get(resource)) {
        Some(amount) => Some(amount.0.parse::<Quantity>().ok()?.thousandths()),
        None => None,
    };
    let limits = Limits::of(container).ok();
    let thousandths = match (kind, resource, given) {
        (_, "cpu" | "memory" | "ephemeral-storage", Some(given)) => given,
        ("limits", "cpu", None) => i128::from(limits?.cpu_millis),
        ("limits", "memory", None) => i128::from(limits?.memory_bytes) * 1000,
        ("requests", "cpu" | "memory" | "ephemeral-storage", None) => 0,
        _ => return None,
    };
    let divisor = field.divisor.as_ref().and_then(|divisor| divisor.0.parse::<Quantity>().ok());
    let divisor = divisor.map(Quantity::thousandths).filter(|divisor| *divisor > 0).unwrap_or(1000);
    Some((thousandths.max(0) + divisor - 1).div_euclid(divisor).to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn amounts_are_counted_in_the_divisor_and_rounded_up() {
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [{
            "name": "main",
            "resources": {"limits": {"cpu": "250m", "memory": "64Mi"}, "requests": {"cpu": "100m"}},
        }]}}))
        .unwrap();
        let own = &pod.spec.as_ref().unwrap().containers[0];
        for (resource, divisor, wanted) in [
            ("limits.cpu", "0", Some("1")),
            ("limits.cpu", "1m", Some("250")),
            ("limits.memory", "1Mi", Some("64")),
            ("limits.memory", "1", Some("67108864")),
            ("requests.cpu", "1m", Some("100")),
            ("requests.memory", "1", Some("0")),
            ("limits.wishes", "1", None),
            ("wishes", "1", None),
        ] {
            let field = serde_json::from_value(json!({"resource": resource, "divisor": divisor})).unwrap();
            assert_eq!(resource_value(&pod, Some(own), &field).as_deref(), wanted, "{resource} in {divisor}");
        }
    }

    #[test]
    fn maps_are_lines_with_quoted_values() {
        let map = [("b", "two\nlines \"x\""), ("a", "one")];
        let map = map.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        assert_eq!(lines(Some(&map)), "a=\"one\"\nb=\"two\\nlines \\\"x\\\"\"");
        assert_eq!(lines(None), "");
    }
}
