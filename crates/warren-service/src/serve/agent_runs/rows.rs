//! Runs as they are stored and shown. Prompts and variables are in neither.

use jiff::Timestamp;
use rusqlite::types::Type;
use rusqlite::{OptionalExtension as _, Row, params};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::repository::Repository;
use crate::serve::answer::Failure;
use crate::serve::database::Database;

/// The table of runs.
pub const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS agent_runs (
    id TEXT PRIMARY KEY,
    title TEXT NOT NULL,
    project TEXT,
    task TEXT,
    agent TEXT,
    command TEXT NOT NULL,
    timeout_ms INTEGER NOT NULL,
    repository TEXT,
    sandbox TEXT,
    own_sandbox INTEGER NOT NULL,
    state TEXT NOT NULL,
    exit_code INTEGER,
    error TEXT,
    created INTEGER NOT NULL,
    started INTEGER,
    ended INTEGER,
    cleaned INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS agent_runs_created ON agent_runs (created);
";

/// The state of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Its sandbox is being made or started.
    Creating,
    /// Its runner runs.
    Running,
    /// Its runner ended with exit code 0.
    Succeeded,
    /// A step failed, its runner among them, or its time was over.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// The end of its runner is not known: the service or the sandbox ended before it.
    Lost,
}

/// The reason that a run did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The code that programs test.
    pub code: String,
    /// A description for people.
    pub message: String,
}

/// A run. Its session has the same id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its id.
    pub id: String,
    /// Its title for people.
    pub title: String,
    /// The project it belongs to.
    pub project: Option<String>,
    /// The task it belongs to.
    pub task: Option<String>,
    /// The agent that works.
    pub agent: Option<String>,
    /// The runner's program and arguments.
    pub command: Vec<String>,
    /// The time that the runner may take, in milliseconds.
    pub timeout_ms: u64,
    /// The repository that it works on.
    pub repository: Option<Repository>,
    /// Its sandbox, once there is one.
    pub sandbox: Option<String>,
    /// True if the sandbox was made for the run, and is removed with its end.
    pub own_sandbox: bool,
    /// Its state.
    pub state: State,
    /// The runner's exit code, if it is known.
    pub exit_code: Option<i32>,
    /// The reason that it did not succeed.
    pub error: Option<Problem>,
    /// When it was asked for.
    pub created: Timestamp,
    /// When its runner was started.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// True once its session has an end and its own sandbox is removed.
    pub cleaned: bool,
}

impl Run {
    /// Returns the run as clients see it.
    pub fn shown(&self) -> Value {
        let between = |from: Option<Timestamp>, to: Option<Timestamp>| {
            Some(to?.as_millisecond().saturating_sub(from?.as_millisecond()).max(0))
        };
        let created = Some(self.created);
        json!({
            "id": self.id,
            "title": self.title,
            "projectId": self.project,
            "taskId": self.task,
            "agentId": self.agent,
            "sessionId": self.id,
            "sandboxId": self.sandbox,
            "ownSandbox": self.own_sandbox,
            "command": self.command,
            "repository": self.repository,
            "timeoutMs": self.timeout_ms,
            "state": self.state,
            "exitCode": self.exit_code,
            "error": self.error,
            "createdAt": self.created,
            "startedAt": self.started,
            "endedAt": self.ended,
            "durations": {
                "sandboxMs": between(created, self.started),
                "runnerMs": between(self.started, self.ended),
                "totalMs": between(created, self.ended),
            },
            "cleanedUp": self.cleaned,
        })
    }
}

const COLUMNS: &str = "id, title, project, task, agent, command, timeout_ms, sandbox, own_sandbox, state, \
    exit_code, error, created, started, ended, cleaned, repository";

fn json<T: Serialize>(value: &T) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

fn parse<T: for<'a> Deserialize<'a>>(index: usize, text: &str) -> rusqlite::Result<T> {
    serde_json::from_str(text)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(index, Type::Text, error.into()))
}

