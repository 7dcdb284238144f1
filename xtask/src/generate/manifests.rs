//! The static install manifests: the same three files as in agent-sandbox's releases.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::permissions::{self, NAMESPACE, SERVICE_ACCOUNT};
use super::{Folder, yaml};

/// The image of the Deployment. Users set another registry with `kubectl set image` or a
/// kustomization.
const IMAGE: &str = concat!("warren:", env!("CARGO_PKG_VERSION"));

/// Returns `sandbox.yaml` (core), `extensions.yaml` (applied after it) and
/// `sandbox-with-extensions.yaml` (both in one).
pub fn install() -> Result<Folder> {
    let (mut core_crds, mut extension_crds) = (Vec::new(), Vec::new());
    // Their controller does not serve tasks.
    let is_served = |group: &str| group != warren_api::OWN_GROUP;
    for crd in warren_api::crds().into_iter().filter(|crd| is_served(&crd.spec.group)) {
        let list = if crd.spec.group == "agents.x-k8s.io" { &mut core_crds } else { &mut extension_crds };
        list.push(serde_json::to_value(&crd).context("serialise a definition")?);
    }
    let [(_, account), (_, controller), (_, extensions), _] = permissions::manifests();
    let core = |deployment: Value| {
        [account.clone(), core_crds.clone(), controller.clone(), vec![service(), deployment]].concat()
    };
    let extra = [extension_crds, extensions].concat();
    let files = [
        ("sandbox.yaml", core(deployment(false))),
        ("extensions.yaml", [extra.clone(), vec![deployment(true)]].concat()),
        ("sandbox-with-extensions.yaml", [core(deployment(true)), extra].concat()),
    ];
    let files = files
        .into_iter()
        .map(|(name, objects)| {
            Ok((name.to_owned(), yaml(&objects).with_context(|| format!("write {name} as YAML"))?))
        })
        .collect::<Result<BTreeMap<_, _>>>()?;
    Ok(Folder { path: "deploy/manifests", files })
}

fn labels() -> Value {
    json!({"app": SERVICE_ACCOUNT})
}

fn service() -> Value {
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": SERVICE_ACCOUNT, "namespace": NAMESPACE, "labels": labels()},
        "spec": {"selector": labels(),
            "ports": [{"name": "metrics", "port": 8080, "targetPort": "metrics"}]}})
}

fn deployment(extensions: bool) -> Value {
    let mut arguments = vec!["--leader-elect=true"];
    if extensions {
        arguments.push("--extensions");
    }
    let probe = |path: &str, delay: u32, period: u32| {
        json!({"httpGet": {"path": path, "port": "probes"},
            "initialDelaySeconds": delay, "periodSeconds": period})
    };
    json!({"apiVersion": "apps/v1", "kind": "Deployment",
    "metadata": {"name": SERVICE_ACCOUNT, "namespace": NAMESPACE, "labels": labels()},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": labels()},
        "template": {
            "metadata": {"labels": labels()},
            "spec": {
                "serviceAccountName": SERVICE_ACCOUNT,
                "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
                    "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [{
                    "name": SERVICE_ACCOUNT,
                    "image": IMAGE,
                    "command": ["/warren", "controller"],
                    "args": arguments,
                    "ports": [{"name": "metrics", "containerPort": 8080},
                        {"name": "probes", "containerPort": 8081}],
                    "livenessProbe": probe("/healthz", 15, 20),
                    "readinessProbe": probe("/readyz", 5, 10),
                    "securityContext": {"allowPrivilegeEscalation": false,
                        "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}},
                    "volumeMounts": [{"name": "sandbox-config",
                        "mountPath": "/etc/sandbox-config", "readOnly": true}],
                }],
                "volumes": [{"name": "sandbox-config",
                    "configMap": {"name": "agent-sandbox-config", "optional": true}}],
            },
        },
    }})
}
