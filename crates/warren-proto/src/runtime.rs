//! The runtime API of a sandbox, as the published agent-sandbox clients speak it on port 8888.

use serde::{Deserialize, Serialize};

/// The port that the runtime API is served on.
pub const PORT: u16 = 8888;

/// Body of `POST /execute`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExecuteRequest {
    /// A command line. It is split into words as a shell would, and run without a shell.
    pub command: String,
    /// Ends the command after this many seconds; the daemon's own limit holds without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<f64>,
}

/// Body of `POST /agent`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentRequest {
    /// Words for the agent program.
    pub query: String,
}

/// Answer to `POST /execute` and `POST /agent`, with status 200 also if the command failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutionResult {
    /// Standard output as text; bytes that are not UTF-8 are replaced.
    pub stdout: String,
    /// Standard error, or the reason why there was no command to run.
    pub stderr: String,
    /// The exit code; minus the signal's number if a signal ended the command; 1 if it never ran
    /// or took too long.
    pub exit_code: i32,
    /// The command was ended because it took too long.
    #[serde(default)]
    pub timed_out: bool,
    /// Output beyond the daemon's limit was dropped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// An answer that says how a request went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// For people.
    pub message: String,
}

/// Answer to `GET /`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// `ok`.
    pub status: String,
    /// For people.
    pub message: String,
}

/// One entry of the array that answers `GET /list/{path}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ListEntry {
    /// Its name in the directory.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: EntryKind,
    /// When its content last changed, in seconds since 1970.
    pub mod_time: f64,
}

/// Type of a [`ListEntry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryKind {
    /// Everything that is not a directory.
    File,
    /// A directory.
    Directory,
}

/// Answer to `GET /exists/{path}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exists {
    /// The path as it was understood.
    pub path: String,
    /// True if there is something at the path.
    pub exists: bool,
}

/// Answer with status 422: the request's body is not what the method takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unprocessable {
    /// One entry for each thing that is wrong.
    pub detail: Vec<FieldProblem>,
}

/// One thing that is wrong with a body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldProblem {
    /// `missing`, `json_invalid` or `value_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The location of the fault: `body` and the name of the field.
    pub loc: Vec<String>,
    /// For people.
    pub msg: String,
}
