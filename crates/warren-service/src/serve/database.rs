//! The service's data beside the sessions: hashes of keys and logins, settings, and the session of
//! each terminal. Runs of agents are in the same file ([`super::agent_runs`]).

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use serde_json::Value;

use super::access::Hash;
use super::answer::Failure;

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS keys (hash BLOB PRIMARY KEY, created INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS logins (hash BLOB PRIMARY KEY, ends INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS settings (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS terminals (
    session TEXT PRIMARY KEY,
    sandbox TEXT NOT NULL,
    columns INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    exit_code INTEGER,
    ended INTEGER
) STRICT, WITHOUT ROWID;
";

/// A terminal, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TerminalRow {
    /// The session with its events.
    pub session: String,
    /// The sandbox that it was opened in.
    pub sandbox: String,
    /// Its width in characters.
    pub columns: u16,
    /// Its height.
    pub rows: u16,
    /// The exit code of its shell, if it ended and the code is known.
    pub exit_code: Option<i32>,
    /// When it ended.
    pub ended: Option<Timestamp>,
}

/// One SQLite file. An acknowledged write is on disk. Clones share it.
#[derive(Clone, Debug)]
pub struct Database(Arc<Mutex<Connection>>);

impl Database {
    /// Opens the file, or makes it for its owner only.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        // SQLite gives its other files the permissions of this one.
        let made = std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path);
        drop(made.with_context(|| format!("open `{}`", path.display()))?);
        let open = || -> rusqlite::Result<Connection> {
            let connection = Connection::open(path)?;
            connection.query_row("PRAGMA journal_mode = WAL", (), |_| Ok(()))?;
            connection.pragma_update(None, "synchronous", "FULL")?;
            connection.execute_batch(SCHEMA)?;
            connection.execute_batch(super::agent_runs::SCHEMA)?;
            Ok(connection)
        };
        let connection = open().with_context(|| format!("open the database `{}`", path.display()))?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    pub(super) async fn run<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let shared = self.0.clone();
        let ran = tokio::task::spawn_blocking(move || {
            query(&shared.lock().unwrap_or_else(PoisonError::into_inner))
        });
        match ran.await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(Failure::internal(format!("the service's database: {error}"))),
            Err(error) => Err(Failure::internal(format!("the service's database: {error}"))),
        }
    }

    /// Returns the hashes of all keys.
    pub async fn keys(&self) -> Result<Vec<Hash>, Failure> {
        self.run(|connection| {
            let mut statement = connection.prepare("SELECT hash FROM keys")?;
            statement.query_map((), |row| row.get(0))?.collect()
        })
        .await
    }

    /// Stores the hash of a key.
    pub async fn add_key(&self, key: Hash, now: Timestamp) -> Result<(), Failure> {
        self.run(move |connection| {
            let insert = "INSERT OR IGNORE INTO keys (hash, created) VALUES (?, ?)";
            connection.execute(insert, params![key, now.as_second()]).map(drop)
        })
        .await
    }

    /// Returns the logins that have not ended, and forgets the others.
    pub async fn logins(&self, now: Timestamp) -> Result<HashMap<Hash, Timestamp>, Failure> {
        self.run(move |connection| {
            connection.execute("DELETE FROM logins WHERE ends <= ?", [now.as_second()])?;
            let mut statement = connection.prepare("SELECT hash, ends FROM logins")?;
            statement.query_map((), |row| Ok((row.get(0)?, time(row, 1)?)))?.collect()
        })
        .await
    }

    /// Stores the hash of a login's token.
    pub async fn add_login(&self, login: Hash, ends: Timestamp) -> Result<(), Failure> {
        self.run(move |connection| {
            let insert = "INSERT OR REPLACE INTO logins (hash, ends) VALUES (?, ?)";
            connection.execute(insert, params![login, ends.as_second()]).map(drop)
        })
        .await
    }

    /// Forgets a login.
    pub async fn remove_login(&self, login: Hash) -> Result<(), Failure> {
        self.run(move |connection| connection.execute("DELETE FROM logins WHERE hash = ?", [login]).map(drop))
            .await
    }

    /// Returns all settings.
    pub async fn settings(&self) -> Result<BTreeMap<String, Value>, Failure> {
        let texts: Vec<(String, String)> = self
            .run(|connection| {
                let mut statement = connection.prepare("SELECT key, value FROM settings")?;
                statement.query_map((), |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
            })
            .await?;
        Ok(texts
            .into_iter()
            .filter_map(|(key, text)| Some((key, serde_json::from_str(&text).ok()?)))
            .collect())
    }

    /// Stores a setting.
    pub async fn set(&self, key: &str, value: &Value) -> Result<(), Failure> {
        let (key, value) = (key.to_owned(), value.to_string());
        self.run(move |connection| {
            let insert = "INSERT OR REPLACE INTO settings (key, value) VALUES (?, ?)";
            connection.execute(insert, params![key, value]).map(drop)
        })
        .await
    }

    /// Stores a new terminal.
    pub async fn add_terminal(&self, terminal: TerminalRow) -> Result<(), Failure> {
        self.run(move |connection| {
            let insert = "INSERT INTO terminals (session, sandbox, columns, rows) VALUES (?, ?, ?, ?)";
            let TerminalRow { session, sandbox, columns, rows, .. } = terminal;
            connection.execute(insert, params![session, sandbox, columns, rows]).map(drop)
        })
        .await
    }

    /// Stores a terminal's size.
    pub async fn resize(&self, session: &str, columns: u16, rows: u16) -> Result<(), Failure> {
        let session = session.to_owned();
        self.run(move |connection| {
            let update = "UPDATE terminals SET columns = ?, rows = ? WHERE session = ?";
            connection.execute(update, params![columns, rows, session]).map(drop)
        })
        .await
    }

    /// Stores a terminal's end.
    pub async fn end_terminal(
        &self,
        session: &str,
        code: Option<i32>,
        now: Timestamp,
    ) -> Result<(), Failure> {
        let session = session.to_owned();
        self.run(move |connection| {
            let update = "UPDATE terminals SET exit_code = ?, ended = ? WHERE session = ?";
            connection.execute(update, params![code, now.as_millisecond(), session]).map(drop)
        })
        .await
    }

    /// Forgets a terminal.
    pub async fn remove_terminal(&self, session: &str) -> Result<(), Failure> {
        let session = session.to_owned();
        self.run(move |connection| {
            connection.execute("DELETE FROM terminals WHERE session = ?", [session]).map(drop)
        })
        .await
    }

    /// Returns a terminal.
    pub async fn terminal(&self, session: &str) -> Result<Option<TerminalRow>, Failure> {
        let session = session.to_owned();
        self.run(move |connection| {
            let query = format!("{SELECT_TERMINAL} WHERE session = ?");
            connection.query_row(&query, [session], read_terminal).optional()
        })
        .await
    }

    /// Returns all terminals by their sessions.
    pub async fn terminals(&self) -> Result<HashMap<String, TerminalRow>, Failure> {
        let rows: Vec<TerminalRow> = self
            .run(|connection| connection.prepare(SELECT_TERMINAL)?.query_map((), read_terminal)?.collect())
            .await?;
        Ok(rows.into_iter().map(|row| (row.session.clone(), row)).collect())
    }
}

const SELECT_TERMINAL: &str = "SELECT session, sandbox, columns, rows, exit_code, ended FROM terminals";

fn read_terminal(row: &Row<'_>) -> rusqlite::Result<TerminalRow> {
    let ended: Option<i64> = row.get(5)?;
    Ok(TerminalRow {
        session: row.get(0)?,
        sandbox: row.get(1)?,
        columns: row.get(2)?,
        rows: row.get(3)?,
        exit_code: row.get(4)?,
        ended: ended.and_then(|ended| Timestamp::from_millisecond(ended).ok()),
    })
}

fn time(row: &Row<'_>, index: usize) -> rusqlite::Result<Timestamp> {
    Timestamp::from_second(row.get(index)?).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(index, rusqlite::types::Type::Integer, error.into())
    })
}
