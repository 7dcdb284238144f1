//! The two homes that scenarios run in, one of them with two kinds of nodes.
//!
//! | | local | cluster | cluster with a node |
//! |---|---|---|---|
//! | API server | ours, in a daemon with a data directory of its own | a real kube-apiserver | a real kube-apiserver |
//! | controllers | in that daemon | `warren controller` | `warren controller` |
//! | pods | real containers | simulated | real containers, by `warren node` |
//!
//! The control plane is one of this process, or the one that [`KUBECONFIG`] names: any cluster of which the suite may have all, and on
//! which no other controller works for our kinds. It gets our definitions, and a namespace for each scenario; both stay, to be looked at.
//!
//! Pods that name [`SCHEDULER`](warren_testkit::nodes::SCHEDULER) are simulated everywhere.
//!
//! What a scenario needs of a pod (never ready, several machines) and no container can be told to do, it asks of
//! the simulated nodes, which are there in both homes: see [`workload`](super::workload).

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

/// Nothing in a scenario takes this long, on a machine with much else to do, unless it will never come.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Names the cluster to use instead of starting a control plane, as `cargo xtask kube up` prints it.
pub const KUBECONFIG: &str = "WARREN_E2E_KUBECONFIG";

/// How much of a log is shown when a scenario has failed.
const LOG_LINES: usize = 200;

/// Machines that are simulated in either home.
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
        /// Where pods are real.
        node: Option<ClusterNode>,
    },
}

/// Which kind of home it is, for the few things that differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HomeKind {
    /// `warren up`.
    Local,
    /// A real control plane.
    Cluster,
}

impl Home {
    /// A local home in a fresh data directory. `None` where tests that make containers are left out.
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

    /// A control plane with our definitions, controllers and simulated nodes.
    pub async fn cluster() -> Result<Arc<Self>> {
        let (kubeconfig, client) = control_plane().await?;
        let nodes = SimulatedNodes::builder(client.clone()).nodes(SIMULATED_NODES).start().await?;
        Self::with_controllers(kubeconfig, client, nodes, None).await
    }

    /// The same with this machine as the node for all pods but those that ask to be simulated. `None` where tests that make
    /// containers are left out.
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
        // The first to ask for the binary may have to build it.
        tokio::task::spawn_blocking(move || starting.fight(1)).await??;
        Ok(home)
    }

    /// Which kind it is.
    pub fn kind(&self) -> HomeKind {
        match self.kind {
            Kind::Local { .. } => HomeKind::Local,
            Kind::Cluster { .. } => HomeKind::Cluster,
        }
    }

    /// A client with all rights.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The data directory of a local home.
    pub fn data_directory(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Local { home, .. } => Some(home.path()),
            Kind::Cluster { .. } => None,
        }
    }

    /// A kubeconfig with all rights.
    pub fn kubeconfig(&self) -> PathBuf {
        match &self.kind {
            Kind::Local { home, .. } => home.path().join("kubeconfig"),
            Kind::Cluster { kubeconfig, .. } => kubeconfig.clone(),
        }
    }

    /// A fresh namespace.
    pub async fn place(self: &Arc<Self>, scenario: &str) -> Result<Place> {
        let prefix: String = scenario.replace('_', "-").chars().take(40).collect();
        let namespace: Namespace =
            serde_json::from_value(json!({"metadata": {"generateName": format!("{prefix}-")}}))?;
        let (namespaces, parameters) = (Api::all(self.client()), PostParams::default());
        let namespace = answer(|| namespaces.create(&parameters, &namespace)).await?.name_any();
        if self.kind() == HomeKind::Cluster {
            // Without it no pod may be made.
            let accounts: Api<ServiceAccount> = Api::namespaced(self.client(), &namespace);
            let there =
                await_condition(accounts, "default", |account: Option<&ServiceAccount>| account.is_some());
            tokio::time::timeout(DEADLINE, there).await.context("the default service account")??;
        }
        Ok(Place::new(Arc::clone(self), namespace))
    }

    /// Kills the controllers as `kill -9` would, and starts them again. In the local home that is the whole daemon, so
    /// whoever else uses the home meets an API server that is away for a moment, as [`Place`] can stand.
    pub async fn restart_controllers(&self) -> Result<()> {
        match &self.kind {
            Kind::Local { home, daemon } => {
                let killed = i32::try_from(*hold(daemon)).ok().and_then(Pid::from_raw);
                let killed = pidfd_open(killed.context("the daemon's id")?, PidfdFlags::empty())?;
                let next = tokio::task::block_in_place(|| {
                    pidfd_send_signal(&killed, Signal::KILL)?;
                    // One that is still dying would be taken for one that runs.
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

    /// Has so many controllers at work at the same time, without an election between them; those too many are killed. Only a
    /// cluster can.
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

    /// Where controllers of their own write what they have to say.
    pub fn log_file(&self) -> io::Result<File> {
        File::options().create(true).append(true).open(self.logs.path().join("controllers.log"))
    }

    /// What a person would look at when a scenario has failed.
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

/// The control plane that is named, else one of this process; with our definitions.
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

/// Puts our definitions into a control plane.
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
