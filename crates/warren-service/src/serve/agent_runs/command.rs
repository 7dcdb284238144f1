//! `warren agent run`: one run in this process, without the service.
//!
//! Its data is in a directory of its own, which goes with the run. A process that was killed leaves
//! the directory, and the next one for the same home or cluster removes it, with the sandbox.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use warren_client::home::{DataDir, Surroundings};
use warren_providers::{Options, Provider, Wanted, WarrenProvider};
use warren_sessions::{Event, Kind, Limits, Source, Store, Tail};

use super::repository::{self, NewRepository};
use super::{AgentRuns, NewRun, Plan, Run, State};
use crate::cli;
use crate::home::Home;
use crate::serve::changes::Changes;
use crate::serve::database::Database;
use crate::serve::settings::Runner;
use crate::serve::terminals::is_end;
use crate::serve::{Reach, failed, lock, make_directory};

/// Exit codes that are not the runner's: of a failure before or beside it, and of its timeout, as
/// `warren run` has them.
const OWN_FAILURE: u8 = 125;
const TIMED_OUT: u8 = 124;

/// The longest prompt that is read from a file. A longer one is refused anyway.
const MOST_READ: u64 = 1 << 20;

/// The home or cluster of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    namespace: Option<String>,
}

/// Carries a run out and prints its events. The exit code is the runner's.
pub fn agent_run(arguments: cli::AgentRun) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let ran = match runtime.context("start") {
        Ok(runtime) => runtime.block_on(run(arguments)),
        Err(error) => Err(error),
    };
    match ran {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(OWN_FAILURE)
        }
    }
}

async fn run(arguments: cli::AgentRun) -> anyhow::Result<u8> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for signals")?;
    let own = &arguments.place;
    let data_dir = DataDir::locate(own.data_dir.as_deref(), &Surroundings::of_this_process())
        .and_then(|path| DataDir::create(&path))?;
    let kubeconfig =
        own.kubeconfig.as_deref().map(std::path::absolute).transpose().context("find the kubeconfig")?;
    let place = Place { kubeconfig, context: own.context.clone(), namespace: own.namespace.clone() };
    let provider = provider(&arguments);
    let id = uuid::Uuid::new_v4().simple().to_string();
    let new = new_run(arguments)?;
    let allowed: Vec<PathBuf> = new.repository.iter().map(|repository| repository.path.clone()).collect();
    let plan = Plan::new(new, &Runner::default(), id.clone(), Timestamp::now());
    let mut plan = plan.map_err(failed)?;
    let all = make_directory(&data_dir.path().join("agent-runs"))?;
    sweep(&all, &place, &provider).await;
    let directory = Directory::make(&all.join(&id), &place)?;
    let shutdown = CancellationToken::new();
    let (runs, store) = directory.open(provider, shutdown.clone())?;
    let begun = match plan.find_repository(&repository::allowed(&allowed), &runs.scratch).await {
        Ok(()) => runs.begin(plan).await,
        Err(failure) => Err(failure),
    };
    if begun.is_ok() {
        let tail = store.tail(&id, 0).await.context("follow the run")?;
        let printed = tokio::select! {
            printed = print(tail) => printed,
            _ = terminate.recv() => Err(anyhow::Error::msg("terminated")),
            _ = interrupt.recv() => Err(anyhow::Error::msg("interrupted")),
        };
        if let Err(reason) = printed {
            eprintln!("warren: {reason:#}; ending the run");
            // It may have ended just now.
            let _ = runs.cancel(&id).await;
        }
    }
    runs.close().await;
    shutdown.cancel();
    let run = runs.find(&id).await;
    if run.as_ref().map_or(begun.is_err(), |run| run.cleaned) {
        directory.remove();
    } else {
        eprintln!("warren: the sandbox of the run is still there; the next `warren agent run` removes it");
    }
    begun.map_err(failed)?;
    Ok(end_of(&run.map_err(failed)?))
}

/// Says how a run ended, if not by its runner, and returns the exit code.
fn end_of(run: &Run) -> u8 {
    match (run.exit_code, &run.error) {
        // Exit codes have eight bits.
        (Some(code), _) => code as u8,
        (None, Some(problem)) => {
            eprintln!("error: {}", plain(&problem.message));
            if problem.code == "AGENT_RUN_TIMEOUT" { TIMED_OUT } else { OWN_FAILURE }
        }
        (None, None) if run.state == State::Cancelled => 130,
        (None, None) => OWN_FAILURE,
    }
}

fn provider(arguments: &cli::AgentRun) -> Arc<dyn Provider> {
    let place = &arguments.place;
    let (home, local_home) = match &place.kubeconfig {
        Some(kubeconfig) => {
            (Home::Cluster { kubeconfig: kubeconfig.clone(), context: place.context.clone() }, false)
        }
        None => (Home::Local { data_dir: place.data_dir.clone() }, true),
    };
    let options = Options {
        namespace: place.namespace.clone(),
        image: place.image.clone(),
        local_home,
        runtime_class: None,
        most_sandboxes: place.max_sandboxes,
    };
    Arc::new(WarrenProvider::new(options, Reach::new(home)))
}

