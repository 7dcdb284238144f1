//! The pool that claims are made on.

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

/// Where everything happens.
pub const NAMESPACE: &str = "default";
/// The pool's name, and its template's.
pub const POOL_NAME: &str = "bench";
/// The claims.
pub const CLAIMS: &str = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/default/sandboxclaims";
/// The sandboxes.
pub const SANDBOXES: &str = "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes";
/// The pods.
pub const PODS: &str = "/api/v1/namespaces/default/pods";
/// Events about them.
pub const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

const TEMPLATES: &str = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/default/sandboxtemplates";
const POOLS: &str = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/default/sandboxwarmpools";

/// What a cold pool is filled to for the comparison with the server's own speed.
const COLD_FILL: usize = 1000;
/// How long the server is asked for plain creates, and by how many.
const RAW: Duration = Duration::from_secs(4);
const RAW_CLIENTS: usize = 64;
/// A pool of a thousand real containers on two busy cores is a matter of a minute or two.
const PATIENCE: Duration = Duration::from_secs(400);
/// Between two looks at how far something has come.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Fills the pool, and says how fast that went.
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

/// Waits until the pool is full again. Real containers of earlier claims are let go of first; simulated ones may stay, because only a
/// real server's own garbage collector would be busy with them.
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

/// Waits until nothing has been written for a moment.
pub async fn quiet(place: &Place) -> anyhow::Result<()> {
    let mut connection = place.endpoint.connect().await?;
    let mut last = 0;
    let mut since = Instant::now();
    let deadline = Instant::now() + PATIENCE;
    // Leases are renewed all the time on a real cluster, a few a second.
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
        // The simulated nodes place them. A real scheduler would try the same at the same time, and each pod that it lost would cost
        // four writes more than there are on a cluster: its refusal, its event, and two answers to them.
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

/// Creates of sandboxes per second, on a server where nobody acts on them.
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

/// Memory of the machine that is free or can be had, in MB.
fn available_memory() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.context("no MemAvailable in /proc/meminfo")?.trim().trim_end_matches(" kB");
    Ok(kilobytes.parse::<f64>()? / 1024.0)
}
