//! The columns of `kubectl get` for built-in kinds.

use jiff::Timestamp;
use serde_json::Value;

use crate::definition::Column;

const COLUMN: Column =
    Column { name: "", type_: "string", format: "", priority: 0, cell: |_, _| Value::Null };

const NAME: Column =
    Column { name: "Name", format: "name", cell: |object, _| object["metadata"]["name"].clone(), ..COLUMN };
const AGE: Column = Column { name: "Age", cell: age, ..COLUMN };

pub(crate) const NAME_AND_AGE: &[Column] = &[NAME, AGE];

pub(super) const NAMESPACE: &[Column] =
    &[NAME, Column { name: "Status", cell: |object, _| object["status"]["phase"].clone(), ..COLUMN }, AGE];

pub(super) const POD: &[Column] = &[
    NAME,
    Column { name: "Ready", cell: |pod, _| pod_ready(pod), ..COLUMN },
    Column { name: "Status", cell: |pod, _| pod_status(pod).into(), ..COLUMN },
    Column { name: "Restarts", cell: pod_restarts, ..COLUMN },
    AGE,
    Column { name: "IP", priority: 1, cell: |pod, _| or_none(&pod["status"]["podIP"]), ..COLUMN },
    Column { name: "Node", priority: 1, cell: |pod, _| or_none(&pod["spec"]["nodeName"]), ..COLUMN },
    Column {
        name: "Nominated Node",
        priority: 1,
        cell: |pod, _| or_none(&pod["status"]["nominatedNodeName"]),
        ..COLUMN
    },
    Column { name: "Readiness Gates", priority: 1, cell: |_, _| "<none>".into(), ..COLUMN },
];

pub(super) const EVENT: &[Column] = &[
    Column { name: "Last Seen", cell: event_last_seen, ..COLUMN },
    Column { name: "Type", cell: |event, _| event["type"].clone(), ..COLUMN },
    Column { name: "Reason", cell: |event, _| event["reason"].clone(), ..COLUMN },
    Column { name: "Object", cell: |event, _| event_object(event), ..COLUMN },
    Column {
        name: "Subobject",
        priority: 1,
        cell: |event, _| event["involvedObject"]["fieldPath"].clone(),
        ..COLUMN
    },
    Column { name: "Source", priority: 1, cell: |event, _| event_source(event), ..COLUMN },
    Column {
        name: "Message",
        cell: |event, _| event["message"].as_str().unwrap_or_default().trim().into(),
        ..COLUMN
    },
    Column {
        name: "First Seen",
        priority: 1,
        cell: |event, now| since(&event["firstTimestamp"], now),
        ..COLUMN
    },
    Column {
        name: "Count",
        type_: "integer",
        priority: 1,
        cell: |event, _| event["count"].clone(),
        ..COLUMN
    },
    Column { name: "Name", format: "name", priority: 1, ..NAME },
];

pub(super) const SERVICE: &[Column] = &[
    NAME,
    Column { name: "Type", cell: |service, _| service["spec"]["type"].clone(), ..COLUMN },
    Column { name: "Cluster-IP", cell: |service, _| or_none(&service["spec"]["clusterIP"]), ..COLUMN },
    Column { name: "External-IP", cell: |_, _| "<none>".into(), ..COLUMN },
    Column { name: "Port(s)", cell: |service, _| service_ports(service), ..COLUMN },
    AGE,
    Column {
        name: "Selector",
        priority: 1,
        cell: |service, _| pairs(&service["spec"]["selector"]),
        ..COLUMN
    },
];

pub(super) const PERSISTENT_VOLUME_CLAIM: &[Column] = &[
    NAME,
    Column { name: "Status", cell: |claim, _| claim["status"]["phase"].clone(), ..COLUMN },
    Column { name: "Volume", cell: |claim, _| text(&claim["spec"]["volumeName"]), ..COLUMN },
    Column { name: "Capacity", cell: |claim, _| text(&claim["status"]["capacity"]["storage"]), ..COLUMN },
    Column { name: "Access Modes", cell: |claim, _| access_modes(&claim["status"]["accessModes"]), ..COLUMN },
    Column { name: "StorageClass", cell: |claim, _| text(&claim["spec"]["storageClassName"]), ..COLUMN },
    Column { name: "VolumeAttributesClass", cell: |_, _| "<unset>".into(), ..COLUMN },
    AGE,
    Column { name: "VolumeMode", priority: 1, cell: |claim, _| text(&claim["spec"]["volumeMode"]), ..COLUMN },
];

pub(super) const CONFIG_MAP: &[Column] =
    &[NAME, Column { name: "Data", cell: |map, _| data_count(map), ..COLUMN }, AGE];

