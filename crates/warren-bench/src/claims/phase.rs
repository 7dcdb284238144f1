//! Runs one load: claims are created at their times, and a watch observes when each is Ready.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;

use super::Part;
use super::observer::{Observer, version_of};
use super::place::Place;
use super::pool::{CLAIMS, NAMESPACE, POOL_NAME};
use super::report::Phase;
use crate::connection::{Connection, Endpoint};
use crate::process::MachineTime;
use crate::summary::Summary;

/// The maximum number of clients that create claims at the same time.
const CREATORS: usize = 128;
/// The time limit after the last claim. Thousands of cold starts on two cores take minutes.
const PATIENCE: Duration = Duration::from_secs(240);

/// Runs a load and returns its result.
pub async fn run(place: &Place, part: Part, arrivals: &[Duration]) -> anyhow::Result<Phase> {
    let creators = Arc::new(Creators::connect(place, arrivals.len().min(CREATORS)).await?);
    let mut observer = Observer::start(&place.endpoint, CLAIMS).await?;
    let counts = place.counts().await?;
    // The server closes connections that are silent for a whole load, so each of these requests
    // uses a new one.
    let version = version_of(&mut place.endpoint.connect().await?, CLAIMS).await?;
    let before = place.usage()?;
    let machine = MachineTime::now()?;

    let began = Instant::now();
    let times = arrivals.iter().map(|arrival| began + *arrival).collect();
    let mut creates = tokio::task::spawn_blocking(move || begin(part, times, &creators)).await?;
    let mut created = Vec::with_capacity(arrivals.len());
    while let Some(create) = creates.join_next().await {
        created.push(create??);
    }
    let ready = observer.wait_for_ready(arrivals.len(), PATIENCE).await?;
    let after = place.usage()?;
    let stolen = MachineTime::now()?.stolen_since(machine);
    let writes = version_of(&mut place.endpoint.connect().await?, CLAIMS).await?.saturating_sub(version);
    let now = place.counts().await?;

    let took = began.elapsed().as_secs_f64();
    let mut times = Vec::with_capacity(created.len());
    let mut last = began;
    for create in &created {
        if let Some((at, _)) = observer.history(&create.claim).ready {
            times.push(at.saturating_duration_since(create.due));
            last = last.max(at);
        }
    }
    Ok(Phase {
        home: place.kind,
        part,
        claims: arrivals.len(),
        ready,
        per_second: ready as f64 / last.saturating_duration_since(began).as_secs_f64(),
        times: Summary::of("due to Ready", times),
        creates: Summary::of(
            "create",
            created.iter().map(|create| create.acknowledged - create.sent).collect(),
        ),
        writes_per_claim: writes as f64 / arrivals.len() as f64,
        writes_per_second: writes as f64 / took,
        wait_ms: now.wait_since(counts),
        disk: now.disk_since(counts),
        conflicts: now.conflicts.saturating_sub(counts.conflicts),
        controller: after.controller.since(before.controller),
        server: after.server.map(|after| after.since(before.server.unwrap_or_default())),
        stolen,
    })
}

struct Create {
    claim: String,
    /// The arrival time of the claim. It may have to wait for a connection.
    due: Instant,
    sent: Instant,
    acknowledged: Instant,
}

/// Starts to create each claim at its time. It uses a thread, because the runtime's timer is late
/// by up to a millisecond, and a claim may take only a few.
#[expect(clippy::disallowed_methods, reason = "what is waited for is the time of the next claim")]
fn begin(part: Part, times: Vec<Instant>, creators: &Arc<Creators>) -> JoinSet<anyhow::Result<Create>> {
    let runtime = Handle::current();
    let mut creates = JoinSet::new();
    for (number, due) in times.into_iter().enumerate() {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let creators = Arc::clone(creators);
        let create = async move {
            let claim = format!("{part:?}-{number}").to_lowercase();
            let (sent, acknowledged) = creators.create(&claim).await?;
            Ok(Create { claim, due, sent, acknowledged })
        };
        creates.spawn_on(create, &runtime);
    }
    creates
}

/// Connections that create claims, each one claim at a time.
struct Creators {
    endpoint: Endpoint,
    free: Semaphore,
    connections: Mutex<Vec<Connection>>,
}

impl Creators {
    async fn connect(place: &Place, count: usize) -> anyhow::Result<Creators> {
        let mut connections = Vec::with_capacity(count);
        for _ in 0..count {
            connections.push(place.endpoint.connect().await?);
        }
        let endpoint = place.endpoint.clone();
        Ok(Creators { endpoint, free: Semaphore::new(count), connections: Mutex::new(connections) })
    }

    /// Creates a claim. Returns the times of the request and of its answer.
    async fn create(&self, name: &str) -> anyhow::Result<(Instant, Instant)> {
        let _permit = self.free.acquire().await?;
        let connection = self.connections.lock().await.pop();
        let mut connection = connection.ok_or_else(|| anyhow::anyhow!("more permits than connections"))?;
        if connection.is_closed() {
            connection = self.endpoint.connect().await?;
        }
        let body = claim(name);
        let sent = Instant::now();
        let created = connection.create(CLAIMS, body.clone()).await;
        // The server may just have closed a silent connection.
        if created.is_err() && connection.is_closed() {
            connection = self.endpoint.connect().await?;
            connection.create(CLAIMS, body).await?;
        } else {
            created?;
        }
        let acknowledged = Instant::now();
        self.connections.lock().await.push(connection);
        Ok((sent, acknowledged))
    }
}

/// Returns a claim on the pool.
pub fn claim(name: &str) -> Bytes {
    let claim = json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"warmPoolRef": {"name": POOL_NAME}},
    });
    Bytes::from(claim.to_string())
}
