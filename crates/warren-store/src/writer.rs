//! The writer thread: commits all queued writes in one transaction, publishes and acknowledges
//! them.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::sync::oneshot;

use crate::database::{CHECKPOINT_AFTER_IDLE, Database};
use crate::store::{Head, Shared};
use crate::watch::Change;

/// One queued write.
pub(crate) struct Job {
    pub changes: Vec<Change>,
    pub urgency: Urgency,
    pub done: oneshot::Sender<Result<(), CommitError>>,
}

/// The urgency of a write. It decides when the write is acknowledged and committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Commit at once and acknowledge afterwards.
    Awaited,
    /// Already acknowledged. Commit at once, because other readers wait for it.
    Shown,
    /// Already acknowledged. Commit together with the next more urgent write.
    CanWait,
}

/// The commit that contained a write failed. No part of it was applied.
#[derive(Debug, Clone, Error)]
#[error("commit to the store's file")]
pub struct CommitError(#[source] Arc<rusqlite::Error>);

impl CommitError {
    /// Returns true if the disk is full. In all other cases it fails or is read-only.
    pub fn is_full(&self) -> bool {
        self.0.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull)
    }
}

/// The priority of the writer over the other threads of the process, if permitted. Any of them may
/// be waiting for it, above all between two syncs of the disk.
const AHEAD: i32 = 10;

/// Runs until the store is closed. If this thread panics, every waiting write is refused and
/// [`Store::failed`] returns.
///
/// [`Store::failed`]: crate::Store::failed
pub(crate) fn run(shared: &Shared, mut database: Database) {
    let _refuse_on_panic = RefuseOnPanic(shared);
    let mut health = Health::default();
    if let Err(error) = rustix::process::nice(-AHEAD) {
        tracing::debug!(%error, "the writer goes no sooner than others");
    }
    while let Some(jobs) = next_batch(shared, &mut database) {
        let began = Instant::now();
        let outcome = database.commit(jobs.iter().flat_map(|job| &job.changes));
        shared.disk.commits.observe(began.elapsed());
        match outcome {
            Ok(()) => {
                publish(shared, jobs);
                health.succeeded();
            }
            Err(error) => {
                let error = CommitError(Arc::new(error));
                fail(shared, jobs, &error);
                health.failed(&error);
            }
        }
        if database.needs_checkpoint() {
            checkpoint(shared, &mut database);
        }
    }
    database.checkpoint();
}

/// Closes the store if its thread panics, so that no write waits for ever and no unacknowledged
/// object keeps its name.
struct RefuseOnPanic<'a>(&'a Shared);

impl Drop for RefuseOnPanic<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let refused = {
            let mut head = self.0.head();
            head.closed = true;
            head.pending.clear();
            head.losses.send_modify(|losses| *losses += 1);
            std::mem::take(&mut head.queue)
        };
        // Dropping a sender tells its receiver that the store is closed.
        drop(refused);
        self.0.failed.send_replace(true);
    }
}

/// Logs when commits begin to fail and when they succeed again, not each failure: a full disk
/// refuses thousands of commits.
#[derive(Default)]
struct Health {
    failures: u64,
}

impl Health {
    fn succeeded(&mut self) {
        let failures = std::mem::take(&mut self.failures);
        if failures > 0 {
            tracing::info!(failures, "store commits succeed again");
        }
    }

    fn failed(&mut self, error: &CommitError) {
        self.failures += 1;
        if self.failures == 1 {
            tracing::error!(%error, cause = %error.0, "store commits fail; writes are refused");
        }
    }
}

fn checkpoint(shared: &Shared, database: &mut Database) {
    let began = Instant::now();
    database.checkpoint();
    shared.disk.checkpoints.observe(began.elapsed());
}

/// The number of waiting writes that suggests that more are about to come.
const MANY: usize = 3;
/// The time to wait for more writes in that case: a commit costs the same for one write as for
/// twenty.
const GATHER: Duration = Duration::from_millis(1);

/// The time that deferrable writes wait for an urgent one.
const LINGER: Duration = Duration::from_millis(2);

/// Waits for work. Returns `None` when the store is closed and all queued writes are done.
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
        // Remove pending writes only now: readers of the head must find each write either here or
        // among the committed ones.
        let mut head = shared.head();
        for (key, version) in written {
            if head.pending.get(&key).is_some_and(|pending| pending.version == version) {
                head.pending.remove(&key);
            }
        }
    }
    for done in acknowledgements {
        // The caller may have gone away.
        let _ = done.send(Ok(()));
    }
}

/// Fails the batch and everything queued behind it, because those writes were checked against a
/// state that will not exist. Clients that write ahead of the disk are refused from now on.
fn fail(shared: &Shared, jobs: Vec<Job>, error: &CommitError) {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Action, Expect, Key, Storage, Store, Write, WriteError};

    #[tokio::test]
    async fn a_writer_that_panics_refuses_what_waits_and_keeps_no_name() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&Storage::File(directory.path().join("store.db"))).unwrap();
        let create = |name: &str| Write {
            key: Key::new("things", "a", name),
            expect: Expect::Absent,
            action: Action::Put(json!({"metadata": {"name": name}}).into()),
        };
        store.write_one(create("before")).await.unwrap();
        let shared = store.without_its_writer();
        let waits = store.submit(vec![create("waits")], None, Urgency::Awaited).unwrap();
        assert!(store.newest(&Key::new("things", "a", "waits")).is_some(), "it is on its way");

        let thread = std::thread::spawn(move || {
            let _refuse_on_panic = RefuseOnPanic(&shared);
            panic!("a test of panics");
        });
        assert!(thread.join().is_err());
        store.failed().await;
        assert!(matches!(waits.on_disk().await, Err(WriteError::Closed)));
        assert!(store.newest(&Key::new("things", "a", "waits")).is_none());
        assert!(matches!(store.write_one(create("waits")).await, Err(WriteError::Closed)));
        assert!(store.get(&Key::new("things", "a", "before")).is_some(), "reads go on");
    }
}
