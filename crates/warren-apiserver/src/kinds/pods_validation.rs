//! The checks that keep nonsense out of pods: what a node could not act on, in the words of the real server.

use std::collections::HashSet;

use serde_json::Value;

use crate::metadata::{LABEL_RULE, is_dns_label};
use crate::status::FieldError;

pub(super) fn validate(pod: &Value, errors: &mut Vec<FieldError>) {
    let spec = &pod["spec"];
    if !spec.is_object() {
        errors.push(FieldError::required("spec.containers", ""));
        return;
    }
    let volumes = validate_volumes(spec, errors);
    let mut names = HashSet::new();
    for list in ["initContainers", "containers"] {
        let containers = spec[list].as_array().map(Vec::as_slice).unwrap_or_default();
        if list == "containers" && containers.is_empty() {
            errors.push(FieldError::required("spec.containers", ""));
        }
        for (index, container) in containers.iter().enumerate() {
            let path = format!("spec.{list}[{index}]");
            validate_container(container, &path, &volumes, errors);
            let name = container["name"].as_str().unwrap_or_default();
            if !name.is_empty() && !names.insert(name) {
                errors.push(FieldError::duplicate(format!("{path}.name"), name));
            }
        }
    }
    one_of(spec, "restartPolicy", "spec", &["Always", "OnFailure", "Never"], errors);
    one_of(
        spec,
        "dnsPolicy",
        "spec",
        &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"],
        errors,
    );
    if spec["activeDeadlineSeconds"].as_i64().is_some_and(|seconds| seconds < 1) {
        let detail = "must be between 1 and 2147483647, inclusive";
        errors.push(FieldError::invalid(
            "spec.activeDeadlineSeconds",
            spec["activeDeadlineSeconds"].clone(),
            detail,
        ));
    }
    if let Some(host) = spec["hostname"].as_str()
        && !host.is_empty()
        && !is_dns_label(host)
    {
        errors.push(FieldError::invalid("spec.hostname", host, LABEL_RULE));
    }
}

/// Checks the volumes and returns their names.
fn validate_volumes<'a>(spec: &'a Value, errors: &mut Vec<FieldError>) -> HashSet<&'a str> {
    let mut names = HashSet::new();
    let volumes = spec["volumes"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (index, volume) in volumes.iter().enumerate() {
        let path = format!("spec.volumes[{index}]");
        let name = volume["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else if !is_dns_label(name) {
            errors.push(FieldError::invalid(format!("{path}.name"), name, LABEL_RULE));
        } else if !names.insert(name) {
            errors.push(FieldError::duplicate(format!("{path}.name"), name));
        }
        let sources =
            volume.as_object().map_or(0, |volume| volume.keys().filter(|key| *key != "name").count());
        if sources > 1 {
            let detail = "may not specify more than 1 volume type";
            let second =
                volume.as_object().and_then(|volume| volume.keys().filter(|key| *key != "name").nth(1));
            errors.push(FieldError::forbidden(format!("{path}.{}", second.map_or("", |key| key)), detail));
        }
        if volume["persistentVolumeClaim"].is_object()
            && volume["persistentVolumeClaim"]["claimName"].as_str().unwrap_or_default().is_empty()
        {
            errors.push(FieldError::required(format!("{path}.persistentVolumeClaim.claimName"), ""));
        }
        if volume["hostPath"].is_object()
            && volume["hostPath"]["path"].as_str().unwrap_or_default().is_empty()
        {
            errors.push(FieldError::required(format!("{path}.hostPath.path"), ""));
        }
    }
    names
}

fn validate_container(container: &Value, path: &str, volumes: &HashSet<&str>, errors: &mut Vec<FieldError>) {
    let name = container["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    } else if !is_dns_label(name) {
        errors.push(FieldError::invalid(format!("{path}.name"), name, LABEL_RULE));
    }
    match container["image"].as_str().unwrap_or_default() {
        "" => errors.push(FieldError::required(format!("{path}.image"), "")),
        image if image.trim() != image => {
            let detail = "must not have leading or trailing whitespace";
            errors.push(FieldError::invalid(format!("{path}.image"), image, detail));
        }
        _ => {}
    }
    one_of(container, "terminationMessagePolicy", path, &["FallbackToLogsOnError", "File"], errors);
    let ports = container["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (index, port) in ports.iter().enumerate() {
        let path = format!("{path}.ports[{index}]");
        match port["containerPort"].as_i64() {
            None | Some(0) => errors.push(FieldError::required(format!("{path}.containerPort"), "")),
            Some(number) if !(1..=65535).contains(&number) => {
                let detail = "must be between 1 and 65535, inclusive";
                errors.push(FieldError::invalid(format!("{path}.containerPort"), number, detail));
            }
            Some(_) => {}
        }
        one_of(port, "protocol", &path, &["SCTP", "TCP", "UDP"], errors);
    }
    validate_environment(container, path, errors);
    validate_mounts(container, path, volumes, errors);
    one_of(container, "imagePullPolicy", path, &["Always", "IfNotPresent", "Never"], errors);
    validate_resources(&container["resources"], &format!("{path}.resources"), errors);
}

