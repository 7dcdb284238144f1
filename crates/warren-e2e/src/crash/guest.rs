//! A sandbox, and a user's actions on it.

use std::error::Error;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use warren_api::Sandbox;
use warren_api::sandbox::OperatingMode;
use warren_client::exec::{Exec, ExecRequest, Streams};
use warren_client::kube::Client;
use warren_client::kube::api::{Api, Patch, PatchParams};
use warren_client::sandbox::{self, Progress};

use super::DEADLINE;

const NAMESPACE: &str = "default";

/// A sandbox by its name; it may not exist.
#[derive(Debug, Clone)]
pub(super) struct Guest {
    name: String,
    command: Vec<String>,
}

impl Guest {
    pub(super) fn named(name: String, command: &[&str]) -> Self {
        Self { name, command: command.iter().map(|word| (*word).to_owned()).collect() }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn sandboxes(client: &Client) -> Api<Sandbox> {
        Api::namespaced(client.clone(), NAMESPACE)
    }

    async fn get(&self, client: &Client) -> Result<Option<Sandbox>, String> {
        Self::sandboxes(client).get_opt(&self.name).await.map_err(|error| chain(&error))
    }

    pub(super) async fn create(&self, client: &Client) -> Result<(), String> {
        let manifest = json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": self.name},
            "spec": {"podTemplate": {"spec": {
                "containers": [{"name": "main", "image": "warren.dev/host", "command": self.command}],
                "restartPolicy": "Always", "terminationGracePeriodSeconds": 1,
            }}},
        });
        let manifest: Sandbox = serde_json::from_value(manifest).map_err(|error| chain(&error))?;
        sandbox::create(client, NAMESPACE, &manifest).await.map(drop).map_err(|error| chain(&error))
    }

    /// Deletes it; a missing one is a success.
    pub(super) async fn delete(&self, client: &Client) -> Result<(), String> {
        match self.get(client).await? {
            Some(found) => sandbox::delete(client, &found).await.map_err(|error| chain(&error)),
            None => Ok(()),
        }
    }

    /// Sets the mode: `Running` or `Suspended`.
    pub(super) async fn set_mode(&self, client: &Client, mode: &str) -> Result<(), String> {
        let patch = json!({"spec": {"operatingMode": mode}});
        let patched =
            Self::sandboxes(client).patch(&self.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        patched.map(drop).map_err(|error| chain(&error))
    }

    pub(super) async fn is_there(&self, client: &Client) -> Result<bool, String> {
        Ok(self.get(client).await?.is_some())
    }

    pub(super) async fn is_going(&self, client: &Client) -> Result<bool, String> {
        Ok(self.get(client).await?.is_none_or(|found| found.metadata.deletion_timestamp.is_some()))
    }

    pub(super) async fn is_suspended(&self, client: &Client) -> Result<bool, String> {
        Ok(self.get(client).await?.is_some_and(|found| found.spec.operating_mode == OperatingMode::Suspended))
    }

    pub(super) async fn wait_ready(&self, client: &Client) -> Result<(), String> {
        self.until("is Ready", async || {
            match sandbox::progress(&self.get(client).await?.ok_or("it is not there")?) {
                Progress::Ready => Ok(()),
                Progress::Waiting(standing) | Progress::Ended(standing) => Err(standing.to_string()),
            }
        })
        .await
    }

    pub(super) async fn wait_without_pod(&self, client: &Client) -> Result<(), String> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        self.until("is without a pod", async || match pods.get_opt(&self.name).await {
            Ok(None) => Ok(()),
            Ok(Some(pod)) => Err(format!("its pod is {:?}", pod.status)),
            Err(error) => Err(chain(&error)),
        })
        .await
    }

    /// Waits until neither it nor its pod exists.
    pub(super) async fn wait_gone(&self, client: &Client) -> Result<(), String> {
        self.until("is gone", async || match self.get(client).await? {
            Some(found) => Err(format!("it is {:?}", found.metadata)),
            None => Ok(()),
        })
        .await?;
        self.wait_without_pod(client).await
    }

    /// Runs a command once that has to succeed; returns its output.
    pub(super) async fn exec_whole(&self, client: &Client, script: &str) -> Result<String, String> {
        match self.exec(client, script).await? {
            (0, written) => Ok(written),
            (code, written) => Err(format!("`{script}` ended with {code} after `{written}`")),
        }
    }

    /// Repeats a command until it succeeds: a container may still be starting.
    pub(super) async fn exec_until_it_works(&self, client: &Client, script: &str) -> Result<String, String> {
        self.until("takes a command", async || self.exec_whole(client, script).await).await
    }

    /// Runs a command of some milliseconds that may be cut off, but never succeeds with incomplete
    /// output.
    pub(super) async fn exec_or_be_cut_off(&self, client: &Client) -> Result<bool, String> {
        match self.exec(client, "echo begun; sleep 0.02; echo done").await {
            Ok((0, written)) if written == "begun\ndone\n" => Ok(true),
            Ok((0, written)) => Err(format!("a command that succeeded had written only `{written}`")),
            Ok(_) | Err(_) => Ok(false),
        }
    }

    async fn exec(&self, client: &Client, script: &str) -> Result<(i32, String), String> {
        let request = ExecRequest {
            namespace: NAMESPACE.to_owned(),
            pod: self.name.clone(),
            container: None,
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            stdin: false,
            tty: false,
        };
        let mut stdout = Vec::new();
        let (_, resize) = tokio::sync::mpsc::channel(1);
        let streams =
            Streams { stdin: tokio::io::empty(), stdout: &mut stdout, stderr: tokio::io::sink(), resize };
        let exec = Exec::start(client, request).await.map_err(|error| chain(&error))?;
        let code = exec.run(streams).await.map_err(|error| chain(&error))?;
        Ok((code, String::from_utf8_lossy(&stdout).into_owned()))
    }

    /// Repeats until there is a result; after the deadline returns the last error.
    async fn until<T>(&self, what: &str, look: impl AsyncFn() -> Result<T, String>) -> Result<T, String> {
        let mut last = String::new();
        let looking = async {
            loop {
                match look().await {
                    Ok(found) => return found,
                    Err(reason) => last = reason,
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let found = tokio::time::timeout(DEADLINE, looking).await;
        match found {
            Ok(found) => Ok(found),
            Err(_) => Err(format!("{} never {what}: {last}", self.name)),
        }
    }
}

fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
