//! Prints errors: the problem and its causes, once, and a hint if there is one.

use std::process::ExitCode;

use warren_client::connect::ConnectError;
use warren_client::exec::ExecError;
use warren_client::home::DataDirError;
use warren_client::lease::cluster::LeaseError;
use warren_client::sandbox::{SandboxError, WaitError};
use warren_client::sync::SyncError;
use warren_client::sync::back::BackError;
use warren_client::sync::manifest::ManifestError;
use warren_controllers::RunError;
use warren_local::OrdinaryUserError;

use crate::destination::NoContext;
use crate::home::NeverStarted;
use crate::leases::NoLease;
use crate::service::NoService;
use crate::up::NotApplied;

/// Prints an error and a hint.
pub fn print(error: &anyhow::Error) {
    // Parts of it come from servers and pods.
    let text = chain(error).replace(|letter: char| letter.is_control() && letter != '\n', " ");
    eprintln!("error: {text}");
    if let Some(hint) = hint(error) {
        eprintln!("hint: {hint}");
    }
}

/// Formats the whole chain in one line. A cause that only repeats an earlier text is left out: many
/// libraries include their source in their own message.
pub fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        if let Some(message) = status_message(cause) {
            // The rest of the chain repeats this answer in the library's words.
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(message);
            break;
        }
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// Returns the server's message, if the error is an answer of the server.
fn status_message<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a str> {
    use warren_client::kube::Error;
    let error =
        error.downcast_ref::<Error>().or_else(|| Some(error.downcast_ref::<Box<Error>>()?.as_ref()))?;
    match error {
        Error::Api(status) if !status.message.is_empty() => Some(status.message.as_str()),
        _ => None,
    }
}

/// Returns the special exit code of an error, if it has one: a command that could not be started
/// ends as in a shell.
pub fn exit_code(error: &anyhow::Error) -> Option<ExitCode> {
    match error.downcast_ref()? {
        ExecError::Failed { exit_code, .. } => Some(ExitCode::from(u8::try_from((*exit_code)?).ok()?)),
        _ => None,
    }
}

fn hint(error: &anyhow::Error) -> Option<String> {
    let denied = error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    });
    if denied && (is::<DataDirError>(error) || is::<ConnectError>(error)) {
        return Some(
            "use `--data-dir` or `WARREN_HOME` to name a directory of your own, or become root".to_owned(),
        );
    }
    if let Some(DataDirError::Nowhere) = error.downcast_ref() {
        return Some("name a directory of your own with `--data-dir` or `WARREN_HOME`".to_owned());
    }
    if is::<OrdinaryUserError>(error) {
        return Some(
            "`warren doctor` says what keeps ordinary users from sandboxes, or become root".to_owned(),
        );
    }
    if is::<NotApplied>(error) {
        return Some(
            "stop it with `warren down --keep`, which leaves its sandboxes running, and repeat the command"
                .to_owned(),
        );
    }
    let socket =
        matches!(error.downcast_ref(), Some(ConnectError::NotRunning { .. } | ConnectError::Socket { .. }));
    if is::<NeverStarted>(error) || socket {
        return Some("start the local home with `warren up --detach`".to_owned());
    }
    if let Some(DataDirError::TooLong { .. }) = error.downcast_ref() {
        return Some("name a shorter one with `--data-dir` or `WARREN_HOME`".to_owned());
    }
    if is::<NoContext>(error) {
        return Some("name a context with `--context`; `kubectl config get-contexts` lists them".to_owned());
    }
    if let Some(NoLease { slug, .. }) = error.downcast_ref() {
        return Some(format!(
            "`warren list` shows the leases of this home; `warren warmup --id {slug}` makes one"
        ));
    }
    match error.downcast_ref() {
        Some(LeaseError::Missing { .. }) => {
            return Some(
                "if this is the right cluster, `warren stop --forget-missing` forgets the lease".to_owned(),
            );
        }
        Some(LeaseError::Mismatch(mismatch)) if mismatch.field == "metadata.uid" => {
            return Some(
                "the object was replaced; `warren stop --forget-missing` forgets the lease and deletes nothing"
                    .to_owned(),
            );
        }
        _ => {}
    }
    match error.downcast_ref::<WaitError>() {
        Some(WaitError::TimedOut { .. }) => {
            return Some(
                "wait longer with `--ready-timeout SECONDS`; `daemon.log` in the data directory says more"
                    .to_owned(),
            );
        }
        Some(WaitError::Ended { .. } | WaitError::Deleted { .. }) => {
            return Some("`daemon.log` in the data directory says more".to_owned());
        }
        _ => {}
    }
    if let Some(SandboxError { source, .. }) = error.downcast_ref()
        && let warren_client::kube::Error::Api(status) = source.as_ref()
        && status.reason == "AlreadyExists"
    {
        return Some("choose another name with `--name`, or leave it out to get a new one".to_owned());
    }
    match error.downcast_ref() {
        Some(ManifestError::TooLarge { .. }) => {
            return Some(
                "leave files out with `--exclude PATTERN` or a line in `.warrenignore`, or send them all with `--sync-large`"
                    .to_owned(),
            );
        }
        Some(ManifestError::NoGit { .. } | ManifestError::Git { .. }) => {
            return Some("send no files with `--no-sync`".to_owned());
        }
        _ => {}
    }
    if let Some(SyncError::Remote { .. }) = error.downcast_ref() {
        return Some("the image needs `/bin/sh` and `tar` for files; `--no-sync` sends none".to_owned());
    }
    if let Some(BackError::Conflict { .. }) = error.downcast_ref() {
        return Some("keep the sandbox's versions with `--overwrite`".to_owned());
    }
    if let Some(RunError::Bind { .. }) = error.downcast_ref() {
        return Some(
            "choose another address with `--metrics-bind-address` or `--health-probe-bind-address`; `0` is none"
                .to_owned(),
        );
    }
    if is::<NoService>(error) {
        return Some(
            "`warren-service` comes with every release; put it beside `warren` or into a directory of PATH, \
             or build it with `cargo build --release --package warren-service`"
                .to_owned(),
        );
    }
    if let Some(ExecError::Lost { .. }) = error.downcast_ref() {
        return Some(
            "the daemon may have been stopped; the command may have ended with its sandbox".to_owned(),
        );
    }
    None
}

fn is<E: std::error::Error + Send + Sync + 'static>(error: &anyhow::Error) -> bool {
    error.downcast_ref::<E>().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_of_the_server_is_said_in_its_own_words() {
        let status = warren_client::kube::core::Status::failure("namespaces \"x\" not found", "NotFound");
        let source = Box::new(warren_client::kube::Error::Api(Box::new(status)));
        let key = warren_client::sandbox::SandboxKey { namespace: "x".to_owned(), name: "s".to_owned() };
        let error = anyhow::Error::from(SandboxError { action: "create", sandbox: key, source });
        assert_eq!(chain(&error), "create sandbox `x/s`: namespaces \"x\" not found");
    }

    #[test]
    fn a_cause_is_said_once() {
        let inner = anyhow::anyhow!("no such file");
        let error = inner.context("read `x`: no such file").context("start");
        assert_eq!(chain(&error), "start: read `x`: no such file");
    }
}
