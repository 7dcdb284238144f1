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

/// Not more often than a person can read.
const BETWEEN_UPDATES: Duration = Duration::from_millis(100);

/// A line that counts bytes for a person who waits; nothing where nobody looks, nor for what is done at once.
#[derive(Debug)]
pub struct Meter {
    what: String,
    next: std::time::Instant,
    shown: bool,
    looks: bool,
}

impl Meter {
    /// Begins to count.
    pub fn new(what: String) -> Self {
        let next = std::time::Instant::now() + PATIENCE;
        Self { what, next, shown: false, looks: std::io::stderr().is_terminal() }
    }

    /// So much is done, of so much.
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

/// A number of bytes for people, in powers of a thousand.
pub fn bytes(count: u64) -> String {
    let units = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    let amount = count as f64;
    match units.into_iter().find(|(_, size)| amount >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", amount / size),
        None => format!("{count} B"),
    }
}
