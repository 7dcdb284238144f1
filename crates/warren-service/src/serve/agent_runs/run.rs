//! The steps of one run, from its sandbox to its clean-up.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use warren_providers::{Command, Process, ProviderError, Status};
use warren_sessions::{Kind, NewEvent, SessionError, Source, Turn};

use super::lines::{self, Lines};
use super::rows::{Problem, Run, State};
use super::{AgentRuns, Plan, session_of};
use crate::serve::answer::Failure;
use crate::serve::append::append;
use crate::serve::changes::Topic;
use crate::serve::terminals::state;

/// The longest time that a sandbox may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(300);

/// One read of output, and so the largest event of it.
const CHUNK: usize = 32 << 10;

/// The end of a run.
enum End {
    /// The runner exited.
    Exited(i32),
    /// Its time was over.
    TimedOut,
    /// It was cancelled.
    Cancelled,
    /// A step failed.
    Failed(Problem),
    /// The end of the runner is not known.
    Lost(String),
}

fn problem(code: &str, message: impl Into<String>) -> Problem {
    Problem { code: code.to_owned(), message: message.into() }
}

impl From<ProviderError> for End {
    fn from(error: ProviderError) -> Self {
        End::Failed(problem(&error.code.name(), error.message))
    }
}

impl From<SessionError> for End {
    fn from(error: SessionError) -> Self {
        Failure::from(error).into()
    }
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        End::Failed(problem(&failure.code, failure.message))
    }
}

/// Carries a run from its first step to its last. `begun` is told once the run has a sandbox and a
/// session, or that it has not come so far; then nothing of it is left.
pub(super) async fn carry(
    runs: Arc<AgentRuns>,
    mut plan: Plan,
    cancel: CancellationToken,
    begun: oneshot::Sender<Result<(), Failure>>,
) {
    let prepared = prepare(&runs, &mut plan).await;
    let failed = prepared.is_err();
    // A caller that has given up is told nothing.
    let _ = begun.send(prepared);
    if failed {
        return;
    }
    runs.changes.tell(Topic::Sessions);
    let timeout = plan.timeout();
    let Plan { mut run, command, .. } = plan;
    let end = tokio::select! {
        end = work(&runs, &mut run, command, timeout) => end.unwrap_or_else(|end| end),
        () = cancel.cancelled() => End::Cancelled,
        () = runs.shutdown.cancelled() => End::Lost("the service was stopped".to_owned()),
    };
    finish(&runs, &mut run, end).await;
}

/// Stores the run, registers its sandbox and makes its session. If one of these fails, the others
/// are undone.
async fn prepare(runs: &AgentRuns, plan: &mut Plan) -> Result<(), Failure> {
    if let Some(sandbox) = &plan.run.sandbox {
        let found = runs.provider.get_by_id(sandbox).await?;
        let info = found.ok_or_else(|| ProviderError::not_found(sandbox))?;
        if !matches!(info.status, Status::Creating | Status::Running) {
            return Err(ProviderError::invalid_state(info.status.name()).into());
        }
    }
    runs.database.put_agent_run(&plan.run).await?;
    let made = async {
        if let Some(wanted) = plan.wanted.take() {
            plan.run.sandbox = Some(runs.provider.create(wanted).await?.id);
            runs.database.put_agent_run(&plan.run).await?;
        }
        let run = &plan.run;
        runs.store.create(&run.id, session_of(run), run.created).await?;
        let first = state(&json!({ "state": "creating", "agentRunId": run.id, "sandboxId": run.sandbox }));
        runs.store.append(&run.id, vec![first], None, Timestamp::now()).await?;
        Ok(())
    };
    let made: Result<(), Failure> = made.await;
    if let Err(failure) = made {
        // The caller is told of the failure, so the run need not be remembered. If the sandbox
        // cannot be removed now, the run stays and is cleaned up later.
        runs.lose(&plan.run.id, &failure.message).await;
        if runs.clean(&plan.run).await.is_ok() {
            let _ = runs.store.delete(&plan.run.id).await;
            runs.database.remove_agent_run(&plan.run.id).await?;
        }
        return Err(failure);
    }
    Ok(())
}

/// Waits for the sandbox, starts the runner and carries its output to its end.
async fn work(runs: &AgentRuns, run: &mut Run, command: Command, timeout: Duration) -> Result<End, End> {
    let sandbox = run.sandbox.clone().unwrap_or_default();
    runs.provider.wait_running(&sandbox, START_TIMEOUT).await?;
    if let Some(repository) = &run.repository {
        repository.copy_in(runs.provider.as_ref(), &sandbox, &runs.scratch).await?;
    }
    run.state = State::Running;
    run.started = Some(Timestamp::now());
    runs.database.put_agent_run(run).await?;
    runs.changes.tell(Topic::Sessions);
    let echo = NewEvent {
        kind: Kind::TerminalInput,
        source: Source::Agent,
        data: format!("$ {}\n", shown(&run.command)).into_bytes(),
    };
    let running = state(&json!({ "state": "running", "sandboxId": sandbox }));
    runs.store.append(&run.id, vec![running, echo], None, Timestamp::now()).await?;
    let mut process = runs.provider.exec_stream(&sandbox, command).await?;
    process.stdin = None;
    // Dropping the process ends it.
    let end = match tokio::time::timeout(timeout, drain(runs, &run.id, &mut process)).await {
        Ok(end) => end?,
        Err(_) => End::TimedOut,
    };
    drop(process);
    match end {
        End::Exited(_) | End::TimedOut => bring_back(runs, run, &sandbox, end).await,
        end => Ok(end),
    }
}

