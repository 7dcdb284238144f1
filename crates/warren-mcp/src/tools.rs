//! The tools: their names, arguments, results and hints.
//!
//! Names and arguments are those of agent-sandbox's MCP server where it has the tool. A sandbox is
//! named by `sandbox_claim_name` everywhere, as there, also if it was made from an image and has no
//! claim.

use std::collections::BTreeMap;
use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::arguments::CommandLine;

/// Arguments of `create_sandbox`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CreateSandbox {
    /// Container image to make the sandbox from. Without `image`, `warmpool` and `template`, the
    /// server's default.
    pub image: Option<String>,
    /// SandboxWarmPool to take a waiting sandbox from.
    pub warmpool: Option<String>,
    /// SandboxTemplate to make the sandbox from.
    pub template: Option<String>,
    /// Namespace; the server's own if absent, and no other.
    pub namespace: Option<String>,
    /// Seconds to wait until the sandbox can be used. Default 180.
    pub sandbox_ready_timeout: Option<u64>,
    /// Seconds after which the sandbox is deleted. Without it, the sandbox is deleted when the
    /// connection ends.
    pub shutdown_after_seconds: Option<u64>,
    /// Labels of the sandbox object.
    pub labels: BTreeMap<String, String>,
    /// Labels of its pod.
    pub pod_labels: BTreeMap<String, String>,
    /// Annotations of its pod.
    pub pod_annotations: BTreeMap<String, String>,
    /// Environment variables of every command in the sandbox.
    pub env: BTreeMap<String, String>,
    /// Most memory, such as `512Mi`. With `image`.
    pub memory: Option<String>,
    /// Most processor time, such as `2` or `500m`. With `image`.
    pub cpus: Option<String>,
    /// Most disk space, such as `2Gi`. With `image`.
    pub disk: Option<String>,
}

/// Result of `create_sandbox`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CreatedSandbox {
    /// The name by which the other tools know the sandbox.
    pub sandbox_claim_name: String,
    /// Its namespace.
    pub namespace: String,
}

/// Arguments of `list_sandboxes`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ListSandboxes {
    /// Namespace; the server's own if absent, and no other.
    pub namespace: Option<String>,
}

/// Result of `list_sandboxes`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ListedSandboxes {
    /// The sandboxes.
    pub sandboxes: Vec<ListedSandbox>,
}

/// A sandbox in a list.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ListedSandbox {
    /// The name by which the other tools know the sandbox.
    pub sandbox_claim_name: String,
    /// Its namespace.
    pub namespace: String,
    /// What it was made from.
    pub source: String,
    /// Whether commands can run in it.
    pub ready: bool,
    /// Why not, if they cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
}

/// Arguments of `delete_sandbox`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteSandbox {
    /// The sandbox, as `create_sandbox` returned it.
    pub sandbox_claim_name: String,
    /// Namespace; the server's own if absent, and no other.
    pub namespace: Option<String>,
}

/// Result of `delete_sandbox`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DeletedSandbox {
    /// The sandbox that was deleted.
    pub deleted: String,
}

/// Arguments of `execute_command`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecuteCommand {
    /// The sandbox, as `create_sandbox` returned it.
    pub sandbox_claim_name: String,
    /// Namespace; the server's own if absent, and no other.
    pub namespace: Option<String>,
    /// The command: a string is a line for `sh -c`, a list is a program with its arguments, without
    /// a shell.
    pub command: CommandLine,
    /// Seconds after which the command is killed, from 1 to 600. Default 60.
    pub timeout: Option<u64>,
    /// Directory to run it in.
    pub workdir: Option<String>,
    /// Environment variables of this command.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Most bytes of each stream in the result, from 1000 to 1000000. Default 30000.
    pub max_output_bytes: Option<u64>,
}

/// Result of `execute_command`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ExecutedCommand {
    /// The exit code; null if the command was killed.
    pub exit_code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Whether the command was killed because its time was over.
    pub timed_out: bool,
    /// Whether output was left out. `poll_command` with `command_id` reads it.
    pub truncated: bool,
    /// The command, for `poll_command`.
    pub command_id: String,
}

