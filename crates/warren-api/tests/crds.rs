//! Tests of the five CRDs without a server: names, columns, and that the schema is structural.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by a panic")]

use expect_test::expect;
use serde_json::Value;

fn crds() -> Vec<Value> {
    warren_api::crds().iter().map(|crd| serde_json::to_value(crd).unwrap()).collect()
}

#[test]
fn names_columns_and_subresources() {
    let mut shown = String::new();
    for crd in crds() {
        let (names, version) = (&crd["spec"]["names"], &crd["spec"]["versions"][0]);
        shown.push_str(&format!(
            "{} {} short {} {} {}\n",
            crd["metadata"]["name"].as_str().unwrap(),
            version["name"].as_str().unwrap(),
            names["shortNames"],
            crd["spec"]["scope"].as_str().unwrap(),
            version["subresources"],
        ));
        for column in version["additionalPrinterColumns"].as_array().into_iter().flatten() {
            shown.push_str(&format!("    {} {} {}\n", column["name"], column["type"], column["jsonPath"]));
        }
    }
    expect![[r#"
        sandboxes.agents.x-k8s.io v1beta1 short ["sandbox"] Namespaced {"status":{}}
            "Ready" "string" ".status.conditions[?(@.type=='Ready')].status"
            "Reason" "string" ".status.conditions[?(@.type=='Ready')].reason"
            "Age" "date" ".metadata.creationTimestamp"
        sandboxclaims.extensions.agents.x-k8s.io v1beta1 short ["sandboxclaim"] Namespaced {"status":{}}
            "Ready" "string" ".status.conditions[?(@.type=='Ready')].status"
            "Sandbox" "string" ".status.sandbox.name"
            "Reason" "string" ".status.conditions[?(@.type=='Ready')].reason"
            "Age" "date" ".metadata.creationTimestamp"
        sandboxtemplates.extensions.agents.x-k8s.io v1beta1 short ["sandboxtemplate"] Namespaced null
        sandboxwarmpools.extensions.agents.x-k8s.io v1beta1 short ["swp"] Namespaced {"scale":{"labelSelectorPath":".status.selector","specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas"},"status":{}}
            "Ready" "integer" ".status.readyReplicas"
            "Desired" "integer" ".spec.replicas"
            "Age" "date" ".metadata.creationTimestamp"
        agenttasks.warren.dev v1alpha1 short ["at"] Namespaced {"status":{}}
            "Running" "string" ".status.conditions[?(@.type=='Running')].status"
            "Succeeded" "string" ".status.conditions[?(@.type=='Succeeded')].status"
            "Failed" "string" ".status.conditions[?(@.type=='Failed')].reason"
            "Exit" "integer" ".status.exitCode"
            "Sandbox" "string" ".status.sandboxName"
            "Age" "date" ".metadata.creationTimestamp"
    "#]].assert_eq(&shown);
}

/// Calls `visit` with the path and every schema of a CRD.
fn walk(schema: &Value, path: &str, visit: &mut dyn FnMut(&str, &Value)) {
    visit(path, schema);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        walk(property, &format!("{path}.{name}"), visit);
    }
    for (key, step) in [("items", "[]"), ("additionalProperties", "{}")] {
        if schema[key].is_object() {
            walk(&schema[key], &format!("{path}{step}"), visit);
        }
    }
}

fn walk_all(visit: &mut dyn FnMut(&str, &Value)) {
    for crd in crds() {
        let kind = crd["spec"]["names"]["kind"].as_str().unwrap();
        walk(&crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], kind, visit);
    }
}

#[test]
fn every_value_has_one_type_and_nothing_is_left_open() {
    walk_all(&mut |path, schema| {
        assert!(schema.get("$ref").is_none(), "{path} is a reference");
        assert!(schema.get("x-kubernetes-preserve-unknown-fields").is_none(), "{path} is left open");
        let is_int_or_string = schema["x-kubernetes-int-or-string"] == true;
        assert!(schema["type"].is_string() != is_int_or_string, "{path} has no type, or two");
        if schema["type"] == "array" {
            assert!(schema["items"].is_object(), "{path} says nothing about its items");
        }
    });
}

#[test]
fn keys_of_list_maps_are_always_there() {
    let mut lists = 0;
    walk_all(&mut |path, schema| {
        for key in schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten() {
            let item = &schema["items"];
            let required = item["required"].as_array().is_some_and(|required| required.contains(key));
            let default = item["properties"][key.as_str().unwrap()].get("default");
            assert!(required || default.is_some(), "{path} is keyed by {key}, which may be absent");
            lists += 1;
        }
    });
    assert!(lists > 20, "only {lists} keyed lists: the pod's are missing");
}

#[test]
fn every_field_is_described() {
    let mut bare = Vec::new();
    walk_all(&mut |path, schema| {
        let is_element = path.ends_with("[]") || path.ends_with("{}");
        let is_root_metadata = path.matches('.').count() == 1 && path.ends_with(".metadata");
        if !is_element && !is_root_metadata && schema.get("description").is_none() {
            bare.push(path.to_owned());
        }
    });
    assert_eq!(bare, Vec::<String>::new());
}

