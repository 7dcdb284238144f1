//! Commands in sandboxes: run, kept with their output after they end, and stopped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use warren_client::files::{Place, chain};

use crate::output::Spool;

/// Commands that run at the same time.
const MOST_RUNNING: usize = 16;

/// Commands whose output is kept after their end; the oldest is forgotten first.
const MOST_ENDED: usize = 32;

/// The state of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs.
    Running,
    /// It ended with this exit code.
    Exited(i32),
    /// It was stopped, by a call or by its time limit.
    Stopped,
    /// It could not be run, or its end is not known.
    Failed(String),
}

/// A command and its output.
#[derive(Debug)]
pub struct Command {
    /// The name by which the client refers to it.
    pub id: String,
    /// The sandbox it runs in.
    pub sandbox: String,
    /// Its standard output.
    pub stdout: Spool,
    /// Its standard error.
    pub stderr: Spool,
    state: watch::Receiver<State>,
    stop: CancellationToken,
}

impl Command {
    /// Returns how far it is.
    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Returns true if it was told to stop by a call.
    pub fn was_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Waits until it has ended, at most so long.
    pub async fn wait(&self, within: Duration) -> State {
        let mut state = self.state.clone();
        let ended = state.wait_for(|state| *state != State::Running);
        let _ = tokio::time::timeout(within, ended).await;
        self.state()
    }

    /// Stops it and waits until that is done.
    pub async fn stop(&self) -> State {
        self.stop.cancel();
        self.wait(Duration::from_secs(10)).await
    }
}

/// The other end of a [`Command`]: what runs it reports here.
#[derive(Debug)]
pub struct Running {
    /// Its state.
    pub state: watch::Sender<State>,
    /// Cancelled when it is to stop.
    pub stop: CancellationToken,
}

/// The commands of one client.
#[derive(Debug, Default)]
pub struct Commands(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    last: u64,
    commands: BTreeMap<u64, Arc<Command>>,
}

impl Commands {
    /// Starts a command.
    pub fn start(&self, place: Place, sandbox: &str, words: Vec<String>) -> Result<Arc<Command>, String> {
        let (command, Running { state, stop }) = self.register(sandbox)?;
        let (stdout, stderr) = (command.stdout.clone(), command.stderr.clone());
        tokio::spawn(async move {
            let ended = tokio::select! {
                () = stop.cancelled() => State::Stopped,
                ended = place.run(words, None::<tokio::io::Empty>, stdout, stderr) => match ended {
                    Ok(code) => State::Exited(code),
                    Err(error) => State::Failed(chain(&error)),
                },
            };
            state.send_replace(ended);
        });
        Ok(command)
    }

    /// Adds a command that the caller runs. It counts as running until its state says otherwise.
    pub fn register(&self, sandbox: &str) -> Result<(Arc<Command>, Running), String> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let running = |command: &Command| command.state() == State::Running;
        if table.commands.values().filter(|command| running(command)).count() >= MOST_RUNNING {
            return Err(format!(
                "{MOST_RUNNING} commands run already; wait for one with `poll_command` or end it with `kill_command`"
            ));
        }
        let ended: Vec<u64> =
            table.commands.iter().filter(|(_, command)| !running(command)).map(|(id, _)| *id).collect();
        for id in ended.iter().take((ended.len() + 1).saturating_sub(MOST_ENDED)) {
            table.commands.remove(id);
        }
        let spool = || Spool::new().map_err(|error| format!("make room for the command's output: {error}"));
        let (stdout, stderr) = (spool()?, spool()?);
        let (sender, state) = watch::channel(State::Running);
        let stop = CancellationToken::new();
        table.last += 1;
        let command = Arc::new(Command {
            id: format!("command-{}", table.last),
            sandbox: sandbox.to_owned(),
            stdout,
            stderr,
            state,
            stop: stop.clone(),
        });
        let number = table.last;
        table.commands.insert(number, command.clone());
        Ok((command, Running { state: sender, stop }))
    }

    /// Finds a command by the id that the client was given.
    pub fn find(&self, id: &str) -> Result<Arc<Command>, String> {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.commands.values().find(|command| command.id == id).cloned().ok_or_else(|| {
            format!("`command_id`: no command `{id}`; the last {MOST_ENDED} that ended are remembered")
        })
    }

    /// Stops the commands in a sandbox, or all.
    pub fn stop(&self, sandbox: Option<&str>) {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for command in table.commands.values() {
            if sandbox.is_none_or(|sandbox| command.sandbox == sandbox) {
                command.stop.cancel();
            }
        }
    }
}