/// Arguments of `start_command`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartCommand {
    /// The sandbox, as `create_sandbox` returned it.
    pub sandbox_claim_name: String,
    /// Namespace; the server's own if absent, and no other.
    pub namespace: Option<String>,
    /// The command: a string is a line for `sh -c`, a list is a program with its arguments, without
    /// a shell.
    pub command: CommandLine,
    /// Directory to run it in.
    pub workdir: Option<String>,
    /// Environment variables of this command.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// Result of `start_command`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StartedCommand {
    /// The command, for `poll_command` and `kill_command`.
    pub command_id: String,
}

/// Arguments of `poll_command`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PollCommand {
    /// The command.
    pub command_id: String,
    /// Seconds to wait for its end, at most 60. Default 0.
    pub wait: Option<u64>,
    /// Byte of standard output to read from. Default 0.
    pub stdout_offset: Option<u64>,
    /// Byte of standard error to read from. Default 0.
    pub stderr_offset: Option<u64>,
    /// Most bytes of each stream in the result, from 1000 to 1000000. Default 30000.
    pub max_output_bytes: Option<u64>,
}

/// Result of `poll_command`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PolledCommand {
    /// Whether the command still runs.
    pub running: bool,
    /// The exit code; null if it runs or was killed.
    pub exit_code: Option<i32>,
    /// Standard output from `stdout_offset` on.
    pub stdout: String,
    /// The `stdout_offset` of the next call.
    pub stdout_next_offset: u64,
    /// How many bytes of standard output there are.
    pub stdout_bytes: u64,
    /// Standard error from `stderr_offset` on.
    pub stderr: String,
    /// The `stderr_offset` of the next call.
    pub stderr_next_offset: u64,
    /// How many bytes of standard error there are.
    pub stderr_bytes: u64,
}

/// Arguments of `kill_command`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KillCommand {
    /// The command.
    pub command_id: String,
}

/// Result of `kill_command`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct KilledCommand {
    /// Whether this call ended it; false if it had ended before.
    pub killed: bool,
    /// The exit code; null if it was killed.
    pub exit_code: Option<i32>,
}

/// Arguments of `run_code`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunCode {
    /// The sandbox, as `create_sandbox` returned it.
    pub sandbox_claim_name: String,
    /// Namespace; the server's own if absent, and no other.
    pub namespace: Option<String>,
    /// The code. It finds the variables, imports and functions of earlier calls in the same
    /// context.
    pub code: String,
    /// What the code is written in. Default `python`.
    #[serde(default)]
    pub language: CodeLanguage,
    /// Name of the context, whose state the code uses and changes. Each name and language has a
    /// state of its own. Default `default`.
    pub context: Option<String>,
    /// Seconds after which the code is interrupted, from 1 to 600. Default 60.
    pub timeout: Option<u64>,
    /// Most bytes of each stream and of `text` in the result, from 1000 to 1000000. Default 30000.
    pub max_output_bytes: Option<u64>,
}

/// What code is written in.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CodeLanguage {
    /// The image's own Python 3.
    #[default]
    Python,
    /// `bash` if the image has it, else `sh`.
    Shell,
}

/// Result of `run_code`. Images follow it as content of their own.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RanCode {
    /// Values that the code shows, as text: of its last expression, and of `display(value)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// The exception that ended Python code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<RanError>,
    /// The exit code of shell code, or of the context if it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// How many images follow.
    pub images: u64,
    /// How many values and images were left out because there were too many.
    pub left_out: u64,
    /// Whether the code was interrupted because its time was over.
    pub timed_out: bool,
    /// Whether output was left out. `poll_command` with `command_id` reads the streams.
    pub truncated: bool,
    /// Whether the context was started by this call, with an empty state.
    pub context_started: bool,
    /// Why the context has ended, if it has. Its state is gone; the next call starts it again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_ended: Option<String>,
    /// The call, for `poll_command`.
    pub command_id: String,
}

