//! NetworkPolicies and EndpointSlices: addresses, selectors and ports.

use std::net::IpAddr;

use serde_json::Value;

use super::{Behaviour, PLAIN, set_default};
use crate::metadata::{check_qualified_name, validate_labels};
use crate::status::FieldError;

pub(super) const IP_RULE: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const CIDR_RULE: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";

pub(super) static NETWORK_POLICY: Behaviour =
    Behaviour { has_generation: true, default: default_policy, validate: validate_policy, ..PLAIN };

pub(super) static ENDPOINT_SLICE: Behaviour = Behaviour {
    has_generation: true,
    default: |slice| default_ports(slice.get_mut("ports")),
    validate: validate_slice,
    validate_update: |new, old, errors| {
        if new["addressType"] != old["addressType"] {
            errors.push(FieldError::invalid("addressType", new["addressType"].clone(), "field is immutable"));
        }
    },
    ..PLAIN
};

fn items(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn default_ports(ports: Option<&mut Value>) {
    let ports = ports.and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        set_default(port, "protocol", "TCP");
    }
}

fn default_policy(object: &mut Value) {
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    for direction in ["ingress", "egress"] {
        let rules = spec.get_mut(direction).and_then(Value::as_array_mut);
        for rule in rules.into_iter().flatten() {
            default_ports(rule.get_mut("ports"));
        }
    }
    if !spec.contains_key("policyTypes") {
        let mut types = vec![Value::from("Ingress")];
        if spec.get("egress").is_some_and(|rules| !items(rules).is_empty()) {
            types.push("Egress".into());
        }
        spec.insert("policyTypes".to_owned(), types.into());
    }
    // An empty list of rules is stored as no list.
    if spec.get("ingress").is_some_and(|rules| items(rules).is_empty()) {
        spec.shift_remove("ingress");
    }
}

fn validate_policy(policy: &Value, errors: &mut Vec<FieldError>) {
    let spec = &policy["spec"];
    validate_selector(&spec["podSelector"], "spec.podSelector", errors);
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for (index, rule) in items(&spec[direction]).iter().enumerate() {
            let path = format!("spec.{direction}[{index}]");
            for (index, peer) in items(&rule[peers]).iter().enumerate() {
                validate_peer(peer, &format!("{path}.{peers}[{index}]"), errors);
            }
        }
    }
    for (index, type_) in items(&spec["policyTypes"]).iter().enumerate() {
        const TYPES: [&str; 2] = ["Ingress", "Egress"];
        if !type_.as_str().is_some_and(|type_| TYPES.contains(&type_)) {
            let field = format!("spec.policyTypes[{index}]");
            errors.push(FieldError::unsupported(field, type_.clone(), &TYPES));
        }
    }
}

fn validate_peer(peer: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for selector in ["podSelector", "namespaceSelector"] {
        validate_selector(&peer[selector], &format!("{path}.{selector}"), errors);
    }
    if let Some(block) = peer["ipBlock"].as_object() {
        match block.get("cidr").and_then(Value::as_str).unwrap_or_default() {
            "" => errors.push(FieldError::required(format!("{path}.ipBlock.cidr"), "")),
            cidr => validate_cidr(cidr, &format!("{path}.ipBlock.cidr"), errors),
        }
    }
    if peer.as_object().is_none_or(serde_json::Map::is_empty) {
        errors.push(FieldError::required(path, "must specify a peer"));
    }
}

pub(super) fn validate_selector(selector: &Value, path: &str, errors: &mut Vec<FieldError>) {
    validate_labels(&selector["matchLabels"], &format!("{path}.matchLabels"), errors);
    for (index, expression) in items(&selector["matchExpressions"]).iter().enumerate() {
        let path = format!("{path}.matchExpressions[{index}]");
        let values = items(&expression["values"]).len();
        match expression["operator"].as_str().unwrap_or_default() {
            "In" | "NotIn" if values == 0 => {
                let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(format!("{path}.values"), detail));
            }
            "Exists" | "DoesNotExist" if values > 0 => {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(format!("{path}.values"), detail));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                errors.push(FieldError::invalid(
                    format!("{path}.operator"),
                    other,
                    "not a valid selector operator",
                ));
            }
        }
        check_qualified_name(expression["key"].as_str().unwrap_or_default(), &format!("{path}.key"), errors);
    }
}

pub(super) fn validate_cidr(cidr: &str, path: &str, errors: &mut Vec<FieldError>) {
    let good = cidr.split_once('/').is_some_and(|(address, length)| {
        let longest = match address.parse() {
            Ok(IpAddr::V4(_)) => 32,
            Ok(IpAddr::V6(_)) => 128,
            Err(_) => return false,
        };
        length.parse::<u8>().is_ok_and(|length| length <= longest)
    });
    if !good {
        errors.push(FieldError::invalid(path, cidr, CIDR_RULE));
    }
}

fn validate_slice(slice: &Value, errors: &mut Vec<FieldError>) {
    const TYPES: [&str; 3] = ["FQDN", "IPv4", "IPv6"];
    let type_ = slice["addressType"].as_str().unwrap_or_default();
    if type_.is_empty() {
        errors.push(FieldError::required("addressType", ""));
    } else if !TYPES.contains(&type_) {
        errors.push(FieldError::unsupported("addressType", type_, &TYPES));
    }
    for (index, endpoint) in items(&slice["endpoints"]).iter().enumerate() {
        let path = format!("endpoints[{index}].addresses");
        let addresses = items(&endpoint["addresses"]);
        if addresses.is_empty() {
            errors.push(FieldError::required(path, "must contain at least 1 address"));
            continue;
        }
        for (index, address) in addresses.iter().enumerate() {
            let address = address.as_str().unwrap_or_default();
            let path = format!("{path}[{index}]");
            match (type_, address.parse::<IpAddr>()) {
                ("IPv4" | "IPv6", Err(_)) => errors.push(FieldError::invalid(path, address, IP_RULE)),
                ("IPv4", Ok(IpAddr::V6(_))) => {
                    errors.push(FieldError::invalid(path, address, "must be an IPv4 address"));
                }
                ("IPv6", Ok(IpAddr::V4(_))) => {
                    errors.push(FieldError::invalid(path, address, "must be an IPv6 address"));
                }
                _ => {}
            }
        }
    }
}
