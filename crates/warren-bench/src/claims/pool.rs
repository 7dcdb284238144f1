//! The pool of the measured claims.

use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use http::Method;
use kube::Api;
use kube::runtime::wait::await_condition;
use serde_json::json;
use warren_api::SandboxWarmPool;
use warren_testkit::nodes::SCHEDULER;

use super::observer::{count_of, version_of};
use super::place::{HomeKind, Place};
use super::report::Fill;
use crate::connection::{Connection, Endpoint};

/// The namespace of all objects.
pub const NAMESPACE: &str = "default";
/// The name of the pool and of its template.
pub const POOL_NAME: &str = "bench";
/// The path of claims.
pub const CLAIMS: &str = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/default/sandboxclaims";
/// The path of sandboxes.
pub const SANDBOXES: &str = "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes";
/// The path of pods.
pub const PODS: &str = "/api/v1/namespaces/default/pods";
/// The path of events about them.
pub const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

const TEMPLATES: &str = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/default/sandboxtemplates";
const POOLS: &str = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/default/sandboxwarmpools";

/// The size of a cold pool for the comparison with the server's own speed.
const COLD_FILL: usize = 1000;
/// The duration and the number of clients of plain creates.
const RAW: Duration = Duration::from_secs(4);
const RAW_CLIENTS: usize = 64;
/// The time limit of a fill. A pool of a thousand real containers on two busy cores takes a minute
/// or two.
const PATIENCE: Duration = Duration::from_secs(400);
/// The interval of progress checks.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Fills the pool and measures the speed.
pub async fn measure_fill(place: &Place, size: usize, raw_creates_per_second: f64) -> anyhow::Result<Fill> {
    let cold = COLD_FILL.min(size);
    let mut connection = place.endpoint.connect().await?;
    let version = version_of(&mut connection, CLAIMS).await?;
    let before = place.usage()?;
    let memory = available_memory()?;
    eprintln!("{}: filling a pool of {cold}", place.kind);
    let began = Instant::now();
    create(&mut connection, place.kind, cold).await?;
    wait_until_full(place, cold).await?;
    let took = began.elapsed().as_secs_f64();
    let writes = version_of(&mut connection, CLAIMS).await?.saturating_sub(version);
    let used = place.usage()?;
    let memory = memory - available_memory()?;
    resize(&mut connection, size).await?;
    wait_until_full(place, size).await?;
    Ok(Fill {
        home: place.kind,
        members: cold,
        seconds: took,
        writes,
        raw_creates_per_second,
        mb_per_member: memory / cold as f64,
        controller: used.controller.since(before.controller),
        server: used.server.map(|after| after.since(before.server.unwrap_or_default())),
    })
}

/// Fills the pool.
pub async fn fill(place: &Place, size: usize) -> anyhow::Result<()> {
    eprintln!("{}: filling a pool of {size}", place.kind);
    create(&mut place.endpoint.connect().await?, place.kind, size).await?;
    wait_until_full(place, size).await
}

/// Waits until the pool is full again. In the local home, containers of earlier claims are removed
/// first. Simulated ones may stay, because removing them would only load the real server's garbage
/// collector.
pub async fn settle(place: &Place, size: usize) -> anyhow::Result<()> {
    if place.kind == HomeKind::Local {
        place.endpoint.connect().await?.send(Method::DELETE, CLAIMS, Bytes::new()).await?;
        wait_until_full(place, size).await?;
        let mut connection = place.endpoint.connect().await?;
        let deadline = Instant::now() + PATIENCE;
        while count_of(&mut connection, PODS).await? > size {
            anyhow::ensure!(Instant::now() < deadline, "pods of earlier claims do not go away");
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
    wait_until_full(place, size).await?;
    quiet(place).await
}

/// Waits until there have been no writes for a moment.
pub async fn quiet(place: &Place) -> anyhow::Result<()> {
    let mut connection = place.endpoint.connect().await?;
    let mut last = 0;
    let mut since = Instant::now();
    let deadline = Instant::now() + PATIENCE;
    // A real cluster renews leases all the time, a few per second.
    while since.elapsed() < Duration::from_secs(1) {
        let version = version_of(&mut connection, CLAIMS).await?;
        if version > last + 10 {
            (last, since) = (version, Instant::now());
        }
        anyhow::ensure!(Instant::now() < deadline, "the home does not come to rest");
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    Ok(())
}

async fn create(connection: &mut Connection, home: HomeKind, size: usize) -> anyhow::Result<()> {
    let group = "extensions.agents.x-k8s.io/v1beta1";
    let mut template = json!({
        "apiVersion": group, "kind": "SandboxTemplate", "metadata": {"name": POOL_NAME},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "warren.dev/host"}]}}},
    });
    if home == HomeKind::Kube {
        // The simulated nodes place the pods. A real scheduler would compete with them. Each pod
        // that it loses would cost four writes that a cluster does not have: its error, its event,
        // and two reactions.
        template["spec"]["podTemplate"]["spec"]["schedulerName"] = json!(SCHEDULER);
    }
    connection.create(TEMPLATES, Bytes::from(template.to_string())).await?;
    let pool = json!({
        "apiVersion": group, "kind": "SandboxWarmPool", "metadata": {"name": POOL_NAME},
        "spec": {"replicas": size, "sandboxTemplateRef": {"name": POOL_NAME}},
    });
    connection.create(POOLS, Bytes::from(pool.to_string())).await?;
    Ok(())
}

async fn resize(connection: &mut Connection, size: usize) -> anyhow::Result<()> {
    let body = json!({"spec": {"replicas": size}}).to_string();
    connection.send(Method::PATCH, &format!("{POOLS}/{POOL_NAME}"), Bytes::from(body)).await?;
    Ok(())
}

async fn wait_until_full(place: &Place, size: usize) -> anyhow::Result<()> {
    let pools: Api<SandboxWarmPool> = Api::namespaced(place.client.clone(), NAMESPACE);
    let is_full = move |pool: Option<&SandboxWarmPool>| {
        let ready = pool.and_then(|pool| pool.status.as_ref()).map_or(0, |status| status.ready_replicas);
        usize::try_from(ready).is_ok_and(|ready| ready >= size)
    };
    let full = await_condition(pools, POOL_NAME, is_full);
    tokio::time::timeout(PATIENCE, full)
        .await
        .with_context(|| format!("the pool never had {size} members"))??;
    Ok(())
}

/// Measures creates of sandboxes per second, on a server without controllers.
pub async fn raw_creates(endpoint: &Endpoint) -> anyhow::Result<f64> {
    let mut workers = tokio::task::JoinSet::new();
    let began = Instant::now();
    for client in 0..RAW_CLIENTS {
        let mut connection = endpoint.connect().await?;
        workers.spawn(async move {
            let mut count = 0;
            while began.elapsed() < RAW {
                let sandbox = json!({
                    "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
                    "metadata": {"name": format!("raw-{client}-{count}")},
                    "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "warren.dev/host"}]}}},
                });
                connection.create(SANDBOXES, Bytes::from(sandbox.to_string())).await?;
                count += 1;
            }
            anyhow::Ok(count)
        });
    }
    let mut count = 0;
    while let Some(worker) = workers.join_next().await {
        count += worker??;
    }
    Ok(f64::from(count) / began.elapsed().as_secs_f64())
}

/// Returns the memory of the machine that is free or reclaimable, in MB.
fn available_memory() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.context("no MemAvailable in /proc/meminfo")?.trim().trim_end_matches(" kB");
    Ok(kilobytes.parse::<f64>()? / 1024.0)
}
