//! The Node objects and their heartbeats.

use std::sync::{Arc, PoisonError};

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::wait::await_condition;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::{HEARTBEAT, OPENING, Shared, StartError};

/// The processors of a node: more than any number of simulated pods requests, but less than a
/// request that is meant to fit nowhere.
pub(super) const CPUS: u64 = 100_000;

/// The label of simulated nodes.
const LABEL: &str = "nodes.warren.dev/simulated";

pub(super) async fn register(nodes: &Api<Node>, name: &str, closed: bool) -> Result<(), kube::Error> {
    let mut node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {
        LABEL: "true", "kubernetes.io/hostname": name}}});
    if closed {
        node["spec"] = json!({"taints": [{"key": LABEL, "value": "true", "effect": "NoSchedule"}]});
    }
    nodes.patch(name, &PatchParams::apply("simulated-nodes").force(), &Patch::Apply(&node)).await?;
    nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(&status(Timestamp::now()))).await?;
    Ok(())
}

/// Waits until a node has lost the not-ready taints. A control plane adds them to every new node,
/// and removes them when it has seen the status.
pub(super) async fn wait_until_open(nodes: &Api<Node>, name: &str) -> Result<(), StartError> {
    let open = |node: Option<&Node>| {
        node.is_some_and(|node| {
            let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
            !taints.any(|taint| taint.key.starts_with("node.kubernetes.io/"))
        })
    };
    match tokio::time::timeout(OPENING, await_condition(nodes.clone(), name, open)).await {
        Ok(waited) => waited.map(drop).map_err(|source| StartError::Wait { name: name.to_owned(), source }),
        Err(_) => Err(StartError::Closed(name.to_owned())),
    }
}

pub(super) async fn list(nodes: &Api<Node>) -> Result<Vec<Node>, kube::Error> {
    Ok(nodes.list(&ListParams::default().labels(LABEL)).await?.items)
}

/// Sends heartbeats as long as it is polled.
pub(super) async fn beat(nodes: Api<Node>, names: Vec<String>) {
    let mut beats = tokio::time::interval(HEARTBEAT);
    // Skip the first tick, which comes at once after the registration.
    beats.tick().await;
    loop {
        beats.tick().await;
        for name in &names {
            // If the server is unavailable, the next heartbeat will do.
            let _ = nodes
                .patch_status(name, &PatchParams::default(), &Patch::Merge(&status(Timestamp::now())))
                .await;
        }
    }
}

/// Keeps the list of nodes up to date: a test may label, drain or delete one.
pub(super) async fn watch(nodes: Api<Node>, shared: Arc<Shared>) {
    let config = watcher::Config::default().labels(LABEL);
    let events = watcher(nodes, config).default_backoff();
    let mut events = std::pin::pin!(events);
    let mut listed = Vec::new();
    while let Some(event) = events.next().await {
        let mut machines = shared.machines.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(node)) => listed.push(node),
            Ok(watcher::Event::InitDone) => *machines = std::mem::take(&mut listed),
            Ok(watcher::Event::Apply(node)) => {
                machines.retain(|machine| machine.name_any() != node.name_any());
                machines.push(node);
                machines.sort_by_key(|machine| machine.name_any());
            }
            Ok(watcher::Event::Delete(node)) => {
                machines.retain(|machine| machine.name_any() != node.name_any());
            }
            // The watch restarts by itself.
            Err(_) => {}
        }
    }
}

fn status(now: Timestamp) -> Value {
    let room =
        json!({"cpu": CPUS.to_string(), "memory": "100Ti", "pods": "1000000", "ephemeral-storage": "100Ti"});
    json!({"status": {
        "capacity": room, "allocatable": room,
        "conditions": [{"type": "Ready", "status": "True", "reason": "Simulated", "message": "there is no machine",
            "lastHeartbeatTime": now}],
        "nodeInfo": {"architecture": "amd64", "bootID": "", "containerRuntimeVersion": "simulated://0",
            "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "simulated", "machineID": "",
            "operatingSystem": "linux", "osImage": "", "systemUUID": ""},
    }})
}
