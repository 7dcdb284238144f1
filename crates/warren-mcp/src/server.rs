//! What the tools do. [`crate::handler`] carries their calls in and results out.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{JsonObject, Tool};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;
use warren_client::files::{ByExec, Files as _, Search};
use warren_client::interpreter::Image;
use warren_client::sandbox::Progress;

use crate::commands::{Command, Commands, State};
use crate::contexts::Contexts;
use crate::edit;
use crate::sandboxes::Sandboxes;
use crate::tools::{
    self, CreateSandbox, CreatedSandbox, DeleteSandbox, DeletedSandbox, DownloadFile, DownloadedFile,
    EditFile, EditedFile, ExecuteCommand, ExecutedCommand, FileExistence, FileExists, FoundLine, FoundLines,
    KillCommand, KilledCommand, ListFiles, ListSandboxes, ListedFile, ListedFiles, ListedSandbox,
    ListedSandboxes, OpenPort, OpenedPort, PollCommand, PolledCommand, RanCode, RestartContext,
    RestartedContext, RunCode, SearchFiles, StartCommand, StartedCommand, UploadFile, UploadedFile,
};
use crate::{Config, Connect, arguments};

/// The longest line that a search shows, in characters.
const LONGEST_LINE: usize = 500;

/// The calls of a client that are under way. A client needs no more, and each may hold a connection
/// to the home.
const MOST_CALLS: usize = 32;

/// The longest time that deleting a client's sandboxes may take when the client has gone.
const CLEANUP: Duration = Duration::from_secs(30);

/// The server of one client. Clones share everything.
#[derive(Clone)]
pub struct Server(Arc<Inner>);

struct Inner {
    sandboxes: Sandboxes,
    commands: Commands,
    contexts: Contexts,
    tools: Vec<Tool>,
    calls: Semaphore,
}

impl Server {
    /// Makes the server of a client. It reaches its home at the first call that needs it.
    pub fn new(config: Config, connect: Box<dyn Connect>) -> Self {
        let tools = tools::tools(config.local_home);
        let sandboxes = Sandboxes::new(config, connect);
        Self(Arc::new(Inner {
            sandboxes,
            commands: Commands::default(),
            contexts: Contexts::default(),
            tools,
            calls: Semaphore::new(MOST_CALLS),
        }))
    }

    /// Renews the leases of the client's sandboxes for as long as it is polled.
    pub async fn keep(&self) -> Infallible {
        self.0.sandboxes.keep().await
    }

    /// Ends the client's commands and contexts, and deletes its sandboxes.
    pub async fn close(&self) -> Result<(), String> {
        self.0.commands.stop(None);
        self.0.contexts.stop(None);
        match tokio::time::timeout(CLEANUP, self.0.sandboxes.close()).await {
            Ok(result) => result,
            Err(_) => Err(format!("the home did not answer within {} s", CLEANUP.as_secs())),
        }
    }

    /// Returns the tools of this client.
    pub(crate) fn tools(&self) -> &[Tool] {
        &self.0.tools
    }

