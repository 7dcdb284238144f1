//! The error catalogue: a code that programs can test, its HTTP status, and a message for people.

use serde::Serialize;
use serde_json::{Value, json};

/// A kind of failure. Its name on the wire is stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Code {
    /// There is no such sandbox.
    SandboxNotFound,
    /// There is one for that project already.
    SandboxAlreadyExists,
    /// It could not be created.
    SandboxCreationFailed,
    /// It could not be started.
    SandboxStartFailed,
    /// It could not be stopped.
    SandboxStopFailed,
    /// It could not be removed.
    SandboxRemovalFailed,
    /// A command could not be run, or its end is not known.
    SandboxExecFailed,
    /// The sandbox is not in a state in which that is possible.
    SandboxInvalidState,
    /// There is no such file in the sandbox.
    SandboxFileNotFound,
    /// A file could not be read.
    SandboxReadFailed,
    /// A file could not be written.
    SandboxWriteFailed,
    /// A file is larger than can be written at once.
    SandboxFileTooLarge,
    /// Usage figures cannot be had.
    SandboxStatsFailed,
    /// A limit was met.
    SandboxResourceLimitExceeded,
    /// It took too long.
    SandboxTimeout,
    /// The image cannot be had.
    ImageNotFound,
    /// A field of the request is not valid.
    ValidationError,
    /// The provider cannot be reached, or cannot do this.
    ProviderUnavailable,
}

impl Code {
    /// All codes.
    pub const ALL: [Code; 18] = [
        Code::SandboxNotFound,
        Code::SandboxAlreadyExists,
        Code::SandboxCreationFailed,
        Code::SandboxStartFailed,
        Code::SandboxStopFailed,
        Code::SandboxRemovalFailed,
        Code::SandboxExecFailed,
        Code::SandboxInvalidState,
        Code::SandboxFileNotFound,
        Code::SandboxReadFailed,
        Code::SandboxWriteFailed,
        Code::SandboxFileTooLarge,
        Code::SandboxStatsFailed,
        Code::SandboxResourceLimitExceeded,
        Code::SandboxTimeout,
        Code::ImageNotFound,
        Code::ValidationError,
        Code::ProviderUnavailable,
    ];

    /// Returns the HTTP status that goes with the code.
    pub fn http_status(self) -> u16 {
        match self {
            Code::SandboxNotFound | Code::SandboxFileNotFound | Code::ImageNotFound => 404,
            Code::SandboxAlreadyExists => 409,
            Code::SandboxInvalidState | Code::ValidationError => 400,
            Code::SandboxFileTooLarge => 413,
            Code::SandboxResourceLimitExceeded => 429,
            Code::SandboxTimeout => 408,
            Code::ProviderUnavailable => 503,
            Code::SandboxCreationFailed
            | Code::SandboxStartFailed
            | Code::SandboxStopFailed
            | Code::SandboxRemovalFailed
            | Code::SandboxExecFailed
            | Code::SandboxReadFailed
            | Code::SandboxWriteFailed
            | Code::SandboxStatsFailed => 500,
        }
    }

    /// Returns the code's name on the wire.
    pub fn name(self) -> String {
        serde_json::to_value(self).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
    }
}

/// A provider did not do what it was asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    /// The kind of the failure.
    pub code: Code,
    /// The action that was tried, and the reason that it failed.
    pub message: String,
    /// Values that belong to the code, as an object.
    pub details: Value,
}

impl ProviderError {
    /// Makes an error without details.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: json!({}) }
    }

    /// Adds details.
    #[must_use]
    pub fn with(mut self, details: Value) -> Self {
        self.details = details;
        self
    }

    /// Refuses a field of a request.
    pub fn invalid(field: &str, problem: impl std::fmt::Display) -> Self {
        Self::new(Code::ValidationError, format!("`{field}` {problem}")).with(json!({ "field": field }))
    }

    /// Says that there is no such sandbox.
    pub fn not_found(sandbox: &str) -> Self {
        Self::new(Code::SandboxNotFound, format!("Sandbox not found: {sandbox}"))
            .with(json!({ "sandboxId": sandbox }))
    }

    /// Says that there is no such file.
    pub fn file_not_found(path: &str) -> Self {
        Self::new(Code::SandboxFileNotFound, format!("File not found in sandbox: {path}"))
            .with(json!({ "path": path }))
    }

    /// Says that the sandbox's state does not allow it.
    pub fn invalid_state(state: &str) -> Self {
        Self::new(Code::SandboxInvalidState, format!("Invalid sandbox state: {state}"))
            .with(json!({ "state": state }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_names_and_statuses_of_the_catalogue() {
        let named: Vec<(String, u16)> =
            Code::ALL.into_iter().map(|code| (code.name(), code.http_status())).collect();
        let status = |name: &str| named.iter().find(|(found, _)| found == name).map(|(_, status)| *status);
        for (name, expected) in [
            ("SANDBOX_NOT_FOUND", 404),
            ("SANDBOX_CREATION_FAILED", 500),
            ("SANDBOX_START_FAILED", 500),
            ("SANDBOX_STOP_FAILED", 500),
            ("SANDBOX_REMOVAL_FAILED", 500),
            ("SANDBOX_EXEC_FAILED", 500),
            ("SANDBOX_INVALID_STATE", 400),
            ("SANDBOX_FILE_NOT_FOUND", 404),
            ("SANDBOX_WRITE_FAILED", 500),
            ("SANDBOX_STATS_FAILED", 500),
            ("SANDBOX_RESOURCE_LIMIT_EXCEEDED", 429),
            ("SANDBOX_TIMEOUT", 408),
        ] {
            assert_eq!(status(name), Some(expected), "{name}");
        }
    }
}
