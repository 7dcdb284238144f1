//! Runs of agents: a sandbox, a session, a runner in the sandbox whose output becomes the session's
//! events, and the clean-up, as one operation.
//!
//! A run is stored before its sandbox is made and marked as cleaned after the sandbox is removed,
//! so that a service that was killed finds at its next start what is left to do. The steps are in
//! [`run`], requests are checked in [`plan`], output becomes events in [`lines`], and files of a
//! repository go in and come back in [`repository`].

mod command;
mod http;
mod lines;
mod plan;
mod repository;
mod rows;
mod run;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::http::StatusCode;
use jiff::Timestamp;
use serde_json::json;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use warren_providers::{Code, Provider};
use warren_sessions::{NewSession, SessionError, Store};

use super::answer::Failure;
use super::changes::{Changes, Topic};
use super::database::Database;
use super::settings::Runner;
use super::terminals::is_end;
pub use command::agent_run;
pub use http::{cancel, create, list, one, patch, remove};
pub use plan::{NewRun, Plan};
pub use repository::check_allowed;
pub use rows::{Problem, Run, SCHEMA, State};

/// Runs at the same time.
const MOST_AT_ONCE: usize = 16;

/// The longest time that cancelling waits for a run's end, and closing for those of all runs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The pauses between two attempts to clean up.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);

/// The time after which the sandbox of a run whose creation was cut off is looked for again: the
/// request may still have been on its way.
const LATE_SANDBOX: Duration = Duration::from_secs(5);

/// The reason that a run of an earlier service is lost.
const SERVICE_ENDED: &str = "the service ended while the run was under way";

/// The runs of a service.
pub struct AgentRuns {
    provider: Arc<dyn Provider>,
    store: Store,
    database: Database,
    changes: Changes,
    under_way: Mutex<HashMap<String, UnderWay>>,
    places: Arc<Semaphore>,
    tasks: TaskTracker,
    left: Notify,
    /// Held while a run that has ended is cleaned up or forgotten.
    cleaning: tokio::sync::Mutex<()>,
    /// The directory for copies of what repositories have.
    scratch: PathBuf,
    shutdown: CancellationToken,
}

/// A run that has not ended.
#[derive(Clone, Debug, Default)]
struct UnderWay {
    cancel: CancellationToken,
    ended: CancellationToken,
}

/// Checks the setting for the runner.
pub fn check_runner(runner: Runner) -> Result<(), Failure> {
    if runner.cmd.is_none() && !runner.args.is_empty() {
        return Err(Failure::invalid("args", "goes with `cmd`"));
    }
    Plan::new(NewRun::default(), &runner, "none".to_owned(), Timestamp::UNIX_EPOCH).map(drop)
}

/// Says that there is no such run.
fn not_found(id: &str) -> Failure {
    let details = Box::new(json!({ "agentRunId": id }));
    let message = format!("Agent run not found: {id}");
    Failure { details, ..Failure::new(StatusCode::NOT_FOUND, "AGENT_RUN_NOT_FOUND", message) }
}

impl AgentRuns {
    /// Makes a set without runs. `scratch` is a directory of its own.
    pub fn new(
        scratch: PathBuf,
        provider: Arc<dyn Provider>,
        store: Store,
        database: Database,
        changes: Changes,
        shutdown: CancellationToken,
    ) -> Arc<Self> {
        let (under_way, tasks, left) = (Mutex::default(), TaskTracker::new(), Notify::new());
        let places = Arc::new(Semaphore::new(MOST_AT_ONCE));
        let cleaning = tokio::sync::Mutex::default();
        Arc::new(Self {
            provider,
            store,
            database,
            changes,
            under_way,
            places,
            tasks,
            left,
            cleaning,
            scratch,
            shutdown,
        })
    }

