//! The shape of the four CRDs, without a server: what users type and see, and that the schema is structural.

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
        // The pod's defaults are the same under a template; once is enough.
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
        Sandbox.spec.podTemplate.spec.volumes[].azureDisk.cachingMode = "ReadWrite"
        Sandbox.spec.podTemplate.spec.volumes[].azureDisk.fsType = "ext4"
        Sandbox.spec.podTemplate.spec.volumes[].azureDisk.kind = "Shared"
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
    "#]]
    .assert_eq(&shown);
}
