//! `warren task`: submit tasks, follow them, read their logs and results.

pub mod arguments;
mod shown;
mod wanted;

use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::{AsyncReadExt as _, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use warren_api::{AgentTask, Sandbox};
use warren_client::kube::api::{Api, DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams};
use warren_client::kube::runtime::{WatchStreamExt as _, watcher};
use warren_client::kube::{Client, Error, ResourceExt as _};
use warren_client::sandbox;

use crate::cli::{Format, Place};
use crate::config::Layer;
use crate::destination::Destination;
use arguments::{Logs, Names, Submit, TaskCommand, TaskResult, Wait, Watch};
use shown::{State, row, state};

/// The number of consecutive failures of a watch after which waiting is given up. The watch waits
/// longer after each failure.
const FAILURES: usize = 6;

/// Runs one of the commands and returns the exit code.
pub fn carry_out(command: &TaskCommand) -> anyhow::Result<i32> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start")?;
    runtime.block_on(async {
        match command {
            TaskCommand::Submit(arguments) => submit(arguments).await,
            TaskCommand::List(arguments) => list(arguments).await,
            TaskCommand::Watch(arguments) => watch(arguments).await,
            TaskCommand::Wait(arguments) => wait(arguments).await,
            TaskCommand::Logs(arguments) => logs(arguments).await,
            TaskCommand::Result(arguments) => result(arguments).await,
            TaskCommand::Cancel(arguments) => cancel(arguments).await,
            TaskCommand::Delete(arguments) => delete(arguments).await,
        }
    })
}

struct Tasks {
    client: Client,
    namespace: String,
    api: Api<AgentTask>,
}

impl Tasks {
    async fn connect(place: &Place) -> anyhow::Result<Self> {
        let destination = Destination::choose(place, Layer::new())?;
        let client = destination.connect().await?;
        let api = Api::namespaced(client.clone(), &destination.namespace);
        Ok(Self { client, namespace: destination.namespace.clone(), api })
    }

    /// Returns the error of a request, with hints for an unknown task and an unknown kind.
    fn failed(&self, what: &str, name: &str, error: Error) -> anyhow::Error {
        let namespace = &self.namespace;
        match &error {
            Error::Api(status) if status.code == 404 && status.message.contains(name) => {
                anyhow::anyhow!(
                    "there is no task `{name}` in namespace `{namespace}`; `warren task list` shows all"
                )
            }
            Error::Api(status) if status.code == 404 => {
                anyhow::anyhow!("this API does not serve tasks (`agenttasks.warren.dev`)")
            }
            _ => anyhow::Error::from(error).context(format!("{what} task `{namespace}/{name}`")),
        }
    }

    async fn get(&self, name: &str) -> anyhow::Result<AgentTask> {
        self.api.get(name).await.map_err(|error| self.failed("read", name, error))
    }

    /// Calls `look` with the present task, and again after every change, until it returns a value.
    async fn until<T>(&self, name: &str, mut look: impl FnMut(&AgentTask) -> Option<T>) -> anyhow::Result<T> {
        let task = self.get(name).await?;
        if let Some(found) = look(&task) {
            return Ok(found);
        }
        let changes = watcher::watch_object(self.api.clone(), name).default_backoff();
        let mut changes = std::pin::pin!(changes);
        let mut failures = 0;
        while let Some(change) = changes.next().await {
            match change {
                // A later task of the same name does not count.
                Ok(Some(now)) if now.metadata.uid == task.metadata.uid => {
                    failures = 0;
                    if let Some(found) = look(&now) {
                        return Ok(found);
                    }
                }
                Ok(_) => bail!("task `{}/{name}` was deleted", self.namespace),
                Err(error) if failures == FAILURES => {
                    return Err(anyhow::Error::from(error).context(format!("watch task `{name}`")));
                }
                Err(_) => failures += 1,
            }
        }
        bail!("the watch of task `{name}` ended")
    }

