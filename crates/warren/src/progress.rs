//! A line for people who wait.

use std::future::Future;
use std::io::IsTerminal as _;
use std::time::Duration;

/// After this long a person begins to wonder.
const PATIENCE: Duration = Duration::from_secs(1);

/// Waits for something; if that takes long and a person is looking, says for what.
pub async fn show_if_slow<F: Future>(what: impl FnOnce() -> String, future: F) -> F::Output {
    tokio::pin!(future);
    if !std::io::stderr().is_terminal() {
        return future.await;
    }
    tokio::select! {
        output = &mut future => return output,
        () = tokio::time::sleep(PATIENCE) => eprint!("{}…", what()),
    }
    let output = future.await;
    // Back to the start of the line, and erase it.
    eprint!("\r\x1b[K");
    output
}
