//! The defaults of pods, and the fields that kube-apiserver's admission plugins for priority and
//! tolerations add. The plugins' fields have no manager.

use serde_json::{Map, Value, json};

use super::{child, set_default};

pub(super) fn default(pod: &mut Value) {
    if let Some(status) = pod.get_mut("status").and_then(Value::as_object_mut) {
        default_status(status);
    }
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return };
    default_spec(spec);
    if spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64).is_some_and(|seconds| seconds < 0) {
        // A negative value used to mean no wait. Today it means the shortest one.
        spec.insert("terminationGracePeriodSeconds".to_owned(), 1.into());
    }
    set_default(spec, "enableServiceLinks", true);
    let host_network = spec.get("hostNetwork") == Some(&Value::Bool(true));
    for_each_container(spec, |container| {
        default_requests(container);
        if host_network {
            default_host_ports(container);
        }
    });
}

/// Fills in the defaults that pods and pod templates share.
pub(super) fn default_spec(spec: &mut Map<String, Value>) {
    set_default(spec, "restartPolicy", "Always");
    set_default(spec, "terminationGracePeriodSeconds", 30);
    set_default(spec, "dnsPolicy", "ClusterFirst");
    set_default(spec, "securityContext", Map::new());
    set_default(spec, "schedulerName", "default-scheduler");
    // Both names of the service account get the same value.
    if let Some(account) = spec.get("serviceAccountName").or_else(|| spec.get("serviceAccount")).cloned() {
        spec.insert("serviceAccountName".to_owned(), account.clone());
        spec.insert("serviceAccount".to_owned(), account);
    }
    for_each_container(spec, default_container);
    let volumes = spec.get_mut("volumes").and_then(Value::as_array_mut);
    for volume in volumes.into_iter().flatten().filter_map(Value::as_object_mut) {
        default_volume(volume);
    }
}

fn for_each_container(spec: &mut Map<String, Value>, change: impl Fn(&mut Map<String, Value>)) {
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        containers.into_iter().flatten().filter_map(Value::as_object_mut).for_each(&change);
    }
}

fn default_host_ports(container: &mut Map<String, Value>) {
    let ports = container.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        if let Some(number) = port.get("containerPort").cloned() {
            set_default(port, "hostPort", number);
        }
    }
}

/// Adds the fields of the admission plugins.
pub(super) fn admit(pod: &mut Value) {
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return };
    set_default(spec, "priority", 0);
    set_default(spec, "preemptionPolicy", "PreemptLowerPriority");
    default_tolerations(spec);
}

fn default_status(status: &mut Map<String, Value>) {
    if let Some(address) = status.get("podIP").cloned() {
        set_default(status, "podIPs", json!([{"ip": address}]));
    }
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
        // Unknown times are written out as null.
        set_default(condition, "lastProbeTime", Value::Null);
        set_default(condition, "lastTransitionTime", Value::Null);
    }
}

fn default_tolerations(spec: &mut Map<String, Value>) {
    let tolerations = spec.entry("tolerations").or_insert_with(|| Value::Array(Vec::new()));
    let Some(tolerations) = tolerations.as_array_mut() else { return };
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let covered = tolerations.iter().any(|toleration| {
            let same_key = toleration["key"].as_str().is_none_or(|own| own.is_empty() || own == key);
            let effect = toleration["effect"].as_str().unwrap_or_default();
            same_key && (effect.is_empty() || effect == "NoExecute")
        });
        if !covered {
            tolerations.push(json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300
            }));
        }
    }
}

fn default_container(container: &mut Map<String, Value>) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let policy = if pulls_always(image) { "Always" } else { "IfNotPresent" };
    set_default(container, "imagePullPolicy", policy);
    set_default(container, "terminationMessagePath", "/dev/termination-log");
    set_default(container, "terminationMessagePolicy", "File");
    set_default(container, "resources", Map::new());
    let ports = container.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        set_default(port, "protocol", "TCP");
    }
    let variables = container.get_mut("env").and_then(Value::as_array_mut);
    for variable in variables.into_iter().flatten() {
        let field = variable.get_mut("valueFrom").and_then(|from| from.get_mut("fieldRef"));
        if let Some(field) = field.and_then(Value::as_object_mut) {
            set_default(field, "apiVersion", "v1");
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(name).and_then(Value::as_object_mut) {
            set_default(probe, "timeoutSeconds", 1);
            set_default(probe, "periodSeconds", 10);
            set_default(probe, "successThreshold", 1);
            set_default(probe, "failureThreshold", 3);
            default_http_get(probe);
        }
    }
    if let Some(lifecycle) = container.get_mut("lifecycle").and_then(Value::as_object_mut) {
        for name in ["postStart", "preStop"] {
            if let Some(handler) = lifecycle.get_mut(name).and_then(Value::as_object_mut) {
                default_http_get(handler);
            }
        }
    }
}

