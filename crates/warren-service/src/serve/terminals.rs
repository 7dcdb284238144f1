//! Interactive shells whose bytes are events of a session.
//!
//! A byte is on disk before any viewer sees it. The shell belongs to the service, not to a viewer:
//! it goes on when all viewers have gone, and ends with the service.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use warren_providers::{Command, Process, Provider, TerminalSize};
use warren_sessions::{Kind, NewEvent, NewSession, SessionError, Source, Store, Turn};

use super::answer::Failure;
use super::append::append;
use super::changes::{Changes, Topic};
use super::database::{Database, TerminalRow};

/// Terminals that are open at the same time.
const MOST_OPEN: usize = 64;

/// One read of a terminal's output, and so the largest event of it.
const CHUNK: usize = 32 << 10;

/// Inputs that wait for a shell that does not read.
const MOST_WAITING: usize = 64;

/// Becomes a shell of the image.
const SHELL: &str = "export TERM=xterm-256color\n\
    if command -v bash >/dev/null 2>&1; then exec bash -l; fi\n\
    exec /bin/sh";

/// The terminals that are open.
pub struct Terminals {
    provider: Arc<dyn Provider>,
    store: Store,
    database: Database,
    changes: Changes,
    open: Mutex<HashMap<String, Open>>,
    places: Arc<Semaphore>,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

struct Open {
    input: mpsc::Sender<Vec<u8>>,
    resize: mpsc::Sender<TerminalSize>,
    delete: CancellationToken,
    ended: CancellationToken,
}

impl Terminals {
    /// Makes a set without terminals.
    pub fn new(
        provider: Arc<dyn Provider>,
        store: Store,
        database: Database,
        changes: Changes,
        shutdown: CancellationToken,
    ) -> Arc<Self> {
        let (open, tasks) = (Mutex::default(), TaskTracker::new());
        let places = Arc::new(Semaphore::new(MOST_OPEN));
        Arc::new(Self { provider, store, database, changes, open, places, tasks, shutdown })
    }

    fn open_now(&self) -> std::sync::MutexGuard<'_, HashMap<String, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the terminals of an earlier run as ended: their shells ended with it.
    pub async fn end_earlier(&self) -> Result<(), Failure> {
        for (session, row) in self.database.terminals().await? {
            if row.ended.is_some() {
                continue;
            }
            match self
                .store
                .append(&session, vec![ended(None, "service restarted")], None, Timestamp::now())
                .await
            {
                Ok(_) => self.database.end_terminal(&session, None, Timestamp::now()).await?,
                // It was made up to here and no further.
                Err(SessionError::NotFound(_)) => self.database.remove_terminal(&session).await?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Opens a shell in a sandbox, with a session of its own, and returns the session's id.
    pub async fn open(
        self: &Arc<Self>,
        sandbox: &str,
        project: Option<String>,
        title: Option<String>,
        size: TerminalSize,
    ) -> Result<String, Failure> {
        if self.shutdown.is_cancelled() {
            return Err(Failure::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "SHUTTING_DOWN",
                "the service is shutting down",
            ));
        }
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            let message = format!("Resource limit exceeded: terminals (limit: {MOST_OPEN})");
            let details = Box::new(json!({ "resource": "terminals", "limit": MOST_OPEN }));
            let code = "SANDBOX_RESOURCE_LIMIT_EXCEEDED";
            Failure { details, ..Failure::new(StatusCode::TOO_MANY_REQUESTS, code, message) }
        })?;
        let command = Command { terminal: Some(size), ..Command::new("/bin/sh", ["-c", SHELL]) };
        // First the shell: without it there is nothing to store. Dropping it ends it.
        let process = self.provider.exec_stream(sandbox, command).await?;
        let session = uuid::Uuid::new_v4().simple().to_string();
        let title = title.unwrap_or_else(|| format!("Terminal in {sandbox}"));
        let (columns, rows) = (size.width, size.height);
        let row = TerminalRow {
            session: session.clone(),
            sandbox: sandbox.to_owned(),
            columns,
            rows,
            exit_code: None,
            ended: None,
        };
        self.database.add_terminal(row).await?;
        let new = NewSession { title, project, ..NewSession::default() };
        self.store.create(&session, new, Timestamp::now()).await?;
        let first = state(&json!({ "state": "active", "columns": columns, "rows": rows }));
        self.store.append(&session, vec![first], None, Timestamp::now()).await?;
        let (input, inputs) = mpsc::channel(MOST_WAITING);
        let open = Open {
            input,
            resize: process.resize.clone(),
            delete: CancellationToken::new(),
            ended: CancellationToken::new(),
        };
        let (delete, is_over) = (open.delete.clone(), open.ended.clone());
        self.open_now().insert(session.clone(), open);
        let (terminals, id) = (self.clone(), session.clone());
        self.tasks.spawn(async move {
            terminals.carry(&id, process, inputs, delete).await;
            terminals.open_now().remove(&id);
            is_over.cancel();
            drop(place);
            terminals.changes.tell(Topic::Sessions);
        });
        self.changes.tell(Topic::Sessions);
        Ok(session)
    }

