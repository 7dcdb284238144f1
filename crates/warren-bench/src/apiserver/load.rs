//! The loads: requests that each client repeats on its own connection.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::json;
use tokio::task::JoinSet;

use super::{collection, fan_out, sandbox};
use crate::connection::{Connection, Endpoint};

/// The page size of lists: kubectl's.
const PAGE: usize = 500;

/// One kind of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// Creates of sandboxes, each acknowledged when it is on the disk.
    Create,
    /// Reads of one sandbox.
    Get,
    /// Lists of one page of sandboxes.
    List,
    /// One client creates, the others watch.
    Watch,
}

/// The result of a load.
pub struct Outcome {
    /// The latency of each request, or of each event until it reaches a watcher.
    pub times: Vec<Duration>,
    /// The time from the first request to the last answer.
    pub took: Duration,
}

impl fmt::Display for Load {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Load::Create => "create",
            Load::Get => "get",
            Load::List => "list",
            Load::Watch => "watch",
        })
    }
}

impl Load {
    /// All loads. Creates come last, because they would add to the objects that are read.
    pub const ALL: [Load; 4] = [Load::Get, Load::List, Load::Watch, Load::Create];

    /// Puts the load on a server for a given time.
    pub async fn run(
        self,
        endpoint: &Endpoint,
        clients: usize,
        stored: usize,
        duration: Duration,
    ) -> anyhow::Result<Outcome> {
        let place = collection("stored");
        match self {
            Load::Create => {
                let namespace = namespace(endpoint, &format!("create-{clients}")).await?;
                let path: Arc<str> = collection(&namespace).into();
                repeat(endpoint, clients, duration, move |client, round| {
                    let name = format!("s-{client}-{round}");
                    Request::Create(Arc::clone(&path), sandbox(&name))
                })
                .await
            }
            Load::Get => {
                repeat(endpoint, clients, duration, move |_, _| {
                    Request::Read(format!("{place}/s-{}", fastrand::usize(..stored)))
                })
                .await
            }
            Load::List => {
                repeat(endpoint, clients, duration, move |_, _| {
                    Request::Read(format!("{place}?limit={PAGE}"))
                })
                .await
            }
            Load::Watch => {
                let namespace = namespace(endpoint, &format!("watch-{clients}")).await?;
                fan_out::run(endpoint, &namespace, clients, duration).await
            }
        }
    }
}

enum Request {
    Create(Arc<str>, Bytes),
    Read(String),
}

impl Request {
    async fn send(self, connection: &mut Connection) -> anyhow::Result<()> {
        match self {
            Request::Create(path, body) => connection.create(&path, body).await?,
            Request::Read(path) => connection.get(&path).await?,
        };
        Ok(())
    }
}

/// Repeats a request on each client until the time is over. A client waits for each answer before
/// its next request.
async fn repeat(
    endpoint: &Endpoint,
    clients: usize,
    duration: Duration,
    request: impl Fn(usize, usize) -> Request + Clone + Send + 'static,
) -> anyhow::Result<Outcome> {
    let connections = connect(endpoint, clients).await?;
    let began = Instant::now();
    let mut workers = JoinSet::new();
    for (client, mut connection) in connections.into_iter().enumerate() {
        let request = request.clone();
        workers.spawn(async move {
            let mut times = Vec::new();
            for round in 0.. {
                let sent = Instant::now();
                if sent - began >= duration {
                    break;
                }
                request(client, round).send(&mut connection).await?;
                times.push(sent.elapsed());
            }
            anyhow::Ok(times)
        });
    }
    let mut times = Vec::new();
    while let Some(worker) = workers.join_next().await {
        times.extend(worker??);
    }
    Ok(Outcome { times, took: began.elapsed() })
}

/// Stores a number of sandboxes in a namespace, as fast as the server accepts them.
pub async fn fill(
    endpoint: &Endpoint,
    namespace_name: &str,
    count: usize,
    clients: usize,
) -> anyhow::Result<()> {
    let path: Arc<str> = collection(&namespace(endpoint, namespace_name).await?).into();
    let next = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for mut connection in connect(endpoint, clients).await? {
        let (path, next) = (Arc::clone(&path), Arc::clone(&next));
        workers.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return anyhow::Ok(());
                }
                connection.create(&path, sandbox(&format!("s-{number}"))).await?;
            }
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    Ok(())
}

/// Opens connections before the measurement.
pub async fn connect(endpoint: &Endpoint, count: usize) -> anyhow::Result<Vec<Connection>> {
    let mut connections = Vec::with_capacity(count);
    for _ in 0..count {
        connections.push(endpoint.connect().await?);
    }
    Ok(connections)
}

/// Creates a namespace.
async fn namespace(endpoint: &Endpoint, name: &str) -> anyhow::Result<String> {
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    endpoint.connect().await?.create("/api/v1/namespaces", Bytes::from(body.to_string())).await?;
    Ok(name.to_owned())
}
