//! Maintains the Node object and its Lease.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, GetParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::config::NodeConfig;
use crate::disk;
use crate::worker::root_cause;

/// The number of missed renewals that the lease tolerates, as in kubelet (10 s against 40 s).
const LEASE_RENEWALS: u32 = 4;
/// Kubelet's limit on pods, also ours until a node has accounting of its own.
const MAX_PODS: u32 = 250;
const LEASE_NAMESPACE: &str = "kube-node-lease";
const FIELD_MANAGER: &str = "warren-node";
/// The annotation of a Node that its own node has closed for new pods, and opens again.
const DRAINED: &str = "warren.dev/drained";
/// Kubernetes' feature name for a node that speaks WebSocket itself: API servers from 1.36 on then
/// pass exec, attach and port-forward on as their clients sent them. To other nodes they speak
/// SPDY, which is obsolete.
const WEB_SOCKETS: &str = "ExtendWebSocketsToKubelet";

/// The machine's properties, read once at start.
#[derive(Debug, Clone)]
pub(crate) struct MachineFacts {
    cpus: usize,
    memory_bytes: u64,
    disk_bytes: u64,
    kernel: String,
    architecture: &'static str,
    os_image: String,
    machine_id: String,
    boot_id: String,
}

impl MachineFacts {
    /// Reads them from `/proc`, `/etc` and the kernel, and from the disk that pods are on.
    /// Unreadable ones are left empty: they are informational.
    pub(crate) fn read(pods: &Path) -> MachineFacts {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let memory_kib = read("/proc/meminfo").lines().find_map(|line| {
            line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
        });
        let os_image = read("/etc/os-release")
            .lines()
            .find_map(|line| Some(line.strip_prefix("PRETTY_NAME=")?.trim_matches('"').to_owned()))
            .unwrap_or_default();
        MachineFacts {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory_kib.unwrap_or(0) * 1024,
            disk_bytes: disk::space(pods).map_or(0, |space| space.total.bytes),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            architecture: match std::env::consts::ARCH {
                "x86_64" => "amd64",
                "aarch64" => "arm64",
                other => other,
            },
            os_image,
            machine_id: read("/etc/machine-id").trim().to_owned(),
            boot_id: read("/proc/sys/kernel/random/boot_id").trim().to_owned(),
        }
    }
}

/// The Node object of this node, and its lease.
pub(crate) struct Registration {
    client: Client,
    config: NodeConfig,
    facts: MachineFacts,
    /// True once the API server knows this node.
    announced: watch::Sender<bool>,
    /// Set when the node begins to shut down: from then on it is not announced as ready.
    closing: AtomicBool,
}

