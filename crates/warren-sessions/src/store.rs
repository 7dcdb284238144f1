//! The store: one SQLite file, one thread that writes, as many readers as there are.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Row, params};
use tokio::sync::{mpsc, oneshot};

use crate::error::SessionError;
use crate::event::{Event, Kind, NewEvent, NewSession, Session, Source};
use crate::live::{Rooms, Tail};
use crate::writer::{self, Reply, Request};

/// Writers that wait for the writing thread; more have to wait before they are heard.
const QUEUE: usize = 1024;

/// Connections that are kept for the next reader.
const IDLE_READERS: usize = 8;

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS sessions (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    title TEXT NOT NULL,
    project TEXT,
    task TEXT,
    agent TEXT,
    created INTEGER NOT NULL,
    changed INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS sessions_changed ON sessions (changed);
CREATE TABLE IF NOT EXISTS events (
    session INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    time INTEGER NOT NULL,
    kind TEXT NOT NULL,
    source TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (session, offset)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS turns (
    session INTEGER NOT NULL,
    writer TEXT NOT NULL,
    number INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    PRIMARY KEY (session, writer)
) STRICT, WITHOUT ROWID;
";

/// The limits on stored data.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The largest event.
    pub event_bytes: usize,
    /// The data of one session. Beyond it, its oldest events are removed.
    pub session_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { event_bytes: 1 << 20, session_bytes: 1 << 30 }
    }
}

/// Identifies an append, so that one which is sent again after a lost answer is stored once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The writer.
    pub writer: String,
    /// Grows with each append of this writer.
    pub number: u64,
}

/// Sessions on disk. Clones share it.
#[derive(Clone, Debug)]
pub struct Store(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    limits: Limits,
    requests: mpsc::Sender<Request>,
    readers: Mutex<Vec<Connection>>,
    rooms: Arc<Rooms>,
}

