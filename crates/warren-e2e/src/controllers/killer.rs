//! Kills the controllers from time to time, as `kill -9` would, for scenarios that must not be
//! affected.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::harness::Home;

/// The lifetime of controllers in milliseconds: sometimes only long enough to list objects, usually
/// long enough to be in the middle of work.
const LIFETIME: std::ops::Range<u64> = 300..2500;

/// A task that kills until it is told to stop.
pub(super) struct Killer {
    enough: CancellationToken,
    kills: Arc<AtomicUsize>,
    task: JoinHandle<Result<()>>,
}

impl Killer {
    pub(super) fn start(home: &Arc<Home>) -> Self {
        let (home, enough, kills) = (Arc::clone(home), CancellationToken::new(), Arc::default());
        let (told, count) = (enough.clone(), Arc::<AtomicUsize>::clone(&kills));
        let task = tokio::spawn(async move {
            loop {
                let pause = Duration::from_millis(fastrand::u64(LIFETIME));
                tokio::select! {
                    () = told.cancelled() => return Ok(()),
                    () = tokio::time::sleep(pause) => {}
                }
                count.fetch_add(1, Ordering::Relaxed);
                home.restart_controllers().await?;
            }
        });
        Self { enough, kills, task }
    }

    pub(super) fn kills(&self) -> usize {
        self.kills.load(Ordering::Relaxed)
    }

    /// Returns true if it has stopped because the controllers could not be started again.
    pub(super) fn is_spent(&self) -> bool {
        self.task.is_finished()
    }

    /// Stops killing, and returns the number of kills.
    pub(super) async fn stop(self) -> Result<usize> {
        self.enough.cancel();
        self.task.await??;
        Ok(self.kills.load(Ordering::Relaxed))
    }
}
