//! Appends to a session that outlast a full disk.

use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use warren_sessions::{NewEvent, SessionError, Store, Turn};

/// The number of times that an append is tried again when the disk is full or the database busy,
/// and the pause in between.
const RETRIES: u32 = 150;
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// Appends output. While the disk is full it tries again, and the writer waits. Its turn keeps it
/// from being stored twice.
pub async fn append(
    store: &Store,
    session: &str,
    events: Vec<NewEvent>,
    turn: Turn,
    shutdown: &CancellationToken,
) -> Result<(), SessionError> {
    let mut left = RETRIES;
    loop {
        let appended = store.append(session, events.clone(), Some(turn.clone()), Timestamp::now()).await;
        match appended {
            Err(SessionError::Database(error)) if left > 0 && !shutdown.is_cancelled() => {
                tracing::warn!(session, error, "output waits for the disk");
                left -= 1;
                tokio::time::sleep(RETRY_AFTER).await;
            }
            appended => return appended.map(drop),
        }
    }
}
