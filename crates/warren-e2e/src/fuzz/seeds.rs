//! Valid objects, from which nearly valid ones are made.

use serde_json::{Value, json};

/// Returns the collections that all requests use and that must stay readable.
pub(super) fn collections() -> &'static [&'static str] {
    &[
        "/api/v1/namespaces/default/configmaps",
        "/api/v1/namespaces/default/secrets",
        "/api/v1/namespaces/default/pods",
        "/api/v1/namespaces/default/services",
        "/api/v1/namespaces/default/events",
        "/api/v1/namespaces/default/persistentvolumeclaims",
        "/api/v1/namespaces",
        "/api/v1/nodes",
        "/apis/coordination.k8s.io/v1/namespaces/default/leases",
        "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        "/apis/fuzz.example/v1/namespaces/default/things",
        "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes",
        "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/default/sandboxclaims",
        "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/default/sandboxtemplates",
        "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/default/sandboxwarmpools",
    ]
}

/// Returns valid objects with the path to create them at, in an order in which they can be created.
pub(super) fn objects() -> Vec<(String, Value)> {
    let mut objects = vec![
        (
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": "things.fuzz.example"},
                "spec": {"group": "fuzz.example", "scope": "Namespaced",
                    "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
                    "versions": [{"name": "v1", "served": true, "storage": true,
                        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
                        "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
                        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                            "spec": {"type": "object", "properties": {
                                "size": {"type": "integer", "minimum": 0, "default": 3},
                                "replicas": {"type": "integer"},
                                "mode": {"type": "string", "enum": ["a", "b"]},
                                "pattern": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 10},
                                "any": {"x-kubernetes-preserve-unknown-fields": true},
                                "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["key"],
                                    "items": {"type": "object", "required": ["key"], "properties": {"key": {"type": "string"}, "value": {"type": "integer"}}}}},
                                "x-kubernetes-validations": [{"rule": "!has(self.size) || self.size < 100", "message": "too large"}]},
                            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}]}}),
        ),
        (
            "/apis/fuzz.example/v1/namespaces/default/things",
            json!({"apiVersion": "fuzz.example/v1", "kind": "Thing", "metadata": {"name": "thing"},
                "spec": {"size": 5, "replicas": 2, "mode": "a", "any": {"deep": [1, {"x": null}]},
                    "list": [{"key": "one", "value": 1}, {"key": "two"}]}}),
        ),
        (
            "/api/v1/namespaces/default/configmaps",
            json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "config", "labels": {"app": "web", "tier": "a"}, "annotations": {"note": "x"}, "finalizers": ["example.com/hold"]},
                "data": {"key": "value"}, "binaryData": {"blob": "AAEC"}, "immutable": false}),
        ),
        (
            "/api/v1/namespaces/default/secrets",
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "secret"}, "type": "Opaque",
                "data": {"key": "dmFsdWU="}, "stringData": {"plain": "text"}}),
        ),
        (
            "/api/v1/namespaces/default/pods",
            json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "pod", "labels": {"app": "web"}},
                "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "nodeSelector": {"a": "b"},
                    "containers": [{"name": "main", "image": "busybox", "command": ["sh"], "args": ["-c", "true"],
                        "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                        "ports": [{"containerPort": 80, "protocol": "TCP", "name": "http"}],
                        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "128Mi"}},
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                        "livenessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 5},
                        "securityContext": {"runAsUser": 1000, "capabilities": {"drop": ["ALL"]}}}],
                    "initContainers": [{"name": "init", "image": "busybox"}],
                    "volumes": [{"name": "data", "emptyDir": {"sizeLimit": "1Gi"}}],
                    "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule"}]}}),
        ),
        (
            "/api/v1/namespaces/default/services",
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "service"},
                "spec": {"selector": {"app": "web"}, "type": "ClusterIP",
                    "ports": [{"name": "http", "port": 80, "targetPort": "http"}, {"name": "other", "port": 81, "targetPort": 8081}]}}),
        ),
        (
            "/api/v1/namespaces/default/events",
            json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "event"}, "type": "Normal", "reason": "Because",
                "message": "so", "involvedObject": {"kind": "Pod", "namespace": "default", "name": "pod"},
                "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z", "count": 1}),
        ),
        (
            "/api/v1/namespaces/default/persistentvolumeclaims",
            json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "claim"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}),
        ),
        (
            "/api/v1/namespaces",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "space"}}),
        ),
        (
            "/api/v1/nodes",
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}, "spec": {"podCIDR": "10.0.0.0/24"}}),
        ),
        (
            "/apis/coordination.k8s.io/v1/namespaces/default/leases",
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "lease"},
                "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}}),
        ),
        (
            "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "policy"},
                "spec": {"podSelector": {"matchLabels": {"a": "b"}}, "policyTypes": ["Ingress", "Egress"],
                    "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}], "ports": [{"port": 53, "protocol": "UDP"}]}]}}),
        ),
    ];
    let pod = json!({"spec": {"containers": [{"name": "main", "image": "warren.dev/host"}]}});
    let extension = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/default";
    let group = "extensions.agents.x-k8s.io/v1beta1";
    objects.push((
        "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes",
        json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "sandbox"}, "spec": {"podTemplate": pod}}),
    ));
    let mut objects: Vec<(String, Value)> =
        objects.into_iter().map(|(path, object)| (path.to_owned(), object)).collect();
    for (plural, kind, spec) in [
        ("sandboxtemplates", "SandboxTemplate", json!({"podTemplate": pod})),
        (
            "sandboxwarmpools",
            "SandboxWarmPool",
            json!({"replicas": 1, "sandboxTemplateRef": {"name": "template"}}),
        ),
        ("sandboxclaims", "SandboxClaim", json!({"warmPoolRef": {"name": "extension"}})),
    ] {
        let object =
            json!({"apiVersion": group, "kind": kind, "metadata": {"name": "extension"}, "spec": spec});
        objects.push((format!("{extension}/{plural}"), object));
    }
    objects
}
