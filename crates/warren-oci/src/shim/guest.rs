//! The shim's state of a container, and of the processes that clients start in one.

use std::io;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use warren_sys::cgroup::Watch;

use super::clients::Asker;
use super::log::{Log, Stream};
use super::serve;
use crate::container::{self, Container, Exec, PodNamespaces, Workshop};
use crate::protocol::{
    ContainerRequest, ContainerState, ContainerStatus, PodRequest, Refusal, RefusalReason,
};
use crate::timeline::Timeline;

/// A container and its log, watches and held signal.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) attempt: u32,
    pub(super) container: Option<Container>,
    pub(super) status: ContainerStatus,
    pub(super) oom_kills: u64,
    pub(super) pids_limit_hits: u64,
    pub(super) watches: Vec<Watch>,
    pub(super) is_watched: bool,
    pub(super) log: Log,
    pub(super) asker: Option<Asker>,
    /// A signal that the container's first process would not notice yet.
    held: Option<Held>,
}

/// A signal that waits until its receiver would notice it.
#[derive(Debug)]
struct Held {
    signal: i32,
    /// The time of the next check, and the pause after it.
    due: Instant,
    pause: Duration,
}

/// The pauses between checks. A program has a handler within milliseconds of its start, an
/// interpreter after a second or two. A program that never gets one is checked ten times a second
/// until its grace period is over.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// A process beside the container's own.
#[derive(Debug)]
pub(super) struct ExecProcess {
    pub(super) container: String,
    pub(super) exec: Exec,
    /// `None` for the program of an activation, which no client started.
    pub(super) asker: Option<Asker>,
    pub(super) oom_kills_before: u64,
}

impl Guest {
    pub(super) fn start(
        workshop: &Workshop,
        pod: &PodRequest,
        namespaces: &mut Option<PodNamespaces>,
        request: ContainerRequest,
        asker: Option<Asker>,
        timeline: &mut Timeline,
    ) -> Self {
        let mut log = Log::new(request.log.clone());
        let container = log
            .open()
            .map_err(|error| Refusal {
                reason: RefusalReason::CreateFailed,
                message: format!("open the log {}: {error}", request.log.path.display()),
            })
            .and_then(|()| serve::check_name(&request.name))
            .and_then(|()| container::start(workshop, pod, namespaces, &request, timeline));
        let (container, status) = match container {
            Ok(container) => (Some(container), ContainerStatus::Starting),
            Err(refusal) => (None, ContainerStatus::Failed { refusal, finished_at: Timestamp::now() }),
        };
        Self {
            attempt: request.attempt,
            container,
            status,
            oom_kills: 0,
            pids_limit_hits: 0,
            watches: Vec::new(),
            is_watched: true,
            log,
            asker,
            held: None,
        }
    }

    /// Sends a signal to the container's first process. `SIGTERM` is a request to end, and must not
    /// be lost because the process has only just started: it is held until the process would notice
    /// it.
    pub(super) fn signal(&mut self, signal: i32) -> io::Result<()> {
        let Some(container) = &self.container else { return Ok(()) };
        if signal == libc::SIGTERM && container.would_discard(signal) {
            self.held.get_or_insert_with(|| Held {
                signal,
                due: Instant::now() + FIRST_PAUSE,
                pause: FIRST_PAUSE,
            });
            return Ok(());
        }
        container.signal(signal)
    }

    /// Returns the time of the next call of [`Guest::deliver`].
    pub(super) fn delivery_due(&self) -> Option<Instant> {
        self.held.as_ref().filter(|_| self.container.is_some()).map(|held| held.due)
    }

    /// Sends a held signal if the container's first process would notice it now.
    pub(super) fn deliver(&mut self) {
        let (Some(held), Some(container)) = (&mut self.held, &self.container) else { return };
        if Instant::now() < held.due {
            return;
        }
        if container.would_discard(held.signal) {
            held.pause = (held.pause * 2).min(LONGEST_PAUSE);
            held.due = Instant::now() + held.pause;
            return;
        }
        // An error means that it has ended meanwhile. The event loop sees that next.
        let _ = container.signal(held.signal);
        self.held = None;
    }

    pub(super) fn state(&self) -> ContainerState {
        ContainerState {
            attempt: self.attempt,
            status: self.status.clone(),
            oom_kills: self.oom_kills,
            pids_limit_hits: self.pids_limit_hits,
        }
    }

    /// Logs the container's output and passes it to `show`, which returns false when it can take no
    /// more. Returns false when the stream has ended.
    pub(super) fn pump(&mut self, stream: Stream, chunks: usize, show: impl FnMut(&[u8]) -> bool) -> bool {
        let Some(container) = &mut self.container else { return false };
        let pipe = match stream {
            Stream::Stdout => &mut container.streams.stdout,
            Stream::Stderr => &mut container.streams.stderr,
        };
        let Some(open) = pipe else { return false };
        let goes_on = self.log.pump(stream, open, chunks, show);
        if !goes_on {
            *pipe = None;
        }
        goes_on
    }

    /// Reads the counters. Returns true if they have changed.
    pub(super) fn read_limit_events(&mut self) -> bool {
        let Some(container) = &self.container else { return false };
        for watch in &self.watches {
            // Reading silences a watch until the next event. A file must be read from its start.
            let mut buffer = [0u8; 256];
            let _ = if watch.exceptional {
                rustix::io::pread(&watch.descriptor, &mut buffer, 0)
            } else {
                rustix::io::read(&watch.descriptor, &mut buffer)
            };
        }
        let before = (self.oom_kills, self.pids_limit_hits);
        self.oom_kills = container.cgroup.oom_kills().unwrap_or(self.oom_kills);
        self.pids_limit_hits = container.cgroup.pids_limit_hits().unwrap_or(self.pids_limit_hits);
        before != (self.oom_kills, self.pids_limit_hits)
    }
}