/// An exception.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RanError {
    /// Its class.
    pub name: String,
    /// What it says.
    pub value: String,
    /// Where it happened.
    pub traceback: String,
}

/// Arguments of `restart_context`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RestartContext {
    /// The sandbox, as `create_sandbox` returned it.
    pub sandbox_claim_name: String,
    /// The language of the context. Default `python`.
    #[serde(default)]
    pub language: CodeLanguage,
    /// Name of the context. Default `default`.
    pub context: Option<String>,
}

/// Result of `restart_context`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RestartedContext {
    /// Whether there was such a context.
    pub ended: bool,
}

/// Arguments of `open_port`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenPort {
    /// The sandbox, as `create_sandbox` returned it.
    pub sandbox_claim_name: String,
    /// Namespace; the server's own if absent, and no other.
    pub namespace: Option<String>,
    /// The TCP port on which a program in the sandbox serves HTTP, from 1 to 65535.
    pub port: u64,
}

/// Result of `open_port`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct OpenedPort {
    /// The URL for browsers and other programs that know names below `localhost`. Absent if the
    /// sandbox's name is too long for a host name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The URL for all other programs, which send `headers` with each request.
    pub router_url: String,
    /// The headers that name the sandbox and the port.
    pub headers: BTreeMap<&'static str, String>,
}

/// Arguments of `upload_file`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UploadFile {
    /// The sandbox, as `create_sandbox` returned it.
    pub sandbox_claim_name: String,
    /// Namespace; the server's own if absent, and no other.
    pub namespace: Option<String>,
    /// The file. Directories above it are made.
    pub path: String,
    /// The content: text, or base64 with `binary`.
    pub content: String,
    /// Whether `content` is base64. Default false.
    #[serde(default)]
    pub binary: bool,
    /// Seconds until the call fails, from 1 to 600. Default 60.
    pub timeout: Option<u64>,
}

/// Result of `upload_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct UploadedFile {
    /// How many bytes were written.
    pub bytes_written: u64,
}

/// Arguments of `download_file`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DownloadFile {
    /// The sandbox, as `create_sandbox` returned it.
    pub sandbox_claim_name: String,
    /// Namespace; the server's own if absent, and no other.
    pub namespace: Option<String>,
    /// The file.
    pub path: String,
    /// Whether to return base64. Default false: the file has to be UTF-8 text.
    #[serde(default)]
    pub binary: bool,
    /// Byte to read from. Default 0.
    pub offset: Option<u64>,
    /// Most bytes to read, from 1 to 4000000. Default 100000.
    pub max_bytes: Option<u64>,
    /// Seconds until the call fails, from 1 to 600. Default 60.
    pub timeout: Option<u64>,
}

/// Result of `download_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DownloadedFile {
    /// The content: text, or base64 with `binary`.
    pub content: String,
    /// How many bytes were read.
    pub bytes_read: u64,
    /// The size of the file.
    pub size: u64,
    /// The `offset` of the next call, if there is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_offset: Option<u64>,
}

/// Arguments of `edit_file`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EditFile {
    /// The sandbox, as `create_sandbox` returned it.
    pub sandbox_claim_name: String,
    /// Namespace; the server's own if absent, and no other.
    pub namespace: Option<String>,
    /// The file.
    pub path: String,
    /// Text in the file, exactly as it is there.
    pub old_text: String,
    /// Text to put in its place.
    pub new_text: String,
    /// Whether to replace it everywhere. Default false: it has to be there once.
    #[serde(default)]
    pub replace_all: bool,
    /// Seconds until the call fails, from 1 to 600. Default 60.
    pub timeout: Option<u64>,
}

/// Result of `edit_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EditedFile {
    /// How many places were changed.
    pub replacements: u64,
}

/// Arguments of `list_files`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListFiles {
    /// The sandbox, as `create_sandbox` returned it.
    pub sandbox_claim_name: String,
    /// Namespace; the server's own if absent, and no other.
    pub namespace: Option<String>,
    /// The directory.
    pub path: String,
    /// Most entries to return, from 1 to 10000. Default 1000.
    pub max_entries: Option<u64>,
    /// Seconds until the call fails, from 1 to 600. Default 60.
    pub timeout: Option<u64>,
}

