//! Measures the controllers' memory with many sandboxes in their caches. It uses our own API
//! server, which creates them in a minute. The controllers see and cache the same objects on any
//! server.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use bytes::Bytes;
use serde_json::json;
use tokio::task::JoinSet;

use super::observer::Observer;
use super::place::{Controller, start_nodes};
use super::pool::SANDBOXES;
use super::report::Cached;
use crate::connection::Endpoint;
use crate::process::Usage;
use crate::serve::Server;

const CREATORS: usize = 32;
const PATIENCE: Duration = Duration::from_secs(300);

/// Starts controllers and nodes, creates a number of sandboxes, and waits until all are Ready, each
/// with its pod.
pub async fn measure(warren: &Path, count: usize) -> anyhow::Result<Cached> {
    eprintln!("cache: {count} sandboxes");
    let server = Server::start()?;
    let endpoint = Endpoint::from_kubeconfig(&server.kubeconfig()).await?;
    let client = warren_client::connect::from_kubeconfig(&server.kubeconfig()).await?;
    let _nodes = start_nodes(&client).await?;
    let controller = Controller::start(warren, &server.kubeconfig())?;
    let mut observer = Observer::start(&endpoint, SANDBOXES).await?;
    let empty = Usage::of(&[controller.pid()])?;
    let began = Instant::now();
    let next = Arc::new(AtomicUsize::new(0));
    let mut creators = JoinSet::new();
    for _ in 0..CREATORS {
        let mut connection = endpoint.connect().await?;
        let next = Arc::clone(&next);
        creators.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return anyhow::Ok(());
                }
                connection.create(SANDBOXES, sandbox(number)).await?;
            }
        });
    }
    while let Some(creator) = creators.join_next().await {
        creator??;
    }
    let ready = observer.wait_for_ready(count, PATIENCE).await?;
    ensure!(ready == count, "{ready} of {count} sandboxes became Ready");
    let full = Usage::of(&[controller.pid()])?;
    // A new controller reads the same state at once, as after a change of leader.
    drop(controller);
    let restarted = Controller::start(warren, &server.kubeconfig())?;
    let after_restart = settled(restarted.pid()).await?;
    Ok(Cached {
        sandboxes: count,
        empty_mb: empty.rss_mb,
        full_mb: full.rss_mb,
        after_restart_mb: after_restart.rss_mb,
        seconds: began.elapsed().as_secs_f64(),
        server_mb: Usage::of(&[server.pid()])?.rss_mb,
    })
}

/// Waits until a process is idle.
async fn settled(pid: u32) -> anyhow::Result<Usage> {
    let deadline = Instant::now() + PATIENCE;
    let mut last = Usage::of(&[pid])?;
    loop {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now = Usage::of(&[pid])?;
        if now.since(last).cpu_seconds < 0.05 || Instant::now() > deadline {
            return Ok(now);
        }
        last = now;
    }
}

fn sandbox(number: usize) -> Bytes {
    let object = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1",
        "kind": "Sandbox",
        "metadata": {"name": format!("cached-{number}"), "labels": {"team": "research"}},
        "spec": {"podTemplate": {"spec": {"containers": [{
            "name": "agent",
            "image": "registry.example.com/agents/python:3.13",
            "env": [{"name": "LANG", "value": "C.UTF-8"}],
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
        }]}}},
    });
    Bytes::from(object.to_string())
}
