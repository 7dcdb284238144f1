//! Reads containers' logs, which shims write in CRI format: `<time> <stdout|stderr> <F|P> <text>`.
//!
//! Following a log waits for events of the kernel (inotify) and of the shim, never for a timer.

mod follow;
mod position;

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::Stream;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use tokio::sync::mpsc;

use crate::pod_registry::Entry;

/// The chunks that may wait for a slow reader.
const CHUNKS_AHEAD: usize = 2;

/// The wanted part of a log and its format, from the query of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LogOptions {
    pub(crate) follow: bool,
    pub(crate) previous: bool,
    pub(crate) timestamps: bool,
    pub(crate) tail_lines: Option<u64>,
    pub(crate) since: Option<Timestamp>,
    pub(crate) limit_bytes: Option<u64>,
}

/// The error of an invalid query.
#[derive(Debug, thiserror::Error)]
#[error("{name}: `{value}` is not valid")]
pub(crate) struct OptionError {
    name: String,
    value: String,
}

/// The error of a log that cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogRequestError {
    #[error("container \"{container}\" not found in pod \"{pod}\"")]
    NoContainer { container: String, pod: String },
    #[error("container \"{container}\" in pod \"{pod}\" is waiting to start: {reason}")]
    Waiting { container: String, pod: String, reason: String },
    #[error("previous terminated container \"{container}\" in pod \"{pod}\" not found")]
    NoPrevious { container: String, pod: String },
}

impl LogOptions {
    pub(crate) fn parse(query: &str, now: Timestamp) -> Result<LogOptions, OptionError> {
        let mut options = LogOptions::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let shown = || OptionError { name: name.to_string(), value: value.chars().take(64).collect() };
            let number = || value.parse::<u64>().map_err(|_| shown());
            let flag = || match value.as_ref() {
                "true" | "1" => Ok(true),
                "false" | "0" | "" => Ok(false),
                _ => Err(shown()),
            };
            match name.as_ref() {
                "follow" => options.follow = flag()?,
                "previous" => options.previous = flag()?,
                "timestamps" => options.timestamps = flag()?,
                "tailLines" => options.tail_lines = Some(number()?),
                "limitBytes" => options.limit_bytes = Some(number()?),
                "sinceSeconds" => {
                    let seconds = i64::try_from(number()?).map_err(|_| shown())?;
                    options.since = now.checked_sub(SignedDuration::from_secs(seconds)).ok();
                }
                "sinceTime" => options.since = Some(value.parse().map_err(|_| shown())?),
                _ => {}
            }
        }
        Ok(options)
    }
}

/// Reads a container's log in chunks, as fast as the client reads them.
pub(crate) fn read_log(
    entry: &Arc<Entry>,
    pod: &Pod,
    container: &str,
    options: LogOptions,
) -> Result<impl Stream<Item = Bytes> + Send + use<>, LogRequestError> {
    let pod_name = entry.name.clone();
    let container = container.to_owned();
    let containers =
        pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    if !containers.into_iter().any(|known| known.name == container) {
        return Err(LogRequestError::NoContainer { container, pod: pod_name });
    }
    let attempt = newest_attempt(entry, pod, &container);
    let attempt = match (attempt, options.previous) {
        (None, _) => {
            let reason = waiting_reason(pod, &container);
            return Err(LogRequestError::Waiting { container, pod: pod_name, reason });
        }
        (Some(0), true) => return Err(LogRequestError::NoPrevious { container, pod: pod_name }),
        (Some(attempt), true) => attempt - 1,
        (Some(attempt), false) => attempt,
    };
    let path = entry.directory.log(&container, attempt);
    let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD);
    let state = entry.state.clone();
    tokio::spawn(async move {
        let run = follow::Run { container, attempt, state };
        if let Err(error) = follow::copy(&path, run, options, &sender).await
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            tracing::warn!(path = %path.display(), %error, "log not read");
        }
    });
    Ok(futures::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|chunk| (chunk, receiver))
    }))
}

/// Returns the number of the newest run: from the shim or, when it is gone, from the published
/// status.
fn newest_attempt(entry: &Entry, pod: &Pod, container: &str) -> Option<u32> {
    if let Some(state) = &*entry.state.borrow() {
        return state.containers.get(container).map(|container| container.attempt);
    }
    let status = statuses(pod).find(|status| status.name == container)?;
    status.container_id.as_ref()?;
    u32::try_from(status.restart_count).ok()
}

/// Returns the statuses of all containers, including init containers.
fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    pod.status.iter().flat_map(|status| {
        let of_init = status.init_container_statuses.iter().flatten();
        of_init.chain(status.container_statuses.iter().flatten())
    })
}

fn waiting_reason(pod: &Pod, container: &str) -> String {
    let waiting = statuses(pod)
        .filter(|status| status.name == container)
        .find_map(|status| status.state.clone()?.waiting?.reason);
    waiting.unwrap_or_else(|| "ContainerCreating".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_nonsense_is_named() {
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        let options =
            LogOptions::parse("follow=true&tailLines=5&sinceSeconds=60&timestamps=true", now).unwrap();
        let since = Some("2026-11-15T11:59:00Z".parse().unwrap());
        let wanted = LogOptions {
            follow: true,
            timestamps: true,
            tail_lines: Some(5),
            since,
            ..LogOptions::default()
        };
        assert_eq!(options, wanted);
        let error = LogOptions::parse("tailLines=-1", now).unwrap_err();
        assert_eq!(error.to_string(), "tailLines: `-1` is not valid");
    }
}
