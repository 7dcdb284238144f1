//! Runs `warren node` for a test: this machine as a node of a control plane, with a fresh data
//! directory.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Node;
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tempfile::TempDir;
use warren_client::kube::runtime::wait::await_condition;
use warren_client::kube::{Api, Client};
use warren_testkit::leaks;
use warren_testkit::privileges::skip_without_root;

use crate::controllers::harness::DEADLINE;
use crate::local_home::warren_binary;

/// A data directory and its node. Dropping it kills the node and ends its pods.
#[derive(Debug)]
pub struct ClusterNode {
    directory: TempDir,
    name: String,
    child: Option<Child>,
}

/// A node's report that it is ready for pods.
#[derive(Clone, Debug, Deserialize)]
pub struct Taken {
    /// Its process.
    pub pid: u32,
    /// The address of kubelet's API.
    pub listen: SocketAddr,
}

impl ClusterNode {
    /// Returns a fresh directory for a node of this name, with nothing running. `None` if tests
    /// that make containers are skipped.
    pub fn new(name: &str) -> Option<Self> {
        if skip_without_root() {
            return None;
        }
        let directory = tempfile::tempdir().expect("make a data directory");
        Some(Self { directory, name: name.to_owned(), child: None })
    }

    /// Returns the data directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Starts the node with more arguments, and waits until it takes pods.
    pub fn start(&mut self, kubeconfig: &Path, more: &[&str]) -> Result<Taken> {
        let log = File::options().create(true).append(true).open(self.path().join("daemon.log"))?;
        let mut child = Command::new(warren_binary())
            .args(["node", "--name", &self.name, "--listen", "127.0.0.1:0", "--output", "json"])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--data-dir")
            .arg(self.path())
            .args(more)
            .env_remove("WARREN_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context("start `warren node`")?;
        let stdout = child.stdout.take().context("standard output is piped")?;
        self.child = Some(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).context("read from the node")?;
        serde_json::from_str(&line).with_context(|| format!("the node did not start: {}", self.log()))
    }

    /// Waits until a control plane allows pods on the node.
    pub async fn wait_until_open(&self, client: &Client) -> Result<Node> {
        let nodes: Api<Node> = Api::all(client.clone());
        let open = await_condition(nodes, &self.name, |node: Option<&Node>| node.is_some_and(is_open));
        let found = tokio::time::timeout(DEADLINE, open).await.context("a node that may be used")??;
        found.context("the node is gone")
    }

    /// Kills the node (`kill -9`); returns when it is gone. Its pods run on.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Asks it to stop, and waits until it has stopped.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        let mut child = self.child.take().context("the node runs")?;
        kill_process(Pid::from_child(&child), Signal::TERM).context("ask the node to stop")?;
        child.wait().context("wait for its end")
    }

    /// Returns its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path().join("daemon.log")).unwrap_or_default()
    }

    /// Fails if anything of a pod is left on the machine.
    pub fn assert_nothing_left(&self) {
        leaks::assert_nothing_left(self.path());
    }
}

impl Drop for ClusterNode {
    fn drop(&mut self) {
        self.kill();
        let mut down = Command::new(warren_binary());
        let _ = down.arg("down").arg("--data-dir").arg(self.path()).stderr(Stdio::null()).status();
        if std::thread::panicking() {
            eprintln!("--- log of the node\n{}---", self.log());
        }
    }
}

fn is_open(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready =
        conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let spec = node.spec.clone().unwrap_or_default();
    ready && spec.unschedulable != Some(true) && spec.taints.unwrap_or_default().is_empty()
}