#[test]
fn defaults() {
    let mut shown = String::new();
    walk_all(&mut |path, schema| {
        // A template repeats the pod's defaults; show them once.
        let repeated = path.starts_with("SandboxTemplate.spec.podTemplate");
        if let Some(default) = schema.get("default").filter(|_| !repeated) {
            shown.push_str(&format!("{path} = {default}\n"));
        }
    });
    expect![[r#"
        Sandbox.spec.operatingMode = "Running"
        Sandbox.spec.podTemplate.spec.containers[].env[].valueFrom.configMapKeyRef.name = ""
        Sandbox.spec.podTemplate.spec.containers[].env[].valueFrom.fileKeyRef.optional = false
        Sandbox.spec.podTemplate.spec.containers[].env[].valueFrom.secretKeyRef.name = ""
        Sandbox.spec.podTemplate.spec.containers[].envFrom[].configMapRef.name = ""
        Sandbox.spec.podTemplate.spec.containers[].envFrom[].secretRef.name = ""
        Sandbox.spec.podTemplate.spec.containers[].livenessProbe.grpc.service = ""
        Sandbox.spec.podTemplate.spec.containers[].ports[].protocol = "TCP"
        Sandbox.spec.podTemplate.spec.containers[].readinessProbe.grpc.service = ""
        Sandbox.spec.podTemplate.spec.containers[].startupProbe.grpc.service = ""
        Sandbox.spec.podTemplate.spec.ephemeralContainers[].env[].valueFrom.configMapKeyRef.name = ""
        Sandbox.spec.podTemplate.spec.ephemeralContainers[].env[].valueFrom.fileKeyRef.optional = false
        Sandbox.spec.podTemplate.spec.ephemeralContainers[].env[].valueFrom.secretKeyRef.name = ""
        Sandbox.spec.podTemplate.spec.ephemeralContainers[].envFrom[].configMapRef.name = ""
        Sandbox.spec.podTemplate.spec.ephemeralContainers[].envFrom[].secretRef.name = ""
        Sandbox.spec.podTemplate.spec.ephemeralContainers[].livenessProbe.grpc.service = ""
        Sandbox.spec.podTemplate.spec.ephemeralContainers[].ports[].protocol = "TCP"
        Sandbox.spec.podTemplate.spec.ephemeralContainers[].readinessProbe.grpc.service = ""
        Sandbox.spec.podTemplate.spec.ephemeralContainers[].startupProbe.grpc.service = ""
        Sandbox.spec.podTemplate.spec.imagePullSecrets[].name = ""
        Sandbox.spec.podTemplate.spec.initContainers[].env[].valueFrom.configMapKeyRef.name = ""
        Sandbox.spec.podTemplate.spec.initContainers[].env[].valueFrom.fileKeyRef.optional = false
        Sandbox.spec.podTemplate.spec.initContainers[].env[].valueFrom.secretKeyRef.name = ""
        Sandbox.spec.podTemplate.spec.initContainers[].envFrom[].configMapRef.name = ""
        Sandbox.spec.podTemplate.spec.initContainers[].envFrom[].secretRef.name = ""
        Sandbox.spec.podTemplate.spec.initContainers[].livenessProbe.grpc.service = ""
        Sandbox.spec.podTemplate.spec.initContainers[].ports[].protocol = "TCP"
        Sandbox.spec.podTemplate.spec.initContainers[].readinessProbe.grpc.service = ""
        Sandbox.spec.podTemplate.spec.initContainers[].startupProbe.grpc.service = ""
        Sandbox.spec.podTemplate.spec.volumes[].azureDisk.fsType = "ext4"
        Sandbox.spec.podTemplate.spec.volumes[].azureDisk.readOnly = false
        Sandbox.spec.podTemplate.spec.volumes[].cephfs.secretRef.name = ""
        Sandbox.spec.podTemplate.spec.volumes[].cinder.secretRef.name = ""
        Sandbox.spec.podTemplate.spec.volumes[].configMap.name = ""
        Sandbox.spec.podTemplate.spec.volumes[].csi.nodePublishSecretRef.name = ""
        Sandbox.spec.podTemplate.spec.volumes[].flexVolume.secretRef.name = ""
        Sandbox.spec.podTemplate.spec.volumes[].iscsi.iscsiInterface = "default"
        Sandbox.spec.podTemplate.spec.volumes[].iscsi.secretRef.name = ""
        Sandbox.spec.podTemplate.spec.volumes[].projected.sources[].configMap.name = ""
        Sandbox.spec.podTemplate.spec.volumes[].projected.sources[].secret.name = ""
        Sandbox.spec.podTemplate.spec.volumes[].rbd.keyring = "/etc/ceph/keyring"
        Sandbox.spec.podTemplate.spec.volumes[].rbd.pool = "rbd"
        Sandbox.spec.podTemplate.spec.volumes[].rbd.secretRef.name = ""
        Sandbox.spec.podTemplate.spec.volumes[].rbd.user = "admin"
        Sandbox.spec.podTemplate.spec.volumes[].scaleIO.fsType = "xfs"
        Sandbox.spec.podTemplate.spec.volumes[].scaleIO.secretRef.name = ""
        Sandbox.spec.podTemplate.spec.volumes[].scaleIO.storageMode = "ThinProvisioned"
        Sandbox.spec.podTemplate.spec.volumes[].storageos.secretRef.name = ""
        Sandbox.spec.shutdownPolicy = "Retain"
        SandboxClaim.spec.lifecycle.shutdownPolicy = "Retain"
        SandboxTemplate.spec.envVarsInjectionPolicy = "Disallowed"
        SandboxTemplate.spec.networkPolicyManagement = "Managed"
        SandboxTemplate.spec.volumeClaimTemplatesPolicy = "Disallowed"
        SandboxWarmPool.spec.replicas = 1
        SandboxWarmPool.spec.updateStrategy.type = "OnReplenish"
        AgentTask.spec.cancel = false
        AgentTask.spec.keepOnFailure = false
        AgentTask.spec.retries = 0
        AgentTask.spec.runner.env[].valueFrom.configMapKeyRef.name = ""
        AgentTask.spec.runner.env[].valueFrom.fileKeyRef.optional = false
        AgentTask.spec.runner.env[].valueFrom.secretKeyRef.name = ""
        AgentTask.spec.runner.timeout = "30m"
    "#]]
    .assert_eq(&shown);
}

/// Removes descriptions, but not properties named `description`.
fn without_descriptions(schema: &Value) -> Value {
    let mut result = schema.clone();
    let Some(object) = result.as_object_mut() else { return result };
    object.remove("description");
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        properties.values_mut().for_each(|property| *property = without_descriptions(property));
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = object.get_mut(key) {
            *inner = without_descriptions(inner);
        }
    }
    result
}

/// Collects the paths at which two values differ.
fn differences(path: &str, left: &Value, right: &Value, into: &mut Vec<String>) {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            for name in left.keys().chain(right.keys().filter(|name| !left.contains_key(*name))) {
                let path = format!("{path}.{name}");
                match (left.get(name), right.get(name)) {
                    (Some(left), Some(right)) => differences(&path, left, right, into),
                    (Some(value), None) => into.push(format!("{path} is only ours: {value}")),
                    (_, value) => into.push(format!("{path} is not ours: {value:?}")),
                }
            }
        }
        // A bound is written as a floating-point number.
        (Value::Number(left), Value::Number(right)) if left.as_f64() == right.as_f64() => {}
        (left, right) if left != right => into.push(format!("{path} is {left}, should be {right}")),
        _ => {}
    }
}