    fn now_under_way(&self) -> std::sync::MutexGuard<'_, HashMap<String, UnderWay>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find_under_way(&self, id: &str) -> Option<UnderWay> {
        self.now_under_way().get(id).cloned()
    }

    /// Begins a run. When it returns, the run is stored, its sandbox is registered, and its session
    /// can be followed. If a step up to there fails, nothing of the run is left.
    ///
    /// A caller that gives up does not end the run.
    pub async fn begin(self: &Arc<Self>, plan: Plan) -> Result<String, Failure> {
        if self.shutdown.is_cancelled() {
            let message = "the service is shutting down";
            return Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "SHUTTING_DOWN", message));
        }
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            let message = format!("Resource limit exceeded: agent runs (limit: {MOST_AT_ONCE})");
            let details = Box::new(json!({ "resource": "agent runs", "limit": MOST_AT_ONCE }));
            let code = "SANDBOX_RESOURCE_LIMIT_EXCEEDED";
            Failure { details, ..Failure::new(StatusCode::TOO_MANY_REQUESTS, code, message) }
        })?;
        let (id, under_way) = (plan.run.id.clone(), UnderWay::default());
        self.now_under_way().insert(id.clone(), under_way.clone());
        let (begun, answer) = oneshot::channel();
        let runs = self.clone();
        self.tasks.spawn(async move {
            let id = plan.run.id.clone();
            // A task of its own, so that a panic in it leaves the run to the clean-up as well.
            let carried = tokio::spawn(run::carry(runs.clone(), plan, under_way.cancel.clone(), begun));
            if let Err(error) = carried.await {
                tracing::error!(run = id, %error, "agent run broke off");
                runs.lose(&id, "the service failed while the run was under way").await;
            }
            runs.now_under_way().remove(&id);
            under_way.ended.cancel();
            drop(place);
            runs.left.notify_one();
            runs.changes.tell(Topic::Sessions);
        });
        match answer.await {
            Ok(begun) => begun.map(|()| id),
            Err(_) => Err(Failure::internal("the run broke off")),
        }
    }

    /// Returns a run.
    pub async fn find(&self, id: &str) -> Result<Run, Failure> {
        self.database.agent_run(id).await?.ok_or_else(|| not_found(id))
    }

    /// Tells whether a run has not ended.
    pub fn is_under_way(&self, id: &str) -> bool {
        self.now_under_way().contains_key(id)
    }

    /// Ends a run, and waits until it has ended. Its session stays.
    pub async fn cancel(&self, id: &str) -> Result<Run, Failure> {
        let run = self.find(id).await?;
        let Some(under_way) = self.find_under_way(id) else {
            let message = format!("agent run `{id}` has ended");
            let details = Box::new(json!({ "state": run.state }));
            return Err(Failure {
                details,
                ..Failure::new(StatusCode::CONFLICT, "AGENT_RUN_ENDED", message)
            });
        };
        self.end(id, &under_way).await?;
        self.find(id).await
    }

    async fn end(&self, id: &str, under_way: &UnderWay) -> Result<(), Failure> {
        under_way.cancel.cancel();
        tokio::time::timeout(PATIENCE, under_way.ended.cancelled()).await.map_err(|_| {
            let message = format!("agent run `{id}` is being ended, which takes long; ask for it again");
            Failure::new(StatusCode::SERVICE_UNAVAILABLE, "AGENT_RUN_ENDING", message)
        })
    }

    /// Forgets a run with its session. One that is under way is cancelled first.
    pub async fn remove(&self, id: &str) -> Result<Run, Failure> {
        self.find(id).await?;
        if let Some(under_way) = self.find_under_way(id) {
            self.end(id, &under_way).await?;
        }
        let _cleaning = self.cleaning.lock().await;
        let run = self.find(id).await?;
        // Without its row, a sandbox that is still there would be forgotten.
        self.clean(&run).await?;
        match self.store.delete(id).await {
            Ok(()) | Err(SessionError::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
        self.database.remove_agent_run(id).await?;
        self.changes.tell(Topic::Sessions);
        Ok(run)
    }

    /// Removes the copies that a killed service has left.
    fn clear_scratch(&self) {
        for entry in std::fs::read_dir(&self.scratch).into_iter().flatten().flatten() {
            if let Err(error) = std::fs::remove_dir_all(entry.path()) {
                tracing::warn!(path = %entry.path().display(), %error, "a copy of a repository stays");
            }
        }
    }

    /// Marks the runs of an earlier service as lost: their runners ended with it.
    pub async fn end_earlier(&self) -> Result<(), Failure> {
        self.clear_scratch();
        for run in self.database.agent_runs_left().await? {
            if run.ended.is_none() {
                self.lose(&run.id, SERVICE_ENDED).await;
            }
        }
        Ok(())
    }

    /// Marks a run as lost if its end is not stored, and ends its session if that has no end.
    async fn lose(&self, id: &str, reason: &str) {
        let lost = async {
            let mut run = self.find(id).await?;
            if run.ended.is_none() {
                run.state = State::Lost;
                run.error = Some(Problem { code: "AGENT_RUN_LOST".to_owned(), message: reason.to_owned() });
                run.ended = Some(Timestamp::now());
                self.database.put_agent_run(&run).await?;
            }
            self.end_session(&run).await
        };
        if let Err(failure) = lost.await {
            tracing::error!(run = id, error = failure.message, "the end of an agent run is not stored");
        }
    }

    /// Gives the session of a run that has ended its last event, unless it has one.
    async fn end_session(&self, run: &Run) -> Result<(), Failure> {
        let now = Timestamp::now();
        let session = match self.store.session(&run.id).await {
            Err(SessionError::NotFound(_)) => self.store.create(&run.id, session_of(run), now).await?,
            found => found?,
        };
        if let Some(last) = session.next_offset.checked_sub(1)
            && self.store.read(&run.id, last, 1).await?.first().is_some_and(is_end)
        {
            return Ok(());
        }
        self.store.append(&run.id, run::last_events(run), None, now).await?;
        Ok(())
    }

    /// Removes the sandbox of a run that has ended, if it is the run's own. Can be repeated.
    async fn clean(&self, run: &Run) -> Result<(), Failure> {
        if run.cleaned {
            return Ok(());
        }
        if run.own_sandbox {
            let sandbox = match &run.sandbox {
                Some(sandbox) => Some(sandbox.clone()),
                None => {
                    let found = self.provider.get(&plan::own_project(&run.id)).await?;
                    found.map(|info| info.id)
                }
            };
            if let Some(sandbox) = sandbox {
                match self.provider.remove(&sandbox).await {
                    Err(error) if error.code != Code::SandboxNotFound => return Err(error.into()),
                    _ => {}
                }
            }
        }
        self.database.clean_agent_run(&run.id).await
    }

    /// Cleans up after runs for as long as the service runs: those of an earlier service, and those
    /// whose sandbox could not be removed at once.
    pub async fn clean_up(self: Arc<Self>) {
        let mut pause = FIRST_PAUSE;
        let mut absent = HashSet::new();
        loop {
            let left = match self.clean_left(&mut absent).await {
                Ok(left) => left,
                Err(failure) => {
                    tracing::warn!(error = failure.message, "agent runs are not cleaned up");
                    true
                }
            };
            let woken = async {
                match left {
                    true => tokio::time::sleep(pause).await,
                    false => self.left.notified().await,
                }
            };
            tokio::select! {
                () = woken => {}
                () = self.shutdown.cancelled() => return,
            }
            pause = if left { (pause * 2).min(LAST_PAUSE) } else { FIRST_PAUSE };
        }
    }

    /// Cleans up once, and tells whether something is left.
    async fn clean_left(&self, absent: &mut HashSet<String>) -> Result<bool, Failure> {
        let mut left = false;
        for run in self.database.agent_runs_left().await? {
            if self.is_under_way(&run.id) {
                continue;
            }
            // The creation of the sandbox was cut off. It may still come.
            let uncertain = run.own_sandbox && run.sandbox.is_none() && absent.insert(run.id.clone());
            if uncertain && self.provider.get(&plan::own_project(&run.id)).await.ok().flatten().is_none() {
                tokio::time::sleep(LATE_SANDBOX).await;
            }
            let _cleaning = self.cleaning.lock().await;
            // It may have been forgotten meanwhile.
            let Some(run) = self.database.agent_run(&run.id).await? else { continue };
            self.lose(&run.id, SERVICE_ENDED).await;
            if let Err(failure) = self.clean(&run).await {
                let error = failure.message;
                tracing::warn!(run = run.id, error, "the sandbox of an agent run is not removed yet");
                left = true;
            }
        }
        Ok(left)
    }

    /// Waits until the runs that were under way at the shutdown have ended.
    pub async fn close(&self) {
        self.tasks.close();
        if tokio::time::timeout(PATIENCE, self.tasks.wait()).await.is_err() {
            tracing::warn!(left = self.tasks.len(), "agent runs are left to the next start");
        }
    }
}

fn session_of(run: &Run) -> NewSession {
    NewSession {
        title: run.title.clone(),
        project: run.project.clone(),
        task: run.task.clone(),
        agent: run.agent.clone(),
    }
}
