//! The writer thread: takes everything that is queued, commits it in one transaction, publishes it, acknowledges it.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::sync::oneshot;

use crate::database::{CHECKPOINT_AFTER_IDLE, Database};
use crate::store::{Head, Shared};
use crate::watch::Change;

/// One write as it waits for the disk.
pub(crate) struct Job {
    pub changes: Vec<Change>,
    pub urgency: Urgency,
    pub done: oneshot::Sender<Result<(), CommitError>>,
}

/// How soon a write goes to the disk, and who waits for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// At once: whoever wrote it is answered then.
    Awaited,
    /// At once, because others wait to see it; it was answered when it came.
    Shown,
    /// With the next that is more urgent; it was answered when it came.
    CanWait,
}

/// The commit that carried a write failed; nothing of it was applied.
#[derive(Debug, Clone, Error)]
#[error("commit to the store's file")]
pub struct CommitError(#[source] Arc<rusqlite::Error>);

impl CommitError {
    /// Whether the disk has no room left. Everything else is a disk that fails, or that may not be written.
    pub fn is_full(&self) -> bool {
        self.0.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull)
    }
}

/// So far ahead of its process's other threads is the writer, if that may be: each of them may be waiting for it, most of all for the
/// moment between two waits for the disk.
const AHEAD: i32 = 10;

pub(crate) fn run(shared: &Shared, mut database: Database) {
    if let Err(error) = rustix::process::nice(-AHEAD) {
        tracing::debug!(%error, "the writer goes no sooner than others");
    }
    while let Some(jobs) = next_batch(shared, &mut database) {
        let began = Instant::now();
        let outcome = database.commit(jobs.iter().flat_map(|job| &job.changes));
        shared.disk.commits.observe(began.elapsed());
        match outcome {
            Ok(()) => publish(shared, jobs),
            Err(error) => fail(shared, jobs, CommitError(Arc::new(error))),
        }
        if database.needs_checkpoint() {
            checkpoint(shared, &mut database);
        }
    }
    database.checkpoint();
}

fn checkpoint(shared: &Shared, database: &mut Database) {
    let began = Instant::now();
    database.checkpoint();
    shared.disk.checkpoints.observe(began.elapsed());
}

/// When so many writes wait, more are on their way.
const MANY: usize = 3;
/// Then it is worth waiting so long for them: a commit costs the same for one write as for twenty.
const GATHER: Duration = Duration::from_millis(1);

/// So long, writes that can wait do so for one that cannot.
const LINGER: Duration = Duration::from_millis(2);

/// Waits for work; `None` when the store is closed and everything queued has been written.
#[expect(clippy::disallowed_methods, reason = "a thread of its own, which waits for others to write")]
fn next_batch(shared: &Shared, database: &mut Database) -> Option<Vec<Job>> {
    let mut head = shared.head();
    loop {
        if !head.queue.is_empty() {
            let can_wait = |head: &mut Head| {
                head.queue.iter().all(|job| job.urgency == Urgency::CanWait) && !head.closed
            };
            (head, _) = shared
                .wake_writer
                .wait_timeout_while(head, LINGER, can_wait)
                .unwrap_or_else(PoisonError::into_inner);
            let urgent = head.queue.iter().filter(|job| job.urgency != Urgency::CanWait).count();
            if urgent >= MANY && !head.closed {
                drop(head);
                std::thread::sleep(GATHER);
                head = shared.head();
            }
            return Some(std::mem::take(&mut head.queue));
        }
        if head.closed {
            return None;
        }
        if !database.wants_checkpoint() {
            head = shared.wake_writer.wait(head).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        let (returned, timeout) = shared
            .wake_writer
            .wait_timeout(head, CHECKPOINT_AFTER_IDLE)
            .unwrap_or_else(PoisonError::into_inner);
        head = returned;
        if timeout.timed_out() && head.queue.is_empty() {
            drop(head);
            checkpoint(shared, database);
            head = shared.head();
        }
    }
}

fn publish(shared: &Shared, jobs: Vec<Job>) {
    let mut acknowledgements = Vec::with_capacity(jobs.len());
    let mut written = Vec::with_capacity(jobs.len());
    {
        let mut committed = shared.committed_mut();
        for job in jobs {
            for change in job.changes {
                written.push((change.object.key.clone(), change.object.version));
                committed.apply(change);
            }
            acknowledgements.push(job.done);
        }
    }
    {
        // Only now: whoever looks at the head always finds a write either here or among the committed.
        let mut head = shared.head();
        for (key, version) in written {
            if head.pending.get(&key).is_some_and(|pending| pending.version == version) {
                head.pending.remove(&key);
            }
        }
    }
    for done in acknowledgements {
        // A caller that went away does not need its answer.
        let _ = done.send(Ok(()));
    }
}

/// Fails the batch, and everything queued behind it: those writes were checked against a state that now never comes. Nor do those
/// who were answered already write anything more that follows from it.
fn fail(shared: &Shared, jobs: Vec<Job>, error: CommitError) {
    tracing::error!(%error, cause = %error.0, writes = jobs.len(), "store commit failed");
    let lost: Vec<Job> = {
        let mut head = shared.head();
        head.pending.clear();
        let lost: Vec<Job> = jobs.into_iter().chain(head.queue.drain(..)).collect();
        if lost.iter().any(|job| job.urgency != Urgency::Awaited) {
            head.losses.send_modify(|losses| *losses += 1);
        }
        lost
    };
    for job in lost {
        let _ = job.done.send(Err(error.clone()));
    }
}