    async fn ended(&self, name: &str) -> anyhow::Result<AgentTask> {
        self.until(name, |task| state(task).is_final().then(|| task.clone())).await
    }
}

async fn submit(arguments: &Submit) -> anyhow::Result<i32> {
    let wanted = wanted::wanted(arguments)?;
    let tasks = Tasks::connect(&arguments.place).await?;
    let name = arguments.name.clone().unwrap_or_default();
    let created = tasks.api.create(&PostParams::default(), &wanted).await;
    let created = created.map_err(|error| tasks.failed("create", &name, error))?;
    let name = created.name_any();
    if !arguments.wait {
        match arguments.output.output {
            Format::Json => println!("{}", row(&created)),
            Format::Text => println!("{name}"),
        }
        return Ok(0);
    }
    eprintln!("task `{name}` submitted");
    let ended = tasks.ended(&name).await?;
    match arguments.output.output {
        Format::Json => println!("{}", row(&ended)),
        Format::Text => {
            if ended.status.as_ref().is_some_and(|status| status.sandbox_name.is_some())
                && let Err(error) = print_log(&tasks, &ended, &LogParams::default()).await
            {
                eprintln!("the log of task `{name}` cannot be read: {error:#}");
            }
            eprintln!("{}", shown::sentence(&ended));
        }
    }
    Ok(shown::exit_code(&ended))
}

async fn list(arguments: &arguments::List) -> anyhow::Result<i32> {
    let mut tasks = Tasks::connect(&arguments.place).await?;
    if arguments.all_namespaces {
        tasks.api = Api::all(tasks.client.clone());
    }
    let found = tasks.api.list(&ListParams::default()).await;
    let mut found = found.map_err(|error| tasks.failed("list", "*", error))?.items;
    found.sort_by_key(|task| task.metadata.creation_timestamp.clone());
    let rows: Vec<Value> = found.iter().map(row).collect();
    match arguments.output.output {
        Format::Json => println!("{}", json!({ "tasks": rows })),
        Format::Text => print!("{}", shown::table(&rows, Timestamp::now())),
    }
    Ok(0)
}

async fn watch(arguments: &Watch) -> anyhow::Result<i32> {
    let tasks = Tasks::connect(&arguments.place).await?;
    let mut last = None;
    let ended = tasks
        .until(&arguments.task, |task| {
            let now = shown::sentence(task);
            if last.as_ref() != Some(&now) {
                match arguments.output.output {
                    Format::Json => println!("{}", row(task)),
                    Format::Text => println!("{now}"),
                }
                last = Some(now);
            }
            state(task).is_final().then(|| task.clone())
        })
        .await?;
    Ok(shown::exit_code(&ended))
}

async fn wait(arguments: &Wait) -> anyhow::Result<i32> {
    let tasks = Tasks::connect(&arguments.place).await?;
    let all = futures::future::try_join_all(arguments.tasks.iter().map(|name| tasks.ended(name)));
    let ended = match arguments.timeout {
        None => all.await?,
        Some(timeout) => tokio::time::timeout(timeout, all).await.map_err(|_| {
            let shown = warren_api::go_duration::format(timeout);
            anyhow::anyhow!("the tasks have not ended within {shown}; they go on")
        })??,
    };
    for task in &ended {
        match arguments.output.output {
            Format::Json => println!("{}", row(task)),
            Format::Text => println!("{}", shown::sentence(task)),
        }
    }
    Ok(ended.iter().map(shown::exit_code).find(|code| *code != 0).unwrap_or(0))
}

async fn logs(arguments: &Logs) -> anyhow::Result<i32> {
    let tasks = Tasks::connect(&arguments.place).await?;
    let name = &arguments.task;
    let task = match arguments.follow {
        true => tasks.until(name, |task| (state(task) != State::Pending).then(|| task.clone())).await?,
        false => tasks.get(name).await?,
    };
    if state(&task) == State::Pending {
        bail!(
            "the command of task `{name}` does not run yet: {}; `--follow` waits for it",
            shown::message(&task)
        );
    }
    let parameters =
        LogParams { follow: arguments.follow, tail_lines: arguments.tail, ..LogParams::default() };
    print_log(&tasks, &task, &parameters).await?;
    Ok(0)
}