pub(super) const SECRET: &[Column] = &[
    NAME,
    Column { name: "Type", cell: |secret, _| secret["type"].clone(), ..COLUMN },
    Column { name: "Data", cell: |secret, _| data_count(secret), ..COLUMN },
    AGE,
];

pub(super) const NODE: &[Column] = &[
    NAME,
    Column { name: "Status", cell: |node, _| node_status(node).into(), ..COLUMN },
    Column { name: "Roles", cell: |_, _| "<none>".into(), ..COLUMN },
    AGE,
    Column { name: "Version", cell: |node, _| text(&node["status"]["nodeInfo"]["kubeletVersion"]), ..COLUMN },
    Column { name: "Internal-IP", priority: 1, cell: |node, _| node_address(node), ..COLUMN },
    Column {
        name: "OS-Image",
        priority: 1,
        cell: |node, _| text(&node["status"]["nodeInfo"]["osImage"]),
        ..COLUMN
    },
    Column {
        name: "Kernel-Version",
        priority: 1,
        cell: |node, _| text(&node["status"]["nodeInfo"]["kernelVersion"]),
        ..COLUMN
    },
    Column {
        name: "Container-Runtime",
        priority: 1,
        cell: |node, _| text(&node["status"]["nodeInfo"]["containerRuntimeVersion"]),
        ..COLUMN
    },
];

pub(super) const LEASE: &[Column] = &[
    NAME,
    Column { name: "Holder", cell: |lease, _| text(&lease["spec"]["holderIdentity"]), ..COLUMN },
    AGE,
];

pub(super) const NETWORK_POLICY: &[Column] = &[
    NAME,
    Column {
        name: "Pod-Selector",
        cell: |policy, _| pairs(&policy["spec"]["podSelector"]["matchLabels"]),
        ..COLUMN
    },
    AGE,
];

pub(super) const RUNTIME_CLASS: &[Column] =
    &[NAME, Column { name: "Handler", cell: |class, _| class["handler"].clone(), ..COLUMN }, AGE];

pub(super) const CUSTOM_RESOURCE_DEFINITION: &[Column] = &[
    NAME,
    Column {
        name: "Created At",
        type_: "date",
        cell: |definition, _| definition["metadata"]["creationTimestamp"].clone(),
        ..COLUMN
    },
];

fn age(object: &Value, now: Timestamp) -> Value {
    since(&object["metadata"]["creationTimestamp"], now)
}

/// How long ago a timestamp was, as kubectl writes it.
pub(crate) fn since(timestamp: &Value, now: Timestamp) -> Value {
    let Some(then) = timestamp.as_str().and_then(|text| text.parse::<Timestamp>().ok()) else {
        return "<unknown>".into();
    };
    human_duration(now.as_second() - then.as_second()).into()
}

