//! The two homes that scenarios run in, one of them with two kinds of nodes.
//!
//! | | local | cluster | cluster with a node |
//! |---|---|---|---|
//! | API server | ours, in a daemon with a data directory of its own | a real kube-apiserver | a real kube-apiserver |
//! | controllers | in that daemon | `warren controller` | `warren controller` |
//! | pods | real containers | simulated | real containers, by `warren node` |
//!
//! The control plane runs in this process, or is the one that [`KUBECONFIG`] names: any cluster that
//! the suite may use alone and that has no other controller for our kinds. It gets our CRDs, and a
//! namespace for each scenario. Both stay, so that they can be inspected.
//!
//! Pods that name [`SCHEDULER`](warren_testkit::nodes::SCHEDULER) are simulated everywhere.
//!
//! Some scenarios need pod states that no container can produce (never ready, several machines).
//! They use the simulated nodes, which exist in both homes: see [`workload`](super::workload).

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, ResourceExt};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;
use tempfile::TempDir;
use warren_testkit::kube::ControlPlane;
use warren_testkit::nodes::SimulatedNodes;

use super::collector;
use super::place::{Place, answer};
use super::suite::process::ControllerProcess;
use crate::cluster_node::ClusterNode;
use crate::local_home::LocalHome;

/// The deadline of every wait in a scenario: far longer than any takes, even on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The variable that names a cluster to use instead of starting a control plane, as `cargo xtask
/// kube up` prints it.
pub const KUBECONFIG: &str = "WARREN_E2E_KUBECONFIG";

/// The part of a log that is shown after a failure.
const LOG_LINES: usize = 200;

/// The number of simulated nodes in either home.
pub const SIMULATED_NODES: usize = 3;

/// A home that scenarios share.
pub struct Home {
    client: Client,
    kind: Kind,
    logs: TempDir,
    _nodes: SimulatedNodes,
}

enum Kind {
    Local {
        home: LocalHome,
        daemon: Mutex<u32>,
    },
    Cluster {
        kubeconfig: PathBuf,
        controllers: Mutex<Vec<ControllerProcess>>,
        /// The node, if pods are real.
        node: Option<ClusterNode>,
    },
}

/// The kind of home, for the few differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HomeKind {
    /// `warren up`.
    Local,
    /// A real control plane.
    Cluster,
}

impl Home {
    /// Starts a local home in a fresh data directory. `None` if tests that make containers are
    /// skipped.
    pub async fn local() -> Result<Option<Arc<Self>>> {
        let started = tokio::task::spawn_blocking(|| {
            let home = LocalHome::new()?;
            let daemon = home.up();
            Some((home, daemon))
        });
        let Some((home, daemon)) = started.await? else { return Ok(None) };
        let client = home.client().await;
        let nodes =
            SimulatedNodes::builder(client.clone()).nodes(SIMULATED_NODES).only_asked_for().start().await?;
        let kind = Kind::Local { home, daemon: Mutex::new(daemon) };
        Ok(Some(Arc::new(Self { client, kind, logs: tempfile::tempdir()?, _nodes: nodes })))
    }

    /// Starts a control plane with our CRDs, controllers and simulated nodes.
    pub async fn cluster() -> Result<Arc<Self>> {
        let (kubeconfig, client) = control_plane().await?;
        let nodes = SimulatedNodes::builder(client.clone()).nodes(SIMULATED_NODES).start().await?;
        Self::with_controllers(kubeconfig, client, nodes, None).await
    }

    /// Starts a cluster with this machine as the node of all pods except those that ask to be
    /// simulated. `None` if tests that make containers are skipped.
    pub async fn cluster_with_node() -> Result<Option<Arc<Self>>> {
        let Some(mut node) = ClusterNode::new("warren") else { return Ok(None) };
        let (kubeconfig, client) = control_plane().await?;
        let node = tokio::task::spawn_blocking(move || {
            node.start(&kubeconfig, &["--serve-volume-claims"])?;
            anyhow::Ok((node, kubeconfig))
        });
        let (node, kubeconfig) = node.await??;
        node.wait_until_open(&client).await?;
        let nodes =
            SimulatedNodes::builder(client.clone()).nodes(SIMULATED_NODES).only_asked_for().start().await?;
        Self::with_controllers(kubeconfig, client, nodes, Some(node)).await.map(Some)
    }

    async fn with_controllers(
        kubeconfig: PathBuf,
        client: Client,
        nodes: SimulatedNodes,
        node: Option<ClusterNode>,
    ) -> Result<Arc<Self>> {
        let kind = Kind::Cluster { kubeconfig, controllers: Mutex::default(), node };
        let home = Arc::new(Self { client, kind, logs: tempfile::tempdir()?, _nodes: nodes });
        let starting = Arc::clone(&home);
        // The first use of the binary may have to build it.
        tokio::task::spawn_blocking(move || starting.fight(1)).await??;
        Ok(home)
    }

    /// Returns its kind.
    pub fn kind(&self) -> HomeKind {
        match self.kind {
            Kind::Local { .. } => HomeKind::Local,
            Kind::Cluster { .. } => HomeKind::Cluster,
        }
    }