    /// Counts a call against the client's limit, until the permit is dropped.
    pub(crate) fn begin(&self) -> Result<SemaphorePermit<'_>, String> {
        let busy = |_| format!("{MOST_CALLS} calls are under way, which is the limit; wait for one to end");
        self.0.calls.try_acquire().map_err(busy)
    }

    /// Calls a tool. `None` if there is none of that name.
    pub(crate) async fn call(
        &self,
        name: &str,
        arguments: JsonObject,
        cancelled: &CancellationToken,
    ) -> Option<Result<Answer, String>> {
        Some(match name {
            "create_sandbox" => run(arguments, |arguments| self.create_sandbox(arguments)).await,
            "list_sandboxes" => run(arguments, |arguments| self.list_sandboxes(arguments)).await,
            "delete_sandbox" => run(arguments, |arguments| self.delete_sandbox(arguments)).await,
            "execute_command" => run(arguments, |arguments| self.execute_command(arguments, cancelled)).await,
            "start_command" => run(arguments, |arguments| self.start_command(arguments)).await,
            "poll_command" => run(arguments, |arguments| self.poll_command(arguments)).await,
            "kill_command" => run(arguments, |arguments| self.kill_command(arguments)).await,
            "run_code" => {
                let mut images = Vec::new();
                let ran = run(arguments, async |arguments| {
                    let ran = self.run_code(arguments, cancelled).await?;
                    images = ran.1;
                    Ok(ran.0)
                });
                ran.await.map(|answer| Answer { images, ..answer })
            }
            "restart_context" => run(arguments, |arguments| self.restart_context(arguments)).await,
            "open_port" => run(arguments, |arguments| self.open_port(arguments)).await,
            "upload_file" => run(arguments, |arguments| self.upload_file(arguments)).await,
            "download_file" => run(arguments, |arguments| self.download_file(arguments)).await,
            "edit_file" => run(arguments, |arguments| self.edit_file(arguments)).await,
            "list_files" => run(arguments, |arguments| self.list_files(arguments)).await,
            "file_exists" => run(arguments, |arguments| self.file_exists(arguments)).await,
            "search_files" => run(arguments, |arguments| self.search_files(arguments)).await,
            _ => return None,
        })
    }

    async fn create_sandbox(&self, arguments: CreateSandbox) -> Result<CreatedSandbox, String> {
        let key = self.0.sandboxes.create(&arguments).await?;
        Ok(CreatedSandbox { sandbox_claim_name: key.name, namespace: key.namespace })
    }

    async fn list_sandboxes(&self, arguments: ListSandboxes) -> Result<ListedSandboxes, String> {
        let listed = self.0.sandboxes.list(arguments.namespace.as_deref()).await?;
        let sandboxes = listed.iter().map(|launched| {
            let (ready, reason) = match launched.progress() {
                Progress::Ready => (true, None),
                Progress::Waiting(standing) | Progress::Ended(standing) => {
                    (false, Some(standing.to_string()))
                }
            };
            let key = launched.key();
            ListedSandbox {
                sandbox_claim_name: key.name,
                namespace: key.namespace,
                source: launched.source(),
                ready,
                reason,
                created: launched.created().map(|time| time.to_string()),
            }
        });
        Ok(ListedSandboxes { sandboxes: sandboxes.collect() })
    }

    async fn delete_sandbox(&self, arguments: DeleteSandbox) -> Result<DeletedSandbox, String> {
        let name = arguments.sandbox_claim_name;
        self.0.sandboxes.delete(&name, arguments.namespace.as_deref()).await?;
        self.0.commands.stop(Some(&name));
        self.0.contexts.stop(Some(&name));
        Ok(DeletedSandbox { deleted: name })
    }

    async fn execute_command(
        &self,
        arguments: ExecuteCommand,
        cancelled: &CancellationToken,
    ) -> Result<ExecutedCommand, String> {
        let most = arguments::output_limit(arguments.max_output_bytes)?;
        let timeout = arguments::timeout(arguments.timeout)?;
        let words = arguments::command(&arguments.command, arguments.workdir.as_deref(), &arguments.env)?;
        let command =
            self.start(&arguments.sandbox_claim_name, arguments.namespace.as_deref(), words).await?;
        let state = tokio::select! {
            state = command.wait(timeout) => state,
            () = cancelled.cancelled() => {
                command.stop().await;
                return Err("cancelled by the client".to_owned());
            }
        };
        let timed_out = state == State::Running;
        let state = if timed_out { command.stop().await } else { state };
        let (stdout, stdout_cut) = command.stdout.summary("stdout", most).map_err(unreadable)?;
        let (stderr, stderr_cut) = command.stderr.summary("stderr", most).map_err(unreadable)?;
        Ok(ExecutedCommand {
            exit_code: exit_code(&state)?,
            stdout,
            stderr,
            timed_out: timed_out && state == State::Stopped,
            truncated: stdout_cut || stderr_cut,
            command_id: command.id.clone(),
        })
    }

    async fn start_command(&self, arguments: StartCommand) -> Result<StartedCommand, String> {
        let words = arguments::command(&arguments.command, arguments.workdir.as_deref(), &arguments.env)?;
        let command =
            self.start(&arguments.sandbox_claim_name, arguments.namespace.as_deref(), words).await?;
        Ok(StartedCommand { command_id: command.id.clone() })
    }

    async fn start(
        &self,
        sandbox: &str,
        namespace: Option<&str>,
        words: Vec<String>,
    ) -> Result<Arc<Command>, String> {
        let place = self.0.sandboxes.place(sandbox, namespace).await?;
        self.0.commands.start(place, sandbox, words)
    }

    async fn poll_command(&self, arguments: PollCommand) -> Result<PolledCommand, String> {
        let most = arguments::output_limit(arguments.max_output_bytes)?;
        let wait = arguments::seconds("wait", arguments.wait, 0, 0..=60)?;
        let command = self.0.commands.find(&arguments.command_id)?;
        let state = command.wait(wait).await;
        let stdout = command.stdout.piece(arguments.stdout_offset.unwrap_or(0), most).map_err(unreadable)?;
        let stderr = command.stderr.piece(arguments.stderr_offset.unwrap_or(0), most).map_err(unreadable)?;
        Ok(PolledCommand {
            running: state == State::Running,
            exit_code: exit_code(&state)?,
            stdout: stdout.text,
            stdout_next_offset: stdout.next,
            stdout_bytes: command.stdout.sizes().0,
            stderr: stderr.text,
            stderr_next_offset: stderr.next,
            stderr_bytes: command.stderr.sizes().0,
        })
    }

    async fn kill_command(&self, arguments: KillCommand) -> Result<KilledCommand, String> {
        let command = self.0.commands.find(&arguments.command_id)?;
        let ran = command.state() == State::Running;
        let state = command.stop().await;
        Ok(KilledCommand { killed: ran && state == State::Stopped, exit_code: exit_code(&state)? })
    }

    async fn run_code(
        &self,
        arguments: RunCode,
        cancelled: &CancellationToken,
    ) -> Result<(RanCode, Vec<Image>), String> {
        let sandbox = &arguments.sandbox_claim_name;
        let place = self.0.sandboxes.place(sandbox, arguments.namespace.as_deref()).await?;
        self.0.contexts.run(&self.0.commands, place, &arguments, cancelled).await
    }

    async fn restart_context(&self, arguments: RestartContext) -> Result<RestartedContext, String> {
        let RestartContext { sandbox_claim_name, language, context } = arguments;
        let ended = self.0.contexts.end(&sandbox_claim_name, language, context.as_deref())?;
        Ok(RestartedContext { ended })
    }

    async fn open_port(&self, arguments: OpenPort) -> Result<OpenedPort, String> {
        let port = u16::try_from(arguments.port).ok().filter(|port| *port > 0);
        let port =
            port.ok_or_else(|| format!("`port` is {}; it has to be from 1 to 65535", arguments.port))?;
        let OpenPort { sandbox_claim_name, namespace, .. } = arguments;
        self.0.sandboxes.port(&sandbox_claim_name, namespace.as_deref(), port).await
    }

    pub(crate) async fn files(
        &self,
        sandbox: &str,
        namespace: Option<&str>,
        limit: Option<u64>,
    ) -> Result<ByExec, String> {
        let timeout = arguments::timeout(limit)?;
        Ok(ByExec { place: self.0.sandboxes.place(sandbox, namespace).await?, timeout })
    }

    async fn upload_file(&self, arguments: UploadFile) -> Result<UploadedFile, String> {
        let path = arguments::path("path", &arguments.path)?;
        let content = match arguments.binary {
            true => STANDARD
                .decode(&arguments.content)
                .map_err(|error| format!("`content` is not base64: {error}"))?,
            false => arguments.content.into_bytes(),
        };
        let sandbox = &arguments.sandbox_claim_name;
        let files = self.files(sandbox, arguments.namespace.as_deref(), arguments.timeout).await?;
        files.write(&path, &content).await?;
        Ok(UploadedFile { bytes_written: content.len() as u64 })
    }

    async fn download_file(&self, arguments: DownloadFile) -> Result<DownloadedFile, String> {
        let path = arguments::path("path", &arguments.path)?;
        let most = arguments::in_range("max_bytes", arguments.max_bytes, 100_000, 1..=4_000_000)?;
        let offset = arguments::in_range("offset", arguments.offset, 0, 0..=1 << 50)?;
        let sandbox = &arguments.sandbox_claim_name;
        let files = self.files(sandbox, arguments.namespace.as_deref(), arguments.timeout).await?;
        let part = files.read(&path, offset, most).await?;
        let (content, read) = match arguments.binary {
            true => (STANDARD.encode(&part.bytes), part.bytes.len()),
            false => text(&part.bytes)
                .ok_or_else(|| format!("`{path}` is not UTF-8 text; set `binary` to read it as base64"))?,
        };
        let end = offset + read as u64;
        Ok(DownloadedFile {
            content,
            bytes_read: read as u64,
            size: part.size,
            next_offset: (read > 0 && end < part.size).then_some(end),
        })
    }

    async fn edit_file(&self, arguments: EditFile) -> Result<EditedFile, String> {
        let path = arguments::path("path", &arguments.path)?;
        let sandbox = &arguments.sandbox_claim_name;
        let files = self.files(sandbox, arguments.namespace.as_deref(), arguments.timeout).await?;
        let content = edit::read_text(&files, &path).await?;
        let (content, count) =
            edit::edit(&content, &arguments.old_text, &arguments.new_text, arguments.replace_all)?;
        files.write(&path, content.as_bytes()).await?;
        Ok(EditedFile { replacements: count as u64 })
    }

    async fn list_files(&self, arguments: ListFiles) -> Result<ListedFiles, String> {
        let path = arguments::path("path", &arguments.path)?;
        let most = arguments::in_range("max_entries", arguments.max_entries, 1000, 1..=10_000)?;
        let sandbox = &arguments.sandbox_claim_name;
        let files = self.files(sandbox, arguments.namespace.as_deref(), arguments.timeout).await?;
        let entries = files.list(&path).await?;
        let total = entries.len() as u64;
        let entries = entries.into_iter().take(usize::try_from(most).unwrap_or(usize::MAX)).map(|entry| {
            ListedFile { name: entry.name, size: entry.size, r#type: entry.kind, mod_time: entry.modified }
        });
        Ok(ListedFiles { entries: entries.collect(), total_entries: total, truncated: total > most })
    }

    async fn file_exists(&self, arguments: FileExists) -> Result<FileExistence, String> {
        let path = arguments::path("path", &arguments.path)?;
        let sandbox = &arguments.sandbox_claim_name;
        let files = self.files(sandbox, arguments.namespace.as_deref(), arguments.timeout).await?;
        Ok(FileExistence { exists: files.exists(&path).await? })
    }

    async fn search_files(&self, arguments: SearchFiles) -> Result<FoundLines, String> {
        let path = arguments::path("path", &arguments.path)?;
        let most = arguments::in_range("max_results", arguments.max_results, 200, 1..=2000)?;
        let name = arguments.name.as_deref().unwrap_or("*");
        if arguments.pattern.is_empty() {
            return Err("`pattern` is empty".to_owned());
        }
        for (argument, text) in [("pattern", arguments.pattern.as_str()), ("name", name)] {
            // Checked like a path: it is an argument of a program as well.
            arguments::path(argument, text)?;
        }
        let sandbox = &arguments.sandbox_claim_name;
        let files = self.files(sandbox, arguments.namespace.as_deref(), arguments.timeout).await?;
        let search = Search { path: &path, pattern: &arguments.pattern, regex: arguments.regex, name };
        let found = files.search(&search).await?;
        let total = found.len() as u64;
        let matches =
            found.into_iter().take(usize::try_from(most).unwrap_or(usize::MAX)).map(|found| FoundLine {
                path: found.path,
                line: found.line,
                text: found.text.chars().take(LONGEST_LINE).collect(),
            });
        Ok(FoundLines { matches: matches.collect(), total_matches: total, truncated: total > most })
    }
}