/// Two units at most, as `duration.HumanDuration` gives them.
fn human_duration(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let pair = |big: i64, big_unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{big}{big_unit}"),
        small => format!("{big}{big_unit}{small}{small_unit}"),
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1..=0 => "0s".to_owned(),
        1..120 => format!("{seconds}s"),
        120..600 => pair(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => pair(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => pair(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => pair(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

fn text(value: &Value) -> Value {
    value.as_str().unwrap_or_default().into()
}

fn or_none(value: &Value) -> Value {
    value.as_str().filter(|text| !text.is_empty()).unwrap_or("<none>").into()
}

fn pairs(labels: &Value) -> Value {
    match labels.as_object() {
        Some(labels) if !labels.is_empty() => {
            let mut pairs: Vec<_> = labels
                .iter()
                .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
                .collect();
            pairs.sort();
            pairs.join(",").into()
        }
        _ => "<none>".into(),
    }
}

fn data_count(object: &Value) -> Value {
    let count = |field: &str| object[field].as_object().map_or(0, serde_json::Map::len);
    (count("data") + count("binaryData")).to_string().into()
}

fn access_modes(modes: &Value) -> Value {
    let short = modes.as_array().into_iter().flatten().filter_map(|mode| {
        Some(match mode.as_str()? {
            "ReadWriteOnce" => "RWO",
            "ReadOnlyMany" => "ROX",
            "ReadWriteMany" => "RWX",
            "ReadWriteOncePod" => "RWOP",
            _ => return None,
        })
    });
    short.collect::<Vec<_>>().join(",").into()
}

fn statuses(pod: &Value) -> &[Value] {
    pod["status"]["containerStatuses"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn pod_ready(pod: &Value) -> Value {
    let total = pod["spec"]["containers"].as_array().map_or(0, Vec::len);
    let ready = statuses(pod).iter().filter(|status| status["ready"] == true).count();
    format!("{ready}/{total}").into()
}

/// The word in the Status column: the first reason found, from the outside in.
fn pod_status(pod: &Value) -> String {
    let status = &pod["status"];
    let mut reason =
        status["reason"].as_str().or_else(|| status["phase"].as_str()).unwrap_or_default().to_owned();
    let mut has_running = false;
    for container in statuses(pod).iter().rev() {
        let (waiting, terminated) = (&container["state"]["waiting"], &container["state"]["terminated"]);
        if let Some(why) = waiting["reason"].as_str().filter(|why| !why.is_empty()) {
            why.clone_into(&mut reason);
        } else if let Some(why) = terminated["reason"].as_str().filter(|why| !why.is_empty()) {
            why.clone_into(&mut reason);
        } else if terminated.is_object() {
            reason = match terminated["signal"].as_i64() {
                Some(signal) if signal != 0 => format!("Signal:{signal}"),
                _ => format!("ExitCode:{}", terminated["exitCode"].as_i64().unwrap_or(0)),
            };
        } else if container["ready"] == true && container["state"]["running"].is_object() {
            has_running = true;
        }
    }
    if reason == "Completed" && has_running {
        let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let ready =
            conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
        reason = if ready { "Running" } else { "NotReady" }.to_owned();
    }
    if pod["metadata"]["deletionTimestamp"].is_string() {
        let finished = matches!(status["phase"].as_str(), Some("Failed" | "Succeeded"));
        if status["reason"] == "NodeLost" {
            reason = "Unknown".to_owned();
        } else if !finished {
            reason = "Terminating".to_owned();
        }
    }
    reason
}

fn pod_restarts(pod: &Value, now: Timestamp) -> Value {
    let restarts: i64 = statuses(pod).iter().filter_map(|status| status["restartCount"].as_i64()).sum();
    let last = statuses(pod)
        .iter()
        .filter_map(|status| status["lastState"]["terminated"]["finishedAt"].as_str())
        .max()
        .filter(|_| restarts > 0);
    match last {
        None => restarts.to_string().into(),
        Some(last) => {
            format!("{restarts} ({} ago)", since(&last.into(), now).as_str().unwrap_or_default()).into()
        }
    }
}

fn event_last_seen(event: &Value, now: Timestamp) -> Value {
    let series = &event["series"]["lastObservedTime"];
    let candidates =
        [series, &event["lastTimestamp"], &event["eventTime"], &event["metadata"]["creationTimestamp"]];
    since(candidates.into_iter().find(|time| time.is_string()).unwrap_or(&Value::Null), now)
}

fn event_object(event: &Value) -> Value {
    let involved = &event["involvedObject"];
    let kind = involved["kind"].as_str().unwrap_or_default().to_lowercase();
    match involved["name"].as_str() {
        Some(name) if !name.is_empty() => format!("{kind}/{name}").into(),
        _ => kind.into(),
    }
}

fn event_source(event: &Value) -> Value {
    let source = &event["source"];
    let component =
        source["component"].as_str().or_else(|| event["reportingComponent"].as_str()).unwrap_or_default();
    match source["host"].as_str() {
        Some(host) if !host.is_empty() => format!("{component}, {host}").into(),
        _ => component.into(),
    }
}

fn service_ports(service: &Value) -> Value {
    let ports = service["spec"]["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    if ports.is_empty() {
        return "<none>".into();
    }
    let shown = ports.iter().map(|port| {
        let protocol = port["protocol"].as_str().unwrap_or("TCP");
        format!("{}/{protocol}", port["port"])
    });
    shown.collect::<Vec<_>>().join(",").into()
}

fn node_status(node: &Value) -> String {
    let conditions = node["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut status = match conditions.iter().find(|condition| condition["type"] == "Ready") {
        Some(condition) if condition["status"] == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if node["spec"]["unschedulable"] == true {
        status.push_str(",SchedulingDisabled");
    }
    status
}

fn node_address(node: &Value) -> Value {
    let addresses = node["status"]["addresses"].as_array().map(Vec::as_slice).unwrap_or_default();
    let internal = addresses.iter().find(|address| address["type"] == "InternalIP");
    or_none(internal.map_or(&Value::Null, |address| &address["address"]))
}

#[cfg(test)]
mod tests {
    use super::human_duration;

    #[test]
    fn durations_read_as_kubectl_writes_them() {
        for (seconds, expected) in [
            (-1, "0s"),
            (-2, "<invalid>"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (135, "2m15s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_000, "3h3m"),
            (100_000, "27h"),
            (172_800, "2d"),
            (180_000, "2d2h"),
            (864_000, "10d"),
            (70_000_000, "2y80d"),
        ] {
            assert_eq!(human_duration(seconds), expected, "{seconds}");
        }
    }
}
