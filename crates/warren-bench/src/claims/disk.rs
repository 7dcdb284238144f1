//! Measures the disk's share of a claim. A warm claim is a create and three writes, each on disk
//! before the next begins. This runs the same chain of plain writes at the times of the claims of
//! the part `steady`.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use crate::summary::Summary;

/// The writes of a claim: a create, two writes for the assignment, and the status.
const WRITES: usize = 4;
/// The approximate growth of the store's log per write, in bytes.
const BYTES: usize = 24 << 10;
/// The approximate length of the log, in bytes.
const LENGTH: usize = 4 << 20;

/// Runs the chains at their times, one after the other.
#[expect(clippy::disallowed_methods, reason = "what is waited for is the time of the next chain")]
pub fn measure(arrivals: &[Duration]) -> anyhow::Result<Option<Summary>> {
    eprintln!("disk: {} chains of plain writes", arrivals.len());
    let file: File = tempfile::tempfile()?;
    let bytes = vec![0x55; BYTES];
    // Like the store's log, the file has its full length and is overwritten from the beginning
    // again and again.
    let places = (0..LENGTH).step_by(BYTES).map(|place| place as u64);
    for place in places.clone() {
        file.write_all_at(&bytes, place)?;
    }
    file.sync_all()?;
    let mut places = places.cycle();
    let began = Instant::now();
    let mut times = Vec::with_capacity(arrivals.len());
    for arrival in arrivals {
        // A chain that starts late because of the one before is timed from its due time, like a
        // claim.
        let at = began + *arrival;
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        for place in places.by_ref().take(WRITES) {
            file.write_all_at(&bytes, place)?;
            file.sync_data()?;
        }
        times.push(at.elapsed());
    }
    Ok(Summary::of("four plain writes on the disk", times))
}