impl Store {
    /// Opens the file, or makes it. One process at a time writes to it.
    pub fn open(path: &Path, limits: Limits) -> Result<Self, SessionError> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(Duration::from_secs(10))?;
        connection.query_row("PRAGMA journal_mode = WAL", (), |_| Ok(()))?;
        // An acknowledged write has been fsynced.
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.execute_batch(SCHEMA)?;
        let (requests, receiver) = mpsc::channel(QUEUE);
        let rooms = Arc::new(Rooms::default());
        let viewers = rooms.clone();
        std::thread::Builder::new()
            .name("sessions-writer".to_owned())
            .spawn(move || writer::run(connection, receiver, limits, &viewers))
            .map_err(|error| SessionError::Database(format!("start the writing thread: {error}")))?;
        let readers = Mutex::default();
        Ok(Self(Arc::new(Inner { path: path.to_owned(), limits, requests, readers, rooms })))
    }

    pub(crate) fn rooms(&self) -> &Rooms {
        &self.0.rooms
    }

    async fn request<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, SessionError> {
        let (reply, answer) = oneshot::channel();
        self.0.requests.send(request(reply)).await.map_err(|_| SessionError::Closed)?;
        answer.await.map_err(|_| SessionError::Closed)?
    }

    /// Creates a session. It is on disk when this returns.
    pub async fn create(
        &self,
        id: &str,
        session: NewSession,
        now: Timestamp,
    ) -> Result<Session, SessionError> {
        let valid = !id.is_empty()
            && id.len() <= 128
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
        if !valid {
            let problem = "has to be at most 128 letters, digits, `-`, `_` and `.`".to_owned();
            return Err(SessionError::Invalid { field: "id", problem });
        }
        for (field, text) in [
            ("title", Some(&session.title)),
            ("project", session.project.as_ref()),
            ("task", session.task.as_ref()),
            ("agent", session.agent.as_ref()),
        ] {
            if text.is_some_and(|text| text.len() > 1024) {
                let problem = "has more than 1024 bytes".to_owned();
                return Err(SessionError::Invalid { field, problem });
            }
        }
        self.request(|reply| Request::Create { id: id.to_owned(), session, now, reply }).await?;
        self.session(id).await
    }

    /// Appends events, all or none, and returns the offset of the first. They are on disk when this returns.
    ///
    /// If it is cancelled or the process dies, they may be stored or not. With a [`Turn`], the writer can just
    /// append them again.
    pub async fn append(
        &self,
        session: &str,
        events: Vec<NewEvent>,
        turn: Option<Turn>,
        now: Timestamp,
    ) -> Result<u64, SessionError> {
        let limit = self.0.limits.event_bytes;
        if events.is_empty() {
            return Err(SessionError::Invalid { field: "events", problem: "is empty".to_owned() });
        }
        if let Some(event) = events.iter().find(|event| event.data.len() > limit) {
            let problem = format!("has {} bytes, and {limit} are possible; split it", event.data.len());
            return Err(SessionError::Invalid { field: "data", problem });
        }
        if turn.as_ref().is_some_and(|turn| turn.writer.len() > 128 || turn.number > i64::MAX.cast_unsigned())
        {
            let problem = "has a writer of more than 128 bytes or a number that is too large".to_owned();
            return Err(SessionError::Invalid { field: "turn", problem });
        }
        let session = session.to_owned();
        // As it is stored: who follows live sees the same event as one that reads it later.
        let now = Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now);
        self.request(|reply| Request::Append { session, events, turn, now, reply }).await
    }

    /// Deletes a session with its events.
    pub async fn delete(&self, session: &str) -> Result<(), SessionError> {
        self.request(|reply| Request::Delete { session: session.to_owned(), reply }).await
    }

    /// Deletes sessions without events since a time, and returns how many.
    pub async fn expire(&self, before: Timestamp) -> Result<u64, SessionError> {
        self.request(|reply| Request::Expire { before, reply }).await
    }

    /// Returns a session.
    pub async fn session(&self, id: &str) -> Result<Session, SessionError> {
        let id = id.to_owned();
        self.reading(move |connection| {
            connection
                .prepare_cached(&format!("{SELECT_SESSION} WHERE id = ?"))?
                .query_row([&id], read_session)
                .optional()?
                .ok_or(SessionError::NotFound(id))
        })
        .await
    }

    /// Lists the sessions that changed last, at most so many.
    pub async fn list(&self, most: usize) -> Result<Vec<Session>, SessionError> {
        self.reading(move |connection| {
            let query = format!("{SELECT_SESSION} ORDER BY changed DESC, number DESC LIMIT ?");
            let mut statement = connection.prepare_cached(&query)?;
            let most = i64::try_from(most).unwrap_or(i64::MAX);
            Ok(statement.query_map([most], read_session)?.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Reads events from an offset on, at least one if there is one, until `most` bytes of data are together.
    pub async fn read(&self, session: &str, from: u64, most: usize) -> Result<Vec<Event>, SessionError> {
        let id = session.to_owned();
        self.reading(move |connection| {
            // One snapshot for both queries.
            let transaction = connection.transaction()?;
            let known = transaction
                .prepare_cached("SELECT number, first_offset FROM sessions WHERE id = ?")?
                .query_row([&id], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))
                .optional()?;
            let Some((number, first)) = known else { return Err(SessionError::NotFound(id)) };
            if from < first.cast_unsigned() {
                return Err(SessionError::Trimmed { session: id, first: first.cast_unsigned() });
            }
            let from = i64::try_from(from).unwrap_or(i64::MAX);
            let mut statement = transaction.prepare_cached(
                "SELECT offset, time, kind, source, data FROM events WHERE session = ? AND offset >= ? ORDER BY offset",
            )?;
            let mut rows = statement.query(params![number, from])?;
            let (mut events, mut bytes) = (Vec::new(), 0);
            while bytes < most
                && let Some(row) = rows.next()?
            {
                let event = read_event(row)?;
                // Small events count, too: a million empty ones are not read at once.
                bytes += event.data.len() + 64;
                events.push(event);
            }
            Ok(events)
        })
        .await
    }

    /// Follows a session from an offset on.
    pub async fn tail(&self, session: &str, from: u64) -> Result<Tail, SessionError> {
        Tail::new(self, session, from).await
    }

    /// Runs a query on a connection of its own, beside the thread that writes.
    async fn reading<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut Connection) -> Result<T, SessionError> + Send + 'static,
    ) -> Result<T, SessionError> {
        let inner = self.0.clone();
        let task = tokio::task::spawn_blocking(move || {
            let idle = inner.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut connection = match idle {
                Some(connection) => connection,
                None => {
                    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
                    let connection = Connection::open_with_flags(&inner.path, flags)?;
                    connection.busy_timeout(Duration::from_secs(10))?;
                    connection
                }
            };
            let result = query(&mut connection);
            let mut readers = inner.readers.lock().unwrap_or_else(PoisonError::into_inner);
            if readers.len() < IDLE_READERS {
                readers.push(connection);
            }
            result
        });
        task.await.map_err(|error| SessionError::Database(format!("read: {error}")))?
    }
}

const SELECT_SESSION: &str = "SELECT id, title, project, task, agent, created, changed, first_offset, next_offset, \
    bytes FROM sessions";

fn read_session(row: &Row<'_>) -> rusqlite::Result<Session> {
    let number = |index| row.get::<_, i64>(index).map(i64::cast_unsigned);
    Ok(Session {
        id: row.get(0)?,
        title: row.get(1)?,
        project: row.get(2)?,
        task: row.get(3)?,
        agent: row.get(4)?,
        created: read_time(row, 5)?,
        changed: read_time(row, 6)?,
        first_offset: number(7)?,
        next_offset: number(8)?,
        bytes: number(9)?,
    })
}

fn read_event(row: &Row<'_>) -> rusqlite::Result<Event> {
    let word = |index, text: String| {
        let error = format!("`{text}` has no meaning here").into();
        rusqlite::Error::FromSqlConversionFailure(index, rusqlite::types::Type::Text, error)
    };
    let (kind, source): (String, String) = (row.get(2)?, row.get(3)?);
    Ok(Event {
        offset: row.get::<_, i64>(0)?.cast_unsigned(),
        time: read_time(row, 1)?,
        kind: Kind::parse(&kind).ok_or_else(|| word(2, kind))?,
        source: Source::parse(&source).ok_or_else(|| word(3, source))?,
        data: row.get(4)?,
    })
}

fn read_time(row: &Row<'_>, index: usize) -> rusqlite::Result<Timestamp> {
    Timestamp::from_millisecond(row.get(index)?).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(index, rusqlite::types::Type::Integer, error.into())
    })
}