/// Result of `list_files`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ListedFiles {
    /// The entries, sorted by name.
    pub entries: Vec<ListedFile>,
    /// How many there are.
    pub total_entries: u64,
    /// Whether some were left out.
    pub truncated: bool,
}

/// A file in a list.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ListedFile {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// `file`, `directory`, `symlink` or `other`.
    pub r#type: &'static str,
    /// When it was last changed, in seconds since 1970.
    pub mod_time: i64,
}

/// Arguments of `file_exists`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileExists {
    /// The sandbox, as `create_sandbox` returned it.
    pub sandbox_claim_name: String,
    /// Namespace; the server's own if absent, and no other.
    pub namespace: Option<String>,
    /// The path.
    pub path: String,
    /// Seconds until the call fails, from 1 to 600. Default 60.
    pub timeout: Option<u64>,
}

/// Result of `file_exists`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FileExistence {
    /// Whether there is something at the path.
    pub exists: bool,
}

/// Arguments of `search_files`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchFiles {
    /// The sandbox, as `create_sandbox` returned it.
    pub sandbox_claim_name: String,
    /// Namespace; the server's own if absent, and no other.
    pub namespace: Option<String>,
    /// The directory or file to search in.
    pub path: String,
    /// The text to find.
    pub pattern: String,
    /// Whether `pattern` is an extended regular expression. Default false.
    #[serde(default)]
    pub regex: bool,
    /// Which files, by a pattern for their names such as `*.py`. Default all.
    pub name: Option<String>,
    /// Most lines to return, from 1 to 2000. Default 200.
    pub max_results: Option<u64>,
    /// Seconds until the call fails, from 1 to 600. Default 60.
    pub timeout: Option<u64>,
}

/// Result of `search_files`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FoundLines {
    /// The lines.
    pub matches: Vec<FoundLine>,
    /// How many there are.
    pub total_matches: u64,
    /// Whether some were left out.
    pub truncated: bool,
}

/// A line that was found.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FoundLine {
    /// The file.
    pub path: String,
    /// The line's number, from 1.
    pub line: u64,
    /// The line; a long one is cut.
    pub text: String,
}

/// Returns the description of every tool. Ports are opened by the router of the local home, and
/// only there.
pub fn tools(local_home: bool) -> Vec<Tool> {
    let mut tools = tools_everywhere();
    if local_home {
        tools.push(tool::<OpenPort, OpenedPort>(
            "open_port",
            "Return a URL on this machine by which a browser or program opens an HTTP port of a sandbox. The program in \
             the sandbox has to listen on all addresses (0.0.0.0). The URL works for as long as the sandbox exists.",
            hints(true, false),
        ));
    }
    tools
}

