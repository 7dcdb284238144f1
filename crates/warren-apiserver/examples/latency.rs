//! Measures the latency of a server in this process through a `kube::Client`: create, get, merge
//! patch, and the time from a create to its watch event.
//!
//! Usage: `latency [DIRECTORY]`. Without a directory the store is in memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use http::Request;
use kube::Client;
use serde_json::{Value, json};
use warren_apiserver::{ApiServer, Config, Identity, NoNodes, Storage};

const ROUNDS: usize = 500;
const CLIENTS: usize = 64;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let storage = match std::env::args_os().nth(1) {
        Some(directory) => Storage::File(std::path::PathBuf::from(directory).join("latency.db")),
        None => Storage::Memory,
    };
    let config = Config {
        storage,
        crds: Vec::new(),
        nodes: Arc::new(NoNodes),
        accounts: None,
        now: jiff::Timestamp::now,
        limits: Default::default(),
        audit: None,
    };
    let began = Instant::now();
    let server = ApiServer::open(config).await?;
    println!("open: {:?}", began.elapsed());
    let client = Client::new(server.as_user(Identity::admin()), "default");
    let mut lines =
        client.request_events::<Value>(Request::get("/api/v1/pods?watch=1").body(Vec::new())?).await?.boxed();

    let (mut creates, mut events, mut gets, mut patches) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let began = Instant::now();
        create(&client, &format!("one-{round}")).await?;
        creates.push(began.elapsed());
        lines.try_next().await?;
        events.push(began.elapsed());
        let path = format!("/api/v1/namespaces/default/pods/one-{round}");
        let began = Instant::now();
        let _: Value = client.request(Request::get(&path).body(Vec::new())?).await?;
        gets.push(began.elapsed());
        let began = Instant::now();
        let patch = Request::patch(&path).header("content-type", "application/merge-patch+json");
        let _: Value = client.request(patch.body(br#"{"metadata":{"labels":{"a":"b"}}}"#.to_vec())?).await?;
        patches.push(began.elapsed());
        lines.try_next().await?;
    }
    for (name, times) in [("create", creates), ("create to event", events), ("get", gets), ("patch", patches)]
    {
        print(name, times);
    }
    let began = Instant::now();
    let workers = (0..CLIENTS).map(|worker| {
        let client = client.clone();
        tokio::spawn(async move {
            let mut times = Vec::new();
            for round in 0..ROUNDS / 5 {
                let began = Instant::now();
                create(&client, &format!("many-{worker}-{round}")).await?;
                times.push(began.elapsed());
            }
            Ok::<_, kube::Error>(times)
        })
    });
    let mut times = Vec::new();
    for worker in workers.collect::<Vec<_>>() {
        times.extend(worker.await??);
    }
    let rate = times.len() as f64 / began.elapsed().as_secs_f64();
    print(&format!("create, {CLIENTS} clients, {rate:.0}/s"), times);
    drop(lines);
    server.shutdown().await;
    Ok(())
}

async fn create(client: &Client, name: &str) -> Result<(), kube::Error> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "warren.dev/host", "command": ["sleep", "infinity"]}]},
    });
    let request = Request::post("/api/v1/namespaces/default/pods").header("content-type", "application/json");
    let request = request.body(pod.to_string().into_bytes()).map_err(kube::Error::HttpError)?;
    client.request::<Value>(request).await.map(drop)
}

fn print(name: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!("{name}: p50 {:?}, p99 {:?}", at(0.5), at(0.99));
}