fn read(row: &Row<'_>) -> rusqlite::Result<Run> {
    let text = |index| row.get::<_, String>(index);
    let time = |index| -> rusqlite::Result<Option<Timestamp>> {
        let time: Option<i64> = row.get(index)?;
        Ok(time.and_then(|time| Timestamp::from_millisecond(time).ok()))
    };
    let (error, repository): (Option<String>, Option<String>) = (row.get(11)?, row.get(16)?);
    Ok(Run {
        id: text(0)?,
        title: text(1)?,
        project: row.get(2)?,
        task: row.get(3)?,
        agent: row.get(4)?,
        command: parse(5, &text(5)?)?,
        timeout_ms: row.get::<_, i64>(6)?.cast_unsigned(),
        sandbox: row.get(7)?,
        own_sandbox: row.get(8)?,
        state: parse(9, &text(9)?)?,
        exit_code: row.get(10)?,
        error: error.map(|error| parse(11, &error)).transpose()?,
        created: time(12)?.unwrap_or(Timestamp::UNIX_EPOCH),
        started: time(13)?,
        ended: time(14)?,
        cleaned: row.get(15)?,
        repository: repository.map(|repository| parse(16, &repository)).transpose()?,
    })
}

impl Database {
    /// Stores a run as it is now.
    pub async fn put_agent_run(&self, run: &Run) -> Result<(), Failure> {
        let run = run.clone();
        self.run(move |connection| {
            let statement = format!(
                "INSERT OR REPLACE INTO agent_runs ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            );
            let milliseconds = |time: Timestamp| time.as_millisecond();
            connection
                .execute(
                    &statement,
                    params![
                        run.id,
                        run.title,
                        run.project,
                        run.task,
                        run.agent,
                        json(&run.command)?,
                        run.timeout_ms.cast_signed(),
                        run.sandbox,
                        run.own_sandbox,
                        json(&run.state)?,
                        run.exit_code,
                        run.error.as_ref().map(json).transpose()?,
                        run.created.as_millisecond(),
                        run.started.map(milliseconds),
                        run.ended.map(milliseconds),
                        run.cleaned,
                        run.repository.as_ref().map(json).transpose()?,
                    ],
                )
                .map(drop)
        })
        .await
    }

    /// Notes that nothing of a run is left to do. A run that was deleted stays deleted.
    pub async fn clean_agent_run(&self, id: &str) -> Result<(), Failure> {
        let id = id.to_owned();
        self.run(move |connection| {
            connection.execute("UPDATE agent_runs SET cleaned = 1 WHERE id = ?", [id]).map(drop)
        })
        .await
    }

    /// Forgets a run.
    pub async fn remove_agent_run(&self, id: &str) -> Result<(), Failure> {
        let id = id.to_owned();
        self.run(move |connection| connection.execute("DELETE FROM agent_runs WHERE id = ?", [id]).map(drop))
            .await
    }

    /// Returns a run.
    pub async fn agent_run(&self, id: &str) -> Result<Option<Run>, Failure> {
        let id = id.to_owned();
        self.run(move |connection| {
            let query = format!("SELECT {COLUMNS} FROM agent_runs WHERE id = ?");
            connection.query_row(&query, [id], read).optional()
        })
        .await
    }

    /// Returns the newest runs, at most so many, the newest first.
    pub async fn agent_runs(&self, most: usize) -> Result<Vec<Run>, Failure> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        self.run(move |connection| {
            let query = format!("SELECT {COLUMNS} FROM agent_runs ORDER BY created DESC, id LIMIT ?");
            connection.prepare(&query)?.query_map([most], read)?.collect()
        })
        .await
    }

    /// Returns the runs of which something is left to do.
    pub async fn agent_runs_left(&self) -> Result<Vec<Run>, Failure> {
        self.run(|connection| {
            let query = format!("SELECT {COLUMNS} FROM agent_runs WHERE cleaned = 0");
            connection.prepare(&query)?.query_map((), read)?.collect()
        })
        .await
    }
}
