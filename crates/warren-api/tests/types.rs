//! Tests that the Rust types can read every object that a real server stores, and write it back
//! unchanged.
//!
//! The objects are the answers in `tests/corpus/`, so no server is needed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by a panic")]

use std::path::{Path, PathBuf};

use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use warren_api::sandbox::{OperatingMode, ShutdownPolicy};
use warren_api::{Sandbox, SandboxClaim, SandboxSpec, SandboxTemplate, SandboxWarmPool};

fn cases(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            cases(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            into.push(path);
        }
    }
}

fn round_trip<T: Serialize + DeserializeOwned>(object: &Value) -> Result<Value, serde_json::Error> {
    serde_json::to_value(serde_json::from_value::<T>(object.clone())?)
}

#[test]
fn what_a_server_stores_is_read_and_written_back() {
    let mut paths = Vec::new();
    cases(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus"), &mut paths);
    let (mut compared, mut rewritten) = (0, Vec::new());
    for path in paths {
        let case: Value = serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        for answer in case["expect"].as_array().unwrap() {
            // The answer of the scale subresource is a Scale.
            let is_ours = answer.get("generation").is_some();
            if !is_ours {
                continue;
            }
            let mut object = json!({
                "apiVersion": case["create"]["apiVersion"], "kind": case["create"]["kind"],
                "metadata": { "name": "case" }, "spec": answer["spec"],
            });
            if let Some(status) = answer.get("status") {
                object["status"] = status.clone();
            }
            let written = match case["create"]["kind"].as_str().unwrap() {
                "Sandbox" => round_trip::<Sandbox>(&object),
                "SandboxClaim" => round_trip::<SandboxClaim>(&object),
                "SandboxTemplate" => round_trip::<SandboxTemplate>(&object),
                "SandboxWarmPool" => round_trip::<SandboxWarmPool>(&object),
                other => panic!("{other}"),
            };
            let written = written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            if written != object {
                rewritten.push(path.file_stem().unwrap().to_str().unwrap().to_owned());
            }
            compared += 1;
        }
    }
    assert!(compared > 80, "only {compared} answers");
    // These values change their form: a whole number as a quantity becomes text, a time becomes UTC
    // in seconds, and empty values are left out. This is why an object that was read through the
    // types is patched, never replaced.
    rewritten.sort();
    rewritten.dedup();
    let known = [
        "metadata-other",
        "network-policy-selector",
        "quantities",
        "shutdown-time-fraction",
        "shutdown-time-offset",
        "status-zero",
    ];
    assert_eq!(rewritten, known);
}

#[test]
fn defaults_are_filled_in_without_a_server() {
    let sandbox: Sandbox = serde_json::from_value(json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": { "name": "s" },
        "spec": { "podTemplate": { "spec": { "containers": [] } } },
    }))
    .unwrap();
    assert_eq!(sandbox.spec.operating_mode, OperatingMode::Running);
    assert_eq!(sandbox.spec.shutdown_policy, ShutdownPolicy::Retain);
    assert_eq!(sandbox.spec.blueprint.service, None);

    let pool: SandboxWarmPool = serde_json::from_value(json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "metadata": { "name": "p" },
        "spec": { "sandboxTemplateRef": { "name": "t" } },
    }))
    .unwrap();
    assert_eq!(pool.spec.replicas, 1);
}

#[test]
fn empty_values_are_not_sent() {
    let sandbox = Sandbox::new("s", SandboxSpec::default());
    assert_eq!(
        serde_json::to_value(&sandbox).unwrap(),
        json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": { "name": "s" },
            "spec": {
                "podTemplate": { "spec": { "containers": [] } },
                "shutdownPolicy": "Retain",
                "operatingMode": "Running",
            },
        })
    );
}

#[test]
fn group_and_version_are_the_constants() {
    assert_eq!(Sandbox::api_version(&()), format!("{}/{}", warren_api::GROUP, warren_api::VERSION));
    for api_version in
        [SandboxClaim::api_version(&()), SandboxTemplate::api_version(&()), SandboxWarmPool::api_version(&())]
    {
        assert_eq!(api_version, format!("{}/{}", warren_api::EXTENSIONS_GROUP, warren_api::VERSION));
    }
}