    /// Carries a shell's bytes until it ends, and stores its end.
    async fn carry(
        &self,
        session: &str,
        mut process: Process,
        inputs: mpsc::Receiver<Vec<u8>>,
        delete: CancellationToken,
    ) {
        let typing = tokio::spawn(type_in(process.stdin.take(), inputs));
        let mut reason = "exited";
        let mut buffer = vec![0; CHUNK];
        let mut number = 0;
        loop {
            let read = tokio::select! {
                read = process.stdout.read(&mut buffer) => read,
                () = delete.cancelled() => { reason = "deleted"; break }
                () = self.shutdown.cancelled() => { reason = "service stopped"; break }
            };
            let Ok(length @ 1..) = read else { break };
            let output = NewEvent {
                kind: Kind::TerminalOutput,
                source: Source::System,
                data: buffer[..length].to_vec(),
            };
            number += 1;
            let turn = Turn { writer: "terminal".to_owned(), number };
            let appended = append(&self.store, session, vec![output], turn, &self.shutdown).await;
            if let Err(error) = appended {
                tracing::error!(session, %error, "terminal ended: its output cannot be stored");
                reason = "lost";
                break;
            }
        }
        if reason != "exited" {
            process.kill();
        }
        let code = process.wait().await;
        typing.abort();
        let (code, reason) = match (code, reason) {
            (Ok(code), reason) => (Some(code), reason),
            // The connection to the shell ended, or the sandbox did.
            (Err(_), "exited") => (None, "lost"),
            (Err(_), reason) => (None, reason),
        };
        let now = Timestamp::now();
        match self.store.append(session, vec![ended(code, reason)], None, now).await {
            // A deleted session needs no end.
            Ok(_) | Err(SessionError::NotFound(_)) => {}
            Err(error) => tracing::error!(session, %error, "the end of a terminal is not stored"),
        }
        if let Err(failure) = self.database.end_terminal(session, code, now).await {
            tracing::error!(session, error = failure.message, "the end of a terminal is not stored");
        }
    }

    fn find<T>(&self, session: &str, part: impl FnOnce(&Open) -> T) -> Result<T, Failure> {
        self.open_now().get(session).map(part).ok_or_else(|| {
            Failure::new(StatusCode::CONFLICT, "SESSION_ENDED", "the session's terminal has ended")
        })
    }

    /// Types into a terminal. The input is an event before the shell gets it.
    pub async fn input(&self, session: &str, data: Vec<u8>) -> Result<(), Failure> {
        let input = self.find(session, |open| open.input.clone())?;
        let room = input.try_reserve_owned().map_err(|_| {
            let message = "the shell does not read its input; wait, and send it again";
            Failure::new(StatusCode::TOO_MANY_REQUESTS, "SESSION_INPUT_FULL", message)
        })?;
        let event = NewEvent { kind: Kind::TerminalInput, source: Source::User, data: data.clone() };
        self.store.append(session, vec![event], None, Timestamp::now()).await?;
        room.send(data);
        Ok(())
    }

    /// Changes a terminal's size.
    pub async fn resize(&self, session: &str, size: TerminalSize) -> Result<(), Failure> {
        let resize = self.find(session, |open| open.resize.clone())?;
        let event = state(&json!({ "columns": size.width, "rows": size.height }));
        self.store.append(session, vec![event], None, Timestamp::now()).await?;
        self.database.resize(session, size.width, size.height).await?;
        // A shell that has just ended needs no size.
        let _ = resize.send(size).await;
        Ok(())
    }

    /// Deletes a session, and ends its shell first if it runs.
    pub async fn delete(&self, session: &str) -> Result<(), Failure> {
        if let Ok((delete, ended)) = self.find(session, |open| (open.delete.clone(), open.ended.clone())) {
            delete.cancel();
            ended.cancelled().await;
        }
        self.store.delete(session).await?;
        self.database.remove_terminal(session).await?;
        self.changes.tell(Topic::Sessions);
        Ok(())
    }

    /// Waits until the terminals that were open at the shutdown have ended.
    pub async fn close(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

async fn type_in(stdin: Option<tokio::io::DuplexStream>, mut inputs: mpsc::Receiver<Vec<u8>>) {
    let Some(mut stdin) = stdin else { return };
    while let Some(data) = inputs.recv().await {
        if stdin.write_all(&data).await.is_err() {
            return;
        }
    }
}

/// Makes an event that says a state.
pub fn state(value: &Value) -> NewEvent {
    NewEvent { kind: Kind::State, source: Source::System, data: value.to_string().into_bytes() }
}

fn ended(code: Option<i32>, reason: &str) -> NewEvent {
    state(&json!({ "state": "ended", "exitCode": code, "reason": reason }))
}

/// Tells whether an event is the last one of a terminal or run. Only the service says so: a runner
/// writes states of its own.
pub fn is_end(event: &warren_sessions::Event) -> bool {
    event.kind == Kind::State
        && event.source == Source::System
        && serde_json::from_slice::<Value>(&event.data).is_ok_and(|value| value["state"] == "ended")
}
