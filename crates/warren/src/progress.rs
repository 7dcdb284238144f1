//! Shows progress to a waiting user.

use std::future::Future;
use std::io::IsTerminal as _;
use std::time::Duration;

/// The time after which a message is shown.
const PATIENCE: Duration = Duration::from_secs(1);

/// Waits for a future; if it takes long, shows a message on a terminal.
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
    // Return to the start of the line, and erase it.
    eprint!("\r\x1b[K");
    output
}

/// The shortest time between two updates, so that they can be read.
const BETWEEN_UPDATES: Duration = Duration::from_millis(100);

/// A line that counts bytes on a terminal. It is not shown elsewhere, nor for short operations.
#[derive(Debug)]
pub struct Meter {
    what: String,
    next: std::time::Instant,
    shown: bool,
    looks: bool,
}

impl Meter {
    /// Starts to count.
    pub fn new(what: String) -> Self {
        let next = std::time::Instant::now() + PATIENCE;
        Self { what, next, shown: false, looks: std::io::stderr().is_terminal() }
    }

    /// Shows the finished bytes, of a total if it is known.
    pub fn show(&mut self, done: u64, total: Option<u64>) {
        let now = std::time::Instant::now();
        if !self.looks || now < self.next {
            return;
        }
        self.next = now + BETWEEN_UPDATES;
        self.shown = true;
        let total = total.map(|total| format!(" of {}", bytes(total))).unwrap_or_default();
        eprint!("\r\x1b[K{}: {}{total}", self.what, bytes(done));
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}

/// Formats a number of bytes in powers of a thousand.
pub fn bytes(count: u64) -> String {
    let units = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    let amount = count as f64;
    match units.into_iter().find(|(_, size)| amount >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", amount / size),
        None => format!("{count} B"),
    }
}
