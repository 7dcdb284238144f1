//! A local home, called by its API.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::task::{JoinHandle, JoinSet};
use warren_api::Sandbox;
use warren_client::exec::{Exec, ExecRequest, Streams};
use warren_client::home::DataDir;
use warren_client::images;
use warren_client::sandbox::{self, Progress};

use super::memory;
use super::pull::Image;
use crate::home::Home;

const NAMESPACE: &str = "default";
/// The label of sandboxes that are started together.
const TOGETHER: &str = "bench=together";
/// The time limit. Each operation takes a fraction of a second, a hundred starts a few seconds.
const PATIENCE: Duration = Duration::from_secs(120);
/// The buffer size: more than any single write here.
const BUFFER: usize = 4096;

/// A home with a resident sandbox for commands.
pub struct Ours {
    // Drop order: clients of the home before the home.
    line: Line,
    client: Client,
    resident: Sandbox,
    next: usize,
    home: Home,
}

impl Ours {
    /// Starts a home.
    pub async fn start(warren: &Path) -> anyhow::Result<Ours> {
        let home = Home::start(warren)?;
        let client = warren_client::connect::local(&DataDir::open(home.directory())?).await?;
        let resident = create(&client, "resident", None).await?;
        let resident = sandbox::wait_ready(&client, resident, PATIENCE).await?;
        let line = Line::open(&client, &resident).await?;
        Ok(Ours { line, client, resident, next: 0, home })
    }

    /// Returns the daemon's process id.
    pub fn daemon(&self) -> anyhow::Result<u32> {
        self.home.daemon()
    }

    /// Returns the daemon and its zygote.
    pub fn daemons(&self) -> anyhow::Result<Vec<u32>> {
        let daemon = self.daemon()?;
        let mut all = memory::children(daemon)?;
        all.push(daemon);
        Ok(all)
    }

    /// Runs a new sandbox until a command in it has written its first byte. Waits for its end,
    /// which is not timed.
    pub async fn cold(&mut self) -> anyhow::Result<Duration> {
        self.next += 1;
        let begun = Instant::now();
        let created = create(&self.client, &format!("cold-{}", self.next), None).await?;
        let ready = sandbox::wait_ready(&self.client, created, PATIENCE).await?;
        let mut command = Command::start(&self.client, &ready, &["echo", "x"], false).await?;
        let mut first = [0];
        command.stdout.read_exact(&mut first).await.context("read the first byte")?;
        let elapsed = begun.elapsed();
        command.end().await?;
        sandbox::delete(&self.client, &ready).await?;
        self.wait_for_pods(1).await?;
        Ok(elapsed)
    }

