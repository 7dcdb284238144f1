//! The columns of `kubectl get` for built-in kinds.

use jiff::Timestamp;
use serde_json::Value;

use crate::definition::Column;

pub(super) const COLUMN: Column =
    Column { name: "", type_: "string", format: "", priority: 0, description: "", cell: |_, _| Value::Null };

pub(crate) const NAME: Column = Column {
    name: "Name",
    format: "name",
    description: "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names",
    cell: |object, _| object["metadata"]["name"].clone(),
    ..COLUMN
};
pub(crate) const AGE: Column = Column {
    name: "Age",
    description: "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata",
    cell: age,
    ..COLUMN
};

pub(crate) const NAME_AND_AGE: &[Column] = &[NAME, AGE];

/// The columns of roles: the default ones.
pub(super) const ROLE: &[Column] = &[
    NAME,
    Column {
        name: "Created At",
        type_: "date",
        description: AGE.description,
        cell: |object, _| object["metadata"]["creationTimestamp"].clone(),
        ..COLUMN
    },
];

const ROLE_REFERENCE: Column = Column {
    name: "Role",
    description: "RoleRef can reference a Role in the current namespace or a ClusterRole in the global namespace. If the RoleRef cannot be resolved, the Authorizer must return an error.",
    cell: |object, _| {
        let text = |field: &str| object["roleRef"][field].as_str().unwrap_or_default().to_owned();
        format!("{}/{}", text("kind"), text("name")).into()
    },
    ..COLUMN
};
const USERS: Column = Column {
    name: "Users",
    priority: 1,
    description: "Users in the roleBinding",
    cell: |object, _| subjects(object, "User"),
    ..COLUMN
};
const GROUPS: Column = Column {
    name: "Groups",
    priority: 1,
    description: "Groups in the roleBinding",
    cell: |object, _| subjects(object, "Group"),
    ..COLUMN
};
const ACCOUNTS: Column = Column {
    name: "ServiceAccounts",
    priority: 1,
    description: "ServiceAccounts in the roleBinding",
    cell: |object, _| subjects(object, "ServiceAccount"),
    ..COLUMN
};

pub(super) const ROLE_BINDING: &[Column] = &[NAME, ROLE_REFERENCE, AGE, USERS, GROUPS, ACCOUNTS];
pub(super) const CLUSTER_ROLE_BINDING: &[Column] = &[
    NAME,
    Column {
        description: "RoleRef can only reference a ClusterRole in the global namespace. If the RoleRef cannot be resolved, the Authorizer must return an error.",
        ..ROLE_REFERENCE
    },
    AGE,
    Column { description: "Users in the clusterRoleBinding", ..USERS },
    Column { description: "Groups in the clusterRoleBinding", ..GROUPS },
    Column { description: "ServiceAccounts in the clusterRoleBinding", ..ACCOUNTS },
];

fn subjects(binding: &Value, kind: &str) -> Value {
    let subjects = binding["subjects"].as_array().into_iter().flatten();
    let named = subjects.filter(|subject| subject["kind"] == kind).map(|subject| {
        let name = subject["name"].as_str().unwrap_or_default();
        match subject["namespace"].as_str() {
            Some(namespace) if kind == "ServiceAccount" => format!("{namespace}/{name}"),
            _ => name.to_owned(),
        }
    });
    named.collect::<Vec<_>>().join(", ").into()
}

pub(super) const NAMESPACE: &[Column] = &[
    NAME,
    Column {
        name: "Status",
        description: "The status of the namespace",
        cell: |object, _| object["status"]["phase"].clone(),
        ..COLUMN
    },
    AGE,
];

