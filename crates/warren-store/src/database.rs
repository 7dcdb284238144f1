//! The SQLite file: one table of objects and the version counter.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};
use thiserror::Error;

use crate::watch::{Change, ChangeKind};
use crate::{Key, Object};

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

/// The size of the write-ahead log at which a checkpoint runs even while writes keep coming. All
/// writes wait meanwhile. A few milliseconds each time are better than the tenth of a second that a
/// much longer log would take.
const CHECKPOINT_BYTES: usize = 4 << 20;
/// The idle time of the writer before it runs a checkpoint.
pub(crate) const CHECKPOINT_AFTER_IDLE: Duration = Duration::from_millis(500);

/// An error while opening a store.
#[derive(Debug, Error)]
pub enum OpenError {
    /// SQLite returned an error.
    #[error("open store {}", path.display())]
    Database {
        /// The path of the file.
        path: PathBuf,
        /// SQLite's error.
        #[source]
        source: rusqlite::Error,
    },
    /// The file could not be made private to its owner.
    #[error("create store {} for its owner only", path.display())]
    Private {
        /// The path of the file.
        path: PathBuf,
        /// The underlying I/O error.
        #[source]
        source: io::Error,
    },
    /// The file was written by a newer program.
    #[error("store {} has schema version {found}, this program knows up to {known}", path.display())]
    NewerSchema {
        /// The path of the file.
        path: PathBuf,
        /// Its schema version.
        found: usize,
        /// The newest version that this program knows.
        known: usize,
    },
    /// A row is no JSON object: another program damaged the file.
    #[error("store {} has an unreadable object {key}", path.display())]
    Damaged {
        /// The path of the file.
        path: PathBuf,
        /// The key of the row.
        key: Key,
        /// The parse error.
        #[source]
        source: serde_json::Error,
    },
    /// The writer thread could not be started.
    #[error("start the writer thread")]
    Thread(#[source] io::Error),
}

pub(crate) struct Database {
    connection: Connection,
    uncheckpointed: usize,
}

impl Database {
    /// Opens or creates the file and reads all objects.
    pub fn open(path: &Path) -> Result<(Database, u64, Vec<Arc<Object>>), OpenError> {
        let failed = |source| OpenError::Database { path: path.to_owned(), source };
        make_private(path).map_err(|source| OpenError::Private { path: path.to_owned(), source })?;
        let mut connection = Connection::open(path).map_err(failed)?;
        // One process owns the file, so the index of the log can be in memory instead of a shared
        // mapping. This must come first: the first access to the file decides about the mapping.
        connection.pragma_update(None, "locking_mode", "EXCLUSIVE").map_err(failed)?;
        let found = migrate(&mut connection, MIGRATIONS).map_err(failed)?;
        if found > MIGRATIONS.len() {
            return Err(OpenError::NewerSchema { path: path.to_owned(), found, known: MIGRATIONS.len() });
        }
        prepare(&connection).map_err(failed)?;
        let version: i64 =
            connection.query_row("SELECT version FROM counter", (), |row| row.get(0)).map_err(failed)?;
        let rows = read_objects(&connection).map_err(failed)?;
        let objects = rows
            .into_iter()
            .map(|(key, version, body)| match Object::read(key, version, body) {
                Ok(object) => Ok(Arc::new(object)),
                Err((key, source)) => Err(OpenError::Damaged { path: path.to_owned(), key, source }),
            })
            .collect::<Result<_, _>>()?;
        Ok((Database { connection, uncheckpointed: 0 }, version.cast_unsigned(), objects))
    }

    /// Writes changes in one transaction. They are on disk when this returns.
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
        Ok(())
    }

    /// Returns true if the log holds changes that are not in the file.
    pub fn wants_checkpoint(&self) -> bool {
        self.uncheckpointed > 0
    }

    /// Returns true if the log is too long to wait for an idle moment.
    pub fn needs_checkpoint(&self) -> bool {
        self.uncheckpointed > CHECKPOINT_BYTES
    }

    /// Copies the log into the file. This is not needed for safety, so a failure is only logged.
    pub fn checkpoint(&mut self) {
        self.uncheckpointed = 0;
        let outcome = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", (), |_| Ok(())).optional();
        if let Err(error) = outcome {
            tracing::warn!(%error, "store checkpoint failed");
        }
    }
}