    /// Returns a client with all rights.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns the data directory of a local home.
    pub fn data_directory(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Local { home, .. } => Some(home.path()),
            Kind::Cluster { .. } => None,
        }
    }

    /// Returns a kubeconfig with all rights.
    pub fn kubeconfig(&self) -> PathBuf {
        match &self.kind {
            Kind::Local { home, .. } => home.path().join("kubeconfig"),
            Kind::Cluster { kubeconfig, .. } => kubeconfig.clone(),
        }
    }

    /// Creates a fresh namespace.
    pub async fn place(self: &Arc<Self>, scenario: &str) -> Result<Place> {
        let prefix: String = scenario.replace('_', "-").chars().take(40).collect();
        let namespace: Namespace =
            serde_json::from_value(json!({"metadata": {"generateName": format!("{prefix}-")}}))?;
        let (namespaces, parameters) = (Api::all(self.client()), PostParams::default());
        let namespace = answer(|| namespaces.create(&parameters, &namespace)).await?.name_any();
        if self.kind() == HomeKind::Cluster {
            // Pods cannot be created before it exists.
            let accounts: Api<ServiceAccount> = Api::namespaced(self.client(), &namespace);
            let there =
                await_condition(accounts, "default", |account: Option<&ServiceAccount>| account.is_some());
            tokio::time::timeout(DEADLINE, there).await.context("the default service account")??;
        }
        Ok(Place::new(Arc::clone(self), namespace))
    }

    /// Kills the controllers as `kill -9` would, and starts them again. In the local home that is
    /// the whole daemon, so other users of the home find the API server away for a moment, which
    /// [`Place`] tolerates.
    pub async fn restart_controllers(&self) -> Result<()> {
        match &self.kind {
            Kind::Local { home, daemon } => {
                let killed = i32::try_from(*hold(daemon)).ok().and_then(Pid::from_raw);
                let killed = pidfd_open(killed.context("the daemon's id")?, PidfdFlags::empty())?;
                let next = tokio::task::block_in_place(|| {
                    pidfd_send_signal(&killed, Signal::KILL)?;
                    // A dying daemon would be taken for a running one.
                    poll(&mut [PollFd::new(&killed, PollFlags::IN)], None)?;
                    anyhow::Ok(home.up())
                });
                *hold(daemon) = next?;
            }
            Kind::Cluster { controllers, .. } => {
                let count = hold(controllers).len();
                self.fight(0)?;
                self.fight(count)?;
            }
        }
        Ok(())
    }

    /// Runs this number of controllers at the same time, without an election between them; surplus
    /// ones are killed. Only for a cluster.
    pub fn fight(&self, count: usize) -> Result<()> {
        let Kind::Cluster { controllers, .. } = &self.kind else {
            bail!("the local home has its controllers in one process");
        };
        let mut controllers = hold(controllers);
        controllers.truncate(count);
        while controllers.len() < count {
            controllers.push(ControllerProcess::start(self, &["--leader-elect=false"])?);
        }
        Ok(())
    }

    /// Opens the log file for controllers that a scenario starts.
    pub fn log_file(&self) -> io::Result<File> {
        File::options().create(true).append(true).open(self.logs.path().join("controllers.log"))
    }

    /// Returns the logs that help after a failure.
    pub fn log(&self) -> String {
        let directory = match &self.kind {
            Kind::Local { home, .. } => Some(home.path()),
            Kind::Cluster { node, .. } => node.as_ref().map(ClusterNode::path),
        };
        let daemon = directory.map(|directory| directory.join("daemon.log"));
        let mut text = String::new();
        for path in daemon.into_iter().chain([self.logs.path().join("controllers.log")]) {
            let log = std::fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            text.push_str(&lines[lines.len().saturating_sub(LOG_LINES)..].join("\n"));
        }
        text
    }

    /// Fails if anything of a pod is left on the machine.
    pub fn assert_nothing_left(&self) {
        match &self.kind {
            Kind::Local { home, .. } => home.assert_nothing_left(),
            Kind::Cluster { node, .. } => node.iter().for_each(ClusterNode::assert_nothing_left),
        }
    }
}

/// Returns the named control plane, or starts one in this process; with our CRDs.
async fn control_plane() -> Result<(PathBuf, Client)> {
    let kubeconfig = match std::env::var_os(KUBECONFIG) {
        Some(path) => PathBuf::from(path),
        None => tokio::task::spawn_blocking(|| ControlPlane::start().kubeconfig().to_owned()).await?,
    };
    let client = warren_client::connect::from_kubeconfig(&kubeconfig).await?;
    define(&client).await?;
    collector::wait_until_it_knows_our_kinds(&client).await?;
    Ok((kubeconfig, client))
}

/// Installs our CRDs in a control plane.
pub async fn define(client: &Client) -> Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in warren_api::crds() {
        let name = definition.name_any();
        definitions.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(&definition)).await?;
        let established = await_condition(definitions.clone(), &name, conditions::is_crd_established());
        tokio::time::timeout(DEADLINE, established).await.context("a definition is taken in")??;
    }
    Ok(())
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
