//! The trait, and the words that all providers share.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::broadcast;
use warren_client::kube::Client;

use crate::error::ProviderError;
use crate::limits::{Network, Wanted};
use crate::process::{self, Command, ExecResult, Process};

/// The largest file that is written at once.
pub const LARGEST_WRITE: usize = warren_client::files::LARGEST;

/// An answer on its way. Dropping it gives the call up; what has been done stays done.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, ProviderError>>;

/// Reaches a home.
pub trait Connect: Send + Sync + 'static {
    /// Connects. With `start`, a local home that is not running is started first.
    fn connect(&self, start: bool) -> BoxFuture<'_, Result<Client, String>>;
}

/// The state of a sandbox, in the one vocabulary that all providers use.
///
/// | here | seed 000 (`SandboxStatus`) | seed 001 | Warren's `Ready` condition |
/// |---|---|---|---|
/// | `creating` | `creating` (`Pending`) | `creating` | False, and it can still become True |
/// | `running` | `running` (`Running`) | `running` | True |
/// | `stopping` | `stopping` | – | suspended, and its pod is still there; or being deleted |
/// | `stopped` | `stopped`, `idle` (`Succeeded`, `Paused`) | `stopped`, `paused` | `SandboxSuspended`, `PodSucceeded`, `SandboxExpired` |
/// | `error` | `error` (`Failed`) | `error` | any other reason that stays |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It is being made or started.
    Creating,
    /// Commands can be run in it.
    Running,
    /// It keeps its identity and has no processes.
    Stopped,
    /// It is being stopped or removed.
    Stopping,
    /// It will not run until it is changed.
    Error,
}

impl Status {
    /// Returns the state's name.
    pub fn name(self) -> &'static str {
        match self {
            Status::Creating => "creating",
            Status::Running => "running",
            Status::Stopped => "stopped",
            Status::Stopping => "stopping",
            Status::Error => "error",
        }
    }
}

/// A sandbox as a provider knows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Info {
    /// Its id.
    pub id: String,
    /// Its name for people.
    pub name: String,
    /// Its namespace; empty where there are no namespaces.
    pub namespace: String,
    /// The project it belongs to.
    pub project_id: Option<String>,
    /// Its state.
    pub status: Status,
    /// The reason for its state, if that needs words.
    pub message: Option<String>,
    /// Its image.
    pub image: Option<String>,
    /// When it was created.
    pub created_at: Option<Timestamp>,
    /// When it was last used through this provider, or created.
    pub last_activity_at: Option<Timestamp>,
    /// The ports that its containers name.
    pub ports: Vec<u16>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The network that it reaches.
    pub network: Network,
}

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, a socket or a pipe.
    Other,
}

/// A file in a directory of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Its name; bytes that are not UTF-8 are replaced.
    pub name: String,
    /// Its path.
    pub path: String,
    /// Its kind.
    #[serde(rename = "type")]
    pub kind: FileKind,
    /// Its size in bytes.
    pub size: u64,
    /// When it was last changed.
    pub modified_at: Option<Timestamp>,
}

/// A file's content on its way out of a sandbox.
pub struct FileStream {
    /// Its size when the first part was read.
    pub size: u64,
    /// Its parts.
    pub parts: BoxStream<'static, Result<Vec<u8>, ProviderError>>,
}

/// The resource usage of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Metrics {
    /// Its share of processors, where 100 is one of them. None until it was measured for the first time.
    pub cpu_usage_percent: Option<f64>,
    /// Its memory, in MiB. None until it was measured for the first time.
    pub memory_usage_mb: Option<f64>,
    /// The time that it has existed, in milliseconds.
    pub uptime: u64,
}

/// The health of a provider.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Health {
    /// True if it can be used.
    pub healthy: bool,
    /// The reason that it cannot be used.
    pub message: Option<String>,
    /// Further facts about it, as an object.
    pub details: Value,
}

/// Which sandboxes to remove.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CleanUp {
    /// Only those that were last used before this time.
    pub older_than: Option<Timestamp>,
    /// Only those in one of these states; stopped ones if none is named.
    pub status: Vec<Status>,
}

impl CleanUp {
    /// Tells whether a sandbox is to be removed.
    pub fn matches(&self, info: &Info) -> bool {
        let states = if self.status.is_empty() { &[Status::Stopped][..] } else { &self.status };
        states.contains(&info.status)
            && self.older_than.is_none_or(|time| info.last_activity_at.is_some_and(|last| last < time))
    }
}

/// Something that happened to a sandbox through this provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProviderEvent {
    /// The step that happened.
    #[serde(rename = "type")]
    pub step: Step,
    /// To which one.
    pub sandbox_id: String,
    /// The project it belongs to.
    pub project_id: Option<String>,
    /// The error, for [`Step::Error`].
    pub error: Option<String>,
}

