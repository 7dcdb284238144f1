//! A child process, its streams and its end.

use crate::error::{Code, ProviderError};
use crate::process::Inside;

/// Carries a child's streams until it ends or is to be stopped.
pub(super) async fn carry(mut child: tokio::process::Child, inside: Inside) {
    let Inside { mut stdin, mut stdout, mut stderr, resize, end, stop } = inside;
    drop(resize);
    let group = child.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed()));
    let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feeding = tokio::spawn(async move {
        if let Some(mut input) = input {
            let _ = tokio::io::copy(&mut stdin, &mut input).await;
        }
    });
    let streams = async {
        let out = async {
            if let Some(mut output) = output {
                let _ = tokio::io::copy(&mut output, &mut stdout).await;
            }
            drop(stdout);
        };
        let err = async {
            if let Some(mut errors) = errors {
                let _ = tokio::io::copy(&mut errors, &mut stderr).await;
            }
            drop(stderr);
        };
        tokio::join!(out, err);
        child.wait().await
    };
    let result = tokio::select! {
        status = streams => match status {
            Ok(status) => {
                use std::os::unix::process::ExitStatusExt as _;
                Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
            }
            Err(error) => Err(ProviderError::new(Code::SandboxExecFailed, error.to_string())),
        },
        () = stop.cancelled() => Err(ProviderError::new(Code::SandboxExecFailed, "the command was stopped")),
    };
    if result.is_err()
        && let Some(group) = group
    {
        // The command's children too. It may have ended just now.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    feeding.abort();
    let _ = end.send(result);
}
