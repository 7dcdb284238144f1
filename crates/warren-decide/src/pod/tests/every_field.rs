//! Tests that every field of a pod is honoured, refused by its name, or has no effect that a pod
//! could miss. A field that Kubernetes adds fails the first test until it has its line in the
//! table.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::PodSpec;
use schemars::SchemaGenerator;

use super::*;

#[derive(Clone, Copy)]
enum Field {
    /// It is honoured. Its inner fields are in the table under their own type.
    Honoured,
    /// A pod that sets it is refused, and the refusal names the field.
    Refused(&'static str),
    /// It has no effect that the pod could notice on this node; the text is the reason.
    NoEffect(&'static str),
}

use Field::{Honoured, NoEffect, Refused};

const PLACEMENT: &str =
    "says on which node to run: the scheduler's matter on a cluster, and a home has one node";

/// The fields that are not honoured, by type.
const EXCEPTIONS: &[(&str, &[(&str, Field)])] = &[
    (
        "PodSpec",
        &[
            ("affinity", NoEffect(PLACEMENT)),
            (
                "enableServiceLinks",
                NoEffect("services have no address that pods reach, so there is nothing to tell"),
            ),
            ("ephemeralContainers", NoEffect("their own status says that they cannot run")),
            (
                "evictionResponders",
                NoEffect("asked only where an EvictionRequest is made, which no kind here is"),
            ),
            ("hostIPC", Refused(r#"{"hostIPC": true}"#)),
            ("hostNetwork", Refused(r#"{"hostNetwork": true}"#)),
            ("hostPID", Refused(r#"{"hostPID": true}"#)),
            ("hostUsers", NoEffect("pods never have the ids of the host: stronger than what `true` allows")),
            ("nodeSelector", NoEffect(PLACEMENT)),
            ("os", Refused(r#"{"os": {"name": "windows"}}"#)),
            ("overhead", NoEffect("for schedulers")),
            ("preemptionPolicy", NoEffect("for schedulers")),
            ("priority", NoEffect("for schedulers; disk pressure evicts by what a pod has written")),
            ("priorityClassName", NoEffect("for schedulers")),
            ("resourceClaims", Refused(r#"{"resourceClaims": [{"name": "gpu"}]}"#)),
            ("resources", Refused(r#"{"resources": {"limits": {"cpu": "1"}}}"#)),
            ("schedulingGroup", Refused(r#"{"schedulingGroup": {"podGroupName": "gang"}}"#)),
            ("setHostnameAsFQDN", Refused(r#"{"setHostnameAsFQDN": true}"#)),
            ("shareProcessNamespace", Refused(r#"{"shareProcessNamespace": true}"#)),
            ("tolerations", NoEffect(PLACEMENT)),
            ("topologySpreadConstraints", NoEffect(PLACEMENT)),
        ],
    ),
    (
        "PodSecurityContext",
        &[
            (
                "appArmorProfile",
                Refused(r#"{"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}"#),
            ),
            ("fsGroupChangePolicy", NoEffect("a hint about speed")),
            ("seLinuxChangePolicy", NoEffect("a hint about speed; labels themselves are refused")),
            ("seLinuxOptions", Refused(r#"{"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}"#)),
            ("seccompProfile", Refused(r#"{"securityContext": {"seccompProfile": {"type": "Unconfined"}}}"#)),
            (
                "supplementalGroupsPolicy",
                NoEffect("groups of the image's own user list are never added, as `Strict` has it"),
            ),
            ("windowsOptions", Refused(r#"{"securityContext": {"windowsOptions": {}}}"#)),
        ],
    ),
    (
        "Container",
        &[
            ("resizePolicy", NoEffect("resources of a running container do not change here")),
            (
                "restartPolicyRules",
                Refused(r#"{"containers": [{"name": "a", "restartPolicyRules": [{"action": "Restart"}]}]}"#),
            ),
            (
                "volumeDevices",
                Refused(
                    r#"{"containers": [{"name": "a", "volumeDevices": [{"name": "d", "devicePath": "/dev/d"}]}]}"#,
                ),
            ),
        ],
    ),
    (
        "ContainerPort",
        &[
            (
                "hostPort",
                Refused(r#"{"containers": [{"name": "a", "ports": [{"containerPort": 1, "hostPort": 1}]}]}"#),
            ),
            ("hostIP", NoEffect("only with `hostPort`, which is refused")),
        ],
    ),
    (
        "ResourceRequirements",
        &[(
            "claims",
            Refused(r#"{"containers": [{"name": "a", "resources": {"claims": [{"name": "gpu"}]}}]}"#),
        )],
    ),
    (
        "SecurityContext",
        &[
            (
                "appArmorProfile",
                Refused(
                    r#"{"containers": [{"name": "a", "securityContext": {"appArmorProfile": {"type": "Localhost"}}}]}"#,
                ),
            ),
            (
                "privileged",
                Refused(r#"{"containers": [{"name": "a", "securityContext": {"privileged": true}}]}"#),
            ),
            (
                "procMount",
                Refused(r#"{"containers": [{"name": "a", "securityContext": {"procMount": "Unmasked"}}]}"#),
            ),
            (
                "seLinuxOptions",
                Refused(
                    r#"{"containers": [{"name": "a", "securityContext": {"seLinuxOptions": {"level": "s0"}}}]}"#,
                ),
            ),
            (
                "seccompProfile",
                Refused(
                    r#"{"containers": [{"name": "a", "securityContext": {"seccompProfile": {"type": "Localhost"}}}]}"#,
                ),
            ),
            (
                "windowsOptions",
                Refused(r#"{"containers": [{"name": "a", "securityContext": {"windowsOptions": {}}}]}"#),
            ),
        ],
    ),
    (
        "EnvVarSource",
        &[(
            "fileKeyRef",
            Refused(
                r#"{"containers": [{"name": "a", "env": [{"name": "A", "valueFrom": {"fileKeyRef": {"key": "k", "path": "p", "volumeName": "v"}}}]}]}"#,
            ),
        )],
    ),
    ("ObjectFieldSelector", &[("apiVersion", NoEffect("there is one version of a pod"))]),
    (
        "Lifecycle",
        &[(
            "stopSignal",
            Refused(r#"{"containers": [{"name": "a", "lifecycle": {"stopSignal": "SIGINT"}}]}"#),
        )],
    ),
    (
        "HTTPGetAction",
        &[
            (
                "protocol",
                Refused(
                    r#"{"containers": [{"name": "a", "readinessProbe": {"httpGet": {"port": 1, "protocol": "HTTP2"}}}]}"#,
                ),
            ),
            (
                "scheme",
                Refused(
                    r#"{"containers": [{"name": "a", "readinessProbe": {"httpGet": {"port": 1, "scheme": "HTTPS"}}}]}"#,
                ),
            ),
        ],
    ),
    (
        "GRPCAction",
        &[(
            "mode",
            Refused(
                r#"{"containers": [{"name": "a", "livenessProbe": {"grpc": {"port": 1, "mode": "TLS"}}}]}"#,
            ),
        )],
    ),
    (
        "VolumeMount",
        &[(
            "mountPropagation",
            Refused(
                r#"{"volumes": [{"name": "v", "emptyDir": {}}], "containers": [{"name": "a", "volumeMounts": [{"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"}]}]}"#,
            ),
        )],
    ),
    (
        "PodDNSConfig",
        &[(
            "nameservers",
            NoEffect("the node's own name server answers; pods reach no other unless their network is open"),
        )],
    ),
    (
        "Volume",
        &[
            (
                "awsElasticBlockStore",
                Refused(r#"{"volumes": [{"name": "v", "awsElasticBlockStore": {"volumeID": "x"}}]}"#),
            ),
            (
                "azureDisk",
                Refused(r#"{"volumes": [{"name": "v", "azureDisk": {"diskName": "x", "diskURI": "x"}}]}"#),
            ),
            (
                "azureFile",
                Refused(
                    r#"{"volumes": [{"name": "v", "azureFile": {"secretName": "x", "shareName": "x"}}]}"#,
                ),
            ),
            ("cephfs", Refused(r#"{"volumes": [{"name": "v", "cephfs": {"monitors": []}}]}"#)),
            ("cinder", Refused(r#"{"volumes": [{"name": "v", "cinder": {"volumeID": "x"}}]}"#)),
            ("csi", Refused(r#"{"volumes": [{"name": "v", "csi": {"driver": "x"}}]}"#)),
            ("ephemeral", Refused(r#"{"volumes": [{"name": "v", "ephemeral": {}}]}"#)),
            ("fc", Refused(r#"{"volumes": [{"name": "v", "fc": {}}]}"#)),
            ("flexVolume", Refused(r#"{"volumes": [{"name": "v", "flexVolume": {"driver": "x"}}]}"#)),
            ("flocker", Refused(r#"{"volumes": [{"name": "v", "flocker": {}}]}"#)),
            (
                "gcePersistentDisk",
                Refused(r#"{"volumes": [{"name": "v", "gcePersistentDisk": {"pdName": "x"}}]}"#),
            ),
            ("gitRepo", Refused(r#"{"volumes": [{"name": "v", "gitRepo": {"repository": "x"}}]}"#)),
            (
                "glusterfs",
                Refused(r#"{"volumes": [{"name": "v", "glusterfs": {"endpoints": "x", "path": "x"}}]}"#),
            ),
            ("image", Refused(r#"{"volumes": [{"name": "v", "image": {"reference": "x"}}]}"#)),
            (
                "iscsi",
                Refused(
                    r#"{"volumes": [{"name": "v", "iscsi": {"iqn": "x", "lun": 0, "targetPortal": "x"}}]}"#,
                ),
            ),
            ("nfs", Refused(r#"{"volumes": [{"name": "v", "nfs": {"path": "/", "server": "x"}}]}"#)),
            (
                "photonPersistentDisk",
                Refused(r#"{"volumes": [{"name": "v", "photonPersistentDisk": {"pdID": "x"}}]}"#),
            ),
            (
                "portworxVolume",
                Refused(r#"{"volumes": [{"name": "v", "portworxVolume": {"volumeID": "x"}}]}"#),
            ),
            (
                "quobyte",
                Refused(r#"{"volumes": [{"name": "v", "quobyte": {"registry": "x", "volume": "x"}}]}"#),
            ),
            ("rbd", Refused(r#"{"volumes": [{"name": "v", "rbd": {"image": "x", "monitors": []}}]}"#)),
            (
                "scaleIO",
                Refused(
                    r#"{"volumes": [{"name": "v", "scaleIO": {"gateway": "x", "secretRef": {"name": "x"}, "system": "x"}}]}"#,
                ),
            ),
            ("storageos", Refused(r#"{"volumes": [{"name": "v", "storageos": {}}]}"#)),
            (
                "vsphereVolume",
                Refused(r#"{"volumes": [{"name": "v", "vsphereVolume": {"volumePath": "x"}}]}"#),
            ),
        ],
    ),
    (
        "EmptyDirVolumeSource",
        &[("mode", Refused(r#"{"volumes": [{"name": "v", "emptyDir": {"mode": 448}}]}"#))],
    ),
    (
        "ConfigMapVolumeSource",
        &[(
            "defaultUser",
            Refused(r#"{"volumes": [{"name": "v", "configMap": {"name": "c", "defaultUser": 1}}]}"#),
        )],
    ),
    (
        "SecretVolumeSource",
        &[(
            "defaultUser",
            Refused(r#"{"volumes": [{"name": "v", "secret": {"secretName": "s", "defaultUser": 1}}]}"#),
        )],
    ),
    (
        "DownwardAPIVolumeSource",
        &[("defaultUser", Refused(r#"{"volumes": [{"name": "v", "downwardAPI": {"defaultUser": 1}}]}"#))],
    ),
    (
        "DownwardAPIVolumeFile",
        &[(
            "user",
            Refused(r#"{"volumes": [{"name": "v", "downwardAPI": {"items": [{"path": "p", "user": 1}]}}]}"#),
        )],
    ),
    (
        "KeyToPath",
        &[(
            "user",
            Refused(
                r#"{"volumes": [{"name": "v", "secret": {"secretName": "s", "items": [{"key": "k", "path": "p", "user": 1}]}}]}"#,
            ),
        )],
    ),
    (
        "ProjectedVolumeSource",
        &[(
            "defaultUser",
            Refused(r#"{"volumes": [{"name": "v", "projected": {"sources": [], "defaultUser": 1}}]}"#),
        )],
    ),
    (
        "VolumeProjection",
        &[
            (
                "clusterTrustBundle",
                Refused(
                    r#"{"volumes": [{"name": "v", "projected": {"sources": [{"clusterTrustBundle": {"path": "p"}}]}}]}"#,
                ),
            ),
            (
                "podCertificate",
                Refused(
                    r#"{"volumes": [{"name": "v", "projected": {"sources": [{"podCertificate": {"keyType": "ED25519", "signerName": "s/t"}}]}}]}"#,
                ),
            ),
        ],
    ),
    (
        "ServiceAccountTokenProjection",
        &[(
            "user",
            Refused(
                r#"{"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "p", "user": 1}}]}}]}"#,
            ),
        )],
    ),
    (
        "HostPathVolumeSource",
        // A flag of the node says which of them a pod may have.
        &[],
    ),
];

/// The fields that are honoured, by type. `limits` and `requests` are maps, and so have no fields.
const HONOURED: &[(&str, &str)] = &[
    (
        "PodSpec",
        "activeDeadlineSeconds automountServiceAccountToken containers dnsConfig dnsPolicy hostAliases hostname \
         hostnameOverride imagePullSecrets initContainers nodeName readinessGates restartPolicy runtimeClassName \
         schedulerName schedulingGates securityContext serviceAccount serviceAccountName subdomain \
         terminationGracePeriodSeconds volumes",
    ),
    ("PodSecurityContext", "fsGroup runAsGroup runAsNonRoot runAsUser supplementalGroups sysctls"),
    ("Sysctl", "name value"),
    (
        "Container",
        "args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe resources \
         restartPolicy securityContext startupProbe stdin stdinOnce terminationMessagePath terminationMessagePolicy \
         tty volumeMounts workingDir",
    ),
    ("ContainerPort", "containerPort name protocol"),
    ("ResourceRequirements", "limits requests"),
    (
        "SecurityContext",
        "allowPrivilegeEscalation capabilities readOnlyRootFilesystem runAsGroup runAsNonRoot runAsUser",
    ),
    ("Capabilities", "add drop"),
    ("EnvVar", "name value valueFrom"),
    ("EnvVarSource", "configMapKeyRef fieldRef resourceFieldRef secretKeyRef"),
    ("ConfigMapKeySelector", "key name optional"),
    ("SecretKeySelector", "key name optional"),
    ("ObjectFieldSelector", "fieldPath"),
    ("ResourceFieldSelector", "containerName divisor resource"),
    ("EnvFromSource", "configMapRef prefix secretRef"),
    ("ConfigMapEnvSource", "name optional"),
    ("SecretEnvSource", "name optional"),
    ("Lifecycle", "postStart preStop"),
    ("LifecycleHandler", "exec httpGet sleep tcpSocket"),
    ("ExecAction", "command"),
    ("HTTPGetAction", "host httpHeaders path port"),
    ("HTTPHeader", "name value"),
    ("SleepAction", "seconds"),
    ("TCPSocketAction", "host port"),
    ("GRPCAction", "port service"),
    (
        "Probe",
        "exec failureThreshold grpc httpGet initialDelaySeconds periodSeconds successThreshold tcpSocket \
         terminationGracePeriodSeconds timeoutSeconds",
    ),
    ("VolumeMount", "bindMountOptions mountPath name readOnly recursiveReadOnly subPath subPathExpr"),
    ("PodDNSConfig", "options searches"),
    ("PodDNSConfigOption", "name value"),
    ("HostAlias", "hostnames ip"),
    ("LocalObjectReference", "name"),
    ("PodReadinessGate", "conditionType"),
    ("PodSchedulingGate", "name"),
    ("Volume", "configMap downwardAPI emptyDir hostPath name persistentVolumeClaim projected secret"),
    ("EmptyDirVolumeSource", "medium sizeLimit"),
    ("HostPathVolumeSource", "path type"),
    ("PersistentVolumeClaimVolumeSource", "claimName readOnly"),
    ("ConfigMapVolumeSource", "defaultMode items name optional"),
    ("SecretVolumeSource", "defaultMode items optional secretName"),
    ("KeyToPath", "key mode path"),
    ("DownwardAPIVolumeSource", "defaultMode items"),
    ("DownwardAPIVolumeFile", "fieldRef mode path resourceFieldRef"),
    ("ProjectedVolumeSource", "defaultMode sources"),
    ("VolumeProjection", "configMap downwardAPI secret serviceAccountToken"),
    ("ConfigMapProjection", "items name optional"),
    ("SecretProjection", "items name optional"),
    ("DownwardAPIProjection", "items"),
    ("ServiceAccountTokenProjection", "audience expirationSeconds path"),
];

fn table() -> BTreeMap<(&'static str, &'static str), Field> {
    let exceptions = EXCEPTIONS
        .iter()
        .flat_map(|(type_, fields)| fields.iter().map(move |(field, how)| ((*type_, *field), *how)));
    let honoured = HONOURED
        .iter()
        .flat_map(|(type_, fields)| fields.split_whitespace().map(move |field| ((*type_, field), Honoured)));
    let mut table = BTreeMap::new();
    for (key, how) in exceptions.chain(honoured) {
        assert!(table.insert(key, how).is_none(), "{key:?} is in the table twice");
    }
    table
}

/// Returns the type that a reference leads to: `#/$defs/io.k8s.api.core.v1.Container` is a
/// `Container`.
fn type_name(reference: &str) -> &str {
    reference.rsplit(['/', '.']).next().unwrap()
}

fn references(schema: &Value, found: &mut Vec<String>) {
    match schema {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|field| references(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[test]
fn every_field_of_a_pod_is_in_the_table() {
    let root = SchemaGenerator::default().into_root_schema_for::<PodSpec>().to_value();
    let table = table();
    let mut unclassified = Vec::new();
    let mut seen = BTreeSet::new();
    let mut queue = vec![("PodSpec".to_owned(), root.clone())];
    while let Some((type_, schema)) = queue.pop() {
        if !seen.insert(type_.clone()) {
            continue;
        }
        for (field, below) in schema["properties"].as_object().into_iter().flatten() {
            match table.get(&(type_.as_str(), field.as_str())) {
                None => unclassified.push(format!("{type_}.{field}")),
                Some(Honoured) => {
                    let mut found = Vec::new();
                    references(below, &mut found);
                    for reference in found {
                        let target = root.pointer(reference.trim_start_matches('#')).expect("it is defined");
                        queue.push((type_name(&reference).to_owned(), target.clone()));
                    }
                }
                Some(Refused(_) | NoEffect(_)) => {}
            }
        }
    }
    assert!(
        unclassified.is_empty(),
        "a pod with these fields would run without them and not be told; refuse or honour them, and put them in the \
         table: {unclassified:?}"
    );
    let unknown: Vec<_> = table.keys().filter(|(type_, _)| !seen.contains(*type_)).collect();
    assert!(unknown.is_empty(), "nothing honoured leads to these, or no pod has them: {unknown:?}");
}

#[test]
fn a_field_that_is_not_supported_is_refused_by_its_name() {
    for ((type_, field), how) in table() {
        match how {
            Refused(spec) => {
                let pod = pod(serde_json::from_str(spec).unwrap());
                let refusal =
                    refusal(&pod, &node()).unwrap_or_else(|| panic!("{type_}.{field} is not refused"));
                assert!(refusal.message.contains(field), "{type_}.{field}: {}", refusal.message);
            }
            NoEffect(reason) => assert!(!reason.is_empty()),
            Honoured => {}
        }
    }
}

#[test]
fn harmless_values_of_refused_fields_are_no_reason_to_refuse() {
    for spec in [
        json!({"os": {"name": "linux"}, "setHostnameAsFQDN": false, "resources": {"requests": {"cpu": "1"}}}),
        json!({"securityContext": {
            "seccompProfile": {"type": "RuntimeDefault"}, "appArmorProfile": {"type": "Unconfined"}, "seLinuxOptions": {},
        }}),
        json!({"containers": [{
            "name": "a",
            "lifecycle": {"stopSignal": "SIGTERM"},
            "ports": [{"containerPort": 80, "hostPort": 0}],
            "securityContext": {"procMount": "Default"},
            "livenessProbe": {"grpc": {"port": 1, "mode": "Plaintext"}},
            "readinessProbe": {"httpGet": {"port": 1, "protocol": "HTTP1"}},
        }]}),
        json!({
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{"name": "a", "volumeMounts": [
                {"name": "v", "mountPath": "data", "recursiveReadOnly": "Enabled", "bindMountOptions": ["noexec", "nosuid"]},
            ]}],
        }),
    ] {
        assert_eq!(refusal(&pod(spec.clone()), &node()), None, "{spec}");
    }
}

#[test]
fn safe_sysctls_are_set_and_others_refused() {
    let with = |name: &str| pod(json!({"securityContext": {"sysctls": [{"name": name, "value": "1"}]}}));
    assert_eq!(refusal(&with("net.ipv4.tcp_syncookies"), &node()), None);
    assert_eq!(
        sysctls(&with("net/ipv4/tcp_syncookies")),
        [("net.ipv4.tcp_syncookies".to_owned(), "1".to_owned())]
    );
    for name in ["kernel.msgmax", "net.ipv4.ip_forward", "vm.swappiness"] {
        let refusal = refusal(&with(name), &node()).unwrap();
        assert_eq!(refusal.reason, "SysctlForbidden");
        let start = format!("spec.securityContext.sysctls: forbidden sysctl: \"{name}\" not allowlisted");
        assert!(refusal.message.starts_with(&start), "{}", refusal.message);
    }
    let mut elsewhere = with("net.ipv4.tcp_syncookies");
    elsewhere.spec.as_mut().unwrap().runtime_class_name = Some("strong".to_owned());
    assert!(refusal(&elsewhere, &node()).unwrap().message.contains("sysctls with this runtime class"));
    elsewhere.spec.as_mut().unwrap().runtime_class_name = Some("plain".to_owned());
    assert_eq!(refusal(&elsewhere, &node()), None);
}

#[test]
fn a_volume_is_not_mounted_over_the_root() {
    for path in ["/", "//", "/./", "."] {
        let pod = pod(json!({
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{"name": "a", "volumeMounts": [{"name": "v", "mountPath": path}]}],
        }));
        let refusal = refusal(&pod, &node()).unwrap();
        let message = format!(
            "spec.containers[a].volumeMounts[v].mountPath \"{path}\" would hide the container's own files; name a directory \
             below it"
        );
        assert_eq!((refusal.reason, refusal.message), ("InvalidVolumeMount", message));
    }
}
