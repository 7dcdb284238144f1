//! Commands in a pod: the words that are executed, and their streams.

use serde_json::json;
use warren_client::exec::{Exec, ExecError, Streams};
use warren_client::files::chain;

use crate::error::{Code, ProviderError};
use crate::process::{Command, Inside};

/// Runs a command in a directory (`$1`, may be empty) with the variables that so many bytes (`$2`) of standard input set. Values are
/// in no argument: those can be read in the sandbox by every process and in the API server's URLs.
const WITH_VARIABLES: &str = r#"eval "$(head -c "$2")" || exit 125
if [ -n "$1" ]; then cd -- "$1" || exit 125; fi
shift 2
exec "$@" </dev/null"#;

/// The same without variables, which leaves standard input to the command.
const IN_DIRECTORY: &str = r#"cd -- "$1" || exit 125
shift
exec "$@""#;

/// Returns the words to execute, and what goes to their standard input first.
pub(super) fn words(command: &Command) -> (Vec<String>, Option<String>) {
    let own = std::iter::once(command.program.clone()).chain(command.arguments.iter().cloned());
    let directory = command.directory.clone().unwrap_or_default();
    let shell = |script: &str| ["/bin/sh", "-c", script, "sh"].map(str::to_owned).into_iter();
    if !command.env.is_empty() && !command.stdin && command.terminal.is_none() {
        let exports: String = command
            .env
            .iter()
            .map(|(name, value)| format!("export {name}='{}'\n", value.replace('\'', r"'\''")))
            .collect();
        let before = [directory, exports.len().to_string()];
        return (shell(WITH_VARIABLES).chain(before).chain(own).collect(), Some(exports));
    }
    // On a terminal or with an input of its own, the variables are arguments: there is no other way for them.
    let variables: Vec<String> = match command.env.is_empty() {
        true => Vec::new(),
        false => std::iter::once("env".to_owned())
            .chain(command.env.iter().map(|(name, value)| format!("{name}={value}")))
            .collect(),
    };
    let all = variables.into_iter().chain(own);
    match command.directory.is_some() {
        true => (shell(IN_DIRECTORY).chain([directory]).chain(all).collect(), None),
        false => (all.collect(), None),
    }
}

/// Carries a command's streams until it ends or is to be stopped.
pub(super) async fn carry(exec: Exec, inside: Inside, input: Option<String>) {
    let Inside { stdin, stdout, stderr, resize, end, stop } = inside;
    let ran = async {
        match input {
            Some(input) => exec.run(Streams { stdin: input.as_bytes(), stdout, stderr, resize }).await,
            None => exec.run(Streams { stdin, stdout, stderr, resize }).await,
        }
    };
    let result = tokio::select! {
        result = ran => result.map_err(|error| exec_failed(&error)),
        // Hanging up ends the command.
        () = stop.cancelled() => Err(ProviderError::new(Code::SandboxExecFailed, "the command was stopped")),
    };
    // The receiver may be gone.
    let _ = end.send(result);
}

pub(super) fn exec_failed(error: &ExecError) -> ProviderError {
    let reason = chain(error);
    let code = match error {
        ExecError::Failed { exit_code, .. } => *exit_code,
        _ => None,
    };
    ProviderError::new(Code::SandboxExecFailed, format!("Command execution failed: {reason}"))
        .with(json!({ "reason": reason, "exitCode": code }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_reach_a_command_by_its_input_and_not_by_its_arguments() {
        let mut command = Command::new("sh", ["-c", "printf %s \"$A\"; pwd; cat"]);
        command.env.insert("A".to_owned(), "it's $HOME\n\\".to_owned());
        command.directory = Some("/tmp".to_owned());
        let (words, input) = words(&command);
        assert!(!words.iter().any(|word| word.contains("HOME")), "{words:?}");
        use std::io::Write as _;
        use std::process::Stdio;
        let mut child = std::process::Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("run");
        let input = input.expect("variables");
        child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("write");
        let output = child.wait_with_output().expect("wait");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "it's $HOME\n\\/tmp\n");
    }

    #[test]
    fn command_without_variables_keeps_its_words() {
        let command = Command::new("echo", ["a b"]);
        assert_eq!(words(&command), (vec!["echo".to_owned(), "a b".to_owned()], None));
    }
}