/// A step in the life of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Step {
    /// It is being made.
    #[serde(rename = "sandbox:creating")]
    Creating,
    /// It has been made.
    #[serde(rename = "sandbox:created")]
    Created,
    /// It runs.
    #[serde(rename = "sandbox:started")]
    Started,
    /// It is being stopped.
    #[serde(rename = "sandbox:stopping")]
    Stopping,
    /// It was stopped.
    #[serde(rename = "sandbox:stopped")]
    Stopped,
    /// It was removed.
    #[serde(rename = "sandbox:removed")]
    Removed,
    /// Something failed.
    #[serde(rename = "sandbox:error")]
    Error,
}

/// An entry of a sandbox's history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Happening {
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub kind: String,
    /// In one word.
    pub reason: String,
    /// In a sentence.
    pub message: String,
    /// The number of times that it happened.
    pub count: i32,
    /// When last.
    pub at: Option<Timestamp>,
}

/// An explanation of why a sandbox can or cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// True if commands can be run in it.
    pub ready: bool,
    /// In one sentence.
    pub summary: String,
    /// The reasons that it cannot be used.
    pub reasons: Vec<Reason>,
}

/// One thing that stands in a sandbox's way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// The problem.
    pub what: String,
    /// The cause of the problem.
    pub why: String,
    /// The next action to take about it.
    pub next: String,
}

/// Runs sandboxes. Every call can be repeated: a sandbox that is removed already is removed, one that runs is started.
pub trait Provider: Send + Sync + 'static {
    /// Returns the provider's name.
    fn name(&self) -> &'static str;

    /// Creates a sandbox. Returns when it is registered, in the state [`Status::Creating`]; it becomes Running by itself.
    fn create(&self, wanted: Wanted) -> Answer<'_, Info>;

    /// Waits until a sandbox runs, at most so long, and returns it.
    fn wait_running<'a>(&'a self, id: &'a str, within: Duration) -> Answer<'a, Info>;

    /// Finds the sandbox of a project.
    fn get<'a>(&'a self, project: &'a str) -> Answer<'a, Option<Info>>;

    /// Finds a sandbox by its id.
    fn get_by_id<'a>(&'a self, id: &'a str) -> Answer<'a, Option<Info>>;

    /// Lists the sandboxes.
    fn list(&self) -> Answer<'_, Vec<Info>>;

    /// Starts a sandbox that was stopped.
    fn start<'a>(&'a self, id: &'a str) -> Answer<'a, Info>;

    /// Stops a sandbox. It keeps its identity; its processes end.
    fn stop<'a>(&'a self, id: &'a str) -> Answer<'a, Info>;

    /// Removes a sandbox with everything in it.
    fn remove<'a>(&'a self, id: &'a str) -> Answer<'a, ()>;

    /// Starts a command and carries its streams.
    fn exec_stream<'a>(&'a self, id: &'a str, command: Command) -> Answer<'a, Process>;

    /// Runs a command to its end, at most so long.
    fn exec<'a>(&'a self, id: &'a str, command: Command, timeout: Duration) -> Answer<'a, ExecResult> {
        Box::pin(async move { process::collect(self.exec_stream(id, command).await?, timeout).await })
    }

    /// Reads a file.
    fn read<'a>(&'a self, id: &'a str, path: &'a str) -> Answer<'a, FileStream>;

    /// Replaces a file's content, or makes the file and the directories above it.
    fn write<'a>(&'a self, id: &'a str, path: &'a str, content: Vec<u8>) -> Answer<'a, ()>;

    /// Lists a directory, sorted by name.
    fn list_files<'a>(&'a self, id: &'a str, path: &'a str) -> Answer<'a, Vec<Entry>>;

    /// Returns what a sandbox uses.
    fn metrics<'a>(&'a self, id: &'a str) -> Answer<'a, Metrics>;

    /// Returns what happened to a sandbox, the newest first.
    fn history<'a>(&'a self, id: &'a str) -> Answer<'a, Vec<Happening>>;

    /// Explains a sandbox's state.
    fn explain<'a>(&'a self, id: &'a str) -> Answer<'a, Explanation>;

    /// Brings an image, so that the next sandbox of it starts at once.
    fn pull_image<'a>(&'a self, image: &'a str) -> Answer<'a, ()>;

    /// Tells whether an image is at hand.
    fn is_image_available<'a>(&'a self, image: &'a str) -> Answer<'a, bool>;

    /// Tells whether the provider can be used.
    fn health_check(&self) -> BoxFuture<'_, Health>;

    /// Removes sandboxes and returns how many.
    fn cleanup(&self, which: CleanUp) -> Answer<'_, usize> {
        Box::pin(async move {
            let mut removed = 0;
            for info in self.list().await?.into_iter().filter(|info| which.matches(info)) {
                self.remove(&info.id).await?;
                removed += 1;
            }
            Ok(removed)
        })
    }

    /// Subscribes to what happens from now on. A subscriber that falls far behind loses the oldest events.
    fn subscribe(&self) -> broadcast::Receiver<ProviderEvent>;
}