pub(super) const POD: &[Column] = &[
    NAME,
    Column {
        name: "Ready",
        description: "The aggregate readiness state of this pod for accepting traffic.",
        cell: |pod, _| pod_ready(pod),
        ..COLUMN
    },
    Column {
        name: "Status",
        description: "The aggregate status of the containers in this pod.",
        cell: |pod, _| pod_status(pod).into(),
        ..COLUMN
    },
    Column {
        name: "Restarts",
        description: "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted.",
        cell: pod_restarts,
        ..COLUMN
    },
    AGE,
    Column {
        name: "IP",
        description: "podIP address allocated to the pod. Routable at least within the cluster. Empty if not yet allocated.",
        priority: 1,
        cell: |pod, _| or_none(&pod["status"]["podIP"]),
        ..COLUMN
    },
    Column {
        name: "Node",
        description: "NodeName indicates in which node this pod is scheduled. If empty, this pod is a candidate for scheduling by the scheduler defined in schedulerName. Once this field is set, the kubelet for this node becomes responsible for the lifecycle of this pod. This field should not be used to express a desire for the pod to be scheduled on a specific node. https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#nodename",
        priority: 1,
        cell: |pod, _| or_none(&pod["spec"]["nodeName"]),
        ..COLUMN
    },
    Column {
        name: "Nominated Node",
        description: "nominatedNodeName is set only when this pod preempts other pods on the node, but it cannot be scheduled right away as preemption victims receive their graceful termination periods. This field does not guarantee that the pod will be scheduled on this node. Scheduler may decide to place the pod elsewhere if other nodes become available sooner. Scheduler may also decide to give the resources on this node to a higher priority pod that is created after preemption. As a result, this field may be different than PodSpec.nodeName when the pod is scheduled.",
        priority: 1,
        cell: |pod, _| or_none(&pod["status"]["nominatedNodeName"]),
        ..COLUMN
    },
    Column {
        name: "Readiness Gates",
        description: "If specified, all readiness gates will be evaluated for pod readiness. A pod is ready when all its containers are ready AND all conditions specified in the readiness gates have status equal to \"True\" More info: https://git.k8s.io/enhancements/keps/sig-network/580-pod-readiness-gates",
        priority: 1,
        cell: |_, _| "<none>".into(),
        ..COLUMN
    },
];

pub(super) const EVENT: &[Column] = &[
    Column {
        name: "Last Seen",
        description: "The time at which the most recent occurrence of this event was recorded.",
        cell: event_last_seen,
        ..COLUMN
    },
    Column {
        name: "Type",
        description: "Type of this event (Normal, Warning), new types could be added in the future",
        cell: |event, _| event["type"].clone(),
        ..COLUMN
    },
    Column {
        name: "Reason",
        description: "This should be a short, machine understandable string that gives the reason for the transition into the object's current status.",
        cell: |event, _| event["reason"].clone(),
        ..COLUMN
    },
    Column {
        name: "Object",
        description: "The object that this event is about.",
        cell: |event, _| event_object(event),
        ..COLUMN
    },
    Column {
        name: "Subobject",
        description: "If referring to a piece of an object instead of an entire object, this string should contain a valid JSON/Go field access statement, such as desiredState.manifest.containers[2]. For example, if the object reference is to a container within a pod, this would take on a value like: \"spec.containers{name}\" (where \"name\" refers to the name of the container that triggered the event) or if no container name is specified \"spec.containers[2]\" (container with index 2 in this pod). This syntax is chosen only to have some well-defined way of referencing a part of an object.",
        priority: 1,
        cell: |event, _| text(&event["involvedObject"]["fieldPath"]),
        ..COLUMN
    },
    Column {
        name: "Source",
        description: "The component reporting this event. Should be a short machine understandable string.",
        priority: 1,
        cell: |event, _| event_source(event),
        ..COLUMN
    },
    Column {
        name: "Message",
        description: "A human-readable description of the status of this operation.",
        cell: |event, _| event["message"].as_str().unwrap_or_default().trim().into(),
        ..COLUMN
    },
    Column {
        name: "First Seen",
        description: "The time at which the event was first recorded. (Time of server receipt is in TypeMeta.)",
        priority: 1,
        cell: |event, now| since(&event["firstTimestamp"], now),
        ..COLUMN
    },
    Column {
        name: "Count",
        description: "The number of times this event has occurred.",
        priority: 1,
        cell: |event, _| event["count"].clone(),
        ..COLUMN
    },
    Column { name: "Name", format: "name", priority: 1, ..NAME },
];

