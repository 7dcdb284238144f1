//! Contexts of `run_code`: interpreters that keep their state, found by sandbox, language and name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use warren_client::files::Place;
use warren_client::interpreter::{self, End, Image, Interpreter, Language, Output, Ran, StartError};

use crate::arguments;
use crate::commands::{Command, Commands, State};
use crate::output::{self, Spool};
use crate::tools::{CodeLanguage, RanCode, RanError, RunCode};

/// The most contexts of a client. Each is one or two processes in a sandbox and one connection.
const MOST: usize = 16;

/// The context of calls that name none.
const DEFAULT: &str = "default";

/// The longest name of a context.
const LONGEST_NAME: usize = 64;

/// The contexts of one client.
#[derive(Debug, Default)]
pub struct Contexts(Mutex<BTreeMap<Key, Arc<Context>>>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    sandbox: String,
    language: Language,
    name: String,
}

#[derive(Debug, Default)]
struct Context {
    /// Locked while code runs. `None` before the first call, and after the interpreter has ended.
    interpreter: Arc<tokio::sync::Mutex<Option<Interpreter>>>,
    stop: CancellationToken,
}

impl Key {
    fn new(sandbox: &str, language: CodeLanguage, name: Option<&str>) -> Result<Self, String> {
        let name = name.unwrap_or(DEFAULT);
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(valid) {
            return Err(format!(
                "`context` is a name of at most {LONGEST_NAME} letters, digits, `-`, `_` and `.`"
            ));
        }
        let language = match language {
            CodeLanguage::Python => Language::Python,
            CodeLanguage::Shell => Language::Shell,
        };
        Ok(Self { sandbox: sandbox.to_owned(), language, name: name.to_owned() })
    }
}

impl Contexts {
    fn table(&self) -> MutexGuard<'_, BTreeMap<Key, Arc<Context>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a context, or makes its place.
    fn enter(&self, key: &Key) -> Result<Arc<Context>, String> {
        let mut table = self.table();
        if !table.contains_key(key) && table.len() >= MOST {
            let runs = |interpreter: &Option<Interpreter>| {
                interpreter.as_ref().is_some_and(|interpreter| !interpreter.has_ended())
            };
            // A context that is locked runs code.
            table.retain(|_, context| {
                context.interpreter.try_lock().map_or(true, |interpreter| runs(&interpreter))
            });
            if table.len() >= MOST {
                return Err(format!(
                    "{MOST} contexts run already, which is the limit; end one with `restart_context`"
                ));
            }
        }
        Ok(table.entry(key.clone()).or_default().clone())
    }

    /// Ends a context. Returns false if there was none.
    pub fn end(&self, sandbox: &str, language: CodeLanguage, name: Option<&str>) -> Result<bool, String> {
        let ended = self.table().remove(&Key::new(sandbox, language, name)?);
        if let Some(context) = &ended {
            context.stop.cancel();
        }
        Ok(ended.is_some())
    }

    /// Ends the contexts in a sandbox, or all.
    pub fn stop(&self, sandbox: Option<&str>) {
        self.table().retain(|key, context| {
            let ends = sandbox.is_none_or(|sandbox| key.sandbox == sandbox);
            if ends {
                context.stop.cancel();
            }
            !ends
        });
    }

    /// Runs code in a context, which is started if it does not run. Calls in the same context wait for each other.
    pub async fn run(
        &self,
        commands: &Commands,
        place: Place,
        arguments: &RunCode,
        cancelled: &CancellationToken,
    ) -> Result<(RanCode, Vec<Image>), String> {
        let most = arguments::output_limit(arguments.max_output_bytes)?;
        let deadline = Instant::now() + arguments::timeout(arguments.timeout)?;
        let code = arguments.code.clone();
        if code.len() > interpreter::LONGEST_CODE || code.contains('\0') {
            return Err(format!(
                "`code` has to have at most {} bytes and no NUL character; put larger data into a file with `upload_file`",
                interpreter::LONGEST_CODE
            ));
        }
        let sandbox = &arguments.sandbox_claim_name;
        let key = Key::new(sandbox, arguments.language, arguments.context.as_deref())?;
        let context = self.enter(&key)?;
        let lock = tokio::time::timeout_at(deadline, context.interpreter.clone().lock_owned());
        let mut interpreter = lock.await.map_err(|_| {
            format!(
                "`timeout`: context `{}` was busy with another call; name another `context` to run beside it",
                key.name
            )
        })?;
        let context_started = interpreter.as_ref().is_none_or(Interpreter::has_ended);
        if context_started {
            let start = Interpreter::start(place, key.language, context.stop.child_token());
            let started = tokio::time::timeout_at(deadline, start)
                .await
                .map_err(|_| "`timeout`: the interpreter did not start in time".to_owned())?;
            *interpreter = Some(started.map_err(|error| match error {
                StartError::NoPython => format!(
                    "`language`: {error}; make a sandbox from an image that has it, such as `python:3.13`, or use \
                     `shell`"
                ),
                StartError::Failed(_) => error.to_string(),
            })?);
        }

        let (command, running) = commands.register(sandbox)?;
        let output = Arc::new(Spools { stdout: command.stdout.clone(), stderr: command.stderr.clone() });
        // A task of its own: the call ends in order also if the client's request is dropped.
        let mut task = tokio::spawn(async move {
            let stopped = running.stop.clone();
            let stop = async {
                tokio::select! {
                    () = stopped.cancelled() => {}
                    () = tokio::time::sleep_until(deadline) => {}
                }
            };
            let held = interpreter.as_mut().expect("started above");
            let ran = held.run(&code, output, stop).await;
            if held.has_ended() {
                *interpreter = None;
            }
            running.state.send_replace(state(&ran));
            ran
        });
        let ran = tokio::select! {
            ran = &mut task => ran.map_err(|error| format!("run the code: {error}"))?,
            () = cancelled.cancelled() => {
                command.stop().await;
                return Err("cancelled by the client".to_owned());
            }
        };
        answer(ran, &command, most, context_started)
    }
}

