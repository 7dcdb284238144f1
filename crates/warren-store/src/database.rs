//! The SQLite file: one table of objects and the version counter.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};
use thiserror::Error;

use crate::watch::{Change, ChangeKind};
use crate::{Key, Meta, Object};

/// Forward migrations: entry `n` brings a file from schema version `n` to `n + 1`.
const MIGRATIONS: &[&str] = &["
    CREATE TABLE object (
        resource TEXT NOT NULL,
        namespace TEXT NOT NULL,
        name TEXT NOT NULL,
        version INTEGER NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (resource, namespace, name)
    );
    -- Kept apart from the objects, because deleting the newest object must not turn the version back.
    CREATE TABLE counter (id INTEGER PRIMARY KEY CHECK (id = 0), version INTEGER NOT NULL);
    INSERT INTO counter (id, version) VALUES (0, 1);
"];

/// Written bytes after which the log is folded into the file even while writes keep coming.
const CHECKPOINT_BYTES: usize = 64 << 20;
/// How long the writer must be idle before it folds the log into the file.
pub(crate) const CHECKPOINT_AFTER_IDLE: Duration = Duration::from_millis(500);

/// Why a store could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// SQLite refused.
    #[error("open store {}", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// SQLite's reason.
        #[source]
        source: rusqlite::Error,
    },
    /// The file was written by a newer program.
    #[error("store {} has schema version {found}, this program knows up to {known}", path.display())]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// Its schema version.
        found: usize,
        /// The newest one known here.
        known: usize,
    },
    /// A row that is no JSON object: the file was damaged from outside.
    #[error("store {} has an unreadable object {key}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The row.
        key: Key,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// The writer thread could not be started.
    #[error("start the writer thread")]
    Thread(#[source] std::io::Error),
}

pub(crate) struct Database {
    connection: Connection,
    uncheckpointed: usize,
}

impl Database {
    /// Opens or creates the file and reads everything in it.
    pub fn open(path: &Path) -> Result<(Database, u64, Vec<Arc<Object>>), OpenError> {
        let failed = |source| OpenError::Database { path: path.to_owned(), source };
        let mut connection = Connection::open(path).map_err(failed)?;
        prepare(&connection).map_err(failed)?;
        let found = migrate(&mut connection).map_err(failed)?;
        if found > MIGRATIONS.len() {
            return Err(OpenError::NewerSchema { path: path.to_owned(), found, known: MIGRATIONS.len() });
        }
        let version: i64 =
            connection.query_row("SELECT version FROM counter", (), |row| row.get(0)).map_err(failed)?;
        let rows = read_objects(&connection).map_err(failed)?;
        let objects = rows
            .into_iter()
            .map(|(key, version, body)| match Meta::read(&body) {
                Ok(meta) => Ok(Arc::new(Object { key, version, body, meta })),
                Err(source) => Err(OpenError::Damaged { path: path.to_owned(), key, source }),
            })
            .collect::<Result<_, _>>()?;
        Ok((Database { connection, uncheckpointed: 0 }, version.cast_unsigned(), objects))
    }

    /// Writes changes in one transaction. When this returns they are on the disk.
    pub fn commit<'a>(&mut self, changes: impl Iterator<Item = &'a Change>) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        let mut version = None;
        let mut written = 0;
        {
            let mut put = transaction.prepare_cached(
                "INSERT INTO object (resource, namespace, name, version, body) VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT DO UPDATE SET version = excluded.version, body = excluded.body",
            )?;
            let mut delete = transaction
                .prepare_cached("DELETE FROM object WHERE resource = ?1 AND namespace = ?2 AND name = ?3")?;
            for Change { kind, object, .. } in changes {
                let key = &object.key;
                version = Some(object.version);
                match kind {
                    ChangeKind::Deleted => {
                        delete.execute(params![&*key.resource, &*key.namespace, &*key.name])?;
                    }
                    ChangeKind::Added | ChangeKind::Modified => {
                        let version = object.version.cast_signed();
                        put.execute(params![
                            &*key.resource,
                            &*key.namespace,
                            &*key.name,
                            version,
                            &object.body[..]
                        ])?;
                        written += object.body.len() + 8192;
                    }
                }
            }
            if let Some(version) = version {
                transaction
                    .prepare_cached("UPDATE counter SET version = ?1")?
                    .execute([version.cast_signed()])?;
            }
        }
        transaction.commit()?;
        self.uncheckpointed += written + 8192;
        if self.uncheckpointed > CHECKPOINT_BYTES {
            self.checkpoint();
        }
        Ok(())
    }

    /// Whether the log holds something that is not in the file yet.
    pub fn wants_checkpoint(&self) -> bool {
        self.uncheckpointed > 0
    }

    /// Folds the log into the file. Not needed for safety, so a failure is only logged.
    pub fn checkpoint(&mut self) {
        self.uncheckpointed = 0;
        let outcome = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", (), |_| Ok(())).optional();
        if let Err(error) = outcome {
            tracing::warn!(%error, "store checkpoint failed");
        }
    }
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    // Exclusive: one process owns the file, and the log's index then lives in memory instead of a shared mapping.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    connection.query_row("PRAGMA journal_mode = WAL", (), |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // The writer folds the log in when it is idle, so that no write pays for it.
    connection.query_row("PRAGMA wal_autocheckpoint = 0", (), |_| Ok(()))?;
    // Everything is read from memory, so the page cache only serves the writes of one transaction.
    connection.pragma_update(None, "cache_size", -1024)?;
    Ok(())
}

/// Brings the file to the newest schema and says which version it has.
fn migrate(connection: &mut Connection) -> rusqlite::Result<usize> {
    let found: i64 = connection.query_row("PRAGMA user_version", (), |row| row.get(0))?;
    let found = usize::try_from(found).unwrap_or(usize::MAX);
    if found >= MIGRATIONS.len() {
        return Ok(found);
    }
    let transaction = connection.transaction()?;
    for migration in &MIGRATIONS[found..] {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "user_version", MIGRATIONS.len().cast_signed())?;
    transaction.commit()?;
    Ok(MIGRATIONS.len())
}

fn read_objects(connection: &Connection) -> rusqlite::Result<Vec<(Key, u64, Bytes)>> {
    let mut statement = connection.prepare(
        "SELECT resource, namespace, name, version, body FROM object ORDER BY resource, namespace, name",
    )?;
    // Neighbouring rows share their resource and namespace, and so do their keys in memory.
    let (mut resource, mut namespace): (Arc<str>, Arc<str>) = ("".into(), "".into());
    let rows = statement.query_map((), |row| {
        let share = |last: &mut Arc<str>, text: &str| {
            if **last != *text {
                *last = text.into();
            }
            Arc::clone(last)
        };
        let resource = share(&mut resource, row.get_ref(0)?.as_str()?);
        let namespace = share(&mut namespace, row.get_ref(1)?.as_str()?);
        let name: Arc<str> = row.get_ref(2)?.as_str()?.into();
        let version: i64 = row.get(3)?;
        Ok((
            Key { resource, namespace, name },
            version.cast_unsigned(),
            Bytes::from(row.get::<_, Vec<u8>>(4)?),
        ))
    })?;
    rows.collect()
}