/// Creates the file if it is missing, and removes access for other users from it and its
/// neighbours. SQLite creates its neighbour files with the same mode.
fn make_private(path: &Path) -> io::Result<()> {
    let neighbour = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    File::options().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    for file in [path.to_owned(), neighbour("-wal"), neighbour("-shm"), neighbour("-journal")] {
        match fs::metadata(&file) {
            Ok(metadata) if metadata.permissions().mode() & 0o077 != 0 => {
                fs::set_permissions(&file, Permissions::from_mode(0o600))?;
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("PRAGMA journal_mode = WAL", (), |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // The writer runs checkpoints when it is idle, so that no write pays for them.
    connection.query_row("PRAGMA wal_autocheckpoint = 0", (), |_| Ok(()))?;
    // Reads are served from memory, so the page cache only serves the writes of one transaction.
    connection.pragma_update(None, "cache_size", -1024)?;
    Ok(())
}

/// Migrates the file to the newest schema in one transaction. Returns the version that it had. A
/// file with a newer schema is not changed.
fn migrate(connection: &mut Connection, migrations: &[&str]) -> rusqlite::Result<usize> {
    let found: i64 = connection.query_row("PRAGMA user_version", (), |row| row.get(0))?;
    let found = usize::try_from(found).unwrap_or(usize::MAX);
    if found >= migrations.len() {
        return Ok(found);
    }
    let transaction = connection.transaction()?;
    for migration in &migrations[found..] {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "user_version", migrations.len().cast_signed())?;
    transaction.commit()?;
    Ok(migrations.len())
}

fn read_objects(connection: &Connection) -> rusqlite::Result<Vec<(Key, u64, Bytes)>> {
    let mut statement = connection.prepare(
        "SELECT resource, namespace, name, version, body FROM object ORDER BY resource, namespace, name",
    )?;
    // Neighbouring rows mostly have the same resource and namespace: share their strings.
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
            Bytes::copy_from_slice(row.get_ref(4)?.as_bytes()?),
        ))
    })?;
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Migrations that a later program might have.
    const LATER: &[&str] = &[
        MIGRATIONS[0],
        "ALTER TABLE object ADD COLUMN note TEXT NOT NULL DEFAULT 'none'",
        "UPDATE object SET note = name; CREATE INDEX by_note ON object (note)",
    ];

    fn old_file(directory: &tempfile::TempDir) -> Connection {
        let mut connection = Connection::open(directory.path().join("store.db")).unwrap();
        assert_eq!(migrate(&mut connection, &LATER[..1]).unwrap(), 1);
        let row = "INSERT INTO object VALUES ('pods', 'a', 'one', 7, '{\"metadata\":{\"name\":\"one\"}}')";
        connection.execute_batch(&format!("{row}; UPDATE counter SET version = 7")).unwrap();
        connection
    }

    fn schema_version(connection: &Connection) -> i64 {
        connection.query_row("PRAGMA user_version", (), |row| row.get(0)).unwrap()
    }

    #[test]
    fn an_older_file_is_brought_up_to_date_with_what_is_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let mut connection = old_file(&directory);
        assert_eq!(migrate(&mut connection, LATER).unwrap(), 3);
        assert_eq!(schema_version(&connection), 3);
        let row: (String, String, i64) = connection
            .query_row("SELECT name, note, version FROM object", (), |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .unwrap();
        assert_eq!(row, ("one".to_owned(), "one".to_owned(), 7));
        assert_eq!(migrate(&mut connection, LATER).unwrap(), 3, "a second time there is nothing to do");
    }

    #[test]
    fn a_migration_that_fails_leaves_the_file_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let mut connection = old_file(&directory);
        let broken = [LATER[0], LATER[1], "INSERT INTO nowhere VALUES (1)"];
        assert!(migrate(&mut connection, &broken).is_err());
        assert_eq!(schema_version(&connection), 1);
        assert!(connection.prepare("SELECT note FROM object").is_err(), "no half migration");
        drop(connection);
        let (_, version, objects) = Database::open(&directory.path().join("store.db")).unwrap();
        assert_eq!((version, objects.len()), (7, 1));
    }

    #[test]
    fn a_newer_file_is_refused_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let mut connection = old_file(&directory);
        migrate(&mut connection, LATER).unwrap();
        drop(connection);
        let path = directory.path().join("store.db");
        let before = fs::read(&path).unwrap();
        let error = Database::open(&path).err().unwrap();
        assert_eq!(
            error.to_string(),
            format!("store {} has schema version 3, this program knows up to 1", path.display())
        );
        assert_eq!(fs::read(&path).unwrap(), before);
    }

    #[test]
    fn files_of_the_store_are_for_their_owner_only_also_those_of_an_older_program() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.db");
        let modes = || -> Vec<(String, u32)> {
            let entries = fs::read_dir(directory.path()).unwrap().map(Result::unwrap);
            let mut modes: Vec<_> = entries
                .map(|entry| {
                    let name = entry.file_name().into_string().unwrap();
                    (name, entry.metadata().unwrap().permissions().mode() & 0o777)
                })
                .collect();
            modes.sort();
            modes
        };
        let expected = [("store.db".to_owned(), 0o600), ("store.db-wal".to_owned(), 0o600)];
        let (database, ..) = Database::open(&path).unwrap();
        assert_eq!(modes(), expected);
        for name in ["store.db", "store.db-wal"] {
            fs::set_permissions(directory.path().join(name), Permissions::from_mode(0o644)).unwrap();
        }
        // As after a kill: the log stays.
        std::mem::forget(database);
        make_private(&path).unwrap();
        assert_eq!(modes(), expected);
    }

    #[test]
    fn every_commit_is_synced() {
        let directory = tempfile::tempdir().unwrap();
        let (database, ..) = Database::open(&directory.path().join("store.db")).unwrap();
        let setting = |name: &str| -> String {
            let value = database.connection.query_row(&format!("PRAGMA {name}"), (), |row| {
                row.get_ref(0).map(|v| match v {
                    rusqlite::types::ValueRef::Integer(number) => number.to_string(),
                    other => other.as_str().unwrap_or_default().to_owned(),
                })
            });
            value.unwrap()
        };
        assert_eq!((setting("journal_mode").as_str(), setting("synchronous").as_str()), ("wal", "2"));
    }

    #[test]
    fn damage_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let connection = old_file(&directory);
        connection.execute_batch("UPDATE object SET body = 'no json'").unwrap();
        drop(connection);
        let error = Database::open(&directory.path().join("store.db")).err().unwrap();
        assert!(matches!(error, OpenError::Damaged { .. }) && error.to_string().contains("pods"), "{error}");
        fs::write(directory.path().join("store.db"), "this is no database at all, but text".repeat(100))
            .unwrap();
        assert!(matches!(
            Database::open(&directory.path().join("store.db")),
            Err(OpenError::Database { .. })
        ));
    }
}
