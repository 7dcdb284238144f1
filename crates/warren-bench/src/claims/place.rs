//! A home with controllers, started for one measurement.

use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use warren_testkit::kube::ControlPlane;
use warren_testkit::nodes::SimulatedNodes;

use super::report::Disk;
use crate::connection::Endpoint;
use crate::home::Home;
use crate::process::Usage;

/// The number of simulated nodes. A thousand pods are spread over them.
const NODES: usize = 10;

/// Which home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum HomeKind {
    /// A real kube-apiserver with etcd, `warren controller`, and nodes that are simulated.
    Kube,
    /// `warren up`, with real containers.
    Local,
}

impl fmt::Display for HomeKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            HomeKind::Kube => "kube",
            HomeKind::Local => "local",
        })
    }
}

/// A running home.
pub struct Place {
    /// The kind of home.
    pub kind: HomeKind,
    /// Its API, for the load.
    pub endpoint: Endpoint,
    /// A client for requests that are not measured.
    pub client: kube::Client,
    controller: u32,
    server: Vec<u32>,
    parts: Parts,
}

/// The parts that keep it running.
enum Parts {
    Kube(Box<Cluster>),
    Local(Home),
}

/// The parts of a cluster. They end in this order.
struct Cluster {
    controller: Controller,
    _nodes: SimulatedNodes,
    _control_plane: ControlPlane,
}

/// The resource usage of its processes.
pub struct HomeUsage {
    /// The controllers' process. In the local home this is the daemon, which is everything but the
    /// containers.
    pub controller: Usage,
    /// The API server and its store, if they are separate processes.
    pub server: Option<Usage>,
}

/// Counters of the controllers since their start.
#[derive(Clone, Copy)]
pub struct Counts {
    /// Requests that the server has refused as conflicts.
    pub conflicts: u64,
    passes: f64,
    waited: f64,
    commits: f64,
    commits_took: f64,
    quick_commits: f64,
    checkpoints: f64,
    checkpoints_took: f64,
}

impl Counts {
    /// Returns the average time since `earlier` that a claim waited for a free worker of the
    /// controllers, in milliseconds.
    pub fn wait_since(&self, earlier: Counts) -> f64 {
        1000.0 * (self.waited - earlier.waited) / (self.passes - earlier.passes).max(1.0)
    }

    /// Returns the store's disk waits since `earlier`. `None` if the store is not ours.
    pub fn disk_since(&self, earlier: Counts) -> Option<Disk> {
        let commits = self.commits - earlier.commits;
        let checkpoints = self.checkpoints - earlier.checkpoints;
        let mean = |sum: f64, count: f64| 1000.0 * sum / count.max(1.0);
        (commits > 0.0).then(|| Disk {
            commits: commits as u64,
            commit_ms: mean(self.commits_took - earlier.commits_took, commits),
            slow_commits: (commits - (self.quick_commits - earlier.quick_commits)) as u64,
            checkpoints: checkpoints as u64,
            checkpoint_ms: mean(self.checkpoints_took - earlier.checkpoints_took, checkpoints),
        })
    }
}

impl Place {
    /// Starts a home with the controllers of this binary.
    pub async fn start(kind: HomeKind, warren: &Path) -> anyhow::Result<Place> {
        match kind {
            HomeKind::Kube => Self::start_kube(warren).await,
            HomeKind::Local => Self::start_local(warren).await,
        }
    }

    async fn start_kube(warren: &Path) -> anyhow::Result<Place> {
        let control_plane = control_plane().await?;
        let kubeconfig = control_plane.kubeconfig();
        let client = warren_client::connect::from_kubeconfig(kubeconfig).await?;
        let nodes = start_nodes(&client).await?;
        let controller = Controller::start(warren, kubeconfig)?;
        let serving = ["etcd", "kube-apiserver"];
        let processes = &control_plane.record().components;
        let server = processes.iter().filter(|process| serving.contains(&process.name.as_str()));
        Ok(Place {
            kind: HomeKind::Kube,
            endpoint: Endpoint::from_kubeconfig(kubeconfig).await?,
            client,
            controller: controller.pid(),
            server: server.map(|process| process.pid.cast_unsigned()).collect(),
            parts: Parts::Kube(Box::new(Cluster {
                controller,
                _nodes: nodes,
                _control_plane: control_plane,
            })),
        })
    }