    /// Runs a command in the resident sandbox until its exit code is known.
    pub async fn exec(&mut self) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        let mut command = Command::start(&self.client, &self.resident, &["echo", "x"], false).await?;
        let mut written = String::new();
        command.stdout.read_to_string(&mut written).await?;
        command.end().await?;
        let elapsed = begun.elapsed();
        ensure!(written == "x\n", "a command wrote `{written}`");
        Ok(elapsed)
    }

    /// Sends a line to a command in the resident sandbox and reads it back.
    pub async fn round_trip(&mut self) -> anyhow::Result<Duration> {
        self.line.round_trip().await
    }

    /// Creates a number of sandboxes at once, and watches until all are Ready.
    pub async fn start_many(&mut self, count: usize) -> anyhow::Result<Duration> {
        let sandboxes: Api<Sandbox> = Api::namespaced(self.client.clone(), NAMESPACE);
        let version = sandboxes.list(&ListParams::default().limit(1)).await?.metadata.resource_version;
        let parameters = WatchParams::default().labels(TOGETHER);
        let mut events = sandboxes.watch(&parameters, &version.unwrap_or_default()).await?.boxed();
        let mut creating = JoinSet::new();
        let begun = Instant::now();
        for number in 0..count {
            let client = self.client.clone();
            creating.spawn(async move {
                create(&client, &format!("together-{number}"), Some(TOGETHER)).await.map(drop)
            });
        }
        let all_ready = async {
            let mut ready = HashSet::new();
            while ready.len() < count {
                match events.try_next().await?.context("the server ended a watch")? {
                    WatchEvent::Added(sandbox) | WatchEvent::Modified(sandbox) => {
                        match sandbox::progress(&sandbox) {
                            Progress::Ready => {
                                ready.insert(sandbox.name_any());
                            }
                            Progress::Waiting(_) => {}
                            Progress::Ended(standing) => bail!("{}: {standing}", sandbox.name_any()),
                        }
                    }
                    WatchEvent::Error(status) => bail!("a watch failed: {}", status.message),
                    WatchEvent::Deleted(_) | WatchEvent::Bookmark(_) => {}
                }
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(PATIENCE, all_ready).await.context("not all became Ready")??;
        let elapsed = begun.elapsed();
        while let Some(created) = creating.join_next().await {
            created??;
        }
        Ok(elapsed)
    }

    /// Deletes them and waits until they are gone.
    pub async fn end_many(&mut self) -> anyhow::Result<()> {
        let sandboxes: Api<Sandbox> = Api::namespaced(self.client.clone(), NAMESPACE);
        for sandbox in sandboxes.list(&ListParams::default().labels(TOGETHER)).await? {
            sandbox::delete(&self.client, &sandbox).await?;
        }
        self.wait_for_pods(1).await
    }

    /// Pulls an image a number of times, and removes it after each.
    pub async fn pull(&mut self, pulls: usize, image: &Image) -> anyhow::Result<Vec<Duration>> {
        let (_registry, name) = image.serve()?;
        let mut times = Vec::with_capacity(pulls);
        for _ in 0..pulls {
            let begun = Instant::now();
            images::pull(&self.client, &name, false, |_| {}).await?;
            times.push(begun.elapsed());
            images::remove(&self.client, &name).await?;
        }
        Ok(times)
    }

    /// Waits until there are at most this many pods, so that the end of the last measurement does
    /// not disturb the next.
    async fn wait_for_pods(&self, count: usize) -> anyhow::Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let deadline = Instant::now() + PATIENCE;
        while pods.list(&ListParams::default()).await?.items.len() > count {
            ensure!(Instant::now() < deadline, "pods do not go");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

/// Creates an idle sandbox on the built-in image, with an optional label.
async fn create(client: &Client, name: &str, label: Option<&str>) -> anyhow::Result<Sandbox> {
    let mut sandbox = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": name},
        "spec": {"podTemplate": {"spec": {
            "containers": [{"name": "main", "image": "warren.dev/host"}],
            "terminationGracePeriodSeconds": 0,
        }}},
    });
    if let Some((key, value)) = label.and_then(|label| label.split_once('=')) {
        sandbox["metadata"]["labels"][key] = value.into();
    }
    Ok(sandbox::create(client, NAMESPACE, &serde_json::from_value(sandbox)?).await?)
}

/// A requested command and the near ends of its streams.
struct Command {
    stdin: DuplexStream,
    stdout: DuplexStream,
    running: JoinHandle<anyhow::Result<i32>>,
}

impl Command {
    async fn start(
        client: &Client,
        sandbox: &Sandbox,
        words: &[&str],
        has_input: bool,
    ) -> anyhow::Result<Command> {
        let request = ExecRequest {
            namespace: NAMESPACE.to_owned(),
            pod: sandbox::pod_name(sandbox),
            container: None,
            command: words.iter().map(|word| (*word).to_owned()).collect(),
            stdin: has_input,
            tty: false,
        };
        let exec = Exec::start(client, request).await?;
        let (stdin, far_stdin) = tokio::io::duplex(BUFFER);
        let (stdout, far_stdout) = tokio::io::duplex(BUFFER);
        let (_, resize) = tokio::sync::mpsc::channel(1);
        let streams = Streams { stdin: far_stdin, stdout: far_stdout, stderr: tokio::io::sink(), resize };
        let running = tokio::spawn(async move { Ok(exec.run(streams).await?) });
        Ok(Command { stdin, stdout, running })
    }

    /// Waits for its exit code, which must be 0.
    async fn end(self) -> anyhow::Result<()> {
        let code = self.running.await??;
        ensure!(code == 0, "a command ended with {code}");
        Ok(())
    }
}

/// A command that echoes its input.
struct Line(Command);

impl Line {
    async fn open(client: &Client, sandbox: &Sandbox) -> anyhow::Result<Line> {
        Ok(Line(Command::start(client, sandbox, &["cat"], true).await?))
    }

    async fn round_trip(&mut self) -> anyhow::Result<Duration> {
        let mut back = [0; 2];
        let begun = Instant::now();
        self.0.stdin.write_all(b"x\n").await?;
        self.0.stdout.read_exact(&mut back).await?;
        let elapsed = begun.elapsed();
        ensure!(&back == b"x\n", "another line came back");
        Ok(elapsed)
    }
}