pub(super) const SERVICE: &[Column] = &[
    NAME,
    Column {
        name: "Type",
        description: "type determines how the Service is exposed. Defaults to ClusterIP. Valid options are ExternalName, ClusterIP, NodePort, and LoadBalancer. \"ClusterIP\" allocates a cluster-internal IP address for load-balancing to endpoints. Endpoints are determined by the selector or if that is not specified, by manual construction of an Endpoints object or EndpointSlice objects. If clusterIP is \"None\", no virtual IP is allocated and the endpoints are published as a set of endpoints rather than a virtual IP. \"NodePort\" builds on ClusterIP and allocates a port on every node which routes to the same endpoints as the clusterIP. \"LoadBalancer\" builds on NodePort and creates an external load-balancer (if supported in the current cloud) which routes to the same endpoints as the clusterIP. \"ExternalName\" aliases this service to the specified externalName. Several other fields do not apply to ExternalName services. More info: https://kubernetes.io/docs/concepts/services-networking/service/#publishing-services-service-types",
        cell: |service, _| service["spec"]["type"].clone(),
        ..COLUMN
    },
    Column {
        name: "Cluster-IP",
        description: "clusterIP is the IP address of the service and is usually assigned randomly. If an address is specified manually, is in-range (as per system configuration), and is not in use, it will be allocated to the service; otherwise creation of the service will fail. This field may not be changed through updates unless the type field is also being changed to ExternalName (which requires this field to be blank) or the type field is being changed from ExternalName (in which case this field may optionally be specified, as describe above).  Valid values are \"None\", empty string (\"\"), or a valid IP address. Setting this to \"None\" makes a \"headless service\" (no virtual IP), which is useful when direct endpoint connections are preferred and proxying is not required.  Only applies to types ClusterIP, NodePort, and LoadBalancer. If this field is specified when creating a Service of type ExternalName, creation will fail. This field will be wiped when updating a Service to type ExternalName. More info: https://kubernetes.io/docs/concepts/services-networking/service/#virtual-ips-and-service-proxies",
        cell: |service, _| or_none(&service["spec"]["clusterIP"]),
        ..COLUMN
    },
    Column {
        name: "External-IP",
        description: "externalIPs is a list of IP addresses for which nodes in the cluster will also accept traffic for this service.  These IPs are not managed by Kubernetes.  The user is responsible for ensuring that traffic arrives at a node with this IP.  A common example is external load-balancers that are not part of the Kubernetes system.",
        cell: |service, _| external_addresses(service),
        ..COLUMN
    },
    Column {
        name: "Port(s)",
        description: "The list of ports that are exposed by this service. More info: https://kubernetes.io/docs/concepts/services-networking/service/#virtual-ips-and-service-proxies",
        cell: |service, _| service_ports(service),
        ..COLUMN
    },
    AGE,
    Column {
        name: "Selector",
        description: "Route service traffic to pods with label keys and values matching this selector. If empty or not present, the service is assumed to have an external process managing its endpoints, which Kubernetes will not modify. Only applies to types ClusterIP, NodePort, and LoadBalancer. Ignored if type is ExternalName. More info: https://kubernetes.io/docs/concepts/services-networking/service/",
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

pub(super) const PERSISTENT_VOLUME: &[Column] = &[
    NAME,
    Column { name: "Capacity", cell: |volume, _| text(&volume["spec"]["capacity"]["storage"]), ..COLUMN },
    Column { name: "Access Modes", cell: |volume, _| access_modes(&volume["spec"]["accessModes"]), ..COLUMN },
    Column {
        name: "Reclaim Policy",
        cell: |volume, _| text(&volume["spec"]["persistentVolumeReclaimPolicy"]),
        ..COLUMN
    },
    Column { name: "Status", cell: |volume, _| text(&volume["status"]["phase"]), ..COLUMN },
    Column { name: "Claim", cell: |volume, _| claim_of(volume), ..COLUMN },
    Column { name: "StorageClass", cell: |volume, _| text(&volume["spec"]["storageClassName"]), ..COLUMN },
    Column { name: "VolumeAttributesClass", cell: |_, _| "<unset>".into(), ..COLUMN },
    Column { name: "Reason", cell: |volume, _| text(&volume["status"]["reason"]), ..COLUMN },
    AGE,
    Column {
        name: "VolumeMode",
        priority: 1,
        cell: |volume, _| text(&volume["spec"]["volumeMode"]),
        ..COLUMN
    },
];

pub(super) const STORAGE_CLASS: &[Column] = &[
    NAME,
    Column {
        name: "Provisioner",
        description: "provisioner indicates the type of the provisioner.",
        cell: |class, _| text(&class["provisioner"]),
        ..COLUMN
    },
    Column {
        name: "ReclaimPolicy",
        description: "reclaimPolicy controls the reclaimPolicy for dynamically provisioned PersistentVolumes of this storage class. Defaults to Delete.",
        cell: |class, _| text(&class["reclaimPolicy"]),
        ..COLUMN
    },
    Column {
        name: "VolumeBindingMode",
        description: "volumeBindingMode indicates how PersistentVolumeClaims should be provisioned and bound.  When unset, VolumeBindingImmediate is used. This field is only honored by servers that enable the VolumeScheduling feature.",
        cell: |class, _| text(&class["volumeBindingMode"]),
        ..COLUMN
    },
    Column {
        name: "AllowVolumeExpansion",
        description: "allowVolumeExpansion shows whether the storage class allow volume expand.",
        cell: |class, _| class["allowVolumeExpansion"].as_bool().unwrap_or(false).into(),
        ..COLUMN
    },
    AGE,
];

pub(super) const ENDPOINT_SLICE: &[Column] = &[
    NAME,
    Column { name: "AddressType", cell: |slice, _| text(&slice["addressType"]), ..COLUMN },
    Column { name: "Ports", cell: |slice, _| slice_ports(slice), ..COLUMN },
    Column { name: "Endpoints", cell: |slice, _| slice_endpoints(slice), ..COLUMN },
    AGE,
];

pub(super) const CONFIG_MAP: &[Column] = &[
    NAME,
    Column {
        name: "Data",
        description: "Data contains the configuration data. Each key must consist of alphanumeric characters, '-', '_' or '.'. Values with non-UTF-8 byte sequences must use the BinaryData field. The keys stored in Data must not overlap with the keys in the BinaryData field, this is enforced during validation process.",
        cell: |map, _| data_count(map),
        ..COLUMN
    },
    AGE,
];

pub(super) const SECRET: &[Column] = &[
    NAME,
    Column {
        name: "Type",
        description: "Used to facilitate programmatic handling of secret data. More info: https://kubernetes.io/docs/concepts/configuration/secret/#secret-types",
        cell: |secret, _| secret["type"].clone(),
        ..COLUMN
    },
    Column {
        name: "Data",
        description: "Data contains the secret data. Each key must consist of alphanumeric characters, '-', '_' or '.'. The serialized form of the secret data is a base64 encoded string, representing the arbitrary (possibly non-string) data value here. Described in https://tools.ietf.org/html/rfc4648#section-4",
        cell: |secret, _| data_count(secret),
        ..COLUMN
    },
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
    Column {
        name: "Holder",
        description: "holderIdentity contains the identity of the holder of a current lease. If Coordinated Leader Election is used, the holder identity must be equal to the elected LeaseCandidate.metadata.name field.",
        cell: |lease, _| text(&lease["spec"]["holderIdentity"]),
        ..COLUMN
    },
    AGE,
];

pub(super) const NETWORK_POLICY: &[Column] = &[
    NAME,
    Column {
        name: "Pod-Selector",
        description: "podSelector selects the pods to which this NetworkPolicy object applies. The array of rules is applied to any pods selected by this field. An empty selector matches all pods in the policy's namespace. Multiple network policies can select the same set of pods. In this case, the ingress rules for each are combined additively. This field is optional. If it is not specified, it defaults to an empty selector.",
        cell: |policy, _| pairs(&policy["spec"]["podSelector"]["matchLabels"]),
        ..COLUMN
    },
    AGE,
];

pub(super) const POD_DISRUPTION_BUDGET: &[Column] = &[
    NAME,
    Column {
        name: "Min Available",
        description: "The minimum number of pods that must be available.",
        cell: |budget, _| number_or_share(&budget["spec"]["minAvailable"]),
        ..COLUMN
    },
    Column {
        name: "Max Unavailable",
        description: "The maximum number of pods that may be unavailable.",
        cell: |budget, _| number_or_share(&budget["spec"]["maxUnavailable"]),
        ..COLUMN
    },
    Column {
        name: "Allowed Disruptions",
        description: "Calculated number of pods that may be disrupted at this time.",
        cell: |budget, _| count(&budget["status"]["disruptionsAllowed"]),
        ..COUNT
    },
    AGE,
];

fn number_or_share(value: &Value) -> Value {
    match value {
        Value::Null => "N/A".into(),
        Value::String(share) => share.as_str().into(),
        number => number.to_string().into(),
    }
}

const CONTAINERS: Column = Column {
    name: "Containers",
    priority: 1,
    description: "Names of each container in the template.",
    cell: |object, _| of_containers(object, "name"),
    ..COLUMN
};
const IMAGES: Column = Column {
    name: "Images",
    priority: 1,
    description: "Images referenced by each container in the template.",
    cell: |object, _| of_containers(object, "image"),
    ..COLUMN
};
const SELECTOR: Column = Column {
    name: "Selector",
    priority: 1,
    cell: |object, _| crate::label_selector::text(&object["spec"]["selector"]).into(),
    ..COLUMN
};
const READY_OF_WANTED: Column = Column {
    name: "Ready",
    description: "Number of the pod with ready state",
    cell: |object, _| {
        let ready = count(&object["status"]["readyReplicas"]);
        format!("{ready}/{}", count(&object["spec"]["replicas"])).into()
    },
    ..COLUMN
};
const COUNT: Column = Column { type_: "integer", ..COLUMN };

pub(super) const DEPLOYMENT: &[Column] = &[
    NAME,
    READY_OF_WANTED,
    Column { name: "Up-to-date", cell: |object, _| count(&object["status"]["updatedReplicas"]), ..COLUMN },
    Column { name: "Available", cell: |object, _| count(&object["status"]["availableReplicas"]), ..COLUMN },
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

pub(super) const REPLICA_SET: &[Column] = &[
    NAME,
    Column { name: "Desired", cell: |object, _| count(&object["spec"]["replicas"]), ..COUNT },
    Column { name: "Current", cell: |object, _| count(&object["status"]["replicas"]), ..COUNT },
    Column { name: "Ready", cell: |object, _| count(&object["status"]["readyReplicas"]), ..COUNT },
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

pub(super) const STATEFUL_SET: &[Column] = &[NAME, READY_OF_WANTED, AGE, CONTAINERS, IMAGES];

pub(super) const DAEMON_SET: &[Column] = &[
    NAME,
    Column { name: "Desired", cell: |set, _| count(&set["status"]["desiredNumberScheduled"]), ..COUNT },
    Column { name: "Current", cell: |set, _| count(&set["status"]["currentNumberScheduled"]), ..COUNT },
    Column { name: "Ready", cell: |set, _| count(&set["status"]["numberReady"]), ..COUNT },
    Column { name: "Up-to-date", cell: |set, _| count(&set["status"]["updatedNumberScheduled"]), ..COUNT },
    Column { name: "Available", cell: |set, _| count(&set["status"]["numberAvailable"]), ..COUNT },
    Column {
        name: "Node Selector",
        cell: |set, _| pairs(&set["spec"]["template"]["spec"]["nodeSelector"]),
        ..COLUMN
    },
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

fn of_containers(object: &Value, field: &str) -> Value {
    let containers = object["spec"]["template"]["spec"]["containers"].as_array().into_iter().flatten();
    containers.filter_map(|container| container[field].as_str()).collect::<Vec<_>>().join(",").into()
}

fn count(number: &Value) -> Value {
    number.as_i64().unwrap_or(0).into()
}

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

/// Formats the age of a timestamp as kubectl does.
pub(crate) fn since(timestamp: &Value, now: Timestamp) -> Value {
    let Some(then) = timestamp.as_str().and_then(|text| text.parse::<Timestamp>().ok()) else {
        return "<unknown>".into();
    };
    human_duration(now.as_second() - then.as_second()).into()
}

/// Formats a duration in at most two units, like `duration.HumanDuration`.
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
    (count("data") + count("binaryData")).into()
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

/// Returns the text of the Status column: the reason of the pod, else of its containers.
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

fn external_addresses(service: &Value) -> Value {
    let spec = &service["spec"];
    let type_ = spec["type"].as_str().unwrap_or_default();
    if type_ == "ExternalName" {
        return spec["externalName"].clone();
    }
    let ingress = service["status"]["loadBalancer"]["ingress"].as_array().into_iter().flatten();
    let balanced = ingress.filter_map(|entry| entry["ip"].as_str().or_else(|| entry["hostname"].as_str()));
    let own = spec["externalIPs"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let all: Vec<&str> = balanced.filter(|_| type_ == "LoadBalancer").chain(own).collect();
    match (all.is_empty(), type_) {
        (true, "LoadBalancer") => "<pending>".into(),
        (true, _) => "<none>".into(),
        (false, _) => all.join(",").into(),
    }
}

fn service_ports(service: &Value) -> Value {
    let ports = service["spec"]["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    if ports.is_empty() {
        return "<none>".into();
    }
    let shown = ports.iter().map(|port| {
        let protocol = port["protocol"].as_str().unwrap_or("TCP");
        match port["nodePort"].as_u64() {
            Some(on_node) if on_node > 0 => format!("{}:{on_node}/{protocol}", port["port"]),
            _ => format!("{}/{protocol}", port["port"]),
        }
    });
    shown.collect::<Vec<_>>().join(",").into()
}

fn claim_of(volume: &Value) -> Value {
    let claim = &volume["spec"]["claimRef"];
    match (claim["namespace"].as_str(), claim["name"].as_str()) {
        (Some(namespace), Some(name)) => format!("{namespace}/{name}").into(),
        _ => "".into(),
    }
}

fn slice_ports(slice: &Value) -> Value {
    let ports = slice["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    some_of(ports.iter().filter_map(|port| Some(port["port"].as_i64()?.to_string())).collect(), "<unset>")
}

fn slice_endpoints(slice: &Value) -> Value {
    let endpoints = slice["endpoints"].as_array().map(Vec::as_slice).unwrap_or_default();
    let addresses =
        endpoints.iter().flat_map(|endpoint| endpoint["addresses"].as_array().into_iter().flatten());
    some_of(addresses.filter_map(|address| Some(address.as_str()?.to_owned())).collect(), "<unset>")
}

/// Joins the first three items and adds the number of the rest.
fn some_of(all: Vec<String>, nothing: &str) -> Value {
    match all.len() {
        0 => nothing.into(),
        1..=3 => all.join(",").into(),
        more => format!("{} + {} more...", all[..3].join(","), more - 3).into(),
    }
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