#[test]
fn kubernetes_types_have_the_schema_that_controller_gen_gives_them() {
    let theirs: Value = serde_json::from_str(include_str!("controller-gen/schema.json")).unwrap();
    let crds = crds();
    let of = |kind: &str, pointer: &str| {
        let crd = crds.iter().find(|crd| crd["spec"]["names"]["kind"] == kind).unwrap();
        let root = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        without_descriptions(root.pointer(pointer).unwrap_or_else(|| panic!("{kind} has no {pointer}")))
    };
    let spec = "/properties/spec/properties";
    let mut found = Vec::new();
    for (name, ours) in [
        ("pod", of("Sandbox", &format!("{spec}/podTemplate/properties/spec"))),
        ("pod", of("SandboxTemplate", &format!("{spec}/podTemplate/properties/spec"))),
        ("pvc", of("Sandbox", &format!("{spec}/volumeClaimTemplates/items/properties/spec"))),
        ("pvc", of("SandboxClaim", &format!("{spec}/volumeClaimTemplates/items/properties/spec"))),
        ("ingress", of("SandboxTemplate", &format!("{spec}/networkPolicy/properties/ingress"))),
        ("egress", of("SandboxTemplate", &format!("{spec}/networkPolicy/properties/egress"))),
        ("conditions", of("Sandbox", "/properties/status/properties/conditions")),
        ("conditions", of("SandboxClaim", "/properties/status/properties/conditions")),
    ] {
        differences(name, &ours, &theirs[name], &mut found);
    }
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn pods_have_the_fields_of_kubernetes_1_37() {
    let mut found = Vec::new();
    walk_all(&mut |path, _| {
        let field = path.rsplit('.').next().unwrap_or_default();
        if path.contains(".spec.containers[].volumeMounts[].bindMountOptions")
            || ["evictionResponders", "evictionResponders[]"].contains(&field)
        {
            found.push(path.to_owned());
        }
    });
    found.retain(|path| path.contains("podTemplate"));
    let fields = ["containers[].volumeMounts[].bindMountOptions", "evictionResponders"];
    for field in fields {
        let with = found.iter().filter(|path| path.ends_with(&format!(".podTemplate.spec.{field}"))).count();
        assert_eq!(with, 2, "a Sandbox and a SandboxTemplate have {field}: {found:?}");
    }
}