/// Prints the output of the last attempt's command.
async fn print_log(tasks: &Tasks, task: &AgentTask, parameters: &LogParams) -> anyhow::Result<()> {
    let name = task.name_any();
    let sandbox = task.status.as_ref().and_then(|status| status.sandbox_name.clone());
    let sandbox = sandbox.with_context(|| format!("task `{name}` never had a sandbox"))?;
    let sandboxes: Api<Sandbox> = Api::namespaced(tasks.client.clone(), &tasks.namespace);
    let found = sandboxes.get_opt(&sandbox).await.with_context(|| format!("find sandbox `{sandbox}`"))?;
    let found =
        found.with_context(|| format!("sandbox `{sandbox}` of task `{name}` is gone, with its log"))?;
    let containers = &found.spec.blueprint.pod_template.spec.containers;
    let runner = warren_api::task::RUNNER_CONTAINER;
    let container = containers.iter().find(|container| container.name == runner).or(containers.first());
    let parameters =
        LogParams { container: container.map(|container| container.name.clone()), ..parameters.clone() };
    let pods: Api<Pod> = Api::namespaced(tasks.client.clone(), &tasks.namespace);
    let pod = sandbox::pod_name(&found);
    let stream = pods.log_stream(&pod, &parameters).await;
    let mut stream = std::pin::pin!(stream.with_context(|| format!("read the log of pod `{pod}`"))?);
    let mut stdout = tokio::io::stdout();
    let mut buffer = vec![0; 16 << 10];
    loop {
        let length = stream.read(&mut buffer).await.context("read the log")?;
        if length == 0 {
            return Ok(());
        }
        let written = async {
            stdout.write_all(&buffer[..length]).await?;
            stdout.flush().await
        };
        match written.await {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.context("print the log")?,
        }
    }
}

async fn result(arguments: &TaskResult) -> anyhow::Result<i32> {
    let tasks = Tasks::connect(&arguments.place).await?;
    let task = tasks.get(&arguments.task).await?;
    if !state(&task).is_final() {
        bail!("task `{}` has not ended: {}", arguments.task, shown::message(&task));
    }
    match arguments.output.output {
        Format::Json => println!("{}", row(&task)),
        Format::Text => {
            if let Some(result) = shown::result(&task) {
                print!("{result}{}", if result.ends_with('\n') { "" } else { "\n" });
            }
            eprintln!("{}", shown::sentence(&task));
        }
    }
    Ok(0)
}

async fn cancel(arguments: &Names) -> anyhow::Result<i32> {
    let tasks = Tasks::connect(&arguments.place).await?;
    let patch = json!({"spec": {"cancel": true}});
    for name in &arguments.tasks {
        if state(&tasks.get(name).await?).is_final() {
            bail!("task `{name}` has ended already");
        }
        let patched = tasks.api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        patched.map_err(|error| tasks.failed("cancel", name, error))?;
        println!("{name}");
    }
    Ok(0)
}

async fn delete(arguments: &Names) -> anyhow::Result<i32> {
    let tasks = Tasks::connect(&arguments.place).await?;
    for name in &arguments.tasks {
        let deleted = tasks.api.delete(name, &DeleteParams::background()).await;
        deleted.map_err(|error| tasks.failed("delete", name, error))?;
        println!("{name}");
    }
    Ok(0)
}

/// Formats a duration for the schema of tasks: whole hours, minutes and seconds.
fn whole_seconds(option: &str, duration: Duration) -> anyhow::Result<u64> {
    anyhow::ensure!(
        duration.subsec_nanos() == 0 && !duration.is_zero(),
        "`{option}` takes whole seconds, and at least one"
    );
    Ok(duration.as_secs())
}
