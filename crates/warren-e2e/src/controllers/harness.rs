//! The two homes that scenarios run in.
//!
//! | | local | cluster |
//! |---|---|---|
//! | API server | ours, in a daemon with a data directory of its own | a real kube-apiserver |
//! | controllers | in that daemon | in this process, on threads of their own |
//! | pods | real containers; simulated for those that name [`SCHEDULER`](warren_testkit::nodes::SCHEDULER) | simulated |
//!
//! What a scenario needs of a pod (never ready, several machines) and no container can be told to do, it asks of
//! the simulated nodes, which are there in both homes: see [`workload`](super::workload).

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, Config, ResourceExt};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::runtime::Runtime;
use warren_controllers::Controllers;
use warren_testkit::kube::ControlPlane;
use warren_testkit::nodes::SimulatedNodes;

use super::place::Place;
use crate::local_home::LocalHome;

/// Nothing in a scenario takes this long, on a machine with much else to do, unless it will never come.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Machines that are simulated in either home.
pub const SIMULATED_NODES: usize = 3;

/// A home that scenarios share.
pub struct Home {
    client: Client,
    kind: Kind,
    _nodes: SimulatedNodes,
}

enum Kind {
    Local { home: LocalHome, daemon: Mutex<u32> },
    Cluster { config: Box<Config>, controllers: Mutex<Vec<Killable>> },
}

/// Which kind of home it is, for the few things that differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HomeKind {
    /// `warren up`.
    Local,
    /// A real control plane.
    Cluster,
}

/// Controllers on threads of their own, which end like a process: every pass is cut off where it stands.
struct Killable {
    runtime: Option<Runtime>,
    _controllers: Controllers,
}

impl Killable {
    fn start(config: &Config, settings: warren_controllers::Config) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let inside = runtime.enter();
        let client = Client::try_from(config.clone())?;
        let controllers = Controllers::start(client, settings);
        drop(inside);
        Ok(Self { runtime: Some(runtime), _controllers: controllers })
    }
}

impl Drop for Killable {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
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
        Ok(Some(Arc::new(Self { client, kind, _nodes: nodes })))
    }

    /// A control plane of this process, with our definitions, controllers and simulated nodes.
    pub async fn cluster() -> Result<Arc<Self>> {
        let path = tokio::task::spawn_blocking(|| ControlPlane::start().kubeconfig()).await?;
        let config =
            Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &KubeConfigOptions::default())
                .await?;
        let client = Client::try_from(config.clone())?;
        define(&client).await?;
        let nodes = SimulatedNodes::builder(client.clone()).nodes(SIMULATED_NODES).start().await?;
        let controllers = Mutex::new(vec![Killable::start(&config, settings())?]);
        let kind = Kind::Cluster { config: Box::new(config), controllers };
        Ok(Arc::new(Self { client, kind, _nodes: nodes }))
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
            Kind::Cluster { .. } => ControlPlane::start().kubeconfig().to_owned(),
        }
    }

    /// A fresh namespace.
    pub async fn place(self: &Arc<Self>, scenario: &str) -> Result<Place> {
        let prefix: String = scenario.replace('_', "-").chars().take(40).collect();
        let namespace: Namespace =
            serde_json::from_value(json!({"metadata": {"generateName": format!("{prefix}-")}}))?;
        let namespace = Api::all(self.client()).create(&PostParams::default(), &namespace).await?.name_any();
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
                let killed = *hold(daemon);
                let pid = i32::try_from(killed).ok().and_then(Pid::from_raw).context("the daemon's id")?;
                kill_process(pid, Signal::KILL)?;
                // `up` waits for the dead daemon's lock, and for the API to answer.
                *hold(daemon) = tokio::task::block_in_place(|| home.up());
            }
            Kind::Cluster { config, controllers } => {
                let killed = std::mem::take(&mut *hold(controllers));
                let count = killed.len();
                drop(killed);
                for _ in 0..count {
                    let next = Killable::start(config, settings())?;
                    hold(controllers).push(next);
                }
            }
        }
        Ok(())
    }

    /// Has so many controllers at work at the same time, without an election between them. Only a cluster can.
    pub fn fight(&self, controllers: usize) -> Result<()> {
        let Kind::Cluster { config, controllers: running } = &self.kind else {
            bail!("the local home has its controllers in one process");
        };
        let mut running = hold(running);
        running.truncate(controllers);
        while running.len() < controllers {
            running.push(Killable::start(config, settings())?);
        }
        Ok(())
    }

    /// What a person would look at when a scenario has failed.
    pub fn log(&self) -> String {
        let Some(directory) = self.data_directory() else { return String::new() };
        let log = std::fs::read_to_string(directory.join("daemon.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(200)..].join("\n")
    }

    /// Fails if a local home has left anything on the machine.
    pub fn assert_nothing_left(&self) {
        if let Kind::Local { home, .. } = &self.kind {
            home.assert_nothing_left();
        }
    }
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

fn settings() -> warren_controllers::Config {
    warren_controllers::Config { extensions: true, ..warren_controllers::Config::default() }
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
