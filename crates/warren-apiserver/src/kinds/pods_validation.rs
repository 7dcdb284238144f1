//! Validation of pods, with kube-apiserver's messages. It refuses what a node could not act on.

use std::collections::HashSet;

use serde_json::Value;

use super::quantity;
use crate::metadata::{LABEL_RULE, check_qualified_name, is_dns_label};
use crate::status::FieldError;

pub(super) fn validate(pod: &Value, errors: &mut Vec<FieldError>) {
    validate_spec(&pod["spec"], "spec", &[], errors);
}

/// Checks the spec of a pod or of a template for pods. `further_volumes` names volumes that
/// containers may mount although the spec does not list them.
pub(super) fn validate_spec(
    spec: &Value,
    path: &str,
    further_volumes: &[&str],
    errors: &mut Vec<FieldError>,
) {
    if !spec.is_object() {
        errors.push(FieldError::required(format!("{path}.containers"), ""));
        return;
    }
    let mut volumes = validate_volumes(spec, path, errors);
    volumes.extend(further_volumes);
    let mut names = HashSet::new();
    for list in ["initContainers", "containers"] {
        let containers = spec[list].as_array().map(Vec::as_slice).unwrap_or_default();
        if list == "containers" && containers.is_empty() {
            errors.push(FieldError::required(format!("{path}.containers"), ""));
        }
        for (index, container) in containers.iter().enumerate() {
            let path = format!("{path}.{list}[{index}]");
            validate_container(container, &path, &volumes, errors);
            let name = container["name"].as_str().unwrap_or_default();
            if !name.is_empty() && !names.insert(name) {
                errors.push(FieldError::duplicate(format!("{path}.name"), name));
            }
        }
    }
    one_of(spec, "restartPolicy", path, &["Always", "OnFailure", "Never"], errors);
    one_of(spec, "dnsPolicy", path, &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"], errors);
    validate_sysctls(&spec["securityContext"]["sysctls"], path, errors);
    if spec["activeDeadlineSeconds"].as_i64().is_some_and(|seconds| seconds < 1) {
        let detail = "must be between 1 and 2147483647, inclusive";
        errors.push(FieldError::invalid(
            format!("{path}.activeDeadlineSeconds"),
            spec["activeDeadlineSeconds"].clone(),
            detail,
        ));
    }
    if let Some(host) = spec["hostname"].as_str()
        && !host.is_empty()
        && !is_dns_label(host)
    {
        errors.push(FieldError::invalid(format!("{path}.hostname"), host, LABEL_RULE));
    }
}

/// Checks the names of kernel parameters. The node decides which of them a pod may set.
fn validate_sysctls(sysctls: &Value, path: &str, errors: &mut Vec<FieldError>) {
    const RULE: &str = "must have at most 253 characters and match regex \
                        ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
    let segment = |text: &str| {
        let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        text.bytes().all(|byte| known(byte) || b"-_".contains(&byte))
            && text.bytes().next().is_some_and(known)
            && text.bytes().next_back().is_some_and(known)
    };
    let mut names = HashSet::new();
    for (index, sysctl) in items(sysctls).iter().enumerate() {
        let field = format!("{path}.securityContext.sysctls[{index}].name");
        let name = sysctl["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            errors.push(FieldError::required(field, ""));
        } else if name.len() > 253 || !name.split(['.', '/']).all(segment) {
            errors.push(FieldError::invalid(field, name, RULE));
        } else if !names.insert(name) {
            errors.push(FieldError::duplicate(field, name));
        }
    }
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Checks the volumes and returns their names.
fn validate_volumes<'a>(spec: &'a Value, path: &str, errors: &mut Vec<FieldError>) -> HashSet<&'a str> {
    let mut names = HashSet::new();
    let volumes = spec["volumes"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (index, volume) in volumes.iter().enumerate() {
        let path = format!("{path}.volumes[{index}]");
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
        validate_files(volume, &path, errors);
    }
    names
}

/// Checks the volumes that show other objects as files.
fn validate_files(volume: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (source, name) in [("configMap", "name"), ("secret", "secretName")] {
        if volume[source].is_object() {
            let path = format!("{path}.{source}");
            validate_object_files(&volume[source], name, &path, errors);
            validate_mode(&volume[source]["defaultMode"], &format!("{path}.defaultMode"), errors);
        }
    }
    let downward = &volume["downwardAPI"];
    if downward.is_object() {
        let path = format!("{path}.downwardAPI");
        validate_mode(&downward["defaultMode"], &format!("{path}.defaultMode"), errors);
        // kube-apiserver's path has no index here.
        items(&downward["items"]).iter().for_each(|file| validate_field_file(file, &path, errors));
    }
    let projected = &volume["projected"];
    if projected.is_object() {
        let path = format!("{path}.projected");
        validate_mode(&projected["defaultMode"], &format!("{path}.defaultMode"), errors);
        validate_projection(projected, &path, errors);
    }
}

fn validate_projection(projected: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let mut taken = HashSet::new();
    let mut take = |file: &Value, shown: &Value, errors: &mut Vec<FieldError>| {
        let file = file.as_str().unwrap_or_default().to_owned();
        if !file.is_empty() && !taken.insert(file) {
            errors.push(FieldError::invalid(path, shown.clone(), "conflicting duplicate paths"));
        }
    };
    for (index, source) in items(&projected["sources"]).iter().enumerate() {
        let own = format!("{path}.sources[{index}]");
        for kind in ["secret", "configMap"] {
            let object = &source[kind];
            if object.is_object() {
                validate_object_files(object, "name", &format!("{own}.{kind}"), errors);
                items(&object["items"]).iter().for_each(|file| take(&file["path"], &object["name"], errors));
            }
        }
        for file in items(&source["downwardAPI"]["items"]) {
            validate_field_file(file, &format!("{own}.downwardAPI"), errors);
            take(&file["path"], &file["path"], errors);
        }
        if let Some(token) = source["serviceAccountToken"].as_object() {
            let seconds = token.get("expirationSeconds").and_then(Value::as_i64);
            let detail = match seconds {
                Some(..600) => Some("may not specify a duration less than 10 minutes"),
                Some(4_294_967_297..) => Some("may not specify a duration larger than 2^32 seconds"),
                _ => None,
            };
            if let (Some(seconds), Some(detail)) = (seconds, detail) {
                let field = format!("{own}.serviceAccountToken.expirationSeconds");
                errors.push(FieldError::invalid(field, seconds, detail));
            }
            // kube-apiserver's path does not name the source here.
            validate_file_path(&source["serviceAccountToken"]["path"], &format!("{path}.path"), errors);
        }
        if source.as_object().is_some_and(|source| source.len() > 1) {
            errors.push(FieldError::forbidden(own, "may not specify more than 1 volume type per source"));
        }
    }
}

/// Checks the files of a config map or secret.
fn validate_object_files(source: &Value, name: &str, path: &str, errors: &mut Vec<FieldError>) {
    if source[name].as_str().unwrap_or_default().is_empty() {
        errors.push(FieldError::required(format!("{path}.{name}"), ""));
    }
    for (index, item) in items(&source["items"]).iter().enumerate() {
        let path = format!("{path}.items[{index}]");
        if item["key"].as_str().unwrap_or_default().is_empty() {
            errors.push(FieldError::required(format!("{path}.key"), ""));
        }
        validate_file_path(&item["path"], &format!("{path}.path"), errors);
        validate_mode(&item["mode"], &format!("{path}.mode"), errors);
    }
}

/// Checks a file that shows a field of the pod.
fn validate_field_file(file: &Value, path: &str, errors: &mut Vec<FieldError>) {
    validate_file_path(&file["path"], &format!("{path}.path"), errors);
    match (file["fieldRef"].is_object(), file["resourceFieldRef"].is_object()) {
        (true, true) => {
            let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
            errors.push(FieldError::invalid(path, "resource", detail));
        }
        (false, false) => {
            errors.push(FieldError::required(path, "one of fieldRef and resourceFieldRef is required"));
        }
        _ => {}
    }
    validate_mode(&file["mode"], &format!("{path}.mode"), errors);
}

/// Checks that a file's path stays inside the volume and does not begin with `..`, which nodes
/// reserve.
fn validate_file_path(file: &Value, field: &str, errors: &mut Vec<FieldError>) {
    let file = file.as_str().unwrap_or_default();
    if file.is_empty() {
        errors.push(FieldError::required(field, ""));
    }
    if file.starts_with('/') {
        errors.push(FieldError::invalid(field, file, "must be a relative path"));
    }
    if file.split('/').any(|part| part == "..") {
        errors.push(FieldError::invalid(field, file, "must not contain '..'"));
    }
    if file.starts_with("..") && !file.starts_with("../") {
        errors.push(FieldError::invalid(field, file, "must not start with '..'"));
    }
}

fn validate_mode(mode: &Value, field: &str, errors: &mut Vec<FieldError>) {
    if mode.as_i64().is_some_and(|mode| !(0..=0o777).contains(&mode)) {
        let detail = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.push(FieldError::invalid(field, mode.clone(), detail));
    }
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
    let mut names = HashSet::new();
    for (index, port) in ports.iter().enumerate() {
        let path = format!("{path}.ports[{index}]");
        if let Some(name) = port["name"].as_str().filter(|name| !name.is_empty()) {
            let broken = broken_port_name_rules(name);
            if broken.is_empty() && !names.insert(name) {
                errors.push(FieldError::duplicate(format!("{path}.name"), name));
            }
            for rule in broken {
                errors.push(FieldError::invalid(format!("{path}.name"), name, rule));
            }
        }
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
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if container[name].is_object() {
            validate_probe(name, &container[name], &format!("{path}.{name}"), errors);
        }
    }
}

fn broken_port_name_rules(name: &str) -> Vec<&'static str> {
    let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    [
        (name.len() > 15, "must be no more than 15 characters"),
        (!name.chars().all(known), "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"),
        (!name.contains(|c: char| c.is_ascii_lowercase()), "must contain at least one letter (a-z)"),
        (name.contains("--"), "must not contain consecutive hyphens"),
        (name.starts_with('-') || name.ends_with('-'), "must not begin or end with a hyphen"),
    ]
    .into_iter()
    .filter_map(|(broken, rule)| broken.then_some(rule))
    .collect()
}