/// Output of code, kept like that of a command.
struct Spools {
    stdout: Spool,
    stderr: Spool,
}

impl Output for Spools {
    fn stdout(&self, bytes: &[u8]) {
        keep(&self.stdout, bytes);
    }

    fn stderr(&self, bytes: &[u8]) {
        keep(&self.stderr, bytes);
    }
}

fn keep(spool: &Spool, bytes: &[u8]) {
    if let Err(error) = spool.append(bytes) {
        tracing::warn!(%error, "output of code not kept");
    }
}

/// Returns what `poll_command` says about a call.
fn state(ran: &Ran) -> State {
    match &ran.end {
        _ if ran.stopped => State::Stopped,
        End::Code(None) => State::Exited(0),
        End::Code(Some(_)) => State::Exited(1),
        End::Line(code) | End::Interpreter { exit_code: Some(code), .. } => State::Exited(*code),
        End::Interpreter { reason, exit_code: None } => State::Failed(reason.clone()),
    }
}

fn answer(
    ran: Ran,
    command: &Command,
    most: usize,
    context_started: bool,
) -> Result<(RanCode, Vec<Image>), String> {
    let unreadable = |error: std::io::Error| format!("read the output back: {error}");
    let (stdout, stdout_cut) = command.stdout.summary("stdout", most).map_err(unreadable)?;
    let (stderr, stderr_cut) = command.stderr.summary("stderr", most).map_err(unreadable)?;
    let texts: Vec<&str> = ran.shown.iter().map(|shown| shown.text.as_str()).collect();
    let (text, text_cut) = output::ends(&texts.join("\n"), most);
    let (error, exit_code, context_ended) = match ran.end {
        End::Code(error) => (error, None, None),
        End::Line(code) => (None, Some(code), None),
        End::Interpreter { reason, exit_code } => (None, exit_code, Some(reason)),
    };
    let error = error.map(|error| RanError {
        name: error.name,
        value: output::ends(&error.value, most).0,
        traceback: output::ends(&error.traceback, most).0,
    });
    let images: Vec<Image> = ran.shown.into_iter().filter_map(|shown| shown.image).collect();
    let ran = RanCode {
        text: (!text.is_empty()).then_some(text),
        stdout,
        stderr,
        error,
        exit_code,
        images: images.len() as u64,
        left_out: ran.left_out as u64,
        timed_out: ran.stopped && !command.was_stopped(),
        truncated: stdout_cut || stderr_cut || text_cut,
        context_started,
        context_ended,
        command_id: command.id.clone(),
    };
    Ok((ran, images))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_default() {
        let key = |name| Key::new("box", CodeLanguage::Python, name);
        assert_eq!(key(None).expect("a default").name, "default");
        assert_eq!(key(Some("a-b_c.1")).expect("valid").name, "a-b_c.1");
        for name in ["", "a b", "../x", &"x".repeat(65)] {
            assert!(key(Some(name)).expect_err(name).contains("`context`"));
        }
    }

    #[test]
    fn places_of_contexts_that_do_not_run_are_given_to_others() {
        let contexts = Contexts::default();
        let key =
            |number: usize| Key::new("box", CodeLanguage::Shell, Some(&number.to_string())).expect("a name");
        let locked = contexts.enter(&key(0)).expect("room").interpreter.clone();
        let _running = locked.try_lock().expect("free");
        for number in 1..MOST + 5 {
            contexts.enter(&key(number)).expect("the others do not run");
        }
        assert!(contexts.table().contains_key(&key(0)), "a context that runs code stays");
        assert!(contexts.end("box", CodeLanguage::Shell, Some("0")).expect("valid"));
        assert!(!contexts.end("box", CodeLanguage::Shell, Some("0")).expect("valid"));
        contexts.stop(Some("box"));
        assert!(contexts.table().is_empty());
    }
}