fn validate_environment(container: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let variables = container["env"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (index, variable) in variables.iter().enumerate() {
        let path = format!("{path}.env[{index}]");
        let name = variable["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else if name.contains('=') {
            errors.push(FieldError::invalid(format!("{path}.name"), name, "a valid environment variable name must consist only of printable ASCII characters other than '='"));
        }
        if variable["value"].as_str().is_some_and(|value| !value.is_empty())
            && variable["valueFrom"].is_object()
        {
            let detail = "may not be specified when `value` is not empty";
            errors.push(FieldError::invalid(format!("{path}.valueFrom"), "", detail));
        }
    }
}

fn validate_mounts(container: &Value, path: &str, volumes: &HashSet<&str>, errors: &mut Vec<FieldError>) {
    let mounts = container["volumeMounts"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut targets = HashSet::new();
    for (index, mount) in mounts.iter().enumerate() {
        let path = format!("{path}.volumeMounts[{index}]");
        let name = mount["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else if !volumes.contains(name) {
            let problem = crate::status::Problem::NotFound(name.into());
            errors.push(FieldError { field: format!("{path}.name"), problem });
        }
        let target = mount["mountPath"].as_str().unwrap_or_default();
        if target.is_empty() {
            errors.push(FieldError::required(format!("{path}.mountPath"), ""));
        } else if !targets.insert(target) {
            errors.push(FieldError::invalid(format!("{path}.mountPath"), target, "must be unique"));
        }
        let below = mount["subPath"].as_str().unwrap_or_default();
        if below.starts_with('/') {
            errors.push(FieldError::invalid(format!("{path}.subPath"), below, "must be a relative path"));
        } else if below.split('/').any(|part| part == "..") {
            errors.push(FieldError::invalid(format!("{path}.subPath"), below, "must not contain '..'"));
        }
    }
}

fn validate_resources(resources: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for kind in ["limits", "requests"] {
        let Some(quantities) = resources[kind].as_object() else { continue };
        for (name, value) in quantities {
            match quantity(value) {
                Some(quantity) if quantity < 0.0 => {
                    let detail = "must be greater than or equal to 0";
                    errors.push(FieldError::invalid(format!("{path}.{kind}[{name}]"), value.clone(), detail));
                }
                // Malformed quantities do not get this far: decoding refuses them.
                _ => {}
            }
        }
    }
    let Some(limits) = resources["limits"].as_object() else { return };
    for (name, limit) in limits {
        let request = &resources["requests"][name];
        if let (Some(limit_value), Some(request_value)) = (quantity(limit), quantity(request))
            && request_value > limit_value
        {
            let shown = limit.as_str().map_or_else(|| limit.to_string(), str::to_owned);
            let detail = format!("must be less than or equal to {name} limit of {shown}");
            errors.push(FieldError::invalid(format!("{path}.requests"), request.clone(), detail));
        }
    }
}

/// The value of a quantity such as `500m`, `1Gi` or `2`.
pub(crate) fn quantity(value: &Value) -> Option<f64> {
    if let Some(number) = value.as_f64() {
        return Some(number);
    }
    let text = value.as_str()?;
    let split = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-')));
    let (number, suffix) = split.map_or((text, ""), |index| text.split_at(index));
    let number: f64 = number.parse().ok()?;
    let factor = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1_048_576.0,
        "Gi" => 1_073_741_824.0,
        "Ti" => 1_099_511_627_776.0,
        "Pi" => 1_125_899_906_842_624.0,
        "Ei" => 1_152_921_504_606_846_976.0,
        exponent => 10f64.powi(exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    Some(number * factor)
}

fn one_of(object: &Value, field: &str, path: &str, known: &[&str], errors: &mut Vec<FieldError>) {
    if let Some(value) = object[field].as_str()
        && !known.contains(&value)
    {
        errors.push(FieldError::unsupported(format!("{path}.{field}"), value, known));
    }
}

#[cfg(test)]
mod tests {
    use super::quantity;

    #[test]
    fn quantities() {
        for (text, expected) in
            [("500m", 0.5), ("1Gi", 1_073_741_824.0), ("2", 2.0), ("1e3", 1000.0), ("0.5", 0.5)]
        {
            assert_eq!(quantity(&text.into()), Some(expected), "{text}");
        }
        for text in ["", "abc", "1Qi", "1.2.3"] {
            assert_eq!(quantity(&text.into()), None, "{text}");
        }
    }
}