/// Brings the files of a repository back, also those of a runner that failed.
async fn bring_back(runs: &AgentRuns, run: &mut Run, sandbox: &str, end: End) -> Result<End, End> {
    let Some(mut repository) = run.repository.clone() else { return Ok(end) };
    match repository.bring_back(runs.provider.as_ref(), sandbox, run, &runs.scratch).await {
        Ok(commit) => {
            repository.commit = commit;
            let event = state(&json!({ "state": "returned", "repository": repository }));
            run.repository = Some(repository);
            runs.database.put_agent_run(run).await?;
            runs.store.append(&run.id, vec![event], None, Timestamp::now()).await?;
            Ok(end)
        }
        // A runner that failed has its own reason.
        Err(failure) => match end {
            End::Exited(0) => Err(failure.into()),
            end => {
                tracing::warn!(run = run.id, error = failure.message, "files of an agent run are lost");
                Ok(end)
            }
        },
    }
}

/// Stores what the runner writes until it ends.
async fn drain(runs: &AgentRuns, session: &str, process: &mut Process) -> Result<End, End> {
    let Process { stdout, stderr, .. } = process;
    tokio::try_join!(pass_on(runs, session, stdout), pass_on_errors(runs, session, stderr))?;
    Ok(match process.wait().await {
        Ok(code) => End::Exited(code),
        // It could not be run: the provider knows an exit code that a shell would give.
        Err(error) if error.details["exitCode"].is_number() => error.into(),
        Err(error) => End::Lost(error.message),
    })
}

async fn pass_on(
    runs: &AgentRuns,
    session: &str,
    stdout: &mut (impl AsyncRead + Unpin),
) -> Result<(), SessionError> {
    let (mut lines, mut buffer, mut number) = (Lines::default(), vec![0; CHUNK], 0);
    loop {
        let read = stdout.read(&mut buffer).await.unwrap_or(0);
        let events = match read {
            0 => lines.finish(),
            length => lines.push(&buffer[..length]),
        };
        if !events.is_empty() {
            number += 1;
            let turn = Turn { writer: "runner:output".to_owned(), number };
            append(&runs.store, session, events, turn, &runs.shutdown).await?;
        }
        if read == 0 {
            return Ok(());
        }
    }
}

async fn pass_on_errors(
    runs: &AgentRuns,
    session: &str,
    stderr: &mut (impl AsyncRead + Unpin),
) -> Result<(), SessionError> {
    let (mut buffer, mut number) = (vec![0; CHUNK], 0);
    while let Ok(length @ 1..) = stderr.read(&mut buffer).await {
        number += 1;
        let turn = Turn { writer: "runner:error".to_owned(), number };
        let event = lines::output(Kind::TerminalError, buffer[..length].to_vec());
        append(&runs.store, session, vec![event], turn, &runs.shutdown).await?;
    }
    Ok(())
}

/// Stores the end, first in the run and then in its session, and removes the sandbox.
async fn finish(runs: &AgentRuns, run: &mut Run, end: End) {
    run.ended = Some(Timestamp::now());
    (run.state, run.exit_code, run.error) = match end {
        End::Exited(0) => (State::Succeeded, Some(0), None),
        End::Exited(code) => {
            let problem = problem("AGENT_RUNNER_FAILED", format!("the runner exited with code {code}"));
            (State::Failed, Some(code), Some(problem))
        }
        End::TimedOut => {
            let message = format!("the runner was ended after {} ms", run.timeout_ms);
            (State::Failed, None, Some(problem("AGENT_RUN_TIMEOUT", message)))
        }
        End::Cancelled => (State::Cancelled, None, None),
        End::Failed(problem) => (State::Failed, None, Some(problem)),
        End::Lost(message) => (State::Lost, None, Some(problem("AGENT_RUN_LOST", message))),
    };
    let stored = async {
        runs.database.put_agent_run(run).await?;
        runs.end_session(run).await?;
        runs.clean(run).await
    };
    if let Err(failure) = stored.await {
        // The clean-up tries again.
        tracing::warn!(run = run.id, error = failure.message, "an agent run is not cleaned up yet");
    }
}

/// Returns the last events of a session: the runner's exit, and the state.
pub(super) fn last_events(run: &Run) -> Vec<NewEvent> {
    let mut events = Vec::new();
    if let (Some(code), Some(started), Some(ended)) = (run.exit_code, run.started, run.ended) {
        let duration = ended.as_millisecond().saturating_sub(started.as_millisecond()).max(0);
        let text = format!("\n[Process exited with code {code} in {duration}ms]\n");
        events.push(NewEvent { kind: Kind::TerminalOutput, source: Source::System, data: text.into_bytes() });
    }
    let reason = match (run.state, &run.error) {
        (_, Some(problem)) if problem.code != "AGENT_RUNNER_FAILED" => problem.message.as_str(),
        (State::Cancelled, _) => "cancelled",
        _ => "exited",
    };
    events.push(state(&json!({
        "state": "ended",
        "exitCode": run.exit_code,
        "reason": reason,
        "agentRun": run.state,
        "error": run.error,
    })));
    events
}

/// Returns words as a shell would take them.
fn shown(words: &[String]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=:,@%+".contains(&byte);
    let quoted = words.iter().map(|word| match !word.is_empty() && word.bytes().all(plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    });
    quoted.collect::<Vec<String>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn echo_shows_words_as_a_shell_takes_them() {
        let words = ["sh", "-c", "echo 'a b'", ""].map(str::to_owned);
        assert_eq!(shown(&words), r"sh -c 'echo '\''a b'\''' ''");
    }
}