fn default_http_get(handler: &mut Map<String, Value>) {
    if let Some(get) = handler.get_mut("httpGet").and_then(Value::as_object_mut) {
        set_default(get, "path", "/");
        set_default(get, "scheme", "HTTP");
    }
    if let Some(grpc) = handler.get_mut("grpc").and_then(Value::as_object_mut) {
        set_default(grpc, "service", "");
    }
}

/// Sets each missing request to the limit.
fn default_requests(container: &mut Map<String, Value>) {
    let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut) else { return };
    let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else { return };
    let Some(requests) = child(resources, "requests") else { return };
    for (name, quantity) in limits {
        set_default(requests, &name, quantity);
    }
}

fn default_volume(volume: &mut Map<String, Value>) {
    // A volume without a source is an emptyDir.
    if volume.len() == 1 && volume.contains_key("name") {
        volume.insert("emptyDir".to_owned(), Map::new().into());
    }
    for (source, mode) in [("secret", 420), ("configMap", 420), ("downwardAPI", 420), ("projected", 420)] {
        if let Some(source) = volume.get_mut(source).and_then(Value::as_object_mut) {
            set_default(source, "defaultMode", mode);
        }
    }
    if let Some(host_path) = volume.get_mut("hostPath").and_then(Value::as_object_mut) {
        set_default(host_path, "type", "");
    }
    let projected = volume.get_mut("projected").and_then(|projected| projected.get_mut("sources"));
    for source in projected.and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(token) = source.get_mut("serviceAccountToken").and_then(Value::as_object_mut) {
            set_default(token, "expirationSeconds", 3600);
        }
        default_field_references(source);
    }
    if let Some(downward) = volume.get_mut("downwardAPI") {
        let items = downward.get_mut("items").and_then(Value::as_array_mut);
        items.into_iter().flatten().for_each(default_field_reference);
    }
}

fn default_field_references(source: &mut Value) {
    let items = source.get_mut("downwardAPI").and_then(|downward| downward.get_mut("items"));
    items.and_then(Value::as_array_mut).into_iter().flatten().for_each(default_field_reference);
}

fn default_field_reference(item: &mut Value) {
    if let Some(field) = item.get_mut("fieldRef").and_then(Value::as_object_mut) {
        set_default(field, "apiVersion", "v1");
    }
}

/// Returns true for an image with the tag `latest`, or without tag and digest: it is pulled each
/// time.
fn pulls_always(image: &str) -> bool {
    let name = image.rsplit('/').next().unwrap_or(image);
    if name.contains('@') {
        return false;
    }
    name.rsplit_once(':').is_none_or(|(_, tag)| tag == "latest")
}

/// Returns Guaranteed, Burstable or BestEffort, from the requests and limits of CPU and memory.
pub(super) fn quality_of_service(spec: &Value) -> &'static str {
    let containers = ["containers", "initContainers"]
        .into_iter()
        .flat_map(|list| spec[list].as_array().map(Vec::as_slice).unwrap_or_default());
    let mut any = false;
    let mut guaranteed = true;
    for container in containers {
        for resource in ["cpu", "memory"] {
            let quantity = |kind: &str| {
                let value = &container["resources"][kind][resource];
                // Zero counts as not set.
                (!value.is_null() && *value != "0" && *value != 0).then(|| value.clone())
            };
            let (request, limit) = (quantity("requests"), quantity("limits"));
            any |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && request == limit;
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{pulls_always, quality_of_service};

    #[test]
    fn pull_policy_follows_the_tag() {
        for (image, always) in [
            ("busybox", true),
            ("busybox:latest", true),
            ("busybox:1", false),
            ("registry:5000/busybox", true),
            ("registry:5000/busybox:1", false),
            ("busybox@sha256:00", false),
        ] {
            assert_eq!(pulls_always(image), always, "{image}");
        }
    }

    #[test]
    fn quality_of_service_classes() {
        let spec = |resources| json!({"containers": [{"name": "a", "resources": resources}]});
        assert_eq!(quality_of_service(&spec(json!({}))), "BestEffort");
        assert_eq!(quality_of_service(&spec(json!({"requests": {"cpu": "1"}}))), "Burstable");
        let both = json!({"cpu": "1", "memory": "1Gi"});
        assert_eq!(quality_of_service(&spec(json!({"requests": both, "limits": both}))), "Guaranteed");
    }
}