impl Registration {
    pub(crate) fn new(client: Client, config: NodeConfig, facts: MachineFacts) -> Registration {
        Registration {
            client,
            config,
            facts,
            announced: watch::Sender::new(false),
            closing: AtomicBool::new(false),
        }
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// Creates or refreshes the Node, then renews its lease for ever if the configuration asks for
    /// it. In the local home no controller watches the lease, and an idle daemon does nothing.
    pub(crate) async fn keep(self: Arc<Self>) {
        let name = &self.config.name;
        let mut wait = Duration::from_millis(100);
        while let Err(error) = self.announce().await {
            warn!(node = %name, error = %root_cause(&error), "node not registered yet");
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_secs(30));
        }
        debug!(node = %name, "node registered");
        self.announced.send_replace(true);
        let Some(interval) = self.config.heartbeat else { return };
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = renew(&self.client, &self.config, interval).await {
                warn!(node = %name, error = %root_cause(&error), "lease not renewed");
                continue;
            }
            // A control plane that missed our renewals marks the Node as not ready, and a user may
            // have deleted it.
            if let Err(error) = self.contradict().await {
                warn!(node = %name, error = %root_cause(&error), "node's status not looked at");
            }
        }
    }

    /// Returns when the Node exists.
    pub(crate) async fn wait_until_announced(&self) {
        let mut announced = self.announced.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = announced.wait_for(|announced| *announced).await;
    }

    /// Announces the node again if its Node is not marked as ready.
    async fn contradict(&self) -> kube::Result<()> {
        if self.closing.load(Ordering::Relaxed) {
            return Ok(());
        }
        // A slightly stale copy costs the API server little, and the next check comes soon.
        let node = match self.nodes().get_with(&self.config.name, &GetParams::any()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            found => Some(found?),
        };
        if node.is_none_or(|node| !is_ready(&node)) {
            info!(node = %self.config.name, "node announced again");
            self.announce().await?;
        }
        Ok(())
    }

    async fn announce(&self) -> kube::Result<()> {
        let Registration { config, facts, .. } = self;
        let nodes = self.nodes();
        let labels = json!({
            "kubernetes.io/hostname": config.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": facts.architecture,
        });
        match nodes.get_opt(&config.name).await? {
            Some(node) => {
                let there = serde_json::to_value(&node.meta().labels).unwrap_or(Value::Null);
                let complete = labels
                    .as_object()
                    .is_some_and(|wanted| wanted.iter().all(|(key, value)| there.get(key) == Some(value)));
                // Closed by us at the end of an earlier run. A Node that a user has cordoned stays
                // so.
                let drained = node.annotations().contains_key(DRAINED);
                let patch = match (complete, drained) {
                    (true, false) => None,
                    (_, false) => Some(json!({"metadata": {"labels": labels}})),
                    (_, true) => Some(json!({
                        "metadata": {"labels": labels, "annotations": {DRAINED: null}},
                        "spec": {"unschedulable": null},
                    })),
                };
                if let Some(patch) = patch {
                    nodes.patch(&config.name, &PatchParams::default(), &Patch::Merge(patch)).await?;
                }
            }
            None => {
                let node = json!({
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": config.name, "labels": labels},
                    "spec": {},
                });
                let node: Node = serde_json::from_value(node).map_err(kube::Error::SerdeError)?;
                let parameters =
                    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
                nodes.create(&parameters, &node).await?;
            }
        }
        let status = json!({"status": node_status(config, facts, Timestamp::now())});
        nodes.patch_status(&config.name, &PatchParams::default(), &Patch::Merge(status)).await?;
        Ok(())
    }

    /// Keeps new pods away until the node is announced again.
    pub(crate) async fn close(&self) -> kube::Result<()> {
        self.closing.store(true, Ordering::Relaxed);
        let nodes = self.nodes();
        let closed = nodes.get(&self.config.name).await?.spec.and_then(|spec| spec.unschedulable);
        if closed != Some(true) {
            let patch =
                json!({"metadata": {"annotations": {DRAINED: "true"}}, "spec": {"unschedulable": true}});
            nodes.patch(&self.config.name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        Ok(())
    }

    /// Reports that the node has shut down, so that the control plane need not wait for its lease
    /// to expire.
    pub(crate) async fn leave(&self) -> kube::Result<()> {
        let conditions = conditions(Timestamp::now(), false);
        let status = json!({"status": {"conditions": conditions}});
        self.nodes()
            .patch_status(&self.config.name, &PatchParams::default(), &Patch::Merge(status))
            .await
            .map(drop)
    }
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Returns the node's conditions as kubelet writes them.
fn conditions(now: Timestamp, ready: bool) -> Value {
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        })
    };
    json!([
        condition(
            "MemoryPressure",
            "False",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available"
        ),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        match ready {
            true => condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
            false => condition("Ready", "False", "KubeletNotReady", "node is shutting down"),
        },
    ])
}

fn node_status(config: &NodeConfig, facts: &MachineFacts, now: Timestamp) -> Value {
    let resources = json!({
        "cpu": facts.cpus.to_string(),
        "memory": format!("{}Ki", facts.memory_bytes / 1024),
        "ephemeral-storage": format!("{}Ki", facts.disk_bytes / 1024),
        "pods": MAX_PODS.to_string(),
    });
    let mut status = json!({
        "capacity": resources,
        "allocatable": resources,
        "addresses": [
            {"type": "InternalIP", "address": config.host_ip.to_string()},
            {"type": "Hostname", "address": config.name},
        ],
        "conditions": conditions(now, true),
        "nodeInfo": {
            "architecture": facts.architecture,
            "bootID": facts.boot_id,
            "containerRuntimeVersion": format!("warren://{}", env!("CARGO_PKG_VERSION")),
            "kernelVersion": facts.kernel,
            "kubeProxyVersion": "",
            "kubeletVersion": format!("v1.36.0+warren{}", env!("CARGO_PKG_VERSION")),
            "machineID": facts.machine_id,
            "operatingSystem": "linux",
            "osImage": facts.os_image,
            "systemUUID": facts.machine_id,
        },
    });
    if let Some(port) = config.kubelet_port {
        status["daemonEndpoints"] = json!({"kubeletEndpoint": {"Port": port}});
        status["declaredFeatures"] = json!([WEB_SOCKETS]);
    }
    status
}

async fn renew(client: &Client, config: &NodeConfig, interval: Duration) -> kube::Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASE_NAMESPACE);
    // Jiff prints only significant digits; MicroTime wants six.
    let renewed = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    let seconds = (interval * LEASE_RENEWALS).as_secs().max(1);
    let spec = json!({"holderIdentity": config.name, "leaseDurationSeconds": seconds, "renewTime": renewed});
    let patched =
        leases.patch(&config.name, &PatchParams::default(), &Patch::Merge(json!({"spec": spec}))).await;
    match patched {
        Err(kube::Error::Api(status)) if status.code == 404 => {
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": config.name, "namespace": LEASE_NAMESPACE},
                "spec": spec,
            });
            let lease = serde_json::from_value(lease).map_err(kube::Error::SerdeError)?;
            leases.create(&PostParams::default(), &lease).await.map(drop)
        }
        other => other.map(drop),
    }
}