fn validate_probe(name: &str, probe: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let handlers = ["exec", "httpGet", "tcpSocket", "grpc"];
    let mut given = handlers.into_iter().filter(|handler| probe[handler].is_object());
    if given.next().is_none() {
        errors.push(FieldError::required(path, "must specify a handler type"));
    }
    for another in given {
        let detail = "may not specify more than 1 handler type";
        errors.push(FieldError::forbidden(format!("{path}.{another}"), detail));
    }
    for field in
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
    {
        if probe[field].as_i64().is_some_and(|value| value < 0) {
            let detail = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(format!("{path}.{field}"), probe[field].clone(), detail));
        }
    }
    // Only readiness can change back, so only it may require several successes.
    if name != "readinessProbe" && probe["successThreshold"].as_i64().is_some_and(|times| times != 1) {
        let field = format!("{path}.successThreshold");
        errors.push(FieldError::invalid(field, probe["successThreshold"].clone(), "must be 1"));
    }
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
        if let Some(field) = variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
            validate_field_path(field, &format!("{path}.valueFrom.fieldRef.fieldPath"), errors);
        }
    }
}

/// Checks a field path of the downward API.
fn validate_field_path(field: &str, path: &str, errors: &mut Vec<FieldError>) {
    const KNOWN: [&str; 10] = [
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "spec.restartPolicy",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    ];
    let subscripted =
        ["metadata.labels['", "metadata.annotations['"].iter().any(|map| field.starts_with(map));
    if field.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if !subscripted && !KNOWN.contains(&field) {
        let detail = format!("error converting fieldPath: field label not supported: {field}");
        errors.push(FieldError::invalid(path, field, detail));
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
            validate_resource_name(name, &format!("{path}.{kind}[{name}]"), errors);
            // Malformed quantities do not get this far: decoding refuses them.
            if quantity::value(value).is_some_and(|value| value < 0.0) {
                let detail = "must be greater than or equal to 0";
                errors.push(FieldError::invalid(format!("{path}.{kind}[{name}]"), value.clone(), detail));
            }
        }
    }
    let Some(limits) = resources["limits"].as_object() else { return };
    for (name, limit) in limits {
        let request = &resources["requests"][name];
        if let (Some(limit_value), Some(request_value)) = (quantity::value(limit), quantity::value(request))
            && request_value > limit_value
        {
            let shown = limit.as_str().map_or_else(|| limit.to_string(), str::to_owned);
            let detail = format!("must be less than or equal to {name} limit of {shown}");
            errors.push(FieldError::invalid(format!("{path}.requests"), request.clone(), detail));
        }
    }
}

fn validate_resource_name(name: &str, path: &str, errors: &mut Vec<FieldError>) {
    let before = errors.len();
    check_qualified_name(name, path, errors);
    let standard = matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
    if errors.len() > before || name.contains('/') || standard {
        return;
    }
    for detail in
        ["must be a standard resource type or fully qualified", "must be a standard resource for containers"]
    {
        errors.push(FieldError::invalid(path, name, detail));
    }
}

fn one_of(object: &Value, field: &str, path: &str, known: &[&str], errors: &mut Vec<FieldError>) {
    if let Some(value) = object[field].as_str()
        && !known.contains(&value)
    {
        errors.push(FieldError::unsupported(format!("{path}.{field}"), value, known));
    }
}
