//! Writes that are acknowledged before they are on disk.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{Object, Store, Urgency, Write, WriteError};

/// Writes that depend on one another: each is based on the answer to the one before, and only the
/// last matters to other clients. A write is acknowledged once it is ordered, before it is on disk,
/// so that all of them can share one commit. Other readers see it only after the commit, as usual.
///
/// If the disk refuses such a write, every later write through this value is refused as well,
/// because it may depend on the lost one. The client must then start again with a new `Ahead`, from
/// the state on disk, as after a crash.
pub struct Ahead {
    store: Store,
    losses: watch::Receiver<u64>,
    founded_on: u64,
}

impl Ahead {
    pub(crate) fn new(store: Store, mut losses: watch::Receiver<u64>) -> Ahead {
        let founded_on = *losses.borrow_and_update();
        Ahead { store, losses, founded_on }
    }

    /// Makes all of these changes or none. An awaited write returns once it is on disk. Any other
    /// write returns once it is ordered: later writes come after it, and are refused if it is lost.
    pub async fn write(&self, writes: Vec<Write>, urgency: Urgency) -> Result<Vec<Arc<Object>>, WriteError> {
        let ordered = self.store.submit(writes, Some(self.founded_on), urgency)?;
        match urgency == Urgency::Awaited || ordered.is_far_ahead {
            true => ordered.on_disk().await,
            false => Ok(ordered.objects),
        }
    }

    /// Returns when an acknowledged write is lost. Later writes are then refused.
    pub async fn lost(&self) {
        let mut losses = self.losses.clone();
        if losses.wait_for(|losses| *losses != self.founded_on).await.is_err() {
            // The store is closed and everything in it has been written.
            std::future::pending::<()>().await;
        }
    }
}