fn new_run(arguments: cli::AgentRun) -> anyhow::Result<NewRun> {
    let prompt = match (arguments.prompt, arguments.prompt_file) {
        (Some(prompt), _) => Some(prompt),
        (None, Some(file)) => Some(read_prompt(&file)?),
        (None, None) => None,
    };
    let mut env = std::collections::BTreeMap::new();
    for word in arguments.env {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name.to_owned(), value.to_owned()),
            None => {
                let value = std::env::var(&word)
                    .with_context(|| format!("`--env {}` names a variable to pass on", plain(&word)))?;
                (word, value)
            }
        };
        env.insert(name, value);
    }
    let sandbox = arguments.sandbox.is_none().then(|| Wanted {
        pool: arguments.pool,
        template: arguments.template,
        memory_mb: arguments.memory_mb,
        network: arguments.network,
        allowed_hosts: (!arguments.allow_host.is_empty()).then_some(arguments.allow_host),
        ..Wanted::default()
    });
    let repository = match arguments.repository {
        Some(path) => Some(NewRepository {
            path: std::path::absolute(path).context("find the repository")?,
            reference: arguments.reference,
            directory: None,
        }),
        None => None,
    };
    let mut words = arguments.command.into_iter();
    Ok(NewRun {
        project_id: arguments.project,
        task_id: arguments.task,
        agent_id: arguments.agent,
        title: None,
        sandbox_id: arguments.sandbox,
        sandbox,
        repository,
        cmd: words.next(),
        args: words.collect(),
        cwd: arguments.cwd,
        prompt,
        env,
        timeout_ms: arguments.timeout.map(|timeout| {
            // Out of range is refused with the range.
            u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)
        }),
    })
}

fn read_prompt(file: &Path) -> anyhow::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    let read = match file == Path::new("-") {
        true => std::io::stdin().take(MOST_READ).read_to_string(&mut text),
        false => {
            std::fs::File::open(file).and_then(|opened| opened.take(MOST_READ).read_to_string(&mut text))
        }
    };
    read.with_context(|| format!("read the prompt from `{}`", file.display()))?;
    Ok(text)
}

/// The directory of a run, held by this process.
struct Directory {
    path: PathBuf,
    _lock: std::fs::File,
}

impl Directory {
    const PLACE: &str = "place.json";

    fn make(path: &Path, place: &Place) -> anyhow::Result<Self> {
        let path = make_directory(path)?;
        let lock = lock(&path)?;
        // The last file: a directory without it has nothing to clean up.
        let text = serde_json::to_vec(place).context("describe the home")?;
        std::fs::write(path.join(Self::PLACE), text)
            .with_context(|| format!("write in `{}`", path.display()))?;
        Ok(Self { path, _lock: lock })
    }

    /// Takes the directory of a process that has ended, if it is one for this home or cluster.
    fn take(path: PathBuf, place: &Place) -> Option<Self> {
        let text = std::fs::read(path.join(Self::PLACE)).ok()?;
        let of: Place = serde_json::from_slice(&text).ok()?;
        let lock = (of == *place).then(|| lock(&path).ok()).flatten()?;
        Some(Self { path, _lock: lock })
    }

    fn open(
        &self,
        provider: Arc<dyn Provider>,
        shutdown: CancellationToken,
    ) -> anyhow::Result<(Arc<AgentRuns>, Store)> {
        let database = Database::open(&self.path.join("service.db"))?;
        let store = Store::open(&self.path.join("sessions.db"), Limits::default())?;
        let scratch = make_directory(&self.path.join("repositories"))?;
        let runs = AgentRuns::new(scratch, provider, store.clone(), database, Changes::new(), shutdown);
        Ok((runs, store))
    }

    fn remove(self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the directory of a run stays");
        }
    }
}

/// Removes what killed processes have left: sandboxes, then directories.
async fn sweep(all: &Path, place: &Place, provider: &Arc<dyn Provider>) {
    let entries = std::fs::read_dir(all).into_iter().flatten().flatten();
    for directory in entries.filter_map(|entry| Directory::take(entry.path(), place)) {
        let swept = async {
            let (runs, _) = directory.open(provider.clone(), CancellationToken::new())?;
            match runs.clean_left(&mut std::collections::HashSet::new()).await.map_err(failed)? {
                true => bail!("a sandbox cannot be removed"),
                false => Ok(()),
            }
        };
        match swept.await {
            Ok(()) => directory.remove(),
            Err(error) => {
                tracing::warn!(path = %directory.path.display(), "an earlier run is not cleaned up: {error:#}");
            }
        }
    }
}

/// Prints events until the session's end. Fails if they cannot be printed.
async fn print(mut tail: Tail) -> anyhow::Result<()> {
    loop {
        let events = tail.next().await.context("follow the run")?;
        for event in &events {
            show(event).context("print")?;
        }
        if events.last().is_some_and(is_end) {
            return Ok(());
        }
    }
}

/// Prints output as it is, and steps of the agent as lines of standard error.
fn show(event: &Event) -> std::io::Result<()> {
    match (event.kind, event.source) {
        (Kind::TerminalOutput, Source::Agent) => {
            let mut stdout = std::io::stdout().lock();
            stdout.write_all(&event.data)?;
            stdout.flush()
        }
        (Kind::TerminalError, _) => std::io::stderr().lock().write_all(&event.data),
        (Kind::ToolInvoke | Kind::ToolResult | Kind::State, Source::Agent) => {
            let text = String::from_utf8_lossy(&event.data);
            writeln!(std::io::stderr().lock(), "[{}] {}", event.kind.name(), plain(&text))
        }
        (Kind::State, Source::System) => {
            let state: Value = serde_json::from_slice(&event.data).unwrap_or_default();
            match state["state"].as_str() {
                Some("creating") => {
                    let sandbox = state["sandboxId"].as_str().unwrap_or_default();
                    writeln!(std::io::stderr().lock(), "[state] sandbox `{sandbox}`")
                }
                Some("returned") => {
                    let branch = state["repository"]["branch"].as_str().unwrap_or_default();
                    match state["repository"]["commit"].as_str() {
                        Some(_) => {
                            writeln!(std::io::stderr().lock(), "[state] the result is on branch `{branch}`")
                        }
                        None => writeln!(std::io::stderr().lock(), "[state] nothing was changed"),
                    }
                }
                _ => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// Returns text without the characters that control a terminal.
fn plain(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}
