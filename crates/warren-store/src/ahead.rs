use std::sync::Arc;

use tokio::sync::watch;

use crate::{Object, Store, Urgency, Write, WriteError};

/// Writes that follow from one another: each is made on the answer to the one before, and only the last is for others to see. A change is
/// answered as soon as it is in order, before it is on the disk, so that all of them can go there together. Nobody else sees it sooner
/// than they would have.
///
/// Once such a write is lost, because the disk refused it, everything that comes later is refused as well: it may follow from what never
/// came to be. Whoever wrote it begins again with a new one of these, from what is on the disk, as after a crash.
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

    /// Makes all of these changes or none. Returns once they are on the disk if they are awaited there, else once they are in order: whatever is
    /// written later then comes behind them, or is refused if they are lost.
    pub async fn write(&self, writes: Vec<Write>, urgency: Urgency) -> Result<Vec<Arc<Object>>, WriteError> {
        let ordered = self.store.submit(writes, Some(self.founded_on), urgency)?;
        match urgency == Urgency::Awaited || ordered.is_far_ahead {
            true => ordered.on_disk().await,
            false => Ok(ordered.objects),
        }
    }

    /// Returns when a write is lost that had been answered; from then on nothing is taken.
    pub async fn lost(&self) {
        let mut losses = self.losses.clone();
        if losses.wait_for(|losses| *losses != self.founded_on).await.is_err() {
            // The store is gone, and whatever there was in it has been written.
            std::future::pending::<()>().await;
        }
    }
}
