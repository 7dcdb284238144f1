//! The Node object and its Lease.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource as _};
use serde_json::{Value, json};
use tracing::{debug, warn};

use crate::config::NodeConfig;

/// The lease is good for four missed renewals, as kubelet's is (10 s against 40 s).
const LEASE_RENEWALS: u32 = 4;
/// Kubelet's limit on pods, also ours until a node has accounting of its own.
const MAX_PODS: u32 = 250;
const LEASE_NAMESPACE: &str = "kube-node-lease";
const FIELD_MANAGER: &str = "warren-node";

/// What the machine is, read once at start.
#[derive(Debug, Clone)]
pub(crate) struct MachineFacts {
    cpus: usize,
    memory_bytes: u64,
    kernel: String,
    architecture: &'static str,
    os_image: String,
    machine_id: String,
    boot_id: String,
}

impl MachineFacts {
    /// From `/proc`, `/etc` and the kernel. What cannot be read is left empty: it is for people to look at.
    pub(crate) fn read() -> MachineFacts {
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

/// Creates or refreshes the Node, then renews its lease for ever if the configuration asks for it. In the local home,
/// where nobody would notice a missed renewal, it does not: a daemon at rest does nothing.
pub(crate) async fn register(client: Client, config: NodeConfig, facts: MachineFacts) {
    let mut wait = Duration::from_millis(100);
    while let Err(error) = announce(&client, &config, &facts).await {
        warn!(node = %config.name, error = %error, "node not registered yet");
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(30));
    }
    debug!(node = %config.name, "node registered");
    let Some(interval) = config.heartbeat else { return };
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = renew(&client, &config, interval).await {
            warn!(node = %config.name, error = %error, "lease not renewed");
        }
    }
}

async fn announce(client: &Client, config: &NodeConfig, facts: &MachineFacts) -> kube::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
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
            if !complete {
                nodes
                    .patch(
                        &config.name,
                        &PatchParams::default(),
                        &Patch::Merge(json!({"metadata": {"labels": labels}})),
                    )
                    .await?;
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

fn node_status(config: &NodeConfig, facts: &MachineFacts, now: Timestamp) -> Value {
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        })
    };
    let resources = json!({
        "cpu": facts.cpus.to_string(),
        "memory": format!("{}Ki", facts.memory_bytes / 1024),
        "pods": MAX_PODS.to_string(),
    });
    json!({
        "capacity": resources,
        "allocatable": resources,
        "addresses": [
            {"type": "InternalIP", "address": config.host_ip.to_string()},
            {"type": "Hostname", "address": config.name},
        ],
        "conditions": [
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        ],
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
    })
}

async fn renew(client: &Client, config: &NodeConfig, interval: Duration) -> kube::Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASE_NAMESPACE);
    // Jiff prints as many digits as there are; MicroTime wants six.
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