    async fn start_local(warren: &Path) -> anyhow::Result<Place> {
        let home = Home::start(warren)?;
        let kubeconfig = home.directory().join("kubeconfig");
        Ok(Place {
            kind: HomeKind::Local,
            endpoint: Endpoint::from_kubeconfig(&kubeconfig).await?,
            client: warren_client::connect::from_kubeconfig(&kubeconfig).await?,
            controller: home.daemon()?,
            server: Vec::new(),
            parts: Parts::Local(home),
        })
    }

    /// Returns the resource usage of the processes so far.
    pub fn usage(&self) -> anyhow::Result<HomeUsage> {
        let server = if self.server.is_empty() { None } else { Some(Usage::of(&self.server)?) };
        Ok(HomeUsage { controller: Usage::of(&[self.controller])?, server })
    }

    /// Returns the controllers' own counters.
    pub async fn counts(&self) -> anyhow::Result<Counts> {
        let metrics = match &self.parts {
            Parts::Kube(cluster) => cluster.controller.metrics().await?,
            Parts::Local(_) => {
                let metrics = self.endpoint.connect().await?.get("/metrics").await?;
                String::from_utf8_lossy(&metrics).into_owned()
            }
        };
        let sum = |name: &str, label: &str| {
            let lines = metrics.lines().filter(|line| line.starts_with(name) && line.contains(label));
            let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
            values.sum::<f64>()
        };
        let claims = "name=\"sandboxclaim\"";
        Ok(Counts {
            conflicts: sum("rest_client_requests_total{", "code=\"409\"") as u64,
            passes: sum("workqueue_queue_duration_seconds_count{", claims),
            waited: sum("workqueue_queue_duration_seconds_sum{", claims),
            commits: sum("warren_store_commit_duration_seconds_count", ""),
            commits_took: sum("warren_store_commit_duration_seconds_sum", ""),
            quick_commits: sum("warren_store_commit_duration_seconds_bucket", "le=\"0.008\""),
            checkpoints: sum("warren_store_checkpoint_duration_seconds_count", ""),
            checkpoints_took: sum("warren_store_checkpoint_duration_seconds_sum", ""),
        })
    }

    /// Stops the home.
    pub fn end(self) {
        match self.parts {
            Parts::Kube(cluster) => drop(cluster),
            Parts::Local(home) => drop(home),
        }
    }
}

/// Starts a real control plane with our definitions, but without our controllers.
pub async fn control_plane() -> anyhow::Result<ControlPlane> {
    let control_plane = ControlPlane::launch(&["--fsync"]).context("start a control plane")?;
    crate::definitions::install(control_plane.kubeconfig()).await?;
    Ok(control_plane)
}

/// Starts nodes that make every pod ready as soon as they see it, so that the time of nodes is not
/// part of the result.
pub async fn start_nodes(client: &kube::Client) -> anyhow::Result<SimulatedNodes> {
    Ok(SimulatedNodes::builder(client.clone()).nodes(NODES).start().await?)
}

/// A process of `warren controller`. It is killed when dropped.
pub struct Controller {
    process: Child,
    metrics: SocketAddr,
}

impl Controller {
    /// Starts the controllers of this binary on a cluster.
    pub fn start(warren: &Path, kubeconfig: &Path) -> anyhow::Result<Controller> {
        // The port was free just now. If another process takes it, the controllers report that and
        // end.
        let metrics = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let process = Command::new(warren)
            .args(["controller", "--extensions", "--leader-elect=false", "--health-probe-bind-address=0"])
            .arg(format!("--metrics-bind-address={metrics}"))
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("start {} controller", warren.display()))?;
        Ok(Controller { process, metrics })
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    async fn metrics(&self) -> anyhow::Result<String> {
        let mut stream = tokio::net::TcpStream::connect(self.metrics).await.context("ask for metrics")?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
