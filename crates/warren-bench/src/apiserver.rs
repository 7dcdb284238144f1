//! Compares our API server with kube-apiserver and etcd. Both sync each write to disk and get the
//! same load in one run.
//!
//! Each measurement runs on one and then on the other, so that other activity of the machine
//! affects both. Start at [`measure`]. [`load`] contains the loads, [`report`] the table.

mod fan_out;
mod load;
mod report;

use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use serde_json::json;
use warren_testkit::kube::ControlPlane;

use crate::connection::Endpoint;
use crate::process::Usage;
use crate::serve::Server;
use load::Load;
use report::{Measurement, Memory, Report};

/// The number of stored sandboxes while reads are measured.
const STORED: usize = 10_000;
/// The number of clients that fill a server.
const FILLERS: usize = 64;

/// What to measure, and for how long.
#[derive(Args)]
pub struct Options {
    /// How long each load lasts.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// How many sandboxes are stored while reads and memory are measured.
    #[arg(long, default_value_t = STORED)]
    stored: usize,
    /// Numbers of clients that work at the same time.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 128])]
    clients: Vec<usize>,
    /// Only these loads.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Load>,
    /// Only our server, for instance under a profiler.
    #[arg(long)]
    ours_alone: bool,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// A server under measurement.
pub struct Contender {
    /// Its name in the table.
    name: &'static str,
    endpoint: Endpoint,
    /// Its processes.
    pids: Vec<u32>,
}

/// Runs all measurements and prints the results.
pub async fn measure(options: &Options) -> anyhow::Result<()> {
    let control_plane = match options.ours_alone {
        true => None,
        false => Some(ControlPlane::launch(&["--fsync"]).context("start a control plane")?),
    };
    let server = Server::start()?;
    let mut contenders = vec![Contender {
        name: "warren",
        endpoint: Endpoint::from_kubeconfig(&server.kubeconfig()).await?,
        pids: vec![server.pid()],
    }];
    if let Some(control_plane) = &control_plane {
        contenders.push(real_server(control_plane).await?);
    }
    let mut report = Report::default();
    for contender in &contenders {
        eprintln!("{}: storing {} sandboxes", contender.name, options.stored);
        let empty = Usage::of(&contender.pids)?;
        load::fill(&contender.endpoint, "stored", options.stored, FILLERS).await?;
        let filled = Usage::of(&contender.pids)?;
        report.memory.push(Memory {
            server: contender.name,
            empty_mb: empty.rss_mb,
            sandboxes: options.stored,
            filled_mb: filled.rss_mb,
        });
    }
    let loads: &[Load] = if options.only.is_empty() { &Load::ALL } else { &options.only };
    for load in loads {
        for clients in &options.clients {
            for contender in &contenders {
                eprintln!("{}: {load}, {clients} clients", contender.name);
                let before = Usage::of(&contender.pids)?;
                let duration = Duration::from_secs_f64(options.seconds);
                let outcome = load.run(&contender.endpoint, *clients, options.stored, duration).await?;
                let used = Usage::of(&contender.pids)?.since(before);
                report.measurements.push(Measurement::new(contender.name, *load, *clients, outcome, used));
            }
        }
    }
    report.print(options.json)
}

/// Returns the real server: the processes of kube-apiserver and etcd, without scheduler and
/// controller manager.
async fn real_server(control_plane: &ControlPlane) -> anyhow::Result<Contender> {
    let processes = &control_plane.record().components;
    let serving =
        processes.iter().filter(|process| ["etcd", "kube-apiserver"].contains(&process.name.as_str()));
    let contender = Contender {
        name: "kube-apiserver + etcd",
        endpoint: Endpoint::from_kubeconfig(control_plane.kubeconfig()).await?,
        pids: serving.map(|process| process.pid.cast_unsigned()).collect(),
    };
    crate::definitions::install(control_plane.kubeconfig()).await?;
    Ok(contender)
}

/// Returns a sandbox as users write them. It takes 1.2 kB in the store.
fn sandbox(name: &str) -> Bytes {
    let object = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1",
        "kind": "Sandbox",
        "metadata": {
            "name": name,
            "labels": {"app.kubernetes.io/name": "agent", "team": "research"},
            "annotations": {"example.com/session": "2f1c7a34-55a0-4f0e-9f6c-0d8f6f1f0a11"},
        },
        "spec": {"podTemplate": {"metadata": {"labels": {"team": "research"}}, "spec": {
            "containers": [{
                "name": "agent",
                "image": "registry.example.com/agents/python:3.13",
                "command": ["sleep", "infinity"],
                "env": [{"name": "LANG", "value": "C.UTF-8"}, {"name": "HOME", "value": "/workspace"}],
                "ports": [{"name": "http", "containerPort": 8080}],
                "resources": {
                    "requests": {"cpu": "250m", "memory": "256Mi"},
                    "limits": {"cpu": "1", "memory": "1Gi"},
                },
                "volumeMounts": [{"name": "workspace", "mountPath": "/workspace"}],
            }],
            "volumes": [{"name": "workspace", "emptyDir": {}}],
        }}},
    });
    Bytes::from(object.to_string())
}

/// Returns the path of a namespace's sandboxes.
fn collection(namespace: &str) -> String {
    format!("/apis/agents.x-k8s.io/v1beta1/namespaces/{namespace}/sandboxes")
}