/// The result of a tool.
pub(crate) struct Answer {
    pub(crate) value: Value,
    pub(crate) images: Vec<Image>,
}

/// Reads a tool's arguments, runs it, and returns its result as JSON.
async fn run<A: DeserializeOwned, R: Serialize>(
    arguments: JsonObject,
    tool: impl AsyncFnOnce(A) -> Result<R, String>,
) -> Result<Answer, String> {
    let arguments = serde_json::from_value(Value::Object(arguments))
        .map_err(|error| format!("arguments of the tool: {error}"))?;
    let result = tool(arguments).await?;
    let value = serde_json::to_value(result).map_err(|error| format!("write the result: {error}"))?;
    Ok(Answer { value, images: Vec::new() })
}

fn unreadable(error: std::io::Error) -> String {
    format!("read the command's output back: {error}")
}

/// Returns the exit code of a command, if it has one; fails if the command could not be run.
fn exit_code(state: &State) -> Result<Option<i32>, String> {
    match state {
        State::Exited(code) => Ok(Some(*code)),
        State::Running | State::Stopped => Ok(None),
        State::Failed(error) => Err(error.clone()),
    }
}

/// Returns bytes as text with its length in bytes, without a character that is cut off at the end.
/// `None` if they are not UTF-8.
fn text(bytes: &[u8]) -> Option<(String, usize)> {
    let end = match std::str::from_utf8(bytes) {
        Ok(_) => bytes.len(),
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        Err(_) => return None,
    };
    (end > 0 || bytes.is_empty()).then(|| (String::from_utf8_lossy(&bytes[..end]).into_owned(), end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_before_a_character_that_is_cut_off() {
        assert_eq!(text("aö".as_bytes()), Some(("aö".to_owned(), 3)));
        assert_eq!(text(&"aö".as_bytes()[..2]), Some(("a".to_owned(), 1)));
        assert_eq!(text(b"a\xff"), None);
        assert_eq!(text(b""), Some((String::new(), 0)));
    }
}
