//! Tests the three modes of a sandbox's service.

use std::collections::BTreeMap;

use anyhow::Result;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use warren_api::{NameHash, Sandbox, labels};

use super::objects::{controller, observed};
use crate::controllers::place::{Place, message, ready};
use crate::controllers::workload;

fn asks(service: Value) -> Value {
    json!({"spec": {"service": service}})
}

fn with_ports() -> Value {
    let ports = json!([{"containerPort": 8080}, {"containerPort": 53, "protocol": "UDP", "name": "dns"}]);
    let container = json!({"name": "main", "image": "warren.dev/host", "ports": ports});
    json!({"podTemplate": {"spec": {"containers": [container]}}})
}

/// Waits until a sandbox is ready at its present generation with this message.
async fn ready_with(place: &Place, name: &str, words: &str) -> Result<Sandbox> {
    place
        .wait_for(name, words, |sandbox: &Sandbox| {
            ready(sandbox) == "True/DependenciesReady"
                && message(sandbox, "Ready") == words
                && observed(sandbox, "Ready")
        })
        .await
}

fn fqdn(sandbox: &Sandbox) -> Option<String> {
    sandbox.status.as_ref()?.service_fqdn.clone()
}

/// Unset makes none, true makes one, unset again keeps it, false removes it.
pub async fn a_service_is_made_kept_and_removed_as_asked(place: Place) -> Result<()> {
    place.create::<Sandbox>(workload::sandbox("s", with_ports())).await?;
    let plain = ready_with(&place, "s", "Pod is Ready").await?;
    assert_eq!(fqdn(&plain), None);
    assert!(place.get_opt::<Service>("s").await?.is_none());

    place.patch::<Sandbox>("s", asks(json!(true))).await?;
    let served = ready_with(&place, "s", "Pod is Ready; Service Exists").await?;
    assert_eq!(fqdn(&served), Some(format!("s.{}.svc.cluster.local", place.namespace())));
    let made: Service = place.get("s").await?;
    let spec = made.spec.clone().unwrap_or_default();
    let selector = BTreeMap::from([(labels::SANDBOX_NAME_HASH.to_owned(), NameHash::of("s").to_string())]);
    assert_eq!((spec.cluster_ip.as_deref(), spec.selector), (Some("None"), Some(selector.clone())));
    let ports: Vec<String> = spec
        .ports
        .iter()
        .flatten()
        .map(|port| {
            let name = port.name.clone().unwrap_or_default();
            format!("{name} {} {}", port.port, port.protocol.clone().unwrap_or_default())
        })
        .collect();
    assert_eq!(ports, ["dns 53 UDP", "p-8080-tcp 8080 TCP"]);

    // No longer requested, it stays and is maintained.
    place.patch::<Sandbox>("s", asks(Value::Null)).await?;
    ready_with(&place, "s", "Pod is Ready; Service Exists").await?;
    place.patch::<Service>("s", json!({"spec": {"selector": {"astray": "yes"}}})).await?;
    let mended: Service = place
        .wait_for("s", "mended", |service: &Service| {
            let kept = service.spec.as_ref().and_then(|spec| spec.selector.clone()).unwrap_or_default();
            selector.iter().all(|(key, value)| kept.get(key) == Some(value)) && !kept.contains_key("astray")
        })
        .await?;
    assert_eq!(mended.uid(), made.uid());

    // With false it is removed; unset does not bring it back.
    place.patch::<Sandbox>("s", asks(json!(false))).await?;
    place.wait_gone::<Service>("s").await?;
    let bare = ready_with(&place, "s", "Pod is Ready").await?;
    assert_eq!((fqdn(&bare), bare.status.and_then(|status| status.service)), (None, None));
    place.patch::<Sandbox>("s", asks(Value::Null)).await?;
    ready_with(&place, "s", "Pod is Ready").await?;
    assert!(place.get_opt::<Service>("s").await?.is_none());
    Ok(())
}

/// A service of the same name with another owner is never changed; it is an error only for a
/// sandbox that wants one.
pub async fn a_foreign_service_is_left_alone(place: Place) -> Result<()> {
    let stranger = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"clusterIP": "None", "selector": {"app": "other"}, "ports": [{"port": 1}]}});
    let foreign: Service = place.create(stranger).await?;
    place.create::<Sandbox>(workload::sandbox("s", json!({"service": false}))).await?;
    ready_with(&place, "s", "Pod is Ready").await?;
    place.patch::<Sandbox>("s", asks(Value::Null)).await?;
    let unset = ready_with(&place, "s", "Pod is Ready").await?;
    assert_eq!(fqdn(&unset), None);
    place.patch::<Sandbox>("s", asks(json!(true))).await?;
    place.wait_ready::<Sandbox>("s", "False/ReconcilerError").await?;
    let left: Service = place.get("s").await?;
    assert_eq!((left.uid(), controller(&left)), (foreign.uid(), String::new()));
    assert_eq!(left.spec, foreign.spec);

    // Once it is gone, the sandbox makes its own.
    place.delete::<Service>("s").await?;
    ready_with(&place, "s", "Pod is Ready; Service Exists").await?;
    assert!(controller(&place.get::<Service>("s").await?).contains(" Sandbox s "));
    Ok(())
}
