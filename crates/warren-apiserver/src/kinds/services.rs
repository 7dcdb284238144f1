//! Services: defaults, allocated values and validation.

use serde_json::{Value, json};

use super::{Behaviour, NameRule, PLAIN, set_default};
use crate::metadata::{broken_label_rules, validate_labels};
use crate::status::FieldError;

pub(super) static BEHAVIOUR: Behaviour = Behaviour {
    default,
    prepare_create,
    prepare_update: keep_allocated,
    validate,
    validate_update,
    returns_deleted: true,
    create_on_update: true,
    name: NameRule::Label,
    ..PLAIN
};

fn default(service: &mut Value) {
    let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut) else { return };
    set_default(spec, "type", "ClusterIP");
    set_default(spec, "sessionAffinity", "None");
    if spec.get("type").is_some_and(|type_| type_ != "ExternalName") {
        set_default(spec, "internalTrafficPolicy", "Cluster");
    }
    if spec.get("type").is_some_and(|type_| type_ == "NodePort" || type_ == "LoadBalancer") {
        set_default(spec, "externalTrafficPolicy", "Cluster");
    }
    if spec.get("type").is_some_and(|type_| type_ == "LoadBalancer") {
        set_default(spec, "allocateLoadBalancerNodePorts", true);
    }
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        set_default(port, "protocol", "TCP");
        let number = port.get("port").cloned().unwrap_or_default();
        if port.get("targetPort").is_none_or(|target| *target == json!(0) || *target == json!("")) {
            port.insert("targetPort".to_owned(), number);
        }
    }
}

/// Sets the status and the address families. The families follow from the addresses; clients cannot
/// choose them.
fn prepare_create(service: &mut Value) {
    service["status"] = json!({"loadBalancer": {}});
    let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if spec.get("type").is_some_and(|type_| type_ != "ExternalName") {
        // The addresses of a headless service without a selector are unknown, so any family is
        // possible.
        let any_family =
            spec.get("clusterIP").is_some_and(|address| address == "None") && !spec.contains_key("selector");
        set_default(spec, "ipFamilyPolicy", if any_family { "RequireDualStack" } else { "SingleStack" });
        set_default(spec, "ipFamilies", if any_family { json!(["IPv4", "IPv6"]) } else { json!(["IPv4"]) });
    }
}

/// Keeps the address and node ports that an update leaves out. When a service becomes internal,
/// releases its node ports.
fn keep_allocated(new: &mut Value, old: &Value) {
    let (Some(spec), Some(old)) = (new.get_mut("spec").and_then(Value::as_object_mut), old.get("spec"))
    else {
        return;
    };
    for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        if let Some(value) = old.get(field) {
            set_default(spec, field, value.clone());
        }
    }
    let only_inside = spec.get("type").is_some_and(|type_| type_ == "ClusterIP");
    if only_inside && old["type"] != "ClusterIP" {
        for field in ["externalTrafficPolicy", "allocateLoadBalancerNodePorts", "healthCheckNodePort"] {
            spec.shift_remove(field);
        }
    }
    let before = old["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        let same = before.iter().find(|known| {
            Some(&known["port"]) == port.get("port") && Some(&known["protocol"]) == port.get("protocol")
        });
        match same.and_then(|same| same.get("nodePort")) {
            Some(known) if only_inside && port.get("nodePort") == Some(known) => {
                port.shift_remove("nodePort");
            }
            Some(known) if !only_inside => set_default(port, "nodePort", known.clone()),
            _ => {}
        }
    }
}

fn validate(service: &Value, errors: &mut Vec<FieldError>) {
    let spec = &service["spec"];
    let headless = spec["clusterIP"] == "None";
    let external = spec["type"] == "ExternalName";
    let ports = spec["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    if ports.is_empty() && !headless && !external {
        errors.push(FieldError::required("spec.ports", ""));
    }
    if external && spec["externalName"].as_str().unwrap_or_default().is_empty() {
        errors.push(FieldError::required("spec.externalName", ""));
    }
    validate_labels(&spec["selector"], "spec.selector", errors);
    const AFFINITIES: &[&str] = &["ClientIP", "None"];
    if let Some(affinity) = spec["sessionAffinity"].as_str().filter(|word| !AFFINITIES.contains(word)) {
        errors.push(FieldError::unsupported("spec.sessionAffinity", affinity, AFFINITIES));
    }
    if let Some(address) = spec["clusterIP"].as_str().filter(|address| !matches!(*address, "" | "None"))
        && address.parse::<std::net::IpAddr>().is_err()
    {
        errors.push(FieldError::invalid("spec.clusterIPs[0]", address, super::network::IP_RULE));
    }
    const TYPES: &[&str] = &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    if let Some(type_) = spec["type"].as_str()
        && !TYPES.contains(&type_)
    {
        errors.push(FieldError::unsupported("spec.type", type_, TYPES));
    }
    let mut names: Vec<&str> = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let path = format!("spec.ports[{index}]");
        let name = port["name"].as_str().unwrap_or_default();
        if name.is_empty() && ports.len() > 1 {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else if !name.is_empty() {
            for rule in broken_label_rules(name) {
                errors.push(FieldError::invalid(format!("{path}.name"), name, rule));
            }
            if names.contains(&name) {
                errors.push(FieldError::duplicate(format!("{path}.name"), name));
            }
        }
        names.push(name);
        let number = port["port"].as_i64().unwrap_or(0);
        if !(1..=65535).contains(&number) {
            let detail = "must be between 1 and 65535, inclusive";
            errors.push(FieldError::invalid(format!("{path}.port"), number, detail));
        }
        if port["targetPort"].as_i64().is_some_and(|target| !(1..=65535).contains(&target)) {
            let detail = "must be between 1 and 65535, inclusive";
            errors.push(FieldError::invalid(
                format!("{path}.targetPort"),
                port["targetPort"].clone(),
                detail,
            ));
        }
        const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
        if let Some(protocol) = port["protocol"].as_str()
            && !PROTOCOLS.contains(&protocol)
        {
            errors.push(FieldError::unsupported(format!("{path}.protocol"), protocol, PROTOCOLS));
        }
        if spec["type"] == "ClusterIP" && port["nodePort"].as_i64().is_some_and(|number| number != 0) {
            let detail = "may not be used when `type` is 'ClusterIP'";
            errors.push(FieldError::forbidden(format!("{path}.nodePort"), detail));
        }
        let same = |other: &Value| other["port"] == port["port"] && other["protocol"] == port["protocol"];
        if ports[..index].iter().any(same) {
            // kube-apiserver prints its own structure, with all fields but the two keys blank.
            let key = json!({
                "Name": "", "Protocol": port["protocol"], "AppProtocol": null,
                "Port": port["port"], "TargetPort": 0, "NodePort": 0,
            });
            errors.push(FieldError::duplicate(path, key));
        }
    }
}

fn validate_update(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let (new_ip, old_ip) = (&new["spec"]["clusterIP"], &old["spec"]["clusterIP"]);
    let changed = old_ip.as_str().is_some_and(|ip| !ip.is_empty()) && new_ip != old_ip;
    if changed && new["spec"]["type"] != "ExternalName" && old["spec"]["type"] != "ExternalName" {
        let value = new["spec"]["clusterIPs"].clone();
        errors.push(FieldError::invalid("spec.clusterIPs[0]", value, "may not change once set"));
    }
}