fn tools_everywhere() -> Vec<Tool> {
    vec![
        tool::<CreateSandbox, CreatedSandbox>(
            "create_sandbox",
            "Create an isolated sandbox and wait until commands can run in it.",
            hints(false, false),
        ),
        tool::<ListSandboxes, ListedSandboxes>(
            "list_sandboxes",
            "List your sandboxes and whether they are ready.",
            hints(true, false),
        ),
        tool::<DeleteSandbox, DeletedSandbox>(
            "delete_sandbox",
            "Delete a sandbox with everything in it: its processes and its files.",
            hints(false, true).idempotent(true),
        ),
        tool::<ExecuteCommand, ExecutedCommand>(
            "execute_command",
            "Run a command in a sandbox and return its exit code and output. Long output is cut in the middle; \
             `poll_command` reads the rest.",
            hints(false, true).open_world(true),
        ),
        tool::<StartCommand, StartedCommand>(
            "start_command",
            "Start a command in a sandbox and return at once, for servers and long builds. `poll_command` shows \
             its output, `kill_command` ends it.",
            hints(false, true).open_world(true),
        ),
        tool::<PollCommand, PolledCommand>(
            "poll_command",
            "Read the output of a command from an offset on, and whether it has ended.",
            hints(true, false),
        ),
        tool::<KillCommand, KilledCommand>(
            "kill_command",
            "End a command that runs.",
            hints(false, true).idempotent(true),
        ),
        tool::<RunCode, RanCode>(
            "run_code",
            "Run Python or shell code in a sandbox, in a context that keeps variables, imports and the working \
             directory for the next call. Returns what the code prints, the value of its last expression, the \
             exception, and figures of matplotlib and other images as images.",
            hints(false, true).open_world(true),
        ),
        tool::<RestartContext, RestartedContext>(
            "restart_context",
            "End a context of `run_code` with everything that runs in it. The next `run_code` in it starts with an \
             empty state.",
            hints(false, true).idempotent(true),
        ),
        tool::<UploadFile, UploadedFile>(
            "upload_file",
            "Write a file in a sandbox, replacing it if it exists.",
            hints(false, true).idempotent(true),
        ),
        tool::<DownloadFile, DownloadedFile>(
            "download_file",
            "Read a file of a sandbox, or a part of it.",
            hints(true, false),
        ),
        tool::<EditFile, EditedFile>(
            "edit_file",
            "Replace a text in a file of a sandbox by another.",
            hints(false, true),
        ),
        tool::<ListFiles, ListedFiles>("list_files", "List a directory of a sandbox.", hints(true, false)),
        tool::<FileExists, FileExistence>(
            "file_exists",
            "Tell whether a path exists in a sandbox.",
            hints(true, false),
        ),
        tool::<SearchFiles, FoundLines>(
            "search_files",
            "Find lines that contain a text in the files of a sandbox.",
            hints(true, false),
        ),
    ]
}

fn tool<A: JsonSchema + 'static, R: JsonSchema + 'static>(
    name: &'static str,
    description: &'static str,
    hints: ToolAnnotations,
) -> Tool {
    let mut tool = Tool::new(name, description, JsonObject::new())
        .with_input_schema::<A>()
        .with_output_schema::<R>()
        .with_annotations(hints);
    tool.input_schema = without_formats(&tool.input_schema);
    tool.output_schema = tool.output_schema.as_deref().map(without_formats);
    tool
}

/// Removes formats such as `uint64`, which are Rust's. Validators of clients warn of every one.
fn without_formats(schema: &JsonObject) -> Arc<JsonObject> {
    fn remove(value: &mut Value) {
        match value {
            Value::Object(object) => {
                if object.get("format").is_some_and(Value::is_string) {
                    object.remove("format");
                }
                object.values_mut().for_each(remove);
            }
            Value::Array(values) => values.iter_mut().for_each(remove),
            _ => {}
        }
    }
    let mut schema = schema.clone();
    schema.values_mut().for_each(remove);
    Arc::new(schema)
}

fn hints(read_only: bool, destructive: bool) -> ToolAnnotations {
    // Commands may reach what the home lets them; the other tools reach nothing but the sandbox.
    ToolAnnotations::new().read_only(read_only).destructive(destructive).open_world(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_argument_is_described_and_only_deleting_and_running_are_destructive() {
        let tools = tools(true);
        for tool in &tools {
            let schema = tool.schema_as_json_value();
            assert_eq!(schema["additionalProperties"], false, "{}", tool.name);
            for (argument, property) in schema["properties"].as_object().expect("properties") {
                assert!(property["description"].is_string(), "{} {argument}", tool.name);
            }
            let output = tool.output_schema.as_ref().expect("a schema of the result");
            for text in [schema.to_string(), serde_json::to_string(output).expect("JSON")] {
                assert!(!text.contains("uint"), "{text}");
            }
            let hints = tool.annotations.as_ref().expect("hints");
            assert!(hints.read_only_hint != Some(true) || hints.destructive_hint == Some(false));
        }
        let delete = tools.iter().find(|tool| tool.name == "delete_sandbox").expect("the tool");
        assert!(delete.annotations.as_ref().expect("hints").is_destructive());
    }
}
